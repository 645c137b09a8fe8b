"""Outlines of regions on a slide (GeoJSON), and how many pixels of each class a part of it has.

The format is that of RFC 7946, as QuPath and other viewers write it: a FeatureCollection, a list of
features, one feature or one geometry. Polygons and multi-polygons are regions; other geometries
(points, lines) are none and are counted. Coordinates are pixels of level 0, (x, y), y downwards.

The class of a feature is its property ``classification`` (a name, or an object with a ``name``),
else ``label``, ``class`` or ``name``, else ``"annotation"``.

*The rule*: a pixel belongs to a polygon where its middle lies inside by the even-odd rule, over the
outer ring and all holes: a ring that crosses itself has no inside where it covers twice. A middle
on an edge counts where the inside is to its right or below. Rings are closed where they are not.
Two polygons of one class over a pixel count once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from sharedds.errors import SourceError

__all__ = ["Polygon", "Shapes", "read_shapes"]

_MOST_BYTES = 1 << 30
_NAMED = ("label", "class", "name")
_DEFAULT = "annotation"
_FAR = 1e9  # pixels: no slide is larger
_AT_ONCE = 1 << 20  # places where edges cross rows


@dataclass(frozen=True, slots=True)
class Polygon:
    """A region: its class, and its rings, each (n, 2) float64 of (x, y)."""

    class_name: str
    rings: tuple[npt.NDArray[np.float64], ...]


class Shapes:
    """The polygons of a slide, found by place.

    Args:
        polygons: In any order.
        passed_over: Geometries that are no regions.
        fingerprint: Changes with the file they are from.

    Attributes:
        classes: Names of the classes that occur, sorted.
    """

    def __init__(
        self, polygons: list[Polygon], *, passed_over: int = 0, fingerprint: str = ""
    ) -> None:
        self.classes = tuple(sorted({each.class_name for each in polygons}))
        self.passed_over = passed_over
        self.fingerprint = fingerprint
        self._polygons = polygons
        boxes = [_box(each.rings) for each in polygons]
        self._boxes = np.array(boxes, np.float64).reshape(-1, 4)

    def __len__(self) -> int:
        return len(self._polygons)

    def counts(
        self,
        *,
        y: int,
        x: int,
        height: int,
        width: int,
        cell: int,
        classes: tuple[str, ...] | None = None,
    ) -> npt.NDArray[np.uint16]:
        """Return how many pixels of each class lie in each cell of a part of the slide.

        Args:
            y: First row of the part.
            x: First column.
            height: Of the part, in pixels.
            width: Of the part.
            cell: Side of a cell; those at the right and lower edge are cut.
            classes: Names, in the order of the result; by default :attr:`classes`.

        Returns:
            (rows, columns, classes).
        """
        names = self.classes if classes is None else classes
        rows, columns = -(-height // cell), -(-width // cell)
        found = np.zeros((rows, columns, len(names)), np.uint16)
        masks: dict[str, npt.NDArray[np.bool_]] = {}
        for polygon in self._near(y, x, height, width):
            if polygon.class_name not in names:
                continue
            mask = masks.get(polygon.class_name)
            if mask is None:
                mask = masks[polygon.class_name] = np.zeros((height, width), bool)
            _fill(mask, polygon.rings, y, x)
        for name, mask in masks.items():
            down = np.add.reduceat(mask, np.arange(0, height, cell), axis=0, dtype=np.int64)
            sums = np.add.reduceat(down, np.arange(0, width, cell), axis=1)
            found[..., names.index(name)] = sums
        return found

    def _near(self, y: int, x: int, height: int, width: int) -> Iterator[Polygon]:
        boxes = self._boxes
        if not len(boxes):
            return
        near = (
            (boxes[:, 0] < x + width)
            & (boxes[:, 2] > x)
            & (boxes[:, 1] < y + height)
            & (boxes[:, 3] > y)
        )
        for number in np.flatnonzero(near):
            yield self._polygons[number]


def _box(rings: tuple[npt.NDArray[np.float64], ...]) -> tuple[float, float, float, float]:
    # Of all rings: one that lies outside of the first has an inside of its own.
    low = np.min([ring.min(0) for ring in rings], axis=0)
    high = np.max([ring.max(0) for ring in rings], axis=0)
    return float(low[0]), float(low[1]), float(high[0]), float(high[1])


def _fill(
    mask: npt.NDArray[np.bool_], rings: tuple[npt.NDArray[np.float64], ...], y: int, x: int
) -> None:
    """Set the pixels whose middles are inside: each edge turns all that is right of it over."""
    height, width = mask.shape
    starts = np.concatenate(rings)
    ends = np.concatenate([np.roll(ring, -1, axis=0) for ring in rings])
    # Downwards, whichever way a ring goes: regions with a common edge find it at the same places.
    up = starts[:, 1] > ends[:, 1]
    starts[up], ends[up] = ends[up], starts[up]
    # Rows whose middles are in [start, end) of an edge.
    first = np.ceil(starts[:, 1] - 0.5 - y).clip(0, height).astype(np.int64)
    last = np.ceil(ends[:, 1] - 0.5 - y).clip(0, height).astype(np.int64)
    live = np.flatnonzero(last > first)
    if not live.size:
        return
    starts, ends, first, rows = starts[live], ends[live], first[live], (last - first)[live]
    top, bottom = int(first.min()), int((first + rows).max())
    turned = np.zeros((bottom - top) * (width + 1), bool)
    done = np.cumsum(rows)
    at = 0
    while at < len(rows):  # so many crossings at once, whatever the number of edges
        before = int(done[at - 1]) if at else 0
        end = max(at + 1, int(np.searchsorted(done, before + _AT_ONCE, side="right")))
        count = rows[at:end]
        edge = np.repeat(np.arange(at, end), count)
        row = np.arange(len(edge)) - np.repeat(np.cumsum(count) - count, count) + first[edge]
        x0, y0, x1, y1 = starts[edge, 0], starts[edge, 1], ends[edge, 0], ends[edge, 1]
        crossing = x0 + (y + row + 0.5 - y0) / (y1 - y0) * (x1 - x0)
        # Middles are at half pixels: the first one that is not left of a crossing.
        column = np.ceil(crossing - 0.5 - x).clip(0, width).astype(np.int64)
        places = (row - top) * (width + 1) + column
        turned ^= (np.bincount(places, minlength=len(turned)) & 1).astype(bool)
        at = end
    lines = turned.reshape(bottom - top, width + 1)[:, :width]
    mask[top:bottom] |= np.logical_xor.accumulate(lines, axis=1)


def read_shapes(path: str | os.PathLike[str]) -> Shapes:
    """Read the regions of one slide.

    Args:
        path: A GeoJSON file, of up to 1 GiB.

    Raises:
        SourceError: It cannot be read, or is no GeoJSON; the text has the number of the feature.
    """
    name = os.fspath(path)
    try:
        if os.path.getsize(name) > _MOST_BYTES:
            raise SourceError(f"{name}: over 1 GiB; split it", path=name)
        raw = Path(name).read_bytes()
    except OSError as error:
        raise SourceError(f"{name}: cannot be read ({error.strerror})", path=name) from error
    polygons: list[Polygon] = []
    passed_over = 0
    for number, feature in enumerate(_features(raw, name)):
        where = f"{name}: feature {number}"
        found = _polygons_of(_decoded(feature, Any, where, name), where, name)
        polygons += found
        passed_over += not found
    return Shapes(polygons, passed_over=passed_over, fingerprint=xxhash.xxh3_128_hexdigest(raw))


def _decoded(raw: bytes | msgspec.Raw, kind: Any, where: str, path: str) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise SourceError(f"{where}: is no JSON ({error})", path=path) from error


def _features(raw: bytes, name: str) -> list[Any]:
    """Return the features, not decoded: as objects they take ten times the file."""
    start = raw[:64].lstrip()[:1]
    if start == b"[":
        return list(_decoded(raw, list[msgspec.Raw], name, name))
    if start != b"{":
        _decoded(raw, Any, name, name)
    else:
        top = _decoded(raw, dict[str, msgspec.Raw], name, name)
        kind = _decoded(top.get("type", b"null"), Any, name, name)
        features = top.get("features", b"null")
        if kind == "FeatureCollection" and bytes(memoryview(features)[:1]) == b"[":
            return list(_decoded(features, list[msgspec.Raw], name, name))
        if isinstance(kind, str) and kind != "FeatureCollection":
            return [raw]
    raise SourceError(f"{name}: is no GeoJSON: features or a geometry are expected", path=name)


def _polygons_of(feature: Any, where: str, path: str) -> list[Polygon]:
    """Return the regions of a feature; none for points and lines."""
    if not isinstance(feature, dict):
        raise SourceError(f"{where}: is no object", path=path)
    geometry = feature.get("geometry") if feature.get("type") == "Feature" else feature
    if geometry is None:
        return []
    if not isinstance(geometry, dict) or not isinstance(geometry.get("type"), str):
        raise SourceError(f"{where}: its geometry has no type", path=path)
    class_name = _class_of(feature.get("properties"), where, path)
    coordinates = geometry.get("coordinates")
    if geometry["type"] == "Polygon":
        parts: Any = [coordinates]
    elif geometry["type"] == "MultiPolygon":
        parts = coordinates
    elif geometry["type"] == "GeometryCollection":
        inner = geometry.get("geometries")
        if not isinstance(inner, list):
            raise SourceError(f"{where}: a GeometryCollection without geometries", path=path)
        deeper = [
            {"type": "Feature", "properties": feature.get("properties"), "geometry": each}
            for each in inner
            if not (isinstance(each, dict) and each.get("type") == "GeometryCollection")
        ]
        return [found for each in deeper for found in _polygons_of(each, where, path)]
    else:
        return []
    if not isinstance(parts, list):
        raise SourceError(f"{where}: its coordinates are no list", path=path)
    polygons = (_rings_of(part, where, path) for part in parts)
    return [Polygon(class_name, rings) for rings in polygons if rings]


def _class_of(properties: Any, where: str, path: str) -> str:
    if properties is None:
        return _DEFAULT
    if not isinstance(properties, dict):
        raise SourceError(f"{where}: its properties are no object", path=path)
    given = properties.get("classification")
    if isinstance(given, dict):
        given = given.get("name")
    for name in _NAMED:
        given = properties.get(name) if given is None else given
    if given is None:
        return _DEFAULT
    if isinstance(given, bool) or not isinstance(given, str | int) or not str(given).strip():
        raise SourceError(f"{where}: its class {given!r} is no name", path=path)
    return str(given).strip()


def _rings_of(part: Any, where: str, path: str) -> tuple[npt.NDArray[np.float64], ...]:
    """Return the rings of a polygon, without those of fewer than three corners."""
    if not isinstance(part, list) or not part:
        raise SourceError(f"{where}: a polygon without rings", path=path)
    rings = []
    for ring in part:
        try:
            points = np.asarray(ring)
        except (TypeError, ValueError) as error:
            raise SourceError(f"{where}: its coordinates are no numbers", path=path) from error
        if not points.size and isinstance(ring, list):
            continue
        # NumPy would take a word such as "7" and True for numbers, beside others.
        if (
            points.ndim != 2
            or points.shape[1] < 2
            or points.dtype.kind not in "iuf"
            or any(isinstance(number, bool) for point in ring for number in point)
        ):
            raise SourceError(f"{where}: its coordinates are no pairs of numbers", path=path)
        points = points.astype(np.float64)
        points = points[:, :2]
        if not np.isfinite(points).all() or np.abs(points).max() > _FAR:
            raise SourceError(f"{where}: its coordinates are no pixels of a slide", path=path)
        if len(points) > 1 and np.array_equal(points[0], points[-1]):
            points = points[:-1]
        if len(points) >= 3:
            rings.append(points)
        elif not rings:
            return ()  # what it would be a hole of has no inside
    return tuple(rings)
