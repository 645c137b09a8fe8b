"""Which DICOM files make a volume: series, copies, gaps, scouts, and what of a header is kept."""

from __future__ import annotations

import json
import shutil
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pydicom = pytest.importorskip("pydicom")

from dicom_files import (  # noqa: E402 - needs pydicom
    FILES,
    FOLDERS,
    found,
    measured,
    numbered,
    only,
    read_by_hand,
    voxels,
    write,
    write_stack,
)

from sharedds.errors import MissingExtraError, OptionError  # noqa: E402
from sharedds.volumes.dicom import DicomFindings, find_series  # noqa: E402

VALUES = numbered((8, 9, 6))


def reasons(findings: DicomFindings) -> dict[str, str]:
    """Return the reason for each file that is left out, by its name."""
    return {path.name: reason for path, reason in findings.left_out}


def test_gap_is_refused_with_both_neighbours(tmp_path: Path) -> None:
    """A lost part of a real series: where, how wide, what is usual, how many are missing."""
    shutil.copytree(FOLDERS / "77654033" / "CT2", tmp_path / "gap")
    (series,) = found(tmp_path).series
    assert series.volume is None
    assert series.problems[0].startswith(
        "a gap between z = -99.48 and z = 103.02: 202.5 mm where 1.25 mm is usual, "
        "161 slices missing"
    )


def test_missing_slice_is_named_by_its_place(tmp_path: Path) -> None:
    """19 of 20 slices: not one volume with an even distance of 3.17 mm."""
    values = numbered((8, 9, 20))
    write_stack(tmp_path, values)
    (tmp_path / "11.dcm").unlink()
    (series,) = found(tmp_path).series
    assert "1 slice missing (z = 33)" in series.problems[0]
    assert len(found(tmp_path).left_out) == 19


def test_allowed_gap_is_an_empty_slice_at_its_place(tmp_path: Path) -> None:
    """What lies behind the gap keeps its place, and the empty slice is marked."""
    values = numbered((8, 9, 20))
    write_stack(tmp_path, values, PixelPaddingValue=-2000)
    (tmp_path / "11.dcm").unlink()
    series = only(found(tmp_path, allow_gaps=True))
    assert series.volume is not None
    header = series.volume.header
    assert header.attrs["empty_slices"] == [11]
    assert header.affine is not None
    assert header.affine[:3, 2].tolist() == [0, 0, 3]
    read = voxels(series, tmp_path)
    assert np.array_equal(np.delete(read, 11, 2), np.delete(values, 11, 2))
    assert (read[:, :, 11] == -2000).all()
    assert any("1 of 20 slices are missing" in remark for remark in header.remarks)


def test_allowed_gaps_do_not_bend_a_grid(tmp_path: Path) -> None:
    """A distance that is no multiple of the usual one is refused all the same."""
    for k, z in enumerate((0, 3, 6, 10.5, 13.5)):
        write(tmp_path / f"{k}", VALUES[:, :, k].T, position=(0, 0, z))
    (series,) = found(tmp_path, allow_gaps=True).series
    assert "not evenly spaced: distances from 3 to 4.5 mm" in series.problems[0]


def test_two_acquisitions_in_one_series_are_two_volumes(tmp_path: Path) -> None:
    """Woven into each other they would be one of twelve slices."""
    write_stack(tmp_path / "a", VALUES, AcquisitionNumber=1)
    write_stack(tmp_path / "b", VALUES + np.int16(1000), AcquisitionNumber=2)
    first, second = found(tmp_path).series
    assert [first.name, second.name] == ["a", "b"]
    assert np.array_equal(voxels(first, tmp_path), VALUES)
    assert np.array_equal(voxels(second, tmp_path), VALUES + 1000)


def test_volumes_of_one_folder_are_numbered(tmp_path: Path) -> None:
    """The number follows the acquisition, and ``part`` says which one it was."""
    for k in range(6):
        for n in (2, 1):
            pixels = VALUES[:, :, k].T + np.int16(1000 * n)
            write(tmp_path / "x" / f"{k}{n}", pixels, position=(0, 0, 3 * k), AcquisitionNumber=n)
    series = found(tmp_path).series
    assert [one.name for one in series] == ["x#1", "x#2"]
    parts = [one.volume.header.attrs["part"] for one in series if one.volume is not None]
    assert parts == [{"acquisition": 1}, {"acquisition": 2}]
    assert [voxels(one, tmp_path)[2, 3, 4] for one in series] == [7522, 8522]


def test_magnitude_and_phase_are_two_volumes(tmp_path: Path) -> None:
    """Parted by the type of image, of which known words are kept and others are not."""
    for k in range(6):
        for n, kind in enumerate(("M", "P")):
            pixels = VALUES[:, :, k].T + np.int16(1000 * n)
            words = ["ORIGINAL", "PRIMARY", kind, "JANE"]
            write(tmp_path / "x" / f"{k}{n}", pixels, position=(0, 0, k), ImageType=words)
    series = found(tmp_path).series
    parts = [one.volume.header.attrs["part"] for one in series if one.volume is not None]
    assert parts == [{"kind": "ORIGINAL\\PRIMARY\\M"}, {"kind": "ORIGINAL\\PRIMARY\\P"}]
    assert np.array_equal(voxels(series[1], tmp_path), VALUES + 1000)


def test_moments_are_steps_of_one_volume(tmp_path: Path) -> None:
    """Plain files with a temporal position make (steps, i, j, k)."""
    for moment in range(3):
        for k in range(6):
            pixels = VALUES[:, :, k].T + np.int16(100 * moment)
            write(
                tmp_path / f"{moment}-{k}",
                pixels,
                position=(0, 0, 3 * k),
                TemporalPositionIdentifier=moment + 1,
            )
    series = only(found(tmp_path))
    assert series.volume is not None
    assert series.volume.header.axis == "time"
    expected = np.stack([VALUES + 100 * moment for moment in range(3)])
    assert np.array_equal(voxels(series, tmp_path), expected)


def test_repeated_positions_that_nothing_tells_apart_are_refused(tmp_path: Path) -> None:
    """Instance numbers alone would part them in any way one likes."""
    for n in range(12):
        write(tmp_path / f"{n}", VALUES[:, :, n // 2].T, position=(0, 0, n // 2), InstanceNumber=n)
    (series,) = found(tmp_path).series
    assert "6 of 6 positions occur more than once (z = 0, z = 1" in series.problems[0]


def test_copy_of_an_instance_is_named_and_left_out(tmp_path: Path) -> None:
    """The same slice twice in a folder is one slice."""
    write_stack(tmp_path, VALUES)
    shutil.copy(tmp_path / "3.dcm", tmp_path / "again.dcm")
    findings = found(tmp_path)
    assert np.array_equal(voxels(only(findings), tmp_path), VALUES)
    assert reasons(findings) == {"again.dcm": "the same instance as 3.dcm"}


def test_same_uid_at_other_places_is_no_copy(tmp_path: Path) -> None:
    """A careless tool gave all slices one instance UID; none is lost."""
    write_stack(tmp_path, VALUES, instance="1.2.3.4")
    assert np.array_equal(voxels(only(found(tmp_path)), tmp_path), VALUES)


def test_series_may_be_spread_over_folders(tmp_path: Path) -> None:
    """A disc with a few slices in each folder; named by the folder they share."""
    for k, path in enumerate(write_stack(tmp_path, VALUES)):
        folder = tmp_path / "disc" / f"{k % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        path.rename(folder / path.name)
    series = only(found(tmp_path))
    assert series.name == "disc"
    assert np.array_equal(voxels(series, tmp_path), VALUES)


def test_copies_of_a_series_are_volumes_of_their_own(tmp_path: Path) -> None:
    """The same instances in two folders: each folder is taken by itself."""
    write_stack(tmp_path / "a", VALUES)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert [one.name for one in found(tmp_path).series if one.volume] == ["a", "b"]


def test_series_of_the_searched_folder_has_its_name(tmp_path: Path) -> None:
    """Files that lie at the top have no folder to be named by."""
    write_stack(tmp_path / "brain", VALUES)
    assert only(found(tmp_path / "brain")).name == "brain"


def test_scout_in_a_series_is_reported_by_itself(tmp_path: Path) -> None:
    """Another plane and size: the volume is whole, and keeps its plain name."""
    values = numbered((8, 9, 10))
    write_stack(tmp_path / "scout", values)
    write(
        tmp_path / "scout" / "plan.dcm",
        np.zeros((12, 12), "i2"),
        position=(4, -10, 40),
        orientation=(0, 1, 0, 0, 0, -1),
        spacing=(3, 3),
    )
    findings = found(tmp_path)
    series = only(findings)
    assert series.name == "scout"
    assert np.array_equal(voxels(series, tmp_path), values)
    assert list(reasons(findings)) == ["plan.dcm"]
    assert "planes not parallel" in reasons(findings)["plan.dcm"]


@pytest.mark.parametrize("name", ["98892003/MR2", "98892003/MR700", "98892001/CT2N"])
def test_planes_that_are_not_parallel_are_no_volume(tmp_path: Path, name: str) -> None:
    """Rotating planes and crossing scouts: every file is named, none is stacked."""
    findings = found(FOLDERS / name)
    assert all(series.volume is None for series in findings.series)
    told = reasons(findings)
    assert sorted(told) == sorted(path.name for path in (FOLDERS / name).iterdir())
    assert all("not parallel" in text or "single slice" in text for text in told.values())
    alone = found(FOLDERS / name, allow_single=True)
    shapes = [one.volume.header.shape[2] for one in alone.series if one.volume is not None]
    assert shapes == [1] * len(told)
    affines = {str(one.volume.header.affine) for one in alone.series if one.volume is not None}
    assert len(affines) == len(told)


def test_broken_slice_refuses_its_series(tmp_path: Path) -> None:
    """Left out silently, the last slice would be missing and nobody the wiser."""
    paths = write_stack(tmp_path, VALUES)
    paths[-1].write_bytes(paths[-1].read_bytes()[:-20])
    findings = found(tmp_path)
    assert [series.volume for series in findings.series] == [None]
    assert findings.series[0].problems == (
        "5.dcm: it is cut short: 144 bytes of pixels are expected, 124 are there",
    )


def test_slice_that_nobody_can_place_refuses_its_series(tmp_path: Path) -> None:
    """A position that cannot be read may be the one that is missing at the end."""
    paths = write_stack(tmp_path, VALUES)
    data = paths[-1].read_bytes()
    assert data.count(b"0.0\\0.0\\15.0") == 1
    paths[-1].write_bytes(data.replace(b"0.0\\0.0\\15.0", b"0.0\\0.0\\1x.0"))
    findings = found(tmp_path)
    assert all(series.volume is None for series in findings.series)
    assert "5.dcm: its ImagePositionPatient cannot be read" in findings.series[0].problems


def test_picture_of_another_kind_does_no_harm(tmp_path: Path) -> None:
    """A coloured screen shot in the same series is refused by itself."""
    write_stack(tmp_path, VALUES)
    shot = np.zeros((9, 8), "u1")
    write(tmp_path / "shot.dcm", shot, position=None, PhotometricInterpretation="PALETTE COLOR")
    findings = found(tmp_path)
    assert np.array_equal(voxels(only(findings), tmp_path), VALUES)
    assert "PALETTE COLOR" in reasons(findings)["shot.dcm"]


def test_what_is_no_picture_is_left_out_with_a_reason(tmp_path: Path) -> None:
    """Reports, plans, indexes, label objects, tables of colours, and files of another kind."""
    expected = {
        "reportsi.dcm": "not a picture (Basic Text SR Storage)",
        "rtplan.dcm": "not a picture (RT Plan Storage)",
        "rtstruct.dcm": "not a picture",
        "waveform_ecg.dcm": "not a picture (12-lead ECG Waveform Storage)",
        "liver_1frame.dcm": "a segmentation object",
        "examples_palette.dcm": "PALETTE COLOR",
        "zipMR.gz": "inside gzip",
        "README.txt": "not a DICOM file",
    }
    for name in expected:
        shutil.copy(FILES / name, tmp_path / name)
    shutil.copy(FOLDERS / "DICOMDIR", tmp_path / "DICOMDIR")
    (tmp_path / "empty").touch()
    told = reasons(found(tmp_path))
    assert "an index of other files" in told.pop("DICOMDIR")
    assert told.pop("empty") == "not a DICOM file"
    assert told.keys() == expected.keys()
    for name, text in expected.items():
        assert text in told[name]


def test_mosaics_are_refused(tmp_path: Path) -> None:
    """Tiles of one picture are not one slice."""
    write(tmp_path / "0", VALUES[:, :, 0].T, ImageType=["ORIGINAL", "PRIMARY", "M", "MOSAIC"])
    (series,) = found(tmp_path, allow_single=True).series
    assert "MOSAIC" in series.problems[0]


def write_ward(folder: Path) -> None:
    """Write a series full of names."""
    tags: dict[str, Any] = {
        "PatientName": "DOE^JANE",
        "PatientID": "HOSP-4711",
        "PatientBirthDate": "19700131",
        "InstitutionName": "ST ELSEWHERE",
        "StudyDescription": "for Jane Doe",
        "SeriesDescription": "JANE",
        "RescaleType": "JANE",
        "StackID": "DOE",
        "Modality": "CT",
        "ImageType": ["DOE", "JANE"],
        "KVP": 120,
    }
    for path in write_stack(folder, VALUES, **tags):
        data = pydicom.dcmread(path)
        data.private_block(0x0009, "ACME", create=True).add_new(1, "LO", "JANE DOE")
        data.save_as(path)


def told_of(findings: DicomFindings) -> str:
    """Return all that findings say, as one text."""
    texts: list[Any] = [list(series.problems) for series in findings.series]
    texts += [reason for _, reason in findings.left_out]
    for series in findings.series:
        if series.volume is not None:
            header = series.volume.header
            texts += [dict(header.attrs), list(header.remarks)]
    return json.dumps(texts)


def test_nothing_that_names_a_patient_is_kept(tmp_path: Path) -> None:
    """Neither attributes, nor remarks, nor reasons; what is kept is a documented list."""
    write_ward(tmp_path / "ward")
    write_ward(tmp_path / "cut")
    last = tmp_path / "cut" / "5.dcm"
    last.write_bytes(last.read_bytes()[:-20])
    told = told_of(found(tmp_path))
    for needle in ("DOE", "JANE", "Jane", "HOSP", "1970", "ELSEWHERE", str(tmp_path)):
        assert needle not in told
    series = only(found(tmp_path / "ward"))
    assert series.volume is not None
    assert series.volume.header.attrs == {
        "modality": "CT",
        "photometric": "MONOCHROME2",
        "file_dtype": "int16",
        "bits_stored": 16,
    }


def test_wanted_tags_are_kept(tmp_path: Path) -> None:
    """By their keywords; a value that differs between slices is a list along k."""
    write_ward(tmp_path)
    for k in range(6):
        data = pydicom.dcmread(tmp_path / f"{k}.dcm")
        data.InstanceNumber = 6 - k
        data.save_as(tmp_path / f"{k}.dcm")
    series = only(found(tmp_path, keep_tags=("KVP", "InstanceNumber", "PatientSex")))
    assert series.volume is not None
    tags = series.volume.header.attrs["tags"]
    assert tags == {"KVP": 120.0, "InstanceNumber": [6, 5, 4, 3, 2, 1]}
    json.dumps(tags)


@pytest.mark.parametrize("name", ["PatientsName", "kvp", "PixelData", "ReferencedImageSequence"])
def test_tags_that_cannot_be_kept_are_refused(tmp_path: Path, name: str) -> None:
    """Unknown names, sequences and bytes, before any file is read."""
    with pytest.raises(OptionError, match=name):
        find_series(tmp_path, [tmp_path / "none"], keep_tags=(name,))


def test_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other files are not touched by that."""
    write(tmp_path / "0", VALUES[:, :, 0].T)
    (tmp_path / "notes.txt").write_text("nothing to see here, and not for pydicom either " * 4)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'sharedds\[medical\]'"):
        found(tmp_path)
    assert find_series(tmp_path, [tmp_path / "notes.txt"]).series == ()


def test_progress_counts_headers(tmp_path: Path) -> None:
    """Once after each file, with the number of all."""
    seen: list[tuple[int, int]] = []
    find_series(tmp_path, write_stack(tmp_path, VALUES), progress=lambda *now: seen.append(now))
    assert seen == [(n, 6) for n in range(1, 7)]


def test_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """A file that went away is left out with the reason of the system."""
    write_stack(tmp_path / "a", VALUES)
    gone = tmp_path / "gone.dcm"
    findings = find_series(tmp_path, [*(tmp_path / "a").iterdir(), gone])
    assert only(findings).name == "a"
    assert reasons(findings)["gone.dcm"] == "gone.dcm cannot be read: No such file or directory"


def test_damaged_headers_never_raise(tmp_path: Path) -> None:
    """A header with any of its bytes changed gives a volume or a reason."""
    write_ward(tmp_path / "w")
    good = (tmp_path / "w" / "0.dcm").read_bytes()
    random = np.random.default_rng(0)
    folder = tmp_path / "x"
    folder.mkdir()
    for n in range(150):
        data = bytearray(good)
        for at in random.integers(132, len(good) - 144, 3):
            data[at] = random.integers(256)
        (folder / f"{n}").write_bytes(data[: len(data) - n % 3 * 100])
    for path in sorted(folder.iterdir()):
        findings = find_series(folder, [path], allow_single=True)
        assert len(findings.left_out) + sum(one.volume is not None for one in findings.series) == 1


def test_filters_of_warnings_are_put_back(tmp_path: Path) -> None:
    """Also when several threads read at the same time."""
    write_stack(tmp_path, VALUES)
    before = list(warnings.filters)
    threads = [threading.Thread(target=found, args=(tmp_path,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(warnings.filters) == before


def test_real_series_equals_its_slices_by_hand(tmp_path: Path) -> None:
    """17 slices of a CT: every value, and the affine of the first and last position."""
    folder = Path(__file__).parents[2] / "shared" / "data" / "medical" / "ct_series"
    if not folder.is_dir():
        pytest.skip(f"no real series at {folder}")
    slices = sorted(
        (read_by_hand(path) for path in folder.iterdir()),
        key=lambda data: float(data.ImagePositionPatient[2]),
    )
    series = only(found(folder))
    by_hand = np.stack([data.pixel_array.T for data in slices], -1).astype(np.float64)
    slope, intercept = float(slices[0].RescaleSlope), float(slices[0].RescaleIntercept)
    assert np.array_equal(measured(series, tmp_path), by_hand * slope + intercept)
    assert series.volume is not None
    affine = series.volume.header.affine
    assert affine is not None
    for k, data in ((0, slices[0]), (16, slices[16])):
        x, y, z = (float(value) for value in data.ImagePositionPatient)
        assert np.allclose(affine @ (0, 0, k, 1), (-x, -y, z, 1), rtol=0, atol=1e-4)
