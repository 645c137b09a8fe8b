"""``sharedds pack`` and ``sharedds export``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import click

from sharedds.cli.packing_options import (
    SectionedCommand,
    for_all,
    for_other_formats,
    for_pictures,
    for_slides,
    for_volumes,
    given,
)
from sharedds.cli.packing_plan import show
from sharedds.cli.packing_summary import announce, counted, summarise
from sharedds.cli.text import echo, note
from sharedds.cli.values import amount
from sharedds.text import decimal_size

__all__ = ["export", "pack"]

FINISHED_WITH_BAD_FILES = 3
STRICT_FOUND_SOMETHING = 4


@click.command(cls=SectionedCommand)
@click.argument("source", type=click.Path())
@click.argument("out", type=click.Path(), required=False)
@for_pictures
@for_volumes
@for_slides
@for_other_formats
@for_all
def pack(
    source: str,
    out: str | None,
    *,
    strict: bool,
    as_json: bool,
    quiet: bool,
    plan: bool,
    rate: float | None,
    **options: Any,
) -> int:
    """Pack the folder SOURCE, or another dataset, into the file OUT.

    A folder holds pictures, medical volumes, or slides. Of pictures sub-folders are classes, and
    every one is decoded once to prove it. Of volumes (NIfTI, DICOM, NRRD, MetaImage, NumPy) images
    and labels are paired by name. Slides and pictures of any size are cut into tiles of several
    resolutions. Other datasets are WebDataset tars, Parquet and Hugging Face datasets, MDS,
    LitData, LMDB, COCO and VOC annotations, and CSV files. Interrupted, even by kill -9, the same
    command goes on where it was. With --plan OUT may be left out.

    Exit codes: 0 all packed; 3 packed, but some files were bad and are in the report; 4 packed, and
    --strict found something; 1 nothing packed; 2 wrong usage; 130 interrupted.
    """
    context = click.get_current_context()
    if plan:
        return _plan(source, out, rate=rate, as_json=as_json, quiet=quiet, options=options)
    if out is None:
        raise click.UsageError("Missing argument 'OUT'.", context)
    if rate is not None:
        raise click.UsageError("--rate goes with --plan.", context)
    from sharedds.doors import pack as pack_source  # noqa: PLC0415 - help stays quick

    try:
        report = pack_source(
            source,
            out,
            progress=False if quiet else None,
            on_estimate=None if quiet or as_json else announce,
            **_in_python(given(context, options)),
        )
    except KeyboardInterrupt:
        if not quiet:
            note("what is done is kept; the same command goes on from there")
        raise
    if as_json:
        echo(json.dumps(report.to_json()))
    elif not quiet:
        summarise(report)
    noted = report.duplicate_count or report.warnings or report.remark_count
    if strict and (report.failed_count or noted):
        return STRICT_FOUND_SOMETHING
    return FINISHED_WITH_BAD_FILES if report.failed_count else 0


def _in_python(options: dict[str, Any]) -> dict[str, Any]:
    """Return options as the function calls them."""
    if options.pop("ignore_orientation", False):
        options["orientation"] = "ignore"
    if "axes" in options:
        if "orientation" in options:
            raise click.UsageError(
                "--orientation is for volumes, --ignore-orientation for pictures.",
                click.get_current_context(),
            )
        options["orientation"] = options.pop("axes")
    if "foreground_above" in options:
        options["crop_foreground"] = options.pop("foreground_above")
    return options


def _plan(
    source: str,
    out: str | None,
    *,
    rate: float | None,
    as_json: bool,
    quiet: bool,
    options: Mapping[str, Any],
) -> int:
    if options["kind"] in ("volume", "slide"):
        raise click.UsageError("--plan is for pictures.", click.get_current_context())
    from sharedds.ingest import ImageRecipe, plan_packing  # noqa: PLC0415 - help stays quick

    options = {**options, "codec": options["codec"] or "keep"}
    options["orientation"] = "ignore" if options["ignore_orientation"] else "apply"
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


@click.command()
@click.argument("store", type=click.Path())
@click.argument("folder", type=click.Path())
@click.option(
    "--to",
    type=click.Choice(["folder", "webdataset", "parquet", "mds"]),
    default="folder",
    show_default=True,
    help="Files as they were packed, or shards of another format.",
)
@click.option(
    "--shard-size",
    type=amount,
    metavar="BYTES",
    default="256MiB",
    show_default=True,
    help="With another --to: about how large a shard gets.",
)
@click.option("--field", help="The field to write.  [default: image; of volumes image and label]")
@click.option("--labels", is_flag=True, help="Also write labels.csv.")
@click.option(
    "--suffix",
    type=click.Choice([".nii.gz", ".nii"]),
    help="Of volumes: compressed or not.  [default: .nii.gz]",
)
@click.option(
    "--region", metavar="X,Y,W,H", help="Of a slide: FOLDER is a .png, .jpg or .tif of this part."
)
@click.option("--level", type=int, metavar="K", help="Of a slide: which level, 0 is the finest.")
@click.option("--sample", metavar="KEY", help="Of slides: which one the part is of.")
@click.option("--force", is_flag=True, help="With --region or --level: replace a file.")
@click.option("--dry-run", is_flag=True, help="Read and check everything; write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as one JSON object.")
def export(
    store: str,
    folder: str,
    *,
    region: str | None,
    level: int | None,
    sample: str | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Write STORE back to FOLDER: the stored bytes of each image under its name.

    With --to FOLDER holds the same samples as WebDataset tars, Parquet files or MDS shards. A store
    of volumes becomes NIfTI files in images/ and labels/, with the same voxels and
    geometry; one of slides becomes tiled TIFF files with their levels, or with --region or --level
    one picture.
    """
    from sharedds.doors import export as export_store  # noqa: PLC0415 - help stays quick
    from sharedds.ingest.exports.slides import export_region  # noqa: PLC0415

    if region is not None or level is not None:
        part = None if region is None else _part(region)
        report = export_region(
            store, folder, key=sample, region=part, level=level or 0, force=force
        )
    else:
        report = export_store(store, folder, **options)
    if as_json:
        echo(json.dumps(report.to_json()))
        return 0
    verb = "would be written" if report.dry_run else "written"
    files = counted(report.files, "file", "files")
    empty = f"; {report.empty:,} samples have none" if report.empty else ""
    echo(f"{report.path}: {files} {verb}, {decimal_size(report.bytes)}{empty}")
    return 0


def _part(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) != 4:
        raise click.BadParameter(
            f"{text!r}: four whole numbers, such as 0,0,512,512", param_hint="--region"
        )
    return numbers
