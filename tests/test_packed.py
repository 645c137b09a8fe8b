"""Indexes of many items in one mapped file."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import METHODS, descriptors, in_process, python

import sharedds.packed.strings
from sharedds.errors import SampleIndexError, SchemaError, StorageFullError
from sharedds.memory import process_memory
from sharedds.packed import (
    MappedArray,
    MappedArrayBuilder,
    PackedStrings,
    PackedStringsBuilder,
    RaggedArray,
    RaggedArrayBuilder,
    encode_text,
)

ITEMS = ["", "a", "b/ä猫.jpg", "new\nline", "x" * 5000, "\udcff.jpg", "\0"]


def name(number: int) -> str:
    """Return a name of 150 characters."""
    return f"{number:0150d}"


@pytest.fixture(scope="module")
def many() -> PackedStrings:
    """200,000 names."""
    return PackedStrings.build(name(i) for i in range(200_000))


# --- strings -------------------------------------------------------------------------------------


def test_strings_come_back() -> None:
    """Empty, long, odd and undecodable names are what they were."""
    assert list(PackedStrings.build(ITEMS)) == ITEMS


@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_strings_are_a_list(items: list[str]) -> None:
    """Whatever the strings: same length, same items, from both ends."""
    packed = PackedStrings.build(items)
    assert len(packed) == len(items)
    assert [packed[i] for i in range(-len(items), len(items))] == items * 2


@settings(deadline=None)
@given(st.lists(st.binary()))
def test_bytes_names_come_back_byte_for_byte(items: list[bytes]) -> None:
    """Names that are no UTF-8 keep their bytes, and ``os.fsencode`` restores them."""
    packed = PackedStrings.build(items)
    assert [packed.bytes(i) for i in range(len(packed))] == items
    assert [os.fsencode(text) for text in packed] == items


FOLDERS = st.sampled_from(["", "a/", "train/n01440764/", "train/n01440764/x/", "b" * 300 + "/"])
NAMES = st.sampled_from(
    ["1.jpg", "2.jpg", "n01440764_10026.JPEG", "x" * 255, "x" * 256, "y" * 2000]
)


@settings(deadline=None)
@given(st.lists(st.tuples(FOLDERS, NAMES).map("".join), max_size=300))
def test_paths_that_share_much_come_back(items: list[str]) -> None:
    """What they share may be all, nothing, or longer than a length in the file can be."""
    assert list(PackedStrings.build(items)) == items


def test_what_a_folder_shares_is_kept_once() -> None:
    """In any order of the paths, with many folders or few; strangers cost 8 bytes at most."""
    paths = [
        f"train/n{i % 1000:08d}/n{i % 1000:08d}_{i * 7919 % 10**8:08d}.JPEG" for i in range(40_000)
    ]
    alone = [f"/data/train/patient{i:07d}/scan.h5" for i in range(40_000)]
    for items in (paths, sorted(paths), alone):
        packed = PackedStrings.build(items)
        assert packed.nbytes < 0.5 * sum(map(len, items))
        assert list(packed) == items
    strangers = [f"{i * 2654435761 % 2**64:x}" for i in range(40_000)]
    assert PackedStrings.build(strangers).nbytes < sum(map(len, strangers)) + 8 * 40_000


def test_more_folders_than_are_remembered() -> None:
    """Building takes constant memory: it forgets folders, and everything comes back."""
    items = [f"{i // 2 % 40_000}/{i}.jpg" for i in range(160_000)]
    packed = PackedStrings.build(items)
    assert list(packed) == items
    assert packed.nbytes < sum(map(len, items)) + 8 * len(items)


@pytest.mark.parametrize("length", [100, 2000, 2_000_000])
def test_blocks_of_any_size_come_back(length: int) -> None:
    """The distances in a block take 16 bits where they fit, else 32."""
    items = [bytes([i]) * length for i in range(70)]
    packed = PackedStrings.build(items)
    assert [packed.bytes(i) for i in range(70)] == items


def test_the_digest_is_that_of_the_items() -> None:
    """Equal for equal items, another one where only the limits of the items differ."""
    digests = [PackedStrings.build(items).digest for items in (["ab", "c"], ["a", "bc"], ["abc"])]
    assert len(set(digests)) == 3
    assert PackedStrings.build([b"ab", "c"]).digest == digests[0]


def test_paths_are_strings() -> None:
    """A path is kept as its text."""
    assert PackedStrings.build([Path("a/b.jpg")])[0] == "a/b.jpg"


def test_an_iterable_is_read_once() -> None:
    """A generator is enough; no list is made of it."""
    assert list(PackedStrings.build(str(i) for i in range(3))) == ["0", "1", "2"]


@pytest.mark.parametrize("item", [1, None, ["a"], "\ud800"])
def test_other_items_are_refused(item: Any) -> None:
    """What is no text, and half a surrogate pair, is refused with its value."""
    with pytest.raises(SchemaError) as caught:
        encode_text(item)
    assert repr(item) in str(caught.value)


def test_a_refused_item_leaves_no_file_open() -> None:
    """Building that fails half way closes its files, without a warning."""
    before = descriptors()
    with pytest.raises(SchemaError):
        PackedStrings.build(["a", 1])  # type: ignore[list-item]
    builder = PackedStringsBuilder()
    builder.append("a")
    del builder
    assert descriptors() == before


@pytest.mark.parametrize("index", [3, -4, 1 << 70])
def test_an_index_out_of_range_is_refused(index: int) -> None:
    """The error says which index and how many items there are."""
    with pytest.raises(SampleIndexError, match=f"index {index} is out of range for 3 items"):
        PackedStrings.build(["a", "b", "c"])[index]


def test_an_index_is_a_whole_number() -> None:
    """NumPy's integers serve; 1.0 does not."""
    packed = PackedStrings.build(["a", "b"])
    assert packed[np.uint8(1)] == "b"
    with pytest.raises(SchemaError, match="whole number, not float"):
        packed[1.0]  # type: ignore[index]


def test_nothing_is_no_trouble() -> None:
    """No items at all make an empty index that pickles."""
    original = PackedStrings.build([])
    empty = pickle.loads(pickle.dumps(original))
    assert (len(empty), list(empty)) == (0, [])
    with pytest.raises(SampleIndexError):
        empty[0]


def test_the_pickle_does_not_grow(many: PackedStrings) -> None:
    """200,000 names pickle to less than 1 kB; a list of them takes megabytes."""
    assert len(pickle.dumps(list(many))) > 30_000_000
    assert len(pickle.dumps(many)) < 1000
    _ = many[7]
    assert len(pickle.dumps(many)) < 1000


@pytest.mark.parametrize("method", METHODS)
def test_other_processes_read_them(many: PackedStrings, method: str) -> None:
    """Workers of every kind see the items."""
    assert in_process(method, many.__getitem__, 123_456) == name(123_456)


# --- arrays --------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(-(1 << 31), (1 << 31) - 1))))
def test_rows_of_any_length_come_back(rows: list[list[int]]) -> None:
    """Rows are read-only arrays of the dtype they were built with."""
    ragged = RaggedArray.build(rows, np.int32)
    assert [row.tolist() for row in ragged] == rows
    assert all(row.dtype == np.int32 and not row.flags.writeable for row in ragged)


@pytest.mark.parametrize("dtype", [np.int8, np.float64, np.complex128, "U3", "M8[s]"])
def test_every_plain_dtype_serves(dtype: Any) -> None:
    """Items of 1 to 16 bytes lie where they may."""
    rows = [np.zeros(n, np.int64).astype(dtype) for n in (0, 1, 5)]
    ragged = RaggedArray.build(rows, dtype)
    mapped = MappedArray.build(rows[2])
    assert all(np.array_equal(a, b) for a, b in zip(ragged, rows, strict=True))
    assert np.array_equal(mapped.array, rows[2])
    assert ragged.dtype == mapped.array.dtype == np.dtype(dtype)


@pytest.mark.parametrize("dtype", [object, [("a", "i4"), ("b", "f4")]])
def test_objects_are_refused(dtype: Any) -> None:
    """A dtype whose bytes mean nothing in another process is refused."""
    with pytest.raises(SchemaError, match="cannot be kept in a file"):
        RaggedArray.build([], dtype)
    with pytest.raises(SchemaError, match="cannot be kept in a file"):
        MappedArray.build(np.zeros(2, dtype))


@pytest.mark.parametrize("row", [[[1]], ["a"], [None], b"123", [1 << 80]])
def test_other_rows_are_refused(row: Any) -> None:
    """Rows of another shape, dtype or length in bytes."""
    with pytest.raises(SchemaError):
        RaggedArrayBuilder(np.int32).append(row)


def test_rows_may_be_bytes() -> None:
    """The bytes of a row are as good as the row."""
    builder = RaggedArrayBuilder("<i2")
    builder.append(b"\1\0\2\0")
    assert builder.finish()[0].tolist() == [1, 2]


def test_a_built_array_is_the_array() -> None:
    """Shape, dtype and values; read-only; empty ones and single numbers as well."""
    for values in (np.arange(6.0).reshape(2, 3), np.empty((0, 4), np.uint8), np.float32(3)):
        original = MappedArray.build(values)
        mapped = pickle.loads(pickle.dumps(original))
        assert np.array_equal(mapped.array, values)
        assert mapped.array.shape == np.shape(values)
        assert not mapped.array.flags.writeable
        assert len(mapped) == (np.shape(values)[0] if np.ndim(values) else 0)


def test_numbers_come_back_from_a_stream() -> None:
    """More numbers than one buffer holds."""
    builder = MappedArrayBuilder(np.uint32)
    for value in range(100_000):
        builder.append(value)
    assert np.array_equal(builder.finish().array, np.arange(100_000, dtype=np.uint32))


@pytest.mark.parametrize("value", [256, -1, 1 << 70, 0.5, "1"])
def test_a_number_that_does_not_fit_is_refused(value: Any) -> None:
    """NumPy would cut 256 down to 0 without a word."""
    assert np.asarray([256]).astype(np.uint8)[0] == 0
    builder = MappedArrayBuilder(np.uint8)
    with pytest.raises(SchemaError):
        builder.append(value)
        builder.finish()


# --- memory --------------------------------------------------------------------------------------


def uss() -> int:
    """Return the private bytes of this process."""
    gc.collect()
    return process_memory().uss or 0


@pytest.mark.memory
def test_building_takes_constant_memory() -> None:
    """A stream of 30 MB of names costs less than 6 MB while it is packed."""
    PackedStrings.build(["warm"])
    before = uss()
    packed = PackedStrings.build(name(i) for i in range(200_000))
    assert uss() - before < 6 << 20
    assert len(packed) == 200_000


def growth(items: Sequence[str], pipe: Any) -> None:
    """Read 60,000 random items for three epochs; send how much private memory each added."""
    order = np.random.default_rng(0)
    for i in order.integers(0, len(items), 2000).tolist():
        _ = items[i]
    sizes = [uss()]
    for _ in range(3):
        for i in order.integers(0, len(items), 60_000).tolist():
            _ = items[i]
        sizes.append(uss())
    pipe.send([size - sizes[0] for size in sizes[1:]])


@pytest.mark.memory
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_reading_in_forked_workers_takes_no_memory(many: PackedStrings) -> None:
    """A list of strings is copied page by page into each worker that reads it; this is not."""
    context = multiprocessing.get_context("fork")
    grown = []
    for items in (list(many), many):
        ours, theirs = context.Pipe()
        workers = [context.Process(target=growth, args=(items, theirs)) for _ in range(2)]
        for worker in workers:
            worker.start()
        grown += [ours.recv() for _ in workers]
        for worker in workers:
            worker.join()
            worker.close()
        ours.close()
        theirs.close()
    assert all(last > 20 << 20 for _, _, last in grown[:2]), grown
    assert all(last < 10 << 20 and last - second < 2 << 20 for _, second, last in grown[2:]), grown


def test_a_full_temporary_folder_is_a_clear_error() -> None:
    """The error names the folder and the room that is left."""
    done = python(
        """
        import resource, sys
        from sharedds.errors import StorageFullError
        from sharedds.packed import MappedArray, PackedStrings
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        for build in (
            lambda: PackedStrings.build(f"{i * 2654435761:x}" * 12 for i in range(100_000)),
            lambda: MappedArray.build([0] * 1_000_000),
        ):
            try:
                build()
            except StorageFullError as error:
                print(error)
        """
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all(tempfile.gettempdir() in line and "bytes are free" in line for line in lines)
    assert issubclass(StorageFullError, OSError)


def test_the_widest_block_counts_wherever_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts within a block need more bits than in the one that is written last."""
    monkeypatch.setattr(sharedds.packed.strings, "_MOST_WAITING", 1000)
    noise = np.random.default_rng(0)
    items = [noise.bytes(65_500), *(noise.bytes(8) for _ in range(80))]
    assert [PackedStrings.build(items).bytes(i) for i in range(81)] == items
