"""Headers of DICOM files, read without their pixels and without trusting any of their values."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sharedds.errors import MissingExtraError, OptionError
from sharedds.handles import per_process

if TYPE_CHECKING:
    from pydicom import Dataset

__all__ = [
    "WANTED",
    "Tags",
    "checked_tags",
    "kept_values",
    "pydicom",
    "quiet",
]

WANTED = (
    *("SOPClassUID", "SOPInstanceUID", "SeriesInstanceUID", "SeriesNumber", "Modality"),
    *("ImageType", "InstanceNumber", "AcquisitionNumber", "TemporalPositionIdentifier"),
    *("TemporalPositionIndex", "TemporalResolution", "TriggerTime", "EchoNumbers", "EchoTime"),
    *("DiffusionBValue", "DiffusionGradientOrientation", "StackID"),
    *("SamplesPerPixel", "PhotometricInterpretation", "NumberOfFrames", "Rows", "Columns"),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "PixelPaddingValue"),
    *("RescaleSlope", "RescaleIntercept", "RescaleType", "Units", "ModalityLUTSequence"),
    *("DoseGridScaling", "DoseUnits", "GridFrameOffsetVector"),
    *("DetectorInformationSequence", "SliceVector", "SpacingBetweenSlices", "SliceThickness"),
    *("PixelSpacing", "ImagePositionPatient", "ImageOrientationPatient"),
    *("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"),
)
"""Keywords of the elements that are read of every file; nothing else of a header is looked at."""

_NOT_KEPT = {"SQ", "OB", "OD", "OF", "OL", "OV", "OW", "UN", "OB or OW"}
_MODULES = r"(pydicom|pylibjpeg|libjpeg|openjpeg|PIL|gdcm|jpeg_ls)(\.|$)"


def pydicom() -> ModuleType:
    """Return the package.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import pydicom as package  # noqa: PLC0415 - an extra, needed for DICOM only
    except ImportError as error:
        raise MissingExtraError(
            "DICOM files are read with pydicom, which is not installed: "
            "pip install 'sharedds[medical]'"
        ) from error
    return package


class _Inside:
    """The threads of one process for which warnings are held back."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.caught: warnings.catch_warnings[None] | None = None


class _Quiet:
    """Warnings of the DICOM libraries, held back while at least one thread is at work with them.

    What they warn of is checked here and told as an error or a remark; on stderr it would only
    repeat values of a header. The filters belong to the whole process, so the first thread in sets
    them and the last one out puts them back. A forked child counts anew: the threads that were
    inside are not in it.
    """

    @per_process
    def _threads(self) -> _Inside:
        return _Inside()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        inside = self._threads
        with inside.lock:
            inside.count += 1
            if inside.count == 1:
                inside.caught = warnings.catch_warnings()
                inside.caught.__enter__()
                warnings.filterwarnings("ignore", module=_MODULES)
        try:
            yield
        finally:
            with inside.lock:
                inside.count -= 1
                if inside.count == 0 and inside.caught is not None:
                    inside.caught.__exit__(None, None, None)
                    inside.caught = None


quiet = _Quiet()


class Tags:
    """Values of one dataset (or of an item of a sequence), as numbers and codes that can be used.

    A value that is absent or empty is None. One that is there and cannot be read is None as well,
    and its keyword is noted in ``unreadable``.

    Args:
        dataset: Of pydicom; None for one without any element.
        unreadable: Shared by a dataset and the items of its sequences.
    """

    def __init__(self, dataset: Dataset | None, unreadable: dict[str, None] | None = None) -> None:
        self._dataset = dataset
        self.unreadable: dict[str, None] = {} if unreadable is None else unreadable

    def __contains__(self, keyword: str) -> bool:
        return self._dataset is not None and keyword in self._dataset

    def value(self, keyword: str) -> Any:
        """Return the value as pydicom has it, or None."""
        if self._dataset is None:
            return None
        try:
            value = self._dataset.get(keyword)
        except Exception:  # any: pydicom converts on access, and raises whatever goes wrong there
            self.unreadable[keyword] = None
            return None
        return None if value is None or value == "" else value

    def numbers(self, keyword: str, count: int | None = None) -> tuple[float, ...] | None:
        """Return finite numbers; ``count`` of them, where given."""
        value = self.value(keyword)
        if value is None:
            return None
        parts = list(value) if _is_list(value) else [value]
        if not parts:
            return None
        try:
            numbers = tuple(float(part) for part in parts)
        except (TypeError, ValueError, OverflowError):
            numbers = ()
        wrong = count is not None and len(numbers) != count
        if not numbers or wrong or not all(map(math.isfinite, numbers)):
            self.unreadable[keyword] = None
            return None
        return numbers

    def number(self, keyword: str) -> float | None:
        """Return one finite number; the first where there are several."""
        numbers = self.numbers(keyword)
        return None if numbers is None else numbers[0]

    def integer(self, keyword: str) -> int | None:
        """Return one whole number."""
        number = self.number(keyword)
        if number is not None and number != int(number):
            self.unreadable[keyword] = None
            return None
        return None if number is None else int(number)

    def text(self, keyword: str) -> str:
        """Return a text as it stands, several values joined with backslashes; "" when absent."""
        value = self.value(keyword)
        if value is None:
            return ""
        return "\\".join(map(str, value)) if _is_list(value) else str(value)

    def items(self, keyword: str) -> list[Tags]:
        """Return the items of a sequence."""
        value = self.value(keyword)
        if value is None or not _is_list(value):
            return []
        try:
            return [Tags(item, self.unreadable) for item in value]
        except Exception:  # any: items are parsed on access as well
            self.unreadable[keyword] = None
            return []

    def first(self, keyword: str) -> Tags:
        """Return the first item of a sequence; an empty one when there is none."""
        items = self.items(keyword)
        return items[0] if items else Tags(None, self.unreadable)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def checked_tags(keywords: Sequence[str]) -> tuple[str, ...]:
    """Return the keywords, each known and with a value that JSON can hold.

    Raises:
        OptionError: One is not a DICOM keyword, or names a sequence or bytes.
    """
    if not keywords:
        return ()
    pydicom()
    from pydicom.datadict import dictionary_VR, tag_for_keyword  # noqa: PLC0415 - an extra

    for keyword in keywords:
        tag = tag_for_keyword(keyword)
        if tag is None:
            raise OptionError(
                f"keep_tags: {keyword!r} is not a DICOM keyword; "
                "they are written like 'PatientSex' or 'KVP'"
            )
        if dictionary_VR(tag) in _NOT_KEPT:
            raise OptionError(
                f"keep_tags: {keyword!r} holds a sequence or bytes; only plain values can be kept"
            )
    return tuple(dict.fromkeys(keywords))


def kept_values(tags: Tags, keywords: Sequence[str]) -> dict[str, Any]:
    """Return the values of the keywords that are there, as JSON."""
    kept: dict[str, Any] = {}
    for keyword in keywords:
        value = tags.value(keyword)
        if value is not None:
            kept[keyword] = [_plain(part) for part in value] if _is_list(value) else _plain(value)
    return kept


def _plain(value: Any) -> int | float | str:
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    return str(value)
