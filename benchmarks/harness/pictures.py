"""Renders class folders of pictures about like photographs, so that a benchmark runs anywhere.

Run as a script, so that neither NumPy nor Pillow is loaded in what is measured:
``pictures.py FOLDER COUNT SIDE [SIDES...]``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 10


def render(folder: Path, count: int, side: int) -> None:
    """Write ``count`` JPEG files into 10 class folders: soft shapes with grain, 4:3, some upright.

    Args:
        folder: Where the class folders go.
        count: Number of pictures.
        side: Longer side in pixels; every sixteenth picture has twice that.
    """
    rng = np.random.default_rng(0)
    for number in range(count):
        longer = side * (2 if number % 16 == 15 else 1)
        size = (longer, longer * 3 // 4) if number % 3 else (longer * 3 // 4, longer)
        soft = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        pixels = np.asarray(soft.resize(size, Image.Resampling.BICUBIC), np.float32)
        grain = rng.normal(0, 10, pixels.shape).astype(np.float32)
        picture = Image.fromarray(np.clip(pixels + grain, 0, 255).astype(np.uint8))
        target = folder / f"class{number % CLASSES}" / f"{number:05d}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        picture.save(target, quality=90)


if __name__ == "__main__":
    render(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
