"""What a person should know about a folder before packing, and about the store once it is there."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from sharedds.folder import FolderIndex
from sharedds.ingest.images.prepare import FORMATS, MODES, ImageRecipe
from sharedds.ingest.report import LISTED, PackReport
from sharedds.store import Store
from sharedds.store.duplicates import Duplicates, find_duplicates
from sharedds.text import printable

__all__ = ["content_counts", "examine", "remarks_on_folder"]

_MEMBERS = 10
_NAMES = {"format": FORMATS, "mode": MODES, "orientation": (), "bits": ()}


def remarks_on_folder(index: FolderIndex, recipe: ImageRecipe) -> list[str]:
    """Return what is worth knowing before anything is packed, a sentence each."""
    remarks = []
    if index.empty_classes:
        count = len(index.empty_classes)
        names = ", ".join(printable(name) for name in index.empty_classes[:10])
        more = f" and {count - 10:,} more" if count > 10 else ""
        remarks.append(
            f"{count:,} class {'folders hold' if count > 1 else 'folder holds'} no image and "
            f"{'keep their numbers' if count > 1 else 'keeps its number'}: {names}{more}"
        )
    if index.numeric_mismatch:
        remarks.append(
            "class folders are named by numbers but numbered by their names sorted as text, so "
            "label and name differ; with numeric_classes=True (--numeric-classes) they are equal"
        )
    if recipe.orientation == "ignore":
        remarks.append(
            "EXIF orientation is ignored, as asked: pictures are read as they are stored"
        )
    return remarks


def content_counts(store: Store) -> dict[str, dict[str, int]]:
    """Count the formats, modes, depths, orientations and multi-frame files of a packed folder."""
    counts: dict[str, dict[str, int]] = {}
    for name in store.fields:
        what = name.removeprefix("source_")
        if what not in _NAMES:
            continue
        column, totals = store.column(name), np.zeros(256, np.int64)
        for number in range(column.segments):
            totals += np.bincount(column.segment(number), minlength=256)
            column.release(number)
        names = _NAMES[what]
        counts[name] = {
            names[code] if code < len(names) else str(code): int(totals[code])
            for code in np.flatnonzero(totals).tolist()
        }
    frames = store.column("frames")
    several = 0
    for number in range(frames.segments):
        several += int(np.count_nonzero(frames.segment(number) > 1))
        frames.release(number)
    counts["frames"] = {"several": several}
    return counts


def examine(
    store: Store, others: Sequence[Store], recipe: ImageRecipe, outcome: PackReport
) -> list[Duplicates]:
    """Fill in what is known once the store is there: counts, equal pictures, warnings.

    Returns:
        All the duplicates, of which ``outcome`` names the first.
    """
    outcome.content = content_counts(store)
    outcome.warnings += _remarks_on_content(outcome, recipe)
    inside = find_duplicates(store)
    if inside.conflicting:
        outcome.warnings.append(
            f"{_pictures(inside.conflicting)} stored more than once, under different labels"
        )
    found = [inside]
    if others:
        across = find_duplicates(store, others)
        where = ", ".join(printable(other.path) for other in others)
        if across.count:
            outcome.warnings.append(f"{_pictures(across.count)} also in {where}")
        found.append(across)
        outcome.warnings += [
            f"{printable(other.path)} was packed with other options, so equal pictures in it may "
            "go unnoticed"
            for other in others
            if _encoding(other) != _encoding(store)
        ]
    outcome.duplicate_count = sum(one.count for one in found)
    for one in found:
        room = LISTED - len(outcome.duplicates)
        outcome.duplicates += islice(one.groups(members=_MEMBERS), room)
    return found


def _encoding(store: Store) -> list[object]:
    recipe = store.attrs.get("recipe", {})
    if recipe.get("codec") == "keep":
        return ["keep"]
    names = ("codec", "quality", "max_side", "short_side", "size", "depth", "background")
    since = {"chroma": "auto", "raw_share": 0.0, "raw_below": 0}  # not in stores of before
    return [recipe.get(name, since.get(name)) for name in (*names, *since)]


def _pictures(count: int) -> str:
    return f"{count:,} picture{'s are' if count > 1 else ' is'}"


def _remarks_on_content(outcome: PackReport, recipe: ImageRecipe) -> list[str]:
    remarks = []
    counts, samples = outcome.content, outcome.samples
    modes = counts.get("source_mode", counts["mode"])
    alpha = sum(modes.get(mode, 0) for mode in ("LA", "PA", "RGBA"))
    if alpha and recipe.codec in ("jpeg", "raw"):
        remarks.append(
            f"{alpha:,} of {samples:,} pictures had an alpha channel; the background "
            f"{recipe.background} shows where they were transparent"
        )
    elif alpha:
        remarks.append(
            f"{alpha:,} of {samples:,} pictures have an alpha channel; read as RGB, a background "
            "(white, unless the dataset is told otherwise) shows where they are transparent"
        )
    bits = counts.get("source_bits", counts["bits"])
    deep = sum(number for depth, number in bits.items() if int(depth) > 8)
    if recipe.depth == "8" and deep:
        remarks.append(f"{deep:,} pictures of more than 8 bits were scaled to 8, as asked")
    elif deep and deep < samples:
        remarks.append(
            f"{deep:,} of {samples:,} pictures have more than 8 bits; read together, all take the "
            "depth of the first one (or the depth= of the dataset)"
        )
    png = counts["format"].get("png", 0)
    if recipe.codec in ("jpeg", "webp") and png:
        remarks.append(
            f"{png:,} pictures became PNG, without loss: {recipe.codec} cannot hold them"
        )
    if several := counts["frames"]["several"]:
        remarks.append(f"{several:,} files have several frames or pages; the first one is read")
    return remarks
