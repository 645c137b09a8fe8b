"""``sharedds doctor``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import click

from sharedds.cli.text import complain, echo
from sharedds.errors import OptionError, SharedDSError
from sharedds.progress import Progress

__all__ = ["doctor"]

COULD_NOT_RUN = 2


@click.command()
@click.argument("target")
@click.option(
    "--workers", type=click.IntRange(min=1), help="Workers to measure.  [default: CPUs, up to 4]"
)
@click.option("--batch-size", type=click.IntRange(min=1), help="Samples in a batch.  [default: 8]")
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    help="Samples to read in each trial.  [default: three seconds' worth]",
)
@click.option(
    "--start-method",
    type=click.Choice(["forkserver", "spawn", "fork"]),
    help="How workers will be started.  [default: the platform's best]",
)
@click.option("--transform", metavar="MODULE:NAME", help="A transform for a store or a folder.")
@click.option("--no-measure", is_flag=True, help="Only look; start no workers.")
@click.option("--json", "as_json", is_flag=True, help="Print it as one JSON object.")
@click.option(
    "--html", "page", type=click.Path(dir_okay=False), help="Also write a page with plots here."
)
def doctor(
    target: str,
    *,
    workers: int | None,
    batch_size: int | None,
    samples: int | None,
    start_method: str | None,
    transform: str | None,
    no_measure: bool,
    as_json: bool,
    page: str | None,
) -> int:
    """Find what in TARGET costs workers memory or breaks in them.

    TARGET is a store, a folder of images, module:attribute or file.py:attribute: a dataset, a
    DataLoader, or a class or function that makes one. It is looked at in a process of its own; then
    real workers are started and measured, by each start method.

    Exit codes: 0 safe; 1 hazards were found and are listed; 2 it could not be run.
    """
    from sharedds.diagnose.doctor import doctor as examine  # noqa: PLC0415 - help stays quick
    from sharedds.diagnose.html import as_html, require_plots  # noqa: PLC0415

    try:
        if page is not None:
            require_plots()  # before minutes of work, not after
            _write(page, "")
        with Progress("examining", unit="steps") as bar:
            report = examine(
                target,
                num_workers=workers,
                batch_size=batch_size,
                samples=samples,
                start_method=start_method,
                transform=transform,
                measure=not no_measure,
                tick=lambda phase, done, total: _advance(bar, done, total),
            )
            bar.advance((bar.total or 0) - bar.count)
        if page is not None:
            _write(page, as_html(report))
    except SharedDSError as error:
        complain(f"Error: {error}")
        return COULD_NOT_RUN
    if as_json:
        echo(json.dumps(report.to_dict()))
    else:
        for line in report.text(_width()).splitlines():
            echo(line)
        if page is not None:
            echo("")
            echo(f"The page with plots: {page}")
    return report.exit_code


def _advance(bar: Progress, done: int, total: int) -> None:
    bar.total = total
    bar.advance(done - bar.count)


def _write(page: str, text: str) -> None:
    try:
        Path(page).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OptionError(f"--html {page}: cannot be written ({error.strerror})") from error


def _width() -> int:
    return min(120, shutil.get_terminal_size((80, 24)).columns)
