"""Plans that are given: by the user, or found by tuning and kept in a file."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plan_data import Arrays, Told

from sharedds.errors import OptionError, SourceError
from sharedds.host.cpus import CpuShare
from sharedds.host.descriptors import DescriptorLimits
from sharedds.host.machine import Machine, look
from sharedds.host.memory import MachineMemory
from sharedds.host.shared import SharedMemoryRoom
from sharedds.loader import LoaderPlan, build_loader
from sharedds.loader.plan import LoaderFacts, LoaderRequest, make_plan
from sharedds.loader.tuned import path_for, read_tuned, tuned_folder, tuned_key, write_tuned


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


def a_plan(**asked: Any) -> LoaderPlan:
    """A plan of another machine."""
    chosen: dict[str, Any] = {"num_workers": 3, "prefetch_factor": 5, "start_method": "fork"}
    facts = LoaderFacts(cpus=64, batches=1000, start_methods=("fork", "spawn"))
    return make_plan(LoaderRequest(**(chosen | asked)), facts)


def test_a_given_plan_counts_where_no_argument_is_given() -> None:
    """Arguments win; reasons tell which is which."""
    loader = build_loader(Arrays(), plan=a_plan(seed_globals="batch"), prefetch_factor=2)
    plan = loader.plan
    assert (plan.num_workers, plan.prefetch_factor, plan.start_method) == (3, 2, "fork")
    assert plan.seed_globals == "batch"
    reasons = dict(plan.reasons)
    assert "as in the given plan" in reasons["num_workers"]
    assert "as requested" in reasons["prefetch_factor"]


def test_of_a_given_plan_is_left_out_what_arguments_exclude() -> None:
    """No workers need no batches in advance; threads no start method, and the other way round."""
    assert build_loader(Arrays(), plan=a_plan(), num_workers=0).plan.prefetch_factor is None
    threads = build_loader(Arrays(), plan=a_plan(), engine="thread").plan
    assert (threads.engine, threads.start_method, threads.num_workers) == ("thread", None, 3)
    of_threads = a_plan(engine="thread", start_method=None)
    assert build_loader(Arrays(), plan=of_threads).plan.engine == "thread"
    back = build_loader(Arrays(), plan=of_threads, start_method="fork").plan
    assert (back.engine, back.start_method) == ("process", "fork")


def test_threads_of_a_given_plan_go_with_its_engine() -> None:
    """Threads of each worker are of no use where workers are threads."""
    given = a_plan(threads_per_worker=3)
    made = build_loader(Arrays(), plan=given).plan
    assert made.threads_per_worker == 3
    assert "as in the given plan" in dict(made.reasons)["threads_per_worker"]
    assert build_loader(Arrays(), plan=given, threads_per_worker=2).plan.threads_per_worker == 2
    assert build_loader(Arrays(), plan=given, engine="thread").plan.threads_per_worker == 1


def test_a_given_plan_brings_its_limit() -> None:
    """And it is checked: what is given must fit."""
    assert build_loader(Told(), plan=a_plan(max_memory=8 << 30)).plan.max_memory == 8 << 30
    with pytest.raises(OptionError, match="num_workers=3 and prefetch_factor=5 cannot be met"):
        build_loader(Told(), plan=a_plan(), max_memory="10MB")
    nonsense: list[Any] = [5, "best", {}]
    for plan in nonsense:
        with pytest.raises(OptionError, match="plan="):
            build_loader(Arrays(), plan=plan)


# --- tuned plans ---------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for tuned plans."""
    monkeypatch.setenv("SHAREDDS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_tuned_plans_lie_in_the_cache_of_the_user() -> None:
    """Unless told elsewhere; a relative path counts as not set."""
    assert tuned_folder({"SHAREDDS_CACHE": "/c"}) == Path("/c/tuned")
    assert tuned_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/sharedds/tuned")
    home = Path.home() / ".cache/sharedds/tuned"
    assert tuned_folder({"XDG_CACHE_HOME": "x"}) == home == tuned_folder({})


def test_a_tuned_plan_belongs_to_a_dataset_and_a_kind_of_machine() -> None:
    """Not to what changes from run to run."""
    key = tuned_key("digest", machine())
    assert key == "digest on Linux, 2 CPUs, 8 GiB"
    assert tuned_key("digest", machine(memory=MachineMemory(total=8 << 30, available=5))) == key
    assert tuned_key("other", machine()) != key
    assert tuned_key("digest", machine(cpus=CpuShare(4, ""))) != key
    with pytest.raises(OptionError, match="fingerprint"):
        tuned_key("", machine())


def test_a_tuned_plan_comes_back(cache: Path) -> None:
    """Equal; the file can be read by people, and nothing else is left in the folder."""
    plan = a_plan()
    assert read_tuned("key") is None
    path = write_tuned("key", plan, measured={"rate": 5.0})
    assert path == path_for("key")
    assert read_tuned("key") == plan
    content = json.loads(path.read_text())
    assert (content["key"], content["measured"]) == ("key", {"rate": 5.0})
    assert list((cache / "tuned").iterdir()) == [path]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1, "key": "key"}', "\0", "{"])
def test_a_damaged_tuned_plan_is_refused_by_name(cache: Path, text: str) -> None:
    """The text names the file."""
    path = write_tuned("key", a_plan())
    path.write_text(text)
    with pytest.raises(OptionError, match=path.name):
        read_tuned("key")


def test_a_folder_that_cannot_be_written_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to set instead."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("SHAREDDS_CACHE", str(tmp_path / "file"))
    with pytest.raises(SourceError, match="SHAREDDS_CACHE"):
        write_tuned("key", a_plan())


class Named(Arrays):
    """Has a fingerprint, as our datasets do."""

    fingerprint = "named"


@pytest.mark.usefixtures("cache")
def test_a_loader_uses_the_tuned_plan_of_its_dataset() -> None:
    """Arguments win over it; nothing that decides on results is taken from it."""
    write_tuned(tuned_key("named", look()), a_plan(seed_globals="off"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = build_loader(Named(), plan="tuned").plan
        assert build_loader(Named(), plan="tuned", num_workers=1).plan.num_workers == 1
    assert (plan.num_workers, plan.prefetch_factor, plan.seed_globals) == (3, 5, "sample")
    assert "as tuned" in dict(plan.reasons)["num_workers"]


@pytest.mark.usefixtures("cache")
def test_without_a_tuned_plan_there_is_a_warning_and_a_plan() -> None:
    """Also where it is damaged, or does not fit any more."""
    with pytest.warns(UserWarning, match="sharedds tune") as caught:
        assert build_loader(Named(), plan="tuned").plan.num_workers >= 1
    assert [warning.filename for warning in caught] == [__file__]
    write_tuned(tuned_key("named", machine(cpus=CpuShare(1234, ""))), a_plan())
    with pytest.warns(UserWarning, match=r"none for 'named on .*only for 'named on .*1234 CPUs"):
        build_loader(Named(), plan="tuned")
    with pytest.warns(UserWarning, match="fingerprint"):
        build_loader(Arrays(), plan="tuned")
    path = write_tuned(tuned_key("named", look()), a_plan(start_method="spawn"))
    path.write_text(path.read_text().replace('"spawn"', '"other"'))
    with pytest.warns(UserWarning, match="does not fit here: start_method='other'") as caught:
        build_loader(Named(), plan="tuned")
    assert [warning.filename for warning in caught] == [__file__]
    path.write_text("{}")
    with pytest.warns(UserWarning, match="not a tuned plan"):
        build_loader(Named(), plan="tuned")
