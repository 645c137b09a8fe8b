"""How a region is put together from its blocks, each copied to its place.

A patch touches a hundred blocks, and copying one takes 3 µs: what Python does for each of them must
be less. So everything that a row of blocks shares is prepared once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.store.regions import Cut, Region, Scale, cuts_of

__all__ = ["Assembly", "scaled_blocks"]


class _Column:
    """The blocks of a region that lie behind one another along the last axis.

    Rows that lie in one piece on both sides are copied as single items of their length.
    """

    __slots__ = ("_inner", "_item", "_items", "_part", "block", "source", "target")

    def __init__(self, cut: Cut, out: npt.NDArray[Any]) -> None:
        self._inner = cut.inner
        self._part = out[..., cut.outer]
        self._item: np.dtype[Any] | None = None
        width = self._part.shape[-1] * out.itemsize
        if out.ndim > 1 and out.strides[-1] == out.itemsize and width:
            self._item = np.dtype(f"V{width}")
            self._items = self._part.view(self._item)[..., 0]
        self.block: npt.NDArray[Any] | None = None
        self.source = self.target = self._part

    def see(self, block: npt.NDArray[Any]) -> None:
        """Take the next block; there is nothing to do where it is the array it was before."""
        self.block = block
        part = block[..., self._inner]
        if (
            self._item is not None
            and block.dtype == self._part.dtype
            and block.strides[-1] == block.itemsize
        ):
            self.source, self.target = part.view(self._item)[..., 0], self._items
        else:
            self.source, self.target = part, self._part


class Assembly:
    """A region of an array of one dimension or more, cut at the borders of its blocks.

    Args:
        region: A slice without a step for each axis, none of them empty.
        shape: Of the array.
        chunk: Of its blocks.

    Attributes:
        numbers: Of the blocks, in C order of the grid; ascending.
        shapes: Of the blocks.
    """

    def __init__(self, region: Region, shape: tuple[int, ...], chunk: tuple[int, ...]) -> None:
        *self._leading, self._last = cuts_of(region, shape, chunk)
        self.numbers: list[int] = []
        self.shapes: list[tuple[int, ...]] = []
        ends = [(cut.number, cut.size) for cut in self._last]
        for cuts in itertools.product(*self._leading):
            below = sum(cut.number for cut in cuts)
            sizes = tuple(cut.size for cut in cuts)
            for number, size in ends:
                self.numbers.append(below + number)
                self.shapes.append((*sizes, size))

    def copy(self, blocks: Iterable[npt.NDArray[Any]], out: npt.NDArray[Any]) -> None:
        """Copy the blocks into an array of the region's shape; other dtypes are converted.

        Args:
            blocks: In the order of the numbers; each is copied before the next one is asked for.
            out: Where to.
        """
        columns = [_Column(cut, out) for cut in self._last]
        following = iter(blocks)
        for cuts in itertools.product(*self._leading):
            inner = tuple(cut.inner for cut in cuts)
            outer = tuple(cut.outer for cut in cuts)
            for column, block in zip(columns, following, strict=False):
                if block is not column.block:  # most lie where the one before them lay
                    column.see(block)
                column.target[outer] = column.source[inner]


def scaled_blocks(
    blocks: Iterable[npt.NDArray[Any]], dtype: np.dtype[Any], scale: Scale
) -> Iterator[npt.NDArray[Any]]:
    """Yield blocks in another dtype and scaled, while the processor has them at hand.

    Args:
        blocks: Those that are shown by repeating a few numbers stay so.
        dtype: Of the result.
        scale: Changes it.
    """
    space = np.empty(0, dtype)
    rooms: dict[tuple[int, ...], npt.NDArray[Any]] = {}  # all in one space
    for block in blocks:
        if 0 in block.strides:
            few = block[tuple(slice(0, None if step else 1) for step in block.strides)]
            values = few.astype(dtype)
            scale.apply(values)
            yield np.broadcast_to(values, block.shape)
            continue
        room = rooms.get(block.shape)
        if room is None:
            if block.size > space.size:
                space, rooms = np.empty(block.size, dtype), {}
            room = rooms[block.shape] = space[: block.size].reshape(block.shape)
        np.copyto(room, block, casting="unsafe")
        scale.apply(room)
        yield room
