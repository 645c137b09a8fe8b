"""The options of ``sharedds pack``, in sections: for all kinds, pictures, volumes and slides."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import click

from sharedds.cli.values import color, levels, nbytes, numbers, pixels, size, words

__all__ = [
    "SectionedCommand",
    "for_all",
    "for_other_formats",
    "for_pictures",
    "for_slides",
    "for_volumes",
    "given",
]

F = TypeVar("F", bound=Callable[..., Any])


class _Option(click.Option):
    """An option that belongs to a section of the help."""

    def __init__(self, *names: Any, section: str, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.section = section


class SectionedCommand(click.Command):
    """A command whose help shows its options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section under its name; what has none comes last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if not isinstance(parameter, click.Option):
                continue
            record = parameter.get_help_record(ctx)
            if record is not None:
                name = getattr(parameter, "section", "Options")
                sections.setdefault(name, []).append(record)
        for name in sorted(sections, key=lambda name: name == "Options"):
            with formatter.section(name):
                formatter.write_dl(sections[name])


def given(ctx: click.Context, options: dict[str, Any]) -> dict[str, Any]:
    """Return those options that somebody wrote, without those that are at their defaults."""
    default = click.core.ParameterSource.DEFAULT
    return {k: v for k, v in options.items() if ctx.get_parameter_source(k) not in (default, None)}


def _options(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


_picture = partial(click.option, cls=_Option, section="Options for pictures")
_volume = partial(click.option, cls=_Option, section="Options for volumes")
_slide = partial(click.option, cls=_Option, section="Options for slides")
_other = partial(click.option, cls=_Option, section="Options for other formats")
_any = partial(click.option, cls=_Option, section="Options")

for_all = _options(
    _any(
        "--kind",
        type=click.Choice(["auto", "image", "volume", "slide"]),
        default="auto",
        show_default=True,
        help="What SOURCE holds; auto looks.",
    ),
    _any(
        "--labels",
        type=click.Path(),
        help="CSV file: of pictures with the columns path,label; of volumes case,image,label,"
        "group.",
    ),
    _any("--include-hidden", is_flag=True, help="Also pack what begins with a dot."),
    _any(
        "--on-error",
        type=click.Choice(["skip", "raise"]),
        default="skip",
        show_default=True,
        help="Skip bad files and report them, or stop at the first.",
    ),
    _any("--strict", is_flag=True, help="Exit with 4 if there are bad files, duplicates or notes."),
    _any("--workers", type=click.IntRange(1), help="Threads.  [default: one for each CPU]"),
    _any(
        "--shards",
        type=click.IntRange(1),
        metavar="N",
        help="Write OUT as a folder of at most N files.",
    ),
    _any("--shard-size", metavar="SIZE", help="Or of files of this size, such as 16GiB."),
    _any("--force", is_flag=True, help="Replace OUT, in one step at the end."),
    _any(
        "--report",
        type=click.Path(),
        help="Where the JSONL report goes.  [default: OUT.report.jsonl]",
    ),
    _any("--dry-run", is_flag=True, help="Scan and estimate; write nothing."),
    _any("--json", "as_json", is_flag=True, help="Print the outcome as one JSON object."),
    _any("--quiet", is_flag=True, help="No progress, no summary, no notes."),
)

for_pictures = _options(
    _picture(
        "--codec",
        type=click.Choice(["keep", "jpeg", "png", "webp", "raw", "auto", "lz4", "zstd", "blosc"]),
        help="Of pictures: keep the original bytes [default], or encode anew as jpeg, png, webp, "
        "raw. Of volumes: auto [default] tries on some blocks, or raw, blosc, zstd, lz4. Of "
        "slides: auto [default] is jpeg where that holds them, else zstd; keep copies their JPEG "
        "tiles.",
    ),
    _picture(
        "--quality",
        type=click.IntRange(1, 100),
        default=90,
        show_default=True,
        help="Of jpeg; webp is without loss.",
    ),
    _picture(
        "--chroma",
        type=click.Choice(["auto", "444", "420"]),
        default="auto",
        show_default=True,
        help="Of jpeg: colour at full or half resolution; auto is half below quality 95.",
    ),
    _picture(
        "--raw-share",
        type=click.FloatRange(0, 1),
        default=0.0,
        show_default=True,
        help="With jpeg: store this share of the pictures as pixels.",
    ),
    _picture(
        "--raw-below",
        type=nbytes,
        metavar="BYTES",
        default="0",
        show_default=True,
        help="With jpeg: store pictures of fewer bytes of pixels (200kB) as pixels.",
    ),
    _picture("--max-side", type=click.IntRange(1), help="Shrink to this longest side, in pixels."),
    _picture(
        "--short-side", type=click.IntRange(1), help="Shrink to this shortest side, in pixels."
    ),
    _picture(
        "--size", type=size, metavar="HxW", help="Of raw pixels: scale to cover, cut the middle."
    ),
    _picture(
        "--check",
        type=click.Choice(["decode", "header"]),
        default="decode",
        show_default=True,
        help="Prove that each picture decodes, or trust beyond its header.",
    ),
    _picture(
        "--depth",
        type=click.Choice(["keep", "8"]),
        default="keep",
        show_default=True,
        help="8 scales 16-bit values to 8 bits when encoding anew.",
    ),
    _picture(
        "--background",
        type=color,
        metavar="COLOR",
        default="white",
        show_default=True,
        help="Behind transparent pixels where the codec has no alpha.",
    ),
    _picture(
        "--ignore-orientation",
        is_flag=True,
        help="Read pictures as they are stored, whatever EXIF says.",
    ),
    _picture(
        "--max-pixels",
        type=pixels,
        metavar="N",
        default="200M",
        show_default=True,
        help="Refuse larger pictures before decoding them; none for no limit.",
    ),
    _picture(
        "--class-level",
        type=click.Choice(["auto", "top", "folder", "none"]),
        default="auto",
        show_default=True,
        help="Which folder is the class: the first of the path, or all of it.",
    ),
    _picture(
        "--classes",
        type=click.Path(),
        help="Take the numbering from a file of names or another store.",
    ),
    _picture(
        "--numeric-classes",
        is_flag=True,
        help="Class folders are named by numbers, and these are the labels.",
    ),
    _picture(
        "--shuffle-seed", type=int, help="Store in a random order, the same for the same seed."
    ),
    _picture(
        "--against",
        type=click.Path(),
        multiple=True,
        help="Another store to look for the same pictures in; repeatable.",
    ),
    _picture(
        "--plan",
        is_flag=True,
        help="Measure ways to store some of the pictures, recommend one; write nothing.",
    ),
    _picture(
        "--rate",
        type=click.FloatRange(min=0, min_open=True),
        metavar="N",
        help="With --plan: images a second that training takes.  [default: 3000, a ResNet-50 on "
        "a GPU]",
    ),
)

for_volumes = _options(
    _volume(
        "--patch",
        type=numbers(int),
        metavar="I,J,K",
        help="Voxels of the patches that will be read: shapes the blocks.",
    ),
    _volume(
        "--spacing",
        type=numbers(float),
        metavar="MM,MM,MM",
        help="Resample to these millimetres between voxels, or one number for all.",
    ),
    _volume(
        "--orientation",
        "axes",
        metavar="RAS",
        help="Turn the axes to point there; no value changes.",
    ),
    _volume(
        "--crop-foreground",
        is_flag=True,
        help="Cut to the voxels above the lowest value; a CT wants the next option.",
    ),
    _volume(
        "--foreground-above",
        type=float,
        metavar="VALUE",
        help="Cut to the voxels that measure above this, such as -500 in a CT.",
    ),
    _volume("--dtype", metavar="NAME", help="Convert, where every value fits: int16, float32."),
    _volume(
        "--resample-labels",
        is_flag=True,
        help="Put labels of another grid onto that of their image, nearest neighbour.",
    ),
    _volume(
        "--prefer",
        type=click.Choice(["sform", "qform", "refuse"]),
        default="sform",
        show_default=True,
        help="Which placement of a NIfTI file counts where its two disagree.",
    ),
    _volume(
        "--allow-gaps", is_flag=True, help="Of DICOM series: fill missing slices with empty ones."
    ),
    _volume("--allow-single", is_flag=True, help="Of DICOM series: one slice is a volume."),
    _volume("--invert", is_flag=True, help="Of DICOM series: turn MONOCHROME1 round."),
    _volume(
        "--keep-tags",
        type=words,
        metavar="NAMES",
        help="DICOM keywords to keep, as KVP,ConvolutionKernel; they may name patients.",
    ),
    _volume("--anonymous", is_flag=True, help="Name cases by a hash of their path."),
)

for_slides = _options(
    _slide(
        "--tile",
        type=click.IntRange(16, 4096),
        default=256,
        show_default=True,
        help="Side of the tiles in pixels, a multiple of 16.",
    ),
    _slide(
        "--levels",
        type=levels,
        metavar="N",
        default="auto",
        show_default=True,
        help="Resolutions; auto: those of the file, then halves down to two tiles.",
    ),
    _slide("--plane", type=click.IntRange(0), help="Of a focus stack: this one.  [default: all]"),
    _slide(
        "--associated",
        type=words,
        metavar="NAMES",
        help="Also keep label,macro,thumbnail; a label may name a patient.",
    ),
    _slide(
        "--annotations",
        type=click.Path(),
        help="A folder of GeoJSON files named as the slides, or one for one slide.",
    ),
)

for_other_formats = _options(
    _other(
        "--format",
        type=click.Choice(
            [
                *("auto", "folder", "webdataset", "csv", "coco", "voc", "parquet", "huggingface"),
                *("mds", "lmdb", "litdata"),
            ]
        ),
        default="auto",
        metavar="NAME",
        help="What SOURCE is: folder, webdataset, csv, coco, voc, parquet, huggingface, mds, lmdb, "
        "litdata.  [default: auto, which looks]",
    ),
    _other(
        "--images",
        type=click.Path(),
        metavar="FOLDER",
        help="Of csv and coco: what file names are relative to.  [default: looked for beside]",
    ),
    _other("--split", metavar="NAME", help="Of a source that has several: this one."),
    _other(
        "--allow-pickle",
        is_flag=True,
        help="Of lmdb, mds and litdata: read values that are pickles of plain values and arrays.",
    ),
)
