"""Patches that reach beyond the array, and regions read into memory that is given."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from stores import opened_file

import sharedds.codecs.blocks
import sharedds.codecs.frames
from sharedds.codecs import BlockDecoder, encode_block
from sharedds.errors import (
    CorruptDataError,
    DecodeError,
    OptionError,
    SampleIndexError,
    SchemaError,
)
from sharedds.store import ArrayValue, ChunkedArray, Field, Store, StoreWriter
from sharedds.store.assembly import scaled_blocks
from sharedds.store.regions import Scale, copy_rows, pieces_of, window_of


def stored(path: Path, value: Any, kind: str | Field = "lz4") -> ChunkedArray:
    """Write one array and return it as it is read."""
    with StoreWriter(path, schema={"x": kind}, force=True) as writer:
        writer.add({"x": value})
    return Store(path).array(0, "x")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for many small stores."""
    return tmp_path_factory.mktemp("regions")


def around(
    array: npt.NDArray[Any], start: tuple[int, ...], size: tuple[int, ...], padding: str, fill: Any
) -> npt.NDArray[Any]:
    """Return a patch by padding the whole array as NumPy does."""
    margin = [
        (max(0, -s), max(0, s + p - n)) for s, p, n in zip(start, size, array.shape, strict=True)
    ]
    more = {"constant_values": fill} if padding == "constant" else {}
    whole = np.pad(array, margin, padding, **more)  # type: ignore[call-overload]
    region = tuple(
        slice(s + low, s + low + p) for s, p, (low, _) in zip(start, size, margin, strict=True)
    )
    found: npt.NDArray[Any] = whole[region]
    return found


@st.composite
def patches(draw: st.DrawFn) -> tuple[Any, ...]:
    """Draw an array, its blocks, and a patch in it, across its border or beside it."""
    dtype = draw(st.sampled_from(["u1", "<i2", "<i4", "<f4", "<f8"]))
    shape = draw(npst.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=7))
    array = draw(npst.arrays(dtype, shape, elements=st.integers(0, 100)))
    chunk = tuple(draw(st.integers(1, 8)) for _ in shape)
    axes = draw(st.integers(1, len(shape)))
    start = tuple(draw(st.integers(-12, 12)) for _ in range(axes))
    size = tuple(draw(st.integers(0, 12)) for _ in range(axes))
    return array, chunk, start, size


@settings(max_examples=100, deadline=None)
@given(
    case=patches(),
    codec=st.sampled_from(["raw", "lz4", "zstd", "blosc"]),
    padding=st.sampled_from(["constant", "edge", "reflect"]),
)
def test_a_patch_is_what_numpy_pads(folder: Path, case: Any, codec: str, padding: str) -> None:
    """Anywhere, of any size, over the last axes; each padding repeats as ``np.pad`` does."""
    array, chunk, start, size = case
    found = stored(folder / "patch.lmdb", array, Field(codec, chunk=chunk)).patch(
        start, size, scaled=False, padding=padding, fill=7
    )
    leading = array.ndim - len(start)
    whole_start, whole_size = (0,) * leading + start, array.shape[:leading] + size
    expected = around(array, whole_start, whole_size, padding, 7)
    assert found.shape == whole_size
    assert found.dtype == array.dtype
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("codec", ["raw", "lz4", "zstd", "blosc"])
@pytest.mark.parametrize("dtype", ["u1", "<i2", "<i4", "<f4", "<f8"])
def test_a_scaled_patch_is_the_scaled_region(tmp_path: Path, dtype: str, codec: str) -> None:
    """float32 always, to the last bit what :meth:`read` gives; the fill is a value, not scaled."""
    data = np.arange(20 * 21 * 22).reshape(20, 21, 22).astype(dtype)
    value = ArrayValue(data, attrs={"slope": 0.3, "intercept": -1000.5})
    array = stored(tmp_path / "x.lmdb", value, Field(codec, chunk=(6, 7, 8)))
    patch = array.patch((3, 4, 5), (12, 13, 14))
    assert patch.dtype == np.float32
    assert np.array_equal(patch, array.read((slice(3, 15), slice(4, 17), slice(5, 19))))
    outside = array.patch((-2, 0, 0), (4, 3, 3), fill=-1024.0)
    assert np.all(outside[:2] == -1024)
    assert np.array_equal(outside[2:], array.read((slice(0, 2), slice(0, 3), slice(0, 3))))


def test_a_patch_is_written_where_it_is_told(tmp_path: Path) -> None:
    """Into an array of its shape and dtype, a part of a larger one too; which it returns."""
    data = np.arange(1000, dtype=np.int16).reshape(10, 10, 10)
    array = stored(tmp_path / "x.lmdb", data, Field("lz4", chunk=(4, 4, 4)))
    batch = np.full((3, 5, 5, 6), -1, np.float32)
    out = batch[1, :, :, :5]
    assert array.patch((2, 3, 4), (5, 5, 5), out=out) is out
    assert np.array_equal(batch[1, :, :, :5], data[2:7, 3:8, 4:9])
    assert np.all(batch[[0, 2]] == -1)
    assert np.all(batch[1, :, :, 5] == -1)


def test_a_patch_can_be_written_to(tmp_path: Path) -> None:
    """Of raw blocks too, which are views of the file when they are read by a region."""
    data = np.arange(64, dtype=np.int16).reshape(4, 4, 4)
    patch = stored(tmp_path / "x.lmdb", data, "raw").patch((0, 0, 0), (4, 4, 4), scaled=False)
    patch += 1
    assert np.array_equal(patch, data + 1)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda a: a.patch((0, 0), (1,)), SchemaError),
        (lambda a: a.patch((0, 0, 0, 0), (1, 1, 1, 1)), SchemaError),
        (lambda a: a.patch((0, 0, 0), (1, -1, 1)), SchemaError),
        (lambda a: a.patch((0, 0, 0.5), (1, 1, 1)), SchemaError),
        (lambda a: a.patch((0,), (1,), padding="wrap"), SchemaError),
        (lambda a: a.patch((0,), (1,), out=np.zeros(2, np.float32)), SchemaError),
        (lambda a: a.patch((0,), (1,), out=np.zeros((4, 0, 1))), SchemaError),
        (lambda a: a.patch((9,), (2,), scaled=False, fill=70_000), SchemaError),
        (lambda a: a.patch((9,), (2,), scaled=False, fill=0.5), SchemaError),
        (lambda a: a.patch((9,), (2,), scaled=False, fill=math.nan), SchemaError),
        (lambda a: a.patch((0, 0), (1, 1), padding="edge"), SampleIndexError),
    ],
    ids=range(11),
)
def test_a_patch_that_makes_no_sense_is_refused(tmp_path: Path, call: Any, error: Any) -> None:
    """With the sample and the field in the error."""
    array = stored(tmp_path / "x.lmdb", np.zeros((4, 0, 9), np.int16))
    with pytest.raises(error, match="sample 0, field 'x'"):
        call(array)


def test_outside_there_is_only_the_constant(tmp_path: Path) -> None:
    """No block is read for a patch that lies beside the array; NaN is a constant of floats."""
    array = stored(tmp_path / "x.lmdb", np.zeros((5, 5), np.int16))
    array._read_blocks = None  # type: ignore[assignment]
    assert np.all(np.isnan(array.patch((7, -9), (3, 4), fill=math.nan)))


@settings(max_examples=100, deadline=None)
@given(case=patches())
def test_pieces_cover_a_region_once(case: Any) -> None:
    """Each voxel comes from its place in one block; blocks ascend."""
    array, chunk, _, _ = case
    chunk = tuple(min(c, n) for c, n in zip(chunk, array.shape, strict=True))
    region = tuple(slice(n // 3, n) for n in array.shape)
    numbers = np.arange(array.size).reshape(array.shape)
    seen = np.full([s.stop - s.start for s in region], -1)
    grid = tuple(-(-n // c) for n, c in zip(array.shape, chunk, strict=True))
    pieces = pieces_of(region, array.shape, chunk)
    for piece in pieces:
        origin = [at * c for at, c in zip(np.unravel_index(piece.number, grid), chunk, strict=True)]
        block = numbers[
            tuple(slice(int(o), int(o) + n) for o, n in zip(origin, piece.shape, strict=True))
        ]
        assert block.shape == piece.shape
        assert np.all(seen[piece.outer] == -1)
        seen[piece.outer] = block[piece.inner]
    assert np.array_equal(seen, numbers[region])
    assert [p.number for p in pieces] == sorted(p.number for p in pieces)


def test_a_window_inside_reads_just_itself() -> None:
    """Nothing is filled, nothing is repeated."""
    window = window_of((1, 2), (3, 4), (9, 9), "reflect")
    assert (window.inside, window.sources) == (True, None)
    assert window.region == (slice(1, 4), slice(2, 6))
    assert window.places == (slice(0, 3), slice(0, 4))


def test_mirroring_reads_no_more_than_it_shows() -> None:
    """A patch at the corner of a large array does not read the whole of it."""
    window = window_of((-2, 5), (6, 3), (1000, 1000), "reflect")
    assert window.region == (slice(0, 4), slice(5, 8))


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("dtypes", [("<i2", "<i2"), ("<i2", "<f4"), ("<f4", "<f4")])
def test_rows_are_copied_whatever_their_layout(dtypes: tuple[str, str], step: int) -> None:
    """In one piece or not, of one dtype or not."""
    source = np.arange(4 * 6 * 8).reshape(4, 6, 8).astype(dtypes[0])[1:, ::2, ::step]
    target = np.zeros((5, 6, 20), dtypes[1])[1:4, :3, 4 : 4 + source.shape[2]]
    copy_rows(source, target)
    assert np.array_equal(target, source)
    copy_rows(source.transpose(2, 1, 0), np.zeros((source.shape[2], 3, 3), dtypes[1]))


def test_a_scale_of_one_changes_nothing() -> None:
    """Not even a read-only array."""
    values = np.ones(3, np.float32)
    values.flags.writeable = False
    Scale(1.0, 0.0).apply(values)


def test_scaled_blocks_that_are_not_there_stay_small() -> None:
    """A few numbers that are shown again and again are scaled as such; others as blocks."""
    blank = np.broadcast_to(np.array([3, 5], "<i2"), (4, 4, 2))
    blocks = [blank, np.arange(32, dtype="<i2").reshape(4, 4, 2)]
    first, second = (
        (found.copy(), found.strides)
        for found in scaled_blocks(blocks, np.dtype("f4"), Scale(2.0, 1.0))
    )
    assert np.array_equal(first[0], blank * 2.0 + 1)
    assert first[1][:2] == (0, 0)
    assert np.array_equal(second[0], blocks[1] * 2.0 + 1)


# --- decoding many blocks -------------------------------------------------------------------------

SHAPES = [(4, 8, 40)] * 9 + [(4, 8, 3), (4, 8, 40), (2, 2, 2), (0, 3), (40, 40, 40)]


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("dtype", ["u1", "<i2", "<f4", "<f8"])
@pytest.mark.parametrize("codec", ["raw", "lz4", "zstd", "blosc"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("effort", [0, 9])
def test_many_blocks_are_what_each_is(
    monkeypatch: pytest.MonkeyPatch,
    codec: str,
    dtype: str,
    effort: int,
    *,
    shuffle: bool,
    hidden: bool,
) -> None:
    """Of several shapes, decoded together or one by one, shrunk or not."""
    if hidden:
        monkeypatch.setattr(
            sharedds.codecs.blocks, "_decompress_all", sharedds.codecs.frames.hidden
        )
    rng = np.random.default_rng(0)
    blocks = [
        rng.integers(0, (3, 200)[at % 2], shape).astype(dtype) for at, shape in enumerate(SHAPES)
    ]
    coded = [
        encode_block(block, codec, shuffle=shuffle, effort=0 if codec == "raw" else effort)
        for block in blocks
    ]
    decoder = BlockDecoder(codec, dtype, shuffle=shuffle)
    for block, found in zip(blocks, decoder.decode_all(coded, SHAPES), strict=True):
        assert found.dtype == block.dtype
        assert np.array_equal(found, block)


@pytest.mark.parametrize("codec", ["raw", "lz4", "zstd", "blosc"])
def test_the_block_that_is_damaged_is_named(codec: str) -> None:
    """Though its neighbours are decoded by the same call; those before it are right."""
    blocks = [np.full((8, 16, 16), number, "<i2") for number in range(4)]
    coded = [encode_block(block, codec, shuffle=True) for block in blocks]
    coded[2] = coded[2][:5] + b"\xff" * (len(coded[2]) - 6)
    decoder = BlockDecoder(codec, "<i2", shuffle=True)
    found: list[npt.NDArray[Any]] = []
    with pytest.raises(DecodeError):
        found.extend(block.copy() for block in decoder.decode_all(coded, [(8, 16, 16)] * 4))
    assert np.array_equal(found, blocks[:2])


@pytest.mark.parametrize("effort", [1, 3, 5, 9])
@pytest.mark.parametrize("size", [1, 4, 12, 13, 100, 127, 128, 5000, 70_000])
def test_every_effort_decodes(size: int, effort: int) -> None:
    """Short blocks, and those that do not shrink, too."""
    rng = np.random.default_rng(size)
    for most in (1, 4, 256):
        data = rng.integers(0, most, size).astype(np.uint8)
        coded = encode_block(data, "lz4", shuffle=False, effort=effort)
        decoder = BlockDecoder("lz4", "u1", shuffle=False)
        (found,) = decoder.decode_all([coded], [(size,)])
        assert np.array_equal(found, data)


def test_effort_makes_blocks_smaller() -> None:
    """What it is for."""
    data = (np.random.default_rng(0).normal(0, 10, (32, 32, 32))).astype("<i2")
    fast, slow = (encode_block(data, "lz4", shuffle=True, effort=effort) for effort in (0, 9))
    assert len(slow) < 0.95 * len(fast)


@pytest.mark.parametrize(
    ("codec", "effort"), [("raw", 1), ("lz4", 10), ("zstd", 20), ("lz4", -1), ("blosc", 10)]
)
def test_an_effort_that_there_is_not_is_refused(tmp_path: Path, codec: str, effort: int) -> None:
    """By the codec, and before a store is written."""
    with pytest.raises(OptionError, match="effort"):
        encode_block(np.zeros(9), codec, shuffle=False, effort=effort)
    with (
        StoreWriter(tmp_path / "x.lmdb", schema={"x": codec}) as writer,
        pytest.raises(SchemaError, match="effort"),
    ):
        writer.add({"x": ArrayValue(np.zeros(9), effort=effort)})
    # A writer that was left alone is closed without anything in it.


@pytest.mark.parametrize("codec", ["lz4", "zstd", "blosc"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_damage_in_one_of_many_is_an_error(codec: str, *, shuffle: bool) -> None:
    """Any byte, any length: an error of ours or other numbers, never the end of the process."""
    rng = np.random.default_rng(0)
    block = np.cumsum(rng.integers(0, 9, 2048)).astype("<i4").reshape(16, 128)
    good = encode_block(block, codec, shuffle=shuffle, effort=5)
    decoder = BlockDecoder(codec, "<i4", shuffle=shuffle)
    noticed = 0
    for at in rng.integers(0, len(good), 150).tolist():
        bad = bytearray(good)
        bad[at] ^= int(rng.integers(1, 256))
        for damaged in (bytes(bad), good[:at]):
            try:
                for found in decoder.decode_all([good, damaged, good], [block.shape] * 3):
                    assert found.shape == block.shape
            except DecodeError:
                noticed += 1
    assert noticed > 150


# --- checksums ------------------------------------------------------------------------------------


def flip(path: Path, needle: bytes) -> None:
    """Change a bit of the file where these bytes are."""
    data = bytearray(path.read_bytes())
    data[data.index(needle) + 3] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("codec", ["raw", "lz4", "zstd", "blosc"])
def test_every_block_of_a_patch_is_compared_with_its_checksum(tmp_path: Path, codec: str) -> None:
    """One flipped bit is an error for patches that touch the block, and for no other."""
    data = np.random.default_rng(0).integers(0, 999, (40, 40, 40)).astype(np.int16)
    field = Field(codec, chunk=(20, 20, 20), shuffle=False)
    stored(tmp_path / "x.lmdb", data, field)
    store = Store(tmp_path / "x.lmdb")
    stored_block = bytes(store.opened.entry(7, 0, "x"))
    del store
    flip(tmp_path / "x.lmdb", stored_block[100:140])
    array = Store(tmp_path / "x.lmdb").array(0, "x")
    assert np.array_equal(array.patch((0, 0, 0), (20, 30, 40), scaled=False), data[:20, :30])
    with pytest.raises(CorruptDataError, match="checksum"):
        array.patch((19, 19, 19), (2, 2, 2))


def test_a_long_raw_block_is_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashing 4 MiB for each of many patches would cost more than copying them."""
    hashed: list[int] = []
    real = xxhash.xxh3_64_intdigest

    def count(data: Any) -> int:
        hashed.append(len(data))
        return real(data)

    data = np.arange(1 << 20, dtype=np.int16).reshape(16, 256, 256)
    array = stored(tmp_path / "x.lmdb", data, Field("raw", chunk=(8, 256, 256)))
    small = stored(tmp_path / "y.lmdb", data, Field("raw", chunk=(1, 256, 256)))
    monkeypatch.setattr(xxhash, "xxh3_64_intdigest", count)
    for _ in range(3):
        array.patch((6, 0, 0), (4, 9, 9))
    assert hashed == [1 << 20] * 2
    hashed.clear()
    for _ in range(3):
        small.patch((6, 0, 0), (1, 9, 9))
    assert hashed == [1 << 17] * 3


def test_a_long_raw_block_that_is_damaged_is_an_error_each_time(tmp_path: Path) -> None:
    """Only what was found sound is remembered."""
    data = np.random.default_rng(0).integers(0, 999, (8, 256, 256)).astype(np.int16)
    stored(tmp_path / "x.lmdb", data, Field("raw", chunk=(8, 256, 256)))
    flip(tmp_path / "x.lmdb", data[5, 5].tobytes())
    array = Store(tmp_path / "x.lmdb").array(0, "x")
    for _ in range(2):
        with pytest.raises(CorruptDataError, match="checksum"):
            array.patch((0, 0, 0), (1, 1, 1))


def test_neighbouring_blocks_are_asked_for_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One piece of advice for a row of blocks, not one for each."""
    data = np.zeros((64, 64, 640), np.uint8)
    array = stored(tmp_path / "x.lmdb", data, Field("raw", chunk=(32, 32, 64)))
    store = Store(tmp_path / "x.lmdb")
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(
        type(opened_file(store).file), "advise", lambda _self, ranges: asked.extend(ranges)
    )
    array.patch((0, 0, 0), (64, 64, 128))
    assert len(asked) == 4
    assert all(size > 2 * 65_536 for _, size in asked)
