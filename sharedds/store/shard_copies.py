"""Stores made of stores: merged and split; samples are copied as they are stored, not decoded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sharedds.errors import (
    ClassMismatchError,
    OptionError,
    SampleKeyError,
    SchemaError,
    StoreExistsError,
)
from sharedds.handles import absolute_path, storage_errors
from sharedds.progress import Progress
from sharedds.store.copying import schema_of, stored_sample
from sharedds.store.cut import Cut, sharding_of
from sharedds.store.joined import content_of
from sharedds.store.lock import sync_folder
from sharedds.store.reader import Store
from sharedds.store.shard_writer import store_writer

__all__ = ["ChangeReport", "PathLike", "copy_samples", "merge", "require_alike", "split"]

PathLike: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeReport:
    """What became of stores.

    Attributes:
        path: What was made or changed.
        samples: How many it has.
        changed: Samples that were copied, appended or edited.
        files: Files that were written, by name; None in place of what is not known before.
        digest: Of the content; of a split, and of a dry run, none.
        dry_run: Whether nothing was written.
    """

    path: str
    samples: int
    changed: int
    files: tuple[str, ...]
    digest: str
    dry_run: bool

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def require_alike(stores: Sequence[Store]) -> None:
    """Refuse stores that cannot be one.

    Raises:
        SchemaError: Fields or keys differ.
        ClassMismatchError: Class names differ.
    """
    first = stores[0]
    for other in stores[1:]:
        what = ""
        if content_of(first.header.fields) != content_of(other.header.fields):
            what = "other fields"
        elif first.header.keyed != other.header.keyed:
            what = "keys where the other has none, or none,"
        if what:
            raise SchemaError(f"{other.path} has {what} than {first.path}", path=other.path)
        mine = None if first.classes is None else list(first.classes)
        theirs = None if other.classes is None else list(other.classes)
        if mine != theirs:
            raise ClassMismatchError(
                f"{other.path} has other class names than {first.path}; pack it with classes= "
                "(--classes) of the other",
                path=other.path,
            )


def merge(
    sources: Iterable[PathLike],
    out: PathLike,
    *,
    shards: int | None = None,
    shard_size: int | str | None = None,
    dry_run: bool = False,
    progress: bool | None = None,
) -> ChangeReport:
    """Copy all samples of some stores into a new one, in order, as they are stored.

    Args:
        sources: Stores, single or sharded, with the same fields and class names.
        out: The file to make, or with one of the next two the folder of shards.
        shards: At most so many, of equal numbers of samples.
        shard_size: Bytes at which a shard ends, or a text such as ``"16GiB"``.
        dry_run: Look whether they fit; write nothing.
        progress: True or False to show a bar; by default after two seconds.

    Raises:
        SchemaError: Fields or keys differ, or a key is there twice.
        ClassMismatchError: Class names differ.
        StoreExistsError: ``out`` is there already.
        CorruptDataError: A value fails its checksum.
    """
    stores = [Store(source) for source in sources]
    if not stores:
        raise OptionError("sources=[]: name at least one store")
    path = absolute_path(out)
    require_alike(stores)
    _require_free(path)
    chosen = [(store, range(len(store))) for store in stores]
    total = sum(map(len, stores))
    sharding = sharding_of(shards, shard_size)
    cut = None if sharding is None else sharding.cut(total)
    digest = "" if dry_run else copy_samples(path, chosen, cut=cut, progress=progress)
    return ChangeReport(
        path=path, samples=total, changed=total, files=(path,), digest=digest, dry_run=dry_run
    )


def _require_free(path: str) -> None:
    if os.path.lexists(path):
        raise StoreExistsError(f"{path} exists already; choose another name", path=path)


def copy_samples(
    path: str,
    chosen: Sequence[tuple[Store, Iterable[int]]],
    *,
    cut: Cut | None,
    progress: bool | None,
) -> str:
    """Copy samples of stores that are alike into a new one; return its digest."""
    first = chosen[0][0]
    classes = None if first.classes is None else list(first.classes)
    schema = schema_of(first.header)
    with (
        store_writer(path, cut=cut, schema=schema, classes=classes, attrs=first.attrs) as writer,
        Progress("copying", unit="samples", enabled=progress) as bar,
    ):
        for store, numbers in chosen:
            for number in numbers:
                writer.add_stored(stored_sample(store, number))
                bar.advance(1)
    return Store(path).digest


def split(
    source: PathLike,
    out: PathLike,
    *,
    parts: int | None = None,
    by: str | None = None,
    group: str | None = None,
    dry_run: bool = False,
    progress: bool | None = None,
) -> ChangeReport:
    """Copy a store into several, each a single file in a new folder.

    Args:
        source: The store.
        out: The folder to make.
        parts: So many stores of nearly equal numbers of samples, in order: ``part-0.lmdb``, ...
        by: Or one store for each value of this column, such as ``"label"``, named after it.
        group: With ``parts``: samples with the same value of this column stay together.
        dry_run: Say what would be made; write nothing.
        progress: True or False to show a bar; by default after two seconds.

    Raises:
        OptionError: Neither ``parts`` nor ``by`` is given, or both.
        SampleKeyError: There is no such column.
        StoreExistsError: ``out`` is there already.
    """
    if (parts is None) == (by is None) or (group is not None and parts is None):
        raise OptionError("split by parts= (with group= or without), or by= a column")
    store, path = Store(source), absolute_path(out)
    _require_free(path)
    if by is not None:
        chosen = _by_value(store, by)
    else:
        count = parts or 0
        if not 1 <= count <= max(1, len(store)):
            raise OptionError(f"parts={parts}: from 1 to the number of samples, {len(store):,}")
        chosen = {f"part-{n}": rows for n, rows in enumerate(_by_count(store, count, group))}
    files = tuple(os.path.join(path, f"{name}.lmdb") for name in chosen)
    if not dry_run:
        made = f"{path}.partial"
        _require_free(made)
        with storage_errors(path):
            os.makedirs(made)
        try:
            for name, rows in chosen.items():
                target = os.path.join(made, f"{name}.lmdb")
                copy_samples(target, [(store, rows.tolist())], cut=None, progress=progress)
            os.rename(made, path)
            sync_folder(os.path.dirname(path))
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    return ChangeReport(
        path=path,
        samples=len(store),
        changed=len(store),
        files=files,
        digest="",
        dry_run=dry_run,
    )


def _values(store: Store, column: str) -> npt.NDArray[Any]:
    """Return a value for each sample that can be compared: numbers, or strings."""
    field = next((f for f in store.header.fields if f.name == column), None)
    if field is None or field.kind not in ("column", "text") or field.shape:
        known = [f.name for f in store.header.fields if f.kind in ("column", "text")]
        raise SampleKeyError(
            f"{store.path}: no column {column!r} of one value for each sample; columns: {known}",
            path=store.path,
            field=column,
        )
    if field.kind == "text":
        return np.array(list(store.texts(column)), dtype=object)
    return np.asarray(store.column(column))


def _by_value(store: Store, column: str) -> dict[str, npt.NDArray[np.int64]]:
    values, back = np.unique(_values(store, column), return_inverse=True)
    classes = store.classes if column == "label" else None
    names = [
        classes[value] if classes is not None and 0 <= value < len(classes) else str(value)
        for value in values.tolist()
    ]
    found = {}
    for number, name in enumerate(names):
        plain = "".join(c if c.isalnum() or c in "._-" else "_" for c in name).lstrip(".") or "none"
        if plain in found:
            plain = f"{plain}-{number}"
        found[plain] = np.flatnonzero(back == number)
    return found


def _by_count(store: Store, parts: int, group: str | None) -> list[npt.NDArray[np.int64]]:
    if group is None:
        return np.array_split(np.arange(len(store)), parts)
    values, back = np.unique(_values(store, group), return_inverse=True)
    if len(values) < parts:
        raise OptionError(f"parts={parts}, but {group!r} has {len(values)} values")
    sizes = np.bincount(back)
    owner, filled = np.empty(len(values), np.int64), np.zeros(parts, np.int64)
    for number in np.argsort(-sizes, kind="stable").tolist():  # the largest first
        owner[number] = np.argmin(filled)
        filled[owner[number]] += sizes[number]
    return [np.flatnonzero(owner[back] == part) for part in range(parts)]
