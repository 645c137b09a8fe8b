"""``sharedds merge``, ``split``, ``append`` and ``edit``."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from sharedds.cli.text import echo
from sharedds.errors import SourceError

if TYPE_CHECKING:
    from sharedds.store import ChangeReport

__all__ = ["append", "edit", "merge", "split"]

_dry_run = click.option("--dry-run", is_flag=True, help="Check everything; write nothing.")
_json = click.option(
    "--json", "as_json", is_flag=True, help="Print the outcome as one JSON object."
)


@click.command()
@click.argument("sources", type=click.Path(), nargs=-1, required=True, metavar="STORE...")
@click.argument("out", type=click.Path())
@click.option("--shards", type=click.IntRange(1), metavar="N", help="Make a folder of N files.")
@click.option("--shard-size", metavar="SIZE", help="Or of files of this size, such as 16GiB.")
@_dry_run
@_json
def merge(sources: tuple[str, ...], out: str, *, as_json: bool, **options: Any) -> int:
    """Copy all samples of STORE... into OUT: one file, or a folder of shards.

    They are copied as they are stored, not decoded. Fields and class names must be the same; keys
    must be unique in all of them.
    """
    from sharedds.store import merge as merge_stores  # noqa: PLC0415 - help stays quick

    return _tell(merge_stores(sources, out, **options), as_json=as_json)


@click.command()
@click.argument("store", type=click.Path())
@click.argument("out", type=click.Path())
@click.option("--parts", type=click.IntRange(1), metavar="N", help="Make N stores of equal size.")
@click.option("--by", metavar="COLUMN", help="Or one store for each value of a column.")
@click.option("--group", metavar="COLUMN", help="With --parts: equal values stay together.")
@_dry_run
@_json
def split(store: str, out: str, *, as_json: bool, **options: Any) -> int:
    """Copy STORE into several in the folder OUT: by count, column or group."""
    from sharedds.store import split as split_store  # noqa: PLC0415 - help stays quick

    return _tell(split_store(store, out, **options), as_json=as_json)


@click.command()
@click.argument("store", type=click.Path())
@click.argument("sources", type=click.Path(), nargs=-1, required=True, metavar="SOURCE...")
@_dry_run
@_json
def append(store: str, sources: tuple[str, ...], *, as_json: bool, **options: Any) -> int:
    """Append stores to the sharded STORE, as new shards.

    What is there is not touched: who has STORE open goes on reading what it was.
    """
    from sharedds.store import append as append_stores  # noqa: PLC0415 - help stays quick

    return _tell(append_stores(store, sources, **options), as_json=as_json)


@click.command()
@click.argument("store", type=click.Path())
@click.argument("table", type=click.Path())
@_dry_run
@_json
def edit(store: str, table: str, *, as_json: bool, **options: Any) -> int:
    """Change labels, keys and other columns of the sharded STORE.

    The CSV file TABLE says how: its column key says which sample; each other one is a column of
    STORE, or new_key. What is new goes into a file beside the shards.
    """
    from sharedds.store import edit as edit_store  # noqa: PLC0415 - help stays quick

    return _tell(edit_store(store, _rows(table), **options), as_json=as_json)


def _rows(path: str) -> Iterator[dict[str, Any]]:
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            for row in csv.DictReader(file):
                if None in row or None in row.values():
                    raise SourceError(f"{path}: a line with too few or too many values: {row}")
                yield row
    except (OSError, csv.Error) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{path}: cannot be read ({error})", path=path) from error


def _tell(report: ChangeReport, *, as_json: bool) -> int:
    if as_json:
        echo(json.dumps(report.to_json()))
        return 0
    verb = "would be written" if report.dry_run else "written"
    echo(f"{report.path}: {report.changed:,} of {report.samples:,} samples {verb}")
    if report.digest:
        echo(f"  digest  {report.digest}")
    return 0
