"""OME-TIFF: an XML description says which page is which plane and channel; levels lie below them.

Elements are found by their names without namespaces, which differ from version to version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from sharedds.slides.pixel_size import from_length
from sharedds.slides.tiff_directory import Directory
from sharedds.slides.tiff_page import TiffPage
from sharedds.slides.tiff_pyramid import Pages, Plan, is_smaller, stated_size

__all__ = ["is_ome", "ome_plan"]

_DESCRIPTION = 270
_ASSOCIATED = re.compile(r"\b(label|macro|thumbnail)\b", re.IGNORECASE)
_MAX_PLANES = 65_536


def is_ome(description: str) -> bool:
    """Return whether the first page of a file with this description is OME's."""
    return "<OME" in description[:4096] and description.rstrip()[-4:] == "OME>"


@dataclass(frozen=True, slots=True)
class _Picture:
    """One Image element; ``pixels`` is the Pixels element in it."""

    name: str
    image: ET.Element
    pixels: ET.Element

    def size(self, axis: str) -> int:
        return _whole(self.pixels.get(f"Size{axis}"), 1)

    @property
    def area(self) -> int:
        return self.size("X") * self.size("Y")

    def channels(self) -> list[ET.Element]:
        return list(_of(self.pixels, "Channel"))


def ome_plan(pages: Pages) -> Plan | None:
    """Return what an OME-TIFF holds; None where libvips has to read it.

    The slide is the largest picture that is not called label, macro or thumbnail. Its focus stack
    becomes planes and its channels channels, whatever order they are stored in; SubIFDs are levels.

    Raises:
        DecodeError: The XML is damaged or does not fit the pages, planes are in other files, or it
            is a series in time.
    """
    root = _parsed(pages)
    pictures = list(_pictures(root))
    if not pictures:
        raise pages.refused("is an OME-TIFF whose description has no picture")
    main = max(
        (one for one in pictures if not _ASSOCIATED.search(one.name)),
        key=lambda one: one.area,
        default=pictures[0],
    )
    if main.size("T") > 1:
        raise pages.refused(
            f"is a series of {main.size('T')} time points; a slide has one: give each time point a "
            "file of its own"
        )
    remarks: list[str] = []
    starts = _placed(pages, main, pictures, root.get("UUID"))
    levels: list[list[tuple[TiffPage, ...]]] = []
    for plane in starts:
        stacks = [_stack(pages, directory, remarks) for directory in plane]
        if any(stack is None for stack in stacks):
            return None
        whole = [stack for stack in stacks if stack is not None]
        depth = min(len(stack) for stack in whole)
        levels.append([tuple(stack[level] for stack in whole) for level in range(depth)])
    depth = min(len(plane) for plane in levels)
    joined = tuple(tuple(plane[level] for plane in levels) for level in range(depth))
    usable = tuple(level for level in joined if _is_uniform(level))
    if not usable or usable[0] is not joined[0]:
        raise pages.refused("is an OME-TIFF whose planes differ in size or in kind of numbers")
    if len(usable) < len(joined):
        remarks.append("left out: levels whose planes or channels differ in size")
    _require_described(pages, main, usable[0])
    return Plan(
        format="OME-TIFF",
        levels=usable,
        associated=_others(pages, main, pictures, remarks),
        mpp=_mpp(main, starts[0][0], remarks),
        magnification=_magnification(root, main),
        channel_names=_names(main, sum(page.channels for page in usable[0][0])),
        remarks=tuple(dict.fromkeys(remarks)),
    )


def _parsed(pages: Pages) -> ET.Element:
    text = pages.directories[0].text(_DESCRIPTION)
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise pages.refused("is an OME-TIFF whose description defines entities: it is not read")
    try:
        # Without entities of its own, a text unfolds to no more than it is.
        return ET.fromstring(text.strip().encode())  # noqa: S314
    except (ET.ParseError, ValueError) as error:
        raise pages.refused(f"is an OME-TIFF whose description is damaged ({error})") from error


def _of(element: ET.Element, name: str) -> Iterator[ET.Element]:
    return (one for one in element if one.tag.rpartition("}")[2] == name)


def _pictures(root: ET.Element) -> Iterator[_Picture]:
    for image in _of(root, "Image"):
        for pixels in _of(image, "Pixels"):
            yield _Picture(image.get("Name") or "", image, pixels)


def _whole(text: str | None, default: int) -> int:
    try:
        return int(text) if text is not None else default
    except ValueError:
        return default


def _samples(picture: _Picture) -> int:
    """Return how many channels lie in one page."""
    channels = picture.channels()
    return max(1, _whole(channels[0].get("SamplesPerPixel"), 1)) if channels else 1


def _placed(
    pages: Pages, picture: _Picture, pictures: list[_Picture], own: str | None
) -> list[list[Directory]]:
    """Return the page of each plane and channel."""
    planes, channels, times = picture.size("Z"), picture.size("C"), picture.size("T")
    if min(planes, channels) < 1 or planes * channels > _MAX_PLANES:
        raise pages.refused(f"is an OME-TIFF of {planes} planes and {channels} channels")
    each = _samples(picture)
    if each == 1 and len(picture.channels()) <= 1 and channels > 1:
        each = channels if pages.directories[0].number(277, 1) == channels else 1
    groups = -(-channels // each)
    order = [axis for axis in picture.pixels.get("DimensionOrder", "XYZCT")[2:] if axis in "ZCT"]
    sizes = {"Z": planes, "C": groups, "T": times}
    found: dict[tuple[int, int], int] = {}
    blocks = list(_of(picture.pixels, "TiffData"))
    if not blocks:
        blocks = [ET.Element("TiffData", {"IFD": str(_before(pictures, picture))})]
        blocks[0].set("PlaneCount", str(planes * groups * times))
    left = planes * groups * times  # each page is named once, however many blocks there are
    for block in blocks:
        _require_here(pages, block, own)
        first = _whole(block.get("IFD"), 0)
        default = 1 if block.get("IFD") is not None else planes * groups * times
        at = {"Z": _whole(block.get("FirstZ"), 0), "T": _whole(block.get("FirstT"), 0)}
        at["C"] = _whole(block.get("FirstC"), 0) // each
        count = max(0, min(_whole(block.get("PlaneCount"), default), left))
        left -= count
        for number in range(first, first + count):
            found.setdefault((at["Z"], at["C"]), number)
            for axis in order:
                at[axis] += 1
                if at[axis] < sizes[axis]:
                    break
                at[axis] = 0
    missing = [
        (z, c) for z in range(planes) for c in range(groups)
        if not 0 <= found.get((z, c), -1) < len(pages.directories)
    ]  # fmt: skip
    if missing:
        raise pages.refused(
            f"is an OME-TIFF of {planes} planes and {groups} pages for each; {len(missing)} of "
            f"them are not in the file, which has {len(pages.directories)} pages"
        )
    return [[pages.directories[found[z, c]] for c in range(groups)] for z in range(planes)]


def _before(pictures: list[_Picture], picture: _Picture) -> int:
    """Return how many pages come before those of a picture, where nothing says it."""
    count = 0
    for one in pictures:
        if one is picture:
            break
        count += one.size("Z") * one.size("T") * -(-one.size("C") // _samples(one))
    return count


def _require_here(pages: Pages, block: ET.Element, own: str | None) -> None:
    name = pages.path.rpartition("/")[2]
    for uuid in _of(block, "UUID"):
        other = uuid.get("FileName")
        # A renamed file is known by its own number, which stands at the top.
        known = own is not None and (uuid.text or "").strip() == own
        if other and other != name and not known:
            raise pages.refused(
                f"has planes in another file ({other}); join them into one OME-TIFF first"
            )


def _stack(pages: Pages, directory: Directory, remarks: list[str]) -> list[TiffPage] | None:
    """Return a page and its levels, finest first; None where libvips has to read it."""
    base = pages.read(directory)
    if base is None:
        return None
    found = [base]
    for one in directory.below:
        page = pages.tried(one, remarks)
        if page is None:
            continue
        if is_smaller(page, base):
            found.append(page)
        else:
            remarks.append(
                f"left out: a picture of {page.width} x {page.height} pixels below a page, which "
                "is no smaller version of it"
            )
    return sorted(found, key=lambda page: -page.width * page.height)


def _is_uniform(level: tuple[tuple[TiffPage, ...], ...]) -> bool:
    """Return whether all planes and channels of a level have one size and one kind of numbers."""
    kinds = {(page.shape, page.dtype) for plane in level for page in plane}
    return len(kinds) == 1 and len({tuple(page.channels for page in plane) for plane in level}) == 1


def _require_described(
    pages: Pages, picture: _Picture, level: tuple[tuple[TiffPage, ...], ...]
) -> None:
    page = level[0][0]
    if (picture.size("X"), picture.size("Y")) != (page.width, page.height):
        raise pages.refused(
            f"is an OME-TIFF whose description says {picture.size('X')} x {picture.size('Y')} "
            f"pixels, its page has {page.width} x {page.height}"
        )


def _others(
    pages: Pages, main: _Picture, pictures: list[_Picture], remarks: list[str]
) -> dict[str, TiffPage]:
    """Return the pictures that are called label, macro or thumbnail."""
    found: dict[str, TiffPage] = {}
    for one in pictures:
        if one is main:
            continue
        named = _ASSOCIATED.search(one.name)
        if named is None:
            remarks.append(
                f"left out: another picture of {one.size('X')} x {one.size('Y')} pixels; the "
                "largest one is the slide"
            )
            continue
        blocks = list(_of(one.pixels, "TiffData"))
        number = _whole(blocks[0].get("IFD"), 0) if blocks else _before(pictures, one)
        if 0 <= number < len(pages.directories):
            page = pages.tried(pages.directories[number], remarks)
            if page is not None:
                found.setdefault(named[1].lower(), page)
    return found


def _mpp(picture: _Picture, first: Directory, remarks: list[str]) -> tuple[float, float] | None:
    sides = []
    for axis in "YX":
        text = picture.pixels.get(f"PhysicalSize{axis}")
        unit = picture.pixels.get(f"PhysicalSize{axis}Unit", "µm")
        if text is None:
            return stated_size(first)
        try:
            side = from_length(float(text), unit)
        except ValueError:
            side = None
        if side is None:
            remarks.append(f"its pixels measure {text[:20]} {unit[:20]}, which is no known length")
            return None
        sides.append(side)
    return sides[0], sides[1]


def _magnification(root: ET.Element, picture: _Picture) -> float | None:
    wanted = {one.get("ID") for one in _of(picture.image, "ObjectiveSettings")}
    for instrument in _of(root, "Instrument"):
        for objective in _of(instrument, "Objective"):
            if objective.get("ID") in wanted:
                try:
                    value = float(objective.get("NominalMagnification", ""))
                except ValueError:
                    return None
                return value if 0 < value < float("inf") else None
    return None


def _names(picture: _Picture, channels: int) -> tuple[str, ...]:
    names = tuple(one.get("Name") or "" for one in picture.channels())
    return names if len(names) == channels and all(names) else ()
