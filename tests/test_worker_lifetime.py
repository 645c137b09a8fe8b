"""How workers end: with the loop, the loader, a killed trainer, and when they die themselves."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np
import psutil
import pytest
from processes import METHODS, children, left_in_shared_memory, shared_memory_names, unmeasured
from torch.utils.data import DataLoader

import sharedds.workers.starting
from sharedds.errors import WorkerDiedError
from sharedds.loader import build_loader
from sharedds.workers.queues import AnsweringQueue

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


TRAINER = """
import multiprocessing, os, sys, time
from sharedds import build_loader

class Slow:
    def __len__(self): return 4
    def __getitem__(self, index):
        os.write(1, b"%d\\n" % os.getpid())  # at once: two workers write
        time.sleep(600)

if __name__ == "__main__" and sys.argv[1] == "plain":
    process = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(600,))
    process.start()
    print(process.pid, process.pid, flush=True)
    time.sleep(600)
if sys.argv[1] != "plain":
    next(iter(build_loader(Slow(), num_workers=2, start_method=sys.argv[1])))
"""


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Callable[[str], list[psutil.Process]]]:
    """Start a trainer, kill it once both workers are inside a sample; returns the workers."""
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    workers: list[psutil.Process] = []

    def kill(method: str) -> list[psutil.Process]:
        command = [sys.executable, str(script), method]
        with subprocess.Popen(
            command,
            env=unmeasured()
            | {"PYTHONPATH": str(Path(sharedds.workers.starting.__file__).parents[2])},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as trainer:
            assert trainer.stdout is not None
            words = ""
            while len(words.split()) < 2 and (line := trainer.stdout.readline()):
                words += line
            workers.extend(psutil.Process(int(pid)) for pid in words.split())
            trainer.send_signal(signal.SIGKILL)
        return workers

    yield kill
    for worker in workers:
        if is_alive(worker):
            worker.kill()


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; one that only waits to be collected does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Ask again and again; False when time is up."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the plain way is by fork server")
def test_a_plain_process_outlives_a_killed_trainer(
    killed: Callable[[str], list[psutil.Process]],
) -> None:
    """Its parent is the fork server, which lives on: this is what the guard is for."""
    workers = killed("plain")
    assert not wait_until(lambda: not any(map(is_alive, workers)), 1.5)


@pytest.mark.parametrize("method", METHODS)
def test_workers_end_when_the_trainer_is_killed(
    method: str, killed: Callable[[str], list[psutil.Process]]
) -> None:
    """After kill -9 no worker lives on for 5 s, and nothing stays in /dev/shm."""
    before = shared_memory_names()
    workers = killed(method)
    assert len(workers) == 2
    assert wait_until(lambda: not any(map(is_alive, workers)), 5)
    assert not left_in_shared_memory(before)


def test_a_loader_whose_loop_was_broken_off_leaves_no_worker() -> None:
    """The fork server stays for the next loader, workers do not."""
    samples: Any = range(9)
    before = children()
    iterator = iter(build_loader(samples, num_workers=2, start_method="forkserver"))
    next(iterator)
    assert len(children() - before) == 2
    del iterator
    assert not children() - before


# --- workers that die ----------------------------------------------------------------------------


def killed_by_itself() -> None:
    """End as the kernel ends a process that takes too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)


class Dying:
    """Forty samples, at the seventh of which something happens to the process."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.action = action

    def __len__(self) -> int:
        return 40

    def key(self, index: int) -> str:
        """The name of a sample."""
        return f"scan-{index}"

    def __getitem__(self, index: int) -> int:
        time.sleep(0.02)  # for the watch to see the worker, as it sees real ones
        if index == 7:
            self.action()
        return index


def deadly(action: Callable[[], object], method: str = "fork") -> Any:
    """A loader with two workers, the second of which dies at its first batch."""
    return build_loader(Dying(action), batch_size=4, num_workers=2, start_method=method)  # type: ignore[arg-type]


def last_words(action: Callable[[], object], method: str = "fork") -> str:
    """The error for a worker that dies; all else has ended then, and nothing is left."""
    before, started = shared_memory_names(), children()
    begin = time.monotonic()
    with pytest.raises(WorkerDiedError) as caught:
        list(deadly(action, method))
    assert time.monotonic() - begin < 15
    assert not children() - started
    # The error, held here, holds the loader and with it the semaphores of its queues.
    left = left_in_shared_memory(before)
    assert not {name for name in left if name.startswith("torch_")}
    return str(caught.value)


def test_torch_says_little_about_a_killed_worker() -> None:
    """Neither the samples it was at nor memory: this is what the error here is for."""
    plain: Any = iter(DataLoader(Dying(killed_by_itself), batch_size=4, num_workers=2))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="DataLoader worker") as caught:
        list(plain)
    plain._shutdown_workers()
    assert "7" not in str(caught.value).split("(pid", 1)[0]
    assert "memory" not in str(caught.value)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_killed_worker_is_explained(method: str) -> None:
    """One error: signal, samples in hand and waiting, memory of worker and machine, advice."""
    text = last_words(killed_by_itself, method)
    assert "worker 1 (pid" in text
    assert "was killed by SIGKILL (signal 9)" in text
    assert "samples 4, 5, 6, 7 of epoch 0 (scan-4, scan-5, scan-6, scan-7)" in text
    assert "waiting for it: 12, 13, 14, 15" in text
    assert "peak resident" in text
    assert "private (USS)" in text
    assert "MB available" in text
    assert "/dev/shm" in text
    assert "cause and remedy" in text


def test_an_exit_code_is_named() -> None:
    """A dataset that ends the process is no silent end of the epoch."""
    assert "worker 1 (pid" in (text := last_words(lambda: os._exit(3)))
    assert "ended with exit code 3" in text


def test_a_crash_shows_where_it_was() -> None:
    """The stack at the moment of the crash is in the error."""
    text = last_words(lambda: ctypes.string_at(0))
    assert "SIGSEGV" in text
    assert "in __getitem__" in text
    assert "string_at" in text


def test_a_crash_far_down_does_not_wait_for_a_reader() -> None:
    """Its stack is longer than what nobody has read yet may be."""
    name = "x" * 500
    space: dict[str, Any] = {"crash": lambda: ctypes.string_at(0)}
    exec(f"def {name}(depth): return {name}(depth - 1) if depth else crash()", space)
    assert name in last_words(lambda: space[name](200))


def test_a_mapped_file_cut_short_is_named(tmp_path: Path) -> None:
    """The bus error is not blamed on shared memory, as torch does."""
    path = tmp_path / "volume.raw"
    path.write_bytes(bytes(1 << 20))
    mapped = np.memmap(path, mode="r")

    def cut_short() -> None:
        os.truncate(path, 4096)
        mapped[-1].item()

    text = last_words(cut_short)
    assert "SIGBUS" in text
    assert f"{path} was cut short: 4,096 bytes are left of 1,048,576" in text
    assert "--shm-size" not in text


def test_a_death_never_interrupts_the_training_step() -> None:
    """It is told by the next ``next()``: torch would raise from a signal handler, anywhere."""
    before = children()
    batches = iter(deadly(killed_by_itself))
    assert next(batches).tolist() == [0, 1, 2, 3]
    end = time.monotonic() + 1
    while time.monotonic() < end:  # a training step, which may be writing a checkpoint
        time.sleep(0.01)
    assert len(children() - before) == 1
    with pytest.raises(WorkerDiedError):
        next(batches)


def test_an_uncaught_death_is_an_exit_status(tmp_path: Path) -> None:
    """A script ends with status 1, and its last words are ours."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os\nfrom sharedds import build_loader\n"
        "class Bad(list):\n"
        "    def __getitem__(self, index): os.kill(os.getpid(), 9)\n"
        "list(build_loader(Bad(range(9)), num_workers=2))\n"
    )
    environment = unmeasured() | {
        "PYTHONPATH": str(Path(sharedds.workers.starting.__file__).parents[2])
    }
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "sharedds.errors.WorkerDiedError: worker" in done.stderr


def test_half_a_message_is_no_wait_for_ever() -> None:
    """A worker killed while it writes leaves a part of a batch; reading goes on after it."""
    context = multiprocessing.get_context("fork")
    queue: Any = AnsweringQueue(ctx=context)
    plain: Any = context.Queue()
    message = pickle.dumps("x" * 200).ljust(256, b".")
    for each in (queue, plain):
        each._sem.acquire()  # as put() would
        os.write(each._writer.fileno(), b"\0\0\1\0" + message[:10])  # 256 bytes are announced
    stuck = threading.Thread(target=lambda: plain.get(timeout=0.1), daemon=True)
    stuck.start()
    with pytest.raises(Empty):
        queue.get(timeout=0.1)
    stuck.join(0.5)
    assert stuck.is_alive()
    for each in (queue, plain):
        os.write(each._writer.fileno(), message[10:])
    assert queue.get(timeout=5) == "x" * 200
    stuck.join(5)
    for each in (queue, plain):
        each.close()
