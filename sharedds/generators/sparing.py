"""Seeds the global generators for each sample, and spares those from which no sample draws.

Seeding the three generators takes longer than all else that a loader does for a sample, and most
datasets draw from one of them or from none. So a generator that nobody draws from is not seeded,
but looked at: if it has moved when the samples of a batch are made, one of them drew from it, all
are made again, and from then on it is seeded for each sample. What is drawn is the same as if it
always had been.

torch's functions that tell a seed or a state count as draws. In a loader thread, which has a
generator of its own for torch, that one is always seeded.
"""

from __future__ import annotations

import random

import numpy as np
import torch

from sharedds.generators.numpy_state import NumPyState, TakenState
from sharedds.generators.python_state import PythonState, TakenPython
from sharedds.generators.seeding import kept_globals
from sharedds.generators.thread_random import global_torch_generator
from sharedds.generators.torch_state import (
    TakenTorch,
    TorchState,
    begin_noticing,
    times_asked,
)

__all__ = ["SparingSeeding"]

#: So many samples (or batches) are looked at one by one first: most datasets that draw do so at
#: once, and then nothing is made twice.
_CAREFUL = 32
_WORD = (1 << 32) - 1


class SparingSeeding:
    """The seeding of samples for one reader; for one thread.

    Args:
        is_always: Whether to seed all of them always.

    After :meth:`begin`, :meth:`seed` comes before each sample of a batch, or once for all of them;
    then :meth:`is_sound` is asked.

    Attributes:
        seeds: Whether :meth:`seed` has something to do; else it need not be called.
        is_careful: Whether :meth:`look` is wanted after each seed.
        is_still: Whether the latest batch left all generators as they were.
    """

    __slots__ = (
        *("_asked", "_drawn_numpy", "_drawn_python", "_drawn_torch", "_is_stirred", "_left"),
        *("_numpy", "_numpy_before", "_python", "_python_before", "_seeds_numpy", "_seeds_python"),
        *("_seeds_torch", "_source", "_torch", "_torch_before"),
        *("__weakref__", "is_careful", "is_still", "seeds"),
    )

    # Not before the first batch: a reader travels to its worker.
    _source: torch.Generator
    _numpy_before: TakenState
    _python_before: TakenPython
    _torch_before: TakenTorch

    def __init__(self, *, is_always: bool = False) -> None:
        self._left = 0 if is_always else _CAREFUL
        self._drawn_python = self._drawn_numpy = self._drawn_torch = is_always
        self._seeds_python = self._seeds_numpy = self._seeds_torch = True
        self._python, self._numpy, self._torch = PythonState(), NumPyState(), TorchState()
        self._is_stirred = False
        self._asked = 0
        self.seeds = True
        self.is_careful = False
        self.is_still = False

    def begin(self, kept: kept_globals | None = None) -> None:
        """Begin a batch.

        Args:
            kept: The states of now, where they are known.
        """
        self._is_stirred = self.is_still = False
        is_careful = self.is_careful = self._left > 0
        self._source = global_torch_generator()
        is_own = self._source is not torch.default_generator
        self._seeds_python = is_careful or self._drawn_python
        self._seeds_numpy = is_careful or self._drawn_numpy
        self._seeds_torch = is_careful or self._drawn_torch or is_own
        self.seeds = self._seeds_python or self._seeds_numpy or self._seeds_torch
        if not self._seeds_python:
            self._python_before = self._python.take() if kept is None else kept.python
        if not self._seeds_numpy:
            self._numpy_before = self._numpy.take() if kept is None else kept.numpy
        if not self._seeds_torch:
            self._torch_before = self._torch.take() if kept is None else kept.torch
        if not self._drawn_torch and not is_own:
            begin_noticing()
            self._asked = times_asked()

    def seed(self, number: int) -> None:
        """Seed as :meth:`~sharedds.generators.seeding.GlobalSeeding.seed` does, where needed."""
        if self._seeds_python:
            random.seed(number)
        if self._seeds_numpy:
            np.random.seed(number >> 32)  # noqa: NPY002 - the global generator is the point
        if self._seeds_torch:
            self._source.manual_seed(number & _WORD)
        if self.is_careful:
            self._python_before = self._python.take()
            self._numpy_before = self._numpy.take()
            self._torch_before = self._torch.take()

    def look(self) -> None:
        """Find out from which generators a sample drew; call it while :attr:`is_careful`."""
        self._left -= 1
        self._drawn_python = self._drawn_python or self._python.moved(self._python_before)
        self._drawn_numpy = self._drawn_numpy or self._numpy.moved(self._numpy_before)
        self._drawn_torch = (
            self._drawn_torch
            or self._asked != times_asked()
            or self._torch.moved(self._torch_before)
        )

    def is_sound(self) -> bool:
        """Whether no sample of the batch drew from a generator that was not seeded.

        If one did, begin the batch again.
        """
        python = not self._seeds_python and self._python.moved(self._python_before)
        numpy = not self._seeds_numpy and self._numpy.moved(self._numpy_before)
        torch_ = not self._seeds_torch and (
            self._asked != times_asked() or self._torch.moved(self._torch_before)
        )
        self._drawn_python |= python
        self._drawn_numpy |= numpy
        self._drawn_torch |= torch_
        self._is_stirred |= python or numpy or torch_
        self.is_still = not (self._is_stirred or self.seeds)
        return not self._is_stirred

    # --- a sample in between

    def seed_apart(self, number: int) -> None:
        """Seed all generators for a sample that is not of the batch; then call :meth:`go_on`."""
        self.is_sound()  # as far as it has come
        random.seed(number)
        np.random.seed(number >> 32)  # noqa: NPY002
        global_torch_generator().manual_seed(number & _WORD)

    def go_on(self) -> None:
        """Go on with the batch."""
        if not self._seeds_python:
            self._python.put(self._python_before)
        if not self._seeds_numpy:
            self._numpy.put(self._numpy_before)
        if not self._seeds_torch:
            self._torch.put(self._torch_before)
