"""Reads the page structure of an LMDB 0.9 file from its bytes, checking every number it follows.

A store is found and read through our own mapping: liblmdb trusts the pages it is given, so a hostile
or damaged file could crash the process, and its environments cannot cross a fork. Here a bad number
is a :class:`StoreFormatError`. The structures are those of ``lmdb.h`` and ``mdb.c`` of release 0.9
(MDB_DATA_VERSION 1) on a little-endian 64-bit machine; all integers are little-endian:

* page header, 16 bytes: number u64, pad u16, flags u16, then ``lower, upper`` u16 or ``pages`` u32;
* pages 0 and 1 hold a meta record each: magic, version, address, map size, two tree records (free
  pages, main), last page, transaction number; the valid one with the higher transaction counts;
* tree record, 48 bytes: pad u32 (page size in the first), flags u16, depth u16, branch, leaf and
  overflow pages u64, entries u64, root u64;
* node: ``lo, hi, flags, key size`` u16, key, data. In a leaf ``lo | hi << 16`` is the data size; in a
  branch ``lo | hi << 16 | flags << 32`` is the child page. Flag 1: the data is the number of the
  first overflow page; flag 2: the data is the tree record of a named database.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sharedds.errors import StoreFormatError

__all__ = ["Pages", "Tree"]

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _OVERFLOW, _META = 0x01, 0x02, 0x04, 0x08
_BIG, _SUBTREE = 0x01, 0x02
_NONE = (1 << 64) - 1
_HEADER = 16
_MAX_DEPTH = 32
_page_header = struct.Struct("<QHHHH")
_meta = struct.Struct("<IIQQ")
_tree = struct.Struct("<IHHQQQQQ")
_node = struct.Struct("<HHHH")


@dataclass(frozen=True, slots=True)
class Tree:
    """One B-tree of the file: its root page (None when empty), depth and number of entries."""

    root: int | None
    depth: int
    entries: int


class Pages:
    """The pages of one LMDB file.

    Args:
        view: All bytes of the file.
        path: Named in errors.

    Raises:
        StoreFormatError: Not an LMDB file, another version of it, or one that is cut short.
    """

    def __init__(self, view: memoryview, path: str) -> None:
        self.view = view
        self.path = path
        metas = [self._read_meta(0, 0)]
        self.page_size = metas[0][2]
        metas.append(self._read_meta(self.page_size, 1))
        transaction, self.last, _, self.free, self.main = max(metas, key=lambda m: m[0])
        if (self.last + 1) * self.page_size > len(view):
            raise self._error(
                f"it is cut short: {len(view)} bytes, {(self.last + 1) * self.page_size} are needed; "
                "copy or pack it again"
            )

    def _error(self, what: str) -> StoreFormatError:
        return StoreFormatError(f"{self.path}: {what}", path=self.path)

    def _read_meta(self, at: int, number: int) -> tuple[int, int, int, Tree, Tree]:
        if len(self.view) < at + _HEADER + _meta.size + 2 * _tree.size + 16:
            raise self._error(f"not a store: {len(self.view)} bytes are too few for one")
        page, _, flags, _, _ = _page_header.unpack_from(self.view, at)
        magic, version, _, _ = _meta.unpack_from(self.view, at + _HEADER)
        if magic != _MAGIC:
            start = bytes(self.view[:8])
            raise self._error(f"not a store: no LMDB mark in page {number} (it starts with {start!r})")
        if version & 0xFFFF != _VERSION:
            raise self._error(
                f"LMDB data format {version} in page {number}, only {_VERSION} is read; "
                "pack it again with this release"
            )
        if flags & _META == 0 or page != number:
            raise self._error(f"page {number} is damaged: it is not a meta page")
        at += _HEADER + _meta.size
        size = _tree.unpack_from(self.view, at)[0]
        if size < 512 or size > 65536 or size & (size - 1):
            raise self._error(f"page {number} is damaged: page size {size}")
        last, transaction = struct.unpack_from("<QQ", self.view, at + 2 * _tree.size)
        if last >= 1 << 48:
            raise self._error(f"page {number} is damaged: last page {last}")
        return transaction, last, size, self._read_tree(at), self._read_tree(at + _tree.size)

    def _read_tree(self, at: int) -> Tree:
        _, _, depth, _, _, _, entries, root = _tree.unpack_from(self.view, at)
        if depth > _MAX_DEPTH:
            raise self._error(f"a tree of depth {depth}")
        return Tree(None if root == _NONE else root, depth, entries)

    def page(self, number: int, kind: int) -> tuple[int, int]:
        """Return (offset, number of nodes) of a branch or leaf page, checked."""
        if not 2 <= number <= self.last:
            raise self._error(f"a pointer to page {number}, which does not exist")
        at = number * self.page_size
        own, _, flags, lower, upper = _page_header.unpack_from(self.view, at)
        if own != number or flags & 0x0F != kind:
            raise self._error(f"page {number} is damaged: number {own}, flags {flags:#x}")
        if not _HEADER <= lower <= upper <= self.page_size or lower % 2:
            raise self._error(f"page {number} is damaged: bounds {lower}, {upper}")
        return at, (lower - _HEADER) // 2

    def node(self, at: int, index: int) -> tuple[int, int, int, int, int]:
        """Return (lo, hi, flags, key size, offset of the key) of a node, checked."""
        (start,) = struct.unpack_from("<H", self.view, at + _HEADER + 2 * index)
        if not _HEADER <= start <= self.page_size - _node.size:
            raise self._error(f"page {at // self.page_size} is damaged: a node at {start}")
        low, high, flags, size = _node.unpack_from(self.view, at + start)
        if start + _node.size + size > self.page_size:
            raise self._error(f"page {at // self.page_size} is damaged: a key of {size} bytes")
        return low, high, flags, size, at + start + _node.size

    def value(self, at: int, index: int) -> tuple[int, int, int]:
        """Return (flags, offset, length) of the value of a leaf node, checked."""
        low, high, flags, size, key_at = self.node(at, index)
        length, offset = low | high << 16, key_at + size
        if flags & _BIG:
            if offset + 8 > at + self.page_size:
                raise self._error(f"page {at // self.page_size} is damaged: a value leaves it")
            (number,) = struct.unpack_from("<Q", self.view, offset)
            offset = self.overflow(number, length)
        elif offset + length > at + self.page_size:
            raise self._error(f"page {at // self.page_size} is damaged: a value leaves it")
        return flags, offset, length

    def overflow(self, number: int, length: int) -> int:
        """Return the offset of a value kept on overflow pages, checked."""
        count = (_HEADER + length - 1) // self.page_size + 1
        if not 2 <= number <= self.last or number + count - 1 > self.last:
            raise self._error(f"a value of {length} bytes at page {number} leaves the file")
        at = number * self.page_size
        own, _, flags, low, high = _page_header.unpack_from(self.view, at)
        if own != number or flags & 0x0F != _OVERFLOW or (low | high << 16) < count:
            raise self._error(f"page {number} is damaged: not the start of a value")
        return at + _HEADER

    def find(self, tree: Tree, key: bytes) -> tuple[int, int] | None:
        """Return (offset, length) of the value stored under ``key``, or None."""
        if tree.root is None:
            return None
        number = tree.root
        for _ in range(tree.depth - 1):
            at, count = self.page(number, _BRANCH)
            low, high = 1, count  # node 0 stands for everything below node 1
            while low < high:
                middle = (low + high) // 2
                if self._key(at, middle) <= key:
                    low = middle + 1
                else:
                    high = middle
            number = self._child(at, low - 1, count)
        at, count = self.page(number, _LEAF)
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if self._key(at, middle) < key:
                low = middle + 1
            else:
                high = middle
        if low == count or self._key(at, low) != key:
            return None
        return self.value(at, low)[1:]

    def _key(self, at: int, index: int) -> bytes:
        _, _, _, size, key_at = self.node(at, index)
        return bytes(self.view[key_at : key_at + size])

    def _child(self, at: int, index: int, count: int) -> int:
        if index >= count:
            raise self._error(f"page {at // self.page_size} is damaged: an empty branch")
        low, high, flags, _, _ = self.node(at, index)
        return low | high << 16 | flags << 32

    def database(self, name: str) -> Tree | None:
        """Return a named database, or None when the file has none of this name."""
        if self.main.root is None:
            return None
        found = self.find(self.main, name.encode())
        if found is None:
            return None
        if found[1] != _tree.size:
            raise self._error(f"the record of database {name!r} has {found[1]} bytes")
        return self._read_tree(found[0])

    def leaves(self, tree: Tree) -> Iterator[tuple[int, int]]:
        """Yield (offset, number of nodes) of every leaf page, in key order."""
        if tree.root is None:
            return
        budget = self.last + 1  # a damaged tree may point back into itself
        stack = [(tree.root, 1)]
        while stack:
            number, level = stack.pop()
            budget -= 1
            if budget < 0 or level > tree.depth:
                raise self._error("a tree that runs in circles")
            if level == tree.depth:
                yield self.page(number, _LEAF)
                continue
            at, count = self.page(number, _BRANCH)
            if count == 0:
                raise self._error(f"page {number} is damaged: an empty branch")
            stack.extend((self._child(at, i, count), level + 1) for i in reversed(range(count)))

    def items(self, tree: Tree) -> Iterator[tuple[bytes, int, int, int]]:
        """Yield (key, flags, offset, length) of every entry, in key order."""
        for at, count in self.leaves(tree):
            for index in range(count):
                yield self._key(at, index), *self.value(at, index)

    def fixed_items(
        self, tree: Tree, key_size: int
    ) -> Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64], npt.NDArray[np.uint64]]]:
        """Yield (keys (n, key_size), offsets, lengths) leaf by leaf, for keys of one even size.

        The same checks as :meth:`items`, done with NumPy for a whole page at once.
        """
        page_size, words = self.page_size, self.page_size // 2
        for at, count in self.leaves(tree):
            page = np.frombuffer(self.view[at : at + page_size], "<u2")
            starts = page[_HEADER // 2 : _HEADER // 2 + count].astype(np.int64)
            if count == 0 or starts.min() < _HEADER or np.any(starts % 2):
                raise self._error(f"page {at // page_size} is damaged: its nodes")
            first = starts // 2
            if (first + 4 + key_size // 2).max() > words:
                raise self._error(f"page {at // page_size} is damaged: a node leaves it")
            if np.any(page[first + 3] != key_size):
                raise self._error(f"page {at // page_size} is damaged: a key of another size")
            raw = page.view(np.uint8)
            keys = raw[starts[:, None] + 8 + np.arange(key_size)]
            lengths = page[first].astype(np.uint64) | page[first + 1].astype(np.uint64) << np.uint64(16)
            data = starts + 8 + key_size
            offsets = (at + data).astype(np.uint64)
            big = (page[first + 2] & _BIG) != 0
            small_ends = data + lengths.astype(np.int64)
            if np.any(small_ends[~big] > page_size) or np.any(data[big] + 8 > page_size):
                raise self._error(f"page {at // page_size} is damaged: a value leaves it")
            for index in np.flatnonzero(big):
                (number,) = struct.unpack_from("<Q", self.view, at + int(data[index]))
                offsets[index] = self.overflow(number, int(lengths[index]))
            yield keys, offsets, lengths

    def check(self) -> None:
        """Walk the whole file: every page used once, keys in order, every number in range.

        After this, handing the file to liblmdb is safe.

        Raises:
            StoreFormatError: The first thing that is wrong.
        """
        used = np.zeros(self.last + 1, np.bool_)
        used[:2] = True
        self._check_tree(self.free, used, named=False)
        self._check_tree(self.main, used, named=True)

    def _check_tree(self, tree: Tree, used: npt.NDArray[np.bool_], *, named: bool) -> None:
        if tree.root is None:
            return
        previous: bytes | None = None
        entries = 0
        for number, level in self._numbers(tree):
            self._use(used, number, 1)
            at, count = self.page(number, _LEAF if level == tree.depth else _BRANCH)
            for index in range(count if level == tree.depth else 0):
                key = self._key(at, index)
                if previous is not None and key <= previous:
                    raise self._error(f"page {number} is damaged: keys out of order")
                previous = key
                entries += 1
                flags, offset, length = self.value(at, index)
                if flags & _BIG:
                    self._use(used, offset // self.page_size, (_HEADER + length - 1) // self.page_size + 1)
                if flags & _SUBTREE:
                    if not named or length != _tree.size:
                        raise self._error(f"page {number} is damaged: a database inside another")
                    self._check_tree(self._read_tree(offset), used, named=False)
                elif flags & ~_BIG:
                    raise self._error(f"page {number} is damaged: node flags {flags:#x}")
        if entries != tree.entries:
            raise self._error(f"a tree claims {tree.entries} entries and holds {entries}")

    def _numbers(self, tree: Tree) -> Iterator[tuple[int, int]]:
        stack = [(tree.root or 0, 1)]
        budget = self.last + 1
        while stack:
            number, level = stack.pop()
            budget -= 1
            if budget < 0:
                raise self._error("a tree that runs in circles")
            yield number, level
            if level < tree.depth:
                at, count = self.page(number, _BRANCH)
                stack.extend((self._child(at, i, count), level + 1) for i in reversed(range(count)))

    def _use(self, used: npt.NDArray[np.bool_], first: int, count: int) -> None:
        if not 2 <= first <= self.last or first + count - 1 > self.last:
            raise self._error(f"a pointer to page {first}, which does not exist")
        if used[first : first + count].any():
            raise self._error(f"page {first} is used twice")
        used[first : first + count] = True
