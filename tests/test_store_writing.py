"""Writing a store: what is refused, how it begins and ends, growing."""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from processes import descriptors, python
from stores import HEAD, SCHEMA, everything, jpeg, key_of, png, sample, write

from sharedds.errors import (
    DecodeError,
    OptionError,
    SampleIndexError,
    SchemaError,
    StoreError,
    StoreExistsError,
)
from sharedds.store import Store, StoreWriter, info, verify
from sharedds.store.layout import CHUNKS
from sharedds.store.partial import Partial

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
    ("extra", {1: 2}),
    ("extra", {"a": [{"b": ({None: 1},)}]}),
    ("photo", jpeg(1)[:4]),
    ("photo", jpeg(1)[:100]),
    ("mask", png(1)[:20]),
    ("file", png(1)[:20]),
    ("file", b"no picture"),
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
        ({"attrs": {"a": {1: 2}}}, SchemaError),
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
    head = HEAD + bytes(8)
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


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_sealing_and_verifying_map_only_a_part_of_the_file(tmp_path: Path) -> None:
    """Of 110 MB of values; one walk over all of them without letting go maps them all."""
    code = """
        import os, re, sys
        from sharedds.handles import map_file
        from sharedds.store import StoreWriter, verify
        from sharedds.store.layout import CHUNK_KEY, CHUNKS
        from sharedds.store.pages import Pages

        def peak(function):
            def size(name):
                with open("/proc/self/status") as file:
                    return int(re.search(name + r":\\s+(\\d+)", file.read()).group(1)) << 10
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # the peak begins here
            before = size("VmRSS")
            function()
            print(size("VmHWM") - before)

        def walk():
            pages = Pages(map_file(path).view, path)
            for _ in pages.fixed_items(pages.database(CHUNKS), CHUNK_KEY.size):
                pass

        path = sys.argv[1]
        writer = StoreWriter(path, schema={"file": "bytes", "image": "keep"})
        picture = bytes.fromhex(sys.argv[2])
        for i in range(1000):
            writer.add({"file": b"", "image": picture + os.urandom(110_000)})
        peak(writer.close)
        peak(lambda: verify(path))
        peak(lambda: verify(path, untrusted=True))
        peak(walk)
    """
    done = python(code, tmp_path / "values.lmdb", jpeg(0).hex())
    *guarded, plain = map(int, done.stdout.split())
    assert plain > 90_000_000
    assert max(guarded) < 50_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_values_are_found_without_a_look_at_them(tmp_path: Path) -> None:
    """The tree alone tells where they are; to look at each one maps most of the file."""
    code = """
        import os, re, sys
        from pathlib import Path
        from sharedds.handles import map_file
        from sharedds.store import StoreWriter
        from sharedds.store.layout import CHUNK_KEY, CHUNKS
        from sharedds.store.pages import Pages

        def mapped():
            with open("/proc/self/smaps") as file:
                own = file.read().split(path, 1)[1]
            return int(re.search(r"Rss:\\s+(\\d+)", own).group(1)) << 10

        path = sys.argv[1]
        picture = bytes.fromhex(sys.argv[2])
        with StoreWriter(path, schema={"image": "keep"}) as writer:
            for i in range(400):
                writer.add({"image": picture + os.urandom(110_000)})
        file = map_file(path)
        pages = Pages(file.view, path)
        tree = pages.database(CHUNKS)
        found = []
        for options in ({"just_written": True}, {}):
            leaves = list(pages.fixed_items(tree, CHUNK_KEY.size, **options))
            found.append([part.tolist() for leaf in leaves for part in leaf])
            print(mapped())
            file.release(0, file.size)
        assert found[0] == found[1]
    """
    done = python(code, tmp_path / "values.lmdb", jpeg(0).hex())
    tree_alone, each_value = map(int, done.stdout.split())
    assert each_value > 20_000_000
    assert tree_alone < each_value / 4


def test_values_are_let_go_as_they_are_put(tmp_path: Path) -> None:
    """LMDB copies each; kept until the end, all would be there twice."""
    partial = Partial(str(tmp_path / "x.lmdb"), state=None, columns=("@key",), force=False)
    left = []

    class Watched(deque[tuple[bytes, bytes]]):
        def popleft(self) -> tuple[bytes, bytes]:
            left.append(len(self))
            return super().popleft()

    items = Watched((b"%04d" % number, bytes(1000)) for number in range(50))
    partial.put_all(CHUNKS, items, append=True)
    assert left == list(range(50, 0, -1))
    assert partial.get(CHUNKS, b"0007") == b""  # not committed yet
    partial.end()
    assert partial.get(CHUNKS, b"0007") == bytes(1000)
    partial.discard()


def test_a_long_row_is_stored_as_it_was_when_it_was_given(tmp_path: Path) -> None:
    """It is copied once, while it is added: what happens to the array later does not matter."""
    row = np.arange(64 * 64 * 3, dtype=np.int64).astype(np.uint8).reshape(64, 64, 3)
    turned = row.transpose(1, 0, 2)  # not in one piece
    with StoreWriter(tmp_path / "x.lmdb", schema={"pixels": "uint8[64, 64, 3]"}) as writer:
        for array in (row, turned):
            mine = array.copy("K")
            writer.add({"pixels": mine})
            mine[...] = 0
    store = Store(tmp_path / "x.lmdb")
    np.testing.assert_array_equal(store.column("pixels")[0], row)
    np.testing.assert_array_equal(store.column("pixels")[1], turned)


def test_keys_are_sorted_and_compared_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal ones are found also where a piece ends; the index is the same whatever the pieces."""
    digests = []
    for rows in (1 << 17, 3, 1):
        monkeypatch.setattr("sharedds.store.seal._ROWS", rows)
        path = tmp_path / f"{rows}.lmdb"
        with StoreWriter(path, schema={"label": "int64"}) as writer:
            for number in range(20):
                writer.add({"label": number}, key=f"k{number}")
        store = Store(path)
        assert [store.index_of(f"k{number}") for number in range(20)] == list(range(20))
        digests.append(store.digest)
        with (
            pytest.raises(SchemaError, match="have the same key 'twice'"),
            StoreWriter(tmp_path / "y.lmdb", schema={"label": "int64"}) as writer,
        ):
            for number in range(20):
                writer.add({"label": number}, key="twice" if number in (4, 11) else str(number))
    assert len(set(digests)) == 1
