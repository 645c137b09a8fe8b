"""Large pictures without tiles: streamed from top to bottom, as ordinary pictures are decoded."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from processes import python
from slide_files import picture

from sharedds import codecs
from sharedds.errors import DecodeError, ImageTooLargeError, SourceError
from sharedds.slides import SlideFile, recognise

pytest.importorskip("pyvips", reason="pyvips is not installed")


def rows(found: SlideFile | None, height: int = 100) -> npt.NDArray[Any]:
    """All rows of a picture."""
    assert found is not None
    with found.open() as reader:
        return np.concatenate(list(reader.rows(height)))


def saved(path: Path, values: npt.NDArray[Any], **options: Any) -> Path:
    """A picture as Pillow writes it."""
    Image.fromarray(values).save(path, **options)
    return path


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "grey.png", "grey.jpg"])
def test_a_picture_is_the_one_that_is_decoded_elsewhere(tmp_path: Path, name: str) -> None:
    """To the bit: one decoder for a format, or two that agree."""
    values = picture(321, 234)
    path = saved(tmp_path / name, values[..., 0] if "grey" in name else values)
    found = recognise(path)
    assert found is not None
    header = found.header
    assert header.is_sequential
    assert header.levels[0].shape == (234, 321)
    assert header.mpp is None
    assert header.remarks == ()
    expected = codecs.decode(path.read_bytes(), mode="keep")
    assert header.channels == (1 if "grey" in name else 3)
    assert header.is_rgb is ("grey" not in name)
    assert np.array_equal(rows(found), expected)


@pytest.mark.parametrize("height", [1, 7, 64, 1000])
def test_rows_come_in_any_number(tmp_path: Path, height: int) -> None:
    """Each once, from top to bottom."""
    values = picture(50, 130)
    assert np.array_equal(rows(recognise(saved(tmp_path / "a.png", values)), height), values)


def test_sixteen_bits_are_kept(tmp_path: Path) -> None:
    """Nothing is cut to eight."""
    values = (np.arange(90 * 70).reshape(90, 70) * 9).astype(np.uint16)
    path = tmp_path / "a.png"
    Image.fromarray(values).save(path)
    found = recognise(path)
    assert found is not None
    assert found.header.dtype == np.uint16
    assert np.array_equal(rows(found)[..., 0], values)


@pytest.mark.parametrize("turn", range(1, 9))
def test_the_orientation_is_applied(tmp_path: Path, turn: int) -> None:
    """As it is to ordinary pictures."""
    path = tmp_path / "a.jpg"
    exif = Image.Exif()
    exif[274] = turn
    Image.fromarray(picture(96, 64)).save(path, exif=exif, quality=95)
    expected = codecs.decode(path.read_bytes())
    found = recognise(path)
    assert found is not None
    assert found.header.levels[0].shape == expected.shape[:2]
    assert np.array_equal(rows(found), expected)


def test_transparent_pixels_lie_on_white(tmp_path: Path) -> None:
    """What lies below them is nobody's picture; a remark says so."""
    values = np.zeros((40, 30, 4), np.uint8)
    values[:20] = 255, 0, 0, 255
    found = recognise(saved(tmp_path / "a.png", values))
    assert found is not None
    assert found.header.channels == 3
    assert any("transparent" in remark for remark in found.header.remarks)
    shown = rows(found)
    assert shown[0, 0].tolist() == [255, 0, 0]
    assert shown[30, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize("name", ["cmyk.jpg", "alpha.png", "alpha.webp", "alpha16.png"])
def test_colours_are_made_by_the_same_rules(tmp_path: Path, name: str) -> None:
    """CMYK and alpha come out to the bit as they do of ordinary pictures."""
    path = tmp_path / name
    values = picture(90, 70)
    share = np.arange(90 * 70).reshape(70, 90, 1).astype(np.uint8)
    if name == "alpha16.png":
        import pyvips

        deep = np.concatenate([values, share], 2).astype(np.uint16) * 251
        pyvips.Image.new_from_array(deep).copy(interpretation="rgb16").pngsave(str(path))
    elif name == "cmyk.jpg":
        Image.fromarray(values).convert("CMYK").save(path)
    else:
        Image.fromarray(np.concatenate([values, share], 2)).save(path, lossless=True)
    assert np.array_equal(rows(recognise(path)), codecs.decode(path.read_bytes(), mode="RGB"))


def test_a_name_with_brackets_is_a_name(tmp_path: Path) -> None:
    """Libvips would take what is in brackets for options."""
    path = saved(tmp_path / "a[page=3].png", picture(20, 30))
    assert rows(recognise(path)).shape == (30, 20, 3)


def test_the_resolution_of_a_printer_is_no_pixel_size(tmp_path: Path) -> None:
    """300 dpi says nothing about what is shown; that of a scanner is kept."""
    plain = recognise(saved(tmp_path / "a.jpg", picture(30, 20), dpi=(300, 300)))
    fine = recognise(saved(tmp_path / "b.jpg", picture(30, 20), dpi=(25400, 25400)))
    assert plain is not None
    assert fine is not None
    assert plain.header.mpp is None
    assert fine.header.mpp == pytest.approx((1.0, 1.0), rel=1e-3)


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp"])
def test_a_picture_that_is_cut_short_is_told(tmp_path: Path, name: str, capfd: Any) -> None:
    """Never grey rows; and the library says nothing by itself."""
    noise = np.random.default_rng(0).integers(0, 255, (300, 300, 3), np.uint8)
    path = saved(tmp_path / name, noise)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    with pytest.raises(DecodeError, match=name):
        rows(recognise(path))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("kind", ["ends early", "zeros"])
def test_a_jpeg_with_damaged_data_is_told(tmp_path: Path, kind: str) -> None:
    """Where the end marker is there all the same, decoders only warn and fill up with grey."""
    path = saved(tmp_path / "a.jpg", picture(300, 300), quality=92)
    data = path.read_bytes()
    half = len(data) // 2
    rest = b"\xff\xd9" if kind == "ends early" else bytes(40) + data[half + 40 :]
    path.write_bytes(data[:half] + rest)
    with pytest.raises(DecodeError, match="cannot be decoded"):
        rows(recognise(path))


def test_a_webp_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    """34 bytes hold 268 megapixels of one colour, and are decoded as a whole."""
    path = saved(tmp_path / "a.webp", np.zeros((8, 8, 3), np.uint8), lossless=True)
    data = bytearray(path.read_bytes())
    at = data.index(b"VP8L") + 9
    bits = struct.unpack_from("<I", data, at)[0] & ~0xFFFFFFF
    struct.pack_into("<I", data, at, bits | 16_382 << 14 | 16_382)
    path.write_bytes(data)
    with pytest.raises(ImageTooLargeError, match="16,383 x 16,383"):
        recognise(path)


def test_a_limit_of_nothing_is_a_limit(tmp_path: Path) -> None:
    """0 is not the default."""
    with pytest.raises(ImageTooLargeError, match=r"0 \(max_pixels\)"):
        recognise(saved(tmp_path / "a.png", picture(20, 30)), max_pixels=0)


def png(width: int, height: int, data: bytes) -> bytes:
    """A grey PNG with any claim."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def test_more_than_the_bytes_can_hold_is_refused(tmp_path: Path) -> None:
    """By the header, before anything is decoded."""
    path = tmp_path / "bomb.png"
    path.write_bytes(png(100_000, 100_000, bytes(1000)))
    with pytest.raises(DecodeError, match=r"100,000 x 100,000 pixels, more than"):
        recognise(path)


def test_the_limit_is_that_of_the_call(tmp_path: Path) -> None:
    """It is named, and nothing else is changed by it."""
    limit = Image.MAX_IMAGE_PIXELS
    path = saved(tmp_path / "a.png", picture(200, 100))
    with pytest.raises(ImageTooLargeError, match=r"19,999 \(max_pixels\)"):
        recognise(path, max_pixels=19_999)
    assert recognise(path, max_pixels=20_000) is not None
    assert limit == Image.MAX_IMAGE_PIXELS


def test_a_progressive_jpeg_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    """It is decoded as a whole before there is a first row."""
    path = saved(tmp_path / "a.jpg", picture(64, 64), progressive=True)
    data = bytearray(path.read_bytes())
    at = data.index(b"\xff\xc2") + 5
    data[at : at + 4] = struct.pack(">HH", 30_000, 30_000)
    path.write_bytes(bytes(data) + bytes(4 << 20))
    with pytest.raises(ImageTooLargeError, match="progressive JPEG"):
        recognise(path)


def test_a_file_that_vanished_or_changed_is_told(tmp_path: Path) -> None:
    """Between looking and reading, as in a folder that somebody works in."""
    path = saved(tmp_path / "a.png", picture(20, 30))
    found = recognise(path)
    assert found is not None
    saved(path, picture(21, 30))
    with pytest.raises(DecodeError, match="another file"), found.open():
        pass
    path.unlink()
    with pytest.raises(SourceError, match=r"a\.png: cannot be read"), found.open():
        pass


def test_regions_are_refused(tmp_path: Path) -> None:
    """A picture without tiles has none; packing gives it some."""
    found = recognise(saved(tmp_path / "a.png", picture(20, 30)))
    assert found is not None
    with found.open() as reader, pytest.raises(SourceError, match="from top to bottom"):
        reader.read(0, y=0, x=0, height=5, width=5)


def test_streaming_takes_the_memory_of_some_rows(tmp_path: Path) -> None:
    """A picture of 600 MB; decoding it whole takes all of that."""
    import pyvips

    path = tmp_path / "a.jpg"
    tile = pyvips.Image.new_from_array(picture(600, 600))
    tile.replicate(34, 17).crop(0, 0, 20_000, 10_000).jpegsave(str(path), Q=80)
    done = python(
        """
        import sys
        from pathlib import Path
        from sharedds.slides import recognise

        def anonymous():
            lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
            return sum(int(x.split()[1]) for x in lines if x.startswith("Anonymous:")) / 1024

        found = recognise(Path(sys.argv[1]))
        before = most = anonymous()
        count = 0
        with found.open() as reader:
            for number, values in enumerate(reader.rows(256)):
                count += values.nbytes
                if number % 4 == 3:
                    most = max(most, anonymous())
        assert count == 20_000 * 10_000 * 3
        print(most - before)
        """,
        path,
    )
    assert float(done.stdout) < 150
