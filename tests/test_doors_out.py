"""Stores become datasets of other formats, and come back with the same bytes and labels."""

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_datasets import jpeg, tar_of, wds_members

from sharedds import Store, StoreWriter, export, pack
from sharedds.cli import main
from sharedds.doors.export import ExportFormat
from sharedds.errors import CorruptDataError, OptionError, StoreExistsError, StoreFormatError

FORMATS: list[ExportFormat] = ["webdataset", "mds", "parquet"]


def _needs(to: str) -> None:
    if to == "parquet":
        pytest.importorskip("pyarrow", reason="Parquet is written with pyarrow")


def _store(path: Path, count: int = 5) -> Store:
    schema = {
        "image": "keep",
        "mask": "png",
        "label": "int64",
        "age": "float32",
        "note": "str",
        "boxes": "array:float32",
        "tags": "json",
    }
    with StoreWriter(path, schema=schema, classes=["cat", "dog"]) as writer:
        for number in range(count):
            sample = {
                "image": jpeg(number),
                "mask": np.full((4, 5), number, np.uint8),
                "label": number % 2,
                "age": number / 4,
                "note": f"größe {number}",
                "boxes": np.full((number, 4), number, np.float32),
                "tags": {"n": [number]},
            }
            writer.add(sample, key=f"c{number % 2}/a.{number}.jpg")
    return Store(path)


@pytest.mark.parametrize("to", FORMATS)
def test_a_round_trip_keeps_bytes_labels_and_classes(tmp_path: Path, to: ExportFormat) -> None:
    """Out in several shards and in again: every picture field byte for byte."""
    _needs(to)
    store = _store(tmp_path / "a.lmdb")
    report = export(tmp_path / "a.lmdb", tmp_path / "out", to=to, shard_size=2_000)
    assert report.files > 1
    back = pack(tmp_path / "out", tmp_path / "b.lmdb")
    again = Store(tmp_path / "b.lmdb")
    assert (back.layout, back.samples, back.failed_count) == (to, 5, 0)
    for number in range(5):
        for field in ("image", "mask"):
            assert bytes(again.read(field, number)) == bytes(store.read(field, number))
        assert again[number]["label"] == store[number]["label"]
        assert again[number]["note"] == store[number]["note"]
    assert list(again.classes or ()) == ["cat", "dog"]


@pytest.mark.parametrize("to", FORMATS)
def test_a_packed_webdataset_comes_back_with_its_keys(tmp_path: Path, to: ExportFormat) -> None:
    """Keys, JSON and texts as they were; the same tar gives the same store."""
    _needs(to)
    tar_of(tmp_path / "a.tar", wds_members(4))
    pack(tmp_path / "a.tar", tmp_path / "a.lmdb")
    export(tmp_path / "a.lmdb", tmp_path / "out", to=to)
    pack(tmp_path / "out", tmp_path / "b.lmdb")
    one, two = Store(tmp_path / "a.lmdb"), Store(tmp_path / "b.lmdb")
    assert [two.key(number) for number in range(4)] == [one.key(number) for number in range(4)]
    assert [two[number]["txt"] for number in range(4)] == [one[n]["txt"] for n in range(4)]


def test_an_export_to_tars_is_the_same_each_time(tmp_path: Path) -> None:
    """Neither time nor owner is in it."""
    _store(tmp_path / "a.lmdb")
    for name in ("one", "two"):
        export(tmp_path / "a.lmdb", tmp_path / name, to="webdataset")
    name = "shard-000000.tar"
    assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    with tarfile.open(tmp_path / "one" / name) as tar:
        assert tar.getnames()[:2] == ["c0/a%2E0.jpg", "c0/a%2E0.mask.png"]


def test_pictures_that_differ_by_their_ending_stay_two_samples(tmp_path: Path) -> None:
    """In a tar the ending is no part of the key, so it is written into it where it has to be."""
    with StoreWriter(tmp_path / "a.lmdb", schema={"image": "keep"}) as writer:
        writer.add({"image": jpeg(0)}, key="a.jpg")
        writer.add({"image": jpeg(1)}, key="a.jpeg")
    export(tmp_path / "a.lmdb", tmp_path / "out", to="webdataset")
    assert pack(tmp_path / "out", tmp_path / "b.lmdb").samples == 2


@pytest.mark.parametrize("to", FORMATS)
def test_a_key_that_climbs_is_not_exported(tmp_path: Path, to: ExportFormat) -> None:
    """Whoever unpacks the export would write elsewhere."""
    _needs(to)
    with StoreWriter(tmp_path / "a.lmdb", schema={"image": "keep"}) as writer:
        writer.add({"image": jpeg(0)}, key="../../evil.jpg")
    with pytest.raises(StoreFormatError, match="not a path inside"):
        export(tmp_path / "a.lmdb", tmp_path / "out", to=to)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", FORMATS)
def test_damage_leaves_nothing_behind(tmp_path: Path, to: ExportFormat) -> None:
    """The folder appears when it is whole, or not at all."""
    _needs(to)
    _store(tmp_path / "a.lmdb")
    data = bytearray((tmp_path / "a.lmdb").read_bytes())
    at = data.find(jpeg(4)[-200:])
    data[at + 100] ^= 1
    (tmp_path / "a.lmdb").write_bytes(data)
    with pytest.raises(CorruptDataError):
        export(tmp_path / "a.lmdb", tmp_path / "out", to=to, shard_size=2_000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.lmdb"]


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    """Volumes are for folders, names of fields too, and a full folder stays as it is."""
    _store(tmp_path / "a.lmdb")
    with pytest.raises(OptionError, match="field and suffix"):
        export(tmp_path / "a.lmdb", tmp_path / "out", to="mds", field="image")
    with pytest.raises(OptionError, match="one of folder, webdataset"):
        export(tmp_path / "a.lmdb", tmp_path / "out", to=_any("tfrecord"))
    with pytest.raises(StoreExistsError):
        export(tmp_path / "a.lmdb", tmp_path, to="mds")
    with StoreWriter(tmp_path / "v.lmdb", schema={"image": "lz4"}) as writer:
        writer.add({"image": np.zeros((4, 4, 4), np.int16)})
    with pytest.raises(OptionError, match="volumes or slides"):
        export(tmp_path / "v.lmdb", tmp_path / "out", to="mds")


def _any(value: Any) -> Any:
    return value


def test_a_dry_run_of_an_export_writes_nothing(tmp_path: Path) -> None:
    """It reads everything, and counts what a run would write."""
    _store(tmp_path / "a.lmdb")
    dry = export(tmp_path / "a.lmdb", tmp_path / "out", to="mds", dry_run=True)
    assert not (tmp_path / "out").exists()
    real = export(tmp_path / "a.lmdb", tmp_path / "out", to="mds")
    assert (dry.files, dry.bytes) == (real.files, real.bytes)


def test_the_command_line_goes_both_ways(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same words as in Python."""
    _store(tmp_path / "a.lmdb")
    paths = [str(tmp_path / name) for name in ("a.lmdb", "out", "b.lmdb")]
    assert main(["export", paths[0], paths[1], "--to", "mds", "--shard-size", "2kB"]) == 0
    assert main(["pack", paths[1], paths[2], "--format", "mds", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["layout"], found["samples"]) == ("mds", 5)
