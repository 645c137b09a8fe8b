"""Pages of a store count as memory of a process while they are mapped, and no longer."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import noise

from sharedds.datasets import ImageDataset
from sharedds.store import Store, StoreWriter
from sharedds.views import CenterCrop

COUNT = 48

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/smaps").exists(), reason="mapped pages are counted by /proc/self/smaps"
)


def mapped(path: str) -> int:
    """Bytes of a file that are mapped into this process now."""
    size, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if " kB" not in line:
            inside = line.endswith(path)
        elif inside and line.startswith("Rss:"):
            size += int(line.split()[1]) << 10
    return size


def private(
    shape: tuple[int, ...], dtype: torch.dtype, *, channels_last: bool = False
) -> torch.Tensor:
    """Memory as a loader gives it to a dataset."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty(shape, dtype=dtype, memory_format=layout)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A store of pictures that do not shrink: 48 times some 37 kB."""
    made = str(tmp_path / "noise.lmdb")
    with StoreWriter(made, schema={"image": "jpeg", "label": "int64"}) as writer:
        for number in range(COUNT):
            writer.add({"image": noise(200, 200, 3, seed=number), "label": number})
    return made


def test_a_batch_of_pictures_leaves_no_pages_mapped(path: str) -> None:
    """Reading alone does: what was touched stays mapped, and counts, until it is let go of."""
    dataset = ImageDataset(path, view=CenterCrop(64))
    store = Store(path)
    views = [store.read("image", number) for number in range(COUNT)]
    touched = mapped(path)
    assert touched > sum(map(len, views)) // 2
    images, labels = dataset.load_batch(range(COUNT), private)
    assert images.shape == (COUNT, 3, 64, 64)
    assert labels.tolist() == list(range(COUNT))
    assert mapped(path) < touched // 4


def test_views_stay_good_when_pages_are_let_go_of(path: str) -> None:
    """What is touched again is mapped again."""
    store = Store(path)
    views = [store.read("image", number) for number in range(COUNT)]
    before = [bytes(view) for view in views]
    column = store.column("label")
    store.release()
    assert [bytes(view) for view in views] == before
    assert np.array_equal(column[:], np.arange(COUNT))
