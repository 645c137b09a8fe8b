"""Generators that a dataset made in __init__ follow the key of each sample too."""

from __future__ import annotations

import functools
import random
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from streams import as_list, fork, same, stream
from torch.utils.data import DataLoader, Dataset, Subset

from sharedds.datasets import LazyDataset
from sharedds.generators.held import HeldGenerators
from sharedds.order import SampleKey

KEY = SampleKey(1, 2, 3)


class Holder(Dataset[float]):
    """Draws from a generator that it holds."""

    def __init__(self, count: int = 8) -> None:
        self.count = count
        self.rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> float:
        return float(self.rng.random())


def test_in_a_plain_loader_all_workers_draw_the_same_numbers() -> None:
    """Each has a copy of the generator; here no number comes twice, for any workers."""
    plain = DataLoader(Holder(), num_workers=2, multiprocessing_context="fork")
    assert len({float(value) for value in plain}) == 4
    alone = stream(fork(Holder()), 2)
    assert len({float(value) for epoch in alone for value in epoch}) == 16
    for options in ({"num_workers": 2}, {"num_workers": 2, "engine": "thread"}):
        assert same(stream(fork(Holder(), **options), 2), alone)


MODULE_RNG = np.random.default_rng(0)


class UsesGlobal(Holder):
    """Draws from a generator of its module."""

    def __getitem__(self, index: int) -> float:
        return float(MODULE_RNG.random())


class Slotted:
    """Has no __dict__."""

    __slots__ = ("rng", "unset")

    def __init__(self) -> None:
        self.rng = random.Random(0)


class OfClass:
    """Shares one generator among all objects, as MONAI's transforms do until they are seeded."""

    R = np.random.RandomState(0)

    def set_random_state(self, seed: int | None = None, state: Any = None) -> None:
        """Take a generator of its own."""
        self.R = np.random.RandomState(seed)


class OfItself(OfClass):
    """Has one of its own in that place."""

    def __init__(self) -> None:
        self.set_random_state(0)


def closure() -> Any:
    """Return a function that holds a generator."""
    rng = torch.Generator()
    return lambda x: x + torch.rand((), generator=rng)


def keeps(x: Any, rng: random.Random = random.Random(0)) -> Any:  # noqa: B008
    """Holds a generator as a default value."""
    return x


class Node:
    """Anything with attributes."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def method(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("root", "path"),
    [
        (np.random.default_rng(0), "d"),
        (Node(rng=np.random.Generator(np.random.Philox(0))), "d.rng"),
        (Node(a=[1, (Node(b={"x": np.random.RandomState(0)}),)]), "d.a[1][0].b['x']"),
        (Node(a={(1, 2): random.Random(0)}), "d.a[key 0]"),
        (Node(a=deque([torch.Generator()])), "d.a[0]"),
        (Node(a=functools.partial(print, random.Random(0))), "d.a.args[0]"),
        (Node(a=functools.partial(print, file=random.Random(0))), "d.a.keywords['file']"),
        (Node(a=closure()), "d.a<rng>"),
        (Node(a=keeps), "d.a.__defaults__[0]"),
        (Node(a=Node(rng=random.Random(0)).method), "d.a.__self__.rng"),
        (Node(a=Slotted()), "d.a.rng"),
        (Node(a=OfClass()), "d.a.R"),
        (Node(a=OfItself(), b=OfClass()), "d.a.R d.b.R"),
        (OfItself(), "d.R"),
        (UsesGlobal(), "d.rng d.__getitem__<MODULE_RNG>"),
        (Subset(Holder(), range(3)), "d.dataset.rng"),
        (torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Identity(torch.Generator())), ""),
    ],
    ids=lambda part: part if isinstance(part, str) else type(part).__name__,
)
def test_generators_are_found_wherever_they_are(root: Any, path: str) -> None:
    """And a reseed brings them to the same state again, another key to another one."""
    held = HeldGenerators(d=root)
    assert " ".join(held.paths) == path

    def states(key: SampleKey) -> list[Any]:
        held.reseed(key)
        return [state(getter()) for _, getter in held._found]

    if path:
        first = states(KEY)
        assert states(SampleKey(1, 2, 4)) != first
        assert states(KEY) == first


def state(source: Any) -> Any:
    """Something that tells states apart."""
    if isinstance(source, np.random.Generator):
        return source.integers(0, 1 << 60, 4).tolist()
    if isinstance(source, np.random.RandomState):
        return source.randint(0, 1 << 30, 4).tolist()
    if isinstance(source, random.Random):
        return source.getrandbits(100)
    return source.initial_seed()


def test_two_generators_of_one_dataset_draw_different_numbers() -> None:
    """Each has a number of its own from its path."""
    pair = Node(a=np.random.default_rng(0), b=np.random.default_rng(0))
    HeldGenerators(d=pair).reseed(KEY)
    assert pair.a.random() != pair.b.random()


def test_the_search_is_bounded_and_runs_no_code() -> None:
    """Cycles, long lists and properties that must not be computed."""

    class Careful(Node):
        @property
        def rng(self) -> Any:
            raise AssertionError("a property was computed")

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

    root: Any = Careful(big=list(range(10**6)), text=["x"] * 10**6, array=np.zeros(10**6))
    root.me = [root, {"again": root}]
    root.last = random.Random(0)
    assert HeldGenerators(d=root).paths == ("d.last",)


def test_global_generators_are_left_to_the_seeding_of_globals() -> None:
    """Whoever holds one of them holds what belongs to the whole process."""
    root = Node(a=torch.default_generator, b=np.random.mtrand._rand, c=random._inst)
    assert not HeldGenerators(d=root)


class Composed:
    """Told a seed by a method, as compositions of albumentations are."""

    def __init__(self) -> None:
        self.set_random_seed(0)

    def set_random_seed(self, seed: int) -> None:
        """Make new generators."""
        self.rng = np.random.default_rng(seed)

    def draw(self) -> float:
        """Draw a number."""
        return float(self.rng.random())


class Randomizable(OfClass):
    """Told a seed by keyword; its generator is hidden."""

    R = None  # type: ignore[assignment]

    def set_random_state(self, seed: int | None = None, state: Any = None) -> None:
        """Keep a hidden generator."""
        self.hidden = (np.random.RandomState(seed).random_sample,)

    def draw(self) -> float:
        """Draw a number."""
        return float(self.hidden[0]())


class SharesR(OfClass):
    """Draws from the generator of its class."""

    def draw(self) -> float:
        """Draw a number."""
        return float(self.R.random_sample())


class Transformed(Dataset[float]):
    """Draws through a transform."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> float:
        return float(self.transform.draw())


@pytest.mark.parametrize("kind", [Composed, Randomizable, SharesR])
def test_transforms_that_are_told_a_seed_follow_the_key(kind: Any) -> None:
    """The same numbers for any workers, and no number twice."""
    alone = stream(fork(Transformed(kind())), 2)
    assert same(stream(fork(Transformed(kind()), num_workers=2), 2), alone)
    assert len({float(value) for epoch in alone for value in epoch}) == 16


def test_a_dataset_is_not_told_a_seed_for_each_sample() -> None:
    """What it would do with it is its own affair; the generators in it are found all the same."""

    class Reshuffling(Holder):
        def set_random_seed(self, seed: int) -> None:
            raise AssertionError(seed)

    alone = stream(fork(Reshuffling()))
    assert same(stream(fork(Reshuffling(), num_workers=2)), alone)


def test_generators_of_a_collate_function_follow_the_batch() -> None:
    """Mixing samples of a batch at random belongs to the stream too."""

    class Mix:
        def __init__(self) -> None:
            self.rng = random.Random(0)

        def __call__(self, samples: list[Any]) -> float:
            return self.rng.random()

    runs = [
        stream(fork(Holder(), batch_size=2, collate_fn=Mix(), **options), 2)
        for options in ({}, {"num_workers": 2}, {"num_workers": 2, "engine": "thread"})
    ]
    assert runs[0] == runs[1] == runs[2]
    assert len({value for epoch in runs[0] for value in epoch}) == 8


def test_a_generator_that_training_shares_is_given_back() -> None:
    """Without workers the dataset draws from the very object that training holds."""
    dataset = Holder()
    shared = dataset.rng
    expected = np.random.default_rng(0).random(3).tolist()
    found = [shared.random()]
    list(fork(dataset))
    found += [shared.random(), shared.random()]
    assert found == expected


def test_generators_are_left_alone_when_seeding_is_off() -> None:
    """As torch does it: every worker has its copy."""
    loader = fork(Holder(), seed_globals="off", num_workers=2)
    assert len({float(value) for value in loader}) == 4


def test_the_generator_of_a_lazy_dataset_is_no_held_one() -> None:
    """self.rng is made for each sample from its key; nothing is found that could disturb it."""

    class Own(LazyDataset[float]):
        def load(self, item: str) -> float:
            return float(self.rng.random())

    dataset = Own(str(i) for i in range(4))
    assert not HeldGenerators(d=dataset)
    (batch,) = fork(dataset, batch_size=4, collate_fn=as_list)
    assert batch == [SampleKey(0, 0, i).generator().random() for i in range(4)]


SHARED = np.random.default_rng(3)


class Jitter:
    """A transform with a generator."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(4)

    def __call__(self) -> float:
        """Draw."""
        return float(self.rng.random())


JITTER = Jitter()


def drawn() -> float:
    """Draw from a global."""
    return float(SHARED.random())


class ByFunction(Holder):
    """Draws by a function of the module."""

    def __getitem__(self, index: int) -> float:
        return drawn()


class InComprehension(Holder):
    """Draws in code inside of its code."""

    def __getitem__(self, index: int) -> float:
        return sum([float(SHARED.random()) for _ in range(2)])


class ByObject(Holder):
    """Draws by an object of the module."""

    def __getitem__(self, index: int) -> float:
        return JITTER()


class Annotated(Holder):
    """Holds much data, and far down a transform."""

    def __init__(self) -> None:
        super().__init__()
        self.boxes = {i: [{"box": [1, 2], "area": [[3]]} for _ in range(7)] for i in range(300)}
        self.transform = functools.partial(lambda steps: steps[1](), [None, Jitter()])

    def __getitem__(self, index: int) -> float:
        return float(self.transform())


@pytest.mark.parametrize("kind", [ByFunction, InComprehension, ByObject, Annotated])
def test_generators_behind_functions_globals_and_data_are_found(kind: type[Holder]) -> None:
    """Copies in two workers would draw the same numbers; the stream is that without workers."""
    expected = stream(fork(kind(), collate_fn=as_list))
    assert same(stream(fork(kind(), collate_fn=as_list, num_workers=2)), expected)
    assert len({value for (value,) in expected[0]}) == 8
