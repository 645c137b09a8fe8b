"""NIfTI files: voxels, scaling, placement, byte order, damage, axes."""

from __future__ import annotations

import gzip
import os
import pickle
import shutil
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from volume_files import MIRRORED, SFORM, nifti_bytes, numbered, volume, voxels, write_nifti

from sharedds.errors import DecodeError, MissingExtraError, OptionError, SourceError
from sharedds.volumes import orientation_of, recognise, spacing_of
from sharedds.volumes.voxels import MappedVoxels

nibabel: Any = pytest.importorskip("nibabel")
SAMPLES = Path(nibabel.__file__).parent / "tests" / "data"
MEDICAL = Path(__file__).parents[2] / "shared" / "data" / "medical"
REAL = sorted(
    path
    for folder in (SAMPLES, MEDICAL)
    if folder.is_dir()
    for path in folder.iterdir()
    if path.name.endswith((".nii", ".nii.gz"))
)
SHAPE = (20, 21, 10)


@pytest.mark.parametrize("path", REAL, ids=[f"{path.parent.name}-{path.name}" for path in REAL])
def test_real_files_are_read_as_nibabel_reads_them(path: Path, tmp_path: Path) -> None:
    """Voxels are exact before scaling, affines and factors equal; further axes come first."""
    if path.name == "row_major.dconn.nii":
        with pytest.raises(DecodeError, match="CIFTI"):
            recognise(path)
        pytest.skip("a CIFTI matrix: it holds no volume, and is refused")
    file = volume(path)
    image = nibabel.load(path)
    raw = np.asarray(image.dataobj.get_unscaled())
    found = voxels(file, tmp_path)
    wanted = np.moveaxis(raw, 3, 0) if raw.ndim == 4 else raw
    assert found.shape == wanted.shape
    assert found.tobytes() == wanted.astype(found.dtype).tobytes()  # NaN as well
    assert file.header.affine is not None
    assert np.allclose(file.header.affine, image.affine, rtol=0, atol=1e-9)
    assert (file.header.slope, file.header.intercept) == (
        image.dataobj.slope,
        image.dataobj.inter,
    )
    assert orientation_of(file.header.affine) == "".join(nibabel.aff2axcodes(image.affine))


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("version", [1, 2])
def test_every_number_type_comes_as_it_is(
    tmp_path: Path, dtype: str, order: str, version: int
) -> None:
    """In both byte orders and versions; what comes is little-endian."""
    array = (numbered((5, 6, 7)) % 120).astype(dtype)
    file = volume(write_nifti(tmp_path / "x", array, order=order, version=version))
    assert file.header.format == f"NIfTI-{version}"
    assert file.header.dtype == np.dtype(dtype).newbyteorder("<")
    assert np.array_equal(voxels(file, tmp_path), array)


def test_big_endian_bytes_become_those_of_the_little_endian_file(tmp_path: Path) -> None:
    """The naive way, the bytes as they are, gives other numbers."""
    shutil.copy(SAMPLES / "anatomical.nii", tmp_path / "be.nii")
    values = np.asarray(nibabel.load(tmp_path / "be.nii").dataobj)
    affine = nibabel.load(tmp_path / "be.nii").affine
    be = volume(tmp_path / "be.nii")
    le = volume(write_nifti(tmp_path / "le.nii", values, sform=affine))
    found = voxels(be, tmp_path)
    assert found.tobytes() == voxels(le, tmp_path).tobytes()
    assert np.array_equal(be.header.affine, le.header.affine)  # type: ignore[arg-type]
    assert found[0, 0, :3].tolist() == [10712, 8026, 6855]
    assert (found.min(), found.max(), found.sum(dtype=int)) == (-610, 30393, 284166082)
    naive = np.frombuffer((tmp_path / "be.nii").read_bytes()[352:], "<i2")
    assert naive[0] == -10199
    assert (be.header.attrs["byte_order"], le.header.attrs["byte_order"]) == ("big", "little")


@pytest.mark.parametrize("factors", [(0, 7), (np.nan, np.nan), (np.inf, 1)], ids=str)
def test_a_slope_of_zero_or_nan_means_none(tmp_path: Path, factors: tuple[float, float]) -> None:
    """Values would become all zero, or NaN, if it were applied."""
    slope, intercept = factors
    path = write_nifti(tmp_path / "x.nii", numbered(SHAPE), scl_slope=slope, scl_inter=intercept)
    header = volume(path).header
    assert (header.slope, header.intercept, header.dtype) == (1.0, 0.0, np.dtype("<i2"))


def test_a_slope_is_kept_beside_the_integers(tmp_path: Path) -> None:
    """Voxels stay in their type; one intercept that is NaN is taken for 0 and told."""
    array = numbered(SHAPE)
    file = volume(write_nifti(tmp_path / "x.nii", array, scl_slope=0.5, scl_inter=-10))
    assert (file.header.slope, file.header.intercept) == (0.5, -10.0)
    assert voxels(file, tmp_path)[3, 4, 5] * 0.5 - 10 == 4071.5
    half = volume(write_nifti(tmp_path / "y.nii", array, scl_slope=0.5, scl_inter=np.nan))
    assert (half.header.slope, half.header.intercept) == (0.5, 0.0)
    assert any("scl_inter" in remark for remark in half.header.remarks)


def test_the_sform_counts_and_contradictions_are_told(tmp_path: Path) -> None:
    """Only those: files whose placements agree get no remark."""
    array = numbered((20, 30, 10))
    pixdim = [1, 2, 2, 2, 0, 0, 0, 0]
    files: dict[str, dict[str, Any]] = {
        "both": {"qform": MIRRORED, "sform": SFORM},
        "same": {"qform": SFORM, "sform": SFORM},
        "qonly": {"qform": MIRRORED},
        "sonly": {"sform": SFORM, "pixdim": pixdim},
        "zoom": {"sform": SFORM},
    }
    remarks = {}
    for name, fields in files.items():
        header = volume(write_nifti(tmp_path / f"{name}.nii", array, **fields)).header
        assert header.affine is not None
        wanted = MIRRORED if name == "qonly" else SFORM
        assert np.allclose(header.affine, wanted, rtol=0, atol=1e-4)
        assert spacing_of(header.affine) == pytest.approx((2, 2, 2), abs=1e-4)
        remarks[name] = header.remarks
    assert [name for name, told in remarks.items() if told] == ["both", "zoom"]
    (told,) = remarks["both"]
    assert "58.03 mm" in told
    assert "left-right" in told
    assert "pixdim says 1 x 1 x 1 mm" in remarks["zoom"][0]


def test_the_qform_counts_where_it_is_preferred(tmp_path: Path) -> None:
    """A word that is neither is refused."""
    path = write_nifti(tmp_path / "x.nii", numbered(SHAPE), qform=MIRRORED, sform=SFORM)
    header = volume(path, prefer="qform").header
    assert header.affine is not None
    assert np.allclose(header.affine, MIRRORED, atol=1e-4)
    assert header.attrs["placed_by"] == "qform"
    with pytest.raises(OptionError, match="prefer"):
        recognise(path, prefer="best")  # type: ignore[arg-type]


def test_no_placement_is_no_affine(tmp_path: Path) -> None:
    """Spacing is kept from pixdim; a remark says that the place is unknown."""
    pixdim = [1, 2, 3, 4, 0, 0, 0, 0]
    header = volume(write_nifti(tmp_path / "x.nii", numbered(SHAPE), pixdim=pixdim)).header
    assert header.affine is None
    assert header.attrs["spacing"] == [2.0, 3.0, 4.0]
    assert "neither sform nor qform" in header.remarks[0]


def test_a_singular_sform_gives_way_to_the_qform(tmp_path: Path) -> None:
    """And is refused where there is no other."""
    flat = np.diag((2.0, 0.0, 2.0, 1.0))
    path = write_nifti(tmp_path / "x.nii", numbered(SHAPE), sform=flat, qform=SFORM)
    header = volume(path).header
    assert header.affine is not None
    assert np.allclose(header.affine, SFORM)
    assert "singular" in header.remarks[0]
    with pytest.raises(DecodeError, match=r"y\.nii.*singular"):
        recognise(write_nifti(tmp_path / "y.nii", numbered(SHAPE), sform=flat))


def test_micrometres_become_millimetres(tmp_path: Path) -> None:
    """Metres too, unless that makes voxels of metres."""
    array = numbered(SHAPE)
    micro = volume(write_nifti(tmp_path / "u.nii", array, sform=SFORM, xyzt_units=3)).header
    assert micro.affine is not None
    assert spacing_of(micro.affine) == pytest.approx((0.002, 0.002, 0.002))
    metres = volume(write_nifti(tmp_path / "m.nii", array, sform=SFORM, xyzt_units=1)).header
    assert metres.affine is not None
    assert spacing_of(metres.affine) == (2, 2, 2)
    assert any("implausible" in remark for remark in metres.remarks)


def test_damaged_files_are_refused_with_both_sizes(tmp_path: Path) -> None:
    """At once, and before any memory is taken for what a header promises."""
    good = (SAMPLES / "anatomical.nii").read_bytes()
    packed = gzip.compress(good, mtime=0)
    huge = bytearray(good[:348] + bytes(1004))
    struct.pack_into(">8h", huge, 40, 3, 30000, 30000, 3000, 1, 1, 1, 1)
    bad = {
        "cut.nii": (good[:60000], "68002 .*60000 found"),
        "cut1.nii": (good[:-1], "68002 .*68001 found"),
        "cutgz.nii.gz": (packed[: len(packed) * 7 // 10], "cut short"),
        "crc.nii.gz": (packed[:-8] + bytes([packed[-8] ^ 1]) + packed[-7:], "data check"),
        "none.nii": (b"", "empty"),
        "huge.nii": (bytes(huge), "5400000000352 .*1352 found"),
        "huge.nii.gz": (gzip.compress(bytes(huge)), "5400000000352"),
        "head.nii": (good[:348], "68002 .*348 found"),
        "gone.nii.gz": (packed[:12], "cut short"),
        "short.nii.gz": (gzip.compress(good[:60000]), "68002 .*60000 found"),
    }
    tracemalloc.start()
    start = time.monotonic()
    for name, (content, text) in bad.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(DecodeError, match=text) as caught, volume(path).open(tmp_path):
            pass
        assert name in str(caught.value)
        assert caught.value.path == str(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert time.monotonic() - start < 5
    assert peak < 16 << 20
    assert {path.name for path in tmp_path.iterdir()} == set(bad)


def test_padding_and_members_do_no_harm(tmp_path: Path) -> None:
    """Bytes behind the voxels, zeros behind gzip, a file packed in two parts: same voxels."""
    good = (SAMPLES / "anatomical.nii").read_bytes()
    packed = gzip.compress(good, mtime=0)
    fine = {
        "good.nii": good,
        "tail.nii": good + bytes(1000),
        "tail.nii.gz": packed + bytes(512),
        "rest.nii.gz": packed + b"something else",
        "members.nii.gz": gzip.compress(good[:30000]) + gzip.compress(good[30000:]),
        "bits.nii.gz": b"".join(gzip.compress(good[n : n + 200]) for n in range(0, 68002, 200)),
    }
    wanted = np.asarray(nibabel.load(SAMPLES / "anatomical.nii").dataobj)
    headers = []
    for name, content in fine.items():
        (tmp_path / name).write_bytes(content)
        file = volume(tmp_path / name)
        assert np.array_equal(voxels(file, tmp_path), wanted)
        headers.append((file.header.attrs, file.header.remarks, file.header.dtype))
    assert all(header == headers[0] for header in headers)


def test_a_bomb_is_stopped(tmp_path: Path) -> None:
    """What unpacks to far more than its header promises is not unpacked to its end."""
    content = nifti_bytes(numbered(SHAPE)) + bytes(100 << 20)
    (tmp_path / "x.nii.gz").write_bytes(gzip.compress(content, 1))
    with pytest.raises(DecodeError, match="unpacks to more"):
        voxels(volume(tmp_path / "x.nii.gz"), tmp_path)


def test_the_fourth_axis_is_time_or_channels_or_nothing(tmp_path: Path) -> None:
    """Decided by time step, units and intent; the spatial shape is the first three axes."""
    a = numbered(SHAPE)
    none = [1, 1, 1, 1, 0, 0, 0, 0]
    many = np.stack([a, a + 5000, a + 9000], -1)
    vector = a[..., None, None] + np.array([0, 5000, 10000], "i2")
    cases: dict[str, tuple[Any, dict[str, Any], tuple[int, str, float | None]]] = {
        "one": (a[..., None], {}, (1, "none", None)),
        "vector": (vector, {"intent_code": 1007}, (3, "channel", None)),
        "modal": (many, {"pixdim": none}, (3, "channel", None)),
        "default": (many, {}, (3, "channel", None)),
        "seconds": (many, {"xyzt_units": 10, "pixdim": [1, 1, 1, 1, 2, 0, 0, 0]}, (3, "time", 2)),
        "ms": (many, {"xyzt_units": 18, "pixdim": [1, 1, 1, 1, 500, 0, 0, 0]}, (3, "time", 0.5)),
        "bare": (many, {"xyzt_units": 2, "pixdim": [1, 1, 1, 1, 3, 0, 0, 0]}, (3, "time", 3)),
        "ppm": (many, {"xyzt_units": 42, "pixdim": [1, 1, 1, 1, 3, 0, 0, 0]}, (3, "channel", None)),
        "fourth": (many, {"xyzt_units": 10, "intent_code": 1007}, (3, "channel", None)),
    }
    for name, (array, fields, (steps, axis, seconds)) in cases.items():
        file = volume(write_nifti(tmp_path / f"{name}.nii", array, **fields))
        header = file.header
        assert (name, header.steps, header.axis) == (name, steps, axis)
        assert header.step_seconds == (None if seconds is None else pytest.approx(seconds))
        assert header.shape == SHAPE
        found = voxels(file, tmp_path)
        wanted = array.reshape(*SHAPE, steps) if steps > 1 else array.reshape(SHAPE)
        assert np.array_equal(found, np.moveaxis(wanted, 3, 0) if steps > 1 else wanted)
    flat = volume(write_nifti(tmp_path / "flat.nii", numbered((20, 21, 1))))
    assert flat.header.full_shape == (20, 21, 1)


def test_real_moments_are_time(tmp_path: Path) -> None:
    """Twenty steps of two seconds, and the sums of the first two volumes of another file."""
    functional = volume(SAMPLES / "functional.nii").header
    assert (functional.steps, functional.axis, functional.step_seconds) == (20, "time", 2.0)
    assert (functional.slope, functional.intercept) == (0.07540696859359741, 3100.76171875)
    sums = voxels(volume(SAMPLES / "example4d.nii.gz"), tmp_path).sum(axis=(1, 2, 3), dtype=int)
    assert sums.tolist() == [50994397, 50990959]


def test_more_than_one_further_axis_is_refused(tmp_path: Path) -> None:
    """The text says which axes there are."""
    path = write_nifti(tmp_path / "x.nii", np.zeros((3, 4, 5, 2, 3), "i2"))
    with pytest.raises(DecodeError, match=r"\[3, 4, 5, 2, 3, 1, 1\]"):
        recognise(path)


def test_colours_are_channels(tmp_path: Path) -> None:
    """RGB triples lie next to each other in the file."""
    colours = np.random.default_rng(0).integers(0, 256, (5, 6, 7, 3)).astype("u1")
    head = bytearray(nifti_bytes(np.zeros((5, 6, 7), "u1"))[:352])
    struct.pack_into("<hh", head, 70, 128, 24)
    data = colours.transpose(3, 0, 1, 2).tobytes("F")
    (tmp_path / "x.nii").write_bytes(bytes(head) + data)
    file = volume(tmp_path / "x.nii")
    assert file.header.attrs["channels"] == ["R", "G", "B"]
    assert np.array_equal(voxels(file, tmp_path), np.moveaxis(colours, 3, 0))


@pytest.mark.parametrize(
    ("code", "name"),
    [(0, "unknown"), (1, "binary"), (32, "complex64"), (1536, "float128"), (77, "standard")],
)
def test_other_types_are_refused_by_name(tmp_path: Path, code: int, name: str) -> None:
    """Never read as something else."""
    data = bytearray(nifti_bytes(numbered(SHAPE)))
    struct.pack_into("<h", data, 70, code)
    (tmp_path / "x.nii").write_bytes(data)
    with pytest.raises(DecodeError, match=f"x.nii.*{name}"):
        recognise(tmp_path / "x.nii")


@pytest.mark.parametrize("packed", [False, True])
def test_pairs_are_one_volume(tmp_path: Path, packed: bool) -> None:
    """The header leads to the picture; a picture that is missing is named."""
    array = numbered(SHAPE)
    data = nifti_bytes(array, sform=SFORM, magic=b"ni1", vox_offset=0)
    end = ".gz" if packed else ""
    change = gzip.compress if packed else bytes
    (tmp_path / f"x.hdr{end}").write_bytes(change(data[:348]))
    with pytest.raises(SourceError, match=r"x\.img"):
        recognise(tmp_path / f"x.hdr{end}")
    (tmp_path / f"x.img{end}").write_bytes(change(data[352:]))
    file = volume(tmp_path / f"x.hdr{end}")
    assert np.array_equal(voxels(file, tmp_path), array)
    assert file.companions == (tmp_path / f"x.img{end}",)  # type: ignore[attr-defined]
    assert recognise(tmp_path / "x.img") is None if not packed else True


def test_regions_are_copies_of_what_was_asked(tmp_path: Path) -> None:
    """Also where the reading is done tile by tile."""
    array = np.random.default_rng(0).integers(-999, 999, (70, 90, 80)).astype("i2")
    file = volume(write_nifti(tmp_path / "x.nii", array, order=">"))
    with file.open(tmp_path) as data:
        for region in (np.s_[:, :, :], np.s_[1:70, 3:88, 5:77], np.s_[2:3, 4:6, 70:99]):
            found = data[region]
            assert np.array_equal(found, array[region])
            assert found.flags.c_contiguous
            assert found.flags.writeable
        with pytest.raises(OptionError, match="one slice for each axis"):
            data[np.s_[:, :]]
        with pytest.raises(OptionError, match="step 1"):
            data[np.s_[::2, :, :]]
    with pytest.raises(OptionError, match="closed"):
        data[np.s_[:, :, :]]


def test_a_file_cut_while_open_is_an_error_and_no_signal(tmp_path: Path) -> None:
    """Touching what is gone would end the process."""
    path = write_nifti(tmp_path / "x.nii", numbered(SHAPE))
    with volume(path).open(tmp_path) as data:
        os.truncate(path, 1000)
        with pytest.raises(SourceError, match="cut short"):
            data[np.s_[:, :, :]]


def test_a_recognised_file_travels_to_another_process(tmp_path: Path) -> None:
    """It is a description; nothing of it is open."""
    file = volume(write_nifti(tmp_path / "x.nii", numbered(SHAPE), sform=SFORM))
    again = pickle.loads(pickle.dumps(file))
    assert np.array_equal(voxels(again, tmp_path), numbered(SHAPE))


@pytest.mark.memory
def test_pages_of_a_large_file_are_let_go(tmp_path: Path) -> None:
    """Reading 160 MB block by block keeps less than a third of it as memory of the process."""
    pytest.importorskip("psutil")
    shape = (512, 512, 320)
    with open(tmp_path / "x.nii", "wb") as out:
        out.write(nifti_bytes(np.zeros((1, 1, 1), "i2"), dim=[3, *shape, 1, 1, 1, 1])[:352])
        for k in range(shape[2]):
            out.write(np.full(shape[:2], k, "<i2").tobytes())
    file = volume(tmp_path / "x.nii")
    before = _mapped_bytes(tmp_path / "x.nii")
    most = 0
    with file.open(tmp_path) as data:
        assert isinstance(data, MappedVoxels)
        for k in range(0, shape[2], 64):
            for j in range(0, 512, 128):
                assert (data[0:512, j : j + 128, k : k + 64][0, 0] == np.arange(k, k + 64)).all()
                most = max(most, _mapped_bytes(tmp_path / "x.nii"))
    assert before == 0
    assert most < 54 << 20


def _mapped_bytes(path: Path) -> int:
    """Return how much of a file counts as resident in this process."""
    total, here = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0] and not line.split(" ", 1)[0].endswith(":"):
            here = line.endswith(str(path))
        elif here and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def test_without_nibabel_the_command_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where a NIfTI file is met: other files are told apart without it."""
    path = write_nifti(tmp_path / "x.nii", numbered(SHAPE))
    (tmp_path / "x.txt").write_text("nothing of this kind")
    monkeypatch.setitem(__import__("sys").modules, "nibabel", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'sharedds\[medical\]'"):
        recognise(path)
    assert recognise(tmp_path / "x.txt") is None
