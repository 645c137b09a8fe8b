"""Regions drawn on slides: read from GeoJSON, counted by cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharedds.errors import SourceError
from sharedds.ingest.slides.shapes import Polygon, Shapes, read_shapes

SQUARE = [[10, 20], [50, 20], [50, 60], [10, 60], [10, 20]]
HOLE = [[20, 30], [30, 30], [30, 40], [20, 40], [20, 30]]


def feature(kind: str, coordinates: Any, **properties: Any) -> dict[str, Any]:
    """A feature of GeoJSON."""
    geometry = {"type": kind, "coordinates": coordinates}
    return {"type": "Feature", "geometry": geometry, "properties": properties}


def shapes(tmp_path: Path, *features: Any) -> Shapes:
    """What a file of these features holds."""
    path = tmp_path / "a.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    return read_shapes(path)


def pixels(found: Shapes, size: int = 100) -> Any:
    """Counts of single pixels, (y, x, classes)."""
    return found.counts(y=0, x=0, height=size, width=size, cell=1)


def test_a_square_is_its_pixels(tmp_path: Path) -> None:
    """Those whose middles are inside, holes left out."""
    expected = np.zeros((100, 100), np.uint16)
    expected[20:60, 10:50] = 1
    expected[30:40, 20:30] = 0
    found = shapes(tmp_path, feature("Polygon", [SQUARE, HOLE]))
    assert found.classes == ("annotation",)
    assert np.array_equal(pixels(found)[..., 0], expected)


@pytest.mark.parametrize("move", [0.0, 0.25, 0.5, 0.75])
def test_shapes_side_by_side_share_no_pixel(tmp_path: Path, move: float) -> None:
    """Each middle is in one of two squares with a common edge, wherever that is."""
    edge = 30 + move
    left = [[10, 10], [edge, 10], [edge, edge], [10, edge]]
    right = [[edge, 10], [60, 10], [60, edge], [edge, edge]]
    found = shapes(
        tmp_path, feature("Polygon", [left], label="a"), feature("Polygon", [right], label="b")
    )
    both = pixels(found).sum(-1)
    assert both.max() == 1
    assert (both > 0).any(1).sum() == (both > 0).sum() // 50


def test_cells_add_up_pixels_whatever_the_part(tmp_path: Path) -> None:
    """A circle cut into parts has as many pixels as in one, and about its area."""
    turn = np.linspace(0, 2 * np.pi, 400)[:-1]
    circle = np.stack([500 + 200 * np.cos(turn), 500 + 200 * np.sin(turn)], -1).tolist()
    found = shapes(tmp_path, feature("Polygon", [circle]))
    whole = found.counts(y=0, x=0, height=1024, width=1024, cell=64)[..., 0]
    parts = np.zeros_like(whole)
    for y in range(0, 1024, 256):
        for x in range(0, 1024, 256):
            part = found.counts(y=y, x=x, height=256, width=256, cell=64)[..., 0]
            parts[y // 64 : y // 64 + 4, x // 64 : x // 64 + 4] = part
    assert np.array_equal(whole, parts)
    assert whole.sum() == pytest.approx(np.pi * 200**2, rel=0.001)


def test_two_of_one_class_count_once(tmp_path: Path) -> None:
    """What both cover is no more than what is there."""
    found = shapes(tmp_path, feature("Polygon", [SQUARE]), feature("Polygon", [SQUARE]))
    assert pixels(found).max() == 1


def test_a_ring_that_crosses_itself_has_an_inside_by_rule(tmp_path: Path) -> None:
    """Even-odd: the two halves of a bow tie; and a ring that is not closed is closed."""
    tie = [[0, 0], [40, 40], [40, 0], [0, 40]]
    mask = pixels(shapes(tmp_path, feature("Polygon", [tie])))[..., 0]
    assert mask[20, 5] == 1
    assert mask[20, 35] == 1
    assert mask[3, 20] == mask[37, 20] == 0


def test_a_common_edge_divides_pixels_whichever_way_it_is_drawn() -> None:
    """Two triangles are their quadrilateral: no pixel is in both, none in neither."""
    rng = np.random.default_rng(0)
    tried = 0
    while tried < 400:
        a, b, c, d = rng.integers(0, 60, (4, 2)) / rng.choice([1, 2, 3, 7, 10])
        along, one, other = b - a, c - a, d - a
        sides = [along[0] * each[1] - along[1] * each[0] for each in (one, other)]
        if sides[0] * sides[1] >= 0:
            continue
        tried += 1
        three = [np.array(ring) for ring in ([a, b, c], [b, a, d])]
        two = Shapes([Polygon(name, (ring,)) for name, ring in zip("lr", three, strict=True)])
        whole = Shapes([Polygon("q", (np.array([a, d, b, c]),))])
        assert np.array_equal(pixels(two, 64).sum(-1), pixels(whole, 64)[..., 0])


def test_a_ring_beside_the_first_counts_whatever_the_part() -> None:
    """The rule is even-odd over all rings; it does not depend on how the slide is cut."""
    ring = np.array(SQUARE[:4], float)
    found = Shapes([Polygon("a", (ring, ring + np.array([100, 0])))])
    whole = found.counts(y=0, x=0, height=64, width=256, cell=64)
    parts = [found.counts(y=0, x=x, height=64, width=64, cell=64) for x in range(0, 256, 64)]
    assert np.array_equal(whole, np.concatenate(parts, 1))
    assert whole.sum() == 2 * 40 * 40


def test_regions_of_many_corners_are_filled_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same pixels, however many crossings are looked at in one go."""
    rng = np.random.default_rng(3)
    found = Shapes([Polygon("a", (rng.uniform(-20, 120, (300, 2)),))])
    whole = pixels(found)
    monkeypatch.setattr("sharedds.ingest.slides.shapes._AT_ONCE", 50)
    assert np.array_equal(pixels(found), whole)
    assert 0 < whole.sum() < whole.size


def test_several_parts_and_what_is_outside(tmp_path: Path) -> None:
    """A multi-polygon is all its parts; what reaches beyond the slide is cut."""
    far = [[-50, -50], [5, -50], [5, 5], [-50, 5]]
    found = shapes(tmp_path, feature("MultiPolygon", [[SQUARE], [far]]))
    mask = pixels(found)[..., 0]
    assert mask.sum() == 40 * 40 + 5 * 5


@pytest.mark.parametrize(
    ("properties", "name"),
    [
        ({"classification": {"name": "Tumor", "color": [1, 2, 3]}}, "Tumor"),
        ({"classification": "stroma"}, "stroma"),
        ({"label": 3}, "3"),
        ({"name": " x "}, "x"),
        ({}, "annotation"),
    ],
    ids=["object", "string", "number", "name", "none"],
)
def test_the_class_is_where_viewers_put_it(
    tmp_path: Path, properties: dict[str, Any], name: str
) -> None:
    """QuPath has an object, others a string or a number."""
    assert shapes(tmp_path, feature("Polygon", [SQUARE], **properties)).classes == (name,)


def test_points_and_lines_are_no_regions(tmp_path: Path) -> None:
    """They are counted as passed over; so is a polygon of two corners."""
    found = shapes(
        tmp_path,
        feature("Point", [1, 2]),
        feature("LineString", [[0, 0], [5, 5]]),
        feature("Polygon", [[[0, 0], [5, 5], [0, 0]]]),
    )
    assert len(found) == 0
    assert found.passed_over == 3
    assert found.counts(y=0, x=0, height=10, width=10, cell=5).shape == (2, 2, 0)


@pytest.mark.parametrize(
    "bad",
    [
        7,
        {"type": "Feature", "geometry": {"coordinates": []}},
        feature("Polygon", [["a", "b", "c"]]),
        feature("Polygon", [[["1", "2"], ["3", "4"], ["5", "6"]]]),
        feature("Polygon", [[[0, 0], [1, 1], [1e12, 0]]]),
        feature("Polygon", [[[0, 0], ["40", "0"], [40, 40]]]),
        feature("Polygon", [[[0, 0], [True, 0], [40, 40]]]),
        feature("Polygon", 5),
        feature("Polygon", []),
        feature("Polygon", [[1, 2, 3]]),
        feature("Polygon", [SQUARE], label=[1]),
    ],
    ids=[
        "number",
        "no type",
        "words",
        "strings",
        "far",
        "a word",
        "truth",
        "no list",
        "no rings",
        "flat",
        "class",
    ],
)
def test_what_is_no_region_is_told_by_number(tmp_path: Path, bad: Any) -> None:
    """The third feature of the file, counted from 0."""
    good = feature("Polygon", [SQUARE])
    with pytest.raises(SourceError, match=r"a\.geojson: feature 2"):
        shapes(tmp_path, good, good, bad)


@pytest.mark.parametrize("text", ["", "{", "7", "{}", '{"type": "FeatureCollection"}', "NaN"])
def test_what_is_no_geojson_is_told(tmp_path: Path, text: str) -> None:
    """By name."""
    path = tmp_path / "a.geojson"
    path.write_text(text)
    with pytest.raises(SourceError, match=r"a\.geojson"):
        read_shapes(path)
    with pytest.raises(SourceError, match="cannot be read"):
        read_shapes(tmp_path / "gone.geojson")
