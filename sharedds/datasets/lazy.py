"""A dataset of items such as paths, to be subclassed."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from os import PathLike
from typing import Any, SupportsIndex, TypeVar

from sharedds.datasets.indexed import IndexedDataset
from sharedds.errors import OptionError, SchemaError
from sharedds.packed import PackedStrings

__all__ = ["LazyDataset"]

T = TypeVar("T")


class LazyDataset(IndexedDataset[T]):
    """A dataset of items such as paths, each loaded when it is asked for. Subclass it.

    The items are kept as bytes in one mapped file: no Python object for each, the same pages in
    every process, and a pickle of a few kilobytes however many there are.

    Args:
        items: Paths or other strings, one for each sample; read once, as a stream.

    Raises:
        OptionError: ``items`` is one string.
        SchemaError: An item is no string or path, or the subclass has no ``load``.

    Example:
        >>> class Lengths(LazyDataset[int]):
        ...     def load(self, item: str) -> int:
        ...         return len(item)
        >>> dataset = Lengths(["a", "bb", "ccc"])
        >>> len(dataset), dataset[1], list(dataset.subset([2, 0]))
        (3, 2, [3, 1])
    """

    _strings: PackedStrings | None = None

    def __init__(self, items: Iterable[str | bytes | PathLike[Any]]) -> None:
        if type(self).load is LazyDataset.load:
            raise SchemaError(_no_load(self))
        if isinstance(items, (str, bytes, PathLike)):
            raise OptionError(f"items={items!r} is one string; pass a list of them, or a generator")
        self._strings = PackedStrings.build(items)

    def load(self, item: str) -> T:
        """Return the sample of one item; every subclass has its own."""
        raise SchemaError(_no_load(self))

    def _count(self) -> int:
        return len(self._packed())

    def __getitem__(self, index: SupportsIndex) -> T:
        """Load sample ``index``; negative numbers count from the end.

        Raises:
            SampleIndexError: There is no such sample.
            SchemaError: ``index`` is not a whole number.
            Exception: Whatever ``load`` raised, with a note that names the item.
        """
        item = self.item(index)
        try:
            return self.load(item)
        except Exception as error:
            where = f"sample {operator.index(index)} of {type(self).__name__}"
            error.add_note(f"while loading {where}, item {item!r}")
            raise

    def item(self, index: SupportsIndex) -> str:
        """Return the item of sample ``index`` as text, undecodable bytes as surrogate escapes."""
        return self._packed()[self._position(index)]

    def _packed(self) -> PackedStrings:
        if self._strings is None:
            name = type(self).__name__
            raise SchemaError(f"{name}.__init__ must call super().__init__(items)")
        return self._strings


def _no_load(dataset: LazyDataset[Any]) -> str:
    name = type(dataset).__name__
    return f"{name} needs a method load(self, item) that returns one sample"
