"""How long from asking for a loader to its first batch, for a thousand samples and a million?

Measured: in a process that has imported what it needs, the time from making the dataset to having
the first batch of 64 images, uint8, 224 × 224, with labels: opening, shuffling, starting 2 workers,
decoding. Samples are tiny JPEG files (64 × 48 pixels), so that a million of them fit: what an index
costs shows, decoding hardly. Rivals that read folders (torchvision, SPDL, DALI) list theirs, as
they do in every run; a million files are links to a thousand. WebDataset's tars are links as well.
Kept out: the start of the interpreter and imports (except those of worker processes); writing the
stores; reading from disk (files are read once right before each run).
Reproduce: ``scripts/bench first_batch --peers PYTHON``. Rivals run in the first 2 rounds alone, and
count with their median. FFCV's and LitData's writers are left out at a million: they take too long.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness import Benchmark, Case, Context, Goal, against, main, read_all
from harness.epoch import first_figures
from harness.figures import BATCH, FIRST, WORKERS

from sharedds import ImageDataset, RandomResizedCrop, StoreWriter, build_loader

_QUICK = "--quick" in sys.argv
_COUNTS = _FEW, _MANY = (100, 200) if _QUICK else (1_000, 1_000_000)
_CLASSES = 10
_NAMES = {"process": "sharedds, processes", "thread": "sharedds, threads"}
#: Name, script, variant, whether it writes files of its own, and whether a million of them.
_RIVALS = (
    ("torchvision v2", "train_torchvision", "v2", False, True),
    ("DALI CPU", "train_dali", "filtered", False, True),
    ("SPDL", "train_spdl", "-", False, True),
    ("WebDataset", "train_webdataset", "-", True, True),
    ("MDS", "train_mds", "-", True, True),
    ("HF datasets", "train_hf", "-", True, True),
    ("Grain", "train_grain", "-", True, True),
    ("LitData", "train_litdata", "-", True, False),
    ("FFCV", "train_ffcv", "-", True, False),
)


def _name(who: str, count: int) -> str:
    return f"{who}: {count:,} samples"


def _store(context: Context, count: int) -> Path:
    return context.work / f"tiny-{count}.lmdb"


def prepare(context: Context) -> None:
    """Make a thousand tiny pictures; of each number of samples a store, and class folders."""
    tiny = context.work / "tiny"
    script = str(Path(__file__).parent / "harness" / "pictures.py")
    subprocess.run([sys.executable, script, str(tiny), str(_FEW), "64"], check=True)
    files = read_all(tiny)
    for count in _COUNTS:
        _link(files, context.work / f"tiny-{count}", count)
        _pack(files, _store(context, count), count)


def _link(files: list[Path], target: Path, count: int) -> None:
    for number, path in zip(range(count), itertools.cycle(files), strict=False):
        folder = target / path.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        os.link(path, folder / f"{number}.jpg")


def _pack(files: list[Path], out: Path, count: int) -> None:
    data = [(path.read_bytes(), int(path.parent.name.removeprefix("class"))) for path in files]
    classes = [f"class{number}" for number in range(_CLASSES)]
    schema = {"image": "jpeg", "label": "int64"}
    with StoreWriter(out, schema=schema, classes=classes) as writer:
        for _, (image, label) in zip(range(count), itertools.cycle(data), strict=False):
            writer.add({"image": image, "label": label})


def _ours(engine: str, count: int) -> Case:
    def run(context: Context) -> Mapping[str, float]:
        store = _store(context, count)
        read_all(store)

        def make() -> Iterable[tuple[Any, Any]]:
            dataset = ImageDataset(store, view=RandomResizedCrop(224, flip=0.5))
            return build_loader(
                dataset, batch_size=BATCH, shuffle=True, num_workers=WORKERS, engine=engine
            )

        return first_figures(make)

    return Case(name=_name(_NAMES[engine], count), run=run)


def _rival(who: str, script: str, variant: str, *, makes: bool, count: int) -> Case:
    words = (f"{script}.py", f"tiny-{count}")
    return Case(
        name=_name(who, count),
        rival=(*words, "first", variant),
        keeps=f"{script}-{count}",
        makes=(*words, "prepare", variant) if makes else (),
        rounds=2,
    )


_CASES = tuple(
    case
    for count in _COUNTS
    for case in (
        *(_ours(engine, count) for engine in _NAMES),
        *(
            _rival(who, script, variant, makes=makes, count=count)
            for who, script, variant, makes, million in _RIVALS
            if million or count == _FEW
        ),
    )
)


def _growth(who: str) -> Goal:
    few, many = (_name(who, count) for count in _COUNTS)
    return Goal(
        text=f"{who}: s for {_COUNTS[1]:,} samples over s for {_FEW:,}",
        values=lambda runs: against(runs, many, FIRST, (few,)),
        target=1.1,
        at_least=False,
        needs=(few, many),
    )


def _under(who: str, count: int) -> Goal:
    rivals = tuple(_name(rival, count) for rival, *_ in _RIVALS)
    own = _name(who, count)
    return Goal(
        text=f"{own}: s over those of the quickest rival",
        values=lambda runs: against(runs, own, FIRST, rivals, min),
        target=1,
        at_least=False,
        needs=(own,),
        needs_one=rivals,
    )


BENCHMARK = Benchmark(
    file=__file__,
    question="How long to the first batch, for a thousand samples and a million?",
    cases=_CASES,
    goals=tuple(
        goal
        for who in _NAMES.values()
        for goal in (*(_under(who, count) for count in _COUNTS), _growth(who))
    ),
    prepare=prepare,
    needs_pictures=False,
)

if __name__ == "__main__":
    main(BENCHMARK)
