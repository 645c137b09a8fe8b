"""A store as one PNG: slices hung as radiologists hang them, outlines on the labels, thumbnails."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pictures
import pytest
from packing import jpeg
from PIL import Image
from volume_export_stores import Scan, store_of

from sharedds.cli import main
from sharedds.errors import (
    CorruptDataError,
    OptionError,
    SourceError,
    StoreExistsError,
    StoreFormatError,
)
from sharedds.ingest.exports.panels import Panel, colour_of
from sharedds.ingest.exports.preview import preview
from sharedds.ingest.exports.volume_panels import volume_panel
from sharedds.store import ArrayValue, Store, StoreWriter
from sharedds.store.opened import OpenedStore
from sharedds.volumes.changes import reoriented
from sharedds.volumes.source import VolumeHeader

DATA = Path(__file__).parents[2] / "shared" / "data" / "medical"
ORIENTATIONS = [
    "".join(letters)
    for order in itertools.permutations(("RL", "AP", "SI"))
    for letters in itertools.product(*order)
]
RAS = np.diag([1.0, 1.0, 1.0, 1.0])


def panel_of(tmp_path: Path, scan: Scan, *, side: int = 100, **options: Any) -> Panel:
    """Return the panel of one case."""
    store = store_of(tmp_path / "x.lmdb", {"case": scan}, **options)
    return volume_panel(Store(store), 0, side)


def grey(panel: Panel) -> npt.NDArray[np.uint8]:
    """Return the pixels of a panel in grey."""
    return np.array(panel.picture.convert("L"))


def coloured(panel: Panel) -> npt.NDArray[np.bool_]:
    """Return which pixels have a strong colour, as outlines have and letters have not."""
    pixels = np.array(panel.picture).astype(int)
    found: npt.NDArray[np.bool_] = pixels.max(axis=2) - pixels.min(axis=2) > 120
    return found


def boxes(found: npt.NDArray[np.bool_], views: int = 3) -> list[tuple[int, int, int, int]]:
    """Return (top, bottom, left, right) of what is found in each third of a panel."""
    width = found.shape[1] // views
    result = []
    for number in range(views):
        rows, columns = np.nonzero(found[:, number * width : (number + 1) * width])
        result.append((rows.min(), rows.max(), columns.min(), columns.max()))
    return result


@pytest.fixture
def body() -> npt.NDArray[np.int16]:
    """A cube in RAS+ that is bright in the upper front of the right, all else being dark."""
    values = np.full((41, 41, 41), -500, np.int16)
    values[20:38, 20:38, 20:38] = 1500
    return values


def test_slices_hang_as_radiologists_hang_them(tmp_path: Path, body: Any) -> None:
    """Right is left, front is up, head is up; from the side the face looks to the left."""
    panel = panel_of(tmp_path, Scan(image=body, affine=RAS))
    axial, coronal, sagittal = boxes(grey(panel) > 230)
    height, width = panel.picture.height, panel.picture.width / 3
    for top, bottom, left, right in (axial, coronal, sagittal):
        assert top < height * 0.15
        assert bottom < height * 0.6
        assert left < width * 0.15
        assert right < width * 0.6


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_a_case_looks_the_same_however_it_is_stored(
    tmp_path: Path, body: Any, orientation: str
) -> None:
    """Pixel for pixel, for all 48 orders and directions of axes, labels too."""
    body = body.copy()
    body[5, 30:40, 7] = 700
    label = (body > 1000).astype(np.uint8)
    facts: dict[str, Any] = {"path": "x", "format": "NumPy", "shape": body.shape, "affine": RAS}
    head, turned = reoriented(body, VolumeHeader(dtype=body.dtype, **facts), orientation)
    _, marks = reoriented(label, VolumeHeader(dtype=label.dtype, **facts), orientation)
    everything = (slice(0, 41),) * 3
    scan = Scan(image=turned[everything], affine=head.affine, label=marks[everything])
    panel = panel_of(tmp_path, scan, chunk=(41, 41, 41))
    (tmp_path / "ras").mkdir()
    straight = Scan(image=body, affine=RAS, label=label)
    expected = panel_of(tmp_path / "ras", straight, chunk=(41, 41, 41))
    np.testing.assert_array_equal(np.array(panel.picture), np.array(expected.picture))


def test_pixels_are_square_in_millimetres(tmp_path: Path) -> None:
    """A ball in thick slices is round; with square voxels it would be flat."""
    spacing = np.array([1.0, 0.8, 5.0])
    centre = np.array([40, 40, 40.0])
    places = [np.arange(n) * s for n, s in zip((81, 101, 17), spacing, strict=True)]
    far = sum((x - c) ** 2 for x, c in zip(np.ix_(*places), centre, strict=True))
    image = np.where(far < 30**2, 1000, 0).astype(np.int16)
    panel = panel_of(tmp_path, Scan(image=image, affine=np.diag([*spacing, 1])), side=200)
    for top, bottom, left, right in boxes(grey(panel) > 128):
        assert (bottom - top + 1) / (right - left + 1) == pytest.approx(1, abs=0.08)


def test_outlines_lie_on_the_labels(tmp_path: Path, body: Any) -> None:
    """Along the border of the bright cube, in the colour of the class, and hollow."""
    label = (body > 1000).astype(np.uint8) * 2
    panel = panel_of(tmp_path, Scan(image=body, affine=RAS, label=label), side=205)
    assert panel.classes == (2,)
    marked = (np.array(panel.picture) == colour_of(2)).all(axis=2)
    for line, bright in zip(boxes(marked), boxes(grey(panel) > 200), strict=True):
        np.testing.assert_allclose(line, bright, atol=3)
    assert marked.sum() < 0.1 * marked.size


def test_labels_far_from_the_middle_are_looked_for(tmp_path: Path, body: Any) -> None:
    """The slices go through the middle of those in the block with most of them."""
    label = np.zeros(body.shape, np.uint8)
    label[2:6, 33:39, 3:7] = 1
    panel = panel_of(tmp_path, Scan(image=body, affine=RAS, label=label))
    assert len(boxes(coloured(panel))) == 3
    assert "slices i 4, j 36, k 5" in panel.lines[2]


def test_thin_labels_are_not_missed(tmp_path: Path, body: Any) -> None:
    """Two voxels at the edge of a large block, whose own middle has none of them."""
    label = np.zeros(body.shape, np.uint8)
    label[30:32, 1:3, 38:40] = 1
    panel = panel_of(tmp_path, Scan(image=body, affine=RAS, label=label), chunk=(32, 32, 32))
    assert len(boxes(coloured(panel))) == 3
    assert "slices i 31, j 2, k 39" in panel.lines[2]


def test_only_blocks_of_the_slices_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 512 blocks of the image the 3 x 64 that slices touch, less where they cross."""
    image = np.zeros((64, 64, 64), np.int16)
    store = store_of(
        tmp_path / "x", {"a": Scan(image=image, affine=RAS, label=image.astype(np.uint8))}
    )
    read: set[tuple[str, int]] = set()
    real = OpenedStore.entries

    def noting(
        self: OpenedStore, first: int, numbers: Any, sample: int, field: str, **options: Any
    ) -> Iterator[tuple[memoryview, int]]:
        read.update((field, number) for number in numbers)
        return real(self, first, numbers, sample, field, **options)

    monkeypatch.setattr(OpenedStore, "entries", noting)
    volume_panel(Store(store), 0, 100)
    each = 8**3 - 7**3
    assert len(read) == 2 * each


@pytest.mark.parametrize(
    ("modality", "window"), [("CT", r"; -160 to 240 HU\Z"), ("MR", r"; -1000 to 9[5-9]\d\Z")]
)
def test_the_window_fits_the_modality(tmp_path: Path, modality: str, window: str) -> None:
    """Soft tissue for CT, otherwise what most values lie between; one hot voxel is no measure."""
    image = np.full((40, 40, 40), -1000, np.int16)
    image[20] = np.linspace(0, 1000, 1600).reshape(40, 40)
    image[20, 20, 20] = 30000
    attrs = {"modality": modality}
    lines = panel_of(tmp_path, Scan(image=image, affine=RAS, attrs=attrs)).lines
    assert re.search(window, lines[2])


def test_a_ct_in_other_units_is_not_all_white(tmp_path: Path) -> None:
    """Counts of a detector, or another picture under a wrong tag."""
    image = np.full((20, 20, 20), 1000, np.uint16)
    image[5:15, 5:15, 5:15] = 1100
    panel = panel_of(tmp_path, Scan(image=image, affine=RAS, attrs={"modality": "CT"}))
    assert panel.lines[2].endswith("; 1000 to 1100")


def test_a_file_may_say_that_its_units_are_others(tmp_path: Path) -> None:
    """The type of rescaling that DICOM gives beside the factors."""
    image = np.full((20, 20, 20), 7, np.uint16)
    image[5:15, 5:15, 5:15] = 99
    attrs = {"modality": "CT", "rescale_type": "US"}
    panel = panel_of(tmp_path, Scan(image=image, affine=RAS, attrs=attrs))
    assert panel.lines[2].endswith("; 7 to 99")


def test_hounsfield_units_are_recognised(tmp_path: Path) -> None:
    """Of a file that does not say CT: whole numbers with air and with tissue."""
    image = np.full((20, 20, 20), -1000, np.int16)
    image[5:15, 5:15, 5:15] = 40
    assert "-160 to 240 HU" in panel_of(tmp_path, Scan(image=image, affine=RAS)).lines[2]


def test_the_window_is_that_of_measured_values(tmp_path: Path) -> None:
    """Slope and intercept come first."""
    image = np.full((20, 20, 20), 0, np.uint16)
    image[5:15, 5:15, 5:15] = 520
    attrs = {"modality": "CT", "slope": 2.0, "intercept": -1000.0}
    panel = panel_of(tmp_path, Scan(image=image, affine=RAS, attrs=attrs))
    middle = grey(panel)[panel.picture.height // 2, panel.picture.width // 2]
    assert middle == pytest.approx(255 * (40 + 160) / 400, abs=2)


@pytest.mark.parametrize(("attrs", "bright"), [({}, False), ({"inverted": True}, True)])
def test_negatives_are_shown_as_positives(tmp_path: Path, attrs: Any, bright: bool) -> None:
    """Where low values are bright in the file, unless packing has turned them round."""
    image = np.zeros((20, 20, 20), np.int16)
    image[5:15, 5:15, 5:15] = 500
    kept = {"photometric": "MONOCHROME1", **attrs}
    panel = panel_of(tmp_path, Scan(image=image, affine=RAS, attrs=kept))
    middle = grey(panel)[panel.picture.height // 2, panel.picture.width // 2]
    assert (middle > 200) == bright


def test_a_case_without_affine_says_so(tmp_path: Path) -> None:
    """No letters, no millimetres; nobody is told a side that may be wrong."""
    panel = panel_of(tmp_path, Scan(image=np.zeros((20, 20, 20), np.int16)))
    assert "orientation unknown" in panel.lines[2]
    assert "mm" not in panel.lines[1]
    assert np.ptp(np.array(panel.picture).astype(int), axis=2).max() == 0


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((30, 20, 1), np.uint8),
        np.zeros((1, 1, 1), np.float32),
        np.full((4, 5, 6), np.nan, np.float32),
        np.zeros((3, 8, 9, 10), np.int16),
        np.array([np.inf, -np.inf, 0, 1, np.nan, 5], np.float32).reshape(1, 2, 3),
        np.zeros((300, 2, 2), np.uint8),
        np.linspace(-3e38, 3e38, 60, dtype=np.float32).reshape(3, 4, 5),
        np.linspace(-1e300, 1e300, 60).reshape(3, 4, 5),
    ],
    ids=["slice", "voxel", "nan", "steps", "infinite", "rod", "range", "range64"],
)
def test_odd_volumes_can_be_shown(tmp_path: Path, image: Any) -> None:
    """One slice, one voxel, no number at all, several steps, very long: a picture, no warning."""
    panel = panel_of(tmp_path, Scan(image=image, affine=RAS))
    assert panel.picture.width <= 305
    assert panel.picture.height <= 100


def test_a_volume_that_is_none_is_refused(tmp_path: Path) -> None:
    """A store may say that it holds volumes and hold something else."""
    attrs = {"kind": "volume"}
    with StoreWriter(tmp_path / "x", schema={"image": "raw"}, attrs=attrs) as writer:
        writer.add({"image": ArrayValue(np.zeros((4, 4), np.uint8))}, key="flat")
    with pytest.raises(StoreFormatError, match=r"sample 0 has the shape \(4, 4\)"):
        preview(tmp_path / "x", tmp_path / "out.png")
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("spacing", [0.0, 1e200])
def test_a_damaged_place_names_its_case(tmp_path: Path, spacing: float) -> None:
    """No slice can be hung by an affine that is singular, or of infinite length."""
    scan = Scan(image=np.zeros((4, 4, 4), np.int16), affine=np.diag([1, 1, spacing, 1]))
    with pytest.raises(StoreFormatError, match="sample 0: what is kept with the volume"):
        panel_of(tmp_path, scan)


def test_cases_come_from_all_over_a_store(tmp_path: Path) -> None:
    """Twelve of thirty, the first and the last among them, in one PNG with a legend."""
    label = np.zeros((6, 6, 6), np.uint8)
    label[2:5, 2:5, 2:5] = 3
    scan = Scan(image=np.arange(216, dtype=np.int16).reshape(6, 6, 6), affine=RAS, label=label)
    names = {"3": "spleen"}
    store = store_of(tmp_path / "x", {f"c{n:02d}": scan for n in range(30)}, class_names=names)
    done = preview(store, tmp_path / "out.png")
    assert (done.shown, done.samples) == (12, 30)
    with Image.open(tmp_path / "out.png") as picture:
        assert (picture.format, picture.size) == ("PNG", (done.width, done.height))
        pixels = np.array(picture)
    legend = pixels[-40:, :60]
    assert (legend == colour_of(3)).all(axis=2).sum() > 100
    assert sorted(os.listdir(tmp_path)) == ["out.png", "x"]


def test_any_name_can_be_shown(tmp_path: Path) -> None:
    """Very long ones, and letters that the font has not."""
    scan = Scan(image=np.zeros((6, 6, 6), np.int16), affine=RAS)
    keys = ["a" * 5000, "患者/一", os.fsdecode(b"b\xff"), "tab\tnew\nline"]
    store = store_of(tmp_path / "x", dict.fromkeys(keys, scan))
    assert preview(store, tmp_path / "out.png").width < 2000


def test_damage_is_an_error(tmp_path: Path) -> None:
    """A picture of wrong voxels would be believed; what was there stays."""
    image = np.random.default_rng(0).integers(0, 999, (8, 8, 8), np.int16)
    store = store_of(tmp_path / "x", {"a": Scan(image=image, affine=RAS)})
    data = bytearray(store.read_bytes())
    block = bytes(Store(store).read("image", 0))
    data[data.index(block) + 100] ^= 1
    (tmp_path / "damaged").write_bytes(data)
    with pytest.raises(CorruptDataError, match="sample 0"):
        preview(tmp_path / "damaged", tmp_path / "out.png")
    assert not (tmp_path / "out.png").exists()


# --- pictures ---


def test_pictures_become_a_contact_sheet(tmp_path: Path) -> None:
    """Thumbnails in their proportions, six in a row, with the colours they have."""
    red = pictures.save(Image.new("RGB", (400, 100), (250, 0, 0)), "PNG")
    blue = pictures.save(Image.new("RGB", (100, 400), (0, 0, 250)), "PNG")
    with StoreWriter(
        tmp_path / "x", schema={"image": "keep", "label": "int64"}, classes=["red", "blue"]
    ) as writer:
        for number in range(40):
            data = red if number % 2 == 0 else blue
            writer.add({"image": data, "label": number % 2}, key=f"{number}.png")
    done = preview(tmp_path / "x", tmp_path / "out.png")
    assert (done.shown, done.samples) == (24, 40)
    with Image.open(tmp_path / "out.png") as picture:
        pixels = np.array(picture).astype(int)
    reds = (pixels[..., 0] > 200) & (pixels[..., 1] < 50)
    rows = np.flatnonzero(reds[:, 10:170].any(axis=1))
    assert rows[0] + 39 in rows
    assert rows[0] + 41 not in rows


@pytest.mark.parametrize("kind", ["16 bits", "transparent", "grey", "column", "none"])
def test_any_kind_of_picture_can_be_shown(tmp_path: Path, kind: str) -> None:
    """Deep, transparent, grey, stored as pixels; one without a picture is said to have none."""
    values: dict[str, tuple[str, Any]] = {
        "16 bits": ("png", np.linspace(0, 4095, 64, dtype=np.uint16).reshape(8, 8, 1)),
        "transparent": ("keep", pictures.save(Image.new("RGBA", (9, 9), (1, 2, 3, 0)), "PNG")),
        "grey": ("keep", pictures.save(Image.new("L", (9, 9), 200), "PNG")),
        "column": ("uint8[8, 8, 1]", np.full((8, 8, 1), 200, np.uint8)),
        "none": ("keep", None),
    }
    schema, value = values[kind]
    with StoreWriter(tmp_path / "x", schema={"image": schema}) as writer:
        writer.add({"image": value})
    preview(tmp_path / "x", tmp_path / "out.png")
    with Image.open(tmp_path / "out.png") as picture:
        pixels = np.array(picture.convert("L"))[40:180, 20:150]
    assert (pixels.max() > 150) == (kind != "none")


@pytest.mark.parametrize("fill", [0, 3])
def test_a_store_without_anything_to_see_is_refused(tmp_path: Path, fill: int) -> None:
    """No samples, or numbers alone."""
    with StoreWriter(tmp_path / "x", schema={"n": "int64"}) as writer:
        for number in range(fill):
            writer.add({"n": number})
    with pytest.raises(OptionError, match="to show"):
        preview(tmp_path / "x", tmp_path / "out.png")


# --- the place, and the command ---


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A store of three photographs."""
    with StoreWriter(tmp_path / "x.lmdb", schema={"image": "keep"}) as writer:
        for number in range(3):
            writer.add({"image": jpeg(number)}, key=f"{number}.jpg")
    return tmp_path / "x.lmdb"


def test_an_older_preview_is_replaced_and_nothing_else(photos: Path, tmp_path: Path) -> None:
    """A file that is no PNG stays what it is, whatever its name."""
    first = preview(photos, tmp_path / "out.png")
    assert preview(photos, tmp_path / "out.png") == first
    (tmp_path / "mine.png").write_text("mine")
    with pytest.raises(StoreExistsError, match="is not a PNG"):
        preview(photos, tmp_path / "mine.png")
    assert (tmp_path / "mine.png").read_text() == "mine"
    with pytest.raises(OptionError, match=r"end its name in \.png"):
        preview(photos, photos)


def test_a_place_that_cannot_be_written_is_an_error(photos: Path, tmp_path: Path) -> None:
    """With its name, and nothing left beside it."""
    with pytest.raises(SourceError, match=r"nowhere/out\.png: cannot be written"):
        preview(photos, tmp_path / "nowhere" / "out.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(SourceError, match=r"folder\.png: cannot be written"):
        preview(photos, tmp_path / "folder.png")
    assert sorted(os.listdir(tmp_path)) == ["folder.png", "x.lmdb"]


def test_the_command_draws_beside_what_it_says(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In text, and as JSON."""
    words = ["info", str(photos), "--preview", str(tmp_path / "out.png")]
    assert main(words) == 0
    assert f"preview      {tmp_path / 'out.png'}: 3 of 3 samples" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["preview"]["shown"] == 3
    assert main(["info", str(photos), "--json"]) == 0
    assert "preview" not in json.loads(capsys.readouterr().out)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real volumes at {DATA}")
def test_a_real_abdomen_stands_upright(tmp_path: Path) -> None:
    """The spine is below and in the middle, gas of the stomach above and on the patient's left."""
    import nibabel

    file: Any = nibabel.load(DATA / "ct_abdomen.nii.gz")
    image = np.ascontiguousarray(file.dataobj.get_unscaled())
    panel = panel_of(tmp_path, Scan(image=image, affine=file.affine), side=300)
    axial = grey(panel)[:, : panel.picture.width // 3].astype(int)
    height, width = axial.shape
    rows, columns = np.nonzero(axial > 235)
    spine = rows[(columns > width * 0.42) & (columns < width * 0.58)]
    assert spine.mean() > height * 0.65
    gas = axial[height // 6 : height // 2, width // 6 : -width // 6] < 5
    assert np.nonzero(gas)[1].mean() > gas.shape[1] * 0.6
