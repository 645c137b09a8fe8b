"""Proving a PNG without decoding it: the same verdict as decoding, in constant memory."""

from __future__ import annotations

import io
import random
import struct
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sharedds.codecs import check, decode
from sharedds.codecs.png import write_png16
from sharedds.errors import DecodeError


def _png(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


def _pictures() -> list[bytes]:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (23, 19, 3), dtype=np.uint8)
    colour = Image.fromarray(noise)
    return [
        _png(colour),
        _png(colour.convert("1")),
        _png(colour.convert("P")),
        _png(colour.convert("LA")),
        write_png16(rng.integers(0, 65536, (9, 14, 3), dtype=np.uint16)),
    ]


def _verdict(function: Any, data: bytes) -> bool:
    try:
        function(data)
    except DecodeError:
        return False
    return True


@pytest.mark.parametrize("data", _pictures())
def test_checking_and_decoding_agree_on_damaged_files(data: bytes) -> None:
    """Whatever is changed or cut: what passes the check decodes, and the other way round."""
    generator = random.Random(len(data))
    verdicts = set()
    for _ in range(300):
        damaged = bytearray(data)
        if generator.random() < 0.3:
            del damaged[generator.randrange(len(damaged)) :]
        else:
            damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
        passed = _verdict(check, bytes(damaged))
        verdicts.add(passed)
        assert passed == _verdict(decode, bytes(damaged))
    assert not verdicts or False in verdicts
    assert _verdict(check, data)


@pytest.mark.parametrize("interlace", [0, 1])
def test_a_filter_that_does_not_exist_is_damage(interlace: int) -> None:
    """Checksums may be right and a row still make no sense."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, interlace)
    # Bytes of the rows of 8 x 8 pixels, pass by pass; the last row of either kind has 9.
    total = 2 + 2 + 3 + 6 + 10 + 20 + 4 * 9 if interlace else 8 * 9
    for at in (0, total - 9):
        raw = bytearray(total)
        raw[at] = 7
        data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head)
        data += chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
        assert not _verdict(check, data)
        assert not _verdict(decode, data)


def test_a_large_picture_is_checked_in_little_memory() -> None:
    """Decoding 20 million pixels takes over 60 MB; proving them takes a few."""
    data = _png(Image.new("RGB", (5000, 4000), (9, 8, 7)))
    tracemalloc.start()
    check(data)
    proved = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    decode(data)
    decoded = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert decoded > 60_000_000
    assert proved < 8_000_000
