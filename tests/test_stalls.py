"""Loops that wait too long: they end with a reason, and Ctrl-C ends everything at once."""

from __future__ import annotations

import _thread
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from processes import unmeasured

import sharedds.loader.processes
import sharedds.workers.stacks
from sharedds.errors import LoaderStalledError, WorkerError
from sharedds.loader import build_loader

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class Stuck:
    """Samples of which one takes for ever."""

    def __init__(self, kind: str = "sleep", seconds: float = 600) -> None:
        self.kind = kind
        self.seconds = seconds

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 3 and self.kind == "sleep":
            time.sleep(self.seconds)
        elif index == 3:
            re.match("(a+)+$", "a" * 60 + "b")  # C code that does not give the interpreter free
        return index


def stalled(dataset: Any, method: str, timeout: float = 2) -> str:
    """The error of a loader that does not wait for ever."""
    loader: Any = build_loader(dataset, num_workers=2, start_method=method, timeout=timeout)
    begin = time.monotonic()
    with pytest.raises(LoaderStalledError) as caught:
        list(loader)
    assert time.monotonic() - begin < 15
    return str(caught.value)


@pytest.mark.parametrize(("method", "timeout"), [("fork", 2), ("forkserver", 6)])
def test_a_stall_shows_where_the_workers_are(method: str, timeout: int) -> None:
    """The error has the samples each worker has in hand, and its stack."""
    if method == "forkserver":  # whose start is not what is timed
        list(build_loader(Stuck(seconds=0), num_workers=1, start_method=method))  # type: ignore[arg-type]
    text = stalled(Stuck(), method, timeout)
    assert f"timeout={timeout}" in text
    assert re.search(r"worker 1 \(pid \d+\), in hand: samples 3 of epoch 0", text)
    assert re.search(r"test_stalls.py\", line \d+ in __getitem__", text)
    assert "_worker_loop" not in text  # what is below the dataset tells nothing


@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="needs real-time signals")
def test_c_code_that_holds_the_interpreter_is_shown_too() -> None:
    """No thread of the worker could answer."""
    assert "in match" in stalled(Stuck("C code"), "fork")


def test_a_thread_answers_where_there_is_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows."""
    monkeypatch.setattr(sharedds.workers.stacks, "_STACK_SIGNAL", None)
    assert "in __getitem__" in stalled(Stuck(), "fork")


def test_a_long_wait_without_a_timeout_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be just slow: a warning says which worker has which samples."""
    monkeypatch.setattr(sharedds.loader.processes, "_WARN_AFTER", 0.2)
    slow: Any = Stuck(seconds=1)
    loader = build_loader(slow, num_workers=2, start_method="fork")
    with pytest.warns(UserWarning, match=r"worker 1 .* has in hand: samples 3") as seen:
        assert len(list(loader)) == 8
    assert len(seen) == 1


# --- Ctrl-C --------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["process", "thread"])
def test_the_loop_says_so_after_ctrl_c(engine: str) -> None:
    """Going on with the same loop is an error that tells how to; a new one goes on from here."""
    data: Any = Stuck(seconds=1)
    method = "fork" if engine == "process" else None
    loader = build_loader(data, num_workers=1, engine=engine, start_method=method)
    batches: Any = iter(loader)
    got = [int(next(batches)) for _ in range(3)]
    threading.Timer(0.3, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    with pytest.raises(WorkerError, match="begin a new loop"):
        next(batches)
    loader.load_state_dict(loader.state_dict())
    data.seconds = 0
    assert got + [int(batch) for batch in loader] == list(range(8))


TRAINER = """
import os, re, signal, sys, time
from sharedds import build_loader

class Samples:
    def __len__(self): return 100
    def __getitem__(self, index):
        if sys.argv[1] == "stuck" and index > 5:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.write(1, b"%d\\n" % os.getpid())  # at once: two workers write
            re.match("(a+)+$", "a" * 60 + "b")
        return index

loader = build_loader(Samples(), num_workers=2)
for batch in loader:
    if sys.argv[1] == "training":
        import multiprocessing
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        time.sleep(600)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A trainer as a script."""
    path = tmp_path / "trainer.py"
    path.write_text(TRAINER)
    return path


@pytest.mark.parametrize("to_all", [False, True], ids=["to the trainer", "to all"])
@pytest.mark.parametrize("where", ["stuck", "training"])
def test_ctrl_c_ends_all_at_once(script: Path, where: str, to_all: bool) -> None:
    """Within 2 s, also workers in C code that ignore SIGTERM; nothing but one traceback."""
    root = Path(sharedds.loader.processes.__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, script, where],
        env=unmeasured() | {"PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as trainer:
        assert trainer.stdout is not None
        words: list[str] = []
        while len(words) < 2 and (line := trainer.stdout.readline()):
            words += line.split()
        workers = [psutil.Process(int(pid)) for pid in words]
        time.sleep(0.2)
        (os.killpg if to_all else os.kill)(trainer.pid, signal.SIGINT)
        alive = psutil.wait_procs(workers, timeout=2)[1]
        for worker in alive:
            worker.kill()
        _, error = trainer.communicate(timeout=20)  # most of the time, torch is being unloaded
    assert not alive
    assert trainer.returncode in (-signal.SIGINT, 130, 1)
    assert error.count("Traceback") == 1
    assert error.rstrip().endswith("KeyboardInterrupt")
