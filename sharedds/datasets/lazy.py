"""A dataset of items such as paths, to be subclassed."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from typing import Any, SupportsIndex, TypeVar

from sharedds.datasets.indexed import IndexedDataset, checked_batch
from sharedds.datasets.items import PackedItems
from sharedds.datasets.randomness import making_batch, making_sample
from sharedds.errors import OptionError, SchemaError

__all__ = ["LazyDataset"]

T = TypeVar("T")


class LazyDataset(IndexedDataset[T]):
    """A dataset of items such as paths, each loaded when it is asked for. Subclass it.

    The items are kept as bytes in one mapped file: no Python object for each, the same pages in
    every process, and a pickle of a few kilobytes however many there are.

    A subclass has ``load(item)``, or ``load_many(items)`` for storage that is faster at reading
    several at once, or both. ``self.rng`` is the random generator of the sample in hand, in
    ``load_many`` ``self.rngs`` has one for each item.

    Args:
        items: One for each sample; read once, as a stream. Text, bytes and paths, or small records:
            numbers, None, tuples, lists and dicts of such, named tuples and dataclasses. They come
            back as they were; paths as text, also those whose bytes are no UTF-8.

    Raises:
        OptionError: ``items`` is one string, or a table.
        SchemaError: An item is something else, or the subclass has no ``load``.

    Example:
        >>> class Lengths(LazyDataset[int]):
        ...     def load(self, item: str) -> int:
        ...         return len(item)
        >>> dataset = Lengths(["a", "bb", "ccc"])
        >>> len(dataset), dataset[1], list(dataset.subset([2, 0]))
        (3, 2, [3, 1])
    """

    _items: PackedItems | None = None

    def __init__(self, items: Iterable[Any]) -> None:
        if type(self).load is LazyDataset.load and not self._has_load_many:
            raise SchemaError(_no_load(self))
        if isinstance(items, (str, bytes, PathLike)):
            raise OptionError(f"items={items!r} is one string; pass a list of them, or a generator")
        if hasattr(items, "itertuples"):
            raise OptionError(
                "items is a table, whose parts are its columns; pass the rows: "
                "table.itertuples(index=False, name=None)"
            )
        self._items = PackedItems.build(items)

    def load(self, item: Any) -> T:
        """Return the sample of one item; every subclass has its own, or ``load_many``."""
        if not self._has_load_many:
            raise SchemaError(_no_load(self))
        with making_batch(1):
            sample: T = checked_batch(self, self.load_many([item]), 1)[0]
        return sample

    def load_many(self, items: list[Any]) -> list[T]:
        """Return the samples of several items in their order, if a subclass can do that better."""
        return [self.load(item) for item in items]

    @property
    def _has_load_many(self) -> bool:
        return type(self).load_many is not LazyDataset.load_many

    def _count(self) -> int:
        return len(self._packed())

    def _content(self) -> str:
        return self._packed().digest

    def __getitem__(self, index: SupportsIndex) -> T:
        """Load sample ``index``; negative numbers count from the end.

        Raises:
            SampleIndexError: There is no such sample.
            SchemaError: ``index`` is not a whole number.
            Exception: Whatever ``load`` raised, with a note that names the item.
        """
        item = self.item(index)
        try:
            with making_sample():
                return self.load(item)
        except Exception as error:
            where = f"sample {operator.index(index)} of {type(self).__name__}"
            error.add_note(f"while loading {where}, item {item!r}")
            raise

    @property
    def __getitems__(self) -> Callable[[Sequence[SupportsIndex]], list[T]] | None:
        """Loads several samples by ``load_many``; None if the subclass has none."""
        return self._load_batch if self._has_load_many else None

    @property
    def reads_batches(self) -> bool:
        """Whether the subclass has ``load_many``."""
        return self._has_load_many

    def _load_batch(self, indices: Sequence[SupportsIndex]) -> list[T]:
        items = [self.item(index) for index in indices]
        try:
            with making_batch(len(items)):
                return checked_batch(self, self.load_many(items), len(items))
        except Exception as error:
            numbers = ", ".join(str(operator.index(index)) for index in indices[:8])
            more = ", ..." if len(items) > 8 else ""
            error.add_note(f"while loading samples {numbers}{more} of {type(self).__name__}")
            raise

    def item(self, index: SupportsIndex) -> Any:
        """Return the item of sample ``index``; bytes of a path that are no text as escapes."""
        return self._packed()[self._position(index)]

    def key(self, index: SupportsIndex) -> str:
        """Return the item of a sample as text."""
        item = self.item(index)
        return item if isinstance(item, str) else repr(item)

    def _named(self, index: int) -> Any:
        return self.item(index)

    def _packed(self) -> PackedItems:
        if self._items is None:
            name = type(self).__name__
            raise SchemaError(f"{name}.__init__ must call super().__init__(items)")
        return self._items


def _no_load(dataset: LazyDataset[Any]) -> str:
    name = type(dataset).__name__
    return f"{name} needs a method load(self, item) that returns one sample"
