"""The state of NumPy's global generator, taken, compared and put back in half a microsecond.

``numpy.random.get_state`` and ``set_state`` take fifty each, for 624 words one by one. Here the
words are copied at once, from where the bit generator says that they are.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

import numpy as np

from sharedds.generators.thread_random import global_numpy_generator

__all__ = ["NumPyState", "TakenState"]

_SIZE = 2500  # bytes of a Mersenne Twister: 624 words, and a position among them


class TakenState(NamedTuple):
    """A state.

    Attributes:
        bits: The bit generator.
        words: What it is at; empty where only ``whole`` says it.
        whole: As NumPy says it; None where the words are all, since no number is kept for the next
            draw: normal ones are made in pairs.
    """

    bits: Any
    words: bytes
    whole: dict[str, Any] | None


class NumPyState:
    """Takes and puts back the state of ``numpy.random``; for one thread at a time."""

    __slots__ = ("_bits", "_even", "_words")

    def __init__(self) -> None:
        self._bits: Any = None
        self._words: Any = None  # in their place; None where it is not known how many
        self._even = b""  # the latest words that were met with no second half of a pair

    def take(self) -> TakenState:
        """Return the state of now."""
        bits = global_numpy_generator()._bit_generator
        if bits is not self._bits:
            self._bits, self._words, self._even = bits, _words_of(bits), b""
        words = self._words.raw if self._words is not None else b""
        if words and words == self._even:
            return TakenState(bits, words, None)
        whole: Any = global_numpy_generator().get_state(legacy=False)
        if not words or whole["has_gauss"]:
            return TakenState(bits, words, whole)
        self._even = words
        return TakenState(bits, words, None)

    def moved(self, since: TakenState) -> bool:
        """Whether something was drawn or seeded since."""
        source: Any = global_numpy_generator()
        if source._bit_generator is not since.bits or since.bits is not self._bits:
            return True
        if self._words is not None and self._words.raw != since.words:
            return True
        whole = since.whole
        return whole is not None and repr(source.get_state(legacy=False)) != repr(whole)

    def __reduce__(self) -> tuple[type[NumPyState], tuple[()]]:
        return NumPyState, ()  # places in memory are those of one process

    def put(self, state: TakenState) -> None:
        """Return to a state."""
        if not self.moved(state):
            return
        source: Any = global_numpy_generator()
        if source._bit_generator is not state.bits:
            module: Any = np.random
            module.set_bit_generator(state.bits)
        if state.whole is not None:
            source.set_state(state.whole)
        else:
            source.seed(0)  # forgets the second half of a pair
            ctypes.memmove(_address(state.bits), state.words, _SIZE)


def _words_of(bits: Any) -> Any:
    address = _address(bits)
    return (ctypes.c_char * _SIZE).from_address(address) if address else None


def _address(bits: Any) -> int:
    """Where the words are; 0 where it is not known how many."""
    known = type(bits) is np.random.MT19937 and _can_copy()
    return int(bits.ctypes.state_address) if known else 0


@functools.cache
def _can_copy() -> bool:
    """Whether the words are all that this version of NumPy draws from, and copying them works."""
    try:
        bits = np.random.MT19937(0)
        address = bits.ctypes.state_address
        words = ctypes.string_at(address, _SIZE)
        drawn = bits.random_raw(1300).tolist()
        after = ctypes.string_at(address, _SIZE)
        ctypes.memmove(address, words, _SIZE)
        return after != words and bits.random_raw(1300).tolist() == drawn
    except (AttributeError, ImportError):
        return False
