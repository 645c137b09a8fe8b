"""What Python objects cost a worker process, told before it is started.

Two figures, each for one worker that reads everything once:

* *fork*: the child shares all pages with its parent until one of the two writes to them. Reading
  an object writes to it, since the reference count is in its header; the kernel then copies the
  whole page. So the price is the number of pages on which there is at least one header. What an
  array or an image holds lies elsewhere, is not written to, and stays shared.
* *spawn* (and forkserver): the child unpickles a copy. What is referred to twice is copied once,
  but for numbers, of which every mention becomes a new object. What unpickling needed in between
  (states, argument tuples, bytes) is freed, but lies between what stays, and is not given back.

Nothing of the user's code is run: built-in containers are read as they are, other objects through
the references that the garbage collector sees.
"""

from __future__ import annotations

import collections
import gc
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from sharedds.diagnose.containers import (
    CONTAINERS,
    first_items,
    is_a,
    is_object_array,
    item_blocks,
    item_count,
)
from sharedds.diagnose.graph import arrow_table
from sharedds.diagnose.sizes import allocated, coster

__all__ = ["Price", "Pricer"]

_PAGE_BITS = 12
_PAGE = 1 << _PAGE_BITS
_BLOCKS = 16  # of a container, each of neighbours, whose pages are counted together
_BLOCK = (32, 4096)  # items of a block, at least and at most
_BLOCK_OBJECTS = 12_000  # so many objects in a block, about
_TRIED = 16  # items that tell how many objects there are to an item
_LARGE = 4096  # a container with more inside another one is sampled as well
_MOST_OBJECTS = 150_000  # of one price
_MOST_CLAIMED = 600_000
_LEAST_SECONDS = 0.05  # for each price, when the time for all of them is up
_NUMBERS = (id(int), id(float))
_NUMBER = 32  # an int or a float, as the allocator rounds it
_SMALL_INTS = range(-5, 257)  # of which there is one each


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What one worker pays for some objects, in bytes; estimates.

    Args:
        fork: Private memory of a forked worker that has read all of it.
        spawn: Private memory of a worker started by spawn or forkserver, which holds a copy.
        shared: Tensors: moved to shared memory once for all workers, by spawn and forkserver.
        tensors: How many tensors; each moved one takes an open file.
        pickled: Size of their pickle.
        objects: How many Python objects there are.
        sampled: Whether only a part was looked at.
    """

    fork: int
    spawn: int
    shared: int = 0
    tensors: int = 0
    pickled: int = 0
    objects: int = 0
    sampled: bool = False


class Pricer:
    """Finds the price of one object after the other; what an earlier price held is free in a later.

    Args:
        seconds: For all prices together; each one gets a look even when they are over.
    """

    def __init__(self, seconds: float = 2.0) -> None:
        self._ends = time.monotonic() + seconds
        self._claimed: dict[int, float] = {}
        self._claimed_pages: dict[int, float] = {}

    def price(self, obj: object) -> Price:
        """Return what a worker pays for an object and for all that it refers to."""
        deadline = max(self._ends, time.monotonic() + _LEAST_SECONDS)
        tally = _Tally(self._claimed, self._claimed_pages, deadline)
        price = tally.of(obj)
        if len(self._claimed) < _MOST_CLAIMED:
            self._claimed.update(dict.fromkeys(tally.costs, tally.share))
            self._claimed_pages.update(dict.fromkeys(tally.pages, tally.share))
        return price


class _Tally:
    """The objects behind one price.

    Args:
        claimed: Objects of earlier prices, with the share of theirs that was looked at.
        claimed_pages: The pages of these.
        deadline: When to stop looking.
    """

    def __init__(
        self, claimed: dict[int, float], claimed_pages: dict[int, float], deadline: float
    ) -> None:
        self.claimed, self.claimed_pages = claimed, claimed_pages
        self.deadline = deadline
        self.share = 1.0
        self.costs: dict[int, int] = {}  # by object
        self.again: dict[int, int] = {}  # in how many more blocks an object was met
        self.pages: dict[int, int] = {}  # in how many blocks a page was met
        self.numbers = self.number_count = self.shared = self.tensors = self.pickled = 0
        # By the id of the class: bytes and pages, and those of earlier prices among them.
        self.kinds: collections.Counter[int] = collections.Counter()
        self.kind_pages: collections.Counter[int] = collections.Counter()
        self.unseen: dict[int, float] = collections.defaultdict(float)
        self.unseen_pages: dict[int, float] = collections.defaultdict(float)
        self._large: dict[int, Any] = {}

    def of(self, obj: Any) -> Price:
        """Look at an object, or at parts of a large container, and return the price of it all."""
        if not (is_a(obj, CONTAINERS) or is_object_array(obj)):
            self._block([obj])
            return self._total(1)
        if self.claimed.get(id(obj)) is not None:
            return Price(fork=0, spawn=0)
        count = item_count(obj)
        self._block([obj], closed=True)
        own, own_pages = self.costs.pop(id(obj), 0), len(self.pages)
        self.pages.clear()
        looked = blocks = 0
        for items in item_blocks(obj, self._block_size(obj), _BLOCKS):
            self._block(items)
            blocks += 1
            looked += len(items) // (2 if is_a(obj, dict) else 1)
            if time.monotonic() > self.deadline:
                break
        self.share = min(1.0, looked / count) if count else 1.0
        price = self._total(blocks)
        self.costs[id(obj)] = own
        return replace(
            price,
            fork=price.fork + own_pages * _PAGE,
            spawn=price.spawn + own,
            pickled=price.pickled + 8,
            objects=price.objects + 1,
        )

    def _block_size(self, obj: Any) -> int:
        """So many neighbours that a block has some thousand objects, whatever an item is."""
        trial = _Tally(self.claimed, {}, self.deadline)
        items = first_items(obj, _TRIED)
        trial._block(items)
        each = (len(trial.costs) + trial.number_count) / max(1, len(items))
        return max(_BLOCK[0], min(_BLOCK[1], int(_BLOCK_OBJECTS / max(1.0, each))))

    def _block(self, items: list[Any], *, closed: bool = False) -> None:
        """Add some objects and what they refer to; ``closed`` leaves the latter out."""
        here: set[int] = set()
        here_pages: dict[int, int] = {}
        met: list[Any] = []  # of an earlier price
        stack = list(items)
        while stack:
            obj = stack.pop()
            kind = type(obj)
            if kind is int or kind is float:
                here_pages[id(obj) >> _PAGE_BITS] = id(kind)
                self._number(obj, kind)
                continue
            key = id(obj)
            if key in here:
                self.pickled += 4
                continue
            if key in self.claimed:
                met.append(obj)
                continue
            cost = coster(kind)
            if cost is None:
                continue
            here.add(key)
            here_pages[key >> _PAGE_BITS] = id(kind)
            if key in self.costs:
                self.again[key] = self.again.get(key, 0) + 1
            else:
                self.costs[key], pickled, shared = cost(obj)
                self.kinds[id(kind)] += self.costs[key]
                self.pickled += pickled
                self.shared += shared
                self.tensors += shared > 0
            if kind is str or kind is bytes or closed:
                continue
            if is_object_array(obj) or (is_a(obj, CONTAINERS) and item_count(obj) > _LARGE):
                self._large[key] = obj
            else:
                stack.extend(_referents(obj, kind))
            if len(here) > _MOST_OBJECTS:
                break
        self._note_met(met, here_pages)
        for page, kind_id in here_pages.items():
            if (share := self.claimed_pages.get(page)) is not None:
                self.unseen_pages[kind_id] += 1 / share - 1
                continue
            if page not in self.pages:
                self.kind_pages[kind_id] += 1
            self.pages[page] = self.pages.get(page, 0) + 1

    def _number(self, obj: float, kind: type) -> None:
        self.number_count += 1
        if kind is float:
            self.numbers += _NUMBER
            self.kinds[id(kind)] += _NUMBER
            self.pickled += 9
        elif obj not in _SMALL_INTS:
            self.numbers += allocated(sys.getsizeof(obj))
            self.kinds[id(kind)] += allocated(sys.getsizeof(obj))
            self.pickled += 2 + int(obj).bit_length() // 8

    def _note_met(self, met: list[Any], pages: dict[int, int]) -> None:
        """Of an earlier price that looked at a tenth, nine more are unseen for each one met."""
        seen: set[int] = set()
        for first in met:
            share = self.claimed[id(first)]
            self.pickled += 4
            stack = [first] if share < 1.0 else []
            while stack and len(seen) < _MOST_OBJECTS:
                obj = stack.pop()
                kind = type(obj)
                cost = coster(kind)
                if id(obj) in seen or (cost is None and kind is not int and kind is not float):
                    continue
                seen.add(id(obj))
                pages[id(obj) >> _PAGE_BITS] = id(kind)
                size = _NUMBER if cost is None else cost(obj)[0]
                self.unseen[id(kind)] += size * (1 / share - 1)
                if cost is not None and kind is not str:
                    stack.extend(_referents(obj, kind))

    def _total(self, blocks: int) -> Price:
        """Extrapolate from the blocks to the whole, and add the large containers inside."""
        share = self.share
        once = sum(cost for key, cost in self.costs.items() if key not in self.again)
        several = sum(self.costs[key] for key in self.again)
        met_once = len(self.costs) - len(self.again)
        factor = 1.0
        if share < 1.0 and met_once:
            twice = sum(1 for times in self.again.values() if times == 1)
            distinct = _extrapolated(len(self.costs), met_once, twice, share, blocks)
            factor = (distinct - len(self.again)) / met_once
        pages = float(len(self.pages))
        if share < 1.0:
            counts = collections.Counter(self.pages.values())
            pages = _extrapolated(len(self.pages), counts[1], counts[2], share, blocks)
        new = _new_share({k: n for k, n in self.kinds.items() if k not in _NUMBERS}, self.unseen)
        new_numbers = _new_share({k: self.kinds[k] for k in _NUMBERS}, self.unseen)
        numbers = self.number_count / share * new_numbers
        total = {
            "fork": pages * _PAGE * _new_share(self.kind_pages, self.unseen_pages),
            "spawn": (several + once * factor) * new + self.numbers / share * new_numbers,
            "shared": self.shared * factor,
            "tensors": self.tensors * factor,
            "pickled": self.pickled / share,
            "objects": (len(self.again) + met_once * factor) * new + numbers,
        }
        sampled = share < 1.0
        large, self._large = self._large, {}
        for obj in large.values():
            claimed = self.claimed | dict.fromkeys(self.costs.keys() - large.keys(), share)
            inner = _Tally(claimed, self.claimed_pages, self.deadline)
            price = inner.of(obj)
            for name in total:
                total[name] += getattr(price, name) / share
            sampled = sampled or price.sampled
            self.costs.update(inner.costs)
            self.pages.update(inner.pages)
        return Price(**{name: round(value) for name, value in total.items()}, sampled=sampled)


def _new_share(amounts: Mapping[int, float], unseen: Mapping[int, float]) -> float:
    """Return which share of some amounts belongs to no earlier price, by class."""
    whole = sum(amounts.values())
    new = sum(max(0.0, amount - unseen.get(kind, 0.0)) for kind, amount in amounts.items())
    return new / whole if whole else 1.0


def _extrapolated(distinct: int, once: int, twice: int, share: float, blocks: int) -> float:
    """Estimate how many distinct things there are from how many were met in one and in two blocks.

    Things of one place only are met in one block; there are as many more as there are more places.
    Things that are used all over are met again and again: then Chao's estimate (of species from
    traps) holds, which is far lower.
    """
    linear = distinct / share
    if blocks < 2:
        return linear
    chao = once * once / (2 * twice) if twice else once * (once - 1) / 2
    return min(linear, distinct + chao * (blocks - 1) / blocks)


def _referents(obj: Any, kind: type) -> list[Any]:
    if kind is tuple or kind is list:
        return list(obj)
    if kind is dict:
        return [*obj.keys(), *obj.values()]
    if issubclass(kind, (np.ndarray, torch.Tensor)):
        return []
    if (table := arrow_table(obj)) is not None:
        return [table]
    return gc.get_referents(obj)
