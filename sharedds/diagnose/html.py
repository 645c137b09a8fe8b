"""The doctor's report as one HTML file that needs nothing else: no script, no style from afar."""

from __future__ import annotations

import html
import importlib
import io
from collections.abc import Sequence
from typing import Any

from sharedds.diagnose.report import (
    HAZARD_HEADER,
    TRIAL_HEADER,
    DoctorReport,
    failures,
    hazard_rows,
    headline,
    pickle_text,
    remarks,
    trial_rows,
)
from sharedds.diagnose.trial import Trial
from sharedds.errors import MissingExtraError

__all__ = ["as_html", "require_plots"]

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #1b1f24; background: #fff; }
h1 { font-size: 1.4rem; border-left: .4rem solid; padding-left: .8rem; }
h1.safe { border-color: #1a7f37; } h1.hazards { border-color: #bf8700; }
h1.failed { border-color: #cf222e; }
h2 { font-size: 1.1rem; margin-top: 2rem; } h3 { font-size: 1rem; margin-bottom: .2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #d0d7de; }
td + td, th + th { text-align: right; } td:first-child { font-family: monospace; }
pre { background: #f6f8fa; padding: .8rem; overflow-x: auto; }
svg { max-width: 100%; height: auto; }
"""


def require_plots() -> Any:
    """Import matplotlib, without a display.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        matplotlib = importlib.import_module("matplotlib")  # an extra, and slow to load
        figure = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise MissingExtraError(
            "the plots of an HTML report need matplotlib: pip install 'sharedds[plots]'"
        ) from error
    return figure.Figure, matplotlib.rc_context


def as_html(report: DoctorReport) -> str:
    """Return the report as one HTML page, with the memory of each worker over the samples.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    require_plots()
    title = headline(report)
    parts = [f'<h1 class="{report.verdict}">{_text(title)}</h1>']
    if report.hazards:
        rows = hazard_rows(report)
        parts += ["<h2>What it costs</h2>", _table(HAZARD_HEADER, rows)]
    parts.append(f"<p>{_text(pickle_text(report.pickle))}</p>")
    if report.trials:
        parts += [
            f"<h2>Measured, {report.num_workers} worker{'s' * (report.num_workers != 1)}</h2>",
            _table(TRIAL_HEADER, trial_rows(report.trials)),
            *(f"<p>{_text(line)}</p>" for line in (*failures(report.trials), *remarks(report))),
            "<h2>Private memory of each worker</h2>",
            _plots(report.trials),
        ]
    if report.hazards:
        parts.append("<h2>What to do</h2>")
    for hazard in report.hazards:
        parts.append(f"<h3><code>{_text(hazard.path)}</code></h3><p>{_text(hazard.what)}</p>")
        parts.append(f"<pre>{_text(hazard.fix)}</pre>")
    if report.notes:
        items = (f"<li><code>{_text(n.path)}</code>: {_text(n.what)}</li>" for n in report.notes)
        parts += ["<h2>Good to know</h2>", f"<ul>{''.join(items)}</ul>"]
    parts += ["<h2>The machine</h2>", f"<pre>{_text(report.machine.text(100))}</pre>"]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _text(text: str) -> str:
    return html.escape(text.encode("utf-8", "backslashreplace").decode())


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{_text(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _plots(trials: Sequence[Trial]) -> str:
    """One plot for each trial, all with the same scale of memory, as SVG."""
    figure_class, rc_context = require_plots()
    shown = [trial for trial in trials if trial.points]
    if not shown:
        return "<p>Nothing was measured.</p>"
    rows = -(-len(shown) // 2)
    # Text stays text, and names do not differ from run to run.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "sharedds"}):
        figure = figure_class(figsize=(9, 2.8 * rows), layout="constrained")
        axes = figure.subplots(rows, min(2, len(shown)), squeeze=False, sharey=True)
        for trial, ax in zip(shown, axes.flat, strict=False):
            _draw(trial, ax)
        for ax in axes.flat[len(shown) :]:
            ax.set_axis_off()
        for row in axes:
            row[0].set_ylabel("MB")
        axes[0][0].set_ylim(0, 1.1 * max(map(_most, shown)))  # one scale for all
        page = io.StringIO()
        figure.savefig(page, format="svg", metadata={"Date": None})
    return page.getvalue()[page.getvalue().index("<svg") :]


def _most(trial: Trial) -> float:
    """The most that a worker of a trial held, in MB."""
    return max((uss or 0) / 1e6 for point in trial.points for uss in (*point.workers, 1_000_000))


def _draw(trial: Trial, ax: Any) -> None:
    workers = max(len(point.workers) for point in trial.points)
    for number in range(workers):
        known = [
            (point.samples, uss / 1e6)
            for point in trial.points
            if number < len(point.workers) and (uss := point.workers[number]) is not None
        ]
        ax.plot(*zip(*known, strict=True), marker=".", label=f"worker {number}") if known else None
    ax.set_title(f"{trial.options.loader}, {trial.options.start_method}", fontsize=10)
    ax.set_xlabel("samples read")
    ax.locator_params(axis="x", nbins=5)  # large numbers would run into each other
    ax.grid(alpha=0.3)
    if workers <= 8:
        ax.legend(fontsize=8)
