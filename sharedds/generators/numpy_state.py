"""The state of NumPy's global generator, taken, compared and put back in half a microsecond.

``numpy.random.get_state`` and ``set_state`` take fifty each, for 624 words one by one. Here the
words are copied at once, from where the bit generator says that they are; and the second half of a
pair of normal numbers, which waits for its turn, from where a test on first use finds it.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from typing import Any, NamedTuple

import numpy as np

from sharedds.generators.thread_random import global_numpy_generator

__all__ = ["NumPyState", "TakenState"]

_SIZE = 2500  # bytes of a Mersenne Twister: 624 words, and a position among them
_HALF = struct.Struct("=ixxxxd")  # whether a normal number waits, and which


class TakenState(NamedTuple):
    """A state.

    Attributes:
        bits: The bit generator.
        words: What it is at; empty where only ``whole`` says it.
        half: Whether a normal number waits for the next draw, and which: they are made in pairs.
        whole: As NumPy says it, where the words cannot be copied.
    """

    bits: Any
    words: bytes
    half: bytes
    whole: dict[str, Any] | None


class NumPyState:
    """Takes and puts back the state of ``numpy.random``; for one thread at a time."""

    __slots__ = ("_bits", "_half", "_source", "_words")

    def __init__(self) -> None:
        self._source: Any = None
        self._bits: Any = None
        self._words: Any = None  # in their place; None where it is not known how many
        self._half: Any = None

    def take(self) -> TakenState:
        """Return the state of now."""
        source: Any = global_numpy_generator()
        bits = source._bit_generator
        if bits is not self._bits or source is not self._source:
            self._source, self._bits = source, bits
            self._words, self._half = _places(source)
        if self._words is None:
            return TakenState(bits, b"", b"", source.get_state(legacy=False))
        return TakenState(bits, self._words.raw, self._half.raw, None)

    def moved(self, since: TakenState) -> bool:
        """Whether something was drawn or seeded since."""
        source: Any = global_numpy_generator()
        bits = source._bit_generator
        if bits is not since.bits:
            return True
        if self._words is None or bits is not self._bits or source is not self._source:
            return repr(self.take()) != repr(since)  # arrays are no numbers that compare
        return bool(self._words.raw != since.words or self._half.raw != since.half)

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
            return
        words, half = _places(source)
        words.raw, half.raw = state.words, state.half


def _places(source: Any) -> tuple[Any, Any]:
    """Where the words and the half of a pair are, while the generator lives; None if not known."""
    bits, at = source._bit_generator, _place_of_half()
    if at is None or type(bits) is not np.random.MT19937:
        return None, None
    words = (ctypes.c_char * _SIZE).from_address(bits.ctypes.state_address)
    return words, (ctypes.c_char * _HALF.size).from_address(id(source) + at)


@functools.cache
def _place_of_half() -> int | None:
    """Where a generator has the half of a pair; None where copying does not work in this version.

    The words must be all that this version of NumPy draws from.
    """
    try:
        bits = np.random.MT19937(0)
        address = bits.ctypes.state_address
        words = ctypes.string_at(address, _SIZE)
        drawn = bits.random_raw(1300).tolist()
        after = ctypes.string_at(address, _SIZE)
        ctypes.memmove(address, words, _SIZE)
        if after == words or bits.random_raw(1300).tolist() != drawn:
            return None
        source = np.random.RandomState(1)
        size = np.random.RandomState.__basicsize__
        source.normal()
        state: Any = source.get_state(legacy=False)
        memory = ctypes.string_at(id(source), size)
        at = memory.find(_HALF.pack(1, state["gauss"]))
        if state["has_gauss"] != 1 or at < 0:
            return None
        half = ctypes.string_at(id(source) + at, _HALF.size)
        source.normal()
        ctypes.memmove(id(source) + at, half, _HALF.size)
        return at if source.normal() == state["gauss"] else None
    except (AttributeError, ImportError):
        return None
