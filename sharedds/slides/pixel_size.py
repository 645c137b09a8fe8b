"""How large a pixel is, in micrometres, as files put it."""

from __future__ import annotations

import math
import unicodedata

__all__ = ["from_density", "from_length", "is_plausible", "odd_size"]

_INCH, _CENTIMETRE = 25_400.0, 10_000.0
_LEAST, _MOST = (
    0.01,
    100.0,
)  # of a microscope, in micrometres; a sensor's finest and a lens's widest

_METRES = {"Y": 24, "Z": 21, "E": 18, "P": 15, "T": 12, "G": 9, "M": 6, "k": 3, "h": 2, "da": 1,
           "": 0, "d": -1, "c": -2, "m": -3, "μ": -6, "u": -6, "n": -9, "p": -12,
           "f": -15, "a": -18, "z": -21, "y": -24}  # fmt: skip
_OTHERS = {"\u00c5": 1e-4, "thou": 25.4, "in": _INCH, "inch": _INCH, "li": _INCH / 12,
           "pt": _INCH / 72, "ft": 12 * _INCH, "yd": 36 * _INCH, "mi": 63_360 * _INCH,
           "micron": 1.0, "microns": 1.0, "micrometer": 1.0, "micrometre": 1.0}  # fmt: skip
_UNITS = {**{prefix + "m": 10.0 ** (power + 6) for prefix, power in _METRES.items()}, **_OTHERS}


def from_length(value: float, unit: str) -> float | None:
    """Return a length in micrometres; None for a unit that is no length, or no usable number."""
    # Micro and angstrom have two characters each: one of them is normal.
    factor = _UNITS.get(unicodedata.normalize("NFKC", unit).strip())
    return _usable(value * factor) if factor else None


def from_density(pixels: float, unit: int) -> float | None:
    """Return micrometres for each pixel, from pixels for each unit of TIFF.

    Args:
        pixels: XResolution or YResolution.
        unit: ResolutionUnit: 2 is an inch, 3 a centimetre, 1 (or another) nothing.
    """
    length = {2: _INCH, 3: _CENTIMETRE}.get(unit)
    return _usable(length / pixels) if length and pixels > 0 else None


def is_plausible(mpp: tuple[float, float]) -> bool:
    """Return whether a microscope can have made pixels of this size."""
    return all(_LEAST <= side <= _MOST for side in mpp)


def odd_size(mpp: tuple[float, float]) -> str | None:
    """Return what is odd about a size of pixels (y, x), as a sentence; None where nothing is."""
    y, x = mpp
    if not is_plausible(mpp):
        return (
            f"its pixels measure {x:.5g} x {y:.5g} micrometres as the file says, which is "
            "implausible for a microscope: it may be the setting of a printer or a screen"
        )
    if max(y, x) > 1.05 * min(y, x):
        return f"its pixels are not square: {x:.5g} x {y:.5g} micrometres"
    return None


def _usable(size: float) -> float | None:
    return size if math.isfinite(size) and size > 0 else None
