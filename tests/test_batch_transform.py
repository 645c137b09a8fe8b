"""A function of the user that changes whole batches, where they are made."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest
import torch
from streams import Augmented, fork, same, stream
from whole_batches import Single, Whole, is_whole

from sharedds.errors import OptionError, WorkerError
from sharedds.loader import build_loader

OPTIONS: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3}
WAYS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "engine": "thread"},
    {"num_workers": 0, "threads_per_worker": 2},
]


def mixed(batch: Any) -> Any:
    """Mixes each sample with another one, as mixup does, with draws of all three generators."""
    images, numbers = batch
    other = torch.randperm(len(images))
    share = random.random() * np.random.random()  # noqa: NPY002 - the subject
    return images * share + images[other] * (1 - share), torch.stack([numbers, numbers[other]])


@pytest.mark.parametrize("mode", ["sample", "batch"])
@pytest.mark.parametrize("dataset", [Augmented, Single, Whole])
@pytest.mark.parametrize("way", WAYS[1:], ids=str)
def test_it_draws_the_same_wherever_it_runs(way: dict[str, Any], dataset: Any, mode: str) -> None:
    """Another mix for each batch, in each epoch; the same for any workers and threads."""
    if mode == "batch" and dataset is not Whole and "threads_per_worker" in way:
        pytest.skip("samples that are seeded with their batch are made by one thread")
    options = {**OPTIONS, "batch_transform": mixed, "seed_globals": mode}
    expected = stream(fork(dataset(20), **options), 2)
    assert same(stream(fork(dataset(20), **options, **way), 2), expected)
    orders = [batch[1].argsort().tolist() for epoch in expected for batch in epoch]
    assert len({str(order) for order in orders}) > 1


def test_it_gets_what_is_handed_out_without_it() -> None:
    """The collated batch, or what a collate_fn of the user has made, or a whole batch."""
    (plain,) = fork(Single(4), batch_size=4)
    (batch,) = fork(Single(4), batch_size=4, batch_transform=lambda batch: {"got": batch})
    assert same(batch["got"], plain)
    (batch,) = fork(Whole(4), batch_size=4, batch_transform=lambda b: (is_whole(b), b))
    assert batch[0]
    (batch,) = fork(Whole(4), batch_size=4, collate_fn=len, batch_transform=lambda n: n + 1)
    assert batch == 5


def test_its_draws_depend_on_the_batch_and_not_on_what_samples_drew() -> None:
    """By the key of the first sample alone; another batch size gives other numbers."""

    def draw(batch: Any) -> list[float]:
        return [random.random(), float(torch.rand(())), float(np.random.random())]  # noqa: NPY002

    augmented = list(fork(Augmented(20), **OPTIONS, batch_transform=draw))
    assert augmented == list(fork(Whole(20), **OPTIONS, batch_transform=draw))
    drawn = [number for numbers in augmented for number in numbers]
    assert len(set(drawn)) == len(drawn)
    larger = list(fork(Whole(20), **(OPTIONS | {"batch_size": 10}), batch_transform=draw))
    assert larger[0] == augmented[0]
    assert larger[1] == augmented[2]


def test_a_resume_repeats_its_draws() -> None:
    """With the same batch size."""
    loader = fork(Augmented(20), **OPTIONS, batch_transform=mixed)
    expected = list(loader)
    resumed = fork(Augmented(20), **OPTIONS, batch_transform=mixed, num_workers=1)
    batches = iter(resumed)
    next(batches)
    state = resumed.state_dict()
    del batches
    resumed.load_state_dict(state)
    assert same(list(resumed), expected[1:])


class Mixer:
    """Holds a generator of its own."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.lock: Any = None

    def __call__(self, batch: Any) -> Any:
        """Add a number to the batch."""
        return [*batch, self.rng.random()]


@pytest.mark.parametrize("mode", ["sample", "batch"])
@pytest.mark.parametrize("dataset", [Augmented, Whole])
@pytest.mark.parametrize("way", WAYS[1:3], ids=str)
def test_a_generator_that_it_holds_is_seeded(way: dict[str, Any], dataset: Any, mode: str) -> None:
    """For each batch; each thread has a copy."""
    options = {**OPTIONS, "batch_transform": Mixer(), "seed_globals": mode}
    expected = stream(fork(dataset(20), **options), 2)
    assert same(stream(fork(dataset(20), **options, **way), 2), expected)
    assert len({batch[-1] for epoch in expected for batch in epoch}) == 8


def test_one_that_cannot_be_copied_for_each_thread_is_refused() -> None:
    """The place of the generator is named."""
    mixer = Mixer()
    mixer.lock = threading.Lock()
    with pytest.raises(OptionError, match=r"batch_transform\.function\.rng"):
        iter(fork(Whole(8), batch_transform=mixer, num_workers=2, engine="thread"))


def test_one_that_cannot_be_sent_is_named() -> None:
    """Not the dataset."""
    mixer = Mixer()
    mixer.lock = threading.Lock()
    loader = build_loader(Single(8), batch_transform=mixer, num_workers=1, start_method="spawn")
    with pytest.raises(OptionError, match=r"^batch_transform\.lock cannot be sent"):
        iter(loader)


def broken(batch: Any) -> Any:
    """Fails at one batch."""
    if 7 in batch[1]:
        raise LookupError("no seven")
    return batch


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_an_error_names_the_samples_of_the_batch(way: dict[str, Any]) -> None:
    """It is no error of one sample: nothing is left out for it."""
    with pytest.raises(LookupError) as caught:
        list(fork(Whole(20), batch_size=5, batch_transform=broken, on_error="skip", **way))
    said = str(caught.value) + "".join(getattr(caught.value, "__notes__", ()))
    assert "no seven" in said
    assert "batch_transform changed the batch of samples [5, 6, 7, 8, 9] of epoch 0" in said


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_is_never_cut_short_in_silence(workers: int) -> None:
    """StopIteration, which torch takes for the end of the epoch, is an error."""
    loader = fork(Whole(9), batch_transform=lambda batch: next(iter([])), num_workers=workers)
    with pytest.raises(WorkerError, match=r"batch_transform raised StopIteration at .*\[0\]"):
        list(loader)


def test_what_it_makes_arrives_as_it_is() -> None:
    """Also where it is much larger than what was collated."""

    def enlarged(batch: Any) -> Any:
        return {"images": batch[0].float().repeat(64, 1, 1, 1), "n": batch[1]}

    (batch,) = fork(Whole(4), batch_size=4, batch_transform=enlarged, num_workers=1)
    (plain,) = fork(Whole(4), batch_size=4)
    assert torch.equal(batch["images"], enlarged(plain)["images"])
    assert batch["n"].tolist() == [0, 1, 2, 3]


def test_without_batches_there_is_nothing_to_change() -> None:
    """It is refused."""
    with pytest.raises(OptionError, match="batch_size=None"):
        build_loader(Single(), batch_size=None, batch_transform=mixed)
