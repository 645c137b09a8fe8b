"""Trains a few steps with Accelerate and notes which samples came; run by test_accelerate.py."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accounting import COUNT, Numbered, numbers

import sharedds


def main() -> None:
    """Train, evaluate, and write what was seen."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--late", action="store_true", help="the process group comes last")
    parser.add_argument("--stop", type=int, default=0, help="save after so many steps, and end")
    parser.add_argument("--resume", type=Path)
    options = parser.parse_args()

    def loader(**more: Any) -> Any:
        return sharedds.build_loader(
            Numbered(), batch_size=4, seed=7, num_workers=options.workers, **more
        )

    if options.late:
        train, evaluation = loader(shuffle=True), loader(pad=True)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    if not options.late:
        train, evaluation = loader(shuffle=True), loader(pad=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train, evaluation, model, optimizer = accelerator.prepare(train, evaluation, model, optimizer)
    if options.resume:
        accelerator.load_state(str(options.resume))
    seen: dict[str, Any] = {"train": [], "noise": [], "synced": [], "kind": type(train).__name__}
    steps = 0
    while train.epoch < 2:
        for batch in train:
            seen["train"].append([train.plan.rank, *numbers(batch)])
            seen["noise"].append(batch["x"][:, 0].tolist())
            with accelerator.accumulate(model):
                accelerator.backward(model(batch["x"]).square().mean())
                seen["synced"].append(accelerator.sync_gradients)
                optimizer.step()
                optimizer.zero_grad()
            steps += 1
            if steps == options.stop:
                accelerator.save_state(str(options.folder / "state"))
                break
        if steps == options.stop:
            break
    seen["gathered"] = [
        int(i) for batch in evaluation for i in accelerator.gather_for_metrics(batch["index"])
    ]
    assert len(evaluation.dataset) == COUNT
    rank = accelerator.process_index
    (options.folder / f"rank{rank}.json").write_text(json.dumps(seen))
    accelerator.end_training()


if __name__ == "__main__":
    main()
