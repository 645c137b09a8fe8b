"""``sharedds pack`` and ``sharedds export``."""

from __future__ import annotations

import json
import re
from typing import Any

import click

from sharedds.cli.text import Table, decimal_size, echo, note

__all__ = ["export", "pack"]

FINISHED_WITH_BAD_FILES = 3
STRICT_FOUND_SOMETHING = 4


class _Size(click.ParamType):
    name = "HxW"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d+)(?:x(\d+))?", str(value))
        if match is None:
            self.fail(f"{value!r} is not a size such as 256x256 (height x width)", param, ctx)
        return int(match[1]), int(match[2] or match[1])


class _Pixels(click.ParamType):
    name = "N|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        if value is None or isinstance(value, int):
            return value
        if str(value).lower() == "none":
            return None
        text = str(value).replace("_", "").replace(",", "")
        if not text.isdigit():
            self.fail(f"{value!r} is neither a number of pixels nor none", param, ctx)
        return int(text)


class _Color(click.ParamType):
    name = "COLOR"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int, int]:
        if isinstance(value, tuple):
            return value
        named = {"white": (255, 255, 255), "black": (0, 0, 0), "grey": (128, 128, 128)}
        if value in named:
            return named[value]
        match = re.fullmatch(r"#?([0-9a-fA-F]{2})([0-9a-fA-F]{2})([0-9a-fA-F]{2})", str(value))
        if match is None:
            self.fail(f"{value!r}: white, black, grey, or hexadecimal such as ff8800", param, ctx)
        return int(match[1], 16), int(match[2], 16), int(match[3], 16)


@click.command()
@click.argument("source", type=click.Path())
@click.argument("out", type=click.Path())
@click.option("--codec", type=click.Choice(["keep", "jpeg", "png", "webp", "raw"]), default="keep", show_default=True, help="Keep the original bytes, or encode anew.")
@click.option("--quality", type=click.IntRange(1, 100), default=90, show_default=True, help="Of jpeg.")
@click.option("--max-side", type=click.IntRange(1), help="Shrink to this longest side, in pixels.")
@click.option("--short-side", type=click.IntRange(1), help="Shrink to this shortest side, in pixels.")
@click.option("--size", type=_Size(), help="Of raw pixels: scale to cover, cut the middle.")
@click.option("--check", type=click.Choice(["decode", "header"]), default="decode", show_default=True, help="Prove that each picture decodes, or trust beyond its header.")
@click.option("--depth", type=click.Choice(["keep", "8"]), default="keep", show_default=True, help="8 scales 16-bit values to 8 bits when encoding anew.")
@click.option("--background", type=_Color(), default="white", show_default=True, help="Behind transparent pixels where the codec has no alpha.")
@click.option("--ignore-orientation", is_flag=True, help="Read pictures as they are stored, whatever EXIF says.")
@click.option("--max-pixels", type=_Pixels(), default=200_000_000, show_default=True, help="Refuse larger pictures before decoding them.")
@click.option("--class-level", type=click.Choice(["auto", "top", "folder", "none"]), default="auto", show_default=True, help="Which folder is the class.")
@click.option("--classes", type=click.Path(), help="Take the class numbers from a file of names or another store.")
@click.option("--labels", type=click.Path(), help="CSV file with the columns path and label, instead of class folders.")
@click.option("--numeric-classes", is_flag=True, help="Folders are named by numbers, and these are the labels.")
@click.option("--include-hidden", is_flag=True, help="Also pack what begins with a dot.")
@click.option("--shuffle-seed", type=int, help="Store in a random order, the same for the same seed.")
@click.option("--on-error", type=click.Choice(["skip", "raise"]), default="skip", show_default=True, help="Skip bad files and report them, or stop at the first.")
@click.option("--against", type=click.Path(), multiple=True, help="Another store to look for the same pictures in; repeatable.")
@click.option("--strict", is_flag=True, help="Exit with 4 if the finished store has bad files, duplicates or warnings.")
@click.option("--workers", type=click.IntRange(1), help="Threads; by default one for each CPU.")
@click.option("--force", is_flag=True, help="Replace OUT, in one step at the end.")
@click.option("--report", type=click.Path(), help="Where the JSONL report goes.  [default: OUT.report.jsonl]")
@click.option("--dry-run", is_flag=True, help="Scan and estimate; write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
@click.option("--quiet", is_flag=True, help="No progress, no summary.")
def pack(source: str, out: str, *, strict: bool, as_json: bool, quiet: bool, ignore_orientation: bool, **options: Any) -> int:
    """Pack the folder SOURCE into the file OUT.

    Sub-folders are classes. Every image is decoded once to prove it. Interrupted, even by kill -9,
    the same command goes on where it was.

    Exit codes: 0 all packed; 3 packed, but some files were bad and are in the report; 4 packed, and
    --strict found something; 1 nothing packed; 2 wrong usage.
    """
    from sharedds.ingest import pack as pack_folder  # noqa: PLC0415 - help stays quick

    report = pack_folder(
        source,
        out,
        orientation="ignore" if ignore_orientation else "apply",
        progress=False if quiet else None,
        **options,
    )
    if as_json:
        echo(json.dumps(report.to_json()))
    elif not quiet:
        _summary(report)
    if strict and (report.failed or report.duplicates or report.warnings):
        return STRICT_FOUND_SOMETHING
    return FINISHED_WITH_BAD_FILES if report.failed else 0


def _summary(report: Any) -> None:
    from sharedds.ingest.report import printable  # noqa: PLC0415 - help stays quick

    if report.dry_run:
        echo(f"{report.samples:,} images would be packed into about {decimal_size(report.bytes)}")
    else:
        rate = (report.samples - report.resumed) / max(report.seconds, 1e-9)
        resumed = f", {report.resumed:,} of them by an earlier run" if report.resumed else ""
        echo(
            f"{printable(report.path)}: {report.samples:,} images{resumed}, {decimal_size(report.bytes)}, "
            f"{report.seconds:.1f} s ({rate:,.0f} images/s)"
        )
    if report.classes is not None:
        echo(f"  classes     {report.classes:,}")
    for name in ("format", "mode", "orientation", "bits"):
        counts = report.content.get(name, {})
        if counts and (name in ("format", "mode") or set(counts) - {"1", "8"}):
            shown = ", ".join(f"{value} {count:,}" for value, count in sorted(counts.items(), key=lambda c: -c[1]))
            echo(f"  {name:<11} {shown}")
    if report.digest:
        echo(f"  digest      {report.digest}")
    for item in report.left_out:
        what = "folders" if item["is_folder"] else "files"
        example = printable(item["example"])
        echo(f"  left out    {item['count']:,} {what}: {item['reason']} (such as {example})")
    if report.duplicates:
        conflicts = sum(group.conflicting for group in report.duplicates)
        clash = f", {conflicts} with different labels" if conflicts else ""
        echo(f"  duplicates  {len(report.duplicates):,} groups of equal files{clash}")
    if report.failed:
        table = Table("bad file", "reason")
        for path, reason in report.failed[:10]:
            table.add(printable(path), reason)
        echo(f"  bad         {len(report.failed):,} files")
        table.print()
        if len(report.failed) > 10:
            echo(f"  ... and {len(report.failed) - 10:,} more")
    if not report.dry_run and (report.failed or report.duplicates or report.left_out):
        echo("  report      OUT.report.jsonl (or --report) names each of them")
    for warning in report.warnings:
        note(warning)


@click.command()
@click.argument("store", type=click.Path())
@click.argument("folder", type=click.Path())
@click.option("--field", default="image", show_default=True, help="The field to write.")
@click.option("--labels", is_flag=True, help="Also write labels.csv.")
@click.option("--dry-run", is_flag=True, help="Count only; write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def export(store: str, folder: str, *, as_json: bool, **options: Any) -> int:
    """Write STORE back to FOLDER: the stored bytes of each image under its name."""
    from sharedds.ingest import export as export_store  # noqa: PLC0415 - help stays quick

    report = export_store(store, folder, **options)
    if as_json:
        echo(json.dumps(report.to_json()))
    else:
        verb = "would be written" if report.dry_run else "written"
        echo(f"{report.path}: {report.files:,} files {verb}, {decimal_size(report.bytes)}")
    return 0
