"""Writing a store and reading it: every kind of field, keys, refusals, the digest."""

from __future__ import annotations

import math
import os
import pickle
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from processes import descriptors
from stores import SCHEMA, everything, jpeg, key_of, png, sample, write

import sharedds.store.layout
import sharedds.store.writer
from sharedds.errors import (
    DecodeError,
    OptionError,
    SampleIndexError,
    SampleKeyError,
    SchemaError,
    StoreError,
    StoreExistsError,
)
from sharedds.store import ArrayValue, Store, StoreWriter, info, verify
from sharedds.store.layout import CHUNK_KEY


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of twelve samples with fields of every kind."""
    return write(tmp_path_factory.mktemp("stores") / "all.lmdb")


@pytest.fixture(scope="module")
def store(path: Path) -> Store:
    """The same, opened."""
    return Store(path)


# --- what was written is what is read ------------------------------------------------------------


@pytest.mark.parametrize("field", ["photo", "mask", "file"])
def test_images_keep_their_bytes(store: Store, field: str) -> None:
    """What is stored is the file, byte for byte, or None."""
    for number in range(len(store)):
        expected = sample(number)[field]
        if expected is None:
            assert store.value(field, number) is None
        else:
            assert bytes(store.read(field, number)) == expected
            assert store.value(field, number).dtype == np.uint8


@pytest.mark.parametrize("field", ["plain", "packed", "boxes", "pixels", "weight"])
def test_arrays_keep_their_numbers(store: Store, field: str) -> None:
    """Values, shape and dtype of each, empty ones included."""
    for number in range(len(store)):
        expected = np.asarray(sample(number)[field])
        found = store.value(field, number)
        assert found.shape == expected.shape
        assert np.array_equal(found, expected)
        if field != "weight":
            assert found.dtype == expected.dtype


def test_volumes_keep_levels_and_attributes(store: Store) -> None:
    """An array with more than its numbers."""
    expected = sample(5)["volume"]
    array = store.array(5, "volume")
    assert np.array_equal(array[:], expected.data)
    assert np.array_equal(array.level(1)[:], expected.levels[0])
    assert (array.chunk, array.attrs) == ((4, 5, 6), {"slope": 2, "intercept": -5.5})
    assert store.value("volume", 4) is None


@pytest.mark.parametrize("field", ["label", "flag", "caption", "blob", "extra"])
def test_plain_values_keep_type_and_value(store: Store, field: str) -> None:
    """Numbers, bool, text with odd characters, bytes and JSON."""
    for number in range(len(store)):
        expected = sample(number)[field]
        found = store.value(field, number)
        assert found == expected
        assert type(found) is type(expected)


def test_a_sample_is_a_dict_of_its_fields(store: Store) -> None:
    """All fields, in the order of the schema."""
    assert list(store[3]) == list(store.fields) == list(SCHEMA)


def test_numbers_count_from_both_ends(store: Store) -> None:
    """-1 is the last sample, wherever a number is taken."""
    assert store[-1]["label"] == sample(11)["label"]
    assert store.key(-12) == key_of(0)
    assert bytes(store.read("photo", -2)) == jpeg(10)
    assert store.array(-1, "volume").shape == (10, 9, 8)


@pytest.mark.parametrize("index", [12, -13, 1 << 70])
def test_a_sample_that_is_not_there_is_refused(store: Store, index: int) -> None:
    """The error says how many there are."""
    for use in (store.__getitem__, store.key, lambda i: store.read("photo", i)):
        with pytest.raises(SampleIndexError, match=f"no sample {index}, there are 12"):
            use(index)


def test_a_number_is_a_whole_number(store: Store) -> None:
    """1.0 is none."""
    assert store[np.int16(1)]["label"] == -4
    with pytest.raises(SchemaError, match="whole number"):
        store[1.0]  # type: ignore[index]


def test_a_field_that_is_not_there_is_refused(store: Store) -> None:
    """The error lists the fields there are."""
    for use in (
        lambda: store.value("x", 0),
        lambda: store.read("x", 0),
        lambda: store.array(0, "x"),
    ):
        with pytest.raises(SampleKeyError, match=r"'x'; fields: photo \(jpeg\), mask \(png\)"):
            use()


def test_many_are_read_in_the_order_asked_for(store: Store) -> None:
    """Also twice the same, from both ends."""
    wanted = [7, 0, -1, 7, 3]
    assert [bytes(v) for v in store.read_many("photo", wanted)] == [jpeg(i % 12) for i in wanted]
    assert store.read_many("photo", np.array([], np.int64)) == []  # type: ignore[arg-type]
    store.advise("label", [0])  # nothing to fetch; no error either


def test_advice_names_the_bytes_that_are_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel is asked for the very ranges where the values lie, in file order."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(store.opened.file, "advise", asked.extend)
    store.advise("photo", [9, 2, 5])
    view = store.opened.file.view
    assert [bytes(view[at : at + size]) for at, size in asked] == [jpeg(2), jpeg(5), jpeg(9)]


def test_what_is_read_is_a_view(store: Store) -> None:
    """Bytes are not copied, and cannot be changed."""
    data = store.read("photo", 0)
    assert data.obj is store.opened.file.view.obj
    assert data.readonly


def test_attributes_and_classes_come_back(store: Store) -> None:
    """What the writer was given for the whole store."""
    assert store.attrs == {"root": "/src"}
    assert store.classes is not None
    assert list(store.classes) == ["a", "b\udcfe"]


# --- keys ----------------------------------------------------------------------------------------


def test_a_key_leads_to_its_sample(store: Store) -> None:
    """By text, bytes or path."""
    for number in range(12):
        assert store.index_of(key_of(number)) == number
        assert store.index_of(key_of(number).encode()) == number
        assert store.index_of(Path(key_of(number))) == number


@pytest.mark.parametrize("key", ["", "x", "folder/é001", b"\xff", "folder/é001.jpg "])
def test_a_key_that_is_not_there_is_refused(store: Store, key: Any) -> None:
    """Nothing near it is taken for it."""
    with pytest.raises(SampleKeyError, match="no sample with the key"):
        store.index_of(key)


def test_without_keys_the_number_is_the_key(tmp_path: Path) -> None:
    """Both ways."""
    store = Store(write(tmp_path / "x.lmdb", 3, keyed=False))
    assert [store.index_of(store.key(i)) for i in range(3)] == [0, 1, 2]
    for key in ("3", "-1", "01", "²", "9" * 30):
        with pytest.raises(SampleKeyError):
            store.index_of(key)


def test_keys_may_be_longer_than_lmdb_allows(tmp_path: Path) -> None:
    """Paths beyond 511 bytes that share their first 600; the naive key is refused by LMDB."""
    keys = ["d" * 600 + "/1.jpg", "d" * 600 + "/2.jpg", "n" * 251, ""]
    with (
        lmdb.open(str(tmp_path / "naive"), subdir=False) as environment,
        environment.begin(write=True) as transaction,
        pytest.raises(lmdb.BadValsizeError),
    ):
        transaction.put(keys[0].encode(), b"")
    with StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"}) as writer:
        for number, key in enumerate(keys):
            writer.add({"x": number}, key=key)
    store = Store(tmp_path / "x.lmdb")
    assert [store[store.index_of(key)]["x"] for key in keys] == [0, 1, 2, 3]
    assert [store.key(i) for i in range(4)] == keys


def test_equal_keys_are_refused(tmp_path: Path) -> None:
    """Nothing is published, nothing stays, and the error names both samples."""
    writer = StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"}, resume="work")
    for number, key in enumerate(["a", "b", "c", "b"]):
        writer.add({"x": number}, key=key)
    with pytest.raises(SchemaError, match="samples 1 and 3 have the same key 'b'"):
        writer.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("keys", [["a", None], [None, "a"]])
def test_all_samples_have_keys_or_none(tmp_path: Path, keys: list[str | None]) -> None:
    """The second sample does as the first."""
    with StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"}) as writer:
        writer.add({"x": 1}, key=keys[0])
        with pytest.raises(SchemaError, match="to every sample or to none"):
            writer.add({"x": 2}, key=keys[1])


# --- refusals ------------------------------------------------------------------------------------

REFUSED = [
    ("photo", png(1)),
    ("photo", b""),
    ("photo", "text"),
    ("photo", [[1], [1, 2]]),
    ("mask", np.zeros((4, 4, 7), np.uint8)),
    ("file", np.zeros((4, 4), np.uint8)),
    ("boxes", np.zeros((1, 4), "U1")),
    ("boxes", np.full((1, 4), 1e300)),
    ("boxes", 5),
    ("label", 1 << 63),
    ("label", 1.5),
    ("label", math.nan),
    ("label", "1"),
    ("label", None),
    ("label", [1]),
    ("label", np.uint64((1 << 64) - 1)),
    ("weight", [1, 2]),
    ("weight", [1, 2, 16_777_217]),
    ("flag", 1),
    ("pixels", np.zeros((40, 40, 3), np.int16) - 1),
    ("pixels", np.zeros((3, 40, 40), np.uint8)),
    ("caption", b"bytes"),
    ("caption", "\ud800"),
    ("blob", "text"),
    ("blob", 5),
    ("extra", b"bytes"),
    ("extra", {"a": math.nan}),
    ("extra", {1, 2}),
    ("extra", "\ud800"),
]


@pytest.mark.parametrize(("field", "value"), REFUSED, ids=range(len(REFUSED)))
def test_a_value_that_does_not_fit_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    """The error names sample, key and field; the store is as if it had never been offered."""
    whole = write(tmp_path / "whole.lmdb", 3)
    with StoreWriter(
        tmp_path / "x.lmdb", schema=SCHEMA, classes=["a", "b\udcfe"], attrs={"root": "/src"}
    ) as writer:
        for number in range(3):
            with pytest.raises((SchemaError, DecodeError)) as caught:
                writer.add({**sample(number), field: value}, key="refused")
            assert f"sample {number} (refused), field '{field}'" in str(caught.value)
            assert (caught.value.sample, caught.value.field) == (number, field)
            writer.add(sample(number), key=key_of(number))
    assert Store(tmp_path / "x.lmdb").digest == Store(whole).digest
    assert everything(Store(tmp_path / "x.lmdb")) == everything(Store(whole))


def test_a_refused_first_sample_decides_nothing(tmp_path: Path) -> None:
    """Dtype and dimensions of an array field, and keys, come from the first one accepted."""
    with StoreWriter(tmp_path / "x.lmdb", schema={"boxes": "array", "n": "int64"}) as writer:
        with pytest.raises(SchemaError):
            writer.add({"boxes": np.zeros((1, 2), np.int8), "n": "bad"}, key="k")
        writer.add({"boxes": np.zeros(3, np.float64), "n": 1})
    assert Store(tmp_path / "x.lmdb")[0]["boxes"].dtype == np.float64


def test_arrays_of_a_field_have_equal_dimensions(tmp_path: Path) -> None:
    """Boxes are (n, 4) also where n is 0: the shape (0,) is refused."""
    with StoreWriter(tmp_path / "x.lmdb", schema={"boxes": "array:int16"}) as writer:
        writer.add({"boxes": np.zeros((0, 4))})
        with pytest.raises(SchemaError, match=r"shape \(0,\).*2 dimensions"):
            writer.add({"boxes": []})
        writer.add({"boxes": [[1, 2, 3, 4]]})
    boxes = [Store(tmp_path / "x.lmdb")[i]["boxes"] for i in range(2)]
    assert [b.shape for b in boxes] == [(0, 4), (1, 4)]


@pytest.mark.parametrize("offered", [{}, {"x": 1, "y": 2}, {"y": 2}, None, [1]])
def test_fields_are_those_of_the_schema(tmp_path: Path, offered: Any) -> None:
    """Neither more nor fewer, in a mapping."""
    with (
        StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"}) as writer,
        pytest.raises(SchemaError, match="sample 0"),
    ):
        writer.add(offered)


@pytest.mark.parametrize("value", [7, 7.0, np.uint8(7), np.float64(7), np.array(7), True])
def test_numbers_that_fit_are_taken(tmp_path: Path, value: Any) -> None:
    """What is exactly a whole number is one, whatever its type."""
    with StoreWriter(tmp_path / "x.lmdb", schema={"x": "int16"}) as writer:
        writer.add({"x": value})
    assert Store(tmp_path / "x.lmdb")[0]["x"] == int(value)


def test_floats_keep_what_is_not_finite(tmp_path: Path) -> None:
    """Infinity and NaN are numbers; precision may go, the size may not."""
    with StoreWriter(tmp_path / "x.lmdb", schema={"x": "float32"}) as writer:
        for value in (math.inf, math.nan, 0.1):
            writer.add({"x": value})
        with pytest.raises(SchemaError, match="without loss"):
            writer.add({"x": 1e39})
    assert np.array_equal(
        Store(tmp_path / "x.lmdb").column("x"),
        np.asarray([math.inf, math.nan, 0.1], np.float32),
        equal_nan=True,
    )


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"attrs": {"a": math.nan}}, SchemaError),
        ({"attrs": {"a": object()}}, SchemaError),
        ({"attrs": [1]}, SchemaError),
        ({"attrs": {"a": "x" * (40 << 20)}}, SchemaError),
        ({"classes": "abc"}, OptionError),
        ({"classes": [1]}, SchemaError),
        ({"schema": {"x": "array"}, "resume": "work"}, OptionError),
    ],
)
def test_options_that_cannot_be_kept_are_refused(
    tmp_path: Path, options: dict[str, Any], error: type[Exception]
) -> None:
    """Before anything is made on disk."""
    before = descriptors()
    with pytest.raises(error):
        StoreWriter(tmp_path / "x.lmdb", **{"schema": {"x": "int64"}} | options)
    assert os.listdir(tmp_path) == []
    assert descriptors() == before


# --- the life of a writer ------------------------------------------------------------------------


def test_nothing_has_the_final_name_before_the_end(tmp_path: Path) -> None:
    """Until it is closed there is only the working folder, and after it only the file."""
    writer = StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"})
    writer.add({"x": 1})
    assert os.listdir(tmp_path) == ["x.lmdb.partial"]
    writer.close()
    writer.close()
    assert os.listdir(tmp_path) == ["x.lmdb"]


def test_an_exception_publishes_nothing(tmp_path: Path) -> None:
    """A writer that is left by an exception removes what it made."""
    before = descriptors()
    with (
        pytest.raises(ZeroDivisionError),
        StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"}) as writer,
    ):
        writer.add({"x": 1 // 0})
    assert os.listdir(tmp_path) == []
    assert descriptors() == before


def test_a_closed_writer_takes_nothing(tmp_path: Path) -> None:
    """After the end, or after giving up."""
    writer = StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"})
    writer.abort()
    with pytest.raises(StoreError, match="closed"):
        writer.add({"x": 1})
    writer.abort()
    writer.close()
    assert os.listdir(tmp_path) == []


def test_an_existing_file_is_not_replaced(tmp_path: Path) -> None:
    """Unless forced to; a folder never is."""
    path = write(tmp_path / "x.lmdb", 2)
    before = path.read_bytes()
    with pytest.raises(StoreExistsError, match="--force"):
        StoreWriter(path, schema={"x": "int64"}, resume="w")
    assert path.read_bytes() == before
    with StoreWriter(path, schema={"x": "int64"}, force=True):
        pass
    assert len(Store(path)) == 0
    with pytest.raises(StoreExistsError, match="is a folder"):
        StoreWriter(tmp_path, schema={"x": "int64"}, force=True)


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    """The work of hours is not lost either: the finished store stays where the error says."""
    path = tmp_path / "x.lmdb"
    writer = StoreWriter(path, schema={"x": "int64"})
    writer.add({"x": 7})
    path.write_text("mine")
    with pytest.raises(StoreExistsError, match=r"x\.lmdb\.partial/data\.lmdb"):
        writer.close()
    assert path.read_text() == "mine"
    assert Store(tmp_path / "x.lmdb.partial" / "data.lmdb")[0]["x"] == 7


def test_files_of_others_in_the_working_folder_stay(tmp_path: Path) -> None:
    """Only what a writer made is removed."""
    (tmp_path / "x.lmdb.partial").mkdir()
    (tmp_path / "x.lmdb.partial" / "notes.txt").write_text("mine")
    write(tmp_path / "x.lmdb", 1)
    assert os.listdir(tmp_path / "x.lmdb.partial") == ["notes.txt"]


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    """A file where the working folder should be."""
    (tmp_path / "x.lmdb.partial").write_text("mine")
    with pytest.raises(StoreError, match=r"x\.lmdb.*cannot be written"):
        StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"})
    with pytest.raises(StoreError, match="cannot be written"):
        StoreWriter(tmp_path / "x.lmdb.partial" / "y.lmdb", schema={"x": "int64"})


def test_an_empty_store_is_a_store(tmp_path: Path) -> None:
    """No samples: it opens, verifies and tells."""
    store = Store(write(tmp_path / "x.lmdb", 0))
    assert (len(store), list(store.fields)) == (0, list(SCHEMA))
    assert verify(store.path, untrusted=True).ok
    assert info(store.path).samples == 0
    with pytest.raises(SampleIndexError):
        store[0]


def test_a_store_of_nothing_but_none_is_a_store(tmp_path: Path) -> None:
    """Samples, but no values."""
    with StoreWriter(tmp_path / "x.lmdb", schema={"x": "keep", "y": "raw"}) as writer:
        for _ in range(3):
            writer.add({"x": None, "y": None})
    store = Store(tmp_path / "x.lmdb")
    assert [store[i] for i in range(3)] == [{"x": None, "y": None}] * 3
    assert verify(store.path, untrusted=True).ok
    assert info(store.path).samples == 3


def test_mixed_sizes_need_no_map_size(tmp_path: Path) -> None:
    """A first picture of a few bytes says nothing about those to come; a guess from it fails."""
    sizes = [70, *[200_000] * 300, 40_000_000]
    head = b"BM" + bytes(60)
    with (
        lmdb.open(str(tmp_path / "naive"), subdir=False, map_size=sizes[0] * 400) as environment,
        pytest.raises(lmdb.MapFullError),
        environment.begin(write=True) as transaction,
    ):
        for number, size in enumerate(sizes):
            transaction.put(str(number).encode(), bytes(size))
    with StoreWriter(tmp_path / "x.lmdb", schema={"x": "keep"}) as writer:
        for number, size in enumerate(sizes):
            writer.add({"x": head + bytes([number % 256]) * size})
    store = Store(tmp_path / "x.lmdb")
    for number, size in enumerate(sizes):
        data = store.read("x", number)
        assert (len(data), data[-1]) == (len(head) + size, number % 256)


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_the_map_grows_as_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    """At most 64 MiB and four times the source is asked for; the file is as small as it can."""
    asked = []
    real = lmdb.open

    class Watched:
        """An environment whose map is watched."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            asked.append(options["map_size"])
            self.environment = real(*arguments, **options)

        def set_mapsize(self, size: int) -> None:
            asked.append(size)
            self.environment.set_mapsize(size)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.environment, name)

    monkeypatch.setattr(lmdb, "open", Watched)
    monkeypatch.setattr("sys.platform", platform)
    photos = [jpeg(number, 64) for number in range(20)]
    with StoreWriter(tmp_path / "x.lmdb", schema={"image": "jpeg"}) as writer:
        for photo in photos:
            writer.add({"image": photo})
    assert asked
    assert max(asked) <= (64 << 20) + 4 * sum(map(len, photos))
    assert (tmp_path / "x.lmdb").stat().st_size <= 1 << 20


# --- resuming ------------------------------------------------------------------------------------


@pytest.fixture
def small_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit after every sample or so, in segments of a few rows."""
    monkeypatch.setattr(sharedds.store.writer, "_COMMIT", 1)
    monkeypatch.setattr(sharedds.store.layout, "_WIDE_SEGMENT", 20_000)
    monkeypatch.setattr(sharedds.store.layout, "_SEGMENT", 64)


@pytest.mark.usefixtures("small_commits")
@pytest.mark.parametrize("stop", range(0, 12, 3))
def test_work_goes_on_where_it_stopped(tmp_path: Path, stop: int) -> None:
    """The same text goes on after the last commit; the result is that of an undisturbed run."""
    options: dict[str, Any] = {"schema": SCHEMA, "resume": "work"}
    writer = StoreWriter(tmp_path / "x.lmdb", **options)
    for number in range(stop):
        writer.add(sample(number), key=key_of(number))
    writer.abort()
    with StoreWriter(tmp_path / "x.lmdb", **options) as writer:
        done = len(writer)
        assert stop - 4 < done <= stop
        assert list(writer.keys()) == [key_of(i).encode() for i in range(done)]
        for number in range(done, 12):
            writer.add(sample(number), key=key_of(number))
    whole = Store(write(tmp_path / "whole.lmdb", classes=None, attrs=None))
    assert everything(Store(tmp_path / "x.lmdb")) == everything(whole)
    assert verify(tmp_path / "x.lmdb", untrusted=True).ok


@pytest.mark.usefixtures("small_commits")
def test_keys_of_a_resumed_run_include_empty_ones(tmp_path: Path) -> None:
    """Each key once, in order, whatever its length."""
    keys = [b"a", b"", b"ccc"]
    writer = StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"}, resume="w")
    for key in keys:
        writer.add({"x": 1}, key=key)
    writer.abort()
    writer = StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"}, resume="w")
    assert list(writer.keys()) == keys
    writer.abort()


@pytest.mark.usefixtures("small_commits")
@pytest.mark.parametrize(
    "options", [{"resume": "other"}, {"schema": {"x": "int32"}}, {"resume": None}]
)
def test_other_work_starts_anew(tmp_path: Path, options: dict[str, Any]) -> None:
    """Another text, another schema or none at all: what was begun does not count."""
    first: dict[str, Any] = {"schema": {"x": "int64"}, "resume": "work"}
    writer = StoreWriter(tmp_path / "x.lmdb", **first)
    writer.add({"x": 1})
    writer.abort()
    with StoreWriter(tmp_path / "x.lmdb", **first | options) as writer:
        assert len(writer) == 0
    assert len(Store(tmp_path / "x.lmdb")) == 0
    assert os.listdir(tmp_path) == ["x.lmdb"]


@pytest.mark.usefixtures("small_commits")
@pytest.mark.parametrize("damage", ["spool", "data.lmdb", "short spool"])
def test_a_damaged_working_folder_starts_anew(tmp_path: Path, damage: str) -> None:
    """A crash of the machine may leave anything; nobody has to clean up."""
    options: dict[str, Any] = {"schema": {"x": "int64"}, "resume": "work"}
    writer = StoreWriter(tmp_path / "x.lmdb", **options)
    for number in range(3):
        writer.add({"x": number})
    writer.abort()
    file = tmp_path / "x.lmdb.partial" / damage.split()[-1]
    if damage == "short spool":
        os.truncate(file, 20)
    else:
        file.write_bytes(b"\0" * file.stat().st_size)
    with StoreWriter(tmp_path / "x.lmdb", **options) as writer:
        assert len(writer) == 0
        writer.add({"x": 5})
    assert Store(tmp_path / "x.lmdb")[0] == {"x": 5}


# --- the digest ----------------------------------------------------------------------------------


def test_the_digest_does_not_depend_on_commits(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch, small_commits: None
) -> None:
    """However it was cut and committed, equal content has one digest, and reads the same."""
    monkeypatch.setattr("sharedds.store.partial._STEP", (4 << 20) + 5000)
    cut = Store(write(tmp_path / "cut.lmdb"))
    assert cut.column("pixels").segments > Store(path).column("pixels").segments
    assert cut.digest == Store(path).digest
    assert everything(cut) == everything(Store(path))
    assert verify(cut.path, untrusted=True).ok


CHANGED = [
    ("photo", jpeg(99)),
    ("mask", None),
    ("volume", ArrayValue(np.zeros((10, 9, 8), np.int16))),
    ("packed", np.arange(5, dtype=np.uint32)),
    ("boxes", np.zeros((12, 1), np.float32)),
    ("label", 77),
    ("weight", [0, 0, 1]),
    ("flag", False),
    ("pixels", np.zeros((40, 40, 3), np.uint8)),
    ("caption", "other"),
    ("blob", b"other"),
    ("extra", []),
]


@pytest.mark.parametrize(("field", "value"), CHANGED, ids=[name for name, _ in CHANGED])
def test_the_digest_tells_any_difference(
    tmp_path: Path, store: Store, field: str, value: Any
) -> None:
    """Another value in one field of one sample is another digest."""
    with StoreWriter(tmp_path / "x.lmdb", schema=SCHEMA, classes=["a", "b\udcfe"]) as writer:
        for number in range(12):
            other = {field: value} if number == 4 else {}
            writer.add(sample(number) | other, key=key_of(number))
    assert Store(tmp_path / "x.lmdb").digest != store.digest


def test_the_digest_tells_keys_and_classes_but_not_attributes(tmp_path: Path, store: Store) -> None:
    """Names belong to the content; notes about it do not."""
    others: list[dict[str, Any]] = [
        {"keyed": False},
        {"classes": ["a", "c"]},
        {"classes": None},
        {"attrs": {"b": 1}},
    ]
    digests = {
        Store(write(tmp_path / f"{number}.lmdb", **options)).digest
        for number, options in enumerate(others)
    }
    assert len(digests) == 4
    assert store.digest in digests


# --- the file ------------------------------------------------------------------------------------


def test_plain_lmdb_reads_the_file(path: Path, store: Store) -> None:
    """Three databases; keys in order; the values are the pure bytes."""
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False, max_dbs=3) as environment:
        with environment.begin() as transaction:
            assert [bytes(k) for k in transaction.cursor().iternext(values=False)] == [
                b"chunks", b"columns", b"header",
            ]  # fmt: skip
        chunks = environment.open_db(b"chunks", create=False)
        with environment.begin(chunks) as transaction:
            found = {CHUNK_KEY.unpack(key): bytes(value) for key, value in transaction.cursor()}
    assert len(found) == store.header.entries
    assert found[7, 0, 0, 0] == jpeg(7)
    assert found[7, 1, 0, 0] == png(7)
    assert {key[2:] for key in found if key[:2] == (5, 3)} == {
        *((0, n) for n in range(3 * 2 * 2)),
        *((1, n) for n in range(2)),
    }


def test_a_store_pickles_to_a_few_bytes(store: Store) -> None:
    """Before it was used and after."""
    fresh = Store(store.path)
    assert len(pickle.dumps(fresh)) < 500
    _ = store[0]
    assert len(pickle.dumps(store)) < 500
    assert everything(pickle.loads(pickle.dumps(store))) == everything(store)


def test_a_good_store_verifies(path: Path, store: Store) -> None:
    """All values are counted, and their bytes."""
    for untrusted in (False, True):
        report = verify(path, untrusted=untrusted, progress=False)
        assert report.ok
        assert report.to_json()["ok"] is True
        assert (report.samples, report.entries) == (12, store.header.entries)
        assert report.bytes > 12 * 40 * 40 * 3


def test_info_tells_the_fields(path: Path) -> None:
    """Values and bytes of each field."""
    fields = {field.name: field for field in info(path).fields}
    assert list(fields) == list(SCHEMA)
    assert fields["mask"].values == 8
    assert fields["photo"].bytes == sum(len(jpeg(i)) for i in range(12))
    assert fields["label"].bytes == 12 * 8
