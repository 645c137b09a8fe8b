"""What is in a store at a glance: one PNG with some of its volumes or pictures."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from sharedds.codecs import decode
from sharedds.errors import (
    ImageTooLargeError,
    OptionError,
    SampleKeyError,
    SharedDSError,
    SourceError,
    StoreExistsError,
)
from sharedds.handles import absolute_path, storage_errors
from sharedds.ingest.exports.panels import Panel, colour_of, to_grey
from sharedds.ingest.exports.slide_panels import holds_slides, slide_panel
from sharedds.ingest.exports.volume_panels import volume_panel
from sharedds.ingest.exports.volumes import holds_volumes
from sharedds.store import Store
from sharedds.text import printable

__all__ = ["PreviewReport", "preview"]

_VOLUMES, _SLIDES, _PICTURES = 12, 8, 24
_COLUMNS_OF_PICTURES = 6
_SIDE_OF_PICTURE = 160
_PAD, _LINE = 10, 16
_BACK, _TEXT, _FAINT = (26, 26, 28), (236, 236, 236), (168, 168, 172)
_MOST_CLASSES = 24
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewReport:
    """What a preview shows.

    Attributes:
        path: The PNG.
        shown: How many samples are in it.
        samples: How many the store has.
        width, height: Of the PNG, in pixels.
    """

    path: str
    shown: int
    samples: int
    width: int
    height: int

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def preview(
    store: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    count: int | None = None,
    key: str | None = None,
) -> PreviewReport:
    """Draw samples from all over a store into one PNG.

    Of volumes three slices each, in radiological orientation and true proportions, with the
    outlines of the labels; of slides the whole at a glance, beside it with tissue and patches; of
    pictures a sheet of thumbnails with their classes.

    Args:
        store: The store.
        path: The PNG to write; one that is there is replaced.
        count: How many samples to show; by default up to 12 volumes, 8 slides or 24 pictures.
        key: Show this sample alone.

    Raises:
        OptionError: The name does not end in .png, there is nothing to show, or count is below 1.
        StoreExistsError: Something else than a PNG is there.
        SourceError: It cannot be written there.
        StorageFullError: No room.
        StoreFormatError: A volume or its affine is damaged.
        CorruptDataError: What is shown fails its checksum.
    """
    source = Store(store)
    target = absolute_path(path)
    _require_place(target)
    if count is not None and count < 1:
        raise OptionError(f"count={count!r}: show at least one sample")
    if not len(source):
        raise OptionError(f"{source.path}: no samples in it to show", path=source.path)
    volumes, slides = holds_volumes(source), holds_slides(source)
    most = _VOLUMES if volumes else _SLIDES if slides else _PICTURES
    numbers = [source.index_of(key)] if key is not None else _spread(len(source), count or most)
    of = "" if len(numbers) == len(source) else f" of {len(source):,}"
    many = "s" * (len(source) > 1)
    name = printable(os.path.basename(source.path))
    if volumes:
        columns = 1 if len(numbers) <= 3 else 2
        panels = [volume_panel(source, n, 320 if columns == 1 else 216) for n in numbers]
        view = "Radiological view: the patient's right is on the left."
        title = f"{name}: {len(numbers)}{of} case{many}. {view}"
    elif slides:
        columns = 1 if len(numbers) <= 2 else 2
        panels = [slide_panel(source, n, 480 if columns == 1 else 280) for n in numbers]
        title = f"{name}: {len(numbers)}{of} slide{many}. Right: tissue, and patches of two tiles."
    else:
        field = _field_of_pictures(source)
        columns = min(_COLUMNS_OF_PICTURES, len(numbers))
        panels = [_picture_panel(source, n, field) for n in numbers]
        title = f"{name}: {len(numbers)}{of} picture{many}"
    sheet = _sheet(panels, columns, title, _legend(source, panels))
    _save(sheet, target)
    return PreviewReport(
        path=target,
        shown=len(numbers),
        samples=len(source),
        width=sheet.width,
        height=sheet.height,
    )


def _spread(samples: int, count: int) -> list[int]:
    """Return up to ``count`` numbers, the first and the last among them, at even distances."""
    return sorted({int(n) for n in np.linspace(0, samples - 1, min(count, samples)).round()})


def _require_place(path: str) -> None:
    if not path.lower().endswith(".png"):
        raise OptionError(f"{printable(path)}: a preview is a PNG; end its name in .png", path=path)
    try:
        with open(path, "rb") as file:
            start = file.read(len(_SIGNATURE))
    except FileNotFoundError:
        return
    except OSError as error:
        raise _not_written(path, error) from error
    if start != _SIGNATURE:
        raise StoreExistsError(
            f"{printable(path)} exists and is not a PNG; choose another name", path=path
        )


def _not_written(path: str, error: OSError) -> SourceError:
    return SourceError(
        f"{printable(path)}: cannot be written ({error.strerror or error})", path=path
    )


def _save(sheet: Image.Image, path: str) -> None:
    """Write the PNG under another name, and give it its own when it is whole."""
    work = f"{path}.{secrets.token_hex(4)}"
    try:
        with storage_errors(path):
            try:
                with open(work, "xb") as file:
                    sheet.save(file, "PNG")
                os.replace(work, path)
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(work)
    except OSError as error:
        if isinstance(error, SharedDSError):
            raise
        raise _not_written(path, error) from error


def _field_of_pictures(source: Store) -> str:
    fields = source.header.fields
    for field in sorted(fields, key=lambda field: field.name != "image"):
        plain = field.kind == "column" and len(field.shape) == 3 and field.shape[2] in (1, 3, 4)
        if field.kind == "image" or plain:
            return field.name
    raise OptionError(
        f"{source.path}: neither volumes nor pictures in it to show; fields: "
        f"{', '.join(field.name for field in fields)}",
        path=source.path,
    )


def _picture_panel(source: Store, index: int, field: str) -> Panel:
    """Draw one picture, scaled to fit."""
    side = _SIDE_OF_PICTURE
    tile = Image.new("RGB", (side, side), _BACK)
    try:
        picture = _picture(source, index, field)
    except ImageTooLargeError:
        picture, note = None, "(too large to show)"
    else:
        note = "" if picture is not None else "(no picture)"
    if picture is not None:
        scale = side / max(picture.size)
        size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
        scaled = picture.resize(size, Image.Resampling.BICUBIC)
        tile.paste(scaled, ((side - scaled.width) // 2, (side - scaled.height) // 2))
    name = printable(source.key(index).rpartition("/")[2])
    return Panel(tile, (_class_name(source, index), f"{name} {note}".rstrip()))


def _picture(source: Store, index: int, field: str) -> Image.Image | None:
    """Return a picture in RGB, at least as large as it is shown."""
    if any(f.name == field and f.kind == "image" for f in source.header.fields):
        try:
            data = source.read(field, index)
        except SampleKeyError:
            return None
        least = (_SIDE_OF_PICTURE, _SIDE_OF_PICTURE)
        pixels = decode(data, mode="RGB", at_least=least)
    else:
        pixels = source.value(field, index)
    if pixels.dtype != np.uint8:  # of 16 bits or more: whatever range it uses
        known = pixels[np.isfinite(pixels)] if pixels.dtype.kind == "f" else pixels
        low, high = np.percentile(known, (0.5, 99.5)) if known.size else (0.0, 1.0)
        pixels = to_grey(pixels, float(low), float(high))
    if pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    return Image.fromarray(np.ascontiguousarray(pixels)).convert("RGB")


def _class_name(source: Store, index: int) -> str:
    column = any(f.name == "label" and f.kind == "column" for f in source.header.fields)
    if not column:
        return ""
    label = source.value("label", index)
    classes = source.classes
    if isinstance(label, int) and classes is not None and 0 <= label < len(classes):
        return printable(classes[label])
    return str(label) if isinstance(label, int | float) else ""


def _legend(source: Store, panels: Sequence[Panel]) -> list[tuple[str, tuple[int, int, int]]]:
    """Return the names and colours of the classes that the panels show."""
    ids = sorted({number for panel in panels for number in panel.classes})
    names = source.attrs.get("class_names")
    known = names if isinstance(names, dict) else {}
    entries = [
        (printable(str(known.get(str(number), f"class {number}"))), colour_of(number))
        for number in ids[:_MOST_CLASSES]
    ]
    if len(ids) > _MOST_CLASSES:
        entries.append((f"and {len(ids) - _MOST_CLASSES} more", _FAINT))
    return entries


def _sheet(
    panels: Sequence[Panel],
    columns: int,
    title: str,
    legend: Sequence[tuple[str, tuple[int, int, int]]],
) -> Image.Image:
    """Lay panels out in rows below a title, the legend last."""
    font, bold = ImageFont.load_default(12), ImageFont.load_default(14)
    cell = max(panel.picture.width for panel in panels)
    if columns == 1:
        cell = max(cell, 480)
    width = columns * (cell + _PAD) + _PAD
    rows = [panels[at : at + columns] for at in range(0, len(panels), columns)]
    heights = [
        max(panel.picture.height + _LINE * len(panel.lines) for panel in row) + _PAD for row in rows
    ]
    spots, below = _legend_spots(legend, width, font)
    top = 2 * _PAD + _LINE
    sheet = Image.new("RGB", (width, top + sum(heights) + below + _PAD), _BACK)
    draw = ImageDraw.Draw(sheet)
    draw.text((_PAD, _PAD), _cut(title, width - 2 * _PAD, bold), fill=_TEXT, font=bold)
    for row, height in zip(rows, heights, strict=True):
        for number, panel in enumerate(row):
            left = _PAD + number * (cell + _PAD)
            sheet.paste(panel.picture, (left, top))
            for line, text in enumerate(panel.lines):
                place = (left, top + panel.picture.height + 3 + line * _LINE)
                shown = _cut(text, cell, font)
                draw.text(place, shown, fill=_FAINT if line else _TEXT, font=font)
        top += height
    for (text, colour), (left, down) in zip(legend, spots, strict=True):
        draw.rectangle((left, top + down + 2, left + 10, top + down + 12), fill=colour)
        draw.text((left + 16, top + down), _cut(text, 200, font), fill=_TEXT, font=font)
    return sheet


def _legend_spots(
    legend: Sequence[tuple[str, tuple[int, int, int]]], width: int, font: Any
) -> tuple[list[tuple[int, int]], int]:
    """Return where entries of the legend go, and how high it is."""
    spots, left, down = [], _PAD, 0
    for text, _ in legend:
        wide = 16 + math.ceil(font.getlength(_latin(_cut(text, 200, font)))) + 2 * _PAD
        if left > _PAD and left + wide > width:
            left, down = _PAD, down + _LINE
        spots.append((left, down))
        left += wide
    return spots, down + _LINE if legend else 0


def _latin(text: str) -> str:
    """Return text as escapes where the font that comes with Pillow has no such letter."""
    return printable(text, "latin-1")


def _cut(text: str, width: int, font: Any) -> str:
    """Return a text that fits, with dots in the middle where something was taken out."""
    text = _latin(text)
    if len(text) <= width and font.getlength(text) <= width:
        return text
    fits, too_long = 2, min(len(text), width) + 1
    while too_long - fits > 1:
        keep = (fits + too_long) // 2
        short = font.getlength(_middle_out(text, keep)) <= width
        fits, too_long = (keep, too_long) if short else (fits, keep)
    return _middle_out(text, fits)


def _middle_out(text: str, keep: int) -> str:
    first = (keep + 1) // 2
    return f"{text[:first]}...{text[len(text) - (keep - first) :]}"
