"""Where the slices of DICOM files lie: order, affine, spacing, and frames within one file."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pydicom = pytest.importorskip("pydicom")

from dicom_files import (  # noqa: E402 - needs pydicom
    AXIAL,
    FILES,
    FOLDERS,
    found,
    item,
    measured,
    numbered,
    only,
    voxels,
    write,
    write_enhanced,
)

from sharedds.volumes.dicom import Series  # noqa: E402
from sharedds.volumes.geometry import orientation_of, spacing_of  # noqa: E402

VALUES = numbered((8, 9, 12))


def affine(series: Series) -> list[list[float]]:
    """Return the affine, rounded to a ten thousandth of a millimetre."""
    assert series.volume is not None
    assert series.volume.header.affine is not None
    return np.round(series.volume.header.affine, 4).tolist()  # type: ignore[no-any-return]


def write_shuffled(folder: Path) -> None:
    """Write VALUES with names, numbers and locations in an order of their own; some without."""
    for n, k in enumerate(np.random.default_rng(0).permutation(12)):
        numbers: dict[str, Any] = (
            {"InstanceNumber": n + 1, "SliceLocation": float(n)} if n % 4 else {}
        )
        pixels = VALUES[:, :, k].T
        write(folder / f"a{n:03d}", pixels, position=(5, -7, 3 * k - 16), **numbers)
        write(
            folder / f"c{n:03d}",
            pixels,
            position=(5, 4 * k - 7, 30),
            orientation=(1, 0, 0, 0, 0, -1),
            spacing=(2, 1),
            series="1.2.4",
            **numbers,
        )


def test_axial_slices_are_ordered_by_position(tmp_path: Path) -> None:
    """Neither names, nor instance numbers, nor slice locations count, and none is needed."""
    write_shuffled(tmp_path / "x")
    axial = found(tmp_path).series[0]
    assert np.array_equal(voxels(axial, tmp_path), VALUES)
    assert affine(axial) == [[-1, 0, 0, -5], [0, -1, 0, 7], [0, 0, 3, -16], [0, 0, 0, 1]]


def test_coronal_slices_keep_row_and_column_distance_apart(tmp_path: Path) -> None:
    """The first number of PixelSpacing is the distance of rows, along j."""
    write_shuffled(tmp_path / "x")
    coronal = found(tmp_path).series[1]
    assert np.array_equal(voxels(coronal, tmp_path), VALUES)
    assert affine(coronal) == [[-1, 0, 0, -5], [0, 0, -4, 7], [0, -2, 0, 30], [0, 0, 0, 1]]


def test_real_slices_against_their_instance_numbers(tmp_path: Path) -> None:
    """Here the numbers rise as the slices go down; positions decide."""
    folder = tmp_path / "ct"
    folder.mkdir()
    for name, path in zip("dbeac", sorted((FOLDERS / "98892001" / "CT5N").iterdir()), strict=True):
        shutil.copy(path, folder / name)
    series = only(found(tmp_path))
    assert affine(series) == [
        [-0.4883, 0, 0, 72.2],
        [0, -0.4883, 0, 143],
        [0, 0, 2.5, -1.2375],
        [0, 0, 0, 1],
    ]
    values = measured(series, tmp_path)
    assert values.shape == (16, 16, 5)
    assert values[0, 0].tolist() == [-33, 10, -49, -26, -50]
    assert values[5, 7].tolist() == [-127, -15, 23, 47, -5]


def test_names_of_files_change_nothing(tmp_path: Path) -> None:
    """Renamed files give the same header and the same voxels."""
    seen = []
    for names in (range(5), (3, 1, 4, 0, 2)):
        folder = tmp_path / f"{names}"
        folder.mkdir()
        for name, path in zip(names, sorted((FOLDERS / "98892001/CT5N").iterdir()), strict=True):
            shutil.copy(path, folder / str(name))
        series = only(found(folder))
        assert series.volume is not None
        header = series.volume.header
        facts = (header.attrs, header.shape, affine(series), header.slope, header.intercept)
        seen.append((facts, voxels(series, tmp_path).tobytes()))
    assert seen[0] == seen[1]


def test_big_endian_file_is_the_same_volume(tmp_path: Path) -> None:
    """Values are little-endian whatever the file is; the swapped reading would differ."""
    both = []
    for name in ("MR_small_bigendian", "MR_small"):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(FILES / f"{name}.dcm", folder / "1.dcm")
        series = only(found(folder, allow_single=True))
        values = voxels(series, tmp_path)
        assert (values.min(), values.max()) == (127, 2145)
        assert values.dtype.str == "<i2"
        both.append((values.tobytes(), affine(series)))
    assert both[0] == both[1]


def test_tilted_gantry_is_kept_as_a_shear(tmp_path: Path) -> None:
    """Slices shifted evenly against each other keep their places, and that is told."""
    tilt = np.radians(15)
    plane = (1, 0, 0, 0, np.cos(tilt), -np.sin(tilt))
    for k in range(12):
        write(tmp_path / "x" / f"{k}", VALUES[:, :, k].T, position=(0, 0, 3 * k), orientation=plane)
    series = only(found(tmp_path))
    assert [row[2] for row in affine(series)] == [0, 0, 3, 0]
    assert series.volume is not None
    assert "sheared by 15 degrees" in series.volume.header.remarks[0]


def test_slices_shifted_in_their_plane_are_refused(tmp_path: Path) -> None:
    """One slice that was moved sideways fits no grid."""
    for k in range(6):
        write(tmp_path / f"{k}", VALUES[:, :, k].T, position=(2.0 * (k == 3), 0, 3 * k))
    (series,) = found(tmp_path).series
    assert "z = 9 is shifted by 2 mm in its plane" in series.problems[0]


def test_positions_rounded_to_two_decimals_are_even(tmp_path: Path) -> None:
    """A distance of 0.625 mm written as 0.62 and 0.63 is no gap and not uneven."""
    for k in range(12):
        write(tmp_path / f"{k}", VALUES[:, :, k].T, position=(0, 0, round(0.625 * k, 2)))
    series = only(found(tmp_path))
    assert spacing_of(np.array(affine(series)))[2] == pytest.approx(0.625, abs=1e-3)


def test_single_slice_has_the_distance_that_its_file_states(tmp_path: Path) -> None:
    """SpacingBetweenSlices, else the thickness; else 1 mm, and that is told."""
    folders = {"both": (4.0, 2.0), "thick": (None, 2.0), "none": (None, None)}
    for name, (between, thick) in folders.items():
        write(
            tmp_path / name / "0",
            VALUES[:, :, 0].T,
            series=f"1.2.{ord(name[0])}",
            SpacingBetweenSlices=between,
            SliceThickness=thick,
        )
    series = found(tmp_path, allow_single=True).series
    assert [spacing_of(np.array(affine(one)))[2] for one in series] == [4, 1, 2]
    assert series[1].volume is not None
    assert any("1 mm is assumed" in remark for remark in series[1].volume.header.remarks)


def test_directions_that_are_no_right_angle_are_refused(tmp_path: Path) -> None:
    """A little off is kept and told; nonsense is refused."""
    slightly = (1, 0, 0, 0.0004, 1, 0)
    nonsense = (1, 0, 0, 1, 0, 0)
    for name, plane in (("a", slightly), ("b", nonsense)):
        for k in range(3):
            position = (0, 0, 3 * k)
            write(
                tmp_path / name / f"{k}",
                VALUES[:, :, k].T,
                position=position,
                orientation=plane,
                series=f"1.2.{ord(name)}",
            )
    a, b = found(tmp_path).series
    assert a.volume is not None
    assert "not quite orthonormal" in a.volume.header.remarks[0]
    assert "right angle" in b.problems[0]


def test_frames_of_an_enhanced_object_are_ordered_and_scaled_each(tmp_path: Path) -> None:
    """Positions and factors of the frames count, not their order or the slice thickness."""
    values = VALUES[:, :, :6]
    write_enhanced(tmp_path / "0", values, [(0, k) for k in (3, 0, 5, 1, 4, 2)])
    series = only(found(tmp_path))
    assert affine(series) == [[-0.8, 0, 0, -10], [0, -0.8, 0, 20], [0, 0, 2.5, 0], [0, 0, 0, 1]]
    expected = values.astype(np.float64) * np.arange(1, 7) - 100
    read = voxels(series, tmp_path)
    assert read.dtype == np.float32
    assert np.array_equal(read, expected)
    assert (read[7, 8, 5], read[2, 3, 4]) == (49862, 32510)


def test_moments_of_an_enhanced_object_are_steps(tmp_path: Path) -> None:
    """Two moments at the same places make (2, i, j, k), never twice as many slices."""
    values = VALUES[:, :, :6]
    order = [(moment, k) for k in range(6) for moment in (1, 0)]
    write_enhanced(tmp_path / "0", values, order, TemporalResolution=1500)
    series = only(found(tmp_path))
    assert series.volume is not None
    header = series.volume.header
    assert (header.axis, header.steps, header.shape) == ("time", 2, (8, 9, 6))
    assert header.step_seconds == 1.5
    read = voxels(series, tmp_path)
    assert (read[0, 2, 3, 4], read[1, 2, 3, 4]) == (32510, 35010)


def test_dose_lies_where_its_offsets_say(tmp_path: Path) -> None:
    """15 frames with a vector of offsets; the factor of the dose is the slope."""
    shutil.copy(FILES / "rtdose.dcm", tmp_path / "0.dcm")
    series = only(found(tmp_path))
    assert series.volume is not None
    assert series.volume.header.dtype == np.uint32
    assert series.volume.header.slope == pytest.approx(1e-6)
    read = measured(series, tmp_path)
    assert read.shape == (10, 10, 15)
    assert spacing_of(np.array(affine(series))) == (10, 10, 5)
    assert [row[3] for row in affine(series)[:3]] == [-189.4312, -199.4312, -761.87]
    assert read[0, 0, 0] == pytest.approx(1.249)
    assert read[9, 9, 14] == pytest.approx(0.799)
    assert (read.min(), read.max()) == (pytest.approx(0.795), pytest.approx(1.254))


def test_offsets_may_be_heights_in_the_patient(tmp_path: Path) -> None:
    """A vector that does not start at 0 holds heights; here they go down."""
    pixels = np.stack([VALUES[:, :, k].T for k in range(4)])
    write(
        tmp_path / "0",
        pixels,
        position=(0, 0, 60),
        kind="1.2.840.10008.5.1.4.1.1.481.2",
        GridFrameOffsetVector=[60, 57, 54, 51],
    )
    series = only(found(tmp_path))
    assert np.array_equal(voxels(series, tmp_path), VALUES[:, :, 3::-1])
    assert [row[3] for row in affine(series)] == [0, 0, 51, 1]


def test_slices_of_nuclear_medicine_follow_their_detector(tmp_path: Path) -> None:
    """The position is in the detector's item, the distance between slices may be negative."""
    pixels = np.stack([VALUES[:, :, k].T for k in range(4)])
    detector = item(ImagePositionPatient=[1, 2, 30], ImageOrientationPatient=list(AXIAL))
    write(
        tmp_path / "0",
        pixels,
        position=None,
        orientation=None,
        kind="1.2.840.10008.5.1.4.1.1.20",
        DetectorInformationSequence=detector,
        SliceVector=[1, 2, 3, 4],
        SpacingBetweenSlices=-4,
    )
    series = only(found(tmp_path))
    assert np.array_equal(voxels(series, tmp_path), VALUES[:, :, 3::-1])
    assert [row[3] for row in affine(series)] == [-1, -2, 18, 1]


def test_frames_without_places_are_refused(tmp_path: Path) -> None:
    """A film is not a volume, and nobody says otherwise."""
    write(tmp_path / "0", np.stack([VALUES[:, :, k].T for k in range(4)]), position=None)
    (series,) = found(tmp_path, allow_single=True).series
    assert "4 frames and does not say where they lie" in series.problems[0]


def test_frames_of_an_enhanced_object_without_places_are_refused(tmp_path: Path) -> None:
    """Neither a volume nor, when single slices are allowed, six of them."""
    path = write_enhanced(tmp_path / "0", VALUES, [(0, k) for k in range(6)])
    data = pydicom.dcmread(path)
    del data.PerFrameFunctionalGroupsSequence[3].PlanePositionSequence
    data.save_as(path)
    findings = found(tmp_path, allow_single=True)
    assert all(series.volume is None for series in findings.series)
    assert "does not say where each of them lies" in findings.left_out[0][1]


def test_real_enhanced_object_of_176_frames(tmp_path: Path) -> None:
    """Sagittal and oblique: shape, spacing and affine as stated for each frame."""
    nibabel = pytest.importorskip("nibabel")
    folder = Path(nibabel.__file__).parent / "nicom" / "tests" / "data"
    packed = (folder / "philips_mprage.dcm.gz").read_bytes()
    (tmp_path / "0.dcm").write_bytes(gzip.decompress(packed))
    series = only(found(tmp_path))
    expected: list[list[float]] = [
        [0.002201, 0.033794, 0.999428, -92.709042],
        [-0.997886, 0.064996, 0, 125.127670],
        [-0.064959, -0.997313, 0.033865, 136.495257],
        [0, 0, 0, 1],
    ]
    assert np.allclose(affine(series), expected, rtol=0, atol=1e-4)
    assert series.volume is not None
    assert series.volume.header.shape == (256, 256, 176)
    assert orientation_of(np.array(expected)) == "PIR"
    assert not voxels(series, tmp_path).any()
