"""Batches that the dataset makes as a whole: the same stream, and failures as before."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from packing import folder
from streams import as_list, fork, same, stream
from torch.utils.data import Dataset, Subset, default_collate
from whole_batches import Drawing, Single, Whole, is_whole

from sharedds.datasets import ImageDataset
from sharedds.datasets.offers import batch_maker
from sharedds.errors import SampleError
from sharedds.ingest import pack
from sharedds.loader.spare import SpareMemory
from sharedds.order import WeightedSampling
from sharedds.testing import assert_same_stream
from sharedds.views import RandomResizedCrop

WAYS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 1},
    {"num_workers": 2},
    {"num_workers": 4},
    {"num_workers": 2, "engine": "thread"},
    {"num_workers": 0, "threads_per_worker": 3},
    {"num_workers": 2, "threads_per_worker": 2},
]
OPTIONS: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3}


def quietly(loader: Any) -> list[Any]:
    """All batches of an epoch, whatever it warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(loader)


# --- the stream ----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_stream_is_that_of_single_samples(way: dict[str, Any]) -> None:
    """Bit for bit, in each epoch, however it is made; and whole batches are what is made."""
    expected = stream(fork(Single(), **OPTIONS), 2)
    assert not same(expected[0], expected[1])
    found = stream(fork(Whole(), **OPTIONS, **way), 2)
    assert same(found, expected)
    assert all(is_whole(batch) for epoch in found for batch in epoch)
    assert not any(is_whole(batch) for batch in expected[0])


@pytest.mark.parametrize("mode", ["sample", "batch", "off"])
def test_it_does_not_depend_on_how_global_generators_are_seeded(mode: str) -> None:
    """Nothing draws from them."""
    expected = stream(fork(Single(), **OPTIONS))
    assert same(stream(fork(Whole(), **OPTIONS, seed_globals=mode, num_workers=2)), expected)


@pytest.mark.parametrize("way", [WAYS[0], WAYS[2], WAYS[4], WAYS[6]], ids=str)
def test_a_resume_goes_on_with_the_same_samples(way: dict[str, Any]) -> None:
    """In the middle of an epoch, with another batch size, made as whole batches or not."""
    expected = torch.cat([images for images, _ in fork(Single(), **OPTIONS)])
    begun = fork(Whole(), **OPTIONS, **way)
    batches = iter(begun)
    first = [next(batches)[0] for _ in range(2)]
    state = begun.state_dict()
    del batches
    for dataset in (Whole(), Single()):
        resumed = fork(dataset, **(OPTIONS | {"batch_size": 3}))
        resumed.load_state_dict(state)
        assert torch.equal(torch.cat([*first, *(images for images, _ in resumed)]), expected)


def test_a_weighted_sampling_gives_each_draw_its_own_key() -> None:
    """A sample that is drawn twice in an epoch is another one each time."""
    options = {"batch_size": 4, "sampler": WeightedSampling([1.0, 0.0, 0.0], 16)}
    found = stream(fork(Whole(3), **options, num_workers=2))
    assert same(found, stream(fork(Single(3), **options)))
    assert len({image.numpy().tobytes() for images, _ in found[0] for image in images}) == 16


def test_the_check_for_users_takes_it() -> None:
    """Samples as they are, and collated."""
    assert_same_stream(Whole(), workers=(0, 2), start_method="fork", collate_fn=default_collate)


def one_by_one(samples: list[Any]) -> Any:
    """Collate as torch does, but as a function of the user."""
    return default_collate(samples)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A store of ten pictures, seen through a random view."""
    root = tmp_path_factory.mktemp("whole")
    images = folder(root / "images")
    pack(images, root / "images.lmdb", progress=False)
    return ImageDataset(root / "images.lmdb", view=RandomResizedCrop(12, flip=0.5))


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_pictures_are_those_of_single_samples(way: dict[str, Any], pictures: Any) -> None:
    """Of a store, with random crops and flips: each a function of (seed, epoch, index)."""
    options = {"batch_size": 4, "shuffle": True}
    expected = stream(fork(pictures, **options, collate_fn=one_by_one), 2)
    assert not same(expected[0], expected[1])
    assert same(stream(fork(pictures, **options, **way), 2), expected)


# --- when it is used -----------------------------------------------------------------------------


class Augmented(Whole):
    """Changes what the other class makes."""

    def __getitem__(self, index: int) -> Any:
        image, number = super().__getitem__(index)
        return 255 - image, number


class Around(Dataset[Any]):
    """Wraps a dataset, and passes on what it does not know."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __getitem__(self, index: int) -> Any:
        image, number = self.inner[index]
        return 255 - image, number


class Changed(Subset[Any]):
    """A subset that changes samples."""

    def __getitem__(self, idx: Any) -> Any:
        image, number = self.dataset[self.indices[idx]]
        return 255 - image, number

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Told(Whole):
    """Says that code of the user runs."""

    makes_batches = False


def test_code_of_the_user_is_never_gone_past() -> None:
    """A subclass or wrapper that changes samples makes no whole batches."""
    assert batch_maker(Whole()) is not None
    assert batch_maker(Subset(Subset(Whole(), [3, 5]), [1])) is not None
    others = [Single(), Augmented(), Around(Whole()), Changed(Whole(), [0, 1]), Told(), range(3)]
    assert [batch_maker(other) for other in others] == [None] * len(others)
    plain = torch.cat([images for images, _ in fork(Single(), batch_size=5)])
    changed = torch.cat([images for images, _ in fork(Augmented(), batch_size=5)])
    assert torch.equal(changed, 255 - plain)


def test_a_subset_of_torch_is_looked_through() -> None:
    """The numbers are those of the subset, and so are the keys; whole batches of the inner one."""

    class Inner(Whole):
        def load_batch(self, indices: Sequence[int], empty: Any) -> Any:
            return [torch.tensor(indices), torch.zeros(3)]

    (batch,) = fork(Subset(Inner(), [7, 3, 11]), batch_size=3)
    assert batch[0].tolist() == [7, 3, 11]


def test_a_collate_fn_of_the_user_gets_samples() -> None:
    """As before; so does a loop without batches. Torch's own, passed by name, changes nothing."""
    (samples,) = fork(Whole(4), batch_size=4, collate_fn=as_list)
    assert [number for _, number in samples] == [0, 1, 2, 3]
    assert [number for _, number in fork(Whole(4), batch_size=None)] == [0, 1, 2, 3]
    (batch,) = fork(Whole(4), batch_size=4, collate_fn=default_collate)
    assert is_whole(batch)


def test_training_draws_as_if_nothing_were_loaded() -> None:
    """Without workers, also where samples are made one by one after all, and draw."""

    def draws(loader: Any) -> list[tuple[float, float]]:
        random.seed(1)
        torch.manual_seed(1)
        return [(random.random(), float(torch.rand(()))) for _ in loader]

    before = random.getstate(), torch.get_rng_state()
    try:
        assert draws(fork(Whole(), batch_size=5)) == draws(range(5))
        bad = fork(Drawing(bad=[3, 8]), batch_size=5, on_error="skip", error_budget=100)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert draws(bad) == draws(range(5))
    finally:
        random.setstate(before[0])
        torch.set_rng_state(before[1])


# --- failures ------------------------------------------------------------------------------------

BAD = [3, 8, 9]


def has_good_samples_only() -> list[bool]:
    """Of each batch, whether all its samples can be loaded."""
    return [not {*BAD} & {*numbers.tolist()} for _, numbers in fork(Single(), **OPTIONS)]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_bad_sample_is_found_and_named(way: dict[str, Any]) -> None:
    """By reading the samples of its batch one by one."""
    with pytest.raises(SampleError, match="picture 8 is damaged") as caught:
        list(fork(Whole(bad=[8]), batch_size=5, **way))
    assert caught.value.sample == 8


@pytest.mark.parametrize("policy", ["skip", "replace"])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_bad_samples_are_left_out_or_replaced_as_before(way: dict[str, Any], policy: str) -> None:
    """The stream is that of single samples; batches without a bad one are whole."""
    options = {**OPTIONS, "on_error": policy, "error_budget": 100}
    expected = quietly(fork(Single(bad=BAD), **options))
    found = quietly(fork(Whole(bad=BAD), **options, **way))
    assert same(found, expected)
    assert list(map(is_whole, found)) == has_good_samples_only()


@pytest.mark.parametrize("policy", ["skip", "replace"])
@pytest.mark.parametrize("way", WAYS[:5], ids=str)
def test_what_draws_after_a_failure_is_seeded(way: dict[str, Any], policy: str) -> None:
    """Samples made one by one after all draw what they would have drawn."""
    options = {**OPTIONS, "on_error": policy, "error_budget": 100}
    one_by_one = Drawing(bad=BAD)
    one_by_one.makes_batches = False
    expected = quietly(fork(one_by_one, **options))
    found = quietly(fork(Drawing(bad=BAD), **options, **way))
    assert list(map(is_whole, found)) == has_good_samples_only()
    pairs = [pair for pair in zip(found, expected, strict=True) if not is_whole(pair[0])]
    assert all(same(*pair) for pair in pairs)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_fault_of_load_batch_itself_is_raised(workers: int) -> None:
    """Each sample alone is good: nothing hides that it is at fault."""

    class Faulty(Whole):
        def load_batch(self, indices: Sequence[int], empty: Any) -> Any:
            raise ValueError("no batch can be made")

    with pytest.raises(ValueError, match="no batch can be made") as caught:
        list(fork(Faulty(), batch_size=5, num_workers=workers))
    said = str(caught.value) + "".join(getattr(caught.value, "__notes__", ()))
    assert "Faulty made a whole batch" in said


class Faulty(Whole):
    """Whole batches fail now and then, single samples never."""

    def load_batch(self, indices: Sequence[int], empty: Any) -> Any:
        """Fail at one sample."""
        if 5 in indices:
            raise OSError("the disk was away")
        return super().load_batch(indices, empty)


@pytest.mark.parametrize("way", WAYS[:2])
def test_a_fault_of_load_batch_names_the_samples(way: dict[str, Any]) -> None:
    """Which they were is known nowhere else without workers."""
    loader = fork(Faulty(), batch_size=4, **way)
    with pytest.raises(OSError, match="away") as caught:
        list(loader)
    said = str(caught.value) + "".join(getattr(caught.value, "__notes__", ()))
    assert "[4, 5, 6, 7] of epoch 0" in said


def test_a_loop_that_forgives_goes_on_with_the_single_samples() -> None:
    """All of them are good, and a warning tells."""
    loader = fork(Faulty(), batch_size=4, num_workers=0, on_error="skip")
    with pytest.warns(UserWarning, match="the disk was away.*each of them can be loaded"):
        found = [number for _, numbers in loader for number in numbers.tolist()]
    assert found == list(range(24))
    assert not loader.failures


# --- memory --------------------------------------------------------------------------------------


def test_memory_is_used_again_once_nobody_sees_the_batch() -> None:
    """Not while any view of it is held, however it was made."""
    memory = SpareMemory(lambda: 4)
    shape = (4, 3, 300, 400)
    batch = memory.empty(shape, torch.uint8, channels_last=True)
    place = batch.data_ptr()
    assert batch.is_contiguous(memory_format=torch.channels_last)
    views: list[Any] = [batch[1], batch.numpy(), batch.flatten()[5:9], batch.untyped_storage()]
    views.append(memoryview(views[1]))
    del batch
    while views:
        assert len(memory) == 0
        views.pop()
    assert len(memory) == 1
    assert memory.empty(shape, torch.uint8).data_ptr() == place


def test_no_more_memory_is_kept_than_was_said() -> None:
    """What is in use counts; where less is allowed meanwhile, more of it goes."""
    most = 3
    memory = SpareMemory(lambda: most)
    kept = [memory.empty((4 << 20,), torch.uint8) for _ in range(5)]
    del kept[4], kept[3]
    assert len(memory) == 0
    kept.pop()
    assert len(memory) == 1
    most = 1
    kept.pop()
    assert len(memory) == 0
    kept.clear()
    assert len(memory) == 1


def test_memory_serves_other_sizes() -> None:
    """A shorter batch takes it; much smaller ones and larger ones do not."""
    memory = SpareMemory(lambda: 2)
    kept = [memory.empty((4 << 20,), torch.uint8) for _ in range(2)]
    kept.clear()
    left = [2]
    for count, dtype in ((1 << 20, torch.uint8), (2 << 20, torch.float32), (3 << 20, torch.uint8)):
        kept.append(memory.empty((count,), dtype))
        left.append(len(memory))
    assert left == [2, 2, 2, 1]
    kept.append(memory.empty((1 << 20,), torch.float32))
    assert len(memory) == 0


@pytest.mark.parametrize("way", [WAYS[0], WAYS[4]], ids=str)
def test_batches_that_are_kept_do_not_change(way: dict[str, Any]) -> None:
    """All of an epoch are different memory; the next epoch may have that of the first again."""

    class Large(Whole):
        def load_batch(self, indices: Sequence[int], empty: Any) -> Any:
            numbers = empty((len(indices), 1 << 19), torch.int64)
            for row, index in zip(numbers, indices, strict=True):
                row.fill_(index)
            return numbers

    batches = list(fork(Large(12), batch_size=2, **way))
    assert [batch[:, -1].tolist() for batch in batches] == [[i, i + 1] for i in range(0, 12, 2)]


def test_the_smallest_memory_that_fits_is_taken() -> None:
    """Images leave the labels theirs, which is twice as large; no batch takes new memory."""
    memory = SpareMemory(lambda: 2)
    sizes = (4 << 20, 2 << 20)
    for _ in range(3):
        kept = [memory.empty((size,), torch.uint8) for size in sizes]
        places = sorted(each.data_ptr() for each in kept)
        del kept
        kept = [memory.empty((size,), torch.uint8) for size in reversed(sizes)]
        assert sorted(each.data_ptr() for each in kept) == places
        del kept


class Large(Whole):
    """Samples of a megabyte."""

    def load_batch(self, indices: Sequence[int], empty: Any) -> Any:
        """A batch whose values do not matter."""
        return empty((len(indices), 1 << 20), torch.uint8)


def test_the_next_pass_uses_the_memory_of_the_last_one() -> None:
    """Without workers: in short epochs all memory would else be new."""
    loader = fork(Large(), batch_size=12, num_workers=0)
    passes = [{batch.data_ptr() for batch in loader} for _ in range(3)]
    assert passes[1] <= passes[0]
    assert passes[2] <= passes[0]
