"""Loading where memory, descriptors or threads are short, or the surroundings change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import python
from stores import jpeg

from sharedds.datasets import ImageDataset, LazyDataset, MemmapDataset
from sharedds.loader import build_loader
from sharedds.store import StoreWriter

FORK_IS_FINE = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Twelve pictures."""
    with StoreWriter(tmp_path / "x.lmdb", schema={"image": "jpeg", "label": "int64"}) as writer:
        for number in range(12):
            writer.add({"image": jpeg(number), "label": number})
    return tmp_path / "x.lmdb"


def test_workers_load_within_eight_gigabytes_of_address_space(store: Path) -> None:
    """A map of a terabyte, for safety, does not fit; ours are as large as the file."""
    done = python(
        """
        import resource, sys, warnings
        import lmdb, torch
        from sharedds import ImageDataset, build_loader
        warnings.simplefilter("ignore", DeprecationWarning)
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        try:
            lmdb.open(sys.argv[1], subdir=False, readonly=True, lock=False, map_size=1 << 40)
        except lmdb.MemoryError:
            print("no room", flush=True)
        for method in ("fork", "forkserver"):
            loader = build_loader(
                ImageDataset(sys.argv[1]), batch_size=4, num_workers=2, start_method=method
            )
            print(sum(len(labels) for _, labels in loader))
        """,
        store,
    )
    assert done.stdout.split() == ["no", "room", "12", "12"]


class Multiplied(LazyDataset[tuple[int, int]]):
    """Each sample is made by a library that has a pool of threads."""

    def load(self, item: int) -> tuple[int, int]:
        """Multiply matrices, large enough for the pool; return threads used and there."""
        large = torch.ones(600, 600)
        assert float((large @ large)[0, 0]) == 600
        status = Path("/proc/self/status").read_text()
        return torch.get_num_threads(), int(status.split("Threads:")[1].split()[0])


@FORK_IS_FINE
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_may_use_a_pool_of_threads_that_the_trainer_has_used(method: str) -> None:
    """A pool that was forked has no threads and would wait for them for ever."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.ones(1500, 1500).matmul(torch.ones(1500, 1500)).sum()
        options: dict[str, Any] = {"start_method": method, "collate_fn": list, "timeout": 60}
        loader = build_loader(Multiplied(range(12)), batch_size=3, num_workers=2, **options)
        facts = [fact for batch in loader for fact in batch]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert len(facts) == 12
    assert all(threads == 1 and there <= 6 for threads, there in facts)


def test_relative_paths_hold_when_the_folder_was_changed(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything was opened, and in workers that begin elsewhere."""
    np.save(store.parent / "rows.npy", np.arange(12))
    monkeypatch.chdir(store.parent)
    images, rows = ImageDataset("x.lmdb"), MemmapDataset("rows.npy")
    monkeypatch.chdir("/")
    assert not Path("x.lmdb").exists()
    options: dict[str, Any] = {"num_workers": 1, "start_method": "forkserver", "batch_size": 12}
    ((_, labels),) = build_loader(images, **options)
    (found,) = build_loader(rows, **options)
    assert labels.tolist() == found.tolist() == list(range(12))


class Removed(LazyDataset[int]):
    """Each item is a file that is gone once it was read."""

    def load(self, path: str) -> int:
        """Read and remove."""
        value = int(Path(path).read_text())
        os.unlink(path)
        return value


def test_a_file_that_goes_while_training_is_named(tmp_path: Path) -> None:
    """The second epoch cannot read it: left out and told, file by file."""
    paths = [tmp_path / f"{number}.txt" for number in range(3)]
    for number, path in enumerate(paths):
        path.write_text(str(number))
    loader = build_loader(Removed(paths), batch_size=3, num_workers=0, on_error="skip")
    assert [batch.tolist() for batch in loader] == [[0, 1, 2]]
    with pytest.warns(UserWarning, match="0.txt"):
        assert list(loader) == []
