"""The index of a sharded store: which sealed files make it up, checked whole before it is used.

It is ``shards.json`` in the folder. Whoever changes a store keeps the index of before under the
digest of its content, and puts the new one in place by a rename: a reader that was opened before,
in any process, goes on with what it knew.
"""

from __future__ import annotations

import itertools
import os
import re
from typing import Any

import msgspec
import xxhash

from sharedds.errors import SourceError, StoreChangedError, StoreFormatError
from sharedds.handles import storage_errors
from sharedds.store.header import fields_problem
from sharedds.store.layout import MAX_HEADER, FieldSpec
from sharedds.store.lock import sync_folder

__all__ = [
    "INDEX",
    "INDEX_VERSION",
    "Edits",
    "KeyFile",
    "Shard",
    "ShardIndex",
    "holds_shards",
    "read_index",
    "write_index",
]

INDEX, INDEX_VERSION = "shards.json", 1
_FORMAT = "sharedds-shards"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_DIGEST = re.compile(r"[0-9a-f]{32}\Z")
_MOST_SHARDS = 1 << 20
_LIMIT = 1 << 56
_BEGIN = b'{"format":"sharedds-shards"'


class Shard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One sealed file: its name in the folder, what it holds, and how large it is."""

    file: str
    samples: int
    entries: int
    bytes: int
    digest: str


class KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of all shards: sorted hashes, then the samples in that order; both ``<u8``."""

    file: str
    bytes: int
    checksum: str


class Edits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sealed file with columns that stand in for those of the first ``samples`` samples.

    ``keys`` and ``classes`` say whether it also stands in for these.
    """

    file: str
    samples: int
    bytes: int
    digest: str
    columns: tuple[str, ...]
    keys: bool
    classes: bool


class ShardIndex(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a sharded store consists of; ``seal`` is the xxh3-64 of this JSON with an empty seal."""

    format: str
    version: int
    samples: int
    entries: int
    digest: str
    fields: tuple[FieldSpec, ...]
    shards: tuple[Shard, ...]
    one_entry_each: bool
    keyed: bool
    classes: int  # how many; -1 without class names
    keys: KeyFile | None
    edits: Edits | None
    attrs: dict[str, Any]
    seal: str = ""


def holds_shards(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder has an index of shards."""
    path = os.path.join(folder, INDEX)
    try:
        if not os.path.isfile(path):  # to open a pipe could wait for ever
            return False
        with open(path, "rb") as file:
            return file.read(len(_BEGIN)) == _BEGIN
    except OSError:
        return False


def read_index(folder: str, digest: str | None = None) -> ShardIndex:
    """Read and check an index.

    Args:
        folder: Of the sharded store.
        digest: The content that is wanted, where a later index may have taken its place.

    Raises:
        StoreFormatError: It is none, of another version, or damaged.
        StoreChangedError: Neither the index nor one of before is of this digest.
        SourceError: It cannot be read.
    """
    found = _read(os.path.join(folder, INDEX))
    if digest in (None, found.digest):
        return found
    earlier = _earlier(folder, str(digest))
    if _DIGEST.match(str(digest)) and os.path.isfile(earlier):
        older = _read(earlier)
        if older.digest == digest:
            return older
    raise StoreChangedError(
        f"{folder} was replaced by another store since this object was made (digest "
        f"{found.digest}, expected {digest}); make the dataset anew",
        path=folder,
    )


def _earlier(folder: str, digest: str) -> str:
    return os.path.join(folder, f"shards-{digest}.json")


def _read(path: str) -> ShardIndex:
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_HEADER + 1)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})", path=path) from error
    try:
        index = _parse(text)
        _check(index)
    except _IndexError as error:
        raise StoreFormatError(
            f"{path}: {error}; restore it from a copy, or pack the store again", path=path
        ) from error
    return index


class _IndexError(Exception):
    """What is wrong with an index."""


def _parse(text: bytes) -> ShardIndex:
    if len(text) > MAX_HEADER:
        raise _IndexError(f"the index has over {MAX_HEADER:,} bytes, which is the limit")
    try:
        loose = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _IndexError(f"the index is damaged ({error})") from error
    if not isinstance(loose, dict) or loose.get("format") != _FORMAT:
        raise _IndexError("this is no index of shards")
    if loose.get("version") != INDEX_VERSION:
        raise _IndexError(
            f"index version {loose.get('version')!r}, this release reads {INDEX_VERSION}"
        )
    try:
        index = msgspec.convert(loose, ShardIndex)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _IndexError(f"the index is damaged ({error})") from error
    if index.seal != _seal(index):
        raise _IndexError("the index fails its checksum")
    return index


def _seal(index: ShardIndex) -> str:
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode(msgspec.structs.replace(index, seal="")))


def _check(index: ShardIndex) -> None:
    shards, edits = index.shards, index.edits
    if not 1 <= len(shards) <= _MOST_SHARDS:
        raise _IndexError(f"{len(shards):,} shards")
    names = [shard.file for shard in shards]
    names += [part.file for part in (index.keys, edits) if part is not None]
    for name in names:
        if not _NAME.match(name) or name == INDEX:
            raise _IndexError(f"{name!r} is no name of a file in this folder")
    if len(set(names)) < len(names):
        raise _IndexError("a file is named twice")
    sums = [index.samples, index.entries]
    sizes = [n for shard in shards for n in (shard.samples, shard.entries, shard.bytes)]
    if not all(0 <= n < _LIMIT for n in (*sums, *sizes)):
        raise _IndexError("a number of samples, entries or bytes is out of range")
    if sums != [sum(s.samples for s in shards), sum(s.entries for s in shards)]:
        raise _IndexError("the shards do not add up to the number of samples or entries")
    if problem := fields_problem(index.fields):
        raise _IndexError(problem)
    if not -1 <= index.classes < _LIMIT:
        raise _IndexError(f"{index.classes} classes")
    if any(shard.samples > shard.bytes for shard in shards):  # none takes less than a byte
        raise _IndexError("a shard of more samples than bytes")
    if (index.keys is not None) != index.keyed:
        raise _IndexError("the file of the keys is not named, or there are no keys")
    if index.keys is not None and index.keys.bytes != 16 * index.samples:
        raise _IndexError(f"{index.keys.file} has {index.keys.bytes} bytes for the keys")
    if edits is not None:
        bounds = itertools.accumulate((shard.samples for shard in shards), initial=0)
        if edits.samples not in set(bounds) or not 0 <= edits.bytes < _LIMIT:
            raise _IndexError(f"{edits.file} has {edits.samples} samples: it ends inside a shard")
        if not set(edits.columns) <= {field.name for field in index.fields}:
            raise _IndexError(f"{edits.file} has columns that are none: {edits.columns}")


def write_index(folder: str, index: ShardIndex) -> None:
    """Put an index in place, in one step; the one of before stays readable under its digest.

    Raises:
        StorageFullError: No room.
        StoreFormatError: It is too large.
    """
    text = msgspec.json.encode(msgspec.structs.replace(index, seal=_seal(index)))
    if len(text) > MAX_HEADER:
        raise StoreFormatError(f"{folder}: an index of {len(text):,} bytes; use larger shards")
    path, new = os.path.join(folder, INDEX), os.path.join(folder, f"{INDEX}.new")
    with storage_errors(folder):
        with open(new, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if os.path.exists(path):
            kept = _earlier(folder, _read(path).digest)
            with open(path, "rb") as source, open(f"{kept}.new", "wb") as target:
                target.write(source.read())
                target.flush()
                os.fsync(target.fileno())
            os.replace(f"{kept}.new", kept)
        os.replace(new, path)
        sync_folder(folder)
