"""DICOM folders as volumes: every file is in a volume, or is named with the reason why not.

Files may lie in any arrangement, under any names. All headers are read first; pixels only when a
volume is opened. Files belong together by the UID of their series, across folders; where all of the
same instances lie in several folders, these are copies of a series, and each folder is taken by
itself.

Of a header, these things are kept in :attr:`VolumeHeader.attrs`, and nothing else unless asked:

- ``modality``, ``photometric``, ``units``, ``rescale_type``: codes, if they are of the standard;
- ``inverted``: a MONOCHROME1 volume was turned round;
- ``rescale``: ``"per slice, applied"`` where slices had slopes of their own;
- ``file_dtype``, ``bits_stored``: the values as they stood in the files;
- ``padding_value``: the kept value that stands for "nothing measured here", if it is one for all;
- ``empty_slices``: places along k where a slice was missing and none were measured;
- ``part``: what tells this volume from others at the same places, such as an echo;
- ``pixel_spacing``: (i, j) in mm, of a slice that lies nowhere in space;
- ``channels``: of colour pictures;
- ``tags``: values of ``keep_tags``; a list along k where they differ between slices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from sharedds.errors import SourceError
from sharedds.volumes.dicom_frames import Picture, read_picture
from sharedds.volumes.dicom_pixels import Values, decoder_problem, unpacked, values_of
from sharedds.volumes.dicom_placement import Mark
from sharedds.volumes.dicom_series import Stack, stacks_of
from sharedds.volumes.dicom_tags import checked_tags
from sharedds.volumes.source import VolumeData, VolumeHeader

__all__ = ["DicomFindings", "DicomVolume", "Series", "find_series"]

_WORD = re.compile(
    "ORIGINAL|DERIVED|PRIMARY|SECONDARY|AXIAL|LOCALIZER|M|P|R|I|M_FFE|M_SE|M_IR|MAGNITUDE|PHASE|"
    "REAL|IMAGINARY|WATER|FAT|IN_PHASE|OUT_PHASE|OPP_PHASE|ADC|FA|TRACEW|NORM|ND|MIP|MEAN|[0-9]{1,3}"
)


@dataclass(frozen=True, slots=True)
class DicomVolume:
    """A stack of slices that is known to be a volume: header read and checked, pixels not.

    Args:
        header: What is known of it.
        stack: Its slices.
        values: As what their values are kept.
    """

    header: VolumeHeader
    stack: Stack
    values: Values

    def open(self, scratch: Path) -> AbstractContextManager[VolumeData]:
        """Decode all slices, one after the other, into a file in ``scratch``, and map that.

        Args:
            scratch: A folder with room for the volume; nothing of it stays there.

        Raises:
            DecodeError: A file is cut short, damaged, or no longer what its header said.
            SourceError: A file cannot be read.
            StorageFullError: There is no room in the folder.
        """
        return unpacked(self.stack, self.values, scratch)


@dataclass(frozen=True, slots=True)
class Series:
    """Files that make one volume, or that would if there were no problems.

    Attributes:
        name: Their folder relative to the one that was searched (its name, where that is the same),
            with ``#n`` where a folder has several.
        files: Sorted by name.
        volume: None where there are problems.
        problems: Each a sentence that names files and positions.
    """

    name: str
    files: tuple[Path, ...]
    volume: DicomVolume | None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DicomFindings:
    """What a search found.

    Attributes:
        series: Volumes and refused series, sorted by name.
        left_out: Each file that is in no volume, with the reason: those of refused series, copies
            of others, and what is no picture. Sorted by path; none occurs twice.
    """

    series: tuple[Series, ...]
    left_out: tuple[tuple[Path, str], ...]


def find_series(
    root: Path,
    files: Sequence[Path],
    *,
    allow_gaps: bool = False,
    allow_single: bool = False,
    invert: bool = False,
    keep_tags: tuple[str, ...] = (),
    progress: Callable[[int, int], None] | None = None,
) -> DicomFindings:
    """Read the headers of files and sort them into volumes.

    Args:
        root: The folder that was searched; names are relative to it.
        files: Below it, in any order; they need not be DICOM.
        allow_gaps: Missing slices are filled with empty ones, which ``attrs`` names, so that the
            others stay where they are. Refused otherwise.
        allow_single: One slice is a volume as well.
        invert: MONOCHROME1 pictures are turned round, so that high values are bright in all.
        keep_tags: DICOM keywords whose values are kept in ``attrs["tags"]``.
        progress: Called after each file with how many were read, and how many there are.

    Raises:
        OptionError: ``keep_tags`` has a name that is no keyword, or of a value that is not plain.
        MissingExtraError: pydicom is not installed, and there is a DICOM file.
    """
    keep_tags = checked_tags(keep_tags)
    pictures: list[Picture] = []
    reasons: dict[Path, str] = {}
    for number, path in enumerate(sorted(files), 1):
        try:
            found = read_picture(path, _relative(path, root), keep_tags)
        except SourceError as error:
            found = str(error)
        if isinstance(found, str):
            reasons[path] = found
        else:
            problem = decoder_problem(found)
            if problem is not None:
                found = replace(found, problems=(*found.problems, problem))
            pictures.append(found)
        if progress is not None:
            progress(number, len(files))
    stacks: list[Stack] = []
    for group in _series(pictures):
        found_stacks, copies = stacks_of(group, allow_gaps=allow_gaps, allow_single=allow_single)
        stacks += found_stacks
        for copy in copies:
            reasons[copy.picture.path] = f"the same instance as {copy.of.name}"
    series = _named([_offered(stack, root, invert=invert) for stack in stacks], root)
    used = {path for one in series if one.volume is not None for path in one.files}
    for one in series:
        for path in one.files:
            if path not in used:
                reasons.setdefault(path, "; ".join(one.problems))
    return DicomFindings(series, tuple(sorted(reasons.items())))


def _relative(path: Path, root: Path) -> str:
    try:
        return path.relative_to(root).as_posix()
    except ValueError:
        return path.name


def _series(pictures: list[Picture]) -> list[list[Picture]]:
    """Sort pictures by series; several copies of one series, in several folders, by folder.

    A folder with some of the instances of another one is no copy of a series: it goes with it.
    """
    groups: dict[str, dict[Path, list[Picture]]] = {}
    for picture in pictures:
        # Without a UID, files of one folder are taken to belong together.
        key = picture.series or f"/{picture.path.parent}"
        groups.setdefault(key, {}).setdefault(picture.path.parent, []).append(picture)
    series: list[list[Picture]] = []
    for folders in groups.values():
        known = {folder: {p.instance for p in files} - {""} for folder, files in folders.items()}
        copied = sum(map(len, known.values())) > len(set().union(*known.values()))
        taken: list[tuple[set[str], list[Picture]]] = []
        for folder in sorted(folders, key=lambda folder: -len(known[folder])):
            here = known[folder]
            for instances, members in taken:
                if not copied or (here != instances and here & instances):
                    instances |= here
                    members += folders[folder]
                    break
            else:
                taken.append((set(here), folders[folder]))
        series += [members for _, members in taken]
    return series


def _offered(stack: Stack, root: Path, *, invert: bool) -> tuple[Stack, DicomVolume | None]:
    if stack.problems:
        return stack, None
    values = values_of(stack, invert=invert)
    if values.problem is not None:
        return replace(stack, problems=(values.problem,)), None
    if stack.timed and stack.present[0].picture.samples > 1:
        return replace(stack, problems=("moments of colour pictures make no volume",)), None
    return stack, DicomVolume(_header(stack, values, root), stack, values)


def _header(stack: Stack, values: Values, root: Path) -> VolumeHeader:
    shots = stack.present
    first = shots[0].picture
    pictures = {shot.picture.path: shot.picture for shot in shots}
    inverted = values.mirror is not None
    attrs: dict[str, Any] = dict(first.codes)
    remarks = list(stack.remarks)
    if first.photometric in ("MONOCHROME1", "MONOCHROME2", "RGB") or first.samples > 1:
        attrs["photometric"] = "RGB" if first.samples > 1 else first.photometric
    if first.photometric == "MONOCHROME1":
        attrs["inverted"] = inverted
        kept = "turned round" if inverted else "kept as measured"
        remarks.append(f"MONOCHROME1 (low values are bright): {kept}")
    if values.applied:
        attrs["rescale"] = "per slice, applied"
        remarks.append("slices had slopes of their own; they are applied, measured values are kept")
    if first.keyword == "PixelData":
        sign = "int" if first.signed else "uint"
        attrs["file_dtype"] = f"{sign}{max(8, first.bits_allocated)}"
        attrs["bits_stored"] = first.bits_stored
    if values.padding is not None:
        attrs["padding_value"] = values.padding
    if stack.empty:
        attrs["empty_slices"] = stack.empty
    part = {name: known for name, mark in stack.part if (known := _harmless(mark)) is not None}
    if part:
        attrs["part"] = part
    spacing = shots[0].frame.spacing
    if stack.affine is None and spacing is not None:
        attrs["pixel_spacing"] = [spacing[1], spacing[0]]
    if first.samples > 1:
        attrs["channels"] = ["red", "green", "blue"]
    tags = _kept_tags(stack)
    if tags:
        attrs["tags"] = tags
    steps = len(stack.shots) * first.samples
    return VolumeHeader(
        path=str(_folder(list(pictures))),
        format="DICOM",
        shape=(first.columns, first.rows, len(stack.shots[0])),
        steps=steps,
        axis="time" if stack.timed else "channel" if first.samples > 1 else "none",
        step_seconds=first.step_seconds if stack.timed else None,
        dtype=values.dtype,
        affine=stack.affine,
        slope=values.slope,
        intercept=values.intercept,
        attrs=attrs,
        remarks=tuple(remarks),
        nbytes=sum(picture.nbytes for picture in pictures.values()),
    )


def _harmless(mark: Mark) -> float | str | list[float] | None:
    """Return what is kept of a mark: numbers and known words; other text could be a name."""
    if isinstance(mark, tuple):
        return list(mark)
    if isinstance(mark, str):
        words = [word for word in mark.split("\\") if _WORD.fullmatch(word)]
        return "\\".join(words) if words else None
    return mark


def _kept_tags(stack: Stack) -> dict[str, Any]:
    every = [shot.picture.kept if shot is not None else {} for shot in stack.shots[0]]
    present = [kept for kept in every if kept]
    tags: dict[str, Any] = {}
    for keyword in dict.fromkeys(keyword for kept in present for keyword in kept):
        values = [kept.get(keyword) for kept in every]
        same = all(kept.get(keyword) == present[0].get(keyword) for kept in present)
        tags[keyword] = present[0].get(keyword) if same else values
    return tags


def _folder(paths: Sequence[Path]) -> Path:
    common = paths[0].parent
    for path in paths:
        while common not in path.parents:
            common = common.parent
    return common


def _named(stacks: list[tuple[Stack, DicomVolume | None]], root: Path) -> tuple[Series, ...]:
    """Name stacks by their folders; volumes first, so that a scout does not renumber them."""
    folders: dict[str, list[tuple[Stack, DicomVolume | None]]] = {}
    for stack, volume in stacks:
        folder = _relative(_folder([shot.picture.path for shot in stack.present]), root)
        folder = root.name or "volume" if folder == "." else folder
        folders.setdefault(folder, []).append((stack, volume))
    series = []
    for folder, group in folders.items():
        ordered = sorted(group, key=lambda pair: (pair[1] is None, *_order(pair[0])))
        volumes = sum(volume is not None for _, volume in group)
        for number, (stack, volume) in enumerate(ordered, 1):
            alone = len(group) == 1 or (volumes == 1 and volume is not None)
            files = sorted({shot.picture.path for shot in stack.present})
            name = folder if alone else f"{folder}#{number}"
            series.append(Series(name, tuple(files), volume, stack.problems))
    return tuple(sorted(series, key=lambda one: _natural(one.name)))


def _order(stack: Stack) -> tuple[Any, ...]:
    first = stack.present[0]
    marks = tuple((mark is not None, str(type(mark)), mark) for _, mark in stack.part)
    instances = min(shot.picture.instance for shot in stack.present)
    return (first.picture.series_number, first.picture.series, marks, instances, first.frame.number)


def _natural(name: str) -> tuple[str, int]:
    folder, _, number = name.rpartition("#")
    path = PurePosixPath(name)
    return (folder, int(number)) if folder and number.isdigit() else (str(path), 0)
