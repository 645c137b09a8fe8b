"""Runs a case in a fork of this process, which has imported everything already.

Only to see that a benchmark works: importing torch takes longer than a tiny case. What is measured
runs in a process of its own, since a fork shares memory with its parent.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["run_forked"]


def run_forked(function: Callable[[], Mapping[str, float]], folder: Path) -> dict[str, float]:
    """Return the figures of a function that runs in a fork.

    Args:
        function: Measures once.
        folder: Takes two files, which are gone afterwards: the figures, and what is printed.

    Raises:
        SystemExit: It failed; the text is what it printed.
    """
    figures, printed = folder / "figures.json", folder / "printed.txt"
    child = multiprocessing.get_context("fork").Process(
        target=_run, args=(function, figures, printed)
    )
    child.start()
    child.join()
    text = printed.read_text("utf-8") if printed.exists() else ""
    printed.unlink(missing_ok=True)
    if child.exitcode:
        figures.unlink(missing_ok=True)
        raise SystemExit(text or f"the fork ended with {child.exitcode}")
    found: dict[str, float] = json.loads(figures.read_text("utf-8"))
    figures.unlink()
    return found


def _run(function: Callable[[], Mapping[str, float]], figures: Path, printed: Path) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    with printed.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    figures.write_text(json.dumps(dict(function())), "utf-8")
