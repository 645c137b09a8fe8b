"""Packing volumes with options, interrupted, in little memory, without telling who they show."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing import run_script
from volumes import grids, idx, nib, nifti, packed, sparse_nifti, stored

from sharedds.errors import OptionError, SourceError, StoreExistsError
from sharedds.ingest import pack, pack_volumes
from sharedds.store import Store, verify

# --- options ---


def test_changes_are_made_to_image_and_label_alike_and_recorded(tmp_path: Path) -> None:
    """Turned, resampled, cropped, converted; the options stand in the header."""
    a = np.zeros((20, 24, 16), "<i2")
    a[4:12, 6:18, 3:9] = 500
    label = (a > 0).astype("u1")
    affine = np.diag([-1, -1, 2.0, 1])
    nifti(tmp_path / "src/images/x.nii", a, affine)
    nifti(tmp_path / "src/labels/x.nii", label, affine)
    report = packed(
        tmp_path, orientation="RAS", spacing=(1, 1, 1), crop_foreground=100, dtype="float32"
    )
    image, marked = stored(report, "x"), stored(report, "x", "label")
    assert image.attrs["orientation"] == "RAS"
    assert np.allclose(image.spacing, 1)
    assert image.dtype == np.float32
    assert image.shape == marked.shape
    assert np.allclose(image.affine, marked.affine)
    assert image.shape[0] == 8
    assert image.shape[1] == 12
    inside = marked[:] == 1
    assert image[:][inside].min() > 100
    names = [change["change"] for change in image.attrs["changes"]]
    assert names == ["reoriented", "resampled", "cropped", "converted"]
    options = Store(report.path).attrs["options"]
    assert options["orientation"] == "RAS"
    assert options["spacing"] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "options",
    [
        {"patch": (3, 4)},
        {"patch": "96"},
        {"patch": (0, 1, 1)},
        {"spacing": (1, -1, 1)},
        {"spacing": "fine"},
        {"orientation": "RAT"},
        {"orientation": "RRS"},
        {"crop_foreground": "yes"},
        {"dtype": "complex64"},
        {"codec": "jpeg"},
        {"prefer": "both"},
        {"keep_tags": ("Patient Name",)},
        {"on_error": "ignore"},
        {"workers": 0},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused_first(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """Before anything is read; the option is named."""
    with pytest.raises(OptionError, match=next(iter(options))):
        pack_volumes(tmp_path / "nowhere", tmp_path / "out.lmdb", **options)


def test_the_codec_is_chosen_by_trying(tmp_path: Path) -> None:
    """One for each field, whatever it is; the voxels are the same."""
    rng = np.random.default_rng(0)
    a = rng.normal(0, 100, (70, 70, 70)).astype("<i2")
    nifti(tmp_path / "src/images/x.nii", a)
    nifti(tmp_path / "src/labels/x.nii", (a > 0).astype("u1"))
    report = packed(tmp_path, codec="auto")
    assert np.array_equal(stored(report, "x")[:], a)
    kinds = {field.name: field.codec for field in Store(report.path).header.fields}
    assert kinds["image"] in ("raw", "blosc", "zstd")
    assert kinds["label"] in ("raw", "blosc", "zstd")
    assert verify(report.path).ok


def test_bad_cases_stop_the_pack_where_asked(tmp_path: Path) -> None:
    """And nothing is published."""
    nifti(tmp_path / "src/images/x.nii", idx((4, 5, 6)))
    nifti(tmp_path / "src/labels/x.nii", np.full((4, 5, 6), 0.4, "f4"))
    with pytest.raises(ValueError, match=r"120 voxels of the label.*--on-error skip"):
        pack_volumes(tmp_path / "src", tmp_path / "out.lmdb", codec="lz4", on_error="raise")
    assert not (tmp_path / "out.lmdb").exists()
    assert not (tmp_path / "out.lmdb.scratch").exists()


def test_a_folder_without_volumes_says_what_is_there(tmp_path: Path) -> None:
    """Nothing is made."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src/notes.txt").write_text("x")
    with pytest.raises(SourceError, match=r"no volume could be packed; left out: 1 \.txt"):
        pack_volumes(tmp_path / "src", tmp_path / "out.lmdb")
    assert not (tmp_path / "out.lmdb").exists()


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    """It counts cases and files as a run would, as far as headers tell."""
    grids(tmp_path)
    report = pack_volumes(tmp_path / "src", tmp_path / "out.lmdb", dry_run=True)
    assert (report.samples, report.stored_files) == (7, 14)
    assert report.bytes > 0
    assert [path.name for path in tmp_path.iterdir()] == ["src"]


# --- pictures or volumes ---


def test_what_a_folder_holds_is_found_out(tmp_path: Path) -> None:
    """Volumes without a word; both is a question; an option of the other kind is refused."""
    nifti(tmp_path / "src/x.nii", idx((4, 5, 6)))
    report = pack(tmp_path / "src", tmp_path / "out.lmdb", codec="lz4")
    assert report.kind == "volumes"
    with pytest.raises(OptionError, match="quality is an option for pictures"):
        pack(tmp_path / "src", tmp_path / "new.lmdb", quality=80)
    with pytest.raises(OptionError, match="codec 'jpeg' is for pictures"):
        pack(tmp_path / "src", tmp_path / "new.lmdb", codec="jpeg")
    (tmp_path / "src/preview.png").write_bytes(b"\x89PNG")
    with pytest.raises(OptionError, match=r"holds pictures and volumes.*--kind"):
        pack(tmp_path / "src", tmp_path / "new.lmdb")
    report = pack(tmp_path / "src", tmp_path / "new.lmdb", kind="volume", codec="lz4")
    assert report.left_out[0]["reason"] == ".png"
    with pytest.raises(TypeError, match="sise"):
        pack(tmp_path / "src", tmp_path / "x.lmdb", sise=(3, 4))  # type: ignore[call-arg]


# --- interrupted ---

KILLED = """
import os, signal, sys
from sharedds.ingest.volumes.job import VolumeJob
from sharedds.ingest import pack_volumes
from sharedds.store import writer
writer._COMMIT = 1
done = 0
take = VolumeJob._take
def counting(self, *values):
    global done
    take(self, *values)
    done += 1
    if done == 4:
        values[0].keys()  # all that was written behind is there
        os.kill(os.getpid(), signal.SIGKILL)
VolumeJob._take = counting
pack_volumes(sys.argv[1], sys.argv[2], progress=False)
"""


def test_killed_it_goes_on_and_ends_as_an_undisturbed_run(tmp_path: Path) -> None:
    """The same digest and the same report; nothing unpacked is left over."""
    rng = np.random.default_rng(0)
    for n in range(8):
        nifti(tmp_path / f"src/images/{n}.nii.gz", rng.integers(0, 999, (40, 30, 20), "<i2"))
        nifti(tmp_path / f"src/labels/{n}.nii.gz", rng.integers(0, 3, (40, 30, 20), "u1"))
    nifti(tmp_path / "src/labels/1.nii.gz", np.full((40, 30, 20), 0.5, "f4"))
    whole = pack_volumes(tmp_path / "src", tmp_path / "whole.lmdb")
    out = tmp_path / "out.lmdb"
    died = run_script(KILLED, str(tmp_path / "src"), str(out))
    assert died.returncode == -9, died.stderr
    assert not out.exists()
    assert (tmp_path / "out.lmdb.scratch").exists()
    report = pack_volumes(tmp_path / "src", out)
    assert 0 < report.resumed < 7
    assert report.digest == whole.digest
    assert report.failed == whole.failed
    assert (report.samples, report.stored_files) == (7, 14)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"src"} | {f"{n}{e}" for n in ("out.lmdb", "whole.lmdb")
                               for e in ("", ".report.jsonl")}  # fmt: skip


def test_a_folder_of_somebody_else_is_not_touched(tmp_path: Path) -> None:
    """One that has the name of the scratch folder and is not ours."""
    nifti(tmp_path / "src/x.nii", idx((4, 5, 6)))
    (tmp_path / "out.lmdb.scratch").mkdir()
    (tmp_path / "out.lmdb.scratch/mine").write_text("x")
    with pytest.raises(StoreExistsError, match="in the way: it holds mine"):
        pack_volumes(tmp_path / "src", tmp_path / "out.lmdb")
    assert (tmp_path / "out.lmdb.scratch/mine").read_text() == "x"


# --- memory ---

MEASURED = """
import sys, threading, time
from sharedds.ingest import pack_volumes
from sharedds.memory import process_memory
peak, going = 0, True
def watch():
    global peak
    while going:
        peak = max(peak, process_memory().pss or 0)
        time.sleep(0.02)
thread = threading.Thread(target=watch)
thread.start()
pack_volumes(sys.argv[1], sys.argv[2], codec="lz4", progress=False)
going = False
thread.join()
print(peak)
"""


def test_a_volume_larger_than_the_memory_it_takes(tmp_path: Path) -> None:
    """600 MB of voxels, under 260 MB of memory, its last voxel where it belongs."""
    shape = (640, 640, 730)
    sparse_nifti(tmp_path / "src/x.nii", shape)
    done = run_script(MEASURED, str(tmp_path / "src"), str(tmp_path / "out.lmdb"))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 260e6
    store = Store(tmp_path / "out.lmdb")
    array = store.array(0, "image")
    assert array.shape == shape
    assert array[639, 639, 728:730].tolist() == [0, 7]


# --- privacy ---


def test_nothing_of_a_header_or_a_place_gets_out(tmp_path: Path) -> None:
    """Neither the description, nor extensions, nor paths; in the store or the report."""
    image = nib.Nifti1Image(idx((8, 9, 4)), np.eye(4))
    image.header["descrip"] = b"DOE^JANE 19700131"
    image.header.extensions.append(nib.nifti1.Nifti1Extension("comment", b"HOSP-4711"))
    (tmp_path / "src").mkdir()
    nib.save(image, tmp_path / "src/scan.nii")
    report = packed(tmp_path)
    for path in (report.path, report.report):
        data = Path(path).read_bytes()
        for needle in (b"DOE", b"JANE", b"19700131", b"4711", os.fsencode(tmp_path)):
            assert needle not in data


def test_anonymous_cases_have_the_same_ids_each_time(tmp_path: Path) -> None:
    """Names of files are nowhere, not even of those that failed."""
    nifti(tmp_path / "src/images/JANE.nii", idx((8, 9, 4)))
    nifti(tmp_path / "src/images/DOE.nii", idx((8, 9, 4)))
    nifti(tmp_path / "src/labels/DOE.nii", np.full((8, 9, 4), 0.5, "f4"))
    (tmp_path / "src/JANE.nii.gz").write_bytes(b"no")
    (tmp_path / "src/JANE.txt").write_bytes(b"no")
    first = packed(tmp_path, anonymous=True)
    keys = [Store(first.path).key(n) for n in range(first.samples)]
    for path in (first.path, first.report):
        data = Path(path).read_bytes()
        assert b"JANE" not in data
        assert b"DOE" not in data
    again = packed(tmp_path, anonymous=True)
    assert [Store(again.path).key(n) for n in range(again.samples)] == keys
    assert again.digest == first.digest
