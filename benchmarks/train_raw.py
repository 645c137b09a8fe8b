"""How fast are decoded images of one size read for training?

Measured: batches of 64 images, uint8, 224 × 224, with labels, cut at random places out of images
that are stored decoded, 256 × 256, and flipped half of the time; each image once in random order,
by 2 workers, processes or threads. img/s in the middle of an epoch: from each worker's third batch
to three quarters of it; then the memory of all processes together over its last quarter. The limit
is two processes that cut and flip in a loop of NumPy. Rivals store the very pixels that our store
holds; nothing is resized, so there is nothing to filter. Each run checks that every image came once
(DALI's reader of tar files shuffles within a buffer, so of it only the number is checked). An epoch
has each picture four times, under four names.
Kept out: packing; reading from disk (files are read once right before each run); starting workers
and their first batches; the tail of an epoch.
Reproduce: ``scripts/bench train_raw --data FOLDER --peers PYTHON``. The four fastest rivals run in
every round, the others in the first 2, and count with their median.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness import Benchmark, Case, Context, main
from harness.limits import crop_only
from harness.training import ENGINES, Form, Rival, ours, over_limit, over_rivals, rival_cases

from sharedds import RandomCrop

_FORM = Form(name="raw", repeat=4, packing={"codec": "raw", "size": (256, 256)})
_LOOP = "limit: crops of NumPy in a loop, 2 processes"
_FEW = 2  # rounds of rivals that are not among the fastest
_RIVALS = (
    Rival(name="DALI CPU", script="train_dali"),
    Rival(name="FFCV", script="train_ffcv"),
    Rival(name="memmap in a DataLoader", script="train_memmap", variant="numpy", makes=False),
    Rival(name="tensordict memmap", script="train_memmap", variant="tensordict", rounds=_FEW),
    Rival(name="Grain", script="train_grain"),
    Rival(name="LitData", script="train_litdata", rounds=_FEW),
    Rival(name="HF datasets, binary column", script="train_hf", rounds=_FEW),
    Rival(name="MDS", script="train_mds", rounds=_FEW),
    Rival(name="SPDL", script="train_spdl", makes=False, rounds=_FEW),
    Rival(name="WebDataset", script="train_webdataset", rounds=_FEW),
)


def _crop(context: Context) -> Mapping[str, float]:
    return crop_only(context.work / _FORM.name / "images.npy")


def _view() -> object:
    return RandomCrop(224, flip=0.5)


BENCHMARK = Benchmark(
    file=__file__,
    question="How fast are decoded images of one size read for training?",
    cases=(
        *(ours(_FORM, engine, _view) for engine in ENGINES),
        Case(name=_LOOP, run=_crop),
        *rival_cases(_RIVALS, _FORM),
    ),
    goals=tuple(
        goal
        for engine in ENGINES
        for goal in (
            over_rivals(engine, _RIVALS, 2.0),
            over_limit(engine, _LOOP, 0.75, "cropping alone"),
        )
    ),
    prepare=_FORM.prepare,
)

if __name__ == "__main__":
    main(BENCHMARK)
