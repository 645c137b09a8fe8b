"""Whether the whole batches of a dataset are those of its single samples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from sharedds.datasets.offers import LoadBatch, adviser, batch_maker, tell_epoch
from sharedds.order import SampleKey, Shuffled, using_key, using_keys
from sharedds.testing.values import fields_of

__all__ = ["compare_whole"]

_UNWRITTEN = 0xA5  # what memory for a batch holds at first: zeros would often be right by chance


def compare_whole(dataset: Any, *, seed: int, epochs: int, batch_size: int, count: int) -> None:
    """Compare whole batches with single samples that are collated, where a dataset makes any.

    Args:
        dataset: The dataset.
        seed: Of the order, and of the keys that are in hand.
        epochs: How many.
        batch_size: Samples in a batch.
        count: Only so many samples are loaded.

    Raises:
        AssertionError: A batch differs; the text names the sample and the place.
    """
    load, advise = batch_maker(dataset), adviser(dataset)
    if load is None:
        return
    for epoch in range(epochs):
        tell_epoch(dataset, epoch)
        for begin in range(0, count, batch_size):
            positions = np.arange(begin, min(count, begin + batch_size))
            indices = Shuffled(count).at(seed, epoch, positions)
            if advise is not None:
                advise(indices)
            keys = [SampleKey(seed, epoch, index) for index in indices.tolist()]
            _compare(dataset, load, keys)


def _compare(dataset: Any, load: LoadBatch, keys: list[SampleKey]) -> None:
    indices = [key.index for key in keys]
    where = f"in epoch {keys[0].epoch}, batch of samples {indices}"
    samples = []
    for key in keys:
        with using_key(key):
            samples.append(dataset[key.index])
    name = type(dataset).__name__
    try:
        expected = default_collate(samples)
    except Exception as error:
        raise AssertionError(
            f"{name} makes whole batches, but its samples do not collate, {where}: "
            f"{type(error).__name__}: {error}; say makes_batches = False where they differ"
        ) from error
    try:
        with using_keys(keys):
            found = load(indices, _unwritten)
    except Exception as error:
        raise AssertionError(
            f"{name}.load_batch fails where its samples can be loaded, {where}: "
            f"{type(error).__name__}: {error}"
        ) from error
    own, its = dict(fields_of(expected, "")), dict(fields_of(found, ""))
    place = next((path for path in own | its if own.get(path) != its.get(path)), None)
    if place is None:
        return
    rows, others = _rows(expected, place, len(keys)), _rows(found, place, len(keys))
    wrong = [i for i, (a, b) in enumerate(zip(rows, others, strict=False)) if a[0] != b[0]]
    at = f", at {place}" if place else ""
    shown, other = own.get(place, (b"", "nothing"))[1], its.get(place, (b"", "nothing"))[1]
    if rows and others and wrong:
        number = wrong[0]
        where = f"in epoch {keys[0].epoch}, sample {indices[number]} (row {number} of {indices})"
        shown, other = rows[number][1], others[number][1]
    raise AssertionError(
        f"{name}.load_batch makes another batch than default_collate of its samples, first "
        f"{where}{at}:\n"
        f"  the sample by itself: {shown}\n"
        f"  in the whole batch: {other}\n"
        "what load_batch makes of a sample must follow from its key alone, and all of the memory "
        "that it asks for must be written"
    )


def _unwritten(
    shape: tuple[int, ...], dtype: torch.dtype, *, channels_last: bool = False
) -> torch.Tensor:
    """Memory in which what is never written to shows."""
    nbytes = math.prod(shape) * dtype.itemsize
    memory = torch.full((nbytes,), _UNWRITTEN, dtype=torch.uint8).view(dtype)
    if not channels_last:
        return memory.view(shape)
    count, channels, height, width = shape
    return memory.view(count, height, width, channels).permute(0, 3, 1, 2)


def _rows(batch: Any, place: str, count: int) -> list[tuple[bytes, str]]:
    """Return what a batch holds of each sample at a place; empty where nothing is per sample."""
    for path, part in _parts(batch, ""):
        is_tensor = isinstance(part, torch.Tensor) and path == place and part.ndim
        if (is_tensor or _is_text(part, place, path)) and len(part) == count:
            return [dict(fields_of(row, ""))[""] for row in part]
    return []


def _is_text(part: Any, place: str, path: str) -> bool:
    """Whether it is a list of text, whose items are places of their own."""
    is_list = isinstance(part, list | tuple) and all(isinstance(each, str | bytes) for each in part)
    return is_list and place.startswith(f"{path}[") and place != f"{path}[]"


def _parts(batch: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a batch with their places, named as by :func:`fields_of`."""
    yield path, batch
    if isinstance(batch, Mapping):
        for key, part in batch.items():
            yield from _parts(part, f"{path}[{key!r}]")
    elif isinstance(batch, list | tuple):
        names = getattr(batch, "_fields", range(len(batch)))
        for name, part in zip(names, batch, strict=True):
            inner = f"[{name}]" if isinstance(name, int) else f".{name}"
            yield from _parts(part, f"{path}{inner}")
