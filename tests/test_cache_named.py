"""Caches in a folder: who joins which, what is made anew, and what cannot be used."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import psutil
import pytest
from cache_writers import made
from processes import python, unmeasured

import sharedds.cache.named
from sharedds.cache import DecodedCache
from sharedds.errors import OptionError, SourceError, StoreBusyError
from sharedds.handles import lock_file
from sharedds.host.storage import Storage

pytestmark = pytest.mark.skipif(not hasattr(os, "pwrite"), reason="needs POSIX")


def named(
    folder: Path, key: str = "a", *, count: int = 10, nbytes: int = 1_000_000
) -> DecodedCache:
    """Return a cache in a folder."""
    return DecodedCache(count, nbytes, key=key, folder=folder)


def test_the_same_key_leads_to_the_same_cache(tmp_path: Path) -> None:
    """In another process and after all have ended: what was kept is there."""
    first = named(tmp_path / "new")
    first.put(0, made(0))
    assert np.array_equal(named(tmp_path / "new").get(0), made(0))  # type: ignore[arg-type]
    del first
    done = python(
        """
        import sys
        from sharedds.cache import DecodedCache
        print(DecodedCache(10, 1_000_000, key="a", folder=sys.argv[1]).get(0).shape)
        """,
        tmp_path / "new",
    )
    assert done.stdout.strip() == str(made(0).shape)


def test_its_counts_are_those_of_this_run(tmp_path: Path) -> None:
    """Others that joined by the folder count for themselves."""
    first, second = named(tmp_path), named(tmp_path)
    first.get(0)
    assert first.stats().misses == 1
    assert second.stats().misses == 0


def test_another_key_has_a_file_of_its_own(tmp_path: Path) -> None:
    """Neither sees what the other has."""
    first, other = named(tmp_path), named(tmp_path, "b")
    first.put(0, made(0))
    assert other.get(0) is None
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(("count", "nbytes"), [(11, 1_000_000), (10, 1_000_001)])
def test_another_size_is_made_anew_and_users_keep_the_old_one(
    tmp_path: Path, count: int, nbytes: int
) -> None:
    """Under the same name; who has the old one goes on with it."""
    first = named(tmp_path)
    first.put(0, made(0))
    again = named(tmp_path, count=count, nbytes=nbytes)
    assert again.get(0) is None
    assert again.capacity == nbytes
    assert np.array_equal(first.get(0), made(0))  # type: ignore[arg-type]
    assert first.put(1, made(1))
    assert again.get(1) is None
    assert len(list(tmp_path.iterdir())) == 1


def test_one_from_before_the_machine_started_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what had been written by then any part may be missing."""
    (tmp_path / "boot").write_text("first")
    monkeypatch.setattr(sharedds.cache.named, "_BOOT", tmp_path / "boot")
    named(tmp_path / "x").put(0, made(0))
    assert named(tmp_path / "x").get(0) is not None
    (tmp_path / "boot").write_text("second")
    assert named(tmp_path / "x").get(0) is None


def test_without_a_number_of_the_start_its_time_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS; clocks are corrected a little. Where it is not known, nothing is believed."""
    started = 1000.0

    def boot_time() -> float:
        if not started:
            raise RuntimeError("no /proc/stat")
        return started

    monkeypatch.setattr(sharedds.cache.named, "_BOOT", tmp_path / "none")
    monkeypatch.setattr(psutil, "boot_time", boot_time)
    named(tmp_path / "x").put(0, made(0))
    started = 1002.0
    assert named(tmp_path / "x").get(0) is not None
    for other in (1300.0, 0.0):
        started = other
        again = named(tmp_path / "x")
        assert again.get(0) is None
        assert again.put(0, made(0))
    assert named(tmp_path / "x").get(0) is None


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_that_was_forked_meanwhile_does_not_keep_the_folder_locked(tmp_path: Path) -> None:
    """It has the same open folder, and lives on."""
    reading, writing = os.pipe()
    with sharedds.cache.named._locked(str(tmp_path)):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)  # until the parent closes its end
            os._exit(0)
    os.close(reading)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        assert lock_file(descriptor, 0)
    finally:
        os.close(descriptor)
        os.close(writing)
        os.waitpid(child, 0)


@pytest.mark.parametrize("content", [b"", b"x", b"x" * 1_000_000])
def test_a_file_that_is_no_cache_is_replaced(tmp_path: Path, content: bytes) -> None:
    """Its name says that it was to be one."""
    named(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    assert named(tmp_path).put(0, made(0))


def test_one_that_was_killed_while_making_it_is_no_hindrance(tmp_path: Path) -> None:
    """What it left under another name is removed."""
    named(tmp_path)
    (path,) = tmp_path.iterdir()
    path.rename(f"{path}.new")
    kept = named(tmp_path)
    assert kept.put(0, made(0))
    assert list(tmp_path.iterdir()) == [path]


def test_ranks_that_begin_at_once_join_one_cache(tmp_path: Path) -> None:
    """Each puts one sample and waits until it sees those of all others."""
    code = """
        import sys, time
        import numpy as np
        from sharedds.cache import DecodedCache
        rank = int(sys.argv[2])
        cache = DecodedCache(4, 1_000_000, key="a", folder=sys.argv[1])
        cache.put(rank, np.full(100_000, rank, np.uint8))
        end = time.monotonic() + 60
        while cache.missing(range(4)) and time.monotonic() < end:
            time.sleep(0.01)
        print(all((cache.get(n) == n).all() for n in range(4)))
    """
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "new"), str(rank)],
            stdout=subprocess.PIPE,
            text=True,
            env=unmeasured(),
        )
        for rank in range(4)
    ]
    assert [rank.communicate(timeout=100)[0].strip() for rank in ranks] == ["True"] * 4
    assert len(list((tmp_path / "new").iterdir())) == 1


def test_a_pickle_of_one_that_was_replaced_is_a_clear_error(tmp_path: Path) -> None:
    """Another file stands there now."""
    text = pickle.dumps(named(tmp_path))
    named(tmp_path, count=11)
    with pytest.raises(SourceError, match=r"a cache made by process .*another file took its place"):
        pickle.loads(text)


def test_a_folder_on_a_network_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines do not see each other's maps."""
    monkeypatch.setattr(
        sharedds.cache.named, "storage_of", lambda path: Storage(path=path, kind="network")
    )
    with pytest.raises(OptionError, match="local disk, or /dev/shm"):
        named(tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """Here a file is in the way."""
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match=r"file.*cannot be opened"):
        named(tmp_path / "file" / "x")


def test_a_file_of_another_user_is_not_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that all can write to, its pixels could be anything."""
    named(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(SourceError, match="another user"):
        named(tmp_path)


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    """It may lead to what is not a cache and must not be written to."""
    named(tmp_path)
    (path,) = tmp_path.iterdir()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SourceError, match="cannot be opened"):
        named(tmp_path)


def test_only_its_user_may_open_it(tmp_path: Path) -> None:
    """Others could cut it short, which would end those who read it."""
    named(tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o077 == 0


def test_a_folder_that_stays_locked_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for ever."""
    monkeypatch.setattr(sharedds.cache.named, "_SECONDS", 0.05)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        assert lock_file(descriptor, 0)
        with pytest.raises(StoreBusyError, match="locked"):
            named(tmp_path)
    finally:
        os.close(descriptor)


def test_in_memory_is_told_of_a_folder_there(tmp_path: Path) -> None:
    """A memory budget counts what cannot be taken back."""
    assert not named(tmp_path).in_memory
