"""The stream of loader threads: that of a loader without workers, and nobody else's is touched."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from thread_loading import Samples, load, no_thread_left

from sharedds.errors import OptionError
from sharedds.generators.thread_random import DISPATCHING
from sharedds.loader import build_loader

__all__ = ["no_thread_left"]  # used by every test here


def noisy(index: int) -> Any:
    """Draws from all three global generators, and gives others a turn in between."""
    numbers = [random.gauss(0, 1), float(np.random.rand())]  # noqa: NPY002 - the subject
    time.sleep(0.001)
    return torch.tensor([index, *numbers, random.random()]) + torch.dropout(
        torch.ones(4), 0.5, True
    )


def epochs(loader: Any, count: int = 2) -> list[torch.Tensor]:
    """All samples of some epochs."""
    return [torch.cat(list(loader)) for _ in range(count)]


@pytest.mark.parametrize("mode", ["sample", "batch"])
def test_global_draws_are_those_of_a_loader_without_workers(mode: str) -> None:
    """Bit for bit, for one thread and for several."""
    options = {"shuffle": True, "seed": 3, "seed_globals": mode}
    expected = epochs(load(noisy, 32, num_workers=0, **options))
    assert not torch.equal(expected[0].sort(0)[0], expected[1].sort(0)[0])
    for workers in (1, 3):
        found = epochs(load(noisy, 32, num_workers=workers, **options))
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_training_draws_as_if_nothing_were_loaded() -> None:
    """The trainer's own generators are neither moved nor used by loader threads."""

    def train(loader: Any) -> list[Any]:
        random.seed(1)
        torch.manual_seed(1)
        return [
            (random.random(), torch.dropout(torch.ones(50), 0.5, True).tolist()) for _ in loader
        ]

    before = random.getstate(), torch.get_rng_state()
    try:
        assert train(load(noisy, 32)) == train(range(16))
    finally:
        random.setstate(before[0])
        torch.set_rng_state(before[1])


class Holder(Samples):
    """Holds a generator, as many datasets do."""

    def __init__(self, lock: Any = None) -> None:
        super().__init__(32, self.draw)
        self.rng = np.random.default_rng(0)
        self.lock = lock

    def draw(self, index: int) -> Any:
        """Two draws, with a turn for others in between."""
        first = self.rng.random()
        time.sleep(0.001)
        return torch.tensor([first, self.rng.random()], dtype=torch.float64)


def test_each_thread_has_the_generators_of_a_dataset_for_itself() -> None:
    """Two threads reseeding one generator would mix their streams."""
    expected = epochs(build_loader(Holder(), batch_size=2, num_workers=0))
    found = epochs(build_loader(Holder(), batch_size=2, num_workers=2, engine="thread"))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_generator_in_a_closure_is_copied_with_its_function() -> None:
    """A plain copy would share it; the function is copied by value."""

    def make() -> Callable[[int], Any]:
        rng = np.random.default_rng(0)

        def draw(index: int) -> Any:
            first = rng.random()
            time.sleep(0.001)
            return torch.tensor([first, rng.random()], dtype=torch.float64)

        return draw

    expected = epochs(load(make(), 32, num_workers=0))
    assert all(torch.equal(a, b) for a, b in zip(epochs(load(make(), 32)), expected, strict=True))


def test_a_dataset_that_holds_generators_and_cannot_be_copied_is_refused() -> None:
    """With the place of the generator, the reason, and what to do."""
    dataset = Holder(threading.Lock())
    with pytest.raises(OptionError, match=r"dataset\.rng.*cannot pickle.*engine='process'"):
        iter(build_loader(dataset, num_workers=2, engine="thread"))


shared_rng = np.random.default_rng(0)


def from_module(index: int) -> float:
    """Draws from a generator that belongs to the module."""
    return shared_rng.random()


def test_a_generator_that_copies_would_share_is_refused() -> None:
    """A global of a module is one for all threads."""
    with pytest.raises(OptionError, match=r"copies would share .*shared_rng"):
        iter(load(from_module))


def test_a_draw_that_goes_past_is_not_silent() -> None:
    """A function kept in an object draws from the real generator: a warning says so."""
    stored = random.random

    def draw(index: int) -> float:
        time.sleep(0.05)  # so that the trainer waits
        return stored()

    with pytest.warns(RuntimeWarning, match=r"generator of random moved.*engine='process'"):
        next(iter(load(draw)))


def test_seeding_off_leaves_the_global_generators_to_all() -> None:
    """Then nothing is redirected."""
    loader = load(lambda _: random.random is DISPATCHING.random.random, seed_globals="off")
    assert not any(bool(flag) for batch in loader for flag in batch)
    assert "sharedds.generators.thread_random" in sys.modules


@pytest.mark.parametrize("policy", ["skip", "replace"])
@pytest.mark.filterwarnings("ignore:.*could not be loaded:UserWarning")
@pytest.mark.filterwarnings("ignore:.*a summary follows:UserWarning")
def test_bad_samples_are_treated_as_without_workers(policy: str) -> None:
    """Left out or replaced, the stream is the same."""

    def make(index: int) -> Any:
        if index % 5 == 3:
            raise LookupError(index)
        return noisy(index)

    expected, found = (
        epochs(load(make, 32, num_workers=workers, on_error=policy, error_budget=100))
        for workers in (0, 2)
    )
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
