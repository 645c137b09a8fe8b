"""Finds the random generators that a dataset and its transforms hold, and reseeds them.

A generator made in ``__init__`` travels to every worker as the same copy: without this, all workers
would draw the same numbers from it, and other ones with another number of workers. What is found:

* ``numpy.random.Generator`` and ``RandomState``, ``random.Random``, ``torch.Generator`` in
  attributes, lists, tuples, dicts, partials, closures, class attributes, and in globals (other
  functions, instances of the user's classes) that the methods and functions met use by name;
* objects that are told a seed: ``set_random_seed(seed)``, or ``set_random_state(seed=...)``.

The search is bounded and never runs code of the objects: no property is computed.
"""

from __future__ import annotations

import collections
import functools
import inspect
import itertools
import random
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from sharedds.order import SampleKey

__all__ = ["HeldGenerators", "names_used"]

#: Called for the object as it is now: some libraries replace their generators as they run.
_Getter = Callable[[], Any]

_KINDS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
_LEAVES = (
    *(str, bytes, bytearray, memoryview, int, float, complex, type(None)),
    *(np.ndarray, np.generic, np.dtype, torch.Tensor, torch.dtype, torch.device),
    *(types.ModuleType, types.BuiltinFunctionType, types.CodeType),
)
#: Not sets: their order differs from process to process, and so would the paths.
_SEQUENCES = (list, tuple, collections.deque)
_CONTAINERS = (*_SEQUENCES, dict)
#: A container with more holds data, and nobody has so many transforms: it is searched last.
_MANY_ITEMS = 32
_MOST_OBJECTS = 5000
_MOST_ITEMS = 256
#: Modules of libraries whose classes and functions use no generator by a global name of their own.
_LIBRARIES = frozenset({"builtins", "torch", "numpy", "sharedds", "PIL", "functools", "typing"})
_WORD = (1 << 32) - 1


class HeldGenerators:
    """The generators that some objects hold.

    Args:
        roots: What to search, by the names that the paths start with.

    Attributes:
        paths: Where each generator was found, such as ``dataset.transform.rng``.
    """

    def __init__(self, **roots: object) -> None:
        self._found: list[tuple[str, _Getter]] = []
        self._seen: dict[int, object] = {}
        for name, root in roots.items():
            self._search(name, root)
        self._seen.clear()
        self.paths = tuple(path for path, _ in self._found)

    def __len__(self) -> int:
        return len(self._found)

    def reseed(self, key: SampleKey) -> None:
        """Bring every generator to a state that depends on the key and its path only."""
        for path, getter in self._found:
            _reseed(getter(), key.number(path))

    def states(self) -> list[Callable[[], None]]:
        """Return functions that bring each generator back to where it is now, as far as known."""
        return [undo for _, getter in self._found if (undo := _undo(getter())) is not None]

    # --- searching -------------------------------------------------------------------------------

    def _search(self, name: str, root: object) -> None:
        queue: collections.deque[tuple[str, _Getter]] = collections.deque()
        later: collections.deque[tuple[str, _Getter]] = collections.deque()  # data, most likely
        queue.append((name, _constant(root)))
        while (queue or later) and len(self._seen) < _MOST_OBJECTS:
            path, getter = (queue or later).popleft()
            obj = getter()
            if isinstance(obj, _LEAVES) or id(obj) in self._seen:
                continue
            self._seen[id(obj)] = obj  # kept alive, so that no id is used twice
            if _is_source(obj):
                if not _is_global(obj):
                    self._found.append((path, getter))
                continue
            is_data = isinstance(obj, _CONTAINERS) and len(obj) > _MANY_ITEMS
            (later if is_data else queue).extend(
                (path + label, part) for label, part in _parts(obj)
            )


def _is_source(obj: object) -> bool:
    if isinstance(obj, _KINDS):
        return True
    if isinstance(obj, type | Dataset):  # a dataset may do anything with a seed, and only once
        return False
    return _takes(obj, "set_random_seed") or (
        # Where there is an R, reseeding that in place is the same and a hundred times faster.
        _takes(obj, "set_random_state", "seed")
        and not isinstance(inspect.getattr_static(obj, "R", None), np.random.RandomState)
    )


def _takes(obj: object, method: str, parameter: str | None = None) -> bool:
    function = inspect.getattr_static(type(obj), method, None)
    if not isinstance(function, types.FunctionType):
        return False
    return parameter is None or parameter in function.__code__.co_varnames


def _is_global(obj: object) -> bool:
    """Whether it is one of the global generators, which have a seeding of their own."""
    return (
        obj is torch.default_generator
        or obj is getattr(np.random.mtrand, "_rand", None)
        or obj is getattr(random, "_inst", None)
    )


def _constant(obj: object) -> _Getter:
    return lambda: obj


def _parts(obj: object) -> Iterator[tuple[str, _Getter]]:
    """What an object holds, each with what to append to the path."""
    if isinstance(obj, dict):
        for i, key in enumerate(tuple(itertools.islice(obj, _MOST_ITEMS))):
            label = repr(key) if isinstance(key, str | int) else f"key {i}"
            yield f"[{label}]", functools.partial(obj.get, key)
    elif isinstance(obj, _SEQUENCES):
        for i, value in enumerate(itertools.islice(obj, _MOST_ITEMS)):
            yield f"[{i}]", _constant(value)
    elif isinstance(obj, functools.partial):
        yield ".func", _constant(obj.func)
        yield ".args", _constant(obj.args)
        yield ".keywords", _constant(obj.keywords)
    elif isinstance(obj, types.MethodType):
        yield ".__self__", _constant(obj.__self__)
        yield ".__func__", _constant(obj.__func__)
    elif isinstance(obj, types.FunctionType):
        yield from _function_parts(obj)
    elif isinstance(obj, type):
        yield from _class_parts(obj)
    if not isinstance(obj, type | types.FunctionType | types.MethodType):
        yield from _attributes(obj)
        yield "", _constant(type(obj))


def _attributes(obj: object) -> Iterator[tuple[str, _Getter]]:
    attributes = inspect.getattr_static(obj, "__dict__", None)
    if isinstance(attributes, types.GetSetDescriptorType):
        attributes = attributes.__get__(obj)
    if isinstance(attributes, dict):
        for name in tuple(itertools.islice(attributes, _MOST_ITEMS)):
            yield f".{name}", functools.partial(attributes.get, name)
    own = attributes if isinstance(attributes, dict) else {}
    for kind in type(obj).__mro__:
        for name, value in tuple(vars(kind).items()):
            is_slot = isinstance(value, types.MemberDescriptorType)
            # A generator of the class counts where the object has none of its own in its place.
            if (is_slot and kind.__module__ != "builtins") or (
                isinstance(value, _KINDS) and name not in own
            ):
                yield f".{name}", functools.partial(getattr, obj, name, None)


def _class_parts(kind: type) -> Iterator[tuple[str, _Getter]]:
    """The methods, which may use generators that are globals."""
    for owner in kind.__mro__:
        library = owner.__module__.partition(".")[0] in _LIBRARIES
        for name, value in tuple(vars(owner).items()):
            if isinstance(value, staticmethod | classmethod) and not library:
                yield f".{name}", _constant(value.__func__)
            elif isinstance(value, types.FunctionType) and not library:
                yield f".{name}", _constant(value)


def _function_parts(function: types.FunctionType) -> Iterator[tuple[str, _Getter]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        yield f"<{name}>", functools.partial(_content, cell)
    yield ".__defaults__", _constant(function.__defaults__)
    yield ".__kwdefaults__", _constant(function.__kwdefaults__)
    if str(function.__module__).partition(".")[0] in _LIBRARIES:
        return
    for name in names_used(function.__code__):
        if _may_hold(function.__globals__.get(name)):
            yield f"<{name}>", functools.partial(function.__globals__.get, name)


def names_used(code: types.CodeType) -> Iterator[str]:
    """The names of globals in some code, also in the comprehensions and lambdas in it."""
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from names_used(part)


def _may_hold(value: object) -> bool:
    """Whether a global is a generator, a function, or an object that is no part of a library."""
    if isinstance(value, _KINDS):
        return True
    if isinstance(value, (type, *_LEAVES, *_CONTAINERS)):
        return False
    kind = value if isinstance(value, types.FunctionType) else type(value)
    package = str(kind.__module__).partition(".")[0]
    return package not in _LIBRARIES and package not in sys.stdlib_module_names


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that is not assigned yet
        return None


# --- reseeding -----------------------------------------------------------------------------------


def _reseed(source: Any, number: int) -> None:
    if isinstance(source, np.random.Generator):
        _reseed_bits(source.bit_generator, number)
    elif isinstance(source, np.random.RandomState):
        source.seed(number & _WORD)
    elif isinstance(source, random.Random):
        source.seed(number)
    elif isinstance(source, torch.Generator):
        source.manual_seed(number)
    elif _takes(source, "set_random_seed"):
        source.set_random_seed(number & _WORD)
    elif _takes(source, "set_random_state", "seed"):
        source.set_random_state(seed=number & _WORD)


def _reseed_bits(bits: Any, number: int) -> None:
    bits.state = type(bits)(number).state


def _undo(source: Any) -> Callable[[], None] | None:
    if isinstance(source, np.random.Generator):
        return functools.partial(setattr, source.bit_generator, "state", source.bit_generator.state)
    if isinstance(source, np.random.RandomState):
        return functools.partial(source.set_state, source.get_state())
    if isinstance(source, random.Random):
        return functools.partial(source.setstate, source.getstate())
    if isinstance(source, torch.Generator):
        return functools.partial(_set_torch_state, source, source.get_state())
    return None


def _set_torch_state(source: torch.Generator, state: torch.Tensor) -> None:
    source.set_state(state)
