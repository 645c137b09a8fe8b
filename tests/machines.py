"""Made-up machines for tests: trees with the files of a system."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["GIB", "mount_line", "write_machine"]

GIB = 1 << 30


def write_machine(root: Path, files: dict[str, str]) -> Path:
    """Write files below a root folder.

    Args:
        root: The folder.
        files: Text by relative name. ``"-> a/b"`` makes a link to ``root/a/b``, and a name that
            ends in a slash a folder.
    """
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir(exist_ok=True)
        elif text.startswith("-> "):
            (root / text[3:]).mkdir(parents=True, exist_ok=True)
            path.symlink_to(os.path.relpath(root / text[3:], path.parent))
        else:
            path.write_text(text)
    return root


def mount_line(
    point: str,
    kind: str,
    source: str,
    *,
    device: str = "0:40",
    root: str = "/",
    options: str = "rw",
) -> str:
    """Return a line of ``/proc/self/mountinfo``."""
    return f"36 35 {device} {root} {point} rw,noatime shared:1 - {kind} {source} {options}\n"
