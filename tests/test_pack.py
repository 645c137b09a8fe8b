"""Packing a folder: what is stored, in which order, and what is counted."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pictures
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packing import (
    entries,
    events,
    folder,
    jpeg,
    put,
    run_script,
    stored,
)

from sharedds.errors import (
    DecodeError,
)
from sharedds.ingest import pack
from sharedds.store import Store


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of five pictures."""
    return folder(tmp_path / "photos")


def test_original_bytes_are_kept_under_their_paths(photos: Path, tmp_path: Path) -> None:
    """Nothing is encoded anew unless asked for; the key of a picture is its path."""
    pack(photos, tmp_path / "out.lmdb")
    files = {str(p.relative_to(photos)): p.read_bytes() for p in photos.rglob("*.jpg")}
    assert stored(tmp_path / "out.lmdb") == files


def test_samples_stand_in_the_order_of_the_folder(tmp_path: Path) -> None:
    """Item i is the i-th file, so "10" comes before "9" only where the folder says so."""
    root = put(tmp_path / "src", {f"a/{n}.jpg": jpeg(n) for n in range(12)})
    report = pack(root, tmp_path / "out.lmdb")
    store = Store(tmp_path / "out.lmdb")
    names = sorted(os.listdir(root / "a"), key=os.fsencode)
    assert [store.key(i) for i in range(len(store))] == [f"a/{name}" for name in names]
    assert report.samples == 12


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_changes_nothing(photos: Path, tmp_path: Path, workers: int) -> None:
    """The same digest, and the same bytes under every key."""
    one = pack(photos, tmp_path / "two.lmdb", codec="png", max_side=20, workers=2)
    other = pack(photos, tmp_path / "out.lmdb", codec="png", max_side=20, workers=workers)
    assert one.digest == other.digest
    assert stored(tmp_path / "two.lmdb") == stored(tmp_path / "out.lmdb")


def test_a_seed_shuffles_the_whole_set_the_same_way(photos: Path, tmp_path: Path) -> None:
    """Equal seeds give equal stores, other seeds other orders, and every picture is there once."""
    digests = {}
    for name, seed in (("x", 1), ("y", 1), ("z", -1)):
        digests[name] = pack(photos, tmp_path / name, shuffle_seed=seed).digest
    keys = [list(stored(tmp_path / name)) for name in "xyz"]
    assert digests["x"] == digests["y"]
    assert keys[0] == keys[1]
    assert keys[0] != keys[2]
    assert sorted(keys[0]) == sorted(keys[2]) != keys[0]


def test_labels_go_with_their_pictures_when_shuffled(photos: Path, tmp_path: Path) -> None:
    """The class of a picture is its folder, wherever it stands."""
    pack(photos, tmp_path / "out.lmdb", shuffle_seed=3)
    store = Store(tmp_path / "out.lmdb")
    classes = store.classes
    assert classes is not None
    labels = np.asarray(store.column("label")).tolist()
    assert [classes[n] for n in labels] == [store.key(i)[0] for i in range(10)]


def test_sizes_of_all_kinds_fit_without_being_named(tmp_path: Path) -> None:
    """A tiny picture first and a huge one last: no size of the file has to be guessed."""
    flat = pictures.black(8, 8, 8, 2)
    huge = pictures.tiff(bytes(4000 * 3000), 4000, 3000, bits=8)
    noise = pictures.png(150, 100, 8, 2, [row.tobytes() for row in pictures.noise(100, 450)])
    files = {"a/0000.png": flat} | {f"a/{n:04d}.png": noise for n in range(1, 40)}
    root = put(tmp_path / "src", files | {"a/zzzz.tif": huge})
    report = pack(root, tmp_path / "out.lmdb")
    assert report.samples == 41
    assert stored(tmp_path / "out.lmdb")["a/zzzz.tif"] == huge


def test_a_small_set_makes_a_small_file(tmp_path: Path) -> None:
    """The file grows with the data; no map is laid out in advance."""
    root = folder(tmp_path / "src", count=10)
    report = pack(root, tmp_path / "out.lmdb")
    assert report.bytes == (tmp_path / "out.lmdb").stat().st_size <= 1 << 20


def test_the_estimate_is_close(tmp_path: Path) -> None:
    """What a dry run foretells is what the store takes, within a tenth."""
    sizes = [(16, 16), (60, 40), (200, 150)]
    files = {f"a/{n}.jpg": jpeg(n, *sizes[n % 3]) for n in range(150)}
    root = put(tmp_path / "src", files)
    guess = pack(root, tmp_path / "out.lmdb", dry_run=True).bytes
    assert not (tmp_path / "out.lmdb").exists()
    assert pack(root, tmp_path / "out.lmdb").bytes == pytest.approx(guess, rel=0.1)


def test_a_dry_run_writes_nothing(photos: Path, tmp_path: Path) -> None:
    """Neither the store, nor a report, nor a working folder."""
    before = sorted(tmp_path.rglob("*"))
    report = pack(photos, tmp_path / "out.lmdb", dry_run=True)
    assert sorted(tmp_path.rglob("*")) == before
    assert (report.samples, report.dry_run) == (10, True)


def without_clashes(files: dict[str, bytes]) -> dict[str, bytes]:
    """Drop the files whose path is a folder of another one."""
    return {
        path: data
        for path, data in files.items()
        if not any(other.startswith(f"{path}/") for other in files)
    }


# What systems scatter (._x) is never looked into, so the test does not make it.
NAMES = st.text("ab.-~", min_size=1, max_size=3).filter(lambda name: bool(name.strip(".")))
PATHS = st.builds(
    lambda parts, suffix: "/".join(parts) + suffix,
    st.lists(NAMES, min_size=1, max_size=3),
    st.sampled_from(["", ".jpg", ".PNG", ".txt", ".gif"]),
)
CONTENTS = st.sampled_from(
    [b"", b"text", jpeg(1)[:60], jpeg(1), jpeg(2), pictures.black(3, 2, 8, 2)]
)
TREES = st.dictionaries(PATHS, CONTENTS, max_size=12).map(without_clashes)


@settings(max_examples=30, deadline=None)
@given(tree=TREES)
def test_every_file_is_accounted_for(tree: dict[str, bytes]) -> None:
    """Packed, bad and left out add up to the files that are there, whatever they are."""
    tree = {**tree, "zz/good.jpg": jpeg(3)}
    with tempfile.TemporaryDirectory() as place:
        root = put(Path(place, "src"), tree)
        report = pack(root, Path(place, "out"), include_hidden=True)
        lines = events(report.report)
        packed = stored(report.path)
        assert report.samples == len(packed)
        assert packed.items() <= tree.items()
        assert report.samples + report.failed_count + report.left_out_count == len(tree)
        assert report.failed_count == sum(line["event"] == "failed" for line in lines)
        assert not packed.keys() & {name for name, _ in report.failed}


def test_bad_files_beyond_a_thousand_are_still_counted_and_named(tmp_path: Path) -> None:
    """The report in memory is short; the one on disk has them all."""
    root = put(tmp_path / "src", {f"a/{n:04d}.jpg": b"x" for n in range(1200)} | {"a/z": jpeg()})
    report = pack(root, tmp_path / "out.lmdb")
    assert (report.samples, report.failed_count, len(report.failed)) == (1, 1200, 1000)
    names = [line["path"] for line in entries(report.report, "failed")]
    assert names == [f"a/{n:04d}.jpg" for n in range(1200)]


def test_empty_files_beyond_a_thousand_are_still_counted(tmp_path: Path) -> None:
    """A scan names the first thousand; the last line stands for the rest, with its count."""
    root = put(tmp_path / "src", {f"a/{n:04d}.jpg": b"" for n in range(1200)} | {"a/z": jpeg()})
    report = pack(root, tmp_path / "out.lmdb")
    assert (report.samples, report.failed_count, report.files) == (1, 1200, 1201)
    lines = entries(report.report, "failed")
    assert sum(line.get("count", 1) for line in lines) == 1200
    assert report.failed[-1][1] == "empty (and 200 more)"


def test_the_report_says_what_was_packed(photos: Path, tmp_path: Path) -> None:
    """First a summary, then a line for each thing; the same as the object that is returned."""
    put(photos, {"a/bad.jpg": b"no", "a/notes.txt": b"x"})
    report = pack(photos, tmp_path / "out.lmdb", report=tmp_path / "said.jsonl")
    summary, *rest = events(tmp_path / "said.jsonl")
    assert summary["event"] == "summary"
    assert (summary["samples"], summary["failed_count"], summary["files"]) == (10, 1, 12)
    assert summary["digest"] == report.digest == Store(tmp_path / "out.lmdb").digest
    assert [line["event"] for line in rest] == ["left_out", "failed"]
    assert rest[1]["path"] == report.failed[0][0] == "a/bad.jpg"
    assert not (tmp_path / "out.lmdb.report.jsonl").exists()


def test_nothing_appears_when_an_error_is_to_be_raised(photos: Path, tmp_path: Path) -> None:
    """With on_error="raise" the first bad file ends the pack, and its name is told."""
    put(photos, {"a/bad.jpg": jpeg()[:80]})
    with pytest.raises(DecodeError, match=r"a/bad\.jpg: JPEG .*on_error='skip'") as caught:
        pack(photos, tmp_path / "out.lmdb", on_error="raise")
    assert caught.value.path == str(photos / "a" / "bad.jpg")
    assert not (tmp_path / "out.lmdb").exists()


def test_an_error_is_raised_for_what_the_scan_finds_too(photos: Path, tmp_path: Path) -> None:
    """An empty file is bad before anything is decoded."""
    put(photos, {"b/empty.jpg": b""})
    with pytest.raises(DecodeError, match=r"b/empty\.jpg: empty"):
        pack(photos, tmp_path / "out.lmdb", on_error="raise")
    assert not (tmp_path / "out.lmdb").exists()


PEAK = """
import sys, threading
from sharedds.ingest import pack
from sharedds.memory import process_memory
done, peak = threading.Event(), 0
def watch():
    global peak
    while not done.wait(0.005):
        peak = max(peak, process_memory().anonymous)
watcher = threading.Thread(target=watch)
watcher.start()
report = pack(sys.argv[1], sys.argv[2], workers=2)
done.set()
watcher.join()
print(report.samples, peak)
"""


@pytest.mark.memory
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_memory_does_not_depend_on_the_number_of_files(tmp_path: Path) -> None:
    """20,000 files, all of them duplicates, take at most 20 MB more than 200.

    Counted is what the process has for itself; pages of the file are the kernel's to take back.
    """
    peaks = {}
    for name, count in (("few", 200), ("many", 20_000)):
        first = put(tmp_path / name, {"a/000000.jpg": jpeg()}) / "a" / "000000.jpg"
        for number in range(1, count):
            os.link(first, tmp_path / name / "a" / f"{number:06d}.jpg")
        done = run_script(PEAK, str(tmp_path / name), str(tmp_path / f"{name}.lmdb"))
        assert done.returncode == 0, done.stderr
        samples, peaks[name] = map(int, done.stdout.split())
        assert samples == count
    assert peaks["many"] - peaks["few"] <= 20e6, peaks
