"""Finds what a dataset holds that costs its workers memory or does not survive a new process."""

from __future__ import annotations

import contextlib
import functools
import types
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from sharedds.diagnose.containers import (
    CONTAINERS,
    first_items,
    is_a,
    is_exactly,
    is_object_array,
    item_count,
)
from sharedds.diagnose.fixes import fix_of
from sharedds.diagnose.graph import (
    FEW_ITEMS,
    Part,
    attributes,
    modules_used,
    near,
    own_attributes,
    walk,
)
from sharedds.diagnose.hazards import Hazard, described, grouped
from sharedds.diagnose.prices import Price, Pricer
from sharedds.diagnose.signs import LIBRARIES_AFTER_FORK, random_kind, sign_of, table_kind
from sharedds.diagnose.sizes import image_bytes, is_image

__all__ = ["Audit", "as_sent", "audit"]

#: What a worker may pay before it is worth a word, in bytes.
LEAST_BYTES = 1_000_000
_UNSENDABLE = "; cannot be sent to a worker by spawn or forkserver"
_MOST_TENSORS = 256  # of which each takes an open file on its way
_ALWAYS = ("handle", "device")  # hazards whether they can be sent or not
_TRIED = 8  # of many items, so many are looked into
_DATA = ("objects", "table", "array", "images")


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What was found in a dataset.

    Args:
        hazards: The dearest first.
        notes: What is good to know and decides nothing.
        may_grow: Empty containers, which may be caches.
        parts: How many things were looked at.
        is_whole: Whether there was time to look at everything.
    """

    hazards: tuple[Hazard, ...] = ()
    notes: tuple[Hazard, ...] = ()
    may_grow: tuple[str, ...] = ()
    parts: int = 0
    is_whole: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)


def audit(
    dataset: object,
    *,
    collate_fn: object = None,
    transform: object = None,
    seconds: float = 2.0,
) -> Audit:
    """Look for hazards in the objects of a dataset, without running any code of them.

    Args:
        dataset: Any dataset.
        collate_fn: The function that makes its batches.
        transform: A transform that the dataset does not hold itself.
        seconds: The longest it may take, about.
    """
    named = {"dataset": dataset, "collate_fn": collate_fn, "transform": transform}
    search = _Search(seconds)
    search.rest = {f"dataset.{name}": value for name, value in attributes(dataset).items()}
    roots = {name: root for name, root in named.items() if root is not None}
    is_whole = walk(roots, search.visit, seconds=seconds / 2)
    found = [each for each in map(_weighed, grouped(search.found())) if each is not None]
    hazards = [each for each in found if not each.is_note]
    hazards.sort(key=lambda hazard: -(hazard.most + (hazard.spawn is None) * (1 << 50)))
    return Audit(
        hazards=tuple(hazards),
        notes=tuple(each for each in found if each.is_note),
        may_grow=tuple(search.may_grow),
        parts=search.parts,
        is_whole=is_whole,
    )


@dataclass(slots=True)
class _Search:
    """Collects on the walk; prices come at the end, when all names are known."""

    seconds: float
    parts: int = 0
    hazards: list[Hazard] = field(default_factory=list)
    data: list[tuple[Part, str]] = field(default_factory=list)
    may_grow: list[str] = field(default_factory=list)
    libraries: dict[str, str] = field(default_factory=dict)
    rest: dict[str, Any] = field(default_factory=dict)

    def visit(self, part: Part) -> bool:
        """Judge a part; return whether to go into it."""
        self.parts += 1
        obj = part.value
        for judge in (self._is_broken, self._is_random, self._is_data, self._is_code):
            answer = judge(part, obj)
            if answer is not None:
                return answer
        return True

    def found(self) -> list[Hazard]:
        """Return the hazards, those that cost memory with their prices."""
        pricer = Pricer(self.seconds / 2)
        for part, kind in sorted(self.data, key=lambda each: _rank(each[0].value)):
            with contextlib.suppress(Exception):  # of classes that do not let themselves be asked
                self.hazards.append(_priced(part, kind, pricer.price(part.value)))
        for path, value in self.rest.items():  # of many small parts
            with contextlib.suppress(Exception):
                self.hazards.append(_rest(path, value, pricer.price(value)))
        for name, path in self.libraries.items():
            why, remedy = LIBRARIES_AFTER_FORK[name]
            self.hazards.append(
                Hazard(
                    kind="library", path=path, what=f"uses {name}: {why}", fix=remedy, is_note=True
                )
            )
        return self.hazards

    def _is_broken(self, part: Part, obj: Any) -> bool | None:
        sign = sign_of(obj)
        if sign is None:
            return None
        harmless = part.via != "instance"  # made anew by each worker that imports the module
        if part.via == "library" and sign.kind not in _ALWAYS:
            return False  # no user could change it
        what = sign.label
        if sign.after_fork:
            what += f"; {sign.after_fork}"
        if not (sign.pickles or harmless):
            what += _UNSENDABLE
        self.hazards.append(
            Hazard(
                kind=sign.kind,
                path=part.path,
                what=what,
                fix=fix_of(sign.kind, part.path, sign.opens),
                is_note=sign.kind not in _ALWAYS and (harmless or sign.pickles),
                spawn=0 if sign.pickles or harmless else None,
                breaks=bool(sign.after_fork),
            )
        )
        return False

    def _is_random(self, part: Part, obj: Any) -> bool | None:
        kind = random_kind(obj)
        if kind is None:
            return None
        self.hazards.append(
            Hazard(
                kind="random",
                path=part.path,
                what=f"{kind} that every worker of a plain DataLoader gets the same copy of: all "
                "draw the same numbers (build_loader seeds it anew for each sample)",
                fix=fix_of("random", part.path),
                is_note=part.via == "library",  # which need not be drawn from for samples
                repeats=True,
                is_of_class=part.via != "instance",
            )
        )
        return False

    def _is_data(self, part: Part, obj: Any) -> bool | None:
        if is_a(obj, CONTAINERS):
            count = item_count(obj)
            if not count and is_a(obj, (dict, list)) and _is_near(part):
                self.may_grow.append(part.path)
            if count <= FEW_ITEMS:
                return None
            self.data.append((part, "objects"))
            self._look_into(part, obj)
            return bool(own_attributes(obj))
        if table_kind(obj) is not None:
            self.data.append((part, "table"))
            return False
        if is_a(obj, (np.ndarray, torch.Tensor)):
            self.data.append((part, "array"))
            return False
        if is_image(type(obj)) and image_bytes(obj):
            self.data.append((part, "images"))
            return False
        if is_exactly(obj, str, bytes, bytearray) and len(obj) >= LEAST_BYTES:
            self.data.append((part, "array"))
        return None

    def _look_into(self, part: Part, obj: Any) -> None:
        """Many items of one kind that is a hazard in itself: handles, generators."""
        told: set[str] = set()
        for item in first_items(obj, _TRIED):
            for each in near(Part(f"{part.path}[...]", item, part.via)):
                if any(_is_within(each.path, path) for path in told):
                    continue
                judges = (self._is_broken, self._is_random)
                if any(judge(each, each.value) is not None for judge in judges):
                    told.add(each.path)

    def _is_code(self, part: Part, obj: Any) -> bool | None:
        if is_a(obj, types.FunctionType):
            for name in modules_used(obj):
                if (library := name.partition(".")[0]) in LIBRARIES_AFTER_FORK:
                    self.libraries.setdefault(library, part.path)
            if part.via == "instance" and "<locals>" in obj.__qualname__ + _lambda(obj):
                self.hazards.append(_local(part, obj))
            return True
        if is_a(obj, functools._lru_cache_wrapper):
            info = obj.cache_info()
            if info.maxsize is None and not _takes_nothing(obj):
                cache = _cache(part, info.currsize)
                self.hazards.append(replace(cache, is_note=part.via == "library"))
            return True
        return None


def as_sent(found: Audit, nbytes: int) -> Audit:
    """Return what was found in a dataset that pickles all the same, as it leaves such parts out.

    Args:
        found: What it holds.
        nbytes: The size of its whole pickle: what would make that of more than twice as many is
            not in it, as a table that is mapped anew by its path.
    """
    sent = [_sent(each, nbytes) for each in (*found.hazards, *found.notes)]
    return replace(
        found,
        hazards=tuple(each for each in sent if each is not None and not each.is_note),
        notes=tuple(each for each in sent if each is not None and each.is_note),
    )


def _sent(hazard: Hazard, nbytes: int) -> Hazard | None:
    if hazard.kind in _DATA and hazard.pickled > max(2 * nbytes, LEAST_BYTES):
        left_out = replace(hazard, spawn=0, shared=0, tensors=0)
        return left_out if left_out.fork >= LEAST_BYTES else None
    if hazard.spawn is not None:
        return hazard
    return replace(
        hazard,
        spawn=0,
        what=hazard.what.replace(_UNSENDABLE, ""),
        is_note=hazard.is_note or hazard.kind not in _ALWAYS,
    )


def _weighed(hazard: Hazard) -> Hazard | None:
    """Return a hazard that costs enough to be told, None for one that does not."""
    if hazard.kind not in _DATA:
        return hazard
    if hazard.tensors > _MOST_TENSORS:
        what = f"{hazard.what}; to be sent, {hazard.tensors:,} tensors need as many open files"
        return replace(hazard, what=what)
    if hazard.most >= LEAST_BYTES:
        return hazard
    if hazard.shared < LEAST_BYTES:
        return None
    what = f"{hazard.what}; spawn and forkserver move it to shared memory, once for all workers"
    return replace(hazard, what=what, is_note=True)


def _is_within(path: str, outer: str) -> bool:
    return path == outer or path.startswith((f"{outer}.", f"{outer}["))


def _is_near(part: Part) -> bool:
    """Whether it is an attribute of the dataset itself."""
    return part.via == "instance" and part.path.count(".") == 1


def _rank(obj: Any) -> int:
    """The order of prices: what holds objects first, since arrays of numbers share none."""
    return int(is_a(obj, (np.ndarray, torch.Tensor)) and not is_object_array(obj))


def _lambda(function: types.FunctionType) -> str:
    """A lambda at the top of a module is no local one, and cannot be found by its name either."""
    return "<locals>" if function.__name__ == "<lambda>" else ""


def _takes_nothing(cached: Any) -> bool:
    wrapped: Any = own_attributes(cached).get("__wrapped__")
    code = wrapped.__code__ if is_a(wrapped, types.FunctionType) else None
    return code is not None and code.co_argcount + code.co_kwonlyargcount == 0


def _local(part: Part, function: types.FunctionType) -> Hazard:
    name = "a lambda" if function.__name__ == "<lambda>" else "a function inside another one"
    return Hazard(
        kind="function",
        path=part.path,
        what=f"{name}: a plain DataLoader cannot send it to workers started by spawn or forkserver "
        "(build_loader can)",
        fix=fix_of("function", part.path),
        is_note=True,
        spawn=0,
    )


def _cache(part: Part, entries: int) -> Hazard:
    return Hazard(
        kind="cache",
        path=part.path,
        what=f"a cache without a limit ({entries:,} entries now): each worker comes to hold all "
        "results of its own",
        fix=fix_of("cache", part.path),
    )


def _priced(part: Part, kind: str, price: Price) -> Hazard:
    obj = part.value
    what, kind = described(obj, kind, price)
    if kind == "array" and part.via == "instance" and is_a(obj, np.memmap):
        what += "; pickled, it becomes a private copy of the file"
    return Hazard(
        kind=kind,
        path=part.path,
        what=what,
        fix=fix_of(kind, part.path, obj),
        fork=price.fork,
        spawn=price.spawn,
        shared=price.shared,
        tensors=price.tensors,
        pickled=price.pickled,
    )


def _rest(path: str, obj: Any, price: Price) -> Hazard:
    about = "about " if price.sampled else ""
    return Hazard(
        kind="objects",
        path=path,
        what=f"a {type(obj).__name__} that refers to {about}{price.objects:,} Python objects",
        fix=fix_of("objects", path),
        fork=price.fork,
        spawn=price.spawn,
        shared=price.shared,
        tensors=price.tensors,
        pickled=price.pickled,
    )
