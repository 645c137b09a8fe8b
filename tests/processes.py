"""Running things in other processes, for tests."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

__all__ = [
    "METHODS",
    "OF_TESTS",
    "children",
    "descriptors",
    "forked",
    "in_process",
    "left_in_shared_memory",
    "mounted",
    "python",
    "shared_memory_names",
    "started",
    "unmeasured",
]

T = TypeVar("T")

METHODS = [
    pytest.param("fork", marks=pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")),
    "forkserver",
    "spawn",
]


#: How names begin of what tests put into /dev/shm themselves: files that are quick to sync.
OF_TESTS = "sharedds-tests-"


def in_process(method: str, function: Callable[..., T], *arguments: object) -> T:
    """Call a function of a module in a new process and return what it returned."""
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result(timeout=60)


def children() -> set[BaseProcess]:
    """Processes that multiprocessing has started here and that live.

    Tests look at what is new among them: an error kept by a test before, in a cycle that is not
    collected yet, may still hold a loader and its workers.
    """
    return set(multiprocessing.active_children())


def shared_memory_names() -> set[str]:
    """Names in /dev/shm, where torch and multiprocessing keep what they share."""
    folder = Path("/dev/shm")
    names = {entry.name for entry in folder.iterdir()} if folder.exists() else set()
    return {name for name in names if not name.startswith(OF_TESTS)}


def left_in_shared_memory(before: set[str], seconds: float = 5) -> set[str]:
    """Names that are new in /dev/shm and stay, though no other program that lives has them."""
    end = time.monotonic() + seconds
    left = shared_memory_names() - before
    while left and time.monotonic() < end:
        time.sleep(0.05)
        left &= shared_memory_names()
    return left - _mapped_elsewhere() if left else left


def _mapped_elsewhere() -> set[str]:
    """Names in /dev/shm that processes have mapped which are neither this one nor below it."""
    own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    names = set()
    for pid in set(psutil.pids()) - own:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
            names |= {line.rpartition("/dev/shm/")[2] for line in lines if "/dev/shm/" in line}
    return names


def unmeasured() -> dict[str, str]:
    """Return the environment without what makes a child measure coverage.

    That would double the time of its imports, and be part of the memory that it is started to show.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}


def python(code: str, *arguments: str | Path, ok: bool = True) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter, with warnings as errors; ``ok`` wants exit status 0."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=unmeasured(),
    )
    assert not ok or done.returncode == 0, done.stderr
    return done


def started(code: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """Start code in a fresh interpreter and return the running process."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=unmeasured(),
    )


def descriptors() -> int:
    """Return how many files this process has open."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def forked(child: Callable[[], Any]) -> int:
    """Run a function in a plain fork and return its exit status."""
    pid = os.fork()
    if pid == 0:
        try:
            child()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def mounted(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a shell script in a mount namespace of its own, or skip where that is not allowed."""
    unshare = shutil.which("unshare")
    if os.geteuid() != 0 or unshare is None:
        pytest.skip("needs root and unshare, to mount")
    probe = [unshare, "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    return subprocess.run(
        [unshare, "-m", "sh", "-euc", textwrap.dedent(script), "sh", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=unmeasured(),
    )
