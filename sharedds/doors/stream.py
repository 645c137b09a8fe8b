"""What every format is turned into: a stream of samples, and what is known of it beforehand."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import xxhash

from sharedds.packed import encode_text

__all__ = ["DESCRIBING", "TWICE", "Contents", "Door", "FieldNames", "Item", "Keys"]

TWICE = "its key came before; keys are unique in a store"

DESCRIBING = (
    *("height", "width", "format", "mode", "bits", "orientation", "frames"),
    *("source_format", "source_mode", "source_bits"),
)
"""Columns of a packed store that say what its pictures are."""

_LONGEST_NAME = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One sample on its way into a store, or the reason why there is none.

    Attributes:
        key: Its name in the store, unique.
        pictures: Of each picture field the bytes of a file, the path of one, or None.
        values: Of each other field, as the store takes them.
        nbytes: About how many bytes it holds, or its files do.
        reason: Why it cannot be packed; empty where it can.
        left_out: Why it is not to be packed although nothing is wrong with it; mostly empty.
    """

    key: str
    pictures: Mapping[str, bytes | str | None] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    nbytes: int = 0
    reason: str = ""
    left_out: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a source holds, found by looking through it once.

    Attributes:
        pictures: The picture fields; the first is ``image``.
        fields: The other fields and their kinds, as a schema names them.
        classes: The names of the labels by number, None where labels are numbers or missing.
        samples: How many samples there are, as far as is known before they are read.
        nbytes: About how many bytes of pictures they have.
        files: (path, size, time of change in ns) of the files that decide all of this.
        notes: What a person should know, a sentence each.
        attrs: Kept in the header of the store under ``source``.
        passed_over: (reason, example, count) of what is in the source and is no sample.
    """

    pictures: tuple[str, ...]
    fields: Mapping[str, str]
    classes: tuple[str, ...] | None
    samples: int
    nbytes: int
    files: tuple[tuple[str, int, int], ...]
    notes: Sequence[str] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    passed_over: Sequence[tuple[str, str, int]] = ()


class Door(Protocol):
    """A source in one format. It is looked through once, and then read in order."""

    format: str
    """Its name, as ``--format`` says it."""

    root: str
    """Where it is, for messages."""

    def look(self, advance: Any) -> Contents:
        """Find out what there is; ``advance(n)`` is called as samples are met.

        Raises:
            SourceError: It cannot be read.
            DecodeError: It is not what it claims to be.
        """

    def items(self) -> Iterator[Item]:
        """Yield the samples, always in the same order; only after :meth:`look`."""


class FieldNames:
    """Names of fields made from those of columns or files: allowed in a schema, and all different.

    Args:
        taken: Further names that are given already.
    """

    def __init__(self, *taken: str) -> None:
        self._taken = {"image", "label", *DESCRIBING, *taken}

    def give(self, wanted: str) -> str:
        """Return the name itself, or one that is near it."""
        name = re.sub(r"[^A-Za-z0-9_-]", "_", wanted)[: _LONGEST_NAME - 8] or "column"
        if not name[0].isalpha() and name[0] != "_":
            name = f"column_{name}"
        if name in self._taken:
            name = f"column_{name}"[: _LONGEST_NAME - 8]
        base, number = name, 1
        while name in self._taken:
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        return name


class Keys:
    """Tells which keys come twice, in eight bytes a sample.

    Every key is shown to :meth:`see` in the first pass; in the second :meth:`again` says of each
    whether it has been there before.
    """

    def __init__(self) -> None:
        self._hashes = array("Q")
        self._twice: set[int] | None = None
        self._met: set[int] = set()

    def __len__(self) -> int:
        return len(self._hashes)

    def see(self, key: str) -> None:
        """Take notice of a key."""
        self._hashes.append(xxhash.xxh3_64_intdigest(encode_text(key)))
        self._twice = None

    def twice(self) -> set[int]:
        """Return the hashes of keys that were seen more than once."""
        if self._twice is None:
            hashes = np.sort(np.frombuffer(self._hashes, np.uint64))
            self._twice = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
        return self._twice

    def start(self) -> None:
        """Begin a second pass."""
        self._met.clear()

    def again(self, key: str) -> bool:
        """Whether this pass has met the key before."""
        if not self.twice():
            return False
        value = xxhash.xxh3_64_intdigest(encode_text(key))
        if value not in self.twice():
            return False
        met = value in self._met
        self._met.add(value)
        return met
