"""Looks through a folder for volumes: by content, never by the names of files alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sharedds.errors import DecodeError, MissingExtraError, SharedDSError
from sharedds.folder.names import IMAGE_EXTENSIONS, extension
from sharedds.handles import absolute_path
from sharedds.ingest.listing import Listing, files_of, names_of, reason_of
from sharedds.ingest.volumes.cases import Entry, stem_of
from sharedds.ingest.volumes.series import DicomRules, series_among
from sharedds.packed import encode_text
from sharedds.volumes.geometry import corner_distance, spacing_of
from sharedds.volumes.opening import companions, is_dicom, recognise
from sharedds.volumes.source import VolumeHeader

__all__ = [
    "SAME_PLACE",
    "Found",
    "contents",
    "find_volumes",
    "is_volume_name",
]

SAME_PLACE = 0.1
"""Grids are the same whose corners are closer than this share of a voxel."""

_LOOKED_AT = 20_000
_TRIED = 200


@dataclass(slots=True, kw_only=True)
class Found(Listing):
    """What a folder holds.

    Attributes:
        entries: Volumes that were recognised.
        description: Relative path of a ``dataset.json``; empty where there is none.
        nbytes: Of all files of the volumes.
    """

    entries: list[Entry] = field(default_factory=list)
    description: str = ""
    nbytes: int = 0

    def location(self, path: str) -> Path:
        """Return the absolute path of a file."""
        return Path(self.root, path)


def find_volumes(
    root: str,
    rules: DicomRules,
    *,
    prefer: Literal["sform", "qform", "refuse"] = "sform",
    include_hidden: bool = False,
    aside: Sequence[str] = (),
    progress: Callable[[int], object] | None = None,
) -> Found:
    """Find the volumes of a folder and of all folders below it; their headers are read.

    Args:
        root: The folder.
        rules: For DICOM files.
        prefer: Which placement of a NIfTI file counts where its two disagree.
        include_hidden: Let files and folders count whose name starts with a dot.
        aside: Absolute paths of files that are no volumes, such as a CSV file of labels.
        progress: Called with how many files were looked at; those of DICOM series count again when
            their headers are read.

    Raises:
        SourceError: The folder cannot be listed.
        MissingExtraError: There are files that need a package which is not installed.
    """
    found = Found(root=absolute_path(root))
    files = files_of(found, include_hidden=include_hidden)
    sizes = {path: size for path, size, _ in files}
    slices = []
    for number, (path, size, _) in enumerate(files, 1):
        if progress is not None:
            progress(number)
        if absolute_path(found.location(path)) in aside:
            found.left_out.append(("list", "the list of cases", path, 1))
        elif path.rpartition("/")[2].lower() == "dataset.json" and not found.description:
            found.description = path
            found.left_out.append(("list", "read for the names of channels and classes", path, 1))
        elif _look(found, path, size, prefer):
            slices.append(path)
    _drop_parts(found)

    def advance(done: int, _: int) -> None:
        if progress is not None:
            progress(len(files) + done)

    if slices:
        series = series_among(found.root, slices, rules, advance)
        found.entries += series.entries
        found.bad += series.bad
        found.left_out += [("dicom", reason, path, 1) for path, reason in series.left_out]
    found.nbytes = sum(sizes[path] for entry in found.entries for path in entry.files)
    return found


def contents(root: str, *, include_hidden: bool = False) -> Literal["image", "volume", "both", ""]:
    """Return what a folder seems to hold, from names and, where these say nothing, from content.

    At most 20,000 names are looked at, so that a folder of millions of pictures is no burden.
    """
    pictures, volumes, arrays, unnamed = False, False, False, 0
    found = Found(root=root)
    try:
        for number, path in enumerate(names_of(found, include_hidden=include_hidden)):
            suffix = extension(encode_text(path.rpartition("/")[2]))
            if suffix in IMAGE_EXTENSIONS:
                pictures = True
            elif suffix in (b".npy", b".npz"):
                arrays = True  # they may hold anything
            elif is_volume_name(path):
                volumes = True
            elif not suffix and not volumes and not pictures and unnamed < _TRIED:
                unnamed += 1
                volumes = is_dicom(found.location(path))
            if number >= _LOOKED_AT:
                break
    except (OSError, SharedDSError):  # told in full by the scan that follows
        return ""
    volumes = volumes or (arrays and not pictures)
    if pictures and volumes:
        return "both"
    return "image" if pictures else "volume" if volumes else ""


def is_volume_name(path: str) -> bool:
    """Return whether a name is that of a volume, or of a slice of one."""
    arrays = path.lower().endswith((".npy", ".npz"))  # they may hold anything
    return path.lower().endswith(".dcm") or (stem_of(path) != path and not arrays)


def _look(found: Found, path: str, size: int, prefer: Literal["sform", "qform", "refuse"]) -> bool:
    """Judge one file; return whether it is a part of a DICOM series."""
    named = stem_of(path) != path
    place = found.location(path)
    if not size:
        if named:
            found.bad.append((path, "empty", (path,)))
        else:
            found.left_out.append(("file", "empty", path, 1))
        return False
    try:
        volume = recognise(place, prefer="qform" if prefer == "qform" else "sform")
        if volume is None and is_dicom(place):
            return True
        if volume is not None and prefer == "refuse":
            _require_one_place(volume.header, place)
    except MissingExtraError:  # missing for all
        raise
    except (SharedDSError, OSError) as error:
        found.bad.append((path, reason_of(error, found.root, path), (path,)))
        return False
    if volume is not None:
        others = tuple(os.path.relpath(part, found.root) for part in companions(volume))
        found.entries.append(Entry(stem_of(path), path, (path, *others), volume))
    elif named:
        found.bad.append((path, "the name is that of a volume, the content is not", (path,)))
    else:
        suffix = extension(encode_text(path.rpartition("/")[2])).decode(errors="replace")
        found.left_out.append(("extension", suffix or "not a volume", path, 1))
    return False


def _require_one_place(header: VolumeHeader, place: Path) -> None:
    """Refuse a NIfTI file whose two placements disagree.

    Raises:
        DecodeError: They do; the text says by how much.
    """
    other = recognise(place, prefer="qform")
    if other is None or header.affine is None or other.header.affine is None:
        return
    distance = corner_distance(header.affine, other.header.affine, header.shape)
    if distance > SAME_PLACE * min(spacing_of(header.affine)):
        raise DecodeError(
            f"its sform and its qform lie up to {distance:.4g} mm apart; say which counts with "
            "prefer='sform' or prefer='qform' (--prefer)"
        )


def _drop_parts(found: Found) -> None:
    """Take files of voxels that a header beside them describes out of everything else."""
    parts = {path for entry in found.entries for path in entry.files[1:]}
    if parts:
        found.entries = [entry for entry in found.entries if entry.path not in parts]
        found.bad = [item for item in found.bad if item[0] not in parts]
        found.left_out = [item for item in found.left_out if item[2] not in parts]
