"""How workers end: with the loop, with the loader, and with a trainer that was killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import sharedds.loader.worker
from sharedds.loader import build_loader

METHODS = [
    pytest.param("fork", marks=pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")),
    "forkserver",
    "spawn",
]


def shm() -> set[str]:
    """Names in /dev/shm, where torch and multiprocessing keep what they share."""
    folder = Path("/dev/shm")
    return {entry.name for entry in folder.iterdir()} if folder.exists() else set()


TRAINER = """
import multiprocessing, os, sys, time
from sharedds import build_loader

class Slow:
    def __len__(self): return 4
    def __getitem__(self, index):
        print(os.getpid(), flush=True)
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
            env=os.environ | {"PYTHONPATH": str(Path(sharedds.loader.worker.__file__).parents[2])},
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
    before = shm()
    workers = killed(method)
    assert len(workers) == 2
    assert wait_until(lambda: not any(map(is_alive, workers)), 5)
    assert wait_until(lambda: shm() <= before, 5)


def test_a_loader_whose_loop_was_broken_off_leaves_no_worker() -> None:
    """The fork server stays for the next loader, workers do not."""
    samples: Any = range(9)
    iterator = iter(build_loader(samples, num_workers=2, start_method="forkserver"))
    next(iterator)
    assert len(multiprocessing.active_children()) == 2
    del iterator
    assert multiprocessing.active_children() == []
