"""Volumes turned, cut, resampled and converted by region, with every voxel where it was."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharedds.errors import DecodeError, OptionError
from sharedds.volumes.changes import (
    converted,
    cropped,
    foreground_box,
    onto_grid,
    reoriented,
    resampled,
)
from sharedds.volumes.geometry import orientation_of, spacing_of
from sharedds.volumes.source import Affine, VolumeData, VolumeHeader


class Recorded:
    """Voxels in memory that note which regions were read."""

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self.values = values
        self.shape: tuple[int, ...] = values.shape
        self.dtype = values.dtype
        self.regions: list[tuple[slice, ...]] = []

    def __getitem__(self, region: tuple[slice, ...], /) -> npt.NDArray[Any]:
        assert len(region) == len(self.shape)
        assert all(
            0 <= part.start <= part.stop <= size and part.step in (None, 1)
            for part, size in zip(region, self.shape, strict=True)
        )
        self.regions.append(region)
        return self.values[region]

    @property
    def largest(self) -> int:
        """Voxels of the largest region."""
        return max(int(math.prod(part.stop - part.start for part in r)) for r in self.regions)


class Huge(Recorded):
    """Voxels that no memory could hold, computed from their numbers."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(np.zeros(0, np.int16))
        self.shape = shape

    def __getitem__(self, region: tuple[slice, ...], /) -> npt.NDArray[Any]:
        self.regions.append(region)
        total: npt.NDArray[np.int64] = np.asarray(sum(np.ogrid[region]))
        result: npt.NDArray[np.int16] = (total % 1000).astype(np.int16)
        return result


def diagonal(*spacing: float, origin: tuple[float, float, float] = (0, 0, 0)) -> Affine:
    """Return an affine of axes to the right, anterior and superior."""
    affine = np.diag([*spacing, 1.0])
    affine[:3, 3] = origin
    return affine


def volume(
    values: npt.NDArray[Any], affine: Affine | None = None, **facts: Any
) -> tuple[Recorded, VolumeHeader]:
    """Return voxels and their header; a fourth axis in front is time."""
    more = {"steps": values.shape[0], "axis": "time"} if values.ndim == 4 else {}
    i, j, k = values.shape[-3:]
    header = VolumeHeader(
        path="case.nii",
        format="NumPy",
        shape=(i, j, k),
        dtype=values.dtype,
        affine=affine,
        **{**more, **facts},
    )
    return Recorded(values), header


def whole(data: VolumeData) -> npt.NDArray[Any]:
    """Read all of a volume."""
    return data[tuple(slice(0, size) for size in data.shape)]


def ramp(shape: tuple[int, ...], affine: Affine) -> npt.NDArray[np.float64]:
    """Return voxels whose value is linear in where they are."""
    i, j, k = np.indices(shape)
    places = np.einsum("xn,nijk->xijk", affine[:3, :3], np.stack([i, j, k])).T + affine[:3, 3]
    result: npt.NDArray[np.float64] = (places @ np.array([1.0, -2.0, 0.5])).T
    return result


def random_affine(seed: int) -> Affine:
    """Return an oblique affine, mirrored or not, with three spacings."""
    rng = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    affine = np.eye(4)
    affine[:3, :3] = rotation * rng.uniform(0.5, 4, 3)
    affine[:3, 3] = rng.uniform(-200, 200, 3)
    return affine


ORIENTATIONS = [
    "".join(letters)
    for order in itertools.permutations(("RL", "AP", "SI"))
    for letters in itertools.product(*order)
]


# --- turned ---


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    target=st.sampled_from(ORIENTATIONS),
    shape=st.tuples(*[st.integers(1, 5)] * 3),
)
def test_turning_leaves_every_voxel_where_it_is(
    seed: int, target: str, shape: tuple[int, int, int]
) -> None:
    """For any affine, shape and orientation: the same values at the same millimetres."""
    affine = random_affine(seed)
    data, header = volume(np.arange(math.prod(shape), dtype=np.int16).reshape(shape), affine)
    turned, voxels = reoriented(data, header, target)
    assert turned.affine is not None
    assert orientation_of(turned.affine) == target
    assert voxels.shape == turned.shape
    values = whole(voxels)
    before = {int(data.values[at]): affine @ [*at, 1] for at in np.ndindex(shape)}
    for at in np.ndindex(turned.shape):
        place = turned.affine @ [*at, 1]
        np.testing.assert_allclose(place, before[int(values[at])], rtol=0, atol=1e-9)


def test_turning_there_and_back_is_exact() -> None:
    """Voxels and affine are bit for bit what they were, for axes along the body."""
    affine = diagonal(0.7, 0.8, 2.5, origin=(-12, 31, 7))
    data, header = volume(np.random.default_rng(0).integers(0, 99, (4, 5, 6)), affine)
    there, voxels = reoriented(data, header, "PIL")
    back, again = reoriented(voxels, there, "RAS")
    np.testing.assert_array_equal(whole(again), data.values)
    assert back.affine is not None
    np.testing.assert_allclose(back.affine, affine, rtol=0, atol=1e-12)
    assert [entry["to"] for entry in back.attrs["changes"]] == ["PIL", "RAS"]


def test_turning_reads_only_the_region_asked_for() -> None:
    """Of a volume with steps, the mirrored part of one step."""
    values = np.arange(2 * 4 * 5 * 6).reshape(2, 4, 5, 6)
    data, header = volume(values, diagonal(1, 1, 1))
    turned, voxels = reoriented(data, header, "SLP")
    assert turned.full_shape == voxels.shape == (2, 6, 4, 5)
    part = voxels[1:2, 0:2, 1:2, 3:5]
    expected = values.transpose(0, 3, 1, 2)[:, :, ::-1, ::-1][1:2, 0:2, 1:2, 3:5]
    np.testing.assert_array_equal(part, expected)
    assert data.regions == [(slice(1, 2), slice(2, 3), slice(0, 2), slice(0, 2))]


def test_a_volume_that_lies_right_is_left_alone() -> None:
    """The very same objects, and nothing is noted."""
    data, header = volume(np.zeros((2, 2, 2)), diagonal(1, 1, 1))
    assert reoriented(data, header, "RAS") == (header, data)


def test_a_volume_without_affine_is_not_turned() -> None:
    """Nobody knows where its axes point; the file is named."""
    with pytest.raises(DecodeError, match=r"case\.nii: no affine in it"):
        reoriented(*volume(np.zeros((2, 2, 2))), "RAS")


# --- cropped ---


def test_a_crop_moves_the_affine() -> None:
    """The first voxel of the crop is where that voxel was."""
    affine = random_affine(3)
    data, header = volume(np.arange(4 * 5 * 6).reshape(4, 5, 6), affine)
    cut, voxels = cropped(data, header, (1, 2, 3), (4, 4, 6))
    assert cut.shape == voxels.shape == (3, 2, 3)
    np.testing.assert_array_equal(whole(voxels), data.values[1:4, 2:4, 3:6])
    assert cut.affine is not None
    np.testing.assert_allclose(cut.affine @ [0, 0, 0, 1], affine @ [1, 2, 3, 1], atol=1e-9)
    assert cut.attrs["changes"] == [
        {"change": "cropped", "start": [1, 2, 3], "stop": [4, 4, 6], "from_shape": [4, 5, 6]}
    ]


@pytest.mark.parametrize(
    ("start", "stop"), [((0, 0, 0), (5, 5, 6)), ((-1, 0, 0), (4, 5, 6)), ((2, 0, 0), (2, 5, 6))]
)
def test_a_box_that_is_not_inside_is_refused(start: Any, stop: Any) -> None:
    """Too large, negative or empty: the text has the box and the shape."""
    with pytest.raises(OptionError, match=r"in a volume of \(4, 5, 6\)"):
        cropped(*volume(np.zeros((4, 5, 6))), start, stop)


def test_the_foreground_box_is_the_smallest() -> None:
    """Every voxel above the threshold is in it, in whichever step; each face touches one."""
    values = np.full((2, 30, 20, 10), -1000, np.int16)
    values[0, 3, 4, 5] = 7
    values[1, 28, 2, 6] = 8
    data, _ = volume(values)
    assert foreground_box(data, threshold=6) == ((3, 2, 5), (29, 5, 7))
    assert foreground_box(data, threshold=7) == ((28, 2, 6), (29, 3, 7))


def test_the_foreground_box_of_nothing_is_the_whole() -> None:
    """Also where all is NaN."""
    data, _ = volume(np.full((3, 4, 5), np.nan))
    assert foreground_box(data, threshold=0) == ((0, 0, 0), (3, 4, 5))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_threshold_beyond_a_short_float_is_above_all(dtype: str) -> None:
    """And no warning of an overflow is shown."""
    data, _ = volume(np.ones((3, 4, 5), dtype))
    assert foreground_box(data, threshold=1e60) == ((0, 0, 0), (3, 4, 5))


def test_the_foreground_box_is_found_in_bounded_memory() -> None:
    """By pieces that overlap nowhere: each voxel is read once."""
    data = Huge((2, 400, 400, 40))
    box = foreground_box(data, threshold=998)
    assert box == ((0, 0, 0), (400, 400, 40))
    assert data.largest <= 1 << 22
    read = sum(math.prod(part.stop - part.start for part in region) for region in data.regions)
    assert read == math.prod(data.shape)


# --- resampled ---


@pytest.mark.parametrize("spacing", [(0.9, 1.1, 3.0), (3.7, 0.5, 6.1), (0.7, 0.8, 0.6)])
def test_a_ramp_stays_the_same_ramp(spacing: tuple[float, float, float]) -> None:
    """Finer or coarser, oblique: away from the border the value is still that of the place.

    To 1/8 of an old voxel where voxels are averaged by shares, exactly where they are not.
    """
    affine = random_affine(5) @ np.diag([1.3, 1.3, 1.3, 1])
    values = ramp((24, 25, 26), affine)
    header, data = resampled(*volume(values, affine), spacing, nearest=False)
    assert header.affine is not None
    np.testing.assert_allclose(spacing_of(header.affine), spacing, rtol=1e-9)
    expected = ramp(header.shape, header.affine)
    inner = tuple(
        slice(n := math.ceil(1 + old / new), -n)
        for old, new in zip(spacing_of(affine), spacing, strict=True)
    )
    assert expected[inner].size > 50
    slopes = np.abs(affine[:3, :3].T @ np.array([1.0, -2.0, 0.5]))
    atol = 1e-6 + slopes @ [
        (new / old > 1.2) / 8 for old, new in zip(spacing_of(affine), spacing, strict=True)
    ]
    np.testing.assert_allclose(whole(data)[inner], expected[inner], rtol=0, atol=atol)


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(1, 400),
    old=st.floats(0.2, 10),
    new=st.floats(0.2, 10),
)
def test_the_grid_has_the_middle_of_the_old_one(size: int, old: float, new: float) -> None:
    """And its outer centres lie at most 3/4 of a new voxel inside the old outer edges."""
    affine = diagonal(old, 1, 1, origin=(17, 0, 0))
    data = Huge((size, 1, 1))
    header = VolumeHeader(
        path="x", format="NumPy", shape=(size, 1, 1), dtype=data.dtype, affine=affine
    )
    made, voxels = resampled(data, header, (new, 1, 1), nearest=False)
    assert made.affine is not None
    assert voxels.shape == made.shape
    first = (made.affine @ [0, 0, 0, 1])[0]
    last = (made.affine @ [made.shape[0] - 1, 0, 0, 1])[0]
    assert first + last == pytest.approx(17 + 17 + (size - 1) * old, abs=1e-6)
    inside = first - (17 - old / 2)
    assert inside <= 0.75 * max(new, old) + 1e-6
    assert inside > -1e-6 or made.shape[0] == 1


def test_halving_is_the_mean_of_pairs() -> None:
    """A factor of 2 along one axis; reading every other voxel would lose half of them."""
    values = np.random.default_rng(1).normal(size=(8, 3, 3))
    header, data = resampled(*volume(values, diagonal(1, 1, 1)), (2, 1, 1), nearest=False)
    assert header.shape == (4, 3, 3)
    np.testing.assert_allclose(whole(data), (values[::2] + values[1::2]) / 2, atol=1e-12)


def test_nothing_falls_through_when_a_volume_shrinks() -> None:
    """A bright voxel leaves a seventh of itself at a factor of 7, wherever it lies."""
    for at in range(14, 28):
        values = np.zeros((42, 1, 1), np.float32)
        values[at] = 700
        _, data = resampled(*volume(values, diagonal(1, 1, 1)), (7, 1, 1), nearest=False)
        assert whole(data).sum() == pytest.approx(100)


def test_what_lies_outside_does_not_count() -> None:
    """A new voxel that sticks out is the mean of what it covers; the border is not repeated."""
    values = np.array([3, 0, 0], np.float64).reshape(3, 1, 1)
    _, data = resampled(*volume(values, diagonal(1, 1, 1)), (2, 1, 1), nearest=False)
    assert whole(data).ravel().tolist() == pytest.approx([2, 0])


@pytest.mark.parametrize("spacing", [10, 1000, 1e6])
def test_a_voxel_larger_than_the_volume_is_its_mean(spacing: float) -> None:
    """Of all voxels alike, and it takes no more memory for being larger."""
    values = np.random.default_rng(5).normal(size=(7, 6, 5))
    header, data = resampled(*volume(values, diagonal(1, 1, 1)), (spacing,) * 3, nearest=False)
    assert header.shape == (1, 1, 1)
    assert header.affine is not None
    np.testing.assert_allclose(header.affine[:3, 3], [3, 2.5, 2])
    tracemalloc.start()
    try:
        assert whole(data).item() == pytest.approx(values.mean())
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def in_itk(values: npt.NDArray[Any], affine: Affine) -> Any:
    """Return voxels as an image of SimpleITK, whose axes are to the left, posterior, superior."""
    itk: Any = pytest.importorskip("SimpleITK")
    image = itk.GetImageFromArray(values.transpose(2, 1, 0))
    to_lps = np.diag([-1.0, -1.0, 1.0])
    spacing = np.array(spacing_of(affine))
    image.SetSpacing(spacing.tolist())
    image.SetDirection((to_lps @ affine[:3, :3] / spacing).ravel().tolist())
    image.SetOrigin((to_lps @ affine[:3, 3]).tolist())
    return image


@pytest.mark.parametrize("nearest", [False, True], ids=["linear", "nearest"])
@pytest.mark.parametrize("seed", range(6))
def test_finer_grids_hold_what_simpleitk_finds(seed: int, nearest: bool) -> None:
    """Oblique, mirrored, anisotropic: the same values at the same places, nowhere half a voxel off.

    Where both have a value: it has none beyond the outermost centres, and of two voxels that are
    equally near it may take the other.
    """
    itk: Any = pytest.importorskip("SimpleITK")
    rng = np.random.default_rng(seed)
    affine = random_affine(seed)
    values = rng.normal(size=(9, 7, 8))
    spacing = np.array(spacing_of(affine)) * rng.uniform(0.3, 1, 3)
    header, data = resampled(*volume(values, affine), spacing.tolist(), nearest=nearest)
    assert header.affine is not None
    there = itk.Resample(
        in_itk(values, affine),
        in_itk(np.zeros(header.shape), header.affine),
        itk.Transform(),
        itk.sitkNearestNeighbor if nearest else itk.sitkLinear,
        float("nan"),
    )
    expected = itk.GetArrayFromImage(there).transpose(2, 1, 0)
    known = np.isfinite(expected)
    to_old = np.linalg.inv(affine) @ header.affine
    for axis, grid in enumerate(np.ogrid[tuple(map(slice, header.shape))]):
        place = to_old[axis, axis] * grid + to_old[axis, 3]
        known &= ~(nearest & (abs(place - np.floor(place) - 0.5) < 1e-6))
    assert known.mean() > 0.5
    np.testing.assert_allclose(whole(data)[known], expected[known], rtol=0, atol=1e-6)


def test_a_constant_stays_constant_to_the_border() -> None:
    """Nothing dark comes in from outside; integers stay themselves."""
    values = np.full((7, 9, 5), -1024, np.int16)
    _, data = resampled(*volume(values, diagonal(1, 1, 1)), (0.4, 2.3, 5), nearest=False)
    assert np.unique(whole(data)).tolist() == [-1024]
    assert data.dtype == np.int16


def test_integers_are_rounded_and_not_cut() -> None:
    """The mean of 0 and 1 rounds to even, of 1 and 2 up; the naive cast gives 0 and 1."""
    values = np.array([0, 1, 1, 2, -3, -4], np.int16).reshape(6, 1, 1)
    _, data = resampled(*volume(values, diagonal(1, 1, 1)), (2, 1, 1), nearest=False)
    assert whole(data).ravel().tolist() == [0, 2, -4]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int64", "uint64"])
def test_integers_stay_in_their_range(dtype: str) -> None:
    """The largest and the smallest value of each dtype come through a resampling as they are."""
    limits = np.iinfo(dtype)
    values = np.full((4, 2, 2), limits.max, dtype)
    values[:2] = limits.min
    _, data = resampled(*volume(values, diagonal(1, 1, 1)), (0.5, 1, 1), nearest=False)
    result = whole(data)
    assert result.dtype == np.dtype(dtype)
    assert result[0, 0, 0] == limits.min
    assert result[-1, 0, 0] == pytest.approx(limits.max, rel=1e-12)


def test_nan_does_not_spread_to_voxels_that_weigh_it_nothing() -> None:
    """Centres that are old centres take over their value; a product with 0 would be NaN."""
    values = np.array([1, 2, np.nan, 4, 5], np.float32).reshape(5, 1, 1)
    _, data = resampled(*volume(values, diagonal(1, 1, 1)), (1 / 3, 1, 1), nearest=False)
    result = whole(data).ravel()
    assert result[1::3].tolist() == pytest.approx([1, 2, np.nan, 4, 5], nan_ok=True)
    assert np.isnan(result).sum() == 5


def test_infinity_stays_where_it_is() -> None:
    """It weighs on itself and its neighbours; a product with 0 would be NaN, with a warning."""
    values = np.array([1, 2, np.inf, 4, 5], np.float32).reshape(5, 1, 1)
    _, data = resampled(*volume(values, diagonal(1, 1, 1)), (1 / 3, 1, 1), nearest=False)
    result = whole(data).ravel()
    assert result[1::3].tolist() == pytest.approx([1, 2, np.inf, 4, 5])
    assert np.isinf(result).sum() == 5
    assert not np.isnan(result).any()


def test_labels_take_the_nearest_value() -> None:
    """No value comes in that was not there: the mean of 1 and 3 would be 2."""
    values = np.array([0, 1, 3, 3], np.uint8).reshape(4, 1, 1)
    header, data = resampled(*volume(values, diagonal(1, 1, 1)), (0.5, 1, 1), nearest=True)
    assert whole(data).ravel().tolist() == [0, 0, 1, 1, 3, 3, 3, 3]
    assert header.attrs["changes"][0]["method"] == "nearest"


def test_labels_land_on_the_grid_of_their_picture() -> None:
    """Resampled by the same rule, both have one shape and one affine."""
    affine = random_affine(9)
    values = np.zeros((11, 12, 13), np.int16)
    image, _ = resampled(*volume(values, affine), (1.1, 0.8, 2.6), nearest=False)
    label, _ = resampled(*volume(values.astype("u1"), affine), (1.1, 0.8, 2.6), nearest=True)
    assert image.shape == label.shape
    np.testing.assert_array_equal(image.affine, label.affine)


def test_factors_stay_and_a_change_is_noted() -> None:
    """Slope and intercept are those of the stored values, which are on the same scale."""
    values = np.zeros((4, 4, 4), np.int16)
    header, _ = resampled(
        *volume(values, diagonal(1, 1, 2), slope=0.5, intercept=-10), (1, 1, 1), nearest=False
    )
    assert (header.slope, header.intercept) == (0.5, -10)
    assert header.attrs["changes"] == [
        {
            "change": "resampled",
            "method": "linear",
            "from_spacing": [1, 1, 2],
            "to_spacing": [1, 1, 1],
            "from_shape": [4, 4, 4],
        }
    ]


def test_a_spacing_that_is_there_changes_nothing() -> None:
    """Also within the noise of a header of 32-bit floats."""
    data, header = volume(np.zeros((100, 4, 4)), diagonal(0.7, 1, 1))
    assert resampled(data, header, (float(np.float32(0.7)), 1, 1), nearest=False) == (header, data)


@pytest.mark.parametrize("nearest", [False, True])
def test_regions_are_parts_of_the_whole(nearest: bool) -> None:
    """Block by block, of a volume with steps, the very values of one read."""
    values = np.random.default_rng(2).normal(size=(2, 13, 11, 9)).astype(np.float32)
    header, data = resampled(*volume(values, diagonal(1, 2, 3)), (1.7, 0.9, 3.3), nearest=nearest)
    assert header.full_shape == data.shape
    everything = whole(data)
    for start in itertools.product(*(range(0, size, 3) for size in data.shape)):
        region = tuple(
            slice(at, min(at + 3, size)) for at, size in zip(start, data.shape, strict=True)
        )
        np.testing.assert_array_equal(data[region], everything[region])


def test_a_region_reads_what_it_needs() -> None:
    """A few voxels of a volume of 128 GB, and slabs of it in pieces."""
    data = Huge((4000, 4000, 4000))
    header = VolumeHeader(
        path="x", format="NumPy", shape=(4000,) * 3, dtype=data.dtype, affine=diagonal(1, 1, 1)
    )
    made, voxels = resampled(data, header, (20, 20, 20), nearest=False)
    assert made.shape == (200, 200, 200)
    voxels[100:102, 100:102, 100:102]
    assert data.largest <= 64**3
    voxels[0:2, 0:40, 0:40]
    assert data.largest <= 1 << 21


def test_a_region_that_grows_is_made_in_pieces() -> None:
    """A thousand new voxels of each old one: what is computed at once is bounded by them too."""
    pair = volume(np.zeros((40, 40, 40), np.int16), diagonal(1, 1, 1))
    _, data = resampled(*pair, (0.1, 0.1, 0.1), nearest=False)
    tracemalloc.start()
    try:
        values = data[0:400, 0:400, 0:100]
        assert tracemalloc.get_traced_memory()[1] < 2.5 * values.nbytes + (40 << 20)
    finally:
        tracemalloc.stop()


def test_a_voxel_of_millions_is_refused() -> None:
    """It could not be made in bounded memory; metres by mistake."""
    data = Huge((4000, 4000, 4000))
    header = VolumeHeader(
        path="x", format="NumPy", shape=(4000,) * 3, dtype=data.dtype, affine=diagonal(1, 1, 1)
    )
    with pytest.raises(OptionError, match=r"x: .*choose a smaller spacing"):
        resampled(data, header, (1000, 1000, 1000), nearest=False)


@pytest.mark.parametrize(
    "spacing",
    [(1, 1), (1, 1, 0), (1, 1, -1), (1, 1, math.nan), 1, "abc", (1, 1, 1e300), (1, 1, 1e-300)],
)
def test_a_spacing_that_is_none_is_refused(spacing: Any) -> None:
    """The text has it."""
    with pytest.raises(OptionError, match="three numbers of mm"):
        resampled(*volume(np.zeros((2, 2, 2)), diagonal(1, 1, 1)), spacing, nearest=False)


def test_a_spacing_that_explodes_is_refused() -> None:
    """Micrometres by mistake: 10**18 voxels are not begun."""
    pair = volume(np.zeros((99, 99, 99)), diagonal(1, 1, 1))
    with pytest.raises(OptionError, match="choose a larger spacing"):
        resampled(*pair, (1e-4, 1e-4, 1e-4), nearest=False)


# --- onto another grid ---

GRID = np.array([[0.7, 0, 0, -12], [0, 0.7, 0, -15], [0, 0, 3, 40], [0, 0, 0, 1.0]])


def labels() -> npt.NDArray[np.uint8]:
    """Return labels of 0 and 1 that differ from slice to slice."""
    i, j, k = np.indices((30, 38, 12))
    result: npt.NDArray[np.uint8] = ((i + 40 * j + 1600 * k) % 7 == 0).astype(np.uint8)
    return result


def placed(affine: Affine, values: npt.NDArray[np.uint8] | None = None) -> npt.NDArray[Any]:
    """Return labels with an affine on the grid of a picture with the affine ``GRID``."""
    _, picture = volume(np.zeros((30, 38, 12), np.int16), GRID)
    data, header = volume(labels() if values is None else values, affine)
    made, voxels = onto_grid(data, header, picture)
    assert made.shape == voxels.shape == (30, 38, 12)
    return whole(voxels)


def test_labels_two_slices_off_are_moved() -> None:
    """Two empty slices come first; taken voxel by voxel, all would be two slices too low."""
    affine = GRID.copy()
    affine[2, 3] = 46
    result = placed(affine)
    np.testing.assert_array_equal(result[:, :, 2:], labels()[:, :, :-2])
    assert not result[:, :, :2].any()


def test_mirrored_labels_are_mirrored_back() -> None:
    """The same places, so the same labels."""
    affine = GRID.copy()
    affine[0] = [-0.7, 0, 0, -12 + 0.7 * 29]
    np.testing.assert_array_equal(placed(affine, labels()[::-1]), labels())


def test_headers_that_differ_in_the_fifth_decimal_move_nothing() -> None:
    """Less than a thousandth of a voxel is no reason to lose a border."""
    affine = GRID.copy()
    affine[0, 0], affine[1, 3] = 0.70001, -15.00002
    np.testing.assert_array_equal(placed(affine), labels())


def test_longer_labels_are_cut() -> None:
    """One slice more at the end does no harm."""
    values = np.pad(labels(), ((0, 0), (0, 0), (0, 1)), constant_values=1)
    np.testing.assert_array_equal(placed(GRID, values), labels())


def test_a_shift_of_half_a_voxel_goes_one_way() -> None:
    """Noise in the last digit does not tear a plane apart."""
    affine = GRID.copy()
    affine[0, 3] -= 0.35
    result = placed(affine)
    np.testing.assert_array_equal(result[:-1], labels()[1:])
    assert not result[-1].any()


def test_oblique_labels_take_the_nearest_voxel() -> None:
    """Voxel by voxel what the definition says, on a grid that is turned by any angle."""
    rng = np.random.default_rng(4)
    values = rng.integers(0, 5, (2, 9, 10, 11)).astype(np.uint8)
    source, target = random_affine(21), random_affine(22)
    target[:3, 3] = (source @ [4, 5, 5, 1])[:3] - target[:3, :3] @ [5, 5, 5]
    data, header = volume(values, source)
    _, picture = volume(np.zeros((12, 10, 11)), target)
    made, voxels = onto_grid(data, header, picture, fill=9)
    assert made.full_shape == (2, 12, 10, 11)
    result = whole(voxels)
    for at in np.ndindex(picture.shape):
        near = np.floor(np.linalg.solve(source, target @ [*at, 1])[:3] + 0.5).astype(int)
        inside = all(0 <= n < size for n, size in zip(near, (9, 10, 11), strict=True))
        expected = values[(slice(None), *near)].tolist() if inside else [9, 9]
        assert result[(slice(None), *at)].tolist() == expected
    assert 0 < np.count_nonzero(result == 9) < result.size
    np.testing.assert_array_equal(voxels[1:2, 3:7, 2:5, 1:9], result[1:2, 3:7, 2:5, 1:9])


def test_labels_onto_a_grid_are_read_in_pieces() -> None:
    """A large label volume in fine voxels is never in memory as a whole."""
    data = Huge((3000, 3000, 3000))
    header = VolumeHeader(
        path="x", format="NumPy", shape=(3000,) * 3, dtype=data.dtype, affine=random_affine(30)
    )
    coarse = random_affine(30) @ np.diag([20.0, 20, 20, 1])
    _, picture = volume(np.zeros((150, 150, 150), np.int8), coarse)
    _, voxels = onto_grid(data, header, picture)
    voxels[0:8, 0:8, 0:8]
    assert data.largest <= 1 << 21


def test_labels_elsewhere_are_refused() -> None:
    """All of them would be lost without a word; both files are named."""
    affine = GRID.copy()
    affine[2, 3] = 4000
    with pytest.raises(DecodeError, match="do not overlap anywhere"):
        placed(affine)


def test_labels_beside_a_turned_picture_are_refused() -> None:
    """Though the box around the picture meets them: no voxel of it would get a label."""
    turned = np.eye(4)
    half = math.sqrt(0.5)
    turned[:2, :2] = [[half, -half], [half, half]]
    turned[:2, 3] = (-8, 3)
    _, picture = volume(np.zeros((20, 2, 2), np.int16), turned)
    with pytest.raises(DecodeError, match="do not overlap anywhere"):
        onto_grid(*volume(np.ones((4, 4, 2), np.uint8), np.eye(4)), picture)


def test_a_picture_within_one_voxel_of_labels_takes_it() -> None:
    """The centre of that voxel lies outside the picture; they overlap all the same."""
    _, picture = volume(np.zeros((4, 4, 4), np.int16), diagonal(1, 1, 1, origin=(30, 30, 30)))
    pair = volume(np.full((2, 2, 2), 7, np.uint8), diagonal(80, 80, 80))
    _, voxels = onto_grid(*pair, picture)
    assert np.unique(whole(voxels)).tolist() == [7]


def test_a_fill_that_labels_cannot_be_is_refused() -> None:
    """-1 would be 255 in labels of 8 bits."""
    data, header = volume(labels(), GRID)
    with pytest.raises(OptionError, match="fill=-1 is no value of uint8"):
        onto_grid(data, header, header, fill=-1)


# --- converted ---


def test_values_that_fit_are_converted() -> None:
    """Whole numbers of a float file become integers, the same numbers."""
    values = np.arange(-30, 30, dtype=np.float64).reshape(3, 4, 5)
    header, data = converted(*volume(values), "int16")
    assert header.dtype == data.dtype == np.dtype("<i2")
    np.testing.assert_array_equal(whole(data), values)
    assert header.attrs["changes"] == [{"change": "converted", "from": "float64", "to": "int16"}]


def test_values_that_do_not_fit_are_counted() -> None:
    """All of the volume, not only of the region that was read; a cast would wrap them silently."""
    values = np.zeros((10, 10, 10), np.int16)
    values[0], values[5, 5] = 300, -1
    _, data = converted(*volume(values), "uint8")
    assert not data[1:2, 0:1, 0:1].any()
    with pytest.raises(DecodeError, match=r"110 of 1,000 values .* uint8 .* from -1 to 300"):
        data[0:1, 0:1, 0:1]


def test_where_nothing_is_a_number_no_range_is_given() -> None:
    """From infinity to minus infinity would help nobody."""
    _, data = converted(*volume(np.full((2, 2, 2), np.nan, np.float32)), "int16")
    with pytest.raises(DecodeError, match=r"\(they are float32, none of them a number\)"):
        whole(data)


@pytest.mark.parametrize(
    ("value", "kind", "dtype"),
    [
        (0.5, "float32", "int16"),
        (math.nan, "float32", "int16"),
        (math.inf, "float64", "int64"),
        (1e39, "float64", "float32"),
        ((1 << 24) + 1, "int32", "float32"),
        ((1 << 64) - 1, "uint64", "float64"),
        (-1, "int8", "uint64"),
        (2, "uint8", "bool"),
    ],
)
def test_nothing_is_lost_in_silence(value: Any, kind: str, dtype: str) -> None:
    """Fractions, NaN, overflow, digits: one value that changes is told."""
    values = np.zeros((2, 2, 2), kind)
    values[1, 1, 1] = value
    _, data = converted(*volume(values), dtype)
    with pytest.raises(DecodeError, match=f"1 of 8 values does not fit {dtype}"):
        whole(data)


def test_a_float_may_be_shorter() -> None:
    """Digits may go, and NaN and infinity stay what they are."""
    values = np.array([1 / 3, math.nan, math.inf, -2], np.float64).reshape(4, 1, 1)
    _, data = converted(*volume(values), "float32")
    np.testing.assert_array_equal(whole(data), values.astype(np.float32))


@pytest.mark.parametrize("dtype", ["complex64", "nonsense", "U3", "(1,", "", None])
def test_a_dtype_that_voxels_cannot_have_is_refused(dtype: Any) -> None:
    """Before anything is read."""
    data, header = volume(np.zeros((2, 2, 2)))
    with pytest.raises(OptionError, match="dtype="):
        converted(data, header, dtype)
    assert data.regions == []
