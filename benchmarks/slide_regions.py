"""How long does a random region of a picture of 900 million pixels take, and packing it?

Measured: 400 regions of 224² and of 512² pixels, on the grid of the tiles and beside it, of one
picture of 30,000 × 30,000 pixels made of photos (``--data`` names class folders of them; without,
parts are drawn), as a TIFF with JPEG tiles of 256², quality 90. Median ms for a region as an array
of its own, by one handle that stays open and one thread. Warm: the file is in the page cache. Cold:
40 regions, the system dropping the file from its cache before each; the handle stays. Opening: a
handle is made and reads its first region, all of it cold; five times. Our store has the same tiles,
copied (``codec="keep"``), without a cache of decoded tiles. OpenSlide, tifffile with zarr, pyvips,
cuCIM read the TIFF; Pillow decodes the whole picture, as one JPEG, for each region (two of them).
Each reader is first compared with the picture. Then packing: the TIFF with its tiles kept, and the
one JPEG streamed and cut into tiles; s, and the most proportional memory (PSS) meanwhile.
Kept out: making the picture; several levels; loading in several processes.
Reproduce: ``scripts/bench slide_regions --data FOLDER --peers PYTHON``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from harness import Benchmark, Case, Context, Goal, Runs, against, main
from harness.mosaic import make_slide
from harness.slides import COLD, SIDES, WARM, WAYS, Reader, Task, measure
from harness.weigh import Scales

from sharedds import Store, pack

_OURS = "sharedds"
_RIVALS = ("openslide", "tifffile", "pyvips", "cucim", "pillow")
_PEAK, _SECONDS = "MB PSS, peak", "s to pack"
_KEPT, _STREAMED = "packing, tiles kept", "packing, one JPEG into tiles"
_GIB = 1073.7  # MB


def _task(context: Context) -> Task:
    return Task(folder=context.work / "slide")


def prepare(context: Context) -> None:
    """Make the picture, and pack it with its tiles as they are."""
    task = make_slide(context.data, context.work / "slide", quick=context.quick)
    pack(
        _alone(task.tiled, context.work),
        context.work / "slide.lmdb",
        kind="slide",
        codec="keep",
        progress=False,
    )


def _alone(file: Path, work: Path) -> Path:
    """Return a folder that holds nothing but a file."""
    folder = work / f"only-{file.name}"
    folder.mkdir(exist_ok=True)
    (folder / file.name).hardlink_to(file)
    return folder


def _read(context: Context) -> Mapping[str, float]:
    place = context.work / "slide.lmdb"

    def opened() -> Reader:
        array = Store(place).array(0, "image")

        def read(y: int, x: int, side: int) -> npt.NDArray[np.uint8]:
            return array[y : y + side, x : x + side]

        return read

    return measure(_task(context), place, opened)


def _pack(codec: Literal["keep", "jpeg"], name: str) -> Case:
    def run(context: Context) -> Mapping[str, float]:
        task = _task(context)
        source = task.tiled if codec == "keep" else task.streamed
        folder = _alone(source, context.scratch)
        scales, begin = Scales(), time.perf_counter()
        pack(folder, context.scratch / "packed.lmdb", kind="slide", codec=codec, progress=False)
        spent = time.perf_counter() - begin
        return {_SECONDS: spent, _PEAK: scales.read()[0]}

    return Case(name=name, run=run, rounds=1)


def _goal(figure: str, rival: str) -> Goal:
    def values(runs: Runs) -> list[float]:
        return against(runs, _OURS, figure, (rival,), min)

    return Goal(
        text=f"{figure}, over {rival}",
        values=values,
        target=1.0,
        at_least=False,
        needs=(_OURS, rival),
        needs_one=(rival,),
    )


def _goals() -> tuple[Goal, ...]:
    figures = [f"ms for {side}², {way}, {WARM}" for side in SIDES for way in WAYS]
    figures += [f"ms for {side}², shifted, {COLD}" for side in SIDES]
    goals = [_goal(figure, rival) for figure in figures for rival in _RIVALS]
    return (*goals, _small(_KEPT), _small(_STREAMED))


def _small(name: str) -> Goal:
    return Goal(
        text=f"{name}: {_PEAK}",
        values=lambda runs: runs[name][_PEAK],
        target=_GIB,
        at_least=False,
        needs=(name,),
    )


BENCHMARK = Benchmark(
    file=__file__,
    question="How long does a random region of a picture of 900 million pixels take?",
    cases=(
        Case(name=_OURS, run=_read),
        *(
            Case(
                name=name,
                rival=("slide_patches.py", "read", name),
                keeps="read",
                rounds=1 if name == "pillow" else None,
            )
            for name in _RIVALS
        ),
        _pack("keep", _KEPT),
        _pack("jpeg", _STREAMED),
    ),
    goals=_goals(),
    prepare=prepare,
    needs_pictures=False,
    rounds=3,
)

if __name__ == "__main__":
    main(BENCHMARK)
