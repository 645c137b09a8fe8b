"""Patches drawn at random, slices, and how parts outside of a volume are filled."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from bare_cases import Bare, Triple
from volume_stores import is_padded

from sharedds.errors import OptionError, SchemaError
from sharedds.patches import GridPatches, Location, Patches, SlicePatches, UniformPatches
from sharedds.patches.cutting import checked_padding, cut
from sharedds.patches.location import window_around


def drawn(patches: Patches, shape: Triple, count: int, seed: int = 0) -> list[Location]:
    """Return the patches of some visits."""
    numbers = np.random.default_rng(seed).random((count, patches.per_case, patches.uniforms))
    return [place for row in numbers for place in patches.locations(Bare(shape), 0, row)]


# --- at random -----------------------------------------------------------------------------------


def test_all_places_inside_are_equally_likely() -> None:
    """Chi-square over the starts of one axis, both ends included (8 degrees, 99.9 %: 26.1)."""
    starts = [place.start[0] for place in drawn(UniformPatches((4, 4, 4)), (12, 4, 9), 9000)]
    counts = np.bincount(starts, minlength=9)
    assert len(counts) == 9
    assert np.square(counts - 1000).sum() / 1000 < 26.1


def test_no_patch_leaves_the_volume() -> None:
    """As long as it is not larger than the volume."""
    places = drawn(UniformPatches((4, 7, 1)), (12, 7, 1), 300)
    assert not any(is_padded(place, (12, 7, 1)) for place in places)
    assert {place.start[1:] for place in places} == {(0, 0)}


def test_a_patch_larger_than_the_volume_is_put_around_it() -> None:
    """Where one voxel is left over, it is behind."""
    (place,) = drawn(UniformPatches((9, 4, 6)), (4, 4, 4), 1)
    assert place.start == (-2, 0, -1)
    assert is_padded(place, (4, 4, 4))


def test_numbers_next_to_one_stay_inside() -> None:
    """A number below 1 times a whole one may round up to it."""
    almost = np.nextafter(1.0, 0.0)
    (place,) = UniformPatches(1).locations(Bare((1000, 1000, 1000)), 0, np.full((1, 3), almost))
    assert place.start == (999, 999, 999)


def test_one_number_is_a_size_for_all_axes() -> None:
    """As for pictures."""
    assert UniformPatches(32).fixed_size == (32, 32, 32)


def test_sizes_may_be_arrays() -> None:
    """As they come out of a calculation; of more axes they are none."""
    size = np.array([4, 5, 6])
    assert UniformPatches(size).fixed_size == (4, 5, 6)  # type: ignore[arg-type]
    assert GridPatches(size, overlap=np.array([1, 2, 0])).overlap == (1, 2, 0)  # type: ignore[arg-type]
    assert SlicePatches(size=size[:2]).fixed_size == (4, 5, 1)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="size"):
        UniformPatches(np.ones((2, 3), int))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, -1, (4,), (4, 4, 4, 4), 1.5, True, "444", (4, 4, 0), None])
def test_a_size_is_whole_numbers(size: Any) -> None:
    """All else is refused, with the value."""
    with pytest.raises(OptionError, match=r"size|voxels"):
        UniformPatches(size)


@pytest.mark.parametrize("per_case", [0, 1.5, True])
def test_a_visit_has_a_patch_or_more(per_case: Any) -> None:
    """All else is refused."""
    with pytest.raises(OptionError, match="per_case"):
        UniformPatches(4, per_case=per_case)


@pytest.mark.parametrize(
    ("voxel", "start"),
    [((0, 0, 0), (0, 0, -2)), ((5, 19, 1), (1, 12, -2)), ((8, 10, 2), (4, 6, -2))],
)
def test_a_window_is_moved_inside(voxel: Triple, start: Triple) -> None:
    """The voxel is in the middle, or off it; along an axis that is too short it cannot matter."""
    window = window_around(voxel, (20, 20, 3), (8, 8, 8))
    assert window == start
    assert all(at <= v < at + 8 for at, v in zip(window, voxel, strict=True))


# --- slices --------------------------------------------------------------------------------------


def test_slices_are_counted_by_their_axis() -> None:
    """Also of volumes of one slice."""
    shapes = np.array([[4, 5, 6], [4, 5, 1]])
    assert SlicePatches(axis=2).counts(shapes).tolist() == [6, 1]
    assert SlicePatches(axis=0).counts(shapes).tolist() == [4, 4]


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("thickness", [1, 3])
def test_neighbouring_slices_become_channels(axis: int, thickness: int) -> None:
    """What is handed out of 2 channels are the slices of the first, then those of the second."""
    patches = SlicePatches(axis=axis, thickness=thickness)
    volume = np.random.default_rng(0).random((2, 5, 6, 7))
    (place,) = patches.locations(Bare((5, 6, 7)), 3, np.zeros((1, 3)))
    out = np.zeros(patches.image_shape(2, place.size))
    cut(volume, place.start, patches.as_cut(out, 2, place.size))
    half = thickness // 2
    wanted = [volume[c].take(3 + off, axis) for c in range(2) for off in range(-half, half + 1)]
    assert np.array_equal(out, wanted)


def test_the_label_is_that_of_the_middle_slice() -> None:
    """Of five slices the third."""
    patches = SlicePatches(axis=1, thickness=5)
    (place,) = patches.locations(Bare((5, 6, 7)), 4, np.zeros((1, 3)))
    label = patches.label_location(place)
    assert (place.start, place.size) == ((0, 2, 0), (5, 5, 7))
    assert (label.start, label.size) == ((0, 4, 0), (5, 1, 7))


def test_a_part_of_a_slice_lies_anywhere_in_it() -> None:
    """And always in the slice that was asked for."""
    patches = SlicePatches(axis=0, size=(3, 4))
    numbers = np.random.default_rng(0).random((50, 1, 3))
    places = [patches.locations(Bare((5, 6, 7)), 2, row)[0] for row in numbers]
    assert {place.start[0] for place in places} == {2}
    assert {place.start[1] for place in places} == set(range(4))
    assert {place.size for place in places} == {(1, 3, 4)}


@pytest.mark.parametrize(
    "options",
    [{"axis": 3}, {"axis": -1}, {"axis": 1.0}, {"axis": True}, {"thickness": 2}, {"thickness": 0},
     {"size": (4, 4, 4)}, {"size": 0}, {"per_case": 2}],
    ids=str,
)  # fmt: skip
def test_options_of_slices_are_checked(options: dict[str, Any]) -> None:
    """An even number of slices has no middle."""
    with pytest.raises(OptionError):
        SlicePatches(**options)


def test_an_axis_is_a_plain_number() -> None:
    """However it is written: what it prints is part of what a saved state belongs to."""
    assert repr(SlicePatches(axis=np.int64(1))) == repr(SlicePatches(axis=1))  # type: ignore[arg-type]


# --- cutting -------------------------------------------------------------------------------------


def cutout(volume: npt.NDArray[Any], start: Triple, size: Triple, **options: Any) -> Any:
    """Return a part of an array."""
    out = np.full((*volume.shape[:-3], *size), 77, volume.dtype)
    cut(volume, start, out, **options)
    return out


@pytest.mark.parametrize("padding", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("shape", [(5, 6, 7), (2, 5, 1, 3)], ids=str)
def test_padding_is_that_of_numpy(padding: Any, shape: tuple[int, ...]) -> None:
    """Also where the volume is mirrored again and again, or has one slice."""
    volume = np.random.default_rng(0).integers(0, 1000, shape)
    more: Any = {"constant_values": 9} if padding == "constant" else {}
    lead = [(0, 0)] * (len(shape) - 3)
    padded = np.pad(volume, [*lead, (6, 9), (11, 4), (1, 0)], mode=padding, **more)
    size: Triple = padded.shape[-3:]
    assert np.array_equal(cutout(volume, (-6, -11, -1), size, padding=padding, fill=9), padded)
    assert np.array_equal(
        cutout(volume, (-3, -2, 0), (4, 3, 2), padding=padding, fill=9),
        padded[..., 3:7, 9:12, 1:3],
    )


def test_a_part_inside_is_read_alone() -> None:
    """Nothing but the part is asked of the array."""

    class Watched:
        shape = (50, 50, 50)
        asked: tuple[slice, ...] = ()

        def __getitem__(self, region: tuple[slice, ...]) -> npt.NDArray[Any]:
            self.asked = region
            return np.zeros([part.stop - part.start for part in region])

    watched = Watched()
    cut(watched, (-2, 7, 46), np.zeros((4, 5, 6)), padding="reflect")
    assert watched.asked == (slice(0, 3), slice(7, 12), slice(46, 50))


def test_values_are_scaled_after_the_cut() -> None:
    """In float32; what fills the outside is a scaled value."""
    volume = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    out = np.empty((2, 2, 2), np.float32)
    cut(volume, (1, 0, 0), out, scale=(0.5, -10), fill=-1024)
    assert np.array_equal(out[0], volume[1, :2, :2] * 0.5 - 10)
    assert (out[1] == -1024).all()


@pytest.mark.parametrize("fill", [-1024.0, 0.5, 300, float("nan")])
def test_a_constant_has_to_fit(fill: float) -> None:
    """Where values are handed out as they are stored; nothing wraps, nothing is cut off."""
    volume = np.zeros((3, 3, 3), np.uint8)
    with pytest.raises(SchemaError, match="does not fit uint8"):
        cutout(volume, (-1, 0, 0), (3, 3, 3), fill=fill)


def test_padding_has_a_name() -> None:
    """Of three."""
    with pytest.raises(OptionError, match="'wrap': one of constant, edge, reflect"):
        checked_padding("wrap")
