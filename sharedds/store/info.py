"""What is in a store, for people and programs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from sharedds.codecs import TILE_CODECS
from sharedds.errors import OptionError
from sharedds.store.array_meta import ArrayMeta, parse_meta
from sharedds.store.blocking import PatchCost, block_shape, patch_cost
from sharedds.store.joined import OpenedShards
from sharedds.store.reader import Store
from sharedds.store.regions import Owner

__all__ = ["FieldInfo", "PatchInfo", "StoreInfo", "info", "patch_info"]


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
        path: The file, or the folder of shards.
        format_version: Of the file.
        samples: Number of samples.
        bytes: Size of the file, or of all shards.
        digest: Content digest.
        keyed: Whether samples have keys.
        fields: The schema, with the bytes of each field.
        classes: Samples of each class by name, in class order; None without classes.
        content: Counts of the values of small columns that are codes: formats, modes, orientation.
        attrs: What the writer kept in the header.
        shards: How many files it is; 0 where it is one that was never cut.
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
    shards: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchInfo:
    """What a patch of a field costs as its arrays are stored, and with blocks made for it.

    Attributes:
        field: The field.
        patch: The patch, over the last axes of an array.
        arrays: How many arrays it is the mean of.
        chunk: Shape of the blocks of most of them.
        now: The mean cost of a patch at a random place.
        repacked_chunk: The blocks that are best for this patch.
        repacked: The mean cost with these.
    """

    field: str
    patch: tuple[int, ...]
    arrays: int
    chunk: tuple[int, ...]
    now: PatchCost
    repacked_chunk: tuple[int, ...]
    repacked: PatchCost

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def patch_info(path: str | os.PathLike[str], patch: Sequence[int]) -> tuple[PatchInfo, ...]:
    """Say what random patches of a store cost: blocks and bytes touched, and after a repack.

    Only descriptions are read. A patch that is larger than an array is the whole of it; leading
    axes (channels, steps) are whole. Two numbers count pixels where an array is cut into tiles.

    Args:
        path: The store.
        patch: Shape of the patch.

    Returns:
        One answer for each field of blocks that has arrays of at least so many axes.

    Raises:
        OptionError: A patch with no axes, or sizes that are not positive.
        StoreNotFoundError: Nothing is there.
        StoreFormatError: It is not a store, or a description is damaged.
    """
    size = tuple(patch)
    if not size or min(size) < 1:
        raise OptionError(f"patch={size}: positive whole numbers, such as 96,96,96")
    store = Store(path)
    answers = []
    for field in store.header.fields:
        if field.kind == "blocks":
            kinds = Counter(
                (meta.levels[0].shape, meta.levels[0].chunk, np.dtype(meta.dtype).itemsize)
                for meta in _descriptions(store, field.name)
                if len(meta.levels[0].shape) >= len(size)
            )
            if kinds:
                tiled = field.codec in TILE_CODECS
                answers.append(_patch_cost(field.name, size, kinds, tiled=tiled))
    return tuple(answers)


def _descriptions(store: Store, field: str) -> Iterator[ArrayMeta]:
    records = store.opened.text(f"{field}@meta")
    for sample in range(len(store)):
        record = records.bytes(sample)
        if record:
            yield parse_meta(record, Owner(store.path, sample, field))


def _patch_cost(
    field: str,
    patch: tuple[int, ...],
    kinds: Counter[tuple[tuple[int, ...], tuple[int, ...], int]],
    *,
    tiled: bool,
) -> PatchInfo:
    now, then = [], []
    chunks: Counter[tuple[int, ...]] = Counter()
    better: Counter[tuple[int, ...]] = Counter()
    for (shape, chunk, itemsize), count in kinds.items():
        part = (*patch, shape[-1]) if tiled and len(patch) == 2 else patch  # channels are whole
        leading = len(shape) - len(part)
        whole = tuple(max(1, n) for n in shape[:leading]) + part
        best = (1,) * leading + block_shape(shape[leading:], itemsize, patch=part)
        if tiled:  # pictures stay as they were cut
            best = chunk
        chunks[chunk] += count
        better[best] += count
        now.append((count, patch_cost(shape, itemsize, chunk, whole)))
        then.append((count, patch_cost(shape, itemsize, best, whole)))
    return PatchInfo(
        field=field,
        patch=patch,
        arrays=kinds.total(),
        chunk=chunks.most_common(1)[0][0],
        now=_mean(now),
        repacked_chunk=better.most_common(1)[0][0],
        repacked=_mean(then),
    )


def _mean(costs: list[tuple[int, PatchCost]]) -> PatchCost:
    total = sum(count for count, _ in costs)
    touched = sum(count * cost.bytes_touched for count, cost in costs) / total
    asked = sum(count * cost.bytes_touched / cost.amplification for count, cost in costs) / total
    return PatchCost(
        blocks=sum(count * cost.blocks for count, cost in costs) / total,
        bytes_touched=touched,
        amplification=touched / asked if asked else 1.0,
    )


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
        bytes=store.opened.nbytes,
        digest=store.digest,
        keyed=header.keyed,
        fields=tuple(_fields_of_all(store)),
        classes=_classes(store),
        content=_content(store),
        attrs={k: v for k, v in store.attrs.items() if k not in ("formats", "modes")},
        shards=len(_shards(store)),
    )


def _shards(store: Store) -> list[str]:
    opened = store.opened
    if isinstance(opened, OpenedShards):
        return [os.path.join(store.path, shard.file) for shard in opened.index.shards]
    return []


def _fields_of_all(store: Store) -> list[FieldInfo]:
    """Add up what each shard says of its fields."""
    totals: list[FieldInfo] = []
    for path in _shards(store):
        found = _fields(Store(path))
        totals = [
            replace(mine, values=mine.values + more.values, bytes=mine.bytes + more.bytes)
            for mine, more in zip(
                totals or [replace(f, values=0, bytes=0) for f in found], found, strict=True
            )
        ]
    return totals or _fields(store)


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


def _segments(store: Store, name: str) -> Iterator[Any]:
    column = store.column(name)
    return (column.segment(i) for i in range(column.segments))


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
