"""Values of DICOM files: factors, bits, signs, photometric meaning, compression, damage."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pydicom = pytest.importorskip("pydicom")

from dicom_files import (  # noqa: E402 - needs pydicom
    FILES,
    FOLDERS,
    Array,
    affine_by_hand,
    found,
    measured,
    numbered,
    only,
    pixels_by_hand,
    read_by_hand,
    voxels,
    write,
    write_stack,
)
from pydicom.pixels.decoders import base  # noqa: E402

from sharedds.errors import DecodeError, SourceError  # noqa: E402
from sharedds.volumes.dicom import Series, find_series  # noqa: E402
from sharedds.volumes.dicom_placement import normal_of  # noqa: E402
from sharedds.volumes.voxels import MappedVoxels  # noqa: E402

VALUES = numbered((8, 9, 5))
NONE = "1.2.840.10008.1.2.1"


def header_of(series: Series) -> Any:
    """Return the header of a volume."""
    assert series.volume is not None, series.problems
    return series.volume.header


def test_factors_of_each_slice_are_applied(tmp_path: Path) -> None:
    """The first slice's slope for all would give 50, 50, 50, 50."""
    for k, slope in enumerate((0.5, 1, 2, 4)):
        write(
            tmp_path / f"{k}",
            np.full((9, 8), 100, "u2"),
            position=(0, 0, 2 * k),
            RescaleSlope=slope,
            RescaleIntercept=0,
        )
    series = only(found(tmp_path))
    assert (header_of(series).slope, header_of(series).intercept) == (1, 0)
    assert header_of(series).attrs["rescale"] == "per slice, applied"
    read = voxels(series, tmp_path)
    assert read.dtype == np.float32
    assert read[0, 0].tolist() == [50, 100, 200, 400]


def test_intercepts_of_each_slice_are_applied(tmp_path: Path) -> None:
    """Half of a series in Hounsfield units, half shifted."""
    for k in range(4):
        write(
            tmp_path / f"{k}",
            np.full((9, 8), 1000, "i2"),
            position=(0, 0, 2 * k),
            RescaleSlope=1,
            RescaleIntercept=(-1024, 0)[k // 2],
        )
    assert measured(only(found(tmp_path)), tmp_path)[0, 0].tolist() == [-24, -24, 1000, 1000]


@pytest.mark.parametrize(
    ("slope", "intercept", "stored", "expected"),
    [
        (5.3612170781579, 0, (5611, 5612, 5613), (30081.789, 30087.150, 30092.511)),
        (-10, 3000, (0, 60, 120), (3000, 2400, 1800)),
    ],
    ids=["wide", "falling"],
)
def test_equal_factors_stay_beside_the_integers(
    tmp_path: Path,
    slope: float,
    intercept: float,
    stored: tuple[int, ...],
    expected: tuple[float, ...],
) -> None:
    """16 bits are kept; the values do not fit into int16 once they are scaled."""
    for k, value in enumerate(stored):
        write(
            tmp_path / f"{k}",
            np.full((9, 8), value, "u2"),
            position=(0, 0, k),
            RescaleSlope=slope,
            RescaleIntercept=intercept,
        )
    series = only(found(tmp_path))
    assert header_of(series).dtype == np.uint16
    assert "rescale" not in header_of(series).attrs
    assert measured(series, tmp_path)[0, 0] == pytest.approx(expected, abs=0.01)


def test_slope_of_zero_is_refused(tmp_path: Path) -> None:
    """It would make every value the same."""
    write_stack(tmp_path, VALUES, RescaleSlope=0, RescaleIntercept=0)
    (series,) = found(tmp_path).series
    assert "0.dcm: RescaleSlope is 0" in series.problems


def write_inverses(folder: Path) -> Array:
    """Write one picture in both senses, with 12 bits."""
    p = np.random.default_rng(3).integers(0, 4096, (32, 32)).astype("u2")
    bits: dict[str, Any] = {"BitsStored": 12, "HighBit": 11}
    one = {**bits, "PhotometricInterpretation": "MONOCHROME1"}
    write(folder / "one" / "0", p, series="1.2.3", **one)
    write(folder / "two" / "0", 4095 - p, series="1.2.4", **bits)
    write(folder / "both" / "0", p, series="1.2.5", PresentationLUTShape="INVERSE", **one)
    factors: dict[str, Any] = {"RescaleSlope": 2, "RescaleIntercept": 200}
    write(folder / "scaled" / "0", p, series="1.2.6", **factors, **one)
    return p.T[..., None].astype(np.float64)


def test_negatives_are_kept_as_measured(tmp_path: Path) -> None:
    """MONOCHROME1 changes no value by itself; its meaning is stored and told."""
    p = write_inverses(tmp_path)
    series = {one.name: one for one in found(tmp_path, allow_single=True).series}
    assert np.array_equal(measured(series["one"], tmp_path), p)
    assert np.array_equal(measured(series["scaled"], tmp_path), 2 * p + 200)
    meanings = {name: header_of(one).attrs["photometric"] for name, one in series.items()}
    assert sorted(meanings.values()) == ["MONOCHROME1"] * 3 + ["MONOCHROME2"]
    assert header_of(series["one"]).attrs["inverted"] is False
    assert any("MONOCHROME1" in remark for remark in header_of(series["one"]).remarks)


def test_negatives_are_turned_round_once_when_asked(tmp_path: Path) -> None:
    """Within the bits that are stored, before scaling, and never twice."""
    p = write_inverses(tmp_path)
    series = {one.name: one for one in found(tmp_path, allow_single=True, invert=True).series}
    for name in ("one", "two", "both"):
        assert np.array_equal(measured(series[name], tmp_path), 4095 - p)
    assert np.array_equal(measured(series["scaled"], tmp_path), 2 * (4095 - p) + 200)
    assert "inverted" not in header_of(series["two"]).attrs
    assert header_of(series["one"]).attrs["inverted"] is True


def test_real_negative(tmp_path: Path) -> None:
    """A radiograph with a slope of 0.684 and an intercept of 200."""
    folder = FOLDERS / "77654033" / "CR1"
    series = only(found(folder, allow_single=True))
    read = measured(series, tmp_path)
    assert read.min() == pytest.approx(1563.896)
    assert read.max() == pytest.approx(2116.568)
    assert header_of(series).affine is None


def test_signed_negative_is_turned_round_within_its_bits(tmp_path: Path) -> None:
    """-2048 becomes 2047 where 12 bits are stored."""
    pixels = np.array([[-2048, -1, 0, 2047]], "i2")
    write(
        tmp_path / "0", pixels, PhotometricInterpretation="MONOCHROME1", BitsStored=12, HighBit=11
    )
    series = only(found(tmp_path, allow_single=True, invert=True))
    assert voxels(series, tmp_path).ravel().tolist() == [2047, 0, -1, -2048]


def test_bits_beside_the_value_are_cut_away(tmp_path: Path) -> None:
    """Overlays in the upper bits, for unsigned and signed values and a high bit in between."""
    unsigned = np.array([[5 | 0x4000, 4095 | 0xF000]], "u2")
    write(tmp_path / "a" / "0", unsigned, series="1.2.1", BitsStored=12, HighBit=11)
    signed = np.array([[0x0FFF, 0x4005]], "u2").view("i2")
    write(tmp_path / "b" / "0", signed, series="1.2.2", BitsStored=12, HighBit=11)
    middle = np.array([[(7 << 2) | 3, (4095 << 2) | 0x8000]], "u2")
    write(tmp_path / "c" / "0", middle, series="1.2.4", BitsStored=12, HighBit=13)
    read = [
        voxels(one, tmp_path).ravel().tolist() for one in found(tmp_path, allow_single=True).series
    ]
    assert read == [[5, 4095], [-1, 5], [7, 4095]]


def test_signed_and_unsigned_slices_fit_one_dtype(tmp_path: Path) -> None:
    """A series that mixes both keeps every value."""
    write(tmp_path / "0", np.full((2, 2), -5, "i2"))
    write(tmp_path / "1", np.full((2, 2), 60000, "u2"), position=(0, 0, 1))
    series = only(found(tmp_path))
    assert header_of(series).dtype == np.int32
    assert voxels(series, tmp_path)[0, 0].tolist() == [-5, 60000]


def test_floating_point_pixels_are_kept(tmp_path: Path) -> None:
    """FloatPixelData needs no factors."""
    pixels = np.random.default_rng(0).normal(size=(9, 8)).astype("f4")
    write(tmp_path / "0", pixels)
    series = only(found(tmp_path, allow_single=True))
    assert np.array_equal(voxels(series, tmp_path)[..., 0], pixels.T)


def test_colours_are_channels(tmp_path: Path) -> None:
    """(3, i, j, k), with their names."""
    shutil.copy(FILES / "SC_rgb_small_odd.dcm", tmp_path / "0.dcm")
    series = only(found(tmp_path, allow_single=True))
    header = header_of(series)
    assert (header.axis, header.steps, header.shape) == ("channel", 3, (3, 3, 1))
    assert header.attrs["channels"] == ["red", "green", "blue"]
    expected = pixels_by_hand(tmp_path / "0.dcm").transpose(2, 1, 0)[..., None]
    assert np.array_equal(voxels(series, tmp_path), expected)


def hide_decoders(monkeypatch: pytest.MonkeyPatch, *kept: str) -> None:
    """Leave only these plug-ins of pydicom."""
    for decoder in set(base._PIXEL_DATA_DECODERS.values()):
        available = {name: entry for name, entry in decoder[0]._available.items() if name in kept}
        monkeypatch.setattr(decoder[0], "_available", available)


def test_compression_without_a_decoder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the file, the name and UID of the compression, and what to install; the rest is read."""
    refused = {
        "MR_small_jpeg_ls_lossless": ("1.2.840.10008.1.2.4.80", "JPEG-LS", "pyjpegls"),
        "SC_rgb_jpeg_gdcm": ("1.2.840.10008.1.2.4.70", "JPEG Lossless", "pylibjpeg-libjpeg"),
        "JPEG-lossy": ("1.2.840.10008.1.2.4.51", "JPEG Extended", "pylibjpeg-libjpeg"),
    }
    readable = ("MR_small", "MR_small_RLE", "MR_small_jp2klossless")
    for name in (*refused, *readable):
        (tmp_path / name).mkdir()
        shutil.copy(FILES / f"{name}.dcm", tmp_path / name / "0.dcm")
    hide_decoders(monkeypatch, "pydicom", "pillow")
    series = {one.name: one for one in found(tmp_path, allow_single=True).series}
    for name in readable:
        read = voxels(series[name], tmp_path)
        assert (read.min(), read.max(), read.sum(dtype=int)) == (127, 2145, 2125338)
    for name, needles in refused.items():
        assert series[name].volume is None
        for needle in (f"{name}/0.dcm", *needles):
            assert needle in series[name].problems[0]


def test_one_compressed_slice_refuses_its_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No volume of four slices, no slice of zeros."""
    paths = write_stack(tmp_path, VALUES)
    data = pydicom.dcmread(paths[3])
    data.file_meta.TransferSyntaxUID = pydicom.uid.JPEGLSLossless
    data.PixelData = pydicom.encaps.encapsulate([b"\xff\xd8\xff\xf7" + bytes(60)])
    data["PixelData"].is_undefined_length = True
    data.save_as(paths[3])
    hide_decoders(monkeypatch, "pydicom", "pillow")
    (series,) = found(tmp_path).series
    assert series.volume is None
    assert [text.partition(":")[0] for text in series.problems] == ["3.dcm"]


def test_compressed_rubbish_is_an_error(tmp_path: Path) -> None:
    """With a decoder: opening fails and names the file; it never gives zeros."""
    path = write(tmp_path / "0.dcm", VALUES[:, :, 0].T)
    data = pydicom.dcmread(path)
    data.file_meta.TransferSyntaxUID = pydicom.uid.JPEG2000Lossless
    for frame in (b"\xff\x4f\xff\x51" + bytes(60), b"\xff\x4f\xff\x51" + bytes(60) + b"\xff\xd9"):
        data.PixelData = pydicom.encaps.encapsulate([frame])
        data["PixelData"].is_undefined_length = True
        data.save_as(path)
        with pytest.raises(DecodeError, match=r"0\.dcm"):
            voxels(only(found(tmp_path, allow_single=True)), tmp_path)


@pytest.mark.parametrize(
    "name", ["MR_small_jp2klossless", "SC_rgb_jpeg_dcmtk", "MR_small_jpeg_ls_lossless"]
)
def test_compressed_frame_that_breaks_off_is_an_error(tmp_path: Path, name: str) -> None:
    """Some decoders fill what is missing; the end of a frame is looked for first."""
    data = pydicom.dcmread(FILES / f"{name}.dcm")
    (frame,) = pydicom.encaps.generate_frames(data.PixelData, number_of_frames=1)
    data.PixelData = pydicom.encaps.encapsulate([frame[: len(frame) * 2 // 3]])
    data["PixelData"].is_undefined_length = True
    data.save_as(tmp_path / "0.dcm")
    series = only(found(tmp_path, allow_single=True))
    with pytest.raises(DecodeError, match="breaks off"):
        voxels(series, tmp_path)


def test_truncated_file_is_known_before_it_is_opened(tmp_path: Path) -> None:
    """Plain and compressed: the sizes are compared while headers are read."""
    for name in ("CT_small", "MR_small_RLE", "rtdose"):
        data = (FILES / f"{name}.dcm").read_bytes()
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.dcm").write_bytes(data[:-1000])
    for series in found(tmp_path, allow_single=True).series:
        assert "it is cut short" in series.problems[0]


def test_file_that_shrinks_later_is_an_error(tmp_path: Path) -> None:
    """The header was fine; the voxels are no longer there."""
    paths = write_stack(tmp_path / "x", VALUES)
    series = only(found(tmp_path))
    paths[2].write_bytes(paths[2].read_bytes()[:-20])
    with pytest.raises(DecodeError, match=r"x/2\.dcm is cut short: frame 0 has 144 bytes, 124"):
        voxels(series, tmp_path)
    paths[2].unlink()
    with pytest.raises(SourceError, match=r"x/2\.dcm cannot be read"):
        voxels(series, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_regions_are_read_without_the_rest(tmp_path: Path) -> None:
    """What is opened is mapped, not held in memory."""
    write_stack(tmp_path, VALUES)
    series = only(found(tmp_path))
    assert series.volume is not None
    with series.volume.open(tmp_path) as data:
        region = data[1:4, 2:9, 3:5]
        assert isinstance(data, MappedVoxels)
        assert np.array_equal(region, VALUES[1:4, 2:9, 3:5])


def expected_by_hand(path: Path) -> tuple[Array, Array | None]:
    """Return measured voxels and affine of one file of one slice, from pydicom alone."""
    data = read_by_hand(path)
    pixels = pixels_by_hand(path).astype(np.float64)
    slope = float(data.get("DoseGridScaling") or data.get("RescaleSlope") or 1)
    pixels = pixels * slope + float(data.get("RescaleIntercept") or 0)
    if data.SamplesPerPixel == 3:
        pixels = pixels.transpose(2, 1, 0)[..., None]
    elif pixels.ndim == 3:
        pixels = pixels.transpose(2, 1, 0)
    else:
        pixels = pixels.T[..., None]
    if "ImagePositionPatient" not in data or "PixelSpacing" not in data:
        return pixels, None
    thick = data.get("SpacingBetweenSlices") or data.get("SliceThickness") or 1
    if "GridFrameOffsetVector" in data:
        thick = data.GridFrameOffsetVector[1] if pixels.shape[-1] > 1 else thick
    normal = normal_of(tuple(float(value) for value in data.ImageOrientationPatient))
    return pixels, affine_by_hand(data, [float(thick) * axis for axis in normal])


def all_files() -> list[Path]:
    """Return the files of both packages."""
    folders = [FILES]
    try:
        import nibabel
    except ImportError:
        pass
    else:
        folders.append(Path(nibabel.__file__).parent / "nicom" / "tests" / "data")
    return [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]


def test_every_file_at_hand_equals_pydicom_or_is_refused(tmp_path: Path) -> None:
    """Each by itself: voxels and affine as pydicom has them, or a reason in words."""
    volumes, refused = 0, 0
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    for path in all_files():
        if path.name.endswith(".dcm.gz"):
            data = gzip.decompress(path.read_bytes())
            path = unpacked / path.stem
            path.write_bytes(data)
        findings = find_series(path.parent, [path], allow_single=True)
        assert len(findings.series) <= 1, path
        if not findings.series or findings.series[0].volume is None:
            ((left, reason),) = findings.left_out
            assert left == path
            assert len(reason) > 10
            refused += 1
            continue
        (series,) = findings.series
        assert findings.left_out == ()
        try:
            read = measured(series, tmp_path)
        except DecodeError:
            with pytest.raises(Exception, match=r"."):
                pixels_by_hand(path)
            refused += 1
            continue
        if path.name == "philips_mprage.dcm":
            continue
        voxel, affine = expected_by_hand(path)
        assert np.allclose(read, voxel, rtol=1e-6), path
        if affine is None or header_of(series).affine is None:
            assert affine is header_of(series).affine, path
        else:
            assert np.allclose(header_of(series).affine, affine, rtol=0, atol=1e-4), path
        volumes += 1
    assert volumes > 80
    assert refused > 80


def test_whole_folders_account_for_each_file_once(tmp_path: Path) -> None:
    """With everything mixed up, and with the files that belong together."""
    for folder in (FILES, FOLDERS):
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        for single in (False, True):
            findings = find_series(folder, files, allow_single=single)
            used = [path for one in findings.series if one.volume for path in one.files]
            left = [path for path, _ in findings.left_out]
            assert sorted({*used, *left}) == files
            assert len(used) + len(left) == len(files)
            names = [one.name for one in findings.series]
            assert len(set(names)) == len(names)
            for one in findings.series:
                assert (one.volume is None) == bool(one.problems)
