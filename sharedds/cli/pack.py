"""``sharedds pack`` and ``sharedds export``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from sharedds.cli.packing_plan import show
from sharedds.cli.text import Table, complain, echo, note, shares
from sharedds.cli.values import color, nbytes, pixels, size
from sharedds.text import decimal_size

if TYPE_CHECKING:
    from sharedds.ingest import PackReport

__all__ = ["export", "pack"]

FINISHED_WITH_BAD_FILES = 3
STRICT_FOUND_SOMETHING = 4
_SHOWN = 10


@click.command()
@click.argument("source", type=click.Path())
@click.argument("out", type=click.Path(), required=False)
@click.option(
    "--codec",
    type=click.Choice(["keep", "jpeg", "png", "webp", "raw"]),
    default="keep",
    show_default=True,
    help="Keep the original bytes, or encode anew.",
)
@click.option(
    "--quality",
    type=click.IntRange(1, 100),
    default=90,
    show_default=True,
    help="Of jpeg; webp is without loss.",
)
@click.option(
    "--chroma",
    type=click.Choice(["auto", "444", "420"]),
    default="auto",
    show_default=True,
    help="Of jpeg: colour at full or half resolution; auto is half below quality 95.",
)
@click.option(
    "--raw-share",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="With jpeg: store this share of the pictures as pixels.",
)
@click.option(
    "--raw-below",
    type=nbytes,
    metavar="BYTES",
    default="0",
    show_default=True,
    help="With jpeg: store pictures of fewer bytes of pixels (200kB) as pixels.",
)
@click.option("--max-side", type=click.IntRange(1), help="Shrink to this longest side, in pixels.")
@click.option(
    "--short-side", type=click.IntRange(1), help="Shrink to this shortest side, in pixels."
)
@click.option(
    "--size", type=size, metavar="HxW", help="Of raw pixels: scale to cover, cut the middle."
)
@click.option(
    "--check",
    type=click.Choice(["decode", "header"]),
    default="decode",
    show_default=True,
    help="Prove that each picture decodes, or trust beyond its header.",
)
@click.option(
    "--depth",
    type=click.Choice(["keep", "8"]),
    default="keep",
    show_default=True,
    help="8 scales 16-bit values to 8 bits when encoding anew.",
)
@click.option(
    "--background",
    type=color,
    metavar="COLOR",
    default="white",
    show_default=True,
    help="Behind transparent pixels where the codec has no alpha.",
)
@click.option(
    "--ignore-orientation",
    is_flag=True,
    help="Read pictures as they are stored, whatever EXIF says.",
)
@click.option(
    "--max-pixels",
    type=pixels,
    metavar="N",
    default="200M",
    show_default=True,
    help="Refuse larger pictures before decoding them; none for no limit.",
)
@click.option(
    "--class-level",
    type=click.Choice(["auto", "top", "folder", "none"]),
    default="auto",
    show_default=True,
    help="Which folder is the class: the first of the path, or all of it.",
)
@click.option(
    "--classes", type=click.Path(), help="Take the numbering from a file of names or another store."
)
@click.option(
    "--labels",
    type=click.Path(),
    help="CSV file with the columns path and label, instead of class folders.",
)
@click.option(
    "--numeric-classes",
    is_flag=True,
    help="Class folders are named by numbers, and these are the labels.",
)
@click.option("--include-hidden", is_flag=True, help="Also pack what begins with a dot.")
@click.option(
    "--shuffle-seed", type=int, help="Store in a random order, the same for the same seed."
)
@click.option(
    "--on-error",
    type=click.Choice(["skip", "raise"]),
    default="skip",
    show_default=True,
    help="Skip bad files and report them, or stop at the first.",
)
@click.option(
    "--against",
    type=click.Path(),
    multiple=True,
    help="Another store to look for the same pictures in; repeatable.",
)
@click.option(
    "--strict", is_flag=True, help="Exit with 4 if there are bad files, duplicates or notes."
)
@click.option("--workers", type=click.IntRange(1), help="Threads.  [default: one for each CPU]")
@click.option("--force", is_flag=True, help="Replace OUT, in one step at the end.")
@click.option(
    "--report", type=click.Path(), help="Where the JSONL report goes.  [default: OUT.report.jsonl]"
)
@click.option("--dry-run", is_flag=True, help="Scan and estimate; write nothing.")
@click.option(
    "--plan",
    is_flag=True,
    help="Measure ways to store some of the pictures, recommend one; write nothing.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="With --plan: images a second that training takes.  [default: 3000, a ResNet-50 on a GPU]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as one JSON object.")
@click.option("--quiet", is_flag=True, help="No progress, no summary, no notes.")
def pack(
    source: str,
    out: str | None,
    *,
    strict: bool,
    as_json: bool,
    quiet: bool,
    ignore_orientation: bool,
    plan: bool,
    rate: float | None,
    **options: Any,
) -> int:
    """Pack the folder SOURCE into the file OUT.

    Sub-folders are classes. Every image is decoded once to prove it. Interrupted, even by kill -9,
    the same command goes on where it was. With --plan OUT may be left out.

    Exit codes: 0 all packed; 3 packed, but some files were bad and are in the report; 4 packed, and
    --strict found something; 1 nothing packed; 2 wrong usage; 130 interrupted.
    """
    options["orientation"] = "ignore" if ignore_orientation else "apply"
    if plan:
        return _plan(source, out, rate=rate, as_json=as_json, quiet=quiet, options=options)
    if out is None:
        raise click.UsageError("Missing argument 'OUT'.", click.get_current_context())
    if rate is not None:
        raise click.UsageError("--rate goes with --plan.", click.get_current_context())
    from sharedds.ingest import pack as pack_folder  # noqa: PLC0415 - help stays quick

    try:
        report = pack_folder(
            source,
            out,
            progress=False if quiet else None,
            on_estimate=None if quiet or as_json else _announce,
            **options,
        )
    except KeyboardInterrupt:
        if not quiet:
            note("what is done is kept; the same command goes on from there")
        raise
    if as_json:
        echo(json.dumps(report.to_json()))
    elif not quiet:
        _summary(report)
    if strict and (report.failed_count or report.duplicate_count or report.warnings):
        return STRICT_FOUND_SOMETHING
    return FINISHED_WITH_BAD_FILES if report.failed_count else 0


def _plan(
    source: str,
    out: str | None,
    *,
    rate: float | None,
    as_json: bool,
    quiet: bool,
    options: Mapping[str, Any],
) -> int:
    from sharedds.ingest import ImageRecipe, plan_packing  # noqa: PLC0415 - help stays quick

    wanted = {} if rate is None else {"rate": rate}
    found = plan_packing(
        source,
        recipe=ImageRecipe(**{f.name: options[f.name] for f in fields(ImageRecipe)}),
        out=out,
        **wanted,
        class_level=options["class_level"],
        include_hidden=options["include_hidden"],
        progress=False if quiet else None,
    )
    if as_json:
        echo(json.dumps(found.to_json()))
    else:
        show(found, out)
    return 0


def _announce(images: int, size: int) -> None:
    complain(f"about {decimal_size(size)} in {_count(images, 'image', 'images')} to write")


def _summary(report: PackReport) -> None:
    classes = "" if report.classes is None else f" of {_count(report.classes, 'class', 'classes')}"
    images = _count(report.samples, "image", "images") + classes
    if report.dry_run:
        echo(f"{images} would be packed into about {decimal_size(report.bytes)}")
    else:
        seconds = max(report.seconds, 1e-9)
        rate = (report.samples - report.resumed) / seconds
        echo(
            f"{report.path}: {images}, {decimal_size(report.bytes)}, in {seconds:.1f} s "
            f"({rate:,.0f} images/s)"
        )
    rows: list[tuple[str, str]] = []
    if report.resumed:
        rows.append(("resumed", f"{report.resumed:,} of them were done by an earlier run"))
    for name, counts in report.content.items():
        usual = {"1", "8"} if name.endswith(("orientation", "bits")) else set()
        if name != "frames" and set(counts) - usual:
            rows.append((name.replace("_", " "), shares(counts)))
    if report.digest:
        rows.append(("digest", report.digest))
    for item in report.left_out_by_reason()[:_SHOWN]:
        files = ("folder", "folders") if item["is_folder"] else ("file", "files")
        example = f"({'such as ' if item['count'] > 1 else ''}{item['example']})"
        rows.append(("left out", f"{_count(item['count'], *files)}: {item['reason']} {example}"))
    kinds = len(report.left_out_by_reason())
    if kinds > _SHOWN:
        rows.append(("left out", f"and for {kinds - _SHOWN:,} more reasons"))
    if report.duplicate_count:
        rows.append(
            ("duplicates", f"{_count(report.duplicate_count, 'group', 'groups')} of equal pictures")
        )
    if report.report and (report.failed_count or report.duplicate_count or report.left_out):
        rows.append(("report", report.report))
    if report.failed_count:
        rows.append(("bad", _count(report.failed_count, "file", "files")))
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        echo(f"  {name:<{width}}  {text}")
    if report.failed_count:
        _bad_files(report)
    for warning in report.warnings:
        note(warning)


def _bad_files(report: PackReport) -> None:
    table = Table("bad file", "reason")
    for path, reason in report.failed[:_SHOWN]:
        table.add(path, reason)
    table.print()
    if report.failed_count > _SHOWN:
        where = f"; {report.report} names them all" if report.report else ""
        echo(f"    ... and {report.failed_count - _SHOWN:,} more{where}")


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


@click.command()
@click.argument("store", type=click.Path())
@click.argument("folder", type=click.Path())
@click.option("--field", default="image", show_default=True, help="The field to write.")
@click.option("--labels", is_flag=True, help="Also write labels.csv.")
@click.option("--dry-run", is_flag=True, help="Read and check everything; write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as one JSON object.")
def export(store: str, folder: str, *, as_json: bool, **options: Any) -> int:
    """Write STORE back to FOLDER: the stored bytes of each image under its name."""
    from sharedds.ingest import export as export_store  # noqa: PLC0415 - help stays quick

    report = export_store(store, folder, **options)
    if as_json:
        echo(json.dumps(report.to_json()))
        return 0
    verb = "would be written" if report.dry_run else "written"
    files = _count(report.files, "file", "files")
    empty = f"; {report.empty:,} samples have none" if report.empty else ""
    echo(f"{report.path}: {files} {verb}, {decimal_size(report.bytes)}{empty}")
    return 0
