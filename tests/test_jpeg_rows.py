"""JPEG: rows below the part that is wanted are not decoded, and what is decoded stays exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import simplejpeg
from pictures import noise, save, smooth, with_segment
from PIL import Image

from sharedds.codecs import Scratch, decode
from sharedds.errors import DecodeError

HEIGHT, WIDTH = 301, 277


def encoded(subsampling: str = "420") -> bytes:
    """Return noise, the hardest there is, as baseline JPEG."""
    channels = 1 if subsampling == "Gray" else 3
    data: bytes = simplejpeg.encode_jpeg(
        noise(HEIGHT, WIDTH, channels),
        quality=90,
        colorspace="GRAY" if channels == 1 else "RGB",
        colorsubsampling=subsampling,
    )
    return data


@pytest.mark.parametrize("factor", [1, 2, 4, 8])
@pytest.mark.parametrize("subsampling", ["444", "422", "420", "440", "411", "Gray"])
def test_the_first_rows_are_those_of_the_whole(subsampling: str, factor: int) -> None:
    """To the bit, also where colours are mixed from rows below."""
    data = encoded(subsampling)
    whole = decode(data, factor=factor)
    for rows in [*range(1, 50), 127, 128, 129, 200]:
        found = decode(data, factor=factor, rows=rows)
        count = -(-rows // factor)
        assert count <= len(found) < len(whole)
        assert np.array_equal(found[:count], whole[:count])


def test_rows_without_context_would_differ() -> None:
    """The reason why some more rows are decoded than are wanted."""
    data = bytearray(encoded())
    at = data.find(b"\xff\xc0") + 5
    data[at : at + 2] = (64).to_bytes(2, "big")
    short = simplejpeg.decode_jpeg(data, strict=False)
    assert not np.array_equal(short[63], decode(encoded())[63])


@pytest.mark.parametrize("rows", [HEIGHT, HEIGHT - 1, HEIGHT - 15])
def test_nearly_all_rows_are_decoded_as_all(rows: int) -> None:
    """Copying the file would cost more than it saves."""
    assert decode(encoded(), rows=rows).shape[0] == HEIGHT


def _progressive() -> bytes:
    return save(smooth(WIDTH, HEIGHT), "JPEG", progressive=True)


def _restarts() -> bytes:
    return save(smooth(WIDTH, HEIGHT), "JPEG", restart_marker_rows=1)


@pytest.mark.parametrize("make", [_progressive, _restarts])
def test_files_of_another_kind_are_decoded_whole(make: Any) -> None:
    """Several scans, or markers between the rows."""
    data = make()
    found = decode(data, rows=20)
    assert np.array_equal(found, decode(data))


def test_it_is_used_with_one_call_of_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library with another message would make this slow, not wrong; here it would be seen."""
    calls: list[tuple[int, ...]] = []
    original = simplejpeg.decode_jpeg

    def spy(data: Any, **options: Any) -> Any:
        calls.append(options["buffer"].shape)
        return original(data, **options)

    monkeypatch.setattr("sharedds.codecs.jpeg.simplejpeg.decode_jpeg", spy)
    decode(encoded(), rows=100)
    assert calls == [(104, WIDTH, 3)]


def test_a_message_that_is_not_known_leads_to_the_whole_picture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is taken that was not said to be in order."""
    original = simplejpeg.decode_jpeg

    def other(data: Any, **options: Any) -> Any:
        if data != encoded():
            raise ValueError("something else")
        return original(data, **options)

    monkeypatch.setattr("sharedds.codecs.jpeg.simplejpeg.decode_jpeg", other)
    assert np.array_equal(decode(encoded(), rows=100), decode(encoded()))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("rows", [10, 100, 250])
def test_a_truncated_file_is_refused_whatever_is_wanted(share: float, rows: int) -> None:
    """Also where all rows that are wanted are there."""
    data = encoded()
    with pytest.raises(DecodeError, match="truncated"):
        decode(data[: int(len(data) * share)], rows=rows)


@pytest.mark.parametrize("damage", [b"\xff\xd9", b"\xff\xd0"])
def test_a_complaint_about_rows_that_are_wanted_is_not_hidden(damage: bytes) -> None:
    """By the one about rows that are left over: only the first one counts."""
    data = encoded()
    head = data.find(b"\xff\xda") + 14
    for at in np.random.default_rng(0).integers(head, head + len(data) // 4, 40).tolist():
        bad = bytearray(data)
        bad[at : at + len(damage)] = damage  # a marker in the middle of the data
        with pytest.raises(DecodeError, match="premature end"):
            decode(bytes(bad), rows=150)


def test_most_damage_shows_at_the_end_only() -> None:
    """The reason why rows are left out of files alone that are known to be sound."""
    data = bytearray(encoded())
    at = data.find(b"\xff\xda") + 2000
    data[at : at + 8] = b"\xff\x00" * 4
    with pytest.raises(DecodeError, match="extraneous bytes"):
        decode(bytes(data))
    wrong = decode(bytes(data), rows=150)
    assert not np.array_equal(wrong[:150], decode(encoded())[:150])


@pytest.mark.parametrize("marker", [0xFE, 0xE5])
def test_segments_in_front_do_not_matter(marker: int) -> None:
    """The height is found behind comments and other segments."""
    data = with_segment(encoded(), marker, b"\xff\xc0\x00\x11" * 20)
    assert len(decode(data, rows=40)) < HEIGHT
    assert np.array_equal(decode(data, rows=40)[:40], decode(encoded())[:40])


def test_memory_is_lent_again() -> None:
    """The second picture lies where the first one was."""
    scratch = Scratch()
    first = decode(encoded(), scratch=scratch)
    address = first.ctypes.data
    assert decode(encoded(), rows=40, scratch=scratch).ctypes.data == address
    assert decode(encoded(), scratch=scratch).ctypes.data == address


def test_memory_grows_up_to_its_limit() -> None:
    """Larger arrays have their own."""
    scratch = Scratch(limit=1000)
    small, large = scratch.array((10, 10)), scratch.array((40, 30))
    assert large.nbytes == 1200
    assert not np.shares_memory(small, large)
    assert np.shares_memory(scratch.array((900,)), scratch.array((2, 3), np.uint16))


def test_a_picture_of_one_row_is_one() -> None:
    """The smallest there is, at every scale."""
    data = save(Image.new("RGB", (1, 1)), "JPEG")
    for factor in (1, 2, 4, 8):
        assert decode(data, factor=factor, rows=1).shape == (1, 1, 3)
