"""Arrays cut into blocks, read by regions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from sharedds.errors import (
    CorruptDataError,
    SampleIndexError,
    SampleKeyError,
    SchemaError,
    SourceError,
    StoreFormatError,
)
from sharedds.store import ArrayValue, ChunkedArray, Field, Store, StoreWriter
from sharedds.store.array_meta import (
    ArrayMeta,
    LevelMeta,
    block_slices,
    default_chunk,
    parse_meta,
)
from sharedds.store.regions import Owner

OWNER = Owner("x.lmdb", 3, "volume")


def stored(path: Path, value: Any, kind: str | Field = "lz4") -> ChunkedArray:
    """Write one array and return it as it is read."""
    with StoreWriter(path, schema={"x": kind}, force=True) as writer:
        writer.add({"x": value})
    return Store(path).array(0, "x")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for many small stores."""
    return tmp_path_factory.mktemp("arrays")


dtypes = st.sampled_from(["?", "u1", "i2", ">i2", "<u4", "i8", "f2", "f4", ">f8"])


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], tuple[int, ...], Any]:
    """Draw an array, the shape of its blocks, and a region of it."""
    shape = draw(npst.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=9))
    array = draw(npst.arrays(draw(dtypes), shape))
    chunk = tuple(draw(st.integers(1, 10)) for _ in shape)
    region = draw(
        npst.basic_indices(shape, allow_newaxis=False, allow_ellipsis=True).filter(
            lambda index: all(
                not isinstance(part, slice) or (part.step or 1) > 0
                for part in (index if isinstance(index, tuple) else (index,))
            )
        )
    )
    return array, chunk, region


@settings(max_examples=120, deadline=None)
@given(case=cases(), codec=st.sampled_from(["raw", "lz4", "zstd"]))
def test_a_region_is_what_numpy_gives(folder: Path, case: Any, codec: str) -> None:
    """Any shape, dtype, blocks and region: the numbers of the array in memory."""
    array, chunk, region = case
    found = stored(folder / "region.lmdb", array, Field(codec, chunk=chunk))[region]
    expected = array[region]
    assert np.shape(found) == np.shape(expected)
    assert found.dtype == array.dtype.newbyteorder("<")
    assert np.array_equal(found, expected, equal_nan=array.dtype.kind == "f")


@pytest.mark.parametrize("shuffle", [None, True, False])
@pytest.mark.parametrize("codec", ["raw", "lz4", "zstd"])
def test_shuffled_or_not_it_is_the_same(
    tmp_path: Path, codec: str, *, shuffle: bool | None
) -> None:
    """Grouping bytes changes only the size."""
    array = np.arange(1000, dtype=np.int32).reshape(10, 100)
    field = Field(codec, chunk=(4, 30), shuffle=shuffle)
    assert np.array_equal(stored(tmp_path / "x.lmdb", array, field), array)


def test_levels_are_read_each(tmp_path: Path) -> None:
    """A pyramid: every level has its shape, blocks and numbers."""
    fine = np.arange(64 * 48, dtype=np.uint16).reshape(64, 48)
    levels = (fine[::2, ::2], fine[::4, ::4])
    array = stored(tmp_path / "x.lmdb", ArrayValue(fine, levels=levels, chunk=(10, 7)))
    assert array.levels == ((64, 48), (32, 24), (16, 12))
    for number, expected in enumerate((fine, *levels)):
        level = array.level(number)
        assert level.shape == expected.shape
        assert np.array_equal(level[3:15, 5], expected[3:15, 5])
    with pytest.raises(SchemaError, match="no level 3, it has 3"):
        array.level(3)


def test_numbers_are_scaled_when_asked(tmp_path: Path) -> None:
    """Float32 after slope and intercept; the stored dtype without."""
    data = np.arange(24, dtype=np.int16).reshape(4, 6)
    array = stored(tmp_path / "x.lmdb", ArrayValue(data, attrs={"slope": 0.5, "intercept": -1000}))
    scaled = array.read((slice(1, 3), 4))
    assert scaled.dtype == np.float32
    assert scaled.tolist() == (data[1:3, 4] * 0.5 - 1000).tolist()
    assert array.read().shape == (4, 6)
    assert array.read(scaled=False).dtype == np.int16
    assert array[1:3].dtype == np.int16


def test_an_affine_gives_the_spacing(tmp_path: Path) -> None:
    """Millimetres along each axis, whatever way it points."""
    affine = np.diag([0.5, -2.0, 3.0, 1.0])
    value = ArrayValue(np.zeros((2, 2, 2), np.int16), attrs={"affine": affine.tolist()})
    array = stored(tmp_path / "x.lmdb", value)
    assert np.array_equal(array.affine, affine)  # type: ignore[arg-type]
    assert array.spacing == (0.5, 2.0, 3.0)
    plain = stored(tmp_path / "y.lmdb", value.data)
    assert (plain.affine, plain.spacing, plain.attrs) == (None, None, {})


@pytest.mark.parametrize(
    ("attrs", "use"),
    [
        ({"slope": "2"}, lambda a: a.read()),
        ({"intercept": None}, lambda a: a.read()),
        ({"affine": "diagonal"}, lambda a: a.affine),
        ({"affine": [[1, 2], [3, 4]]}, lambda a: a.spacing),
    ],
)
def test_attributes_of_another_kind_are_named(tmp_path: Path, attrs: Any, use: Any) -> None:
    """A slope that is no number, an affine that is no matrix."""
    array = stored(tmp_path / "x.lmdb", ArrayValue(np.zeros(2), attrs=attrs))
    with pytest.raises(StoreFormatError, match=f"sample 0.*{next(iter(attrs))}"):
        use(array)


def test_an_array_is_an_array(tmp_path: Path) -> None:
    """NumPy converts it; it has a length and a text."""
    array = stored(tmp_path / "x.lmdb", np.arange(6, dtype=np.uint8).reshape(2, 3))
    assert np.asarray(array, np.float32).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (len(array), array.ndim) == (2, 2)
    assert "shape=(2, 3)" in repr(array)


def test_a_single_number_is_an_array_of_no_dimension(tmp_path: Path) -> None:
    """The shape () is a shape."""
    array = stored(tmp_path / "x.lmdb", np.float64(2.5))
    assert (array.shape, float(array[()]), float(np.asarray(array))) == ((), 2.5, 2.5)


def test_only_touched_blocks_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A patch of one block costs one block; one across a corner costs eight."""
    array = stored(tmp_path / "x.lmdb", np.zeros((40, 40, 40)), Field("lz4", chunk=(10, 10, 10)))
    counted: list[int] = []
    real = array._read_blocks

    def count(level: int, numbers: list[int]) -> Iterable[memoryview]:
        counted.append(len(numbers))
        return real(level, numbers)

    monkeypatch.setattr(array, "_read_blocks", count)
    _ = array[10:20, 0:10, 35], array[5:15, 5:15, 5:15], array[3:3]
    assert counted == [1, 8]


@pytest.mark.parametrize(
    ("region", "error"),
    [
        (10, SampleIndexError),
        (-11, SampleIndexError),
        ((0, 0, 0), SchemaError),
        ((..., ...), SchemaError),
        (slice(None, None, -1), SchemaError),
        (slice(None, None, 0), SchemaError),
        (slice(0.5, None), SchemaError),
        ([1, 2], SchemaError),
        (np.array([1, 2]), SchemaError),
        (None, SchemaError),
        (1.0, SchemaError),
        (True, SchemaError),
    ],
)
def test_a_region_of_another_kind_is_refused(tmp_path: Path, region: Any, error: Any) -> None:
    """Slices of positive steps and integers make a region; the error names the sample."""
    array = stored(tmp_path / "x.lmdb", np.zeros((10, 10)))
    with pytest.raises(error, match="sample 0, field 'x'") as caught:
        array[region]
    assert (caught.value.sample, caught.value.field) == (0, "x")


@settings(deadline=None)
@given(npst.array_shapes(max_dims=5, min_side=0, max_side=3000), st.sampled_from([1, 2, 4, 8]))
def test_default_blocks_are_small_and_fit(shape: tuple[int, ...], itemsize: int) -> None:
    """Whole up to 256 KiB, else at most 128 KiB, never larger than the array."""
    chunk = default_chunk(shape, itemsize)
    whole = math.prod(shape) * itemsize <= 256 << 10
    assert all(1 <= c <= max(1, n) for c, n in zip(chunk, shape, strict=True))
    assert whole == (chunk == tuple(max(1, n) for n in shape)) or math.prod(chunk) < 128 << 10
    assert whole or math.prod(chunk) * itemsize <= 128 << 10


def test_blocks_cover_an_array_once() -> None:
    """The regions of all blocks, in C order of the grid."""
    level = LevelMeta((5, 7), (2, 3))
    counted = np.zeros((5, 7), int)
    for number, region in enumerate(block_slices(level)):
        counted[region] += 1
        if number == 3:
            assert region == (slice(2, 4), slice(0, 3))
    assert (counted == 1).all()
    assert level.blocks == 9


# --- writing -------------------------------------------------------------------------------------


class Reader:
    """A file of a format that is read by regions, larger than memory."""

    shape = (100, 50)
    dtype: np.dtype[Any] = np.dtype(">u2")

    def __init__(self, fail_at: int = 1 << 30) -> None:
        self.regions: list[Any] = []
        self.fail_at = fail_at

    def __getitem__(self, region: Any) -> np.ndarray[Any, Any]:
        self.regions.append(region)
        if len(self.regions) > self.fail_at:
            raise OSError("the disk was pulled out")
        rows, columns = (np.arange(part.start, part.stop) for part in region)
        return (rows[:, None] * 100 + columns).astype(self.dtype)


def test_a_large_array_is_read_block_by_block(tmp_path: Path) -> None:
    """Anything with shape, dtype and regions is stored without ever being whole in memory."""
    reader = Reader()
    array = stored(tmp_path / "x.lmdb", reader, Field("zstd", chunk=(30, 20)))
    assert len(reader.regions) == 12
    assert array[77, 13] == 7713


def test_blocks_are_written_as_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more than a few batches of blocks wait in memory."""
    monkeypatch.setattr("sharedds.store.partial._STEP", (4 << 20) + 100_000)
    monkeypatch.setattr("sharedds.store.behind._BATCH", 65_536)
    monkeypatch.setattr("sharedds.store.behind._WAITING", 2 * 65_536)
    path = tmp_path / "x.lmdb"
    sizes = []

    class Watching(Reader):
        shape, dtype = (40, 65_536), np.dtype("u1")

        def __getitem__(self, region: Any) -> np.ndarray[Any, Any]:
            sizes.append((tmp_path / "x.lmdb.partial" / "data.lmdb").stat().st_size)
            return np.random.default_rng(0).integers(0, 255, (1, 65_536), np.uint8)

    stored(path, Watching(), Field("raw", chunk=(1, 65_536)))
    assert sizes[20] > sizes[2] + 10 * 65_536


def test_a_source_that_fails_leaves_the_writer_unharmed(tmp_path: Path) -> None:
    """Half the blocks were written already; none of them is in the store."""
    path = tmp_path / "x.lmdb"
    with StoreWriter(path, schema={"x": Field("raw", chunk=(30, 20)), "y": "int64"}) as writer:
        writer.add({"x": Reader(), "y": 0}, key="a")
        with pytest.raises(SourceError, match=r"sample 1 \(b\), field 'x'.*pulled out") as caught:
            writer.add({"x": Reader(fail_at=7), "y": 1}, key="b")
        writer.add({"x": Reader(), "y": 2}, key="c")
    assert (caught.value.sample, caught.value.key, caught.value.field) == (1, "b", "x")
    store = Store(path)
    assert [store.key(i) for i in range(len(store))] == ["a", "c"]
    assert store.array(1, "x")[99, 49] == 9949
    assert store.header.entries == 24


@pytest.mark.parametrize(
    "value",
    [
        np.array(["a"]),
        np.zeros(2, np.complex64),
        np.zeros(2, np.longdouble),
        np.array([None]),
        [[1], [1, 2]],
        ArrayValue(np.zeros((4, 4)), chunk=(2,)),
        ArrayValue(np.zeros((4, 4)), chunk=(2, 0)),
        ArrayValue(np.zeros((4, 4)), levels=(np.zeros((2, 2), np.int8),)),
        ArrayValue(np.zeros(2), attrs={"a": float("nan")}),
        ArrayValue(np.zeros(2), attrs=[1]),  # type: ignore[arg-type]
        ArrayValue(np.zeros(2), levels=(np.zeros(1),) * 255),
        np.zeros((1,) * 9),
    ],
    ids=range(12),
)
def test_an_array_that_cannot_be_stored_is_refused(tmp_path: Path, value: Any) -> None:
    """Dtypes without plain bytes, blocks of no volume, levels that do not match, NaN in JSON."""
    with StoreWriter(tmp_path / "x.lmdb", schema={"x": "lz4"}) as writer:
        with pytest.raises(SchemaError, match="sample 0, field 'x'"):
            writer.add({"x": value})
        writer.add({"x": np.zeros(1)})
    assert len(Store(tmp_path / "x.lmdb")) == 1


def test_a_tensor_is_an_array(tmp_path: Path) -> None:
    """What NumPy can convert is stored."""
    torch = pytest.importorskip("torch")
    assert stored(tmp_path / "x.lmdb", torch.arange(3, dtype=torch.int16))[:].tolist() == [0, 1, 2]
    with pytest.raises(SchemaError, match="grad"):
        stored(tmp_path / "y.lmdb", torch.zeros(2, requires_grad=True))


def test_no_value_is_none(tmp_path: Path) -> None:
    """A sample without an array has None, and no array to read regions of."""
    with StoreWriter(tmp_path / "x.lmdb", schema={"x": "lz4", "i": "keep"}) as writer:
        writer.add({"x": None, "i": None})
        writer.add({"x": np.empty((0, 3), np.int8), "i": None})
    store = Store(tmp_path / "x.lmdb")
    assert store[0] == {"x": None, "i": None}
    assert store[1]["x"].shape == (0, 3)
    for field in ("x", "i"):
        with pytest.raises(SampleKeyError, match="has no value"):
            store.array(0, field)
        with pytest.raises(SampleKeyError, match="has no value"):
            store.read(field, 0)


# --- descriptions --------------------------------------------------------------------------------


def bad_descriptions() -> Iterator[bytes]:
    """Yield descriptions of arrays that cannot be true."""
    yield from (b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"dtype":"<f4"}')
    for dtype, shape, chunk in (
        ("<f4", (1 << 62,), (1 << 62,)),
        ("<f4", (1 << 40,), (1 << 40,)),
        ("<f4", (1 << 30, 1 << 30, 1 << 30), (1, 1, 1)),
        ("<f4", (-1,), (1,)),
        ("<f4", (4,), (0,)),
        ("<f4", (4,), (2, 2)),
        ("<f4", (1,) * 9, (1,) * 9),
        ("|O", (4,), (4,)),
        ("<f16", (4,), (4,)),
        ("nonsense", (4,), (4,)),
    ):
        level = f'{{"shape":{list(shape)},"chunk":{list(chunk)}}}'
        yield f'{{"dtype":"{dtype}","levels":[{level}]}}'.encode()
    yield b'{"dtype":"<f4","levels":[]}'
    yield b'{"dtype":"<f4","levels":[{"shape":[1],"chunk":[1]}],"other":1}'


@pytest.mark.parametrize("text", list(bad_descriptions()), ids=range(18))
def test_a_description_that_cannot_be_true_is_refused(text: bytes) -> None:
    """Before anything is allocated by it."""
    with pytest.raises(StoreFormatError, match="sample 3, field 'volume'") as caught:
        parse_meta(text, OWNER)
    assert caught.value.path == "x.lmdb"


def test_a_block_that_does_not_decode_is_named() -> None:
    """The checksum may be right and the block none: sample, level and block are in the error."""
    meta = ArrayMeta("<f4", (LevelMeta((4,), (2,)),))
    array = ChunkedArray(meta, "lz4", lambda _level, n: [memoryview(b"bad")] * len(n), OWNER)
    with pytest.raises(CorruptDataError, match=r"sample 3.*level 0, block 1") as caught:
        array[2:]
    assert (caught.value.sample, caught.value.field) == (3, "volume")
