"""A dataset whose samples tell their number, and runs of scripts in one process or two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import sharedds

__all__ = ["COUNT", "Numbered", "counted", "numbers", "run_script"]

#: No multiple of the batch size, nor of the number of ranks.
COUNT = 23


class Numbered(sharedds.LazyDataset[dict[str, Any]]):
    """Sample i is some noise of its own key, and i."""

    def __init__(self, count: int = COUNT) -> None:
        super().__init__([str(i) for i in range(count)])

    def load(self, item: str) -> dict[str, Any]:
        """Return the noise (float32, 4 values) and the number (int64)."""
        noise = torch.from_numpy(self.rng.random(4, dtype="float32"))
        return {"x": noise, "index": int(item)}


def numbers(batch: Any) -> list[int]:
    """The numbers of the samples of a batch."""
    return [int(index) for index in batch["index"]]


def counted(*parts: Iterable[int]) -> Counter[int]:
    """How often each sample is in some lists."""
    return Counter(index for part in parts for index in part)


def run_script(name: str, folder: Path, *options: str, ranks: int = 1) -> list[dict[str, Any]]:
    """Run a script of this folder, under torchrun with several ranks; return what each noted."""
    here = Path(__file__).parent
    command = [sys.executable]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*command, str(here / name), str(folder), *options],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{here.parents[1]}:{here}"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    noted = sorted(folder.glob("rank*.json"))
    return [json.loads(path.read_text()) for path in noted]
