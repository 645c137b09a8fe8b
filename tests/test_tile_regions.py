"""Many regions of slides at once, and regions by the size of their pixels."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import noise

from sharedds.codecs import TileDecoder
from sharedds.errors import CorruptDataError, SampleIndexError, SampleKeyError, SchemaError
from sharedds.store import ArrayValue, EncodedArray, Field, Store, StoreWriter
from sharedds.store.array_meta import ArrayMeta, LevelMeta
from sharedds.store.requests import averaged, resized

FINE = noise(64, 80, 3)
LEVELS = (FINE, FINE[::2, ::2], FINE[1::4, 1::4])
ATTRS = {"mpp": [0.25, 0.25], "downsamples": [1.0, 2.0, 4.0], "background": [10, 20, 30]}
SMALL = noise(20, 24, 3, seed=3)

Attrs = dict[str, Any]


def slides(path: Path, attrs: Attrs | None = None, *, codec: str = "png") -> Store:
    """Write a slide of three levels and one of one, and open the store."""
    field = Field(codec, chunk=(16, 16, 3))
    with StoreWriter(path, schema={"image": field}, force=True) as writer:
        given = ATTRS if attrs is None else attrs
        writer.add({"image": ArrayValue(FINE, levels=LEVELS[1:], attrs=given)}, key="first")
        writer.add({"image": ArrayValue(SMALL, attrs={"background": 9})}, key="second")
        writer.add({"image": None}, key="none")
    return Store(path)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two slides."""
    return slides(tmp_path_factory.mktemp("regions") / "x.lmdb")


# --- many at once --------------------------------------------------------------------------------

places = st.tuples(
    st.integers(0, 1),
    st.integers(0, 2),
    st.tuples(st.integers(-30, 90), st.integers(-30, 90), st.integers(0, 1)),
    st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(1, 3)),
)


@settings(max_examples=60, deadline=None)
@given(
    drawn=st.lists(places, max_size=6),
    padding=st.sampled_from(["constant", "edge", "reflect"]),
    cached=st.booleans(),
)
def test_regions_are_those_of_patch(store: Store, drawn: Any, padding: str, cached: bool) -> None:
    """In the order they were asked for, inside and out, with a cache and without."""
    wanted = [(n, min(level, 2 - 2 * n), start, size) for n, level, start, size in drawn]
    own = Store(store.path)
    if cached:
        own.block_cache()
    found = own.read_regions("image", wanted, padding=padding, fill=7)
    assert len(found) == len(wanted)
    for values, (sample, level, start, size) in zip(found, wanted, strict=True):
        array = store.array(sample, "image").level(level)
        plain = array.patch(start, size, scaled=False, padding=padding, fill=7)
        assert np.array_equal(values, plain)
        assert values.flags.writeable
        assert values.flags.owndata


@pytest.mark.parametrize(
    ("fill", "wanted"), [(None, [10, 20, 30]), (5, [5, 5, 5]), ([1, 2, 3], [1, 2, 3])], ids=str
)
def test_what_is_outside_is_what_was_asked_for(store: Store, fill: Any, wanted: list[int]) -> None:
    """The background of the slide, one number, or one for each channel."""
    requests = [(0, 0, (-4, -4, 0), (8, 8, 3)), (0, 0, (-4, -4, 1), (8, 8, 2))]
    whole, part = store.read_regions("image", requests, fill=fill)
    assert whole[0, 0].tolist() == wanted
    assert part[0, 0].tolist() == wanted[1:]
    assert np.array_equal(whole[4:, 4:], FINE[:4, :4])


def test_each_slide_has_its_own_background(store: Store) -> None:
    """A batch may hold several."""
    requests = [(1, 0, (-1, -1, 0), (1, 1, 3)), (0, 0, (-1, -1, 0), (1, 1, 3))]
    found = store.read_regions("image", requests, fill=None)
    assert [each.reshape(-1).tolist() for each in found] == [[9, 9, 9], [10, 20, 30]]


@pytest.mark.parametrize("codec", ["png", "lz4"])
def test_blocks_that_several_regions_touch_are_decoded_once(
    tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read one by one, each region decodes them again."""
    own = slides(tmp_path / "x", codec=codec)
    requests = [(0, 0, (at, at, 0), (12, 12, 3)) for at in range(0, 30, 3)]
    asked: Counter[int] = Counter()
    entries = type(own.opened).entries

    def counted(self: Any, first: int, numbers: Any, *rest: Any, **options: Any) -> Any:
        asked.update(first + number for number in numbers)
        return entries(self, first, numbers, *rest, **options)

    monkeypatch.setattr(type(own.opened), "entries", counted)
    together = own.read_regions("image", requests)
    assert set(asked.values()) == {1}
    alone = [own.read_regions("image", [request])[0] for request in requests]
    assert max(asked.values()) > 4
    assert all(np.array_equal(a, b) for a, b in zip(together, alone, strict=True))


def test_all_is_asked_for_before_anything_is_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system fetches the tiles of all slides together."""
    steps: list[str] = []
    opened, read = type(store.opened), TileDecoder.read
    monkeypatch.setattr(opened, "advise", lambda _self, numbers: steps.append(str(len(numbers))))

    def seen(self: Any, *arguments: Any) -> None:
        steps.append("read")
        read(self, *arguments)

    monkeypatch.setattr(TileDecoder, "read", seen)
    requests = [(1, 0, (0, 0, 0), (8, 8, 3)), (0, 0, (0, 0, 0), (20, 8, 3))]
    store.read_regions("image", requests)
    assert steps == ["3", "read", "read", "read"]


def test_plain_pictures_are_read_by_regions_too(tmp_path: Path) -> None:
    """Each is one block."""
    with StoreWriter(tmp_path / "x", schema={"image": "png"}) as writer:
        writer.add({"image": SMALL})
    (found,) = Store(tmp_path / "x").read_regions("image", [(0, 0, (3, 4, 0), (5, 6, 3))])
    assert np.array_equal(found, SMALL[3:8, 4:10])


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ((5, 0, (0, 0, 0), (8, 8, 3)), SampleIndexError),
        ((2, 0, (0, 0, 0), (8, 8, 3)), SampleKeyError),
        ((0, 9, (0, 0, 0), (8, 8, 3)), SchemaError),
        ((0, -1, (0, 0, 0), (8, 8, 3)), SchemaError),
        ((0, "x", (0, 0, 0), (8, 8, 3)), SchemaError),
        ((0, 0, (0, 0), (8, 8, 3)), SchemaError),
        ((0, 0, (0, 0, 0), (8, -8, 3)), SchemaError),
        ((0, 0, (0.5, 0, 0), (8, 8, 3)), SchemaError),
        ((0, 0, (0, 0, 0, 0), (1, 8, 8, 3)), SchemaError),
        ((0, 0), SchemaError),
        ((0, 0, 5, 6), SchemaError),
    ],
    ids=map(str, range(11)),
)
def test_what_is_no_region_is_refused(store: Store, request_: Any, error: type[Exception]) -> None:
    """With the error that says why."""
    with pytest.raises(error):
        store.read_regions("image", [request_])


def test_other_paddings_fills_and_fields_are_refused(store: Store) -> None:
    """Also where nothing is asked for."""
    region = [(0, 0, (-1, 0, 0), (8, 8, 3))]
    with pytest.raises(SchemaError, match="padding"):
        store.read_regions("image", region, padding="wrap")
    with pytest.raises(SchemaError, match="fill"):
        store.read_regions("image", region, fill=300)
    with pytest.raises(SchemaError, match="fill"):
        store.read_regions("image", region, fill=[1, 2])
    with pytest.raises(SampleKeyError):
        store.read_regions("label", [])
    assert store.read_regions("image", []) == []


def test_a_damaged_tile_of_a_batch_is_named(tmp_path: Path) -> None:
    """Sample, level and block."""
    meta = ArrayMeta("|u1", (LevelMeta((16, 32, 3), (16, 16, 3)),))
    with StoreWriter(tmp_path / "x", schema={"image": Field("jpeg", chunk=(16, 16, 3))}) as writer:
        writer.add({"image": EncodedArray(meta, [(0, 0, b""), (0, 1, b"\xff\xd8bad")])})
    own = Store(tmp_path / "x")
    assert own.read_regions("image", [(0, 0, (0, 0, 0), (9, 9, 3))])[0].max() == 0
    with pytest.raises(CorruptDataError, match=r"sample 0.*level 0, block 1"):
        own.read_regions("image", [(0, 0, (0, 8, 0), (9, 9, 3))])


# --- by the size of pixels -----------------------------------------------------------------------


@pytest.mark.parametrize(("mpp", "level"), [(0.25, 0), (0.5, 1), (1.0, 2)])
def test_the_pixels_of_a_level_come_as_they_are(store: Store, mpp: float, level: int) -> None:
    """Nothing is averaged where a level has just that size."""
    step = 2**level
    found = store.read_mpp(0, 4 * step, 2 * step, (5, 9), mpp)
    assert np.array_equal(found, LEVELS[level][2:7, 4:13])


@pytest.mark.parametrize(("mpp", "level", "down"), [(0.75, 1, 1.5), (2.0, 2, 2.0), (0.3, 0, 1.2)])
def test_the_coarsest_level_that_is_fine_enough_is_averaged(
    store: Store, mpp: float, level: int, down: float
) -> None:
    """By area: the mean of the level, spread over fine cells, in each pixel."""
    fine = np.repeat(np.repeat(LEVELS[level].astype(float), 30, 0), 30, 1)
    side = round(30 * down)
    wanted = fine[: 6 * side, : 8 * side].reshape(6, side, 8, side, 3).mean((1, 3))
    assert np.abs(store.read_mpp(0, 0, 0, (6, 8), mpp) - wanted).max() <= 0.51


def test_a_level_that_is_coarser_by_a_hair_is_fine_enough(tmp_path: Path) -> None:
    """Levels of scanners are no whole parts of the finest; the next one has four times the data."""
    own = slides(tmp_path / "x", {"mpp": [0.25, 0.25], "downsamples": [1.0, 2.001, 4.003]})
    found = own.read_mpp(0, 0, 0, (4, 4), 1.0).astype(int)
    assert np.abs(found - LEVELS[2][:4, :4]).max() <= 2


def test_outside_is_background(store: Store) -> None:
    """Also a region that does not touch the slide."""
    found = store.read_mpp(0, -8, -8, 16, 0.5)
    assert found[0, 0].tolist() == [10, 20, 30]
    assert np.array_equal(found[4:, 4:], LEVELS[1][:12, :12])
    assert (store.read_mpp(0, 1e9, 0, 4, 0.7) == [10, 20, 30]).all()


def test_a_size_may_be_any_whole_number(store: Store) -> None:
    """One, or two as (h, w)."""
    assert store.read_mpp(0, 0, 0, np.int64(7), 0.5).shape == (7, 7, 3)  # type: ignore[arg-type]
    assert store.read_mpp(0, 0, 0, (7, 5), 0.1).shape == (7, 5, 3)


def test_a_plane_of_a_stack_is_chosen(tmp_path: Path) -> None:
    """One that is not there is no background, but an error."""
    stack = noise(2, 20, 20, 3)
    with StoreWriter(
        tmp_path / "x", schema={"image": Field("png", chunk=(1, 16, 16, 3))}
    ) as writer:
        writer.add({"image": ArrayValue(stack, attrs={"mpp": [1, 1]})})
    own = Store(tmp_path / "x")
    assert np.array_equal(own.read_mpp(0, 3, 2, 5, 1.0, plane=1), stack[1, 2:7, 3:8])
    for plane in (2, -1):
        with pytest.raises(SchemaError, match="plane"):
            own.read_mpp(0, 0, 0, 5, 1.0, plane=plane)


@pytest.mark.parametrize(
    "wrong",
    [
        {"x": float("nan")},
        {"y": float("inf")},
        {"size": 0},
        {"size": 2.5},
        {"size": (1, 2, 3)},
        {"mpp": 0},
        {"mpp": float("nan")},
        {"mpp": float("inf")},
        {"mpp": "half"},
        {"plane": 1},
        {"mpp": 1e9},
    ],
    ids=str,
)
def test_what_is_no_region_of_a_slide_is_refused(store: Store, wrong: Attrs) -> None:
    """Nothing is allocated by it."""
    asked: Attrs = {"x": 0, "y": 0, "size": 8, "mpp": 0.5, **wrong}
    with pytest.raises(SchemaError):
        store.read_mpp(0, **asked)


@pytest.mark.parametrize("mpp", [None, "x", [1], [0, 0], [-1, 1], [None, None], 5], ids=str)
def test_pixels_of_unknown_size_are_an_error_with_the_key(tmp_path: Path, mpp: Any) -> None:
    """A description that holds something else says nothing."""
    own = slides(tmp_path / "x", {} if mpp is None else {"mpp": mpp})
    with pytest.raises(SchemaError, match="first"):
        own.read_mpp(0, 0, 0, 8, 0.5)


@pytest.mark.parametrize(
    "downs", [None, "ab", [], [1.0], [0, 0, 0], ["x", None, 1], {"a": 1}, [1.0, -2.0, 3.0]], ids=str
)
def test_downsamples_that_are_none_are_those_of_the_rows(tmp_path: Path, downs: Any) -> None:
    """Levels say by their shapes how coarse they are."""
    attrs = {"mpp": [0.25, 0.25], **({} if downs is None else {"downsamples": downs})}
    own = slides(tmp_path / "x", attrs)
    assert np.array_equal(own.read_mpp(0, 0, 0, 8, 0.5), LEVELS[1][:8, :8])


@pytest.mark.parametrize(
    "mpp",
    [[1e-12, 1e-12], [1e-12, 1e6], [1e6, 1e-12], [1e-7, 1e4], [5e-324, 1], [1e300, 1e300]],
    ids=str,
)
def test_a_pixel_size_that_cannot_be_asks_for_no_memory(tmp_path: Path, mpp: Any) -> None:
    """A file may claim any, also one of an ordinary area; nor does it ask for much time."""
    own = slides(tmp_path / "x", {"mpp": mpp})
    with pytest.raises(SchemaError, match="pixels of level"):
        own.read_mpp(0, 0, 0, 1, 0.5)


@pytest.mark.parametrize(
    "size", [(10**6, 10**6), (10**10, 1), (1, 10**10), (10**400, 1)], ids=["area", "y", "x", "int"]
)
def test_a_region_of_any_size_is_refused(store: Store, size: tuple[int, int]) -> None:
    """However few pixels of the level it shows."""
    with pytest.raises(SchemaError):
        store.read_mpp(0, 0, 0, size, 1e-5)


def test_a_place_beyond_all_numbers_is_refused(tmp_path: Path) -> None:
    """A level of next to no downsampling puts it there."""
    own = slides(tmp_path / "x", {"mpp": [1e300] * 2, "downsamples": [1e-300, 1e-299, 1e-298]})
    with pytest.raises(SchemaError, match="pixels of level"):
        own.read_mpp(0, 1e10, 0, 4, 0.5)


# --- means by area -------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(begin=st.floats(0, 3), step=st.floats(0.2, 6), count=st.integers(1, 12))
def test_a_mean_is_that_of_an_exact_integral(begin: float, step: float, count: int) -> None:
    """Each row counts by as much of it as lies in the piece."""
    n = int(np.ceil(begin + step * count)) + 1
    rows = noise(n, 4).astype(float)
    sums = np.concatenate([np.zeros((1, 4)), np.cumsum(rows, 0)])
    edges = begin + step * np.arange(count + 1)
    at = np.stack([np.interp(edges, np.arange(n + 1), column) for column in sums.T], -1)
    assert np.allclose(averaged(rows, begin, step, count), np.diff(at, axis=0) / step)


@pytest.mark.parametrize("dtype", ["u1", "u2", "i2", "f4"])
def test_means_have_the_dtype_of_the_pixels(dtype: str) -> None:
    """Whole numbers are rounded to the nearest, not cut."""
    values = np.array([[[1], [2]], [[2], [2]]], dtype)
    found = resized(values, (0, 0), (2, 2), (1, 1))
    assert found.dtype == dtype
    assert found.item() == (1.75 if dtype == "f4" else 2)
