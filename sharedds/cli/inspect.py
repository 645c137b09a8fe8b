"""``sharedds info`` and ``sharedds verify``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from sharedds.cli.text import Table, echo, shares
from sharedds.text import decimal_size

if TYPE_CHECKING:
    from sharedds.store import StoreInfo, VerifyReport

__all__ = ["info", "verify"]

FOUND_DAMAGE = 3
_SHOWN_CLASSES = 20
_SHOWN_PROBLEMS = 50


@click.command()
@click.argument("store", type=click.Path())
@click.option("--all", "show_all", is_flag=True, help="Show every class, not the first 20.")
@click.option("--json", "as_json", is_flag=True, help="Print it as one JSON object.")
def info(store: str, *, show_all: bool, as_json: bool) -> int:
    """Show what is in STORE: schema, counts, classes, sizes, digest."""
    from sharedds.store import info as describe  # noqa: PLC0415 - help stays quick

    found = describe(store)
    if as_json:
        echo(json.dumps(found.to_json()))
    else:
        _show(found, show_all=show_all)
    return 0


def _show(found: StoreInfo, *, show_all: bool) -> None:
    echo(
        f"{found.path}: {found.samples:,} samples, {decimal_size(found.bytes)}, "
        f"format {found.format_version}"
    )
    echo(f"  digest       {found.digest}")
    recipe = found.attrs.get("recipe")
    if isinstance(recipe, dict):
        proof = "decoding" if recipe.get("check") == "decode" else "the header alone"
        echo(f"  packed with  codec {recipe.get('codec')}, checked by {proof}")
    for name, counts in found.content.items():
        echo(f"  {name.replace('_', ' '):<11}  {shares(counts)}")
    table = Table("field", "kind", "values", "size")
    for field in found.fields:
        table.add(field.name, field.kind, f"{field.values:,}", decimal_size(field.bytes))
    echo("")
    table.print("  ")
    if found.classes is None:
        return
    classes = Table("number", "class", "samples")
    shown = list(found.classes.items())[: None if show_all else _SHOWN_CLASSES]
    for number, (name, count) in enumerate(shown):
        classes.add(str(number), name, f"{count:,}")
    echo("")
    classes.print("  ")
    if len(shown) < len(found.classes):
        echo(f"  ... and {len(found.classes) - len(shown):,} more classes (--all shows them)")


@click.command()
@click.argument("store", type=click.Path())
@click.option("--untrusted", is_flag=True, help="Walk the structure of the file before all else.")
@click.option("--json", "as_json", is_flag=True, help="Print it as one JSON object.")
def verify(store: str, *, untrusted: bool, as_json: bool) -> int:
    """Compare everything in STORE with its checksums.

    Exit codes: 0 nothing is wrong; 3 damage was found and is listed; 1 it cannot be opened at all.
    """
    from sharedds.store import verify as check  # noqa: PLC0415 - help stays quick

    report = check(store, untrusted=untrusted)
    if as_json:
        echo(json.dumps(report.to_json()))
    elif report.ok:
        echo(
            f"{report.path}: all {report.samples:,} samples ({report.entries:,} values, "
            f"{decimal_size(report.bytes)}) are as they were packed"
        )
        echo(f"  digest  {report.digest}")
    else:
        _show_problems(report)
    return 0 if report.ok else FOUND_DAMAGE


def _show_problems(report: VerifyReport) -> None:
    problems = "problem" if report.problem_count == 1 else "problems"
    echo(f"{report.path}: {report.problem_count:,} {problems}")
    table = Table("sample", "field", "what is wrong", "source")
    for problem in report.problems[:_SHOWN_PROBLEMS]:
        sample = "" if problem.sample is None else str(problem.sample)
        table.add(sample, problem.field or "", problem.text, problem.source or problem.key or "")
    table.print("  ")
    if report.problem_count > _SHOWN_PROBLEMS:
        more = report.problem_count - _SHOWN_PROBLEMS
        echo(f"  ... and {more:,} more (--json lists up to 1,000)")
