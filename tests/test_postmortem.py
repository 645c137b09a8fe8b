"""What is read of the system about a dead worker, on made-up trees of its files."""

from __future__ import annotations

import mmap
import os
import signal
from pathlib import Path

import pytest

from sharedds.host.shared import SharedMemoryRoom
from sharedds.workers.postmortem import cause_and_advice, exit_text, is_signal_caught
from sharedds.workers.watch import WorkerWatch, mapped_files, worker_memory

GIB = 1 << 30
ROOM = SharedMemoryRoom(free=60 << 20, total=64 << 20)
FULL = SharedMemoryRoom(free=4096, total=64 << 20)


def tree(root: Path, files: dict[str, str]) -> Path:
    """Write files below a root folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 32 kB\nMemFree: 1 kB\nMemAvailable:   16777216 kB\n"}

V2 = MEMINFO | {
    "proc/self/cgroup": "0::/job/step\n",
    "sys/fs/cgroup/job/memory.max": f"{8 * GIB}\n",
    "sys/fs/cgroup/job/memory.current": f"{6 * GIB}\n",
    "sys/fs/cgroup/job/memory.events": "low 0\noom 3\noom_kill 2\n",
    "sys/fs/cgroup/job/step/memory.max": "max\n",
    "sys/fs/cgroup/job/step/memory.current": f"{5 * GIB}\n",
    "sys/fs/cgroup/job/step/memory.events": "oom_kill 1\n",
}


@pytest.mark.parametrize(
    ("code", "expected"),
    [(-9, "was killed by SIGKILL (signal 9)"), (3, "ended with exit code 3"), (-50, "(signal 50)")],
)
def test_an_exit_code_has_a_name(code: int, expected: str) -> None:
    """A signal is called by its name."""
    assert expected in exit_text(code)


@pytest.mark.parametrize(
    ("number", "oom_killed", "room", "changed", "expected"),
    [
        (signal.SIGKILL, True, ROOM, [], "because memory ran out"),
        (signal.SIGKILL, False, ROOM, [], "not the kernel"),
        (signal.SIGKILL, None, ROOM, [], "most often the kernel"),
        (signal.SIGBUS, False, ROOM, ["x.lmdb was cut short"], "x.lmdb was cut short"),
        (signal.SIGBUS, False, FULL, [], "--shm-size"),
        (signal.SIGBUS, False, ROOM, [], "network file system failed"),
        (signal.SIGBUS, False, None, [], "network file system failed"),
        (signal.SIGSEGV, False, ROOM, [], "native code"),
        (signal.SIGTERM, False, ROOM, [], "job scheduler"),
        (-3, False, ROOM, [], "os._exit"),
    ],
)
def test_causes_are_told_apart(
    number: int,
    oom_killed: bool | None,
    room: SharedMemoryRoom | None,
    changed: list[str],
    expected: str,
) -> None:
    """Each kind of death has an advice of its own; of bus errors there are three kinds."""
    text = cause_and_advice(-number, oom_killed=oom_killed, room=room, changed=changed)
    assert expected in text


def test_signals_with_a_handler_are_known(tmp_path: Path) -> None:
    """Only a process that catches a signal is sent one."""
    root = tree(tmp_path, {"proc/5/status": "Name: x\nSigCgt:\t0000000200000002\n"})
    assert [n for n in range(1, 65) if is_signal_caught(5, n, root)] == [2, 34]
    assert not is_signal_caught(6, 2, root)


def test_the_watch_remembers_a_process_that_is_gone(tmp_path: Path) -> None:
    """Peak and private memory are those of the last look."""
    rollup = "Pss: 20 kB\nPrivate_Clean: 4 kB\nPrivate_Dirty: 8 kB\n"
    status = "VmHWM:  100 kB\nRssAnon:  50 kB\n"
    root = tree(tmp_path, {"proc/5/smaps_rollup": rollup, "proc/5/status": status})
    watch = WorkerWatch(root)
    watch._due = 0
    watch.look([5, None])
    (root / "proc/5/status").write_text("State: Z (zombie)\n")
    assert worker_memory(5, root) is None
    watch._due = 0
    watch.look([5])
    seen = watch.memory[5]
    kib = 1024
    assert (seen.private, seen.share) == (12 * kib, 20 * kib)
    assert (seen.peak, seen.anonymous) == (100 * kib, 50 * kib)
    assert "not seen" in watch.memory_text(6)


def test_the_watch_counts_kills_since_it_began(tmp_path: Path) -> None:
    """Kills of before say nothing about a worker of now."""
    root = tree(tmp_path, V2)
    watch = WorkerWatch(root)
    assert watch.oom_killed() is False
    (root / "sys/fs/cgroup/job/memory.events").write_text("oom_kill 3\n")
    assert watch.oom_killed() is True
    assert "2 before, 3 now" in watch.memory_text(None)
    assert WorkerWatch(tmp_path / "none").oom_killed() is None


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs /proc")
def test_a_mapped_file_that_was_cut_short_is_found(tmp_path: Path) -> None:
    """Whatever maps it (a store, a memmap), the kernel lists it; libraries are no data."""
    path, other = tmp_path / "data.bin", tmp_path / "replaced.bin"
    path.write_bytes(bytes(8192))
    other.write_bytes(bytes(8192))
    with path.open("rb") as file, other.open("rb") as also:
        maps = [mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) for f in (file, also)]
    watch = WorkerWatch()
    found = mapped_files("self")
    assert {str(path), str(other)} <= found.keys()
    assert not any(".so" in name for name in found)
    assert not watch.changed_files()
    os.truncate(path, 100)
    (tmp_path / "new").write_bytes(b"1")
    os.replace(tmp_path / "new", other)  # what is mapped stays whole: this is how to replace files
    (change,) = watch.changed_files()
    assert change == f"{path} was cut short: 100 bytes are left of 8,192"
    for each in maps:
        each.close()
