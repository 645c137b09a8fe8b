"""Pixels of DICOM files: whether they can be decoded, as what they are kept, and decoding them."""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.errors import DecodeError, SharedDSError, SourceError
from sharedds.volumes.dicom_frames import Picture
from sharedds.volumes.dicom_series import Stack
from sharedds.volumes.dicom_tags import pydicom, quiet
from sharedds.volumes.streams import mapped_voxels, scratch_file, written_to
from sharedds.volumes.voxels import Layout, MappedVoxels

__all__ = ["Values", "decoder_problem", "unpacked", "values_of"]

_Array = npt.NDArray[Any]

_JPEG = "pylibjpeg pylibjpeg-libjpeg"
_JPEG_2000 = "pylibjpeg pylibjpeg-openjpeg"
_PACKAGES = {
    "1.2.840.10008.1.2.4.50": _JPEG,
    "1.2.840.10008.1.2.4.51": _JPEG,
    "1.2.840.10008.1.2.4.57": _JPEG,
    "1.2.840.10008.1.2.4.70": _JPEG,
    "1.2.840.10008.1.2.4.80": f"pyjpegls, or {_JPEG}",
    "1.2.840.10008.1.2.4.81": f"pyjpegls, or {_JPEG}",
    "1.2.840.10008.1.2.4.90": _JPEG_2000,
    "1.2.840.10008.1.2.4.91": _JPEG_2000,
    "1.2.840.10008.1.2.4.201": _JPEG_2000,
    "1.2.840.10008.1.2.4.202": _JPEG_2000,
    "1.2.840.10008.1.2.4.203": _JPEG_2000,
}
_EXTENDED = "1.2.840.10008.1.2.4.51"
_RLE = "1.2.840.10008.1.2.5"
_FLOATS: dict[str, np.dtype[Any]] = {
    "FloatPixelData": np.dtype("<f4"),
    "DoubleFloatPixelData": np.dtype("<f8"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """As what the values of a stack are kept.

    Attributes:
        dtype: Little-endian.
        slope, intercept: A measured value is ``stored * slope + intercept``.
        applied: The factors differ between slices and were applied: kept are measured values.
        mirror: Stored values are turned round, so that high ones are bright: this less the value in
            the file is kept. None where they are not.
        padding: The kept value that stands for "no measurement", where there is one for all.
        problem: Why they cannot be kept.
    """

    dtype: np.dtype[Any]
    slope: float = 1.0
    intercept: float = 0.0
    applied: bool = False
    mirror: int | None = None
    padding: int | None = None
    problem: str | None = None


def decoder_problem(picture: Picture) -> str | None:
    """Return why the compression of a file cannot be decoded here; None if it can, or has none."""
    if not picture.encapsulated:
        return None
    package = pydicom()
    if not picture.syntax:
        return "its pixels are compressed and nothing says how (no transfer syntax)"
    with quiet():
        uid = package.uid.UID(picture.syntax)
    called = uid.name if uid.name != picture.syntax else "an unknown transfer syntax"
    from pydicom.pixels.decoders.base import get_decoder  # noqa: PLC0415 - an extra

    try:
        with quiet():
            plugins = set(get_decoder(uid).available_plugins)
    except NotImplementedError:
        return f"its pixels are compressed as {called} ({picture.syntax}), which cannot be read"
    if picture.syntax == _EXTENDED and picture.bits_stored > 8:
        plugins.discard("pillow")  # it says that it can, and cannot decode 12 bits
    if plugins:
        return None
    packages = _PACKAGES.get(picture.syntax, "pylibjpeg")
    return (
        f"no decoder for its pixels, compressed as {called} ({picture.syntax}): "
        f"pip install {packages}, or all of them with pip install 'sharedds[medical]'"
    )


def values_of(stack: Stack, *, invert: bool) -> Values:
    """Choose as what the values of a stack are kept.

    Integers stay integers of their size, with one slope and one intercept for all. Where slices
    have factors of their own these are applied, and float32 is kept.

    Args:
        stack: One without problems.
        invert: MONOCHROME1, where low values are bright, is turned round.
    """
    shots = stack.present
    dtypes = {_dtype_of(shot.picture) for shot in shots}
    dtype: np.dtype[Any] = np.result_type(*dtypes)
    inverted = invert and shots[0].picture.photometric == "MONOCHROME1"
    if dtype.kind == "f" and shots[0].picture.keyword == "PixelData":
        return Values(dtype=dtype, problem="signed and unsigned 64-bit values cannot be mixed")
    if dtype.kind == "f" and inverted:
        return Values(dtype=dtype, problem="floating point numbers cannot be turned round")
    # Within the bits that are stored, so that 4095 becomes 0 where there are 12 of them.
    mirror = sum(_range([shot.picture for shot in shots])) if inverted else None
    paddings = {shot.picture.padding for shot in shots}
    padding = paddings.pop() if len(paddings) == 1 and dtype.kind in "iu" else None
    if padding is not None and mirror is not None:
        padding = mirror - padding
    factors = {(shot.frame.slope, shot.frame.intercept) for shot in shots}
    if len(factors) == 1:
        slope, intercept = factors.pop()
        fits = padding is None or np.iinfo(dtype).min <= padding <= np.iinfo(dtype).max
        return Values(
            dtype=dtype,
            slope=slope,
            intercept=intercept,
            mirror=mirror,
            padding=padding if fits else None,
        )
    wide = dtype == np.float64
    return Values(dtype=np.dtype(np.float64 if wide else np.float32), applied=True, mirror=mirror)


def _range(pictures: list[Picture]) -> tuple[int, int]:
    """Return the lowest and the highest value that the stored bits can hold."""
    bits = max(picture.bits_stored for picture in pictures)
    signed = [picture.signed for picture in pictures]
    return (
        -(1 << (bits - 1)) if any(signed) else 0,
        (1 << (bits - 1 if all(signed) else bits)) - 1,
    )


def _dtype_of(picture: Picture) -> np.dtype[Any]:
    if picture.keyword in _FLOATS:
        return _FLOATS[picture.keyword]
    size = max(1, picture.bits_allocated // 8)
    return np.dtype(f"<{'i' if picture.signed else 'u'}{size}")


@contextmanager
def unpacked(stack: Stack, values: Values, scratch: Path) -> Iterator[MappedVoxels]:
    """Decode all slices of a stack, one after the other, into a scratch file, and map that.

    Args:
        stack: One without problems.
        values: As what they are kept.
        scratch: Folder of that file; it is removed at the end.

    Returns:
        (i, j, k), or (steps, i, j, k) where the steps are channels or moments.

    Raises:
        DecodeError: A file is cut short, damaged, or no longer what its header said.
        SourceError: A file cannot be read.
        StorageFullError: There is no room in the folder.
    """
    first = stack.present[0].picture
    channels, itemsize = first.samples, values.dtype.itemsize
    line, plane = itemsize * first.columns, itemsize * first.columns * first.rows
    shape: tuple[int, ...] = (first.columns, first.rows, len(stack.shots[0]))
    strides: tuple[int, ...] = (itemsize, line, plane)
    if stack.timed or channels > 1:
        shape = (len(stack.shots) * channels, *shape)
        strides = (plane * shape[-1], *strides)
    layout = Layout(offset=0, dtype=values.dtype, shape=shape, strides=strides)
    with scratch_file(scratch) as path:
        with path.open("r+b") as file, written_to(path, f"{layout.nbytes:,} bytes of slices"):
            for place, part in _slices(stack, values):
                file.seek(place * plane)
                file.write(np.ascontiguousarray(part).data)
        with mapped_voxels(path, layout) as voxels:
            yield voxels


def _slices(stack: Stack, values: Values) -> Iterator[tuple[int, _Array]]:
    """Yield every slice as it is kept, and its place among those of all steps."""
    first = stack.present[0].picture
    channels, slices = first.samples, len(stack.shots[0])
    wanted: dict[Path, tuple[Picture, dict[int, list[tuple[int, int]]]]] = {}
    for step, shots in enumerate(stack.shots):
        for k, shot in enumerate(shots):
            if shot is not None:
                _, places = wanted.setdefault(shot.picture.path, (shot.picture, {}))
                places.setdefault(shot.frame.number, []).append((step, k))
    for picture, places in wanted.values():
        for number, pixels in _frames(picture, set(places)):
            kept = _kept(pixels, picture, number, values)
            for step, k in places[number]:
                for channel in range(channels):
                    part = kept if channels == 1 else kept[..., channel]
                    yield (step * channels + channel) * slices + k, part
    empty = np.full((first.rows, first.columns), values.padding or 0, values.dtype)
    for step in range(len(stack.shots) * channels):
        for k in stack.empty:
            yield step * slices + k, empty


def _kept(pixels: _Array, picture: Picture, number: int, values: Values) -> _Array:
    """Return a frame as it is kept: turned round, scaled, in the dtype of the volume."""
    if values.mirror is not None:
        # Modulo the width of the dtype, so that nothing in between can be too large.
        unsigned = pixels.astype(values.dtype if values.dtype.kind in "iu" else np.int64)
        pixels = np.asarray(values.mirror).astype(unsigned.dtype) - unsigned
    if values.applied:
        frame = picture.frames[number]
        pixels = pixels * np.float64(frame.slope) + np.float64(frame.intercept)
    return pixels.astype(values.dtype, copy=False)


def _frames(picture: Picture, wanted: set[int]) -> Iterator[tuple[int, _Array]]:
    """Yield (number, pixels) of the wanted frames of a file, in the order of the file."""
    plain = picture.samples == 1 and picture.bits_allocated >= 8 and picture.length is not None
    if picture.bits_allocated == 8 and not picture.little_endian:
        plain = False  # bytes may stand swapped in pairs there
    try:
        yield from (_plain_frames if plain else _decoded_frames)(picture, wanted)
    except SharedDSError:
        raise
    except OSError as error:
        raise SourceError(
            f"{picture.name} cannot be read: {error.strerror or type(error).__name__}",
            path=str(picture.path),
        ) from error


def _plain_frames(picture: Picture, wanted: set[int]) -> Iterator[tuple[int, _Array]]:
    stored = _dtype_of(picture).newbyteorder("<" if picture.little_endian else ">")
    with picture.path.open("rb") as file:
        for number in sorted(wanted):
            file.seek((picture.offset or 0) + number * picture.frame_bytes)
            data = file.read(picture.frame_bytes)
            if len(data) < picture.frame_bytes:
                raise DecodeError(
                    f"{picture.name} is cut short: frame {number} has {picture.frame_bytes} bytes, "
                    f"{len(data)} are there",
                    path=str(picture.path),
                )
            pixels = np.frombuffer(data, stored).reshape(picture.rows, picture.columns)
            native = pixels.astype(stored.newbyteorder("="))
            yield number, native if native.dtype.kind == "f" else _masked(native, picture)


def _masked(pixels: _Array, picture: Picture) -> _Array:
    """Cut away what does not belong to the value: overlays and rubbish in the bits beside it."""
    unused = picture.bits_allocated - picture.bits_stored
    if unused:
        pixels <<= picture.bits_allocated - 1 - picture.high_bit
        pixels >>= unused  # carries the sign along where there is one
    return pixels


def _decoded_frames(picture: Picture, wanted: set[int]) -> Iterator[tuple[int, _Array]]:
    if picture.encapsulated and picture.syntax in _PACKAGES:
        _expect_ends(picture)
    size = (picture.rows, picture.columns)
    expected = size if picture.samples == 1 else (*size, picture.samples)
    with closing(_every_frame(picture)) as frames:
        for number in range(len(picture.frames)):
            pixels = _next(frames, picture)
            if pixels is None:
                raise DecodeError(
                    f"{picture.name} is cut short: it has {len(picture.frames)} frames, "
                    f"{number} are there",
                    path=str(picture.path),
                )
            if pixels.shape != expected:
                raise DecodeError(
                    f"{picture.name}: frame {number} decodes to {pixels.shape} pixels, its "
                    f"header says {expected}",
                    path=str(picture.path),
                )
            if number in wanted:
                yield number, pixels


def _every_frame(picture: Picture) -> Generator[_Array, None, None]:
    package = pydicom()
    from pydicom.pixels.utils import iter_pixels  # noqa: PLC0415 - an extra

    if picture.offset is None:  # a deflated file is unpacked as a whole before it is read
        yield from iter_pixels(package.dcmread(picture.path))
    else:
        yield from iter_pixels(picture.path)


def _next(frames: Iterator[_Array], picture: Picture) -> _Array | None:
    try:
        with quiet():
            return next(frames, None)
    except OSError:
        raise
    except Exception as error:  # any: decoders raise what they like
        raise DecodeError(
            f"the pixels of {picture.name} cannot be decoded: {type(error).__name__}: "
            f"{' '.join(str(error).split())[:300]}",
            path=str(picture.path),
        ) from error


def _expect_ends(picture: Picture) -> None:
    """Fail if a frame breaks off: decoders would fill the rest of it with anything.

    JPEG of all kinds ends with a marker; only bytes of padding may follow it.
    """
    from pydicom.encaps import generate_frames  # noqa: PLC0415 - an extra

    with picture.path.open("rb") as file:
        file.seek(picture.offset or 0)
        frames = generate_frames(file, number_of_frames=len(picture.frames))
        try:
            with quiet():
                broken = [n for n, data in enumerate(frames) if not _ends(data)]
        except (ValueError, struct.error) as error:
            raise DecodeError(
                f"{picture.name}: its compressed pixels are damaged: {str(error)[:300]}",
                path=str(picture.path),
            ) from error
    if broken:
        raise DecodeError(
            f"{picture.name} is cut short: frame {broken[0]} breaks off before the mark of its end",
            path=str(picture.path),
        )


def _ends(data: bytes) -> bool:
    return data.rstrip(b"\0\xff").endswith(b"\xff\xd9")
