"""How ``sharedds pack --plan`` shows what it measured."""

from __future__ import annotations

import shutil
import textwrap
from typing import TYPE_CHECKING

from sharedds.cli.text import Table, echo, note
from sharedds.text import decimal_size

if TYPE_CHECKING:
    from sharedds.ingest import PackPlan

__all__ = ["show"]

_NARROWEST, _WIDEST = 60, 120


def show(plan: PackPlan, out: str | None) -> None:
    """Print a plan: a table of ways, what bounds them, and the one to take.

    Args:
        plan: What was measured.
        out: The store that would be made, where it was named.
    """
    some = "all" if plan.measured == plan.pictures else f"{plan.measured:,}"
    echo(
        f"{plan.source}: {plan.pictures:,} images, {decimal_size(plan.source_bytes)}; "
        f"{some} of them measured in {plan.seconds:.1f} s"
    )
    table = Table("way", "on disk", "a core", "machine", "bound by", "to pack")
    for way in plan.ways:
        table.add(
            way.name,
            decimal_size(way.stored_bytes),
            f"{way.decode_rate:,.0f}/s",
            f"{way.machine_rate:,.0f}/s",
            way.bound,
            _duration(way.pack_seconds),
        )
    table.print("  ")
    echo("  images a second that a core, and all of them, check and decode; nothing else")
    for name, text in _rows(plan, out):
        _wrapped(name, text)
    for way in plan.ways:
        if way.refused:
            pictures = "picture" if way.refused == 1 else "pictures"
            note(f"{way.refused:,} of the {pictures} measured cannot be stored as {way.name}")
    for path, reason in plan.failed[:1]:
        more = f", and {len(plan.failed) - 1} more or so" if len(plan.failed) > 1 else ""
        note(f"bad files among those tried: {path}: {reason}{more}")


def _rows(plan: PackPlan, out: str | None) -> list[tuple[str, str]]:
    storage = "not measured" if plan.storage_rate is None else (
        f"{decimal_size(plan.storage_rate)}/s read here"
    )  # fmt: skip
    if plan.storage:
        storage += f" ({plan.storage})"
    rows = [("cores", f"{plan.cpus:,}"), ("storage", storage)]
    if plan.memory is not None:
        rows.append(("memory", _cached(plan, plan.memory)))
    rows.append(("take", f"{plan.chosen}: {plan.reason}"))
    words = f" {plan.choice.words}" if plan.choice.words else ""
    rows.append(("run", f"sharedds pack {plan.source} {out or 'OUT'}{words}"))
    return rows


def _cached(plan: PackPlan, memory: int) -> str:
    left = f"{decimal_size(memory)} left for cached files"
    larger = [way.name for way in plan.ways if not way.cached]
    if not larger:
        return f"{left}: each of these fits, so the storage bounds the first epoch only"
    if len(larger) == len(plan.ways):
        return f"{left}: none of these fits"
    return f"{left}: too little for {', '.join(larger)}"


def _wrapped(name: str, text: str) -> None:
    columns = max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size((80, 24)).columns))
    if name == "run":  # to be copied as it is
        echo(f"  {name:<7}  {text}")
        return
    lines = textwrap.wrap(text, columns - 11, break_long_words=False, break_on_hyphens=False)
    for number, line in enumerate(lines):
        echo(f"  {'' if number else name:<7}  {line}")


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:,.0f} s" if seconds >= 1 else "1 s"
    return f"{seconds / 60:,.0f} min" if seconds < 6000 else f"{seconds / 3600:,.0f} h"
