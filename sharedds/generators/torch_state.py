"""The state of torch's global generator, and whether somebody asked for it.

A draw shows in the state, whoever makes it, C++ too. But ``torch.initial_seed()`` and
``torch.get_rng_state()`` tell a seed, or let ``torch.random.fork_rng`` put all back, without a
trace. Both look for the generator in their module, under a name of it. From
:func:`begin_noticing` on, their code looks under another name, for something that forwards to the
generator and counts. The name that all see stays what it is: users pass it on as a generator, in
other threads too.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
from typing import Any, NamedTuple

import torch

from sharedds.generators.thread_random import global_torch_generator

__all__ = ["TakenTorch", "TorchState", "begin_noticing", "times_asked"]


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


class _Asked:
    """Forwards to ``torch.default_generator``, and counts how often, whichever thread asks.

    A dataset may make a sample in a thread of its own. That some other thread asked costs no more
    than seeds.
    """

    times = 0

    def __getattr__(self, name: str) -> Any:
        _asked.times += 1
        return getattr(torch.default_generator, name)


_asked = _Asked()


@functools.cache
def begin_noticing() -> None:
    """Count from now on, in this process; once is enough."""
    own = "_default_generator_that_counts"
    vars(torch.random)[own] = _asked
    for function in map(inspect.unwrap, filter(inspect.isfunction, vars(torch.random).values())):
        code = function.__code__
        if "default_generator" in code.co_names:
            names = tuple(own if name == "default_generator" else name for name in code.co_names)
            function.__code__ = code.replace(co_names=names)


def times_asked() -> int:
    """Return how often torch's functions were asked for the generator."""
    return _asked.times
