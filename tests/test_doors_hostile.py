"""Sources that are damaged on purpose: one error that says what is wrong, and no more."""

from __future__ import annotations

import io
import json
import pickle
import struct
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_datasets import jpeg

from sharedds.doors.export import export
from sharedds.doors.pack import pack
from sharedds.doors.pickles import load_plain
from sharedds.errors import DecodeError, OptionError
from sharedds.store import Store


def pictures(folder: Path, count: int = 2) -> Path:
    """Write 0.jpg and so on."""
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"{number}.jpg").write_bytes(jpeg(number))
    return folder


def packed(source: Path, **options: Any) -> tuple[Store, str]:
    """Return the store of a source, and its report."""
    out = source.parent / "packed.lmdb"
    report = pack(source, out, progress=False, **options)
    return Store(out), Path(report.report).read_text()


def test_an_empty_file_is_of_no_format(tmp_path: Path) -> None:
    """It is said, and how to name one."""
    (tmp_path / "empty").touch()
    with pytest.raises(OptionError, match="of no format that is known here"):
        pack(tmp_path / "empty", tmp_path / "out.lmdb")


def test_digits_that_are_names_stay_text(tmp_path: Path) -> None:
    """007 is no 7.0, and twenty digits are more than a float holds."""
    folder = pictures(tmp_path / "in")
    rows = ["0.jpg,01,007,12345678901234567890", "1.jpg,02,008,12345678901234567891"]
    (folder / "a.csv").write_text("\n".join(["path,label,id,long", *rows]))
    store, _ = packed(folder / "a.csv")
    assert list(store.classes or ()) == ["01", "02"]
    assert [store.value("id", 0), store.value("long", 1)] == ["007", "12345678901234567891"]


def test_a_label_that_is_too_long_to_be_one_is_reported(tmp_path: Path) -> None:
    """It was not read with the other labels."""
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number, label in enumerate((b"cat", b"x" * (2 << 20))):
            for name, data in ((f"{number}.jpg", jpeg(number)), (f"{number}.cls", label)):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    store, report = packed(tmp_path / "a.tar")
    assert len(store) == 1
    assert "is none of the classes" in report


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"segmentation": "HUGE"}, "segmentation: Number out of range"),
        ({"bbox": [0, 0, 1e300, 1]}, "a box beyond all pictures"),
    ],
    ids=["number", "box"],
)
def test_an_annotation_that_no_store_holds_is_reported(
    tmp_path: Path, changes: dict[str, Any], wanted: str
) -> None:
    """The other pictures are packed."""
    folder = pictures(tmp_path / "in")
    said = {
        "images": [{"id": n, "file_name": f"{n}.jpg"} for n in range(2)],
        "categories": [{"id": 1, "name": "x"}],
        "annotations": [{"image_id": 0, "category_id": 1, "bbox": [0, 0, 1, 1]} | changes],
    }
    (folder / "a.json").write_text(json.dumps(said).replace('"HUGE"', "[1e400]"))
    store, report = packed(folder / "a.json")
    assert [store.key(number) for number in range(len(store))] == ["1.jpg"]
    assert wanted in report


def test_entities_are_refused_in_utf_16_too(tmp_path: Path) -> None:
    """There the bytes of a document type have zeros between them."""
    pictures(tmp_path / "voc" / "JPEGImages")
    notes = tmp_path / "voc" / "Annotations"
    notes.mkdir()
    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox>"
    text = f"<annotation><object><name>%s</name>{box}</object></annotation>"
    head = '<?xml version="1.0" encoding="utf-16"?><!DOCTYPE a [<!ENTITY b "boom">]>'
    (notes / "0.xml").write_bytes((head + text % "&b;").encode("utf-16"))
    (notes / "1.xml").write_text(text % "cat")
    store, report = packed(tmp_path / "voc")
    assert list(store.classes or ()) == ["cat"]
    assert "with a document type" in report


def test_a_column_with_nan_goes_out_as_json_and_back(tmp_path: Path) -> None:
    """JSON has no word for it; Python writes one that other readers refuse."""
    folder = pictures(tmp_path / "in")
    (folder / "a.csv").write_text("path,dose\n0.jpg,1.5\n1.jpg,\n")
    packed(folder / "a.csv")
    export(folder / "packed.lmdb", tmp_path / "tars", to="webdataset")
    store, _ = packed(tmp_path / "tars")
    assert [store.value("columns", n) for n in range(2)] == [{"dose": 1.5}, {"dose": None}]


def test_text_that_is_not_utf_8_does_not_go_to_parquet(tmp_path: Path) -> None:
    """The error is of this library, and leaves nothing behind."""
    pytest.importorskip("pyarrow")
    folder = pictures(tmp_path / "in")
    (folder / "a.csv").write_bytes("path,who\n0.jpg,caf\xe9\n".encode("latin-1"))
    packed(folder / "a.csv")
    with pytest.raises(OptionError, match="not UTF-8"):
        export(folder / "packed.lmdb", tmp_path / "out", to="parquet")
    assert not (tmp_path / "out").exists()


# --- Parquet ---


def table(path: Path, **columns: Any) -> Path:
    """Write a Parquet file of two pictures and further columns."""
    pa = pytest.importorskip("pyarrow")
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    shown = pa.array([{"bytes": jpeg(n), "path": None} for n in range(2)], kind)
    path.parent.mkdir(exist_ok=True)
    named = {"image": shown} | columns
    whole = pa.Table.from_arrays(list(named.values()), names=list(named))
    pa.parquet.write_table(whole, path)
    return path.parent


def broken_text() -> Any:
    """Return texts of which the first is not UTF-8."""
    pa = pytest.importorskip("pyarrow")
    ends = pa.py_buffer(struct.pack("<3i", 0, 2, 3))
    return pa.Array.from_buffers(pa.string(), 2, [None, ends, pa.py_buffer(b"\xff\xfea")])


@pytest.mark.parametrize("name", ["text", "label"])
def test_a_text_that_is_not_utf_8_is_reported(tmp_path: Path, name: str) -> None:
    """Arrow does not look, and Python does."""
    store, report = packed(table(tmp_path / "in" / "a.parquet", **{name: broken_text()}))
    assert len(store) == 1
    assert f"{name}: 'utf-8' codec can't decode" in report


def test_a_time_beyond_all_years_is_reported(tmp_path: Path) -> None:
    """No object of Python stands for it."""
    pa = pytest.importorskip("pyarrow")
    times = pa.array([1 << 62, 1], pa.timestamp("ms"))
    store, report = packed(table(tmp_path / "in" / "a.parquet", at=times))
    assert len(store) == 1
    assert "at: " in report


@pytest.mark.parametrize(
    ("second", "wanted"),
    [({}, "b.parquet: it has no column 'n'"), ({"n": [[1], [2]]}, "b.parquet: its column 'n'")],
    ids=["missing", "lists"],
)
def test_files_of_other_columns_are_refused(
    tmp_path: Path, second: dict[str, Any], wanted: str
) -> None:
    """Which file and which column is said."""
    pa = pytest.importorskip("pyarrow")
    table(tmp_path / "in" / "a.parquet", n=pa.array([1, 2]))
    more = {name: pa.array(values) for name, values in second.items()}
    folder = table(tmp_path / "in" / "b.parquet", **more)
    with pytest.raises(DecodeError, match=wanted):
        packed(folder)


def test_a_column_may_be_of_another_width_or_missing_throughout(tmp_path: Path) -> None:
    """As files that were written month by month have it."""
    pa = pytest.importorskip("pyarrow")
    for at, kind in enumerate((pa.int64(), pa.int32(), pa.null())):
        column = pa.nulls(2) if kind == pa.null() else pa.array([1, 2], kind)
        folder = table(tmp_path / "in" / f"{at}.parquet", n=column)
    store, _ = packed(folder)
    assert [store.value("n", number) for number in range(6)] == [1, 2, 1, 2, None, None]


# --- pickles ---

_FORGED = """
import pickle
import numpy as np
from numpy._core.multiarray import _reconstruct
class Built:
    def __init__(self, *parts): self.parts = parts
    def __reduce__(self): return self.parts
dtype = Built(np.dtype, ("O", False, True), (3, "|", None, None, None, -1, -1, 0))
array = Built(_reconstruct, (np.ndarray, (0,), b"b"), (1, (1,), dtype, False, b"A" * 8))
print(pickle.dumps(array).hex())
"""


def test_a_pickle_cannot_make_up_objects() -> None:
    """NumPy's own dtype believes that it holds none, and the process dies of the first look."""
    done = subprocess.run(
        [sys.executable, "-c", _FORGED], capture_output=True, text=True, check=True
    )
    with pytest.raises(DecodeError, match="it names the dtype object"):
        load_plain(bytes.fromhex(done.stdout))


class _Built:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        return self.parts


@pytest.mark.parametrize(
    "value",
    [_Built(bytearray, (1 << 40,)), _Built(np.ndarray, ((1 << 40,), "u1"))],
    ids=["bytes", "array"],
)
def test_a_pickle_allocates_nothing_by_a_number(value: Any) -> None:
    """A count in a file is no reason to take memory."""
    with pytest.raises(DecodeError, match="a pickle that is not read"):
        load_plain(pickle.dumps(value))


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("dtype", ["u1", "<f4", ">i2", "?", "c8", "S3", "U2"])
def test_plain_arrays_are_read_as_ever(protocol: int, dtype: str) -> None:
    """Of all protocols, in both orders, empty ones and scalars too."""
    array = np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)
    given = [array, np.asfortranarray(array), array[:0], array[0, 0], bytearray(b"ab"), b"ab"]
    data = pickle.dumps(given, protocol=protocol)
    found, wanted = load_plain(data), pickle.loads(data)
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert [found[0].dtype, found[2].shape] == [wanted[0].dtype, (0, 3)]


@pytest.mark.parametrize("form", ["webdataset", "mds"])
def test_a_class_with_a_line_break_does_not_move_the_others(tmp_path: Path, form: Any) -> None:
    """In a file with one name a line each label behind it would be another class."""
    for number, name in enumerate(("a\nb", "c")):
        folder = tmp_path / "in" / name
        folder.mkdir(parents=True)
        (folder / f"{number}.jpg").write_bytes(jpeg(number))
    packed(tmp_path / "in")
    with pytest.raises(OptionError, match="has a line break"):
        export(tmp_path / "packed.lmdb", tmp_path / "out", to=form)
    assert not (tmp_path / "out").exists()
