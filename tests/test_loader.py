"""The plan of a loader, and the loader that carries it out."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from processes import children
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler

from sharedds.errors import DecodeError, OptionError, SampleError, SchemaError
from sharedds.loader import LoaderPlan, build_loader
from sharedds.loader.plan import LoaderFacts, LoaderRequest, make_plan


class Squares(Dataset[int]):
    """Plain torch dataset: n squares."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index * index


class Noisy(Squares):
    """Draws from torch's random state of the worker."""

    def __getitem__(self, index: int) -> int:
        if index == 7:
            raise DecodeError("7 is no picture", sample=7)
        return int(torch.randint(1 << 30, ()))


def plan(request: dict[str, Any] | None = None, **facts: Any) -> LoaderPlan:
    """Plan with a common machine where nothing else is said."""
    common: dict[str, Any] = {
        "cpus": 16,
        "batches": 1000,
        "start_methods": ("forkserver", "fork", "spawn"),
    }
    return make_plan(LoaderRequest(**(request or {})), LoaderFacts(**(common | facts)))


def batches(loader: DataLoader[Any], epochs: int = 1) -> list[list[int]]:
    """All batches of some epochs as lists."""
    return [batch.tolist() for _ in range(epochs) for batch in loader]


# --- the plan ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpus", "batches", "workers"),
    [(1, 100, 1), (2, 100, 2), (4, 100, 2), (6, 100, 4), (64, 100, 8), (64, 3, 3), (64, 0, 0)],
)
def test_workers_follow_cpus_and_batches(cpus: int, batches: int, workers: int) -> None:
    """2 CPUs are left for training if there are 4, and no more workers than batches or 8."""
    assert plan(cpus=cpus, batches=batches).num_workers == workers


def test_what_was_asked_for_wins() -> None:
    """No request is bent, even one beyond the machine."""
    asked = {
        "num_workers": 40,
        "start_method": "fork",
        "prefetch_factor": 7,
        "pin_memory": False,
        "persistent_workers": True,
    }
    made = plan(asked, cpus=2, batches=1, accelerator="cuda")
    assert {name: getattr(made, name) for name in asked} == asked
    assert "2 CPUs only" in dict(made.reasons)["num_workers"]


@pytest.mark.parametrize(
    "request_",
    [
        {"num_workers": -1},
        {"num_workers": 1.5},
        {"num_workers": True},
        {"num_workers": "4"},
        {"prefetch_factor": 0},
        {"num_workers": 0, "prefetch_factor": 2},
        {"num_workers": 0, "persistent_workers": True},
        {"start_method": "threads"},
        {"pin_memory": "yes"},
    ],
)
def test_nonsense_is_refused_by_name(request_: dict[str, Any]) -> None:
    """Impossible values and exclusions name the option and the value."""
    name, value = list(request_.items())[-1]
    with pytest.raises(OptionError, match=f"{name}={value!r}"):
        plan(request_)


def test_requests_that_need_workers_do_not_matter_when_the_plan_has_none() -> None:
    """An empty dataset needs no workers; the same call must not fail for it."""
    made = plan({"prefetch_factor": 4, "persistent_workers": True}, batches=0)
    assert (made.num_workers, made.prefetch_factor, made.persistent_workers) == (0, None, False)


def test_a_process_that_may_not_start_workers_plans_none() -> None:
    """Inside a worker the batches are made in process; asking for workers says why not."""
    assert plan(is_daemon=True).num_workers == 0
    with pytest.raises(OptionError, match="itself a worker"):
        plan({"num_workers": 1}, is_daemon=True)


def test_fork_after_cuda_is_refused() -> None:
    """A forked worker would inherit a broken CUDA state; without workers nothing is forked."""
    with pytest.raises(OptionError, match="CUDA is already in use"):
        plan({"start_method": "fork"}, cuda_initialized=True)
    alone = plan({"start_method": "fork", "num_workers": 0}, cuda_initialized=True)
    assert alone.start_method is None
    assert plan(cuda_initialized=True).start_method == "forkserver"


@pytest.mark.parametrize(("accelerator", "pins"), [(None, False), ("cuda", True), ("mps", False)])
def test_pinning_follows_the_accelerator(accelerator: str | None, pins: bool) -> None:
    """Pinned memory helps CUDA, is impossible without an accelerator and useless on MPS."""
    assert plan(accelerator=accelerator).pin_memory is pins


def test_spawned_workers_stay_for_the_next_epoch() -> None:
    """They take seconds to start; the others do not."""
    assert plan({"start_method": "spawn"}).persistent_workers
    assert not plan().persistent_workers


def test_a_printed_plan_shows_every_choice_with_its_reason() -> None:
    """One line for each choice, within one screen."""
    made = plan(cpus=2)
    lines = made.text(100).splitlines()
    assert lines[2] == "  num_workers         2           2 CPUs for this process"
    assert lines[11] == "  rank                0 of 1      one process trains alone"
    assert len(lines) == 14
    assert all(reason in made.text(100) for _, reason in made.reasons)
    assert max(map(len, lines)) <= 100


def test_a_plan_as_json_says_the_same() -> None:
    """Values keep their types; reasons come as an object."""
    made = plan(cpus=2)
    loaded = json.loads(made.to_json())
    assert loaded["num_workers"] == 2
    assert loaded["pin_memory"] is False
    assert loaded["reasons"] == dict(made.reasons)


# --- the loader ----------------------------------------------------------------------------------


def test_the_loader_is_a_torch_dataloader_with_the_same_batches() -> None:
    """In process, in order, nothing differs from plain torch."""
    loader = build_loader(Squares(10), batch_size=4, num_workers=0)
    assert isinstance(loader, DataLoader)
    assert batches(loader) == batches(DataLoader(Squares(10), batch_size=4))
    assert len(build_loader(Squares(10), batch_size=4, drop_last=True)) == 2


@pytest.mark.parametrize("seed", [0, 7, -3, 2**63, 2**200])
def test_a_seed_decides_the_order_of_every_epoch(seed: int) -> None:
    """Any integer is a seed; epochs differ from each other, runs do not."""
    orders = [
        batches(build_loader(Squares(50), shuffle=True, seed=seed, batch_size=50, num_workers=0), 2)
        for _ in range(2)
    ]
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1]
    other = build_loader(Squares(50), shuffle=True, seed=seed + 1, batch_size=50, num_workers=0)
    assert batches(other, 2) != orders[0]


def test_workers_that_stay_do_not_change_the_order() -> None:
    """The order has a generator of its own; torch shares one with the seeds of the workers."""

    def naive(persistent: bool) -> DataLoader[int]:
        return DataLoader(
            Squares(20),
            batch_size=5,
            sampler=None,
            shuffle=True,
            num_workers=1,
            multiprocessing_context="fork",
            persistent_workers=persistent,
            generator=torch.Generator().manual_seed(0),
        )

    assert batches(naive(True), 2) != batches(naive(False), 2)
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "start_method": "fork"}
    expected = batches(build_loader(Squares(20), num_workers=0, **options), 2)
    for persistent in (True, False):
        loader = build_loader(Squares(20), num_workers=2, persistent_workers=persistent, **options)
        assert batches(loader, 2) == expected


def test_the_random_state_of_workers_derives_from_the_seed() -> None:
    """Two runs with one seed draw the same numbers, whatever the process drew before."""

    def draw(seed: int) -> list[list[int]]:
        torch.rand(3)
        return batches(build_loader(Noisy(6), num_workers=2, seed=seed, start_method="fork"))

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_defaults_never_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch warns about more workers than CPUs; the plan has counted them."""
    monkeypatch.setattr("torch._utils.cpu_count", lambda: 1)
    with pytest.warns(UserWarning, match="worker processes in total"):
        DataLoader(Squares(8), num_workers=2, multiprocessing_context="fork")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = build_loader(Squares(8), start_method="fork")
        assert loader.num_workers == 2
        assert len(batches(loader)) == 8


def test_pinning_without_an_accelerator_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defaults are silent; an explicit request gives one warning here and unpinned batches."""
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda check_available: None)
    assert build_loader(Squares(4), num_workers=0).pin_memory is False
    with pytest.warns(UserWarning, match="pin_memory=True has no effect") as caught:
        loader = build_loader(Squares(4), num_workers=0, pin_memory=True)
    assert len(batches(loader, 2)) == 8  # where torch would warn at each epoch
    assert [warning.filename for warning in caught] == [__file__]
    assert loader.pin_memory is False


def test_mps_counts_as_no_accelerator_for_pinning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinning is not supported there, so the default does not ask for it."""
    mps = torch.device("mps")
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda check_available: mps)
    assert build_loader(Squares(4), num_workers=0).pin_memory is False


def test_the_threads_of_this_process_stay_as_they_are() -> None:
    """Only workers are limited."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        batches(build_loader(Squares(8), num_workers=2, start_method="fork"))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_an_empty_dataset_gives_no_batches() -> None:
    """Shuffled too, where torch's sampler refuses it."""
    with pytest.raises(ValueError, match="num_samples"):
        DataLoader(Squares(0), shuffle=True)
    assert batches(build_loader(Squares(0), shuffle=True, prefetch_factor=3)) == []


def test_a_sampler_decides_the_order() -> None:
    """Its length counts the batches; together with shuffle it is refused."""
    sampler = SequentialSampler(range(3))
    loader = build_loader(Squares(100), sampler=sampler, start_method="fork")
    assert batches(loader) == [[0], [1], [4]]
    assert loader.num_workers <= 3
    with pytest.raises(OptionError, match="shuffle"):
        build_loader(Squares(100), sampler=sampler, shuffle=True)


def test_single_samples_without_collating() -> None:
    """batch_size=None hands out samples as they are."""
    assert list(build_loader(Squares(3), batch_size=None, num_workers=0)) == [0, 1, 4]


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"batch_size": 2.0},
        {"batch_size": True},
        {"batch_size": None, "drop_last": True},
        {"timeout": -1},
        {"timeout": "5"},
        {"drop_last": 1},
        {"shuffle": "yes"},
        {"timeout": float("nan")},
        {"timeout": 3, "num_workers": 0},
        {"shuffle": True, "seed": 0.5},
        {"seed": True},
    ],
)
def test_bad_values_are_refused(options: dict[str, Any]) -> None:
    """The error is an OptionError that names the option."""
    with pytest.raises(OptionError, match=list(options)[-1 if "seed" in options else 0]):
        build_loader(Squares(3), **options)


def test_only_map_style_datasets_are_accepted() -> None:
    """The error says what is missing."""

    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter([1])

    class Endless:
        def __getitem__(self, index: int) -> int:
            return index

    for dataset, missing in ((Stream(), "Iterable"), (Endless(), "__len__"), (5, "__getitem__")):
        with pytest.raises(SchemaError, match=missing):
            build_loader(dataset)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_a_sample_names_it_and_keeps_its_cause(workers: int) -> None:
    """The same SampleError whatever the number of workers; the original error is its cause."""
    try:
        batches(build_loader(Noisy(20), num_workers=workers, start_method="fork"))
    except SampleError as error:
        text, sample, cause = str(error), error.sample, error.with_traceback(None).__cause__
    assert text.startswith("sample 7 of epoch 0 could not be loaded")
    assert sample == 7
    assert isinstance(cause, DecodeError)
    assert str(cause) == "7 is no picture"


def test_fork_is_refused_when_cuda_came_into_use_after_building(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The check is made again when workers start."""
    loader = build_loader(Squares(3), num_workers=1, start_method="fork")
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    with pytest.raises(OptionError, match="CUDA is already in use"):
        next(iter(loader))


def test_no_process_is_left_after_a_loop_was_broken_off() -> None:
    """Workers that stay end with the loader, others with the loop."""
    before = children()
    for persistent in (False, True):
        loader = build_loader(
            Squares(50), num_workers=2, start_method="fork", persistent_workers=persistent
        )
        for _ in loader:
            break
        assert bool(children() - before) is persistent
        del loader
        assert not children() - before


def test_a_batch_of_numbers_is_where_torch_would_put_it() -> None:
    """A device that is the default within the loop holds it, as with torch's own loader."""
    loop = iter(build_loader(Squares(8), batch_size=4, num_workers=0))
    with torch.device("meta"):
        assert next(loop).is_meta
