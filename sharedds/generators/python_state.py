"""The state of the module ``random``, taken and compared in a third of a microsecond.

``random.getstate`` makes 625 integers of it, ``setstate`` reads as many. Here the words are copied
at once, from where the generator has them; only what has moved is put back the slow way.
"""

from __future__ import annotations

import _random
import ctypes
import functools
import random
import struct
from typing import Any, NamedTuple

from sharedds.generators.thread_random import global_python_generator

__all__ = ["PythonState", "TakenPython"]

_WORDS = struct.Struct("=625I")  # a position, and the words of a Mersenne Twister
_OFFSET = object.__basicsize__  # behind what every object has
_VERSION = 3  # of what getstate returns


class TakenPython(NamedTuple):
    """A state.

    Attributes:
        source: The generator.
        words: What it is at; empty where only ``whole`` says it.
        half: The second normal number of a pair, if it waits for its turn.
        whole: As ``getstate`` says it, where the words cannot be copied.
    """

    source: random.Random
    words: bytes
    half: float | None
    whole: Any


class PythonState:
    """Takes and puts back the state of ``random``."""

    __slots__ = ()

    def take(self) -> TakenPython:
        """Return the state of now."""
        source = global_python_generator()
        if type(source) is random.Random and _can_copy():
            words = ctypes.string_at(id(source) + _OFFSET, _WORDS.size)
            return TakenPython(source, words, source.gauss_next, None)  # type: ignore[attr-defined]
        return TakenPython(source, b"", None, source.getstate())

    def moved(self, since: TakenPython) -> bool:
        """Whether something was drawn or seeded since."""
        return self.take() != since

    def put(self, state: TakenPython) -> None:
        """Return to a state."""
        if not self.moved(state):
            return
        if state.words:
            position, *words = _WORDS.unpack(state.words)
            state.source.setstate((_VERSION, (*words, position), state.half))
        else:
            state.source.setstate(state.whole)


@functools.cache
def _can_copy() -> bool:
    """Whether the words are where they are looked for in this version of Python."""
    if _random.Random.__basicsize__ < _OFFSET + _WORDS.size or random.Random.VERSION != _VERSION:
        return False
    made = random.Random(0)  # noqa: S311
    for _ in range(3):
        position, *words = _WORDS.unpack(ctypes.string_at(id(made) + _OFFSET, _WORDS.size))
        if made.getstate() != (_VERSION, (*words, position), None):
            return False
        made.random()
    return True
