"""Pixels of TIFF slides: every depth, compression, arrangement and colour is what was written."""

from __future__ import annotations

import io
import lzma
import struct
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tifffile
from numcodecs import Zstd
from PIL import Image
from slide_files import (
    YCBCR_HALF,
    Page,
    bare_jpeg,
    jpeg_bytes,
    level,
    page,
    picture,
    slide,
    split_jpeg,
    write_tiff,
)

from sharedds.errors import DecodeError
from sharedds.slides.tiff_tiles import PageTiles

Array = npt.NDArray[Any]


def written(tmp_path: Path, *pages: Page, **options: Any) -> Array:
    """Return level 0 of a file with these pages."""
    return level(slide(write_tiff(tmp_path / "a.tif", pages, **options)))


def numbers(dtype: str) -> Array:
    """Return 100 x 130 x 2 numbers all over the range of a dtype."""
    kind = np.dtype(dtype)
    draws = np.random.default_rng(5)
    if kind.kind == "f":
        return draws.normal(0, 100, (100, 130, 2)).astype(kind)
    limits = np.iinfo(kind)
    return draws.integers(limits.min, limits.max, (100, 130, 2), kind.type, True)


@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "u4", "i4", "f2", "f4", "f8"])
def test_every_kind_of_number_in_either_byte_order(tmp_path: Path, order: Any, dtype: str) -> None:
    """Values and dtype are kept, in little-endian; tiles, strips and channels apart agree."""
    a = numbers(dtype)
    stored = a.astype(a.dtype.newbyteorder(order))
    for ways in (
        {"tile": (32, 48)},
        {"rows": 7},
        {"tile": 64, "planar": 2},
        {"rows": 9, "planar": 2},
    ):
        path = write_tiff(
            tmp_path / "a.tif", [page(stored, compression="deflate", **ways)], order=order
        )
        file = slide(path)
        assert file.header.dtype == np.dtype(dtype).newbyteorder("<")
        assert np.array_equal(level(file), a)


def test_big_endian_tiles_are_not_swapped_silently(tmp_path: Path) -> None:
    """A file that another program wrote in big-endian order."""
    t = (np.arange(512 * 512).reshape(512, 512) % 65521).astype(">u2")
    tifffile.imwrite(
        tmp_path / "a.tif", t, byteorder=">", tile=(256, 256), photometric="minisblack"
    )
    found = level(slide(tmp_path / "a.tif"))
    assert (found[0, 300, 0], found[511, 511, 0]) == (300, 59)


@pytest.mark.parametrize("dtype", ["u1", "u2", "i2", "u4"])
@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
def test_differences_of_whole_numbers(tmp_path: Path, order: Any, dtype: str) -> None:
    """Predictor 2: each number is stored as its difference to the one beside it."""
    a = numbers(dtype)

    def coded(part: Array) -> bytes:
        part = part.copy()
        part[:, 1:] -= part[:, :-1].copy()
        return zlib.compress(part.astype(part.dtype.newbyteorder(order)).tobytes())

    one = page(a, tile=32, compression="deflate", encode=coded, tags={317: (3, [2])})
    assert np.array_equal(written(tmp_path, one, order=order), a)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_differences_of_floats(tmp_path: Path, dtype: str) -> None:
    """Predictor 3: bytes of a row by significance, each as the difference to the one before."""
    a = numbers(dtype)

    def coded(part: Array) -> bytes:
        rows, _, samples = part.shape
        size = part.dtype.itemsize
        split = part.astype(part.dtype.newbyteorder(">")).view("u1").reshape(rows, -1, size)
        planes = split.transpose(0, 2, 1).reshape(rows, -1, samples).copy()
        planes[:, 1:] -= planes[:, :-1].copy()
        return zlib.compress(planes.tobytes())

    one = page(a, tile=32, compression="deflate", encode=coded, tags={317: (3, [3])})
    assert np.array_equal(written(tmp_path, one), a)


def packed_bits(a: Array, bits: int) -> bytes:
    """Return rows of numbers with so many bits each, the highest bit first."""
    rows = a.reshape(len(a), -1)
    spread = (rows[..., None] >> np.arange(bits - 1, -1, -1)) & 1
    return np.packbits(spread.reshape(len(a), -1).astype("u1"), axis=1).tobytes()


@pytest.mark.parametrize(
    ("bits", "factor"), [(1, 255), (2, 85), (4, 17), (10, 1), (12, 1), (14, 1)]
)
def test_depths_between_whole_bytes(tmp_path: Path, bits: int, factor: int) -> None:
    """Below 8 bits values are stretched to 255 and it is told; above they are kept in uint16."""
    a = np.random.default_rng(1).integers(0, 1 << bits, (50, 61, 1)).astype("u2")
    one = page(a, rows=8, encode=lambda part: packed_bits(part, bits), bits=bits)
    file = slide(write_tiff(tmp_path / "a.tif", [one]))
    assert file.header.dtype == np.dtype("u1" if bits < 8 else "<u2")
    assert file.header.attrs["bits"] == bits
    assert bool(file.header.remarks) == (bits < 8)
    assert np.array_equal(level(file), a * factor)


def test_white_that_is_zero(tmp_path: Path) -> None:
    """Where the file says that 0 is white, numbers are turned round within their bits."""
    a = np.arange(4096, dtype="u2").reshape(64, 64, 1)
    one = page(a, rows=8, encode=lambda part: packed_bits(part, 12), bits=12, photometric=0)
    assert np.array_equal(written(tmp_path, one), 4095 - a)


def test_colours_of_a_palette(tmp_path: Path) -> None:
    """Numbers of a palette become its colours."""
    a = np.random.default_rng(2).integers(0, 16, (40, 33, 1)).astype("u1")
    colours = np.random.default_rng(3).integers(0, 256, (3, 16))
    one = page(
        a,
        rows=8,
        encode=lambda part: packed_bits(part, 4),
        bits=4,
        photometric=3,
        tags={320: (3, (colours * 257).reshape(-1).tolist())},
    )
    file = slide(write_tiff(tmp_path / "a.tif", [one]))
    assert file.header.is_rgb
    assert np.array_equal(level(file), colours.T[a[..., 0]])


def test_channels_apart(tmp_path: Path) -> None:
    """Colours in tiles of their own, as another program writes them."""
    a = picture(300, 200)
    path = tmp_path / "a.tif"
    tifffile.imwrite(
        path, a.transpose(2, 0, 1), photometric="rgb", planarconfig="separate", tile=(64, 64)
    )
    assert np.array_equal(level(slide(path)), a)


def by_libvips(path: Path, a: Array, compression: str, **options: Any) -> Path:
    """Write tiles with libvips."""
    import pyvips

    image = pyvips.Image.new_from_array(a)
    ways = {"tile": True, "tile_width": 64, "tile_height": 64, **options}
    image.tiffsave(str(path), compression=compression, **ways)
    return path


@pytest.mark.parametrize("predictor", ["none", "horizontal"])
@pytest.mark.parametrize("compression", ["lzw", "packbits", "deflate"])
@pytest.mark.parametrize("dtype", ["u1", "u2"])
def test_what_libvips_writes(tmp_path: Path, compression: str, dtype: str, predictor: str) -> None:
    """LZW, PackBits and deflate of another program, with and without differences."""
    a = (picture(201, 131).astype(dtype) * (1 if dtype == "u1" else 200)).astype(dtype)
    path = by_libvips(tmp_path / "a.tif", a, compression, predictor=predictor)
    assert np.array_equal(level(slide(path)), a)


def test_webp_tiles(tmp_path: Path) -> None:
    """WebP tiles, without loss."""
    a = picture(201, 131)
    path = by_libvips(tmp_path / "a.tif", a, "webp", lossless=True)
    assert np.array_equal(level(slide(path)), a)


@pytest.mark.parametrize("compression", [33003, 33005, 34712])
def test_jpeg_2000_tiles(tmp_path: Path, compression: int) -> None:
    """JPEG 2000 tiles of RGB, and Aperio's of YCbCr."""

    def coded(part: Array) -> bytes:
        file = io.BytesIO()
        image = Image.fromarray(part)
        if compression == 33003:
            image = Image.merge("RGB", image.convert("YCbCr").split())
        image.save(file, "JPEG2000", no_jp2=True, mct=0)
        return file.getvalue()

    a = picture(201, 131)
    one = page(a, tile=64, encode=coded, tags={259: (3, [compression])})
    assert np.abs(written(tmp_path, one).astype(int) - a).max() <= (
        4 if compression == 33003 else 0
    )


def without_size(data: bytes) -> bytes:
    """Return a Zstandard frame of plain blocks that does not say how long it is."""
    blocks = [data[at : at + 65536] for at in range(0, len(data), 65536)]
    frame = struct.pack("<IBB", 0xFD2FB528, 0, 0x58)
    for number, block in enumerate(blocks):
        head = len(block) << 3 | (number + 1 == len(blocks))
        frame += head.to_bytes(3, "little") + block
    return frame


@pytest.mark.parametrize(
    ("number", "coded"),
    [(50000, Zstd().encode), (50000, without_size), (34925, lzma.compress)],
    ids=["zstd", "zstd without size", "lzma"],
)
def test_newer_compressions(tmp_path: Path, number: int, coded: Callable[[bytes], bytes]) -> None:
    """Zstandard and LZMA."""
    a = picture(150, 90)
    one = page(
        a, tile=64, encode=lambda part: bytes(coded(part.tobytes())), tags={259: (3, [number])}
    )
    assert np.array_equal(written(tmp_path, one), a)


def test_bits_in_reverse(tmp_path: Path) -> None:
    """Where the lowest bit of a byte comes first, bytes are turned before anything else."""
    a = picture(64, 48)
    turned = np.array([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], "u1")
    one = page(turned[a], tile=32, tags={266: (3, [2])})
    assert np.array_equal(written(tmp_path, one), a)


def ycc_blocks(part: Array, across: int, down: int) -> bytes:
    """Return YCbCr where a block of pixels has one colour, its greys first."""
    ycc = np.asarray(Image.fromarray(part).convert("YCbCr"))
    found = []
    for y in range(0, part.shape[0], down):
        for x in range(0, part.shape[1], across):
            block = ycc[y : y + down, x : x + across]
            whole = np.zeros((down, across, 3), "u1")
            whole[: block.shape[0], : block.shape[1]] = block
            found.append(whole[..., 0].tobytes() + bytes(block[0, 0, 1:].tolist()))
    return b"".join(found)


@pytest.mark.parametrize(("across", "down"), [(1, 1), (2, 1), (2, 2), (4, 2)])
def test_colour_at_lower_resolution(tmp_path: Path, across: int, down: int) -> None:
    """YCbCr that is no JPEG: RGB comes out, also where blocks reach over the edge."""
    a = picture(123, 77)
    arrangements: list[dict[str, Any]] = [{"tile": 32}, {"rows": 10}]
    for ways in arrangements:
        one = page(
            a,
            photometric=6,
            encode=lambda part: ycc_blocks(part, across, down),
            tags={530: (3, [across, down])},
            **ways,
        )
        assert np.abs(written(tmp_path, one).astype(int) - a).mean() < 3


def jpeg_pages() -> dict[str, Page]:
    """Return a picture in JPEG tiles, in the ways that scanners write them."""
    a = picture(512, 512)
    tables = split_jpeg(jpeg_bytes(a[:256, :256]))[0]
    half: dict[str, Any] = {"tile": 256, "compression": "jpeg"}
    return {
        "ycc": page(a, **half),
        "rgb_bare": page(a, **half, encode=bare_jpeg, photometric=2),
        "rgb_adobe": page(
            a, **half, encode=lambda part: jpeg_bytes(part, keep_rgb=True), photometric=2
        ),
        "tables": page(
            a,
            **half,
            encode=lambda part: split_jpeg(jpeg_bytes(part))[1],
            tags={**YCBCR_HALF, 347: (7, tables)},
        ),
        "lie": page(a, **half, encode=jpeg_bytes, photometric=2),
    }


@pytest.mark.parametrize("name", ["ycc", "rgb_bare", "rgb_adobe", "tables", "lie"])
def test_colours_of_jpeg_tiles(tmp_path: Path, name: str) -> None:
    """A JFIF marker means YCbCr, else the tag of the page decides; tables may lie apart."""
    file = slide(write_tiff(tmp_path / "a.tif", [jpeg_pages()[name]]))
    difference = np.abs(level(file).astype(int) - picture(512, 512)).mean((0, 1))
    assert (difference < 3).all()
    assert bool(file.header.remarks) == (name == "lie")
    wanted = "rgb" if name.startswith("rgb") else "ycc"
    assert file.header.levels[0].colour == wanted


def test_a_decoder_left_alone_guesses_wrong(tmp_path: Path) -> None:
    """Why the rule is needed: a tile of RGB without a marker opened as it is has other colours."""
    file = slide(write_tiff(tmp_path / "a.tif", [jpeg_pages()["rgb_bare"]]))
    with file.open() as reader:
        stream = reader.stream(0, row=0, column=0)
    assert stream is not None
    guessed = np.asarray(Image.open(io.BytesIO(stream))).astype(int)
    assert np.abs(guessed - picture(512, 512)[:256, :256]).mean() > 30


def test_streams_are_those_of_the_file(tmp_path: Path) -> None:
    """Tiles are handed out to the byte; one that is not there is None."""
    one = jpeg_pages()["tables"]
    data = [*one.data[:3], None]
    path = write_tiff(
        tmp_path / "a.tif",
        [Page(width=512, height=512, tile=(256, 256), data=data, compression=7, photometric=6,
              tags=one.tags)],
    )  # fmt: skip
    file = slide(path)
    found = file.header.levels[0]
    assert (found.stream, found.tile) == ("jpeg", (256, 256))
    assert found.tables == one.tags[347][1]  # type: ignore[index]
    assert file.header.attrs["missing"] == {"0": 1}
    with file.open() as reader:
        streams = [reader.stream(0, row=n // 2, column=n % 2) for n in range(4)]
    assert streams == data
    assert not level(file)[256:, 256:].any()


def test_grey_jpeg_in_strips(tmp_path: Path) -> None:
    """JPEG strips are read; they are no tiles that could be copied."""
    a = picture(160, 100)[..., 0]
    one = page(a, rows=16, compression="jpeg")
    file = slide(write_tiff(tmp_path / "a.tif", [one]))
    assert np.abs(level(file)[..., 0].astype(int) - a).mean() < 3
    assert file.header.levels[0].stream is None


def test_jpeg_channels_apart(tmp_path: Path) -> None:
    """Each colour in grey JPEG tiles of its own."""
    a = picture(200, 100)
    one = page(a, tile=64, compression="jpeg", planar=2, photometric=2)
    file = slide(write_tiff(tmp_path / "a.tif", [one]))
    assert np.abs(level(file).astype(int) - a).mean() < 3
    assert file.header.levels[0].stream is None


def test_old_style_jpeg_is_refused_by_name(tmp_path: Path) -> None:
    """What no decoder here reads is refused by the name of its compression."""
    data = jpeg_bytes(picture(64, 64))
    one = Page(width=64, height=64, data=[data], compression=6, photometric=6)
    with pytest.raises(DecodeError, match="old-style JPEG"):
        slide(write_tiff(tmp_path / "a.tif", [one]))
    other = Page(width=64, height=64, data=[data], compression=34887)
    with pytest.raises(DecodeError, match="LERC"):
        slide(write_tiff(tmp_path / "a.tif", [other]))


def test_any_region(tmp_path: Path) -> None:
    """Regions that begin and end anywhere, empty ones too; bands put together are the whole."""
    a = picture(333, 257)
    file = slide(write_tiff(tmp_path / "a.tif", [page(a, tile=(48, 80), compression="deflate")]))
    draws = np.random.default_rng(7)
    with file.open() as reader:
        for _ in range(100):
            y, x = int(draws.integers(257)), int(draws.integers(333))
            h, w = int(draws.integers(258 - y)), int(draws.integers(334 - x))
            assert np.array_equal(
                reader.read(0, y=y, x=x, height=h, width=w), a[y : y + h, x : x + w]
            )
        assert np.array_equal(np.concatenate(list(reader.rows(50))), a)


def test_threads_share_a_reader(tmp_path: Path) -> None:
    """Eight threads read one open slide, each what it asked for."""
    a = picture(700, 700)
    file = slide(write_tiff(tmp_path / "a.tif", [page(a, tile=64, compression="deflate")]))
    wrong: list[int] = []
    with file.open() as reader:

        def work(seed: int) -> None:
            draws = np.random.default_rng(seed)
            for _ in range(30):
                y, x = (int(n) for n in draws.integers(0, 600, 2))
                if not np.array_equal(
                    reader.read(0, y=y, x=x, height=100, width=100), a[y : y + 100, x : x + 100]
                ):
                    wrong.append(seed)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_threads_decode_a_tile_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that read parts of one tile at the same time wait for the one that decodes it."""
    a = picture(512, 512)
    file = slide(write_tiff(tmp_path / "a.tif", [page(a, tile=512, compression="deflate")]))
    plain, decoded = PageTiles.pixels, []

    def slow(self: PageTiles, row: int, column: int) -> Any:
        decoded.append((row, column))
        time.sleep(0.05)
        return plain(self, row, column)

    monkeypatch.setattr(PageTiles, "pixels", slow)
    with file.open() as reader, ThreadPoolExecutor(8) as pool:
        parts = pool.map(
            lambda y: reader.read(0, y=y, x=0, height=64, width=512), range(0, 512, 64)
        )
        assert np.array_equal(np.concatenate(list(parts)), a)
    assert decoded == [(0, 0)]


def test_a_huge_plain_strip_is_read_by_its_rows(tmp_path: Path) -> None:
    """A picture in one strip without compression is read where it is asked for, not as a whole."""
    a = picture(1500, 2000)
    file = slide(write_tiff(tmp_path / "a.tif", [page(a)]))
    with file.open() as reader:
        found = reader.read(0, y=1500, x=100, height=40, width=50)
        assert np.array_equal(found, a[1500:1540, 100:150])
        assert reader._bytes < 3 << 20
    ways: list[dict[str, Any]] = [{"rows": 900}, {"planar": 2}, {"planar": 2, "rows": 1100}]
    for way in ways:
        path = write_tiff(tmp_path / "b.tif", [page(a, **way)])
        assert np.array_equal(level(slide(path)), a)


def test_giga(tmp_path: Path) -> None:
    """600 megapixels in a few kilobytes: any region is read, and Pillow's limit stays."""
    before = Image.MAX_IMAGE_PIXELS
    one = jpeg_bytes(picture(512, 512))
    path = write_tiff(
        tmp_path / "giga.tif",
        [
            Page(width=30000, height=20000, tile=(512, 512), data=[one] * (59 * 40),
                 compression=7, photometric=6, tags=YCBCR_HALF)
        ],
    )  # fmt: skip
    file = slide(path)
    with file.open() as reader:
        found = reader.read(0, y=1024, x=29184, height=256, width=256)
        assert np.abs(found.astype(int) - picture(512, 512)[:256, :256]).mean() < 3
        assert len(reader._kept) == 1
    assert before == Image.MAX_IMAGE_PIXELS
