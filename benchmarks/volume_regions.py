"""How long does a random patch of a volume take, and how large is the file?

Measured: 200 patches of 128³ and of 96³ voxels at random places of one volume of 480 × 512 × 512
voxels, as int16 and as normalised float32, made from a CT that is enlarged and given noise
(``--data`` names the folder with a ``ct*.nii.gz``; without one, a body is drawn). Median ms for a
patch, in the stored dtype, as an array of its own. Warm: after the whole was read once by the same
reader. Cold: 20 patches, each opened anew after the system has dropped the file from its cache; the
opening is kept out. Our store as ``blosc`` blocks, which a pack chooses for these, and as ``raw``
slabs; ``np.memmap``; blosc2 with the blocks, chunks, codec and filter that nnU-Net 2.8 chooses for
patches of 128³, one thread, mapped; zarr with chunks of 64³; NIfTI files by nibabel. Each reader is
first compared with what was written.
Kept out: writing; scaling to float32; augmentation; loading in several processes.
Reproduce: ``scripts/bench volume_regions --data FOLDER --peers PYTHON``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from harness import Benchmark, Case, Context, Goal, Runs, against, main
from harness.volumes import COLD, DTYPES, PATCHES, SIZE, WARM, Reader, Task, make_volumes, measure

from sharedds.store import ArrayValue, Field, Store, StoreWriter
from sharedds.store.blocking import EFFORT, block_shape, slab_shape

_BLOCKS, _RAW, _MEMMAP = "sharedds, blocks", "sharedds, raw", "np.memmap"
_RIVALS = ("blosc2", "zarr", "nii", "nii.gz")


def _task(context: Context) -> Task:
    return Task(folder=context.work / "volumes")


def _path(context: Context, name: str, dtype: str) -> Path:
    return context.work / f"{name}-{dtype}.lmdb"


def prepare(context: Context) -> None:
    """Write the volumes and our stores of them."""
    task = make_volumes(context.data, context.work / "volumes", quick=context.quick)
    for dtype in DTYPES:
        values = task.volume(dtype)
        patch = tuple(min(PATCHES[0], n) for n in values.shape)
        blocks = block_shape(values.shape, values.itemsize, patch=patch)
        slabs = slab_shape(values.shape, values.itemsize)
        for name, field, effort in (
            ("blocks", Field("blosc", chunk=blocks), EFFORT["blosc"]),
            ("raw", Field("raw", chunk=slabs), 0),
        ):
            with StoreWriter(_path(context, name, dtype), schema={"image": field}) as writer:
                writer.add({"image": ArrayValue(values, effort=effort)})


def _ours(name: str) -> Case:
    def run(context: Context) -> Mapping[str, float]:
        def opened(dtype: str) -> Reader:
            array = Store(_path(context, name, dtype)).array(0, "image")

            def read(start: tuple[int, int, int], side: int) -> npt.NDArray[np.generic]:
                return array.patch(start, (side,) * 3, scaled=False)

            return read

        return measure(_task(context), lambda dtype: _path(context, name, dtype), opened)

    return Case(name=f"sharedds, {name}", run=run)


def _memmap(context: Context) -> Mapping[str, float]:
    task = _task(context)

    def opened(dtype: str) -> Reader:
        volume = task.volume(dtype)

        def read(start: tuple[int, int, int], side: int) -> npt.NDArray[np.generic]:
            return np.array(volume[tuple(slice(s, s + side) for s in start)])

        return read

    return measure(task, task.source, opened)


def _rival(name: str) -> Case:
    script = "volume_patches.py"
    return Case(
        name=name,
        rival=(script, "read", name),
        keeps=f"rival-{name}",
        makes=(script, "prepare", name),
        rounds=1 if name == "nii.gz" else None,
    )


def _goal(ours: str, figure: str, other: str, most: float) -> Goal:
    def values(runs: Runs) -> list[float]:
        return against(runs, ours, figure, (other,), min)

    return Goal(
        text=f"{ours}: {figure}, over {other}",
        values=values,
        target=most,
        at_least=False,
        needs=(ours, other),
        needs_one=(other,),
    )


def _goals() -> tuple[Goal, ...]:
    goals = []
    for dtype in DTYPES:
        for size in PATCHES:
            figures = [f"{dtype}: ms for {size}³, {how}" for how in (WARM, COLD)]
            goals += [_goal(_BLOCKS, f, other, 1.0) for f in figures for other in _RIVALS[:2]]
            goals.append(_goal(_RAW, figures[0], _MEMMAP, 1.1))
        goals.append(_goal(_BLOCKS, f"{dtype}: {SIZE}", "blosc2", 1.1))
    return tuple(goals)


BENCHMARK = Benchmark(
    file=__file__,
    question="How long does a random patch of a volume take?",
    cases=(
        _ours("blocks"),
        _ours("raw"),
        Case(name=_MEMMAP, run=_memmap),
        *(_rival(name) for name in _RIVALS),
    ),
    goals=_goals(),
    prepare=prepare,
    needs_pictures=False,
    rounds=3,
)

if __name__ == "__main__":
    main(BENCHMARK)
