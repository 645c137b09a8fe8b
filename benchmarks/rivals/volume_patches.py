"""Patches of a volume from the files of other libraries.

Arguments: DATA FOLDER ACTION VARIANT. ``prepare`` writes the volumes in the variant's format,
``read`` times patches of them. Variants: ``blosc2`` (blocks and chunks as nnU-Net 2.8 chooses
them), ``zarr`` (64³ chunks, its default compressor), ``nii`` and ``nii.gz`` (by nibabel).
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from harness.volumes import DTYPES, PATCHES, Reader, Task, measure
from reading import need

_FEW = 4  # patches of what reads a stream from its start
_BLOCK, _CHUNK = 128 << 10, 6 << 20  # bytes at most
_REACH = 1.5  # a chunk is at most this many patches long


def _blosc_shapes(
    shape: tuple[int, ...], itemsize: int, patch: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return block and chunk by the rule that nnU-Net documents: halve, then grow."""
    targets = [min(n, _REACH * p) for n, p in zip(shape, patch, strict=True)]
    block = [min(n, 1 << (p - 1).bit_length()) for n, p in zip(shape, patch, strict=True)]
    while math.prod(block) * itemsize > _BLOCK:
        ratios = [b / t for b, t in zip(block, targets, strict=True)]
        axis = max(range(len(block)), key=lambda a: (ratios[a], a))
        block[axis] = -(-block[axis] // 2)
    chunk = list(block)
    open_axes = set(range(len(chunk)))
    while open_axes:
        axis = min(open_axes, key=lambda a: chunk[a] / targets[a])
        grown = [*chunk]
        grown[axis] = min(chunk[axis] + block[axis], shape[axis])
        fits = math.prod(grown) * itemsize <= _CHUNK and grown[axis] <= targets[axis]
        if not fits or grown[axis] == chunk[axis]:
            open_axes.discard(axis)
        else:
            chunk = grown
    return tuple(block), tuple(chunk)


def _write_blosc2(values: Any, path: Path) -> None:
    blosc2 = need("blosc2")
    patch = tuple(min(PATCHES[0], n) for n in values.shape)
    block, chunk = _blosc_shapes(values.shape, values.itemsize, patch)
    middle = tuple(
        slice((n - c) // 2, (n - c) // 2 + c) for n, c in zip(values.shape, chunk, strict=True)
    )
    sample = np.ascontiguousarray(values[middle])
    sizes = {}
    for chosen in (blosc2.Filter.NOFILTER, blosc2.Filter.SHUFFLE):
        options = {"codec": blosc2.Codec.LZ4HC, "clevel": 5, "filters": [chosen]}
        trial = blosc2.asarray(sample, chunks=chunk, blocks=block, cparams=options)
        sizes[trial.schunk.cbytes] = options
    blosc2.asarray(
        np.asarray(values),
        chunks=chunk,
        blocks=block,
        cparams=sizes[min(sizes)],
        urlpath=str(path),
        mode="w",
    )


def _write(variant: str, values: Any, path: Path) -> None:
    if variant == "blosc2":
        _write_blosc2(values, path)
    elif variant == "zarr":
        zarr = need("zarr")
        chunks = tuple(min(64, n) for n in values.shape)
        array = zarr.create_array(
            store=str(path), shape=values.shape, chunks=chunks, dtype=values.dtype
        )
        array[:] = np.asarray(values)
    else:
        nibabel = need("nibabel")
        nibabel.save(nibabel.Nifti1Image(np.asarray(values), np.eye(4)), str(path))


def _open(variant: str, path: Path) -> Reader:
    source: Any
    if variant == "blosc2":
        blosc2 = need("blosc2")
        source = blosc2.open(str(path), mode="r", mmap_mode="r", dparams={"nthreads": 1})
    elif variant == "zarr":
        source = need("zarr").open_array(str(path), mode="r")
    else:
        source = need("nibabel").load(str(path)).dataobj

    def read(start: tuple[int, int, int], side: int) -> Any:
        i, j, k = start
        part = source[i : i + side, j : j + side, k : k + side]
        return np.array(part) if isinstance(part, np.memmap) else part  # a view costs nothing yet

    return read


def main() -> None:
    """Do what the arguments say; print the figures."""
    _, _, folder, action, variant = sys.argv
    task = Task(folder=Path(folder).parent / "volumes")
    dtypes = DTYPES[:1] if variant == "nii.gz" else DTYPES

    def path(dtype: str) -> Path:
        return Path(folder) / f"{dtype}.{'b2nd' if variant == 'blosc2' else variant}"

    figures: dict[str, float] = {}
    if action == "prepare":
        for dtype in dtypes:
            _write(variant, task.volume(dtype), path(dtype))
    else:
        most = {"most": _FEW} if variant == "nii.gz" else {}
        figures = dict(
            measure(task, path, lambda dtype: _open(variant, path(dtype)), dtypes=dtypes, **most)
        )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
