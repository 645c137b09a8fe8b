"""Reads the page structure of an LMDB 0.9 file from its bytes, checking every number it follows.

A store is found and read through our own mapping: liblmdb trusts the pages it is given, so a
hostile or damaged file could crash the process, and its environments cannot cross a fork. Here a
bad number is a :class:`StoreFormatError`. The structures are those of ``lmdb.h`` and ``mdb.c`` of
release 0.9 (MDB_DATA_VERSION 1) on a little-endian 64-bit machine; all integers are little-endian:

* page header, 16 bytes: number u64, pad u16, flags u16, then ``lower, upper`` u16 or ``pages`` u32;
* pages 0 and 1 hold a meta record each: magic, version, address, map size, two tree records (free
  pages, main), last page, transaction number; the valid one with the higher transaction counts;
* tree record, 48 bytes: pad u32 (page size in the first), flags u16, depth u16, branch, leaf and
  overflow pages u64, entries u64, root u64;
* node: ``lo, hi, flags, key size`` u16, key, data. In a leaf ``lo | hi << 16`` is the data size; in
  a branch ``lo | hi << 16 | flags << 32`` is the child page. Flag 1: the data is the number of the
  first overflow page; flag 2: the data is the tree record of a named database.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sharedds.errors import StoreFormatError

__all__ = [
    "BIG",
    "BRANCH",
    "LEAF",
    "PAGE_HEADER",
    "SUBTREE",
    "TREE_SIZE",
    "Pages",
    "Tree",
    "is_lmdb",
]

_MAGIC, _VERSION = 0xBEEFC0DE, 1
BRANCH, LEAF, OVERFLOW, _META = 0x01, 0x02, 0x04, 0x08
BIG, SUBTREE = 0x01, 0x02
_NONE = (1 << 64) - 1
PAGE_HEADER = 16
_MAX_DEPTH = 32
_page_header = struct.Struct("<QHHHH")
_meta = struct.Struct("<IIQQ")
_tree = struct.Struct("<IHHQQQQQ")
TREE_SIZE = _tree.size


def is_lmdb(head: bytes) -> bool:
    """Whether a file that begins with these bytes, 20 or more, begins like one of LMDB."""
    return head[PAGE_HEADER : PAGE_HEADER + 4] == _MAGIC.to_bytes(4, "little")


_node = struct.Struct("<HHHH")


@dataclass(frozen=True, slots=True)
class Tree:
    """One B-tree of the file.

    Attributes:
        root: Its root page, None when it is empty.
        depth: Levels of pages.
        entries: How many it claims to hold.
        flags: Kind of keys and values; 0 for ours.
    """

    root: int | None
    depth: int
    entries: int
    flags: int = 0


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
        if metas[1][2] != self.page_size:
            raise self.error(f"page 1 is damaged: page size {metas[1][2]}, not {self.page_size}")
        _, self.last, _, self.free, self.main = max(metas, key=lambda m: m[0])
        if (self.last + 1) * self.page_size > len(view):
            raise self.error(
                f"it is cut short: {len(view)} bytes, {(self.last + 1) * self.page_size} are "
                "needed; copy or pack it again"
            )

    def error(self, what: str) -> StoreFormatError:
        """Return the error that says what is wrong with this file."""
        return StoreFormatError(f"{self.path}: {what}", path=self.path)

    def _read_meta(self, at: int, number: int) -> tuple[int, int, int, Tree, Tree]:
        if len(self.view) < at + PAGE_HEADER + _meta.size + 2 * _tree.size + 16:
            raise self.error(f"not a store: {len(self.view)} bytes are too few for one")
        page, _, flags, _, _ = _page_header.unpack_from(self.view, at)
        magic, version, _, _ = _meta.unpack_from(self.view, at + PAGE_HEADER)
        if magic != _MAGIC:
            start = bytes(self.view[:8])
            raise self.error(
                f"not a store: no LMDB mark in page {number} (it starts with {start!r})"
            )
        if version & 0xFFFF != _VERSION:
            raise self.error(
                f"LMDB data format {version} in page {number}, only {_VERSION} is read; "
                "pack it again with this release"
            )
        if flags & _META == 0 or page != number:
            raise self.error(f"page {number} is damaged: it is not a meta page")
        at += PAGE_HEADER + _meta.size
        size = _tree.unpack_from(self.view, at)[0]
        if size < 512 or size > 65536 or size & (size - 1):
            raise self.error(f"page {number} is damaged: page size {size}")
        last, transaction = struct.unpack_from("<QQ", self.view, at + 2 * _tree.size)
        if last >= 1 << 48:
            raise self.error(f"page {number} is damaged: last page {last}")
        return transaction, last, size, self.read_tree(at), self.read_tree(at + _tree.size)

    def read_tree(self, at: int) -> Tree:
        """Return the tree record at an offset, checked."""
        _, flags, depth, _, _, _, entries, root = _tree.unpack_from(self.view, at)
        if depth > _MAX_DEPTH:
            raise self.error(f"a tree of depth {depth}")
        return Tree(None if root == _NONE else root, depth, entries, flags)

    def page(self, number: int, kind: int) -> tuple[int, int]:
        """Return (offset, number of nodes) of a branch or leaf page, checked."""
        if not 2 <= number <= self.last:
            raise self.error(f"a pointer to page {number}, which does not exist")
        at = number * self.page_size
        own, _, flags, lower, upper = _page_header.unpack_from(self.view, at)
        if own != number or flags != kind:
            raise self.error(f"page {number} is damaged: number {own}, flags {flags:#x}")
        if not PAGE_HEADER <= lower <= upper <= self.page_size or lower % 2:
            raise self.error(f"page {number} is damaged: bounds {lower}, {upper}")
        return at, (lower - PAGE_HEADER) // 2

    def node(self, at: int, index: int) -> tuple[int, int, int, int, int]:
        """Return (lo, hi, flags, key size, offset of the key) of a node, checked."""
        (start,) = struct.unpack_from("<H", self.view, at + PAGE_HEADER + 2 * index)
        if not PAGE_HEADER <= start <= self.page_size - _node.size:
            raise self.error(f"page {at // self.page_size} is damaged: a node at {start}")
        low, high, flags, size = _node.unpack_from(self.view, at + start)
        if start + _node.size + size > self.page_size:
            raise self.error(f"page {at // self.page_size} is damaged: a key of {size} bytes")
        return low, high, flags, size, at + start + _node.size

    def value(self, at: int, index: int) -> tuple[int, int, int]:
        """Return (flags, offset, length) of the value of a leaf node, checked."""
        low, high, flags, size, key_at = self.node(at, index)
        length, offset = low | high << 16, key_at + size
        if flags & BIG:
            if offset + 8 > at + self.page_size:
                raise self.error(f"page {at // self.page_size} is damaged: a value leaves it")
            (number,) = struct.unpack_from("<Q", self.view, offset)
            offset = self.overflow(number, length)
        elif offset + length > at + self.page_size:
            raise self.error(f"page {at // self.page_size} is damaged: a value leaves it")
        return flags, offset, length

    def overflow(self, number: int, length: int) -> int:
        """Return the offset of a value kept on overflow pages, checked."""
        count = (PAGE_HEADER + length - 1) // self.page_size + 1
        if not 2 <= number <= self.last or number + count - 1 > self.last:
            raise self.error(f"a value of {length} bytes at page {number} leaves the file")
        at = number * self.page_size
        own, _, flags, low, high = _page_header.unpack_from(self.view, at)
        if own != number or flags != OVERFLOW or (low | high << 16) < count:
            raise self.error(f"page {number} is damaged: not the start of a value")
        return at + PAGE_HEADER

    def find(self, tree: Tree, key: bytes) -> tuple[int, int] | None:
        """Return (offset, length) of the value stored under ``key``, or None."""
        if tree.root is None:
            return None
        number = tree.root
        for _ in range(tree.depth - 1):
            at, count = self.page(number, BRANCH)
            low, high = 1, count  # node 0 stands for everything below node 1
            while low < high:
                middle = (low + high) // 2
                if self.key(at, middle) <= key:
                    low = middle + 1
                else:
                    high = middle
            number = self.child(at, low - 1, count)
        at, count = self.page(number, LEAF)
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if self.key(at, middle) < key:
                low = middle + 1
            else:
                high = middle
        if low == count or self.key(at, low) != key:
            return None
        return self.value(at, low)[1:]

    def key(self, at: int, index: int) -> bytes:
        """Return the key of a node, checked."""
        _, _, _, size, key_at = self.node(at, index)
        return bytes(self.view[key_at : key_at + size])

    def child(self, at: int, index: int, count: int) -> int:
        """Return the page number in a node of a branch of ``count`` nodes, checked."""
        if index >= count:
            raise self.error(f"page {at // self.page_size} is damaged: an empty branch")
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
            raise self.error(f"the record of database {name!r} has {found[1]} bytes")
        return self.read_tree(found[0])

    def walk(self, tree: Tree) -> Iterator[tuple[int, int, int]]:
        """Yield (kind, offset, number of nodes) of every page of a tree, leaves in key order."""
        if tree.root is None:
            return
        budget = self.last + 1  # a damaged tree may point back into itself
        branches: list[list[int]] = []  # offset, number of nodes, nodes done: from the root down
        number = tree.root
        while True:
            budget -= 1
            if budget < 0 or len(branches) >= tree.depth:
                raise self.error("a tree that runs in circles")
            kind = LEAF if len(branches) + 1 == tree.depth else BRANCH
            at, count = self.page(number, kind)
            if count == 0:
                raise self.error(f"page {number} is damaged: it is empty")
            yield kind, at, count
            if kind == BRANCH:
                branches.append([at, count, 0])
            while branches and branches[-1][2] == branches[-1][1]:
                branches.pop()
            if not branches:
                return
            at, count, done = branches[-1]
            branches[-1][2] += 1
            number = self.child(at, done, count)

    def fixed_items(
        self,
        tree: Tree,
        key_size: int,
        *,
        just_written: bool = False,
        passed: Callable[[int, int], None] = lambda _offset, _length: None,
    ) -> Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64], npt.NDArray[np.uint64]]]:
        """Yield (keys (n, key_size), offsets, lengths) leaf by leaf, for keys of one even size.

        The checks of :meth:`value`, done with NumPy for a whole page at once.

        Args:
            tree: The tree.
            key_size: Bytes of each key.
            just_written: Read the tree only; else the first page of each large value is looked at,
                which reads and maps much of a large file.
            passed: Called with the offset and length of each leaf that was dealt with.
        """
        page_size, words = self.page_size, self.page_size // 2
        for kind, at, count in self.walk(tree):
            if kind != LEAF:
                continue
            page = np.frombuffer(self.view[at : at + page_size], "<u2")
            starts = page[PAGE_HEADER // 2 : PAGE_HEADER // 2 + count].astype(np.int64)
            if starts.min() < PAGE_HEADER or np.any(starts % 2):
                raise self.error(f"page {at // page_size} is damaged: its nodes")
            first = starts // 2
            if (first + 4 + key_size // 2).max() > words:
                raise self.error(f"page {at // page_size} is damaged: a node leaves it")
            if np.any(page[first + 3] != key_size):
                raise self.error(f"page {at // page_size} is damaged: a key of another size")
            raw = page.view(np.uint8)
            keys = raw[starts[:, None] + 8 + np.arange(key_size)]
            lengths = page[first].astype(np.uint64) | page[first + 1].astype(
                np.uint64
            ) << np.uint64(16)
            data = starts + 8 + key_size
            offsets = (at + data).astype(np.uint64)
            big = (page[first + 2] & BIG) != 0
            small_ends = data + lengths.astype(np.int64)
            if np.any(small_ends[~big] > page_size) or np.any(data[big] + 8 > page_size):
                raise self.error(f"page {at // page_size} is damaged: a value leaves it")
            words_of_number = page[(data[big] // 2)[:, None] + np.arange(4)]
            numbers = np.ascontiguousarray(words_of_number).view("<u8")[:, 0]
            if just_written:
                offsets[big] = numbers * np.uint64(page_size) + np.uint64(PAGE_HEADER)
            else:
                for index, number in zip(np.flatnonzero(big), numbers.tolist(), strict=True):
                    offsets[index] = self.overflow(number, int(lengths[index]))
            yield keys, offsets, lengths
            passed(at, page_size)
