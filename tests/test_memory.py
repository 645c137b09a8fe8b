"""What processes cost: the parser, this process, and a tree of processes."""

import dataclasses
import mmap
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from sharedds import memory
from sharedds.errors import SourceError
from sharedds.memory import ProcessMemory, parse_smaps_rollup, process_memory, process_tree

ROLLUP = """\
55d0c0a00000-7ffd3e7f8000 ---p 00000000 00:00 0                          [rollup]
Rss:               10240 kB
Pss:                5000 kB
Pss_Dirty:          1200 kB
Pss_Anon:           1100 kB
Pss_File:           3900 kB
Pss_Shmem:             0 kB
Private_Clean:       800 kB
Private_Dirty:      1000 kB
Swap:                  0 kB
"""

MiB = 1 << 20
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_the_parser_returns_bytes_by_name() -> None:
    """Each line in kB becomes a number of bytes under the kernel's name."""
    figures = parse_smaps_rollup(ROLLUP)
    assert figures["Pss"] == 5000 * 1024
    assert figures["Private_Clean"] + figures["Private_Dirty"] == 1800 * 1024
    assert figures["Pss_Shmem"] == 0


def test_the_parser_passes_over_lines_of_another_form() -> None:
    """The address line and lines of a later kernel are neither figures nor errors."""
    text = "55d0-7ffd ---p 00:00 0 [rollup]\nPss:  12 kB\nTHPeligible: 1\nOdd: x kB\nHalf: 1\n\n"
    assert parse_smaps_rollup(text) == {"Pss": 12 * 1024}


@LINUX
def test_this_process_has_every_figure() -> None:
    """On Linux no figure is missing, and the parts of PSS add up to PSS."""
    own = process_memory()
    assert own.pid == os.getpid()
    assert own.name
    assert None not in dataclasses.astuple(own)
    assert own.pss is not None
    parts = (own.anonymous or 0) + (own.file or 0) + (own.shared_memory or 0)
    assert abs(own.pss - parts) < 64 * 1024
    assert own.uss is not None
    assert own.private_dirty is not None
    assert own.private_dirty <= own.uss


@LINUX
def test_private_memory_shows_what_was_written() -> None:
    """Forty mebibytes of own pages add forty to USS."""
    before = process_memory().uss
    block = mmap.mmap(-1, 40 * MiB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.write(b"\1" * (40 * MiB))
    after = process_memory().uss
    block.close()
    assert before is not None
    assert after is not None
    assert abs(after - before - 40 * MiB) < 4 * MiB


def start_child(code: str) -> "subprocess.Popen[bytes]":
    """Start a Python process and wait for its first line."""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    return child


def end(child: "subprocess.Popen[bytes]") -> None:
    """Kill a process and forget it."""
    child.kill()
    child.communicate()


@LINUX
def test_resident_size_counts_a_shared_page_twice_and_pss_does_not(tmp_path: Path) -> None:
    """Of a file that two processes map, RSS shows all of it in each, PSS half, and USS nothing."""
    shared = tmp_path / "shared"
    shared.write_bytes(bytes(32 * MiB))
    code = (
        "import mmap, sys, time\n"
        f"with open({str(shared)!r}, 'rb') as file:\n"
        "    data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
        "sum(data[::4096]); print(flush=True); time.sleep(60)\n"
    )
    empty = start_child("import time; print(flush=True); time.sleep(60)")
    children = [start_child(code), start_child(code)]
    try:
        idle = process_memory(empty.pid)
        for child in children:
            measured = process_memory(child.pid)
            resident = psutil.Process(child.pid).memory_info().rss
            assert resident - psutil.Process(empty.pid).memory_info().rss > 30 * MiB
            assert measured.pss is not None
            assert idle.pss is not None
            assert 14 * MiB < measured.pss - idle.pss < 20 * MiB
            assert measured.uss is not None
            assert idle.uss is not None
            assert measured.uss - idle.uss < 4 * MiB
    finally:
        for child in (empty, *children):
            end(child)


def test_the_tree_holds_descendants_of_every_depth() -> None:
    """The process comes first, then its children and their children."""
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(flush=True)\n"
        "try:\n"
        "    sys.stdin.read()\n"
        "finally:\n"
        "    child.kill(); child.wait()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        tree = process_tree(child.pid)
        own = {process.pid for process in process_tree()}
    finally:
        child.communicate()
    assert tree[0].pid == child.pid
    assert len(tree) == 2
    assert {process.pid for process in tree} | {os.getpid()} <= own


def test_a_process_that_does_not_exist_is_a_source_error() -> None:
    """The error names the process, and it is an OSError too."""
    child = start_child("print(flush=True)")
    child.communicate()
    with pytest.raises(SourceError, match=f"process {child.pid}"):
        process_memory(child.pid)
    with pytest.raises(OSError, match="process -5"):
        process_tree(-5)


def test_a_zombie_is_an_ended_process() -> None:
    """A child that nobody waited for is refused alone, and left out of a tree."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    try:
        ends = time.monotonic() + 20
        while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < ends
            time.sleep(0.01)
        assert child.pid not in {process.pid for process in process_tree()}
        with pytest.raises(SourceError, match="has ended"):
            process_memory(child.pid)
    finally:
        child.wait()


def test_without_the_kernels_figures_only_uss_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where there is no smaps_rollup, USS comes from psutil and the rest is None."""
    monkeypatch.setattr(memory, "_PROC", tmp_path)
    own = process_memory()
    assert own.uss is not None
    assert own.uss > MiB
    assert own.pss is None
    assert own.anonymous is None


def test_a_process_of_another_user_shows_no_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not being allowed to look is no error: the figures are None."""

    def denied(process: psutil.Process) -> None:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(memory, "_PROC", tmp_path)
    monkeypatch.setattr(psutil.Process, "memory_full_info", denied)
    assert process_memory() == ProcessMemory(pid=os.getpid(), name=psutil.Process().name())


def test_a_measurement_pickles() -> None:
    """Workers send their measurement to the main process."""
    own = process_memory()
    assert pickle.loads(pickle.dumps(own)) == own
