"""The pixels of patches: regions of a batch read together, and scaled where that was asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from sharedds.datasets.slide_places import Place
from sharedds.patches.planar import Pair
from sharedds.store import Store
from sharedds.store.requests import Request, blocks_touched, resized

__all__ = ["PixelReader"]

Values = npt.NDArray[Any]

_SAME = 1e-6  # of a ratio of pixel sizes that is none


class PixelReader:
    """Reads patches.

    Args:
        size: Of each, (y, x).
        plane: Of slides that are focus stacks.
        fill: What lies outside of a slide; None for its background.
        is_scaled: Whether patches are of a pixel size, and not of a level.
    """

    def __init__(
        self, size: Pair, *, plane: int, fill: float | Sequence[float] | None, is_scaled: bool
    ) -> None:
        self._size = size
        self._plane = plane
        self._fill = fill
        self._is_scaled = is_scaled

    def read(self, store: Store, places: Sequence[Place], forms: Sequence[Pair]) -> list[Values]:
        """Return patches as they are stored, (y, x, channel) each; every tile is decoded once.

        Args:
            store: Of the slides.
            places: Where they lie.
            forms: Channels and planes of their slides.

        Raises:
            CorruptDataError: A tile is damaged; the text names it.
        """
        windows = [self._window(place) for place in places]
        requests = self._requests(places, windows, forms)
        found = store.read_regions("image", requests, fill=self._fill)
        flat = [values.reshape(values.shape[-3:]) for values in found]
        if not self._is_scaled:
            return flat
        return [
            self._scaled(values, place, window)
            for values, place, window in zip(flat, places, windows, strict=True)
        ]

    def advise(self, store: Store, places: Sequence[Place], forms: Sequence[Pair]) -> None:
        """Ask the system to fetch the tiles of patches, without waiting."""
        entries = set()
        windows = [self._window(place) for place in places]
        for request in self._requests(places, windows, forms):
            level = store.array(request.sample, "image").level(request.level)
            first = store.opened.entry_range(request.sample, "image")[0] + level.first_block
            entries |= {first + number for number in blocks_touched(level, request)}
        store.opened.advise(sorted(entries))

    def _requests(
        self,
        places: Sequence[Place],
        windows: Sequence[list[tuple[int, int]]],
        forms: Sequence[Pair],
    ) -> list[Request]:
        found = []
        for place, window, (channels, planes) in zip(places, windows, forms, strict=True):
            start, size = (*(low for low, _ in window), 0), (*(n for _, n in window), channels)
            if planes:
                start, size = (self._plane, *start), (1, *size)
            found.append(Request(place.slide, place.frame.level, start, size))
        return found

    def _bounds(self, place: Place) -> list[tuple[float, float]]:
        """Return, along (y, x), where a patch begins in its level, and how far its pixels reach."""
        down = place.frame.downsample
        pairs = zip(place.origin, place.frame.factor, strict=True)
        return [(at / down, factor / down) for at, factor in pairs]

    def _window(self, place: Place) -> list[tuple[int, int]]:
        """Return what is read of a level: where it begins and how many pixels, along (y, x)."""
        if not self._is_scaled:
            return list(zip(place.start, self._size, strict=True))
        found = []
        for (begin, step), side in zip(self._bounds(place), self._size, strict=True):
            low = math.floor(begin + _SAME)
            found.append((low, max(1, math.ceil(begin + step * side - _SAME) - low)))
        return found

    def _scaled(self, values: Values, place: Place, window: list[tuple[int, int]]) -> Values:
        """Average a part of a level down, as the store does."""
        bounds = self._bounds(place)
        begins = [begin - low for (begin, _), (low, _) in zip(bounds, window, strict=True)]
        return resized(values, begins, [step for _, step in bounds], self._size)
