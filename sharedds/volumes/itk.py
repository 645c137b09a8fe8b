"""NRRD and MetaImage, through SimpleITK.

Their millimetres run to the left and back of the patient (LPS) and are turned into RAS+. Indices
stay in the order of the file: i is the fastest. Vectors are channels. Voxels that are in one file,
as they are or compressed with gzip or zlib, are read here by regions, so that no volume has to fit
in memory. Others are read by SimpleITK, as a whole; sizes are checked before, from the headers.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sharedds.errors import DecodeError, MissingExtraError, SourceError
from sharedds.handles import ForkGate
from sharedds.volumes.geometry import checked_affine
from sharedds.volumes.itk_headers import TextHeader, read_text_header, require_data
from sharedds.volumes.source import Affine, VolumeData, VolumeHeader
from sharedds.volumes.streams import gunzipped, mapped_voxels, unpacked_voxels
from sharedds.volumes.voxels import HeldVoxels, Layout, file_layout

__all__ = ["ItkFile", "recognise_itk"]

_DTYPES = {
    "8-bit unsigned integer": "u1",
    "8-bit signed integer": "i1",
    "16-bit unsigned integer": "u2",
    "16-bit signed integer": "i2",
    "32-bit unsigned integer": "u4",
    "32-bit signed integer": "i4",
    "64-bit unsigned integer": "u8",
    "64-bit signed integer": "i8",
    "32-bit float": "f4",
    "64-bit float": "f8",
}
_TO_RAS = np.diag((-1.0, -1.0, 1.0))
_quiet = ForkGate()


@dataclass(frozen=True, slots=True)
class ItkFile:
    """An NRRD or MetaImage volume whose header is read and checked.

    Attributes:
        header: What is known of it.
        text: Its header as text.
        layout: Where its voxels lie in the content of the one file with them; None where only
            SimpleITK reads them.
        companions: The files with the voxels, where the header is a file of its own.
    """

    header: VolumeHeader
    text: TextHeader
    layout: Layout | None = None
    companions: tuple[Path, ...] = ()

    def open(self, scratch: Path) -> AbstractContextManager[VolumeData]:
        """Open the voxels; compressed ones are unpacked once into ``scratch``.

        Raises:
            DecodeError: It is cut short or damaged.
            SourceError: It cannot be read.
            StorageFullError: There is no room in ``scratch``.
        """
        if self.layout is None:
            return self._whole()
        data = self.text.data[0]
        if self.text.packing == "raw":
            return mapped_voxels(data, self.layout)
        pieces = gunzipped(data, self.text.offset)
        return unpacked_voxels(data, pieces, self.layout, scratch)

    @contextmanager
    def _whole(self) -> Iterator[VolumeData]:
        path = Path(self.header.path)
        require_data(path, self.text, _nbytes(self.header))
        with _quietly():
            try:
                image = _reader(path, self.text.format).Execute()
            except RuntimeError as error:
                raise _damaged(path, error) from None
        voxels = HeldVoxels(_as_read(image, self.header), image)
        if voxels.shape != self.header.full_shape:
            raise DecodeError(
                f"{path}: has voxels of shape {voxels.shape}, {self.header.full_shape} were in its "
                "header; it was changed meanwhile",
                path=str(path),
            )
        try:
            yield voxels
        finally:
            voxels.close()


def recognise_itk(path: Path, head: bytes) -> ItkFile | None:
    """Return the volume of an NRRD or MetaImage file, or None if it is neither.

    A 2-D picture is one slice. A fourth axis is moments if an NRRD header calls it so, channels
    otherwise. Without a declared space (NRRD) or any placement (MetaImage) the affine is None, and
    ``attrs["spacing"]`` has what is said of distances.

    Args:
        path: The file.
        head: Its first bytes.

    Raises:
        DecodeError: It is damaged, cut short, or its voxels are not numbers.
        SourceError: It, or a file with its voxels, cannot be read; the text names that file. Or
            its name is not UTF-8.
        MissingExtraError: SimpleITK is not installed.
    """
    text = read_text_header(path, head)
    if text is None:
        return None
    reader = _reader(path, text.format)
    with _quietly():
        try:
            reader.ReadImageInformation()
        except RuntimeError as error:
            raise _damaged(path, error) from None
    dtype, components = _values(path, reader)
    sizes = [int(size) for size in reader.GetSize()]
    if not 2 <= len(sizes) <= 4 or 0 in sizes:
        raise DecodeError(
            f"{path}: has axes of {sizes}; 2, 3 or 4 axes are read, and none may be empty",
            path=str(path),
        )
    more = sizes[3] if len(sizes) == 4 else 1
    if more > 1 and components > 1:
        raise DecodeError(
            f"{path}: has a fourth axis of {more} and {components} components; one of them is "
            "read: split the file",
            path=str(path),
        )
    steps = max(more, components)
    axis: Literal["none", "channel", "time"] = "none"
    if steps > 1:
        axis = "time" if text.moments and more > 1 else "channel"
    affine, attrs, remarks = _placed(path, reader, text)
    shape = (sizes[0], sizes[1], sizes[2] if len(sizes) > 2 else 1)
    header = VolumeHeader(
        path=str(path),
        format=text.format,
        shape=shape,
        dtype=dtype,
        affine=affine,
        steps=steps,
        axis=axis,
        attrs={"file_dtype": dtype.name, **attrs},
        remarks=remarks,
    )
    others = tuple(other for other in text.data if other != path)
    nbytes = require_data(path, text, _nbytes(header))
    layout = None
    if text.packing != "other" and len(text.data) == 1 and (components == 1 or text.interleaved):
        layout = file_layout(
            dtype.newbyteorder(text.order),
            shape,
            steps,
            offset=text.offset if text.packing == "raw" else 0,
            samples=components,
            plain=axis == "none",
        )
    return ItkFile(replace(header, nbytes=nbytes), text, layout, others)


def _nbytes(header: VolumeHeader) -> int:
    size = header.dtype.itemsize
    for length in header.full_shape:
        size *= length
    return size


def _reader(path: Path, form: str) -> Any:
    try:
        sitk = importlib.import_module("SimpleITK")
    except ImportError as error:
        raise MissingExtraError(
            f"{path}: {form} files need SimpleITK: pip install 'sharedds[medical]'",
            path=str(path),
        ) from error
    try:
        str(path).encode()
    except UnicodeEncodeError as error:  # it would end the process
        raise SourceError(
            f"{path}: SimpleITK takes only names in UTF-8; rename it or its folder", path=str(path)
        ) from error
    reader: Any = sitk.ImageFileReader()
    reader.SetImageIO("NrrdImageIO" if form == "NRRD" else "MetaImageIO")
    reader.SetFileName(str(path))
    reader.SetNumberOfThreads(1)
    return reader


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep warnings of ITK off the terminal; what matters of them comes as an error.

    One thread at a time; a fork waits for it.
    """
    process: Any = importlib.import_module("SimpleITK").ProcessObject
    with _quiet:
        before = process.GetGlobalWarningDisplay()
        process.SetGlobalWarningDisplay(False)
        try:
            yield
        finally:
            process.SetGlobalWarningDisplay(before)


def _values(path: Path, reader: Any) -> tuple[np.dtype[Any], int]:
    sitk: Any = importlib.import_module("SimpleITK")
    name = str(sitk.GetPixelIDValueAsString(reader.GetPixelID()))
    known = _DTYPES.get(name.removeprefix("vector of "))
    if known is None:
        raise DecodeError(
            f"{path}: its voxels are {name}, which is not read; convert them to an integer type or "
            "float32",
            path=str(path),
        )
    return np.dtype(known), int(reader.GetNumberOfComponents())


def _placed(
    path: Path, reader: Any, text: TextHeader
) -> tuple[Affine | None, dict[str, Any], tuple[str, ...]]:
    spacing = [float(size) for size in reader.GetSpacing()]
    dimension = len(spacing)
    if not text.placed or dimension < 3:
        why = "it has two axes only" if dimension < 3 else text.unplaced
        attrs = {"spacing": spacing[:3]} if dimension >= 3 and text.spaced else {}
        return None, attrs, (f"where it lies is unknown: {why}",)
    turn = np.array(reader.GetDirection(), np.float64).reshape(dimension, dimension)[:3, :3]
    matrix = np.eye(4)
    matrix[:3, :3] = _TO_RAS @ turn * spacing[:3]
    matrix[:3, 3] = _TO_RAS @ np.array(reader.GetOrigin(), np.float64)[:3]
    # Zeros that were turned are written as -0.0 otherwise.
    try:
        affine = checked_affine(matrix + 0.0, name=f"{path}: its placement")
    except DecodeError as error:
        raise DecodeError(str(error), path=str(path)) from None
    return affine, {}, ()


def _as_read(image: Any, header: VolumeHeader) -> Any:
    """Return a view of the voxels with the axes of the header."""
    sitk: Any = importlib.import_module("SimpleITK")
    array: Any = sitk.GetArrayViewFromImage(image)
    dimension = image.GetDimension()
    if array.ndim > dimension:
        array = np.moveaxis(array, -1, 0)  # components
        leading = 1
    else:
        leading = dimension - 3 if dimension > 3 else 0
    order = [*range(leading), *range(array.ndim - 1, leading - 1, -1)]
    array = array.transpose(order)
    if array.ndim - leading == 2:
        array = array[..., np.newaxis]
    return array.reshape(header.full_shape) if array.size == _count(header) else array


def _count(header: VolumeHeader) -> int:
    return _nbytes(header) // header.dtype.itemsize


def _damaged(path: Path, error: RuntimeError) -> DecodeError:
    """Say what ITK says, without its places in C++ and its memory addresses."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [re.sub(r"^\[nrrd\]\s*", "", line) for line in lines if line.startswith("[nrrd]")]
    if not told:
        told = [
            re.sub(r"^(Reason|(itk::|sitk::|ITK )?ERROR):\s*|\w+\(0x[0-9a-f]+\):\s*", "", line)
            for line in lines[1:]
        ]
    text = told[-1] if told else "no reason is given"
    return DecodeError(f"{path}: cannot be decoded ({text})", path=str(path))
