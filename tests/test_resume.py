"""A loader goes on where its state says, to the sample, on whatever machine."""

from __future__ import annotations

import io
import json
import pickle
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from streams import Augmented, Draws, fork, same, stream
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from sharedds.errors import OptionError, SchemaError, StateError
from sharedds.loader import build_loader
from sharedds.order import LoaderState

OPTIONS: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 5}


def flat(batches: list[Any]) -> list[tuple[float, ...]]:
    """The samples of some batches, one after the other."""
    batches = [[part.tolist() for part in batch] for batch in batches]
    return [sample for batch in batches for sample in zip(*batch, strict=True)]


# --- where it is ---------------------------------------------------------------------------------


def test_a_plain_loader_begins_again() -> None:
    """Torch's loader has no state: the generator of a run that was broken off knows no position."""
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(Draws(9), batch_size=3, shuffle=True, generator=generator)
    iterator = iter(loader)
    next(iterator)
    state = generator.get_state()
    rest = flat(list(iterator))
    other = torch.Generator()
    other.set_state(state)
    resumed = DataLoader(Draws(9), batch_size=3, shuffle=True, generator=other)
    assert flat(list(resumed))[-6:] != rest


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_can_be_resumed_at_every_step(workers: int) -> None:
    """Of three epochs, transforms included; batches made in advance do not count."""
    loader = fork(Augmented(10), **OPTIONS, num_workers=workers)
    states, batches = [loader.state_dict()], []
    for _ in range(3):
        for batch in loader:
            batches.append(batch)
            states.append(loader.state_dict())
    assert len(batches) == 12
    for step, state in enumerate(states):
        resumed = fork(Augmented(10), **OPTIONS)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        rest = [batch for _ in range(3 - step // 4) for batch in resumed]
        assert same(rest, batches[step:])


def test_a_run_goes_on_with_other_workers_ranks_and_batches() -> None:
    """A number of samples is all that counts: every part sees each sample of the epoch once."""
    dice = random.Random(4)
    expected = flat(stream(fork(Draws(240), batch_size=8, shuffle=True, seed=5))[0])
    for workers in (0, 2):
        state = None
        seen: list[tuple[float, ...]] = []
        for world_size in (2, 1, 3):
            options: dict[str, Any] = {
                "batch_size": dice.randrange(1, 9),
                "shuffle": True,
                "seed": 5,
                "world_size": world_size,
                "num_workers": workers if world_size == 1 else 0,
            }
            loaders = [fork(Draws(240), **options, rank=rank) for rank in range(world_size)]
            for loader in loaders:
                if state is not None:
                    loader.load_state_dict(state)
            iterators = [iter(loader) for loader in loaders]
            for _ in range(dice.randrange(1, 5)):
                seen += flat([next(iterator) for iterator in iterators])
            (state,) = {
                json.dumps(loader.state_dict()): loader.state_dict() for loader in loaders
            }.values()
        last = fork(Draws(240), batch_size=240, shuffle=True, seed=5)
        assert state is not None
        last.load_state_dict(state)
        seen += flat(list(last))
        assert seen == expected


def test_workers_that_stay_resume_where_a_loop_was_broken_off() -> None:
    """The state after a break is the place of the break, whatever was made in advance."""
    loader = fork(Draws(30), **OPTIONS, num_workers=2, persistent_workers=True, prefetch_factor=4)
    for step, _ in enumerate(loader):
        if step == 2:
            break
    state = loader.state_dict()
    assert (state["epoch"], state["consumed"]) == (0, 9)
    reference = stream(fork(Draws(30), **OPTIONS), 2)
    loader.load_state_dict(state)  # into the same loader, whose workers still run
    assert same(list(loader), reference[0][3:])
    assert same(list(loader), reference[1])


def test_the_state_after_the_last_batch_is_the_next_epoch() -> None:
    """At once, so that a checkpoint in the last step does not end in an empty epoch."""
    loader = fork(Draws(6), **OPTIONS)
    iterator = iter(loader)
    next(iterator)
    assert loader.state_dict()["epoch"] == 0
    next(iterator)
    state = loader.state_dict()
    assert (state["epoch"], state["consumed"]) == (1, 0)
    assert next(iterator, None) is None
    assert loader.state_dict() == state


def test_a_batch_that_failed_is_tried_again() -> None:
    """The state stands in front of it; whoever goes on in spite of the error gets past it."""

    class Bad(Draws):
        is_repaired = False

        def __getitem__(self, index: int) -> tuple[float, ...]:
            if index == 4 and not self.is_repaired:
                raise ValueError(index)
            return super().__getitem__(index)

    dataset = Bad(9)
    for workers in (0, 2):
        dataset.is_repaired = False
        loader = fork(dataset, batch_size=3, num_workers=workers)
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(RuntimeError, match="sample 4"):
            next(iterator)
        state = loader.state_dict()
        assert state["consumed"] == 3
        assert next(iterator)[0].tolist() == [6, 7, 8]
        assert loader.state_dict()["epoch"] == 1
        del iterator
        dataset.is_repaired = True
        loader.load_state_dict(state)
        assert [batch[0].tolist() for batch in loader] == [[3, 4, 5], [6, 7, 8]]


def test_a_resumed_run_counts_epochs_as_scripts_do() -> None:
    """set_epoch with the epoch of the state keeps the position in it; another one does not."""
    state = LoaderState(
        seed=5, epoch=3, consumed=6, samples=12, sampling={"kind": "shuffled", "count": 12}
    ).to_dict()
    reference = stream(fork(Draws(12), **OPTIONS), 5)
    resumed = fork(Draws(12), **OPTIONS)
    resumed.load_state_dict(state)
    for epoch in (3, 4):
        resumed.set_epoch(epoch)
        assert same(list(resumed), reference[epoch][2 if epoch == 3 else 0 :])
    resumed.load_state_dict(state)
    resumed.set_epoch(1)
    assert same(list(resumed), reference[1])


# --- what a state is -----------------------------------------------------------------------------


def test_a_state_is_a_few_numbers() -> None:
    """It survives JSON, pickle and torch.save, and comes back as it was."""
    loader = fork(Draws(10**9), batch_size=64, shuffle=True, seed=2**70)
    next(iter(loader))
    state = loader.state_dict()
    assert len(json.dumps(state)) < 300
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    copies = [json.loads(json.dumps(state)), pickle.loads(pickle.dumps(state)), torch.load(file)]
    for copy in copies:
        resumed = fork(Draws(10**9), batch_size=64, shuffle=True, seed=2**70)
        resumed.load_state_dict(copy)
        assert resumed.state_dict() == state


def test_a_state_that_comes_too_late_is_refused() -> None:
    """A loop under way would go on as before, and the resume would be lost in silence."""
    loader = fork(Draws(12), **OPTIONS)
    state = loader.state_dict()
    iterator = iter(loader)  # not even one batch was taken
    with pytest.raises(StateError, match="comes too late"):
        loader.load_state_dict(state)
    next(iterator)
    with pytest.raises(StateError, match="comes too late"):
        loader.load_state_dict(state)
    list(iterator)
    loader.load_state_dict(state)
    del iterator


@pytest.mark.parametrize(
    ("dataset", "options", "match"),
    [
        (Draws(13), {}, "12 samples, this one has 13"),
        (Draws(12), {"seed": 6}, "pass seed=5"),
        (Draws(12), {"shuffle": False}, "sampling"),
        (Draws(12), {"shuffle": False, "sampler": SequentialSampler(range(12))}, "sampling"),
    ],
)
def test_a_state_of_another_run_is_refused(
    dataset: Any, options: dict[str, Any], match: str
) -> None:
    """Another dataset, seed or order: the same position would be another sample."""
    state = fork(Draws(12), **OPTIONS).state_dict()
    with pytest.raises(StateError, match=match):
        fork(dataset, **OPTIONS | options).load_state_dict(state)


def test_a_state_of_other_data_is_refused() -> None:
    """Datasets of one length are told apart by their fingerprint, where they have one."""

    class Marked(Draws):
        def __init__(self, mark: str) -> None:
            super().__init__(12)
            self.fingerprint = mark

    state = fork(Marked("aa"), **OPTIONS).state_dict()
    with pytest.raises(StateError, match=r"aa.*bb"):
        fork(Marked("bb"), **OPTIONS).load_state_dict(state)
    fork(Draws(12), **OPTIONS).load_state_dict(state)  # says nothing of its data
    wraps: list[Any] = [lambda x: Subset(x, range(6)), lambda x: ConcatDataset([x] * 2)]
    for wrap in wraps:
        state = fork(wrap(Marked("aa")), **OPTIONS).state_dict()
        fork(wrap(Marked("aa")), **OPTIONS).load_state_dict(state)
        with pytest.raises(StateError, match=r"aa.*bb"):
            fork(wrap(Marked("bb")), **OPTIONS).load_state_dict(state)
    with pytest.raises(StateError, match="fingerprint"):
        state = fork(Subset(Marked("aa"), range(6)), **OPTIONS).state_dict()
        fork(Subset(Marked("aa"), range(6, 12)), **OPTIONS).load_state_dict(state)


@pytest.mark.parametrize("state", [None, {}, {"version": 99}, {"version": 1, "epoch": "x"}])
def test_a_damaged_state_is_refused(state: Any) -> None:
    """And the loader stays where it was."""
    loader = fork(Draws(12), **OPTIONS)
    before = loader.state_dict()
    with pytest.raises(StateError):
        loader.load_state_dict(state)
    assert loader.state_dict() == before


@pytest.mark.parametrize("epoch", [-1, 1.5, True, None])
def test_epochs_are_whole_numbers(epoch: Any) -> None:
    """Anything else is refused by name."""
    with pytest.raises(OptionError, match="epoch="):
        fork(Draws(3)).set_epoch(epoch)


# --- samplers of torch ---------------------------------------------------------------------------


class Lazy(Sampler[int]):
    """Draws each index when it is asked for, from Python's global generator."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return (random.randrange(self.count) for _ in range(self.count))


def samplers() -> list[Any]:
    """One of each kind of randomness."""
    return [
        RandomSampler(range(20)),
        RandomSampler(range(20), generator=torch.Generator().manual_seed(3)),
        WeightedRandomSampler([1.0, 2.0] * 10, 20),
        Lazy(20),
        DistributedSampler(range(20), num_replicas=2, rank=1),  # type: ignore[arg-type]
    ]


@pytest.mark.parametrize("number", range(5))
def test_a_sampler_is_resumed_by_letting_it_run_again(number: int) -> None:
    """Its random numbers follow seed and epoch, so its order does; those of training stay."""

    def loader(seed: int = 5, workers: int = 0) -> Any:
        sampler = samplers()[number]
        return fork(Draws(20), batch_size=3, sampler=sampler, seed=seed, num_workers=workers)

    torch.manual_seed(8)
    random.seed(8)
    first = loader()
    states: list[Any] = []
    epochs: list[list[Any]] = []
    for _ in range(2):
        epochs.append([])
        for batch in first:
            epochs[-1].append(batch)
            states.append(first.state_dict())
    assert not same(epochs[0], epochs[1])
    assert same(stream(loader(workers=2), 2), epochs)
    assert (random.random(), torch.rand(())) == (random.Random(8).random(), after(8))
    resumed = loader(workers=2)
    resumed.load_state_dict(states[1])
    assert same(stream(resumed, 2), [epochs[0][2:], epochs[1]])
    again = loader()
    again.set_epoch(1)
    assert same(list(again), epochs[1])


def after(seed: int) -> torch.Tensor:
    """The first number of torch with this seed."""
    return torch.rand((), generator=torch.Generator().manual_seed(seed))


def test_a_sampler_without_a_length_works() -> None:
    """The loader has no length then; the end of the epoch is seen when it comes."""
    loader = fork(Draws(20), batch_size=3, sampler=(i for i in range(7)))
    iterator = iter(loader)
    assert [next(iterator)[0].tolist() for _ in range(3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert loader.state_dict()["epoch"] == 1
    with pytest.raises(TypeError, match="has no length"):
        len(loader)


def test_a_sample_drawn_twice_is_drawn_anew() -> None:
    """A sampler that repeats an index gets two different random versions of it."""
    ((_, *draws),) = fork(Draws(9), batch_size=2, sampler=[4, 4])
    assert all(one != two for one, two in draws)


# --- anything in any order -----------------------------------------------------------------------


@pytest.mark.parametrize("case", range(12))
def test_any_sequence_of_breaks_and_resumes_follows_the_formula(case: int) -> None:
    """Batches, breaks, new epochs and loaders built anew, at random: the samples never differ."""
    dice = random.Random(case)
    count = dice.randrange(1, 40)
    epochs = [flat(epoch) for epoch in stream(fork(Draws(count), **OPTIONS), 9)]

    def build() -> Any:
        return fork(Draws(count), **OPTIONS | {"batch_size": dice.randrange(1, 9)})

    loader, epoch, position = build(), 0, 0
    for _ in range(12):
        for batch in loader:
            samples = flat([batch])
            assert samples == epochs[epoch][position : position + len(samples)]
            position += len(samples)
            if dice.random() < 0.2:
                break
        if position == count:
            epoch, position = epoch + 1, 0
        state = loader.state_dict()
        assert (state["epoch"], state["consumed"]) == (epoch, position)
        what = dice.choice(["build", "load", "next", "choose"])
        if what == "build":
            loader = build()
        if what in ("build", "load"):
            loader.load_state_dict(state)
        elif position and what == "next":  # the rest of an epoch that was broken off is left out
            epoch, position = epoch + 1, 0
        elif what == "choose":
            epoch, position = dice.randrange(6), 0
            begins = loader._stream.next_position
            loader.set_epoch(epoch)
            assert begins.epoch != epoch or begins.consumed == 0
        if epoch > 7:
            break


@pytest.mark.parametrize("sampler", [(i for i in range(4)), map(int, "0123"), iter([0, 1])])
def test_a_sampler_that_gives_out_after_one_epoch_is_refused_then(sampler: Any) -> None:
    """All later epochs would be empty, without a word."""
    loader = fork(Draws(4), sampler=sampler)
    assert len(list(loader)) > 1
    with pytest.raises(OptionError, match="only once"):
        list(loader)


@pytest.mark.parametrize("wrong", [True, torch.tensor(True), 1 << 63])
def test_what_a_sampler_yields_is_checked(wrong: Any) -> None:
    """A mask would be read as samples 1 and 0."""
    with pytest.raises(SchemaError, match="whole numbers"):
        list(fork(Draws(4), sampler=[0, wrong]))


def test_a_start_that_fails_does_not_lose_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker could be started: the next loop goes on where this one would have begun."""
    loader = build_loader(Draws(12), batch_size=4, shuffle=True, num_workers=0)
    whole = [batch[0].tolist() for batch in loader]
    loader = build_loader(Draws(12), batch_size=4, shuffle=True, num_workers=0)
    next(iter(loader))
    state = loader.state_dict()
    loader = build_loader(Draws(12), batch_size=4, shuffle=True, num_workers=0)
    loader.load_state_dict(state)

    def fails(*_: object) -> None:
        raise OSError("no process")

    with monkeypatch.context() as patch:
        patch.setattr(type(loader), "_get_iterator", fails)
        with pytest.raises(OSError, match="no process"):
            iter(loader)
    assert loader.state_dict() == state
    assert [batch[0].tolist() for batch in loader] == whole[1:]
