"""The table of the project's ``README.md``: reading for training, from what was measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.figures import FIRST, RATE, TOTAL
from harness.tables import number

__all__ = ["BEGIN", "END", "speed_table", "update_table"]

BEGIN, END = "<!-- speed: written by scripts/bench -->", "<!-- speed: end -->"
_HEAD = (
    "| 2 workers, 2 CPUs | sharedds | the best of the others | limit of the machine |",
    "|---|---|---|---|",
)
_READING = {
    "train_photos": "photos as they are, 224² parts",
    "train_encoded": "shrunk to 512 pixels, 224² parts",
    "train_raw": "decoded 256², 224² parts",
}
Medians = dict[str, float]


def speed_table(results: Path) -> str:
    """Return the lines of the table; none without results.

    Args:
        results: The folder of JSON files. A question without a file has no row.
    """
    rows = [row for name in _READING for row in _reading(results, name)]
    rows += [*_first_batch(results), *_scaling(results)]
    return "\n".join([*_HEAD, *rows]) if rows else ""


def update_table(readme: Path, results: Path) -> None:
    """Write the table between its two marks in a file; without marks, leave the file alone."""
    text = readme.read_text("utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and end:
        table = speed_table(results)
        lines = [BEGIN, *([table] if table else []), END]
        readme.write_text(before + "\n".join(lines) + after, "utf-8")


def _load(results: Path, name: str) -> dict[str, Any] | None:
    path = results / f"{name}.json"
    found: dict[str, Any] | None = json.loads(path.read_text("utf-8")) if path.exists() else None
    return found


def _medians(result: dict[str, Any], figure: str) -> Medians:
    return {row["case"]: row["median"] for row in result["rows"] if row["figure"] == figure}


def _split(medians: Medians) -> tuple[Medians, Medians, Medians]:
    """Return ours, the rivals' and the limits."""
    ours = {case: value for case, value in medians.items() if case.startswith("sharedds")}
    limits = {case: value for case, value in medians.items() if case.startswith("limit")}
    return ours, {c: v for c, v in medians.items() if c not in ours and c not in limits}, limits


def _reading(results: Path, name: str) -> Iterator[str]:
    result = _load(results, name)
    if result is None:
        return
    rates = _medians(result, RATE)
    ours, rivals, limits = _split(rates)
    own = max(ours, key=ours.__getitem__)
    cells = [f"{number(ours[own])} img/s ({own.partition(', ')[2]})"]
    for goal in result["goals"]:
        if goal["text"].startswith(own) and TOTAL in goal["text"] and goal["median"] is not None:
            cells[0] += f", {number(goal['median'])} × the least memory"
    if rivals:
        best = max(rivals, key=rivals.__getitem__)
        cells.append(f"{best.partition(',')[0]}: {number(rivals[best])} img/s")
    else:
        cells.append("–")
    cells.append("; ".join(f"{_limit(case)}: {number(limits[case])}" for case in list(limits)[:1]))
    yield f"| {_READING[name]} | {' | '.join(cells)} |"


def _limit(case: str) -> str:
    return case.removeprefix("limit: ").partition(",")[0]


def _first_batch(results: Path) -> Iterator[str]:
    result = _load(results, "first_batch")
    if result is None:
        return
    medians = _medians(result, FIRST)
    ours, rivals, _ = _split(
        {c: v for c, v in medians.items() if c.endswith(": 1,000,000 samples")}
    )
    own = min(ours, key=ours.__getitem__)
    how = own.partition(", ")[2].partition(":")[0]
    others = "–"
    if rivals:
        best = min(rivals, key=rivals.__getitem__)
        others = f"{best.partition(':')[0]}: {number(rivals[best])} s"
    yield f"| first batch of 1,000,000 samples | {number(ours[own])} s ({how}) | {others} | |"


def _scaling(results: Path) -> Iterator[str]:
    result = _load(results, "scaling")
    if result is None:
        return
    rates = _medians(result, RATE)

    def gain(what: str, workers: int) -> str:
        return number(rates[f"{what}: {workers} workers"] / rates[f"{what}: 1 workers"])

    real, simulated = gain("photos, processes", 2), gain("simulated, processes", 64)
    yield f"| 2 workers over 1; 64 over 1, decoding simulated | {real} ×; {simulated} × | | |"
