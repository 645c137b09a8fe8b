"""Folders of volumes on their way into a store: voxels, geometry, labels, and what is refused."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from packing import events
from volumes import failed, grids, idx, labels_of, nib, nifti, packed, raw_nifti, sform, stored

from sharedds.errors import SampleKeyError
from sharedds.ingest import PackReport
from sharedds.store import Store, verify

NIBABEL = Path(nib.__file__).parent / "tests" / "data"


# --- images ---


def test_voxels_and_geometry_are_those_of_the_file(tmp_path: Path) -> None:
    """In the dtype, order and place that nibabel gives, and the store proves itself."""
    affine = np.array([[0, -2, 0, 7], [1.5, 0, 0, -3], [0, 0, 4, 1], [0, 0, 0, 1.0]])
    nifti(tmp_path / "src/a/x.nii.gz", idx((20, 30, 10)), affine)
    report = packed(tmp_path)
    array = stored(report, "a/x")
    assert np.array_equal(array[:, :, :], idx((20, 30, 10)))
    assert array.dtype == np.int16
    assert np.allclose(array.affine, affine)
    assert np.allclose(array.attrs["spacing"], (1.5, 2, 4))
    assert array.attrs["orientation"] == "ALS"
    assert array.attrs["format"] == "NIfTI-1"
    store = Store(report.path)
    assert store.value("shape", 0).tolist() == [1, 20, 30, 10]
    assert store.fields == ("image", "shape")
    assert verify(report.path).ok


def test_factors_are_kept_and_values_are_not_blown_up(tmp_path: Path) -> None:
    """0 and NaN mean none; 64-bit values are narrowed where every one stays what it is."""
    a = idx((20, 21, 10))
    for name, slope, intercept in (("half", 0.5, -10), ("zero", 0, 7), ("nan", np.nan, np.nan)):
        raw_nifti(tmp_path / f"src/{name}.nii", a, scl_slope=slope, scl_inter=intercept)
    raw_nifti(tmp_path / "src/wide.nii", a.astype("<i8"))
    raw_nifti(tmp_path / "src/eighths.nii", a.astype("<f8") / 8)
    raw_nifti(tmp_path / "src/thirds.nii", a.astype("<f8") / 3)
    shutil.copy(NIBABEL / "functional.nii", tmp_path / "src")
    report = packed(tmp_path)
    kinds = {name: stored(report, name).dtype.name for name in
             ("half", "zero", "nan", "wide", "functional", "eighths", "thirds")}  # fmt: skip
    assert kinds == dict.fromkeys(("half", "zero", "nan", "wide", "functional"), "int16") | {
        "eighths": "float32",
        "thirds": "float64",
    }
    assert stored(report, "half").read()[3, 4, 5] == 4071.5
    assert stored(report, "zero").read()[3, 4, 5] == stored(report, "nan")[3, 4, 5] == 8163
    assert "slope" not in stored(report, "zero").attrs
    functional = stored(report, "functional")
    assert functional.attrs["slope"] == pytest.approx(0.07540696859359741, rel=1e-12)
    assert functional.attrs["intercept"] == 3100.76171875
    assert functional.read()[0, 0, 0, 0] == pytest.approx(4004.137, abs=1e-3)


def test_placements_that_disagree_are_told_and_one_is_chosen(tmp_path: Path) -> None:
    """The sform, unless asked otherwise; with the distance, and that left and right change."""
    a = idx((20, 30, 10))
    one = np.array([[2, 0, 0, -28], [0, 2, 0, -38], [0, 0, 2, -16], [0, 0, 0, 1.0]])
    other = np.array([[-2, 0, 0, 30], [0, 2, 0, -40], [0, 0, 2, -16], [0, 0, 0, 1.0]])
    raw_nifti(tmp_path / "src/both.nii", a, qform=other, **sform(one))
    raw_nifti(tmp_path / "src/same.nii", a, qform=one, **sform(one))
    report = packed(tmp_path)
    assert np.allclose(stored(report, "both").affine, one)
    ((case, text),) = report.remarks
    assert case == "both"
    assert "58.03" in text
    assert "left-right" in text or "left and right" in text
    assert [line for line in events(report.report) if line["event"] == "remark"]
    report = packed(tmp_path, prefer="qform")
    assert np.allclose(stored(report, "both").affine, other)
    assert Store(report.path).attrs["options"]["prefer"] == "qform"
    report = packed(tmp_path, prefer="refuse")
    assert "58.03 mm apart" in failed(report)["both.nii"]
    assert report.samples == 1


def test_big_endian_files_are_stored_as_any_other(tmp_path: Path) -> None:
    """The same bytes as of a little-endian copy."""
    shutil.copytree(NIBABEL, tmp_path / "all", ignore=lambda *_: [])
    image = nib.load(tmp_path / "all/anatomical.nii")
    data = np.asanyarray(image.dataobj)
    (tmp_path / "src/be").mkdir(parents=True)
    shutil.copy(NIBABEL / "anatomical.nii", tmp_path / "src/be/i2.nii")
    raw_nifti(tmp_path / "src/le/i2.nii", data.astype("<i2"), **sform(image.affine))
    report = packed(tmp_path)
    store = Store(report.path)
    be, le = store.index_of("be/i2"), store.index_of("le/i2")
    array = store.array(be, "image")
    assert array.dtype.str == "<i2"
    assert np.array_equal(array[:], store.array(le, "image")[:])
    assert array.shape == (33, 41, 25)
    assert array[0, 0, 0:3].tolist() == [10712, 8026, 6855]
    assert array.affine is not None
    assert np.array_equal(array.affine, np.asarray(store.array(le, "image").affine))


def test_cut_and_damaged_files_are_refused_and_the_rest_is_packed(tmp_path: Path) -> None:
    """With both sizes; padding is no damage; no record of a bad file exists."""
    good = (NIBABEL / "anatomical.nii").read_bytes()
    gz = gzip.compress(good, mtime=0)
    bad = {
        "cut.nii": good[:60000],
        "cut1.nii": good[:-1],
        "cutgz.nii.gz": gz[: len(gz) * 7 // 10],
        "crc.nii.gz": gz[:-8] + bytes([gz[-8] ^ 1]) + gz[-7:],
        "none.nii": b"",
    }
    fine = {
        "good.nii": good,
        "tail.nii": good + bytes(1000),
        "tailgz.nii.gz": gz + bytes(512),
        "members.nii.gz": gzip.compress(good[:30000]) + gzip.compress(good[30000:]),
    }
    (tmp_path / "src").mkdir()
    for name, data in {**bad, **fine}.items():
        (tmp_path / "src" / name).write_bytes(data)
    report = packed(tmp_path)
    reasons = failed(report)
    assert set(reasons) == set(bad)
    assert "68,002" in reasons["cut.nii"].replace("68002", "68,002")
    assert "60,000" in reasons["cut.nii"].replace("60000", "60,000")
    assert report.samples == len(fine)
    store = Store(report.path)
    with pytest.raises(SampleKeyError):
        store.index_of("cut")
    values = {store.array(number, "image")[:].tobytes() for number in range(len(store))}
    assert len(values) == 1
    assert str(tmp_path) not in json.dumps(report.failed)


def test_the_fourth_axis_is_time_or_channels(tmp_path: Path) -> None:
    """It comes first; one step is none, and a volume of one slice keeps its three axes."""
    a = idx((20, 21, 10))
    raw_nifti(tmp_path / "src/one.nii", a[..., None])
    stack = np.stack([a, a + 5000, a + 9000], -1)
    raw_nifti(tmp_path / "src/modal.nii", stack, pixdim=[1, 1, 1, 1, 0, 0, 0, 0])
    raw_nifti(tmp_path / "src/flat.nii", idx((20, 21, 1)))
    shutil.copy(NIBABEL / "functional.nii", tmp_path / "src")
    report = packed(tmp_path)
    assert stored(report, "one").shape == (20, 21, 10)
    assert stored(report, "flat").shape == (20, 21, 1)
    modal = stored(report, "modal")
    assert modal.shape == (3, 20, 21, 10)
    assert modal[:, 3, 4, 5].tolist() == [8163, 13163, 17163]
    assert modal.chunk[0] == 1
    assert modal.attrs["axis"] == "channel"
    functional = stored(report, "functional")
    assert functional.shape == (20, 17, 21, 3)
    assert (functional.attrs["axis"], functional.attrs["step_seconds"]) == ("time", 2.0)
    assert Store(report.path).value("shape", 1).tolist() == [20, 17, 21, 3]


def test_modalities_of_a_patient_are_channels_of_one_image(tmp_path: Path) -> None:
    """In the order of their names; a patient whose grids differ is refused."""
    a = idx((12, 13, 6))
    for patient in ("p1", "p2"):
        nifti(tmp_path / f"src/{patient}/t1.nii", a)
        nifti(tmp_path / f"src/{patient}/t2.nii", a + 1)
        nifti(tmp_path / f"src/{patient}/seg.nii", (a % 3 == 0).astype("u1"))
    nifti(tmp_path / "src/p2/t2.nii", a, np.diag([1, 1, 2.0, 1]))
    report = packed(tmp_path)
    array = stored(report, "p1")
    assert array.attrs["channels"] == ["t1", "t2"]
    assert np.array_equal(array[:], np.stack([a, a + 1]))
    assert labels_of(report, "p1")[1] == np.count_nonzero(a % 3 == 0)
    assert "elsewhere than p2/t1.nii" in failed(report)["p2/t2.nii"]


def test_nnunet_raw_with_names_of_channels_and_classes(tmp_path: Path) -> None:
    """From dataset.json, which is no volume and not lost either."""
    a = idx((12, 13, 6))
    for name in ("x_001", "x_002"):
        nifti(tmp_path / f"src/imagesTr/{name}_0000.nii.gz", a)
        nifti(tmp_path / f"src/imagesTr/{name}_0001.nii.gz", a + 1)
        nifti(tmp_path / f"src/labelsTr/{name}.nii.gz", (a % 2).astype("u1"))
    text = '{"channel_names": {"0": "T2", "1": "ADC"}, "labels": {"background": 0, "PZ": 1}}'
    (tmp_path / "src/dataset.json").write_text(text)
    report = packed(tmp_path)
    assert report.layout == "nnU-Net raw"
    assert stored(report, "x_001").attrs["channels"] == ["T2", "ADC"]
    store = Store(report.path)
    assert store.attrs["class_names"] == {"0": "background", "1": "PZ"}
    assert store.attrs["kind"] == "volume"
    assert [item["example"] for item in report.left_out] == ["dataset.json"]


# --- labels ---


LAB = np.broadcast_to(np.arange(8.0)[:, None, None], (8, 12, 13))


@pytest.fixture(scope="module")
def scaled_labels(tmp_path_factory: pytest.TempPathFactory) -> PackReport:
    """Labels as people store them: through scale factors, as wide integers, with NaN."""
    place = tmp_path_factory.mktemp("labels")
    labels = place / "src/labels"
    for name, kind, factor in (("scaled", "<i2", 1), ("coarse", "u1", 300 / 7),
                               ("probs", "<f4", 1 / 7)):  # fmt: skip
        values = np.round(LAB * factor) if factor > 1 else LAB * factor
        image = nib.Nifti1Image(values, np.eye(4))
        image.header.set_data_dtype(kind)
        labels.mkdir(parents=True, exist_ok=True)
        nib.save(image, labels / f"{name}.nii")
    ids = np.array([0, 1, 255, 256, 300, 512, 70000, 70000])
    raw_nifti(labels / "ids.nii", np.broadcast_to(ids[:, None, None], LAB.shape).astype("<i4"))
    raw_nifti(labels / "wide.nii", LAB.astype("<i8"))
    raw_nifti(labels / "ignore.nii", np.where(LAB == 7, -1, LAB).astype("<i2"))
    raw_nifti(labels / "nan.nii", np.where(LAB == 7, np.nan, LAB).astype("<f4"))
    for name in ("scaled", "coarse", "probs", "ids", "wide", "ignore", "nan"):
        raw_nifti(place / f"src/images/{name}.nii", np.zeros(LAB.shape, "<i2"))
    return packed(place)


def test_labels_are_whole_numbers_of_the_smallest_dtype(scaled_labels: PackReport) -> None:
    """No class is lost by a cast, none wraps, and negative ids stay negative."""
    assert labels_of(scaled_labels, "scaled") == dict.fromkeys(range(8), 156)
    assert labels_of(scaled_labels, "ids") == {
        0: 156, 1: 156, 255: 156, 256: 156, 300: 156, 512: 156, 70000: 312,
    }  # fmt: skip
    kinds = {
        name: stored(scaled_labels, name, "label").dtype.name
        for name in ("scaled", "ids", "wide", "ignore")
    }
    assert kinds == {"scaled": "uint8", "ids": "uint32", "wide": "uint8", "ignore": "int8"}
    assert np.array_equal(stored(scaled_labels, "ignore", "label")[:], np.where(LAB == 7, -1, LAB))


def test_labels_that_are_none_are_refused_with_the_count(scaled_labels: PackReport) -> None:
    """By the name of the label, not of the image."""
    reasons = failed(scaled_labels)
    assert set(reasons) == {"labels/coarse.nii", "labels/nan.nii", "labels/probs.nii"}
    assert reasons["labels/coarse.nii"].startswith("936 voxels")
    assert reasons["labels/probs.nii"].startswith("936 voxels")
    assert reasons["labels/nan.nii"].startswith("156 voxels of the label are NaN")


def test_the_histogram_of_a_label_is_that_of_its_blocks(tmp_path: Path) -> None:
    """Row by row as read back from the store, with ids from attrs."""
    rng = np.random.default_rng(0)
    label = rng.choice([0, 1, 7], (40, 50, 60), p=[0.9, 0.0999, 0.0001]).astype("u1")
    label[:, :25] = 0
    nifti(tmp_path / "src/images/x.nii.gz", idx(label.shape))
    nifti(tmp_path / "src/labels/x.nii.gz", label)
    nifti(tmp_path / "src/images/y.nii.gz", idx((5, 6, 7)))
    report = packed(tmp_path, patch=(16, 16, 16))
    array = stored(report, "x", "label")
    store = Store(report.path)
    rows = store.value("label_blocks", 0)
    assert rows.dtype == np.int64
    grid = tuple(-(-n // c) for n, c in zip(array.shape, array.chunk, strict=True))
    at = 0
    for each, count in zip(array.attrs["classes"], array.attrs["rows"], strict=True):
        some = rows[at : at + count]
        assert np.all(np.diff(some[:, 0]) > 0)
        for number, voxels in some.tolist():
            place = np.unravel_index(number, grid)
            region = tuple(
                slice(p * c, (p + 1) * c) for p, c in zip(place, array.chunk, strict=True)
            )
            assert voxels == np.count_nonzero(array[region] == each) > 0
        assert some[:, 1].sum() == np.count_nonzero(label == each)
        at += count
    assert at == len(rows)
    assert store.value("label", 1) is None
    assert store.value("label_blocks", 1).shape == (0, 2)
    assert any("1 of 2 cases have no label, such as y" in text for text in report.warnings)


def test_labels_of_another_grid_are_turned_or_refused(tmp_path: Path) -> None:
    """Never cut voxel by voxel from the wrong place."""
    lab = grids(tmp_path)
    report = packed(tmp_path)
    for name in ("same", "tiny", "flip"):
        assert np.array_equal(stored(report, name, "label")[:], lab)
    reasons = failed(report)
    assert set(reasons) == {"labels/shift.nii", "labels/long.nii", "labels/swap.nii"}
    assert "6 mm (2 voxels)" in reasons["labels/shift.nii"]
    assert "--resample-labels" in reasons["labels/shift.nii"]
    for name, shape in (("long", "(30, 38, 13)"), ("swap", "(38, 30, 12)")):
        assert shape in reasons[f"labels/{name}.nii"]
        assert "(30, 38, 12)" in reasons[f"labels/{name}.nii"]
    told = {case for case, _ in report.remarks}
    assert told <= {"bare"}


def test_labels_are_resampled_when_asked(tmp_path: Path) -> None:
    """Nearest neighbour: no new value, and shifted by what the affines say."""
    lab = grids(tmp_path)
    report = packed(tmp_path, resample_labels=True)
    shifted = stored(report, "shift", "label")[:]
    assert np.array_equal(shifted[:, :, 2:], lab[:, :, :-2])
    assert not shifted[:, :, :2].any()
    assert set(labels_of(report, "shift")) == {0, 1}
    assert np.allclose(stored(report, "shift", "label").affine, stored(report, "shift").affine)
