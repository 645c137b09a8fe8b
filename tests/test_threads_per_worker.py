"""Several threads that make one batch: its samples, their errors, and how the threads end."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
import threading
import time
import weakref
from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from processes import python
from streams import Augmented, Draws, fork, same, stream
from thread_loading import Samples, no_thread_left, running, wait_until
from whole_batches import Whole

from sharedds.errors import OptionError, SampleError
from sharedds.loader import LoaderPlan, build_loader
from sharedds.loader.crew import Crew
from sharedds.loader.pieces import WholeMaker, ranges
from sharedds.order import SampleKey, current_key, current_keys

__all__ = ["no_thread_left"]  # used by every test here

OPTIONS: dict[str, Any] = {"batch_size": 7, "shuffle": True, "seed": 3}


def load(make: Callable[[int], Any], count: int = 16, **asked: Any) -> Any:
    """A loader without workers, whose batches are made by two threads."""
    options: dict[str, Any] = {"num_workers": 0, "threads_per_worker": 2, "batch_size": 4, **asked}
    return build_loader(Samples(count, make), **options)


# --- the stream ----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("threads", [2, 3, 16])
def test_samples_are_those_of_one_thread(workers: int, threads: int) -> None:
    """Draws from the three global generators included, also where threads outnumber samples."""
    expected = stream(fork(Augmented(20), **OPTIONS), 2)
    options = {**OPTIONS, "num_workers": workers, "threads_per_worker": threads}
    assert same(stream(fork(Augmented(20), **options), 2), expected)


def test_several_threads_make_one_batch() -> None:
    """At the same time: each waits until the other has come."""
    both = threading.Barrier(2)

    def make(index: int) -> int:
        if index % 4 in (0, 2):
            both.wait(5)
        return index

    assert [batch.tolist() for batch in load(make, 8)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_each_sample_has_its_own_key_in_hand() -> None:
    """In whichever thread it is made."""

    def make(index: int) -> bool:
        key = current_key()
        time.sleep(0.001)
        return key is not None and key.index == index

    assert all(bool(flag) for batch in load(make) for flag in batch)


class Holder(Samples):
    """Holds a generator, as many datasets do."""

    def __init__(self, lock: Any = None) -> None:
        super().__init__(16, self.draw)
        self.rng = np.random.default_rng(0)
        self.lock = lock
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        """Note the epoch."""
        self.epoch = epoch

    def draw(self, index: int) -> Any:
        """Two draws, with a turn for others in between."""
        first = self.rng.random()
        time.sleep(0.001)
        return torch.tensor([first, self.rng.random(), self.epoch], dtype=torch.float64)


def test_each_thread_has_the_generators_of_a_dataset_for_itself() -> None:
    """Two threads reseeding one generator would mix their streams; copies learn the epoch."""
    expected = stream(fork(Holder(), batch_size=8), 2)
    assert same(stream(fork(Holder(), batch_size=8, threads_per_worker=3), 2), expected)
    with pytest.raises(OptionError, match=r"dataset\.rng.*cannot pickle.*threads_per_worker=1"):
        list(fork(Holder(threading.Lock()), batch_size=8, threads_per_worker=3))


def test_training_draws_as_if_nothing_were_loaded() -> None:
    """Without workers, in the process that trains."""

    def draws(loader: Any) -> list[tuple[float, float]]:
        random.seed(1)
        torch.manual_seed(1)
        return [(random.random(), float(torch.rand(()))) for _ in loader]

    before = random.getstate(), torch.get_rng_state()
    try:
        assert draws(fork(Draws(16), batch_size=4, threads_per_worker=2)) == draws(range(4))
    finally:
        random.setstate(before[0])
        torch.set_rng_state(before[1])


def test_a_draw_that_goes_past_is_not_silent() -> None:
    """A function kept in an object draws from the real generator: a warning says so."""
    stored = random.random
    with pytest.warns(RuntimeWarning, match=r"generator of random moved.*threads_per_worker=1"):
        next(iter(load(lambda _: stored())))


# --- failures ------------------------------------------------------------------------------------


def spotted(index: int) -> Any:
    """Some samples are damaged; the others draw."""
    if index % 5 == 3:
        raise LookupError(f"sample {index} is damaged")
    return torch.tensor([index, random.random()])


@pytest.mark.parametrize("workers", [0, 2])
def test_the_first_bad_sample_of_a_batch_is_named(workers: int) -> None:
    """Whichever thread finds another one sooner."""

    def make(index: int) -> int:
        if index in (1, 6):
            time.sleep(0.05 if index == 1 else 0)
            raise LookupError(index)
        return index

    options = {"batch_size": 8, "num_workers": workers, "threads_per_worker": 2}
    with pytest.raises(SampleError, match="LookupError") as caught:
        list(fork(Samples(16, make), **options))
    assert caught.value.sample == 1


@pytest.mark.parametrize("policy", ["skip", "replace"])
@pytest.mark.filterwarnings("ignore:.*could not be loaded:UserWarning")
@pytest.mark.filterwarnings("ignore:.*a summary follows:UserWarning")
def test_bad_samples_are_treated_as_by_one_thread(policy: str) -> None:
    """Left out or replaced, also from a batch of a sampler, which is a part for each thread."""
    for more in ({}, {"sampler": [5, 1, 8, 3, 2, 13, 0, 7]}):
        options = {"batch_size": 8, "on_error": policy, "error_budget": 100, **more}
        expected = stream(fork(Samples(16, spotted), **options))
        found = stream(fork(Samples(16, spotted), **options, threads_per_worker=3))
        assert same(found, expected)


# --- whole batches -------------------------------------------------------------------------------


def zeros(shape: tuple[int, ...], dtype: torch.dtype, *, channels_last: bool = False) -> Any:
    """Memory that is easy to tell."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty(shape, dtype=dtype, memory_format=layout).zero_()


KEYS = [SampleKey(0, 0, index) for index in range(10)]
Pair = namedtuple("Pair", ["image", "name"])


def pictures(indices: Sequence[int], empty: Any) -> torch.Tensor:
    """One picture for each number, filled with it."""
    images: torch.Tensor = empty((len(indices), 3, 2, 2), torch.uint8, channels_last=True)
    for image, index in zip(images, indices, strict=True):
        image.fill_(index)
    return images


def as_dict(indices: Sequence[int], empty: Any) -> Any:
    """Pictures and numbers by name, scores from memory that is not for samples."""
    scores = empty((1,), torch.float32)
    return {"image": pictures(indices, empty), "n": torch.tensor(indices), "s": scores.fill_(1)}


def as_named(indices: Sequence[int], empty: Any) -> Any:
    """A named tuple with texts."""
    return Pair(pictures(indices, empty), [f"picture {index}" for index in indices])


def two_tensors(indices: Sequence[int], empty: Any) -> Any:
    """Two of one shape, and a view of the first."""
    first, second = pictures(indices, empty), pictures(indices, empty)
    second += 100
    return [second, first, first[:, :1]]


@pytest.mark.parametrize("make", [pictures, as_named, two_tensors])
def test_pieces_make_the_whole(make: Callable[..., Any]) -> None:
    """Tensors, nested as torch collates them; what is from ``empty`` is in one piece of memory."""
    numbers = list(range(10))
    found = WholeMaker(make, zeros, threads=3)(numbers, KEYS)
    expected = make(numbers, zeros)
    assert type(found) is type(expected)
    assert same(found, expected)
    image = found if isinstance(found, torch.Tensor) else found[0]
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert image.untyped_storage().nbytes() == image.nbytes


def test_pieces_of_a_dict_are_joined_by_name() -> None:
    """Memory that is not for samples belongs to each part."""
    found = WholeMaker(as_dict, zeros, threads=2)(list(range(10)), KEYS)
    assert torch.equal(found["image"], pictures(range(10), zeros))
    assert found["n"].tolist() == list(range(10))
    assert found["s"].tolist() == [1, 1]


def test_what_depends_on_the_whole_batch_is_made_as_one() -> None:
    """Padding to the largest sample gives parts of different shapes; it is found out once."""
    calls: list[int] = []

    def padded(indices: Sequence[int], empty: Any) -> torch.Tensor:
        calls.append(len(indices))
        made: torch.Tensor = empty((len(indices), max(indices)), torch.uint8).fill_(1)
        return made

    make = WholeMaker(padded, zeros, threads=2)
    for _ in range(2):
        assert make(list(range(1, 9)), KEYS[:8]).shape == (8, 8)
    assert sorted(calls) == [4, 4, 8, 8]


def test_parts_that_differ_are_made_as_one_also_where_errors_are_wrapped() -> None:
    """A dataset may take what its memory raises for a fault of its own."""

    def padded(indices: Sequence[int], empty: Any) -> torch.Tensor:
        try:
            made: torch.Tensor = empty((len(indices), max(indices) + 1), torch.uint8)
        except Exception as error:
            raise OSError("no memory") from error
        return made.fill_(7)

    make = WholeMaker(padded, zeros, threads=2)
    keys = [SampleKey(0, 0, index) for index in range(4)]
    assert make(range(4), keys).shape == (4, 4)


def test_each_part_has_its_keys_in_hand() -> None:
    """As many as it has samples, in their order."""

    def of_keys(indices: Sequence[int], empty: Any) -> torch.Tensor:
        keys = current_keys()
        assert keys is not None
        time.sleep(0.001)
        assert [key.index for key in keys] == list(indices)
        return torch.tensor(indices)

    make = WholeMaker(of_keys, zeros, threads=4)
    assert make(list(range(10)), KEYS).tolist() == list(range(10))


def test_ranges_are_even_and_never_empty() -> None:
    """Fewer of them where there are fewer samples."""
    for count in range(1, 30):
        for parts in range(1, 12):
            found = ranges(count, parts)
            sizes = [each.stop - each.start for each in found]
            assert [i for each in found for i in range(count)[each]] == list(range(count))
            assert len(found) == min(parts, count)
            assert max(sizes) - min(sizes) <= 1


# --- the threads ---------------------------------------------------------------------------------


def test_threads_end_with_the_loop() -> None:
    """One stays with the batches, the others wait for the next batch, and go with the iterator."""
    loader = load(int, threads_per_worker=3)
    batches = iter(loader)
    next(batches)
    assert len(running()) == 2
    del batches
    wait_until(lambda: not running())


def test_a_crew_says_who_failed_first_and_goes_on() -> None:
    """By the order of tasks, once all are done; afterwards it works as before."""
    crew, done = Crew(3), []

    def fail() -> None:
        raise LookupError

    def slow() -> None:
        time.sleep(0.05)
        done.append(True)
        raise KeyError

    with pytest.raises(KeyError):
        crew.run([lambda: 1, slow, fail])
    assert done
    assert crew.run([lambda: 1, lambda: 2]) == [1, 2]
    with pytest.raises(SystemExit):
        crew.run([lambda: None, lambda: sys.exit()])
    assert crew.is_here


def test_an_error_keeps_nothing_alive() -> None:
    """Its traceback makes no circle: with it, what it was raised from is gone."""
    crew, seen = Crew(2), []

    def fail() -> None:
        made = torch.zeros(3)
        seen.append(weakref.ref(made))
        raise LookupError

    both: list[list[Callable[[], Any]]] = [[fail, int], [int, fail]]
    gc.collect()
    gc.disable()
    try:
        for tasks in both:
            with contextlib.suppress(LookupError):
                crew.run(tasks)
        assert [each() for each in seen] == [None, None]
    finally:
        gc.enable()


def test_ctrl_c_waits_for_nobody() -> None:
    """The other threads end after what they have in hand; that crew is of no more use."""
    crew, gate = Crew(2), threading.Event()

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        crew.run([interrupt, lambda: gate.wait(10)])
    assert not gate.is_set()
    assert not crew.is_here
    gate.set()


def test_a_loop_goes_on_after_ctrl_c() -> None:
    """With new threads, at the next batch."""
    left = [0]

    def make(index: int) -> int:
        if index in left:
            left.clear()
            raise KeyboardInterrupt
        return index

    batches = iter(load(make, 8))
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert next(batches).tolist() == [4, 5, 6, 7]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_makes_threads_of_its_own() -> None:
    """A loop that was begun before goes on in the child, which inherited none."""
    batches = iter(load(int, 8))
    assert next(batches).tolist() == [0, 1, 2, 3]
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if next(batches).tolist() == [4, 5, 6, 7] and len(running()) == 1 else 2
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


def test_an_interpreter_ends_while_threads_work() -> None:
    """At exit they are waited for; one that is stuck does not keep it for long."""
    done = python(
        """
        import threading, time
        from sharedds.loader.crew import Crew
        crew = Crew(2)
        tasks = [int, lambda: time.sleep(1000)]
        threading.Thread(target=crew.run, args=(tasks,), daemon=True).start()
        time.sleep(0.2)
        print("end")
        """
    )
    assert "end" in str(done)


def test_torch_uses_one_core_in_each_thread_and_all_in_the_trainer() -> None:
    """As loader threads do."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        crew = Crew(2)
        assert crew.run([torch.get_num_threads, torch.get_num_threads]) == [3, 1]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


# --- the plan ------------------------------------------------------------------------------------


def test_what_threads_cannot_share_is_refused() -> None:
    """With what to do instead."""
    refused: list[tuple[dict[str, Any], str]] = [
        ({"engine": "thread", "num_workers": 2}, "workers are threads already"),
        ({"seed_globals": "batch"}, "seed_globals='sample'"),
        ({"batch_size": None}, "batch_size=None asks for none"),
        ({"threads_per_worker": 0}, "1 or more"),
        ({"threads_per_worker": "two"}, "a whole number"),
    ]
    for asked, text in refused:
        with pytest.raises(OptionError, match=text):
            build_loader(Draws(8), **({"threads_per_worker": 2, "num_workers": 0} | asked))
    assert build_loader(Whole(), seed_globals="batch", threads_per_worker=2).plan is not None


def test_engine_auto_is_decided_by_the_dataset() -> None:
    """Threads for whole batches without code of the user; processes for everything else."""

    def engine(dataset: Any, **options: Any) -> str:
        return build_loader(dataset, engine="auto", **options).plan.engine

    assert engine(Whole()) == "thread"
    assert engine(Whole(), num_workers=3) == "thread"
    others: list[dict[str, Any]] = [
        {"collate_fn": list},
        {"batch_transform": list},
        {"batch_size": None},
        {"start_method": "fork"},
    ]
    assert {engine(Whole(), **more) for more in others} == {engine(Draws(8))} == {"process"}


def test_a_plan_that_was_saved_before_has_one_thread() -> None:
    """Nothing else is missing from it."""
    saved = fork(Draws(8)).plan.to_dict()
    del saved["threads_per_worker"]
    assert LoaderPlan.from_dict(saved).threads_per_worker == 1
