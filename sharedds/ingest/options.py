"""Options as people write them in Python: each is checked by its type, and named when it is off."""

from __future__ import annotations

import operator
import os
import re
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, overload

from sharedds.errors import OptionError
from sharedds.handles import absolute_path

__all__ = ["PathLike", "color", "pair", "path_list", "path_of", "share", "shown", "whole"]

PathLike: TypeAlias = str | os.PathLike[str]

_SHOWN = 4
_COLORS = {"white": (255, 255, 255), "black": (0, 0, 0), "grey": (128, 128, 128)}


def shown(value: object) -> str:
    """Return a value for a message: short, and only its type where it is an object of some kind."""
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(shown, value[:_SHOWN])) + ", ..." * (len(value) > _SHOWN)
        if isinstance(value, list):
            return f"[{inside}]"
        return f"({inside}{',' if len(value) == 1 else ''})"
    plain = (str, bytes, int, float, type(None), os.PathLike)
    return reprlib.repr(value) if isinstance(value, plain) else f"a {type(value).__name__}"


@overload
def whole(name: str, value: Any, low: int, high: int | None = None) -> int: ...
@overload
def whole(
    name: str, value: Any, low: int | None, high: int | None = None, *, optional: bool
) -> int | None: ...
def whole(
    name: str,
    value: Any,
    low: int | None,
    high: int | None = None,
    *,
    optional: bool = False,
) -> int | None:
    """Return a whole number (of NumPy's too) within its limits; None only where it is optional.

    Raises:
        OptionError: It is something else.
    """
    if value is None and optional:
        return None
    limits = "" if low is None else f" from {low} on" if high is None else f" in {low}..{high:,}"
    number = None
    if not isinstance(value, bool):
        try:
            number = operator.index(value)
        except TypeError:
            number = None
    if number is None or (low is not None and number < low) or (high is not None and number > high):
        none = ", or None" if optional else ""
        raise OptionError(f"{name} {shown(value)}: a whole number{limits}{none}")
    return number


def share(name: str, value: Any) -> float:
    """Return a number from 0 to 1.

    Raises:
        OptionError: It is something else.
    """
    number = -1.0
    if not isinstance(value, (bool, str, bytes)):
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = -1.0
    if not 0 <= number <= 1:
        raise OptionError(f"{name} {shown(value)}: a number from 0 to 1")
    return number


def pair(name: str, value: Any) -> tuple[int, int]:
    """Return (height, width).

    Raises:
        OptionError: It is something else, or a side is not from 1 to 65,535.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise OptionError(f"{name} {shown(value)}: (height, width) is expected, such as (256, 256)")
    sides = tuple(value)
    if len(sides) != 2:
        raise OptionError(f"{name} {shown(sides)}: (height, width) is expected, such as (256, 256)")
    return whole(name, sides[0], 1, 65_535), whole(name, sides[1], 1, 65_535)


def color(value: Any) -> tuple[int, int, int]:
    """Return red, green and blue of a name, of hexadecimal such as ``ff8800``, or of three numbers.

    Raises:
        OptionError: It is something else.
    """
    if isinstance(value, str):
        named = _COLORS.get(value)
        if named is not None:
            return named
        if re.fullmatch(r"#?[0-9a-fA-F]{6}", value):
            red, green, blue = bytes.fromhex(value[-6:])
            return red, green, blue
    elif isinstance(value, Iterable) and not isinstance(value, bytes):
        levels = tuple(value)
        if len(levels) == 3:
            red, green, blue = (whole("background", level, 0, 255) for level in levels)
            return red, green, blue
    raise OptionError(
        f"background {shown(value)}: white, black, grey, hexadecimal such as ff8800, or (red, "
        "green, blue) from 0 to 255"
    )


def path_of(name: str, value: Any) -> str:
    """Return an absolute path.

    Raises:
        OptionError: The value is no path.
    """
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        raise OptionError(f"{name} {shown(value)}: a path is expected")
    return absolute_path(value)


def path_list(name: str, value: Any) -> tuple[str, ...]:
    """Return absolute paths of one path or of several.

    Raises:
        OptionError: There is something else among them.
    """
    if isinstance(value, (str, os.PathLike)):
        return (path_of(name, value),)
    if not isinstance(value, Iterable) or isinstance(value, (bytes, Mapping)):
        raise OptionError(f"{name} {shown(value)}: a path or a list of paths is expected")
    return tuple(path_of(name, item) for item in value)
