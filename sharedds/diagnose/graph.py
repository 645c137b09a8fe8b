"""Walks what a dataset holds, in names that its author knows: ``dataset.meta['rows']``.

The walk is bounded in time and in the number of objects, and runs no code of the objects: no
property is computed, no method called. It goes into attributes, slots, small containers, partials,
closures and bound methods, and over the classes and functions met, into their class attributes and
into the globals that they use by name. A container of many items is one part, never its items.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import logging
import os
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sharedds.diagnose.containers import CONTAINERS, first_items, is_a, is_exactly
from sharedds.generators.held import names_used

__all__ = [
    "FEW_ITEMS",
    "OWN_ROOMS",
    "Part",
    "arrow_table",
    "attributes",
    "modules_used",
    "near",
    "own_attributes",
    "walk",
]

#: A container with more is data: it is judged as a whole.
FEW_ITEMS = 32
_MOST_PARTS = 20_000
_MOST_ATTRIBUTES = 2_000
_LEAVES = (
    *(str, bytes, bytearray, memoryview, int, float, complex, type(None)),
    *(np.ndarray, np.generic, np.dtype, torch.Tensor, torch.dtype, torch.device),
    *(types.BuiltinFunctionType, types.CodeType, types.FrameType),
)
#: What belongs to the process and travels by name, or is made to be shared by processes.
_NOT_LOOKED_INTO = (types.ModuleType, logging.Logger, logging.LoggerAdapter, logging.Handler)
_BETWEEN_PROCESSES = frozenset(
    f"multiprocessing.{room}"
    for room in (
        *("connection", "context", "heap", "managers", "queues", "shared_memory"),
        *("sharedctypes", "synchronize"),
    )
)
_PLAIN = (*_LEAVES[:8], type, types.ModuleType)
#: Rooms of this package whose objects keep data in files and handles in one process.
OWN_ROOMS = ("sharedds.handles.", "sharedds.packed.", "sharedds.store.")
_CLASS_DICT: Callable[[type], Mapping[str, Any]] = type.__dict__["__dict__"].__get__
#: Tables of Hugging Face's datasets: beside an Arrow table they keep its batches and its blocks,
#: which are the same memory, and which a copy in another process makes anew of the table.
_ARROW_TABLES = "datasets.table"
_LIBRARIES = frozenset({"torch", "numpy", "sharedds", "PIL", "pandas", "torchvision"})
_INSTALLED = frozenset({"site-packages", "dist-packages"})  # folders of such packages


@dataclass(frozen=True, slots=True)
class Part:
    """Something that was met on the walk.

    Args:
        path: How to get there, from the root.
        value: The object.
        via: "instance" for what belongs to an object; "class" for an attribute of a class and
            "global" for a global that code uses, or "library" for both of an installed package:
            spawned workers make these anew.
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
        try:
            if _belongs_elsewhere(part.value):
                continue
            if visit(part) and not is_a(part.value, _LEAVES):
                queue.extend(_parts(part))
        except Exception:  # noqa: S112 - a class that does not let itself be asked what it is
            continue
    return True


def _belongs_elsewhere(obj: Any) -> bool:
    """Whether what an object holds belongs to the process, to all processes or to this package."""
    if is_a(obj, _NOT_LOOKED_INTO):
        return True
    streams = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
    if any(obj is stream for stream in streams) and obj is not None:
        return True
    if any(kind.__module__ == "asyncio.events" for kind in type(obj).__mro__):
        return True  # a loop, with sockets to itself
    module = str(type(obj).__module__)
    return module in _BETWEEN_PROCESSES or module.startswith(OWN_ROOMS)


def near(part: Part, levels: int = 2) -> Iterator[Part]:
    """Yield a part and what the object itself holds, some levels deep."""
    seen: dict[int, object] = {}
    parts = [part]
    for level in range(levels + 1):
        below: list[Part] = []
        for each in parts:
            if id(each.value) in seen or is_a(each.value, _PLAIN):
                continue
            try:
                if _belongs_elsewhere(each.value):
                    continue
                seen[id(each.value)] = each.value
                yield each
                if level < levels and not is_a(each.value, _LEAVES):
                    found = (inner for inner in _parts(each) if inner.via == part.via)
                    below += itertools.islice(found, FEW_ITEMS)
            except Exception:  # noqa: S112 - as in a walk
                continue
        parts = below


def _parts(part: Part) -> Iterator[Part]:
    obj, path, via = part.value, part.path, part.via
    if is_a(obj, dict):
        for i, (key, value) in enumerate(itertools.islice(dict.items(obj), FEW_ITEMS)):
            label = repr(key) if is_exactly(key, str, int) else f"key {i}"
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
    for kind in type(obj).__mro__:
        slot: Any = _CLASS_DICT(kind).get("__dict__")
        if is_a(slot, types.GetSetDescriptorType):
            found = slot.__get__(obj)
            return found if is_a(found, dict) else {}
    return {}


def arrow_table(obj: object) -> Any:
    """Return the Arrow table that is all the memory of a table of datasets; None of others."""
    return own_attributes(obj).get("table") if type(obj).__module__ == _ARROW_TABLES else None


def attributes(obj: object) -> dict[str, Any]:
    """Return what an object holds by name: in its ``__dict__`` and in its slots."""
    if (table := arrow_table(obj)) is not None:
        return {"table": table}
    found = dict(itertools.islice(tuple(own_attributes(obj).items()), _MOST_ATTRIBUTES))
    for kind in type(obj).__mro__:
        if kind.__module__ == "builtins":
            continue
        for name, slot in tuple(_CLASS_DICT(kind).items()):
            if is_a(slot, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # nothing was ever assigned
                    found[name] = slot.__get__(obj)
    return found


def _attributes(part: Part) -> Iterator[Part]:
    for name, value in attributes(part.value).items():
        yield Part(f"{part.path}.{name}", value, part.via)


def _of_class(kind: type) -> Iterator[Part]:
    for owner in kind.__mro__:
        if _is_library(owner.__module__):
            continue
        via = "library" if _is_installed(owner.__module__) else "class"
        for name, value in tuple(_CLASS_DICT(owner).items()):
            path = f"{owner.__qualname__}.{name}"
            if is_a(value, (staticmethod, classmethod)):
                yield Part(path, value.__func__, via)
            elif is_a(value, types.FunctionType) or not name.startswith("__"):
                yield Part(path, value, via)


def _of_function(path: str, function: types.FunctionType, via: str) -> Iterator[Part]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield Part(f"{path} -> variable {name!r}", cell.cell_contents, via)
        except ValueError:  # not assigned yet
            continue
    yield Part(f"{path}.__defaults__", function.__defaults__, via)
    if _is_library(str(function.__module__)):
        return
    via = "library" if _is_installed(str(function.__module__)) else "global"
    for name in names_used(function.__code__):
        value = function.__globals__.get(name)
        if not is_a(value, _PLAIN):
            yield Part(f"global {name!r} of {function.__module__}", value, via)


def modules_used(function: types.FunctionType) -> set[str]:
    """Return the names of the modules that the code of a function uses."""
    values: Iterator[Any] = (function.__globals__.get(n) for n in names_used(function.__code__))
    return {value.__name__ for value in values if is_a(value, types.ModuleType)}


def _is_library(module: str) -> bool:
    package = module.partition(".")[0]
    return package in _LIBRARIES or package in sys.stdlib_module_names


def _is_installed(module: str) -> bool:
    """Whether a module came with an installed package, and is no code of the dataset's author."""
    place = str(getattr(sys.modules.get(module), "__file__", None) or "")
    return not _INSTALLED.isdisjoint(place.split(os.sep))
