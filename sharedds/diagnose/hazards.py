"""What an audit finds: one hazard for each thing, or for each place with many alike."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from sharedds.datasets import ImageDataset
from sharedds.datasets.sources import is_image_folder
from sharedds.diagnose.containers import first_items, is_a, item_count
from sharedds.diagnose.fixes import fix_of
from sharedds.diagnose.prices import Price
from sharedds.diagnose.signs import table_kind
from sharedds.diagnose.sizes import is_image
from sharedds.errors import SharedDSError
from sharedds.text import decimal_size

__all__ = ["LARGE_PIXELS", "Hazard", "described", "grouped", "large_pictures"]

#: From so many pixels on (5,000 x 5,000) pictures are better packed as slides.
LARGE_PIXELS = 25_000_000

_MOST_OF_ONE_PLACE = 3
_INDEX = re.compile(r"\[(?:'[^']*'|[^\]]*)\]")
_ATTRIBUTE = re.compile(r"\w+\.\w+")  # of the dataset itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """One thing that costs workers memory, or that they cannot have.

    Args:
        kind: "objects", "table", "array", "images", "handle", "lock", "iterator", "random",
            "device", "function", "library", "cache", "growth", "pickle", "start", "iterable" or
            "large".
        path: Where it is, such as ``dataset.meta['rows']``.
        what: What it is and does, in a line.
        fix: What to write instead, as code.
        is_note: Whether it is only good to know: it decides nothing.
        fork: Private bytes that each forked worker comes to hold.
        spawn: Private bytes of each worker started by spawn or forkserver; None if it cannot start.
        shared: Bytes that spawn and forkserver move to shared memory once, for all workers.
        tensors: How many tensors that are; each takes an open file on its way.
        pickled: Bytes that it adds to a pickle, if it is part of one.
        breaks: Whether a forked worker cannot use it.
        repeats: Whether workers of a plain DataLoader draw the same random numbers.
        is_of_class: Whether a class or a module holds it, not the dataset's objects.
    """

    kind: str
    path: str
    what: str
    fix: str = ""
    is_note: bool = False
    fork: int = 0
    spawn: int | None = 0
    shared: int = 0
    tensors: int = 0
    pickled: int = 0
    breaks: bool = False
    repeats: bool = False
    is_of_class: bool = False

    @property
    def most(self) -> int:
        """The most bytes that one worker pays for it."""
        return max(self.fork, self.spawn or 0)

    def repeated_share(self, num_workers: int) -> float:
        """Return which share of the random numbers of all workers are repetitions."""
        return (num_workers - 1) / num_workers if self.repeats and num_workers else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)


def _without_shadowed(hazards: list[Hazard]) -> list[Hazard]:
    """Leave out generators of a class where its instances have one of their own by that name."""
    random = [each for each in hazards if each.kind == "random"]
    own = {each.path.rpartition(".")[2] for each in random if not each.is_of_class}
    return [
        each
        for each in hazards
        if not (each.kind == "random" and each.is_of_class and each.path.rpartition(".")[2] in own)
    ]


def grouped(hazards: list[Hazard]) -> list[Hazard]:
    """Tell many of a kind in one place once."""
    hazards = _without_shadowed(hazards)
    places: dict[tuple[str, str, bool], list[Hazard]] = {}
    for hazard in hazards:
        place = _INDEX.sub("[...]", hazard.path)
        if hazard.kind == "random" and (held := _ATTRIBUTE.match(place)):
            place = f"{held[0]} {hazard.what}"  # wherever in it, as in a pipeline of transforms
        places.setdefault((hazard.kind, place, hazard.is_note), []).append(hazard)
    kept = []
    for group in places.values():
        if len(group) <= _MOST_OF_ONE_PLACE:
            kept += group
            continue
        first = group[0]
        cannot = any(each.spawn is None for each in group)
        kept.append(
            replace(
                first,
                path=_common([each.path for each in group]),
                what=f"{len(group)} times: {first.what}",
                fork=sum(each.fork for each in group),
                spawn=None if cannot else sum(each.spawn or 0 for each in group),
                shared=sum(each.shared for each in group),
                tensors=sum(each.tensors for each in group),
                pickled=sum(each.pickled for each in group),
            )
        )
    return kept


def _common(paths: list[str]) -> str:
    """Return a path with ``[...]`` wherever some paths have different keys, or where they part."""
    if len({_INDEX.sub("[...]", path) for path in paths}) > 1:
        held = _ATTRIBUTE.match(paths[0])
        return held[0] if held else paths[0]
    keys = [_INDEX.findall(path) for path in paths]
    same = iter([each[0] if len(set(each)) == 1 else "[...]" for each in zip(*keys, strict=True)])
    return _INDEX.sub(lambda _: next(same), paths[0])


def described(obj: Any, kind: str, price: Price) -> tuple[str, str]:
    """Say what some data is, and of which kind it is on a closer look."""
    about = "about " if price.sampled else ""
    if table := table_kind(obj):
        rows = len(obj) if hasattr(obj, "__len__") else 0
        return f"a {table} of {rows:,} rows, {about}{price.objects:,} Python objects", "table"
    if is_a(obj, (np.ndarray, torch.Tensor)):
        if is_a(obj, np.ndarray) and obj.dtype.hasobject:
            return f"an array of {obj.size:,} Python objects", "objects"
        shape = " × ".join(map(str, obj.shape))
        name = "tensor" if is_a(obj, torch.Tensor) else type(obj).__name__
        mapped = "" if name == "memmap" else "private "
        return f"a {mapped}{name} of {shape} {str(obj.dtype).removeprefix('torch.')}", kind
    if is_image(type(obj)):
        return "a decoded image", "images"
    if is_a(obj, (str, bytes, bytearray)):
        return f"{type(obj).__name__} of {len(obj):,}", kind
    items = first_items(obj, 200)
    names = sorted({_name(item) for item in items})
    of = " and ".join(names[:2]) if len(names) < 3 else f"{names[0]}, {names[1]} and others"
    what = f"a {type(obj).__name__} of {item_count(obj):,} items ({of})"
    if _mostly(items, lambda item: is_image(type(item)) or _is_picture(item)):
        return f"{what}: decoded images, kept", "images"
    if _mostly(items, lambda item: is_a(item, (np.ndarray, torch.Tensor))):
        return what, "array"
    return f"{what}, {about}{price.objects:,} Python objects", "objects"


def large_pictures(dataset: object) -> Hazard | None:
    """Return a note where pictures are so large that a sample should not decode all of one.

    Args:
        dataset: Any dataset; only an :class:`~sharedds.ImageDataset` is looked at.
    """
    if not isinstance(dataset, ImageDataset):
        return None
    size = None
    with contextlib.suppress(SharedDSError):  # reported when it is loaded
        size = ImageDataset.largest_picture(dataset)
    if size is None or size[0] * size[1] < LARGE_PIXELS:
        return None
    height, width = size
    place = dataset.storage_path
    folder = shlex.quote(place) if is_image_folder(place) else "FOLDER"
    return Hazard(
        kind="large",
        path="dataset",
        what=f"pictures of up to {width:,} x {height:,} pixels: to show a part of one, all of it "
        f"is decoded ({decimal_size(3 * height * width)} as RGB). Packed as slides (sharedds pack "
        f"{folder} slides.lmdb --kind slide), a sample reads the tiles that it shows; where "
        "samples show whole pictures, shrink them as they are packed (--max-side)",
        fix=fix_of("large", "dataset", folder),
        is_note=True,
    )


def _name(obj: Any) -> str:
    return type(obj).__name__


def _mostly(items: list[Any], is_so: Callable[[Any], bool]) -> bool:
    return sum(map(is_so, items)) * 2 > len(items)


def _is_picture(obj: Any) -> bool:
    """Whether an array or tensor looks like a picture: bytes, in two dimensions or more."""
    return (
        is_a(obj, (np.ndarray, torch.Tensor))
        and str(obj.dtype).removeprefix("torch.") == "uint8"
        and obj.ndim >= 2
    )
