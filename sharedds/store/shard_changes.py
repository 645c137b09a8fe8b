"""Changes of a sharded store: shards appended, columns edited; what is there is never touched.

An index takes the place of the one before in one step, and nothing else is replaced: whoever has
the store open goes on reading what it was.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from sharedds.errors import OptionError, SampleKeyError, SchemaError, StoreBusyError, StoreError
from sharedds.handles import storage_errors
from sharedds.store.copying import schema_of
from sharedds.store.joined import OpenedShards
from sharedds.store.layout import FieldSpec
from sharedds.store.lock import FolderLock
from sharedds.store.reader import Store
from sharedds.store.shard_copies import ChangeReport, PathLike, copy_samples, require_alike
from sharedds.store.shard_index import Edits, read_index, write_index
from sharedds.store.sharding import index_of_files, shard_name
from sharedds.store.writer import StoreWriter

__all__ = ["append", "edit"]

_TRUTH = {"true": True, "1": True, "false": False, "0": False}


@contextlib.contextmanager
def _held(store: Store) -> Iterator[OpenedShards]:
    """Give what stands in the index now, while nobody else changes it."""
    if not isinstance(store.opened, OpenedShards):
        raise OptionError(
            f"{store.path} is a single file, which is never changed; make a folder of shards of "
            "it first: sharedds merge STORE OUT --shards 1",
            path=store.path,
        )
    with storage_errors(store.path):
        lock = FolderLock.take(store.path)
    if lock is None:
        raise StoreBusyError(f"{store.path} is being changed by another process", path=store.path)
    try:
        yield OpenedShards(store.path, read_index(store.path))
    finally:
        lock.remove()


def append(
    store: PathLike,
    sources: Iterable[PathLike],
    *,
    dry_run: bool = False,
    progress: bool | None = None,
) -> ChangeReport:
    """Append stores to a sharded store, as new shards; who has it open goes on with the old one.

    Args:
        store: The folder of shards.
        sources: Stores with the same fields and class names. Files are copied as they are.
        dry_run: Look whether they fit; write nothing.
        progress: True or False to show a bar; by default after two seconds.

    Raises:
        OptionError: ``store`` is a single file.
        SchemaError: Fields or keys differ, or a key would be there twice; nothing has changed.
        ClassMismatchError: Class names differ.
        StoreBusyError: Another process is changing it.
        StorageFullError: No room; nothing has changed.
    """
    target = Store(store)
    others = [Store(source) for source in sources]
    require_alike([target, *others])
    added = sum(map(len, others))
    with _held(target) as joined:
        index = joined.index
        files = [shard.file for shard in index.shards]
        taken = {*os.listdir(joined.path), *files}
        new: list[str] = []
        digest = ""
        try:
            for source in () if dry_run else _files_of(others):
                number = len(files)
                while shard_name(number) in taken:
                    number += 1
                name = shard_name(number)
                taken.add(name)
                new.append(name)
                _bring(source, os.path.join(joined.path, name), progress=progress)
                files.append(name)
            if new:
                made = index_of_files(joined.path, files, attrs=index.attrs, edits=index.edits)
                write_index(joined.path, made)
                digest = made.digest
        except BaseException:
            _remove_unnamed(joined.path, new)
            raise
    return ChangeReport(
        path=target.path,
        samples=index.samples + added,
        changed=added,
        files=tuple(new),
        digest=digest,
        dry_run=dry_run,
    )


def _remove_unnamed(folder: str, names: Iterable[str]) -> None:
    """Remove what a change that failed has made, but never what the index names by now."""
    with contextlib.suppress(StoreError, OSError):
        named = {shard.file for shard in read_index(folder).shards}
        for name in set(names) - named:
            os.unlink(os.path.join(folder, name))


def _files_of(stores: Sequence[Store]) -> Iterator[str | Store]:
    """Yield files that can be copied whole; a store with edits is copied by samples."""
    for store in stores:
        opened = store.opened
        if not isinstance(opened, OpenedShards):
            yield store.path
        elif opened.index.edits is None:
            for number in range(len(opened.index.shards)):
                yield opened.shard(number).path  # compared with the index
        else:
            yield store


def _bring(source: str | Store, path: str, *, progress: bool | None) -> None:
    if isinstance(source, Store):
        copy_samples(path, [(source, range(len(source)))], cut=None, progress=progress)
        return
    with storage_errors(path):
        shutil.copyfile(source, f"{path}.new")
        with open(f"{path}.new", "rb+") as file:
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)


def edit(
    store: PathLike,
    rows: Iterable[Mapping[str, Any]],
    *,
    classes: Sequence[str] | None = None,
    dry_run: bool = False,
) -> ChangeReport:
    """Change columns of a sharded store in a file beside the shards; no pixel is written again.

    Args:
        store: The folder of shards.
        rows: Of each sample to change its ``key``, and new values by column; ``new_key`` renames
            it. A label may be a class name.
        classes: New class names, where these change too.
        dry_run: Check everything; write nothing.

    Raises:
        OptionError: ``store`` is a single file, or a row has no key.
        SampleKeyError: There is no such sample or column.
        SchemaError: A value does not fit, or two samples would have the same key.
        StoreBusyError: Another process is changing it.
    """
    with _held(Store(store)) as joined:
        now = Store(joined.path)
        old = joined.index.edits
        changes: dict[int, dict[str, Any]] = {}
        for row in rows:
            given: object = row
            values = dict(given) if isinstance(given, Mapping) else {}
            key = values.pop("key", None)
            if key is None:
                raise OptionError(f"a row without the key of a sample: {row!r}")
            if values.get("new_key", key) == "":
                raise OptionError(f"{now.path}: an empty new_key for the sample {key!r}")
            changes.setdefault(now.index_of(key), {}).update(values)
        names = {name for values in changes.values() for name in values}
        renames = "new_key" in names or (old is not None and old.keys)
        names = (names - {"new_key"}) | set(() if old is None else old.columns)
        fields = [_editable(now, name) for name in sorted(names)]
        given = list(classes) if classes is not None else None
        if given is None and joined.is_edited("@classes"):
            given = list(now.classes or ())
        numbers = {n: at for at, n in enumerate(given or now.classes or ())}
        digest = ""
        files: tuple[str, ...] = ()
        if not dry_run and (fields or renames or given is not None):
            path = os.path.join(joined.path, "edits.new")
            schema = _schema(now, fields)
            with StoreWriter(path, schema=schema, classes=given, force=True) as writer:
                for number in range(len(now)):
                    change = changes.get(number, {})
                    values = {f.name: _value(now, f, number, change, numbers) for f in fields}
                    name = change.get("new_key", now.key(number)) if renames else None
                    writer.add(values or {"unused": 0}, key=name)
            made = Store(path)
            file = f"edits-{made.digest}.lmdb"
            size = made.opened.nbytes
            os.replace(path, os.path.join(joined.path, file))
            edits = Edits(
                file=file,
                samples=len(now),
                bytes=size,
                digest=made.digest,
                columns=tuple(field.name for field in fields),
                keys=renames,
                classes=given is not None,
            )
            index = index_of_files(
                joined.path,
                [shard.file for shard in joined.index.shards],
                attrs=joined.index.attrs,
                edits=edits,
            )
            write_index(joined.path, index)
            digest, files = index.digest, (file,)
    return ChangeReport(
        path=now.path,
        samples=len(now),
        changed=len(changes),
        files=files,
        digest=digest,
        dry_run=dry_run,
    )


def _editable(store: Store, name: str) -> FieldSpec:
    field = next((f for f in store.header.fields if f.name == name), None)
    if field is None or field.kind not in ("column", "text") or field.wide:
        known = [f.name for f in store.header.fields if f.kind in ("column", "text") and not f.wide]
        raise SampleKeyError(
            f"{store.path}: no column {name!r} that can be edited; columns: {', '.join(known)}",
            path=store.path,
            field=name,
        )
    return field


def _schema(store: Store, fields: Sequence[FieldSpec]) -> dict[str, Any]:
    header = msgspec.structs.replace(store.header, fields=tuple(fields))
    return schema_of(header) or {"unused": "uint8"}


def _value(
    store: Store,
    field: FieldSpec,
    number: int,
    change: Mapping[str, Any],
    classes: Mapping[str, int],
) -> Any:
    if field.name not in change:
        return store.value(field.name, number)
    value = change[field.name]
    if field.kind == "text" or not isinstance(value, str):
        return value
    if field.name == "label" and value in classes:
        return classes[value]
    try:
        if field.dtype == "|b1":  # any text but an empty one would be true
            return _TRUTH[value.strip().lower()]
        return np.dtype(field.dtype).type(value)
    except (ValueError, OverflowError, KeyError) as error:
        raise SchemaError(
            f"{store.path}: {value!r} is no value of {field.name!r} ({np.dtype(field.dtype).name})",
            path=store.path,
            sample=number,
            field=field.name,
        ) from error
