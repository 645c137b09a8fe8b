"""Under Lightning every sample comes once, on one rank and on two, and after its own checkpoint."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from accounting import COUNT, counted, run_script

pytest.importorskip("lightning", reason="scripts/frameworks installs Lightning")

ALL = counted(range(COUNT))


def epoch(ranks: list[dict[str, Any]], number: int, what: str = "train") -> Counter[int]:
    """How often each sample came in an epoch, on all ranks."""
    steps = itertools.chain(*(rank[what] for rank in ranks))
    return counted(*(step[1:] for step in steps if step[0] == number))


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("made", ["plain", "module"])
def test_two_ranks_share_each_epoch(made: str, workers: str, tmp_path: Path) -> None:
    """With the sampler injection as it is; Lightning starts the ranks, after the loaders are made.

    One sample is repeated in training so that both take as many steps; evaluation counts each once.
    """
    options = ["--devices", "2", "--workers", workers, *(["--module"] if made == "module" else [])]
    ranks = run_script("train_lightning.py", tmp_path, *options)
    assert len(ranks) == 2
    for number in range(2):
        trained = epoch(ranks, number)
        assert set(trained) == set(ALL)
        assert trained.total() == COUNT + 1
        assert epoch(ranks, number, "val") == ALL
    assert ranks[0]["train"] != ranks[1]["train"]


def test_a_module_trains_in_one_process(tmp_path: Path) -> None:
    """Each epoch has each sample once, in an order of its own."""
    (seen,) = run_script("train_lightning.py", tmp_path, "--module", "--workers", "2")
    assert epoch([seen], 0) == epoch([seen], 1) == ALL
    assert [step[1:] for step in seen["train"][:6]] != [step[1:] for step in seen["train"][6:]]


@pytest.mark.parametrize("made", [[], ["--module"]], ids=["plain", "module"])
@pytest.mark.parametrize("devices", ["1", "2"])
def test_predictions_count_each_sample_once(made: list[str], devices: str, tmp_path: Path) -> None:
    """Lightning always rebuilds loaders for that; a plain one would repeat some on two ranks."""
    ranks = run_script("train_lightning.py", tmp_path, "--predict", "--devices", devices, *made)
    assert counted(*itertools.chain(*(rank["predict"] for rank in ranks))) == ALL


MODULE = "train_lightning.py"


def test_its_checkpoint_resumes_to_the_sample(tmp_path: Path) -> None:
    """In the middle of an epoch; what is drawn for a sample is the same, too."""
    (whole,) = run_script(MODULE, tmp_path)
    (begun,) = run_script(MODULE, tmp_path, "--module", "--save", "2", "--steps", "2")
    saved = ["--resume", str(tmp_path / "step=2.ckpt")]
    (rest,) = run_script(MODULE, tmp_path, *saved, "--workers", "2")
    for what in ("train", "noise"):
        assert begun[what] + rest[what] == whole[what]


@pytest.mark.parametrize(
    "how", [["--save", "6", "--steps", "6"], ["--ends", "--epochs", "1"]], ids=["last batch", "end"]
)
def test_an_epoch_after_a_resume_at_its_end_is_whole(how: list[str], tmp_path: Path) -> None:
    """Lightning opens the loop before it tells the epoch: the order is the first one once more."""
    run_script(MODULE, tmp_path, "--module", *how)
    (rest,) = run_script(MODULE, tmp_path, "--resume", str(tmp_path / "step=6.ckpt"))
    assert epoch([rest], 1) == ALL
    assert len(rest["train"]) == 6
