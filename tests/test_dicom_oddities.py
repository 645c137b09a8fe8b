"""DICOM files that are odd: padding with another sign, copies of slices, forks, pipes."""

from __future__ import annotations

import math
import os
import shutil
import signal
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pydicom")

from dicom_files import FILES, found, numbered, only, voxels, write, write_stack

from sharedds.errors import SourceError
from sharedds.volumes.dicom import find_series
from sharedds.volumes.dicom_frames import Picture, read_picture
from sharedds.volumes.dicom_series import stacks_of
from sharedds.volumes.dicom_tags import quiet

VALUES = numbered((8, 9, 6))


def test_padding_has_the_sign_of_the_pixels(tmp_path: Path) -> None:
    """-2000 written as 63536: missing slices are filled with it, and the header says it."""
    import pydicom

    for path in write_stack(tmp_path, VALUES):
        data = pydicom.dcmread(path)
        data.add_new("PixelPaddingValue", "US", 63536)
        data.save_as(path)
    (tmp_path / "2.dcm").unlink()
    series = only(found(tmp_path, allow_gaps=True))
    assert series.volume is not None
    assert series.volume.header.attrs["padding_value"] == -2000
    assert (voxels(series, tmp_path)[:, :, 2] == -2000).all()


def test_padding_is_turned_round_with_the_pixels(tmp_path: Path) -> None:
    """What is kept of 12 bits with padding 0 has padding 4095, in missing slices too."""
    values = (VALUES % 4096).astype("u2")
    tags: dict[str, Any] = {
        "BitsStored": 12,
        "HighBit": 11,
        "PhotometricInterpretation": "MONOCHROME1",
    }
    write_stack(tmp_path, values, PixelPaddingValue=0, **tags)
    (tmp_path / "2.dcm").unlink()
    series = only(found(tmp_path, allow_gaps=True, invert=True))
    assert series.volume is not None
    assert series.volume.header.attrs["padding_value"] == 4095
    read = voxels(series, tmp_path)
    assert (read[:, :, 2] == 4095).all()
    assert np.array_equal(np.delete(read, 2, 2), 4095 - np.delete(values, 2, 2))


def test_padding_is_not_told_of_measured_values(tmp_path: Path) -> None:
    """Where each slice has a slope of its own, no one kept value stands for nothing."""
    for k in range(3):
        write(tmp_path / f"{k}", VALUES[:, :, k].T, position=(0, 0, k), RescaleSlope=k + 1,
              RescaleIntercept=0, PixelPaddingValue=-7)  # fmt: skip
    series = only(found(tmp_path))
    assert series.volume is not None
    assert "padding_value" not in series.volume.header.attrs


def test_slices_of_different_bits_are_turned_round_alike(tmp_path: Path) -> None:
    """Equal values of two slices stay equal, whatever bits each of them says it has."""
    for k, bits in enumerate((12, 10)):
        write(tmp_path / f"{k}", np.full((9, 8), 100, "u2"), position=(0, 0, k), BitsStored=bits,
              HighBit=bits - 1, PhotometricInterpretation="MONOCHROME1")  # fmt: skip
    read = voxels(only(found(tmp_path, invert=True)), tmp_path)
    assert np.unique(read).tolist() == [3995]


def test_copy_of_a_slice_in_another_folder_is_named(tmp_path: Path) -> None:
    """It is no series of its own, and does not part the one that it is from."""
    write_stack(tmp_path / "a", VALUES)
    (tmp_path / "b").mkdir()
    shutil.copy(tmp_path / "a" / "3.dcm", tmp_path / "b" / "again.dcm")
    findings = found(tmp_path)
    assert only(findings).name == "a"
    assert [(path.name, reason) for path, reason in findings.left_out] == [
        ("again.dcm", "the same instance as a/3.dcm")
    ]


def test_halves_of_a_series_that_share_a_slice_are_one(tmp_path: Path) -> None:
    """Two folders, one slice in both: not two volumes."""
    paths = write_stack(tmp_path / "a", VALUES)
    (tmp_path / "b").mkdir()
    for path in paths[3:]:
        shutil.move(path, tmp_path / "b" / path.name)
    shutil.copy(tmp_path / "b" / "3.dcm", tmp_path / "a" / "3.dcm")
    series = only(found(tmp_path))
    assert np.array_equal(voxels(series, tmp_path), VALUES)


def test_negative_distance_of_slices_does_not_hide_it(tmp_path: Path) -> None:
    """One slice with SpacingBetweenSlices -4: it is 4 mm thick, not 1."""
    write(tmp_path / "x", VALUES[:, :, 0].T, SpacingBetweenSlices=-4, SliceThickness=3)
    series = only(found(tmp_path, allow_single=True))
    assert series.volume is not None
    assert series.volume.header.affine is not None
    assert series.volume.header.affine[2, 2] == 4


def test_thousands_of_planes_in_as_many_directions_are_told_soon(tmp_path: Path) -> None:
    """Compared one by one with each other, 2000 of them took half a minute."""
    write(tmp_path / "x", VALUES[:, :, 0].T)
    picture = read_picture(tmp_path / "x", "x")
    assert isinstance(picture, Picture)
    turned = []
    for n in range(2000):
        turn = (math.cos(n * 0.002), math.sin(n * 0.002), 0.0, 0.0, 0.0, -1.0)
        frame = replace(picture.frames[0], orientation=turn)
        turned.append(replace(picture, instance=str(n), name=str(n), frames=(frame,)))
    start = time.process_time()
    stacks, _ = stacks_of(turned, allow_gaps=False, allow_single=False)
    assert time.process_time() - start < 5
    assert len(stacks) == 2000
    assert all("planes not parallel" in stack.problems[0] for stack in stacks)


def test_scratch_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    """As an error of an input, not of the system."""
    write_stack(tmp_path, VALUES)
    series = only(found(tmp_path))
    assert series.volume is not None
    with (
        pytest.raises(SourceError, match="no scratch file can be made"),
        series.volume.open(tmp_path / "gone"),
    ):
        pass


def test_transfer_syntax_that_is_no_uid_brings_no_warning(tmp_path: Path) -> None:
    """It is refused; a warning would repeat what stands in the header."""
    data = (FILES / "MR_small_RLE.dcm").read_bytes()
    (tmp_path / "x").write_bytes(data.replace(b"1.2.840.10008.1.2.5", b"1.2.840.1z008.1.2.5", 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (series,) = found(tmp_path, allow_single=True).series
    assert "cannot be read" in series.problems[0]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes are of POSIX")
def test_pipe_among_the_files_is_left_out(tmp_path: Path) -> None:
    """It is not waited for."""
    write_stack(tmp_path, VALUES)
    os.mkfifo(tmp_path / "pipe")
    findings = find_series(tmp_path, sorted(tmp_path.iterdir()))
    assert only(findings).volume is not None
    assert [path.name for path, _ in findings.left_out] == ["pipe"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_while_a_thread_reads_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child does not wait for a lock that a thread of its parent held."""
    write_stack(tmp_path, VALUES)
    inside, go = threading.Event(), threading.Event()
    real = warnings.filterwarnings
    parent = os.getpid()

    def slow(*arguments: object, **options: object) -> None:
        if os.getpid() == parent:
            inside.set()
            go.wait(30)
        real(*arguments, **options)  # type: ignore[arg-type]

    def hold() -> None:
        with quiet():
            pass

    monkeypatch.setattr(warnings, "filterwarnings", slow)
    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(30)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends a child that waits for ever
        os._exit(0 if len(found(tmp_path).series) == 1 else 1)
    _, status = os.waitpid(child, 0)
    go.set()
    thread.join()
    assert status == 0
