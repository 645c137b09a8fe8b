"""What a pack did and what it left out: for people as text, for programs as JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from sharedds.folder import FolderIndex
from sharedds.handles import storage_errors
from sharedds.ingest.images import FORMATS, MODES
from sharedds.store import Store
from sharedds.store.duplicates import DuplicateGroup

__all__ = ["PackReport", "content_counts", "printable"]


def printable(path: str) -> str:
    """Return a path that any terminal or log can take: undecodable bytes and controls escaped."""
    text = path.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def content_counts(store: Store) -> dict[str, dict[str, int]]:
    """Count the formats, modes, bits, orientations and multi-frame files of a packed image folder."""
    counts: dict[str, dict[str, int]] = {}
    for name, names in (("format", FORMATS), ("mode", MODES), ("orientation", None), ("bits", None)):
        values, each = np.unique(np.asarray(store.column(name)), return_counts=True)
        counts[name] = {
            (names[v] if names is not None and v < len(names) else str(v)): n
            for v, n in zip(values.tolist(), each.tolist(), strict=True)
        }
    counts["frames"] = {"several": int(np.count_nonzero(np.asarray(store.column("frames")) > 1))}
    return counts


@dataclass(slots=True, kw_only=True)
class PackReport:
    """The outcome of a pack.

    Attributes:
        path: The store; with ``dry_run`` the one that would be made.
        samples: Images in it.
        failed: (path, reason) of every file that should be an image and is not in it.
        left_out: Files that were not candidates: kind, reason, example and count.
        files: Files seen; equals samples + failed + what was left out.
        source_bytes: Bytes read from the source.
        bytes: Bytes of the store; with ``dry_run`` the estimate.
        estimated_bytes: What was estimated before the start.
        seconds: Time of this run.
        resumed: Samples that an earlier, interrupted run had done.
        digest: Content digest of the store.
        classes: Number of classes, None without.
        content: Counts by format, mode, bits, orientation; see :func:`content_counts`.
        duplicates: Groups of files with equal bytes.
        warnings: Things a person should know, one sentence each.
        dry_run: Nothing was written.
    """

    path: str
    samples: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    left_out: list[dict[str, Any]] = field(default_factory=list)
    files: int = 0
    source_bytes: int = 0
    bytes: int = 0
    estimated_bytes: int = 0
    seconds: float = 0.0
    resumed: int = 0
    digest: str = ""
    classes: int | None = None
    content: dict[str, dict[str, int]] = field(default_factory=dict)
    duplicates: list[DuplicateGroup] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    dry_run: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain values; paths with undecodable bytes keep them as surrogate escapes."""
        values = asdict(self)
        values["failed"] = [{"path": path, "reason": reason} for path, reason in self.failed]
        values["duplicates"] = [group.to_json() for group in self.duplicates]
        return values

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of the JSONL report: a summary, then one for each file or group."""
        summary = self.to_json()
        for name in ("failed", "left_out", "duplicates"):
            summary[name] = len(summary[name])
        yield {"event": "summary", **summary}
        for path, reason in self.failed:
            yield {"event": "failed", "path": path, "reason": reason}
        for item in self.left_out:
            yield {"event": "left_out", **item}
        for group in self.duplicates:
            yield {"event": "duplicate", **group.to_json()}

    def write(self, path: str) -> None:
        """Write the JSONL report, whole or not at all."""
        temporary = f"{path}.tmp"
        with storage_errors(path):
            with open(temporary, "w", encoding="ascii") as file:
                file.writelines(json.dumps(line) + "\n" for line in self.lines())
            os.replace(temporary, path)


def left_out_of(index: FolderIndex) -> list[dict[str, Any]]:
    """Return what a scan left out as plain values, without the files that are bad."""
    return [
        {
            "kind": item.kind,
            "reason": item.reason,
            "example": item.example,
            "count": item.count,
            "is_folder": item.is_folder,
        }
        for item in index.left_out
        if item.kind != "bad" or item.is_folder
    ]


def bad_of(index: FolderIndex) -> Iterable[tuple[str, str]]:
    """Yield (path, reason) of the files a scan found bad without opening them."""
    for item in index.left_out:
        if item.kind == "bad" and not item.is_folder:
            more = f" (and {item.count - 1} more like it)" if item.count > 1 else ""
            yield item.example, item.reason + more
