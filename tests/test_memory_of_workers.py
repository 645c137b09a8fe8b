"""What an index costs the workers of a loader: as much for a thousand samples as for a million."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from processes import python
from torch.utils.data import DataLoader, Dataset

from sharedds.datasets import LazyDataset
from sharedds.loader import build_loader
from sharedds.memory import process_memory, process_tree

MB = 1_000_000
WORKERS = 2
BATCH, BATCHES = 100, 60


class Lengths(LazyDataset[int]):
    """A sample is the length of its path."""

    def load(self, item: str) -> int:
        """Return the length."""
        return len(item)


class Plain(Dataset[int]):
    """What most people write: a list of paths and labels."""

    def __init__(self, items: Sequence[tuple[str, int]]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> int:
        path, label = self.items[index]
        return len(path) + label


def paths(count: int) -> Iterator[str]:
    """Paths as in a folder of classes."""
    return (f"n{number // 1000:05d}/{number * 7919 % 9999999:07d}.jpg" for number in range(count))


def maker(samples: list[int]) -> int:
    """Make a batch that says which process made it."""
    return os.getpid()


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes that two workers cost after some thousand random samples."""

    #: Private memory of each worker.
    own: tuple[int, ...]
    #: What the workers, their trainer and all other processes below it have more than before the
    #: workers started, without pages of files.
    together: int


def without_files() -> int:
    """What this process and all below it occupy, pages of files left out, each page once."""
    return sum((each.anonymous or 0) + (each.shared_memory or 0) for each in process_tree())


def measured(dataset: Any) -> Cost:
    """Read random samples with two workers of the fork server, and measure while they live."""
    before = without_files()
    loader = build_loader(
        dataset,
        batch_size=BATCH,
        sampler=scattered(len(dataset)),
        num_workers=WORKERS,
        start_method="forkserver",
        persistent_workers=True,
        collate_fn=maker,
        timeout=60,
    )
    pids = set(loader)
    assert len(pids) == WORKERS
    own = tuple(process_memory(pid).uss or 0 for pid in pids)
    return Cost(own, without_files() - before)


def scattered(count: int) -> Iterator[int]:
    """Numbers all over the dataset, as many for each of them."""
    return (number * 7_919_993 % count for number in range(BATCH * BATCHES))


@pytest.fixture(scope="module")
def few() -> Cost:
    """A thousand samples."""
    # What starts with the first workers and stays, the fork server, is no cost of these.
    list(build_loader(Plain([("", 0)]), num_workers=1, start_method="forkserver"))
    return measured(Lengths(paths(1_000)))


@pytest.fixture(scope="module")
def many(few: Cost) -> Cost:
    """A million samples."""
    return measured(Lengths(paths(1_000_000)))


@pytest.mark.memory
def test_a_list_costs_every_worker_its_own_copy(few: Cost) -> None:
    """What the limit below is about: with half a million samples already 50 MB in each of them."""
    items = [(path, number) for number, path in enumerate(paths(500_000))]
    cost = measured(Plain(items))
    assert all(own - max(few.own) > 50 * MB for own in cost.own), (few, cost)


@pytest.mark.memory
def test_private_memory_of_a_worker_does_not_grow_with_the_samples(few: Cost, many: Cost) -> None:
    """It is as much with a million samples as with a thousand, give or take 10 MB."""
    assert all(own > 0 for own in few.own + many.own)
    assert max(many.own) - min(few.own) < 10 * MB, (few, many)


@pytest.mark.memory
def test_all_memory_together_does_not_grow_with_the_samples(few: Cost, many: Cost) -> None:
    """Nor is anything hidden in shared memory, in the trainer or in the fork server."""
    assert many.together - few.together < 10 * MB, (few, many)


class Collected(Dataset[int]):
    """A sample is what a full garbage collection costs the process that makes it, in bytes."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        before = process_memory().uss or 0
        gc.collect()
        return (process_memory().uss or 0) - before


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """Garbage is looked for among all objects, as in a process that was not told otherwise."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.memory
@pytest.mark.usefixtures("unfrozen")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_collecting_garbage_copies_nothing() -> None:
    """It writes to every object of the process; what workers share it leaves alone."""
    forked: DataLoader[Any] = DataLoader(
        Collected(), num_workers=1, multiprocessing_context="fork", collate_fn=sum
    )
    assert next(iter(forked)) > 20 * MB
    served = build_loader(
        Collected(), num_workers=1, start_method="forkserver", collate_fn=sum, timeout=60
    )
    assert next(iter(served)) < 5 * MB


_DUE = """
    import gc, multiprocessing, os, warnings
    import torch
    from sharedds.memory import process_memory
    from sharedds.workers.starting import start_context

    warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)

    def tell(pipe):
        pipe.send(process_memory().uss)

    def cost(context):
        ours, theirs = context.Pipe()
        worker = context.Process(target=tell, args=(theirs,))
        gc.collect()
        gc.disable()  # on again in the child, where the collection is due then
        kept = [[] for _ in range(500_000)]
        gc.collect(1)
        young = [[] for _ in range(2_000)]
        worker.start()
        own = ours.recv()
        worker.join()
        return own

    os.register_at_fork(after_in_child=gc.enable)
    gc.set_threshold(1_000, 0, 0)
    print(cost(multiprocessing.get_context("fork")), cost(start_context("fork")))
"""


@pytest.mark.memory
@pytest.mark.skipif(sys.platform != "linux", reason="looks at what the kernel says of memory")
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="there, garbage is collected bit by bit")
def test_a_garbage_collection_that_is_due_strikes_no_forked_worker() -> None:
    """A plain one that begins with a collection copies all objects that it shared otherwise."""
    plain, own = map(int, python(_DUE).stdout.split())
    assert plain > 30 * MB, (plain, own)
    assert own < plain / 2, (plain, own)
