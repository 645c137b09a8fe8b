"""Trees of files for tests, and what an index says about them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from sharedds.folder import FolderIndex

__all__ = ["files_below", "labelled", "make", "reasons"]


def make(root: Path, *names: str | bytes, data: bytes = b"x") -> Path:
    """Write files with these relative names; a name that ends in a slash is a folder."""
    for name in names:
        path = os.fsencode(root) + b"/" + os.fsencode(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if not path.endswith(b"/"):
            with open(path, "wb") as file:
                file.write(data)
    return root


def reasons(index: FolderIndex) -> dict[tuple[str, str], int]:
    """Add up what was left out by (kind, reason)."""
    counts: Counter[tuple[str, str]] = Counter()
    for item in index.left_out:
        counts[item.kind, item.reason] += item.count
    return dict(counts)


def files_below(root: Path) -> list[bytes]:
    """List all entries that are not folders, in the order of the paths' components."""
    found = [
        os.path.relpath(os.path.join(folder, name), os.fsencode(root))
        for folder, _, names in os.walk(os.fsencode(root), followlinks=True)
        for name in names
    ]
    return sorted(found, key=lambda path: path.split(b"/"))


def labelled(index: FolderIndex) -> dict[str, str]:
    """Return the class name of each path."""
    assert index.labels is not None
    assert index.classes is not None
    labels = index.labels.array.tolist()
    return {path: index.classes[i] for path, i in zip(index.paths, labels, strict=True)}
