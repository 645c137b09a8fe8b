"""What a pack did and what it left out: for people as text, for programs as JSON lines."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import xxhash

from sharedds.errors import SharedDSError, SourceError
from sharedds.folder import FolderIndex
from sharedds.handles import storage_errors
from sharedds.store.duplicates import DuplicateGroup, Duplicates
from sharedds.text import printable

__all__ = [
    "FailureLog",
    "PackReport",
    "no_report",
    "summary_of",
    "temporary_report",
    "write_report",
]

LISTED = 1_000
"""So many bad files, and groups of equal files, are kept in memory; the JSONL report has all."""

_LONGEST_SUMMARY = 1 << 26


@dataclass(slots=True, kw_only=True)
class PackReport:
    """The outcome of a pack.

    ``stored_files + failed_files + left_out_count == files``: nothing gets lost without a word. Of
    pictures, each of which is a file, these are ``samples + failed_count + left_out_count``.

    Attributes:
        kind: ``"images"``, ``"volumes"`` or ``"slides"``.
        path: The store; with ``dry_run`` the one that would be made.
        report: The JSONL report: everything, one line each; empty with ``dry_run``.
        samples: Images, or cases, in the store.
        failed: (path, reason) of files that should be images and are not in the store; of volumes,
            of cases, files and series. The first 1,000 of them.
        failed_count: How many there are.
        stored_files: Files whose content is in the store.
        failed_files: Files of what failed.
        left_out: Files and folders that were not candidates: kind, reason, example, count, and
            whether they are folders.
        files: Files seen, whatever they are.
        source_bytes: Bytes of the files read in this run.
        bytes: Bytes of the store; with ``dry_run`` the estimate.
        estimated_bytes: What was estimated before the start.
        seconds: Time of this run.
        resumed: Samples that an earlier, interrupted run had done.
        digest: Content digest of the store; empty when there is none.
        classes: Number of classes, None without.
        content: Counts by format, mode, bits, orientation, and of files with several frames; of
            what was encoded anew also by ``source_format`` and so on.
        duplicates: Groups of equal pictures, those with different labels first; the first 1,000
            groups, 10 members of each.
        duplicate_count: How many groups there are.
        warnings: Things a person should know, one sentence each.
        layout: Of volumes: how the folder is laid out, in words.
        remarks: Of volumes: (case, sentence), what its files say that a person should know; the
            first 1,000.
        remark_count: How many there are.
        dry_run: Nothing was written.
    """

    path: str
    kind: str = "images"
    report: str = ""
    samples: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    failed_count: int = 0
    stored_files: int = 0
    failed_files: int = 0
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
    duplicate_count: int = 0
    warnings: list[str] = field(default_factory=list)
    layout: str = ""
    remarks: list[tuple[str, str]] = field(default_factory=list)
    remark_count: int = 0
    dry_run: bool = False

    @property
    def left_out_count(self) -> int:
        """Files (not folders) that were left out."""
        return sum(item["count"] for item in self.left_out if not item["is_folder"])

    def left_out_by_reason(self) -> list[dict[str, Any]]:
        """Return what was left out, one entry for each reason, the most frequent first."""
        merged: dict[tuple[str, str, bool], dict[str, Any]] = {}
        for item in self.left_out:
            key = (item["kind"], item["reason"], item["is_folder"])
            entry = merged.setdefault(key, {**item, "count": 0})
            entry["count"] += item["count"]
        return sorted(merged.values(), key=lambda item: -item["count"])

    def leave_out(self, kind: str, reason: str, example: str) -> None:
        """Count one more file that was left out for this reason."""
        for item in reversed(self.left_out):
            if item["kind"] == kind and item["reason"] == reason:
                item["count"] += 1
                return
        self.left_out.append(_left_out(kind, reason, example))

    def to_json(self) -> dict[str, Any]:
        """Return plain values; undecodable bytes of paths stay as surrogate escapes."""
        values = self.summary()
        values["failed"] = [{"path": path, "reason": reason} for path, reason in self.failed]
        values["duplicates"] = [group.to_json() for group in self.duplicates]
        values["left_out"] = self.left_out
        values["remarks"] = [{"case": case, "text": text} for case, text in self.remarks]
        return values

    def summary(self) -> dict[str, Any]:
        """Return plain values without the lists of files and groups."""
        lists = ("failed", "duplicates", "left_out", "remarks")
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in lists}
        values["left_out_count"] = self.left_out_count
        return values


class FailureLog:
    """Bad files as they are met: the first ones in memory, all of them in a temporary file.

    A context manager; the temporary file goes at the end.
    """

    def __init__(self) -> None:
        self.first: list[tuple[str, str]] = []
        self.count = 0
        self._lines = tempfile.SpooledTemporaryFile(1 << 20, "w+", encoding="ascii")  # noqa: SIM115

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()

    def add(self, path: str, reason: str, *, count: int = 1) -> None:
        """Note a file; with a count it stands for more like it."""
        self.count += count
        line: dict[str, Any] = {"event": "failed", "path": path, "reason": reason}
        if count > 1:
            line["count"] = count
            reason = f"{reason} (and {count - 1:,} more)"
        if len(self.first) < LISTED:
            self.first.append((path, reason))
        with storage_errors("the temporary folder"):
            self._lines.write(json.dumps(line) + "\n")

    def note(self, outcome: PackReport, case: str, text: str) -> None:
        """Note what a person should know of a case that is no failure."""
        outcome.remark_count += 1
        if len(outcome.remarks) < LISTED:
            outcome.remarks.append((case, text))
        with storage_errors("the temporary folder"):
            self._lines.write(json.dumps({"event": "remark", "case": case, "text": text}) + "\n")

    def finish(self, outcome: PackReport, started: float) -> None:
        """Write what was noted into the outcome of a run that began at a monotonic time."""
        outcome.failed, outcome.failed_count = self.first, self.count
        outcome.seconds = time.monotonic() - started

    def lines(self) -> Iterator[str]:
        """Yield the lines of the JSONL report."""
        self._lines.seek(0)
        yield from self._lines
        self._lines.seek(0, os.SEEK_END)

    def take_over(self, index: FolderIndex, outcome: PackReport) -> None:
        """Note what a scan found: bad files here, everything else among what was left out."""
        for item in index.left_out:
            if item.kind == "bad" and not item.is_folder:
                self.add(item.example, item.reason, count=item.count)
            else:
                outcome.left_out.append(
                    _left_out(item.kind, item.reason, item.example, item.count, item.is_folder)
                )


def _left_out(
    kind: str, reason: str, example: str, count: int = 1, is_folder: bool = False
) -> dict[str, Any]:
    return {
        "kind": kind,
        "reason": reason,
        "example": example,
        "count": count,
        "is_folder": is_folder,
    }


def write_report(
    outcome: PackReport, failures: FailureLog, duplicates: Sequence[Duplicates] = ()
) -> None:
    """Write the JSONL report, whole or not at all: a summary, then a line for each file or group.

    Raises:
        SourceError: It cannot be written there.
        StorageFullError: No room.
    """
    temporary = temporary_report(outcome.path, outcome.report)
    try:
        with storage_errors(outcome.report), open(temporary, "w", encoding="ascii") as file:
            for line in _lines(outcome, duplicates):
                file.write(json.dumps(line) + "\n")
            file.writelines(failures.lines())
        os.replace(temporary, outcome.report)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, SharedDSError):
            raise
        raise no_report(outcome.report, error) from error


def temporary_report(path: str, report: str) -> str:
    """Return the name of a report that is being written: only this output has it.

    It is the same each time, so that what a killed run left is written over by the next.
    """
    own = xxhash.xxh3_128_hexdigest(os.fsencode(f"{path}\0{report}"))
    return os.path.join(os.path.dirname(report), f".sharedds-{own}.tmp")


def no_report(report: str, error: OSError) -> SourceError:
    """Return the error of a report that cannot be written."""
    return SourceError(
        f"{printable(report)}: the report cannot be written ({error.strerror})", path=report
    )


def summary_of(report: str) -> dict[str, Any] | None:
    """Return the first line of a report of ours; None where there is no such report."""
    try:
        with open(report, encoding="ascii") as file:
            line = json.loads(file.readline(_LONGEST_SUMMARY))
    except (OSError, ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) and line.get("event") == "summary" else None


def _lines(outcome: PackReport, duplicates: Sequence[Duplicates]) -> Iterator[dict[str, Any]]:
    summary = outcome.summary()
    if outcome.kind != "images":  # passed on with the store, where places mean nothing
        for name in ("path", "report"):
            summary[name] = os.path.basename(summary[name])
    yield {"event": "summary", **summary}
    for item in outcome.left_out:
        yield {"event": "left_out", **item}
    for found in duplicates:
        for group in found.groups():
            yield {"event": "duplicate", **group.to_json()}
