"""Looks through a folder for volumes: by content, never by the names of files alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import xxhash

from sharedds.errors import DecodeError, MissingExtraError, SharedDSError, SourceError
from sharedds.folder.names import IMAGE_EXTENSIONS, extension, hidden_reason
from sharedds.handles import absolute_path
from sharedds.ingest.volume_cases import Entry, in_order, stem_of
from sharedds.ingest.volume_series import DicomRules, series_among, without_root
from sharedds.packed import encode_text
from sharedds.text import printable
from sharedds.volumes.geometry import corner_distance, spacing_of
from sharedds.volumes.opening import companions, is_dicom, recognise
from sharedds.volumes.source import VolumeHeader

__all__ = [
    "SAME_PLACE",
    "Found",
    "contents",
    "files_of",
    "find_volumes",
    "is_volume_name",
    "names_of",
    "reason_of",
]

SAME_PLACE = 0.1
"""Grids are the same whose corners are closer than this share of a voxel."""

_LOOKED_AT = 20_000
_TRIED = 200


@dataclass(slots=True, kw_only=True)
class Found:
    """What a folder holds.

    Attributes:
        root: The folder, absolute.
        files: How many files were seen.
        entries: Volumes that were recognised.
        bad: (path, reason, relative paths of its files) of what should be a volume and is not.
        left_out: (kind, reason, path, count) of other files.
        description: Relative path of a ``dataset.json``; empty where there is none.
        nbytes: Of all files of the volumes.
        fingerprint: 32 hex digits that change when a path, size or time changes.
    """

    root: str
    files: int = 0
    entries: list[Entry] = field(default_factory=list)
    bad: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)
    left_out: list[tuple[str, str, str, int]] = field(default_factory=list)
    description: str = ""
    nbytes: int = 0
    fingerprint: str = ""

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
    found.files = len(files) + sum(count for _, _, _, count in found.left_out)
    found.files += len(found.bad)
    digest = xxhash.xxh3_128()
    for path, size, mtime in files:
        digest.update(b"%s\0%d %d\n" % (encode_text(path), size, mtime))
    found.fingerprint = digest.hexdigest()
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


def names_of(found: Found, *, include_hidden: bool) -> Iterator[str]:
    """Yield the relative path of every file in order; links are followed, loops are not.

    Raises:
        SourceError: The root cannot be listed.
    """
    stack: list[tuple[str, tuple[str, ...]]] = [("", (os.path.realpath(found.root),))]
    while stack:
        folder, above = stack.pop()
        place = os.path.join(found.root, folder)
        try:
            with os.scandir(place) as listing:
                names = sorted((entry.name, entry.is_dir()) for entry in listing)
        except OSError as error:
            reason = f"cannot be listed ({error.strerror})"
            if isinstance(error, NotADirectoryError):
                reason = "this is a file; give the folder that holds the volumes"
            if not folder:
                raise SourceError(f"{printable(found.root)}: {reason}", path=found.root) from error
            found.left_out.append(("folder", reason, folder, 0))
            continue
        below: list[tuple[str, tuple[str, ...]]] = []
        for name, is_folder in names:
            path = f"{folder}/{name}".lstrip("/")
            hidden = hidden_reason(encode_text(name), include_hidden=include_hidden)
            if hidden:
                found.left_out.append(("hidden", hidden, path, 0 if is_folder else 1))
            elif not is_folder:
                yield path
            else:
                real = os.path.realpath(os.path.join(place, name))
                if real in above:
                    reason = "leads back to a folder above it"
                    found.left_out.append(("folder", reason, path, 0))
                else:
                    below.append((path, (*above, real)))
        stack += reversed(below)


def files_of(found: Found, *, include_hidden: bool) -> list[tuple[str, int, int]]:
    """Return (path, size, time of the last change) of each regular file, in order of the paths."""
    files = []
    for path in names_of(found, include_hidden=include_hidden):
        try:
            status = os.stat(os.path.join(found.root, path))
        except OSError as error:
            found.bad.append((path, f"cannot be examined ({error.strerror})", (path,)))
            continue
        if stat.S_ISREG(status.st_mode):
            files.append((path, status.st_size, status.st_mtime_ns))
        else:
            found.left_out.append(("file", "not a regular file", path, 1))
    return sorted(files, key=lambda file: in_order(file[0]))


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


def reason_of(error: BaseException, root: str, path: str = "") -> str:
    """Return why something failed, without the place of the folder, nor the name said before."""
    strerror = getattr(error, "strerror", None) if not isinstance(error, SharedDSError) else None
    return without_root(str(strerror or error), root).removeprefix(f"{path}: ")
