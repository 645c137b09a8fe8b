"""Seeds the global generators for each sample, and spares those from which no sample draws.

Seeding ``random`` and NumPy takes longer than all else that a loader does for a sample, and most
datasets draw from one of the generators or from none. So a generator that nobody draws from is not
seeded, but looked at: if it has moved when the samples of a batch are made, one of them drew from
it, all are made again, and from then on it is seeded for each sample. What is drawn is the same as
if it always had been.

torch is always seeded: ``torch.initial_seed()`` tells the seed without a draw.
"""

from __future__ import annotations

import random

import numpy as np

from sharedds.generators.numpy_state import NumPyState
from sharedds.generators.seeding import kept_globals
from sharedds.generators.thread_random import global_torch_generator

__all__ = ["SparingSeeding"]

#: So many samples are looked at one by one first: most datasets that draw do so at once, and then
#: nothing is made twice.
_CAREFUL = 32
#: For fewer samples it takes longer to look at ``random`` than to seed it.
_LEAST = 8
_WORD = (1 << 32) - 1


class SparingSeeding:
    """The seeding of samples for one reader; for one thread.

    Between :meth:`begin` and :meth:`is_sound`, :meth:`seed` comes before each sample of a batch.

    Attributes:
        is_careful: Whether :meth:`look` is wanted after each sample.
    """

    __slots__ = (
        *("_drawn_numpy", "_drawn_python", "_is_stirred", "_left", "_numpy", "_numpy_before"),
        *("_python_before", "_seeds_numpy", "_seeds_python", "_torch", "is_careful"),
    )

    def __init__(self) -> None:
        self._left = _CAREFUL
        self._drawn_python = False
        self._drawn_numpy = False
        self._seeds_python = True
        self._seeds_numpy = True
        self._is_stirred = False
        self._numpy = NumPyState()
        self.is_careful = False

    def begin(self, count: int, kept: kept_globals | None = None) -> None:
        """Begin a batch.

        Args:
            count: Samples in it.
            kept: The states of now, where they are known.
        """
        self.is_careful = self._left > 0
        self._seeds_python = self.is_careful or self._drawn_python or count < _LEAST
        self._seeds_numpy = self.is_careful or self._drawn_numpy
        self._torch = global_torch_generator()
        self._is_stirred = False
        if not self._seeds_python:
            self._python_before = random.getstate() if kept is None else kept.python
        if not self._seeds_numpy:
            self._numpy_before = self._numpy.take()

    def seed(self, number: int) -> None:
        """Seed as :meth:`~sharedds.generators.seeding.GlobalSeeding.seed` does, where needed."""
        if self._seeds_python:
            random.seed(number)
        if self._seeds_numpy:
            np.random.seed(number >> 32)  # noqa: NPY002 - the global generator is the point
        self._torch.manual_seed(number & _WORD)
        if self.is_careful:
            self._python_before = random.getstate()
            self._numpy_before = self._numpy.take()

    def look(self) -> None:
        """Find out from which generators a sample drew; call it while :attr:`is_careful`."""
        self._left -= 1
        self._drawn_python = self._drawn_python or random.getstate() != self._python_before
        self._drawn_numpy = self._drawn_numpy or self._numpy.moved(self._numpy_before)

    def is_sound(self) -> bool:
        """Whether no sample of the batch drew from a generator that was not seeded.

        If one did, begin the batch again.
        """
        if not self._seeds_python and random.getstate() != self._python_before:
            self._is_stirred = self._drawn_python = True
        if not self._seeds_numpy and self._numpy.moved(self._numpy_before):
            self._is_stirred = self._drawn_numpy = True
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
            random.setstate(self._python_before)
        if not self._seeds_numpy:
            self._numpy.put(self._numpy_before)
