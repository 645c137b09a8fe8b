"""What a plan is made from: what a machine and a dataset tell, what a worker measures, files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plan_data import Arrays, Told
from torch.utils.data import ConcatDataset, Subset

import sharedds
from sharedds.errors import OptionError
from sharedds.host.cpus import CpuShare
from sharedds.host.descriptors import DescriptorLimits
from sharedds.host.machine import Machine, look
from sharedds.host.memory import MachineMemory
from sharedds.host.shared import SharedMemoryRoom
from sharedds.loader import build_loader
from sharedds.loader.facts import dataset_facts, machine_facts, place_of
from sharedds.loader.known import RankFacts
from sharedds.loader.plan import LoaderRequest, make_plan
from sharedds.loader.planning import spread
from sharedds.loader.probe import batch_bytes


def machine(**changes: Any) -> Machine:
    """A machine with two CPUs of which much is known."""
    found = replace(
        look(),
        cpus=CpuShare(2, "2 CPUs by a cgroup quota of 2"),
        memory=MachineMemory(total=8 << 30, available=4 << 30),
        shared_memory=SharedMemoryRoom(free=64 << 20, total=1 << 30),
        descriptors=DescriptorLimits(soft=256, hard=512, open=20),
        accelerator=None,
    )
    return replace(found, **changes)


# --- the machine ---------------------------------------------------------------------------------


def test_a_plan_knows_of_the_machine_what_it_needs() -> None:
    """Of open files it counts as many as the loader may ask for."""
    facts = machine_facts(machine(), batches=7, ranks=RankFacts(), accelerator="cuda")
    assert (facts.cpus, facts.cpus_reason) == (2, "2 CPUs by a cgroup quota of 2")
    assert (facts.memory_available, facts.shared_memory_free) == (4 << 30, 64 << 20)
    assert (facts.descriptors, facts.descriptors_open) == (512, 20)
    assert (facts.batches, facts.accelerator) == (7, "cuda")


def test_what_a_machine_does_not_tell_is_not_known() -> None:
    """No information is a normal answer; no limit of open files is one that is large enough."""
    silent = machine(memory=MachineMemory(), shared_memory=None, descriptors=None)
    facts = machine_facts(silent, batches=None, ranks=RankFacts(), accelerator=None)
    assert (facts.memory_available, facts.shared_memory_free, facts.descriptors) == (None,) * 3
    assert make_plan(LoaderRequest(), facts).num_workers == 2
    endless = machine(descriptors=DescriptorLimits(soft=None, hard=None))
    facts = machine_facts(endless, batches=None, ranks=RankFacts(), accelerator=None)
    assert facts.descriptors == 65_536


# --- the dataset ---------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [100_008, lambda: 100_008, np.int64(100_008)])
def test_a_dataset_may_tell_the_size_of_its_samples(told: Any) -> None:
    """As a number, or as a method; a part tells what the whole does."""
    dataset = Told()
    dataset.sample_nbytes = told
    parts: list[Any] = [dataset, Subset(dataset, [1, 2]), ConcatDataset([dataset, dataset])]
    for asked in parts:
        facts = dataset_facts(asked, batch_size=8, place=None, storage=None)
        assert (facts.sample_bytes, facts.source) == (100_008, "as the dataset says")
    assert dataset.calls == 0


def test_of_joined_datasets_all_must_tell() -> None:
    """The larger sample counts."""
    larger = Told()
    larger.sample_nbytes = 200_000
    for parts, size in (([Told(), larger], 200_000), ([Told(), Arrays()], None)):
        facts = dataset_facts(ConcatDataset(parts), batch_size=8, place=None, storage=None)
        assert facts.sample_bytes == size


@pytest.mark.parametrize("told", [-1, True, "8", 1.5])
def test_sizes_that_are_none_are_refused(told: Any) -> None:
    """The text names the class and the attribute."""
    dataset = Told()
    dataset.sample_nbytes = told
    with pytest.raises(OptionError, match=r"Told.sample_nbytes is"):
        build_loader(dataset)


def test_the_storage_is_that_of_the_dataset(tmp_path: Path) -> None:
    """Found by its attributes, or by the first item; what does not exist tells nothing."""
    file = tmp_path / "rows.npy"
    np.save(file, np.zeros((4, 8), np.float32))

    class Lazy(sharedds.LazyDataset[str]):
        def load(self, item: str) -> str:
            return item

    class Rooted(Arrays):
        root = tmp_path

    assert place_of(sharedds.MemmapDataset(file)) == str(file)
    assert place_of(Lazy([str(file)])) == str(file)
    assert place_of(Lazy(["one", "two"])) is None
    assert place_of(Rooted()) == str(tmp_path)
    assert place_of(Subset(Rooted(), [0])) == str(tmp_path)
    assert place_of(ConcatDataset([Rooted(), Arrays()])) == str(tmp_path)
    assert place_of(Arrays()) is None


def test_records_are_as_large_as_the_file_says(tmp_path: Path) -> None:
    """Of a store an equal part, of files the first one."""
    with sharedds.StoreWriter(tmp_path / "s.lmdb", schema={"x": "array"}) as writer:
        for _ in range(4):
            writer.add({"x": np.zeros(10_000, np.uint8)})

    class Stored(Arrays):
        path = tmp_path / "s.lmdb"

    size = (tmp_path / "s.lmdb").stat().st_size
    facts = dataset_facts(Stored(4), batch_size=1, place=str(Stored.path), storage=None)
    assert facts.record_bytes == size // 4


def test_samples_are_spread_however_early_one_stops() -> None:
    """Each half has some of the first few; none comes twice, and all come if asked for."""
    first = spread(1000, 6)
    assert len({number * 3 // 1000 for number in first}) == 3
    assert sorted(spread(10, 10)) == list(range(10)) == sorted(spread(10, 50))
    assert spread(0, 5) == []


def test_the_bytes_of_a_batch_are_those_that_travel() -> None:
    """Tensors that share memory count once, a view of something large for itself."""
    base = torch.zeros(1000)
    assert batch_bytes({"a": base, "b": [base[:600]]}) == ([4000], 0)
    assert batch_bytes(base[:100]) == ([400], 0)
    assert batch_bytes((np.zeros(10, np.int64), b"abc", "de", 5)) == ([], 85)


# --- more than there is --------------------------------------------------------------------------


def test_a_plan_that_takes_more_memory_than_is_left_is_warned_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the nearest that fits; what fits, and samples of which nothing is known, are not."""
    small = machine(memory=MachineMemory(total=8 << 30, available=4_300_000_000))
    monkeypatch.setattr("sharedds.loader.planning.look", lambda paths: small)
    volumes = Told()
    volumes.sample_nbytes = 1_000_000_000
    match = r"may take .* GB, and 4.3 GB of memory are left; the nearest that fits is num_workers=1"
    with pytest.warns(UserWarning, match=match) as caught:
        build_loader(volumes, num_workers=16)
    assert [warning.filename for warning in caught] == [__file__]
    assert build_loader(volumes).plan.num_workers >= 1
    assert build_loader(Arrays(), num_workers=16).plan.num_workers == 16
