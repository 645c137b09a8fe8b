"""Aperio's SVS: a TIFF whose pages say in their descriptions what they are."""

from __future__ import annotations

import re

from sharedds.slides.pixel_size import from_length
from sharedds.slides.tiff_directory import Directory
from sharedds.slides.tiff_page import TiffPage
from sharedds.slides.tiff_pyramid import Pages, Plan, is_smaller, stated_size

__all__ = ["aperio_plan", "is_aperio"]

_DESCRIPTION = 270
_NAMED = re.compile(r"\b(label|macro)\b", re.IGNORECASE)


def is_aperio(description: str) -> bool:
    """Return whether the first page of a file with this description is Aperio's."""
    return description.startswith("Aperio")


def aperio_plan(pages: Pages) -> Plan | None:
    """Return what an SVS file holds; None where libvips has to read it.

    The first page is level 0, and tiled pages of its proportions are the others. Pages in strips,
    and those that call themselves so, are the thumbnail, the label and the macro picture.

    Raises:
        DecodeError: The first page is damaged.
    """
    first, *others = pages.directories
    base = pages.slide(first)
    if base is None:
        return None
    remarks: list[str] = []
    levels, shapes = [base], {base.shape}
    associated: dict[str, TiffPage] = {}
    for one in others:
        page = pages.tried(one, remarks)
        if page is None:
            continue
        named = _NAMED.search(one.text(_DESCRIPTION).partition("|")[0])
        name = named[1].lower() if named else None if page.tiled else "thumbnail"
        if name is not None and name not in associated:
            associated[name] = page
        elif name is None and is_smaller(page, base) and page.shape not in shapes:
            levels.append(page)
            shapes.add(page.shape)
        else:
            remarks.append(
                f"left out: page {page.number} of {page.width} x {page.height} pixels, which is "
                "neither a level of the slide nor a picture with a name of its own"
            )
    said = _values(first.text(_DESCRIPTION))
    return Plan(
        format="Aperio",
        levels=tuple(
            ((page,),) for page in sorted(levels, key=lambda page: -page.width * page.height)
        ),
        associated=associated,
        mpp=_mpp(said, first, remarks),
        magnification=_number(said.get("AppMag")),
        remarks=tuple(remarks),
    )


def _values(description: str) -> dict[str, str]:
    """Return what follows the first bar: ``|name = value|name = value``."""
    found = {}
    for part in description.split("|")[1:]:
        name, equals, value = part.partition("=")
        if equals:
            found[name.strip()] = value.strip()
    return found


def _mpp(said: dict[str, str], first: Directory, remarks: list[str]) -> tuple[float, float] | None:
    value = _number(said.get("MPP"))
    size = None if value is None else from_length(value, "µm")
    if size is not None:
        return size, size
    if "MPP" in said:
        remarks.append("its description has an MPP that is no size of pixels: it is not used")
    return stated_size(first)


def _number(text: str | None) -> float | None:
    try:
        value = float((text or "").replace(",", "."))
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None
