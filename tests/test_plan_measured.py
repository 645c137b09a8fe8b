"""Plans within a memory limit: samples are measured in a worker, and estimates hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from plan_data import Arrays, Told
from processes import python

from sharedds.errors import OptionError, SampleError, SharedDSError, WorkerError
from sharedds.host.machine import look
from sharedds.host.storage import Storage
from sharedds.loader import PlannedLoader, build_loader
from sharedds.loader.facts import dataset_facts
from sharedds.loader.plan import LoaderFacts, LoaderRequest, make_plan
from sharedds.loader.planning import Arguments, measure_samples
from sharedds.loader.tree import ProcessTree

MB = 10**6


class Lethal(Arrays):
    """Ends the process that reads it."""

    def __getitem__(self, index: int) -> Any:
        raise SystemExit(3)


def limited(dataset: Any, **options: Any) -> PlannedLoader[Any]:
    """A loader with a memory limit that holds it, whose workers are forked."""
    chosen: dict[str, Any] = {"max_memory": "8GiB", "start_method": "fork", "batch_size": 8}
    return build_loader(dataset, **(chosen | options))


def test_samples_are_measured_in_a_worker_and_never_here() -> None:
    """The sizes are exact, and the plan says where they come from."""
    dataset = Arrays()
    plan = limited(dataset).plan
    assert dataset.calls == 0
    assert plan.estimate is not None
    per_batch = 8 * (4 * 25_000 + 8)
    assert plan.estimate.in_flight == (plan.num_workers * (plan.prefetch_factor or 0) + 1) * (
        per_batch
    )
    assert "measured in a worker (24 samples)" in dict(plan.reasons)["max_memory"]
    assert plan.max_memory == 8 << 30


def test_without_a_limit_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where the dataset tells by itself."""

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr("sharedds.loader.planning.probe", refuse)
    assert build_loader(Arrays(), start_method="fork").plan.estimate is None
    assert limited(Told()).plan.estimate is not None
    assert limited(Arrays(0)).plan.num_workers == 0
    with pytest.raises(AssertionError, match="measured"):
        limited(Arrays())


def test_samples_that_cannot_be_loaded_are_left_out() -> None:
    """As long as one can."""
    found = measure_samples(Arguments(dataset=Arrays(30, bad=20), batch_size=4), method="fork")
    assert 0 < found.samples <= 10
    assert found.sample_bytes == 4 * 25_000 + 8
    with pytest.raises(SampleError, match=r"none of the samples .* ValueError: \d is bad"):
        limited(Arrays(5, bad=5))


def test_a_worker_that_dies_while_measuring_is_an_error_that_says_so() -> None:
    """And what to do instead."""
    with pytest.raises(WorkerError, match=r"SystemExit: 3"):
        limited(Lethal())


def test_samples_that_do_not_collate_are_reported_as_such() -> None:
    """The loop would fail in the same way; a collate_fn that can is asked, and measured."""

    class Growing(Arrays):
        def __getitem__(self, index: int) -> Any:
            return torch.zeros(10_000 * (1 + index))

    with pytest.raises(WorkerError, match=r"collating 8 samples .* for max_memory failed"):
        limited(Growing())
    padded = limited(Growing(), collate_fn=torch.nn.utils.rnn.pad_sequence)
    assert padded.plan.estimate is not None


def test_what_was_measured_is_what_a_sample_takes() -> None:
    """The heap that a batch of 20 MB needs, and time; single samples are converted."""
    large = Arrays(12, floats=1_250_000)
    found = measure_samples(Arguments(dataset=large, batch_size=4), method="fork")
    assert found.tensor_bytes == (5 * MB, 8)
    assert found.loading_bytes is not None
    assert found.base_bytes is not None
    assert 15 * MB <= found.loading_bytes < 60 * MB
    assert found.sample_seconds > 0
    single = measure_samples(Arguments(dataset=large, batch_size=None), method="fork")
    assert single.sample_bytes == 5 * MB


def test_what_a_batch_takes_is_seen_though_regular_looks_come_too_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine, or where a look takes long; the forked worker refills freed memory."""
    monkeypatch.setattr("sharedds.loader.probe._Peak._watch", lambda peak: peak._done.wait())
    freed = [torch.zeros(12_500) for _ in range(2_000)]
    kept = freed[::50]
    del freed
    found = measure_samples(
        Arguments(dataset=Arrays(800, floats=12_500), batch_size=400), method="fork"
    )
    assert found.loading_bytes is not None
    assert 15 * MB <= found.loading_bytes < 60 * MB
    assert kept


def test_a_dataset_that_cannot_be_measured_says_what_to_add() -> None:
    """Without a length nobody knows which samples there are."""

    class Endless:
        def __getitem__(self, index: int) -> int:
            return index

    with pytest.raises(OptionError, match="sample_nbytes"):
        limited(Endless(), sampler=[1, 2, 3])


def test_a_fork_server_that_nobody_needs_is_ended() -> None:
    """It was started to measure, in a script without a main guard, and then no worker fits."""
    python(
        """
        from multiprocessing import forkserver
        import torch
        from sharedds import build_loader
        from sharedds.memory import process_memory

        class Volumes:
            def __len__(self):
                return 8
            def __getitem__(self, index):
                return torch.full((7_500_000,), float(index))

        limit = process_memory().anonymous + 480_000_000
        loader = build_loader(Volumes(), batch_size=4, max_memory=limit, num_workers=None)
        assert loader.plan.num_workers == 0, loader.plan
        assert loader.plan.estimate.server == 0, loader.plan
        assert forkserver._forkserver._forkserver_pid is None
        assert [batch[3, 0].item() for batch in loader] == [3, 7]
        """
    )


def test_what_threads_share_may_be_measured_or_told() -> None:
    """A dataset that only threads can share cannot be sent to a worker that measures it."""
    dataset = Told()
    dataset.handle = open(__file__)  # type: ignore[attr-defined] # noqa: SIM115
    try:
        assert limited(dataset, engine="thread", start_method=None).plan.estimate is not None
        dataset.sample_nbytes = None
        with pytest.raises(OptionError, match=r"'8GiB' needs .*handle cannot.* sample_nbytes"):
            limited(dataset, engine="thread", start_method=None)
    finally:
        dataset.handle.close()  # type: ignore[attr-defined]


def test_a_dataset_with_attributes_of_its_own_way_is_left_alone() -> None:
    """It fails for names that it does not know; nothing of that reaches the user."""

    class Strict(Arrays):
        def __getattr__(self, name: str) -> Any:
            raise KeyError(name)

    assert build_loader(Strict(), num_workers=0).plan.num_workers == 0


def test_a_loader_holds_what_its_estimate_says() -> None:
    """The peak over all processes stays below it, and beyond half of it."""
    loader = limited(Arrays(24, floats=2_500_000), batch_size=2, num_workers=2)
    assert loader.plan.estimate is not None
    tree, peak, before = ProcessTree(), 0, loader.plan.estimate.trainer or 0
    for _ in loader:
        peak = max(peak, sum(use.irrevocable or 0 for use in tree.exact()))
    assert before < peak < loader.plan.estimate.total + 20 * MB


def test_workers_keep_only_buffers_of_the_batches_they_have_sent() -> None:
    """Samples with a large and a small tensor: 20 batches later those in flight, and two more."""
    loader = limited(Arrays(80, floats=1_250_000), batch_size=2, num_workers=1, prefetch_factor=2)
    held = 0
    for number, _ in enumerate(loader):
        if number > 20:
            uses = ProcessTree().exact()
            held = max(held, *(use.memory.shared_memory or 0 for use in uses[1:]))
    assert held <= (2 + 2) * 10 * MB + MB


def test_a_smaller_limit_costs_prefetch_first_then_workers() -> None:
    """The same dataset under smaller and smaller limits, down to none that fits."""
    facts = LoaderFacts(
        cpus=4,
        batches=100,
        start_methods=("fork",),
        trainer_bytes=100 * MB,
        memory_available=10**11,
    )
    data = dataset_facts(Told(), batch_size=400, place=None, storage=None)
    found: dict[Any, None] = {}
    for limit in range(800, 236, -1):
        plan = make_plan(LoaderRequest(max_memory=limit * MB), facts, data)
        found[(plan.num_workers, plan.prefetch_factor)] = None
    assert list(found) == [(2, 3), (2, 2), (2, 1), (1, 1), (0, None)]


@pytest.mark.parametrize(("kind", "advised"), [("memory", []), ("ssd", [4, 2]), (None, [4, 2])])
def test_storage_is_asked_ahead_as_the_plan_says(
    kind: Any, advised: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what is in memory, nothing."""
    asked: list[int] = []

    class Advised(Arrays):
        storage_path = "/"

        def advise(self, indices: Any) -> None:
            asked.append(len(indices))

    found = replace(look(), storage=(Storage(path="/", kind=kind),))
    monkeypatch.setattr("sharedds.loader.planning.look", lambda paths: found)
    for _ in build_loader(Advised(6), batch_size=4, num_workers=0):
        pass
    assert asked == advised


def test_errors_of_measuring_are_ours() -> None:
    """What cannot be sent to a worker is named, as it is by the loader itself."""
    dataset = Arrays()
    dataset.handle = open(__file__)  # type: ignore[attr-defined] # noqa: SIM115
    try:
        with pytest.raises(SharedDSError, match="handle"):
            measure_samples(Arguments(dataset=dataset, batch_size=1), method="spawn")
    finally:
        dataset.handle.close()  # type: ignore[attr-defined]
