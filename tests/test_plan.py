"""The plan as a table: a machine, a dataset and a request give a choice and its reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from plan_rows import BUDGET, LAPTOP, PLAIN, SERVER, VOLUMES, WORKER_ROWS, Row
from plan_rows_choices import CHOICE_ROWS

from sharedds.errors import OptionError
from sharedds.loader.plan import DatasetFacts, LoaderFacts, LoaderPlan, LoaderRequest, make_plan

MB, GB, GIB = 10**6, 10**9, 1 << 30
ROWS = [*WORKER_ROWS, *CHOICE_ROWS]


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_machine_a_dataset_and_a_request_give_a_choice_with_its_reason(row: Row) -> None:
    """Each line of the table."""
    plan = row.plan()
    reason = dict(plan.reasons)[row.choice]
    assert getattr(plan, row.choice) == row.value, reason
    assert row.reason in reason
    assert row.limit in (None, dict(plan.limits)[row.choice])


REFUSED = [
    Row(
        name="forking with CUDA",
        machine={**SERVER, "cuda_initialized": True},
        asked={"start_method": "fork"},
        reason="leave start_method out, or pass 'forkserver' or 'spawn'",
    ),
    Row(
        name="workers of a worker",
        machine={"is_daemon": True},
        asked={"num_workers": 2},
        reason="num_workers=2: .* nearest that works is num_workers=0 .*, or engine='thread'",
    ),
    Row(
        name="workers beyond the descriptors",
        machine={**LAPTOP, "descriptors": 256},
        asked={"num_workers": 32},
        reason="but 256 files may be open, 40 are; the nearest that fits is num_workers=10, "
        r"prefetch_factor=1 \(122 descriptors\); or raise the limit",
    ),
    Row(
        name="workers beyond the budget",
        machine=BUDGET,
        data=VOLUMES,
        asked={"num_workers": 8, "max_memory": 2 * GIB},
        reason=r"num_workers=8 cannot be met: 2.3 GB are needed, but max_memory=2 GiB \(2.1 GB\); "
        r"the nearest that fits is num_workers=7, prefetch_factor=1 \(2.1 GB\)",
    ),
    Row(
        name="a batch beyond the budget",
        machine=BUDGET,
        data={**VOLUMES, "batch_size": 16},
        asked={"max_memory": GIB},
        reason="no loader fits: 5.0 GB are needed, .* nearest that fits is batch_size=1 with "
        r"num_workers=1, prefetch_factor=1 \(790.0 MB\)",
    ),
    Row(
        name="a batch beyond the budget, without workers",
        machine=BUDGET,
        data={**VOLUMES, "batch_size": 16},
        asked={"max_memory": 500 * MB},
        reason=r"nearest that fits is batch_size=1 with num_workers=0 \(466.0 MB\)",
    ),
    Row(
        name="nothing fits",
        machine=BUDGET,
        data=VOLUMES,
        asked={"max_memory": 400 * MB},
        reason="no batch size fits: batch_size=1 with num_workers=0 takes 466.0 MB, of which this "
        "process has 150.0 MB already",
    ),
    Row(
        name="this process alone is too large",
        machine={**BUDGET, "trainer_bytes": 2 * GB},
        asked={"max_memory": GIB},
        reason="no loader fits: 2.0 GB are needed",
    ),
    Row(name="an unknown method", asked={"start_method": "fast"}, reason="offers forkserver, fork"),
    Row(
        name="threads by fork",
        asked={"engine": "thread", "start_method": "fork"},
        reason="threads are not started by a method",
    ),
    Row(name="an unknown engine", asked={"engine": "gpu"}, reason="'process', 'thread', 'auto'"),
    Row(
        name="threads of threads",
        asked={"engine": "thread", "threads_per_worker": 2},
        reason="threads_per_worker=2: with engine='thread' workers are threads already; ask for "
        "more by num_workers",
    ),
    Row(
        name="threads that draw after each other",
        asked={"seed_globals": "batch", "threads_per_worker": 2},
        reason="nearest that works is seed_globals='sample'",
    ),
    Row(
        name="threads for what reads a batch at once",
        data={"reads_batches": True},
        asked={"threads_per_worker": 2},
        reason="load_many or __getitems__",
    ),
    Row(name="no thread", asked={"threads_per_worker": 0}, reason="=0: 1 or more is expected"),
    Row(name="no bytes at all", asked={"max_memory": 0}, reason="max_memory=0: 1 or more"),
    Row(name="an unknown seeding", asked={"seed_globals": "x"}, reason="seed_globals='x'"),
]


@pytest.mark.parametrize("row", REFUSED, ids=[row.name for row in REFUSED])
def test_what_is_impossible_is_refused_with_the_nearest_plan(row: Row) -> None:
    """The text names what was asked for, what stands against it, and what would fit."""
    with pytest.raises(OptionError, match=row.reason):
        row.plan()


def test_the_nearest_plan_of_a_refusal_is_possible() -> None:
    """Its numbers, asked for, are accepted; one more is not."""
    machine = LoaderFacts(**(PLAIN | BUDGET))
    limit = {"max_memory": 2 * GIB}
    data = DatasetFacts(**VOLUMES)
    nearest: dict[str, Any] = {"num_workers": 7, "prefetch_factor": 1}
    assert make_plan(LoaderRequest(**nearest, **limit), machine, data).num_workers == 7  # type: ignore[arg-type]
    nearest["num_workers"] = 8
    with pytest.raises(OptionError, match="num_workers=7, prefetch_factor=1"):
        make_plan(LoaderRequest(**nearest, **limit), machine, data)  # type: ignore[arg-type]


# --- as text -------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_plan_fits_the_screen(row: Row, width: int) -> None:
    """No line is longer, nothing is cut, and the whole is a screen of 30 lines at most."""
    plan = row.plan()
    text = plan.text(width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= 30
    words = " ".join(text.split())
    assert all(part in words for _, reason in plan.reasons for part in reason.split())


def test_a_plan_with_a_limit_shows_what_takes_the_memory() -> None:
    """Each part has a line, and the last one their sum."""
    row = next(row for row in ROWS if row.name == "2 GiB, volumes, pinned")
    plan = row.plan()
    lines = plan.text(80).split("memory it takes at most\n")[1].splitlines()
    names = [line[2:18].strip() for line in lines]
    assert names == ["this process", "fork server", "4 workers", "5 batches", *names[4:]]
    assert names[4:] == ["pinned copies", "in all"]
    assert lines[-1].endswith("2.1 GB  of max_memory=2 GiB (2.1 GB)")
    assert plan.estimate is not None
    parts = plan.estimate.to_dict()
    assert parts.pop("total") == sum(part or 0 for part in parts.values())


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_plan_comes_back_from_json(row: Row) -> None:
    """Equal in every field, through text."""
    plan = row.plan()
    assert LoaderPlan.from_dict(json.loads(plan.to_json())) == plan


@pytest.mark.parametrize(
    "change",
    [
        {"num_workers": "4"},
        {"num_workers": True},
        {"engine": None},
        {"reasons": ["engine"]},
        {"limits": {"engine": 3}},
        {"estimate": {"total": 3}},
        {"pin_memory": 1},
    ],
    ids=str,
)
def test_a_damaged_plan_is_refused_by_name(change: dict[str, Any]) -> None:
    """Of what it holds, one part is of another type."""
    saved = ROWS[0].plan().to_dict() | change
    with pytest.raises(OptionError, match=next(iter(change))):
        LoaderPlan.from_dict(saved)
