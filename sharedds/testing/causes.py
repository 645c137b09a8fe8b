"""Why a stream may depend on how it is loaded: what the code of a dataset names."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

__all__ = ["causes_of"]

_CLOCK = "the clock ({}): a sample must not depend on when it is made"
_SYSTEM = "randomness of the system ({}), which no seed reaches: draw from self.rng or numpy.random"
_PLACE = "who makes the sample ({}): a worker's number, process or thread is not part of its key"
_HASH = "hashes ({}), which differ from process to process for text: use sorted(), or xxhash"
_MAKES = "a generator made while samples are made ({}): without a seed each has another stream"
_TELLTALE = {
    **dict.fromkeys(("time", "time_ns", "perf_counter", "monotonic", "now", "today"), _CLOCK),
    **dict.fromkeys(("urandom", "uuid1", "uuid4", "secrets", "SystemRandom", "getrandom"), _SYSTEM),
    **dict.fromkeys(("getpid", "get_worker_info", "get_ident", "current_thread"), _PLACE),
    **dict.fromkeys(("current_process", "gethostname", "environ"), _PLACE),
    **dict.fromkeys(("hash", "set", "frozenset", "id"), _HASH),
    **dict.fromkeys(("default_rng", "RandomState", "Random", "seed_everything"), _MAKES),
}
_LIBRARIES = frozenset({"builtins", "numpy", "sharedds", "torch", "typing"})
_CARRIED = (
    "something kept from sample to sample in the dataset (a counter, an iterator, a random stream "
    "of its own), so that a sample depends on which ones were made before it"
)
_ANYWHERE = (
    "the clock, os.urandom, uuid or secrets: no seed reaches those",
    "a generator of a kind that cannot be reseeded, or hidden too deep to be found",
    _CARRIED,
)
_OF_PROCESSES = (
    _CARRIED,
    "the order of a set, or hash() of text: they differ from process to process",
    "the number of the worker, its process id, or the environment",
    "something that importing a module anew makes different",
)
_STORED = (
    "a random function that was stored in an object (self.draw = random.random), or a hidden "
    "instance (numpy.random.mtrand._rand): threads cannot redirect these; call random.random() by "
    "its module, or use engine='process'"
)
_OF_THREADS = (
    _STORED,
    "something that threads share and change: a buffer or a cache in the dataset, a global",
)


def causes_of(dataset: Any, collate_fn: Any, engine: str | None) -> Iterator[str]:
    """Yield likely causes: what the code names first, then what is common where it happened.

    Args:
        dataset: The dataset.
        collate_fn: What makes its batches, if that is checked as well.
        engine: What the workers are: "process" or "thread"; None without workers.
    """
    found: dict[str, list[str]] = {}
    for name in sorted(_names(dataset, 3) | _names(collate_fn, 3)):
        if name in _TELLTALE:
            found.setdefault(_TELLTALE[name], []).append(name)
    for cause, names in found.items():
        yield f"its code names {cause.format(', '.join(names))}"
    if engine is None:
        yield from _ANYWHERE
    elif engine == "process":
        yield from _OF_PROCESSES
    else:
        yield from _OF_THREADS


def _names(value: Any, depth: int) -> set[str]:
    """Return the names that the code of an object uses, and of the objects in it."""
    if depth == 0 or value is None:
        return set()
    if isinstance(value, types.MethodType):
        value = value.__func__
    if isinstance(value, types.FunctionType):
        return _of_code(value.__code__)
    found: set[str] = set()
    if isinstance(value, list | tuple):
        return found.union(*(_names(part, depth) for part in value[:32]))
    for owner in type(value).__mro__:
        if owner.__module__.partition(".")[0] in _LIBRARIES:
            continue
        for name, member in vars(owner).items():
            function = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(function, types.FunctionType) and name != "__init__":
                found |= _of_code(function.__code__)
    for part in tuple(getattr(value, "__dict__", {}).values())[:32]:
        found |= _names(part, depth - 1)
    return found


def _of_code(code: types.CodeType) -> set[str]:
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return set(code.co_names).union(*(_of_code(part) for part in inner))
