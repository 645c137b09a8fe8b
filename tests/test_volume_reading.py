"""Readers of volumes against what is odd: names, byte orders, pipes, archives, forks."""

from __future__ import annotations

import gzip
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from volume_files import Array, nifti_bytes, numbered, volume, voxels

from sharedds.errors import DecodeError, SourceError
from sharedds.volumes import is_dicom, recognise
from sharedds.volumes.itk import _quietly

VALUES = numbered((4, 5, 6))
POSIX = pytest.mark.skipif(os.name != "posix", reason="pipes, forks and such names are of POSIX")


def nrrd(values: Array, *, endian: str = "little", encoding: str = "raw", more: str = "") -> bytes:
    """Return the header of a volume (i, j, k), 1 x 2 x 3 mm in LPS, up to the empty line."""
    kind = {"i1": "int8", "u1": "uchar", "i2": "short", "u2": "ushort", "f4": "float"}
    sizes = " ".join(map(str, values.shape))
    text = (
        f"NRRD0004\ntype: {kind[values.dtype.str[1:]]}\ndimension: {values.ndim}\n"
        "space: left-posterior-superior\n"
        f"sizes: {sizes}\nendian: {endian}\nencoding: {encoding}\n{more}"
    )
    if values.ndim == 3:
        text += "space directions: (1,0,0) (0,2,0) (0,0,3)\nspace origin: (4,5,6)\n"
    return text.encode()


def meta(values: Array, data: str = "LOCAL", more: str = "") -> bytes:
    """Return the header of a MetaImage volume (i, j, k)."""
    kind = {"i1": "CHAR", "u1": "UCHAR", "i2": "SHORT", "u2": "USHORT", "f4": "FLOAT"}
    sizes = " ".join(map(str, values.shape))
    text = f"ObjectType = Image\nNDims = {values.ndim}\nDimSize = {sizes}\n{more}"
    text += "TransformMatrix = 1 0 0 0 1 0 0 0 1\nOffset = 4 5 6\nElementSpacing = 1 2 3\n"
    return (
        f"{text}ElementType = MET_{kind[values.dtype.str[1:]]}\nElementDataFile = {data}\n".encode()
    )


def by_itk(path: Path) -> Array:
    """Return the voxels as SimpleITK has them, (i, j, k) or (components, i, j, k)."""
    sitk: Any = pytest.importorskip("SimpleITK")
    return np.asarray(sitk.GetArrayFromImage(sitk.ReadImage(str(path)))).T


@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "f4"])
@pytest.mark.parametrize("form", ["raw.nrrd", "gzip.nrrd", "raw.mha", "zlib.mha"])
def test_voxels_equal_those_of_simpleitk(
    tmp_path: Path, form: str, dtype: str, endian: str
) -> None:
    """Every byte order and packing that is read here, not by SimpleITK."""
    pytest.importorskip("SimpleITK")
    values = (numbered((4, 5, 6)) % 251 - 100).astype(dtype)
    raw = values.astype(values.dtype.newbyteorder("<" if endian == "little" else ">"))
    data = raw.tobytes("F")
    packing, _, ending = form.partition(".")
    if ending == "nrrd":
        header = nrrd(values, endian=endian, encoding=packing) + b"\n"
        data = gzip.compress(data) if packing == "gzip" else data
    else:
        more = f"BinaryData = True\nBinaryDataByteOrderMSB = {endian == 'big'}\n"
        if packing == "zlib":
            data = zlib.compress(data)
            more += f"CompressedData = True\nCompressedDataSize = {len(data)}\n"
        header = meta(values, more=more)
    path = tmp_path / f"x.{ending}"
    path.write_bytes(header + data)
    file = volume(path)
    assert file.layout is not None  # type: ignore[attr-defined]
    found = voxels(file, tmp_path)
    assert np.array_equal(found, values)
    assert np.array_equal(found, by_itk(path))
    assert file.header.affine is not None
    assert file.header.affine.tolist() == [
        [-1, 0, 0, -4],
        [0, -2, 0, -5],
        [0, 0, 3, 6],
        [0, 0, 0, 1],
    ]


def test_compressed_metaimage_without_its_size(tmp_path: Path) -> None:
    """ITK gives whatever lies in memory for it, and prints that it failed."""
    pytest.importorskip("SimpleITK")
    path = tmp_path / "x.mha"
    header = meta(VALUES, more="CompressedData = True\n")
    path.write_bytes(header + zlib.compress(VALUES.tobytes("F")))
    assert np.array_equal(voxels(volume(path), tmp_path), VALUES)


@pytest.mark.parametrize("first", [True, False])
def test_components_are_channels_wherever_they_lie(tmp_path: Path, first: bool) -> None:
    """Side by side they are mapped; as the slowest axis of NRRD they are put in order by ITK."""
    pytest.importorskip("SimpleITK")
    values = np.arange(3 * 4 * 5 * 6, dtype="i2").reshape(3, 4, 5, 6)
    stored = values if first else values.transpose(1, 2, 3, 0)
    directions = ["(1,0,0)", "(0,2,0)", "(0,0,3)"]
    kinds = ["domain"] * 3
    at = 0 if first else 3
    directions.insert(at, "none")
    kinds.insert(at, "vector")
    more = f"space directions: {' '.join(directions)}\nkinds: {' '.join(kinds)}\n"
    path = tmp_path / "x.nrrd"
    path.write_bytes(nrrd(stored, more=more) + b"\n" + stored.tobytes("F"))
    file = volume(path)
    assert (file.header.axis, file.header.steps) == ("channel", 3)
    assert np.array_equal(voxels(file, tmp_path), values)


def test_volume_of_nrrd_does_not_have_to_fit_in_memory(tmp_path: Path) -> None:
    """A region of a sparse file of 16 GiB is read at once."""
    pytest.importorskip("SimpleITK")
    shape = np.broadcast_to(np.zeros((), "i2"), (2048, 2048, 2048))
    path = tmp_path / "x.nrrd"
    header = nrrd(shape) + b"\n"
    try:
        with path.open("wb") as sparse:
            sparse.write(header)
            sparse.truncate(len(header) + shape.size * 2)
            sparse.seek(-2, os.SEEK_END)
            sparse.write(b"\x07\x00")
    except OSError:
        pytest.skip("the file system has no such large files")
    with volume(path).open(tmp_path) as data:
        corner = data[2040:2048, 2040:2048, 2047:2048]
    assert corner[-1, -1, -1] == corner.sum() == 7


def test_names_of_voxel_files_are_utf8(tmp_path: Path) -> None:
    """Not Latin-1: a name with an umlaut was not found."""
    pytest.importorskip("SimpleITK")
    data = tmp_path / "größe.raw"
    data.write_bytes(VALUES.tobytes("F"))
    (tmp_path / "x.nhdr").write_bytes(nrrd(VALUES, more=f"data file: {data.name}\n") + b"\n")
    (tmp_path / "x.mhd").write_bytes(meta(VALUES, data.name))
    for name in ("x.nhdr", "x.mhd"):
        assert np.array_equal(voxels(volume(tmp_path / name), tmp_path), VALUES)


@pytest.mark.parametrize("pattern", ["100%_%03d.raw", "%d%d.raw", "%s%03d.raw", "%999999999d.raw"])
def test_pattern_that_is_none_is_a_name(tmp_path: Path, pattern: str) -> None:
    """Names of voxel files with more per cent signs than one number has."""
    path = tmp_path / "x.nhdr"
    path.write_bytes(nrrd(VALUES, more=f"data file: {pattern} 0 4 1 2\n") + b"\n")
    with pytest.raises(SourceError, match="which is not there"):
        recognise(path)


@POSIX
def test_name_that_is_not_utf8_does_not_end_the_process(tmp_path: Path) -> None:
    """SimpleITK calls abort() for it; here it is refused."""
    pytest.importorskip("SimpleITK")
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.nrrd"))
    try:
        path.write_bytes(nrrd(VALUES) + b"\n" + VALUES.tobytes("F"))
    except OSError:
        pytest.skip("the file system takes no such names")
    code = (
        "import os, sys, pathlib, sharedds.errors as e, sharedds.volumes as v\n"
        "try: v.recognise(next(pathlib.Path(sys.argv[1]).glob('*.nrrd')))\n"
        "except e.SourceError as error: print('UTF-8' in str(error))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr


@POSIX
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_waits_for_a_thread_in_simpleitk(tmp_path: Path) -> None:
    """The child finds no lock that a thread of its parent held."""
    pytest.importorskip("SimpleITK")
    path = tmp_path / "x.nrrd"
    path.write_bytes(nrrd(VALUES) + b"\n" + VALUES.tobytes("F"))
    inside = threading.Event()

    def hold() -> None:
        with _quietly():
            inside.set()
            time.sleep(0.3)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(30)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends a child that waits for ever
        os._exit(0 if recognise(path) is not None else 1)
    _, status = os.waitpid(child, 0)
    thread.join()
    assert status == 0


@pytest.mark.parametrize("lost", ["DimSize", "ElementType"])
def test_header_of_metaimage_without_a_field(
    tmp_path: Path, lost: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is named; ITK would print to the terminal."""
    path = tmp_path / "x.mha"
    path.write_bytes(re.sub(rb"%b = .*\n" % lost.encode(), b"", meta(VALUES)) + VALUES.tobytes("F"))
    with pytest.raises(DecodeError, match=f"it has no {lost}"):
        recognise(path)
    assert capfd.readouterr() == ("", "")


@POSIX
@pytest.mark.parametrize("look", [recognise, is_dicom])
def test_pipe_is_not_waited_for(tmp_path: Path, look: Callable[[Path], object]) -> None:
    """Opening one for reading would wait for somebody who writes to it."""
    os.mkfifo(tmp_path / "x.nii")
    with pytest.raises(SourceError, match="no file with content"):
        look(tmp_path / "x.nii")


def test_lengths_of_python_2_bring_no_warning(tmp_path: Path) -> None:
    """``(4L, 5L, 6L)``: NumPy reads it and warns."""
    head = b"{'descr': '<i2', 'fortran_order': False, 'shape': (4L, 5L, 6L), }"
    head += b" " * (117 - len(head)) + b"\n"
    path = tmp_path / "x.npy"
    path.write_bytes(
        b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + VALUES.tobytes()
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(voxels(volume(path), tmp_path), VALUES)


@pytest.mark.parametrize("method", ["ZIP_LZMA", "ZIP_BZIP2", "ZIP_DEFLATED"])
def test_damaged_archive_of_each_kind(tmp_path: Path, method: str) -> None:
    """Each way to compress has errors of its own; none of them leaks."""
    if method == "ZIP_LZMA":
        pytest.importorskip("lzma")
    np.save(tmp_path / "x.npy", VALUES)
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", getattr(zipfile, method)) as archive:
        archive.write(tmp_path / "x.npy", "arr_0.npy")
    data = bytearray(path.read_bytes())
    data[50:70] = bytes(reversed(data[50:70]))
    path.write_bytes(data)
    with pytest.raises(DecodeError, match=r"x\.npz"):
        voxels(volume(path), tmp_path)


def test_placement_of_infinite_length_brings_no_warning(tmp_path: Path) -> None:
    """Metres of 1e308: not finite as millimetres, and refused as that."""
    pytest.importorskip("nibabel")
    sform = np.diag([1e308, 1.0, 1.0, 1.0])
    path = tmp_path / "x.nii"
    path.write_bytes(nifti_bytes(VALUES, version=2, sform=sform, xyzt_units=3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DecodeError):
            recognise(path)
