"""Walks what a dataset holds, in names that its author knows: ``dataset.meta['rows']``.

The walk is bounded in time and in the number of objects, and runs no code of the objects: no
property is computed, no method called. It goes into attributes, slots, small containers, partials,
closures and bound methods, and over the classes and functions met, into their class attributes and
into the globals that they use by name. A container of many items is one part, never its items.
"""

from __future__ import annotations

import collections
import functools
import inspect
import itertools
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sharedds.diagnose.containers import CONTAINERS, first_items, is_a

__all__ = ["FEW_ITEMS", "OWN_ROOMS", "Part", "modules_used", "own_attributes", "walk"]

#: A container with more is data: it is judged as a whole.
FEW_ITEMS = 32
_MOST_PARTS = 20_000
_MOST_ATTRIBUTES = 2_000
_LEAVES = (
    *(str, bytes, bytearray, memoryview, int, float, complex, type(None)),
    *(np.ndarray, np.generic, np.dtype, torch.Tensor, torch.dtype, torch.device),
    *(types.BuiltinFunctionType, types.CodeType, types.FrameType),
)
_PLAIN = (*_LEAVES[:8], type, types.ModuleType)
#: Rooms of this package whose objects keep data in files and handles in one process.
OWN_ROOMS = ("sharedds.handles.", "sharedds.packed.", "sharedds.store.")
_LIBRARIES = frozenset({"torch", "numpy", "sharedds", "PIL", "pandas", "torchvision"})


@dataclass(frozen=True, slots=True)
class Part:
    """Something that was met on the walk.

    Args:
        path: How to get there, from the root.
        value: The object.
        via: "instance" for what belongs to an object; "class" for an attribute of a class and
            "global" for a global that code uses: spawned workers make these anew.
    """

    path: str
    value: Any
    via: str = "instance"


def walk(
    roots: Mapping[str, object], visit: Callable[[Part], bool], *, seconds: float = 1.0
) -> bool:
    """Walk over everything that some objects hold, what is near the roots first.

    Args:
        roots: What to walk over, by the names that the paths begin with.
        visit: Called with each part once; returns whether to go into it.
        seconds: The longest it may take.

    Returns:
        Whether the walk came to its end.
    """
    ends = time.monotonic() + seconds
    queue = collections.deque(Part(name, root) for name, root in roots.items())
    seen: dict[int, object] = {}
    while queue:
        part = queue.popleft()
        if id(part.value) in seen:
            continue
        if len(seen) > _MOST_PARTS or time.monotonic() > ends:
            return False
        seen[id(part.value)] = part.value  # kept alive, so that no id is used twice
        if is_a(part.value, types.ModuleType) or type(part.value).__module__.startswith(OWN_ROOMS):
            continue
        if visit(part) and not is_a(part.value, _LEAVES):
            queue.extend(_parts(part))
    return True


def _parts(part: Part) -> Iterator[Part]:
    obj, path, via = part.value, part.path, part.via
    if is_a(obj, dict):
        for i, (key, value) in enumerate(itertools.islice(dict.items(obj), FEW_ITEMS)):
            label = repr(key) if type(key) in (str, int) else f"key {i}"
            yield Part(f"{path}[{label}]", value, via)
    elif is_a(obj, CONTAINERS):
        word = "item " if is_a(obj, (set, frozenset)) else ""
        for i, value in enumerate(first_items(obj, FEW_ITEMS)):
            yield Part(f"{path}[{word}{i}]", value, via)
    elif is_a(obj, functools.partial):
        yield Part(f"{path}.func", obj.func, via)
        yield Part(f"{path}.args", obj.args, via)
        yield Part(f"{path}.keywords", obj.keywords, via)
    elif is_a(obj, types.MethodType):
        yield Part(f"{path}.__self__", obj.__self__, via)
        yield Part(f"{path}.__func__", obj.__func__, via)
    elif is_a(obj, types.FunctionType):
        yield from _of_function(path, obj, via)
    elif is_a(obj, type):
        yield from _of_class(obj)
    if not is_a(obj, (type, types.FunctionType, types.MethodType)):
        yield from _attributes(part)
        yield Part(type(obj).__qualname__, type(obj), "class")


def own_attributes(obj: object) -> dict[str, Any]:
    """Return what is in the ``__dict__`` of an object, empty without one."""
    found = inspect.getattr_static(obj, "__dict__", None)
    if isinstance(found, types.GetSetDescriptorType):
        found = found.__get__(obj)
    return found if isinstance(found, dict) else {}


def _attributes(part: Part) -> Iterator[Part]:
    obj = part.value
    for name, value in itertools.islice(tuple(own_attributes(obj).items()), _MOST_ATTRIBUTES):
        yield Part(f"{part.path}.{name}", value, part.via)
    for kind in type(obj).__mro__:
        if kind.__module__ == "builtins":
            continue
        for name, slot in tuple(vars(kind).items()):
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    value = slot.__get__(obj)
                except AttributeError:  # nothing was ever assigned
                    continue
                yield Part(f"{part.path}.{name}", value, part.via)


def _of_class(kind: type) -> Iterator[Part]:
    for owner in kind.__mro__:
        if _is_library(owner.__module__):
            continue
        for name, value in tuple(vars(owner).items()):
            path = f"{owner.__qualname__}.{name}"
            if isinstance(value, staticmethod | classmethod):
                yield Part(path, value.__func__, "class")
            elif isinstance(value, types.FunctionType) or not name.startswith("__"):
                yield Part(path, value, "class")


def _of_function(path: str, function: types.FunctionType, via: str) -> Iterator[Part]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield Part(f"{path} -> variable {name!r}", cell.cell_contents, via)
        except ValueError:  # not assigned yet
            continue
    yield Part(f"{path}.__defaults__", function.__defaults__, via)
    if _is_library(str(function.__module__)):
        return
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        if not is_a(value, _PLAIN):
            yield Part(f"global {name!r} of {function.__module__}", value, "global")


def modules_used(function: types.FunctionType) -> set[str]:
    """Return the names of the modules that the code of a function uses."""
    values = (function.__globals__.get(name) for name in _names(function.__code__))
    return {value.__name__ for value in values if isinstance(value, types.ModuleType)}


def _names(code: types.CodeType) -> Iterator[str]:
    """The names of globals in some code, also in the comprehensions and lambdas in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_library(module: str) -> bool:
    package = module.partition(".")[0]
    return package in _LIBRARIES or package in sys.stdlib_module_names
