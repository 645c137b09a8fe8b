"""What a pack of volumes found out: codecs of mixed dtypes, lists of cases, foreground, names."""

from __future__ import annotations

import json
import shutil
import struct
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dicom_files import FILES, numbered, write, write_enhanced, write_stack
from packing import run_script
from volumes import failed, idx, labels_of, nifti, packed, raw_nifti, stored

from sharedds.errors import OptionError, SourceError
from sharedds.ingest import pack, pack_volumes
from sharedds.ingest.volumes import codecs
from sharedds.ingest.volumes.scan import find_volumes
from sharedds.ingest.volumes.series import DicomRules
from sharedds.store import Store, blocking, verify

A = idx((12, 13, 6))
DECODERS = ("libjpeg", "pylibjpeg", "openjpeg", "rle", "gdcm", "jpeg_ls")


# --- codecs ---


def test_cases_of_several_dtypes_have_one_codec(tmp_path: Path) -> None:
    """The choice is made of blocks of each dtype; blocks of one are not decoded as another."""
    nifti(tmp_path / "src/images/a.nii", A)
    nifti(tmp_path / "src/images/b.nii", A.astype("f4") / 2)
    nifti(tmp_path / "src/images/c.nii", A.astype("u1"))
    nifti(tmp_path / "src/labels/a.nii", (A % 3).astype("u1"))
    nifti(tmp_path / "src/labels/b.nii", (A % 3 * 300).astype("i4"))
    report = packed(tmp_path, codec="auto")
    assert report.samples == 3
    assert np.array_equal(stored(report, "b")[:], A.astype("f4") / 2)
    assert np.array_equal(stored(report, "c")[:], A.astype("u1"))
    assert verify(report.path).ok


def test_the_clock_does_not_choose_the_codec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs give one digest, even if each way to code looks slow in one and fast in another."""
    rng = np.random.default_rng(0)
    nifti(tmp_path / "src/x.nii", rng.normal(0, 40, (64, 64, 64)).astype("<i2"))
    digests = set()
    for slow in ("raw", "blosc", "zstd"):

        def measured(blocks: Any, slow: str = slow) -> Any:
            choice = blocking.choose_codec(blocks)
            table = (
                replace(t, seconds_per_gb=9.0 if t.codec == slow else 0.1) for t in choice.table
            )
            return replace(choice, codec=slow, shuffle=False, table=tuple(table))

        monkeypatch.setattr(codecs, "choose_codec", measured)
        digests.add(packed(tmp_path, codec="auto").digest)
    assert len(digests) == 1


# --- foreground ---


def test_foreground_begins_above_the_lowest_value(tmp_path: Path) -> None:
    """Of a CT that is -1000 outside all of the body is kept, fat below 0 too."""
    a = np.full((20, 20, 10), -1000, "<i2")
    a[5:9, 6:12, 2:4] = -50
    nifti(tmp_path / "src/ct.nii", a)
    raw_nifti(tmp_path / "src/turned.nii", (-a).astype("<i2"), scl_slope=-1)
    steps = np.stack([a, a * 0], -1)
    raw_nifti(tmp_path / "src/steps.nii", steps, pixdim=[1, 1, 1, 1, 0, 0, 0, 0])
    nifti(tmp_path / "src/same.nii", np.full((4, 5, 6), -3, "<i2"))
    nan = np.where(a > -100, 3, np.nan).astype("f4")
    nan[0] = 1
    nifti(tmp_path / "src/nan.nii", nan)
    report = packed(tmp_path, crop_foreground=True)
    assert stored(report, "ct").shape == (4, 6, 2)
    assert np.all(stored(report, "turned").read() == -50)
    assert stored(report, "steps").shape == (2, 4, 6, 2)
    assert stored(report, "same").shape == (4, 5, 6)
    assert np.all(stored(report, "nan")[:] == 3)
    report = packed(tmp_path, crop_foreground=-40)
    assert stored(report, "ct").shape == (20, 20, 10)


# --- lists of cases ---


@pytest.mark.parametrize("mark", [",", ";", "\t"], ids=["comma", "semicolon", "tab"])
def test_a_list_may_be_written_by_a_spreadsheet(tmp_path: Path, mark: str) -> None:
    """With a mark at its start, other separators, and empty rows."""
    nifti(tmp_path / "src/a.nii", A)
    nifti(tmp_path / "src/b.nii", A)
    rows = [["Case", "Image", "Group"], ["", "", ""], ["A", "a.nii", "train"], ["B", "./b.nii", ""]]
    text = "\r\n".join(mark.join(row) for row in rows)
    (tmp_path / "cases.csv").write_text(text, "utf-8-sig")
    report = packed(tmp_path, labels=tmp_path / "cases.csv")
    store = Store(report.path)
    assert [store.key(n) for n in range(2)] == ["A", "B"]
    assert [store.value("group", n) for n in range(2)] == ["train", ""]


def test_paths_of_a_list_may_be_relative_to_it(tmp_path: Path) -> None:
    """Where the folder that is packed has no such file."""
    nifti(tmp_path / "src/a.nii", A)
    (tmp_path / "cases.csv").write_text("case,image\nA,src/a.nii\n")
    assert packed(tmp_path, labels=tmp_path / "cases.csv").samples == 1


@pytest.mark.parametrize(
    "rows", ["case,image,label\nA,a.nii,a.nii\n", "case,image\nA,a.nii\nA,a.nii\n"],
    ids=["label", "channel"],
)  # fmt: skip
def test_a_file_is_not_twice_in_a_case(tmp_path: Path, rows: str) -> None:
    """An image that is its own label is a slip of the pen."""
    nifti(tmp_path / "src/a.nii", A)
    (tmp_path / "cases.csv").write_text(rows)
    with pytest.raises(OptionError, match=r"the case 'A' has a\.nii twice"):
        packed(tmp_path, labels=tmp_path / "cases.csv")


# --- pictures or volumes ---


def test_slices_without_extensions_beside_pictures_are_a_question(tmp_path: Path) -> None:
    """They would be left out as files that are no pictures."""
    write_stack(tmp_path / "src/s", A)
    for path in (tmp_path / "src/s").iterdir():
        path.rename(path.with_suffix(""))
    (tmp_path / "src/thumb.png").write_bytes(b"\x89PNG")
    with pytest.raises(OptionError, match="holds pictures and volumes"):
        pack(tmp_path / "src", tmp_path / "out.lmdb")


# --- what is told ---


def test_what_image_and_label_share_is_told_once(tmp_path: Path) -> None:
    """And of the label it is said that it is the label."""
    place: dict[str, Any] = {"srow_x": (2, 0, 0, 0), "srow_y": (0, 2, 0, 0), "srow_z": (0, 0, 2, 0)}
    for name, side in (("same", 1), ("other", 3)):
        raw_nifti(tmp_path / f"src/images/{name}.nii", A, **place, sform_code=1)
        raw_nifti(
            tmp_path / f"src/labels/{name}.nii", (A % 2).astype("u1"), **place, sform_code=1,
            pixdim=[1, side, side, side, 0, 0, 0, 0],
        )  # fmt: skip
    remarks = packed(tmp_path).remarks
    assert [case for case, _ in remarks] == ["other", "other", "same"]
    assert remarks[1][1].startswith("of the label: pixdim says 3 x 3 x 3 mm")


def test_a_slice_that_fits_nowhere_is_named_by_its_file(tmp_path: Path) -> None:
    """Not by the folder of the series, whose other slices are packed."""
    write_stack(tmp_path / "src/scout", A)
    write(
        tmp_path / "src/scout/plan.dcm", np.zeros((12, 12), "<i2"), position=(4, -10, 40),
        orientation=(0, 1, 0, 0, 0, -1),
    )  # fmt: skip
    report = packed(tmp_path)
    assert "planes not parallel" in failed(report)["scout/plan.dcm"]
    assert report.samples == 1


def test_reasons_name_no_file_of_anonymous_series(tmp_path: Path) -> None:
    """Neither a file of a refused series, nor the one of which another is a copy."""
    write_stack(tmp_path / "src/JANE", A)
    some = sorted((tmp_path / "src/JANE").iterdir())[2]
    some.rename(some.with_name("DOE.dcm"))
    shutil.copy(some.with_name("DOE.dcm"), some.with_name("again.dcm"))
    for k in (0, 1, 2, 5):
        write(tmp_path / f"src/SMITH/{k}", A[:, :, 0].T, position=(0, 0, k), series="1.2.9")
    write(
        tmp_path / "src/JANE/plan.dcm", np.zeros((12, 12), "<i2"), orientation=(0, 1, 0, 0, 0, -1)
    )
    report = packed(tmp_path, anonymous=True)
    assert (report.samples, report.failed_count, report.left_out_count) == (1, 2, 1)
    assert any("z = 2 and z = 5: 3 mm" in reason for _, reason in report.failed)
    for path in (report.path, report.report):
        data = Path(path).read_bytes()
        for needle in (b"JANE", b"DOE", b"SMITH", b"plan.dcm", b"again"):
            assert needle not in data


def test_reasons_name_no_file_that_a_list_of_anonymous_cases_lacks(tmp_path: Path) -> None:
    """A path that was written down wrong may name a patient as well."""
    nifti(tmp_path / "src/a.nii", A)
    (tmp_path / "cases.csv").write_text("case,image\nA,a.nii\nB,JANE/DOE.nii\n")
    report = packed(tmp_path, labels=tmp_path / "cases.csv", anonymous=True)
    ((_, reason),) = report.failed
    assert "which is no volume in there" in reason
    assert "DOE" not in reason


def test_short_names_do_not_garble_what_is_told(tmp_path: Path) -> None:
    """Only whole words are replaced by an anonymous id."""
    nifti(tmp_path / "src/images/a.nii", A)
    nifti(tmp_path / "src/labels/a.nii", np.full(A.shape, 0.4, "f4"))
    nifti(tmp_path / "src/images/b.nii", A)
    ((_, reason),) = packed(tmp_path, anonymous=True).failed
    assert reason.startswith("936 voxels of the label hold no whole number")


def test_headers_of_slices_are_read_without_warnings_and_with_progress(tmp_path: Path) -> None:
    """A value that breaks a rule of DICOM is not warned of; slow folders show that they move."""
    with warnings.catch_warnings(action="ignore"):
        write_stack(tmp_path / "src/x", A, PatientName="A" * 90, PatientID="I" * 90)
    seen: list[int] = []
    found = find_volumes(str(tmp_path / "src"), DicomRules(), progress=seen.append)
    assert len(found.entries) == 1
    assert seen == list(range(1, 13))


# --- compressed, multi-frame, impossible ---


SCRIPT = """
import json, sys
for name in json.loads(sys.argv[3]):
    sys.modules[name] = None
from sharedds.cli import main
words = ["pack", sys.argv[1], sys.argv[2], "--kind", "volume", "--allow-single", "--json"]
sys.exit(main(words))
"""


def without(place: Path, *modules: str) -> Any:
    """Pack in a process that lacks some packages."""
    words = (str(place / "src"), str(place / "out.lmdb"), json.dumps(modules))
    return run_script(SCRIPT, *words)


def test_without_a_decoder_a_series_is_refused_as_a_whole(tmp_path: Path) -> None:
    """With the file, the syntax, its UID and what to install; the rest is packed."""
    names = ("MR_small", "MR_small_RLE", "MR_small_jpeg_ls_lossless", "JPEG-lossy")
    for name in names:
        (tmp_path / "src" / name).mkdir(parents=True)
        shutil.copy(FILES / f"{name}.dcm", tmp_path / "src" / name / "0.dcm")
    done = without(tmp_path, *DECODERS)
    assert done.returncode == 3, done.stderr
    report = json.loads(done.stdout)
    reasons = {item["path"]: item["reason"] for item in report["failed"]}
    assert report["samples"] == 2
    ids = ("1.2.840.10008.1.2.4.80", "1.2.840.10008.1.2.4.51")
    for name, uid in zip(names[2:], ids, strict=True):
        reason = reasons[f"{name}/0.dcm"]
        assert uid in reason
        assert "pip install" in reason
    store = Store(tmp_path / "out.lmdb")
    assert [int(store.array(n, "image")[:].sum(dtype="i8")) for n in range(2)] == [2_125_338] * 2


def test_without_pydicom_the_extra_is_named(tmp_path: Path) -> None:
    """Nothing is made."""
    write_stack(tmp_path / "src/x", A)
    done = without(tmp_path, "pydicom")
    assert done.returncode == 1
    assert b"pip install 'sharedds[medical]'" in done.stderr
    assert not (tmp_path / "out.lmdb").exists()


def test_multi_frame_objects_are_sorted_and_scaled_by_frame(tmp_path: Path) -> None:
    """Two moments are two steps; dose grids beside them keep their own dtype and factor."""
    a = numbered((8, 9, 6))
    frames = [(moment, k) for k in (3, 0, 5, 1, 4, 2) for moment in (1, 0)]
    write_enhanced(tmp_path / "src/timed/0.dcm", a, frames)
    (tmp_path / "src/dose").mkdir()
    shutil.copy(FILES / "rtdose.dcm", tmp_path / "src/dose/0.dcm")
    report = packed(tmp_path, codec="auto")
    timed, dose = stored(report, "timed"), stored(report, "dose")
    assert timed.shape == (2, 8, 9, 6)
    assert timed.read()[:, 2, 3, 4].tolist() == [32510, 35010]
    assert dose.shape == (10, 10, 15)
    assert dose.read()[9, 9, 14] == pytest.approx(0.799, abs=1e-3)


def test_a_header_that_asks_for_terabytes_is_refused_at_once(tmp_path: Path) -> None:
    """With both sizes, before any memory is taken."""
    raw_nifti(tmp_path / "src/huge.nii", np.zeros((1, 1, 1), "<i2"))
    data = bytearray((tmp_path / "src/huge.nii").read_bytes()[:352] + bytes(1000))
    struct.pack_into("<8h", data, 40, 3, 30000, 30000, 3000, 1, 1, 1, 1)
    (tmp_path / "src/huge.nii").write_bytes(data)
    nifti(tmp_path / "src/good.nii", A)
    started = time.monotonic()
    reason = failed(packed(tmp_path))["huge.nii"].replace(",", "")
    assert time.monotonic() - started < 5
    assert "5400000000352" in reason
    assert "1352" in reason


# --- other programs ---


def test_a_file_that_vanishes_after_the_scan_fails_its_case_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are packed, and every file is accounted for."""
    from sharedds.ingest.volumes import pack as room

    for name in "abc":
        nifti(tmp_path / f"src/{name}.nii.gz", A)

    def scanned(*values: Any, **options: Any) -> Any:
        found = find_volumes(*values, **options)
        (tmp_path / "src/b.nii.gz").unlink()
        return found

    monkeypatch.setattr(room, "find_volumes", scanned)
    report = packed(tmp_path)
    assert failed(report) == {"b.nii.gz": "cannot be read (No such file or directory)"}
    assert (report.samples, report.stored_files) == (2, 2)
    assert not (tmp_path / "out.lmdb.partial").exists()


def test_labels_of_other_formats_go_with_their_images(tmp_path: Path) -> None:
    """NRRD, MetaImage and NumPy, with other endings than the images have."""
    itk: Any = pytest.importorskip("SimpleITK")
    label = (A % 5 == 0).astype("u1")
    for folder in ("images", "labels"):
        (tmp_path / "src" / folder).mkdir(parents=True)
    for image, name in (("x.nrrd", "x_seg.mha"), ("y.mhd", "y.nhdr")):
        for place, array in ((f"images/{image}", A), (f"labels/{name}", label)):
            itk.WriteImage(
                itk.GetImageFromArray(array.transpose(2, 1, 0)), tmp_path / "src" / place
            )
    raw_nifti(tmp_path / "src/images/z.nii.gz", A)
    np.save(tmp_path / "src/labels/z.npy", label)
    report = packed(tmp_path)
    assert (report.samples, report.failed_count, report.left_out_count) == (3, 0, 0)
    for name in "xyz":
        assert labels_of(report, name)[1] == int(label.sum())
        assert np.array_equal(stored(report, name)[:], A)


def test_options_of_pictures_are_refused_by_name(tmp_path: Path) -> None:
    """Before anything is packed."""
    nifti(tmp_path / "src/x.nii", A)
    options: dict[str, Any]
    for options in ({"against": tmp_path}, {"classes": tmp_path}, {"class_level": "top"}):
        with pytest.raises(OptionError, match=f"{next(iter(options))} is an option for pictures"):
            pack(tmp_path / "src", tmp_path / "out.lmdb", kind="volume", **options)
    with pytest.raises(SourceError, match="no volume could be packed"):
        (tmp_path / "empty/images").mkdir(parents=True)
        pack_volumes(tmp_path / "empty", tmp_path / "out.lmdb")
