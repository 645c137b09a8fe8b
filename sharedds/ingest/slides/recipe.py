"""How slides are stored: what was asked for, checked, and what follows for one slide."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np

from sharedds.codecs import CHROMA, TILE_CODECS, tile_problem
from sharedds.errors import DecodeError, OptionError
from sharedds.ingest.options import shown, whole
from sharedds.ingest.slides.index import cell_of
from sharedds.slides.source import SlideHeader, SlideLevel
from sharedds.store import Field

__all__ = ["LevelPlan", "SlideCodec", "SlidePlan", "SlideRecipe"]

SlideCodec = Literal["auto", "keep", "jpeg", "png", "webp", "lz4", "zstd", "raw"]
_TILE = 16  # sides of tiles are multiples of it, as TIFF has them
_LARGEST = 4096
_MOST_LEVELS = 32
_ASSOCIATED = ("label", "macro", "thumbnail")


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelPlan:
    """One level as it will be stored.

    Attributes:
        shape: Pixels (y, x).
        downsample: Pixels of level 0 for each of its pixels.
        tile: Of its tiles, (y, x).
        source: The level of the file that it is; None where it is made of the level before.
        keeps: Whether its tiles are copied as they are.
        tables, colour: Of tiles that are copied.
    """

    shape: tuple[int, int]
    downsample: float
    tile: tuple[int, int]
    source: int | None
    keeps: bool = False
    tables: bytes = b""
    colour: str = ""

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tiles."""
        return -(-self.shape[0] // self.tile[0]), -(-self.shape[1] // self.tile[1])

    @property
    def tiles(self) -> int:
        """Number of tiles of one plane."""
        return self.grid[0] * self.grid[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidePlan:
    """A slide as it will be stored.

    Attributes:
        levels: Finest first.
        planes: Numbers of the planes of the file that are stored.
        has_planes: Whether planes are an axis of their own.
        cell: Side of a cell of the index, in pixels of level 0.
        codec: Of the tiles.
    """

    levels: tuple[LevelPlan, ...]
    planes: tuple[int, ...]
    has_planes: bool
    cell: int
    codec: str

    @property
    def tiles(self) -> int:
        """Tiles of all levels and planes."""
        return len(self.planes) * sum(level.tiles for level in self.levels)

    @property
    def indexed(self) -> int:
        """Number, among those stored, of the plane that tissue is looked for in."""
        return len(self.planes) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SlideRecipe:
    """What was asked for."""

    tile: int
    codec: SlideCodec
    quality: int
    chroma: str
    levels: int | Literal["auto"]
    plane: int | None
    associated: tuple[str, ...]
    max_pixels: int | None

    @classmethod
    def of(
        cls,
        *,
        tile: Any,
        codec: Any,
        quality: Any,
        chroma: Any,
        levels: Any,
        plane: Any,
        associated: Iterable[str],
        max_pixels: Any,
    ) -> SlideRecipe:
        """Check options.

        Raises:
            OptionError: One is out of range; the text names it.
        """
        side = whole("tile", tile, _TILE, _LARGEST)
        if side % _TILE:
            raise OptionError(f"tile={side}: sides of tiles are multiples of {_TILE}")
        if codec not in get_args(SlideCodec):
            raise OptionError(f"codec {shown(codec)}: one of {', '.join(get_args(SlideCodec))}")
        if chroma not in CHROMA:
            raise OptionError(f"chroma {shown(chroma)}: one of {', '.join(CHROMA)}")
        count = levels if levels == "auto" else whole("levels", levels, 1, _MOST_LEVELS)
        names = (associated,) if isinstance(associated, str) else tuple(associated)
        for name in names:
            if name not in _ASSOCIATED:
                raise OptionError(f"associated {shown(name)}: one of {', '.join(_ASSOCIATED)}")
        return cls(
            tile=side,
            codec=codec,
            quality=whole("quality", quality, 1, 100),
            chroma=chroma,
            levels=count,
            plane=whole("plane", plane, 0, optional=True),
            associated=tuple(sorted(set(names))),
            max_pixels=whole("max_pixels", max_pixels, 1, optional=True),
        )

    def to_json(self) -> dict[str, Any]:
        """Return what decides the content of a store."""
        return {**asdict(self), "associated": list(self.associated)}

    def codec_for(self, headers: Iterable[SlideHeader]) -> str:
        """Return the codec of all slides: of ``"auto"`` jpeg where it holds them all, else zstd."""
        if self.codec == "keep":
            return "jpeg"
        if self.codec != "auto":
            return self.codec
        fits = all(_problem("jpeg", header) is None for header in headers)
        return "jpeg" if fits else "zstd"

    def schema(self, codec: str, *, labelled: bool, channels: int) -> dict[str, str | Field]:
        """Return the fields of a store of slides.

        Args:
            codec: Of the tiles.
            labelled: Whether polygons were given.
            channels: Of the first slide; others may have others.
        """
        if codec in TILE_CODECS:
            image = Field(codec, quality=self.quality, chunk=(self.tile, self.tile, channels))
        else:
            image = Field(codec)
        fields: dict[str, str | Field] = {
            "image": image,
            "tissue": Field("lz4"),
            "mean": Field("lz4"),
            "sharpness": Field("lz4"),
        }
        if labelled:
            fields["label"] = Field("lz4")
        fields["size"] = "int64[2]"
        fields |= {f"associated_{name}": "png" for name in self.associated}
        return fields

    def plan(self, header: SlideHeader, codec: str) -> SlidePlan:
        """Return how a slide is stored.

        Raises:
            DecodeError: It cannot be: the codec does not hold it, there are no tiles to copy, or
                the plane is not there.
        """
        problem = _problem(codec, header) if codec in TILE_CODECS else None
        if problem is not None:
            raise DecodeError(
                f"{problem}; pack it with codec='zstd' (--codec zstd), which loses nothing"
            )
        if self.plane is not None and self.plane >= header.planes:
            raise DecodeError(f"has {header.planes} planes; plane {self.plane} is not among them")
        keeps = self.codec == "keep"
        levels = self._levels_of(header, keeps=keeps)
        planes = range(header.planes) if self.plane is None else (self.plane,)
        return SlidePlan(
            levels=tuple(levels),
            planes=tuple(planes),
            has_planes=len(planes) > 1,
            cell=cell_of(math.gcd(*levels[0].tile)),
            codec=codec,
        )

    def _levels_of(self, header: SlideHeader, *, keeps: bool) -> list[LevelPlan]:
        levels: list[LevelPlan] = []
        most = _MOST_LEVELS if self.levels == "auto" else self.levels
        for number, level in enumerate(header.levels[:most]):
            tile = (self.tile, self.tile)
            if keeps:
                if not _can_be_kept(level) or (levels and level.tile != levels[0].tile):
                    break
                tile = level.tile or tile
            kept = {"tables": level.tables, "colour": _colour(level)} if keeps else {}
            levels.append(
                LevelPlan(
                    shape=level.shape,
                    downsample=level.downsample,
                    tile=tile,
                    source=number,
                    keeps=keeps,
                    **kept,  # type: ignore[arg-type]
                )
            )
        if not levels:
            raise DecodeError(
                "has no JPEG tiles that could be copied; pack it with codec='jpeg' or 'zstd' "
                "(--codec)"
            )
        while len(levels) < most:
            last = levels[-1]
            if self.levels == "auto" and max(last.shape) <= 2 * max(last.tile):
                break
            if max(last.shape) == 1:
                break
            shape = -(-last.shape[0] // 2), -(-last.shape[1] // 2)
            step = 2 * last.downsample
            levels.append(LevelPlan(shape=shape, downsample=step, tile=last.tile, source=None))
        return levels


def _can_be_kept(level: SlideLevel) -> bool:
    return (
        level.stream == "jpeg"
        and level.tile is not None
        and not any(side % _TILE for side in level.tile)
    )


def _colour(level: SlideLevel) -> str:
    return "" if level.colour == "as it says" else level.colour


def _problem(codec: str, header: SlideHeader) -> str | None:
    """Return why a codec does not hold the tiles of a slide."""
    return tile_problem(codec, np.dtype(header.dtype), (_TILE, _TILE, header.channels))
