"""Attributes that belong to one process, and what a forked child keeps but never uses."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar, overload

from sharedds.errors import OptionError

__all__ = ["ForkGate", "MadeHere", "Unforked", "keep_inherited", "per_process", "unsent"]

T = TypeVar("T")

_lock = threading.RLock()
_slots: weakref.WeakSet[_Slot] = weakref.WeakSet()
_inherited: list[object] = []
_gates: weakref.WeakSet[ForkGate] = weakref.WeakSet()
_making_gate = threading.RLock()
_closed: dict[int, list[threading.RLock]] = {}  # locks held by each thread that forks
_forks = 0  # moves before and after each fork


def keep_inherited(objects: Iterable[object]) -> None:
    """Keep what a forked child inherited alive to its end, so that no destructor runs in it."""
    _inherited.extend(objects)


class MadeHere:
    """Remembers the process it was made in: a forked child must leave alone what is not its own.

    Example:
        >>> bool(MadeHere())
        True
    """

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    def __bool__(self) -> bool:
        return self._pid == os.getpid()


class Unforked:
    """Remembers that no child has what is here now: false as soon as this process has forked.

    A child goes on seeing the shared memory that its parent had mapped.

    Example:
        >>> bool(Unforked())
        True
    """

    __slots__ = ("_forks",)

    def __init__(self) -> None:
        self._forks = _forks

    def __bool__(self) -> bool:
        return self._forks == _forks


class ForkGate:
    """What a fork must not meet half done; a context manager. A fork waits until it is done.

    A thread inside a C library holds locks of it, which would stay locked in the child for ever.
    The thread that is inside may enter again, and may fork.
    """

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        with _making_gate:
            _gates.add(self)

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


class _Slot:
    """Where one object keeps one value of :class:`per_process`; pickles as an empty slot."""

    __slots__ = ("__weakref__", "lock", "owner", "pid", "ready", "value")

    def __init__(self, owner: object | None = None) -> None:
        self.owner = weakref.ref(owner) if owner is not None else None
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.ready = False
        self.value: Any = None

    def belongs_to(self, owner: object) -> bool:
        """Whether this slot is of this object, not of one it was copied from, in this process."""
        return self.owner is not None and self.owner() is owner and self.pid == os.getpid()

    def __reduce__(self) -> tuple[type[_Slot], tuple[()]]:
        return _Slot, ()


class per_process(Generic[T]):  # noqa: N801 - used as a decorator, like functools.cached_property
    """An attribute computed on first use in each process, and kept for that process only.

    The value is never pickled with its object and never used in a forked child: the child computes
    its own. A copy of the object computes its own too. Safe when threads ask at once. A function
    that raises is asked again the next time.

    Example:
        >>> import os
        >>> class Reader:
        ...     @per_process
        ...     def process(self) -> int:
        ...         return os.getpid()
        >>> Reader().process == os.getpid()
        True
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function = function
        self.key = f"per_process {function.__qualname__}"
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> per_process[T]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> per_process[T] | T:
        if instance is None:
            return self
        slot: _Slot | None = instance.__dict__.get(self.key)
        # As belongs_to, without the call: some attributes are asked for with every sample.
        if (
            slot is None
            or slot.owner is None
            or slot.owner() is not instance
            or slot.pid != os.getpid()
        ):
            slot = self._renew(instance)
        if not slot.ready:
            with slot.lock:
                if not slot.ready:
                    slot.value = self.function(instance)
                    slot.ready = True
        return slot.value  # type: ignore[no-any-return]

    def __set__(self, instance: object, value: object) -> None:
        name = self.function.__name__
        raise OptionError(f"{name} is opened by each process for itself and cannot be assigned")

    def _renew(self, instance: object) -> _Slot:
        with _lock:
            slot: _Slot | None = instance.__dict__.get(self.key)
            if slot is None or not slot.belongs_to(instance):
                slot = instance.__dict__[self.key] = _Slot(instance)
                _slots.add(slot)
            return slot


class _Unsent:
    """Holds a value; pickles as a holder of None."""

    __slots__ = ("value",)

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def __reduce__(self) -> tuple[type[_Unsent], tuple[()]]:
        return _Unsent, ()


class unsent(Generic[T]):  # noqa: N801 - used as per_process is
    """An attribute that can be assigned and is never pickled with its object: None over there.

    Example:
        >>> import copy
        >>> class Reader:
        ...     thread = unsent()
        >>> reader = Reader()
        >>> reader.thread = threading.current_thread()
        >>> copy.deepcopy(reader).thread is None  # copied as pickle does
        True
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._key = f"unsent {name}"

    @overload
    def __get__(self, instance: None, owner: type) -> unsent[T]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T | None: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> unsent[T] | T | None:
        if instance is None:
            return self
        holder: _Unsent | None = instance.__dict__.get(self._key)
        return holder.value if holder is not None else None

    def __set__(self, instance: object, value: T | None) -> None:
        instance.__dict__[self._key] = _Unsent(value)


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - there is one number for the process
    _forks += 1


def _before_fork() -> None:
    _count_fork()
    closed = _closed[threading.get_ident()] = []  # noted one by one: Ctrl-C may come
    while True:
        with _making_gate:
            gates = sorted(_gates, key=id)  # all threads that fork take them in one order
        for lock in (*(gate.lock for gate in gates), _making_gate):
            lock.acquire()
            closed.append(lock)
        # While this thread waited another one may have made a gate, and be inside.
        if _gates <= weakref.WeakSet(gates):
            return  # and none is made until the fork is over
        _open_again(closed)


def _open_again(closed: list[threading.RLock]) -> None:
    while closed:
        closed.pop().release()


def _reopen_gates() -> None:
    _count_fork()  # what another thread has made meanwhile may be in the child too
    _open_again(_closed.pop(threading.get_ident(), []))


def _after_fork() -> None:
    global _lock, _making_gate
    # Another thread of the parent may hold them, for ever here.
    _lock, _making_gate = threading.RLock(), threading.RLock()
    _closed.clear()
    for gate in _gates:
        gate.lock = threading.RLock()
    keep_inherited(_slots)
    _slots.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_reopen_gates, after_in_child=_after_fork
    )
