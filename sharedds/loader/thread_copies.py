"""One dataset for all loader threads, or one for each: whose are the generators it holds?"""

from __future__ import annotations

import copy
from typing import Any

import cloudpickle

from sharedds.errors import OptionError
from sharedds.generators.held import HeldGenerators

__all__ = ["for_each_thread"]


def for_each_thread(reader: Any, collate_fn: Any, count: int) -> list[tuple[Any, Any]]:
    """Return a reader and a collate function for each thread.

    The dataset is shared, unless it holds generators: a sample reseeds those, and must have them
    for itself until it is made.

    Args:
        reader: A ``SampleReader``.
        collate_fn: Searched for generators as well, and copied with the dataset.
        count: How many threads there are.

    Raises:
        OptionError: It holds some and cannot be copied.
    """
    shared = (reader.dataset, collate_fn)
    held = _held(shared) if reader.seeding else None
    pairs = []
    for _ in range(count):
        dataset, collate = _copied(shared, held) if held else shared
        own = copy.copy(reader)
        own.begin_anew(dataset, collate)
        pairs.append((own, collate))
    return pairs


def _pickled(pair: Any) -> Any:
    """A copy that has functions of its own too, where those are no part of a module."""
    return cloudpickle.loads(cloudpickle.dumps(pair))


def _held(pair: tuple[Any, Any]) -> HeldGenerators:
    return HeldGenerators(dataset=pair[0], collate_fn=pair[1])


def _copied(pair: tuple[Any, Any], held: HeldGenerators) -> tuple[Any, Any]:
    originals = {id(getter()) for _, getter in held._found}
    why = ""
    for way in (copy.deepcopy, _pickled):
        try:
            made: tuple[Any, Any] = way(pair)
        except Exception as error:
            why = f"copying failed with {type(error).__name__}: {error}"
            continue
        common = [path for path, getter in _held(made)._found if id(getter()) in originals]
        if not common:
            return made
        why = f"copies would share {', '.join(common)}"
    raise OptionError(
        "each loader thread needs a copy of the dataset for itself, because it holds generators "
        f"({', '.join(held.paths[:5])}), but {why}. Draw from self.rng of a LazyDataset or from "
        "the global generators instead, or use engine='process' with threads_per_worker=1"
    )
