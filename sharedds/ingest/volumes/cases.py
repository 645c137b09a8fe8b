"""What becomes a sample: the volumes of a case, and how the cases of a folder are laid out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Case", "Description", "Entry", "Layout", "hidden", "stem_of"]

_EXTENSION = re.compile(r"\.(nii(\.gz)?|hdr|img(\.gz)?|nrrd|nhdr|mha|mhd|npy|npz)\Z", re.I)
_ANYBODY = re.compile(r"\w?|[0-9]{1,4}", re.ASCII)


def stem_of(path: str) -> str:
    """Return a path without the extensions of a volume file."""
    return _EXTENSION.sub("", path)


@dataclass(frozen=True, slots=True)
class Entry:
    """A volume that was found.

    Attributes:
        name: Its relative path without extensions, with ``/``; of a series its name.
        path: Its relative path, as it is told to people.
        files: Relative paths of the files it consists of.
        volume: What opens it (a :class:`sharedds.volumes.source.VolumeFile`); names do not need it.
        patient: Words of the patient's name, of DICOM files; only ever compared.
    """

    name: str
    path: str
    files: tuple[str, ...]
    volume: Any = None
    patient: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The folder it lies in, relative; empty for the root."""
        return self.name.rpartition("/")[0]

    @property
    def stem(self) -> str:
        """The last part of its name."""
        return self.name.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What becomes one sample.

    Attributes:
        name: Its key in the store.
        images: One volume, or several that become channels.
        channels: Names of the channels; empty where nobody gave any.
        label: Its label.
        group: As a CSV file gave it.
        problem: Why it cannot be packed; empty for a good one.
        missing: The path that ``problem`` names, if it names one.
    """

    name: str
    images: tuple[Entry, ...]
    channels: tuple[str, ...] = ()
    label: Entry | None = None
    group: str | None = None
    problem: str = ""
    missing: str = ""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All volumes of the case."""
        return self.images if self.label is None else (*self.images, self.label)


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a ``dataset.json`` says: names of channels and of classes, by number."""

    channels: tuple[str, ...] = ()
    classes: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a folder is laid out.

    Attributes:
        kind: In words.
        cases: In the order of their names.
        left_out: Volumes that are in no case, each with the reason.
    """

    kind: str
    cases: tuple[Case, ...]
    left_out: tuple[tuple[Entry, str], ...] = ()


def hidden(text: str, names: Iterable[str], instead: Callable[[str], str]) -> str:
    """Return a text without certain paths, nor their last parts; only whole words are replaced.

    A single letter or a short number, as slices are often called, identifies nobody and stays.

    Args:
        text: What is to be told.
        names: Paths with ``/``.
        instead: Gives what stands for a path.
    """
    words = {word for name in names for word in (name, name.rpartition("/")[2]) if word in text}
    words = {word for word in words if not _ANYBODY.fullmatch(word)}
    longest_first = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    if not longest_first:
        return text
    return re.sub(rf"(?<!\w)(?:{longest_first})(?!\w)", lambda match: instead(match[0]), text)
