"""``sharedds doctor``."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sharedds.cli.measure import PATIENCE
from sharedds.cli.text import complain, echo, silence
from sharedds.errors import OptionError, SharedDSError
from sharedds.progress import Progress

if TYPE_CHECKING:  # help stays quick
    from sharedds.diagnose.report import DoctorReport

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
@PATIENCE
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
    patience: float,
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
    answer = COULD_NOT_RUN
    try:
        with _Page(page) as written:
            report = _examined(
                target,
                num_workers=workers,
                batch_size=batch_size,
                samples=samples,
                start_method=start_method,
                transform=transform,
                patience=patience,
                measure=not no_measure,
            )
            written.write(report)
        answer = report.exit_code
        _tell(report, page, as_json=as_json)
    except (click.Abort, click.exceptions.Exit):
        raise
    except BrokenPipeError as error:  # whose reader has seen enough
        silence(sys.stdout, error)
        return answer
    except SharedDSError as error:
        complain(f"Error: {error}")
    except click.ClickException as error:
        complain(f"Error: {error.format_message()}")
    except Exception as error:  # whatever it is, it is no verdict on the dataset
        complain(traceback.format_exc().rstrip())
        complain(f"Error: the doctor itself failed ({type(error).__name__}: {error})")
    else:
        return answer
    return COULD_NOT_RUN


def _examined(target: str, **options: Any) -> DoctorReport:
    from sharedds.diagnose.doctor import doctor as examine  # noqa: PLC0415 - help stays quick

    with Progress("examining", unit="steps") as bar:
        report = examine(
            target, tick=lambda phase, done, total: _advance(bar, done, total), **options
        )
        bar.advance((bar.total or 0) - bar.count)
    return report


def _tell(report: DoctorReport, page: str | None, *, as_json: bool) -> None:
    if as_json:
        echo(json.dumps(report.to_dict()))
        return
    for line in report.text(_width()).splitlines():
        echo(line)
    if page is not None:
        echo("")
        echo(f"The page with plots: {page}")


def _advance(bar: Progress, done: int, total: int) -> None:
    bar.total = total
    bar.advance(done - bar.count)


class _Page:
    """The page, written beside the one there is and then put in its place: all of it or nothing.

    It is begun before minutes of work, so that what stands in its way is told at once.

    Args:
        path: Where it shall be; None for no page.
    """

    def __init__(self, path: str | None) -> None:
        self.path = None if path is None else os.path.realpath(path)
        self.name = path
        self.part = None if self.path is None else f"{self.path}.{secrets.token_hex(4)}.part"
        if self.path is not None and os.path.exists(self.path) and not os.path.isfile(self.path):
            self.part = self.path  # a device or a pipe

    def __enter__(self) -> _Page:
        from sharedds.diagnose.html import require_plots  # noqa: PLC0415 - help stays quick

        if self.path is not None:
            require_plots()
            if os.path.exists(self.path) and not os.access(self.path, os.W_OK):
                raise OptionError(f"--html {self.name}: cannot be written (it is read-only)")
            self._put("")
        return self

    def write(self, report: DoctorReport) -> None:
        """Write the page of a report."""
        from sharedds.diagnose.html import as_html  # noqa: PLC0415 - help stays quick

        if self.path is not None and self.part is not None:
            self._put(as_html(report))
            if self.part != self.path:
                os.replace(self.part, self.path)

    def __exit__(self, *_: object) -> None:
        if self.part is not None and self.part != self.path:
            with contextlib.suppress(OSError):
                os.unlink(self.part)

    def _put(self, text: str) -> None:
        try:
            Path(self.part or "").write_text(text, encoding="utf-8")
        except OSError as error:
            self.__exit__()
            raise OptionError(
                f"--html {self.name}: cannot be written ({error.strerror})"
            ) from error


def _width() -> int:
    return min(120, shutil.get_terminal_size((80, 24)).columns)
