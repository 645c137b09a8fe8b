"""``sharedds info`` and ``sharedds verify``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from sharedds.cli.text import Table, echo, shares
from sharedds.text import decimal_size

if TYPE_CHECKING:
    from sharedds.ingest.exports.preview import PreviewReport
    from sharedds.store import StoreInfo, VerifyReport
    from sharedds.store.info import PatchInfo

__all__ = ["info", "verify"]

FOUND_DAMAGE = 3
_SHOWN_CLASSES = 20
_SHOWN_PROBLEMS = 50


@click.command()
@click.argument("store", type=click.Path())
@click.option("--all", "show_all", is_flag=True, help="Show every class, not the first 20.")
@click.option(
    "--preview", type=click.Path(), metavar="PNG", help="Also draw some of the samples in a PNG."
)
@click.option("--sample", metavar="KEY", help="Of the preview: show this one alone.")
@click.option(
    "--patch", metavar="SIZE", help="Also say what patches cost, of 96,96,96 voxels for instance."
)
@click.option("--json", "as_json", is_flag=True, help="Print it as one JSON object.")
def info(
    store: str,
    *,
    show_all: bool,
    preview: str | None,
    sample: str | None,
    patch: str | None,
    as_json: bool,
) -> int:
    """Show what is in STORE: schema, counts, classes, sizes, digest."""
    from sharedds.store import info as describe  # noqa: PLC0415 - help stays quick
    from sharedds.store.info import patch_info  # noqa: PLC0415

    found = describe(store)
    costs = None if patch is None else patch_info(store, _sizes(patch))
    drawn = _draw(store, preview, sample) if preview is not None else None
    if as_json:
        more: dict[str, object] = {} if drawn is None else {"preview": drawn.to_json()}
        if costs is not None:
            more["patches"] = [cost.to_json() for cost in costs]
        echo(json.dumps({**found.to_json(), **more}))
        return 0
    _show(found, show_all=show_all)
    if costs is not None:
        _show_costs(costs)
    if drawn is not None:
        echo("")
        echo(f"  preview      {drawn.path}: {drawn.shown:,} of {drawn.samples:,} samples")
    return 0


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(
            f"{text!r}: whole numbers with commas between them, such as 96,96,96",
            param_hint="--patch",
        ) from None


def _show_costs(costs: tuple[PatchInfo, ...]) -> None:
    echo("")
    if not costs:
        echo("  patches      no field has arrays of so many axes")
        return
    table = Table("patches of", "from blocks of", "touched", "for each byte asked", "blocks")
    for found in costs:
        size = "x".join(map(str, found.patch))
        for name, chunk, cost in (
            (f"{found.field}, {size}", found.chunk, found.now),
            ("  if packed anew", found.repacked_chunk, found.repacked),
        ):
            blocks, touched = "x".join(map(str, chunk)), decimal_size(cost.bytes_touched)
            table.add(name, blocks, touched, f"{cost.amplification:.1f}", f"{cost.blocks:,.0f}")
    table.print("  ")


def _draw(store: str, path: str, key: str | None) -> PreviewReport:
    from sharedds.ingest.exports.preview import preview  # noqa: PLC0415 - help stays quick

    return preview(store, path, key=key)


def _show(found: StoreInfo, *, show_all: bool) -> None:
    echo(
        f"{found.path}: {found.samples:,} samples, {decimal_size(found.bytes)}, "
        f"format {found.format_version}"
    )
    echo(f"  digest       {found.digest}")
    if found.shards:
        echo(f"  shards       {found.shards:,}")
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
