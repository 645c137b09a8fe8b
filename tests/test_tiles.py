"""Tiles of pictures as JPEG, PNG and WebP: what is decoded, and what is refused."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import noise, opened, save, smooth, with_segment
from PIL import Image
from slide_files import bare_jpeg, split_jpeg

from sharedds.codecs import TILE_CODECS, TileDecoder, encode_tile, tile_problem
from sharedds.errors import DecodeError, OptionError

HEIGHT, WIDTH = 64, 96
SHAPE = (HEIGHT, WIDTH, 3)
COLOURED = np.asarray(smooth(WIDTH, HEIGHT)) // 2 + noise(*SHAPE) // 8
ADOBE = b"Adobe\0\x64\0\0\0\0"

#: Tiles of one picture as files of any kind have them: channels, file.
JPEGS: dict[str, bytes] = {
    "444": save(Image.fromarray(COLOURED), "JPEG", subsampling=0),
    "422": save(Image.fromarray(COLOURED), "JPEG", subsampling=1),
    "420": save(Image.fromarray(COLOURED), "JPEG", subsampling=2),
    "grey": save(Image.fromarray(COLOURED[..., 0]), "JPEG"),
    "progressive": save(Image.fromarray(COLOURED), "JPEG", progressive=True),
    "restarts": save(Image.fromarray(COLOURED), "JPEG", restart_marker_blocks=2),
    "restarts, 444": save(
        Image.fromarray(COLOURED), "JPEG", subsampling=0, restart_marker_blocks=3
    ),
    "restarts by row": save(Image.fromarray(COLOURED), "JPEG", restart_marker_rows=1),
    "restarts across rows": save(Image.fromarray(COLOURED), "JPEG", restart_marker_blocks=5),
}


def part_of(data: bytes, part: tuple[slice, ...], shape: tuple[int, ...] = SHAPE) -> Any:
    """Decode a part of a JPEG tile into memory that is not contiguous."""
    sides = [each.stop - each.start for each in part]
    out = np.zeros((sides[0], sides[1] + 5, sides[2]), np.uint8)[:, 2:-3]
    TileDecoder("jpeg", np.uint8).read(memoryview(data), shape, part, out)
    return out


# --- both ways -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codec", "dtype", "channels"),
    [
        *(("png", dtype, channels) for dtype in ("u1", "u2") for channels in (1, 3, 4)),
        ("webp", "u1", 3),
        ("webp", "u1", 4),
    ],
    ids=str,
)
def test_what_is_stored_without_loss_comes_back(codec: str, dtype: str, channels: int) -> None:
    """Each number of noise, in its dtype."""
    tile = noise(20, 30, channels, dtype=dtype)
    found = TileDecoder(codec, dtype).decode(encode_tile(tile, codec, quality=None), tile.shape)
    assert found.dtype == dtype
    assert np.array_equal(found, tile)


def test_alpha_that_is_opaque_everywhere_comes_back() -> None:
    """A WebP leaves it out."""
    tile = noise(20, 30, 4)
    tile[..., 3] = 255
    data = encode_tile(tile, "webp", quality=None)
    assert opened(data).shape == (20, 30, 3)
    assert np.array_equal(TileDecoder("webp", "u1").decode(data, (20, 30, 4)), tile)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_jpeg_tile_is_an_ordinary_picture(channels: int) -> None:
    """Any reader makes the same pixels of it."""
    data = encode_tile(COLOURED[..., :channels], "jpeg", quality=80)
    found = TileDecoder("jpeg", "u1").decode(data, (HEIGHT, WIDTH, channels))
    assert np.array_equal(found.squeeze(), opened(data))


def test_tiles_of_a_plane_have_axes_of_one_in_front() -> None:
    """As blocks of a focus stack have them."""
    data = encode_tile(COLOURED[None], "png")
    assert np.array_equal(TileDecoder("png", "u1").decode(data, (1, *SHAPE)), COLOURED[None])


def test_many_are_decoded_one_after_another() -> None:
    """Each is an array of its own."""
    first, second = noise(8, 9, 3), noise(7, 5, 3, seed=1)
    stored = [encode_tile(tile, "png") for tile in (first, second)]
    found = list(TileDecoder("png", "u1").decode_all(stored, [first.shape, second.shape]))
    assert np.array_equal(found[0], first)
    assert np.array_equal(found[1], second)


@pytest.mark.parametrize(
    ("codec", "dtype", "shape"),
    [
        ("jpeg", "u2", (8, 8, 3)),
        ("jpeg", "u1", (8, 8, 4)),
        ("jpeg", "u1", (8, 8)),
        ("jpeg", "u1", (2, 8, 8, 3)),
        ("png", "f4", (8, 8, 3)),
        ("png", "u1", (8, 8, 2)),
        ("webp", "u1", (8, 8, 1)),
        ("webp", "u1", (16_384, 8, 3)),
        ("jpeg", "u1", (0, 8, 3)),
        ("jpeg", "u1", (8193, 8193, 3)),
    ],
    ids=str,
)
def test_what_a_codec_does_not_hold_is_said(codec: str, dtype: str, shape: tuple[int, ...]) -> None:
    """Before anything is made of it."""
    assert tile_problem(codec, dtype, shape)
    with pytest.raises(OptionError):
        encode_tile(np.broadcast_to(np.zeros((), dtype), shape), codec)


def test_there_are_three_codecs() -> None:
    """Others are refused on both sides."""
    assert TILE_CODECS == ("jpeg", "png", "webp")
    with pytest.raises(OptionError):
        encode_tile(COLOURED, "bmp")
    with pytest.raises(OptionError):
        TileDecoder("lz4", "u1")


# --- parts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", JPEGS)
def test_a_part_is_that_of_the_whole(kind: str) -> None:
    """To the bit, also where colours are mixed from pixels beside it."""
    whole = np.atleast_3d(opened(JPEGS[kind]))
    rng = np.random.default_rng(0)
    for _ in range(60):
        low, high = np.sort(rng.integers(0, [HEIGHT, WIDTH], (2, 2)), axis=0).tolist()
        part = (slice(low[0], high[0] + 1), slice(low[1], high[1] + 1), slice(0, whole.shape[2]))
        assert np.array_equal(part_of(JPEGS[kind], part, whole.shape), whole[part])


def test_channels_may_be_a_part() -> None:
    """As of ``array[..., 1]``."""
    part = (slice(3, 9), slice(5, 80), slice(1, 2))
    assert np.array_equal(part_of(JPEGS["420"], part), opened(JPEGS["420"])[part])


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shape of everything that is decoded."""
    shapes: list[tuple[int, ...]] = []
    plain = simplejpeg.decode_jpeg

    def decode(data: Any, **options: Any) -> Any:
        shapes.append(options["buffer"].shape)
        return plain(data, **options)

    monkeypatch.setattr(simplejpeg, "decode_jpeg", decode)
    return shapes


@pytest.mark.parametrize(("kind", "most"), [("420", (14, 96)), ("restarts", (48, 64))])
def test_no_more_is_decoded_than_has_to_be(
    kind: str, most: tuple[int, int], decoded: list[tuple[int, ...]]
) -> None:
    """The rows down to the last one; with restart markers, what lies around the part."""
    part_of(JPEGS[kind], (slice(5, 10), slice(10, 20), slice(0, 3)))
    assert len(decoded) == 1
    assert all(side <= limit for side, limit in zip(decoded[0], most, strict=False))


def test_nothing_is_gained_where_restarts_cross_rows(decoded: list[tuple[int, ...]]) -> None:
    """Then the whole is decoded, in one go."""
    part_of(JPEGS["restarts across rows"], (slice(5, 10), slice(10, 20), slice(0, 3)))
    assert decoded == [SHAPE]


def test_a_tile_that_is_wanted_whole_is_decoded_where_it_belongs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No copy of it is made."""
    out = np.empty(SHAPE, np.uint8)
    seen: list[bool] = []
    plain = simplejpeg.decode_jpeg

    def decode(data: Any, **options: Any) -> Any:
        seen.append(np.shares_memory(options["buffer"], out))
        return plain(data, **options)

    monkeypatch.setattr(simplejpeg, "decode_jpeg", decode)
    everything = (slice(0, HEIGHT), slice(0, WIDTH), slice(0, 3))
    TileDecoder("jpeg", "u1").read(JPEGS["420"], SHAPE, everything, out)
    assert seen == [True]


def test_damage_in_rows_that_are_not_wanted_is_not_met() -> None:
    """And damage in those that are is told."""
    data = bytearray(JPEGS["444"])
    data[-200:-100] = bytes(100)
    upper = (slice(0, 8), slice(0, WIDTH), slice(0, 3))
    assert np.array_equal(part_of(bytes(data), upper), opened(JPEGS["444"])[upper])
    with pytest.raises(DecodeError):
        part_of(bytes(data), (slice(0, HEIGHT), slice(0, WIDTH), slice(0, 3)))


def test_threads_share_a_decoder() -> None:
    """Each has memory of its own."""
    decoder = TileDecoder("jpeg", "u1")
    wrong: list[str] = []
    kinds = ["420", "444", "restarts"]

    def work(at: int) -> None:
        for turn in range(60):
            kind = kinds[(at + turn) % 3]
            part = (slice(turn % 30, 31 + turn % 30), slice(3, 90), slice(0, 3))
            out = np.empty((31, 87, 3), np.uint8)
            decoder.read(JPEGS[kind], SHAPE, part, out)
            if not np.array_equal(out, wholes[kind][part]):
                wrong.append(kind)

    wholes = {kind: opened(JPEGS[kind]) for kind in kinds}
    threads = [threading.Thread(target=work, args=(at,)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- shared tables and colours -------------------------------------------------------------------


@pytest.mark.parametrize("kind", JPEGS)
def test_tables_are_shared(kind: str) -> None:
    """A tile without tables of its own is decoded with them; without them it is damaged."""
    tables, bare = split_jpeg(JPEGS[kind])
    whole = np.atleast_3d(opened(JPEGS[kind]))
    with pytest.raises(DecodeError):
        TileDecoder("jpeg", "u1").decode(bare, whole.shape)
    decoder = TileDecoder("jpeg", "u1", tables=tables)
    assert np.array_equal(decoder.decode(bare, whole.shape), whole)
    part = (slice(20, 30), slice(40, 70), slice(0, whole.shape[2]))
    out = np.empty((10, 30, whole.shape[2]), np.uint8)
    decoder.read(bare, whole.shape, part, out)
    assert np.array_equal(out, whole[part])


def test_tables_of_a_tile_replace_those_that_are_shared() -> None:
    """They come later."""
    tables, _ = split_jpeg(save(smooth(), "JPEG", quality=10))
    found = TileDecoder("jpeg", "u1", tables=tables).decode(JPEGS["420"], SHAPE)
    assert np.array_equal(found, opened(JPEGS["420"]))


def test_a_marker_beside_the_tables_says_nothing_of_the_tiles() -> None:
    """A JFIF marker there would turn RGB into something else."""
    tables, bare = split_jpeg(bare_jpeg(COLOURED))
    marked = with_segment(tables, 0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")
    found = TileDecoder("jpeg", "u1", tables=marked, colour="rgb").decode(bare, SHAPE)
    assert np.abs(found.astype(int) - COLOURED).max() < 40


@pytest.mark.parametrize(
    "marker", [None, ADOBE + b"\1"], ids=["no marker", "a marker that is wrong"]
)
def test_the_colour_decides_where_there_is_no_jfif_marker(marker: bytes | None) -> None:
    """Left to itself the decoder takes RGB for YCbCr."""
    data = bare_jpeg(COLOURED)
    if marker is not None:
        data = with_segment(data, 0xEE, marker)
    naive = TileDecoder("jpeg", "u1").decode(data, SHAPE).astype(int)
    assert np.abs(naive - COLOURED).max() > 100
    found = TileDecoder("jpeg", "u1", colour="rgb").decode(data, SHAPE).astype(int)
    assert np.abs(found - COLOURED).max() < 40
    same = TileDecoder("jpeg", "u1", colour="ycc").decode(data, SHAPE)
    assert np.array_equal(same, naive)


def test_a_jfif_marker_means_ycbcr() -> None:
    """Whatever else is said of the tiles."""
    found = TileDecoder("jpeg", "u1", colour="rgb").decode(JPEGS["444"], SHAPE)
    assert np.array_equal(found, opened(JPEGS["444"]))


def test_another_colour_is_refused() -> None:
    """When the decoder is made."""
    with pytest.raises(OptionError):
        TileDecoder("jpeg", "u1", colour="pink")


# --- what is not sound ---------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["jpeg", "png"])
def test_a_larger_tile_is_cut(codec: str) -> None:
    """Tiles of files are padded at the right and lower edge."""
    data = encode_tile(COLOURED, codec)
    whole = opened(data)
    found = TileDecoder(codec, "u1").decode(data, (50, 33, 3))
    assert np.array_equal(found, whole[:50, :33])


@pytest.mark.parametrize(
    ("codec", "data", "shape"),
    [
        ("jpeg", JPEGS["420"], (HEIGHT + 1, WIDTH, 3)),
        ("jpeg", JPEGS["420"], (HEIGHT, WIDTH + 1, 3)),
        ("jpeg", JPEGS["420"], (HEIGHT, WIDTH, 1)),
        ("jpeg", JPEGS["grey"], SHAPE),
        ("png", save(smooth(), "PNG"), (48, 65, 3)),
        ("png", save(smooth(), "PNG"), (48, 64, 4)),
        ("png", save(smooth(), "JPEG"), (48, 64, 3)),
        ("jpeg", save(smooth(), "PNG"), (48, 64, 3)),
        ("webp", save(smooth().convert("RGBA"), "PNG"), (48, 64, 4)),
        ("jpeg", b"", SHAPE),
        ("jpeg", b"\xff\xd8", SHAPE),
        ("jpeg", JPEGS["420"][:-40], SHAPE),
        ("jpeg", JPEGS["restarts"][:-40], SHAPE),
        ("jpeg", save(smooth(64, 48).convert("CMYK"), "JPEG"), (48, 64, 3)),
    ],
    ids=map(str, range(14)),
)
def test_a_tile_that_does_not_fit_is_an_error(
    codec: str, data: bytes, shape: tuple[int, ...]
) -> None:
    """Smaller, of other channels, of another format, truncated, or nothing at all."""
    with pytest.raises(DecodeError):
        TileDecoder(codec, "u1").decode(data, shape)


def test_sixteen_bits_are_not_eight() -> None:
    """A tile of another dtype is not converted."""
    data = encode_tile(noise(8, 8, 1, dtype="u2"), "png")
    with pytest.raises(DecodeError, match="uint16"):
        TileDecoder("png", "u1").decode(data, (8, 8, 1))


@pytest.mark.parametrize("side", [4097, 65_535])
def test_a_claim_of_a_huge_tile_is_refused(side: int, decoded: list[tuple[int, ...]]) -> None:
    """Before a decoder is asked for that much memory."""
    data = bytearray(JPEGS["420"])
    at = data.find(b"\xff\xc0") + 5
    data[at : at + 4] = side.to_bytes(2, "big") * 2
    with pytest.raises(DecodeError, match=str(side)):
        TileDecoder("jpeg", "u1").decode(bytes(data), SHAPE)
    assert not decoded


def test_restart_markers_that_cannot_be_there_are_not_counted() -> None:
    """Runs of one unit each would be sixty thousand; the file is far shorter."""
    data = bytearray(JPEGS["restarts"])
    at = data.find(b"\xff\xc0") + 5
    data[at : at + 4] = (4096).to_bytes(2, "big") * 2
    with pytest.raises(DecodeError):
        part_of(bytes(data), (slice(0, 8), slice(0, 8), slice(0, 3)))


@pytest.mark.parametrize(
    "tables",
    [
        b"abc",
        b"\xff\xd8",
        b"\xff\xd8\xff\xdb\0\1\xff\xd9",
        b"\xff\xd8\xff\xdb\xff\xff\xff\xd9",
        b"\xff\xd8" + bytes(70_000) + b"\xff\xd9",
        JPEGS["420"],
        split_jpeg(JPEGS["420"])[0][:-2],
    ],
    ids=["text", "nothing", "short", "long", "too many", "a picture", "no end"],
)
def test_tables_that_are_none_are_refused(tables: bytes) -> None:
    """When the decoder is made."""
    with pytest.raises(DecodeError):
        TileDecoder("jpeg", "u1", tables=tables)


@settings(max_examples=150, deadline=None)
@given(kind=st.sampled_from(sorted(JPEGS)), data=st.data())
def test_damage_is_an_error_or_pixels(kind: str, data: st.DataObject) -> None:
    """Never another exception, wherever bytes change or are missing."""
    broken = bytearray(JPEGS[kind])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(broken) - 1))
        broken[at : at + data.draw(st.integers(1, 4))] = data.draw(st.binary(max_size=4))
        broken = broken or bytearray(b"\xff")
    channels = 1 if kind == "grey" else 3
    part = (slice(3, 40), slice(30, 60), slice(0, channels))
    with contextlib.suppress(DecodeError):
        part_of(bytes(broken), part, (HEIGHT, WIDTH, channels))
