"""What a source of volumes is, whether they are packed or files as they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sharedds.errors import SchemaError
from sharedds.patches import Case, Location
from sharedds.patches.cutting import Padding
from sharedds.volumes.source import Affine

__all__ = ["Integers", "Values", "VolumeCase", "VolumeSource", "no_label"]

Integers = npt.NDArray[np.int64]
Values = npt.NDArray[Any]


class VolumeCase(Case, Protocol):
    """One volume with its label, open for reading parts of it."""

    @property
    def channels(self) -> int:
        """How many values each voxel has: channels, or moments."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the values as stored."""

    @property
    def affine(self) -> Affine | None:
        """(4, 4) from voxels to millimetres in RAS+; None where it is not known."""

    def blocks(self, location: Location, label: Location | None) -> Iterable[int]:
        """Return numbers by which :meth:`VolumeSource.advise` knows what a part is read from."""

    def read_image(
        self, location: Location, out: Values, *, scaled: bool, padding: Padding, fill: float
    ) -> None:
        """Write a part of the image into (channels, i, j, k)."""

    def read_label(self, location: Location, out: Values, *, padding: Padding, fill: int) -> None:
        """Write a part of the label into (i, j, k) integers."""


class VolumeSource(Protocol):
    """Numbered volumes with names."""

    @property
    def path(self) -> str:
        """Where they are."""

    @property
    def labelled(self) -> bool:
        """Whether there are labels at all."""

    @property
    def counted(self) -> bool:
        """Whether it is known where each class lies."""

    @property
    def advice(self) -> str:
        """What to do where it has to be known."""

    def __len__(self) -> int:
        """Return the number of cases."""

    def digest(self) -> str:
        """Return what changes when the cases do."""

    def name(self, position: int) -> str:
        """Return what a case is called."""

    def find(self, name: str) -> int:
        """Return the number of a case."""

    def group(self, position: int) -> str | None:
        """Return what a case belongs to, such as a patient; None where nobody said."""

    def shapes(self) -> Integers:
        """Return (n, 4): channels and voxels along (i, j, k) of each case."""

    def has_label(self, position: int) -> bool:
        """Whether a case has a label."""

    def open(self, position: int) -> VolumeCase:
        """Return a case."""

    def advise(self, numbers: Iterable[int]) -> None:
        """Ask the system to fetch what is read next, without waiting."""

    def release(self) -> None:
        """Say that what was read is done with: its memory counts no more."""


def no_label(path: str, position: int, name: str) -> SchemaError:
    """Return the error about a case that has no label."""
    return SchemaError(
        f"{path}: case {name!r} has no label; leave it out by "
        "dataset.subset(dataset.with_label()), or read no labels: labels=False",
        path=path,
        sample=position,
        key=name,
        field="label",
    )
