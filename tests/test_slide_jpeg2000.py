"""JPEG 2000 pictures: as they are decoded elsewhere, and refused before they fill the memory."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from slide_files import picture

from sharedds.errors import DecodeError, ImageTooLargeError
from sharedds.ingest import pack
from sharedds.slides.jpeg2000 import Jpeg2000Slide, open_jpeg2000
from sharedds.store import Store

pytest.importorskip("pyvips", reason="pyvips is not installed")


def saved(path: Path, image: Image.Image) -> Path:
    """A picture without loss."""
    image.save(path, irreversible=False)
    return path


def rows(found: Jpeg2000Slide) -> npt.NDArray[Any]:
    """All rows of a picture."""
    with found.open() as reader:
        return np.concatenate(list(reader.rows(100)))


@pytest.mark.parametrize("name", ["a.jp2", "a.j2k"])
def test_colours_are_what_was_written(tmp_path: Path, name: str) -> None:
    """In its box, and as a bare codestream."""
    values = picture(321, 234)
    found = open_jpeg2000(saved(tmp_path / name, Image.fromarray(values)))
    assert (found.header.levels[0].shape, found.header.is_rgb) == ((234, 321), True)
    assert np.array_equal(rows(found), values)


def test_16_bits_stay_16_bits(tmp_path: Path) -> None:
    """Grey values of which no byte is lost."""
    values = picture(90, 70)[..., 0].astype(np.uint16) * 250
    found = open_jpeg2000(saved(tmp_path / "a.jp2", Image.fromarray(values)))
    assert found.header.dtype == np.uint16
    assert np.array_equal(rows(found)[..., 0], values)


def test_transparent_pixels_lie_on_white(tmp_path: Path) -> None:
    """As of every other picture."""
    values = np.zeros((40, 50, 4), np.uint8)
    values[:20, :, 3] = 255
    found = open_jpeg2000(saved(tmp_path / "a.jp2", Image.fromarray(values)))
    shown = rows(found)
    assert shown.shape == (40, 50, 3)
    assert (shown[0, 0].tolist(), shown[30, 0].tolist()) == ([0] * 3, [255] * 3)


def claimed(path: Path, side: int) -> Path:
    """A small file that says it is large."""
    saved(path, Image.fromarray(picture(64, 64)))
    data = bytearray(path.read_bytes())
    at = data.index(b"\xff\x4f\xff\x51") + 8
    struct.pack_into(">II", data, at, side, side)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("side", "error"), [(20_000, DecodeError), (1 << 30, ImageTooLargeError), (0, DecodeError)]
)
def test_a_claim_is_refused_before_anything_is_made(
    tmp_path: Path, side: int, error: type[Exception]
) -> None:
    """More than its bytes can hold, more than the limit, and nothing at all."""
    with pytest.raises(error, match=r"more than|over the limit|impossible"):
        open_jpeg2000(claimed(tmp_path / "a.j2k", side))


def test_a_large_picture_is_refused_with_the_limit(tmp_path: Path) -> None:
    """Its samples take 32 bits while they are decoded; the file itself may be large enough."""
    path = claimed(tmp_path / "a.j2k", 9_000)
    path.write_bytes(path.read_bytes() + bytes(20_000))
    with pytest.raises(ImageTooLargeError, match="1,024 MiB is the limit"):
        open_jpeg2000(path)


@pytest.mark.parametrize("share", [0.5, 0.01])
def test_a_file_that_is_cut_is_told(tmp_path: Path, share: float) -> None:
    """Whatever is missing."""
    path = saved(tmp_path / "a.jp2", Image.fromarray(picture(300, 300)))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(DecodeError):
        rows(open_jpeg2000(path))


def test_it_is_packed_like_the_others(tmp_path: Path) -> None:
    """Without a libvips that knows the format."""
    (tmp_path / "in").mkdir()
    values = picture(300, 200)
    saved(tmp_path / "in" / "a.jp2", Image.fromarray(values))
    pack(tmp_path / "in", tmp_path / "a.lmdb", kind="slide", codec="png", progress=False)
    assert np.array_equal(Store(tmp_path / "a.lmdb").array(0, "image")[:], values)
