"""What volumes cost a process: no more for many cases than for few, whatever was read of them."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import in_process
from volume_stores import Volume, write_volumes

from sharedds.datasets.volumes import VolumeDataset
from sharedds.loader.heap import give_back
from sharedds.memory import process_memory
from sharedds.patches import ForegroundPatches, UniformPatches

MB = 1_000_000
CASES = 16
SIDE = 96

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/smaps").exists(), reason="memory of processes is told by /proc/self/smaps"
)


def scans() -> dict[str, Volume]:
    """Return cases of noise that does not shrink, some 1.8 MB each, and a block of foreground."""
    label = np.zeros((SIDE, SIDE, SIDE), np.uint8)
    label[20:50, 30:60, 40:70] = 1
    generator = np.random.default_rng(0)
    return {
        f"case{number:02d}": Volume(
            image=generator.integers(-1000, 1000, label.shape, np.int16), label=label
        )
        for number in range(CASES)
    }


@pytest.fixture(scope="module", params=["raw", "lz4"])
def path(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A store of them."""
    folder = tmp_path_factory.mktemp("volumes")
    return write_volumes(folder / "x.lmdb", scans(), codec=request.param, chunk=(32, 32, 32))


def held(dataset: VolumeDataset) -> list[int]:
    """Return what this process holds after patches of a few cases, and after those of all."""
    found = []
    for cases, times in ((2, 16), (CASES, 2)):  # as many patches, so that the heap is warm
        for _ in range(times):
            for number in range(cases):
                _ = dataset[number]
        gc.collect()
        give_back()  # what is freed and waits in the heap is no growth
        found.append((process_memory().anonymous or 0) + store_pages())
    return found


def store_pages() -> int:
    """Return the bytes of stores that this process has mapped and touched.

    Not PSS of the process: libraries count more in it whenever another process of the tests ends.
    """
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            counts = words[-1].endswith(".lmdb")
        elif counts and words[0] == "Rss:":
            total += int(words[1]) * 1024
    return total


@pytest.mark.memory
def test_memory_does_not_grow_with_the_cases_that_were_read(path: Path) -> None:
    """Pages of the store included: 28 MB were touched, and a cache of 2 MB is full at once."""
    dataset = VolumeDataset(
        path, patch=ForegroundPatches((64, 64, 64), fraction=0.5), cache_blocks="2MB"
    )
    few, all_of_them = in_process("spawn", held, dataset)
    assert all_of_them - few < 5 * MB, (few, all_of_them)


class Listed:
    """What most people write: volumes in a list, filled as they are asked for."""

    def __init__(self, dataset: VolumeDataset) -> None:
        self.dataset = dataset
        self.kept: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.kept:
            self.kept[index] = self.dataset[index]
        return self.kept[index]["image"]


@pytest.mark.memory
@pytest.mark.parametrize("path", ["lz4"], indirect=True)
def test_a_cache_of_volumes_grows_with_them(path: Path) -> None:
    """What is saved: each volume as float32, with its label, in every process."""
    few, all_of_them = in_process("spawn", held, Listed(VolumeDataset(path)))
    assert all_of_them - few > 80 * MB


def test_a_file_of_a_folder_is_let_go_of(tmp_path: Path) -> None:
    """Only the latest volumes stay mapped, however many there are."""
    for number in range(40):
        np.save(tmp_path / f"{number:02d}.npy", np.full((4, 5, 6), number, np.int16))
    dataset = VolumeDataset(tmp_path, patch=UniformPatches(3))
    for _ in range(2):
        assert [int(item["image"].max()) for item in dataset] == list(range(40))
    mapped = Path("/proc/self/maps").read_text().count(str(tmp_path))
    assert 0 < mapped <= 32
