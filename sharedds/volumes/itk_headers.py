"""The text headers of NRRD and MetaImage: where the voxels are, and whether they can be there."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sharedds.errors import DecodeError, SourceError
from sharedds.volumes.streams import MOST_INFLATED, head_of

__all__ = ["TextHeader", "read_text_header", "require_data"]

_LONGEST = 1 << 20
_SPACES = re.compile(r"(left|right)-(anterior|posterior)-superior(-time)?|(ra|la|lp)st?")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextHeader:
    """What the text of a header says beyond what ITK tells of it.

    Attributes:
        format: ``"NRRD"`` or ``"MetaImage"``.
        data: The files with the voxels; the header's own path where they follow it.
        offset: Where they begin in that file.
        packing: ``"raw"``, ``"gzip"``, ``"zlib"``, or ``"other"``, which is not checked before.
        placed: Whether the header says where the volume is.
        unplaced: Why not.
        spaced: Whether it says how far apart voxels are.
        moments: Whether its last axis is time.
        order: ``"<"`` or ``">"``.
        interleaved: Whether the components of a voxel lie side by side.
    """

    format: str
    data: tuple[Path, ...]
    offset: int
    packing: str
    placed: bool
    unplaced: str
    spaced: bool
    moments: bool
    order: Literal["<", ">"]
    interleaved: bool


def read_text_header(path: Path, head: bytes) -> TextHeader | None:
    """Return the header of an NRRD or MetaImage file, or None if it is neither.

    Raises:
        DecodeError: The header has no end.
        SourceError: A file with voxels is not there.
    """
    if re.match(rb"NRRD000\d\r?\n", head):
        return _nrrd(path)
    if re.match(rb"\s*\w+\s*=", head) and re.search(rb"(?m)^\s*NDims\s*=", head):
        return _meta(path)
    return None


def require_data(path: Path, text: TextHeader, nbytes: int) -> int:
    """Return the bytes of all files after a look at whether the voxels can be in them.

    Args:
        path: Of the header.
        text: The header.
        nbytes: Of the voxels.

    Raises:
        DecodeError: They cannot be.
        SourceError: A file cannot be read.
    """
    try:
        sizes = [other.stat().st_size for other in text.data]
        total = sum(sizes) + (0 if path in text.data else path.stat().st_size)
    except OSError as error:
        raise SourceError(
            f"{error.filename}: cannot be read ({error.strerror})", path=str(path)
        ) from error
    there = sum(sizes) - text.offset
    most = {"raw": there, "gzip": there * MOST_INFLATED, "zlib": there * MOST_INFLATED}
    if most.get(text.packing, nbytes) < nbytes:
        packed = "" if text.packing == "raw" else f", unpacked from {there} at best"
        raise DecodeError(
            f"{path}: is cut short: {text.offset + nbytes} bytes are expected from its header, "
            f"{text.offset + most[text.packing]} found{packed}; copy it anew",
            path=str(path),
        )
    return total


def _nrrd(path: Path) -> TextHeader:
    content = head_of(path, _LONGEST)
    end = re.search(rb"\r?\n\r?\n", content)
    if end is None and len(content) == _LONGEST:
        raise DecodeError(f"{path}: its header has no end", path=str(path))
    lines = os.fsdecode(content[: end.start() if end else len(content)]).splitlines()
    fields: dict[str, str] = {}
    listed: list[str] = []
    for line in lines[1:]:
        if "data file" in fields and fields["data file"].upper().startswith("LIST"):
            listed.append(line)
            continue
        name, found, value = line.partition(": ")
        if found and not line.startswith("#"):
            fields[name.strip().lower().replace("datafile", "data file")] = value.strip()
    detached = fields.get("data file")
    encoding = fields.get("encoding", "").lower()
    packing = {"raw": "raw", "gzip": "gzip", "gz": "gzip"}.get(encoding, "other")
    data: tuple[Path, ...]
    if detached is None:
        if end is None:
            raise DecodeError(f"{path}: is cut short: its header has no end", path=str(path))
        data, offset = (path,), end.end()
    else:
        data, offset = _files(path, detached, listed), 0
    skips = ("line skip", "lineskip", "byte skip", "byteskip")
    if any(fields.get(name, "0") not in ("0", "") for name in skips):
        packing = "other"
    kinds = fields.get("kinds", "").split()
    space = fields.get("space", "").lower()
    placed = bool(_SPACES.fullmatch(space)) and "space directions" in fields
    why = "its header names no space of a patient, or no directions in it"
    if space and not placed:
        why = f"its space {space!r} is none of a patient, or has no directions"
    return TextHeader(
        format="NRRD",
        data=data,
        offset=offset,
        packing=packing,
        placed=placed,
        unplaced=why,
        spaced="spacings" in fields or "space directions" in fields,
        moments=bool(kinds) and kinds[-1].lower() == "time",
        order=">" if fields.get("endian", "").lower() == "big" else "<",
        interleaved=bool(kinds) and kinds[0].lower() not in ("domain", "space", "time"),
    )


def _meta(path: Path) -> TextHeader:
    content = head_of(path, _LONGEST)
    names = set()  # ITK tells capital letters from small ones
    fields: dict[str, str] = {}
    at = 0
    for line in content.splitlines(keepends=True):
        name, found, value = os.fsdecode(line).partition("=")
        at += len(line)
        if found:
            names.add(name.strip())
            fields[name.strip().lower()] = value.strip()
            if name.strip().lower() == "elementdatafile":
                break
    target = fields.get("elementdatafile")
    if target is None:
        raise DecodeError(
            f"{path}: is cut short: its header does not say where the voxels are (ElementDataFile)",
            path=str(path),
        )
    local = target.upper() == "LOCAL"
    listed = os.fsdecode(content[at:]).splitlines() if not local else []
    data = (path,) if local else _files(path, target, listed)
    needed = ("NDims", "DimSize", "ElementType", "ElementDataFile")
    missing = [name for name in needed if name not in names]
    if missing:  # ITK would print that to the terminal
        raise DecodeError(
            f"{path}: its header is damaged: it has no {' and no '.join(missing)}", path=str(path)
        )
    swapped = fields.get("binarydatabyteordermsb", fields.get("elementbyteordermsb", "false"))
    packing = "raw"
    if fields.get("compresseddata", "").lower() in ("true", "1"):
        packing = "zlib" if len(data) == 1 else "other"
    if fields.get("binarydata", "true").lower() in ("false", "0"):
        packing = "other"
    if fields.get("headersize", "0") != "0":
        packing = "other"
    placing = {"transformmatrix", "rotation", "orientation", "offset", "position", "origin"}
    return TextHeader(
        format="MetaImage",
        data=data,
        offset=at if local else 0,
        packing=packing,
        placed=bool(placing & fields.keys()),
        unplaced="its header has neither Offset nor TransformMatrix",
        spaced="elementspacing" in fields or "elementsize" in fields,
        moments=False,
        order=">" if swapped.lower() in ("true", "1") else "<",
        interleaved=True,
    )


def _files(path: Path, target: str, listed: list[str]) -> tuple[Path, ...]:
    """Return the files with the voxels, all of them there.

    Args:
        path: Of the header.
        target: A name, a pattern with first, last and step, or the word LIST.
        listed: The names behind that word.
    """
    pattern = re.fullmatch(
        r"([^\s%]*%0?\d?d[^\s%]*)\s+(-?\d+)\s+(-?\d+)\s+(-?\d+)(\s+\d+)?", target
    )
    if target.upper().startswith("LIST"):
        names = [line.strip() for line in listed if line.strip()]
    elif pattern is not None:
        first, last, step = (int(pattern[n]) for n in (2, 3, 4))
        count = abs(last - first) // max(1, abs(step)) + 1
        if count > 1_000_000:
            raise DecodeError(f"{path}: names {count} files with voxels", path=str(path))
        names = [pattern[1] % (first + n * step) for n in range(count)]
    else:
        names = [target]
    files = tuple(path.parent / name for name in names)
    for file in files:
        try:
            there = file.is_file()
        except (OSError, ValueError):  # a folder that cannot be entered, or a name with a zero byte
            there = False
        if not there:
            raise SourceError(
                f"{path}: its voxels are in {file}, which is not there", path=str(path)
            )
    return files
