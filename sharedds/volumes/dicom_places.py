"""Frames of one direction sorted by where they lie, and parted where several lie at one place."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from sharedds.volumes.dicom_frames import Picture
from sharedds.volumes.dicom_placement import MARKS, Frame, Mark

__all__ = ["SAME_MM", "Part", "Shot", "parts_of", "places_of"]

SAME_MM = 1e-3
"""Distance in mm below which two places are the same."""

_SAME_PLACE = 1e-2  # the same, as a part of the usual distance of slices


class Shot(NamedTuple):
    """A frame and the file it is in."""

    picture: Picture
    frame: Frame


Part = tuple[tuple[tuple[str, Mark], ...], list[Shot]]
"""What tells these frames from others at the same places, and the frames, sorted by place."""


def places_of(plane: list[Shot], normal: tuple[float, float, float]) -> list[list[Shot]]:
    """Sort frames along the normal, those at the same height together."""
    heights = np.array([shot.frame.position for shot in plane], np.float64) @ np.asarray(normal)
    order = np.argsort(heights, kind="stable")
    distances = np.diff(heights[order])
    apart = np.sort(distances[distances > SAME_MM])
    usual = float(apart[(len(apart) - 1) // 2]) if len(apart) else 1.0
    same = distances <= max(_SAME_PLACE * usual, min(SAME_MM, usual / 2))
    places: list[list[Shot]] = []
    for n, index in enumerate(order):
        if n and same[n - 1]:
            places[-1].append(plane[index])
        else:
            places.append([plane[index]])
    return places


def parts_of(places: list[list[Shot]]) -> list[Part] | None:
    """Part frames so that none shares its place; None if nothing that they say does it.

    Only partings into as many stacks as the most crowded place has frames count: anything that
    differs from frame to frame would do it too, and leave single slices.
    """
    most = max(map(len, places))
    if most == 1:
        return [((), [slot[0] for slot in places])]
    every = [shot for slot in places for shot in slot]
    names = [*MARKS, "file"]

    def value(shot: Shot, n: int) -> Mark:
        return shot.picture.instance if n == len(MARKS) else shot.frame.marks[n]

    telling = [n for n in range(len(MARKS)) if len({value(shot, n) for shot in every}) > 1]
    if len({shot.picture.instance for shot in every}) == most and most < len(every):
        telling.append(len(MARKS))
    for count in (1, 2):
        for chosen in itertools.combinations(telling, count):
            parts: dict[tuple[Mark, ...], list[list[Shot]]] = {}
            for slot in places:
                for shot in slot:
                    key = tuple(value(shot, n) for n in chosen)
                    parts.setdefault(key, []).append([shot])
                if len({tuple(value(shot, n) for n in chosen) for shot in slot}) < len(slot):
                    break
            else:
                if len(parts) == most:
                    return [
                        (
                            tuple((names[n], mark) for n, mark in zip(chosen, key, strict=True)),
                            [shot for slot in parts[key] for shot in slot],
                        )
                        for key in sorted(parts, key=lambda key: [_rank(mark) for mark in key])
                    ]
    return None


def _rank(mark: Mark) -> tuple[bool, float, str]:
    number = mark if isinstance(mark, float | int) else 0.0
    return mark is not None, number, "" if isinstance(mark, float | int) else str(mark)
