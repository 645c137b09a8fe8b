"""Memory limits: how they are written, what is estimated, and that plans stay within them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharedds.errors import OptionError
from sharedds.host.machine import Machine, look
from sharedds.host.memory import MachineMemory
from sharedds.loader.budget import (
    MemoryEstimate,
    Shape,
    estimate_memory,
    limit_text,
    parse_memory,
    rounded_for_pinning,
)
from sharedds.loader.plan import DatasetFacts, LoaderFacts, LoaderPlan, LoaderRequest, make_plan

MB, GB, MIB, GIB = 10**6, 10**9, 1 << 20, 1 << 30
METHODS = ("forkserver", "fork", "spawn")


def machine(available: int | None, ranks: int = 1) -> Machine:
    """This machine, with so much memory left."""
    return replace(look(), memory=MachineMemory(available=available), local_ranks=ranks)


# --- as people write it --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1, 1),
        (5 * GIB, 5 * GIB),
        ("8GiB", 8 * GIB),
        ("8GB", 8 * GB),
        ("8 gb", 8 * GB),
        ("500MB", 500 * MB),
        (" 1.5 GiB ", 3 * GIB // 2),
        (".5TB", 500 * GB),
        ("64kib", 65_536),
        ("1000", 1000),
        ("1000 B", 1000),
        (8e9, 8 * GB),
        ("8G", 8 * GIB),
        ("8Gi", 8 * GIB),
        ("8g", 8 * GIB),
        ("512M", 512 * MIB),
    ],
    ids=str,
)
def test_a_limit_is_bytes_or_text_with_a_unit(text: float | str, size: int) -> None:
    """Binary and decimal units differ; case and spaces do not matter."""
    assert parse_memory(text, machine(None)) == size


def test_a_share_is_of_what_this_process_has_and_could_take() -> None:
    """Ranks share what is left; what a process holds already is its own."""
    assert parse_memory("50%", machine(10 * GB)) == 5 * GB
    assert parse_memory("50%", machine(10 * GB), used=2 * GB) == 6 * GB
    assert parse_memory("100%", machine(8 * GB, ranks=4), used=GB) == 3 * GB
    with pytest.raises(OptionError, match="max_memory='50%': this system does not tell"):
        parse_memory("50%", machine(None))


@pytest.mark.parametrize(
    "value",
    [0, -1, True, 1.5, "", "GB", "8 GBit", "-1GB", "0%", "101%", "8,5GB", "1e9", "0.1", b"8"],
    ids=repr,
)
def test_other_limits_are_refused_by_name(value: Any) -> None:
    """The text says what is expected."""
    with pytest.raises(OptionError, match="max_memory="):
        parse_memory(value, machine(GB))


@pytest.mark.parametrize(
    ("size", "text"),
    [(2 * GIB, "2 GiB (2.1 GB)"), (512 * MIB, "512 MiB (536.9 MB)"), (8 * GB, "8.0 GB")],
)
def test_a_limit_is_shown_as_it_was_written(size: int, text: str) -> None:
    """Whoever wrote 2GiB finds it in the plan."""
    assert limit_text(size) == text


# --- what is estimated ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "taken"),
    [(0, 0), (1, 1), (4096, 4096), (4097, 8192), (129 * MB, 1 << 27), (135 * MB, 1 << 28)],
)
def test_pinned_memory_comes_in_powers_of_two(size: int, taken: int) -> None:
    """As torch's allocator takes it."""
    assert rounded_for_pinning(size) == taken


def shape(**changes: Any) -> Shape:
    """Two workers with two batches of 8 samples each."""
    values: dict[str, Any] = {
        "engine": "process",
        "start_method": "forkserver",
        "num_workers": 2,
        "prefetch_factor": 2,
        "pin_memory": False,
        "batch_size": 8,
    }
    return Shape(**(values | changes))


FACTS = LoaderFacts(cpus=8, batches=100, start_methods=METHODS, trainer_bytes=200 * MB)
DATA = DatasetFacts(sample_bytes=10 * MB, batch_size=8, tensor_bytes=(9 * MB, MB))


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        # worker: its base, and the 8 samples of a batch; in flight: 2 * 2 and one handed out
        ({}, {"server": 310, "workers": 2 * 94, "in_flight": 400, "pinned": 0}),
        ({"start_method": "fork"}, {"server": 0, "workers": 2 * 91, "in_flight": 400}),
        ({"start_method": "spawn"}, {"server": 10, "workers": 2 * 376, "in_flight": 400}),
        (
            {"engine": "thread", "start_method": None},
            {"server": 0, "workers": 2 * 82, "in_flight": 400},
        ),
        # the batch in use, the next one, and its samples before they are collated
        (
            {"num_workers": 0, "prefetch_factor": 0},
            {"server": 0, "workers": 0, "in_flight": 240},
        ),
    ],
    ids=str,
)
def test_an_estimate_counts_every_batch_where_it_can_be(
    changes: dict[str, Any], parts: dict[str, int]
) -> None:
    """In MB, for samples of 10 MB; this process counts with what reading batches adds to it."""
    found = estimate_memory(shape(**changes), FACTS, DATA)
    assert {name: getattr(found, name) // MB for name in parts} == parts
    assert found.trainer == 216 * MB
    assert found.total == 216 * MB + found.server + found.workers + found.in_flight


def test_each_tensor_of_a_batch_is_rounded_when_pinned() -> None:
    """72 and 8 MB become 134 and 8.4 MB, for the five batches that can exist."""
    found = estimate_memory(shape(pin_memory=True), FACTS, DATA)
    assert found.pinned == 5 * ((1 << 27) + (1 << 23))
    assert found.total > estimate_memory(shape(), FACTS, DATA).total + 5 * 80 * MB


def test_what_was_measured_takes_the_place_of_what_is_usual() -> None:
    """Of a worker, of what loading adds to it, and of the fork server."""
    measured = replace(DATA, worker_bytes=150 * MB, loading_bytes=130 * MB)
    facts = replace(FACTS, server_bytes=160 * MB)
    found = estimate_memory(shape(), facts, measured)
    assert (found.workers, found.server) == (2 * 150 * MB, 170 * MB)
    threads = estimate_memory(shape(engine="thread", start_method=None), facts, measured)
    assert threads.workers == 2 * (2 + 130) * MB
    half = estimate_memory(shape(batch_size=4), facts, measured)
    assert half.workers == 2 * (20 + 90) * MB


def test_a_server_that_runs_already_counts_without_workers_too() -> None:
    """It is there in any case."""
    facts = replace(FACTS, is_server_running=True)
    alone = shape(num_workers=0, prefetch_factor=0)
    assert estimate_memory(alone, facts, DATA).server == 300 * MB
    assert estimate_memory(alone, FACTS, DATA).server == 0


def test_the_largest_sample_counts() -> None:
    """A batch of such samples may come."""
    larger = replace(DATA, largest_sample_bytes=25 * MB)
    assert estimate_memory(shape(), FACTS, larger).in_flight == 5 * 8 * 25 * MB


def test_an_estimate_comes_back_from_plain_values() -> None:
    """Also where this process was not measured."""
    for facts in (FACTS, replace(FACTS, trainer_bytes=None)):
        found = estimate_memory(shape(), facts, DATA)
        assert MemoryEstimate.from_dict(found.to_dict()) == found


# --- whatever the facts --------------------------------------------------------------------------

sizes = st.none() | st.integers(0, 40).map(lambda power: 1 << power) | st.integers(0, 4 * GB)
rooms = st.none() | st.integers(0, 500 * GB)
facts_of_machines = st.builds(
    LoaderFacts,
    cpus=st.integers(1, 300),
    batches=st.none() | st.integers(0, 1000),
    start_methods=st.sampled_from([METHODS, ("spawn",), ("spawn", "fork", "forkserver")]),
    accelerator=st.sampled_from([None, "cuda", "mps"]),
    local_ranks=st.integers(1, 8),
    memory_available=rooms,
    shared_memory_free=rooms,
    descriptors=st.none() | st.integers(0, 70_000),
    descriptors_open=st.integers(0, 300),
    trainer_bytes=st.integers(0, 20 * GB),
    other_bytes=st.integers(0, 2 * GB),
    server_bytes=st.none() | st.integers(0, 600 * MB),
    is_server_running=st.booleans(),
    is_daemon=st.booleans(),
)
facts_of_datasets = st.builds(
    DatasetFacts,
    batch_size=st.none() | st.integers(1, 512),
    sample_bytes=sizes,
    largest_sample_bytes=sizes,
    tensor_bytes=st.lists(st.integers(0, GB), max_size=4).map(tuple),
    record_bytes=sizes,
    worker_bytes=sizes,
    loading_bytes=sizes,
)
requests = st.builds(
    LoaderRequest,
    num_workers=st.none() | st.integers(0, 64),
    start_method=st.sampled_from([None, None, "fork", "spawn"]),
    persistent_workers=st.none() | st.booleans(),
    prefetch_factor=st.none() | st.integers(1, 16),
    pin_memory=st.none() | st.booleans(),
    engine=st.sampled_from(["process", "thread"]),
    max_memory=st.none() | st.integers(1, 500 * GB),
)


def planned(request: LoaderRequest, facts: LoaderFacts, dataset: DatasetFacts) -> LoaderPlan | None:
    """Plan; None if it is refused."""
    try:
        return make_plan(request, facts, dataset)
    except OptionError:
        return None


def in_flight(plan: LoaderPlan | None) -> int:
    """Batches that workers make in advance; -1 without a plan."""
    return -1 if plan is None else plan.num_workers * (plan.prefetch_factor or 0)


@given(requests, facts_of_machines, facts_of_datasets)
@settings(max_examples=150, deadline=None)
def test_a_plan_keeps_its_limit_and_what_was_asked_for(
    request: LoaderRequest, facts: LoaderFacts, dataset: DatasetFacts
) -> None:
    """No estimate is above ``max_memory``, and no argument is bent; else there is no plan."""
    plan = planned(request, facts, dataset)
    if plan is None:
        return
    if plan.estimate is not None and request.max_memory is not None:
        assert plan.estimate.total <= request.max_memory
    assert request.num_workers in (None, plan.num_workers)
    if plan.num_workers:
        for name in ("prefetch_factor", "start_method", "persistent_workers"):
            assert getattr(request, name) in (None, getattr(plan, name))
    assert all(reason for _, reason in plan.reasons)
    assert max(map(len, plan.text(100).splitlines())) <= 100
    assert LoaderPlan.from_dict(plan.to_dict()) == plan


@given(requests, facts_of_machines, facts_of_datasets, st.data())
@settings(max_examples=150, deadline=None)
def test_more_room_never_means_fewer_batches_in_advance(
    request: LoaderRequest, facts: LoaderFacts, dataset: DatasetFacts, data: st.DataObject
) -> None:
    """More memory, limit, room in /dev/shm or descriptors; nor is a plan refused for it."""
    more = st.integers(0, 500 * GB)
    name = data.draw(
        st.sampled_from(["memory_available", "shared_memory_free", "descriptors", "max_memory"])
    )
    owner: Any = request if name == "max_memory" else facts
    value = getattr(owner, name)
    if value is None:
        return
    larger: Any = replace(owner, **{name: value + data.draw(more)})
    before = planned(request, facts, dataset)
    if name == "max_memory":
        after = planned(larger, facts, dataset)
    else:
        after = planned(request, larger, dataset)
    assert in_flight(after) >= in_flight(before)


NEAREST = re.compile(
    r"nearest that fits is (?:batch_size=(?P<batch_size>\d+) with )?"
    r"num_workers=(?P<num_workers>\d+)(?:, prefetch_factor=(?P<prefetch_factor>\d+))?"
)


@given(requests, facts_of_machines, facts_of_datasets)
@settings(max_examples=120, deadline=None)
def test_the_nearest_plan_that_a_refusal_names_fits(
    request: LoaderRequest, facts: LoaderFacts, dataset: DatasetFacts
) -> None:
    """Whoever does as the text says gets a plan."""
    try:
        make_plan(request, facts, dataset)
    except OptionError as error:
        text = str(error)
    else:
        return
    if (found := NEAREST.search(text)) is not None:
        named = {name: int(value) if value else None for name, value in found.groupdict().items()}
        size = named.pop("batch_size")
        smaller = replace(dataset, batch_size=size) if size else dataset
        changes: Any = named
        if "without persistent_workers" in text:
            changes["persistent_workers"] = None
        assert planned(replace(request, **changes), facts, smaller) is not None


def test_a_nearest_plan_without_workers_drops_what_needs_them() -> None:
    """Persistent workers that were asked for are named as what has to go."""
    facts = LoaderFacts(cpus=1, batches=None, start_methods=("fork",), descriptors=0)
    request = LoaderRequest(num_workers=1, persistent_workers=True)
    with pytest.raises(OptionError, match=r"num_workers=0.*, without persistent_workers"):
        make_plan(request, facts, DatasetFacts())
