"""Global generators of its own for each loader thread.

Transforms draw from the global generators of ``random``, NumPy and torch. In a worker process those
belong to the sample in hand; threads share them with each other and with the trainer. So, while a
loader thread makes samples (:class:`drawing_from`), its global draws come from generators of its
own (:class:`ThreadGenerators`). Seeded with the same numbers, they give bit for bit what the global
ones give in a worker process, and the trainer's stay as they are. How:

* ``random``, ``numpy.random`` and the seeding functions of torch: wherever a module has one of
  these functions under any name, a dispatching function takes its place while threads run
  (:func:`redirect_globals`). It serves the thread's own generator, or calls the original.
* torch: a dispatch mode, which is in force for one thread only, sees every operation, also those
  that C++ or TorchScript start, and gives those that draw the thread's generator. What draws and
  takes no generator is refused by name.

Left are draws past both: through a function that was stored in an object before the threads started
(``self.draw = random.random``), through a hidden instance (``numpy.random.mtrand._rand``), by
methods of ``torch.default_generator``, inside the kernel of a C++ extension. :class:`GlobalsWatch`
notices them.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace, TracebackType
from typing import Any

import numpy as np
import torch

from sharedds.generators.torch_draws import OwnDraws

__all__ = [
    "DISPATCHING",
    "GlobalsWatch",
    "ThreadGenerators",
    "drawing_from",
    "global_numpy_generator",
    "global_python_generator",
    "global_torch_generator",
    "redirect_globals",
    "restore_globals",
]


class ThreadGenerators:
    """What stands for the global generators in one thread.

    Attributes:
        random: For ``random``.
        numpy: For ``numpy.random``.
        torch: For torch's CPU generator.
    """

    __slots__ = ("mode", "numpy", "random", "torch")

    def __init__(self) -> None:
        self.random = random.Random()  # noqa: S311 - stands for the module random
        self.numpy = np.random.RandomState()
        self.torch = torch.Generator()
        self.mode = OwnDraws(self.torch)


class _Thread(threading.local):
    own: ThreadGenerators | None = None


_thread = _Thread()


class drawing_from:  # noqa: N801 - used as a function, like contextlib.suppress
    """Let the global draws of this thread come from generators of its own; nests.

    Needs :func:`redirect_globals` to be in force for ``random`` and NumPy.
    """

    __slots__ = ("_outer", "_own")

    def __init__(self, own: ThreadGenerators) -> None:
        self._own = own

    def __enter__(self) -> None:
        self._outer = _thread.own
        _thread.own = self._own
        self._own.mode.begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._own.mode.end()
        _thread.own = self._outer


def global_torch_generator() -> torch.Generator:
    """Return what ``torch.default_generator`` is in this thread.

    Its methods cannot be redirected; who seeds or saves the global generators asks here.
    """
    own = _thread.own
    return torch.default_generator if own is None else own.torch


def global_numpy_generator() -> np.random.RandomState:
    """Return the generator behind ``numpy.random`` in this thread."""
    own = _thread.own
    return np.random.mtrand._rand if own is None else own.numpy


def global_python_generator() -> random.Random:
    """Return the generator behind ``random`` in this thread."""
    own = _thread.own
    return random._inst if own is None else own.random


# --- modules -------------------------------------------------------------------------------------


def _thread_safe_generator(own: ThreadGenerators) -> torch.Generator:
    return own.torch


def _manual_seed(own: ThreadGenerators, seed: int) -> torch.Generator:
    return own.torch.manual_seed(int(seed))


def _seed(own: ThreadGenerators) -> int:
    return own.torch.seed()


def _initial_seed(own: ThreadGenerators) -> int:
    return own.torch.initial_seed()


def _get_rng_state(own: ThreadGenerators) -> torch.Tensor:
    return own.torch.get_state()


def _set_rng_state(own: ThreadGenerators, new_state: torch.Tensor) -> None:
    own.torch.set_state(new_state)


def _dispatching(
    original: Callable[..., Any], home: str, name: str, serve: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a function that calls ``serve`` in a loader thread, else the original."""

    def dispatch(*args: Any, **kwargs: Any) -> Any:
        own = _thread.own
        if own is None:
            return original(*args, **kwargs)
        return serve(own, *args, **kwargs)

    dispatch.__doc__ = original.__doc__
    dispatch.__name__ = name
    dispatch.__wrapped__ = original  # type: ignore[attr-defined] # inspect shows its signature
    # So that it can be pickled by name wherever somebody keeps it.
    dispatch.__module__ = __name__
    dispatch.__qualname__ = f"DISPATCHING.{home}.{name}"
    return dispatch


def _methods(module: Any, instance: object, kind: str) -> dict[str, Callable[..., Any]]:
    """Dispatching functions for the methods of a hidden instance that a module offers."""
    made = {}
    for name, value in vars(module).items():
        if getattr(value, "__self__", None) is instance:
            serve = _on(kind, getattr(value, "__name__", name))
            made[name] = _dispatching(value, kind, name, serve)
    return made


def _on(kind: str, method: str) -> Callable[..., Any]:
    def serve(own: ThreadGenerators, *args: Any, **kwargs: Any) -> Any:
        return getattr(getattr(own, kind), method)(*args, **kwargs)

    return serve


def _all_dispatching() -> SimpleNamespace:
    of_numpy = _methods(np.random, np.random.mtrand._rand, "numpy")
    for name, method in (("seed", "seed"), ("ranf", "random_sample"), ("sample", "random_sample")):
        original = getattr(np.random, name)
        of_numpy[name] = _dispatching(original, "numpy", name, _on("numpy", method))
    of_torch = {
        serve.__name__[1:]: _dispatching(
            getattr(torch.random, serve.__name__[1:]), "torch", serve.__name__[1:], serve
        )
        for serve in (
            *(_manual_seed, _seed, _initial_seed, _get_rng_state, _set_rng_state),
            _thread_safe_generator,
        )
        if hasattr(torch.random, serve.__name__[1:])
    }
    return SimpleNamespace(
        random=SimpleNamespace(**_methods(random, random._inst, "random")),
        numpy=SimpleNamespace(**of_numpy),
        torch=SimpleNamespace(**of_torch),
    )


#: All dispatching functions, by module and name.
DISPATCHING = _all_dispatching()

_EVERY: tuple[Any, ...] = tuple(
    f for home in vars(DISPATCHING).values() for f in vars(home).values()
)
_INSTEAD = {id(function.__wrapped__): function for function in _EVERY}
_ORIGINAL = {id(function): function.__wrapped__ for function in _EVERY}

_lock = threading.Lock()
_holders = 0


def redirect_globals() -> None:
    """Put the dispatching functions in place; each call needs one of :func:`restore_globals`.

    Names that any module has for an original (``from random import random``) are replaced as well.
    Other threads are served the originals, about 0.1 µs later.
    """
    global _holders  # noqa: PLW0603 - modules are patched once for the whole process
    with _lock:
        _holders += 1
        if _holders == 1:
            _take_in_wrapper()
            _replace(_INSTEAD)


def restore_globals() -> None:
    """Put the originals back once nobody needs the dispatching functions."""
    global _holders  # noqa: PLW0603
    with _lock:
        _holders -= 1
        if _holders == 0:
            _replace(_ORIGINAL)


def _take_in_wrapper() -> None:
    """Know the wrapper that torch's compiler, once imported, puts in place of ``manual_seed``."""
    found = torch.manual_seed
    if found is not torch.random.manual_seed and not {id(found)} & {*_INSTEAD, *_ORIGINAL}:
        instead = _dispatching(found, "torch", "manual_seed", _manual_seed)
        _INSTEAD[id(found)], _ORIGINAL[id(instead)] = instead, found


def _replace(table: dict[int, Any]) -> None:
    for module in sys.modules.copy().values():  # copies: other threads may be importing
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict) or names.get("__name__") == __name__:
            continue
        for name, value in names.copy().items():
            if id(value) in table:
                names[name] = table[id(value)]


class GlobalsWatch:
    """Notices draws from the real global generators between its making and :meth:`changed`.

    Of use where the only threads that run are those that should not draw from them.
    """

    def __init__(self) -> None:
        self._before = _states()

    def changed(self) -> tuple[str, ...]:
        """Return the names of the modules whose global generator has moved."""
        before, now = self._before, _states()
        return tuple(name for name, state in now.items() if state != before[name])

    def warning(self) -> str:
        """Return what to tell the user about what has changed, or an empty text."""
        if not (moved := self.changed()):
            return ""
        return (
            f"while threads made samples, the global generator of {' and of '.join(moved)} moved: "
            "something drew from it in a way that cannot be redirected (a function kept in an "
            "object, a hidden instance, a C++ extension). Such samples depend on how threads take "
            "turns; use engine='process'"
        )


def _states() -> dict[str, object]:
    state: Any = np.random.mtrand._rand.get_state()
    return {
        "random": random._inst.getstate(),
        "numpy.random": (state[1].tobytes(), *state[2:]),
        "torch": torch.default_generator.get_state().numpy().tobytes(),
    }
