"""How fast are patches of labelled volumes read for training, and what does it take?

Measured: 12 volumes of 512 × 512 × 104 voxels, int16, with labels of two classes (bones, air inside
of the body), made from a CT that is enlarged and given noise (``--data`` names the folder with
``ct*.nii.gz`` and ``ct*_seg.nii.gz``; without, a body is drawn). Each pass visits each case once in
random order and takes four patches of 96³ around voxels of foreground; 8 patches in a batch, as
float32 image and label; 0, 1 and 2 workers, which stay for the next pass. Patches/s over whole
passes after the first one, at least 6 s; then the memory of all processes over further passes; and
the size of what is read. The first pass and the last ones check every patch: its shape, its dtype
and that it has foreground. Ours keeps no decoded blocks (``cache_blocks=0``): patches at random
places seldom meet the same ones.
Rivals crop only, too, and are set up as their manuals say: MONAI's ``Dataset``,
``PersistentDataset`` and ``CacheDataset`` with ``RandCropByPosNegLabeld`` (the cache also tuned:
places of foreground kept, cases not copied at each visit); TorchIO's ``Queue`` with a
``LabelSampler`` (it holds a pass); nnU-Net's dataset and loader over the blosc2 files that it
writes, float32, and int16 as ours. Those that read NIfTI files get ``.nii`` and ``.nii.gz``.
Kept out: packing and what rivals prepare; reading from disk (files are read once right before each
run); starting workers and filling caches.
Reproduce: ``scripts/bench train_volumes --data FOLDER --peers PYTHON``. What reads ``.nii.gz`` runs
in the first round alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import Benchmark, Case, Context, Goal, Runs, against, main
from harness.figures import TOTAL
from harness.files import read_all
from harness.labelled import write_cases
from harness.patches import (
    BATCH_CASES,
    DISK,
    PER_CASE,
    RATE,
    Task,
    disk_megabytes,
    read_patches,
)
from harness.training import torch_cases

from sharedds.datasets.volumes import VolumeDataset
from sharedds.ingest.volumes.pack import pack_volumes
from sharedds.loader import build_loader
from sharedds.patches import ForegroundPatches

_WORKERS = (0, 1, 2)
_SHAPE, _PATCH, _COUNT = (512, 512, 104), 96, 12
_QUICK_SHAPE, _QUICK_PATCH, _QUICK_COUNT = (64, 56, 28), 24, 4
_TORCH, _TORCH_THERE = (case.name for case in torch_cases())
_LEAST = 3.0  # times the memory that caches take

# name -> script, variant, whether it prepares files, whether it holds volumes or patches in memory
_RIVALS: Mapping[str, tuple[str, str, bool, bool]] = {
    "MONAI Dataset, .nii": ("patches_monai", "dataset-nii", False, False),
    "MONAI Dataset, .nii.gz": ("patches_monai", "dataset-nii.gz", False, False),
    "MONAI PersistentDataset": ("patches_monai", "persistent-nii", True, False),
    "MONAI CacheDataset": ("patches_monai", "cache-nii", False, True),
    "MONAI CacheDataset, tuned": ("patches_monai", "indices-nii", False, True),
    "TorchIO Queue, .nii": ("patches_torchio", "nii", False, True),
    "TorchIO Queue, .nii.gz": ("patches_torchio", "nii.gz", False, True),
    "nnU-Net, float32": ("patches_nnunet", "float32", True, False),
    "nnU-Net, int16": ("patches_nnunet", "int16", True, False),
}


def prepare(context: Context) -> None:
    """Write the cases, and our store of them."""
    folder = context.work / "cases"
    shape, patch, count = (
        (_QUICK_SHAPE, _QUICK_PATCH, _QUICK_COUNT) if context.quick else (_SHAPE, _PATCH, _COUNT)
    )
    endings = ("nii",) if context.quick else ("nii", "nii.gz")
    write_cases(context.data, folder, shape=shape, count=count, endings=endings)
    facts = {"patch": patch, "cases": count, "quick": context.quick}
    (folder / "task.json").write_text(json.dumps(facts))
    pack_volumes(folder / "nii", _store(context), patch=(patch,) * 3, progress=False)


def _store(context: Context) -> Path:
    return context.work / "volumes.lmdb"


def _name(who: str, workers: int) -> str:
    return f"{who}, {workers} worker{'' if workers == 1 else 's'}"


def _ours(workers: int) -> Case:
    def run(context: Context) -> Mapping[str, float]:
        folder = context.work / "cases"
        task = Task(folder=folder, **json.loads((folder / "task.json").read_text()))
        read_all(_store(context))
        patch = ForegroundPatches(task.patch, fraction=1.0, classes="any", per_case=PER_CASE)
        loader = build_loader(
            VolumeDataset(_store(context), patch=patch, cache_blocks=0),
            batch_size=BATCH_CASES,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,  # an epoch is six batches
        )

        def one_pass() -> Iterator[tuple[Any, Any]]:
            for batch in loader:
                yield batch["image"].flatten(0, 1), batch["label"].flatten(0, 1)

        return {**read_patches(task, one_pass), DISK: disk_megabytes(_store(context))}

    return Case(name=_name("sharedds", workers), run=run)


def _rival(who: str, workers: int) -> Case:
    script, variant, makes, _ = _RIVALS[who]
    return Case(
        name=_name(who, workers),
        rival=(f"{script}.py", "read", variant, str(workers)),
        keeps=f"{script}-{variant}",
        makes=(f"{script}.py", "prepare", variant, "0") if makes else (),
        rounds=1 if variant.endswith("gz") else None,
    )


def _faster(workers: int) -> Goal:
    ours, rivals = _name("sharedds", workers), [_name(who, workers) for who in _RIVALS]
    return Goal(
        text=f"{ours}: patches/s over the best rival",
        values=lambda runs: against(runs, ours, RATE, rivals),
        target=1.0,
        needs=(ours,),
        needs_one=tuple(rivals),
    )


def _smaller(workers: int, whos: Sequence[str]) -> Goal:
    """Return the goal to take a third of the memory of what caches.

    Theirs count less what torch alone takes there, plus what it takes here.
    """
    ours, rivals = _name("sharedds", workers), [_name(who, workers) for who in whos]

    def values(runs: Runs) -> list[float]:
        (here,), (there,) = runs[_TORCH][TOTAL], runs[_TORCH_THERE][TOTAL]
        found = {other: runs[other][TOTAL] for other in rivals if other in runs}
        moved = {other: {TOTAL: [v - there + here for v in found[other]]} for other in found}
        ratios = against({ours: runs[ours], **moved}, ours, TOTAL, rivals, min)
        return [1 / ratio for ratio in ratios]

    return Goal(
        text=f"PSS of {' and '.join(whos)}, the smaller one with our torch, over {ours}",
        values=values,
        target=_LEAST,
        needs=(ours, _TORCH, _TORCH_THERE),
        needs_one=tuple(rivals),
    )


_MONAI = [who for who, (script, _, _, caches) in _RIVALS.items() if caches and "monai" in script]
_QUEUE = [who for who, (script, _, _, caches) in _RIVALS.items() if caches and "io" in script]
BENCHMARK = Benchmark(
    file=__file__,
    question="How fast are patches of labelled volumes read for training?",
    cases=tuple(
        case
        for workers in _WORKERS
        for case in (_ours(workers), *(_rival(who, workers) for who in _RIVALS))
    )
    + torch_cases(),
    goals=tuple(
        goal
        for workers in _WORKERS
        for goal in (
            _faster(workers),
            _smaller(workers, _MONAI),
            _smaller(workers, _QUEUE),
        )
    ),
    prepare=prepare,
    needs_pictures=False,
    rounds=3,
    quick_cases=1,
)

if __name__ == "__main__":
    main(BENCHMARK)
