"""Trials: what is measured, and that the user's code can do what it likes without doing harm."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import re
import tempfile
import textwrap
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from processes import started
from torch.utils.data import DataLoader, IterableDataset

from sharedds.diagnose import isolated, trial
from sharedds.diagnose.child import failure
from sharedds.diagnose.isolated import MAKING, Finished, _environment, _Life, _sweep
from sharedds.diagnose.loading import (
    EndlessOrder,
    EndlessSampler,
    batch_nbytes,
    build,
    measure_loading,
)
from sharedds.diagnose.profile import profile_samples
from sharedds.diagnose.target import load_target
from sharedds.diagnose.trial import MemoryPoint, Trial, TrialOptions, run_trial, run_trials
from sharedds.errors import OptionError

CODE = """
    import ctypes, os, re, sys, time

    class Numbers:
        def __len__(self):
            return 10

        def __getitem__(self, index):
            return float(index)

    class Wild(Numbers):
        \"\"\"Prints, then leaves, then fails, then takes the process with it.\"\"\"
        calls = 0

        def __getitem__(self, index):
            print("loading", index)
            Wild.calls += 1
            if Wild.calls == 1:
                sys.exit("enough")
            if Wild.calls == 2:
                raise KeyError("patient 7")
            ctypes.string_at(0)

    class Backtracks(Numbers):
        def __init__(self):
            re.match(r"(a+)+$", "a" * 60 + "b")

    class Stuck(Numbers):
        def __getitem__(self, index):
            time.sleep(600)
"""

SHORT = TrialOptions(num_workers=0, batch_size=2, samples=20)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A file with datasets, as a user has it."""
    path = tmp_path / "unruly.py"
    path.write_text(textwrap.dedent(CODE))
    return path


def test_a_trial_measures_speed_and_memory(code: Path) -> None:
    """Of our loader and of torch's, with workers and without, in one process of their own."""
    options = [
        replace(SHORT, loader="torch"),
        replace(SHORT, num_workers=1, samples=400, memory_share=0.5),
    ]
    plain, ours = run_trials(load_target(f"{code}:Numbers"), options)
    for each in (plain, ours):
        assert each.error is None
        assert each.samples_per_second
        assert each.first_batch_seconds
        assert each.bytes == 8 * each.samples
        assert each.peak_pss >= each.peak_irrevocable > 0  # type: ignore[operator]
    assert plain.plan is None
    assert not plain.points[0].workers
    assert ours.plan is not None
    assert ours.num_workers == 1
    assert [len(point.workers) for point in ours.points] == [1] * len(ours.points)
    assert ours.worker_uss_last


def test_code_that_leaves_fails_or_crashes_ends_in_a_text(code: Path) -> None:
    """What it does to its process is no matter to ours, nor to the trials that come after."""
    first, second, third, fourth = run_trials(load_target(f"{code}:Wild"), [SHORT] * 4)
    assert "SystemExit('enough')" in str(first.error)
    assert "KeyError: 'patient 7'" in str(second.error)
    assert "unruly.py" in second.details
    assert "SIGSEGV" in str(third.error)
    assert "unruly.py" in str(third.error)
    assert "loading" in third.output
    assert fourth.error == first.error  # in another process, where it begins again


def test_code_that_hangs_is_ended_and_says_where(code: Path) -> None:
    """After a while without a sign of life."""
    stuck = run_trial(load_target(f"{code}:Stuck"), replace(SHORT, patience=1.0))
    assert "no sign of life for 1 s while waiting for the first batch" in str(stuck.error)
    assert "unruly.py:30 in __getitem__" in str(stuck.error)


def test_what_cannot_be_made_fails_every_trial_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be no different next time; a crash while loading might well be."""
    asked = []

    def answer(phase: str) -> None:
        def run(*arguments: object, **options: object) -> Finished:
            asked.append(arguments)
            return Finished(error="no such disk", phase=phase)

        monkeypatch.setattr(trial, "run_isolated", run)

    for phase, times in ((MAKING, 1), ("waiting for the first batch", 5)):
        answer(phase)
        asked.clear()
        trials = run_trials(load_target([1, 2]), [SHORT] * 5)
        assert [each.error for each in trials] == ["no such disk"] * 5
        assert len(asked) == times


RUNNING = """
    import json, sys
    from sharedds.diagnose.isolated import run_isolated

    def tick(phase):
        if phase.startswith(sys.argv[3]):
            print("going", flush=True)

    options, recipe = map(json.loads, sys.argv[1:3])
    run_isolated("trials", {"trials": [options]}, lambda folder: recipe, tick=tick)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A temporary folder that has to be empty in the end; that of pytest is another one."""
    places = tempfile.mkdtemp(prefix="t-")  # tmp_path is too long for sockets
    monkeypatch.setenv("TMPDIR", places)
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield places
    assert not os.listdir(places)
    os.rmdir(places)


@pytest.mark.usefixtures("temporary")
def test_nothing_is_left_of_a_trial_that_is_interrupted(code: Path) -> None:
    """Ctrl-C ends trial, workers and servers, and takes their files away."""
    before = psutil.Process().children(recursive=True)
    below: list[psutil.Process] = []

    def tick(phase: str) -> None:
        if phase.startswith("loading"):
            now = psutil.Process().children(recursive=True)
            below.extend(each for each in now if each not in before)
            raise KeyboardInterrupt

    options = TrialOptions(
        loader="torch", start_method="fork", num_workers=1, batch_size=2, seconds=600
    )
    with pytest.raises(KeyboardInterrupt):
        run_trial(load_target(f"{code}:Numbers"), options, tick=tick)
    assert len(below) > 1
    _expect_gone(below)


@pytest.mark.usefixtures("temporary")
def test_code_that_lets_no_thread_run_is_ended_with_its_user(code: Path) -> None:
    """As an expression that backtracks for ever, and holds the interpreter meanwhile."""
    recipe = load_target(f"{code}:Backtracks").recipe(code.parent)
    process = started(RUNNING, json.dumps(asdict(SHORT)), json.dumps(recipe), MAKING)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "going\n"
        time.sleep(0.2)
        below = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait(20)
        _expect_gone(below)
        time.sleep(0.2)  # for its folder
    finally:
        process.kill()
        process.communicate()


def test_a_process_that_works_without_a_word_lives() -> None:
    """One that only waits does not."""
    for source, lives in (("while True: pass", True), ("import time; time.sleep(60)", False)):
        process = started(f"print(1, flush=True)\n{source}")
        try:
            assert process.stdout is not None
            process.stdout.readline()
            life = _Life(process.pid, 0.0, 0.2)
            life.shows(0.2, MAKING)
            time.sleep(0.3)
            assert life.shows(0.5, MAKING) is lives
        finally:
            process.kill()
            process.communicate()


def test_forgotten_folders_are_swept_and_used_ones_are_not(tmp_path: Path) -> None:
    """What a machine that went down has left, once it is old and nobody holds it."""
    old, used, new = (tmp_path / f"sharedds-trial-{name}" for name in ("old", "used", "new"))
    for folder in (old, used, new):
        folder.mkdir()
        if folder != new:
            os.utime(folder, (1, 1))
    held = os.open(used, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        _sweep(tmp_path)
    finally:
        os.close(held)
    assert sorted(path.name[15:] for path in tmp_path.iterdir()) == ["new", "used"]


def test_packages_do_not_come_before_the_standard_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A backport in site-packages must not hide what it stands in for."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert _environment(tmp_path)["PYTHONPATH"] == str(Path(isolated.__file__).parents[2])
    place = tmp_path / "site-packages" / "sharedds" / "diagnose" / "isolated.py"
    monkeypatch.setattr(isolated, "__file__", str(place))
    assert "PYTHONPATH" not in _environment(tmp_path)


@pytest.mark.usefixtures("temporary")
def test_nothing_is_left_of_a_trial_whose_user_is_killed(code: Path) -> None:
    """Nor by kill -9, which nobody can prepare for."""
    options = TrialOptions(num_workers=1, batch_size=2, seconds=600)
    recipe = load_target(f"{code}:Numbers").recipe(code.parent)
    process = started(RUNNING, json.dumps(asdict(options)), json.dumps(recipe), "loading")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "going\n"
        below = psutil.Process(process.pid).children(recursive=True)
        assert len(below) > 1
        shared = {path for each in below for path in _shared_files(each)}
        assert shared
        process.kill()
        process.wait(20)
        _expect_gone(below)
        assert not [path for path in shared if path.exists()]
    finally:
        process.kill()
        process.communicate()


def _shared_files(process: psutil.Process) -> list[Path]:
    """Return what a process has mapped of the shared memory that has a name."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{process.pid}/maps").read_text()
        return [Path(found) for found in re.findall(r"/dev/shm/\S+(?=\n)", text)]
    return []


def _expect_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]


def test_the_error_of_a_worker_is_its_own_last_line() -> None:
    """And not the whole of its traceback, which torch puts into the text."""
    text = (
        "Caught KeyError in DataLoader worker process 0.\n"
        "Original Traceback (most recent call last):\n"
        '  File "a.py", line 1, in f\n    x[7]\nKeyError: 7\nwhile making the batch\n'
    )
    assert failure(KeyError(text))["error"] == "KeyError: 7"
    assert failure(ValueError("too small"))["error"] == "ValueError: too small"
    ours = text.replace("KeyError: 7", "sharedds.errors.SourceError: a.png: damaged")
    assert failure(OptionError(ours))["error"] == "a.png: damaged"


def test_a_sampler_and_the_start_of_workers_are_the_users_own(code: Path) -> None:
    """In a loader of torch; batches that it makes by itself are refused."""
    started_with: list[int] = []
    numbers: Any = range(10)
    loader: DataLoader[int] = DataLoader(
        numbers,
        batch_size=2,
        sampler=[7, 3, 3],
        worker_init_fn=started_with.append,
    )
    opened = load_target(loader).open()
    made = build(opened, asdict(replace(SHORT, loader="torch")))
    assert [batch.tolist() for batch in itertools.islice(made, 3)] == [[7, 3], [3, 7], [3, 3]]
    assert made.worker_init_fn == opened.worker_init_fn is not None
    for options in ({"batch_size": None}, {"batch_sampler": [[0]]}):
        bare: Any = DataLoader(numbers, **options)
        with pytest.raises(OptionError, match="without a batch size"):
            load_target(bare).open()


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_stream_that_gives_nothing_says_so(rounds: int) -> None:
    """Instead of the StopIteration that it ends in."""

    class Stream(IterableDataset[int]):
        def __init__(self) -> None:
            self.once = iter(range(4 * rounds))

        def __iter__(self) -> Iterator[int]:
            return self.once

    opened = load_target(Stream()).open()
    reason = "gives none when it is read again" if rounds else "the dataset is empty"
    options = asdict(replace(SHORT, loader="torch"))
    with pytest.raises(OptionError, match=reason):
        measure_loading(opened, options, lambda phase: None)
    with pytest.raises(OptionError, match="the dataset is empty"):  # by now
        profile_samples(opened, batch_size=4, seconds=0.1, say=lambda phase: None)


# --- arithmetic ----------------------------------------------------------------------------------


def test_a_trial_needs_an_end() -> None:
    """Nobody waits for ever by accident."""
    with pytest.raises(OptionError, match="needs an end"):
        TrialOptions(num_workers=0)


def _trial(uss: list[int], *, workers: int = 2, step: int = 1000) -> Trial:
    points = tuple(
        MemoryPoint(
            samples=i * step,
            seconds=float(i),
            workers=(value,) * workers,
            trainer=0,
            pss=value,
            irrevocable=value,
        )
        for i, value in enumerate(uss)
    )
    return Trial(options=SHORT, num_workers=workers, points=points)


def test_growth_is_that_of_a_worker_over_the_samples_that_it_read() -> None:
    """Two workers share 1,000 samples, so each grows twice as fast over its own."""
    steady = [10_000_000 + 5_000 * i for i in range(20)]
    assert _trial(steady).growth_per_1000 == pytest.approx(10_000, rel=1e-6)


def test_a_first_jump_is_no_growth() -> None:
    """What a worker loads once, at the beginning, does not count."""
    assert _trial([1_000_000] + [50_000_000] * 19).growth_per_1000 == pytest.approx(0, abs=1)


def test_without_workers_or_points_there_is_no_growth() -> None:
    """Not known is not zero."""
    assert _trial([1, 2]).growth_per_1000 is None
    assert _trial([1] * 20, workers=0).growth_per_1000 is None


def test_the_endless_order_takes_each_sample_once_a_round() -> None:
    """In another order each time; both loaders get the same."""
    order = EndlessOrder(10)
    indices = order.at(0, 0, np.arange(30, dtype=np.int64))
    rounds = indices.reshape(3, 10)
    assert [sorted(each) for each in rounds.tolist()] == [list(range(10))] * 3
    assert rounds[0].tolist() != rounds[1].tolist()
    sampler = iter(EndlessSampler(10))
    assert [next(sampler) for _ in range(30)] == indices.tolist()


@pytest.mark.parametrize(
    ("batch", "nbytes"),
    [
        (torch.zeros(3, 4), 48),
        ([torch.zeros(2, dtype=torch.uint8), {"a": np.zeros(4)}], 34),
        ((b"1234", "abc", 5), 7),
    ],
)
def test_the_bytes_of_a_batch_are_those_of_its_data(batch: Any, nbytes: int) -> None:
    """Whatever it is made of."""
    assert batch_nbytes(batch) == nbytes


def test_a_trial_is_told_as_plain_values() -> None:
    """For JSON."""
    told = _trial([1_000_000] * 5).to_dict()
    assert told["worker_uss_last"] == 1_000_000
    assert told["options"]["batch_size"] == 2


@pytest.mark.parametrize("new", [False, True])
def test_memory_that_is_kept_for_batches_can_be_left_out(*, new: bool) -> None:
    """Kept buffers fill up like a cache, which a search for caches must not see."""
    options = asdict(replace(SHORT, num_workers=1, batch_size=2, new_memory=new))
    made = build(load_target([1, 2, 3]).open(), options)
    assert made._keeps_buffers is not new
    assert TrialOptions(samples=1).new_memory is False
