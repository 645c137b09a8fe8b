"""Results as text: for the terminal, and for ``results/README.md``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["as_text", "number", "write_readme"]

_INTRO = """# Measurements

Written by `scripts/bench NAME`; each file in `benchmarks/` says at its top what is measured, what
is kept out and how to reproduce it. Every configuration ran in a fresh process, rounds
interleaved; shown are medians with the least and the most. Absolute figures depend on the
machine: what counts are ratios within one run. A goal is compared with the median of the ratios
of the rounds.

## Goals

| benchmark | goal | reached | met |
|---|---|---|---|
"""


def number(value: float | None) -> str:
    """Return a figure as tables show it: about three digits."""
    if value is None:
        return "–"
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _span(item: dict[str, Any]) -> str:
    if item["median"] is None:
        return "not measured"
    return f"{number(item['median'])} ({number(item['low'])}–{number(item['high'])})"


def _verdict(goal: dict[str, Any]) -> str:
    return {True: "yes", False: "**no**", None: "–"}[goal["met"]]


def _target(goal: dict[str, Any]) -> str:
    return f"{goal['text']}: {'≥' if goal['at_least'] else '≤'} {number(goal['target'])}"


def _machine(facts: dict[str, Any]) -> str:
    libraries = ", ".join(f"{name} {version}" for name, version in facts["libraries"].items())
    text = (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, {facts['kernel']}, "
        f"{facts['disk']}, Python {facts['python']}; {libraries}"
    )
    if facts["rivals"]:
        text += "; rivals: " + ", ".join(f"{n} {v}" for n, v in facts["rivals"].items())
    return text


def _section(result: dict[str, Any]) -> Iterator[str]:
    yield f"## {result['name']}"
    yield ""
    yield f"{result['question']} {result['when']}; data: {result['data']}."
    yield ""
    yield "| case | figure | median (least–most) | rounds |"
    yield "|---|---|---|---|"
    for row in result["rows"]:
        yield f"| {row['case']} | {row['figure']} | {_span(row)} | {row['rounds']} |"
    for case, reason in result.get("missing", ()):
        yield f"| {case} | – | {reason} | 0 |"
    yield ""
    for note in result["notes"]:
        yield f"- {note}"
    if result["left_out"]:
        yield f"- Not run: {', '.join(result['left_out'])}."
    before, after = result["load"]
    median, worst = (100 * share for share in result["elsewhere"])
    yield (
        f"- Load average before and after: {before:.1f}, {after:.1f}. Others took {median:.0f} % "
        f"of the CPUs in the median run, {worst:.0f} % in the worst."
    )
    if result["patience"]:
        yield (
            f"- Runs in which others took over a tenth of the CPUs were repeated, up to "
            f"{result['patience']} times, and the calmest was kept, whatever it showed."
        )
    yield f"- {_machine(result['facts'])}."
    yield ""


def as_text(result: dict[str, Any]) -> str:
    """Return a result for the terminal."""
    goals = [
        f"  {_target(g)} -> {_span(g)}, met: {_verdict(g).strip('*')}" for g in result["goals"]
    ]
    rows = [f"  {r['case']:<44} {_span(r):>32} {r['figure']}" for r in result["rows"]]
    rows += [f"  {case:<44} {reason}" for case, reason in result.get("missing", ())]
    return "\n".join([f"{result['name']}: {result['question']}", *rows, *goals])


def write_readme(folder: Path) -> None:
    """Write ``README.md`` of a folder of results from its JSON files."""
    results = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]
    lines = [
        f"| [{r['name']}](#{r['name']}) | {_target(g)} | {_span(g)} | {_verdict(g)} |"
        for r in results
        for g in r["goals"]
    ]
    sections = [line for result in results for line in _section(result)]
    drawn = ["Some are drawn: [plots.md](plots.md).", ""] if (folder / "plots.md").exists() else []
    text = _INTRO + "\n".join([*lines, "", *drawn, *sections])
    (folder / "README.md").write_text(text.rstrip() + "\n", "utf-8")
