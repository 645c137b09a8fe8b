"""Samples that cannot be loaded: raised, left out or replaced, never silently."""

from __future__ import annotations

import json
import os
import pickle
import re
import resource
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from sharedds.errors import OptionError, SampleError, WorkerDiedError, WorkerError
from sharedds.loader import build_loader
from sharedds.loader.failures import Delivery, ErrorPolicy, FailedSample, name_of
from sharedds.loader.ledger import FailureLedger

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

BAD = {3, 8, 9, 10, 11, 17}
WORKERS = [0, 2]


class DamagedError(ValueError):
    """An error with a file, and one that is not made of its text alone."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.path = path


class Spotted:
    """Numbers, some of which cannot be loaded."""

    def __init__(self, bad: set[int] = BAD, count: int = 40) -> None:
        self.bad = bad
        self.count = count

    def __len__(self) -> int:
        return self.count

    def key(self, index: int) -> str:
        """The name of a sample."""
        return f"scan-{index}"

    def __getitem__(self, index: int) -> int:
        if index in self.bad:
            raise DamagedError(f"/data/{index}.nii", "checksum")
        return index


class Hungry(Spotted):
    """Samples for which memory does not suffice."""

    def __getitem__(self, index: int) -> int:
        if index in self.bad:
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (8 << 30, hard))
            bytearray(16 << 30)
        return index


def loader(dataset: Any, workers: int, **options: Any) -> Any:
    """A loader with batches of four."""
    return build_loader(
        dataset,
        batch_size=4,
        num_workers=workers,
        start_method="fork" if workers else None,
        **options,
    )


def quietly(loader: Any) -> list[list[int]]:
    """All batches of an epoch, whatever it warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [batch.tolist() for batch in loader]


def flat(batches: list[list[int]]) -> list[int]:
    """All samples of an epoch."""
    return [sample for batch in batches for sample in batch]


def failed(index: int, epoch: int = 0) -> FailedSample:
    """A record of a failed sample."""
    return FailedSample(
        index=index, epoch=epoch, name=None, path=None, worker=None, error="E: bad", trace="TRACE"
    )


# --- raising -------------------------------------------------------------------------------------


def test_torch_names_neither_sample_nor_file() -> None:
    """What torch raises in the trainer has lost the attributes, and often the type."""
    plain: Any = iter(DataLoader(Spotted(), batch_size=4, num_workers=1))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError) as caught:
        next(plain)
    plain._shutdown_workers()
    assert "scan-3" not in str(caught.value)
    assert not hasattr(caught.value, "path")


@pytest.mark.parametrize("workers", WORKERS)
def test_a_bad_sample_is_named(workers: int) -> None:
    """The error says which sample, key, file and worker, and holds traceback and cause."""
    batches = iter(loader(Spotted(), workers, shuffle=False))
    with pytest.raises(SampleError) as caught:
        next(batches)
    error = caught.value
    assert (error.sample, error.key, error.path) == (3, "scan-3", "/data/3.nii")
    assert "in __getitem__" in str(error)
    assert ("worker 0" if workers else "the trainer") in str(error)
    assert isinstance(error.__cause__, DamagedError)
    assert pickle.loads(pickle.dumps(error)).sample == 3
    assert next(batches).tolist() == [4, 5, 6, 7]  # who wants to can go on


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_want_of_memory_is_an_error_with_the_facts(on_error: str) -> None:
    """What is short for one sample is short for all: it is never skipped."""
    with pytest.raises(SampleError, match=r"sample 3 .* address space limited to 8,589.9 MB"):
        list(loader(Hungry({3}), 1, on_error=on_error))


def test_a_batch_that_cannot_be_made_is_named() -> None:
    """Of an error of collate_fn, the samples of the batch are known."""

    def collate(samples: list[int]) -> int:
        return 1 // (len(samples) - 2)

    with pytest.raises(ZeroDivisionError, match="while making the batch of the samples 8, 9"):
        list(loader(Spotted(set(), 10), 1, collate_fn=collate))


@pytest.mark.parametrize("workers", WORKERS)
def test_a_stop_inside_collate_is_no_end_of_the_epoch(workers: int) -> None:
    """Torch takes it for the last batch: half the epoch would be missing without a word."""

    def collate(samples: list[int]) -> int:
        return next(iter(samples[:0])) if 4 in samples else len(samples)

    numbers: Any = Spotted(set(), 8)
    assert len(list(DataLoader(numbers, 2, collate_fn=collate))) == 2
    with pytest.raises(WorkerError, match="StopIteration"):
        list(loader(numbers, workers, collate_fn=collate))


class Together(Spotted):
    """A dataset whose batches cannot be read, though each sample can."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        raise DamagedError("/data/index", "no batch today")


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_fault_of_reading_together_is_not_hidden(on_error: str) -> None:
    """When no sample is at fault the error is the batch's own; reading twice would hide it."""
    with pytest.raises(Exception, match="no batch today"):
        list(loader(Together(set(), 8), 0, on_error=on_error))


class Mortal(Spotted):
    """A dataset that ends its worker."""

    def __getitem__(self, index: int) -> int:
        return os._exit(3) if index in self.bad else index


def test_after_its_workers_died_a_loop_says_so_again() -> None:
    """Going on with the same loop is an error that tells how to go on."""
    batches = iter(loader(Mortal({6}, 12), 2))
    with pytest.raises(WorkerDiedError):
        list(batches)
    with pytest.raises(WorkerError, match="begin a new loop"):
        next(batches)


# --- leaving out, replacing ----------------------------------------------------------------------


def test_batches_get_shorter_and_empty_ones_are_left_out() -> None:
    """The same for any number of workers; collate_fn never sees an empty list."""
    streams = [quietly(loader(Spotted(), workers, on_error="skip")) for workers in WORKERS]
    assert streams[0] == streams[1]
    assert streams[0][:4] == [[0, 1, 2], [4, 5, 6, 7], [12, 13, 14, 15], [16, 18, 19]]
    assert flat(streams[0]) == [i for i in range(40) if i not in BAD]


def test_replacements_are_good_and_the_same_for_all_workers() -> None:
    """All batches are full, nothing bad is among them, and the seed decides."""
    options = {"on_error": "replace", "shuffle": True}
    streams = [quietly(loader(Spotted(), workers, **options, seed=5)) for workers in WORKERS]
    assert streams[0] == streams[1]
    assert [len(batch) for batch in streams[0]] == [4] * 10
    assert not BAD & set(flat(streams[0]))
    assert streams[0] != quietly(loader(Spotted(), 0, **options, seed=6))


def test_single_samples_are_left_out_too() -> None:
    """Without batches, the sample as a whole is left out or replaced."""
    for on_error, count in (("skip", 34), ("replace", 40)):
        samples = build_loader(Spotted(), batch_size=None, num_workers=0, on_error=on_error)  # type: ignore[arg-type,var-annotated]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert len(list(samples)) == count


class Elsewhere(Spotted):
    """Loads whole batches, some samples of which are on another device."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((1,), index, device="meta" if index in self.bad else "cpu")

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Load several."""
        return [self[index] for index in indices]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_sample_elsewhere_is_one_that_failed(workers: int) -> None:
    """Also in a batch that was loaded at once: named with its attributes, or left out."""
    with pytest.raises(SampleError, match="must stay on the CPU") as caught:
        list(loader(Elsewhere(), workers))
    assert caught.value.sample == 3
    got = quietly(loader(Elsewhere(), workers, on_error="skip", collate_fn=torch.cat))
    assert flat(got) == [i for i in range(40) if i not in BAD]


def test_nothing_good_to_replace_with_is_an_error() -> None:
    """It does not search for ever, and tells of each sample that it tried what was wrong."""
    with pytest.raises(SampleError, match="all 10 samples tried in its place failed too") as raised:
        list(loader(Spotted(set(range(40))), 0, on_error="replace"))
    text = str(raised.value)
    assert len(re.findall(r"\n  sample \d+.*: \w+: ", text)) == 10
    assert text.count("\ntried in its place, sample") >= 1


def test_a_first_and_a_last_warning_tell_what_was_left_out() -> None:
    """Never a silent drop: once at the first, once at the end of the epoch."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        list(loader(Spotted(), 2, on_error="skip"))
    first, last = (str(warning.message) for warning in seen)
    assert first.startswith("sample 3 (scan-3): DamagedError")
    assert last.startswith("6 of 40 samples of epoch 0 could not be loaded")


@pytest.mark.parametrize("workers", WORKERS)
def test_too_many_failures_end_the_epoch(workers: int) -> None:
    """At the same batch for any number of workers, with the number and the first few."""
    batches = iter(loader(Spotted(), workers, on_error="skip", error_budget=3))
    got = []
    with pytest.raises(SampleError, match=r"4 of 40 .* budget of 3") as caught:  # noqa: SIM117
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            while True:
                got.append(next(batches).tolist())
    assert got == [[0, 1, 2], [4, 5, 6, 7]]
    assert "scan-3" in str(caught.value)
    assert isinstance(caught.value.__cause__, DamagedError)


def test_the_log_has_a_line_for_each_failure(tmp_path: Path) -> None:
    """In the order of the stream, with all that is known."""
    path = tmp_path / "errors.jsonl"
    with pytest.warns(UserWarning, match=r"6 of 40 .*errors\.jsonl") as seen:
        list(loader(Spotted(), 2, on_error="replace", error_log=path))
    assert len(seen) == 1
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["index"] for line in lines] == sorted(BAD)
    assert lines[0]["name"] == "scan-3"
    assert lines[0]["path"] == "/data/3.nii"
    assert lines[0]["worker"] == 0
    assert lines[0]["replacement"] not in BAD
    assert "in __getitem__" in lines[0]["trace"]


def test_a_resumed_run_goes_on_with_its_budget() -> None:
    """At each step, a resumed loader ends, warns and fails where one without a break does."""
    options: dict[str, Any] = {"on_error": "skip", "error_budget": 5}
    whole = loader(Spotted(), 0, **options)
    states, ends = [whole.state_dict()], []
    batches = iter(whole)
    with pytest.raises(SampleError, match="6 of 40"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while True:
            ends.append(next(batches).tolist())
            states.append(json.loads(json.dumps(whole.state_dict())))
    assert [record.index for record in whole.failures] == sorted(BAD)
    assert [state.get("failed", 0) for state in states] == [0, 1, 1, 5]
    for step, state in enumerate(states):
        resumed = loader(Spotted(), 0, **options)
        resumed.load_state_dict(state)
        again = iter(resumed)
        got = []
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            with pytest.raises(SampleError, match="6 of 40"):
                while True:
                    got.append(next(again).tolist())
        assert got == ends[step:]
        assert len(seen) == (step == 0)  # the first failure was told before the break


def test_a_resumed_run_tells_at_the_end_what_failed_before() -> None:
    """The summary counts the whole epoch, whatever of it this process has seen."""
    for bad, words in (({1}, "all of them before"), ({1, 30}, "the first since the resume")):
        first = loader(Spotted(bad), 0, on_error="skip")
        batches = iter(first)
        with pytest.warns(UserWarning, match="sample 1"):
            next(batches)
        resumed = loader(Spotted(bad), 0, on_error="skip")
        resumed.load_state_dict(first.state_dict())
        with pytest.warns(UserWarning, match=f"{len(bad)} of 40 .*{words}"):
            list(resumed)


# --- policy and ledger, alone --------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"on_error": "ignore"},
        {"budget": -1},
        {"budget": 1.5},
        {"budget": True},
        {"budget": "5"},
        {"attempts": 0},
        {"log": "/no/such/folder/x.jsonl"},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    """Before any worker starts."""
    with pytest.raises(OptionError):
        ErrorPolicy(**options)


@pytest.mark.parametrize(
    ("budget", "samples", "allowed"),
    [(None, 100, 10), (None, 5000, 50), (None, None, 10), (0, 100, 0), (7, 100, 7), (0.5, 100, 50)],
)
def test_budgets_are_finite(budget: float | None, samples: int | None, allowed: int) -> None:
    """By default one in a hundred, but at least ten."""
    policy = pickle.loads(pickle.dumps(ErrorPolicy(on_error="skip", budget=budget)))
    assert policy.allowed(samples) == allowed


@pytest.mark.filterwarnings("ignore:.*could not be loaded", "ignore:sample")
def test_a_count_goes_on_after_a_resume_and_ends_with_its_epoch() -> None:
    """The budget is that of an epoch, whether or not it was interrupted."""
    ledger = FailureLedger(ErrorPolicy(on_error="skip", budget=2), 100)
    ledger.begin(4, count=2)
    with pytest.raises(SampleError, match="budget of 2"):
        ledger.take(Delivery(None, (failed(1, 4),), is_empty=True))
    ledger.begin(5)
    assert ledger.take(Delivery("batch", (failed(1, 5),))) == ("batch", True)
    assert ledger.take(Delivery(None, (failed(2, 5),), is_empty=True)) == (None, False)
    assert [record.index for record in ledger.failures] == [1, 2]


def test_a_log_that_cannot_be_written_is_no_end(tmp_path: Path) -> None:
    """One warning; the failures still stand in the summary."""
    (tmp_path / "log").mkdir()
    ledger = FailureLedger(ErrorPolicy(on_error="skip", log=tmp_path / "log"), 100)
    with pytest.warns(UserWarning, match="cannot be written") as seen:
        ledger.account([failed(1), failed(2)])
    assert len(seen) == 1


def test_names_come_from_the_dataset() -> None:
    """By key or item, through torch's subsets; a dataset without either has none."""
    dataset: Any = Spotted()
    assert name_of(torch.utils.data.Subset(dataset, [7, 5]), 1) == "scan-5"
    assert name_of([1, 2], 0) is None


class MuteError(ValueError):
    """An error whose own code fails."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __reduce__(self) -> Any:
        raise SystemExit

    @property
    def path(self) -> str:
        """Fail."""
        raise RuntimeError("no path")


class Mute(Spotted):
    """Numbers, one of which fails in that way."""

    def __getitem__(self, index: int) -> int:
        if index == 3:
            raise MuteError
        return index


@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_that_cannot_speak_for_itself_is_named_too(workers: int) -> None:
    """Its text, its path and its pickling all fail; the sample is named, or left out."""
    with pytest.raises(SampleError, match=r"sample 3 .*MuteError: <no text"):
        list(loader(Mute(), workers))
    with pytest.warns(UserWarning, match="left out"):
        assert len(next(iter(loader(Mute(), workers, on_error="skip")))) == 3
