"""Which blocks arrays are cut into, what patches then cost, and which codec is chosen."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharedds.cli import main
from sharedds.errors import OptionError, StoreNotFoundError
from sharedds.store import ArrayValue, Field, Store, StoreWriter, blocking
from sharedds.store.blocking import (
    CodecTrial,
    block_shape,
    choose_codec,
    patch_cost,
    slab_shape,
)
from sharedds.store.info import patch_info

#: Image, patch, bytes of a voxel, then bytes touched for each byte asked of blocks of 16³ to 128³,
#: and of the whole: found by another program.
TABLE = [
    ((512, 512, 512), (128, 128, 128), 4, (1.4, 1.9, 3.3, 7.9), 64),
    ((300, 512, 512), (96, 96, 96), 2, (1.5, 2.3, 4.2, 10.3), 89),
    ((300, 512, 512), (96, 160, 160), 4, (1.4, 1.9, 3.0, 6.2), 32),
    ((155, 240, 240), (128, 128, 128), 4, (1.4, 1.8, 2.5, 4.2), 4),
    ((512, 512, 512), (64, 64, 64), 2, (1.9, 3.3, 7.8, 23), 512),
    ((1000, 1000, 1000), (192, 192, 192), 4, (1.3, 1.6, 2.3, 4.3), 141),
    ((40, 640, 640), (16, 320, 320), 4, (1.9, 2.6, 3.6, 4.6), 10),
]


@pytest.mark.parametrize(("shape", "patch", "itemsize", "cubes", "whole"), TABLE, ids=range(7))
def test_the_cost_of_a_patch_is_that_of_the_table(
    shape: tuple[int, ...],
    patch: tuple[int, ...],
    itemsize: int,
    cubes: tuple[float, ...],
    whole: float,
) -> None:
    """Bytes touched for each byte asked, by edge of the blocks, to the digits given."""
    for edge, expected in zip((16, 32, 64, 128), cubes, strict=True):
        found = patch_cost(shape, itemsize, (edge,) * 3, patch).amplification
        assert found == pytest.approx(expected, abs=0.5 if expected >= 20 else 0.05001)
    assert patch_cost(shape, itemsize, shape, patch).amplification == pytest.approx(whole, abs=0.51)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Draw an array, blocks and a patch within it."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    chunk = tuple(draw(st.integers(1, 10)) for _ in shape)
    return shape, chunk, tuple(draw(st.integers(1, n)) for n in shape)


@settings(max_examples=60, deadline=None)
@given(cut=cuts())
def test_the_cost_is_the_mean_over_all_places(cut: Any) -> None:
    """As counted by reading every patch there is."""
    shape, chunk, patch = cut
    numbers = np.arange(math.prod(shape)).reshape(shape)
    owner = np.zeros(shape, np.int64)
    for axis, edge in enumerate(chunk):
        along = np.arange(shape[axis]) // edge
        owner = owner * 100 + along.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    blocks, voxels = [], []
    for start in np.ndindex(*(n - p + 1 for n, p in zip(shape, patch, strict=True))):
        region = tuple(slice(s, s + p) for s, p in zip(start, patch, strict=True))
        touched = np.unique(owner[region])
        blocks.append(len(touched))
        voxels.append(np.isin(owner, touched).sum())
    found = patch_cost(shape, 2, chunk, patch)
    assert found.blocks == pytest.approx(np.mean(blocks))
    assert found.bytes_touched == pytest.approx(2 * np.mean(voxels))
    assert numbers.size


def test_a_patch_larger_than_the_array_is_the_whole() -> None:
    """And an empty array costs nothing."""
    found = patch_cost((10, 20), 4, (10, 20), (64, 64))
    assert (found.blocks, found.bytes_touched, found.amplification) == (1, 800, 1)
    assert patch_cost((0, 20), 4, (1, 20), (64, 64)).bytes_touched == 0


@pytest.mark.parametrize(
    ("shape", "itemsize", "options", "expected"),
    [
        ((480, 512, 512), 2, {"patch": (128, 128, 128)}, (32, 32, 32)),
        ((480, 512, 512), 4, {"patch": (96, 96, 96)}, (32, 32, 32)),
        ((480, 512, 512), 1, {}, (32, 32, 32)),
        ((480, 512, 512), 8, {}, (16, 32, 32)),
        ((40, 640, 640), 4, {"patch": (16, 320, 320)}, (4, 64, 128)),
        ((40, 640, 640), 2, {"spacing": (5.0, 0.8, 0.8)}, (8, 64, 64)),
        ((512, 512, 60), 2, {"spacing": (0.8, 0.8, 5.0)}, (64, 64, 8)),
        ((480, 512, 512), 2, {"patch": (1, 512, 512)}, (1, 128, 256)),
        ((480, 512, 512), 2, {"patch": (512, 512, 1)}, (128, 256, 1)),
        ((480, 512, 512), 2, {"spacing": (1.0, 0.7, 0.7)}, (32, 32, 32)),
        ((20, 30, 40), 2, {}, (20, 30, 40)),
        ((5, 6), 2, {"patch": (64, 64)}, (5, 6)),
        ((0, 6), 2, {}, (1, 6)),
    ],
)
def test_blocks_have_the_shape_of_the_patches(
    shape: tuple[int, ...], itemsize: int, options: dict[str, Any], expected: tuple[int, ...]
) -> None:
    """Cubes, flat blocks for thick slices, slabs for slices, small arrays as they are."""
    assert block_shape(shape, itemsize, **options) == expected


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_blocks_are_never_too_large(data: st.DataObject) -> None:
    """32³ voxels and 128 KiB, whatever is asked for; not smaller than half of that without need."""
    shape = tuple(data.draw(st.lists(st.integers(1, 3000), min_size=1, max_size=4)))
    itemsize = data.draw(st.sampled_from([1, 2, 4, 8]))
    patch = data.draw(st.none() | st.tuples(*(st.integers(1, 600) for _ in shape)))
    block = block_shape(shape, itemsize, patch=patch)
    assert all(1 <= c <= n for c, n in zip(block, shape, strict=True))
    most = min(32**3, (128 << 10) // itemsize)
    assert math.prod(block) <= most
    covered = tuple(min(p, n) for p, n in zip(patch or (96,) * len(shape), shape, strict=True))
    full = all(c >= p for c, p in zip(block, covered, strict=True))
    assert full or math.prod(block) > most // 4


def test_slabs_waste_nothing_on_slices_and_cubes_do() -> None:
    """A slice out of cubes of 32³ touches 32 times what it shows."""
    slices = (1, 512, 512)
    cubes = patch_cost((480, 512, 512), 2, (32, 32, 32), slices)
    slabs = patch_cost((480, 512, 512), 2, block_shape((480, 512, 512), 2, patch=slices), slices)
    assert (cubes.amplification, slabs.amplification) == (32, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: block_shape((9, 9), 2, patch=(3,)),
        lambda: block_shape((9, 9), 2, patch=(3, 0)),
        lambda: block_shape((9, 9), 2, spacing=(1.0, 0.0)),
        lambda: block_shape((9, 9), 2, spacing=(1.0, math.nan)),
        lambda: block_shape((9, 9), 0),
        lambda: patch_cost((9, 9), 2, (3, 3), (3,)),
        lambda: patch_cost((9, 9), 2, (0, 3), (3, 3)),
        lambda: choose_codec([]),
        lambda: choose_codec([np.zeros(0)]),
        lambda: choose_codec([np.zeros(9)], among=()),
        lambda: choose_codec([np.zeros(9)], among=("gzip",)),
        lambda: choose_codec([np.zeros(9)], prefer="best"),
    ],
    ids=range(12),
)
def test_what_makes_no_sense_is_refused(wrong: Any) -> None:
    """As an option, before anything is measured."""
    with pytest.raises(OptionError):
        wrong()


@pytest.mark.parametrize(
    ("shape", "itemsize", "expected"),
    [
        ((480, 512, 512), 2, (32, 512, 512)),
        ((480, 512, 512), 4, (16, 512, 512)),
        ((100, 100, 100), 2, (100, 100, 100)),
        ((3, 8000, 8000), 2, (1, 1048, 8000)),
        ((7,), 8, (7,)),
        ((0, 5), 8, (1, 5)),
    ],
)
def test_slabs_are_whole_planes(
    shape: tuple[int, ...], itemsize: int, expected: tuple[int, ...]
) -> None:
    """Up to 16 MiB; planes that are larger are cut into rows."""
    assert slab_shape(shape, itemsize) == expected


def scan(dtype: str) -> list[npt.NDArray[Any]]:
    """Return blocks that look like a CT: tissue and noise."""
    rng = np.random.default_rng(0)
    return [
        (40 + 100 * number + rng.normal(0, 10, (16, 16, 16))).astype(dtype) for number in range(4)
    ]


def test_every_way_is_tried_and_told() -> None:
    """In a fixed order, with its size and its speed; shuffle only where it can help."""
    found = choose_codec(scan("<i2"))
    ways = [(trial.codec, trial.shuffle) for trial in found.table]
    assert ways == [
        ("raw", False),
        ("zstd", False),
        ("zstd", True),
        ("blosc", False),
        ("blosc", True),
    ]
    assert all(trial.ratio > 0 and trial.seconds_per_gb > 0 for trial in found.table)
    chosen = next(t for t in found.table if (t.codec, t.shuffle) == (found.codec, found.shuffle))
    assert (found.ratio, found.seconds_per_gb) == (chosen.ratio, chosen.seconds_per_gb)
    bytes_alone = choose_codec([np.zeros((8, 8), np.uint8)], among=("lz4",)).table
    assert [(trial.codec, trial.shuffle) for trial in bytes_alone] == [("lz4", False)]


def tried(
    monkeypatch: pytest.MonkeyPatch, ways: dict[tuple[str, bool], tuple[float, float]]
) -> None:
    """Give each way a ratio and a speed instead of measuring it."""

    def give(_blocks: Any, codec: str, *, shuffle: bool) -> CodecTrial:
        ratio, seconds = ways[codec, shuffle]
        return CodecTrial(codec=codec, shuffle=shuffle, ratio=ratio, seconds_per_gb=seconds)

    monkeypatch.setattr(blocking, "_try", give)


CT = {
    ("raw", False): (1.0, 0.02),
    ("blosc", False): (1.40, 0.45),
    ("blosc", True): (1.85, 0.20),
    ("zstd", False): (1.85, 1.30),
    ("zstd", True): (1.98, 1.10),
}


@pytest.mark.parametrize(
    ("prefer", "expected"),
    [("auto", ("blosc", True)), ("speed", ("raw", False)), ("size", ("zstd", True))],
)
def test_the_choice_follows_what_is_preferred(
    monkeypatch: pytest.MonkeyPatch, prefer: str, expected: tuple[str, bool]
) -> None:
    """Both together, time alone, bytes alone."""
    tried(monkeypatch, CT)
    found = choose_codec(scan("<i2"), prefer=prefer)
    assert (found.codec, found.shuffle) == expected
    assert found.effort == blocking.EFFORT[found.codec]


def test_the_clock_does_not_decide_between_ways_that_are_near(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Costs within a fifth are a tie, which the bytes decide; then the order."""
    for seconds in (0.18, 0.20, 0.22):
        tried(monkeypatch, CT | {("blosc", False): (1.84, seconds), ("blosc", True): (1.85, 0.2)})
        found = choose_codec(scan("<i2"))
        assert (found.codec, found.shuffle) == ("blosc", True)
        tried(monkeypatch, CT | {("blosc", False): (1.85, seconds), ("blosc", True): (1.85, 0.2)})
        found = choose_codec(scan("<i2"))
        assert (found.codec, found.shuffle) == ("blosc", False)


def test_numbers_that_do_not_shrink_stay_as_they_are() -> None:
    """Random bytes are stored raw."""
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 32)).astype(np.uint8)
    assert choose_codec([noise]).codec == "raw"


def test_what_is_chosen_can_be_written(tmp_path: Path) -> None:
    """Codec and shuffle go into the field, effort into the value."""
    blocks = scan("<i2")
    found = choose_codec(blocks)
    field = Field(found.codec, chunk=blocks[0].shape, shuffle=found.shuffle)
    with StoreWriter(tmp_path / "x.lmdb", schema={"image": field}) as writer:
        writer.add({"image": ArrayValue(blocks[1], effort=found.effort)})
    assert np.array_equal(Store(tmp_path / "x.lmdb").array(0, "image"), blocks[1])


# --- what a store says of patches -----------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Volumes of two sizes, one with steps, in blocks that are too large."""
    schema: dict[str, str | Field] = {
        "image": Field("lz4", chunk=(64, 64, 64)),
        "film": "raw",
        "row": "raw",
        "n": "int64",
    }
    with StoreWriter(tmp_path / "x.lmdb", schema=schema) as writer:
        for side in (70, 80):
            image = np.zeros((side, side, side), np.int16)
            film = np.zeros((2, 9, 9, 9), np.int16)
            writer.add({"image": image, "film": film, "row": np.zeros(4), "n": 1})
        writer.add({"image": None, "film": film, "row": np.zeros(4), "n": 2})
    return tmp_path / "x.lmdb"


def test_a_store_says_what_patches_cost(store: Path) -> None:
    """The mean over its arrays, as they are and with blocks for the patch; no numbers are read."""
    image, film = patch_info(store, (32, 32, 32))
    costs = [patch_cost((n,) * 3, 2, (64,) * 3, (32,) * 3) for n in (70, 80)]
    assert (image.field, image.arrays, image.chunk) == ("image", 2, (64, 64, 64))
    assert image.now.bytes_touched == pytest.approx(np.mean([c.bytes_touched for c in costs]))
    assert image.now.amplification == pytest.approx(image.now.bytes_touched / (2 * 32**3))
    assert image.repacked_chunk == (32, 32, 32)
    assert image.repacked.bytes_touched < image.now.bytes_touched / 1.5
    assert (film.field, film.arrays, film.now.bytes_touched) == ("film", 3, 2 * 2 * 9**3)


def test_a_patch_that_is_none_is_refused(store: Path, tmp_path: Path) -> None:
    """And so is a store that is not there."""
    for wrong in ((), (0, 3), (-1,)):
        with pytest.raises(OptionError):
            patch_info(store, wrong)
    with pytest.raises(StoreNotFoundError):
        patch_info(tmp_path / "none.lmdb", (3,))


def test_the_command_line_says_it_too(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a table, and in JSON; a size that is none is a wrong use."""
    assert main(["info", "--patch", "32,32,32", str(store)]) == 0
    text = capsys.readouterr().out
    assert "image, 32x32x32" in text
    assert "64x64x64" in text
    assert "if packed anew" in text
    assert main(["info", "--patch", "32,32,32", "--json", str(store)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["patches"][0]["repacked_chunk"] == [32, 32, 32]
    assert found["samples"] == 3
    assert main(["info", "--patch", "9,9,9,9,9", str(store)]) == 0
    assert "no field has arrays of so many axes" in capsys.readouterr().out
    assert main(["info", "--patch", "a,b", str(store)]) == 2
