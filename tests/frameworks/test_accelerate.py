"""Under Accelerate every sample comes once, gathered ones too, and after its own checkpoint."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from accounting import COUNT, counted, run_script

pytest.importorskip("accelerate", reason="scripts/frameworks installs Accelerate")


def epochs(ranks: list[dict[str, Any]]) -> list[Any]:
    """How often each sample came in each of two epochs, on all ranks."""
    half = len(ranks[0]["train"]) // 2
    parts = [[rank["train"][:half] for rank in ranks], [rank["train"][half:] for rank in ranks]]
    return [counted(*(step[1:] for step in itertools.chain(*part))) for part in parts]


@pytest.mark.parametrize("late", [[], ["--late"]], ids=["after", "before"])
@pytest.mark.parametrize("workers", ["0", "2"])
def test_two_ranks_share_each_epoch(workers: str, late: list[str], tmp_path: Path) -> None:
    """``prepare`` does not split them again, whether they are made after the Accelerator or not."""
    ranks = run_script("train_accelerate.py", tmp_path, "--workers", workers, *late, ranks=2)
    for trained in epochs(ranks):
        assert set(trained) == set(range(COUNT))
        assert trained.total() == COUNT + 1
    assert [rank["gathered"] for rank in ranks] == [list(range(COUNT))] * 2
    assert ranks[0]["kind"] == "PlannedLoader"


def test_gradients_are_exchanged_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    """Six steps, four to gather for: Accelerate must know which batch is the last."""
    (seen,) = run_script("train_accelerate.py", tmp_path)
    assert seen["synced"] == [False, False, False, True, False, True] * 2
    assert epochs([seen]) == [counted(range(COUNT))] * 2


def test_its_checkpoint_resumes_to_the_sample(tmp_path: Path) -> None:
    """``save_state`` keeps the place of the loader, ``load_state`` goes on there."""
    whole = run_script("train_accelerate.py", tmp_path, ranks=2)
    begun = run_script("train_accelerate.py", tmp_path, "--stop", "2", ranks=2)
    resume = ["--resume", str(tmp_path / "state"), "--workers", "2"]
    rest = run_script("train_accelerate.py", tmp_path, *resume, ranks=2)
    for what, rank in itertools.product(("train", "noise"), range(2)):
        assert begun[rank][what] + rest[rank][what] == whole[rank][what]
