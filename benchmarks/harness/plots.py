"""Pictures of results, one for each question, and a page that shows them all.

``scripts/bench plots [RESULTS]`` draws what lies in a folder of results (by default that of this
project) into its ``plots`` and writes ``plots.md`` beside them. Needs matplotlib.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

__all__ = ["draw_all"]

_OURS, _LIMIT, _RIVAL = "#1f5fa8", "#9a9a9a", "#c4572a"
_HEIGHT, _EXTRA, _WIDTH = 0.26, 1.3, 11.0  # inches: of a bar, of all that is no bar, of a page
_DRAWN = {
    "train_photos": ("img/s", "MB PSS, peak", "MB anonymous and shm, peak"),
    "train_encoded": ("img/s", "MB PSS, peak", "MB anonymous and shm, peak"),
    "train_raw": ("img/s", "MB PSS, peak", "MB anonymous and shm, peak"),
    "first_batch": ("s to the first batch",),
    "scaling": ("img/s", "CPUs the trainer takes"),
}
_WORKERS = re.compile(r"(.*): (\d+) workers")
Rows = Mapping[str, Mapping[str, Any]]


def draw_all(results: Path) -> list[Path]:
    """Draw every result that is there and write the page; return the pictures."""
    pictures, page = [], ["# Measurements, drawn", ""]
    page += ["Bars and points are medians, thin lines reach from the least to the most. Blue is"]
    page += ["ours, grey a limit of the machine. All figures: [README.md](README.md).", ""]
    for name, figures in _DRAWN.items():
        path = results / f"{name}.json"
        if not path.exists():
            continue
        result = json.loads(path.read_text("utf-8"))
        target = results / "plots" / f"{name}.png"
        target.parent.mkdir(exist_ok=True)
        found = [figure for figure in figures if _rows(result, figure)]
        drawing = _lines(result, found) if name == "scaling" else _bars(result, found)
        drawing.savefig(target, dpi=100, metadata={"Software": None})
        pictures.append(target)
        page += [f"## {name}", "", f"{result['question']} {result['when']}.", ""]
        page += [f"![{name}](plots/{target.name})", ""]
    (results / "plots.md").write_text("\n".join(page).rstrip() + "\n", "utf-8")
    return pictures


def _rows(result: Mapping[str, Any], figure: str) -> Rows:
    return {row["case"]: row for row in result["rows"] if row["figure"] == figure}


def _spread(rows: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    below = [row["median"] - row["low"] for row in rows]
    return [below, [row["high"] - row["median"] for row in rows]]


def _color(case: str) -> str:
    return _OURS if case.startswith("sharedds") else _LIMIT if case.startswith("limit") else _RIVAL


def _bars(result: Mapping[str, Any], figures: Sequence[str]) -> Figure:
    """One panel for each figure; cases in the order of the first figure."""
    tables = [_rows(result, figure) for figure in figures]
    cases = sorted(tables[0], key=lambda case: float(tables[0][case]["median"]))
    drawing = Figure((_WIDTH, _EXTRA + _HEIGHT * len(cases)), layout="constrained")
    panels = drawing.subplots(1, len(figures), sharey=True, squeeze=False)[0]
    for axes, figure, rows in zip(panels, figures, tables, strict=True):
        shown = [case for case in cases if case in rows]
        found = [rows[case] for case in shown]
        axes.barh(
            [cases.index(case) for case in shown],
            [row["median"] for row in found],
            xerr=_spread(found),
            color=[_color(case) for case in shown],
            error_kw={"elinewidth": 1},
        )
        axes.set_yticks(range(len(cases)), cases, fontsize="small")
        axes.set_xlabel(figure)
        axes.grid(visible=True, axis="x", alpha=0.3)
    drawing.suptitle(f"{result['name']}: {result['question']}", fontsize="medium")
    return drawing


def _lines(result: Mapping[str, Any], figures: Sequence[str]) -> Figure:
    """Figures over the number of workers."""
    drawing = Figure((_WIDTH, 4.0), layout="constrained")
    panels = drawing.subplots(1, len(figures), squeeze=False)[0]
    for axes, figure in zip(panels, figures, strict=True):
        lines: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
        for case, row in _rows(result, figure).items():
            if match := _WORKERS.fullmatch(case):
                lines.setdefault(match[1], []).append((int(match[2]), row))
        for name, points in lines.items():
            rows = [row for _, row in points]
            workers, medians = [at for at, _ in points], [row["median"] for row in rows]
            axes.errorbar(workers, medians, yerr=_spread(rows), marker="o", label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log" if figure == "img/s" else "linear")
        axes.set_xlabel("workers")
        axes.set_ylabel(figure)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize="small")
    drawing.suptitle(f"{result['name']}: {result['question']}", fontsize="medium")
    return drawing


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[1] / "results"
    for picture in draw_all(folder):
        print(picture)
