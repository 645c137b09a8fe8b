"""What docs/slides.md shows runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from slide_stores import Slide, picture, write_slides

import sharedds

PAGE = (Path(__file__).parents[1] / "docs" / "slides.md").read_text()
PACK, LOOK, TRAIN, BALANCE, HEAT, MASK = re.findall(r"```python\n(.*?)```", PAGE, re.S)


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the snippets take for granted: a store of four slides, and models."""
    tissue = np.ones((1400, 2600), bool)
    tissue[:, 1500:] = False
    classes = [tissue, tissue & False]
    base = picture(*tissue.shape)
    made = {
        f"s{number}": Slide(image=np.roll(base, number), tissue=tissue, labels=classes, mpp=0.5)
        for number in range(4)
    }
    write_slides(tmp_path / "slides.lmdb", made, chunk=(256, 256, 3))
    monkeypatch.chdir(tmp_path)

    def classifier(image: torch.Tensor) -> torch.Tensor:
        return image.mean((2, 3))[:, :2]

    def segmenter(image: torch.Tensor) -> torch.Tensor:
        return image[:, :2]

    return {"sharedds": sharedds, "classifier": classifier, "segmenter": segmenter}


def test_what_is_shown_of_training_and_inference_runs(
    names: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """One after the other, with the shapes that are told."""
    exec(LOOK, names)
    exec(TRAIN, names)
    assert names["image"].shape[1:] == (3, 224, 224)
    assert names["image"].dtype == torch.uint8
    assert not set(names["train"].slides) & set(names["val"].slides)
    exec(BALANCE, names)
    assert len(names["balanced"]) > 0
    capsys.readouterr()
    exec(HEAT, names)
    assert capsys.readouterr().out == "(7, 12, 2) (224.0, 224.0)\n"
    exec(MASK, names)
    assert names["mask"].shape == (700, 1300)
    assert names["mask"].dtype == np.uint8
    assert Path("mask.lmdb").exists()


def test_the_page_is_short() -> None:
    """It is read before anything is tried."""
    assert len(PAGE.splitlines()) <= 150
