"""Finds equal contents within a store and across stores, by the checksums of the table of entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.store.reader import Store

__all__ = ["DuplicateGroup", "find_duplicates"]


@dataclass(frozen=True, slots=True)
class DuplicateGroup:
    """Samples whose stored bytes are equal.

    Attributes:
        members: (path of the store, number of the sample, key) of each.
        labels: Their class names or numbers; None where a store has no labels.
    """

    members: tuple[tuple[str, int, str], ...]
    labels: tuple[str | None, ...]

    @property
    def conflicting(self) -> bool:
        """Whether equal bytes carry different labels."""
        return len({label for label in self.labels if label is not None}) > 1

    def to_json(self) -> dict[str, Any]:
        """Return plain values for a report."""
        paths = [
            {"store": store, "sample": sample, "path": key, "label": label}
            for (store, sample, key), label in zip(self.members, self.labels, strict=True)
        ]
        return {"conflicting": self.conflicting, "members": paths}


def _checksums(store: Store, field: str) -> npt.NDArray[np.uint64]:
    if f"{field}@xxh3" in {spec.name for spec in store.header.columns}:
        return np.asarray(store.column(f"{field}@xxh3"))
    names = [f.name for f in store.header.chunked]
    if not store.header.one_entry_each or field not in names:
        return np.empty(0, np.uint64)
    entries = store.column("@entries")
    step, at = len(names), names.index(field)
    if step == 1 and len(entries):
        return np.concatenate([entries.segment(i)[:, 2] for i in range(entries.segments)])
    return np.asarray(entries)[at::step, 2]


def _content(store: Store, field: str, sample: int) -> bytes:
    if field in {f.name for f in store.header.chunked}:
        return bytes(store.read(field, sample))
    return np.ascontiguousarray(store.column(field)[sample]).tobytes()


def _label(store: Store, sample: int) -> str | None:
    if "label" not in store.fields:
        return None
    number = int(store.column("label")[sample])
    classes = store.classes
    return classes[number] if classes is not None and 0 <= number < len(classes) else str(number)


def find_duplicates(
    store: Store, others: Sequence[Store] = (), *, field: str = "image", limit: int = 1000
) -> list[DuplicateGroup]:
    """Return groups of samples with equal bytes; with ``others`` only groups that span stores.

    Equal checksums are candidates; the bytes decide.

    Args:
        store: The store to look at.
        others: Compare it with these instead of with itself.
        field: The field whose stored bytes are compared.
        limit: Stop after so many groups.
    """
    stores = (store, *others)
    sums = [_checksums(s, field) for s in stores]
    owner = np.concatenate([np.full(len(c), i, np.int32) for i, c in enumerate(sums)])
    sample = np.concatenate([np.arange(len(c)) for c in sums])
    values = np.concatenate(sums)
    order = np.argsort(values, kind="stable")
    values = values[order]
    starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]]) if values.size else np.empty(0, np.int64)
    ends = np.r_[starts[1:], values.size]
    groups: list[DuplicateGroup] = []
    for start, end in zip(starts[ends - starts > 1].tolist(), ends[ends - starts > 1].tolist(), strict=True):
        by_content: dict[bytes, list[tuple[int, int]]] = {}
        for at in order[start:end].tolist():
            who = (int(owner[at]), int(sample[at]))
            by_content.setdefault(_content(stores[who[0]], field, who[1]), []).append(who)
        for members in by_content.values():
            spans = {who[0] for who in members}
            if len(members) > 1 and (not others or (0 in spans and len(spans) > 1)):
                groups.append(
                    DuplicateGroup(
                        tuple((stores[o].path, n, stores[o].key(n)) for o, n in sorted(members)),
                        tuple(_label(stores[o], n) for o, n in sorted(members)),
                    )
                )
                if len(groups) == limit:
                    return groups
    return groups
