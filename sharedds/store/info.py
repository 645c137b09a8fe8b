"""What is in a store, for people and programs."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sharedds.store.reader import Store

__all__ = ["FieldInfo", "StoreInfo", "info"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldInfo:
    """One field: its kind, and the bytes its values take."""

    name: str
    kind: str
    values: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreInfo:
    """A summary of a store.

    Attributes:
        path: The file.
        format_version: Of the file.
        samples: Number of samples.
        bytes: Size of the file.
        digest: Content digest.
        keyed: Whether samples have keys.
        fields: The schema, with the bytes of each field.
        classes: Samples of each class by name, in class order; None without classes.
        content: Counts of the values of small columns that are codes: formats, modes, orientation.
        attrs: What the writer kept in the header.
    """

    path: str
    format_version: int
    samples: int
    bytes: int
    digest: str
    keyed: bool
    fields: tuple[FieldInfo, ...]
    classes: dict[str, int] | None
    content: dict[str, dict[str, int]]
    attrs: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def info(path: str | os.PathLike[str]) -> StoreInfo:
    """Summarise a store.

    Raises:
        StoreNotFoundError: Nothing is there.
        StoreFormatError: It is not a store.
    """
    store = Store(path)
    header = store.header
    return StoreInfo(
        path=store.path,
        format_version=header.version,
        samples=len(store),
        bytes=os.path.getsize(store.path),
        digest=store.digest,
        keyed=header.keyed,
        fields=tuple(_fields(store)),
        classes=_classes(store),
        content=_content(store),
        attrs={k: v for k, v in store.attrs.items() if k not in ("formats", "modes")},
    )


def _fields(store: Store) -> list[FieldInfo]:
    columns = {spec.name: spec for spec in store.header.columns}
    chunked = [f.name for f in store.header.chunked]
    sizes = dict.fromkeys(chunked, 0)
    values = dict.fromkeys(chunked, 0)
    if chunked and store.header.one_entry_each:
        values = dict.fromkeys(chunked, len(store))
        done = 0
        for rows in _segments(store, "@entries") if len(store) else ():
            for at, name in enumerate(chunked):
                sizes[name] += int(rows[(at - done) % len(chunked) :: len(chunked), 1].sum())
            done += len(rows)
    elif chunked and len(store):
        empty = np.empty(0, np.uint64)  # samples without a single value have no entries
        lengths = np.concatenate([empty, *(rows[:, 1] for rows in _segments(store, "@entries"))])
        bounds = store.opened.entry_bounds()
        ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        each = (ends[bounds[1:]] - ends[bounds[:-1]]).reshape(len(store), len(chunked))
        filled = (np.diff(bounds) > 0).reshape(len(store), len(chunked))
        sizes = dict(zip(chunked, each.sum(axis=0).tolist(), strict=True))
        values = dict(zip(chunked, filled.sum(axis=0).tolist(), strict=True))
    found = []
    for field in store.header.fields:
        if field.name in sizes:
            kind, size, count = field.codec, sizes[field.name], values[field.name]
        else:
            names = [n for n in columns if n == field.name or n.startswith(f"{field.name}@")]
            size = sum(columns[n].rows * columns[n].row_bytes for n in names)
            count = len(store)
            dtype = np.dtype(field.dtype).name if field.dtype else ""
            shape = f"[{', '.join(map(str, field.shape))}]" if field.shape else ""
            kind = f"{dtype}{shape}" if field.kind == "column" else f"{field.kind} {dtype}".strip()
        found.append(FieldInfo(name=field.name, kind=kind, values=count, bytes=size))
    return found


def _segments(store: Store, name: str) -> list[Any]:
    column = store.column(name)
    return [column.segment(i) for i in range(column.segments)]


def _classes(store: Store) -> dict[str, int] | None:
    labels = next((f for f in store.header.fields if f.name == "label"), None)
    if store.classes is None or labels is None or labels.kind != "column" or labels.shape:
        return None
    if np.dtype(labels.dtype).kind not in "iu":
        return None
    names = list(store.classes)
    counts = np.zeros(len(names), np.int64)
    for segment in _segments(store, "label"):
        known = segment[(segment >= 0) & (segment < len(names))]
        counts += np.bincount(known.astype(np.int64), minlength=len(names))
    return dict(zip(names, counts.tolist(), strict=True))


def _content(store: Store) -> dict[str, dict[str, int]]:
    """Count the values of the columns that hold codes or small numbers."""
    codes = {"format": "formats", "mode": "modes", "orientation": "", "bits": ""}
    content = {}
    for field in store.header.fields:
        what = field.name.removeprefix("source_")
        small = field.kind == "column" and not field.shape and np.dtype(field.dtype) == np.uint8
        if what not in codes or not small:
            continue
        names = store.attrs.get(codes[what])
        named = names if isinstance(names, list) else []
        totals = np.zeros(256, np.int64)
        for segment in _segments(store, field.name):
            totals += np.bincount(segment, minlength=256)
        content[field.name] = {
            str(named[code]) if code < len(named) else str(code): int(totals[code])
            for code in np.flatnonzero(totals).tolist()
        }
    return content
