"""Affines: spacing, letters, corners, turning, and what is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sharedds.errors import DecodeError, OptionError
from sharedds.volumes import (
    Affine,
    checked_affine,
    corner_distance,
    is_mirrored,
    orientation_of,
    reorientation,
    reoriented_affine,
    shifted,
    spacing_of,
)

AXES = ["".join(letters) for letters in itertools.product("RL", "AP", "SI")]
ALL = ["".join(turned) for axes in AXES for turned in itertools.permutations(axes)]


def oblique(seed: int) -> Affine:
    """Return a rotation with three different spacings and an origin."""
    draw = np.random.default_rng(seed)
    result = np.eye(4)
    result[:3, :3] = np.linalg.qr(draw.normal(size=(3, 3)))[0] * draw.uniform(0.5, 4, 3)
    result[:3, 3] = draw.normal(size=3) * 50
    return result


def test_spacing_is_the_length_of_the_columns() -> None:
    """A rotation changes nothing of it."""
    affine = oblique(1)
    turn = np.eye(4)
    turn[:3, :3] = np.linalg.qr(np.random.default_rng(2).normal(size=(3, 3)))[0]
    assert spacing_of(turn @ affine) == pytest.approx(spacing_of(affine))
    assert spacing_of(np.diag((2.0, -3.0, 4.0, 1.0))) == (2.0, 3.0, 4.0)


def test_letters_agree_with_nibabel_for_obliques() -> None:
    """Also near 45 degrees and with all axes exchanged."""
    nibabel = pytest.importorskip("nibabel")
    for seed in range(300):
        affine = oblique(seed)
        assert orientation_of(affine) == "".join(nibabel.aff2axcodes(affine))


def test_letters_of_sheared_axes_are_three_directions() -> None:
    """Two axes that share their closest direction do not share its letter."""
    affine = np.eye(4)
    affine[:3, 1] = (1.0, 0.8, 0.0)
    assert sorted(orientation_of(affine)) == ["A", "R", "S"]


def test_corner_distance_is_that_of_the_outermost_centres() -> None:
    """One affine is mirrored: the first slice is 58 mm and 2 mm off, the last one less."""
    one, other = np.diag((2.0, 2.0, 2.0, 1.0)), np.diag((-2.0, 2.0, 2.0, 1.0))
    one[:3, 3], other[:3, 3] = (-28, -38, -16), (30, -40, -16)
    assert corner_distance(one, other, (20, 30, 10)) == pytest.approx(58.0345, abs=1e-4)
    assert is_mirrored(one, other)
    assert not is_mirrored(one, one)


def test_shifted_affine_puts_the_first_voxel_where_it_was() -> None:
    """A negative start, of a padded patch, as well."""
    affine = oblique(3)
    for start in ((4, 5, 6), (-3, 0, 2)):
        moved = shifted(affine, start)
        assert moved @ (0, 0, 0, 1) == pytest.approx(affine @ (*start, 1))
        assert (moved[:3, :3] == affine[:3, :3]).all()


@pytest.mark.parametrize("target", ALL)
def test_every_voxel_stays_where_it_was_when_turned(target: str) -> None:
    """For all 48 orientations, from an oblique one: same value at the same millimetre."""
    affine = oblique(4)
    data = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    perm, flips = reorientation(affine, target)
    turned = np.flip(data.transpose(perm), tuple(axis for axis in range(3) if flips[axis]))
    after = reoriented_affine(affine, data.shape, perm, flips)
    assert orientation_of(after) == target
    back = np.linalg.inv(affine) @ after
    for index in np.ndindex(turned.shape):
        i, j, k = np.round((back @ (*index, 1))[:3]).astype(int)
        assert turned[index] == data[i, j, k]


@pytest.mark.parametrize("target", ["RA", "RLS", "XYZ", "RASI", ""])
def test_orientations_that_are_none_are_refused(target: str) -> None:
    """The text says which letters are needed."""
    with pytest.raises(OptionError, match="R or L, A or P, S or I"):
        reorientation(np.eye(4), target)


@pytest.mark.parametrize(
    ("place", "value", "text"),
    [((0, 3), np.nan, "finite"), ((3, 0), 1.0, "last row"), ((1, 1), 0.0, "singular")],
)
def test_matrices_that_place_nothing_are_refused(
    place: tuple[int, int], value: float, text: str
) -> None:
    """Not finite, projective, or flat."""
    matrix = np.eye(4)
    matrix[place] = value
    with pytest.raises(DecodeError, match=text):
        checked_affine(matrix)


def test_three_rows_become_four() -> None:
    """As headers often have them; the input is not changed."""
    found = checked_affine(np.eye(4, dtype="f4")[:3])
    assert found.dtype == np.float64
    assert (found == np.eye(4)).all()
