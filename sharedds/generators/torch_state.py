"""The state of torch's global generator, and whether somebody asked for it.

A draw shows in the state, whoever makes it, C++ too. But ``torch.initial_seed()`` and
``torch.get_rng_state()`` tell a seed, or let ``torch.random.fork_rng`` put all back, without a
trace. Both look for the generator in their module, under a name of it; while somebody wants to
know (:func:`begin_noticing`), that name stands for something that forwards to the generator and
counts.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, NamedTuple

import torch

from sharedds.generators.thread_random import global_torch_generator

__all__ = ["TakenTorch", "TorchState", "begin_noticing", "end_noticing", "times_asked"]


class TakenTorch(NamedTuple):
    """A state.

    Attributes:
        source: The generator.
        state: What it is at.
    """

    source: torch.Generator
    state: torch.Tensor


class TorchState:
    """Takes and puts back the state of torch's generator."""

    __slots__ = ()

    def take(self) -> TakenTorch:
        """Return the state of now."""
        source = global_torch_generator()
        return TakenTorch(source, source.get_state())

    def moved(self, since: TakenTorch) -> bool:
        """Whether something was drawn or seeded since."""
        source = global_torch_generator()
        return source is not since.source or _bytes(source.get_state()) != _bytes(since.state)

    def put(self, state: TakenTorch) -> None:
        """Return to a state."""
        if self.moved(state):
            state.source.set_state(state.state)


def _bytes(state: torch.Tensor) -> bytes:
    """The bytes of a tensor of uint8 without gaps; ``torch.equal`` takes six times as long."""
    bytes_: Any = (ctypes.c_char * len(state)).from_address(state.data_ptr())
    return bytes_.raw  # type: ignore[no-any-return]


# --- who asks ------------------------------------------------------------------------------------


class _Asked(threading.local):
    times = 0


class _StandIn:
    """Forwards to ``torch.default_generator``, and counts for each thread how often."""

    def __getattr__(self, name: str) -> Any:
        _asked.times += 1
        return getattr(torch.default_generator, name)


_asked = _Asked()
_stand_in = _StandIn()
_noticing: set[int] = set()
_module: Any = torch.random


def begin_noticing(who: object) -> None:
    """Count from now on; one :func:`end_noticing` belongs to it."""
    _noticing.add(id(who))
    _module.default_generator = _stand_in


def end_noticing(who: object) -> None:
    """Let the functions of torch be as they were, once nobody wants to know."""
    _noticing.discard(id(who))
    if not _noticing:
        _module.default_generator = torch.default_generator


def times_asked() -> int:
    """Return how often this thread has asked torch's functions for the generator."""
    return _asked.times
