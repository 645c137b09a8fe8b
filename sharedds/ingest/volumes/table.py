"""Cases as somebody wrote them down: a CSV file of case, image, label, group; a dataset.json."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharedds.errors import OptionError, SharedDSError, SourceError
from sharedds.handles import absolute_path
from sharedds.ingest.listing import in_order
from sharedds.ingest.volumes.cases import Case, Description, Entry, Layout, stem_of
from sharedds.text import printable

__all__ = ["Row", "cases_of_table", "load_description", "read_table"]

_COLUMNS = {"case", "image", "label", "group", "channel"}
_MARKS = (",", ";", "\t")
_LARGEST = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the CSV file."""

    line: int
    image: str
    case: str = ""
    label: str = ""
    group: str = ""
    channel: str = ""


def read_table(path: str) -> tuple[Row, ...]:
    """Read a CSV file with the column ``image`` and, if wanted, case, label, group, channel.

    Cells are separated by commas, semicolons or tabs; the first line tells. Empty rows are no rows.

    Raises:
        SourceError: It cannot be read, or lacks a column or an image.
        OptionError: It has a column that means nothing here.
    """
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            first = file.readline()
            file.seek(0)
            mark = max(_MARKS, key=first.count)  # of equal ones the comma
            reader = csv.DictReader(file, delimiter=mark)
            names = [(name or "").strip().lower() for name in reader.fieldnames or ()]
            if "image" not in names:
                raise SourceError(
                    f"{printable(path)}: the first line must name the column image, and may name "
                    f"case, label, group and channel; it has {', '.join(names) or 'nothing'}",
                    path=path,
                )
            unknown = sorted(set(names) - _COLUMNS)
            if unknown:
                raise OptionError(
                    f"{printable(path)}: the column {unknown[0]!r} is none of case, image, label, "
                    "group, channel; remove it",
                    path=path,
                )
            reader.fieldnames = names
            rows = tuple(
                _row(path, reader.line_num, values)
                for values in reader
                if any(cell.strip() for cell in values.values() if isinstance(cell, str))
            )
    except SharedDSError:
        raise
    except (OSError, csv.Error, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SourceError(f"{printable(path)}: cannot be read ({reason})", path=path) from error
    if not rows:
        raise SourceError(f"{printable(path)}: no rows in it", path=path)
    return rows


def _row(path: str, line: int, values: Mapping[str | Any, Any]) -> Row:
    cells = {name: str(values.get(name) or "").strip() for name in _COLUMNS}
    if None in values or not cells["image"]:
        what = "an image is expected" if not cells["image"] else "more cells than columns"
        raise SourceError(f"{printable(path)}, line {line}: {what}", path=path)
    return Row(line=line, **cells)


def cases_of_table(path: str, rows: Iterable[Row], root: str, entries: Iterable[Entry]) -> Layout:
    """Find what a CSV file names among the volumes of a folder.

    Several rows with one case are its channels, in the order of the rows.

    Args:
        path: The CSV file, for errors.
        rows: Of it.
        root: The folder, absolute: paths in the file are relative to it, or else to the folder of
            the CSV file.
        entries: Its volumes.

    Raises:
        OptionError: Rows contradict each other.
    """
    known = list(entries)
    places: dict[str, Entry] = {}
    for entry in known:
        for name in (entry.name, *entry.files, entry.path):
            places[name] = entry
    groups: dict[str, list[Row]] = {}
    for row in rows:
        image = _relative(row.image, root)
        group = groups.setdefault(row.case or stem_of(image), [])
        if group and not (row.case and group[0].case):
            raise OptionError(
                f"{printable(path)}, lines {group[0].line} and {row.line}: without a case both "
                f"are {printable(stem_of(image))!r}; name their cases",
                path=path,
            )
        group.append(row)
    cases: list[Case] = []
    used: set[str] = set()
    for name, group in groups.items():
        case = _case(path, name, group, root, places)
        used.update(entry.name for entry in case.entries)
        cases.append(case)
    return Layout(
        kind="cases of a CSV file",
        cases=tuple(sorted(cases, key=lambda case: in_order(case.name))),
        left_out=tuple((e, "not named in the labels file") for e in known if e.name not in used),
    )


def _case(path: str, name: str, rows: list[Row], root: str, places: Mapping[str, Entry]) -> Case:
    for column in ("label", "group"):
        values = {getattr(row, column) for row in rows} - {""}
        if len(values) > 1:
            lines = " and ".join(str(row.line) for row in rows[:2])
            raise OptionError(
                f"{printable(path)}, lines {lines}: the case {printable(name)!r} has two values "
                f"of {column}; give one",
                path=path,
            )
    missing = []

    def find(word: str) -> Entry | None:
        beside = os.path.join(os.path.dirname(absolute_path(path)), word)
        for place in (_relative(word, root), _relative(beside, root)):
            entry = places.get(place) or places.get(stem_of(place))
            if entry is not None:
                return entry
        missing.append(_relative(word, root))
        return None

    images = [find(row.image) for row in rows]
    label = next((row.label for row in rows if row.label), "")
    found = find(label) if label else None
    every = [*images, found]
    twice = next((e for at, e in enumerate(every) if e is not None and e in every[:at]), None)
    if twice is not None:
        raise OptionError(
            f"{printable(path)}, line {rows[-1].line}: the case {printable(name)!r} has "
            f"{printable(twice.path)} twice; an image, its channels and its label are files of "
            "their own",
            path=path,
        )
    channels = tuple(row.channel for row in rows)
    problem = ""
    if missing:
        problem = (
            f"the labels file names {printable(missing[0])}, which is no volume in there; paths "
            "are relative to the folder that is packed"
        )
    return Case(
        name=name,
        images=tuple(image for image in images if image is not None),
        channels=channels if all(channels) else (),
        label=found,
        group=next((row.group for row in rows if row.group), ""),
        problem=problem,
        missing=missing[0] if missing else "",
    )


def _relative(word: str, root: str) -> str:
    """Return a path as the scan writes it: relative to the folder, with ``/``."""
    text = word.replace("\\", "/") if "/" not in word else word
    if Path(text).is_absolute():
        text = absolute_path(text)
        text = text.removeprefix(root.rstrip("/") + "/")
    return str(Path(text)).removeprefix("./")


def load_description(path: str) -> Description:
    """Read the names of channels and classes from a ``dataset.json`` of nnU-Net or the Decathlon.

    Both ways round are known: ``{"0": "CT"}`` and ``{"liver": 1}``. Regions, which are made of
    several classes, have no number of their own and are left out.

    Raises:
        SourceError: It cannot be read.
        OptionError: It is not JSON of that kind.
    """
    try:
        with open(path, "rb") as file:
            content = json.loads(file.read(_LARGEST))
    except OSError as error:
        raise SourceError(
            f"{printable(path)}: cannot be read ({error.strerror})", path=path
        ) from error
    except (ValueError, RecursionError) as error:
        raise OptionError(
            f"{printable(path)} is not JSON ({error}); mend or remove it", path=path
        ) from error
    if not isinstance(content, dict):
        return Description()
    names = _numbered(content.get("channel_names") or content.get("modality"))
    listed = tuple(names[number] for number in range(len(names)) if number in names)
    return Description(
        channels=listed if len(listed) == len(names) else (),
        classes=_numbered(content.get("labels")),
    )


def _numbered(value: object) -> dict[int, str]:
    """Return names by number, whichever of the two is the key."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {}
    names = {}
    for key, item in value.items():
        first, second = str(key), item
        if isinstance(item, str) and first.isdecimal():
            names[int(first)] = item
        elif isinstance(second, int) and not isinstance(second, bool):
            names[second] = first
        elif isinstance(second, str) and second.isdecimal():
            names[int(second)] = first
    return dict(sorted(names.items()))
