"""Each rank gets its part: every sample once in evaluation, equally many in training."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from streams import Draws, fork
from torch.utils.data import DataLoader, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from sharedds.errors import OptionError
from sharedds.host.cpus import cpu_quota, usable_cpus
from sharedds.loader import PlannedLoader, build_loader
from sharedds.order import BalancedSampling, WeightedSampling


def loaders(count: int, world_size: int, **options: Any) -> list[PlannedLoader[Any]]:
    """The loaders of all ranks."""
    return [
        fork(range(count), batch_size=2, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]


def indices(loader: Any) -> list[int]:
    """All samples of an epoch."""
    return [int(index) for batch in loader for index in batch]


def test_evaluation_counts_every_sample_once() -> None:
    """Torch's sampler repeats samples so that ranks get as many, and scores depend on that."""
    samples: Any = range(10)
    padded = [
        indices(DataLoader(samples, sampler=DistributedSampler(samples, 4, rank, shuffle=False)))
        for rank in range(4)
    ]
    assert sorted(itertools.chain(*padded)) != list(range(10))
    parts = [indices(loader) for loader in loaders(10, 4)]
    assert sorted(itertools.chain(*parts)) == list(range(10))
    assert [len(part) for part in parts] == [3, 3, 2, 2]


def test_training_gives_every_rank_as_many_batches_and_says_what_it_repeats() -> None:
    """Ranks that wait for each other must take the same number of steps, of the same sizes."""
    ranks = loaders(10, 4, shuffle=True)
    sizes = [[len(batch) for batch in loader] for loader in ranks]
    assert sizes == [[2, 1]] * 4
    assert [len(loader) for loader in ranks] == [2] * 4
    ranks = loaders(10, 4, shuffle=True)
    repeated = ranks[0].padded_indices.tolist()
    assert all(loader.padded_indices.tolist() == repeated for loader in ranks)
    assert sorted([*range(10), *repeated]) == sorted(itertools.chain(*map(indices, ranks)))
    assert len(repeated) == 2
    assert "2 samples of the beginning repeated" in dict(ranks[0].plan.reasons)["last_step"]


def test_dropped_samples_are_counted() -> None:
    """With drop_last every rank gets whole batches, and the plan says what it costs."""
    ranks = loaders(11, 2, shuffle=True, drop_last=True)
    assert [[len(batch) for batch in loader] for loader in ranks] == [[2, 2]] * 2
    assert ranks[0].dropped == 3
    assert ranks[0].padded_indices.tolist() == []
    assert "3 samples of each epoch left out" in dict(ranks[0].plan.reasons)["last_step"]
    assert loaders(12, 2, drop_last=True)[0].dropped == 0
    assert loaders(11, 2)[0].dropped == 0


def test_there_may_be_more_ranks_than_samples() -> None:
    """In evaluation some get nothing; in training each gets one."""
    assert [indices(loader) for loader in loaders(3, 7)] == [[0], [1], [2], [], [], [], []]
    ranks = loaders(3, 7, shuffle=True)
    assert [len(indices(loader)) for loader in ranks] == [1] * 7
    empty = loaders(3, 7)[5]
    assert (len(empty), list(empty), empty.state_dict()["epoch"]) == (0, [], 1)


def test_padding_can_be_chosen() -> None:
    """Training may count every sample once, evaluation may repeat some."""
    assert [len(indices(loader)) for loader in loaders(5, 2, shuffle=True, pad=False)] == [3, 2]
    assert [len(indices(loader)) for loader in loaders(5, 2, pad=True)] == [3, 3]
    assert [len(indices(loader)) for loader in loaders(5, 1, shuffle=True)] == [5]


def test_a_sampling_is_split_over_the_ranks() -> None:
    """Draws with replacement are different on every rank, and so are their random numbers."""
    for sampling in (WeightedSampling([1.0, 3.0] * 8), BalancedSampling([0, 1, 1, 1] * 4)):
        ranks = [
            fork(Draws(16), batch_size=4, sampler=sampling, rank=rank, world_size=2)
            for rank in range(2)
        ]
        batches = [batch for loader in ranks for batch in loader]
        assert sum(len(batch[0]) for batch in batches) == 16
        drawn = torch.cat([batch[1] for batch in batches]).tolist()
        assert len(set(drawn)) == 16
        assert ranks[0].plan.last_step == "padded"


def test_ranks_are_found_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchrun sets them; what is asked for wins, and torch.distributed knows better."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    loader = fork(range(8))
    assert (loader.plan.rank, loader.plan.world_size) == (1, 4)
    assert "1 of 4" in str(loader.plan)
    assert indices(loader) == [1, 5]
    assert len(indices(fork(range(8), rank=0, world_size=1))) == 8
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 2)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 8)
    assert indices(fork(range(8))) == [2]
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: False)
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(OptionError, match="RANK='one'"):
        fork(range(8))


def test_without_any_sign_of_ranks_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the environment is no sign."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setenv("RANK", "1")
    assert fork(range(8)).plan.world_size == 1


def test_ranks_that_know_nothing_of_each_other_are_warned_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each would load all samples; not where the rank is known or asked for."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "4")
    with pytest.warns(UserWarning, match="4 processes .* pass rank= and world_size=") as caught:
        assert fork(range(8)).plan.world_size == 1
    assert len(caught) == 1
    assert fork(range(8), rank=0, world_size=1).plan.world_size == 1
    assert fork(range(8), sampler=SequentialSampler(range(3))).plan.world_size == 1
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert fork(range(8)).plan.world_size == 4


@pytest.mark.parametrize(
    "options",
    [
        {"rank": 0},
        {"world_size": 2},
        {"rank": 2, "world_size": 2},
        {"rank": -1, "world_size": 2},
        {"rank": 0.0, "world_size": 2},
        {"world_size": True, "rank": 0},
        {"pad": 1},
        {"pad": True, "drop_last": True},
        {"rank": 0, "world_size": 2, "sampler": SequentialSampler(range(3))},
    ],
    ids=" ".join,
)
def test_ranks_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    """By name."""
    with pytest.raises(OptionError, match=next(iter(options))):
        fork(range(8), **options)


def test_a_torch_sampler_splits_by_itself() -> None:
    """All its indices are for this rank; the plan says so."""
    samples: Any = range(8)
    loader = fork(samples, sampler=DistributedSampler(samples, 2, 1, shuffle=False))
    assert indices(loader) == [1, 3, 5, 7]
    reason = dict(loader.plan.reasons)["last_step"]
    assert "all indices of DistributedSampler are for this rank" in reason


# --- CPUs ----------------------------------------------------------------------------------------


def machine(root: Path, files: dict[str, str]) -> Path:
    """Write files of a made-up machine."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"sys/fs/cgroup/cpu.max": "nonsense"}, None),
        (
            {
                "proc/self/cgroup": "0::/job/step\n",
                "sys/fs/cgroup/job/step/cpu.max": "400000 100000",
                "sys/fs/cgroup/job/cpu.max": "200000 100000",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/docker/1\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            2.5,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            None,
        ),
    ],
    ids=["none", "v2", "no limit", "broken", "above", "v1", "v1 no limit"],
)
def test_the_quota_of_control_groups_is_read(
    files: dict[str, str], quota: float | None, tmp_path: Path
) -> None:
    """Of both versions, also of the groups above; no information is a normal answer."""
    assert cpu_quota(machine(tmp_path, files)) == quota


@pytest.mark.parametrize(
    ("allowed", "environ", "quota", "count"),
    [
        (1, {}, None, 1),
        (64, {}, "150000 100000", 2),
        (64, {"SLURM_CPUS_PER_TASK": "1"}, None, 1),
        (2, {"LOCAL_WORLD_SIZE": "2"}, None, 1),
        (2, {"LOCAL_WORLD_SIZE": "8"}, None, 1),
        (64, {"LOCAL_WORLD_SIZE": "8"}, None, 8),
        (
            8,
            {"SLURM_STEP_ID": "0", "LOCAL_WORLD_SIZE": "8", "SLURM_NTASKS_PER_NODE": "8"},
            None,
            8,
        ),
        (16, {"SLURM_NTASKS_PER_NODE": "16"}, None, 16),
        (64, {"SLURM_CPUS_PER_TASK": "x", "LOCAL_WORLD_SIZE": "-1"}, None, 64),
    ],
)
def test_the_least_limit_counts_and_ranks_share_it(
    allowed: int, environ: dict[str, str], quota: str | None, count: int, tmp_path: Path
) -> None:
    """Affinity, quota, SLURM and the ranks on this machine; the reason names what decided."""
    files = {"sys/fs/cgroup/cpu.max": quota} if quota else {}
    share = usable_cpus(allowed=allowed, environ=environ, root=machine(tmp_path, files))
    assert share.count == count
    assert str(min(allowed, 2)) in share.reason or "SLURM" in share.reason or allowed > 2


@pytest.mark.parametrize(
    "variables", [{"SLURM_CPUS_PER_TASK": "1"}, {"LOCAL_WORLD_SIZE": "64"}], ids=str
)
def test_workers_follow_what_the_job_may_use(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what the host has; the plan tells what limited them."""
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    loader = build_loader(Draws(100), rank=0, world_size=1)
    assert loader.num_workers == 1
    assert "CPU" in dict(loader.plan.reasons)["num_workers"]
    assert build_loader(Draws(0), rank=0, world_size=1).num_workers == 0


def test_workers_follow_the_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    """One CPU, one worker."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0}, raising=False)
    assert build_loader(Draws(100)).num_workers == 1
