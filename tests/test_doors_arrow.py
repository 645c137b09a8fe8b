"""Parquet files and datasets that Hugging Face ``datasets`` saved become stores."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_datasets import jpeg

from sharedds import Store, pack
from sharedds.errors import DecodeError, OptionError, SourceError

pa = pytest.importorskip("pyarrow", reason="Arrow and Parquet are read with pyarrow")
pq = pytest.importorskip("pyarrow.parquet", reason="Arrow and Parquet are read with pyarrow")

_FEATURES = {
    "picture": {"_type": "Image"},
    "label": {"_type": "ClassLabel", "names": ["cat", "dog"]},
    "coat": {"_type": "ClassLabel", "names": ["plain", "striped"]},
}


def _table(count: int = 4, **changes: list[Any]) -> Any:
    columns: dict[str, list[Any]] = {
        "picture": [{"bytes": jpeg(n), "path": f"{n}.jpg"} for n in range(count)],
        "label": [n % 2 for n in range(count)],
        "coat": [1 for _ in range(count)],
        "caption": [f"c{n}" for n in range(count)],
        "boxes": [[[float(n)] * 4] * n for n in range(count)],
        "weights": [[1.0, float(n)] for n in range(count)],
        **changes,
    }
    said = json.dumps({"info": {"features": _FEATURES}})
    return pa.table(columns).replace_schema_metadata({"huggingface": said})


def _saved(folder: Path, table: Any) -> None:
    folder.mkdir(parents=True)
    with pa.OSFile(str(folder / "data-0.arrow"), "wb") as file:
        writer = pa.ipc.new_stream(file, table.schema)
        writer.write_table(table)
        writer.close()
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-0.arrow"}]}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": _FEATURES}))


def _require_whole(path: Path) -> None:
    store = Store(path)
    assert [bytes(store.read("image", n)) for n in range(4)] == [jpeg(n) for n in range(4)]
    assert [store.key(n) for n in range(4)] == [f"{n}.jpg" for n in range(4)]
    assert list(store.classes or ()) == ["cat", "dog"]
    assert store.attrs["source"]["class_names"] == {"coat": ["plain", "striped"]}
    sample = store[3]
    assert (sample["label"], sample["coat"], sample["caption"]) == (1, 1, "c3")
    np.testing.assert_array_equal(sample["boxes"], np.full((3, 4), 3.0))
    np.testing.assert_array_equal(sample["weights"], [1.0, 3.0])
    assert store[0]["boxes"].shape == (0, 4)


def test_parquet_keeps_bytes_labels_and_columns(tmp_path: Path) -> None:
    """Class names come from the metadata, lists become arrays, row groups are read in parts."""
    pq.write_table(_table(), tmp_path / "a.parquet", row_group_size=2)
    assert pack(tmp_path / "a.parquet", tmp_path / "out.lmdb").layout == "parquet"
    _require_whole(tmp_path / "out.lmdb")


def test_a_saved_dataset_keeps_bytes_labels_and_columns(tmp_path: Path) -> None:
    """Of several splits one has to be chosen, and the choices are named."""
    _saved(tmp_path / "d" / "train", _table())
    (tmp_path / "d" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    with pytest.raises(OptionError, match="'train', 'test'"):
        pack(tmp_path / "d", tmp_path / "out.lmdb")
    pack(tmp_path / "d", tmp_path / "out.lmdb", split="train")
    _require_whole(tmp_path / "out.lmdb")
    pack(tmp_path / "d" / "train", tmp_path / "same.lmdb")
    _require_whole(tmp_path / "same.lmdb")


def test_paths_that_repeat_give_way_to_numbers(tmp_path: Path) -> None:
    """Keys are unique; so are file names that climb no keys, and nothing is read by them."""
    for name, path in (("twice", "a.jpg"), ("climbing", "../../etc/passwd")):
        pictures = [{"bytes": jpeg(n), "path": path} for n in range(4)]
        pq.write_table(_table(picture=pictures), tmp_path / f"{name}.parquet")
        pack(tmp_path / f"{name}.parquet", tmp_path / f"{name}.lmdb")
        assert Store(tmp_path / f"{name}.lmdb").key(2) == "00000002.jpg"


def test_a_picture_without_bytes_is_read_inside_the_folder_only(tmp_path: Path) -> None:
    """A path may stand for a file beside; one elsewhere is reported."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "in.jpg").write_bytes(jpeg(0))
    (tmp_path / "out.jpg").write_bytes(jpeg(1))
    pictures = [{"bytes": None, "path": path} for path in ("in.jpg", "../out.jpg")]
    table = _table(2, picture=pictures)
    pq.write_table(table, tmp_path / "data" / "a.parquet")
    report = pack(tmp_path / "data" / "a.parquet", tmp_path / "out.lmdb")
    assert (report.samples, report.failed_count) == (1, 1)


def test_missing_values_stand_for_nothing(tmp_path: Path) -> None:
    """Measures become NaN, whole numbers null, text empty; a row without a label is reported."""
    table = _table(
        age=[1, None, 3, 4], dose=[0.5, None, 1.0, 2.0], caption=["a", None, "c", "d"],
        label=[0, 1, None, 1],
    )  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet")
    report = pack(tmp_path / "a.parquet", tmp_path / "out.lmdb")
    sample = Store(tmp_path / "out.lmdb")[1]
    assert (sample["age"], np.isnan(sample["dose"]), sample["caption"]) == (None, True, "")
    assert [reason for _, reason in report.failed] == ["label: missing"]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_damaged_files_are_refused_by_name(tmp_path: Path, name: str) -> None:
    """The library's error does not leak; the file is named."""
    pq.write_table(_table(), tmp_path / "a.parquet")
    _saved(tmp_path / "d", _table())
    (tmp_path / "d" / "data-0.arrow").rename(tmp_path / "a.arrow")
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: len(data) // 2])
    with pytest.raises((DecodeError, SourceError), match=name):
        pack(tmp_path / name, tmp_path / "out.lmdb", on_error="raise")


def test_columns_without_pictures_are_refused(tmp_path: Path) -> None:
    """With the names of those there are."""
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match="no column holds the bytes of pictures; columns: a, b"):
        pack(tmp_path / "a.parquet", tmp_path / "out.lmdb")


def test_splits_of_a_folder_are_chosen_by_name(tmp_path: Path) -> None:
    """As repositories of datasets name their files."""
    (tmp_path / "r" / "data").mkdir(parents=True)
    for split, count in (("train", 4), ("test", 2)):
        pq.write_table(_table(count), tmp_path / "r" / "data" / f"{split}-00000-of-00001.parquet")
    with pytest.raises(OptionError, match="'test', 'train'"):
        pack(tmp_path / "r", tmp_path / "out.lmdb")
    assert pack(tmp_path / "r", tmp_path / "out.lmdb", split="test").samples == 2
