"""What docs/volumes.md shows of training runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from volume_stores import case, write_volumes

import sharedds

PAGE = (Path(__file__).parents[1] / "docs" / "volumes.md").read_text()
TRAINING = PAGE[PAGE.index("## Training on volumes") :]
TRAIN, PREDICT = re.findall(r"```python\n(.*?)```", TRAINING, re.S)


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the snippets take for granted: a store of four scans, a model and where it runs."""
    made = {f"p{n}": case((98, 100, 96), seed=n) for n in range(4)}
    write_volumes(tmp_path / "ct.lmdb", made, chunk=(32, 32, 32))
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Conv3d(1, 3, 1).requires_grad_(requires_grad=False)
    return {"sharedds": sharedds, "model": model, "device": torch.device("cpu")}


def test_what_is_shown_of_training_and_predicting_runs(names: dict[str, Any]) -> None:
    """One after the other, with the shapes that are told."""
    exec(TRAIN, names)
    assert names["image"].shape[2:] == names["label"].shape[2:] == (96, 96, 96)
    assert names["label"].dtype == torch.int64
    exec(PREDICT, names)
    assert names["classes"].shape == (98, 100, 96)
    assert names["classes"].dtype == np.uint8
    assert not set(names["train"].cases) & set(names["val"].cases)


def test_the_section_is_short() -> None:
    """It is read before anything is tried."""
    assert len(TRAINING.splitlines()) < 90
