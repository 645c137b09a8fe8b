"""Patches by MONAI: read from NIfTI files, or kept as its caches keep them.

Variants: ``dataset``: ``Dataset``, the files read for each visit; ``persistent``:
``PersistentDataset``, what is not random kept as tensors on the disk; ``cache``: ``CacheDataset``,
kept in memory; ``indices``: the same, with the places of the foreground kept, too
(``FgBgToIndicesd``), and without a copy of each case at each visit (``copy_cache=False``), which
the manual recommends where cases are only cropped. After ``-``, the ending of the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.patches import BATCH_CASES, PER_CASE, Pass
from patching import Work, run
from reading import need

data, transforms = need("monai.data"), need("monai.transforms")
_KEYS = ("image", "label")


def _dataset(work: Work) -> Any:
    kind, _, ending = work.variant.partition("-")
    steps = [
        transforms.LoadImaged(keys=_KEYS),
        transforms.EnsureChannelFirstd(keys=_KEYS),
    ]
    places = {}
    if kind == "indices":
        steps.append(transforms.FgBgToIndicesd(keys="label"))
        places = {"fg_indices_key": "label_fg_indices", "bg_indices_key": "label_bg_indices"}
    steps.append(
        transforms.RandCropByPosNegLabeld(
            keys=_KEYS,
            label_key="label",
            spatial_size=(work.task.patch,) * 3,
            pos=1,
            neg=0,
            num_samples=PER_CASE,
            **places,
        )
    )
    files, together = work.task.pairs(ending), transforms.Compose(steps)
    if kind == "dataset":
        return data.Dataset(files, together)
    if kind == "persistent":
        return data.PersistentDataset(files, together, cache_dir=work.folder)
    copied = {"copy_cache": False} if kind == "indices" else {}
    return data.CacheDataset(files, together, cache_rate=1.0, progress=False, **copied)


def reader(work: Work) -> Pass:
    """Make the loader."""
    loader = data.DataLoader(
        _dataset(work),
        batch_size=BATCH_CASES,
        shuffle=True,
        num_workers=work.workers,
        persistent_workers=work.workers > 0,
    )

    def one_pass() -> Iterator[tuple[Any, Any]]:
        for batch in loader:
            yield batch["image"].as_tensor(), batch["label"].as_tensor()

    return one_pass


def places(work: Work) -> list[Path]:
    """What is read."""
    kind, _, ending = work.variant.partition("-")
    return [work.folder if kind == "persistent" else work.task.folder / ending]


def prepare(work: Work) -> None:
    """Fill the cache on the disk."""
    if work.variant.startswith("persistent"):
        dataset = _dataset(work)
        for number in range(len(dataset)):
            dataset[number]


if __name__ == "__main__":
    run(reader, places, prepare)
