"""The state of the module ``random``, taken and compared in half a microsecond.

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

    source: Any
    words: bytes
    half: float | None
    whole: Any


class PythonState:
    """Takes and puts back the state of ``random``; for one thread at a time."""

    __slots__ = ("_source", "_words")

    def __init__(self) -> None:
        self._source: Any = None
        self._words: Any = None

    def take(self) -> TakenPython:
        """Return the state of now."""
        source: Any = global_python_generator()
        if source is not self._source:
            self._words, self._source = _words_of(source), source
        if self._words is None:
            return TakenPython(source, b"", None, source.getstate())
        return TakenPython(source, self._words.raw, source.gauss_next, None)

    def moved(self, since: TakenPython) -> bool:
        """Whether something was drawn or seeded since."""
        source: Any = global_python_generator()
        if source is not since.source or source is not self._source or self._words is None:
            return self.take() != since
        words: bytes = self._words.raw
        return words != since.words or bool(source.gauss_next != since.half)

    def put(self, state: TakenPython) -> None:
        """Return to a state."""
        if not self.moved(state):
            return
        if state.words:
            position, *words = _WORDS.unpack(state.words)
            state.source.setstate((_VERSION, (*words, position), state.half))
        else:
            state.source.setstate(state.whole)

    def __reduce__(self) -> tuple[type[PythonState], tuple[()]]:
        return PythonState, ()  # places in memory are those of one process


def _words_of(source: random.Random) -> Any:
    """The words in their place, for as long as the generator lives; None if they are elsewhere."""
    if type(source) is not random.Random or not _can_copy():
        return None
    return (ctypes.c_char * _WORDS.size).from_address(id(source) + _OFFSET)


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
