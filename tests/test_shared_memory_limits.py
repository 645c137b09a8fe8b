"""Too little /dev/shm, or too few descriptors: a slower epoch with a warning, never a bus error."""

from __future__ import annotations

import pickle
import sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import mounted, python

import sharedds.workers.buffers
import sharedds.workers.delivery
import sharedds.workers.lending
from sharedds.host.shared import SharedMemoryRoom
from sharedds.loader import build_loader
from sharedds.workers.delivery import DescriptorKeeper, deliverable, tensors_of

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

SCRIPT = """
import os, sys, warnings
import torch
from torch.utils.data import DataLoader
from sharedds import build_loader

class Volumes:
    def __len__(self): return 64
    def __getitem__(self, index): return torch.full((3, 512, 512), float(index))

if __name__ == "__main__":
    make = build_loader if sys.argv[1] == "ours" else DataLoader
    print(os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for step, batch in enumerate(make(Volumes(), batch_size=16, num_workers=2)):
            assert batch[:, 0, 0, 0].tolist() == list(range(16 * step, 16 * step + 16))
            assert (batch == batch[:, :1, :1, :1]).all()
    print(step + 1, "batches", *(warning.message for warning in seen), sep="|")
"""


def test_batches_larger_than_shared_memory_arrive(tmp_path: Path) -> None:
    """Where a plain loader fails, the epoch is finished with one warning that has the figures."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    root = Path(sharedds.workers.delivery.__file__).parents[2]
    done = mounted(
        'mount -t tmpfs -o size=8m tmpfs /dev/shm; export PYTHONPATH="$3"\n'
        'if "$1" "$2" plain >/dev/null 2>&1; then echo unexpected; fi; "$1" "$2" ours',
        sys.executable,
        script,
        root,
    )
    size, batches, *told = done.stdout.replace("|", "\n").splitlines()
    assert (size, batches) == ("8388608", "4"), done.stderr
    (warning,) = told[1:]
    assert "50,331,648 bytes" in warning
    assert "of 8.4 MB" in warning
    assert "--shm-size" in warning


class Pictures:
    """Samples as arrays, in several parts."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": np.full((64, 64), index), "label": index, "name": f"p{index}"}


class Held:
    """A batch class with tensors as attributes."""

    def __init__(self, samples: list[dict[str, Any]]) -> None:
        self.images = torch.stack([torch.from_numpy(sample["image"]) for sample in samples])
        self.count = len(samples)


def images_of(batch: Any) -> Any:
    """The images of either kind of batch."""
    return batch.images if isinstance(batch, Held) else batch["image"]


@pytest.mark.parametrize("collate", [None, Held], ids=["default", "own class"])
def test_a_batch_without_room_travels_by_value(
    collate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every batch comes whole, whoever made it, and one warning tells."""
    pictures: Any = Pictures()
    options: dict[str, Any] = {"batch_size": 4, "collate_fn": collate}
    expected = [images_of(batch) for batch in build_loader(pictures, num_workers=0, **options)]
    room = SharedMemoryRoom(free=5000, total=64 << 20)
    for module in (sharedds.workers.buffers, sharedds.workers.lending, sharedds.workers.delivery):
        monkeypatch.setattr(module, "shared_memory_room", lambda: room)
    with pytest.warns(UserWarning, match="is too small for the batches") as seen:
        got = list(build_loader(pictures, num_workers=2, start_method="fork", **options))
    assert len(seen) == 1
    assert not any(images_of(batch).is_shared() for batch in got)
    assert all(torch.equal(images_of(a), b) for a, b in zip(got, expected, strict=True))


def test_with_room_all_large_tensors_are_shared() -> None:
    """Also those that a collate function of the user's own has made, with their strides."""
    numbers = torch.arange(24_000.0)
    whole: Any = numbers.reshape(2, 3, 40, 100).to(memory_format=torch.channels_last)
    part = torch.arange(100_000)[10:10_010]
    assert deliverable({"x": [whole], "y": part}) == {"x": [whole], "y": part}
    assert whole.is_shared()
    assert whole.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(whole, numbers.reshape(whole.shape))
    assert part.tolist() == list(range(10, 10_010))
    assert part.untyped_storage().nbytes() == 80_000  # not all of what it was a part of


# --- by value ------------------------------------------------------------------------------------


def sent(batch: Any) -> Any:
    """What arrives in the trainer."""
    return pickle.loads(ForkingPickler.dumps(deliverable(batch)))


def test_small_tensors_travel_by_value() -> None:
    """With kind, strides and offset; a part of something large without the rest of it."""
    picture: Any = torch.arange(24.0).reshape(2, 3, 2, 2).to(memory_format=torch.channels_last)
    parts = (torch.arange(10_000)[10:13], torch.arange(9).view(3, 3).T[1:], torch.tensor(True))
    got, others = sent([picture, parts])
    assert not got.is_shared()
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(got, picture)
    assert isinstance(others, tuple)
    for here, there in zip(parts, others, strict=True):
        assert (here.dtype, here.stride()) == (there.dtype, there.stride())
        assert torch.equal(here, there)
    assert others[0].untyped_storage().nbytes() == 24
    others[0].resize_(1000)  # as one can with any tensor that is made here


def test_tensors_that_share_memory_still_do() -> None:
    """A view stays a view, and an object that is there twice stays one."""
    whole = torch.arange(6)
    got = sent({"whole": whole, "view": whole[2:4], "again": whole})
    got["whole"][2] = 70
    assert got["view"].tolist() == [70, 3]
    assert got["again"] is got["whole"]


def test_large_and_special_tensors_stay_as_they_were() -> None:
    """In the same batch: the large one in shared memory, a parameter as a parameter."""
    parameter = torch.nn.Parameter(torch.ones(3))
    batch = [torch.arange(3), torch.arange(100_000), parameter, torch.empty(0, 3)]
    small, large, trained, empty = sent(batch)
    assert not small.is_shared()
    assert large.is_shared()
    assert isinstance(trained, torch.nn.Parameter)
    for here, there in zip(batch, (small, large, trained, empty), strict=True):
        assert torch.equal(here, there)


@pytest.mark.parametrize("count", [3, 100_000])
def test_conjugates_and_negatives_arrive_as_such(count: int) -> None:
    """What torch sends is the memory alone, without the note that the signs are the others."""
    numbers = torch.complex(torch.arange(float(count)), torch.ones(count))
    lazy = [numbers.conj(), numbers.conj().imag]
    assert lazy[1].is_neg()
    naive = pickle.loads(ForkingPickler.dumps(numbers.conj()))
    assert not torch.equal(naive, lazy[0])
    for here, there in zip(lazy, sent(lazy), strict=True):
        assert torch.equal(here, there)


def test_what_cannot_be_pickled_is_left_to_the_queue() -> None:
    """Which says what it is."""
    batch = [torch.arange(3), lambda: None]
    assert deliverable(batch) is batch


def test_tensors_are_found_wherever_they_are() -> None:
    """In containers and attributes, each once, and cycles are no trap."""
    tensors = [torch.zeros(n) for n in range(3)]
    holder = type("Holder", (), {})()
    holder.x, holder.me = tensors[0], holder
    found = list(tensors_of([holder, {"a": (tensors[1], "text")}, tensors[2], tensors[2]]))
    assert {id(tensor) for tensor in found} == {id(tensor) for tensor in tensors}
    assert len(found) == 3


# --- descriptors ---------------------------------------------------------------------------------

KEEPING = """
import os, resource, sys, warnings
import torch
from torch.utils.data import DataLoader
from sharedds import build_loader

class Samples:
    def __len__(self): return 500
    def __getitem__(self, index): return torch.full((5000,), index)

resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[3])))
make = build_loader if sys.argv[1] == "ours" else DataLoader
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    keep = [batch for batch in make(Samples(), num_workers=2)]
assert [int(batch[0, 0]) for batch in keep] == list(range(500))
print(len(os.listdir("/proc/self/fd")), len(seen), *(warning.message for warning in seen))
"""


def test_a_plain_loader_runs_out_of_descriptors() -> None:
    """Each batch that is kept costs one; this is what the next test is about."""
    done = python(KEEPING, "plain", "128", "128", ok=False)
    assert done.returncode == 1
    assert "Too many open files" in done.stderr or "ancdata" in done.stderr


def test_batches_can_be_kept_without_end() -> None:
    """They are copied once half of the descriptors are taken, and one warning tells."""
    count, warned, text = python(KEEPING, "ours", "128", "128").stdout.split(" ", 2)
    assert int(count) < 128
    assert warned == "1"
    assert "128 files" in text
    assert "ulimit -n" in text


def test_a_shortage_that_comes_and_goes_is_told_once() -> None:
    """Descriptors that are given back end the copying, and the next shortage is no news."""
    keeper = DescriptorKeeper(limit=2)
    assert keeper.keep(torch.zeros(3))
    keeper.limit = 1 << 30
    assert not keeper.keep(torch.zeros(3))
    assert not keeper.is_short
    keeper.limit, keeper._until_count = 2, 0
    assert not keeper.keep(torch.zeros(3))
    assert keeper.is_short


def test_the_limit_of_descriptors_is_raised() -> None:
    """As far as the process may: then nothing needs to be copied, and nothing is told."""
    count, warned = python(KEEPING, "ours", "128", "4096").stdout.split()
    assert int(count) > 500
    assert warned == "0"


def test_no_limit_is_no_reason_to_copy() -> None:
    """Where descriptors are not limited, nothing is counted."""
    tensor: Any = torch.zeros(3)
    tensor.share_memory_()
    for limit in (None, -1):
        assert not DescriptorKeeper(limit).keep(tensor)
    assert tensor.is_shared()
    keeper = DescriptorKeeper(limit=2)
    assert keeper.keep(tensor)
    assert not tensor.is_shared()
    assert not keeper.keep(tensor)
