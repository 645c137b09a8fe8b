"""DICOM folders on their way into a store: what becomes a case, what is named with its reason."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from packing import events
from volumes import Array, idx, nifti, stored

from sharedds.ingest import PackReport, pack_volumes
from sharedds.store import Store

DICOM = Path(pydicom.__file__).parent / "data" / "test_files"
FOLDERS = DICOM / "dicomdirtests"


def dicom(
    path: Path,
    pixels: Array,
    *,
    position: tuple[float, ...] = (0, 0, 0),
    directions: tuple[float, ...] = (1, 0, 0, 0, 1, 0),
    series: str = "1.2.3",
    **tags: Any,
) -> None:
    """Write one slice; tags by keyword."""
    dataset = pydicom.Dataset()
    dataset.file_meta = pydicom.dataset.FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    dataset.SOPClassUID, dataset.Modality = pydicom.uid.CTImageStorage, "CT"
    dataset.SOPInstanceUID = pydicom.uid.generate_uid(entropy_srcs=[str(path)])
    dataset.SeriesInstanceUID, dataset.StudyInstanceUID = series, "1.2.3.9"
    dataset.Rows, dataset.Columns = pixels.shape[-2:]
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, 16, 15
    dataset.PixelRepresentation = int(pixels.dtype.kind == "i")
    dataset.PixelData = pixels.astype(pixels.dtype.newbyteorder("<")).tobytes()
    dataset.ImagePositionPatient = [float(n) for n in position]
    dataset.ImageOrientationPatient = [float(n) for n in directions]
    dataset.PixelSpacing = [1, 1]
    for name, value in tags.items():
        setattr(dataset, name, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset.save_as(path, enforce_file_format=True)


def series(folder: Path, array: Array, **tags: Any) -> None:
    """Write a volume (i, j, k) as axial slices 3 mm apart."""
    for k in range(array.shape[2]):
        dicom(folder / f"{k}", array[:, :, k].T, position=(0, 0, 3 * k), **tags)


def packed(place: Path, **options: Any) -> PackReport:
    """Pack ``place/src``; nothing gets lost without a word."""
    report = pack_volumes(
        place / "src", place / "out.lmdb", force=True, **{"codec": "lz4", **options}
    )
    assert report.stored_files + report.failed_files + report.left_out_count == report.files
    return report


def failed(report: PackReport) -> str:
    """Return all failures as one text."""
    return "\n".join(f"{path}: {reason}" for path, reason in report.failed)


def test_series_are_found_in_any_folders_without_extensions(tmp_path: Path) -> None:
    """Each is a case, ordered by position, with its place and factors."""
    a = idx((8, 9, 10))
    series(tmp_path / "src/ward/1", a, series="1.2.4", RescaleSlope=2, RescaleIntercept=-1024)
    series(tmp_path / "src/two", a[:, :, ::-1], series="1.2.5")
    report = packed(tmp_path)
    array = stored(report, "ward/1")
    assert np.array_equal(array[:], a)
    assert np.allclose(array.affine, [[-1, 0, 0, 0], [0, -1, 0, 0], [0, 0, 3, 0], [0, 0, 0, 1]])
    assert array.read()[7, 8, 9] == 2 * a[7, 8, 9] - 1024
    assert (array.attrs["format"], array.attrs["modality"]) == ("DICOM", "CT")
    assert report.samples == 2


def test_a_series_and_its_segmentation(tmp_path: Path) -> None:
    """A NIfTI label of a DICOM image: the same grid in other axes is turned onto it."""
    a = idx((8, 9, 10))
    label = (a % 5 == 0).astype("u1")
    series(tmp_path / "src/images/p1", a)
    place = np.array([[1, 0, 0, -7], [0, 1, 0, -8], [0, 0, 3, 0], [0, 0, 0, 1.0]])
    nifti(tmp_path / "src/labels/p1.nii.gz", label[::-1, ::-1], place)
    report = packed(tmp_path)
    assert np.array_equal(stored(report, "p1", "label")[:], label)


def test_gaps_and_crossing_planes_are_refused_by_name(tmp_path: Path) -> None:
    """With the positions; the flag for gaps packs what is there where it belongs."""
    shutil.copytree(FOLDERS / "77654033/CT2", tmp_path / "src/gap")
    shutil.copytree(FOLDERS / "98892003/MR2", tmp_path / "src/MR2")
    a = idx((8, 9, 20))
    for k in range(20):
        if k != 11:
            dicom(tmp_path / f"src/hole/{k}", a[:, :, k].T, position=(0, 0, 3 * k), series="1.2.6")
    series(tmp_path / "src/good", a[:, :, :4], series="1.2.7")
    report = packed(tmp_path)
    assert report.samples == 1
    text = failed(report)
    assert "-99.48" in text
    assert "103.02" in text
    assert "161 slices" in text
    assert "33" in text
    assert text.count("planes not parallel") + text.count("single slice") >= 3
    report = packed(tmp_path, allow_gaps=True)
    array = stored(report, "hole")
    assert array.shape == (8, 9, 20)
    assert np.array_equal(array[:, :, 12], a[:, :, 12])
    assert array.attrs["empty_slices"]


def test_a_scout_is_reported_and_does_not_take_the_series_along(tmp_path: Path) -> None:
    """One volume, and one line for the other plane."""
    a = idx((8, 9, 10))
    series(tmp_path / "src/scout", a)
    dicom(
        tmp_path / "src/scout/plan", np.zeros((12, 12), "i2"), position=(4, -10, 40),
        directions=(0, 1, 0, 0, 0, -1),
    )  # fmt: skip
    report = packed(tmp_path)
    assert np.array_equal(stored(report, "scout")[:], a)
    assert (report.samples, report.failed_count, report.failed_files) == (1, 1, 1)
    assert "single slice" in failed(report)


def test_single_slices_are_volumes_where_asked(tmp_path: Path) -> None:
    """Each with its own place."""
    shutil.copytree(FOLDERS / "98892001/CT2N", tmp_path / "src/CT2N")
    assert packed(tmp_path, allow_single=True).samples == 2


def test_a_copy_of_an_instance_is_named(tmp_path: Path) -> None:
    """And what is no picture, too; neither is a bad file."""
    series(tmp_path / "src/copy", idx((8, 9, 6)))
    shutil.copy(tmp_path / "src/copy/3", tmp_path / "src/copy/again")
    shutil.copy(FOLDERS / "DICOMDIR", tmp_path / "src/DICOMDIR")
    report = packed(tmp_path)
    assert (report.samples, report.failed_count) == (1, 0)
    reasons = {item["example"]: item["reason"] for item in report.left_out}
    assert "the same instance" in reasons["copy/again"]
    assert set(reasons) == {"copy/again", "DICOMDIR"}


def test_slices_with_factors_of_their_own_give_measured_values(tmp_path: Path) -> None:
    """Nothing is scaled twice."""
    for k, slope in enumerate((0.5, 1, 2, 4)):
        dicom(
            tmp_path / f"src/pet/{k}", np.full((9, 8), 100, "u2"), position=(0, 0, 2 * k),
            RescaleSlope=slope, RescaleIntercept=0, Modality="PT",
        )  # fmt: skip
    array = stored(packed(tmp_path), "pet")
    assert array.read()[0, 0].tolist() == [50, 100, 200, 400]


def test_photometric_meaning_is_kept_and_counted(tmp_path: Path) -> None:
    """Measured values by default; turned round once where asked."""
    p = np.random.default_rng(3).integers(0, 4096, (32, 32)).astype("u2")
    bits: dict[str, Any] = {"BitsStored": 12, "HighBit": 11}
    dicom(tmp_path / "src/one/0", p, PhotometricInterpretation="MONOCHROME1", **bits)
    dicom(tmp_path / "src/two/0", 4095 - p, series="1.2.4", **bits)
    report = packed(tmp_path, allow_single=True)
    assert report.content["photometric"] == {"MONOCHROME1": 1, "MONOCHROME2": 1}
    assert np.array_equal(stored(report, "one")[:, :, 0], p.T)
    report = packed(tmp_path, allow_single=True, invert=True)
    assert np.array_equal(stored(report, "one")[:], stored(report, "two")[:])


@pytest.mark.parametrize("anonymous", [False, True])
def test_patients_stay_unnamed(tmp_path: Path, anonymous: bool) -> None:
    """Of a header nothing gets out; a name in a path is told once, and gone when asked."""
    a = idx((8, 9, 4))
    for folder in ("ward", "DOE_JANE"):
        series(
            tmp_path / "src" / folder, a, series=f"1.2.{len(folder)}", PatientName="DOE^JANE",
            PatientID="HOSP-4711", PatientBirthDate="19700131", InstitutionName="ST ELSEWHERE",
            StudyDescription="for Jane Doe",
        )  # fmt: skip
    report = packed(tmp_path, anonymous=anonymous)
    needles = [b"Jane", b"HOSP-4711", b"19700131", b"ELSEWHERE", str(tmp_path).encode()]
    needles += [b"JANE", b"DOE"] if anonymous else [b"DOE^", b"HOSP"]
    for path in (report.path, report.report):
        data = Path(path).read_bytes()
        assert [needle for needle in needles if needle in data] == []
    told = [text for text in report.warnings if "1 path contains a patient's name" in text]
    assert len(told) == (0 if anonymous else 1)
    again = packed(tmp_path, anonymous=anonymous)
    assert again.digest == report.digest


def test_tags_are_kept_where_asked(tmp_path: Path) -> None:
    """Those that are named, and no others."""
    series(tmp_path / "src/a", idx((8, 9, 4)), KVP=120, PatientID="X1")
    array = stored(packed(tmp_path, keep_tags=("KVP",)), "a")
    assert array.attrs["tags"] == {"KVP": 120.0}
    assert "tags" not in stored(packed(tmp_path), "a").attrs


def test_remarks_of_a_header_are_reported_by_case(tmp_path: Path) -> None:
    """In the summary and, all of them, in the JSONL report."""
    p = np.full((8, 8), 5, "u2")
    dicom(tmp_path / "src/x/0", p, PhotometricInterpretation="MONOCHROME1")
    report = packed(tmp_path, allow_single=True)
    assert [case for case, text in report.remarks if "MONOCHROME1" in text] == ["x"]
    lines = [line for line in events(report.report) if line["event"] == "remark"]
    assert len(lines) == report.remark_count
    assert Store(report.path).attrs["kind"] == "volume"
