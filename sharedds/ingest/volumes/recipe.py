"""How volumes are stored, and what happens to one case on its way into a store."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
import xxhash

from sharedds.errors import OptionError
from sharedds.ingest.options import shown, whole
from sharedds.ingest.volumes.series import DicomRules
from sharedds.packed import encode_text
from sharedds.store.blocking import block_shape
from sharedds.store.schema import Field

__all__ = ["Codecs", "Prefer", "VolumeCodec", "VolumeRecipe"]

VolumeCodec = Literal["auto", "raw", "blosc", "zstd", "lz4"]
Prefer = Literal["sform", "qform", "refuse"]

_TAG = re.compile(r"[A-Za-z][A-Za-z0-9]{0,63}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Codecs:
    """How the blocks of a store are coded: one way for a field.

    Attributes:
        image, label: ``"raw"``, ``"blosc"``, ``"zstd"`` or ``"lz4"``.
        image_shuffle, label_shuffle: See :class:`sharedds.store.Field`.
    """

    image: str
    label: str
    image_shuffle: bool | None = None
    label_shuffle: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeRecipe:
    """How volumes are stored; see :func:`sharedds.ingest.pack_volumes` for each option.

    Raises:
        OptionError: A value that is not allowed.
    """

    patch: tuple[int, int, int] | None = None
    spacing: tuple[float, float, float] | None = None
    orientation: str | None = None
    crop_foreground: bool | float = False
    dtype: str | None = None
    codec: VolumeCodec = "auto"
    allow_gaps: bool = False
    allow_single: bool = False
    invert: bool = False
    keep_tags: tuple[str, ...] = ()
    anonymous: bool = False
    prefer: Prefer = "sform"
    resample_labels: bool = False

    @classmethod
    def of(cls, **options: Any) -> VolumeRecipe:
        """Make a recipe of options as people write them.

        Raises:
            OptionError: A value that is not allowed.
        """
        options["patch"] = _patch(options.get("patch"))
        options["spacing"] = _spacing(options.get("spacing"))
        options["orientation"] = _orientation(options.get("orientation"))
        options["crop_foreground"] = _threshold(options.get("crop_foreground", False))
        options["dtype"] = _dtype(options.get("dtype"))
        options["keep_tags"] = _tags(options.get("keep_tags", ()))
        for name, allowed in (("codec", VolumeCodec), ("prefer", Prefer)):
            value = options.get(name, get_args(allowed)[0])
            if value not in get_args(allowed):
                raise OptionError(f"{name} {shown(value)}: one of {', '.join(get_args(allowed))}")
        return cls(**options)

    @property
    def dicom(self) -> DicomRules:
        """What is taken for a volume of DICOM files."""
        return DicomRules(
            allow_gaps=self.allow_gaps,
            allow_single=self.allow_single,
            invert=self.invert,
            keep_tags=self.keep_tags,
        )

    @property
    def threshold(self) -> float | None:
        """Measured value above which a voxel is foreground; None for above the lowest there is."""
        return None if isinstance(self.crop_foreground, bool) else float(self.crop_foreground)

    def to_json(self) -> dict[str, Any]:
        """Return all options, as they are kept in the header of a store."""
        values = asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    def key(self, name: str) -> str:
        """Return the key of a case: its name, or what only somebody who has the name can make."""
        if not self.anonymous:
            return name
        return f"case-{xxhash.xxh3_64_hexdigest(encode_text(name))}"

    def schema(self, codecs: Codecs, *, labels: bool, groups: bool) -> dict[str, str | Field]:
        """Return the fields of a store."""
        fields: dict[str, str | Field] = {
            "image": Field(codecs.image, shuffle=codecs.image_shuffle)
        }
        if labels:
            fields["label"] = Field(codecs.label, shuffle=codecs.label_shuffle)
            fields["label_blocks"] = "array:int64"
        fields["shape"] = "int64[4]"
        if groups:
            fields["group"] = "str"
        return fields

    def chunk(
        self, shape: Sequence[int], itemsize: int, spacing: Sequence[float] | None
    ) -> tuple[int, int, int]:
        """Return the shape of the blocks of a volume of this shape along (i, j, k)."""
        sides = block_shape(
            tuple(shape),
            itemsize,
            patch=self.patch,
            spacing=None if spacing is None else tuple(spacing),
        )
        return sides[0], sides[1], sides[2]


def _numbers(name: str, value: Any, example: str) -> tuple[Any, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise OptionError(f"{name} {shown(value)}: three numbers are expected, such as {example}")
    sides = tuple(value)
    if len(sides) != 3:
        raise OptionError(f"{name} {shown(sides)}: three numbers are expected, such as {example}")
    return sides


def _patch(value: Any) -> tuple[int, int, int] | None:
    if value is None:
        return None
    i, j, k = (whole("patch", side, 1, 65_535) for side in _numbers("patch", value, "(96, 96, 96)"))
    return i, j, k


def _spacing(value: Any) -> tuple[float, float, float] | None:
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = (value, value, value)
    sides = []
    for side in _numbers("spacing", value, "(1, 1, 2.5)"):
        try:
            number = float(side)
        except (TypeError, ValueError):
            number = -1.0
        if not 0 < number < 1e4:
            raise OptionError(f"spacing {shown(side)}: millimetres above 0 are expected")
        sides.append(number)
    return sides[0], sides[1], sides[2]


def _orientation(value: Any) -> str | None:
    if value is None:
        return None
    letters = value.upper() if isinstance(value, str) else ""
    pairs = {"R": 0, "L": 0, "A": 1, "P": 1, "S": 2, "I": 2}
    if sorted(pairs.get(letter, 3) for letter in letters) != [0, 1, 2]:
        raise OptionError(
            f"orientation {shown(value)}: three letters, one each of R or L, A or P, S or I, such "
            "as RAS"
        )
    return letters


def _threshold(value: Any) -> bool | float:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    if not np.isfinite(number):
        raise OptionError(
            f"crop_foreground {shown(value)}: True, False, or the measured value above which a "
            "voxel counts, such as -500"
        )
    return number


def _dtype(value: Any) -> str | None:
    if value is None:
        return None
    try:
        dtype = np.dtype(value)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        raise OptionError(f"dtype {shown(value)}: an integer or float such as int16 or float32")
    return str(dtype.name)


def _tags(value: Any) -> tuple[str, ...]:
    words = (value,) if isinstance(value, str) else value
    if not isinstance(words, Iterable):
        raise OptionError(f"keep_tags {shown(value)}: a list of DICOM keywords is expected")
    tags = tuple(words)
    for tag in tags:
        if not isinstance(tag, str) or not _TAG.match(tag):
            raise OptionError(
                f"keep_tags {shown(tag)}: a DICOM keyword is expected, such as KVP or "
                "ConvolutionKernel"
            )
    return tags
