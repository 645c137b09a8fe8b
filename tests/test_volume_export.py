"""A store of volumes written back to NIfTI: the same voxels in the same places."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import numpy.typing as npt
import pytest
from packing import jpeg
from volume_export_stores import Scan, store_of

from sharedds.cli import main
from sharedds.errors import (
    CorruptDataError,
    MissingExtraError,
    OptionError,
    SampleKeyError,
    StorageFullError,
    StoreExistsError,
    StoreFormatError,
)
from sharedds.ingest import export
from sharedds.ingest.exports import nifti, volumes
from sharedds.ingest.exports.folder import NewFolder
from sharedds.store import ArrayValue, ChunkedArray, Store, StoreWriter
from sharedds.volumes.opening import recognise

#: Axes along the body, every number exact in 32 bits.
STRAIGHT = np.array([[-0.75, 0, 0, 90], [0, 0.5, 0, -80.25], [0, 0, 2.5, -20], [0, 0, 0, 1.0]])
#: Turned about two axes, as scanners are tilted; exact in 64 bits only.
TILTED = np.array(
    [
        [0.7 * np.cos(0.3), -0.8 * np.sin(0.3), 0, 1 / 3],
        [0.7 * np.sin(0.3), 0.8 * np.cos(0.3), 0, -77.7],
        [0, 0, 3.1, 0.1],
        [0, 0, 0, 1.0],
    ]
)
SHEARED = np.array([[1, 0.25, 0, 3], [0, 1, 0.5, 4], [0, 0, 2, 5], [0, 0, 0, 1.0]])


def voxels(shape: tuple[int, ...], dtype: str = "int16", seed: int = 0) -> npt.NDArray[Any]:
    """Return noise over the range of a dtype."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return rng.normal(0, 100, shape).astype(kind)
    limits = np.iinfo(kind)
    return rng.integers(limits.min, limits.max, shape, kind, endpoint=True)


def files_of(root: Path) -> list[str]:
    """Return the relative paths of all files."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def exported(tmp_path: Path, scan: Scan, **options: Any) -> Any:
    """Return the image of one case after an export, as nibabel opens it."""
    store = store_of(tmp_path / "x.lmdb", {"case": scan})
    export(store, tmp_path / "back", **options)
    suffix = options.get("suffix", ".nii.gz")
    return nibabel.load(tmp_path / "back" / "images" / f"case{suffix}")


def raw(image: Any) -> npt.NDArray[Any]:
    """Return the voxels as they are stored."""
    values: npt.NDArray[Any] = image.dataobj.get_unscaled()
    return values


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """Three cases, one of them without a label."""
    scans = {
        "p1/ct": Scan(
            image=voxels((9, 10, 11)), affine=STRAIGHT, label=voxels((9, 10, 11), "uint8")
        ),
        "p2/ct": Scan(image=voxels((5, 6, 7), seed=1), affine=TILTED),
        "p3": Scan(image=voxels((4, 4, 9)), affine=STRAIGHT, label=voxels((4, 4, 9), "uint8")),
    }
    return store_of(tmp_path / "x.lmdb", scans)


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
@pytest.mark.parametrize(
    "dtype",
    [
        "uint8",
        "int8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float32",
        "float64",
    ],
)
def test_voxels_come_back_as_they_are(tmp_path: Path, dtype: str, suffix: str) -> None:
    """In their dtype, in more than one slab and with blocks cut off at the border."""
    scan = Scan(image=voxels((17, 9, 21), dtype), affine=STRAIGHT)
    image = exported(tmp_path, scan, suffix=suffix)
    assert image.get_data_dtype() == np.dtype(dtype)
    np.testing.assert_array_equal(raw(image), scan.image)


@pytest.mark.parametrize(("dtype", "better"), [("float16", "float32"), ("bool", "uint8")])
def test_what_nifti_has_not_is_written_as_the_next_it_has(
    tmp_path: Path, dtype: str, better: str
) -> None:
    """The same values; no dtype is refused."""
    values = np.arange(60).reshape(3, 4, 5).astype(dtype)
    image = exported(tmp_path, Scan(image=values, affine=STRAIGHT))
    assert image.get_data_dtype() == np.dtype(better)
    np.testing.assert_array_equal(raw(image), values)


@pytest.mark.parametrize(
    ("affine", "kind"),
    [
        (STRAIGHT, nibabel.Nifti1Image),
        (TILTED, nibabel.Nifti2Image),
        (SHEARED, nibabel.Nifti1Image),
    ],
    ids=["straight", "tilted", "sheared"],
)
def test_the_affine_comes_back_bit_for_bit(tmp_path: Path, affine: Any, kind: Any) -> None:
    """In NIfTI-1 where 32 bits hold it, else in NIfTI-2; no tool has to guess."""
    image: Any = exported(tmp_path, Scan(image=voxels((5, 6, 7)), affine=affine))
    assert type(image) is kind
    sform, code = image.header.get_sform(coded=True)
    assert code == 1
    np.testing.assert_array_equal(sform, affine)
    np.testing.assert_array_equal(image.affine, affine)


@pytest.mark.parametrize("affine", [STRAIGHT, TILTED], ids=["straight", "tilted"])
def test_the_qform_says_the_same(tmp_path: Path, affine: Any) -> None:
    """For tools that read only that one; spacing and units too."""
    header = exported(tmp_path, Scan(image=voxels((5, 6, 7)), affine=affine)).header
    qform, code = header.get_qform(coded=True)
    assert code == 1
    np.testing.assert_allclose(qform, affine, rtol=0, atol=1e-4)
    np.testing.assert_allclose(
        header.get_zooms(), np.linalg.norm(affine[:3, :3], axis=0), rtol=1e-6
    )
    assert header.get_xyzt_units()[0] == "mm"


def test_a_standard_brain_stays_one(tmp_path: Path) -> None:
    """The code says that the affine leads to MNI coordinates, not to a scanner."""
    scan = Scan(image=voxels((5, 6, 7)), affine=STRAIGHT, attrs={"sform_code": 4})
    header = exported(tmp_path, scan).header
    assert (header["sform_code"], header["qform_code"]) == (4, 4)


def test_a_sheared_volume_has_no_qform(tmp_path: Path) -> None:
    """A quaternion cannot say it, and half of it would be another place."""
    header = exported(tmp_path, Scan(image=voxels((5, 6, 7)), affine=SHEARED)).header
    assert header["qform_code"] == 0
    assert header["sform_code"] == 1


def test_a_volume_without_a_place_gets_none(tmp_path: Path) -> None:
    """Both codes are 0, so that a reader knows that nobody knows."""
    header = exported(tmp_path, Scan(image=voxels((5, 6, 7)))).header
    assert (header["qform_code"], header["sform_code"]) == (0, 0)


@pytest.mark.parametrize(
    ("slope", "intercept"), [(0.5, -10.0), (0.07540696859359741, 3100.76171875), (1 / 3, -1024.1)]
)
def test_factors_come_back(tmp_path: Path, slope: float, intercept: float) -> None:
    """Exactly, and beside unchanged voxels: the measured values are those of the store."""
    attrs = {"slope": slope, "intercept": intercept}
    scan = Scan(image=voxels((6, 5, 4)), affine=STRAIGHT, attrs=attrs)
    image = exported(tmp_path, scan)
    assert (image.dataobj.slope, image.dataobj.inter) == (slope, intercept)
    np.testing.assert_array_equal(raw(image), scan.image)
    measured = Store(tmp_path / "x.lmdb").array(0, "image").read()
    np.testing.assert_allclose(image.get_fdata(dtype=np.float32), measured, rtol=1e-6, atol=1e-3)


def test_moments_come_last_with_their_seconds(tmp_path: Path) -> None:
    """The step axis is first in a store and last in a file."""
    attrs = {"axis": "time", "step_seconds": 2.5}
    scan = Scan(image=voxels((4, 6, 5, 7)), affine=STRAIGHT, attrs=attrs)
    image = exported(tmp_path, scan)
    assert image.shape == (6, 5, 7, 4)
    np.testing.assert_array_equal(raw(image), np.moveaxis(scan.image, 0, -1))
    assert image.header.get_zooms()[3] == 2.5
    assert image.header.get_xyzt_units() == ("mm", "sec")


def test_channels_of_one_file_stay_in_one_file(tmp_path: Path) -> None:
    """Without a time step, so that nobody takes them for moments."""
    scan = Scan(image=voxels((3, 6, 5, 7)), affine=STRAIGHT, attrs={"axis": "channel"})
    image = exported(tmp_path, scan)
    np.testing.assert_array_equal(raw(image), np.moveaxis(scan.image, 0, -1))
    assert image.header["pixdim"][4] == 0
    assert image.header.get_xyzt_units()[1] != "sec"


def test_channels_that_were_files_are_files_again(tmp_path: Path) -> None:
    """Numbered as nnU-Net numbers them; their names are in dataset.json."""
    attrs = {"axis": "channel", "channels": ["T1", "T2"]}
    scan = Scan(image=voxels((2, 6, 5, 7)), affine=STRAIGHT, attrs=attrs)
    done = export(store_of(tmp_path / "x", {"a/case": scan}), tmp_path / "back")
    assert done.files == 2
    assert files_of(tmp_path / "back") == [
        "dataset.json",
        "images/a/case_0000.nii.gz",
        "images/a/case_0001.nii.gz",
    ]
    for number in range(2):
        image: Any = nibabel.load(tmp_path / "back" / "images" / "a" / f"case_000{number}.nii.gz")
        np.testing.assert_array_equal(raw(image), scan.image[number])
    facts = json.loads((tmp_path / "back" / "dataset.json").read_text())
    assert facts["channel_names"] == {"0": "T1", "1": "T2"}


@pytest.mark.parametrize(
    ("steps", "attrs"),
    [
        (0, {}),
        (0, {"slope": 1 / 3, "intercept": -1024.1}),
        (4, {"axis": "time", "step_seconds": 2.5}),
        (3, {"axis": "channel"}),
    ],
    ids=["plain", "factors", "time", "channel"],
)
@pytest.mark.parametrize("affine", [STRAIGHT, TILTED, None], ids=["straight", "tilted", "none"])
def test_our_own_reader_finds_what_was_stored(
    tmp_path: Path, steps: int, attrs: dict[str, Any], affine: Any
) -> None:
    """Shape, steps, dtype, affine, factors and voxels, all equal."""
    shape = (steps, 6, 5, 7) if steps else (6, 5, 7)
    scan = Scan(image=voxels(shape), affine=affine, attrs=attrs)
    export(store_of(tmp_path / "x", {"case": scan}), tmp_path / "back")
    file = recognise(tmp_path / "back" / "images" / "case.nii.gz")
    assert file is not None
    header = file.header
    assert header.full_shape == shape
    assert header.dtype == np.dtype("<i2")
    assert header.axis == attrs.get("axis", "none")
    assert header.step_seconds == attrs.get("step_seconds")
    assert (header.slope, header.intercept) == (
        attrs.get("slope", 1),
        attrs.get("intercept", 0),
    )
    if affine is None:
        assert header.affine is None
    else:
        np.testing.assert_array_equal(header.affine, affine)
    with file.open(tmp_path) as data:
        np.testing.assert_array_equal(data[tuple(slice(0, n) for n in shape)], scan.image)


def test_labels_have_a_folder_of_their_own(packed: Path, tmp_path: Path) -> None:
    """Under the name of their case; a case without one is counted."""
    done = export(packed, tmp_path / "back")
    assert (done.files, done.empty) == (5, 1)
    assert files_of(tmp_path / "back") == [
        "images/p1/ct.nii.gz",
        "images/p2/ct.nii.gz",
        "images/p3.nii.gz",
        "labels/p1/ct.nii.gz",
        "labels/p3.nii.gz",
    ]
    label: Any = nibabel.load(tmp_path / "back" / "labels" / "p1" / "ct.nii.gz")
    np.testing.assert_array_equal(raw(label), voxels((9, 10, 11), "uint8"))
    np.testing.assert_array_equal(label.affine, STRAIGHT)
    sizes = [path.stat().st_size for path in (tmp_path / "back").rglob("*.gz")]
    assert done.bytes == sum(sizes)


def test_names_of_classes_are_written(tmp_path: Path) -> None:
    """By name, as nnU-Net reads them."""
    label = np.zeros((3, 3, 3), np.uint8)
    store = store_of(
        tmp_path / "x",
        {"a": Scan(image=voxels((3, 3, 3)), affine=STRAIGHT, label=label)},
        class_names={"0": "background", "1": "liver"},
    )
    export(store, tmp_path / "back", suffix=".nii")
    facts = json.loads((tmp_path / "back" / "dataset.json").read_text())
    assert facts == {
        "labels": {"background": 0, "liver": 1},
        "numTraining": 1,
        "file_ending": ".nii",
    }


def test_one_field_alone_can_be_written(packed: Path, tmp_path: Path) -> None:
    """Labels without images; a field that is none of volumes is refused by name."""
    export(packed, tmp_path / "back", field="label")
    assert os.listdir(tmp_path / "back") == ["labels"]
    with pytest.raises(SampleKeyError, match="no volumes in a field 'shape'"):
        export(packed, tmp_path / "other", field="shape")


def test_the_same_volumes_are_the_same_files(packed: Path, tmp_path: Path) -> None:
    """No time and no name of a temporary file in them."""
    for name in ("one", "two"):
        export(packed, tmp_path / name)
    for path in files_of(tmp_path / "one"):
        one, two = ((tmp_path / name / path).read_bytes() for name in ("one", "two"))
        assert one == two


def test_slabs_are_small_and_no_block_is_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is that of one layer of blocks, whatever the volume has."""
    scan = Scan(image=voxels((64, 32, 100)), affine=STRAIGHT)
    store = store_of(tmp_path / "x", {"case": scan}, chunk=(16, 16, 16))
    monkeypatch.setattr(nifti, "_SLAB", 1)
    sizes: list[int] = []
    starts: list[int] = []
    real = ChunkedArray.__getitem__

    def noting(self: ChunkedArray, region: Any) -> npt.NDArray[Any]:
        values = real(self, region)
        sizes.append(values.size)
        starts.append(region[-1].start)
        return values

    monkeypatch.setattr(ChunkedArray, "__getitem__", noting)
    export(store, tmp_path / "back")
    assert max(sizes) == 64 * 32 * 16
    assert starts == list(range(0, 100, 16))
    image: Any = nibabel.load(tmp_path / "back" / "images" / "case.nii.gz")
    np.testing.assert_array_equal(raw(image), scan.image)


def test_a_layer_of_blocks_that_is_huge_is_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory stays bounded; time is what it costs."""
    scan = Scan(image=voxels((16, 16, 20)), affine=STRAIGHT)
    store = store_of(tmp_path / "x", {"case": scan}, chunk=(16, 16, 20))
    monkeypatch.setattr(nifti, "_LARGEST_SLAB", 3 * 16 * 16 * 2)
    export(store, tmp_path / "back")
    image: Any = nibabel.load(tmp_path / "back" / "images" / "case.nii.gz")
    np.testing.assert_array_equal(raw(image), scan.image)


@pytest.mark.parametrize("key", ["../x", "/etc/x", "a/../../x", "a//x", ".", "a\0b"])
def test_keys_that_would_leave_the_folder_are_refused(tmp_path: Path, key: str) -> None:
    """A store from elsewhere may hold any key; nothing is written anywhere."""
    scan = Scan(image=voxels((2, 2, 2)), affine=STRAIGHT)
    store = store_of(tmp_path / "evil", {"good": scan, key: scan})
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreFormatError, match="sample 1 is not a path inside a folder"):
        export(store, tmp_path / "back")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_long_name_is_not_cut_within_a_letter(tmp_path: Path) -> None:
    """Half of a letter is no UTF-8, which other systems refuse as a name."""
    scan = Scan(image=voxels((2, 2, 2)), affine=STRAIGHT)
    export(store_of(tmp_path / "x", {"ü" * 127: scan}), tmp_path / "back")
    (name,) = os.listdir(os.fsencode(tmp_path / "back" / "images"))
    assert name.decode("utf-8") == "ü" * 124 + ".nii.gz"


def test_a_slope_of_nothing_is_refused(tmp_path: Path) -> None:
    """Readers of NIfTI take 0 for no slope: they would find other values than the store has."""
    scan = Scan(image=voxels((2, 2, 2)), affine=STRAIGHT, attrs={"slope": 0, "intercept": 5})
    with pytest.raises(StoreFormatError, match=r"sample 0: .*its slope is 0"):
        export(store_of(tmp_path / "x", {"a": scan}), tmp_path / "back")


@pytest.mark.parametrize("dry_run", [False, True])
def test_two_cases_of_one_name_are_refused(tmp_path: Path, dry_run: bool) -> None:
    """Where the number of a channel makes two names one."""
    attrs = {"axis": "channel", "channels": ["T1"]}
    scans = {
        "a": Scan(image=voxels((1, 2, 2, 2)), attrs=attrs),
        "a_0000": Scan(image=voxels((2, 2, 2))),
    }
    store = store_of(tmp_path / "x", scans)
    with pytest.raises(StoreFormatError, match=r"sample 0 .* and sample 1 .* the same name"):
        export(store, tmp_path / "back", dry_run=dry_run)
    assert os.listdir(tmp_path) == ["x"]


def test_a_folder_that_is_not_empty_is_refused(packed: Path, tmp_path: Path) -> None:
    """It keeps what it has."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    with pytest.raises(StoreExistsError, match="not an empty folder"):
        export(packed, tmp_path / "full")
    assert os.listdir(tmp_path / "full") == ["mine"]


def test_an_interrupted_export_leaves_nothing(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not under the final name, nor beside it."""
    real, count = nifti.header_bytes, [0]

    def stopping(volume: Any) -> bytes:
        count[0] += 1
        if count[0] == 3:
            raise KeyboardInterrupt
        return real(volume)

    monkeypatch.setattr(volumes, "header_bytes", stopping)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(KeyboardInterrupt):
        export(packed, tmp_path / "back")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_full_disk_ends_an_export(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a volume; as an error that says so, and nothing is left."""
    import contextlib
    import errno
    from collections.abc import Iterator

    class Full:
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    real = NewFolder.create

    @contextlib.contextmanager
    def full(self: NewFolder, name: bytes) -> Iterator[Any]:
        with real(self, name):
            yield Full()

    monkeypatch.setattr(NewFolder, "create", full)
    with pytest.raises(StorageFullError, match="back: no room to write"):
        export(packed, tmp_path / "back")
    assert sorted(os.listdir(tmp_path)) == ["x.lmdb"]


def test_damage_ends_an_export(packed: Path, tmp_path: Path) -> None:
    """With the sample named, and nothing under the final name."""
    view = bytes(Store(packed).read("image", 1))
    data = bytearray(packed.read_bytes())
    data[data.index(view) + len(view) // 2] ^= 1
    (tmp_path / "damaged.lmdb").write_bytes(data)
    with pytest.raises(CorruptDataError, match="sample 1"):
        export(tmp_path / "damaged.lmdb", tmp_path / "back")
    assert sorted(os.listdir(tmp_path)) == ["damaged.lmdb", "x.lmdb"]


def test_without_nibabel_the_extra_is_named(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is made."""
    monkeypatch.setitem(sys.modules, "nibabel", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'sharedds\[medical\]'"):
        export(packed, tmp_path / "back")
    assert os.listdir(tmp_path) == ["x.lmdb"]


def test_a_dry_run_reads_all_and_writes_nothing(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says what it would have written, to the byte."""
    before = sorted(tmp_path.rglob("*"))
    assert main(["export", str(packed), str(tmp_path / "back"), "--dry-run", "--json"]) == 0
    would = json.loads(capsys.readouterr().out)
    assert sorted(tmp_path.rglob("*")) == before
    done = export(packed, tmp_path / "back")
    assert would == {**done.to_json(), "dry_run": True}


def test_the_command_writes_the_folder(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Uncompressed on request, with one line on stdout."""
    assert main(["export", str(packed), str(tmp_path / "back"), "--suffix", ".nii"]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'back'}: 5 files written, ")
    assert (tmp_path / "back" / "images" / "p3.nii").exists()


def test_labels_that_are_not_there_cannot_be_written(tmp_path: Path) -> None:
    """Said before anything is written."""
    store = store_of(tmp_path / "x", {"a": Scan(image=voxels((2, 2, 2)))})
    with pytest.raises(OptionError, match="no labels"):
        export(store, tmp_path / "back", labels=True)
    assert os.listdir(tmp_path) == ["x"]


def test_a_suffix_is_not_for_pictures(tmp_path: Path) -> None:
    """Their names are those they came with; an option without effect would mislead."""
    with StoreWriter(tmp_path / "x", schema={"image": "keep"}) as writer:
        writer.add({"image": jpeg()}, key="a.jpg")
    with pytest.raises(OptionError, match="is for volumes"):
        export(tmp_path / "x", tmp_path / "back", suffix=".nii")


@pytest.mark.parametrize(
    "attrs",
    [{"slope": "x"}, {"affine": [[0.0] * 4] * 4}, {"axis": "time", "step_seconds": [2]}],
    ids=["slope", "affine", "seconds"],
)
def test_what_is_kept_with_a_volume_may_be_damaged(tmp_path: Path, attrs: dict[str, Any]) -> None:
    """As of a store from elsewhere: refused with the sample, never written wrong."""
    with StoreWriter(tmp_path / "x", schema={"image": "lz4"}, attrs={"kind": "volume"}) as writer:
        writer.add({"image": ArrayValue(voxels((2, 2, 2)), attrs)}, key="a")
    with pytest.raises(StoreFormatError, match=r"sample 0: .* damaged"):
        export(tmp_path / "x", tmp_path / "back")
    assert os.listdir(tmp_path) == ["x"]
