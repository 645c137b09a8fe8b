"""Values in chunks of MDS and LitData: bytes of one column to what a store takes."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image

from sharedds.doors.pickles import load_plain

__all__ = ["Packed", "array_with_dtype", "mds_column"]

_SCALARS = {
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "int": "int64",
}
_DTYPES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32",
    34: "float32", 64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
_PICTURES = ("jpeg", "png")
_MAX_AXES = 8
_MAX_PIXELS = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A column of chunks.

    Attributes:
        name: Of the column.
        kind: Of the field, as a schema names it; ``"keep"`` is a picture; ``"array"`` is one whose
            dtype every value says for itself; ``"bytes?"`` may turn out to hold pictures.
        size: Bytes of every value, None where each has its own.
        decode: Turns the bytes into a value; it raises ValueError for others.
        pickled: Whether values are pickles.
    """

    name: str
    kind: str
    size: int | None = None
    decode: Callable[[bytes], Any] = bytes
    pickled: bool = False


def mds_column(name: str, encoding: str, size: int | None) -> Packed | None:
    """Return a column of MDS; None for an encoding that is not known."""
    word, _, rest = encoding.partition(":")
    if word in _SCALARS and not rest:
        dtype = np.dtype(_SCALARS[word])
        return Packed(name=name, kind=_SCALARS[word], size=size, decode=scalar_of(dtype))
    if word in _PICTURES:
        return Packed(name=name, kind="keep", size=size)
    if word == "ndarray":
        return _mds_array(name, rest, size)
    simple: dict[str, tuple[str, Callable[[bytes], Any]]] = {
        "bytes": ("bytes?", bytes),
        "str": ("str", bytes.decode),
        "json": ("json", msgspec.json.decode),
        "str_int": ("int64", int),
        "str_float": ("float64", float),
        "str_decimal": ("str", bytes.decode),
        "pil": ("keep", png_of_pixels),
        "pkl": ("json", load_plain),
    }
    if encoding not in simple:
        return None
    kind, decode = simple[encoding]
    return Packed(name=name, kind=kind, size=size, decode=decode, pickled=encoding == "pkl")


def scalar_of(dtype: np.dtype[Any]) -> Callable[[bytes], Any]:
    """Return what reads one number of little-endian bytes."""
    little = dtype.newbyteorder("<")

    def read(data: bytes) -> Any:
        if len(data) != little.itemsize:
            raise ValueError(f"{len(data)} bytes for a {dtype}")
        return np.frombuffer(data, little)[0].item()

    return read


def _mds_array(name: str, rest: str, size: int | None) -> Packed | None:
    dtype, _, sides = rest.partition(":")
    if dtype and dtype not in _DTYPES.values():
        return None
    try:
        shape = tuple(int(side) for side in sides.split(",")) if sides else None
    except ValueError:
        return None
    if shape is not None and dtype:
        fixed = f"{dtype}[{','.join(map(str, shape))}]"
        return Packed(
            name=name,
            kind=fixed,
            size=size,
            decode=lambda data: _shaped(data, np.dtype(dtype), shape),
        )
    kind = f"array:{dtype}" if dtype else "array"
    return Packed(
        name=name, kind=kind, size=size, decode=lambda data: array_with_dtype(data, dtype, shape)
    )


def array_with_dtype(data: bytes, dtype: str, shape: tuple[int, ...] | None) -> npt.NDArray[Any]:
    """Return an array whose dtype or shape stands before its values.

    Raises:
        ValueError: The bytes are no such array.
    """
    at = 0
    if not dtype:
        dtype, at = _DTYPES.get(data[0] if data else 0, ""), 1
        if not dtype:
            raise ValueError("an array of a dtype that is not known")
    if shape is None:
        if len(data) <= at:
            raise ValueError("an array without a shape")
        axes, width = data[at] >> 2, 1 << (data[at] & 3)
        ends = at + 1 + axes * width
        if not 1 <= axes <= _MAX_AXES or ends > len(data):
            raise ValueError(f"an array of {axes} axes in {len(data)} bytes")
        sides = np.frombuffer(data[at + 1 : ends], f"<u{width}")
        shape, at = tuple(int(side) for side in sides), ends
    return _shaped(data[at:], np.dtype(dtype), shape)


def _shaped(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    little = dtype.newbyteorder("<")
    if math.prod(shape) * little.itemsize != len(data):
        raise ValueError(f"{len(data)} bytes for an array {shape} of {dtype}")
    return np.frombuffer(data, little).reshape(shape)


def png_of_pixels(data: bytes) -> bytes:
    """Return pixels as Pillow's ``tobytes`` gives them, with their size and mode, as PNG.

    Raises:
        ValueError: They are not as many as the size says.
    """
    if len(data) < 12:
        raise ValueError("no size before the pixels")
    width, height, letters = (int(n) for n in np.frombuffer(data[:12], "<u4"))
    if not 0 < width * height <= _MAX_PIXELS or letters > 8:
        raise ValueError(f"{width} x {height} pixels")
    mode = data[12 : 12 + letters].decode()
    pixels = data[12 + letters :]
    if len(pixels) > 16 * width * height or len(pixels) * 8 < width * height:
        raise ValueError(f"{len(pixels)} bytes of {width} x {height} pixels")
    file = io.BytesIO()
    try:
        Image.frombytes(mode, (width, height), pixels).save(file, "PNG")
    except (OSError, KeyError) as error:
        raise ValueError(f"pixels of the mode {mode!r}, which PNG has not") from error
    return file.getvalue()
