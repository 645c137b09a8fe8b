"""``sharedds bench`` and ``sharedds tune``."""

from __future__ import annotations

import json
import shutil
import sys

import click

from sharedds.cli.text import echo

__all__ = ["PATIENCE", "bench", "tune"]

_NARROWEST, _WIDEST = 60, 120
_TRANSFORM = "Of the dataset: an attribute of a module or of a file.py."

PATIENCE = click.option(
    "--patience",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="A process without a sign of life for so long counts as hanging.",
)


def _width() -> int:
    """Characters in a line: those of the terminal, 80 where there is none."""
    columns = shutil.get_terminal_size((80, 24)).columns
    return max(_NARROWEST, min(_WIDEST, columns))


def _bar() -> str:
    """What bars are made of, as far as the output's encoding goes."""
    try:
        "█".encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return "#"
    return "█"


@click.command()
@click.argument("target")
@click.option("--workers", type=click.IntRange(min=0), help="Workers.  [default: as planned]")
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    help="Samples in a batch.  [default: of a DataLoader its own, else 32]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="How long to measure; starting comes on top.",
)
@click.option("--transform", metavar="MODULE:ATTRIBUTE", help=_TRANSFORM)
@click.option(
    "--slowest",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="How many of the slowest samples to name.",
)
@PATIENCE
@click.option("--json", "as_json", is_flag=True, help="Print it as one JSON object.")
def bench(
    target: str,
    *,
    workers: int | None,
    batch_size: int | None,
    seconds: float,
    transform: str | None,
    slowest: int,
    patience: float,
    as_json: bool,
) -> int:
    """Measure the loader of TARGET alone, and tell what bounds it.

    TARGET is a store, a folder of images, module:attribute or file.py:attribute (a dataset, a
    DataLoader, or a class or function that makes one without arguments). It is loaded in processes
    of its own, without any training, for the time that each stage takes (read, decode, transform,
    collate, transfer), the slowest samples, and what other numbers of workers would give.
    """
    from sharedds.diagnose.bench import bench as measure  # noqa: PLC0415 - help stays quick

    report = measure(
        target,
        num_workers=workers,
        batch_size=batch_size,
        seconds=seconds,
        transform=transform,
        slowest=slowest,
        patience=patience,
    )
    if as_json:
        echo(json.dumps(report.to_dict()))
    else:
        for line in report.text(_width()).splitlines():
            echo(line)
    return 0


@click.command()
@click.argument("target")
@click.option(
    "--max-memory",
    metavar="SIZE",
    help="What trainer, workers and batches may hold: 4GiB, 500MB, 50%.  [default: no limit]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    help="How long to try plans.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    help="Samples in a batch.  [default: of a DataLoader its own, else 32]",
)
@click.option("--transform", metavar="MODULE:ATTRIBUTE", help=_TRANSFORM)
@click.option("--dry-run", is_flag=True, help="Find the plan, but do not keep it.")
@click.option("--plot", type=click.Path(), help="Draw it: FILE.png, .svg or .pdf.")
@PATIENCE
@click.option("--json", "as_json", is_flag=True, help="Print it as one JSON object.")
def tune(
    target: str,
    *,
    max_memory: str | None,
    seconds: float,
    batch_size: int | None,
    transform: str | None,
    dry_run: bool,
    plot: str | None,
    patience: float,
    as_json: bool,
) -> int:
    """Find the fastest plan for TARGET here, and keep it for build_loader(plan="tuned").

    TARGET is a store, a folder of images, module:attribute or file.py:attribute, as for bench.
    Plans are tried in rounds against the default one. It stays unless another one is faster beyond
    the noise. What is kept belongs to the content of the dataset and to this kind of machine.
    """
    from sharedds.diagnose.plots import expect_picture, plot_tuning  # noqa: PLC0415
    from sharedds.diagnose.tune import tune as search  # noqa: PLC0415 - help stays quick

    if plot is not None:
        expect_picture(plot)  # rather now than after two minutes
    report = search(
        target,
        max_memory=max_memory,
        batch_size=batch_size,
        seconds=seconds,
        transform=transform,
        dry_run=dry_run,
        patience=patience,
    )
    if as_json:
        echo(json.dumps(report.to_dict()))
    else:
        for line in report.text(_width(), bar=_bar()).splitlines():
            echo(line)
    if plot is not None:
        plot_tuning(report, plot)
    return 0
