"""``sharedds info`` and ``sharedds verify``."""

from __future__ import annotations

import json
from typing import Any

import click

from sharedds.cli.text import Table, decimal_size, echo

__all__ = ["info", "verify"]

FOUND_DAMAGE = 3
_SHOWN_CLASSES = 20


@click.command()
@click.argument("store", type=click.Path())
@click.option("--all", "show_all", is_flag=True, help="Show every class, not the first 20.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def info(store: str, *, show_all: bool, as_json: bool) -> int:
    """Show what is in STORE: schema, counts, classes, sizes, digest."""
    from sharedds.store import info as describe  # noqa: PLC0415 - help stays quick

    found = describe(store)
    if as_json:
        echo(json.dumps(found.to_json()))
        return 0
    echo(f"{found.path}: {found.samples:,} samples, {decimal_size(found.bytes)}, format {found.format_version}")
    echo(f"digest {found.digest}")
    table = Table("field", "kind", "values", "size")
    for field in found.fields:
        table.add(field.name, field.kind, f"{field.values:,}", decimal_size(field.bytes))
    table.print("  ")
    for name, counts in found.content.items():
        shown = ", ".join(f"{value} {count:,}" for value, count in sorted(counts.items(), key=lambda c: -c[1]))
        echo(f"{name}: {shown}")
    if found.classes is not None:
        _print_classes(found.classes, show_all=show_all)
    recipe: dict[str, Any] = found.attrs.get("recipe", {})
    if recipe:
        echo(f"packed with codec {recipe.get('codec')}, checked by {recipe.get('check')}")
    return 0


def _print_classes(classes: dict[str, int], *, show_all: bool) -> None:
    from sharedds.ingest.report import printable  # noqa: PLC0415 - help stays quick

    table = Table("class", "number", "samples")
    shown = list(classes.items())[: None if show_all else _SHOWN_CLASSES]
    for number, (name, count) in enumerate(shown):
        table.add(printable(name), str(number), f"{count:,}")
    echo(f"{len(classes):,} classes")
    table.print("  ")
    if len(shown) < len(classes):
        echo(f"  ... and {len(classes) - len(shown):,} more (--all shows them)")


@click.command()
@click.argument("store", type=click.Path())
@click.option("--untrusted", is_flag=True, help="Walk the structure of the file before anything else.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def verify(store: str, *, untrusted: bool, as_json: bool) -> int:
    """Compare everything in STORE with its checksums.

    Exit codes: 0 nothing is wrong; 3 damage was found and is listed; 1 it cannot be opened at all.
    """
    from sharedds.ingest.report import printable  # noqa: PLC0415 - help stays quick
    from sharedds.store import verify as check  # noqa: PLC0415 - help stays quick

    report = check(store, untrusted=untrusted)
    if as_json:
        echo(json.dumps(report.to_json()))
    elif report.ok:
        echo(
            f"{report.path}: {report.samples:,} samples, {report.entries:,} values, "
            f"{decimal_size(report.bytes)}: all as they were packed (digest {report.digest})"
        )
    else:
        echo(f"{report.path}: {report.problem_count:,} problems")
        table = Table("sample", "field", "what is wrong", "source")
        for problem in report.problems[:50]:
            sample = "" if problem.sample is None else str(problem.sample)
            table.add(sample, problem.field or "", problem.text, printable(problem.source or problem.key or ""))
        table.print("  ")
        if report.problem_count > 50:
            echo(f"  ... and {report.problem_count - 50:,} more (--json lists up to 1,000)")
    return 0 if report.ok else FOUND_DAMAGE
