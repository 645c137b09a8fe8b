"""A memory budget is kept while a loop runs: less in flight first, then an error that says why."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import pickle
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import children, forked, in_process
from torch.utils.data import DataLoader

from sharedds.errors import MemoryBudgetError, WorkerError
from sharedds.loader import build_loader
from sharedds.loader.accounts import LoaderMemory, ProcessUse
from sharedds.loader.flight import Allowance, Glance, InFlight
from sharedds.loader.guard import MemoryGuard, advice
from sharedds.loader.tree import ProcessTree, Quick
from sharedds.memory import ProcessMemory

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

MB = 1_000_000


class Large:
    """Samples of some MB; workers that hoard keep a copy of each."""

    def __init__(self, *, mb: int = 16, count: int = 18, hoards: bool = False) -> None:
        self.mb = mb
        self.count = count
        self.hoards = hoards
        self.kept: list[Any] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        sample = torch.full((self.mb * MB,), index % 100, dtype=torch.uint8)
        if self.hoards:
            self.kept.append(sample.clone())
        return sample


class Numbers:
    """Samples that draw."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return index, float(torch.rand(()))


def loader(dataset: Any, *, budget: int | None = None, **options: Any) -> Any:
    """A loader with a budget in bytes, if any."""
    made = build_loader(dataset, **options)
    made.plan = dataclasses.replace(made.plan, max_memory=budget)
    return made


def used() -> int:
    """What this process and those below it hold."""
    return sum(use.irrevocable or 0 for use in ProcessTree().exact())


# --- in a real loop ------------------------------------------------------------------------------

WATCHER = """
import os, select, sys

def figures(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return {words[0]: int(words[1]) * 1024 for words in map(str.split, file) if len(words) == 3}

def tree(pid):
    found = [pid]
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/children") as file:
            for child in map(int, file.read().split()):
                if child != os.getpid():
                    found += tree(child)
    return found

most = 0
while not select.select([sys.stdin], [], [], 0.02)[0]:
    heap, files = 0, {}
    try:
        for pid in tree(int(sys.argv[1])):
            heap += figures(pid)["Pss_Anon:"]
            for name in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{name}"
                if os.readlink(path).startswith("/dev/shm/torch"):
                    info = os.stat(path)
                    files[info.st_ino] = info.st_blocks * 512
    except (OSError, KeyError):
        continue
    most = max(most, heap + sum(files.values()))
print(most)
"""


@contextlib.contextmanager
def watched() -> Iterator[list[int]]:
    """Let another process watch what this one and its workers hold; the most is in the list."""
    peak: list[int] = []
    command = [sys.executable, "-c", WATCHER, str(os.getpid())]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as watcher:
        yield peak
        peak.append(int(watcher.communicate("\n")[0]))


def train(batches: Any) -> None:
    """Take a while for each batch, touch each of its pages, and make a pause once."""
    for step, batch in enumerate(batches):
        batch[0, ::4096].max()
        time.sleep(0.6 if step == 5 else 0.02)


def plain_loader() -> Any:
    """A loader that makes up to twelve batches in advance."""
    data: Any = Large()
    return DataLoader(data, num_workers=2, prefetch_factor=6, multiprocessing_context="fork")


def peaks() -> tuple[int, int, int, tuple[int, int, int]]:
    """A budget, the peaks of a plain loader and of ours under it, and what ours did."""
    budget = used() + 150 * MB
    with watched() as plain:
        train(plain_loader())
    made = loader(Large(), budget=budget, num_workers=2, prefetch_factor=6, start_method="fork")
    with watched() as ours:
        train(made)
    stats = made.stats()
    return budget, plain[0], ours[0], (stats.batches, stats.allowed, stats.most)


def test_a_budget_is_kept_by_making_less_in_advance() -> None:
    """What would be ready in advance exceeds it, and does with a plain loader."""
    # In a process of its own: forked workers copy what they touch of all that tests have left here.
    budget, plain, ours, (batches, allowed, most) = in_process("spawn", peaks)
    assert plain > budget
    assert ours <= budget
    assert (batches, most) == (18, 12)
    assert 1 <= allowed < most


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """A control group that may take so many bytes; a process that writes "0" there is in it."""
    for folder, name in (("", "memory.max"), ("memory", "memory.limit_in_bytes")):
        path = Path("/sys/fs/cgroup", folder, f"sharedds-{os.getpid()}")
        try:
            path.mkdir()
        except OSError:
            continue
        try:
            if (path / name).exists():
                (path / name).write_text(str(limit))
                yield path / "cgroup.procs"
                return
        finally:
            while path.exists():
                with contextlib.suppress(OSError):  # the last process may not be gone yet
                    path.rmdir()
                time.sleep(0.01)
    pytest.skip("no control group for memory can be made here")


def test_the_kernel_finds_the_budget_kept() -> None:
    """In a control group with little more: a plain loader is killed there, this one is not."""
    budget = 150 * MB

    def plain() -> None:
        group.write_text("0")
        train(plain_loader())

    def ours() -> None:
        group.write_text("0")
        options: Any = {"num_workers": 2, "prefetch_factor": 6, "start_method": "fork"}
        train(loader(Large(), budget=used() + budget, **options))

    with memory_group(budget + 40 * MB) as group:
        assert forked(plain) != 0
        assert forked(ours) == 0


def batches_left() -> set[str]:
    """Files in which torch sends tensors."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("torch_")}


def test_workers_that_hoard_end_with_a_table() -> None:
    """Within seconds; no process, thread or file is left behind."""
    data: Any = Large(mb=8, count=2000, hoards=True)
    ours = loader(data, budget=used() + 120 * MB, num_workers=2, start_method="fork")
    shared, before = batches_left(), children()
    begin = time.monotonic()
    with pytest.raises(MemoryBudgetError) as caught:
        for _ in ours:
            time.sleep(0.02)
    assert time.monotonic() - begin < 20
    text = str(caught.value)
    for word in ("max_memory=", "trainer", "worker 0", "worker 1", "in flight", "what to do"):
        assert word in text
    assert "has grown by" in text
    assert isinstance(caught.value, MemoryError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == text
    assert ours.state_dict()["consumed"] == ours.stats().batches
    assert not children() - before
    assert batches_left() <= shared
    assert not [thread for thread in threading.enumerate() if "guard" in thread.name]


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2, "engine": "thread"}])
def test_what_the_trainer_holds_alone_is_told_at_once(options: Any) -> None:
    """At the first batch, before anything is in flight; giving memory back lets it go on."""
    ours = loader(Numbers(), budget=10 * MB, **options)
    batches = iter(ours)
    with pytest.raises(MemoryBudgetError, match="no plan of the loader helps"):
        next(batches)
    if options["num_workers"]:
        with pytest.raises(WorkerError, match="begin a new loop"):
            next(batches)


@pytest.mark.parametrize("engine", ["process", "thread"])
def test_the_stream_does_not_depend_on_what_is_in_flight(engine: str) -> None:
    """Batches and states are the same while less, then more, is allowed."""
    options: Any = {"batch_size": 2, "shuffle": True, "seed": 7}
    expected = loader(Numbers(), num_workers=0, **options)
    if engine == "process":
        options["start_method"] = "fork"
    ours = loader(Numbers(), num_workers=2, prefetch_factor=4, engine=engine, **options)
    allowed = [1, 1, 1, 8, 8, 3, 1, 0, 8, 2]
    for step, (batch, other) in enumerate(zip(ours, expected, strict=True)):
        assert all(torch.equal(a, b) for a, b in zip(batch, other, strict=True))
        assert ours.state_dict() == expected.state_dict()
        flight = ours._running.flight
        flight.allowed = allowed[step % len(allowed)]
        assert step in (0, 19) or 1 <= flight.count <= 8


def test_a_guard_ends_with_its_loop_and_keeps_nothing() -> None:
    """A loop that was broken off is collected at once, and so is its loader."""
    ours = loader(Numbers(), budget=100_000 * MB, num_workers=0)
    batches = iter(ours)
    next(batches)
    guards = [thread for thread in threading.enumerate() if "guard" in thread.name]
    assert len(guards) == 1
    gone = [weakref.ref(ours), weakref.ref(batches)]
    del ours, batches
    gc.collect()
    guards[0].join(5)
    assert not guards[0].is_alive()
    assert [reference() for reference in gone] == [None, None]


# --- the decision --------------------------------------------------------------------------------


def glance(moment: float, used: int, in_flight: int, ready: int, size: int = 10) -> Glance:
    """What is seen at one moment."""
    return Glance(moment=moment, used=used, in_flight=in_flight, ready=ready, batch_bytes=size)


def test_at_first_each_worker_makes_one_batch() -> None:
    """While nobody knows what a batch takes."""
    assert Allowance(1000, most=12, workers=3).decide(glance(0, 500, 3, 0, size=0)) == 3
    assert Allowance(1000, most=12, workers=3).decide(glance(0, 1001, 3, 0, size=0)) == 1


def test_as_many_are_allowed_as_fit_when_all_are_ready() -> None:
    """However few are at the moment; two more are being made, and one is handed over."""
    allowance = Allowance(1000, most=100, workers=2)
    for moment in range(20):
        allowed = allowance.decide(glance(moment, 620 + 10 * (moment % 3), in_flight=3, ready=0))
    assert allowed == (960 - 620) // 10 - 2 - 1
    few = Allowance(650, most=100, workers=8)
    assert [few.decide(glance(moment, 600, 0, 0)) for moment in range(3)] == [1, 1, 1]


def test_what_was_needed_lately_counts() -> None:
    """The peak of all else, not its last value; in the end it is forgotten."""
    allowance = Allowance(1000, most=100, workers=2)
    allowance.decide(glance(0, 800, 0, 0))
    for moment in range(1, 20):
        allowed = allowance.decide(glance(moment, 200, 0, 0))
    assert allowed == 16
    for moment in range(40, 60):
        allowed = allowance.decide(glance(moment, 200, 0, 0))
    assert allowed == (960 - 200) // 10 - 3


def test_too_much_takes_away_and_one_always_stays() -> None:
    """By as much as it is above; never to none, since the epoch would seem to be over."""
    allowance = Allowance(1000, most=100, workers=2)
    for moment in range(10):
        before = allowance.decide(glance(moment, 700, in_flight=20, ready=20))
    assert allowance.decide(glance(10, 1040, in_flight=20, ready=20)) <= before - 4
    assert allowance.decide(glance(11, 9999, in_flight=20, ready=20)) == 1


# --- the guard -----------------------------------------------------------------------------------


class Made:
    """Processes that hold what the test says."""

    def __init__(self, used: int) -> None:
        self.used = used
        self.trims = 0

    def watched(self) -> tuple[ProcessUse, ...]:
        """All is in the trainer."""
        return (use("trainer", self.used),)

    def quick(self) -> Quick:
        """The same."""
        return Quick(resident=self.used)

    def add_workers(self, workers: Any) -> None:
        """There are none."""

    def begin_again(self) -> None:
        """Nothing grows."""

    def trim(self) -> bool:
        """Nothing to give back."""
        self.trims += 1
        return False


def use(role: str, held: int, *, grown: int | None = None) -> ProcessUse:
    """What a process holds, all of it heap."""
    memory = ProcessMemory(pid=1, name="python", pss=held, anonymous=held, shared_memory=0, file=0)
    return ProcessUse(role=role, memory=memory, grown=grown)


def guard(held: int, *, count: int) -> tuple[MemoryGuard, InFlight, Made]:
    """A guard with a budget of 1000 bytes over a loop with two workers."""
    flight, made = InFlight(8, 2), Made(held)
    watching = MemoryGuard(1000, flight=flight, tree=made, batch_size=4)
    flight.count, flight.handed, flight.batch_bytes = count, 5, 100
    return watching, flight, made


def test_it_ends_only_after_less_in_flight_took_effect() -> None:
    """As long as batches are in flight that could still be handed out, it waits."""
    watching, flight, made = guard(1200, count=4)
    for moment in range(10):
        watching.look(moment)
    assert flight.allowed == 1
    assert made.trims > 0
    flight.check()
    flight.count = 1
    watching.look(10)
    flight.check()  # time to take effect
    watching.look(10.5)
    flight.check()
    watching.look(12)
    with pytest.raises(MemoryBudgetError, match="with one batch in flight"):
        flight.check()


def test_workers_that_run_away_are_not_waited_for() -> None:
    """Far above the budget, while they still make batches; those that are ready are no reason."""
    watching, flight, _ = guard(1300, count=4)
    flight.received = 4
    for moment in range(10):
        watching.look(moment)
    flight.check()
    flight.received = 2
    for moment in range(10, 13):
        watching.look(moment)
    with pytest.raises(MemoryBudgetError):
        flight.check()


def test_training_that_keeps_too_much_is_not_waited_for() -> None:
    """All batches in flight are ready, and without any of them it would still be too much."""
    watching, flight, _ = guard(1401, count=4)
    flight.received = 4
    watching.look(0)
    watching.look(0.5)
    flight.check()
    watching.look(1)
    with pytest.raises(MemoryBudgetError) as caught:
        flight.check()
    assert "with one batch" not in str(caught.value)


def test_it_measures_once_more_before_it_ends() -> None:
    """What was given back in the body of the loop counts."""
    watching, flight, made = guard(1500, count=1)
    for moment in range(4):
        watching.look(moment)
    assert flight.refuse is not None
    made.used = 900
    flight.check()
    assert flight.refuse is None


def test_a_short_peak_is_no_reason() -> None:
    """Above the budget for less than a second, again and again."""
    watching, flight, made = guard(1500, count=1)
    for moment in range(20):
        made.used = 1500 if moment % 2 else 900
        watching.look(moment * 0.9)
        flight.check()


def test_a_forked_child_is_left_alone() -> None:
    """The thread is not there, and its locks may be held for ever."""
    watching, flight, _ = guard(1500, count=1)
    for moment in range(4):
        watching.look(moment)
    watching._lock.acquire()

    def child() -> None:
        flight.check()
        watching.end()

    assert forked(child) == 0
    watching._lock.release()


# --- the advice ----------------------------------------------------------------------------------


def told(held: list[int], *, budget: int = 1000, size: int = 100, **options: Any) -> str:
    """The advice for a trainer and workers that hold so much."""
    uses = [use("trainer", held[0], grown=options.get("trainer"))]
    grown = options.get("workers", 0)
    uses += [use(f"worker {i}", each, grown=grown) for i, each in enumerate(held[1:])]
    flight = InFlight(4 * (len(held) - 1), len(held) - 1)
    flight.batch_bytes = size
    return advice(LoaderMemory(processes=tuple(uses), budget=budget), flight, 8)


def test_the_advice_names_the_nearest_plan() -> None:
    """By what was measured: fewer workers that fit, or what else would help."""
    assert told([300, 200, 200, 200, 200]).startswith("num_workers=1, prefetch_factor=1 would fit")
    assert "num_workers=2" in told([300, 200, 200, 200, 200], budget=1150)
    assert "num_workers=0 or engine='thread' and a batch_size below 8" in told([300, 900, 900])
    assert "no plan of the loader helps" in told([1200, 10, 10])
    assert "worker 0 has grown by" in told([300, 600, 600], workers=450)
    assert "this process has grown by" in told([1500], trainer=900)
    assert "smaller batch_size" in told([1000], budget=1000)
