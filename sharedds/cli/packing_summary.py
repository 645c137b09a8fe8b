"""What ``sharedds pack`` tells a person at its end: what was made, of what, and what was not."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from sharedds.cli.text import Table, complain, echo, note, shares
from sharedds.text import decimal_size, printable

if TYPE_CHECKING:
    from sharedds.ingest import PackReport

__all__ = ["announce", "counted", "summarise"]

_SHOWN = 10
_WIDTH = 80


_NOUNS = {"volumes": ("case", "cases"), "slides": ("slide", "slides")}


def counted(number: int, one: str, many: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {one if number == 1 else many}"


def announce(images: int, size: int) -> None:
    """Tell what is going to be written."""
    complain(f"about {decimal_size(size)} in {counted(images, 'image', 'images')} to write")


def summarise(report: PackReport) -> None:
    """Print the outcome of a pack."""
    noun = _NOUNS.get(report.kind, ("image", "images"))
    classes = "" if report.classes is None else f" of {counted(report.classes, 'class', 'classes')}"
    items = counted(report.samples, *noun) + classes
    if report.dry_run:
        echo(f"{items} would be packed into about {decimal_size(report.bytes)}")
    else:
        seconds = max(report.seconds, 1e-9)
        rate = (report.samples - report.resumed) / seconds
        shown = f"{rate:,.0f}" if rate >= 10 or report.kind == "images" else f"{rate:.2g}"
        echo(
            f"{report.path}: {items}, {decimal_size(report.bytes)}, in {seconds:.1f} s "
            f"({shown} {noun[1]}/s)"
        )
    rows = _rows(report)
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        echo(f"  {name:<{width}}  {text}")
    if report.failed_count:
        (_bad_files if report.kind == "images" else _bad_cases)(report)
    for case, text in report.remarks[:_SHOWN]:
        note(f"{printable(case)}: {text}")
    if report.remark_count > _SHOWN:
        where = f"; {report.report} has them all" if report.report else ""
        note(f"... and {report.remark_count - _SHOWN:,} more{where}")
    for warning in report.warnings:
        note(warning)


def _rows(report: PackReport) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if report.resumed:
        rows.append(("resumed", f"{report.resumed:,} of them were done by an earlier run"))
    if report.layout:
        rows.append(("layout", report.layout))
    for name, counts in report.content.items():
        usual = {"1", "8"} if name.endswith(("orientation", "bits")) else set()
        if report.kind == "volumes":
            usual = {"axis": {"none"}, "photometric": {"MONOCHROME2"}}.get(name, set())
        if name != "frames" and set(counts) - usual:
            rows.append((name.replace("_", " "), shares(counts)))
    if report.digest:
        rows.append(("digest", report.digest))
    for item in report.left_out_by_reason()[:_SHOWN]:
        files = ("folder", "folders") if item["is_folder"] else ("file", "files")
        example = f"({'such as ' if item['count'] > 1 else ''}{item['example']})"
        rows.append(("left out", f"{counted(item['count'], *files)}: {item['reason']} {example}"))
    kinds = len(report.left_out_by_reason())
    if kinds > _SHOWN:
        rows.append(("left out", f"and for {kinds - _SHOWN:,} more reasons"))
    if report.duplicate_count:
        groups = counted(report.duplicate_count, "group", "groups")
        rows.append(("duplicates", f"{groups} of equal pictures"))
    if report.report and (report.failed_count or report.duplicate_count or report.left_out):
        rows.append(("report", report.report))
    if report.failed_count:
        noun = ("case", "cases") if report.kind == "volumes" else ("file", "files")
        rows.append(("bad", counted(report.failed_count, *noun)))
    return rows


def _bad_files(report: PackReport) -> None:
    table = Table("bad file", "reason")
    for path, reason in report.failed[:_SHOWN]:
        table.add(path, reason)
    table.print()
    _more(report)


def _bad_cases(report: PackReport) -> None:
    """Print each with its reason below it: these are sentences."""
    for path, reason in report.failed[:_SHOWN]:
        echo(f"    {path}")
        for line in textwrap.wrap(printable(reason), _WIDTH - 6, break_on_hyphens=False):
            echo(f"      {line}")
    _more(report)


def _more(report: PackReport) -> None:
    if report.failed_count > _SHOWN:
        where = f"; {report.report} names them all" if report.report else ""
        echo(f"    ... and {report.failed_count - _SHOWN:,} more{where}")
