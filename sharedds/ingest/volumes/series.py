"""DICOM files of a folder as volumes, with what identifies a patient kept out of what is told."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sharedds.ingest.listing import without_root
from sharedds.ingest.volumes.cases import Entry
from sharedds.volumes.dicom import find_series
from sharedds.volumes.dicom_tags import pydicom, quiet

__all__ = ["SAME_INSTANCE", "DicomRules", "SeriesFound", "series_among"]

SAME_INSTANCE = "the same instance as "
"""What is said of a copy of a DICOM file, before the name of the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DicomRules:
    """What is taken for a volume of DICOM files; see :func:`sharedds.ingest.pack_volumes`."""

    allow_gaps: bool = False
    allow_single: bool = False
    invert: bool = False
    keep_tags: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class SeriesFound:
    """What DICOM files are; each file is in one of the three lists.

    Attributes:
        entries: Volumes.
        bad: (path or name, reason, relative paths of its files) of refused series.
        left_out: (path, reason) of copies, and of what is no picture.
    """

    entries: list[Entry] = field(default_factory=list)
    bad: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)


def series_among(
    root: str, slices: Sequence[str], rules: DicomRules, progress: Callable[[int, int], None]
) -> SeriesFound:
    """Put DICOM files together; each of them ends in a volume, or with a reason.

    Args:
        root: The folder, absolute.
        slices: Relative paths of the files.
        rules: What is taken for a volume.
        progress: Called with how many headers were read, and how many there are.
    """
    found = SeriesFound()
    outcome = find_series(
        Path(root),
        [Path(root, path) for path in slices],
        allow_gaps=rules.allow_gaps,
        allow_single=rules.allow_single,
        invert=rules.invert,
        keep_tags=rules.keep_tags,
        progress=progress,
    )
    own = len(root.rstrip("/")) + 1
    taken: set[str] = set()
    for series in outcome.series:
        files = tuple(str(path)[own:] for path in series.files)
        name = series.name if series.name not in ("", ".") else "series"
        if series.volume is None:
            # One slice that fits nowhere is looked for by its own name.
            told = files[0] if len(files) == 1 else name
            reason = without_root("; ".join(series.problems) or "no volume", root)
            found.bad.append((told, reason.removeprefix(f"{told}: "), files))
            taken.update(files)
        else:
            patient = _patient(Path(root, files[0]))
            found.entries.append(Entry(name, name, files, series.volume, patient))
    for path, reason in outcome.left_out:
        if str(path)[own:] not in taken:
            found.left_out.append((str(path)[own:], without_root(reason, root)))
    return found


def _patient(path: Path) -> tuple[str, ...]:
    """Return words that name the patient of a DICOM file, in lower case; only to be compared."""
    try:
        with quiet():
            tags = pydicom().dcmread(
                path,
                stop_before_pixels=True,
                force=True,
                specific_tags=["PatientName", "PatientID"],
            )
            texts = (str(tags.get("PatientName", "")), str(tags.get("PatientID", "")))
    except Exception:  # whatever a damaged value raises: these words only serve a warning
        return ()
    words = {word for text in texts for word in re.split(r"[^0-9a-z]+", text.lower())}
    return tuple(sorted(word for word in words if len(word) > 2))
