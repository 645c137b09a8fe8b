"""Frameworks replace samplers and rebuild loaders: no sample is lost or doubled by it.

What Lightning and Accelerate do is done here by hand, so that it is tested without them; the real
ones train in ``tests/frameworks``.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from streams import Augmented, Draws, fork, same
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from sharedds.errors import OptionError

COUNT = 23


def numbers(loader: Any) -> list[int]:
    """The numbers of all samples of an epoch."""
    return [int(index) for batch in loader for index in batch[0]]


def group(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int) -> None:
    """Let a process group be there."""
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: rank)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: world_size)


def injected(loader: DataLoader[Any], rank: int) -> DataLoader[Any]:
    """What Lightning makes of a loader on two ranks: another sampler, unless it is split."""
    if isinstance(loader.sampler, DistributedSampler):
        return loader
    sampler: Any = DistributedSampler(loader.dataset, 2, rank, shuffle=False)
    return type(loader)(loader.dataset, batch_size=loader.batch_size, sampler=sampler)


def test_a_loader_of_an_order_is_not_given_another_sampler() -> None:
    """Its sampler is a DistributedSampler and knows its rank, so it is left as it is."""
    loaders = [fork(Draws(COUNT), batch_size=4, rank=rank, world_size=2) for rank in range(2)]
    for rank, loader in enumerate(loaders):
        sampler: Any = loader.sampler
        assert injected(loader, rank) is loader
        assert (sampler.rank, sampler.num_replicas) == (rank, 2)
    assert sorted(itertools.chain(*map(numbers, loaders))) == list(range(COUNT))


def test_a_group_that_begins_after_the_loader_still_splits_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plain torch would give all samples to each rank; here length and plan follow, too."""
    loader = fork(Draws(COUNT), batch_size=4, shuffle=True)
    assert len(loader) == 6
    group(monkeypatch, 1, 2)
    assert len(loader) == 3
    assert "says torch.distributed" in str(loader.plan)
    assert (loader.plan.rank, loader.plan.world_size, loader.plan.last_step) == (1, 2, "padded")
    known = fork(Draws(COUNT), batch_size=4, shuffle=True, rank=1, world_size=2)
    assert numbers(loader) == numbers(known)


def test_a_loop_under_way_stays_whole_when_a_group_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next epoch is split."""
    loader = fork(Draws(COUNT), batch_size=4)
    batches = iter(loader)
    first = next(batches)
    group(monkeypatch, 0, 2)
    assert numbers([first, *batches]) == list(range(COUNT))
    assert len(numbers(loader)) == 12


def test_a_rank_that_was_asked_for_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """rank=0, world_size=1 means that each process loads all."""
    loader = fork(Draws(COUNT), batch_size=4, rank=0, world_size=1)
    group(monkeypatch, 1, 2)
    assert numbers(loader) == list(range(COUNT))


def test_a_loader_rebuilt_with_its_own_order_is_the_same_loader() -> None:
    """Lightning does so for predictions, to watch which indices are asked for."""
    loader = fork(Augmented(10), batch_size=4, shuffle=True, seed=3)
    expected = list(fork(Augmented(10), batch_size=4, shuffle=True, seed=3))
    watched = BatchSampler(loader.sampler, 4, drop_last=False)
    rebuilt = type(loader)(loader.dataset, batch_sampler=watched)
    assert (rebuilt.batch_size, len(rebuilt)) == (4, 3)
    assert same(list(rebuilt), expected)
    assert rebuilt.state_dict() == loader.state_dict()


def test_a_loader_whose_sampler_was_replaced_refuses() -> None:
    """Lightning copies attributes as well, so the old order would go to every rank in silence."""
    loader = fork(Draws(COUNT), batch_size=4, sampler=SequentialSampler(range(COUNT)))
    rebuilt = injected(loader, 0)
    vars(rebuilt).update({k: v for k, v in vars(loader).items() if k not in vars(rebuilt)})
    with pytest.raises(OptionError, match="cannot be rebuilt with another sampler"):
        iter(rebuilt)


@pytest.mark.parametrize("epoch", [0, 2])
def test_batches_may_be_skipped_in_a_plain_loader(epoch: int) -> None:
    """Hugging Face's Trainer resumes so: our batch sampler knows the epoch, and gives the rest."""
    whole = fork(Draws(COUNT), batch_size=4, shuffle=True)
    whole.set_epoch(epoch)
    expected = [batch[0].tolist() for batch in whole]
    loader = fork(Draws(COUNT), batch_size=4, shuffle=True)
    shown: Any = loader.batch_sampler
    shown.set_epoch(epoch)
    rest = list(itertools.islice(shown, 2, None))
    assert [[int(i) for i in batch] for batch in expected[2:]] == rest


class Counted:
    """What Accelerate keeps of the loaders that are gone through."""

    _shared_state = {"some": "thing"}  # noqa: RUF012 - as there
    active: list[Any] = []  # noqa: RUF012

    def _add_dataloader(self, loader: Any) -> None:
        self.active.append(loader)

    def _remove_dataloader(self, loader: Any) -> None:
        self.active.remove(loader)


@pytest.fixture
def accelerate(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Counted]]:
    """An Accelerate that is in use."""
    module: Any = types.ModuleType("accelerate.state")
    module.GradientState = Counted
    monkeypatch.setitem(__import__("sys").modules, "accelerate.state", module)
    yield Counted
    Counted.active.clear()


def test_accelerate_is_told_of_the_last_batch(accelerate: type[Counted]) -> None:
    """Gradients are then exchanged, whatever number of steps was gathered for."""
    loader = fork(Draws(COUNT), batch_size=4)
    assert getattr(loader, "_is_accelerate_prepared", False)
    ends = []
    for _ in loader:
        assert accelerate.active == [loader]
        ends.append(loader.end_of_dataloader)
    assert ends == [False] * 5 + [True]
    assert accelerate.active == []


@pytest.mark.parametrize(("count", "remainder"), [(23, 7), (24, -1)])
def test_what_is_repeated_can_be_cut_from_what_was_gathered(count: int, remainder: int) -> None:
    """The last step of two ranks has so many samples; those of the beginning come after them."""
    ranks = [fork(Draws(count), batch_size=4, pad=True, rank=r, world_size=2) for r in range(2)]
    assert [loader.remainder for loader in ranks] == [remainder] * 2
    last = torch.cat([list(loader)[-1][0] for loader in ranks]).tolist()
    kept = last[: remainder if remainder > 0 else None]
    assert kept == [float(i) for i in range(16, count)]
