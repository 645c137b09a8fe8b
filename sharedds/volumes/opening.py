"""Which kind of volume a file is, by its content."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from sharedds.errors import DecodeError, OptionError
from sharedds.volumes.itk import recognise_itk
from sharedds.volumes.nifti import recognise_nifti
from sharedds.volumes.npy import recognise_npy, recognise_npz
from sharedds.volumes.source import VolumeFile
from sharedds.volumes.streams import head_of, starts_like_dicom

__all__ = ["companions", "is_dicom", "recognise"]

_HEAD = 4096
_NAMED = {
    ".nii": "NIfTI",
    ".nii.gz": "NIfTI",
    ".nrrd": "NRRD",
    ".nhdr": "NRRD",
    ".mha": "MetaImage",
    ".mhd": "MetaImage",
    ".npy": "NumPy",
    ".npz": "NumPy",
}


def recognise(path: Path, *, prefer: Literal["sform", "qform"] = "sform") -> VolumeFile | None:
    """Return the volume that a file holds or begins, or None if it is no volume file.

    NIfTI-1 and -2, NRRD, MetaImage, ``.npy`` and ``.npz`` are told by their first bytes; the name
    does not count, except that a file with the name of a volume and other content is refused. No
    voxel is read. DICOM files are no volumes by themselves: see :func:`is_dicom`.

    Args:
        path: One file.
        prefer: Which placement of a NIfTI header counts where sform and qform differ.

    Raises:
        DecodeError: It is damaged, cut short, or holds something that is no volume; the text names
            the file, and both sizes where they differ.
        SourceError: It, or another file that it names, cannot be read.
        MissingExtraError: What reads this format is not installed.
        OptionError: ``prefer`` is something else.
    """
    if prefer not in ("sform", "qform"):
        raise OptionError(f"prefer={prefer!r} is neither 'sform' nor 'qform'")
    head = head_of(path, _HEAD)
    found = (
        recognise_nifti(path, head, prefer=prefer)
        or recognise_npy(path, head)
        or recognise_npz(path, head)
        or recognise_itk(path, head)
    )
    if found is not None or starts_like_dicom(head):
        return found
    name = path.name.lower()
    for ending, kind in _NAMED.items():
        if name.endswith(ending):
            what = "begins with something else" if head else "is empty"
            raise DecodeError(f"{path}: is named as a {kind} file, but {what}", path=str(path))
    return None


def companions(volume: VolumeFile) -> tuple[Path, ...]:
    """Return the other files that a volume is made of, such as the ``.img`` of a ``.hdr``."""
    found: tuple[Path, ...] = getattr(volume, "companions", ())
    return found


def is_dicom(path: Path) -> bool:
    """Return whether a file is DICOM by its first bytes.

    That is the mark behind the 128 bytes of the preamble, or a plausible first element: files
    without a preamble begin with group 2 or 8.

    Raises:
        SourceError: It cannot be read.
    """
    return starts_like_dicom(head_of(path, 132))
