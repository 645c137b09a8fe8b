"""Volumes in NRRD, MetaImage and NumPy files, and how files are told apart."""

from __future__ import annotations

import gzip
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from volume_files import SFORM, Array, numbered, volume, voxels, write_nifti

from sharedds.errors import DecodeError, MissingExtraError, SourceError
from sharedds.volumes import companions, is_dicom, recognise

SHAPE = (6, 5, 4)
META = (
    "ObjectType = Image\nNDims = 3\nDimSize = 6 5 4\nElementType = MET_SHORT\nBinaryData = True\n"
    "BinaryDataByteOrderMSB = False\n"
)
PLACED = "TransformMatrix = 1 0 0 0 1 0 0 0 1\nOffset = 1 2 3\nElementSpacing = 2 3 4\n"


def nrrd(path: Path, data: bytes, *lines: str, sizes: str = "6 5 4", dtype: str = "short") -> Path:
    """Write an NRRD file; the voxels follow unless a line names their file."""
    text = "\n".join(
        (
            "NRRD0004",
            f"type: {dtype}",
            f"dimension: {len(sizes.split())}",
            f"sizes: {sizes}",
            "endian: little",
            *(lines if any("encoding" in line for line in lines) else ("encoding: raw", *lines)),
        )
    )
    path.write_bytes(text.encode() + b"\n\n" + data)
    return path


@pytest.fixture
def array() -> Array:
    """Voxels that name themselves."""
    return numbered(SHAPE)


class TestNrrd:
    """Through SimpleITK."""

    @pytest.fixture(autouse=True)
    def _needs(self) -> None:
        pytest.importorskip("SimpleITK")

    @pytest.mark.parametrize(
        ("space", "signs"),
        [
            ("left-posterior-superior", (-1, -1, 1)),
            ("right-anterior-superior", (1, 1, 1)),
            ("LAS", (-1, 1, 1)),
        ],
    )
    def test_spaces_are_turned_to_ras(
        self, tmp_path: Path, array: Array, space: str, signs: tuple[int, int, int]
    ) -> None:
        """By their letters, origin too; voxels stay in the order of the file."""
        place = (
            f"space: {space}",
            "space directions: (2,0,0) (0,3,0) (0,0,4)",
            "space origin: (1,2,3)",
        )
        file = volume(nrrd(tmp_path / "x.nrrd", array.tobytes("F"), *place))
        wanted = np.diag((*signs, 1)) @ [[2, 0, 0, 1], [0, 3, 0, 2], [0, 0, 4, 3], [0, 0, 0, 1.0]]
        assert np.array_equal(file.header.affine, wanted)  # type: ignore[arg-type]
        assert np.array_equal(voxels(file, tmp_path), array)
        assert (file.header.format, file.header.remarks) == ("NRRD", ())

    def test_no_space_is_no_affine(self, tmp_path: Path, array: Array) -> None:
        """Spacings are kept; a scanner's space is no patient's."""
        header = volume(nrrd(tmp_path / "x", array.tobytes("F"), "spacings: 1 2 3")).header
        assert header.affine is None
        assert header.attrs["spacing"] == [1.0, 2.0, 3.0]
        assert "unknown" in header.remarks[0]
        lines = ("space: scanner-xyz", "space directions: (2,0,0) (0,3,0) (0,0,4)")
        assert volume(nrrd(tmp_path / "y", array.tobytes("F"), *lines)).header.affine is None

    def test_vectors_are_channels(self, tmp_path: Path, array: Array) -> None:
        """Wherever their axis stands; an axis that is called time is moments."""
        two = np.stack([array, array + 1])
        first = nrrd(
            tmp_path / "a", two.tobytes("F"), "kinds: vector domain domain domain", sizes="2 6 5 4"
        )
        last = nrrd(
            tmp_path / "b",
            np.moveaxis(two, 0, 3).tobytes("F"),
            "kinds: domain domain domain list",
            sizes="6 5 4 2",
        )
        timed = nrrd(
            tmp_path / "c",
            np.moveaxis(two, 0, 3).tobytes("F"),
            "kinds: domain domain domain time",
            sizes="6 5 4 2",
        )
        for path, axis in ((first, "channel"), (last, "channel"), (timed, "time")):
            file = volume(path)
            assert (file.header.shape, file.header.axis) == (SHAPE, axis)
            assert np.array_equal(voxels(file, tmp_path), two)

    def test_pictures_are_one_slice(self, tmp_path: Path) -> None:
        """Shape (i, j, 1)."""
        flat = numbered((6, 5, 1))
        file = volume(nrrd(tmp_path / "x", flat.tobytes("F"), sizes="6 5"))
        assert file.header.affine is None
        assert np.array_equal(voxels(file, tmp_path), flat)

    def test_compressed_and_detached(self, tmp_path: Path, array: Array) -> None:
        """The file with the voxels belongs to the volume; without it an error names it."""
        lines = ("data file: x.raw.gz", "encoding: gzip")
        with pytest.raises(SourceError, match=r"x\.nhdr: .*x\.raw\.gz, which is not there"):
            recognise(nrrd(tmp_path / "x.nhdr", b"", *lines))
        (tmp_path / "x.raw.gz").write_bytes(gzip.compress(array.tobytes("F")))
        file = volume(tmp_path / "x.nhdr")
        assert companions(file) == (tmp_path / "x.raw.gz",)
        assert np.array_equal(voxels(file, tmp_path), array)

    @pytest.mark.parametrize("damage", ["cut", "huge", "sizes", "gzip", "complex"])
    def test_damage_is_refused_without_places_in_cpp(
        self, tmp_path: Path, array: Array, damage: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """The text has the file's name, no stack; nothing is printed."""
        data = array.tobytes("F")
        path = {
            "cut": lambda: nrrd(tmp_path / "x", data[:100]),
            "huge": lambda: nrrd(tmp_path / "x", data, sizes="30000 30000 3000"),
            "sizes": lambda: nrrd(tmp_path / "x", data, sizes="6 5 z"),
            "gzip": lambda: nrrd(tmp_path / "x", gzip.compress(data)[:60], "encoding: gzip"),
            "complex": lambda: nrrd(
                tmp_path / "x", data, "kinds: complex domain domain", sizes="2 5 12", dtype="float"
            ),
        }[damage]()
        with pytest.raises(DecodeError) as caught:
            voxels(volume(path), tmp_path)
        text = str(caught.value)
        assert text.startswith(str(path))
        assert not any(word in text for word in ("itk", "0x", ".cxx", "\n"))
        assert capfd.readouterr() == ("", "")
        if damage == "cut":
            assert "found" in text


class TestMetaImage:
    """Through SimpleITK."""

    @pytest.fixture(autouse=True)
    def _needs(self) -> None:
        pytest.importorskip("SimpleITK")

    def write(self, path: Path, data: bytes, extra: str = PLACED, target: str = "LOCAL") -> Path:
        """Write a header and, behind it, the voxels."""
        path.write_bytes(f"{META}{extra}ElementDataFile = {target}\n".encode() + data)
        return path

    def test_placement_is_turned_to_ras(self, tmp_path: Path, array: Array) -> None:
        """The name of the file does not count."""
        file = volume(self.write(tmp_path / "x.dat", array.tobytes("F")))
        wanted = [[-2, 0, 0, -1], [0, -3, 0, -2], [0, 0, 4, 3], [0, 0, 0, 1.0]]
        assert np.array_equal(file.header.affine, wanted)  # type: ignore[arg-type]
        assert np.array_equal(voxels(file, tmp_path), array)
        assert file.header.format == "MetaImage"
        assert file.header.nbytes == os.path.getsize(tmp_path / "x.dat")

    def test_written_by_simpleitk_with_compression(self, tmp_path: Path, array: Array) -> None:
        """Oblique, with vectors: the affine puts each voxel where SimpleITK puts it."""
        sitk: Any = pytest.importorskip("SimpleITK")
        two = np.stack([array, array + 1], -1).transpose(2, 1, 0, 3)
        image = sitk.GetImageFromArray(two, isVector=True)
        turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
        image.SetDirection((turn * np.sign(np.linalg.det(turn))).ravel().tolist())
        image.SetSpacing((0.5, 2.0, 3.0))
        image.SetOrigin((10.0, -20.0, 30.0))
        sitk.WriteImage(image, str(tmp_path / "x.mha"), True)
        file = volume(tmp_path / "x.mha")
        assert np.array_equal(voxels(file, tmp_path), [array, array + 1])
        assert file.header.affine is not None
        point = np.array(image.TransformIndexToPhysicalPoint((3, 4, 2))) * (-1, -1, 1)
        assert np.allclose((file.header.affine @ (3, 4, 2, 1))[:3], point, atol=1e-4)

    def test_no_placement_is_no_affine(self, tmp_path: Path, array: Array) -> None:
        """Spacing is kept."""
        extra = "ElementSpacing = 2 3 4\n"
        header = volume(self.write(tmp_path / "x.mha", array.tobytes("F"), extra)).header
        assert header.affine is None
        assert header.attrs["spacing"] == [2.0, 3.0, 4.0]

    def test_a_missing_file_with_voxels_is_named(self, tmp_path: Path, array: Array) -> None:
        """Once it is there it belongs to the volume."""
        path = self.write(tmp_path / "x.mhd", b"", target="x.raw")
        with pytest.raises(SourceError, match=r"x\.raw, which is not there"):
            recognise(path)
        (tmp_path / "x.raw").write_bytes(array.tobytes("F"))
        assert companions(volume(path)) == (tmp_path / "x.raw",)
        assert np.array_equal(voxels(volume(path), tmp_path), array)

    @pytest.mark.parametrize("damage", ["cut", "end", "packed", "torn"])
    def test_damage_is_refused_and_nothing_printed(
        self, tmp_path: Path, array: Array, damage: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """The library itself prints to the terminal then."""
        data = array.tobytes("F")
        packed = zlib.compress(data)
        extra = f"{PLACED}CompressedData = True\nCompressedDataSize = {len(packed)}\n"
        torn = packed[:50] + b"\xff" * 30 + packed[80:]
        path = tmp_path / "x.mha"
        if damage == "cut":
            self.write(path, data[:100])
        elif damage == "end":
            path.write_text(META)
        else:
            self.write(path, packed[:-20] if damage == "packed" else torn, extra)
        with pytest.raises(DecodeError) as caught:
            voxels(volume(path), tmp_path)
        assert str(caught.value).startswith(str(path))
        assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("fortran", [False, True])
@pytest.mark.parametrize("dtype", ["?", "u1", ">i2", "f2", "f4", ">f8", "i8"])
def test_saved_arrays_come_as_they_are(tmp_path: Path, dtype: str, fortran: bool) -> None:
    """In either memory order; truth values as 0 and 1."""
    array = (numbered(SHAPE) % 2).astype(dtype)
    np.save(tmp_path / "x.npy", np.asarray(array, order="F" if fortran else "C"))
    file = volume(tmp_path / "x.npy")
    assert file.header.affine is None
    assert file.header.dtype == (np.dtype("u1") if dtype == "?" else array.dtype.newbyteorder("<"))
    assert np.array_equal(voxels(file, tmp_path), array)


@pytest.mark.parametrize(
    ("shape", "full"),
    [
        ((6, 5), (6, 5, 1)),
        ((6, 5, 4), (6, 5, 4)),
        ((1, 6, 5, 4), (6, 5, 4)),
        ((3, 6, 5, 4), (3, 6, 5, 4)),
    ],
    ids=str,
)
@pytest.mark.parametrize("fortran", [False, True])
def test_axes_of_saved_arrays(
    tmp_path: Path, shape: tuple[int, ...], full: tuple[int, ...], fortran: bool
) -> None:
    """2-D is a slice; the first of four axes is channels if it is the shortest."""
    array = np.arange(np.prod(shape)).reshape(shape)
    np.save(tmp_path / "x.npy", np.asarray(array, order="F" if fortran else "C"))
    file = volume(tmp_path / "x.npy")
    assert file.header.full_shape == full
    assert file.header.axis == ("channel" if len(full) == 4 else "none")
    assert np.array_equal(voxels(file, tmp_path), array.reshape(full))


@pytest.mark.parametrize("shape", [(5,), (6, 5, 4, 3), (4, 4, 4, 4), (2, 3, 4, 5, 6), (0, 3, 3)])
def test_axes_that_say_nothing_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """With the shape in the text."""
    np.save(tmp_path / "x.npy", np.zeros(shape, "u1"))
    with pytest.raises(DecodeError, match="shape"):
        recognise(tmp_path / "x.npy")


@pytest.mark.parametrize("dtype", ["O", "c8", "U3", "M8[s]", "i4,f4"])
def test_arrays_of_other_things_are_refused(tmp_path: Path, dtype: str) -> None:
    """Objects are not unpickled: their class would run code."""
    values: Any = np.zeros((3, 3, 3), dtype)
    if dtype == "O":
        values[...] = Trap()
    np.save(tmp_path / "x.npy", values, allow_pickle=True)
    np.savez(tmp_path / "x.npz", values, allow_pickle=True)
    for name in ("x.npy", "x.npz"):
        with pytest.raises(DecodeError, match="objects" if dtype == "O" else r"dtype|header"):
            recognise(tmp_path / name)


class Trap:
    """What would be noticed if it were unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (3,)


def test_cut_arrays_are_refused_with_both_sizes(tmp_path: Path) -> None:
    """Also one whose header is cut."""
    np.save(tmp_path / "x.npy", numbered(SHAPE))
    whole = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(whole[:-1])
    with pytest.raises(DecodeError, match=f"{len(whole)} .*{len(whole) - 1} found"):
        recognise(tmp_path / "x.npy")
    (tmp_path / "x.npy").write_bytes(whole[:40])
    with pytest.raises(DecodeError, match="header is damaged"):
        recognise(tmp_path / "x.npy")


@pytest.mark.parametrize("packed", [False, True])
def test_one_array_of_an_archive(tmp_path: Path, array: Array, packed: bool) -> None:
    """Alone by any name, among others by a known one."""
    save: Any = np.savez_compressed if packed else np.savez
    save(tmp_path / "a.npz", scan=array)
    save(tmp_path / "b.npz", image=array, spacing=np.ones(3))
    for name in ("a.npz", "b.npz"):
        assert np.array_equal(voxels(volume(tmp_path / name), tmp_path), array)
    assert "spacing" in volume(tmp_path / "b.npz").header.remarks[0]


def test_several_arrays_are_refused_with_their_names(tmp_path: Path, array: Array) -> None:
    """As long as none of them is known for the image, or two are."""
    np.savez(tmp_path / "x.npz", scan=array, mask=array)
    with pytest.raises(DecodeError, match=r"2 arrays \(scan, mask\)"):
        recognise(tmp_path / "x.npz")
    np.savez(tmp_path / "y.npz", image=array, data=array)
    with pytest.raises(DecodeError, match="image, data"):
        recognise(tmp_path / "y.npz")


def test_damaged_archives_are_refused(tmp_path: Path, array: Array) -> None:
    """Cut, or a byte changed in the middle of the values."""
    np.savez_compressed(tmp_path / "x.npz", np.random.default_rng(0).random((30, 30, 30)))
    whole = (tmp_path / "x.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255
    (tmp_path / "flip.npz").write_bytes(flipped)
    for name in ("cut.npz", "flip.npz"):
        with pytest.raises(DecodeError, match=f"{name}.*damaged"):
            voxels(volume(tmp_path / name), tmp_path)
    assert list(tmp_path.glob("voxels-*")) == []


def test_other_files_are_none(tmp_path: Path) -> None:
    """Pictures, archives, text, and nothing at all, unless the name promises a volume."""
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a.txt", "text")
    (tmp_path / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    (tmp_path / "x.txt").write_text("NDims of something = 3\n")
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(bytes(2000)))
    (tmp_path / "torn.gz").write_bytes(gzip.compress(bytes(2000))[:12])
    (tmp_path / "empty").write_bytes(b"")
    for path in tmp_path.iterdir():
        assert recognise(path) is None
        assert not is_dicom(path)
    for ending in ("nii", "nii.gz", "nrrd", "nhdr", "mha", "mhd", "npy", "npz"):
        (tmp_path / f"y.{ending}").write_text("something else")
        with pytest.raises(DecodeError, match=f"y.{ending}: is named as"):
            recognise(tmp_path / f"y.{ending}")
    with pytest.raises(SourceError, match="cannot be read"):
        recognise(tmp_path / "missing.nii")


def test_dicom_is_told_by_its_first_bytes(tmp_path: Path) -> None:
    """With the preamble, or by a plausible first element in any encoding."""
    elements = {
        "preamble": bytes(128) + b"DICM" + bytes(20),
        "implicit": b"\x08\0\x05\0\x0a\0\0\0ISO_IR 100",
        "explicit": b"\x08\0\x05\0CS\x0a\0ISO_IR 100",
        "big": b"\0\x08\0\x05CS\0\x0aISO_IR 100",
    }
    for name, content in elements.items():
        (tmp_path / name).write_bytes(content)
        assert is_dicom(tmp_path / name)
        assert recognise(tmp_path / name) is None
    assert not is_dicom(write_nifti(tmp_path / "x.nii", numbered(SHAPE), sform=SFORM))
    np.save(tmp_path / "x.npy", numbered(SHAPE))
    assert not is_dicom(tmp_path / "x.npy")


def test_without_simpleitk_the_command_is_given(
    tmp_path: Path, array: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where such a file is met."""
    monkeypatch.setitem(__import__("sys").modules, "SimpleITK", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'sharedds\[medical\]'"):
        recognise(nrrd(tmp_path / "x.nrrd", array.tobytes("F")))
