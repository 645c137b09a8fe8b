"""What a loader costs while it runs: who holds which memory, where the time goes, and replay."""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sharedds.errors import OptionError
from sharedds.loader import build_loader
from sharedds.loader.accounts import Counters, LoaderStats, nbytes_of
from sharedds.loader.tree import ProcessTree, busy_share

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MB = 1_000_000
SIZE = MB


class Large:
    """Samples of 1 MB; some cannot be loaded, and each is counted in a file."""

    def __init__(self, log: Path | None = None, bad: tuple[int, ...] = ()) -> None:
        self.log = log
        self.bad = bad

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise ValueError(index)
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{index}\n")
        return torch.full((SIZE,), index, dtype=torch.uint8)


def until(condition: Callable[[], bool]) -> bool:
    """Ask again and again; False when time is up."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def loader(workers: int, dataset: Any = None, **options: Any) -> Any:
    """A loader of single samples."""
    method = "fork" if workers and "engine" not in options else None
    data: Any = dataset or Large()
    return build_loader(data, num_workers=workers, start_method=method, pin_memory=False, **options)


# --- memory --------------------------------------------------------------------------------------


@LINUX
@pytest.mark.parametrize("keeps", [True, False])
def test_memory_tells_who_holds_what(keeps: bool) -> None:
    """The trainer, each worker, and what is in flight, also the batches that no process maps."""
    made = loader(2, prefetch_factor=2)
    made._keeps_buffers = keeps
    before = in_shared_memory(made)
    batches = iter(made)
    next(batches)[0, ::4096].max()
    if keeps:  # in buffers, which workers map
        assert until(lambda: in_shared_memory(made) - before >= 4 * SIZE)
        assert in_shared_memory(made) - before < 6 * SIZE  # each once
    else:
        assert until(lambda: waiting(made) >= 4 * SIZE)
    memory = made.memory()
    roles = [use.role for use in memory.processes]
    own = [role for role in roles if role not in ("server", "other")]  # of tests before this one
    assert own == ["trainer", "worker 0", "worker 1"]
    assert memory.processes[0].memory.pid == os.getpid()
    assert (memory.batches_in_flight, memory.in_flight) == (4, 4 * SIZE)
    held = sum(use.memory.pss or 0 for use in memory.processes)
    assert memory.pss == held + sum(use.waiting for use in memory.processes)
    assert memory.irrevocable is not None
    assert memory.irrevocable < memory.pss
    assert json.loads(json.dumps(memory.to_dict()))["processes"][0]["role"] == "trainer"
    assert "batches in flight  4, 4.0 MB when all are made" in str(memory)


def waiting(made: Any) -> int:
    """Bytes of batches that workers have made and nobody has fetched, or nobody has touched."""
    return sum(use.waiting for use in made.memory().processes)


def in_shared_memory(made: Any) -> int:
    """The same and what processes map, each page once."""
    uses = made.memory().processes
    return sum((use.memory.shared_memory or 0) + use.waiting for use in uses)


class Shared:
    """Samples from a tensor that all processes share."""

    def __init__(self) -> None:
        data: Any = torch.ones(60 * MB, dtype=torch.uint8)
        self.data: Any = data.share_memory_()

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return self.data[::4096].sum() + index


@LINUX
def test_a_shared_tensor_counts_once() -> None:
    """However many processes map it; each has its share."""
    made = loader(2, Shared())
    batches = iter(made)
    for _ in range(8):
        next(batches)
    for uses in (made.memory().processes, ProcessTree().exact()):
        shared = sum((use.memory.shared_memory or 0) + use.waiting for use in uses)
        assert shared == pytest.approx(60 * MB, abs=12 * MB)


@LINUX
def test_a_glance_sees_what_an_exact_look_sees() -> None:
    """How much the memory has grown in between."""
    tree = ProcessTree()
    before = sum(use.irrevocable or 0 for use in tree.exact())
    glance = tree.quick()
    # Fresh pages: an array might get what tests before this one have freed.
    kept = mmap.mmap(-1, 40 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for place in range(0, 40 * MB, mmap.PAGESIZE):
        kept[place] = 1
    after = sum(use.irrevocable or 0 for use in tree.exact())
    then = tree.quick()
    assert glance is not None
    assert then is not None
    assert after - before == pytest.approx(len(kept), abs=4 * MB)
    assert then.total - glance.total == pytest.approx(len(kept), abs=4 * MB)


def test_a_loader_that_does_nothing_has_little_to_tell() -> None:
    """Before the first loop: this process alone, and zeros."""
    made = loader(0)
    assert made.memory().processes[0].role == "trainer"
    assert made.memory().batches_in_flight == 0
    assert made.stats() == LoaderStats(epoch=0)
    assert "0 batches" in str(made.stats())


# --- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"workers": 0}, {"workers": 2, "engine": "thread", "prefetch_factor": 2}]
)
@pytest.mark.filterwarnings("ignore:sample .*:UserWarning", "ignore:2 of 12:UserWarning")
def test_stats_count_what_was_handed_out(options: Any) -> None:
    """Samples that were left out are no samples; bytes and seconds are told."""
    made = loader(dataset=Large(bad=(1, 5)), on_error="skip", batch_size=2, **options)
    for step, batch in enumerate(made, 1):
        stats = made.stats()
        assert stats.batches == step
        assert stats.epoch == 0
        if options["workers"]:
            assert 0 <= stats.in_flight <= stats.most == 4
        del batch
    stats = made.stats()
    assert (stats.batches, stats.samples) == (6, 10)
    assert stats.bytes == 10 * SIZE
    assert stats.first_batch_seconds is not None
    assert stats.rate is not None
    assert stats.in_flight == 0
    assert json.loads(json.dumps(stats.to_dict()))["rate"] == stats.rate
    assert "samples/s" in str(stats)
    next(iter(made))
    assert (made.stats().epoch, made.stats().batches) == (1, 1)


def test_counters_tell_waiting_from_the_loop_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch stands apart; the size of most batches is taken from others."""
    now = [0.0]
    monkeypatch.setattr("sharedds.loader.accounts.time.perf_counter", lambda: now[0])
    counters = Counters()
    for step in range(1, 101):
        asked = now[0]
        now[0] += 50 if step == 1 else 2
        counters.note(b"x" * 10, asked)
        now[0] += 3
    assert (counters.first, counters.waited, counters.between) == (50, 198, 297)
    assert counters.bytes == 1000


def test_the_size_of_nested_batches_is_found() -> None:
    """Tensors, arrays and texts in containers, and in objects; long lists about."""

    class Holder:
        def __init__(self) -> None:
            self.data = torch.zeros(3)

    batch = {"a": (torch.zeros(2, 2), np.zeros(4, np.int16)), "b": ["ab", b"c"], "c": Holder()}
    assert nbytes_of(batch) == 16 + 8 + 3 + 12
    assert nbytes_of(["abcd"] * 1000) == 4000
    assert nbytes_of([3, None, object()]) == 0


def test_the_share_on_a_cpu_is_between_none_and_all() -> None:
    """Of processes and threads; None of those that are gone."""
    busy = busy_share([os.getpid()])
    assert busy is not None
    assert 0 < busy <= 1
    assert busy_share([]) is None
    assert busy_share([2**22 + 1], [2**22 + 1]) is None


# --- replay --------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_replay_loads_once_and_serves_an_epoch(workers: int, tmp_path: Path) -> None:
    """The first batches, again and again; the loader stands where it stood."""
    log = tmp_path / "log"
    made = loader(workers, Large(log), shuffle=True, batch_size=2)
    state = made.state_dict()
    replay = made.replay(2)
    assert len(replay) == len(made) == 6
    served = [batch[:, 0].tolist() for batch in replay]
    assert served == served[:2] * 3
    assert not any(batch.is_shared() for batch in replay.batches)
    assert replay.nbytes == 2 * 2 * SIZE
    loaded = log.read_text()
    assert len(loaded.split()) <= 2 * (2 + workers)  # what is in flight beside them
    assert [batch[:, 0].tolist() for batch in replay] == served
    assert log.read_text() == loaded
    assert made.state_dict() == state
    assert [batch[:, 0].tolist() for batch in made][:2] == served[:2]


def test_replay_goes_on_where_the_loader_is_not_disturbed() -> None:
    """In the middle of a loop; more batches than there are is all of them."""
    made = loader(0)
    batches = iter(made)
    first = next(batches)
    assert len(made.replay(1000).batches) == 12
    assert (first[0, 0], next(batches)[0, 0]) == (0, 1)
    for wrong in (0, -1, True, "3"):
        with pytest.raises(OptionError, match="1 or more"):
            made.replay(wrong)
