"""One DICOM file as a picture: what its pixels are, and where each of its frames lies."""

from __future__ import annotations

import gzip
import os
import re
import stat
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sharedds.errors import SourceError
from sharedds.volumes.dicom_placement import Frame, frames_of
from sharedds.volumes.dicom_tags import WANTED, Tags, kept_values, pydicom, quiet
from sharedds.volumes.streams import starts_like_dicom

__all__ = ["Picture", "read_picture"]

_DIRECTORY = "1.2.840.10008.1.3.10"
_SEGMENTATION = ("1.2.840.10008.5.1.4.1.1.66.4", "1.2.840.10008.5.1.4.1.1.66.7")
_SLIDE = "1.2.840.10008.5.1.4.1.1.77.1.6"
_DEFLATED = "1.2.840.10008.1.2.1.99"
_PIXELS = {
    0x7FE00010: "PixelData",
    0x7FE00008: "FloatPixelData",
    0x7FE00009: "DoubleFloatPixelData",
}
_NEEDED = {
    *("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "NumberOfFrames"),
    *("Rows", "Columns", "SamplesPerPixel", "BitsAllocated", "BitsStored", "HighBit"),
    *("PixelRepresentation", "RescaleSlope", "RescaleIntercept", "DoseGridScaling"),
    *("GridFrameOffsetVector", "SliceVector", "DetectorInformationSequence"),
    *("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"),
}
_MODALITY = re.compile(
    "CR|CT|DX|EPS|ES|GM|IO|IVOCT|IVUS|MG|MR|NM|OCT|OP|OPT|OT|PT|PX|RF|RG|RTDOSE|RTIMAGE|US|XA|XC"
)
_RESCALE_TYPE = re.compile("HU|US|OD|MGML|Z_EFF|ED|EDW|HU_MOD|PCT|NORMALIZED")
_UNIT = re.compile(
    "CNTS|NONE|CM2|CM2ML|PCNT|CPS|BQML|MGMINML|UMOLMINML|MLMING|MLG|1CM|UMOLML|PROPCNTS|PROPCPS|"
    "MLMINML|MLML|GML|STDDEV|GY|RELATIVE"
)
_UNDEFINED = 0xFFFFFFFF
_MOST_FRAMES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What the header of one file says that is needed to make a volume of it.

    Attributes:
        path: The file.
        name: The same relative to the folder that was searched, for messages.
        nbytes: Size of the file.
        instance, series: UIDs; "" when absent.
        syntax: UID of the transfer syntax; "" in a file without meta information.
        keyword: Of the pixels: ``PixelData``, ``FloatPixelData`` or ``DoubleFloatPixelData``.
        little_endian, offset, length: How and where the pixels stand in the file; a length of
            None when they are compressed, an offset of None when the whole file is.
        frames: Where each of its frames lies.
        step_seconds: Between two moments, where said.
        codes: Short codes worth keeping, such as ``modality``.
        padding: The stored value that stands for "no measurement".
        kept: Values that the caller asked to keep.
        problems: Why it cannot become part of a volume; each without the name of the file.
    """

    path: Path
    name: str
    nbytes: int
    instance: str
    series: str
    series_number: int
    syntax: str
    rows: int
    columns: int
    samples: int
    photometric: str
    bits_allocated: int
    bits_stored: int
    high_bit: int
    signed: bool
    keyword: str
    little_endian: bool
    offset: int | None
    length: int | None
    frames: tuple[Frame, ...]
    step_seconds: float | None = None
    codes: Mapping[str, str] = field(default_factory=dict)
    padding: int | None = None
    kept: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def encapsulated(self) -> bool:
        """Whether the pixels are compressed, frame by frame."""
        return self.offset is not None and self.length is None

    @property
    def frame_bytes(self) -> int:
        """Size of an uncompressed frame in the file, unless its colours are subsampled."""
        bits = self.rows * self.columns * self.samples * self.bits_allocated
        return -(-bits // 8)


def read_picture(path: Path, name: str, keep_tags: Sequence[str] = ()) -> Picture | str:
    """Read the header of one file.

    Args:
        path: The file.
        name: What messages call it.
        keep_tags: Keywords whose values are wanted too.

    Returns:
        The picture; or, in words, why the file is none.

    Raises:
        SourceError: The file cannot be read.
        MissingExtraError: pydicom is not installed.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
            raise SourceError(f"{name} cannot be read: it is no file with content", path=str(path))
        with path.open("rb") as file:
            head = file.read(132)
            if not starts_like_dicom(head):
                return _foreign(path, head)
            file.seek(0)
            with quiet():
                return _read(file, path, name, keep_tags)
    except SourceError:
        raise
    except OSError as error:
        raise SourceError(
            f"{name} cannot be read: {error.strerror or type(error).__name__}", path=str(path)
        ) from error


def _foreign(path: Path, head: bytes) -> str:
    if head[:2] == b"\x1f\x8b":
        try:
            with gzip.open(path) as file:
                if starts_like_dicom(file.read(132)):
                    return "a DICOM file inside gzip; unpack it first"
        except (OSError, EOFError, zlib.error):
            pass
    return "not a DICOM file"


def _read(file: BinaryIO, path: Path, name: str, keep_tags: Sequence[str]) -> Picture | str:
    package = pydicom()
    try:
        dataset = package.dcmread(
            file,
            stop_before_pixels=True,
            force=True,
            specific_tags=[*WANTED, *keep_tags],
        )
        implicit, little_endian = dataset.original_encoding
    except OSError:
        raise
    except Exception as error:  # any: and its text may quote a name
        return f"its DICOM header is damaged ({type(error).__name__})"
    tags = Tags(dataset)
    syntax = Tags(getattr(dataset, "file_meta", None)).text("TransferSyntaxUID")
    kind = tags.text("SOPClassUID") or Tags(getattr(dataset, "file_meta", None)).text(
        "MediaStorageSOPClassUID"
    )
    if kind == _DIRECTORY:
        return "an index of other files (DICOMDIR), not a picture"
    has_pixels = _pixel_element(file, implicit is True, little_endian is not False)
    if "Rows" not in tags and (has_pixels is None or syntax == _DEFLATED):
        called = package.uid.UID(kind).name if kind else "no SOP class"
        known = called if called != kind else "an unknown kind of object"
        if known.endswith("Image Storage") and syntax != _DEFLATED:
            return f"no pixel data in it, though it claims to be {known}; it may be cut short"
        return f"not a picture ({known})"
    if kind.startswith(_SEGMENTATION):
        return "a segmentation object, not measurements; convert it to a label volume first"
    if kind == _SLIDE:
        return "a part of a slide, not of a volume"
    if "Rows" not in tags:
        return "not a picture: it does not say how large it is (Rows)"
    keyword, offset, length = has_pixels or ("PixelData", None, None)
    if syntax == _DEFLATED:
        offset = length = None
    problems = []
    if has_pixels is None and syntax != _DEFLATED:
        problems.append("there is no pixel data in it; it may be cut short")
    number = tags.integer("NumberOfFrames")
    count = 1 if number is None else number
    if not 0 < count <= _MOST_FRAMES:
        problems.append(f"NumberOfFrames is {count}")
        count = 1
    allocated = tags.integer("BitsAllocated") or 0
    stored = tags.integer("BitsStored") or allocated
    high = tags.integer("HighBit")
    picture = Picture(
        path=path,
        name=name,
        nbytes=os.fstat(file.fileno()).st_size,
        instance=tags.text("SOPInstanceUID"),
        series=tags.text("SeriesInstanceUID"),
        series_number=tags.integer("SeriesNumber") or 0,
        syntax=syntax,
        rows=tags.integer("Rows") or 0,
        columns=tags.integer("Columns") or 0,
        samples=tags.integer("SamplesPerPixel") or 1,
        photometric=tags.text("PhotometricInterpretation").strip(),
        bits_allocated=allocated,
        bits_stored=stored,
        high_bit=stored - 1 if high is None else high,
        signed=tags.integer("PixelRepresentation") == 1,
        keyword=keyword,
        little_endian=little_endian is not False,
        offset=offset,
        length=length,
        frames=frames_of(tags, count, kind, problems),
        step_seconds=_seconds(tags.number("TemporalResolution")),
        codes=_codes(tags),
        padding=_padding(tags, allocated),
        kept=kept_values(tags, keep_tags),
    )
    problems += _pixel_problems(picture, tags, file)
    problems += [f"its {keyword} cannot be read" for keyword in _needed(tags)]
    return replace(picture, problems=tuple(problems))


def _needed(tags: Tags) -> list[str]:
    # A time or an echo number that cannot be read does no harm, a position does.
    return [keyword for keyword in tags.unreadable if keyword in _NEEDED]


def _seconds(milliseconds: float | None) -> float | None:
    return milliseconds / 1000 if milliseconds is not None and milliseconds > 0 else None


def _padding(tags: Tags, bits: int) -> int | None:
    """Return the padding value with the sign of the pixels; it is often written with the other."""
    value = tags.integer("PixelPaddingValue")
    if value is None or not 0 < bits <= 64:
        return None
    lowest = -(1 << (bits - 1)) if tags.integer("PixelRepresentation") == 1 else 0
    wrapped = (value - lowest) % (1 << bits) + lowest
    return wrapped if abs(value) < 1 << bits else None


def _codes(tags: Tags) -> dict[str, str]:
    # From lists of known words: a header may hold anything anywhere, names included.
    codes = {
        "modality": (_MODALITY, tags.text("Modality")),
        "rescale_type": (_RESCALE_TYPE, tags.text("RescaleType")),
        "units": (_UNIT, tags.text("Units") or tags.text("DoseUnits")),
    }
    return {
        name: text.strip() for name, (known, text) in codes.items() if known.fullmatch(text.strip())
    }


def _pixel_element(
    file: BinaryIO, implicit: bool, little_endian: bool
) -> tuple[str, int, int | None] | None:
    """Return keyword, offset and length of the pixels that the file stands before; or None."""
    order = "<" if little_endian else ">"
    head = file.read(12)
    if len(head) < (8 if implicit else 12):
        return None
    group, element = np.frombuffer(head, order + "u2", 2)
    keyword = _PIXELS.get(int(group) << 16 | int(element))
    if keyword is None:
        return None
    if implicit:
        file.seek(8 - len(head), os.SEEK_CUR)
    length = int(np.frombuffer(head, order + "u4", 1, 4 if implicit else 8)[0])
    return keyword, file.tell(), None if length == _UNDEFINED else length


def _pixel_problems(picture: Picture, tags: Tags, file: BinaryIO) -> list[str]:
    problems = []
    allocated, stored = picture.bits_allocated, picture.bits_stored
    if picture.rows < 1 or picture.columns < 1:
        problems.append(f"it has {picture.rows} rows and {picture.columns} columns")
    if allocated not in (1, 8, 16, 32, 64):
        problems.append(f"BitsAllocated is {allocated}; 1, 8, 16, 32 and 64 can be read")
    elif not 0 < stored <= picture.high_bit + 1 <= allocated:
        problems.append(
            f"BitsStored {stored}, HighBit {picture.high_bit} and BitsAllocated {allocated} "
            "contradict each other"
        )
    if picture.photometric == "PALETTE COLOR":
        problems.append(
            "its pixels are numbers of a colour table (PALETTE COLOR), not measurements"
        )
    elif picture.samples not in (1, 3):
        problems.append(f"SamplesPerPixel is {picture.samples}; 1 and 3 can be read")
    if "MOSAIC" in tags.text("ImageType").split("\\"):
        problems.append(
            "its slices are tiles of one picture (MOSAIC), and where they lie is said in private "
            "elements only; convert it to NIfTI first"
        )
    if tags.items("ModalityLUTSequence"):
        problems.append("its values are measured by a table (ModalityLUTSequence), not by a slope")
    if any(frame.slope == 0 for frame in picture.frames):
        problems.append("RescaleSlope is 0")
    if problems or picture.offset is None:
        return problems
    return _cut_short(picture, file)


def _cut_short(picture: Picture, file: BinaryIO) -> list[str]:
    offset = picture.offset or 0
    if picture.length is None:
        return _items_cut_short(picture, file)
    expected = len(picture.frames) * picture.rows * picture.columns
    expected = -(-expected * picture.samples * picture.bits_allocated // 8)
    if picture.photometric == "YBR_FULL_422" and picture.samples == 3:
        expected = expected // 3 * 2
    there = min(picture.length, picture.nbytes - offset)
    if there < expected:
        return [f"it is cut short: {expected} bytes of pixels are expected, {there} are there"]
    return []


def _items_cut_short(picture: Picture, file: BinaryIO) -> list[str]:
    """Follow the items of compressed pixels to their end."""
    at = picture.offset or 0
    items = -1  # the first is a table of offsets
    while at < picture.nbytes:
        file.seek(at)
        head = file.read(8)
        if head[:4] == b"\xfe\xff\xdd\xe0":
            break
        length = int.from_bytes(head[4:8], "little")
        if head[:4] != b"\xfe\xff\x00\xe0" or at + 8 + length > picture.nbytes:
            return [
                f"it is cut short: its compressed pixels break off after {picture.nbytes} bytes"
            ]
        items += 1
        at += 8 + length
    if items < len(picture.frames):
        return [f"it is cut short: {len(picture.frames)} frames are expected, {items} are there"]
    return []
