"""The order of a scan, what it costs, and that names and numbers come back exactly."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import files_below, make

from sharedds.folder import scan, walk


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, bytes]]:
    """Count the calls of os functions by name and path."""
    counts: Counter[tuple[str, bytes]] = Counter()

    def count(name: str) -> None:
        real = getattr(os, name)

        def counted(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            counts[name, os.fsencode(path)] += 1
            return real(path, *args, **kwargs)

        monkeypatch.setattr(os, name, counted)

    for name in ("scandir", "stat", "lstat", "listdir"):
        count(name)
    return counts


NAMES = st.sampled_from(
    [b"a", b"a-", b"a.jpg", b"a0", b"B", b"\xff", b"\xc3\xa4.PNG", b"b.txt", b".h"]
)
TREES = st.lists(st.lists(NAMES, min_size=1, max_size=4), max_size=25)


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """Return a folder for many trees."""
    folder = Path(tempfile.mkdtemp())
    yield folder
    shutil.rmtree(folder)


@settings(max_examples=80, deadline=None)
@given(tree=TREES, run_size=st.integers(1, 5), empty=st.booleans())
def test_order_and_account_hold_for_any_tree(
    scratch: Path, tree: list[list[bytes]], run_size: int, *, empty: bool
) -> None:
    """Paths are sorted by component whatever the size of a run, and no file is lost or added."""
    root = Path(tempfile.mkdtemp(dir=scratch))
    for i, parts in enumerate(tree):
        path = os.fsencode(root) + b"/" + b"/".join(parts)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(b"" if empty and i % 3 == 0 else b"x")
        except OSError:  # the name is a folder or a file already
            continue
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk, "RUN_SIZE", run_size)
        index = scan(root, class_level="none", include_hidden=True)
    found = [index.paths.bytes(i) for i in range(len(index))]
    everything = files_below(root)
    left = {
        path
        for path in everything
        if path.endswith(b".txt") or not os.path.getsize(os.fsencode(root) + b"/" + path)
    }
    assert found == [path for path in everything if path not in left]
    assert index.files == len(everything) == len(index) + index.count()


def test_a_folder_larger_than_a_run_is_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs are packed and merged: the index is the same as from one run, fingerprint included."""
    make(tmp_path, *(f"{i * 7919 % 1000:03d}.jpg" for i in range(1000)), "500/x.jpg")
    whole = scan(tmp_path, class_level="none")
    monkeypatch.setattr(walk, "RUN_SIZE", 64)
    runs = scan(tmp_path, class_level="none")
    assert list(runs.paths) == list(whole.paths)
    assert len(runs) == 1001
    assert runs.fingerprint == whole.fingerprint


def test_one_listing_of_each_folder_and_one_stat_of_each_file(
    tmp_path: Path, calls: Counter[tuple[str, bytes]]
) -> None:
    """Nothing is asked of the file system twice; folders and foreign names cost no stat."""
    make(tmp_path, *(f"{c}/{i}.jpg" for c in "abc" for i in range(20)), "a/b/c.txt", ".git/x.jpg")
    calls.clear()
    index = scan(tmp_path)
    for key in [key for key in calls if not key[1].startswith(os.fsencode(tmp_path))]:
        del calls[key]  # of the index files, not of the folder
    stats = Counter({key: n for key, n in calls.items() if key[0] != "scandir"})
    assert stats == Counter({("stat", index.location(i)): 1 for i in range(60)})
    assert sum(calls.values()) - stats.total() == 5  # the root, a, b, c, a/b
    assert max(calls.values()) == 1


def test_sizes_and_times_are_those_of_the_files(tmp_path: Path) -> None:
    """Sizes are bytes, times nanoseconds, and the total is their sum."""
    make(tmp_path, "a.jpg", data=b"123")
    make(tmp_path, "b.jpg", data=b"12345")
    os.utime(tmp_path / "b.jpg", ns=(0, 1_700_000_000_123_456_789))
    index = scan(tmp_path)
    assert index.sizes.array.tolist() == [3, 5]
    assert index.mtimes.array[1] == 1_700_000_000_123_456_789
    assert index.total_bytes == 8


def test_any_bytes_are_a_name(tmp_path: Path) -> None:
    """Names come back byte for byte: undecodable ones, both spellings of an accent, newlines."""
    names = [b"\xe4.jpg", "\u00e4.jpg".encode(), "a\u0308.jpg".encode(), "\u732b.jpg".encode()]
    names += [b"new\nline.jpg", b" lead.jpg", b"-rf.jpg"]
    index = scan(make(tmp_path, *(b"a\xff/" + name for name in names)))
    assert {os.fsencode(path) for path in index.paths} == {b"a\xff/" + name for name in names}
    assert index.classes is not None
    assert os.fsencode(index.classes[0]) == b"a\xff"
    assert all(os.path.exists(index.location(i)) for i in range(7))


def test_odd_names_survive_an_ascii_locale(tmp_path: Path) -> None:
    """In a C locale with an ASCII terminal the scan works, and its account is valid JSON."""
    make(tmp_path, b"a\xff/\xe4.jpg", b"a\xff/\xe4.txt")
    code = (
        "import dataclasses, json, sys; from sharedds.folder import scan; i = scan(sys.argv[1]);"
        "print(json.dumps([list(i.paths), i.classes, [dataclasses.asdict(x) for x in i.left_out]]))"
    )
    env = os.environ | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], env=env, capture_output=True, check=True
    )
    paths, classes, left = json.loads(done.stdout)
    assert (os.fsencode(paths[0]), os.fsencode(classes[0])) == (b"a\xff/\xe4.jpg", b"a\xff")
    assert os.fsencode(left[0]["example"]) == b"a\xff/\xe4.txt"


def test_long_paths_are_kept_whole(tmp_path: Path) -> None:
    """Two paths that share their first 600 bytes stay two paths."""
    base = "/".join(["d" * 100] * 6)
    index = scan(make(tmp_path, f"{base}/1.jpg", f"{base}/2.jpg", f"{'n' * 251}.jpg"))
    assert scan(tmp_path, class_level="none").paths[2] == f"{'n' * 251}.jpg"
    assert list(index.paths) == [f"{base}/1.jpg", f"{base}/2.jpg"]


def test_folders_may_be_nested_deeper_than_calls(scratch: Path) -> None:
    """A tree deeper than Python's limit of recursion is walked; os.makedirs fails on it."""
    depth = 1200
    assert depth > sys.getrecursionlimit()
    root = Path(tempfile.mkdtemp(dir=scratch))
    with pytest.raises(RecursionError):
        os.makedirs(f"{root}/{'/'.join('x' * depth)}")
    levels = [f"{root}{'/e' * i}" for i in range(1, depth + 1)]
    for level in levels:
        os.mkdir(level)
    make(Path(levels[-1]), "1.jpg")
    try:
        assert list(scan(root).paths) == ["e/" * depth + "1.jpg"]
    finally:
        os.unlink(f"{levels[-1]}/1.jpg")
        for level in reversed(levels):
            os.rmdir(level)


def test_pickling_costs_the_same_for_any_number_of_files(tmp_path: Path) -> None:
    """An index pickles to a few hundred bytes more or less, and reads the same afterwards."""
    make(tmp_path, "few/0.jpg", *(f"many/{i:04d}.jpg" for i in range(2000)))
    few, many = scan(tmp_path / "few"), scan(tmp_path / "many")
    assert abs(len(pickle.dumps(many)) - len(pickle.dumps(few))) < 50
    again = pickle.loads(pickle.dumps(many))
    assert list(again.paths) == list(many.paths)
    assert again.fingerprint == many.fingerprint


def test_progress_is_told_every_thousand_files(tmp_path: Path) -> None:
    """Progress counts all files seen, those left out included."""
    make(tmp_path, *(f"{i}.jpg" for i in range(1500)), *(f"{i}.txt" for i in range(1000)))
    told: list[int] = []
    scan(tmp_path, progress=told.append)
    assert told == [1000, 2000, 2500]


@pytest.mark.parametrize("change", ["add", "size", "time", "rename", "class"])
def test_the_fingerprint_changes_with_the_folder(tmp_path: Path, change: str) -> None:
    """Changes that a resumed run must notice change the fingerprint; a foreign file does not."""
    make(tmp_path, "a/0.jpg", "a/1.jpg")
    before = scan(tmp_path).fingerprint
    make(tmp_path, "a/notes.txt")
    assert scan(tmp_path).fingerprint == before
    time = os.stat(tmp_path / "a/0.jpg").st_mtime_ns
    if change == "add":
        make(tmp_path, "a/2.jpg")
    elif change == "size":
        make(tmp_path, "a/0.jpg", data=b"xx")
        os.utime(tmp_path / "a/0.jpg", ns=(0, time))
    elif change == "time":
        os.utime(tmp_path / "a/0.jpg", ns=(0, time + 1_000_000))
    elif change == "rename":
        os.rename(tmp_path / "a/0.jpg", tmp_path / "a/00.jpg")
    else:
        make(tmp_path, "b/")
    assert scan(tmp_path).fingerprint != before
