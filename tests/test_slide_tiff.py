"""Which pages of a TIFF are levels of a slide, how large its pixels are, and what else is told."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import openslide
import pytest
import tifffile
from slide_files import (
    Page,
    aperio_page,
    level,
    page,
    picture,
    pyramid,
    slide,
    write_slide,
    write_tiff,
)

from sharedds.errors import DecodeError
from sharedds.slides.tiff import open_tiff

OME: dict[str, Any] = {"tile": (256, 256), "photometric": "minisblack", "compression": "zlib"}
SIZE: dict[str, Any] = {
    "PhysicalSizeX": 0.325,
    "PhysicalSizeXUnit": "µm",
    "PhysicalSizeY": 0.325,
    "PhysicalSizeYUnit": "µm",
}


def scan(tmp_path: Path, **first: Any) -> Path:
    """Write a scan of Aperio's with a level, a thumbnail, a label and a macro picture."""
    a = picture(1024, 768)
    text = "1024x768 [0,0 1024x768] (256x256) "
    said = "|AppMag = 20|MPP = 0.5000"
    return write_tiff(
        tmp_path / "scan.svs",
        [
            aperio_page(a, text + "RAW" + first.get("said", said), tile=256),
            aperio_page(a[::3, ::3], f"{text}-> 342x256 - {said}"),
            aperio_page(a[::4, ::4], f"{text}-> 256x192 {said}", tile=256),
            aperio_page(a[:180, :200], f"{text}label 200x180", subfile=1),
            aperio_page(a[:120, :300], f"{text}macro 300x120", subfile=9),
        ],
    )


def test_thumbnail_label_and_macro_are_no_levels(tmp_path: Path) -> None:
    """An Aperio scan of five pages has two levels, with its own resolution and magnification."""
    file = slide(scan(tmp_path))
    header = file.header
    assert [one.shape for one in header.levels] == [(768, 1024), (192, 256)]
    assert [one.downsample for one in header.levels] == [1.0, 4.0]
    assert (header.mpp, header.magnification, header.format) == ((0.5, 0.5), 20.0, "Aperio")
    assert np.array_equal(level(file, 1), picture(1024, 768)[::4, ::4])
    assert header.remarks == ()


def test_pictures_beside_the_levels_are_read_by_name(tmp_path: Path) -> None:
    """Thumbnail, label and macro picture are there for who asks."""
    file = slide(scan(tmp_path))
    a = picture(1024, 768)
    assert set(file.header.associated) == {"thumbnail", "label", "macro"}
    with file.open() as reader:
        assert np.array_equal(reader.associated("label"), a[:180, :200])
        assert np.array_equal(reader.associated("macro"), a[:120, :300])
        assert np.array_equal(reader.associated("thumbnail"), a[::3, ::3])


def test_a_description_leaves_nothing_of_a_person(tmp_path: Path) -> None:
    """What an Aperio description says beyond resolution is not kept."""
    file = slide(scan(tmp_path, said="|AppMag = 40|MPP = 0.25|User = someone|Filename = name"))
    assert "someone" not in repr(file.header.attrs)
    assert file.header.magnification == 40


def test_a_wrong_mpp_is_told(tmp_path: Path) -> None:
    """An MPP of 0 is no size: it is not used, and a remark says so."""
    header = slide(scan(tmp_path, said="|MPP = 0")).header
    assert header.mpp is None
    assert "MPP" in header.remarks[0]


@pytest.mark.parametrize(
    ("unit", "density", "expected"),
    [(3, 20000, 0.5), (2, 50800, 0.5), (1, 20000, None), (3, 0, None)],
    ids=["centimetre", "inch", "no unit", "zero"],
)
def test_resolution_has_the_unit_of_its_tag(
    tmp_path: Path, unit: int, density: int, expected: float | None
) -> None:
    """Pixels for each centimetre and each inch become micrometres; without a unit it is unknown."""
    tags = {282: (5, [density, 1]), 283: (5, [density, 1]), 296: (3, [unit])}
    header = slide(
        write_tiff(tmp_path / "a.tif", [page(picture(64, 64), tile=64, tags=tags)])
    ).header
    assert header.mpp == (None if expected is None else (expected, expected))
    assert header.remarks == ()


def test_the_resolution_of_a_screen_is_kept_and_told(tmp_path: Path) -> None:
    """72 pixels for each inch are 352.8 micrometres for a pixel: kept as stated, with a remark."""
    tags = {282: (5, [72, 1]), 283: (5, [72, 1]), 296: (3, [2])}
    header = slide(
        write_tiff(tmp_path / "a.tif", [page(picture(64, 64), tile=64, tags=tags)])
    ).header
    assert header.mpp == pytest.approx((352.778, 352.778), abs=1e-3)
    assert "implausible" in header.remarks[0]


def test_the_unit_of_imagej(tmp_path: Path) -> None:
    """ImageJ says in its description what its resolution counts."""
    tags = {
        270: (2, b"ImageJ=1.53\nunit=micron\nmin=0\n\0"),
        282: (5, [4, 1]),
        283: (5, [4, 1]),
        296: (3, [1]),
    }
    path = write_tiff(tmp_path / "a.tif", [page(picture(64, 64), tile=64, tags=tags)])
    assert slide(path).header.mpp == (0.25, 0.25)


def test_a_plain_pyramid(tmp_path: Path) -> None:
    """Smaller tiled pages are levels, with the step that their rounded sizes stand for."""
    a = picture(1001, 701)
    file = slide(write_slide(tmp_path / "a.tif", a, compression="deflate"))
    assert [one.shape for one in file.header.levels] == [(701, 1001), (351, 501), (176, 251)]
    assert [one.downsample for one in file.header.levels] == [1.0, 2.0, 4.0]
    assert [one.tile for one in file.header.levels] == [(256, 256)] * 3
    for number, step in enumerate((1, 2, 4)):
        assert np.array_equal(level(file, number), a[::step, ::step])


def test_levels_in_any_order_and_steps_that_are_not_whole(tmp_path: Path) -> None:
    """Levels are sorted by size; their step may be any number."""
    a = picture(1000, 800)
    pages = [page(one, tile=64) for one in (a, a[:200, :250], a[:320, :400])]
    header = slide(write_tiff(tmp_path / "a.tif", pages)).header
    assert [one.shape for one in header.levels] == [(800, 1000), (320, 400), (200, 250)]
    assert [one.downsample for one in header.levels] == [1.0, 2.5, 4.0]


def test_levels_below_the_first_page(tmp_path: Path) -> None:
    """SubIFDs are levels, in TIFF and BigTIFF of either byte order."""
    a = picture(400, 300)
    for big in (False, True):
        below = [page(a[::2, ::2], tile=64), page(a[::4, ::4], tile=64)]
        path = write_tiff(
            tmp_path / "a.tif", [page(a, tile=64, below=below)], big=big, order=">" if big else "<"
        )
        file = slide(path)
        assert np.array_equal(level(file, 2), a[::4, ::4])


def test_pages_of_another_shape_are_left_out_by_size(tmp_path: Path) -> None:
    """A thumbnail in strips, a page of other proportions and a grey one are no levels."""
    a = picture(600, 400)
    others = [page(a[::5, ::5]), page(a[:300, :300], tile=64), page(a[::2, ::2, 0], tile=64)]
    header = slide(write_tiff(tmp_path / "a.tif", [page(a, tile=64), *others])).header
    assert len(header.levels) == 1
    assert "600 x 400, 120 x 80, 300 x 300, 300 x 200" in header.remarks[0]


def test_channel_pages_that_nothing_describes_are_refused(tmp_path: Path) -> None:
    """Three pages of full size may be channels, planes or slides: refused, with all sizes."""
    y, x = np.mgrid[0:600, 0:700]
    c3 = np.stack([20000 * c + 20 * x + y for c in range(3)]).astype("u2")
    with tifffile.TiffWriter(tmp_path / "pages.tif") as writer:
        for one in [*c3, picture(70, 60), *c3[:, ::2, ::2]]:
            ways = OME if one.ndim == 2 else {"photometric": "rgb"}
            writer.write(one, **ways, metadata=None)
    with pytest.raises(DecodeError, match=r"3 pages of 700 x 600.*70 x 60, 350 x 300"):
        open_tiff(tmp_path / "pages.tif")


def test_a_mask_of_full_size_is_no_second_slide(tmp_path: Path) -> None:
    """A page marked as a mask does not make a file ambiguous."""
    a = picture(128, 128)
    path = write_tiff(tmp_path / "a.tif", [page(a, tile=64), page(a[..., 0], tile=64, subfile=4)])
    assert len(slide(path).header.levels) == 1


def test_channels_of_ome_and_their_levels(tmp_path: Path) -> None:
    """Channel pages become channels, in order and by name, with all 16 bits, at each level."""
    y, x = np.mgrid[0:600, 0:700]
    c3 = np.stack([20000 * c + 20 * x + y for c in range(3)]).astype("u2")
    path = tmp_path / "multi.ome.tif"
    with tifffile.TiffWriter(path, ome=True) as writer:
        metadata = {"axes": "CYX", "Channel": {"Name": ["DAPI", "CD3", "CD8"]}, **SIZE}
        writer.write(c3, subifds=2, metadata=metadata, **OME)
        for step in (2, 4):
            writer.write(c3[:, ::step, ::step], subfiletype=1, **OME)
    file = slide(path)
    header = file.header
    assert [one.shape for one in header.levels] == [(600, 700), (300, 350), (150, 175)]
    assert header.channel_names == ("DAPI", "CD3", "CD8")
    assert (header.dtype, header.mpp) == (np.dtype("<u2"), (0.325, 0.325))
    assert (header.is_rgb, header.planes, header.format) == (False, 1, "OME-TIFF")
    assert level(file)[10, 20].tolist() == level(file, 1)[5, 10].tolist() == [410, 20410, 40410]
    assert level(file).max() == 54579


def test_a_focus_stack_is_planes(tmp_path: Path) -> None:
    """Z becomes planes and never channels, in whatever order pages are stored."""
    values = 1000 * np.arange(3)[:, None, None, None] + 100 * np.arange(2)[:, None, None]
    z = (values + np.zeros((300, 280))).astype("u2")
    for axes, stored in (("ZCYX", z), ("CZYX", z.swapaxes(0, 1))):
        path = tmp_path / "focus.ome.tif"
        tifffile.imwrite(path, stored, metadata={"axes": axes, **SIZE}, **OME)
        file = slide(path)
        assert (file.header.planes, file.header.channels) == (3, 2)
        assert np.unique(level(file, plane=2)[..., 1]).tolist() == [2100]
        assert np.unique(level(file, plane=1)).tolist() == [1000, 1100]


def test_colour_of_ome(tmp_path: Path) -> None:
    """Red, green and blue in one page are one picture in colour."""
    path = tmp_path / "rgb.ome.tif"
    a = picture(300, 200)
    tifffile.imwrite(path, a, photometric="rgb", tile=(64, 64), metadata={"axes": "YXS"})
    file = slide(path)
    assert (file.header.is_rgb, file.header.channels) == (True, 3)
    assert np.array_equal(level(file), a)


def ome_text(pixels: str, inside: str = "", after: str = "") -> dict[int, tuple[int, bytes]]:
    """Return the tags of a description with one picture of 64 x 64 bytes."""
    text = (
        '<?xml version="1.0"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06">'
        '<Instrument ID="I:0"><Objective ID="O:0" NominalMagnification="60"/></Instrument>'
        '<Image ID="Image:0" Name="x"><ObjectiveSettings ID="O:0"/>'
        '<Pixels DimensionOrder="XYZCT" ID="P:0" Type="uint8" SizeX="64" SizeY="64" '
        f"{pixels}>{inside}</Pixels></Image>{after}</OME>"
    )
    return {270: (2, text.encode() + b"\0")}


ONE = 'SizeZ="1" SizeC="1" SizeT="1"'


def ome_page(tmp_path: Path, *text: str, name: str = "a.ome.tif") -> Path:
    """Write one grey page with such a description."""
    return write_tiff(
        tmp_path / name, [page(picture(64, 64)[..., 0], tile=64, tags=ome_text(*text))]
    )


@pytest.mark.parametrize(
    ("size", "unit", "expected"),
    [(0.25, "µm", 0.25), (0.25, "\u03bcm", 0.25), (250, "nm", 0.25), (0.00025, "mm", 0.25),
     (2500, "\u212b", 0.25), (2500, "Å", 0.25), (1, "pixel", None), (0, "µm", None)],
    ids=["micro", "mu", "nm", "mm", "angstrom sign", "angstrom", "pixel", "zero"],
)  # fmt: skip
def test_physical_size_in_any_unit(
    tmp_path: Path, size: float, unit: str, expected: float | None
) -> None:
    """A length in any unit becomes micrometres; what is no length is unknown and told."""
    sides = "".join(f' PhysicalSize{a}="{size}" PhysicalSize{a}Unit="{unit}"' for a in "XY")
    header = slide(ome_page(tmp_path, ONE + sides)).header
    if expected is None:
        assert header.mpp is None
        assert "no known length" in header.remarks[0]
    else:
        assert header.mpp == pytest.approx((expected, expected))
    assert header.magnification == 60


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (('SizeZ="1" SizeC="1" SizeT="3"',), "3 time points"),
        (('SizeZ="5" SizeC="1" SizeT="1"',), "4 of them are not in the file"),
        (('SizeZ="999999999" SizeC="1" SizeT="1"',), "999999999 planes"),
        ((ONE, '<TiffData IFD="0"><UUID FileName="b.tif">urn:x</UUID></TiffData>'), "b.tif"),
        ((ONE, "<TiffData"), "description is damaged"),
    ],
    ids=["time", "planes missing", "planes without end", "another file", "cut"],
)
def test_what_of_ome_is_refused(tmp_path: Path, text: tuple[str, ...], says: str) -> None:
    """What is no slide, or not whole, is refused with the reason."""
    with pytest.raises(DecodeError, match=says):
        open_tiff(ome_page(tmp_path, *text))


def test_many_blocks_that_name_all_pages(tmp_path: Path) -> None:
    """A description that names every page a thousand times is worked through once."""
    block = '<TiffData IFD="0" PlaneCount="60000"/>' * 1000
    start = time.monotonic()
    with pytest.raises(DecodeError, match="are not in the file"):
        open_tiff(ome_page(tmp_path, 'SizeZ="60000" SizeC="1" SizeT="1"', block))
    assert time.monotonic() - start < 2


def test_a_renamed_file_knows_itself(tmp_path: Path) -> None:
    """Planes in a file of another name are its own where its number is the same."""
    block = '<TiffData IFD="0"><UUID FileName="b.tif">urn:uuid:1</UUID></TiffData>'
    tags = {270: (2, ome_text(ONE, block)[270][1].replace(b"<OME ", b'<OME UUID="urn:uuid:1" '))}
    path = write_tiff(tmp_path / "a.tif", [page(picture(64, 64)[..., 0], tile=64, tags=tags)])
    assert slide(path).header.channels == 1


def test_entities_in_a_description_are_not_unfolded(tmp_path: Path) -> None:
    """A description that defines entities is refused before it is parsed."""
    text = b'<!DOCTYPE x [<!ENTITY a "aaaa">]><OME>&a;</OME>\0'
    path = tmp_path / "a.ome.tif"
    write_tiff(path, [page(picture(64, 64), tile=64, tags={270: (2, text)})])
    with pytest.raises(DecodeError, match="entities"):
        open_tiff(path)


def test_the_label_of_an_ome_file_is_no_slide(tmp_path: Path) -> None:
    """A second picture called label is kept apart, though it may be larger."""
    after = (
        '<Image ID="Image:1" Name="label image"><Pixels DimensionOrder="XYZCT" ID="P:1" '
        f'Type="uint8" SizeX="100" SizeY="90" {ONE}><TiffData IFD="1"/></Pixels></Image>'
    )
    a, label = picture(64, 64)[..., 0], picture(100, 90)[..., 1]
    tags = ome_text(ONE, '<TiffData IFD="0"/>', after)
    path = write_tiff(tmp_path / "a.tif", [page(a, tile=64, tags=tags), page(label, rows=10)])
    file = slide(path)
    assert file.header.associated == ("label",)
    assert np.array_equal(level(file)[..., 0], a)
    with file.open() as reader:
        assert np.array_equal(reader.associated("label")[..., 0], label)


def test_a_value_of_no_data_is_the_background(tmp_path: Path) -> None:
    """Where a file states what lies where there is nothing, tiles that it lacks have that value."""
    whole = page(picture(128, 64), tile=64, tags={42113: (2, b"255\0")})
    path = write_tiff(
        tmp_path / "a.tif",
        [Page(width=128, height=64, tile=(64, 64), data=[whole.data[0], None], tags=whole.tags)],
    )
    file = slide(path)
    assert file.header.background == (255.0, 255.0, 255.0)
    assert (level(file)[:, 64:] == 255).all()


def test_what_is_odd_about_pixels_is_told(tmp_path: Path) -> None:
    """Alpha that is left out and an orientation that is not applied are remarks."""
    a = np.dstack([picture(64, 64), np.full((64, 64), 200, "u1")])
    tags = {338: (3, [2]), 274: (3, [6])}
    file = slide(write_tiff(tmp_path / "a.tif", [page(a, tile=64, tags=tags)]))
    assert len(file.header.remarks) == 2
    assert np.array_equal(level(file), picture(64, 64))


def test_pyramids_of_strips(tmp_path: Path) -> None:
    """Reduced pages in strips are levels of a picture in strips, without tiles."""
    a = picture(300, 200)
    file = slide(write_tiff(tmp_path / "a.tif", pyramid(a, rows=7)))
    assert [one.tile for one in file.header.levels] == [None] * 3
    assert np.array_equal(level(file, 1), a[::2, ::2])


@pytest.mark.parametrize(
    "tag",
    [
        {65420: (4, [1])},
        {270: (2, b'<scn xmlns="http://www.leica-microsystems.com/scn/2010/10/01">\0')},
        {305: (2, b"Philips DP v1.0\0")},
        {305: (2, b"MedScan\0")},
        {700: (7, b"<iScan/>")},
    ],
    ids=["Hamamatsu", "Leica", "Philips", "Trestle", "Ventana"],
)
def test_files_with_rules_of_their_own_are_left_to_others(
    tmp_path: Path, tag: dict[int, Any]
) -> None:
    """Vendors whose pages do not say by themselves what they are: None, for another reader."""
    path = write_tiff(tmp_path / "a.tif", [page(picture(64, 64), tile=64, tags=tag)])
    assert open_tiff(path) is None


def test_a_slide_travels_to_another_process(tmp_path: Path) -> None:
    """What is known of a slide is pickled without file and places of tiles, and opened there."""
    file = slide(scan(tmp_path))
    other = pickle.loads(pickle.dumps(file))
    assert other.header == file.header
    assert np.array_equal(level(other, 1), level(file, 1))
    many = Page(width=25600, height=25600, tile=(256, 256), data=[bytes(196608)] * 10000)
    assert len(pickle.dumps(slide(write_tiff(tmp_path / "b.tif", [many])))) < 4000


def test_as_openslide_reads_it(tmp_path: Path) -> None:
    """Levels, steps, resolution and pixels are those that OpenSlide gives."""
    path = write_slide(tmp_path / "a.tif", picture(1500, 1100))
    file = slide(path)
    with openslide.OpenSlide(str(path)) as other:
        assert [one.shape[::-1] for one in file.header.levels] == list(other.level_dimensions)
        assert [one.downsample for one in file.header.levels] == pytest.approx(
            other.level_downsamples, rel=1e-3
        )
        assert float(other.properties["openslide.mpp-x"]) == file.header.mpp[1]  # type: ignore[index]
        for number, size in enumerate(other.level_dimensions):
            theirs = np.asarray(other.read_region((0, 0), number, size))[..., :3].astype(int)
            assert np.abs(level(file, number) - theirs).max() <= 1


def test_pages_of_a_scan_that_are_nothing_known(tmp_path: Path) -> None:
    """A second picture in strips and a tiled page of other proportions are told and left out."""
    a = picture(512, 256)
    pages = [
        aperio_page(a, "x|MPP = 0,25|AppMag = none", tile=128),
        aperio_page(a[::4, ::4], "-> 1"),
        aperio_page(a[::3, ::3], "-> 2"),
        aperio_page(a[:100, :100], "-> 3", tile=64),
    ]
    header = slide(write_tiff(tmp_path / "a.svs", pages)).header
    assert (len(header.levels), header.associated) == (1, ("thumbnail",))
    assert [text[:17] for text in header.remarks] == ["left out: page 2 ", "left out: page 3 "]
    assert (header.mpp, header.magnification) == ((0.25, 0.25), None)


def test_no_data_that_does_not_fit_is_no_background(tmp_path: Path) -> None:
    """A value outside of the dtype says nothing of bytes."""
    for text in (b"-9999\0", b"nan\0", b"white\0"):
        one = page(picture(64, 64), tile=64, tags={42113: (2, text)})
        assert slide(write_tiff(tmp_path / "a.tif", [one])).header.background is None


def test_ome_pictures_and_levels_that_do_not_belong(tmp_path: Path) -> None:
    """Another picture, and what lies below a page without being smaller, are told."""
    after = (
        '<Image ID="Image:1" Name="second"><Pixels DimensionOrder="XYZCT" ID="P:1" Type="uint8" '
        f'SizeX="32" SizeY="32" {ONE}><TiffData IFD="1"/></Pixels></Image>'
    )
    a = picture(64, 64)[..., 0]
    tags = ome_text(ONE, "", after)
    below = [page(a[:50, :30], tile=16), page(a[::2, ::2], tile=16)]
    pages = [page(a, tile=64, tags=tags, below=below), page(a[:32, :32])]
    header = slide(write_tiff(tmp_path / "a.tif", pages)).header
    assert [one.shape for one in header.levels] == [(64, 64), (32, 32)]
    assert sorted(text[:20] for text in header.remarks) == [
        "left out: a picture ",
        "left out: another pi",
    ]


def test_a_description_that_does_not_fit_its_page(tmp_path: Path) -> None:
    """Sizes in the description and of the page have to agree."""
    path = write_tiff(
        tmp_path / "a.tif", [page(picture(60, 64)[..., 0], tile=64, tags=ome_text(ONE))]
    )
    with pytest.raises(DecodeError, match="64 x 64 pixels, its page has 60 x 64"):
        open_tiff(path)
