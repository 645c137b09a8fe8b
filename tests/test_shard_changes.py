"""Stores that are merged, split, appended to and edited."""

from __future__ import annotations

import json
import pickle
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing import environment
from packing import folder as pictures
from slide_files import picture, write_slide
from stores import SCHEMA, everything, key_of, sample, write
from volume_files import numbered, write_nifti

from sharedds import (
    GridPatches,
    ImageDataset,
    RandomResizedCrop,
    SlideDataset,
    VolumeDataset,
    build_loader,
)
from sharedds.cli import main
from sharedds.errors import (
    ClassMismatchError,
    OptionError,
    SampleKeyError,
    SchemaError,
    StoreBusyError,
    StoreExistsError,
)
from sharedds.ingest import export, pack, pack_slides, pack_volumes
from sharedds.store import Store, StoreWriter, append, edit, merge, split, verify
from sharedds.store.lock import FolderLock
from sharedds.store.shard_index import read_index


def small(path: Path, numbers: range, *, labels: int = 3, prefix: str = "k") -> Path:
    """Write samples of a number, a label and a name."""
    schema = {"data": "keep", "label": "int64", "who": "str"}
    names = [f"class {n}" for n in range(labels)]
    with StoreWriter(path, schema=schema, classes=names, attrs={"kind": "own"}) as writer:
        for n in numbers:
            values = {"data": None, "label": n % labels, "who": f"p{n // 4}"}
            writer.add(values, key=f"{prefix}{n}")
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Ten samples in shards of five."""
    small(tmp_path / "single.lmdb", range(10))
    merge([tmp_path / "single.lmdb"], tmp_path / "store", shards=2)
    return tmp_path / "store"


def test_merged_stores_hold_what_they_held(tmp_path: Path) -> None:
    """Every kind of field keeps its bytes, and the digest is that of a store written in one go."""
    schema = SCHEMA | {"boxes": "array:float32"}
    for name, numbers in (("a", range(5)), ("b", range(5, 12))):
        options: Any = {"classes": ["a", "b\udcfe"], "attrs": {"root": "/src"}}
        with StoreWriter(tmp_path / name, schema=schema, **options) as writer:
            for number in numbers:
                writer.add(sample(number), key=key_of(number))
    report = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    whole = Store(write(tmp_path / "whole.lmdb", 12))
    assert report.digest == whole.digest
    assert everything(Store(tmp_path / "out")) == everything(whole)
    assert verify(tmp_path / "out", untrusted=True).ok


def test_shards_become_a_single_file_again(tmp_path: Path, store: Path) -> None:
    """And a file becomes shards; the digest stays."""
    assert merge([store], tmp_path / "one.lmdb").digest == Store(tmp_path / "single.lmdb").digest
    assert (tmp_path / "one.lmdb").is_file()


def test_stores_that_do_not_fit_are_not_merged(tmp_path: Path) -> None:
    """Other classes would give labels another meaning; equal keys are refused at the end."""
    first = small(tmp_path / "a.lmdb", range(4))
    with pytest.raises(ClassMismatchError, match="other class names"):
        merge([first, small(tmp_path / "b.lmdb", range(4, 8), labels=2)], tmp_path / "out")
    with pytest.raises(SchemaError, match="same key"):
        merge([first, first], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_split_by_count_is_in_order(tmp_path: Path, store: Path) -> None:
    """Parts of nearly equal size hold all samples once."""
    report = split(store, tmp_path / "parts", parts=3)
    keys = [[s.key(n) for n in range(len(s))] for s in map(Store, report.files)]
    assert [len(part) for part in keys] == [4, 3, 3]
    assert [key for part in keys for key in part] == [f"k{n}" for n in range(10)]


def test_a_split_by_column_names_stores_after_values(tmp_path: Path, store: Path) -> None:
    """Of labels, after the classes."""
    report = split(store, tmp_path / "parts", by="label")
    assert [Path(file).name for file in report.files] == [f"class_{n}.lmdb" for n in range(3)]
    for number, file in enumerate(report.files):
        assert set(np.asarray(Store(file).column("label")).tolist()) == {number}


def test_a_split_by_group_keeps_groups_together(tmp_path: Path, store: Path) -> None:
    """No patient is in two parts."""
    report = split(store, tmp_path / "parts", parts=2, group="who")
    groups = [set(Store(file).texts("who")) for file in report.files]
    assert groups[0] & groups[1] == set()
    assert groups[0] | groups[1] == {"p0", "p1", "p2"}


def test_appended_samples_come_last(tmp_path: Path, store: Path) -> None:
    """Old files are not touched; the digest is that of one store of all."""
    before = {file.name: file.stat().st_mtime_ns for file in store.glob("shard-*")}
    report = append(store, [small(tmp_path / "more.lmdb", range(10, 13))])
    assert (report.changed, report.samples) == (3, 13)
    assert report.digest == Store(small(tmp_path / "all.lmdb", range(13))).digest
    assert Store(store).index_of("k12") == 12
    assert {n: (store / n).stat().st_mtime_ns for n in before} == before
    assert verify(store).ok


def test_who_has_a_store_open_goes_on_with_the_old_one(tmp_path: Path, store: Path) -> None:
    """In this process and in another that gets a copy of the object later."""
    reader = Store(store)
    append(store, [small(tmp_path / "more.lmdb", range(10, 13))])
    edit(store, [{"key": "k1", "label": 0}])
    copy = pickle.loads(pickle.dumps(reader))
    for one in (reader, copy):
        assert len(one) == 10
        assert one.column("label")[1] == 1
        assert one.index_of("k9") == 9
    assert len(Store(store)) == 13


def test_an_append_that_fails_changes_nothing(tmp_path: Path, store: Path) -> None:
    """Neither the index nor the files in the folder."""
    before, digest = sorted(store.iterdir()), Store(store).digest
    with pytest.raises(SchemaError, match="same key"):
        append(store, [tmp_path / "single.lmdb"])
    assert sorted(store.iterdir()) == before
    assert Store(store).digest == digest


def test_two_do_not_change_a_store_at_once(store: Path) -> None:
    """The second is told so."""
    lock = FolderLock.take(str(store))
    assert lock is not None
    with pytest.raises(StoreBusyError, match="being changed"):
        append(store, [])
    lock.remove()


def test_a_single_file_is_not_changed(tmp_path: Path, store: Path) -> None:
    """The error says how to make a folder of it."""
    with pytest.raises(OptionError, match="--shards 1"):
        edit(tmp_path / "single.lmdb", [])


def test_edited_columns_and_keys_are_read_in_place_of_the_old(tmp_path: Path, store: Path) -> None:
    """No shard is written again, and the digest is that of a store packed with these values."""
    before = {file.name: file.stat().st_mtime_ns for file in store.glob("shard-*")}
    rows = [
        {"key": "k3", "label": "class 2", "new_key": "renamed"},
        {"key": "k8", "who": "somebody"},
    ]
    report = edit(store, rows)
    found = Store(store)
    assert {n: (store / n).stat().st_mtime_ns for n in before} == before
    assert (found.column("label")[3], found.texts("who")[8]) == (2, "somebody")
    assert (found.column("label")[4], found.texts("who")[3]) == (1, "p0")
    assert (found.index_of("renamed"), found.key(3)) == (3, "renamed")
    with pytest.raises(SampleKeyError):
        found.index_of("k3")
    assert merge([store], tmp_path / "anew.lmdb").digest == report.digest
    assert verify(store).ok


def test_edits_add_up_and_appended_samples_keep_theirs(tmp_path: Path, store: Path) -> None:
    """A later edit keeps what an earlier one changed."""
    edit(store, [{"key": "k3", "label": 2}])
    append(store, [small(tmp_path / "more.lmdb", range(10, 13))])
    edit(store, [{"key": "k4", "who": "other"}])
    edit(store, [{"key": "k12", "label": 1}])
    found = Store(store)
    expected = [n % 3 for n in range(13)]
    expected[3], expected[12] = 2, 1
    assert np.asarray(found.column("label")).tolist() == expected
    assert found.texts("who")[4] == "other"
    assert verify(store).ok


def test_edits_that_do_not_fit_change_nothing(store: Path) -> None:
    """An unknown key, an unknown column, a value of another kind, a key twice."""
    digest = Store(store).digest
    for row, kind in (
        ({"key": "nobody", "label": 1}, SampleKeyError),
        ({"key": "k1", "nothing": 1}, SampleKeyError),
        ({"key": "k1", "data": b""}, SampleKeyError),
        ({"key": "k1", "label": "no class"}, SchemaError),
        ({"key": "k1", "new_key": "k2"}, SchemaError),
        ({"label": 1}, OptionError),
    ):
        with pytest.raises(kind):
            edit(store, [row])
    assert Store(store).digest == digest


def test_the_verbs_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """merge, split, append and edit, with --json and --dry-run."""
    one, two = small(tmp_path / "a.lmdb", range(4)), small(tmp_path / "b.lmdb", range(4, 8))
    out, table = str(tmp_path / "out"), tmp_path / "labels.csv"
    table.write_text("key,label\nk1,class 0\n")
    for words in (
        ["merge", str(one), out, "--shards", "2"],
        ["append", out, str(two)],
        ["edit", out, str(table)],
        ["split", out, str(tmp_path / "parts"), "--by", "label"],
    ):
        assert main([*words, "--dry-run", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["dry_run"] is True
        assert main([*words, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["path"]
    assert len(Store(out)) == 8
    assert Store(out).column("label")[1] == 0


# --- pack ---


def test_a_folder_is_packed_into_shards(tmp_path: Path) -> None:
    """The digest and the report are those of a single file, and the export is the folder."""
    root = pictures(tmp_path / "photos", ("a", "b"), count=6)
    one = pack(root, tmp_path / "one.lmdb")
    many = pack(root, tmp_path / "many", shards=4)
    assert (many.digest, many.samples, many.content) == (one.digest, one.samples, one.content)
    assert len(list((tmp_path / "many").glob("shard-*"))) == 4
    export(tmp_path / "many", tmp_path / "back")
    for file in root.rglob("*.jpg"):
        assert (tmp_path / "back" / file.relative_to(root)).read_bytes() == file.read_bytes()
    with pytest.raises(StoreExistsError):
        pack(root, tmp_path / "many", shards=4)


def test_the_command_packs_shards_of_a_size(tmp_path: Path) -> None:
    """``--shard-size`` as people write it."""
    root = pictures(tmp_path / "photos", ("a", "b"), count=6)
    words = ["pack", str(root), str(tmp_path / "out"), "--shard-size", "2kB", "--quiet"]
    assert main(words) == 0
    assert len(list((tmp_path / "out").glob("shard-*"))) > 2


# A pack that commits every few pictures, takes its time, and says when it begins to write.
CHILD = """
import sys, time
from sharedds.ingest import images
from sharedds.store import writer
writer._COMMIT = 4096
real = images.Ingester.__call__
def slow(self, path):
    time.sleep(0.002)
    return real(self, path)
images.Ingester.__call__ = slow
print("ready", flush=True)
from sharedds import (
    GridPatches,
    ImageDataset,
    RandomResizedCrop,
    SlideDataset,
    VolumeDataset,
    build_loader,
)
from sharedds.cli import main
sys.exit(main(["pack", sys.argv[1], sys.argv[2], "--quiet", "--shards", "7"]))
"""


def test_a_killed_pack_goes_on_and_ends_with_the_same_content(tmp_path: Path) -> None:
    """However often, at whatever moment: nothing under the final name until all of it is there."""
    root = pictures(tmp_path / "photos", ("a", "b"), count=60)
    out, draws, killed = tmp_path / "out", random.Random(7), 0
    for _ in range(3):
        words = [sys.executable, "-c", CHILD, str(root), str(out)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment()) as child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(draws.uniform(0.3, 0.8))
            child.send_signal(signal.SIGKILL)
        if out.exists():
            break
        killed += 1
    report = pack(root, out, shards=7)
    assert report.digest == pack(root, tmp_path / "one.lmdb").digest
    assert killed
    assert verify(out).ok
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_stream_of_a_loader_is_that_of_a_single_file(tmp_path: Path, workers: int) -> None:
    """Bit for bit, random crops included; the dataset stays small and opens in each worker."""
    root = pictures(tmp_path / "photos", ("a", "b"), count=10)
    pack(root, tmp_path / "one.lmdb")
    pack(root, tmp_path / "many", shards=6)
    streams = []
    for path in (tmp_path / "one.lmdb", tmp_path / "many"):
        data = ImageDataset(path, view=RandomResizedCrop(8, flip=0.5))
        assert len(pickle.dumps(data)) < 60_000
        loader = build_loader(data, batch_size=4, shuffle=True, seed=3, num_workers=workers)
        streams.append([(images.numpy(), labels.tolist()) for images, labels in loader])
    for (images, labels), (others, their) in zip(*streams, strict=True):
        assert np.array_equal(images, others)
        assert labels == their


def test_volumes_are_packed_into_shards(tmp_path: Path) -> None:
    """Patches of a dataset and the digest are those of a single file."""
    (tmp_path / "src").mkdir()
    for name in ("a", "b", "c"):
        write_nifti(tmp_path / "src" / f"{name}.nii.gz", numbered((20, 18, 16)) + ord(name))
    one = pack_volumes(tmp_path / "src", tmp_path / "one.lmdb", progress=False)
    many = pack_volumes(tmp_path / "src", tmp_path / "many", progress=False, shards=2)
    assert many.digest == one.digest
    assert shards_of(tmp_path / "many") == [2, 1]
    patches = [VolumeDataset(r.path, patch=GridPatches((8, 8, 8))) for r in (one, many)]
    assert len(patches[0]) == len(patches[1]) > 3
    for first, second in zip(*patches, strict=True):
        assert np.array_equal(first["image"], second["image"])


def test_slides_are_packed_into_shards(tmp_path: Path) -> None:
    """Tiles of a dataset and the digest are those of a single file."""
    (tmp_path / "src").mkdir()
    for number in range(3):
        write_slide(tmp_path / "src" / f"{number}.tif", picture(300 + 16 * number, 280))
    one = pack_slides(tmp_path / "src", tmp_path / "one.lmdb", progress=False)
    many = pack_slides(tmp_path / "src", tmp_path / "many", progress=False, shards=3)
    assert many.digest == one.digest
    assert shards_of(tmp_path / "many") == [1, 1, 1]
    patches = [SlideDataset(r.path, patch=GridPatches((64, 64))) for r in (one, many)]
    assert len(patches[0]) == len(patches[1]) > 3
    for first, second in zip(*patches, strict=True):
        assert np.array_equal(first["image"], second["image"])


def shards_of(path: Path) -> list[int]:
    """Return how many samples are in each shard."""
    return [shard.samples for shard in read_index(str(path)).shards]
