"""Aggregator: a model that changes nothing gives the volume back, up to every face and corner."""

from __future__ import annotations

import gc
import itertools
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from volume_stores import Volume, write_volumes

from sharedds.datasets.volumes import VolumeDataset
from sharedds.errors import (
    OptionError,
    SchemaError,
    SourceError,
    StateError,
    StorageFullError,
    StoreExistsError,
)
from sharedds.patches import Aggregator, GridPatches, SlicePatches, UniformPatches
from sharedds.patches.cutting import cut
from sharedds.patches.grid import Grid
from sharedds.patches.slabs import FileTarget

SHAPE = (37, 41, 29)
SIZE = (16, 16, 16)
MODES = ["crop", "mean", "hann", "gaussian"]
Values = npt.NDArray[Any]


@pytest.fixture(scope="module")
def volume() -> Values:
    """Values between -1 and 1: what an integer buffer makes 0 of."""
    return np.random.default_rng(0).uniform(-1, 1, SHAPE).astype(np.float32)


def patches_of(volume: Values, grid: GridPatches) -> list[tuple[Values, list[int]]]:
    """Return all patches of a volume (channels, i, j, k), and where they begin."""
    found: Grid = grid.grid(volume.shape[-3:])
    made = []
    for place in itertools.product(*found.starts):
        start = [at - margin for at, margin in zip(place, found.margin, strict=True)]
        out = np.empty((len(volume), *grid.fixed_size), volume.dtype)
        cut(volume, (start[0], start[1], start[2]), out, padding="reflect")
        made.append((out, start))
    return made


def joined(volume: Values, grid: GridPatches, **options: Any) -> Aggregator:
    """Return an aggregator that was given all patches of a volume."""
    aggregator = Aggregator(volume.shape[-3:], grid, **options)
    for values, start in patches_of(volume, grid):
        aggregator.add(values, start)
    return aggregator


# --- the volume comes back -----------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [0, 4, 8])
@pytest.mark.parametrize("mode", MODES)
def test_the_volume_comes_back(volume: Values, mode: Any, overlap: int) -> None:
    """Exactly by cropping, else within 1e-6, whatever the order in which patches come."""
    grid = GridPatches(SIZE, overlap=overlap)
    parts = patches_of(volume[None], grid)
    random.Random(3).shuffle(parts)
    shuffled = Aggregator(SHAPE, grid, mode=mode)
    for values, start in parts:
        shuffled.add(values, start)
    in_order = joined(volume[None], grid, mode=mode).result()
    for result in (in_order, shuffled.result()):
        assert result.dtype == np.float32
        assert result.shape == (1, *SHAPE)
        assert np.abs(result[0] - volume).max() <= (0 if mode == "crop" else 1e-6)


@pytest.mark.parametrize("mode", ["crop", "mean", "hann"])
def test_the_volume_comes_back_from_patches_at_every_voxel(volume: Values, mode: Any) -> None:
    """8,008 patches: sums of thousands are kept in double precision."""
    result = joined(volume[None], GridPatches(SIZE, overlap=15), mode=mode).result()
    assert np.abs(result[0] - volume).max() <= (0 if mode == "crop" else 1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_structures_stay_where_they_are(mode: Any) -> None:
    """Where the last patch overlaps more than the others, nothing moves."""
    long = np.zeros((1, 320, 8, 8), np.float32)
    long[:, 100:120] = 1
    result = joined(long, GridPatches((102, 8, 8), overlap=(4, 0, 0)), mode=mode).result()
    assert np.array_equal(np.flatnonzero(result[0].max(axis=(1, 2)) > 0.5), range(100, 120))
    assert np.allclose(result, long, atol=1e-6)


def test_batches_of_a_loader_can_be_added(tmp_path: Path, volume: Values) -> None:
    """Seven at a time, as tensors, also in half precision."""
    write_volumes(tmp_path / "x.lmdb", {"v": Volume(image=volume)}, chunk=(16, 16, 16))
    grid = GridPatches(SIZE, overlap=4)
    dataset = VolumeDataset(tmp_path / "x.lmdb", patch=grid)
    exact, rough = Aggregator(SHAPE, grid), Aggregator(SHAPE, grid, mode="hann")
    for first in range(0, len(dataset), 7):
        batch = dataset.load_batch(range(first, min(first + 7, len(dataset))), _memory)
        exact.add(batch["image"].requires_grad_(), batch["start"])
        rough.add(batch["image"].bfloat16(), batch["start"])
    assert np.array_equal(exact.result()[0], volume)
    assert np.abs(rough.result()[0] - volume).max() < 0.01


def _memory(
    shape: tuple[int, ...], dtype: torch.dtype, *, channels_last: bool = False
) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def test_a_volume_smaller_than_a_patch(volume: Values) -> None:
    """What lies outside of it is left out."""
    small = volume[None, :5, :40, :1]
    for mode in MODES:
        result = joined(small, GridPatches(SIZE, overlap=8), mode=mode).result()
        assert np.allclose(result, small, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_a_model_that_gives_less_is_centred_where_that_is_declared(
    volume: Values, mode: Any
) -> None:
    """The border included: patches reach beyond it."""
    grid = GridPatches((20, 20, 20), output_size=(12, 14, 20), overlap=5)
    aggregator = Aggregator(SHAPE, grid, mode=mode)
    for values, start in patches_of(volume[None], grid):
        aggregator.add(values[:, 4:16, 3:17], start)
    assert np.abs(aggregator.result()[0] - volume).max() <= 1e-6


def test_a_model_that_gives_less_is_refused_otherwise(volume: Values) -> None:
    """With both shapes."""
    aggregator = Aggregator(SHAPE, GridPatches(SIZE))
    with pytest.raises(SchemaError, match=r"\(1, 12, 12, 12\).*\(16, 16, 16\).*output_size"):
        aggregator.add(volume[None, :12, :12, :12], (0, 0, 0))


def test_slices_become_a_volume(tmp_path: Path, volume: Values) -> None:
    """Their axis may be left out of what a model gives."""
    write_volumes(tmp_path / "x.lmdb", {"v": Volume(image=volume)})
    for axis in range(3):
        patches = SlicePatches(axis=axis, thickness=3)
        aggregator = Aggregator(SHAPE, patches)
        for item in VolumeDataset(tmp_path / "x.lmdb", patch=patches):
            aggregator.add(item["image"][1:2], item["start"])
        assert np.array_equal(aggregator.result()[0], volume)


# --- dtypes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float16, np.float64, bool])
def test_cropping_keeps_the_dtype(dtype: Any) -> None:
    """And so the values, to the bit."""
    values = np.random.default_rng(0).integers(0, 2, (2, 9, 9, 9)).astype(dtype)
    result = joined(values, GridPatches(4, overlap=1)).result()
    assert result.dtype == dtype
    assert np.array_equal(result, values)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(np.uint8, np.float32), (np.int64, np.float32), (np.float16, np.float32),
     (np.float32, np.float32), (np.float64, np.float64)],
)  # fmt: skip
def test_means_are_floats(dtype: Any, expected: Any) -> None:
    """Whatever the patches are: no mean of integers is cut off."""
    grid = GridPatches((4, 4, 4), overlap=(2, 0, 0))
    aggregator = Aggregator((6, 4, 4), grid, mode="mean")
    aggregator.add(np.full((1, 4, 4, 4), 1, dtype), (0, 0, 0))
    aggregator.add(np.full((1, 4, 4, 4), 2, dtype), (2, 0, 0))
    result = aggregator.result()
    assert result.dtype == expected
    assert result[0, :, 0, 0].tolist() == [1, 1, 1.5, 1.5, 2, 2]


def test_patches_have_one_dtype_and_as_many_channels() -> None:
    """Those of the first."""
    aggregator = Aggregator((8, 4, 4), GridPatches(4))
    aggregator.add(np.zeros((2, 4, 4, 4), np.float32), (0, 0, 0))
    with pytest.raises(SchemaError, match=r"3 channels of float32.*2 of float32"):
        aggregator.add(np.zeros((3, 4, 4, 4), np.float32), (4, 0, 0))
    with pytest.raises(SchemaError, match="float64"):
        aggregator.add(np.zeros((2, 4, 4, 4)), (4, 0, 0))
    with pytest.raises(SchemaError, match="complex"):
        aggregator.add(np.zeros((2, 4, 4, 4), complex), (4, 0, 0))


# --- too much, too little ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_patch_that_comes_twice_changes_nothing(volume: Values, mode: Any) -> None:
    """Even with other values the second time."""
    grid = GridPatches(SIZE, overlap=8)
    once, twice = (Aggregator(SHAPE, grid, mode=mode) for _ in range(2))
    for values, start in patches_of(volume[None], grid):
        once.add(values, start)
        twice.add(values, start)
        twice.add(values * 5 + 1, start)
    assert np.array_equal(once.result(), twice.result())


@pytest.mark.parametrize(("overlap", "mode"), [(0, "crop"), (4, "crop"), (4, "mean"), (15, "hann")])
def test_missing_patches_are_told_with_the_voxels_they_leave(
    volume: Values, overlap: int, mode: Any
) -> None:
    """Counted as a volume of marks would."""
    grid = GridPatches(SIZE, overlap=overlap)
    aggregator = Aggregator(SHAPE, grid, mode=mode)
    parts = patches_of(volume[None], grid)
    random.Random(1).shuffle(parts)
    left = len(parts) // 3
    covered = np.zeros(SHAPE, bool)
    for values, start in parts[left:]:
        aggregator.add(values, start)
        covered[tuple(slice(at, at + 16) for at in start)] = True
    with pytest.raises(SchemaError, match=f"{left:,} of {len(parts):,} patches are missing") as no:
        aggregator.result()
    assert f"{int((~covered).sum()):,} voxels are not covered" in str(no.value)
    for values, start in parts[:left]:
        aggregator.add(values, start)
    assert np.allclose(aggregator.result()[0], volume, atol=1e-6)


def test_nothing_added_is_nothing_covered() -> None:
    """All voxels are missing."""
    with pytest.raises(SchemaError, match="8 of 8 patches are missing: 512 voxels"):
        Aggregator((8, 8, 8), GridPatches(4)).result()


@pytest.mark.parametrize("start", [(1, 0, 0), (-4, 0, 0), (99, 0, 0)])
def test_patches_of_another_grid_are_refused(start: tuple[int, int, int]) -> None:
    """With where it is said to begin."""
    aggregator = Aggregator((8, 8, 8), GridPatches(4))
    with pytest.raises(OptionError, match="no patch of the grid begins at"):
        aggregator.add(np.zeros((1, 4, 4, 4)), start)


@pytest.mark.parametrize(
    ("shape", "start"),
    [((4, 4, 4), (0, 0, 0)), ((2, 1, 4, 4, 4), (0, 0, 0)), ((2, 1, 4, 4, 4), [(0, 0, 0)]),
     ((1, 4, 4, 4), (0, 0)), ((1, 4, 4, 4), (0.0, 0.0, 0.0))],
    ids=str,
)  # fmt: skip
def test_shapes_of_outputs_are_checked(shape: tuple[int, ...], start: Any) -> None:
    """Outputs have channels; a batch of them as many starts."""
    with pytest.raises(SchemaError):
        Aggregator((8, 8, 8), GridPatches(4)).add(np.zeros(shape), start)


@pytest.mark.parametrize(
    ("outputs", "start"),
    [({"logits": 1}, (0, 0, 0)), (np.zeros((2, 1, 4, 4, 4)), [(0, 0, 0), (1,)])],
    ids=["a dict", "starts of two lengths"],
)
def test_what_is_no_array_is_refused(outputs: Any, start: Any) -> None:
    """By its type."""
    with pytest.raises(SchemaError):
        Aggregator((8, 8, 8), GridPatches(4)).add(outputs, start)


def test_options_are_checked() -> None:
    """With the value."""
    with pytest.raises(OptionError, match="mode 'max'"):
        Aggregator((8, 8, 8), GridPatches(4), mode="max")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="GridPatches"):
        Aggregator((8, 8, 8), UniformPatches(4))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="shape"):
        Aggregator((8, 0, 8), GridPatches(4))


# --- class numbers, files, memory ----------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("to_file", [False, True])
def test_the_largest_channel_is_kept(tmp_path: Path, mode: Any, to_file: bool) -> None:
    """The first one of equals; the same as of the whole result."""
    values = np.random.default_rng(0).normal(size=(5, 20, 21, 22)).astype(np.float32)
    values[:, 3:5] = 0
    grid = GridPatches((8, 8, 8), overlap=4)
    out = tmp_path / "x.npy" if to_file else None
    ids = joined(values, grid, mode=mode, argmax=True, out=out).result()
    assert ids.dtype == np.uint8
    assert ids.shape == (20, 21, 22)
    assert np.array_equal(ids, joined(values, grid, mode=mode).result().argmax(axis=0))


def test_one_channel_has_no_largest() -> None:
    """It would be class 0 everywhere."""
    aggregator = Aggregator((8, 8, 8), GridPatches(4), argmax=True)
    with pytest.raises(SchemaError, match="one channel"):
        aggregator.add(np.zeros((1, 4, 4, 4)), (0, 0, 0))


@pytest.mark.parametrize("mode", MODES)
def test_a_file_holds_what_memory_would(tmp_path: Path, mode: Any) -> None:
    """Mapped, read-only; its name is there once it is whole."""
    values = np.random.default_rng(0).normal(size=(3, 20, 21, 22)).astype(np.float32)
    grid = GridPatches((8, 8, 8), overlap=4)
    aggregator = joined(values, grid, mode=mode, out=tmp_path / "x.npy")
    assert not (tmp_path / "x.npy").exists()
    result = aggregator.result()
    assert isinstance(result, np.memmap)
    assert not result.flags.writeable
    assert np.array_equal(result, joined(values, grid, mode=mode).result())
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


def test_an_unfinished_file_leaves_nothing(tmp_path: Path) -> None:
    """When the aggregator goes."""
    aggregator = Aggregator((8, 8, 8), GridPatches(4), out=tmp_path / "x.npy")
    aggregator.add(np.zeros((1, 4, 4, 4)), (0, 0, 0))
    assert len(list(tmp_path.iterdir())) == 1
    del aggregator
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_a_file_is_not_replaced_unasked(tmp_path: Path) -> None:
    """Only with force."""
    (tmp_path / "x.npy").write_bytes(b"old")
    with pytest.raises(StoreExistsError, match="force=True"):
        Aggregator((4, 4, 4), GridPatches(4), out=tmp_path / "x.npy")
    aggregator = Aggregator((4, 4, 4), GridPatches(4), out=tmp_path / "x.npy", force=True)
    aggregator.add(np.ones((1, 4, 4, 4)), (0, 0, 0))
    assert aggregator.result().sum() == 64


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """Not even with force."""
    with pytest.raises(SourceError, match="is a folder"):
        Aggregator((4, 4, 4), GridPatches(4), out=tmp_path, force=True)


def test_a_file_that_cannot_get_its_name_leaves_nothing(tmp_path: Path) -> None:
    """Such as where a folder has taken it meanwhile."""
    aggregator = Aggregator((4, 4, 4), GridPatches(4), out=tmp_path / "x.npy")
    aggregator.add(np.ones((1, 4, 4, 4)), (0, 0, 0))
    (tmp_path / "x.npy").mkdir()
    with pytest.raises(SourceError, match="cannot be written"):
        aggregator.result()
    del aggregator
    gc.collect()
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    """Before any work is lost."""
    aggregator = Aggregator((4, 4, 4), GridPatches(4), out=tmp_path / "no" / "x.npy")
    with pytest.raises(SourceError, match="cannot be written"):
        aggregator.add(np.ones((1, 4, 4, 4)), (0, 0, 0))


@pytest.mark.skipif(os.name != "posix", reason="rights are those of POSIX")
def test_a_file_has_the_rights_of_any_new_file(tmp_path: Path) -> None:
    """Those who share the folder may read it, as far as the umask lets them."""
    aggregator = Aggregator((4, 4, 4), GridPatches(4), out=tmp_path / "x.npy")
    aggregator.add(np.ones((1, 4, 4, 4)), (0, 0, 0))
    aggregator.result()
    (tmp_path / "plain").touch()
    assert (tmp_path / "x.npy").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("mode", ["crop", "mean"])
def test_a_disk_that_was_full_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    """Else a slab that could not be written would be zeros in the file, once patches come again."""
    aggregator = Aggregator((8, 4, 4), GridPatches(4), mode=mode, out=tmp_path / "x.npy")

    def full(*_: Any) -> None:
        raise StorageFullError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(FileTarget, "put", full)
        with pytest.raises(StorageFullError):
            aggregator.add(np.ones((1, 4, 4, 4)), (0, 0, 0))
    with pytest.raises(StateError, match="Make a new Aggregator"):
        aggregator.add(np.ones((1, 4, 4, 4)), (0, 0, 0))
    with pytest.raises(StateError):
        aggregator.result()


@pytest.mark.parametrize("mode", MODES)
def test_a_value_that_is_no_number_stays_where_it_lies(mode: Any) -> None:
    """Neighbours are as they were."""
    values = np.ones((2, 9, 6, 6), np.float32)
    values[1, 4, 3, 2] = np.nan
    grid = GridPatches((4, 4, 4), overlap=2)
    found = joined(values, grid, mode=mode).result()
    assert np.allclose(found, values, atol=1e-6, equal_nan=True)
    assert joined(values, grid, mode=mode, argmax=True).result().sum() == 1


@pytest.mark.parametrize("mode", ["mean", "gaussian"])
def test_slabs_are_let_go_of_once_they_are_whole(mode: Any) -> None:
    """In the order of the grid, the height of one patch waits, and not the volume."""
    values = np.random.default_rng(0).normal(size=(4, 160, 16, 16)).astype(np.float32)
    grid = GridPatches((16, 8, 8), overlap=0.5)
    aggregator = Aggregator((160, 16, 16), grid, mode=mode, argmax=True)
    most = 0
    for part, start in patches_of(values, grid):
        aggregator.add(part, start)
        most = max(most, aggregator.unfinished_bytes)
    assert 0 < most <= 4 * 16 * 16 * 16 * 4
    assert aggregator.unfinished_bytes == 0
    assert aggregator.missing == 0
