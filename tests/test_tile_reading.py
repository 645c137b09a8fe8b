"""Arrays of a store that are cut into tiles: written, read, and refused where they are damaged."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from pictures import noise
from processes import in_process
from slide_files import split_jpeg

from sharedds.codecs import TileDecoder, encode_block, encode_tile
from sharedds.errors import CorruptDataError, SchemaError, StoreFormatError
from sharedds.store import (
    ArrayValue,
    ChunkedArray,
    EncodedArray,
    Field,
    Store,
    StoreWriter,
    info,
    verify,
)
from sharedds.store.array_meta import ArrayMeta, LevelMeta, parse_meta
from sharedds.store.info import patch_info
from sharedds.store.regions import Owner

TILE = 16
PICTURE = noise(40, 50, 3)
GRID = [(y, x) for y in range(0, 40, TILE) for x in range(0, 50, TILE)]
OWNER = Owner("x.lmdb", 3, "image")
PADDED = np.pad(PICTURE, ((0, 8), (0, 14), (0, 0)), mode="edge")

Blocks = Iterator[tuple[int, int, bytes]]


def stored(path: Path, value: Any, codec: str = "png") -> ChunkedArray:
    """Write one array, and return it as it is read."""
    schema = {"x": Field(codec, chunk=(TILE, TILE, 3))}
    with StoreWriter(path, schema=schema, force=True) as writer:
        writer.add({"x": value}, key="one")
    return Store(path).array(0, "x")


def coded(codec: str = "jpeg", *, padded: bool = False) -> list[bytes]:
    """Return the tiles of the picture; with ``padded`` all have the same size."""
    source = PADDED if padded else PICTURE
    return [encode_tile(source[y : y + TILE, x : x + TILE], codec) for y, x in GRID]


def meta_of(**options: Any) -> ArrayMeta:
    """Describe the picture."""
    level = {"shape": PICTURE.shape, "chunk": (TILE, TILE, 3)}
    plain = {"dtype": "|u1", "levels": (level,), **options}
    return msgspec.convert(plain, ArrayMeta)


def numbered(tiles: Iterable[bytes], level: int = 0) -> Blocks:
    """Yield tiles as blocks of a level."""
    yield from ((level, number, tile) for number, tile in enumerate(tiles))


def assembled(tiles: list[bytes]) -> Any:
    """Return the picture that tiles show."""
    out, decoder = np.empty_like(PICTURE), TileDecoder("jpeg", "u1")
    for (y, x), tile in zip(GRID, tiles, strict=True):
        part = out[y : y + TILE, x : x + TILE]
        part[...] = decoder.decode(tile, part.shape)
    return out


# --- written and read ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["u1", "u2"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_picture_comes_back_by_any_region(tmp_path: Path, dtype: str, channels: int) -> None:
    """Whole, by slices, steps and numbers, to the bit."""
    picture = noise(40, 50, channels, dtype=dtype)
    with StoreWriter(tmp_path / "x", schema={"x": Field("png", chunk=(16, 16, channels))}) as out:
        out.add({"x": picture})
    array = Store(tmp_path / "x").array(0, "x")
    assert (array.shape, array.chunk) == (picture.shape, (16, 16, channels))
    assert array.dtype == dtype
    for region in np.s_[:, 3:9, 7:8], np.s_[10:35:3, 20:], np.s_[..., 0], np.s_[17, 33], np.s_[5:5]:
        assert np.array_equal(array[region], picture[region])
    assert np.array_equal(Store(tmp_path / "x")[0]["x"], picture)


def test_a_focus_stack_has_tiles_of_one_plane(tmp_path: Path) -> None:
    """Axes before (y, x, channels) are cut into ones."""
    stack = noise(3, 20, 20, 3)
    with StoreWriter(tmp_path / "x", schema={"x": Field("png", chunk=(1, 16, 16, 3))}) as writer:
        writer.add({"x": stack})
    array = Store(tmp_path / "x").array(0, "x")
    assert np.array_equal(array[1:, 3:18, 15:], stack[1:, 3:18, 15:])
    assert np.array_equal(array.patch((2, 5, 0), (9, 9, 3), scaled=False), stack[:, 2:11, 5:14])


def test_the_quality_is_that_of_the_field(tmp_path: Path) -> None:
    """As for pictures that are not cut."""
    sizes = []
    for quality in (30, 95):
        schema = {"x": Field("jpeg", quality=quality, chunk=(16, 16, 3))}
        with StoreWriter(tmp_path / "x", schema=schema, force=True) as writer:
            writer.add({"x": PICTURE})
        sizes.append(info(tmp_path / "x").fields[0].bytes)
    assert sizes[0] < sizes[1]


def test_tiles_that_are_coded_already_stay_as_they_are(tmp_path: Path) -> None:
    """Each byte of them, also of those that are padded."""
    tiles = coded(padded=True)
    array = stored(tmp_path / "x", EncodedArray(meta_of(), numbered(tiles)), "jpeg")
    assert [bytes(data) for data in array.stored(range(len(tiles)))] == tiles
    assert np.array_equal(array[:], assembled(tiles))


def test_blocks_of_numbers_may_be_coded_already(tmp_path: Path) -> None:
    """As tiles may."""
    block = noise(16, 16, 3)
    meta = ArrayMeta("|u1", (LevelMeta((16, 16, 3), (16, 16, 3)),))
    value = EncodedArray(meta, [(0, 0, encode_block(block, "lz4", shuffle=False))])
    assert np.array_equal(stored(tmp_path / "x", value, "lz4")[:], block)


def test_levels_share_tables_of_their_own(tmp_path: Path) -> None:
    """They and the colour are kept beside the tiles."""
    parts = [split_jpeg(tile) for tile in coded()]
    second = split_jpeg(encode_tile(PICTURE[:16, :16], "jpeg", quality=40))
    levels = (
        LevelMeta(PICTURE.shape, (16, 16, 3), parts[0][0], "ycc"),
        LevelMeta((16, 16, 3), (16, 16, 3), second[0]),
    )
    blocks = [*numbered(bare for _, bare in parts), *numbered([second[1]], 1)]
    array = stored(tmp_path / "x", EncodedArray(ArrayMeta("|u1", levels), blocks), "jpeg")
    assert (array.tables, array.colour) == (parts[0][0], "ycc")
    assert np.array_equal(array[:], assembled(coded()))
    wanted = TileDecoder("jpeg", "u1").decode(
        encode_tile(PICTURE[:16, :16], "jpeg", quality=40), (16, 16, 3)
    )
    assert np.array_equal(array.level(1)[:], wanted)


def test_what_is_stored_of_other_arrays_did_not_change() -> None:
    """Tables and a colour are left out where there are none."""
    level = LevelMeta((4, 4), (2, 2))
    assert msgspec.json.encode(level) == b'{"shape":[4,4],"chunk":[2,2]}'


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        (lambda tiles: numbered(tiles[:-1]), "nothing"),
        (lambda tiles: numbered([*tiles, b""]), "more blocks"),
        (lambda tiles: reversed(list(numbered(tiles))), "level 0, block 11"),
        (lambda tiles: numbered(tiles, 1), "level 1, block 0"),
    ],
    ids=["one is missing", "one too many", "order", "level"],
)
def test_blocks_must_be_those_of_the_levels(
    tmp_path: Path, blocks: Callable[[list[bytes]], Blocks], text: str
) -> None:
    """A sample whose blocks are not is refused; the store is as if it had not been offered."""
    with StoreWriter(tmp_path / "x", schema={"x": Field("jpeg", chunk=(16, 16, 3))}) as writer:
        with pytest.raises(SchemaError, match=text):
            writer.add({"x": EncodedArray(meta_of(), blocks(coded()))})
        writer.add({"x": EncodedArray(meta_of(), numbered(coded()))})
    assert len(Store(tmp_path / "x")) == 1
    assert verify(tmp_path / "x").ok


@pytest.mark.parametrize(
    "field",
    [
        Field("keep", chunk=(16, 16, 3)),
        Field("jpeg", chunk=(16, 16)),
        Field("jpeg", chunk=(16, 16, 4)),
        Field("jpeg", chunk=(2, 16, 16, 3)),
        Field("webp", chunk=(16, 16, 1)),
    ],
    ids=lambda field: f"{field.kind} {len(field.chunk)} axes, {field.chunk[-1]} at the end",
)
def test_tiles_that_a_codec_does_not_hold_are_no_schema(tmp_path: Path, field: Field) -> None:
    """Refused before a sample is."""
    with pytest.raises(SchemaError, match="x"):
        StoreWriter(tmp_path / "x", schema={"x": field})


@pytest.mark.parametrize(
    "value",
    [
        noise(40, 50),
        noise(40, 50, 2),
        noise(40, 50, 3, dtype="u2"),
        ArrayValue(PICTURE, effort=1),
        ArrayValue(PICTURE, chunk=(16, 16)),
        EncodedArray(ArrayMeta("<f4", (LevelMeta((16, 16, 3), (16, 16, 3)),)), []),
        EncodedArray(ArrayMeta("|u1", ()), []),
    ],
    ids=["two axes", "two channels", "16 bits", "effort", "chunk", "floats", "no levels"],
)
def test_what_is_no_picture_is_refused(tmp_path: Path, value: Any) -> None:
    """By a field of JPEG tiles."""
    writer = StoreWriter(tmp_path / "x", schema={"x": Field("jpeg", chunk=(16, 16, 3))})
    with pytest.raises(SchemaError):
        writer.add({"x": value})
    writer.abort(keep=False)


# --- tiles that are not there --------------------------------------------------------------------


def absent(codec: str, number: int, **attrs: Any) -> ChunkedArray:
    """Return the picture without one of its blocks."""
    blocks = [
        encode_block(PICTURE[y : y + TILE, x : x + TILE], codec, shuffle=False)
        if codec in ("raw", "lz4", "zstd")
        else encode_tile(PICTURE[y : y + TILE, x : x + TILE], codec)
        for y, x in GRID
    ]
    blocks[number] = b""

    def read(_level: int, numbers: list[int]) -> list[memoryview]:
        return [memoryview(blocks[n]) for n in numbers]

    return ChunkedArray(meta_of(attrs=attrs), codec, read, OWNER)


@pytest.mark.parametrize("codec", ["raw", "lz4", "zstd", "png"])
@pytest.mark.parametrize(
    ("background", "wanted"), [([7, 8, 9], [7, 8, 9]), (None, [0, 0, 0]), (200, [200] * 3)], ids=str
)
def test_a_block_of_no_bytes_is_background(codec: str, background: Any, wanted: Any) -> None:
    """In all ways of reading; the blocks around it are what they are."""
    array = absent(codec, 5, **({} if background is None else {"background": background}))
    expected = PICTURE.copy()
    expected[16:32, 16:32] = wanted
    assert np.array_equal(array[:], expected)
    assert np.array_equal(array[17:20, 18:30], expected[17:20, 18:30])
    assert np.array_equal(array[17:20, 18:30, 1], expected[17:20, 18:30, 1])
    assert np.array_equal(array[10:20, 5:30:2], expected[10:20, 5:30:2])
    assert np.array_equal(array.read(np.s_[10:20, 5:30]), expected[10:20, 5:30].astype(np.float32))
    assert array[17:20, 18:30].flags.writeable


@pytest.mark.parametrize("codec", ["lz4", "png"])
def test_background_is_scaled_as_other_numbers_are(codec: str) -> None:
    """It counts as stored."""
    array = absent(codec, 0, background=[10, 20, 30], slope=2.0, intercept=1.0)
    assert array.read(np.s_[3, 4]).tolist() == [21, 41, 61]


@pytest.mark.parametrize(
    "background", [[1, 2], "white", [300, 0, 0], [1.5, 0, 0], [None] * 3, {"a": 1}], ids=str
)
def test_a_background_that_is_none_is_an_error_where_it_is_met(background: Any) -> None:
    """Blocks that are there are read all the same."""
    array = absent("png", 5, background=background)
    assert np.array_equal(array[:16], PICTURE[:16])
    with pytest.raises(StoreFormatError, match="background"):
        _ = array[16:32, 16:32]


def test_what_a_volume_calls_background_is_its_own_affair() -> None:
    """An attribute of that name means something only for blocks that are not there."""
    array = absent("lz4", 5, background="air")
    assert np.array_equal(array[:16], PICTURE[:16])


def _grown_by_a_corner(codec: str) -> float:
    """Return by how many MB a process grows that reads a corner of a huge block without bytes."""
    sides = (8192, 8192, 3)
    meta = ArrayMeta("|u1", (LevelMeta(sides, sides),))
    array = ChunkedArray(
        meta, codec, lambda _level, numbers: [memoryview(b"")] * len(numbers), OWNER
    )
    _ = array[0, 0]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _ = array[5:9, 7:9]
    _ = array.patch((3, 3, 0), (2, 2, 3))
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


@pytest.mark.parametrize("codec", ["lz4", "png"])
def test_a_block_that_is_not_there_takes_no_memory(codec: str) -> None:
    """Whatever size it claims to have: 200 MB here."""
    assert in_process("forkserver", _grown_by_a_corner, codec) < 20


# --- damage --------------------------------------------------------------------------------------

GOOD = coded()


@pytest.mark.parametrize(
    "tile",
    [
        GOOD[5][:-30],
        b"\xff\xd8nothing",
        b"no picture",
        encode_tile(PICTURE[:8, :16], "jpeg"),
        encode_tile(PICTURE[:16, :16, :1], "jpeg"),
        encode_tile(PICTURE[:16, :16], "png"),
    ],
    ids=["truncated", "headers", "text", "smaller", "grey", "another format"],
)
def test_a_damaged_tile_is_named(tmp_path: Path, tile: bytes) -> None:
    """By sample, field, level and block; the others are read."""
    tiles = [*GOOD[:5], tile, *GOOD[6:]]
    array = stored(tmp_path / "x", EncodedArray(meta_of(), numbered(tiles)), "jpeg")
    with pytest.raises(
        CorruptDataError, match=r"sample 0, field 'x': level 0, block 5: "
    ) as caught:
        _ = array[:]
    assert (caught.value.sample, caught.value.field) == (0, "x")
    assert np.array_equal(array[:16], assembled(GOOD)[:16])


@pytest.mark.parametrize(
    ("codec", "meta"),
    [
        ("jpeg", ArrayMeta("|u1", (LevelMeta((16, 16), (16, 16)),))),
        ("jpeg", ArrayMeta("<f4", (LevelMeta((16, 16, 3), (16, 16, 3)),))),
        ("jpeg", ArrayMeta("|i1", (LevelMeta((16, 16, 3), (16, 16, 3)),))),
        ("jpeg", ArrayMeta("|u1", (LevelMeta((2, 16, 16, 3), (2, 16, 16, 3)),))),
        ("jpeg", ArrayMeta("|u1", (LevelMeta((16, 16, 7), (16, 16, 7)),))),
        ("jpeg", ArrayMeta("|u1", (LevelMeta((9000, 9000, 3), (9000, 9000, 3)),))),
        ("jpeg", ArrayMeta("|u1", (LevelMeta((16, 16, 3), (16, 16, 3), b"tables"),))),
        ("jpeg", ArrayMeta("|u1", (LevelMeta((16, 16, 3), (16, 16, 3), b"", "pink"),))),
        ("webp", ArrayMeta("<u2", (LevelMeta((16, 16, 3), (16, 16, 3)),))),
    ],
    ids=["axes", "floats", "signed", "planes", "channels", "huge", "tables", "colour", "16 bits"],
)
def test_a_description_of_no_tiles_is_damaged(codec: str, meta: ArrayMeta) -> None:
    """Said of the array, before any tile is decoded: floats would be filled with bytes."""
    with pytest.raises(StoreFormatError, match="level 0"):
        ChunkedArray(meta, codec, lambda _level, _numbers: [memoryview(GOOD[0])], OWNER)


@pytest.mark.parametrize("tables", [b'"tables":3', b'"tables":"%%%"', b'"colour":7'])
def test_a_description_with_other_things_is_damaged(tables: bytes) -> None:
    """Tables are bytes in base64, a colour is a word."""
    record = b'{"dtype":"|u1","levels":[{"shape":[8,8,3],"chunk":[8,8,3],' + tables + b"}]}"
    with pytest.raises(StoreFormatError):
        parse_meta(record, OWNER)


# --- caches, summaries ---------------------------------------------------------------------------


def test_decoded_tiles_are_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    """The same pixels as without; tiles that are not there are not kept."""
    tiles = [*GOOD[:5], b"", *GOOD[6:]]
    stored(tmp_path / "x", EncodedArray(meta_of(), numbered(tiles)), "jpeg")
    plain, keeping = Store(tmp_path / "x"), Store(tmp_path / "x")
    cache = keeping.block_cache()
    for region in np.s_[3:30, 9:40], np.s_[10:30, 12:33], np.s_[:]:
        assert np.array_equal(keeping.array(0, "x")[region], plain.array(0, "x")[region])
    assert cache.stats.blocks == len(tiles) - 1
    assert cache.stats.hits > 0


def test_threads_share_an_array(tmp_path: Path) -> None:
    """Each gets the pixels that it asked for, also around a tile that is not there."""
    tiles = [*GOOD[:5], b"", *GOOD[6:]]
    array = stored(tmp_path / "x", EncodedArray(meta_of(), numbered(tiles)), "jpeg")
    whole = array[:]

    def right(turn: int) -> bool:
        y, x = turn % 23, turn * 7 % 31
        found = array.patch((y, x, 0), (17, 19, 3), scaled=False)
        return np.array_equal(found, whole[y : y + 17, x : x + 19])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(right, range(300)))


def test_an_array_of_tiles_is_described_once(tmp_path: Path) -> None:
    """Asked for again it is the same one; so are its levels."""
    value = ArrayValue(PICTURE, levels=(PICTURE[::2, ::2],))
    stored(tmp_path / "x", value)
    store = Store(tmp_path / "x")
    assert store.array(0, "x") is store.array(-1, "x")
    assert store.array(0, "x").level(1) is store.array(0, "x").level(1)
    assert np.array_equal(store.array(0, "x").level(1).level(0)[:], PICTURE)


def test_summaries_and_checks_know_tiles(tmp_path: Path) -> None:
    """Their codec and bytes; checksums are compared, a byte that changed is told."""
    path = tmp_path / "x"
    stored(path, EncodedArray(meta_of(), numbered(GOOD)), "jpeg")
    (field,) = info(path).fields
    assert (field.kind, field.values, field.bytes) == ("jpeg", 1, sum(map(len, GOOD)))
    assert verify(path, untrusted=True).ok
    data = bytearray(path.read_bytes())
    at = data.find(GOOD[7])
    data[at + 300] ^= 1
    path.write_bytes(data)
    report = verify(path)
    assert [(each.sample, each.field) for each in report.problems] == [(0, "x")]


def test_the_cost_of_a_patch_counts_pixels(tmp_path: Path) -> None:
    """Two numbers are rows and columns, whatever the channels; tiles stay as they are cut."""
    stored(tmp_path / "x", ArrayValue(PICTURE))
    (cost,) = patch_info(tmp_path / "x", (16, 16))
    assert cost.repacked_chunk == cost.chunk == (16, 16, 3)
    assert 1 < cost.now.blocks < 4
