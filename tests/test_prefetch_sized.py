"""Where nobody tells the size of a sample, the first batch does: how many are made in advance."""

import pickle
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from sharedds import build_loader

MB = 1_000_000


class Blocks(Dataset[torch.Tensor]):
    """Samples of so many bytes."""

    def __init__(self, count: int, nbytes: int) -> None:
        self.count = count
        self.nbytes = nbytes

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self.nbytes,), index % 251, dtype=torch.uint8)


def loader_of(nbytes: int, count: int = 60, **options: Any) -> Any:
    """A loader with two threads, batches of two."""
    given: dict[str, Any] = {"batch_size": 2, "num_workers": 2, "engine": "thread"} | options
    return build_loader(Blocks(count, nbytes), **given)


@pytest.mark.parametrize(
    ("nbytes", "ahead"), [(1_000, 8), (20 * MB, 3), (40 * MB, 1)], ids=["small", "medium", "large"]
)
def test_the_first_batch_decides_how_many_are_made_in_advance(nbytes: int, ahead: int) -> None:
    """Up to eight small ones, one of volumes; two are the guess until then."""
    loader = loader_of(nbytes)
    assert loader.plan.prefetch_factor == 2
    batches = iter(loader)
    next(batches)
    assert loader.plan.prefetch_factor == loader.prefetch_factor == ahead
    assert loader.stats().most == loader.stats().allowed == 2 * ahead
    assert "first batch" in dict(loader.plan.reasons)["prefetch_factor"]


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_so_many_are_then_in_flight_with_processes(start_method: str) -> None:
    """And the next epoch begins with as many, also with workers that stay."""
    loader = loader_of(1_000, engine="process", start_method=start_method, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    next(batches)
    assert loader.stats().in_flight == 16
    rest = list(batches)
    assert len(rest) == 28
    again = iter(loader)
    assert loader.stats().allowed == 16
    assert len(list(again)) == 30


def test_an_argument_is_not_changed() -> None:
    """What was asked for stays, and no batch is told of in its reason."""
    loader = loader_of(1_000, prefetch_factor=3)
    next(iter(loader))
    assert loader.plan.prefetch_factor == 3
    assert "first batch" not in dict(loader.plan.reasons)["prefetch_factor"]


def test_the_stream_is_the_same() -> None:
    """How many are made in advance changes nothing of them."""
    found = [batch[:, 0].tolist() for batch in loader_of(1_000, shuffle=True)]
    fixed = [batch[:, 0].tolist() for batch in loader_of(1_000, shuffle=True, prefetch_factor=1)]
    assert found == fixed


def test_a_replay_decides_nothing() -> None:
    """A few batches loaded for a replay leave the plan as it was."""
    loader = loader_of(1_000)
    assert len(list(loader.replay(2))) == 30
    assert loader.plan.prefetch_factor == 2


def test_a_loader_can_be_sent_before_its_first_batch() -> None:
    """What is to be decided travels with it."""
    loader = pickle.loads(pickle.dumps(loader_of(1_000)))
    next(iter(loader))
    assert loader.plan.prefetch_factor == 8


def test_a_short_first_batch_does_not_make_samples_look_small() -> None:
    """A resume at the end of an epoch begins with what is left: one sample of twelve."""
    options: dict[str, Any] = {"batch_size": 12, "count": 13}
    first = loader_of(10 * MB, **options)
    batches = iter(first)
    next(batches)
    again = loader_of(10 * MB, **options)
    again.load_state_dict(first.state_dict())
    (left,) = list(again)
    assert len(left) == 1
    assert again.plan.prefetch_factor == first.plan.prefetch_factor == 2


class Told(Blocks):
    """One that tells what a sample takes."""

    @property
    def sample_nbytes(self) -> int:
        """Bytes of a sample."""
        return self.nbytes


def as_doubles(batch: torch.Tensor) -> torch.Tensor:
    """Eight times the bytes."""
    return batch.double()


def test_what_changes_batches_changes_their_size() -> None:
    """What the dataset tells is of before; the first batch is of after."""
    data: Any = Told(40, 5 * MB)
    options: dict[str, Any] = {"batch_size": 1, "num_workers": 1, "engine": "thread"}
    plain = build_loader(data, **options)
    assert plain.plan.prefetch_factor == 8
    changed = build_loader(data, batch_transform=as_doubles, **options)
    assert changed.plan.prefetch_factor == 2
    next(iter(changed))
    assert changed.plan.prefetch_factor == 1


def test_a_budget_measures_what_comes_out_of_a_batch_transform() -> None:
    """In a worker, before the plan is made."""
    data: Any = Told(8, MB)
    options: dict[str, Any] = {"num_workers": 1, "max_memory": "4GB", "engine": "thread"}
    estimate = build_loader(data, batch_transform=as_doubles, **options).plan.estimate
    plain = build_loader(data, **options).plan.estimate
    assert estimate is not None
    assert plain is not None
    assert estimate.in_flight > 7 * plain.in_flight
