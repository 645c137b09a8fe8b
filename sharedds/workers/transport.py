"""What travels to a worker: a call whose objects are pickled by value where they have to be.

Classes, functions and lambdas of the main script or of a notebook cell cannot be imported by a
worker that never runs that script, so cloudpickle sends their code. They arrive in a ``__main__``
of the worker, under their own names, so that what they return (a batch class, an exception) finds
its way back to the same class in the trainer.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import io
import multiprocessing.queues
import multiprocessing.synchronize
import os
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import cloudpickle

from sharedds.errors import OptionError, SharedDSError, WorkerError

__all__ = ["ReceivedCall", "SealedCall", "ValuePickler", "explain"]

_PLUMBING = (
    *(int, float, str, bytes, type(None)),
    *(multiprocessing.queues.Queue, multiprocessing.synchronize.Event),
)
#: How a user knows the arguments of torch's worker function.
_PUBLIC_NAMES = {"dataset_holder": "dataset", "init_fn": "worker_init_fn"}
#: Where the loader's own wrappers of these arguments keep what the user passed.
_INSIDE = {"dataset": "dataset", "collate_fn": "collate_fn", "worker_init_fn": "function"}
_MOST_STEPS = 500
_kept_main_modules: list[types.ModuleType | None] = []


# --- pickling by value ---------------------------------------------------------------------------


class ValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, which also sends queues, connections and tensors as multiprocessing does."""

    def __init__(self, file: io.BytesIO) -> None:
        by_value = dict(cloudpickle.Pickler.dispatch_table)
        # cloudpickle would read an open text file into memory and send a copy.
        by_value.pop(io.TextIOWrapper, None)
        by_value[types.CodeType] = _reduce_code
        self.dispatch_table = collections.ChainMap(
            by_value, ForkingPickler(io.BytesIO()).dispatch_table
        )
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)  # which reads dispatch_table
        self.main = sys.modules["__main__"]
        #: Top-level classes and functions of the main module met on the way.
        self.names: dict[str, Any] = {}
        # All functions of the main module shall find their globals in the worker's main module.
        self.globals_ref[id(vars(self.main))] = _MainGlobals()

    def reducer_override(self, obj: Any) -> Any:
        """Note what is of the main module; pickle as cloudpickle does."""
        if isinstance(obj, (type, types.FunctionType)):
            name = obj.__qualname__
            if obj.__module__ == "__main__" and vars(self.main).get(name) is obj:
                self.names[name] = obj
        return super().reducer_override(obj)


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    """As cloudpickle does, but keep the file name: it stands in tracebacks."""
    make, arguments = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    dropped = "<dynamic-code>"
    named = (code.co_filename if type(a) is str and a == dropped else a for a in arguments)
    return make, tuple(named)


class _MainGlobals(dict[str, Any]):
    """Stands for the globals of the main module; unpickles as those of the worker's own."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _renew_main_module, (dict(self),)


def _renew_main_module(facts: dict[str, Any]) -> dict[str, Any]:
    # The old module holds the code that is running here; it must stay alive.
    _kept_main_modules.append(sys.modules.get("__main__"))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(main).update(facts)
    return vars(main)


def _dumps(obj: Any) -> bytes:
    """Pickle by value; :func:`_loads` reads it in another process."""
    file = io.BytesIO()
    pickler = ValuePickler(file)
    pickler.dump(obj)
    # A second pickle that shares the memo of the first: the names, known only now.
    pickler.dump(dict(pickler.names))
    return file.getvalue()


def _loads(data: bytes) -> Any:
    unpickler = pickle.Unpickler(io.BytesIO(data))  # noqa: S301 - from our own parent process
    obj = unpickler.load()
    vars(sys.modules["__main__"]).update(unpickler.load())
    return obj


class SealedCall:
    """A call to make in a worker; pickling it pickles the user's objects by value.

    Args:
        target: What to call; importable.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        method: The start method, for messages.
    """

    def __init__(
        self, target: Callable[..., None], args: Any, kwargs: dict[str, Any], method: str
    ) -> None:
        self.target = target
        self.arguments: dict[str, Any] = dict(
            inspect.signature(target).bind(*args, **kwargs).arguments
        )
        self.method = method
        self.sealed = b""

    def __reduce__(self) -> tuple[Any, ...]:
        objects = {n: obj for n, obj in self.arguments.items() if not isinstance(obj, _PLUMBING)}
        plumbing = {n: obj for n, obj in self.arguments.items() if n not in objects}
        try:
            sealed = _dumps(objects)
        except SharedDSError:
            raise
        except Exception as error:
            raise OptionError(self._refusal(objects, error)) from error
        return ReceivedCall, (self.target, plumbing, sealed)

    def _refusal(self, objects: dict[str, Any], error: Exception) -> str:
        path, reason = "the dataset", f"{type(error).__name__}: {error}"
        for public, part in _of_the_user(objects):
            found = explain(public, part, by_value=True)
            if found is not None:
                path, reason = found
                break
        # No word of fork: most of what cannot be sent is a handle, which a fork shares and breaks.
        advice = "open it on first use in each process (sharedds.per_process), or use num_workers=0"
        return f"{path} cannot be sent to a worker started by {self.method}: {reason}; {advice}"


def _of_the_user(objects: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What the user passed, by the names of the arguments of a loader."""
    for name, given in objects.items():
        # Newer versions of torch pass the dataset as the only item of a list.
        holds = name == "dataset_holder" and isinstance(given, list) and len(given) == 1
        obj, public = given[0] if holds else given, _PUBLIC_NAMES.get(name, name)
        is_ours = type(obj).__module__.startswith("sharedds.loader.")
        yield public, getattr(obj, _INSIDE.get(public, ""), obj) if is_ours else obj
        if is_ours and (transform := getattr(obj, "batch_transform", None)) is not None:
            yield "batch_transform", transform.function


class ReceivedCall:
    """A :class:`SealedCall` on the worker's side."""

    def __init__(
        self, target: Callable[..., None], plumbing: dict[str, Any], sealed: bytes
    ) -> None:
        self._target = target
        self._plumbing = plumbing
        self._sealed = sealed

    def open(self) -> Callable[[], None]:
        """Rebuild the objects and return the call; if they cannot be, one that reports why."""
        arguments = self._plumbing
        try:
            arguments |= _loads(self._sealed)
        except Exception as error:
            names = inspect.signature(self._target).parameters
            if "init_fn" not in names:
                raise
            # torch sends what init_fn raises to the trainer, in place of the first batch.
            arguments = dict.fromkeys(names) | {"dataset_holder": [None]} | arguments
            arguments = {name: arguments[name] for name in names}
            arguments["init_fn"] = functools.partial(_report, error)
        self._plumbing, self._sealed = {}, b""  # this object lives as long as the worker
        return functools.partial(self._target, **arguments)


def _report(error: Exception, worker_id: int) -> None:
    if isinstance(error, SharedDSError):
        raise error
    raise WorkerError(
        f"worker {worker_id} could not rebuild the dataset or its functions "
        f"({type(error).__name__}: {error}); what they need must be importable in a new process"
    ) from error


# --- saying what cannot be pickled ---------------------------------------------------------------


def explain(name: str, obj: Any, *, by_value: bool) -> tuple[str, str] | None:
    """Find the part of an object that cannot be pickled.

    Args:
        name: What to call the object; the start of the path.
        obj: The object.
        by_value: Whether classes and functions may travel by value.

    Returns:
        The path to the part (``dataset.transform.transforms[1]``) and what is wrong with it; None
        when the object pickles.
    """
    error = _failure(obj, by_value=by_value)
    if error is None:
        return None
    found = _search(name, obj, error, by_value=by_value, seen={})
    return found or (name, f"{_describe(obj)} ({type(error).__name__}: {error})")


def _search(
    path: str, obj: Any, error: Exception, *, by_value: bool, seen: dict[int, Any]
) -> tuple[str, str] | None:
    """Find a part that fails although all of its own parts pickle; cycles are dead ends."""
    seen[id(obj)] = obj  # kept alive, so that no id is used twice
    has_failing_part = False
    for label, part in _parts(obj):
        part_error = _failure(part, by_value=by_value)
        if part_error is None:
            continue
        has_failing_part = True
        if id(part) in seen or len(seen) > _MOST_STEPS:
            continue
        found = _search(path + label, part, part_error, by_value=by_value, seen=seen)
        if found is not None:
            return found
    if has_failing_part:
        return None
    return path, f"{_describe(obj)} ({type(error).__name__}: {error})"


def _failure(obj: Any, *, by_value: bool) -> Exception | None:
    try:
        if by_value:
            _dumps(obj)
        else:
            ForkingPickler.dumps(obj)
    except Exception as error:
        return error
    return None


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    """What pickling ``obj`` would pickle too, each with what to append to the path."""
    if isinstance(obj, dict):
        yield from ((f"[{key!r}]", value) for key, value in obj.items())
    elif isinstance(obj, (list, tuple, set, frozenset, collections.deque)):
        yield from ((f"[{i}]", value) for i, value in enumerate(obj))
    elif isinstance(obj, functools.partial):
        yield ".func", obj.func
        yield from ((f".args[{i}]", value) for i, value in enumerate(obj.args))
        yield from ((f".keywords[{key!r}]", value) for key, value in obj.keywords.items())
    elif isinstance(obj, types.MethodType):
        yield ".__self__", obj.__self__
        yield ".__func__", obj.__func__
    elif isinstance(obj, types.FunctionType):
        yield from _function_parts(obj)
    elif isinstance(obj, (staticmethod, classmethod)):
        yield "", obj.__func__
    elif isinstance(obj, property):
        yield from (("", function) for function in (obj.fget, obj.fset, obj.fdel))
    elif isinstance(obj, type):
        slots = (types.GetSetDescriptorType, types.MemberDescriptorType)
        members = ((key, value) for key, value in vars(obj).items() if not isinstance(value, slots))
        yield from ((f".{key}", value) for key, value in members)
    if not isinstance(obj, (type, types.FunctionType, types.ModuleType)):
        yield from _state(obj)
        yield f" -> class {type(obj).__qualname__}", type(obj)


def _function_parts(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    where = f"used by {_describe(function)}"
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell
            yield f" -> variable {name!r} {where}", cell.cell_contents
    for name in code.co_names:
        if name in function.__globals__:
            yield f" -> global {name!r} {where}", function.__globals__[name]
    yield from ((f".__defaults__[{i}]", v) for i, v in enumerate(function.__defaults__ or ()))


def _state(obj: Any) -> Iterator[tuple[str, Any]]:
    try:
        reduced = obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    except Exception:  # the object itself is what cannot be pickled
        return
    state = reduced[2] if isinstance(reduced, tuple) and len(reduced) > 2 else None
    for part in state if isinstance(state, tuple) else (state,):
        if isinstance(part, dict):
            yield from ((f".{key}", value) for key, value in part.items())
        else:
            yield " -> its pickled state", part


def _describe(obj: Any) -> str:
    if isinstance(obj, types.FunctionType):
        file = os.path.basename(obj.__code__.co_filename)
        return f"{obj.__qualname__} ({file}, line {obj.__code__.co_firstlineno})"
    if isinstance(obj, type):
        return f"class {obj.__module__}.{obj.__qualname__}"
    return f"a {type(obj).__module__}.{type(obj).__qualname__}"
