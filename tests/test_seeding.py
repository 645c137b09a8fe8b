"""The global generators follow the key of each sample, and training keeps its own numbers."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from streams import Draws, fork, same, stream

from sharedds.datasets import LazyDataset
from sharedds.errors import OptionError
from sharedds.generators.seeding import GlobalSeeding, kept_globals
from sharedds.order import SampleKey

BITS = 1 << 32


def bits() -> tuple[int, int, int]:
    """The next 32 bits of each global generator."""
    numpy = int(np.random.randint(0, BITS, dtype=np.uint32))  # noqa: NPY002
    return random.getrandbits(32), numpy, int(torch.randint(0, BITS, ()))


def test_the_three_generators_draw_unrelated_bits() -> None:
    """Seeded with one number, NumPy and torch draw the same ones."""
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)
    first = [bits() for _ in range(9)]
    assert {numpy for _, numpy, _ in first} & {by_torch for _, _, by_torch in first}
    GlobalSeeding.seed(SampleKey(0, 0, 5))
    drawn = [number for _ in range(200) for number in bits()]
    assert len(set(drawn)) == len(drawn)


def test_a_key_decides_all_that_is_drawn() -> None:
    """The same numbers again for the same key, others for another one or another purpose."""

    def numbers(key: SampleKey, purpose: str = "globals") -> tuple[int, int, int]:
        GlobalSeeding.seed(key, purpose)
        return bits()

    key = SampleKey(2**40, 3, 7, 1)
    assert numbers(key) == numbers(SampleKey(2**40, 3, 7, 1))
    others = [SampleKey(0, 3, 7, 1), SampleKey(2**40, 4, 7, 1), SampleKey(2**40, 3, 8, 1)]
    all_bits = [*numbers(key), *numbers(key, "collate"), *numbers(SampleKey(2**40, 3, 7))]
    all_bits += [bit for other in others for bit in numbers(other)]
    assert len(set(all_bits)) == 18


def test_kept_generators_go_on_as_if_nothing_had_happened() -> None:
    """The second of a pair of normal numbers, which is kept in a cache, included."""

    def normal() -> list[float]:
        return [random.gauss(), float(np.random.normal()), float(torch.randn(()))]  # noqa: NPY002

    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    expected = [normal() for _ in range(3)]
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    found = [normal()]
    with kept_globals():
        GlobalSeeding.seed(SampleKey(0, 0, 0))
        normal()
    found += [normal(), normal()]
    assert found == expected


def test_a_seeding_travels() -> None:
    """It goes to every worker with the dataset; an unknown one is refused."""
    for mode in ("sample", "batch", "off"):
        copy = pickle.loads(pickle.dumps(GlobalSeeding(mode)))
        assert (copy.mode, bool(copy)) == (mode, mode != "off")
    with pytest.raises(OptionError, match="seed_globals='epoch'"):
        GlobalSeeding("epoch")
    with pytest.raises(OptionError, match="seed_globals='epoch'"):
        fork(Draws(3), seed_globals="epoch")


# --- in a loader ---------------------------------------------------------------------------------


class Everything(LazyDataset[tuple[float, ...]]):
    """Draws from the global generators, a generator made in __init__, and the dataset's own."""

    def __init__(self, count: int) -> None:
        super().__init__(str(i) for i in range(count))
        self.made_here = np.random.default_rng(0)

    def load(self, item: str) -> tuple[float, ...]:
        """Return the number of the sample and five draws."""
        drawn = (random.random(), np.random.random(), torch.rand((), dtype=torch.float64))  # noqa: NPY002
        return (
            int(item),
            *(float(value) for value in drawn),
            self.made_here.random(),
            self.rng.random(),
        )


@pytest.mark.parametrize("seed", [0, 2**32 - 1, 2**40])
def test_no_value_occurs_twice_over_workers_and_ranks(seed: int) -> None:
    """Nor does it depend on them: the values of each sample are those of a loader alone."""

    def values(rank: int, world_size: int, workers: int) -> list[tuple[float, ...]]:
        loader = fork(
            Everything(16), seed=seed, rank=rank, world_size=world_size, num_workers=workers
        )
        return [tuple(map(float, sample)) for sample in loader]

    of_ranks = [sample for rank in range(2) for sample in values(rank, 2, 2)]
    drawn = [value for sample in of_ranks for value in sample[1:]]
    assert len(drawn) == 80
    assert len(set(drawn)) == 80
    for workers in (0, 1, 2):
        assert values(0, 1, workers) == sorted(of_ranks)


def test_a_batch_can_be_seeded_at_once() -> None:
    """Cheaper; still the same for any workers, as long as the batches are the same."""
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed_globals": "batch"}
    alone = stream(fork(Draws(16), **options), 2)
    assert same(stream(fork(Draws(16), **options, num_workers=2), 2), alone)
    values = [value for epoch in alone for batch in epoch for part in batch[1:] for value in part]
    assert len({float(value) for value in values}) == 2 * 16 * 3


def test_seeding_can_be_left_to_torch() -> None:
    """Then workers follow the seed and their number, and training shares its generators."""

    def run(workers: int, seed: int = 0) -> Any:
        return stream(fork(Draws(8), seed=seed, seed_globals="off", num_workers=workers), 2)

    assert same(run(2), run(2))
    assert not same(run(1), run(2))
    assert not same(run(2), run(2, seed=1))
    torch.manual_seed(0)
    expected = torch.rand(2, dtype=torch.float64)
    torch.manual_seed(0)
    (batch,) = fork(Draws(1), seed_globals="off")
    assert batch[3] == expected[0]


def test_a_resumed_epoch_seeds_workers_as_before_when_torch_seeds_them() -> None:
    """Their seeds derive from seed and epoch, not from how many passes were begun."""
    reference = stream(fork(Draws(8), seed_globals="off", num_workers=1), 3)
    loader = fork(Draws(8), seed_globals="off", num_workers=1)
    loader.set_epoch(2)
    assert same(list(loader), reference[2])
