"""Hugging Face's Trainer gets every sample once: by its own loader of our dataset, and by ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accounting import COUNT, Numbered, counted, numbers

import sharedds

transformers = pytest.importorskip("transformers", reason="scripts/frameworks installs it")
pytest.importorskip("accelerate", reason="scripts/frameworks installs Accelerate")

pytestmark = pytest.mark.filterwarnings("ignore")
STEPS = 6  # of an epoch: 23 samples in batches of 4


class Model(torch.nn.Module):
    """One layer; notes the numbers of the samples of each step, and their noise."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.seen: list[list[int]] = []
        self.noise: list[list[float]] = []

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss."""
        self.seen.append(numbers({"index": index}))
        self.noise.append(x[:, 0].tolist())
        return {"loss": self.layer(x).square().mean()}


class OurLoader(transformers.Trainer):  # type: ignore[name-defined, misc]
    """A Trainer that trains on a loader of this package, and keeps its place in checkpoints."""

    loader: Any = None

    def get_train_dataloader(self) -> Any:
        """Return the loader; one for the whole run."""
        self.loader = sharedds.build_loader(
            self.train_dataset,
            batch_size=self.args.train_batch_size,
            shuffle=True,
            seed=self.args.seed,
            num_workers=self.args.dataloader_num_workers,
        )
        return self.loader


def trained(
    kind: Any, folder: Path, *, workers: int = 0, steps: int = -1, resume: bool = False
) -> Model:
    """Train two epochs, or so many steps of them."""
    options = transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=2,
        per_device_train_batch_size=4,
        dataloader_num_workers=workers,
        save_strategy="steps",
        save_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        seed=7,
    )
    model = Model()
    trainer = kind(model=model, args=options, train_dataset=Numbered())
    if steps > 0:

        class Stop(transformers.TrainerCallback):  # type: ignore[name-defined, misc]
            def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
                control.should_training_stop = state.global_step >= steps

        trainer.add_callback(Stop())
    trainer.train(resume_from_checkpoint=resume)
    return model


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [transformers.Trainer, OurLoader], ids=["dataset", "loader"])
def test_each_epoch_has_each_sample_once(kind: Any, workers: int, tmp_path: Path) -> None:
    """In an order of its own; with the loader of the Trainer, and with one of ours."""
    seen = trained(kind, tmp_path, workers=workers).seen
    assert len(seen) == 2 * STEPS
    assert counted(*seen[:STEPS]) == counted(*seen[STEPS:]) == counted(range(COUNT))
    assert seen[:STEPS] != seen[STEPS:]


@pytest.mark.parametrize("stop", [2, 8])
@pytest.mark.parametrize("kind", [transformers.Trainer, OurLoader], ids=["dataset", "loader"])
def test_its_checkpoint_resumes_to_the_sample(kind: Any, stop: int, tmp_path: Path) -> None:
    """In the first epoch and in the second: what was is skipped in a loader of torch."""
    whole = trained(kind, tmp_path / "whole").seen
    begun = trained(kind, tmp_path / "parts", steps=stop).seen
    rest = trained(kind, tmp_path / "parts", resume=True).seen
    assert begun + rest == whole
