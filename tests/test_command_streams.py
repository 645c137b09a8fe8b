"""The command line where standard output or standard error takes nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from packing import environment, folder

from sharedds.ingest import pack
from sharedds.store import Store


def shell(words: str, *paths: Path) -> subprocess.CompletedProcess[bytes]:
    """Run ``sharedds`` with these words and redirections, as a shell does."""
    script = f'"$0" -m sharedds {words}'
    return subprocess.run(
        ["sh", "-c", script, sys.executable, *map(str, paths)],
        capture_output=True,
        env=environment(),
        timeout=60,
    )


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A small folder."""
    return folder(tmp_path / "photos", count=2)


@pytest.mark.parametrize("stdout", [">&-", ">/dev/full"])
@pytest.mark.parametrize("verb", ["info", "info --json", "verify"])
def test_output_that_cannot_be_written_is_one_line(
    photos: Path, tmp_path: Path, verb: str, stdout: str
) -> None:
    """Exit code 1, no traceback, also none from the interpreter at its end."""
    out = tmp_path / "out.lmdb"
    pack(photos, out)
    done = shell(f'{verb} "$1" {stdout}', out)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith(b"Error: standard output cannot be written (")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("stdout", [">&-", ">/dev/full"])
def test_a_pack_whose_summary_is_lost_is_done(photos: Path, tmp_path: Path, stdout: str) -> None:
    """The store and its report are there; the exit code says that something was not told."""
    out = tmp_path / "out.lmdb"
    done = shell(f'pack "$1" "$2" {stdout}', photos, out)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert b"Error: standard output cannot be written (" in done.stderr
    assert len(Store(out)) == 4


def test_help_on_a_full_disk_is_one_line() -> None:
    """What click prints itself is no exception."""
    done = shell("--help >/dev/full")
    assert done.returncode == 1
    assert done.stderr.startswith(b"Error: standard output cannot be written (")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full"])
def test_without_a_stderr_the_exit_code_speaks(photos: Path, tmp_path: Path, stderr: str) -> None:
    """A failure stays a failure, and work is done as ever."""
    out = tmp_path / "out.lmdb"
    assert shell(f'pack "$1" "$2" {stderr}', photos, out).returncode == 0
    assert shell(f'pack "$1" "$2" {stderr}', photos, out).returncode == 1
    assert shell(f'info "$1" >/dev/full {stderr}', out).returncode == 1
    assert shell(f"nope {stderr}").returncode == 2
