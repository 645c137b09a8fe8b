"""``sharedds machine``."""

from __future__ import annotations

import json

import click

from sharedds.cli.text import echo

__all__ = ["machine"]


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(), metavar="[PATH]...")
@click.option("--json", "as_json", is_flag=True, help="Print it as one JSON object.")
def machine(paths: tuple[str, ...], *, as_json: bool) -> int:
    """Show what a process may use here, and what decided it.

    CPUs, memory, room for batches, open files, accelerator, ways to start workers; and the kind of
    storage below each PATH. What the system does not tell is unknown, and null in JSON.
    """
    from sharedds.host.machine import machine as look  # noqa: PLC0415 - help stays quick

    found = look(paths)
    for line in [json.dumps(found.to_dict())] if as_json else str(found).splitlines():
        echo(line)
    return 0
