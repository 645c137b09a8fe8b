"""Workers by fork, forkserver and spawn: what travels to them, how they live and how they end."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs.blosc
import pytest
import torch
from processes import METHODS, children, left_in_shared_memory, shared_memory_names, unmeasured
from torch.utils.data import Dataset

import sharedds.workers.starting
from sharedds.datasets import LazyDataset
from sharedds.errors import DecodeError, OptionError, SampleError, SharedDSError, WorkerError
from sharedds.handles import per_process
from sharedds.loader import build_loader

#: Without spawn, whose workers take seconds to start: for what does not depend on it.
FAST_METHODS = METHODS[:2]


class Facts(LazyDataset[dict[str, Any]]):
    """Each sample says where and how it was made."""

    @per_process
    def opened_by(self) -> int:
        """The process that opened the handle."""
        return os.getpid()

    def load(self, item: str) -> dict[str, Any]:
        """Return the facts."""
        status = Path("/proc/self/status")
        return {
            "item": int(item),
            "pid": os.getpid(),
            "opened_by": self.opened_by,
            "torch": torch.get_num_threads(),
            "blosc": numcodecs.blosc.get_nthreads(),
            "omp": os.environ.get("OMP_NUM_THREADS"),
            "threads": int(status.read_text().split("Threads:")[1].split()[0])
            if status.exists()
            else 1,
            "set_by_user": os.environ.get("SET_BY_USER"),
        }


def as_lists(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Collate nothing."""
    return samples


def after_limits(worker_id: int) -> None:
    """Note what the threads were when the user's function ran."""
    os.environ["SET_BY_USER"] = f"{worker_id} {torch.get_num_threads()}"


@pytest.fixture(scope="module", params=METHODS)
def run(request: pytest.FixtureRequest) -> tuple[str, list[list[dict[str, Any]]], set[str]]:
    """One run of two workers for each start method: its batches, and what it left in /dev/shm."""
    dataset = Facts(str(i) for i in range(24))
    assert dataset[0]["opened_by"] == os.getpid()  # the parent has used its handle
    before = shared_memory_names()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        (torch.rand(300, 300) @ torch.rand(300, 300)).sum()  # OpenMP has threads now
        loader = build_loader(
            dataset,
            batch_size=4,
            num_workers=2,
            start_method=request.param,
            collate_fn=as_lists,
            worker_init_fn=after_limits,
            timeout=60,
        )
        batches = list(loader)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    del loader
    return request.param, batches, left_in_shared_memory(before)


Run = tuple[str, list[list[dict[str, Any]]], set[str]]


def test_batches_are_those_of_a_loader_without_workers(run: Run) -> None:
    """Same samples, same batches, same order, made by two other processes."""
    numbers = [[sample["item"] for sample in batch] for batch in run[1]]
    assert numbers == [list(range(i, i + 4)) for i in range(0, 24, 4)]
    pids = {sample["pid"] for batch in run[1] for sample in batch}
    assert len(pids) == 2
    assert os.getpid() not in pids


def test_every_worker_opens_its_own_handle(run: Run) -> None:
    """A handle that the parent had opened is never used by a worker."""
    assert all(sample["opened_by"] == sample["pid"] for batch in run[1] for sample in batch)


def test_every_worker_keeps_to_one_thread(run: Run) -> None:
    """Torch and blosc use one thread, libraries loaded later are told to, few threads exist."""
    for sample in run[1][-1]:
        assert (sample["torch"], sample["blosc"], sample["omp"]) == (1, 1, "1")
        assert sample["threads"] <= 6


def test_the_users_init_function_runs_after_the_limits(run: Run) -> None:
    """So that it can lift them."""
    seen = {sample["set_by_user"] for batch in run[1] for sample in batch}
    assert seen == {"0 1", "1 1"}


def test_nothing_is_left_in_shared_memory(run: Run) -> None:
    """No segment and no semaphore stays when the loader is gone."""
    assert run[2] == set()


def test_opencv_is_limited_when_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """cv2 keeps its own pool of threads, one for each CPU."""
    calls: list[int] = []
    monkeypatch.setitem(sys.modules, "cv2", types.SimpleNamespace(setNumThreads=calls.append))
    for name in sharedds.workers.starting._THREAD_VARIABLES:
        monkeypatch.setenv(name, "3")
    threads = torch.get_num_threads()
    try:
        sharedds.workers.starting._limit_threads()
    finally:
        torch.set_num_threads(threads)
    assert calls == [0]
    assert os.environ["OMP_NUM_THREADS"] == "3"  # a value set by the user stays


# --- what lives in the main script ---------------------------------------------------------------

SCRIPT = """
import multiprocessing, os, sys
from enum import Enum
from typing import NamedTuple
import torch
from torch.utils.data import Dataset
from sharedds import LazyDataset, build_loader, per_process
from sharedds.errors import SampleError

print("body", flush=True)
OFFSET = 100

class Kind(Enum):
    EVEN = 0
    ODD = 1

class Batch(NamedTuple):
    numbers: torch.Tensor
    kinds: list
    pid: int

class BadSample(Exception):
    pass

class Numbers(LazyDataset):
    def __init__(self, items, transform):
        super().__init__(items)
        self.transform = transform

    @per_process
    def offset(self):
        return OFFSET

    def load(self, item):
        if item == "bad":
            raise BadSample(item)
        return self.transform(int(item)) + self.offset

def make_collate(scale):
    def collate(samples):
        kinds = [Kind(sample % 2) for sample in samples]
        return Batch(torch.tensor(samples) * scale, kinds, os.getpid())
    return collate

def loader(items, method):
    return build_loader(
        Numbers(items, transform=lambda x: x + 1), batch_size=3, num_workers=2, timeout=60,
        start_method=method, collate_fn=make_collate(2), persistent_workers=False,
    )

for method in sys.argv[1:]:
    batches = list(loader([str(i) for i in range(6)], method))
    assert all(type(batch) is Batch and batch.pid != os.getpid() for batch in batches)
    assert torch.cat([batch.numbers for batch in batches]).tolist() == list(range(202, 214, 2))
    assert batches[0].kinds == [Kind.ODD, Kind.EVEN, Kind.ODD]
try:
    list(loader(["1", "bad"], sys.argv[1]))
except SampleError as error:
    print("kept", type(error.__cause__) is BadSample and "line" in str(error))
assert multiprocessing.get_start_method(allow_none=True) is None
print("done")
"""


def python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run this interpreter so that it finds the package."""
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        **options,
    )


def environment() -> dict[str, str]:
    """The environment of a script that uses the package."""
    root = Path(sharedds.workers.starting.__file__).parents[2]
    return unmeasured() | {"PYTHONPATH": str(root)}


def test_a_script_without_main_guard_trains_and_runs_once(tmp_path: Path) -> None:
    """Its classes, lambdas, closures and enums travel both ways, by forkserver and spawn."""
    with pytest.raises((AttributeError, pickle.PicklingError), match="local object"):
        pickle.dumps(lambda x: x + 1)  # what a spawned worker of plain torch would be sent
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = python(str(script), "forkserver", "spawn")
    assert done.stderr == ""
    assert done.stdout.split() == ["body", "kept", "True", "done"]


def test_a_broken_library_does_not_stop_the_fork_server(tmp_path: Path) -> None:
    """A library that fails on import is only left out of what workers share."""
    (tmp_path / "simplejpeg.py").write_text("raise RuntimeError('built for another numpy')")
    script = tmp_path / "train.py"
    script.write_text(
        "from sharedds import build_loader\n"
        "print(len(list(build_loader(range(4), num_workers=1, start_method='forkserver'))))"
    )
    done = python(script.name, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("4\n", "")


def test_a_main_module_without_a_file_trains(tmp_path: Path) -> None:
    """As in a notebook, or a script that comes through a pipe."""
    done = python("-", "forkserver", "fork", input=SCRIPT, cwd=tmp_path)
    assert done.stderr == ""
    assert done.stdout.split() == ["body", "kept", "True", "done"]


# --- what cannot travel --------------------------------------------------------------------------


class Compose:
    """Transforms in a row."""

    def __init__(self, *transforms: Callable[[int], int]) -> None:
        self.transforms = list(transforms)


class Holder(Dataset[int]):
    """A dataset that holds anything."""

    def __init__(self, transform: Any = None, make: Callable[[int], Any] = int) -> None:
        self.transform = transform
        self.make = make

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def first_error(dataset: Any, method: str = "forkserver", **options: Any) -> SharedDSError:
    """The error of the first batch."""
    loader = build_loader(dataset, num_workers=2, start_method=method, timeout=60, **options)
    try:
        batch = next(iter(loader))
    except SharedDSError as error:
        return error.with_traceback(None)  # which would keep the workers
    raise AssertionError(batch)


LOCK = threading.Lock()


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_what_cannot_be_pickled_is_named_before_any_worker_starts(method: str) -> None:
    """Path, type and, where functions are on the way, their file and line."""
    lock = threading.Lock()
    line = sys._getframe().f_lineno + 1
    held = Holder(Compose(abs, lambda x: x + lock.locked()))
    before = children()
    error = first_error(held, method)
    assert isinstance(error, OptionError)
    assert "dataset.transform.transforms[1] -> variable 'lock' used by " in str(error)
    assert f"<lambda> ({Path(__file__).name}, line {line})" in str(error)
    assert "a _thread.lock" in str(error)
    assert method in str(error)
    assert not children() - before


def test_paths_lead_through_containers_slots_and_partial_functions() -> None:
    """The culprit is found wherever it hides; what only contains it is not blamed."""

    class Slotted:
        __slots__ = ("handle",)

        def __init__(self) -> None:
            self.handle = LOCK

    class Subclass(Holder):
        def __init__(self) -> None:  # super() makes the class a part of its own method
            super().__init__()
            self.options = {"a": (1, [Slotted()])}

    def collate(samples: list[int], lock: Any = LOCK) -> list[int]:
        return samples if lock else []

    assert "dataset.options['a'][1][0].handle cannot be sent" in str(first_error(Subclass()))
    error = first_error(Holder(), collate_fn=collate)
    assert "collate_fn.__defaults__[0] cannot be sent" in str(error)
    assert "worker_init_fn" in str(first_error(Holder(), worker_init_fn=LOCK.acquire))
    with open(__file__, encoding="utf-8") as file:  # cloudpickle would send a copy of what is in it
        error = first_error(Holder(file))
    assert "dataset.transform cannot be sent" in str(error)


class Handle:
    """Looks to pickle like a file of HDF5: its library refuses."""

    def __reduce__(self) -> Any:
        raise TypeError("h5py objects cannot be pickled")


def test_an_open_handle_is_to_be_opened_in_each_process() -> None:
    """A fork is no way out: it would share the handle, and what that keeps is lost or torn."""
    text = str(first_error(Holder(Handle())))
    assert "dataset.transform cannot be sent" in text
    assert "in each process (sharedds.per_process)" in text
    assert "start_method=" not in text


def test_an_error_of_the_package_while_pickling_is_not_rewritten() -> None:
    """A dataset that knows why it cannot travel says so itself."""

    class Changed(Holder):
        def __reduce__(self) -> Any:
            raise DecodeError("the file has changed")

    assert str(first_error(Changed())) == "the file has changed"


def test_what_cannot_be_rebuilt_in_a_worker_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that only this process has: the trainer gets the reason, not a dead worker."""
    module = types.ModuleType("made_at_run_time")
    exec("class Thing: pass", vars(module))
    monkeypatch.setitem(sys.modules, "made_at_run_time", module)
    error = first_error(Holder(module.Thing()))
    assert isinstance(error, WorkerError)
    assert "No module named 'made_at_run_time'" in str(error)


def make_local(index: int) -> Any:
    """A sample whose class no other process can name."""

    class Sample:
        number = index

    return Sample()


def fail_locally(index: int) -> Any:
    """An error whose class no other process can name."""

    class LocalError(Exception):
        pass

    raise LocalError(f"sample {index} is bad")


@pytest.mark.parametrize("method", FAST_METHODS)
def test_a_batch_that_cannot_be_sent_back_is_an_error_not_a_hang(method: str) -> None:
    """The error names the part; an error that cannot be sent keeps its text."""
    error = first_error(Holder(make=make_local), method, collate_fn=as_lists)
    assert isinstance(error, WorkerError)
    assert "batch[0] -> class make_local.<locals>.Sample cannot be sent" in str(error)
    error = first_error(Holder(make=fail_locally), method)
    assert isinstance(error, SampleError)
    assert "LocalError: sample 0 is bad" in str(error)


class Failing(LazyDataset[int]):
    """Every item is broken."""

    def load(self, item: str) -> int:
        """Raise."""
        raise DecodeError(f"{item} is truncated")


@pytest.mark.parametrize("method", FAST_METHODS)
def test_an_error_in_a_worker_keeps_type_text_and_note(method: str) -> None:
    """What went wrong and with which item arrives in the trainer."""
    error = first_error(Failing(["a.jpg"]), method)
    assert isinstance(error, SampleError)
    assert isinstance(error.__cause__, DecodeError)
    assert str(error.__cause__) == "a.jpg is truncated"
    assert "while loading sample 0 of Failing, item 'a.jpg'" in str(error)
