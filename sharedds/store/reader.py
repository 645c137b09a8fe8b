"""Reads a store: a path and a few numbers until first used, then one mapping for the process."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex

import msgspec
import numpy.typing as npt

from sharedds.codecs import TILE_CODECS, Scratch
from sharedds.errors import (
    SampleIndexError,
    SampleKeyError,
    SchemaError,
    StoreFormatError,
)
from sharedds.handles import per_process
from sharedds.packed import encode_text
from sharedds.store.array_meta import parse_meta
from sharedds.store.arrays import ChunkedArray, Owner
from sharedds.store.block_cache import BlockCache
from sharedds.store.columns import Column, TextColumn
from sharedds.store.header import Header
from sharedds.store.joined import OpenedShards, open_shards
from sharedds.store.layout import FieldSpec
from sharedds.store.opened import OpenedStore, open_file, resolve
from sharedds.store.pictures import as_array, picture
from sharedds.store.requests import (
    checked_requests,
    entries_touched,
    read_regions,
    read_scaled,
)

__all__ = ["DEFAULT_CACHE", "Store"]

DEFAULT_CACHE = 64 << 20  # bytes of decoded blocks, where a cache is asked for
_KNOWN = 64  # arrays of tiles that are known in a process, of a few kB each


class Store:
    """A sealed store, one file or a folder of shards, opened read-only.

    It holds a path; the file is mapped on first use, once for each process, whoever opens it. It
    pickles to a few hundred bytes and may be made before workers start, by any start method.

    Every value read is compared with its checksum, so damage is an error and never wrong data; raw
    blocks over 256 KiB are compared when a process first touches them.

    A store is replaced by a rename, never in place. One that is cut short while it is open is a
    :class:`StoreChangedError` at the next read. What no check can see is a cut between the check
    and the read, or under a view or column array that was returned before: there the system ends
    the process (SIGBUS). Copy what you keep for long from files that others may truncate.

    Args:
        path: The file, or a folder with ``data.mdb`` or shards. ``~`` is expanded; a relative path
            stays right when the process changes its folder.

    Raises:
        StoreNotFoundError: Nothing is there; nothing is created.
        StoreFormatError: Not a store, another version, or damaged structure.
        SourceError: It cannot be read.

    Example:
        >>> store = Store("photos.lmdb")  # doctest: +SKIP
        >>> len(store), store[0]["image"].shape, store.column("label")[:3]  # doctest: +SKIP
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = resolve(path)
        self._digest = self.opened.header.digest

    @per_process
    def opened(self) -> OpenedStore | OpenedShards:
        """The open file, or the index of shards, in this process."""
        digest = self.__dict__.get("_digest")
        opening = open_shards if os.path.isdir(self.path) else open_file
        return opening(self.path, digest)

    @per_process
    def _scratch(self) -> Scratch:
        """Memory for tiles of which a part is wanted."""
        return Scratch()

    @per_process
    def _tiled(self) -> dict[tuple[int, str], ChunkedArray]:
        """Arrays of tiles that were read before: to describe one anew takes as long as a tile."""
        return {}

    @per_process
    def _blocks(self) -> BlockCache:
        return BlockCache(self.__dict__.get("_cache_bytes", 0))

    def block_cache(self, nbytes: int = DEFAULT_CACHE) -> BlockCache:
        """Keep decoded blocks of arrays in memory, up to ``nbytes`` in each process; 0 keeps none.

        All arrays of this object share the cache, those made before too. It is never pickled: each
        process has one of its own, empty at first. Without this call nothing is kept.

        Returns:
            The cache of this process; its ``stats`` say what it does.

        Raises:
            OptionError: A negative number.
        """
        cache = self._blocks
        cache.resize(nbytes)
        self._cache_bytes = nbytes
        return cache

    def __len__(self) -> int:
        return self.opened.header.samples

    @property
    def header(self) -> Header:
        """The header, as read and checked."""
        return self.opened.header

    @property
    def attrs(self) -> dict[str, Any]:
        """What the writer kept in the header."""
        return self.opened.header.attrs

    @property
    def digest(self) -> str:
        """The content digest: equal for equal content, however it was packed."""
        return self.opened.header.digest

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields, in schema order."""
        return tuple(self.opened.fields)

    @property
    def classes(self) -> TextColumn | None:
        """Class names by number, or None when the store has none."""
        return self.opened.text("@classes") if self.opened.has_classes else None

    def column(self, name: str) -> Column:
        """Return the column of a scalar or fixed-shape field.

        Raises:
            SampleKeyError: No such column.
        """
        return self.opened.column(name)

    def texts(self, name: str) -> TextColumn:
        """Return the column of a ``str`` field.

        Raises:
            SampleKeyError: No such field.
        """
        return self.opened.text(self._field(name, "text").name)

    def _field(self, name: str, *kinds: str) -> FieldSpec:
        field = self.opened.fields.get(name)
        if field is None or (kinds and field.kind not in kinds):
            known = ", ".join(f"{f.name} ({f.codec or f.kind})" for f in self.header.fields)
            raise SampleKeyError(
                f"{self.path}: no such field here: {name!r}; fields: {known}",
                path=self.path,
                field=name,
            )
        return field

    def _position(self, index: SupportsIndex) -> int:
        try:
            number = operator.index(index)
        except TypeError:
            name = type(index).__name__
            raise SchemaError(f"an index must be a whole number, not {name}") from None
        count = self.opened.header.samples
        position = number + count if number < 0 else number
        if not 0 <= position < count:
            raise SampleIndexError(
                f"{self.path}: no sample {number}, there are {count}", path=self.path, sample=number
            )
        return position

    # --- keys ---

    def key(self, index: SupportsIndex) -> str:
        """Return the key of a sample (its number where the store has no keys)."""
        position = self._position(index)
        return self.opened.text("@key")[position] if self.header.keyed else str(position)

    def index_of(self, key: str | bytes | os.PathLike[Any]) -> int:
        """Return the number of the sample with this key: a binary search in the file.

        Raises:
            SampleKeyError: No sample has it.
        """
        wanted = encode_text(key)
        found = self.opened.find(wanted) if self.header.keyed else self._number(wanted)
        if found is None:
            text = wanted.decode("utf-8", "backslashreplace")
            raise SampleKeyError(
                f"{self.path}: no sample with the key {text!r}", path=self.path, key=text
            )
        return found

    def _number(self, wanted: bytes) -> int | None:
        number = int(wanted) if wanted.isdigit() and len(wanted) < 20 else -1
        return number if 0 <= number < len(self) and str(number).encode() == wanted else None

    # --- stored bytes ---

    def read(self, field: str, index: SupportsIndex) -> memoryview:
        """Return the stored bytes of a field of one chunk, such as an image: a view of the file.

        Raises:
            SampleIndexError: No such sample.
            SampleKeyError: No such field, or the sample has no value there.
            CorruptDataError: The bytes fail their checksum.
            StoreChangedError: The file was cut short since it was opened.
        """
        opened = self.opened
        if field not in opened.chunked:
            self._field(field, "image", "blocks")
        position = self._position(index)
        start, stop = opened.entry_range(position, field)
        if stop - start != 1:
            what = "no value" if start == stop else f"{stop - start} chunks, use array()"
            raise self._no_value(position, field, what)
        return opened.entry(start, position, field)

    def _no_value(self, sample: int, field: str, what: str = "no value") -> SampleKeyError:
        return SampleKeyError(
            f"{self.path}: sample {sample}, field {field!r} has {what}",
            path=self.path,
            sample=sample,
            field=field,
        )

    def read_many(self, field: str, indices: Sequence[SupportsIndex]) -> list[memoryview]:
        """Return the stored bytes of many samples: all are asked for first, then read in order."""
        positions = [self._position(i) for i in indices]
        self.advise(field, positions)
        order = sorted(range(len(positions)), key=positions.__getitem__)
        values: list[memoryview] = [memoryview(b"")] * len(positions)
        for at in order:
            values[at] = self.read(field, positions[at])
        return values

    def advise(self, field: str, indices: Sequence[SupportsIndex]) -> None:
        """Tell the kernel that these samples are read soon; it fetches them meanwhile."""
        opened = self.opened
        if field in opened.chunked:
            spans = [opened.entry_range(self._position(i), field) for i in indices]
            opened.advise(number for span in spans for number in range(*span))

    def release(self) -> None:
        """Let go of the pages of the file that were touched; the system keeps them in its cache.

        They count as memory of the process (in RSS and PSS) until then, though the system could
        take them at any time. Views stay as they are: what is touched again is mapped again.
        """
        self.opened.release()

    # --- samples ---

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        """Return one sample: a dict of decoded fields (images as (H, W, C) arrays)."""
        position = self._position(index)
        return {name: self.value(name, position) for name in self.opened.fields}

    def value(self, name: str, index: SupportsIndex) -> Any:
        """Return one field of one sample, decoded; None where it has no value.

        Raises:
            SampleIndexError: No such sample.
            SampleKeyError: No such field.
            CorruptDataError: It fails its checksum or does not decode.
            ImageTooLargeError: More pixels than the store was packed for (200 million if that is
                not recorded); :meth:`read` gives the bytes.
        """
        field, position = self._field(name), self._position(index)
        opened = self.opened
        if field.kind == "image":
            return picture(opened, self.attrs, name, position)
        if field.kind == "blocks":
            return self.array(position, name)[()] if self._meta(field, position) else None
        if field.kind == "column":
            value = opened.column(name)[position]
            return value if field.shape else value.item()
        if field.kind == "ragged":
            return opened.ragged(name, shaped=True)[position]
        if field.kind == "text":
            return opened.text(name)[position]
        data = opened.text(name).bytes(position)
        if field.kind == "bytes":
            return data
        try:
            return msgspec.json.decode(data)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise opened.corrupt(position, name, f"is not JSON ({error})") from error

    def _meta(self, field: FieldSpec, position: int) -> bytes:
        return self.opened.text(f"{field.name}@meta").bytes(position)

    def array(self, index: SupportsIndex, field: str) -> ChunkedArray:
        """Return an array for reading by regions: only the blocks a region touches are decoded.

        An image is an array of one block, decoded here.

        Raises:
            SampleKeyError: No such field, or the sample has no value there.
            StoreFormatError: What is stored about the array is damaged.
        """
        position = self._position(index)
        spec = self._field(field, "image", "blocks")
        is_tiled = spec.kind == "blocks" and spec.codec in TILE_CODECS
        known = self._tiled.get((position, field)) if is_tiled else None
        if known is not None:
            return known
        owner = Owner(self.path, position, field)
        if spec.kind == "image":
            image = picture(self.opened, self.attrs, field, position)
            if image is None:
                raise self._no_value(position, field)
            return as_array(image, owner)
        record = self._meta(spec, position)
        if not record:
            raise self._no_value(position, field)
        meta = parse_meta(record, owner)
        start, stop = self.opened.entry_range(position, field)
        starts = [start]
        for level in meta.levels:
            starts.append(starts[-1] + level.blocks)
        if starts[-1] != stop:
            text = f"{stop - start} blocks, its shape needs {starts[-1] - start}; it is damaged"
            raise owner.error(StoreFormatError, text)

        def find_blocks(level: int, numbers: list[int]) -> Iterator[tuple[memoryview, int]]:
            return self.opened.entries(
                starts[level], numbers, position, field, once=spec.codec == "raw"
            )

        def read_blocks(level: int, numbers: list[int]) -> Iterator[memoryview]:
            return (data for data, _ in find_blocks(level, numbers))

        scratch = self._scratch if is_tiled else None
        array = ChunkedArray(
            meta,
            spec.codec,
            read_blocks,
            owner,
            cache=self._block_cache,
            scratch=scratch,
            find_blocks=find_blocks if spec.codec == "blosc" else None,
        )
        if is_tiled:
            if len(self._tiled) >= _KNOWN:
                self._tiled.clear()
            self._tiled[position, field] = array
        return array

    def read_mpp(
        self,
        index: SupportsIndex,
        x: float,
        y: float,
        size: int | tuple[int, int],
        mpp: float,
        *,
        field: str = "image",
        plane: int = 0,
    ) -> npt.NDArray[Any]:
        """Read a region of a slide by the size of its pixels.

        The coarsest level that is fine enough is read, and averaged down by area. Outside of the
        slide is its background.

        Args:
            index: The slide.
            x: Left edge, in pixels of level 0.
            y: Upper edge.
            size: Of the result in pixels, one number or (h, w).
            mpp: Micrometres for each pixel of the result.
            field: The field.
            plane: Of a focus stack.

        Returns:
            (h, w, channels), in the stored dtype.

        Raises:
            SchemaError: The slide says nothing of the size of its pixels, or a value is no size.
            CorruptDataError: A tile is damaged.
        """
        array = self.array(index, field)
        name = self.key(index) if self.header.keyed else ""
        return read_scaled(array, name, y=y, x=x, size=size, mpp=mpp, plane=plane)

    def read_regions(
        self,
        field: str,
        requests: Sequence[tuple[SupportsIndex, int, Sequence[int], Sequence[int]]],
        *,
        padding: str = "constant",
        fill: float | Sequence[float] | None = 0,
    ) -> list[npt.NDArray[Any]]:
        """Read many regions: all are asked for first, and each block is decoded once.

        Args:
            field: An array field.
            requests: (sample, level, start, size): start and size are those of the last axes, as
                :meth:`ChunkedArray.patch` takes them: (y, x, 0) and (h, w, channels) of a picture.
            padding: As of ``patch``.
            fill: What is outside: a number, one for each channel, or None for the background.

        Returns:
            For each request an array of its own, in the stored dtype.

        Raises:
            SampleKeyError: No such field, or a sample has no value there.
            SchemaError: A region, padding or ``fill`` that does not fit.
            CorruptDataError: A block is damaged.
        """
        arrays: dict[int, ChunkedArray] = {}

        def array_of(sample: int, level: int) -> ChunkedArray:
            if sample not in arrays:
                arrays[sample] = self.array(sample, field)
            return arrays[sample].level(level)

        wanted = checked_requests(requests, self._position, self.path)
        spec = self._field(field, "image", "blocks")
        if spec.kind == "blocks":
            self.opened.advise(
                entries_touched(wanted, array_of, lambda n: self.opened.entry_range(n, field)[0])
            )
        return read_regions(wanted, array_of, padding=padding, fill=fill)

    def _block_cache(self) -> BlockCache | None:
        """Return the cache of this process where one was asked for."""
        return self._blocks if self.__dict__.get("_cache_bytes") else None

    def __repr__(self) -> str:
        return f"Store({self.path!r})"
