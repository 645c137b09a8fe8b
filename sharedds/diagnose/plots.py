"""Throughput and memory over workers, as a picture (needs the extra ``plots``)."""

from __future__ import annotations

import importlib
import itertools
import os
from typing import Any

from sharedds.diagnose.comparing import Settings
from sharedds.diagnose.tuned_report import Candidate, TuneReport
from sharedds.errors import MissingExtraError, SourceError

__all__ = ["expect_picture", "plot_tuning", "require_plots"]

_COLORS = {"process": "#1f5fa8", "thread": "#c4572a"}
_NAMES = {"process": "processes", "thread": "threads"}
_SHADES = ("#4fa3a5", "#7a5fb0", "#8a8f3c", "#b0508a")  # of processes with several threads each


def require_plots() -> Any:
    """Return matplotlib's class of figures.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        return importlib.import_module("matplotlib.figure").Figure
    except ImportError as error:
        raise MissingExtraError(
            "a picture needs matplotlib, which is not installed: pip install 'sharedds[plots]'"
        ) from error


def expect_picture(path: str | os.PathLike[str]) -> None:
    """Fail if a picture cannot be written, before the work for it is done.

    Args:
        path: Where it will go.

    Raises:
        MissingExtraError: matplotlib is not installed.
        SourceError: There is no such folder, or it cannot be written to, or no such format.
    """
    figure = require_plots()()
    name, reason = os.fspath(path), ""
    folder = os.path.dirname(os.path.abspath(name))
    known = sorted(figure.canvas.get_supported_filetypes())
    ending = os.path.splitext(name)[1][1:].lower()
    if not os.path.isdir(folder):
        reason = f"there is no folder {folder}"
    elif not os.access(name if os.path.exists(name) else folder, os.W_OK) or os.path.isdir(name):
        reason = "it is not to be written to"
    elif ending and ending not in known:
        reason = f"no format {ending}; known are {', '.join(known)}"
    if reason:
        raise SourceError(f"{name}: the picture cannot be written ({reason})")


def plot_tuning(report: TuneReport, path: str | os.PathLike[str]) -> None:
    """Draw throughput and memory over the number of workers.

    Args:
        report: What was found.
        path: The picture to write; its ending says which format (png, svg, pdf).

    Raises:
        MissingExtraError: matplotlib is not installed.
        SourceError: The picture cannot be written.
    """
    figure = require_plots()(figsize=(7.0, 5.6), layout="constrained")
    rates, memory = figure.subplots(2, 1, sharex=True)
    kinds = sorted({(s.engine, s.threads_per_worker) for s in _tried(report)})
    shades = itertools.cycle(_SHADES)
    for engine, threads in kinds:
        points = _points(report, engine, threads)
        if not points:
            continue
        workers = [each.settings.num_workers for each in points]
        several = f" of {threads} threads" if threads > 1 else ""
        color = next(shades) if several else _COLORS[engine]
        style = {"marker": "o", "color": color, "label": f"{_NAMES[engine]}{several}"}
        rates.plot(workers, [each.samples_per_second for each in points], **style)
        memory.plot(workers, [(each.memory or 0) / 1e6 for each in points], **style)
    for settings, name, marker, size in (
        (report.default, "default", "s", 11),
        (report.chosen, "chosen", "*", 15),
    ):
        for each in report.candidates:
            if each.settings == settings and each.samples_per_second is not None:
                rates.plot(
                    [settings.num_workers],
                    [each.samples_per_second],
                    marker=marker,
                    markersize=size,
                    linestyle="none",
                    markerfacecolor="none",
                    color="black",
                    label=f"{name}: {settings.label}",
                )
    if report.max_memory is not None:
        memory.axhline(report.max_memory / 1e6, linestyle="--", color="black", label="limit")
    rates.set_ylabel("samples per second")
    memory.set_ylabel("memory (MB)")
    memory.set_xlabel("workers")
    rates.set_title(f"{report.target}, batch size {report.batch_size}, {report.cpus} CPUs")
    for axes in (rates, memory):
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(fontsize="small")
    try:
        figure.savefig(os.fspath(path))
    except (OSError, ValueError) as error:
        raise SourceError(f"{os.fspath(path)}: the picture cannot be written ({error})") from error


def _tried(report: TuneReport) -> list[Settings]:
    return [each.settings for each in report.candidates if each.samples_per_second is not None]


def _points(report: TuneReport, engine: str, threads: int) -> list[Candidate]:
    """Return the plans of one engine by workers; of several depths the fastest."""
    best: dict[int, Candidate] = {}
    none = Settings(engine="process", num_workers=0, threads_per_worker=threads)
    for each in report.candidates:
        settings = each.settings
        is_kind = (settings.engine, settings.threads_per_worker) == (engine, threads)
        if each.samples_per_second is None or not (is_kind or settings == none):
            continue
        known = best.get(settings.num_workers)
        if known is None or (known.samples_per_second or 0) < each.samples_per_second:
            best[settings.num_workers] = each
    is_line = threads > 1 or set(best) - {0}  # no workers alone are no line of an engine
    return [best[count] for count in sorted(best)] if is_line else []
