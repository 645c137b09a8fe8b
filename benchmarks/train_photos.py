"""How fast are photos read for training, as they were packed, and what memory does it take?

Measured: batches of 64 images, uint8, 224 × 224, with labels: each image once in random order,
a random part of it resized (as torchvision's RandomResizedCrop) and flipped half of the time, by 2
workers, processes or threads. img/s in the middle of an epoch: from each worker's third batch to
three quarters of it. Then, over the last quarter, the memory of all processes together: most PSS,
and the part of it that belongs to no file (anonymous, shm). The limits are two processes that have
the bytes in memory and do nothing but decode (simplejpeg), or decode, crop and resize in a loop.
Rivals are set up as their documentation says and get the same files; FFCV encodes anew whatever it
stores (full size, quality 90). Resizing is antialiased ("filtered") unless a name says
"unfiltered", which is cheaper and aliases. The rivals' torch is another build than ours: their
memory is compared after taking off what torch alone takes there and adding what it takes here.
Pages of a store that is mapped count in PSS, files that are read do not, though the page cache
holds both: hence the second figure. Each run checks that every image came once. An epoch has each
picture twice, under two names, so that there are enough batches.
Kept out: packing; reading from disk (files are read once right before each run); starting workers
and their first batches; the tail of an epoch.
Reproduce: ``scripts/bench train_photos --data FOLDER --peers PYTHON``. The three fastest rivals run
in every round, the others in the first 2, and count with their median.
"""

from __future__ import annotations

from harness import Benchmark, main
from harness.figures import OWN
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
    torch_cases,
    under_rivals,
)

from sharedds import RandomResizedCrop

_FORM = Form(name="photos", repeat=2)
_FEW = 2  # rounds of rivals that are not among the fastest
_RIVALS = (
    Rival(name="FFCV, unfiltered", script="train_ffcv"),
    Rival(
        name="DALI CPU, filtered", script="train_dali", variant="filtered", makes=False, rounds=_FEW
    ),
    Rival(name="DALI CPU, unfiltered", script="train_dali", variant="unfiltered", makes=False),
    Rival(name="torchvision v2, filtered", script="train_torchvision", variant="v2", makes=False),
    Rival(name="LitData, filtered", script="train_litdata", rounds=_FEW),
    Rival(name="Grain, simplejpeg and OpenCV, unfiltered", script="train_grain", rounds=_FEW),
    Rival(name="HF datasets, filtered", script="train_hf", rounds=_FEW),
    Rival(
        name="ImageFolder and Pillow, filtered",
        script="train_torchvision",
        variant="pillow",
        makes=False,
        rounds=_FEW,
    ),
    Rival(name="SPDL, filtered", script="train_spdl", makes=False, rounds=_FEW),
    Rival(name="WebDataset, filtered", script="train_webdataset", rounds=_FEW),
    Rival(name="MDS, filtered", script="train_mds", rounds=_FEW),
)


def _view() -> object:
    return RandomResizedCrop(224, flip=0.5)


BENCHMARK = Benchmark(
    file=__file__,
    question="How fast are photos read for training, as they were packed, in what memory?",
    cases=(
        *(ours(_FORM, engine, _view) for engine in ENGINES),
        *limits(_FORM),
        *rival_cases(_RIVALS, _FORM),
        *torch_cases(),
    ),
    goals=tuple(
        goal
        for engine in ENGINES
        for goal in (
            over_limit(engine, DECODE, 0.85, "decoding alone"),
            over_rivals(engine, _RIVALS, 1.15),
            under_rivals(engine, _RIVALS),
            under_rivals(engine, _RIVALS, OWN),
        )
    ),
    prepare=_FORM.prepare,
)

if __name__ == "__main__":
    main(BENCHMARK)
