"""Memory and room on made-up machines: what there is, who limits it, what is left."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from machines import GIB, write_machine

import sharedds.host.memory
from sharedds.host.descriptors import (
    DescriptorLimits,
    descriptor_limits,
    open_files_limit,
    raise_open_files_limit,
)
from sharedds.host.memory import MachineMemory, count_oom_kills, machine_memory
from sharedds.host.shared import SharedMemoryRoom, shared_memory_room
from sharedds.host.storage import storage_of

MEMINFO = {"proc/meminfo": "MemTotal:  33554432 kB\nMemFree: 1 kB\nMemAvailable:   16777216 kB\n"}
OF_MACHINE = "of the whole machine"

V2 = MEMINFO | {
    "proc/self/cgroup": "0::/job/step\n",
    "sys/fs/cgroup/job/memory.max": f"{8 * GIB}\n",
    "sys/fs/cgroup/job/memory.current": f"{6 * GIB}\n",
    "sys/fs/cgroup/job/memory.events": "low 0\noom 3\noom_kill 2\n",
    "sys/fs/cgroup/job/step/memory.max": "max\n",
    "sys/fs/cgroup/job/step/memory.current": f"{5 * GIB}\n",
    "sys/fs/cgroup/job/step/memory.events": "oom_kill 1\n",
}

V1 = MEMINFO | {
    "proc/self/cgroup": "9:cpu:/x\n4:memory:/docker/abc\n0::/\n",
    # In a container the path of the host is not there; its own group is the top.
    "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{1 * GIB}\n",
    "sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n",
}


def limits(address_space: str) -> dict[str, str]:
    """The limits of a process, as the kernel shows them."""
    return {
        "proc/self/limits": (
            "Limit                     Soft Limit           Hard Limit           Units\n"
            f"Max address space         {address_space:<20} unlimited            bytes\n"
        )
    }


@pytest.mark.parametrize(
    ("files", "environ", "left", "limit", "by"),
    [
        (MEMINFO, {}, 16, None, ""),
        (V2, {}, 2, 8, "memory.max of control group /job"),
        (V1, {}, 3, 4, "memory.limit_in_bytes of control group /"),
        (
            V2 | {"sys/fs/cgroup/job/step/memory.high": str(3 * GIB)},
            {},
            0,
            3,
            "memory.high of control group /job/step",
        ),
        (
            V2 | {"sys/fs/cgroup/job/step/memory.max": str(7 * GIB)},
            {},
            2,
            7,
            "memory.max of control group /job/step",
        ),
        (V2 | {"sys/fs/cgroup/job/memory.max": str(64 * GIB)}, {}, 16, 64, "/job"),
        (MEMINFO, {"SLURM_MEM_PER_NODE": "4096"}, 4, 4, "SLURM_MEM_PER_NODE"),
        (
            MEMINFO | {"proc/self/status": f"RssAnon:  {GIB // 1024} kB\n"},
            {"SLURM_MEM_PER_CPU": "1024", "SLURM_CPUS_ON_NODE": "6"},
            5,
            6,
            "SLURM_MEM_PER_CPU for 6 of them",
        ),
        (MEMINFO, {"SLURM_MEM_PER_NODE": "0"}, 16, None, ""),
        (MEMINFO, {"SLURM_MEM_PER_NODE": "all", "SLURM_MEM_PER_CPU": "2G"}, 16, None, ""),
        (MEMINFO, {"SLURM_MEM_PER_CPU": "1024"}, 16, None, ""),
        (
            MEMINFO
            | limits(str(10 * GIB))
            | {"proc/self/status": f"VmSize:  {3 * GIB // 1024} kB\n"},
            {},
            7,
            10,
            "RLIMIT_AS",
        ),
        (MEMINFO | limits("unlimited"), {}, 16, None, ""),
        ({}, {}, None, None, ""),
    ],
    ids=[
        "no limit",
        "the parent's (v2)",
        "a container (v1)",
        "memory.high",
        "the least of two",
        "the machine has less",
        "SLURM for the node",
        "SLURM for each CPU",
        "SLURM: all of it",
        "SLURM: garbage",
        "SLURM: CPUs not told",
        "address space",
        "no limit of address space",
        "nothing is told",
    ],
)
def test_the_least_limit_counts_and_what_leaves_least(
    files: dict[str, str],
    environ: dict[str, str],
    left: int | None,
    limit: int | None,
    by: str,
    tmp_path: Path,
) -> None:
    """Of all groups up to the top, of SLURM, and of the process; each with its name."""
    memory = machine_memory(write_machine(tmp_path, files), environ=environ)
    assert memory.available == (None if left is None else left * GIB)
    assert memory.limit == (None if limit is None else limit * GIB)
    assert by in memory.limit_reason
    assert bool(by) == bool(memory.limit_reason)
    assert memory.total == (32 * GIB if files else None)


@pytest.mark.parametrize(
    ("files", "stat"),
    [
        (V2, "sys/fs/cgroup/job/memory.stat"),
        (V1, "sys/fs/cgroup/memory/memory.stat"),
    ],
    ids=["v2", "v1"],
)
def test_page_cache_that_can_be_taken_back_counts_as_left(
    files: dict[str, str], stat: str, tmp_path: Path
) -> None:
    """A store that was read fills the group with it, and nothing is lost by that."""
    before = machine_memory(write_machine(tmp_path, files), environ={}).available
    assert before is not None
    own = "inactive_file" if files is V2 else "total_inactive_file"
    text = f"anon 5\n{own} {GIB // 2}\nactive_file {GIB}\n"
    write_machine(tmp_path, {stat: text})
    after = machine_memory(tmp_path, environ={})
    assert after.available == before + GIB // 2
    assert "below memory." in after.available_reason


def test_a_group_above_its_limit_has_nothing_left(tmp_path: Path) -> None:
    """And less than nothing is nothing."""
    more = {"sys/fs/cgroup/job/memory.current": str(9 * GIB)}
    assert machine_memory(write_machine(tmp_path, V2 | more), environ={}).available == 0


@pytest.mark.parametrize(
    "text", ["9223372036854771712\n", "18446744073709551615", "max", "-1", "", "x", "9" * 5000]
)
def test_what_stands_for_no_limit_is_none(text: str, tmp_path: Path) -> None:
    """Huge numbers, words and garbage."""
    name = "sys/fs/cgroup/memory/memory.limit_in_bytes"
    memory = machine_memory(write_machine(tmp_path, V1 | {name: text}), environ={})
    assert memory.limit is None
    assert memory.available == 16 * GIB


@pytest.mark.parametrize(
    "text",
    [
        "MemAvailable:\n",
        "MemAvailable: lots kB\n",
        "MemAvailable: -5 kB\n",
        f"MemAvailable: {'9' * 5000} kB\n",
        "MemAvailable: 5 MB\n",
        "\0\xff",
    ],
)
def test_garbage_is_no_information(text: str, tmp_path: Path) -> None:
    """Of the machine's own figures, too."""
    files = {"proc/meminfo": text, "proc/self/limits": "Max address space", "proc/vmstat": "x y"}
    root = write_machine(tmp_path, files)
    assert machine_memory(root, environ={}) == MachineMemory()
    assert count_oom_kills(root) is None


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        (V2, 2),
        (V1, 7),
        (MEMINFO, None),
        (MEMINFO | {"proc/vmstat": "nr_free 3\noom_kill 5\n"}, 5),
        ({}, None),
    ],
    ids=["v2", "v1", "no groups", "count of the machine", "nothing"],
)
def test_processes_killed_for_memory_are_counted(
    files: dict[str, str], kills: int | None, tmp_path: Path
) -> None:
    """The groups above count what happens below them."""
    assert count_oom_kills(write_machine(tmp_path, files)) == kills


def test_memory_without_proc_is_asked_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS and Windows; there nothing is known of limits."""
    monkeypatch.setattr(sharedds.host.memory, "system_text", lambda path: "")
    monkeypatch.setattr(sharedds.host.memory, "control_groups", lambda name, root: [])
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=8, available=5))
    memory = machine_memory(environ={})
    assert (memory.total, memory.available, memory.limit) == (8, 5, None)

    def fail() -> None:
        raise OSError

    monkeypatch.setattr("psutil.virtual_memory", fail)
    assert machine_memory(environ={}) == MachineMemory()


# --- room for batches ----------------------------------------------------------------------------


def test_shared_memory_without_a_place_is_unknown(tmp_path: Path) -> None:
    """Systems without /dev/shm have no room to tell."""
    assert shared_memory_room(str(tmp_path / "none")) is None
    assert shared_memory_room("\0") is None
    room = shared_memory_room(str(tmp_path))
    assert room is not None
    assert 0 < room.free <= room.total


def test_shared_memory_without_a_size_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mounted with size=0 it has no limit of its own, and must not look full."""
    info = SimpleNamespace(f_bavail=0, f_blocks=0, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: info)
    assert shared_memory_room() is None
    assert str(SharedMemoryRoom(free=60_000_000, total=64_000_000)) == "60.0 MB free of 64.0 MB"


# --- descriptors ---------------------------------------------------------------------------------


def test_open_files_are_counted_and_limited() -> None:
    """An open file is one more."""
    before = descriptor_limits()
    assert before is not None
    with open(os.devnull) as file:
        after = descriptor_limits()
        assert after is not None
        assert file.fileno() > 0
    assert (before.open, after.open) != (None, None)
    assert after == DescriptorLimits(
        soft=before.soft, hard=before.hard, open=(before.open or 0) + 1
    )
    assert open_files_limit() == before.soft


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (256, 4096, 4096),
        (256, -1, 65_536),
        (256, 1 << 20, 65_536),
        (4096, 4096, 4096),
        (-1, -1, None),
        (100_000, 1 << 20, 100_000),
    ],
)
def test_the_limit_is_raised_within_reason(
    soft: int, hard: int, raised: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the hard limit, but not without end; never lowered."""
    resource = pytest.importorskip("resource", reason="there are no such limits on Windows")
    state = [soft, hard]
    monkeypatch.setattr(resource, "getrlimit", lambda which: tuple(state))
    monkeypatch.setattr(
        resource, "setrlimit", lambda which, pair: state.__setitem__(slice(2), pair)
    )
    limits = raise_open_files_limit()
    assert limits is not None
    assert limits.soft == raised
    assert limits.hard == (None if hard == -1 else hard)


def test_less_is_tried_where_the_system_grants_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hard limit is not always what can be reached."""
    resource = pytest.importorskip("resource", reason="there are no such limits on Windows")
    state = [256, -1]

    def grant(which: int, pair: tuple[int, int]) -> None:
        if pair[0] > 20_000:
            raise ValueError
        state[:] = pair

    monkeypatch.setattr(resource, "getrlimit", lambda which: tuple(state))
    monkeypatch.setattr(resource, "setrlimit", grant)
    limits = raise_open_files_limit()
    assert limits is not None
    assert limits.soft == 10_240


def test_a_limit_that_cannot_be_raised_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some systems refuse what they call allowed."""
    resource = pytest.importorskip("resource", reason="there are no such limits on Windows")

    def refuse(which: int, pair: tuple[int, int]) -> None:
        raise ValueError

    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    limits = raise_open_files_limit()
    assert limits is not None
    assert limits.soft == 256


# --- a real group --------------------------------------------------------------------------------

MIB = 1 << 20

IN_A_GROUP = """
import os, sys
from pathlib import Path
from sharedds.host.cpus import usable_cpus
from sharedds.host.memory import machine_memory

group, path = Path(sys.argv[1]), Path(sys.argv[2])
(group / "cgroup.procs").write_text(str(os.getpid()))
with path.open("wb") as file:
    for _ in range(100):
        file.write(bytes(1 << 20))
    os.fsync(file.fileno())
memory = machine_memory(environ={})
usage = next(group / name for name in sys.argv[3:] if (group / name).exists())
naive = memory.limit - int(usage.read_text())
data = bytearray(memory.available - (16 << 20))
data[::4096] = bytes(len(data[::4096]))
print(naive, memory.limit, len(data), memory.limit_reason)
"""


@pytest.fixture
def real_group() -> Iterator[Path]:
    """A control group of this system that may take 192 MiB of memory."""
    for top, name in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ):
        group = Path(top) / f"sharedds-{uuid.uuid4().hex}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / name).write_text(str(192 * MIB))
            yield group
            return
        except OSError:  # without this controller
            continue
        finally:
            group.rmdir()
    pytest.skip("no control group can be made here")


def test_what_is_left_in_a_real_group_can_be_taken(real_group: Path, tmp_path: Path) -> None:
    """A file fills its page cache: by naive counting little is left, and yet all of this fits."""
    if storage_of(tmp_path).kind == "memory":
        pytest.skip("files in memory are no page cache")
    usage = ("memory.usage_in_bytes", "memory.current")
    code = [sys.executable, "-c", IN_A_GROUP, str(real_group), str(tmp_path / "file"), *usage]
    done = subprocess.run(code, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    naive, limit, taken, by = done.stdout.split(" ", 3)
    assert int(limit) == 192 * MIB
    assert int(naive) < 100 * MIB < 140 * MIB < int(taken)
    assert real_group.name in by
