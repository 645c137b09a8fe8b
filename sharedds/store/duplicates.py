"""Finds equal contents within a store and across stores, by checksums: nothing is read again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from sharedds.store.reader import Store

__all__ = ["DuplicateGroup", "Duplicates", "find_duplicates"]

_ROWS = 1 << 20
_NO_LABEL = -1


@dataclasses.dataclass(frozen=True, slots=True)
class DuplicateGroup:
    """Samples whose stored bytes are equal.

    Attributes:
        members: (path of the store, number of the sample, key), by store and number; of a large
            group the first ones.
        labels: The class name or number of each member; None where a store has no labels.
        count: How many members there are.
        conflicting: Whether equal bytes carry different labels.
    """

    members: tuple[tuple[str, int, str], ...]
    labels: tuple[str | None, ...]
    count: int
    conflicting: bool

    def to_json(self) -> dict[str, Any]:
        """Return plain values for a report."""
        members = [
            {"store": store, "sample": sample, "path": key, "label": label}
            for (store, sample, key), label in zip(self.members, self.labels, strict=True)
        ]
        return {"count": self.count, "conflicting": self.conflicting, "members": members}


class Duplicates:
    """The groups of equal samples that were found: a few numbers for each, names on demand.

    Attributes:
        count: Number of groups.
        conflicting: How many of them carry different labels.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        owners: npt.NDArray[np.int64],
        samples: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        conflicts: npt.NDArray[np.bool_],
    ) -> None:
        self._stores = stores
        self._owners, self._samples = owners, samples
        self._starts, self._conflicts = starts, conflicts
        self.count = len(starts) - 1
        self.conflicting = int(np.count_nonzero(conflicts))

    def groups(self, *, members: int = 1000) -> Iterator[DuplicateGroup]:
        """Yield the groups, those with different labels first, at most so many members of each."""
        first = self._starts[:-1]
        ranks = np.lexsort((self._samples[first], self._owners[first], ~self._conflicts))
        for number in ranks.tolist():
            start, end = self._starts[number : number + 2].tolist()
            shown = slice(start, min(end, start + members))
            who = [
                (self._stores[owner], sample)
                for owner, sample in zip(
                    self._owners[shown].tolist(), self._samples[shown].tolist(), strict=True
                )
            ]
            yield DuplicateGroup(
                members=tuple((store.path, sample, store.key(sample)) for store, sample in who),
                labels=tuple(_label(store, sample) for store, sample in who),
                count=end - start,
                conflicting=bool(self._conflicts[number]),
            )


def find_duplicates(
    store: Store, others: Sequence[Store] = (), *, field: str = "image"
) -> Duplicates:
    """Find samples with equal stored bytes; with ``others`` only those that are in both.

    Equal means an equal xxh3-64 checksum; among a billion different samples, a pair that differs
    would be taken for equal with a chance of 3 %.

    Args:
        store: The store to look at.
        others: Compare it with these instead of with itself.
        field: The field whose stored bytes are compared. It has one value in each sample.
    """
    stores = (store, *others)
    sums = [_checksums(one, field) for one in stores]
    bounds = np.cumsum([0, *map(len, sums)])
    values = np.concatenate(sums)
    del sums
    at = _repeated(values)
    at = at[np.argsort(values[at], kind="stable")]
    values = values[at]
    owners = np.searchsorted(bounds, at, side="right") - 1
    samples = at - bounds[owners]
    starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]]) if len(values) else at
    if others and len(starts):
        # Within a group the numbers rise, so the first member is the one of the first store.
        spans = (np.minimum.reduceat(owners, starts) == 0) & (
            np.maximum.reduceat(owners, starts) > 0
        )
        wanted = np.repeat(spans, np.diff(np.r_[starts, len(values)]))
        owners, samples, values = owners[wanted], samples[wanted], values[wanted]
        starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]]) if len(values) else at[:0]
    conflicts = _conflicts(stores, owners, samples, starts)
    return Duplicates(
        stores, owners, samples, np.r_[starts, len(values)].astype(np.int64), conflicts
    )


def _repeated(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return where the values are that occur more than once."""
    ordered = np.sort(values)
    twice = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    del ordered
    found = [np.empty(0, np.int64)]
    for start in range(0, len(values) if len(twice) else 0, _ROWS):
        rows = values[start : start + _ROWS]
        near = np.minimum(np.searchsorted(twice, rows), len(twice) - 1)
        found.append(np.flatnonzero(twice[near] == rows) + start)
    return np.concatenate(found)


def _conflicts(
    stores: Sequence[Store],
    owners: npt.NDArray[np.int64],
    samples: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    """Say of each group whether its members have different labels; labels are compared by name."""
    if not len(starts):
        return np.empty(0, np.bool_)
    numbers: dict[str, int] = {}
    labels = np.full(len(samples), _NO_LABEL, np.int64)
    for number, store in enumerate(stores):
        if _has_labels(store):
            mine = owners == number
            own, back = np.unique(
                np.asarray(store.column("label"))[samples[mine]], return_inverse=True
            )
            names = [_class_name(store, int(label)) for label in own]
            shared = np.array([numbers.setdefault(n, len(numbers)) for n in names], np.int64)
            labels[mine] = shared[back]
    least = np.minimum.reduceat(np.where(labels == _NO_LABEL, len(numbers), labels), starts)
    most = np.maximum.reduceat(labels, starts)
    return (least < most).astype(np.bool_)


def _checksums(store: Store, field: str) -> npt.NDArray[np.uint64]:
    kinds = {f.name: f.kind for f in store.header.fields}
    if any(f.name == field and f.wide for f in store.header.fields):
        return np.asarray(store.column(f"{field}@xxh3"))
    if kinds.get(field) == "column":  # narrow rows have no checksums of their own
        column = store.column(field)
        pixels = (np.ascontiguousarray(row).tobytes() for row in column)
        return np.fromiter(map(xxhash.xxh3_64_intdigest, pixels), np.uint64, len(column))
    names = [f.name for f in store.header.chunked]
    if not store.header.one_entry_each or field not in names or not len(store):
        return np.empty(0, np.uint64)
    entries = store.column("@entries")
    sums = np.empty(len(store), np.uint64)
    at, step, done = names.index(field), len(names), 0
    for number in range(entries.segments):
        rows = entries.segment(number)
        first = (at - done) % step
        mine = rows[first::step, 2]
        sums[(done + first) // step :][: len(mine)] = mine
        done += len(rows)
        entries.release(number)
    return sums


def _has_labels(store: Store) -> bool:
    return any(
        f.name == "label" and f.kind == "column" and not f.shape and np.dtype(f.dtype).kind in "iu"
        for f in store.header.fields
    )


def _class_name(store: Store, number: int) -> str:
    classes = store.classes
    return classes[number] if classes is not None and 0 <= number < len(classes) else str(number)


def _label(store: Store, sample: int) -> str | None:
    return _class_name(store, int(store.column("label")[sample])) if _has_labels(store) else None
