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
    if chunked and len(store):
        lengths = np.concatenate([s[:, 1] for s in _segments(store, "@entries")] or [np.empty(0, np.uint64)])
        if store.header.one_entry_each:
            bounds = np.arange(len(store) * len(chunked) + 1)
        else:
            bounds = np.asarray(store.column("@first")).astype(np.int64)
        sums = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        per = (sums[bounds[1:]] - sums[bounds[:-1]]).reshape(len(store), len(chunked))
        filled = (np.diff(bounds) > 0).reshape(len(store), len(chunked))
        sizes = dict(zip(chunked, per.sum(axis=0).tolist(), strict=True))
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
    if store.classes is None or "label" not in store.fields:
        return None
    names = list(store.classes)
    labels = np.asarray(store.column("label"))
    counts = np.bincount(labels[(labels >= 0) & (labels < len(names))], minlength=len(names))
    return dict(zip(names, counts.tolist(), strict=True))


def _content(store: Store) -> dict[str, dict[str, int]]:
    content = {}
    for name, codes in (("format", "formats"), ("mode", "modes"), ("orientation", ""), ("bits", "")):
        if name in store.fields and any(s.name == name for s in store.header.columns):
            names = store.attrs.get(codes) or []
            values, counts = np.unique(np.asarray(store.column(name)), return_counts=True)
            content[name] = {
                (str(names[v]) if v < len(names) else str(v)): n
                for v, n in zip(values.tolist(), counts.tolist(), strict=True)
            }
    return content
