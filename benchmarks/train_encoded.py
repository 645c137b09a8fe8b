"""How fast are pictures read for training that were shrunk to 512 pixels while packing?

Measured: as in ``train_photos``, with pictures packed by ``codec="jpeg", max_side=512,
quality=90``: batches of 64 images, uint8, 224 × 224, with labels, each image once in random order,
a random part of it resized and flipped half of the time, by 2 workers. img/s in the middle of an
epoch, then the memory of all processes together over its last quarter. The limits are two processes
that only decode, or decode, crop and resize, with the bytes in memory. Rivals get the very files
that our store holds; FFCV encodes them once more. Resizing is antialiased ("filtered") unless a
name says "unfiltered". Each run checks that every image came once. An epoch has each picture
twice, under two names.
Kept out: packing; reading from disk (files are read once right before each run); starting workers
and their first batches; the tail of an epoch.
Reproduce: ``scripts/bench train_encoded --data FOLDER --peers PYTHON``. The three fastest rivals
run in every round, the others in the first 2, and count with their median.
"""

from __future__ import annotations

from harness import Benchmark, main
from harness.training import (
    DECODE,
    ENGINES,
    Form,
    Rival,
    limits,
    ours,
    over_limit,
    over_rivals,
    rival_cases,
)

from sharedds import RandomResizedCrop

_FORM = Form(name="encoded", repeat=2, packing={"codec": "jpeg", "max_side": 512, "quality": 90})
_FEW = 2  # rounds of rivals that are not among the fastest
_RIVALS = (
    Rival(
        name="DALI CPU, filtered", script="train_dali", variant="filtered", makes=False, rounds=_FEW
    ),
    Rival(name="DALI CPU, unfiltered", script="train_dali", variant="unfiltered", makes=False),
    Rival(name="FFCV, unfiltered", script="train_ffcv"),
    Rival(
        name="torchvision v2, filtered",
        script="train_torchvision",
        variant="v2",
        makes=False,
        rounds=_FEW,
    ),
    Rival(name="LitData, filtered", script="train_litdata"),
    Rival(name="Grain, simplejpeg and OpenCV, unfiltered", script="train_grain", rounds=_FEW),
    Rival(name="SPDL, filtered", script="train_spdl", makes=False, rounds=_FEW),
    Rival(name="HF datasets, filtered", script="train_hf", rounds=_FEW),
    Rival(
        name="ImageFolder and Pillow, filtered",
        script="train_torchvision",
        variant="pillow",
        makes=False,
        rounds=_FEW,
    ),
    Rival(name="WebDataset, filtered", script="train_webdataset", rounds=_FEW),
    Rival(name="MDS, filtered", script="train_mds", rounds=_FEW),
)


def _view() -> object:
    return RandomResizedCrop(224, flip=0.5)


BENCHMARK = Benchmark(
    file=__file__,
    question="How fast are pictures read for training that were shrunk to 512 pixels?",
    cases=(
        *(ours(_FORM, engine, _view) for engine in ENGINES),
        *limits(_FORM),
        *rival_cases(_RIVALS, _FORM),
    ),
    goals=tuple(
        goal
        for engine in ENGINES
        for goal in (
            over_limit(engine, DECODE, 0.75, "decoding alone"),
            over_rivals(engine, _RIVALS, 1.3),
        )
    ),
    prepare=_FORM.prepare,
)

if __name__ == "__main__":
    main(BENCHMARK)
