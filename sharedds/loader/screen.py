"""A plan as text: columns that fit the width of the screen, with the memory it takes below."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable

from sharedds.loader.budget import MemoryEstimate, limit_text
from sharedds.loader.known import counted
from sharedds.text import decimal_size

__all__ = ["memory_lines", "plan_lines", "screen_width"]

_NARROWEST = 60
_WIDEST = 120
_NAME = 18


def screen_width() -> int:
    """Return the columns to use: those of the terminal, else 80."""
    return min(_WIDEST, max(_NARROWEST, shutil.get_terminal_size((80, 24)).columns))


def plan_lines(rows: Iterable[tuple[str, str, str]], width: int) -> list[str]:
    """Return lines of name, value and reason; reasons are wrapped below themselves.

    Args:
        rows: The three of each choice.
        width: The longest that a line may be.
    """
    rows = list(rows)
    wide = max((len(value) for _, value, _ in rows), default=0)
    begin = f"  {'':<{_NAME}}  {'':<{wide}}  "
    lines = []
    for name, value, reason in rows:
        parts = textwrap.wrap(reason, max(20, width - len(begin)), break_on_hyphens=False) or [""]
        lines.append(f"  {name:<{_NAME}}  {value:<{wide}}  {parts[0]}".rstrip())
        lines += [begin + part for part in parts[1:]]
    return lines


def memory_lines(
    estimate: MemoryEstimate,
    *,
    num_workers: int,
    batches: int,
    is_forkserver: bool,
    max_memory: int | None,
) -> list[str]:
    """Return the table of what a loader takes.

    Args:
        estimate: The figures.
        num_workers: How many workers there are.
        batches: How many batches can exist at once.
        is_forkserver: Whether there is a fork server.
        max_memory: The limit, None without one.
    """
    rows: list[tuple[str, int | None, str]] = [
        ("this process", estimate.trainer, "now; training adds to it")
    ]
    if estimate.other:
        rows.append(("other", estimate.other, "processes started before, caches of samples"))
    if estimate.server:
        name = "fork server" if is_forkserver else "beside workers"
        why = "the libraries that workers share" if is_forkserver else "resource tracker"
        rows.append((name, estimate.server, why))
    if num_workers:
        each = f"{decimal_size(estimate.workers / num_workers)} each, with the samples it collates"
        rows.append((counted(num_workers, "worker"), estimate.workers, each))
    rows.append((counted(batches, "batch"), estimate.in_flight, "made, ready or handed out"))
    if estimate.pinned:
        rows.append(("pinned copies", estimate.pinned, "each tensor a power of two bytes"))
    of = f"of max_memory={limit_text(max_memory)}" if max_memory is not None else ""
    if estimate.trainer is None:
        of = of or "without this process"
    rows.append(("in all", estimate.total, of))
    figures = [("not measured" if n is None else decimal_size(n)) for _, n, _ in rows]
    wide = max(map(len, figures))
    return [
        f"  {name:<{_NAME}}  {figure:>{wide}}  {why}".rstrip()
        for (name, _, why), figure in zip(rows, figures, strict=True)
    ]
