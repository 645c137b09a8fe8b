"""Grids of patches: where they begin, how many there are, and that they leave nothing out."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from bare_cases import Bare, Triple

from sharedds.errors import OptionError
from sharedds.patches import GridPatches, SlicePatches


def starts(n: int, p: int, o: int) -> list[int]:
    """Return where patches of an axis begin, the plain way: the last one ends at the border."""
    return sorted({min(s, n - p) for s in range(0, n - o, p - o)})


@pytest.mark.parametrize(("overlap", "count"), [(0, 18), (4, 36), (8, 60), (15, 8008)])
def test_the_number_of_patches_is_known(overlap: int, count: int) -> None:
    """From the shape alone."""
    shape = (37, 41, 29)
    grid = GridPatches((16, 16, 16), overlap=overlap)
    assert grid.counts(np.array([shape, shape])).tolist() == [count, count]
    assert [list(each) for each in grid.grid(shape).starts] == [
        starts(n, 16, overlap) for n in shape
    ]


@pytest.mark.parametrize("p", [1, 2, 5, 8])
def test_starts_are_those_of_the_plain_way(p: int) -> None:
    """For every length and every overlap, and in the order of the items."""
    for n, o in itertools.product(range(p, 3 * p + 4), range(p)):
        grid = GridPatches((p, 1, 1), overlap=(o, 0, 0))
        shape = (n, 2, 1)
        count = int(grid.counts(np.array([shape]))[0])
        places = [grid.locations(Bare(shape), at, np.zeros((1, 0)))[0] for at in range(count)]
        assert [place.start for place in places] == [
            (s, j, 0) for s in starts(n, p, o) for j in range(2)
        ]


def test_a_patch_larger_than_the_volume_is_one() -> None:
    """Put around it, as patches at random are."""
    grid = GridPatches((8, 8, 8), overlap=3)
    assert grid.counts(np.array([[5, 8, 9]])).tolist() == [2]
    assert grid.grid((5, 8, 9)).starts == ((-1,), (0,), (0, 1))


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [(0, (0, 0, 0)), (0.5, (8, 5, 2)), (3, (3, 3, 3)), ((0.25, 0, 4), (4, 0, 4)), (0.3, (4, 3, 1))],
)
def test_an_overlap_is_voxels_or_a_share(overlap: Any, expected: Triple) -> None:
    """A share is rounded down, for each axis by itself."""
    assert GridPatches((16, 10, 5), overlap=overlap).overlap == expected


@pytest.mark.parametrize(
    "overlap", [-1, 5, 1.0, -0.1, True, "half", (1, 1), (0, 0, 9), float("nan")], ids=repr
)
def test_an_overlap_leaves_a_step(overlap: Any) -> None:
    """All else is refused, with the value."""
    with pytest.raises(OptionError, match="overlap"):
        GridPatches(5, overlap=overlap)


def test_what_a_model_gives_covers_the_volume() -> None:
    """Where it gives less than it is shown, patches reach beyond the border."""
    grid = GridPatches((12, 12, 12), output_size=(8, 6, 12), overlap=2)
    found = grid.grid((20, 13, 12))
    assert found.starts == ((0, 6, 12), (0, 4, 7), (0,))
    assert found.margin == (2, 3, 0)
    first = grid.locations(Bare((20, 13, 12)), 0, np.zeros((1, 0)))[0]
    assert (first.start, first.size) == ((-2, -3, 0), (12, 12, 12))
    with pytest.raises(OptionError, match="output_size"):
        GridPatches(4, output_size=5)


def test_a_start_tells_its_place() -> None:
    """Others have none."""
    grid = GridPatches((16, 16, 16), overlap=4).grid((37, 41, 29))
    assert grid.place((21, 24, 13)) == (2, 2, 2)
    assert grid.place((21, 24, 14)) is None
    assert grid.place((99, 0, 0)) is None


def test_whole_slices_are_a_grid() -> None:
    """Parts of slices at random are none."""
    grid = SlicePatches(axis=1, thickness=3).grid((4, 5, 6))
    assert (grid.starts, grid.size) == (((0,), (0, 1, 2, 3, 4), (0,)), (4, 1, 6))
    assert grid.place((0, -1, 0)) == (0, 0, 0)
    with pytest.raises(OptionError, match="cover no volume"):
        SlicePatches(size=4).grid((4, 5, 6))
