"""DICOM files for tests: made from arrays, or found in the packages that are installed."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pydicom
import pydicom.uid
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sequence import Sequence as Items

from sharedds.volumes.dicom import DicomFindings, Series, find_series

Array = npt.NDArray[Any]

FILES = Path(pydicom.__file__).parent / "data" / "test_files"
FOLDERS = FILES / "dicomdirtests"
AXIAL = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
CT = "1.2.840.10008.5.1.4.1.1.2"
ENHANCED_CT = "1.2.840.10008.5.1.4.1.1.2.1"


def numbered(shape: tuple[int, ...], dtype: str = "<i2") -> Array:
    """Return values that name their voxel: i + 40 j + 1600 k."""
    i, j, k = np.indices(shape)
    return np.asarray(i + 40 * j + 1600 * k).astype(dtype)


def write(
    path: Path,
    pixels: Array,
    *,
    position: Sequence[float] | None = (0, 0, 0),
    orientation: Sequence[float] | None = AXIAL,
    spacing: Sequence[float] | None = (1, 1),
    series: str = "1.2.3",
    instance: str | None = None,
    kind: str = CT,
    **tags: Any,
) -> Path:
    """Write an uncompressed file; the last two axes of the pixels are rows and columns.

    Elements whose argument is None are left out, the UID of the instance follows from the path,
    and ``tags`` are further elements by keyword.
    """
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    data.SOPClassUID, data.Modality = kind, "CT"
    data.SOPInstanceUID = instance or pydicom.uid.generate_uid(entropy_srcs=[str(path)])
    data.SeriesInstanceUID, data.StudyInstanceUID = series, "1.2.3.9"
    data.Rows, data.Columns = pixels.shape[-2:]
    data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
    bits = 8 * pixels.dtype.itemsize
    if pixels.ndim == 3:
        data.NumberOfFrames = len(pixels)
    if position is not None:
        data.ImagePositionPatient = [round(float(value), 6) for value in position]
    if orientation is not None:
        data.ImageOrientationPatient = [round(float(value), 6) for value in orientation]
    if spacing is not None:
        data.PixelSpacing = list(spacing)
    data.BitsAllocated = bits
    raw = pixels.astype(pixels.dtype.newbyteorder("<")).tobytes()
    if pixels.dtype.kind == "f":
        data.FloatPixelData = raw
    else:
        data.BitsStored, data.HighBit = bits, bits - 1
        data.PixelRepresentation = int(pixels.dtype.kind == "i")
        data.add_new("PixelData", "OB" if bits == 8 else "OW", raw + bytes(len(raw) % 2))
    for keyword, value in tags.items():
        setattr(data, keyword, value)
        if value is None:
            delattr(data, keyword)
    path.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(path, enforce_file_format=True)
    return path


def write_stack(folder: Path, values: Array, *, distance: float = 3.0, **tags: Any) -> list[Path]:
    """Write one axial file for each k of values (i, j, k)."""
    return [
        write(folder / f"{k}.dcm", values[:, :, k].T, position=(0, 0, distance * k), **tags)
        for k in range(values.shape[2])
    ]


def item(**tags: Any) -> Items:
    """Return a sequence of one item with these elements."""
    data = Dataset()
    for keyword, value in tags.items():
        setattr(data, keyword, value)
    return Items([data])


def write_enhanced(
    path: Path, values: Array, order: Iterable[tuple[int, int]], **tags: Any
) -> Path:
    """Write an enhanced object whose frames are (moment, slice) of values (i, j, k), in ``order``.

    A moment adds 500; the factors of slice k are k + 1 and -100; slices are 2.5 mm apart.
    """
    order = list(order)
    frames = []
    for moment, k in order:
        frame = Dataset()
        frame.PlanePositionSequence = item(ImagePositionPatient=[10, -20, 2.5 * k])
        frame.PixelValueTransformationSequence = item(
            RescaleSlope=k + 1, RescaleIntercept=-100, RescaleType="US"
        )
        frame.FrameContentSequence = item(
            StackID="1", InStackPositionNumber=k + 1, TemporalPositionIndex=moment + 1
        )
        frames.append(frame)
    shared = Dataset()
    shared.PlaneOrientationSequence = item(ImageOrientationPatient=list(AXIAL))
    shared.PixelMeasuresSequence = item(PixelSpacing=[0.8, 0.8], SliceThickness=5)
    pixels = np.stack([values[:, :, k].T + np.int16(500 * moment) for moment, k in order])
    return write(
        path,
        pixels,
        position=None,
        orientation=None,
        spacing=None,
        kind=ENHANCED_CT,
        PerFrameFunctionalGroupsSequence=Items(frames),
        SharedFunctionalGroupsSequence=Items([shared]),
        **tags,
    )


def found(root: Path, **options: Any) -> DicomFindings:
    """Return what a search of a folder finds, in an order of files that should not matter."""
    files = sorted((path for path in root.rglob("*") if path.is_file()), reverse=True)
    return find_series(root, files, **options)


def only(findings: DicomFindings) -> Series:
    """Return the one volume that was found."""
    volumes = [series for series in findings.series if series.volume is not None]
    assert len(volumes) == 1, findings
    return volumes[0]


def voxels(series: Series, scratch: Path) -> Array:
    """Return all voxels of a volume as they are to be stored; nothing stays in the folder."""
    assert series.volume is not None, series.problems
    before = sorted(scratch.iterdir())
    with series.volume.open(scratch) as data:
        assert data.shape == series.volume.header.full_shape
        assert data.dtype == series.volume.header.dtype
        values = np.array(data[tuple(slice(0, size) for size in data.shape)])
    assert sorted(scratch.iterdir()) == before
    return values


def measured(series: Series, scratch: Path) -> Array:
    """Return all voxels as measured values, float64."""
    values = voxels(series, scratch).astype(np.float64)
    assert series.volume is not None
    return values * series.volume.header.slope + series.volume.header.intercept


def read_by_hand(path: Path) -> Dataset:
    """Return a whole file as pydicom reads it, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pydicom.dcmread(path, force=True)


def pixels_by_hand(path: Path) -> Array:
    """Return the pixels of a file as pydicom decodes them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(pydicom.dcmread(path, force=True).pixel_array)


def affine_by_hand(data: Dataset, step: Sequence[float]) -> Array:
    """Return the affine of a plane and a step (LPS), column by column as the standard has it."""
    x, y, z = (float(value) for value in data.ImagePositionPatient)
    direction = [float(value) for value in data.ImageOrientationPatient]
    rows, columns = (float(value) for value in data.PixelSpacing)
    return np.array(
        [
            [-direction[0] * columns, -direction[3] * rows, -step[0], -x],
            [-direction[1] * columns, -direction[4] * rows, -step[1], -y],
            [direction[2] * columns, direction[5] * rows, step[2], z],
            [0, 0, 0, 1],
        ]
    )
