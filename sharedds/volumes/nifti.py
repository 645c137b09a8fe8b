"""NIfTI-1 and NIfTI-2 of either byte order: one file, compressed or not, or a header and a picture.

The header is parsed with nibabel and not repaired: what is odd about it is told or refused. The
voxels are read here, so that a volume needs no more memory than the regions that are asked for.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from sharedds.errors import DecodeError, MissingExtraError, SourceError
from sharedds.volumes.nifti_fields import axes_of, dtype_of, placed, scaling_of
from sharedds.volumes.source import VolumeData, VolumeHeader
from sharedds.volumes.streams import (
    MOST_INFLATED,
    gunzipped,
    head_of,
    is_gzip,
    mapped_voxels,
    unpacked_voxels,
)
from sharedds.volumes.voxels import Layout, file_layout

__all__ = ["NiftiFile", "recognise_nifti"]

_HEAD = 544  # of NIfTI-2 with the word that says whether extensions follow; NIfTI-1 has 352
_MAGIC = {
    b"n+1\0": (1, False),
    b"ni1\0": (1, True),
    b"n+2\0\r\n\x1a\n": (2, False),
    b"ni2\0\r\n\x1a\n": (2, True),
}


@dataclass(frozen=True, slots=True)
class NiftiFile:
    """A NIfTI volume whose header is read and checked.

    Attributes:
        header: What is known of it.
        layout: Where its voxels lie in the content of ``data_path``.
        data_path: The file with the voxels: the same one, or the ``.img`` beside a ``.hdr``.
        companions: Further files that belong to this volume.
    """

    header: VolumeHeader
    layout: Layout
    data_path: Path
    companions: tuple[Path, ...] = ()

    def open(self, scratch: Path) -> AbstractContextManager[VolumeData]:
        """Open the voxels; a compressed file is unpacked once into ``scratch``.

        Raises:
            DecodeError: It is cut short or damaged.
            SourceError: It cannot be read.
            StorageFullError: There is no room in ``scratch``.
        """
        if is_gzip(head_of(self.data_path, 3)):
            pieces = gunzipped(self.data_path)
            return unpacked_voxels(self.data_path, pieces, self.layout, scratch)
        return mapped_voxels(self.data_path, self.layout)


def recognise_nifti(
    path: Path, head: bytes, *, prefer: Literal["sform", "qform"] = "sform"
) -> NiftiFile | None:
    """Return the volume that a file begins, or None if it is no NIfTI file.

    The spatial axes are always the first three of the file. Further axes of length 1 are dropped.
    One longer axis is time where a time step is given (``pixdim[4]`` above 0) in a unit of time,
    or in no unit but other than 1, which is what writers leave there; it is channels otherwise,
    and always for intents of vectors and matrices. RGB voxels are three or four channels.

    Args:
        path: The file.
        head: Its first bytes, 4096 of them; compressed if the file is.
        prefer: Which placement counts where the header has two that differ.

    Raises:
        DecodeError: It is damaged, cut short, or of a kind that holds no volume.
        SourceError: It, or the picture beside the header, cannot be read.
        MissingExtraError: nibabel is not installed.
    """
    content = _gunzipped_head(path) if is_gzip(head) else head
    kind = _kind(content)
    if kind is None:
        return None
    version, pair, order = kind
    data_path = _picture_of(path) if pair else path
    fields = _parsed(path, content, version, order)
    return _described(path, data_path, fields, version, pair=pair, prefer=prefer)


def _gunzipped_head(path: Path) -> bytes:
    """Return enough for a header, or nothing where other files are damaged before that.

    Pieces are put together: the first member may hold a few bytes only.
    """
    content = b""
    try:
        for piece in gunzipped(path):
            content += piece
            if len(content) >= _HEAD:
                break
    except DecodeError:
        if path.name.lower().endswith((".nii.gz", ".hdr.gz")):
            raise
    return content[:_HEAD]


def _kind(head: bytes) -> tuple[int, bool, Literal["<", ">"]] | None:
    """Return version, whether the voxels are in a file of their own, and byte order."""
    for size, at, length in ((348, 344, 4), (540, 4, 8)):
        known = _MAGIC.get(head[at : at + length])
        if known is not None:
            if head[:4] == size.to_bytes(4, "little"):
                return (*known, "<")
            if head[:4] == size.to_bytes(4, "big"):
                return (*known, ">")
    return None


def _picture_of(path: Path) -> Path:
    """Return the file with the voxels of a header file."""
    name = path.name
    packed = name.lower().endswith(".gz")
    stem = Path(name[: -len(".gz")] if packed else name).stem
    upper = Path(name).suffix.isupper()
    wanted = [stem + (".IMG" if upper else ".img"), stem + ".img.gz", stem + ".img", stem + ".IMG"]
    for other in wanted[1:2] + wanted if packed else wanted:
        if path.with_name(other).is_file():
            return path.with_name(other)
    raise SourceError(
        f"{path}: its voxels are in {path.with_name(wanted[0])}, which is not there",
        path=str(path),
    )


def _parsed(path: Path, content: bytes, version: int, order: str) -> Any:
    """Return the fields as nibabel's header, unrepaired."""
    size = 348 if version == 1 else 540
    if len(content) < size:
        raise DecodeError(
            f"{path}: is cut short: a header of {size} bytes is expected, {len(content)} found",
            path=str(path),
        )
    try:
        from nibabel import Nifti1Header, Nifti2Header  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError(
            f"{path}: NIfTI files need nibabel: pip install 'sharedds[medical]'", path=str(path)
        ) from error
    kind: Any = Nifti1Header if version == 1 else Nifti2Header
    return kind(content[:size], endianness=order, check=False)


def _described(
    path: Path,
    data_path: Path,
    fields: Any,
    version: int,
    *,
    pair: bool,
    prefer: Literal["sform", "qform"],
) -> NiftiFile:
    try:
        dtype, samples = dtype_of(fields)
        axes = axes_of(fields, samples)
        placement = placed(fields, axes.shape, prefer=prefer)
    except DecodeError as error:
        raise DecodeError(f"{path}: {error}", path=str(path)) from error
    slope, intercept, scaling_remarks = scaling_of(fields)
    offset, offset_remarks = _offset(path, fields, version, pair=pair)
    layout = file_layout(
        dtype, axes.shape, axes.steps, offset=offset, samples=samples, plain=axes.axis == "none"
    )
    packed = is_gzip(head_of(data_path, 3))
    size = _require_size(data_path, layout, packed=packed)
    attrs = {
        "file_dtype": dtype.newbyteorder("=").name,
        "byte_order": "big" if fields.endianness == ">" else "little",
        **axes.attrs,
        **placement.attrs,
    }
    other = data_path != path
    header = VolumeHeader(
        path=str(path),
        format=f"NIfTI-{version}",
        shape=axes.shape,
        dtype=layout.native,
        affine=placement.affine,
        steps=axes.steps,
        axis=axes.axis,
        step_seconds=axes.step_seconds,
        slope=slope,
        intercept=intercept,
        attrs=attrs,
        remarks=(*offset_remarks, *axes.remarks, *scaling_remarks, *placement.remarks),
        nbytes=size + (path.stat().st_size if other else 0),
    )
    if samples > 1:
        header = replace(header, slope=1.0, intercept=0.0)
    return NiftiFile(header, layout, data_path, (data_path,) if other else ())


def _offset(path: Path, fields: Any, version: int, *, pair: bool) -> tuple[int, tuple[str, ...]]:
    """Return where the voxels begin; 0 in a single file means right behind the header."""
    least = 0 if pair else (352 if version == 1 else 544)
    value = float(fields["vox_offset"])
    if not pair and value == 0:
        return least, (f"vox_offset is 0; the voxels are taken from byte {least} on",)
    if not math.isfinite(value) or value < least or value >= 2**62:
        raise DecodeError(
            f"{path}: vox_offset is {value:g}; {least} is the least for this kind of file, so the "
            "header is damaged",
            path=str(path),
        )
    return int(value), ()


def _require_size(path: Path, layout: Layout, *, packed: bool) -> int:
    """Return the size of a file after a look at whether the voxels can be in it at all."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})", path=str(path)) from error
    if not packed and size < layout.end:
        raise DecodeError(
            f"{path}: is cut short: {layout.end} bytes are expected from its header, {size} "
            "found; copy it anew",
            path=str(path),
        )
    if packed and size * MOST_INFLATED < layout.end:
        raise DecodeError(
            f"{path}: cannot hold what its header promises: {layout.end} bytes are expected, "
            f"while {size} compressed bytes unpack to {size * MOST_INFLATED} at most",
            path=str(path),
        )
    return size
