"""What was not as asked for in an epoch: counted in all processes, told once by the trainer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sharedds.handles import Remade, SharedCounts, WritableFile, anonymous_file, unsent

__all__ = ["PatchCounts", "Tally"]

_NAMED = 3  # cases that a line names
_KINDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchCounts:
    """Patches that are not as asked for, of those made since the last epoch ended.

    Attributes:
        without_foreground: Patches that were to hold a voxel of some classes and lie anywhere,
            since their case has no such voxel.
        larger: Patches that are larger than their volume, and were padded.
        cases_without: The cases of the first.
        cases_smaller: The cases of the second.
    """

    without_foreground: int = 0
    larger: int = 0
    cases_without: tuple[str, ...] = ()
    cases_smaller: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.without_foreground or self.larger)

    def __str__(self) -> str:
        parts = []
        if self.without_foreground:
            parts.append(
                f"{_patches(self.without_foreground)} cut anywhere, since the case has no voxel of "
                f"the classes asked for: {_named(self.cases_without)}"
            )
        if self.larger:
            parts.append(
                f"{_patches(self.larger)} padded, being larger than the volume: "
                f"{_named(self.cases_smaller)}"
            )
        return "; ".join(parts)


def _patches(count: int) -> str:
    return f"{count:,} {'patch was' if count == 1 else 'patches were'}"


def _named(cases: tuple[str, ...]) -> str:
    more = f" and {len(cases) - _NAMED:,} more cases" if len(cases) > _NAMED else ""
    return ", ".join(repr(name) for name in cases[:_NAMED]) + more


class Tally:
    """Counts what is not as asked for, for all processes that have the dataset.

    Two counters, and two bytes for each case, in files without names. A pickle that outlives the
    process which made them begins anew.

    Args:
        cases: How many cases there are.

    Raises:
        StorageFullError, SourceError: There is no room in the temporary folder.
    """

    _told = unsent[list[int]]()  # of what was counted, in the process that tells

    def __init__(self, cases: int) -> None:
        self._counts = Remade(functools.partial(SharedCounts, _KINDS))
        self._marks = Remade(functools.partial(_blank, max(1, cases) * _KINDS))

    def add(self, case: int, *, is_fallback: bool, is_larger: bool) -> None:
        """Count a patch of a case."""
        marks = self._marks.file
        for kind, applies in enumerate((is_fallback, is_larger)):
            if applies:
                self._counts.file.add(kind)
                at = case * _KINDS + kind
                if not marks.view[at]:
                    marks.write(at, b"\1")

    def read(self, name: Callable[[int], str]) -> PatchCounts:
        """Return what was counted since :meth:`clear`.

        Args:
            name: Gives the name of a case.
        """
        told = self._told or [0] * _KINDS
        fallbacks, larger = (
            total - before for total, before in zip(self._counts.file.totals(), told, strict=True)
        )
        if not fallbacks and not larger:
            return PatchCounts()
        marks = np.frombuffer(self._marks.file.view, np.uint8).reshape(-1, _KINDS)
        without, smaller = (
            tuple(map(name, np.flatnonzero(marks[:, kind]).tolist())) for kind in range(_KINDS)
        )
        return PatchCounts(
            without_foreground=fallbacks,
            larger=larger,
            cases_without=without,
            cases_smaller=smaller,
        )

    def clear(self) -> None:
        """Begin anew; only the trainer does."""
        self._told = self._counts.file.totals()
        self._marks.file.write(0, bytes(self._marks.file.size))


def _blank(size: int) -> WritableFile:
    file = anonymous_file()
    file.write(bytes(size))
    return WritableFile(file)
