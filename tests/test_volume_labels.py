"""Labels: whole numbers, counted by block, on the grid of their image."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sharedds.errors import DecodeError
from sharedds.ingest.volumes.labels import WholeNumbers, compare_grids, count_label
from sharedds.ingest.volumes.slabs import BlockFile, Slabs, Stacked, along_file
from sharedds.volumes.source import VolumeHeader

Array = npt.NDArray[Any]


def header(shape: tuple[int, ...], dtype: npt.DTypeLike = "u1", **facts: Any) -> VolumeHeader:
    """Return a header; the affine is that of 1 mm unless said otherwise."""
    facts.setdefault("affine", np.eye(4))
    return VolumeHeader(
        path="x", format="NumPy", shape=(shape[0], shape[1], shape[2]), dtype=np.dtype(dtype),
        **facts,
    )  # fmt: skip


def placed(i: float = 1, j: float = 1, k: float = 1, at: tuple[float, ...] = (0, 0, 0)) -> Array:
    """Return an affine of these steps along the axes."""
    affine = np.diag([i, j, k, 1.0])
    affine[:3, 3] = at
    return affine


class Watched:
    """An array that notes which regions are read."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.shape, self.dtype = array.shape, array.dtype
        self.regions: list[tuple[slice, ...]] = []

    def __getitem__(self, region: tuple[slice, ...]) -> Array:
        self.regions.append(region)
        return self.array[region]


# --- counting ---


def test_voxels_of_each_class_are_counted_block_by_block() -> None:
    """As a count by hand gives them: class after class, blocks ascending, background included."""
    label = np.random.default_rng(0).integers(0, 4, (9, 7, 5)).astype("u1")
    label[:4, :4, :4] = 2
    facts = count_label(label, header(label.shape), (4, 4, 4))
    grid = [(i, j, k) for i in range(3) for j in range(2) for k in range(2)]
    expected = [
        [number, count]
        for each in range(4)
        for number, (i, j, k) in enumerate(grid)
        if (count := np.count_nonzero(label[4*i:4*i+4, 4*j:4*j+4, 4*k:4*k+4] == each))
    ]  # fmt: skip
    assert facts.blocks.tolist() == expected
    assert facts.classes.tolist() == [0, 1, 2, 3]
    assert facts.voxels.tolist() == np.bincount(label.reshape(-1)).tolist()
    assert facts.rows.sum() == len(expected)
    assert facts.attrs()["rows"] == facts.rows.tolist()


@pytest.mark.parametrize(
    ("ids", "dtype"),
    [
        ([0, 255], "uint8"),
        ([0, 256], "uint16"),
        ([-1, 7], "int8"),
        ([-1, 200], "int16"),
        ([0, 70_000], "uint32"),
        ([-1, 70_000], "int32"),
        ([0, 1 << 40], "int64"),
    ],
)
def test_the_smallest_dtype_that_holds_every_class(ids: list[int], dtype: str) -> None:
    """Ids above 255 do not wrap, and negative ones stay negative."""
    label = np.resize(np.array(ids), (2, 3, 4))
    facts = count_label(label, header(label.shape, "i8"), (2, 2, 2))
    assert facts.dtype.name == dtype
    whole = WholeNumbers(label, header(label.shape, "i8"), facts.dtype)
    assert np.array_equal(whole[:, :, :], label)


def test_scaled_labels_are_rounded() -> None:
    """2.9999 is class 3; a plain cast would lose it."""
    stored = np.resize(np.arange(8, dtype="i2") * 4681, (8, 3, 2))
    scaled = header(stored.shape, "i2", slope=1 / 4681.02)
    facts = count_label(stored, scaled, (4, 4, 4))
    assert facts.classes.tolist() == list(range(8))
    assert np.unique((stored / 4681.02).astype(int)).tolist() == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.4, r"6 voxels of the label hold no whole number \(up to 0\.4 away"),
        (np.nan, "6 voxels of the label are NaN or infinite"),
        (np.inf, "6 voxels of the label are NaN or infinite"),
    ],
)
def test_what_is_no_whole_number_is_refused_with_its_count(value: float, text: str) -> None:
    """Counted over the whole label, not only where it was met first."""
    label = np.zeros((3, 4, 5), "f4")
    label[::2, 1:4, 4] = value
    with pytest.raises(DecodeError, match=text):
        count_label(label, header(label.shape, "f4"), (2, 2, 2))


def test_one_offender_is_one_voxel() -> None:
    """In words that fit the number."""
    label = np.zeros((2, 2, 2), "f4")
    label[0, 0, 0] = np.nan
    with pytest.raises(DecodeError, match="1 voxel of the label is NaN"):
        count_label(label, header(label.shape, "f4"), (2, 2, 2))


# --- grids ---


def match(image: Array | None, label: Array | None, *shapes: tuple[int, int, int]) -> Any:
    """Compare two grids; the same shape unless two are given."""
    first, *more = shapes or ((30, 38, 12),)
    return compare_grids(header(first, affine=image), header((more or [first])[0], affine=label))


S = placed(0.7, 0.7, 3, (-12, -15, 40))


def test_a_difference_in_the_fifth_decimal_is_none() -> None:
    """What other writers round is not a shift."""
    tiny = placed(0.70001, 0.7, 3, (-12, -15.00002, 40))
    assert match(S, tiny).same
    assert match(S, tiny).remark == match(S, tiny).target == ""


def test_a_shift_is_told_in_millimetres_and_voxels() -> None:
    """Of the axis along which it is."""
    found = match(S, placed(0.7, 0.7, 3, (-12, -15, 46)))
    assert not found.same
    assert "6 mm (2 voxels)" in found.difference


def test_a_mirrored_label_is_turned_back() -> None:
    """Its affine says where each voxel is; cut voxel by voxel it would be left-right wrong."""
    flip = placed(-0.7, 0.7, 3, (-12 + 0.7 * 29, -15, 40))
    found = match(S, flip)
    assert found.same
    assert found.target == "RAS"


@pytest.mark.parametrize("shape", [(30, 38, 13), (38, 30, 12)])
def test_another_shape_is_told_with_both(shape: tuple[int, int, int]) -> None:
    """One slice longer, or axes exchanged without a word in the header."""
    found = match(S, S, (30, 38, 12), shape)
    assert not found.same
    assert str(shape) in found.difference
    assert "(30, 38, 12)" in found.difference


def test_without_a_place_shapes_decide_and_it_is_told() -> None:
    """Two files that both say nothing, as .npy, are no reason for a remark."""
    assert "label says nothing of where it is" in match(S, None).remark
    assert "image says nothing of where it is" in match(None, S).remark
    assert match(None, None) == match(S, S)
    assert not match(S, None, (3, 4, 5), (3, 4, 6)).same


# --- how a file is walked ---


def test_a_volume_in_blocks_is_read_in_few_slabs() -> None:
    """Block by block, a file of 16 slabs' worth would be walked once for each row of blocks."""
    array = np.arange(32 * 16 * 24, dtype="i2").reshape(32, 16, 24)
    watched = Watched(array)
    slabs = Slabs(watched, (4, 4, 4), limit=8 * 16 * 24 * 2)
    blocks = sorted(along_file(array.shape, (4, 4, 4)))
    for _, region in blocks:
        assert np.array_equal(slabs[region], array[region])
    assert len(blocks) == 8 * 4 * 6
    assert len(watched.regions) == slabs.count == 4


def test_a_slab_is_cut_along_the_second_axis_where_it_must_be() -> None:
    """Never more than its limit is held."""
    array = np.zeros((8, 64, 64), "i2")
    watched = Watched(array)
    slabs = Slabs(watched, (4, 4, 4), limit=4 * 16 * 64 * 2)
    for _, region in sorted(along_file(array.shape, (4, 4, 4))):
        assert slabs[region].shape == (4, 4, 4)
    sizes = [np.prod([s.stop - s.start for s in region]) * 2 for region in watched.regions]
    assert max(sizes) <= 4 * 16 * 64 * 2
    assert len(sizes) == 2 * 4


def test_numbers_of_blocks_are_those_of_the_grid() -> None:
    """Whatever the order in which they are walked."""
    shape, chunk = (5, 6, 7), (2, 3, 4)
    walked = list(along_file(shape, chunk))
    assert [region[2].start for _, region in walked] == sorted(r[2].start for _, r in walked)
    for number, region in walked:
        place = [s.start // c for s, c in zip(region, chunk, strict=True)]
        assert number == np.ravel_multi_index(place, (3, 2, 2))


def test_a_file_of_blocks_gives_the_same_voxels(tmp_path: Any) -> None:
    """Also at the far edges, and in four dimensions; nothing is left in the folder."""
    array = np.random.default_rng(1).integers(-99, 99, (3, 9, 7, 10)).astype("i2")
    blocks = BlockFile(array, (1, 4, 4, 4), tmp_path)
    for _, region in along_file(array.shape, (1, 4, 4, 4)):
        assert np.array_equal(blocks[region], array[region])
    assert list(tmp_path.iterdir()) == []
    blocks.close()


def test_channels_of_several_files_become_one_array() -> None:
    """In their order; of one scaling the stored values stay, of several they are measured ones."""
    one, two = np.full((2, 3, 4), 3, "i2"), np.full((2, 3, 4), 5, "u1")
    shape = (2, 3, 4)
    whole = (slice(0, 2), slice(0, 2), slice(0, 3), slice(0, 4))
    same = Stacked([one, two], [header(shape, "i2", slope=2.0), header(shape, "u1", slope=2.0)])
    assert (same.shape, same.dtype.name, same.slope) == ((2, *shape), "int16", 2.0)
    assert same[whole][:, 0, 0, 0].tolist() == [3, 5]
    mixed = Stacked([one, two], [header(shape, "i2", slope=2.0), header(shape, "u1")])
    assert (mixed.dtype.name, mixed.slope) == ("float32", 1.0)
    assert mixed[whole][:, 0, 0, 0].tolist() == [6, 5]
    assert mixed[(slice(1, 2), *whole[1:])].shape == (1, *shape)
