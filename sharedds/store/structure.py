"""Walks a whole LMDB file and proves its structure: what no reader of a few values can see."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sharedds.store.pages import BIG, LEAF, PAGE_HEADER, SUBTREE, TREE_SIZE, Pages, Tree

__all__ = ["check_structure"]

_INTEGER_KEYS, _ONE_FILE = 0x08, 0x4000  # LMDB keeps some options with the tree of free pages


def check_structure(pages: Pages, passed: Callable[[int, int], object] | None = None) -> None:
    """Prove that every page is used once, keys are in order, and every number is in range.

    After this, handing the file to liblmdb is safe.

    Args:
        pages: Of the file.
        passed: Is told (offset, length) of each value when the walk goes on from it.

    Raises:
        StoreFormatError: The first thing that is wrong.
    """
    used = np.zeros(pages.last + 1, np.bool_)
    used[:2] = True
    _check_free(pages, used)
    if pages.main.flags:
        raise pages.error(f"the main database has the flags {pages.main.flags:#x}")
    _check_tree(pages, pages.main, used, passed, named=True)


def _check_tree(
    pages: Pages,
    tree: Tree,
    used: npt.NDArray[np.bool_],
    passed: Callable[[int, int], object] | None,
    *,
    named: bool,
) -> None:
    previous: bytes | None = None
    entries = 0
    for kind, at, count in pages.walk(tree):
        number = at // pages.page_size
        _use(pages, used, number, 1)
        for index in range(count if kind == LEAF else 0):
            key = pages.key(at, index)
            if not key or (previous is not None and key <= previous):
                raise pages.error(f"page {number} is damaged: keys out of order")
            previous = key
            entries += 1
            flags, offset, length = pages.value(at, index)
            if flags & BIG:
                _use_value(pages, used, offset, length)
            if flags == SUBTREE and named and length == TREE_SIZE:
                below = pages.read_tree(offset)
                if below.flags:
                    raise pages.error(f"database {key!r} has the flags {below.flags:#x}")
                _check_tree(pages, below, used, passed, named=False)
            elif flags & ~BIG:
                raise pages.error(f"page {number} is damaged: node flags {flags:#x}")
            if passed is not None:
                passed(offset, length)
    if entries != tree.entries:
        raise pages.error(f"a tree claims {tree.entries} entries and holds {entries}")


def _check_free(pages: Pages, used: npt.NDArray[np.bool_]) -> None:
    """Check the tree of free pages: a transaction number each, and the pages it gave back."""
    if pages.free.flags & ~_ONE_FILE != _INTEGER_KEYS:
        raise pages.error(f"the list of free pages has the flags {pages.free.flags:#x}")
    previous = -1
    for kind, at, count in pages.walk(pages.free):
        number = at // pages.page_size
        _use(pages, used, number, 1)
        for index in range(count if kind == LEAF else 0):
            key = pages.key(at, index)
            transaction = int.from_bytes(key, "little")
            flags, offset, length = pages.value(at, index)
            if len(key) != 8 or transaction <= previous or flags & ~BIG or length % 8 or not length:
                raise pages.error(f"page {number} is damaged: it lists free pages")
            previous = transaction
            if flags & BIG:
                _use_value(pages, used, offset, length)
            free = np.frombuffer(pages.view[offset : offset + length], np.uint8).view("<u8")
            if int(free[0]) >= len(free):
                raise pages.error(f"page {number} is damaged: it lists free pages")
            for page in free[1 : 1 + int(free[0])].tolist():
                _use(pages, used, page, 1)


def _use_value(pages: Pages, used: npt.NDArray[np.bool_], offset: int, length: int) -> None:
    _use(pages, used, offset // pages.page_size, (PAGE_HEADER + length - 1) // pages.page_size + 1)


def _use(pages: Pages, used: npt.NDArray[np.bool_], first: int, count: int) -> None:
    if not 2 <= first <= pages.last or first + count - 1 > pages.last:
        raise pages.error(f"a pointer to page {first}, which does not exist")
    if used[first : first + count].any():
        raise pages.error(f"page {first} is used twice")
    used[first : first + count] = True
