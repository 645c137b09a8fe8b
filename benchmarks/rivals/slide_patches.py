"""Regions of a tiled TIFF by other libraries.

Arguments: DATA FOLDER READ VARIANT. Variants: ``openslide``, ``tifffile`` (its zarr store, one
level), ``pyvips`` (fetch of a region), ``cucim`` (its cache off, as reads seldom meet), ``pillow``
(crop of the flat JPEG, which it decodes whole each time). Each keeps its handle open and reads with
one thread.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["VIPS_CONCURRENCY"] = "1"

import numpy as np
from harness.slides import Reader, Task, measure
from reading import need

_FEW = 2  # regions of what decodes everything each time


def _openslide(task: Task) -> Reader:
    slide = need("openslide").OpenSlide(str(task.tiled))

    def read(y: int, x: int, side: int) -> Any:
        return np.asarray(slide.read_region((x, y), 0, (side, side)))[..., :3]

    return read


def _tifffile(task: Task) -> Reader:
    store = need("tifffile").imread(str(task.tiled), aszarr=True, level=0)
    array: Any = need("zarr").open(store, mode="r")

    def read(y: int, x: int, side: int) -> Any:
        return np.asarray(array[y : y + side, x : x + side])

    return read


def _pyvips(task: Task) -> Reader:
    pyvips = need("pyvips")
    image = pyvips.Image.new_from_file(str(task.tiled), access="random")
    region = pyvips.Region.new(image)

    def read(y: int, x: int, side: int) -> Any:
        data = region.fetch(x, y, side, side)
        return np.frombuffer(data, np.uint8).reshape(side, side, -1)

    return read


def _cucim(task: Task) -> Reader:
    image = need("cucim").CuImage(str(task.tiled))
    image.cache("nocache")

    def read(y: int, x: int, side: int) -> Any:
        return np.asarray(image.read_region((x, y), (side, side), 0, num_workers=1))

    return read


def _pillow(task: Task) -> Reader:
    pillow = need("PIL.Image")
    pillow.MAX_IMAGE_PIXELS = None

    def read(y: int, x: int, side: int) -> Any:
        with pillow.open(task.streamed) as image:
            return np.asarray(image.crop((x, y, x + side, y + side)))

    return read


_OPENED = {
    "openslide": _openslide,
    "tifffile": _tifffile,
    "pyvips": _pyvips,
    "cucim": _cucim,
    "pillow": _pillow,
}


def main() -> None:
    """Do what the arguments say; print the figures."""
    _, _, folder, _, variant = sys.argv
    task = Task(folder=Path(folder).parent / "slide")
    flat = variant == "pillow"
    few = {"most": _FEW} if flat else {}
    place = task.streamed if flat else task.tiled
    print(json.dumps(dict(measure(task, place, lambda: _OPENED[variant](task), **few))))


if __name__ == "__main__":
    main()
