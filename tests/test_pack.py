"""Packing a folder: what is stored, in which order, what is counted, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pictures
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packing import (
    entries,
    environment,
    events,
    folder,
    jpeg,
    put,
    run,
    run_as_nobody,
    run_script,
    stored,
)

from sharedds.errors import (
    DecodeError,
    OptionError,
    SourceError,
    StorageFullError,
    StoreError,
    StoreExistsError,
)
from sharedds.ingest import pack
from sharedds.store import Store, StoreWriter


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of five pictures."""
    return folder(tmp_path / "photos")


@pytest.fixture
def shared_place() -> Iterator[Path]:
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        yield Path(place)


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
    assert caught.value.path == "a/bad.jpg"
    assert not (tmp_path / "out.lmdb").exists()


def test_an_error_is_raised_for_what_the_scan_finds_too(photos: Path, tmp_path: Path) -> None:
    """An empty file is bad before anything is decoded."""
    put(photos, {"b/empty.jpg": b""})
    with pytest.raises(DecodeError, match=r"b/empty\.jpg: empty"):
        pack(photos, tmp_path / "out.lmdb", on_error="raise")
    assert not (tmp_path / "out.lmdb").exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_side": 9, "short_side": 9, "codec": "png"}, "max_side and short_side exclude"),
        ({"max_side": 9}, "max_side needs pictures to be encoded anew"),
        ({"depth": "8"}, "depth needs pictures to be encoded anew"),
        ({"codec": "raw"}, "codec 'raw' and size"),
        ({"codec": "png", "size": (8, 8)}, "codec 'raw' and size"),
        ({"codec": "tga"}, "codec 'tga': one of keep, jpeg"),
        ({"quality": 0}, "quality 0"),
        ({"codec": "jpeg", "max_side": 0}, "max_side 0"),
        ({"background": (0, 0, 256)}, "background"),
        ({"max_pixels": 0}, "max_pixels 0"),
        ({"workers": 0}, "workers 0"),
        ({"on_error": "stop"}, "on_error 'stop'"),
        ({"labels": "x.csv", "numeric_classes": True}, "labels= takes the place"),
        ({"labels": "x.csv", "class_level": "folder"}, "labels= takes the place"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    photos: Path, tmp_path: Path, options: dict[str, object], reason: str
) -> None:
    """Before anything is read or written, with the option named."""
    with pytest.raises(OptionError, match=reason):
        pack(photos, tmp_path / "out.lmdb", **options)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == ["photos"]


def test_an_output_inside_the_source_is_refused(photos: Path) -> None:
    """It would be packed itself the next time; links do not hide it."""
    (photos.parent / "link").symlink_to(photos)
    for place in (photos / "out.lmdb", photos.parent / "link" / "a" / "out.lmdb"):
        with pytest.raises(OptionError, match="inside the folder that is packed"):
            pack(photos, place)


@pytest.mark.parametrize(("name", "reason"), [("gone", "no such folder"), ("file", "is a file")])
def test_a_source_that_is_no_folder_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    """With its path in the message."""
    (tmp_path / "file").write_bytes(jpeg())
    with pytest.raises(SourceError, match=f"{name}.*{reason}"):
        pack(tmp_path / name, tmp_path / "out.lmdb")


def test_a_folder_without_permission_is_told_apart(shared_place: Path) -> None:
    """One message that names the folder, and exit code 1."""
    photos = folder(shared_place / "photos")
    (shared_place / "closed").mkdir(mode=0o555)
    done = run_as_nobody("pack", str(photos), str(shared_place / "closed" / "out.lmdb"))
    assert done.returncode == 1
    assert str(shared_place / "closed" / "out.lmdb").encode() in done.stderr
    assert b"Permission denied" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_report_that_cannot_be_written_is_refused_first(photos: Path, tmp_path: Path) -> None:
    """Not after hours of packing."""
    with pytest.raises(SourceError, match="no such folder for the report"):
        pack(photos, tmp_path / "out.lmdb", report=tmp_path / "gone" / "r.jsonl")
    with pytest.raises(OptionError, match="cannot be the report"):
        pack(photos, tmp_path / "out.lmdb", report=tmp_path)
    assert os.listdir(tmp_path) == ["photos"]


def test_an_existing_output_is_refused_and_left_alone(photos: Path, tmp_path: Path) -> None:
    """Byte for byte the same afterwards."""
    out = tmp_path / "out.lmdb"
    pack(photos, out)
    before = out.read_bytes(), out.stat().st_mtime_ns
    other = folder(tmp_path / "other", ("c",))
    with pytest.raises(StoreExistsError, match="replace it with force"):
        pack(other, out)
    assert (out.read_bytes(), out.stat().st_mtime_ns) == before


def test_a_forced_pack_replaces_in_one_step(photos: Path, tmp_path: Path) -> None:
    """Who has the old store open goes on reading it; who opens the path finds the new one."""
    out = tmp_path / "out.lmdb"
    pack(photos, out)
    old = Store(out)
    expected = [bytes(old.read("image", i)) for i in range(10)]
    pack(folder(tmp_path / "other", ("c",), count=3), out, force=True)
    assert [bytes(old.read("image", i)) for i in range(10)] == expected
    assert list(stored(out)) == ["c/0000.jpg", "c/0001.jpg", "c/0002.jpg"]


def test_a_forced_pack_that_fails_keeps_the_old_file(photos: Path, tmp_path: Path) -> None:
    """Nothing is removed before there is something to put in its place."""
    out = tmp_path / "out.lmdb"
    pack(photos, out)
    before = out.read_bytes()
    for root in (put(tmp_path / "bad", {"a/x.jpg": b"no"}), folder(tmp_path / "empty", ())):
        root.mkdir(exist_ok=True)
        with pytest.raises(SourceError, match="no image could be packed"):
            pack(root, out, force=True)
    assert out.read_bytes() == before
    assert not (tmp_path / "out.lmdb.partial").exists()


def test_too_little_room_is_told_before_the_start(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the bytes needed and the bytes free."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: DiskUsage())
    with pytest.raises(StorageFullError, match=r"out\.lmdb: about [\d,]+ bytes .* 1,000 are free"):
        pack(photos, tmp_path / "out.lmdb")
    assert not (tmp_path / "out.lmdb.partial").exists()


class DiskUsage:
    """A disk with hardly any room."""

    free = 1000


def test_a_limit_met_on_the_way_is_an_error_not_a_signal(tmp_path: Path) -> None:
    """It names the output, what is needed and what is free; with room the command goes on."""
    rows = [row.tobytes() for row in pictures.noise(256, 768)]
    noise = pictures.png(256, 256, 8, 2, rows)
    root = put(tmp_path / "src", {f"a/{n:02d}.png": noise for n in range(40)})
    out = str(tmp_path / "out.lmdb")
    limit = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5 << 20, 5 << 20))\n"
        "from sharedds.cli import main\n"
        f"sys.exit(main(['pack', {str(root)!r}, {out!r}]))"
    )
    done = run_script(limit)
    text = done.stderr.decode()
    assert done.returncode == 1, text
    assert out in text
    assert "needed" in text
    assert "free" in text
    assert "Traceback" not in text
    assert not os.path.exists(out)
    assert run("pack", str(root), out).returncode == 0
    assert len(Store(out)) == 40


def can_mount() -> bool:
    """Whether this process may mount a file system."""
    with tempfile.TemporaryDirectory() as place:
        words = ["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place]
        try:
            return subprocess.run(words, capture_output=True).returncode == 0
        except OSError:
            return False


@pytest.mark.skipif(not can_mount(), reason="needs permission to mount")
@pytest.mark.parametrize("codec", ["keep", "png"])
def test_a_full_disk_is_an_error_that_can_be_gone_on_from(tmp_path: Path, codec: str) -> None:
    """An 8 MB disk: known from the sizes at once, or met on the way when encoding anew."""
    rows = [row.tobytes() for row in pictures.noise(256, 768)]
    noise = pictures.png(256, 256, 8, 2, rows)
    root = put(tmp_path / "src", {f"a/{n:02d}.png": noise for n in range(60)})
    (tmp_path / "disk").mkdir()
    out = tmp_path / "disk" / "out.lmdb"
    command = f"{sys.executable} -m sharedds pack {root} {out} --codec {codec}"
    script = (
        f"mount -t tmpfs -o size=8m tmpfs {tmp_path / 'disk'} && cd / && "
        f"{{ {command}; echo code=$?; ls {out}; "
        f"mount -o remount,size=64m {tmp_path / 'disk'} && {command} --json; echo code=$?; }}"
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, env=environment()
    )
    assert done.stdout.count("code=1\n") == 1, done
    assert done.stdout.rstrip().endswith("code=0"), done
    assert '"samples": 60' in done.stdout
    assert str(out) in done.stderr
    assert "needed" in done.stderr
    assert "free" in done.stderr
    assert "Traceback" not in done.stderr


def test_packing_at_once_into_one_output_is_refused(photos: Path, tmp_path: Path) -> None:
    """The second one says so and disturbs nothing."""
    other = StoreWriter(tmp_path / "out.lmdb", schema={"x": "int64"}, resume="other")
    with other, pytest.raises(StoreError, match="another process"):
        pack(photos, tmp_path / "out.lmdb")


PEAK = """
import resource, sys
from sharedds.ingest import pack
report = pack(sys.argv[1], sys.argv[2], workers=2)
print(report.samples, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.memory
def test_memory_does_not_depend_on_the_number_of_files(tmp_path: Path) -> None:
    """20,000 files, all of them duplicates, take at most 20 MB more than 200."""
    first = put(tmp_path / "few", {"a/000000.jpg": jpeg()}) / "a" / "000000.jpg"
    (tmp_path / "many" / "a").mkdir(parents=True)
    for number in range(1, 200):
        os.link(first, tmp_path / "few" / "a" / f"{number:06d}.jpg")
    for number in range(20_000):
        os.link(first, tmp_path / "many" / "a" / f"{number:06d}.jpg")
    peaks = {}
    for name in ("few", "many"):
        done = run_script(PEAK, str(tmp_path / name), str(tmp_path / f"{name}.lmdb"))
        assert done.returncode == 0, done.stderr
        samples, peaks[name] = map(int, done.stdout.split())
        assert samples == {"few": 200, "many": 20_000}[name]
    assert (peaks["many"] - peaks["few"]) / 1024 <= 20
