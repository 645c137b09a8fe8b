"""Seeds the global generators of a process (``random``, NumPy, torch) from the key of a sample.

Transforms of other libraries draw from global generators. Seeded for each sample from its key, they
give the same sample whichever worker makes it, in whatever order, in this run or in a resumed one.
"""

from __future__ import annotations

import random
from typing import Literal, get_args

import numpy as np

from sharedds.errors import OptionError
from sharedds.generators.numpy_state import NumPyState, TakenState
from sharedds.generators.python_state import PythonState, TakenPython
from sharedds.generators.thread_random import global_torch_generator
from sharedds.generators.torch_state import TakenTorch, TorchState
from sharedds.order import SampleKey

__all__ = ["SEEDING_MODES", "GlobalSeeding", "SeedingMode", "kept_globals"]

SeedingMode = Literal["sample", "batch", "off"]
SEEDING_MODES: tuple[str, ...] = get_args(SeedingMode)

_WORD = (1 << 32) - 1


class GlobalSeeding:
    """When the global generators are seeded, and with what.

    Args:
        mode: "sample" seeds them for each sample, "batch" once for each batch, from the key of its
            first sample; "off" leaves them alone.

    Raises:
        OptionError: Another mode.
    """

    __slots__ = ("mode", "with_batch", "with_sample")

    def __init__(self, mode: str) -> None:
        if mode not in SEEDING_MODES:
            raise OptionError(f"seed_globals={mode!r}: {', '.join(map(repr, SEEDING_MODES))} fit")
        self.mode = mode
        self.with_sample = mode == "sample"
        self.with_batch = mode == "batch"

    def __bool__(self) -> bool:
        return self.mode != "off"

    def __reduce__(self) -> tuple[type[GlobalSeeding], tuple[str]]:
        return GlobalSeeding, (self.mode,)

    @staticmethod
    def seed(key: SampleKey, purpose: str = "globals") -> None:
        """Seed all three, each with a number of its own."""
        number = key.number(purpose)
        random.seed(number)
        # NumPy and torch both start a Mersenne Twister from 32 bits: with one number they would
        # draw the same bits. torch.manual_seed would also visit every accelerator: 100 µs.
        np.random.seed(number >> 32)  # noqa: NPY002 - the global generator is the point
        global_torch_generator().manual_seed(number & _WORD)


class kept_globals:  # noqa: N801 - used as a function, like contextlib.suppress
    """Give the global generators back as they were, so that loading never changes training.

    Without workers, samples are made in the process that trains; dropout must not depend on what
    the transforms drew.

    Attributes:
        numpy: The state of ``numpy.random``.
        python: That of ``random``.
        torch: That of torch's generator.
    """

    __slots__ = ("_numpy", "_python", "_torch", "numpy", "python", "torch")

    numpy: TakenState
    python: TakenPython
    torch: TakenTorch

    def __init__(self) -> None:
        self._numpy, self._python, self._torch = NumPyState(), PythonState(), TorchState()

    def keep(self) -> None:
        """Remember the state of now."""
        self.python = self._python.take()
        self.numpy = self._numpy.take()
        self.torch = self._torch.take()

    def restore(self) -> None:
        """Return to the remembered state."""
        self._python.put(self.python)
        self._numpy.put(self.numpy)
        self._torch.put(self.torch)

    def __enter__(self) -> None:
        self.keep()

    def __exit__(self, *about: object) -> None:
        self.restore()
