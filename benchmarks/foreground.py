"""What does it take to draw patches around voxels of a class?

Measured: a label of 128³, 256³ and 512³ voxels with three classes (an organ, a vessel, a lesion: 6,
0.4 and 0.01 % of the voxels) of which each is drawn a third of the time, then one of its voxels.
For each size: ms before the first draw, where everything is done that a case needs once; the median
µs of 1,000 draws; and the memory that the process holds more for that case while it draws
(anonymous and shm). Ours: a case of a packed store opened anew for every draw, blocks of labels
decoded anew each time, as nothing is kept (``cache_blocks=0``). Rivals, by their own functions:
MONAI's ``ClassesToIndices``, TorchIO's probability map and cumulative sum; nnU-Net's sampled
places, which are some of the voxels. Each checks that what is drawn is of a class, a third each.
Kept out: packing, where ours counts each class in each block; reading labels from the disk; cutting
patches.
Reproduce: ``scripts/bench foreground --peers PYTHON``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from harness import Benchmark, Case, Context, Goal, Runs, main, ratios
from harness.files import read_all
from harness.organs import DRAW, HELD, PATCH, Draw, draws, sides, write_label

from sharedds.datasets.volume_cases import StoredVolumes
from sharedds.ingest.volumes.pack import pack_volumes
from sharedds.patches import ForegroundPatches
from sharedds.store import Store

_OURS = "sharedds"
_RIVALS = {
    "MONAI, numbers of all voxels": "monai",
    "TorchIO, cumulative sum": "torchio",
    "nnU-Net, a sample of the voxels": "nnunet",
}
_SMALL, _LARGE = 128, 512
_FILE = "MB in the file"


def prepare(context: Context) -> None:
    """Write the labels, and our store of each."""
    for side in sides(quick=context.quick):
        write_label(context.work / "labels", side)
        source = context.work / "labels" / str(side)
        pack_volumes(source, context.work / f"{side}.lmdb", patch=(PATCH,) * 3, progress=False)


def _ours(context: Context) -> Mapping[str, float]:
    figures: dict[str, float] = {}
    patches = ForegroundPatches(PATCH, fraction=1.0)
    for side in sides(quick=context.quick):
        path = context.work / f"{side}.lmdb"
        read_all(path)

        def ready(path: object = path) -> Draw:
            volumes = StoredVolumes(path, 0)
            rng = np.random.default_rng(0)

            def draw() -> tuple[int, int, int]:
                uniforms = rng.random((1, patches.uniforms))
                (location,) = patches.locations(volumes.open(0), 0, uniforms)
                assert location.drawn is not None
                return location.drawn

            return draw

        figures |= draws(context.work / "labels", side, ready, quick=context.quick)
        figures[f"{side}³: {_FILE}"] = _table_megabytes(context, side)
    return figures


def _table_megabytes(context: Context, side: int) -> float:
    return float(Store(context.work / f"{side}.lmdb").value("label_blocks", 0).nbytes / 1e6)


def _rival(name: str) -> Case:
    return Case(
        name=name, rival=("draw_foreground.py", _RIVALS[name]), keeps=f"rival-{_RIVALS[name]}"
    )


def _grows(runs: Runs) -> list[float]:
    """Return what a draw from the largest volume takes, over one from the smallest."""
    small, large = (dict(runs[_OURS])[f"{side}³: {DRAW}"] for side in (_SMALL, _LARGE))
    return [more / less for less, more in zip(small, large, strict=True)]


def _smaller(other: str) -> Goal:
    figure = f"{_LARGE}³: {HELD}"
    return Goal(
        text=f"{_OURS}: {figure}, over {other}",
        values=lambda runs: ratios(runs, _OURS, figure, other),
        target=0.01,
        at_least=False,
        needs=(_OURS, other),
    )


BENCHMARK = Benchmark(
    file=__file__,
    question="What does it take to draw patches around voxels of a class?",
    cases=(Case(name=_OURS, run=_ours), *(_rival(name) for name in _RIVALS)),
    goals=(
        Goal(
            text=f"{_OURS}: µs for a draw from {_LARGE}³ voxels, over {_SMALL}³",
            values=_grows,
            target=1.5,
            at_least=False,
            needs=(_OURS,),
        ),
        *(_smaller(name) for name in list(_RIVALS)[:2]),
    ),
    prepare=prepare,
    needs_pictures=False,
    rounds=3,
)

if __name__ == "__main__":
    main(BENCHMARK)
