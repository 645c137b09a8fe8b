"""Small stores of slides, as packing makes them, and the pixels in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sharedds.patches import GridPatches, TissuePatches, UniformPatches
from sharedds.store import ArrayValue, Field, StoreWriter

__all__ = [
    "CELL",
    "PATCHES",
    "Slide",
    "discs",
    "halved",
    "picture",
    "same",
    "slides",
    "tissue_of",
    "write_slides",
]

Values = npt.NDArray[Any]
CELL = 16

#: Each kind of patch, some of them larger than some of the slides.
PATCHES: dict[str, Any] = {
    "tissue": TissuePatches(32),
    "jitter": TissuePatches(32, jitter=True, overlap=0.25),
    "by slide": TissuePatches(32, balance="slides", level=1),
    "by class": TissuePatches(24, balance="labels", jitter=True),
    "uniform": UniformPatches((40, 56), per_case=3),
    "scaled": UniformPatches(24, per_case=2, mpp=0.8),
    "grid": GridPatches(64, overlap=8),
    "scaled grid": GridPatches(30, mpp=1.3),
}


@dataclass(frozen=True, kw_only=True)
class Slide:
    """A slide to be written.

    Attributes:
        image: (y, x, channel), or (plane, y, x, channel).
        tissue: (y, x), where there is tissue; None leaves the map out.
        labels: For each class, (y, x), where it is; None without polygons.
        mpp: Of a pixel.
        levels: How many.
        background: Of each channel.
    """

    image: Values
    tissue: Values | None = None
    labels: Sequence[Values] | None = None
    mpp: float | None = 0.5
    levels: int = 3
    background: Sequence[int] | None = (243, 243, 243)


def picture(height: int, width: int, *, seed: int = 0) -> Values:
    """Return a picture of noise, (y, x, channel)."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def tissue_of(image: Values) -> Values:
    """Return where a picture is neither grey nor black."""
    low, high = image.min(axis=-1).astype(int), image.max(axis=-1).astype(int)
    return np.asarray((high - low > 15) & (high > 20))


def halved(image: Values) -> Values:
    """Return a picture of half the size, of means; an odd row or column stands twice."""
    if image.ndim == 4:
        return np.stack([halved(plane) for plane in image])
    height, width = image.shape[:2]
    even = np.pad(image, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge").astype(np.float64)
    parts = even.reshape(-(-height // 2), 2, -(-width // 2), 2, -1)
    return np.asarray(np.rint(parts.mean(axis=(1, 3))).astype(image.dtype))


def discs() -> dict[str, Slide]:
    """Return slides: blank, with a disc of tissue, tissue everywhere, or smaller than a patch."""
    generator, side = np.random.default_rng(5), 1024
    y, x = np.mgrid[0:side, 0:side] + 0.5
    noise = generator.integers(-3, 4, (side, side, 1))
    glass = np.full((side, side, 3), 243) + noise
    inside = ((x - 512) ** 2 + (y - 512) ** 2 < 200**2)[..., None]
    disc = np.where(inside, np.array([200, 90, 150]) + noise, glass)
    made = {
        "black": np.where((x < 300)[..., None], 0, disc),
        "blank": glass,
        "disc": disc,
        "pale": np.full((side, side, 3), [228, 200, 218]) + noise,
        "tiny": disc[500:530, 500:540],
    }
    return {
        name: Slide(image=image.astype(np.uint8), tissue=tissue_of(image), levels=1)
        for name, image in made.items()
    }


def slides() -> dict[str, Slide]:
    """Return slides of noise of different shapes, with tissue and classes in some of them."""
    made = {}
    for number, (height, width) in enumerate([(200, 260), (170, 131), (300, 96), (50, 60)]):
        y, x = np.mgrid[0:height, 0:width]
        tissue = (y + x) % (150 + 20 * number) < 100
        labels = [tissue & (y < height // 2), tissue & (x > width // 2)]
        made[f"slide{number}"] = Slide(
            image=picture(height, width, seed=number),
            tissue=tissue,
            labels=None if number == 1 else labels,
            mpp=0.5 if number % 2 else 0.25,
        )
    return made


def _cells(mask: Values) -> Values:
    """Return how many pixels of each cell are in a mask."""
    height, width = mask.shape
    padded = np.pad(mask, ((0, -height % CELL), (0, -width % CELL)))
    parts = padded.reshape(-(-height // CELL), CELL, -(-width // CELL), CELL)
    return np.asarray(parts.sum(axis=(1, 3)).astype(np.uint16))


def write_slides(
    path: Path,
    made: Mapping[str, Slide],
    *,
    chunk: tuple[int, int, int] = (64, 64, 3),
    codec: str = "lz4",
) -> Path:
    """Write a store of slides and return its path."""
    labelled = any(slide.labels is not None for slide in made.values())
    mapped = any(slide.tissue is not None for slide in made.values())
    names = ["tumour", "stroma"]
    schema: dict[str, str | Field] = {"image": Field(codec, chunk=chunk)}
    if mapped:
        schema["tissue"] = "lz4"
    if labelled:
        schema["label"] = "lz4"
    schema["size"] = "int64[2]"
    attrs: dict[str, Any] = {"kind": "slide", "cell": CELL, "tile": chunk[0], "options": {}}
    if labelled:
        attrs["class_names"] = names
    with StoreWriter(path, schema=schema, attrs=attrs) as writer:
        for name, slide in made.items():
            writer.add(_sample(slide, chunk, schema), key=name)
    return path


def _sample(slide: Slide, chunk: tuple[int, int, int], schema: Any) -> dict[str, Any]:
    levels = [slide.image]
    while len(levels) < slide.levels:
        levels.append(halved(levels[-1]))
    kept: dict[str, Any] = {"downsamples": [float(2**at) for at in range(len(levels))]}
    if slide.mpp is not None:
        kept["mpp"] = [slide.mpp, slide.mpp]
    if slide.background is not None:
        kept["background"] = list(slide.background)
    lead = (1,) if slide.image.ndim == 4 else ()
    blocks = (*lead, *chunk[:2], slide.image.shape[-1])
    found: dict[str, Any] = {
        "image": ArrayValue(levels[0], attrs=kept, levels=tuple(levels[1:]), chunk=blocks),
        "size": slide.image.shape[-3:-1],
    }
    if "tissue" in schema:
        tissue = slide.tissue
        found["tissue"] = (
            None if tissue is None else ArrayValue(_cells(tissue), attrs={"cell": CELL})
        )
    if "label" in schema:
        labels = slide.labels
        found["label"] = (
            None if labels is None else np.stack([_cells(each) for each in labels], axis=-1)
        )
    return found


def same(one: Any, other: Any) -> bool:
    """Whether two items or batches are of one type and equal to the bit; NaN equals NaN."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and np.array_equal(one.numpy(), other.numpy(), equal_nan=one.is_floating_point())
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other)
