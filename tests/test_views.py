"""Views: which part of a picture is shown, chosen by its size alone."""

from __future__ import annotations

import dataclasses
import math
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharedds.errors import OptionError
from sharedds.views import CenterCrop, Full, Places, RandomCrop, RandomResizedCrop, Resize, View

DRAWS = 4000
#: Two samples of one distribution are further apart than this once in a thousand times (KS).
FAR = 1.95 * math.sqrt(2 / DRAWS)


def places(view: View, sizes: list[tuple[int, int]], seed: int = 0) -> Places:
    """Return what a view shows of pictures, by numbers of NumPy."""
    numbers = np.random.default_rng(seed).random((len(sizes), view.uniforms))
    return view.places(np.array(sizes), numbers)


def boxes(view: View, sizes: list[tuple[int, int]], seed: int = 0) -> list[list[int]]:
    """Return top, left, height and width of each part."""
    found: list[list[int]] = places(view, sizes, seed).boxes.tolist()
    return found


def published_rule(
    draw: random.Random,
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> tuple[int, int, int, int]:
    """Return one box of torchvision's RandomResizedCrop, in plain Python."""
    for _ in range(10):
        area = height * width * draw.uniform(*scale)
        aspect = math.exp(draw.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return draw.randint(0, height - h), draw.randint(0, width - w), h, w
    w, h = width, height
    if width / height < ratio[0]:
        h = round(w / ratio[0])
    elif width / height > ratio[1]:
        w = round(h * ratio[1])
    return (height - h) // 2, (width - w) // 2, h, w


def distance(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """Return the Kolmogorov-Smirnov distance of two samples."""
    at = np.concatenate((one, other))
    shares = [
        np.searchsorted(np.sort(sample), at, "right") / len(sample) for sample in (one, other)
    ]
    return float(np.abs(shares[0] - shares[1]).max())


FEATURES: dict[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = {
    "top": lambda boxes: boxes[:, 0],
    "left": lambda boxes: boxes[:, 1],
    "height": lambda boxes: boxes[:, 2],
    "width": lambda boxes: boxes[:, 3],
    "area": lambda boxes: boxes[:, 2] * boxes[:, 3],
    "aspect": lambda boxes: boxes[:, 3] / boxes[:, 2],
}


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("size", [(375, 500), (500, 333), (64, 1000), (20, 17)])
def test_random_parts_are_distributed_as_published(size: tuple[int, int], feature: str) -> None:
    """Within what two samples of one distribution differ by; other options are further away."""
    draw = random.Random(1)
    scale, ratio = (0.08, 1.0), (3 / 4, 4 / 3)
    rule = np.array([published_rule(draw, *size, scale, ratio) for _ in range(DRAWS)])
    found = np.array(boxes(RandomResizedCrop(224), [size] * DRAWS))
    measure = FEATURES[feature]
    assert distance(measure(found), measure(rule)) < FAR


def test_another_rule_is_told_apart() -> None:
    """Areas that are uniform in the side instead of the area fail the test above."""
    draw = random.Random(1)
    rule = np.array(
        [published_rule(draw, 375, 500, (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(DRAWS)]
    )
    sides = np.random.default_rng(0).uniform(math.sqrt(0.08), 1, DRAWS)
    assert distance(sides**2 * 375 * 500, FEATURES["area"](rule)) > FAR


def test_scale_and_ratio_are_obeyed() -> None:
    """As far as whole pixels allow."""
    view = RandomResizedCrop(64, scale=(0.2, 0.3), ratio=(2, 3))
    found = np.array(boxes(view, [(1000, 1000)] * 500))
    areas, aspects = FEATURES["area"](found) / 1e6, FEATURES["aspect"](found)
    assert 0.199 < areas.min() < 0.205
    assert 0.295 < areas.max() < 0.301
    assert 1.99 < aspects.min() < 2.05
    assert 2.95 < aspects.max() < 3.01


@pytest.mark.parametrize(
    ("size", "box"),
    [
        ((10, 1000), [0, 493, 10, 13]),  # 13 = round(10 * 4/3)
        ((1000, 10), [493, 0, 13, 10]),
        ((1, 1), [0, 0, 1, 1]),
    ],
)
def test_where_no_attempt_fits_the_middle_is_shown(size: tuple[int, int], box: list[int]) -> None:
    """The largest part in the middle whose aspect is allowed."""
    assert boxes(RandomResizedCrop(8, scale=(1, 1)), [size]) == [box]


ALL: list[View] = [
    RandomResizedCrop(24, flip=0.5),
    RandomResizedCrop((7, 90), scale=(0.5, 0.5), ratio=(1, 1), flip_vertical=0.5),
    RandomCrop((30, 20), flip=1),
    CenterCrop(32),
    CenterCrop((16, 32), resize=40),
    Resize(20),
    Resize((20, 30)),
    Full(flip=0.3),
]


@settings(max_examples=60, deadline=None)
@given(
    view=st.sampled_from(ALL),
    sizes=st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 3000)), min_size=1, max_size=20),
    seed=st.integers(0, 1000),
)
def test_parts_lie_in_their_pictures(view: View, sizes: list[tuple[int, int]], seed: int) -> None:
    """Whatever the size: no empty part, none that leaves the picture."""
    found = places(view, sizes, seed)
    limits = np.array(sizes)
    assert (found.boxes[:, :2] >= 0).all()
    assert (found.boxes[:, 2:] >= 1).all()
    assert (found.boxes[:, :2] + found.boxes[:, 2:] <= limits).all()
    assert (found.outputs >= 1).all()
    if view.output is not None:
        assert (found.outputs == view.output).all()


@pytest.mark.parametrize("view", ALL, ids=repr)
def test_a_part_is_the_same_alone_and_in_a_batch(view: View) -> None:
    """To the bit: nothing depends on how many pictures are looked at together."""
    rng = np.random.default_rng(5)
    sizes = rng.integers(1, 2000, (300, 2))
    numbers = rng.random((300, view.uniforms))
    together = view.places(sizes, numbers)
    for at in range(300):
        alone = view.places(sizes[at : at + 1], numbers[at : at + 1])
        assert alone.boxes[0].tolist() == together.boxes[at].tolist()
        assert alone.flips[0].tolist() == together.flips[at].tolist()
        assert alone.outputs[0].tolist() == together.outputs[at].tolist()


def test_a_random_crop_is_anywhere_equally_often() -> None:
    """Each of the 4 x 3 places, the last ones as well."""
    found = boxes(RandomCrop((5, 6)), [(8, 8)] * 12_000)
    counts = np.zeros((4, 3), int)
    for top, left, height, width in found:
        assert (height, width) == (5, 6)
        counts[top, left] += 1
    assert np.abs(counts - 1000).max() < 4 * math.sqrt(1000)


@pytest.mark.parametrize(
    ("size", "part"),
    [
        ((100, 50), (100, 50)),  # twice as large would be 200 x 100: all of it
        ((50, 400), (50, 25)),  # scaled by 4 to 200 x 1600
        ((400, 99), (198, 99)),  # the height would do, the width does not
        ((200, 100), (200, 100)),
        ((1000, 1000), (200, 100)),
    ],
)
@pytest.mark.parametrize("view", [RandomCrop((200, 100)), CenterCrop((200, 100))], ids=repr)
def test_a_picture_that_is_too_small_is_scaled_up(
    view: View, size: tuple[int, int], part: tuple[int, int]
) -> None:
    """With its aspect, until it covers what is shown; no border is made up."""
    found = places(view, [size])
    assert tuple(found.boxes[0, 2:]) == part
    assert tuple(found.outputs[0]) == (200, 100)


@pytest.mark.parametrize("size", [(300, 401), (225, 224), (1001, 800)])
def test_the_middle_is_that_of_torchvision(size: tuple[int, int]) -> None:
    """int(round((size - crop) / 2.0)), which rounds halves to even numbers."""
    middle = [round((side - 224) / 2.0) for side in size]
    assert boxes(CenterCrop(224), [size]) == [[*middle, 224, 224]]


def test_the_usual_evaluation_is_one_step() -> None:
    """CenterCrop(224, resize=256) shows 224/256 of the short side."""
    assert boxes(CenterCrop(224, resize=256), [(512, 900), (256, 256)]) == [
        [32, 226, 448, 448],
        [16, 16, 224, 224],
    ]


def test_a_resize_to_less_than_the_crop_still_covers_it() -> None:
    """CenterCrop(224, resize=100) cannot show more than the whole short side."""
    assert boxes(CenterCrop(224, resize=100), [(300, 400)]) == [[0, 50, 300, 300]]


@pytest.mark.parametrize("size", [(375, 500), (500, 375), (7, 3000), (600, 600)])
def test_one_number_is_the_short_side(size: tuple[int, int]) -> None:
    """The long side is that of torchvision: int(size * long / short)."""
    view = Resize(100)
    found = places(view, [size])
    long = int(100 * max(size) / min(size))
    assert sorted(found.outputs[0].tolist()) == [100, long]
    assert np.argmax(found.outputs[0]) == np.argmax(size)
    assert found.boxes[0].tolist() == [0, 0, *size]
    assert view.output is None


def test_two_numbers_are_both_sides() -> None:
    """Whatever becomes of the aspect."""
    found = places(Resize((20, 30)), [(100, 100)])
    assert (found.boxes[0].tolist(), found.outputs[0].tolist()) == ([0, 0, 100, 100], [20, 30])


def test_full_shows_all_as_it_is() -> None:
    """No part is left out, nothing is scaled."""
    found = places(Full(), [(3, 4), (50, 60)])
    assert found.boxes.tolist() == [[0, 0, 3, 4], [0, 0, 50, 60]]
    assert found.outputs.tolist() == [[3, 4], [50, 60]]


def test_flips_are_as_frequent_as_asked_and_independent() -> None:
    """A quarter left to right, half top to bottom, an eighth both."""
    flips = places(Full(flip=0.25, flip_vertical=0.5), [(8, 8)] * 8000).flips
    assert abs(flips[:, 0].mean() - 0.25) < 0.02
    assert abs(flips[:, 1].mean() - 0.5) < 0.02
    assert abs(flips.all(axis=1).mean() - 0.125) < 0.02


@pytest.mark.parametrize(("chance", "share"), [(0, 0.0), (1, 1.0)])
def test_never_and_always_are_exact(chance: int, share: float) -> None:
    """A probability of 0 or 1 leaves nothing to chance."""
    assert places(Full(flip=chance), [(8, 8)] * 1000).flips[:, 0].mean() == share


def test_flips_do_not_depend_on_where_the_part_is() -> None:
    """Mirrored pictures do not come from one side more often."""
    found = places(RandomCrop(8, flip=0.5), [(8, 500)] * DRAWS)
    mirrored = found.flips[:, 0]
    assert distance(found.boxes[mirrored, 1], found.boxes[~mirrored, 1]) < 2 * FAR


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomResizedCrop(0),
        lambda: RandomResizedCrop(-3),
        lambda: RandomResizedCrop(2.5),  # type: ignore[arg-type]
        lambda: RandomResizedCrop(True),
        lambda: RandomResizedCrop("224"),  # type: ignore[arg-type]
        lambda: RandomResizedCrop((1, 2, 3)),  # type: ignore[arg-type]
        lambda: RandomResizedCrop(8, scale=(0, 1)),
        lambda: RandomResizedCrop(8, scale=(0.5, 0.2)),
        lambda: RandomResizedCrop(8, scale=(0.5, 1.2)),
        lambda: RandomResizedCrop(8, scale=0.5),  # type: ignore[arg-type]
        lambda: RandomResizedCrop(8, scale=(math.nan, 1)),
        lambda: RandomResizedCrop(8, ratio=(2, 1)),
        lambda: RandomResizedCrop(8, ratio=(0, 1)),
        lambda: RandomResizedCrop(8, ratio=(1, math.inf)),
        lambda: RandomResizedCrop(8, antialias=None),  # type: ignore[arg-type]
        lambda: RandomResizedCrop(8, flip=1.5),
        lambda: RandomCrop(8, flip=-0.1),
        lambda: RandomCrop(8, flip=math.nan),
        lambda: RandomCrop((8, 0)),
        lambda: CenterCrop(8, flip="yes"),  # type: ignore[arg-type]
        lambda: CenterCrop(8, flip=True),
        lambda: CenterCrop(8, resize=0),
        lambda: CenterCrop(8, resize=(8, 9)),  # type: ignore[arg-type]
        lambda: Resize(0),
        lambda: Resize((4,)),  # type: ignore[arg-type]
        lambda: Resize(8, antialias=1),  # type: ignore[arg-type]
        lambda: Full(flip_vertical=2),
    ],
)
def test_bad_values_are_refused_at_once(make: Callable[[], View]) -> None:
    """Where the view is made, not when the first picture is read."""
    with pytest.raises(OptionError, match="="):
        make()


def test_numbers_of_numpy_are_numbers() -> None:
    """As they come out of a configuration."""
    view = RandomCrop(np.int64(8), flip=np.float32(0.5))  # type: ignore[arg-type]
    assert view == RandomCrop((8, 8), flip=0.5)


@pytest.mark.parametrize("view", ALL, ids=repr)
def test_views_are_values(view: View) -> None:
    """Equal by content, hashable, unchangeable, and the same in another process."""
    again = pickle.loads(pickle.dumps(view))
    assert again == view
    assert hash(again) == hash(view)
    with pytest.raises(dataclasses.FrozenInstanceError):
        view.flip = 0.1  # type: ignore[misc]
    assert dataclasses.replace(view, flip=0.125) != view


def test_a_view_of_ones_own_needs_one_method() -> None:
    """A subclass says which part; flips come with it."""

    class Corner(View):
        def _choose(self, sizes: Any, uniforms: Any) -> Any:
            return np.tile([0, 0, 4, 4], (len(sizes), 1)), np.full((len(sizes), 2), 4)

    assert places(Corner(flip=1), [(9, 9)]).flips[0].tolist() == [True, False]
    with pytest.raises(OptionError, match="View does not say"):
        places(View(), [(9, 9)])
