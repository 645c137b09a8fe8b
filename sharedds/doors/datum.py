"""Caffe's Datum: a picture and a number as a protocol buffer, of which seven fields are known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sharedds.codecs import encode_image

__all__ = ["Datum", "read_datum"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _FLOATS, _ENCODED = range(1, 8)
_MAX_SIDE = 1 << 20


@dataclass(slots=True)
class Datum:
    """What one holds; pixels are (channel, height, width), blue first where there are three."""

    channels: int = 0
    height: int = 0
    width: int = 0
    data: bytes = b""
    label: int = 0
    encoded: bool = False

    def picture(self) -> bytes:
        """Return the bytes of a picture: as they are, or pixels as PNG, red first.

        Raises:
            ValueError: The pixels are not as many as the size says.
        """
        if self.encoded or not self.channels:
            return self.data
        shape = (self.channels, self.height, self.width)
        if self.channels not in (1, 3) or not all(0 < n <= _MAX_SIDE for n in shape):
            raise ValueError(f"pixels of the shape {shape}")
        if self.channels * self.height * self.width != len(self.data):
            raise ValueError(f"{len(self.data):,} bytes of pixels of the shape {shape}")
        pixels = np.frombuffer(self.data, np.uint8).reshape(shape)[::-1].transpose(1, 2, 0)
        return encode_image(np.ascontiguousarray(pixels), "png")


def read_datum(data: bytes | memoryview) -> Datum:
    """Return a Datum.

    Raises:
        ValueError: The bytes are none.
    """
    found, at = Datum(), 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            _set(found, number, value)
        elif wire == _BYTES:
            size, at = _varint(data, at)
            if size > len(data) - at:
                raise ValueError("a field that is longer than its message")
            if number == _DATA:
                found.data = bytes(data[at : at + size])
            elif number == _FLOATS:
                raise ValueError("pixels as floats, which no picture has")
            at += size
        elif wire in (_FIXED32, _FIXED64) and number != _FLOATS:
            at += 4 if wire == _FIXED32 else 8
        else:
            raise ValueError("no Datum")
    if not found.data:
        raise ValueError("a Datum without data")
    return found


def _set(found: Datum, number: int, value: int) -> None:
    if number == _LABEL:
        found.label = value - (1 << 64) if value >> 63 else value
    elif number == _ENCODED:
        found.encoded = bool(value)
    elif number == _CHANNELS:
        found.channels = value
    elif number == _HEIGHT:
        found.height = value
    elif number == _WIDTH:
        found.width = value
    else:
        raise ValueError(f"a field {number}, which a Datum has not")


def _varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value & ((1 << 64) - 1), at
    raise ValueError("a number without an end")
