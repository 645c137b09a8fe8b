"""What an index costs in each process: the same for a thousand samples and for a million."""

from __future__ import annotations

import gc
import json
import pickle
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import in_process, unmeasured
from torch.utils.data import DataLoader, RandomSampler

from sharedds.datasets import ImageDataset, IndexedDataset, LazyDataset, MemmapDataset
from sharedds.memory import process_memory
from sharedds.packed import PackedStrings
from sharedds.store import StoreWriter

MB = 1_000_000


class Lengths(LazyDataset[int]):
    """A sample is the length of its path."""

    def load(self, item: str) -> int:
        """Return the length."""
        return len(item)


class Labels(LazyDataset[int]):
    """A sample is the second part of its record."""

    def load(self, item: tuple[str, int]) -> int:
        """Return the number."""
        return item[1]


class Plain:
    """What most people write: a list."""

    def __init__(self, items: Sequence[str]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> int:
        return len(self.items[index])


def path(number: int) -> str:
    """Return a path as in a large folder of classes."""
    return f"train/n{number // 1000:08d}/n{number // 1000:08d}_{number * 7919 % 99999999:08d}.JPEG"


def datasets(folder: Path, count: int) -> dict[str, IndexedDataset[Any]]:
    """Make one dataset of each kind, and read a sample of it."""
    folder.mkdir()
    np.save(folder / "rows.npy", np.arange(count, dtype=np.int32).reshape(-1, 1))
    with StoreWriter(folder / "x.lmdb", schema={"image": "uint8[1, 1, 1]"}) as writer:
        for number in range(min(count, 20_000)):
            writer.add({"image": np.full((1, 1, 1), number % 256, np.uint8)})
    made: dict[str, IndexedDataset[Any]] = {
        "paths": Lengths(map(path, range(count))),
        "records": Labels((path(i), i) for i in range(min(count, 200_000))),
        "rows": MemmapDataset(folder / "rows.npy"),
        "images": ImageDataset(folder / "x.lmdb"),
    }
    made["subset"] = made["paths"].subset(range(0, count, 2))
    made["join"] = made["subset"] + made["rows"]
    for dataset in made.values():
        _ = dataset[0], dataset[len(dataset) - 1]
    return made


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> dict[str, IndexedDataset[Any]]:
    """A thousand samples in each dataset."""
    return datasets(tmp_path_factory.mktemp("few") / "x", 1_000)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> dict[str, IndexedDataset[Any]]:
    """200,000 samples in most datasets."""
    return datasets(tmp_path_factory.mktemp("many") / "x", 200_000)


KINDS = ("paths", "records", "rows", "images", "subset", "join")


@pytest.mark.parametrize("kind", KINDS)
def test_a_pickle_does_not_grow_with_the_samples(
    few: dict[str, IndexedDataset[Any]], many: dict[str, IndexedDataset[Any]], kind: str
) -> None:
    """A thousand samples or 200,000: some kilobytes, and the copy reads the same."""
    small, large = pickle.dumps(few[kind]), pickle.dumps(many[kind])
    assert len(large) < 60_000
    assert len(large) - len(small) < 100
    index = len(many[kind]) - 3
    copy = pickle.loads(large)
    assert copy.fingerprint == many[kind].fingerprint
    assert np.array_equal(copy[index], many[kind][index])


def test_a_list_pickles_whole() -> None:
    """What the limit of 60 kB is about: every worker would wait for megabytes."""
    assert len(pickle.dumps(Plain(list(map(path, range(100_000)))))) > 4 * MB


def own_after_reading(made: Sequence[IndexedDataset[Any]]) -> int:
    """Return what this process has that is no page of a file, once all was read at random.

    Pages of the index belong to the kernel, which takes them back when it needs them. They count as
    private, and as dirty until they are on the disk, as long as no second process maps them.
    """
    order = random.Random(0)
    for dataset in made:
        for _ in range(20_000):
            _ = dataset[order.randrange(len(dataset))]
    gc.collect()
    memory = process_memory()
    return (memory.anonymous or 0) + (memory.shared_memory or 0)


@pytest.mark.memory
def test_a_spawned_process_gets_no_copy(
    few: dict[str, IndexedDataset[Any]], many: dict[str, IndexedDataset[Any]]
) -> None:
    """It costs as much with a million samples as with a thousand, give or take 10 MB."""
    costs = [
        in_process("spawn", own_after_reading, [made[kind] for kind in ("paths", "rows")])
        for made in (few, many)
    ]
    assert abs(costs[1] - costs[0]) < 10 * MB, costs


def dirtied(dataset: Any) -> list[list[int]]:
    """Read 60,000 random samples three times with forked workers of a plain loader.

    Returns:
        For each worker: private dirty bytes after batch 100 and after each epoch.
    """
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=20,
        sampler=RandomSampler(dataset, replacement=True, num_samples=60_000),
        num_workers=2,
        multiprocessing_context="fork",
        persistent_workers=True,
        collate_fn=sum,
    )
    measured: list[list[int]] = [[], []]

    def measure() -> None:
        for figures, worker in zip(measured, loader._iterator._workers, strict=True):  # type: ignore[union-attr]
            figures.append(process_memory(worker.pid).private_dirty or 0)

    for epoch in range(3):
        for number, _ in enumerate(loader):
            if epoch == 0 and number == 100:
                measure()
        measure()
    return measured


@pytest.mark.memory
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_reading_dirties_no_pages() -> None:
    """A list of names is copied page by page into each forked worker that reads it; not so here."""
    names = [f"{number:0200d}" for number in range(200_000)]
    control = dirtied(Plain(names))
    assert all(last - first > 30 * MB for first, *_, last in control), control
    for figures in dirtied(Lengths(names)):
        first, _, second, third = figures
        assert third - first <= 10 * MB, figures
        assert third - second <= 2 * MB, figures


def test_paths_of_a_folder_are_kept_once() -> None:
    """A path takes less than half of its own length, whatever the order of the paths."""
    paths = [path(number) for number in range(100_000)]
    shuffled = random.Random(0).sample(paths, len(paths))
    for items in (paths, shuffled):
        packed = PackedStrings.build(items)
        assert packed.nbytes < 0.5 * sum(map(len, items))
        assert all(packed[i] == items[i] for i in range(0, len(items), 97))


@pytest.mark.memory
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_few_samples_cost_two_workers_what_none_cost(tmp_path: Path) -> None:
    """As the benchmark weighs it: no worker collects garbage in one case and not in the other."""
    benchmark = Path(__file__).parents[1] / "benchmarks" / "index_memory.py"
    found = {}
    for index in ("empty", "sharedds", "sharedds, build_loader"):
        words = (tmp_path, tmp_path, "--train", index, "1000", "2", "fork", "4000")
        command = [sys.executable, str(benchmark), *map(str, words)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=60, env=unmeasured()
        )
        assert done.returncode == 0, done.stderr
        figures = json.loads(done.stdout.splitlines()[-1])
        assert "MB USS a worker, the most" in figures  # the workers are there when they are weighed
        found[index] = figures["MB PSS anonymous and shm"]
    assert max(found.values()) - found["empty"] < 20, found
