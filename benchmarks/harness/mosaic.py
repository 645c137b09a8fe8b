"""Large pictures made of photos: what the benchmarks of slides read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyvips

from harness.slides import REGIONS, SIDES, TILE, WAYS, Task

__all__ = ["make_slide", "mosaic_of"]

_SIDE, _QUICK_SIDE = 30_000, 1_500
_PART = 500  # of the mosaic: each is cut out of one photo
_CHECKED = 3  # regions of each kind that are compared with the picture


def make_slide(data: Path, folder: Path, *, quick: bool) -> Task:
    """Write a mosaic of photos, and draw the places of the regions.

    Args:
        data: Class folders of photos; without any, parts are drawn.
        folder: Where to write.
        quick: A small one.
    """
    folder.mkdir()
    task = Task(folder=folder)
    rng = np.random.default_rng(0)
    side = _QUICK_SIDE if quick else _SIDE
    mosaic = mosaic_of(data, side, rng, parts=400)
    mosaic.tiffsave(
        str(task.tiled),
        tile=True,
        tile_width=TILE,
        tile_height=TILE,
        compression="jpeg",
        Q=90,
        pyramid=True,
        bigtiff=True,
    )
    mosaic.jpegsave(str(task.streamed), Q=90)
    places = {}
    for size in SIDES:
        for way in WAYS:
            drawn = rng.integers(0, side - size, (REGIONS, 2))
            if way == "aligned":
                drawn = drawn // TILE * TILE
            places[f"{size} {way}"] = drawn.tolist()
            shown = [mosaic.crop(int(x), int(y), size, size).numpy() for y, x in drawn[:_CHECKED]]
            np.save(folder / f"{size}-{way}.npy", np.stack(shown))
    (folder / "places.json").write_text(json.dumps(places))
    return task


def mosaic_of(data: Path, side: int, rng: np.random.Generator, *, parts: int) -> Any:
    """Return a square picture made of parts of photos, as libvips has it.

    Args:
        data: Class folders of photos; where there are none, parts are drawn.
        side: Pixels along each side.
        rng: Says which photos, and where they lie.
        parts: How many photos are used.
    """
    across = -(-side // _PART)
    count = min(across**2, parts)
    photos = sorted(data.rglob("*.JPEG"))
    chosen = rng.integers(0, max(1, len(photos)), count)
    found = [_part(photos[n : n + 1], rng) for n in chosen]
    order = rng.integers(0, count, across**2)
    mosaic = pyvips.Image.arrayjoin([found[n] for n in order], across=across)
    return mosaic.crop(0, 0, side, side)


def _part(photos: list[Path], rng: np.random.Generator) -> Any:
    """Return a square of the mosaic in memory."""
    if photos:
        name = str(photos[0])
        found = pyvips.Image.thumbnail(name, _PART, height=_PART, crop="centre", size="both")
        return found.colourspace("srgb")[:3].copy_memory()
    y, x = np.mgrid[0:_PART, 0:_PART] / _PART
    waves = [np.sin(rng.uniform(3, 60) * x + rng.uniform(3, 60) * y) for _ in range(3)]
    values = np.stack(waves, -1) * 90 + 128 + rng.normal(0, 6, (_PART, _PART, 1))
    return pyvips.Image.new_from_array(values.clip(0, 255).astype(np.uint8))
