"""Generators from which no sample draws are not seeded, and nobody can tell from what is drawn."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from streams import fork, same, stream
from torch.utils.data import Dataset

from sharedds.generators.numpy_state import NumPyState
from sharedds.generators.python_state import PythonState
from sharedds.generators.seeding import GlobalSeeding
from sharedds.generators.sparing import SparingSeeding
from sharedds.loader import build_loader
from sharedds.order import SampleKey

DRAWS: dict[str, Callable[[], float]] = {
    "random": random.random,
    "random.gauss": lambda: random.gauss(0, 1),
    "numpy": lambda: float(np.random.random()),  # noqa: NPY002
    "numpy.normal": lambda: float(np.random.normal()),  # noqa: NPY002
    "torch": lambda: float(torch.rand((), dtype=torch.float64)),
}


class Seldom(Dataset[tuple[int, float]]):
    """Draws for every 40th sample only, so never for the first ones; counts what it makes."""

    def __init__(self, draw: Callable[[], float], *, every: int = 40) -> None:
        self.draw = draw
        self.every = every
        self.made = 0

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> tuple[int, float]:
        self.made += 1
        return index, self.draw() if index % self.every == self.every - 1 else 0.0


def expected(draw: Callable[[], float], index: int, epoch: int = 0) -> float:
    """What a sample draws when everything is seeded for it."""
    GlobalSeeding.seed(SampleKey(0, epoch, index))
    return draw()


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("batch_size", [1, 16, 64])
def test_a_rare_draw_is_what_it_would_be_if_all_were_seeded(name: str, batch_size: int) -> None:
    """Also the first one, of a generator that was not seeded so far; in later epochs as well."""
    draw = DRAWS[name]
    loader = build_loader(Seldom(draw), batch_size=batch_size, num_workers=0, shuffle=True)
    for epoch in range(2):
        found = {int(i): float(x) for batch in loader for i, x in zip(*batch, strict=True)}
        for index in range(39, 200, 40):
            assert found[index] == expected(draw, index, epoch)


def test_without_a_second_making_the_first_draws_would_be_others() -> None:
    """What a rare draw gives if the generator is merely seeded from then on."""
    sparing = SparingSeeding()
    sparing._left = 0
    random.seed(5)
    sparing.begin()
    sparing.seed(SampleKey(0, 0, 39).number("globals"))
    assert random.random() != expected(random.random, 39)
    assert not sparing.is_sound()
    sparing.begin()
    sparing.seed(SampleKey(0, 0, 39).number("globals"))
    assert random.random() == expected(random.random, 39)


def test_the_stream_is_the_same_for_workers_and_threads() -> None:
    """Each of them finds out for itself from what samples draw."""
    data = Seldom(DRAWS["random.gauss"])
    alone = stream(build_loader(data, batch_size=16, num_workers=0))
    threads = build_loader(data, batch_size=16, num_workers=2, engine="thread")
    assert same(stream(threads), alone)
    assert same(stream(fork(data, batch_size=16, num_workers=2)), alone)


@pytest.mark.parametrize("name", ["random", "numpy", "torch"])
def test_a_batch_is_made_twice_only_at_the_first_draw(name: str) -> None:
    """Samples that draw at once, or never, are made once."""
    for every, twice in ((40, 1), (1, 0), (1000, 0)):
        data = Seldom(DRAWS[name], every=every)
        list(build_loader(data, batch_size=16, num_workers=0))
        assert data.made == 200 + twice * 16


@pytest.mark.parametrize("name", DRAWS)
def test_training_goes_on_as_if_nothing_were_loaded(name: str) -> None:
    """Whether samples draw or not, and from whatever half of a pair the trainer is at."""
    draw = DRAWS[name]
    for every in (1, 40, 1000):
        GlobalSeeding.seed(SampleKey(0, 0, 3))
        undisturbed = [draw() for _ in range(20)]
        GlobalSeeding.seed(SampleKey(0, 0, 3))
        loader = build_loader(Seldom(draw, every=every), batch_size=16, num_workers=0)
        assert [draw() for _, _ in zip(range(20), [*loader] * 2, strict=False)] == undisturbed[:20]
        GlobalSeeding.seed(SampleKey(0, 0, 3))
        assert [draw() for _ in loader] == undisturbed[: len(loader)]


class Replacing(Seldom):
    """Every fourth sample is bad; the others draw from what was not drawn from for long."""

    def __getitem__(self, index: int) -> tuple[int, float]:
        if index % 4 == 3:
            raise ValueError("bad")
        return index, self.draw() if index > 150 else 0.0


@pytest.mark.filterwarnings("ignore:.*(replaced|could not be loaded)")
@pytest.mark.parametrize("name", DRAWS)
def test_replacements_do_not_disturb_what_others_draw(name: str) -> None:
    """They are seeded apart, in the middle of a batch that is not."""

    def values(batch_size: int) -> list[tuple[Any, ...]]:
        loader = build_loader(
            Replacing(DRAWS[name]),
            batch_size=batch_size,
            num_workers=0,
            on_error="replace",
            error_budget=1.0,
        )
        return [(int(i), float(x)) for batch in loader for i, x in zip(*batch, strict=True)]

    alone, together = values(1), values(32)
    assert together == alone
    assert dict(together)[160] == expected(DRAWS[name], 160)


def test_the_state_of_numpy_is_put_back_whole() -> None:
    """Position, words, the second half of a pair, and another kind of generator."""
    state = NumPyState()
    for prepare in (lambda: None, lambda: np.random.normal(), lambda: np.random.random(700)):  # noqa: NPY002
        np.random.seed(1)  # noqa: NPY002
        prepare()
        taken = state.take()
        first = np.random.normal(size=3).tolist()  # noqa: NPY002
        assert state.moved(taken)
        state.put(taken)
        assert not state.moved(taken)
        assert np.random.normal(size=3).tolist() == first  # noqa: NPY002
    module: Any = np.random
    before = module.get_bit_generator()
    try:
        module.set_bit_generator(np.random.PCG64(5))
        taken = state.take()
        drawn = np.random.random()  # noqa: NPY002
        assert state.moved(taken)
        state.put(taken)
        assert np.random.random() == drawn  # noqa: NPY002
    finally:
        module.set_bit_generator(before)


def test_the_second_half_of_a_pair_is_part_of_the_state() -> None:
    """Loading leaves it to the trainer, who may come back to words that were met without it."""
    np.random.seed(3)  # noqa: NPY002
    np.random.normal()  # noqa: NPY002
    paired: Any = np.random.get_state()  # noqa: NPY002
    second = np.random.normal()  # noqa: NPY002
    batches = iter(build_loader(Seldom(DRAWS["numpy"]), batch_size=16, num_workers=0))
    for _ in range(4):
        np.random.set_state(paired)  # noqa: NPY002
        next(batches)
        assert np.random.normal() == second  # noqa: NPY002
        next(batches)


# --- what tells a state without a draw -----------------------------------------------------------


def forked() -> float:
    """A draw that torch takes back."""
    with torch.random.fork_rng(devices=[]):
        return float(torch.rand((), dtype=torch.float64))


def through_its_module() -> float:
    """A draw from the generator that the module of the functions names."""
    module: Any = torch.random
    return float(torch.rand((), dtype=torch.float64, generator=module.default_generator))


def checked() -> float:
    """The same, by somebody who looks at what it is, and reports errors as his own."""
    module: Any = torch.random
    if type(module.default_generator) is not torch.Generator:
        raise RuntimeError("a generator is needed")
    return through_its_module()


def in_a_thread() -> float:
    """The seed, as a thread of the dataset's own reads it."""
    with ThreadPoolExecutor(1) as threads:
        return float(threads.submit(torch.initial_seed).result())


READS: dict[str, Callable[[], float]] = {
    "initial_seed": lambda: float(torch.initial_seed()),
    "get_rng_state": lambda: float(torch.get_rng_state()[:8].view(torch.int64)),
    "fork_rng": forked,
    "default_generator": through_its_module,
    "checked": checked,
    "thread": in_a_thread,
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("every", [1, 40])
def test_what_torch_tells_without_a_draw_is_that_of_the_sample(name: str, every: int) -> None:
    """Though the state is the same after it; the first time, too, and in workers."""
    read = READS[name]
    for workers in (0, 1):
        loader = fork(Seldom(read, every=every), batch_size=16, num_workers=workers)
        found = {int(i): float(x) for batch in loader for i, x in zip(*batch, strict=True)}
        for index in range(every - 1, 200, every):
            assert found[index] == expected(read, index)


class AtOnce(Seldom):
    """Makes all samples of a batch by one call."""

    def __getitems__(self, indices: list[int]) -> list[tuple[int, float]]:
        """Return samples, with a draw from the generator that torch's module names."""
        return [(index, through_its_module()) for index in indices]


def test_a_batch_made_by_one_call_may_pass_the_generator_on() -> None:
    """It draws what it does where everything is seeded."""
    (first, *_) = build_loader(AtOnce(torch.seed), batch_size=16, num_workers=0, shuffle=False)
    assert float(first[1][0]) == expected(through_its_module, 0)


def test_torch_keeps_its_generator_in_its_place() -> None:
    """Other threads may pass it on at any time: also while a sample is made."""
    module: Any = torch.random
    seen: list[bool] = []

    def look() -> float:
        seen.append(module.default_generator is torch.default_generator)
        return 0.0

    list(build_loader(Seldom(look, every=1), batch_size=16, num_workers=0))
    assert seen == [True] * 200


@pytest.mark.parametrize("mode", ["sample", "batch"])
@pytest.mark.parametrize("name", DRAWS)
def test_a_batch_of_samples_that_seldom_draw_is_seeded_as_one(name: str, mode: str) -> None:
    """In each mode the same numbers for any workers; with "batch" those of its first sample."""
    draw = DRAWS[name]
    options: dict[str, Any] = {"batch_size": 2, "shuffle": False, "seed_globals": mode}
    alone = stream(fork(Seldom(draw), **options))
    assert same(stream(fork(Seldom(draw), **options, num_workers=2)), alone)
    first = 198 if mode == "batch" else 199
    assert float(alone[0][99][1][1]) == expected(draw, first)


def test_the_state_of_random_is_put_back_whole() -> None:
    """Position, words, and the second half of a pair; also where the words cannot be copied."""
    for copied in (True, False):
        state = PythonState()
        for prepare in (lambda: None, lambda: random.gauss(0, 1), lambda: random.random()):
            random.seed(1)
            prepare()
            taken = state.take()
            if not copied:
                taken = taken._replace(words=b"", half=None, whole=random.getstate())
            first = [random.gauss(0, 1) for _ in range(3)]
            assert state.moved(taken)
            state.put(taken)
            assert [random.gauss(0, 1) for _ in range(3)] == first
