"""Trains a few steps with Lightning and notes which samples came; run by test_lightning.py."""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
from accounting import Numbered, numbers
from torch.utils.data import SequentialSampler

import sharedds

warnings.filterwarnings("ignore", module="lightning")


class Model(lightning.LightningModule):  # type: ignore[misc]
    """One layer; notes the numbers of the samples of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.seen: dict[str, list[Any]] = {"train": [], "noise": [], "val": [], "predict": []}
        self.told: list[Any] = []

    def training_step(self, batch: Any, step: int) -> Any:
        """Return the loss; keeps the numbers, and the first number of each sample's noise."""
        self.seen["train"].append([self.current_epoch, *numbers(batch)])
        self.seen["noise"].append(batch["x"][:, 0].tolist())
        return self.layer(batch["x"]).square().mean()

    def validation_step(self, batch: Any, step: int) -> None:
        """Keep the numbers."""
        if not self.trainer.sanity_checking:
            self.seen["val"].append([self.current_epoch, *numbers(batch)])

    def predict_step(self, batch: Any, step: int) -> Any:
        """Keep the numbers, and return them."""
        self.seen["predict"].append(numbers(batch))
        return batch["index"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


def loader(workers: int, *, shuffle: bool, sampler: Any = None) -> Any:
    """A loader of 23 samples in batches of 4."""
    return sharedds.build_loader(
        Numbered(),
        batch_size=4,
        shuffle=shuffle,
        seed=7,
        sampler=sampler,
        num_workers=workers,
    )


class Data(lightning.LightningDataModule):  # type: ignore[misc]
    """The same loaders, made in hooks, where Lightning watches how."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.options = options

    def train_dataloader(self) -> Any:
        """Shuffled."""
        sampler = SequentialSampler(range(23)) if self.options.foreign else None
        return loader(self.options.workers, shuffle=not self.options.foreign, sampler=sampler)

    def val_dataloader(self) -> Any:
        """In order."""
        return loader(self.options.workers, shuffle=False)

    predict_dataloader = val_dataloader


def main() -> None:
    """Train, predict, and write what was seen."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=-1)
    parser.add_argument("--module", action="store_true")
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--foreign", action="store_true")
    parser.add_argument("--save", type=int, default=0)
    parser.add_argument("--ends", action="store_true", help="save at the end of each epoch")
    parser.add_argument("--resume", type=Path)
    options = parser.parse_args()

    data = Data(options)
    plain = (
        {}
        if options.module
        else {
            "train_dataloaders": data.train_dataloader(),
            "val_dataloaders": data.val_dataloader(),
        }
    )
    when: dict[str, Any] = {"every_n_train_steps": options.save}
    if options.ends:
        when = {"every_n_epochs": 1, "save_on_train_epoch_end": True}
    checkpoint = lightning.pytorch.callbacks.ModelCheckpoint(
        options.folder, filename="{step}", save_top_k=-1, **when
    )
    saves = options.ends or options.save
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=options.devices,
        strategy="ddp" if options.devices > 1 else "auto",
        max_epochs=options.epochs,
        max_steps=options.steps,
        logger=False,
        callbacks=[checkpoint] if saves else [],
        enable_checkpointing=bool(saves),
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=options.folder,
    )
    model = Model()
    if options.predict:
        source = {"datamodule": data} if options.module else {"dataloaders": data.val_dataloader()}
        trainer.predict(model, **source)
    else:
        source = {"datamodule": data} if options.module else plain
        trainer.fit(model, **source, ckpt_path=options.resume)
    path = options.folder / f"rank{trainer.global_rank}.json"
    path.write_text(json.dumps(model.seen))


if __name__ == "__main__":
    main()
