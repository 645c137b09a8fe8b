"""The one flow of a pack: places checked, scanned, estimated, written, looked at, reported.

What differs between pictures, volumes and slides is a :class:`Job` of each.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, Self

from sharedds.errors import DecodeError, OptionError, SourceError, StoreFormatError
from sharedds.ingest.executor import usable_cpus
from sharedds.ingest.options import PathLike, path_of, shown, whole
from sharedds.ingest.places import (
    check_places,
    check_room,
    clear_published,
    other_work,
    output_exists,
)
from sharedds.ingest.report import FailureLog, PackReport, write_report
from sharedds.packed import encode_text
from sharedds.progress import Progress
from sharedds.store import Cut, Sharding, Store, Writer, sharding_of
from sharedds.store.duplicates import Duplicates
from sharedds.store.partial import partial_path
from sharedds.text import printable

__all__ = [
    "REFUSED_EARLIER",
    "Job",
    "Packing",
    "bad_file",
    "bad_of",
    "content_of",
    "left_out_of",
]

REFUSED_EARLIER = "was bad when an earlier run met it; pack anew to include it"
"""A reason that is gone, such as a missing permission, does not bring a sample back."""


class Job(Protocol):
    """What is to be packed, and the steps in which the kinds differ.

    Its items are what may become samples, numbered in the order in which they are packed.

    Attributes:
        noun: What a sample is called.
        unit: What the progress counts, in the plural.
        work: A text that is equal for equal work: only that is gone on with.
        exact: Whether the estimate is from sizes alone, not from a few that were tried.
        spools: Files beside the output in which an unfinished run keeps what is not in its store.
    """

    noun: str
    unit: str
    work: str
    exact: bool
    spools: tuple[str, ...]

    def __len__(self) -> int:
        """Return how many items there are."""
        ...

    def key(self, at: int) -> bytes:
        """Return the key that an item has in the store."""
        ...

    def nothing_packed(self) -> SourceError:
        """Return the error that says what there was instead."""
        ...

    def estimate(self) -> int:
        """Return about how many bytes the store will take."""
        ...

    def count_only(self) -> None:
        """Fill in what a run would pack, as far as names and headers tell."""
        ...

    def at_work(self) -> AbstractContextManager[object]:
        """Hold what items are prepared with, as long as they are."""
        ...

    def stored(self, at: int) -> None:
        """Note an item that an earlier run has stored."""
        ...

    def refused(self, at: int) -> None:
        """Note an item that an earlier run has refused, with the reason."""
        ...

    def writer(self) -> Writer:
        """Return the writer of the store, which goes on with equal work."""
        ...

    def write(self, writer: Writer, bar: Progress, start: int) -> None:
        """Prepare and write the items from ``start`` on.

        Raises:
            DecodeError: A bad one, with ``on_error="raise"``.
            StorageFullError: No room.
        """
        ...

    def account(self) -> None:
        """Count the files: each is stored, failed, or left out."""
        ...

    def look(self, store: Store) -> Sequence[Duplicates]:
        """Fill in what is known once the store is there; return what is in it more than once."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """One pack, whatever it packs: from where, to where, and how it is run.

    Attributes:
        root: The folder, absolute.
        path: The output, absolute.
        on_error: ``"skip"`` or ``"raise"``.
        workers: Threads.
        sharding: How the store is cut into shards; None for a single file.
        force: An existing file is replaced.
        dry_run: Nothing is written.
        progress: True or False to show a bar; None for after two seconds.
        outcome: The report, filled in on the way.
        made: A store that an ended run has made and not reported; None where there is none.
        started: When it began, monotonic.
    """

    root: str
    path: str
    on_error: str
    workers: int
    sharding: Sharding | None
    force: bool
    dry_run: bool
    progress: bool | None
    outcome: PackReport
    made: Store | None
    started: float

    @classmethod
    def begin(
        cls,
        kind: str,
        source: PathLike,
        out: PathLike,
        *,
        on_error: str,
        workers: int | None,
        most_workers: int | None = None,
        shards: int | None = None,
        shard_size: int | str | None = None,
        force: bool,
        dry_run: bool,
        report: PathLike | None,
        progress: bool | None,
    ) -> Self:
        """Check the options that all kinds have, and the places, before any work is done.

        Args:
            kind: Of :class:`PackReport`.
            source: The folder.
            out: The output.
            on_error: ``"skip"`` or ``"raise"``.
            workers: Threads; None for one for each CPU.
            most_workers: Of which there are no more than these.
            shards: How many, at most; None for a single file.
            shard_size: Or how large each is.
            force: An existing file is replaced.
            dry_run: Nothing is written.
            report: Where the report goes; None for beside the output.
            progress: True or False to show a bar; None for after two seconds.

        Raises:
            OptionError, StoreExistsError, SourceError: See :func:`check_places`.
        """
        started = time.monotonic()
        if on_error not in ("skip", "raise"):
            raise OptionError(f"on_error {shown(on_error)}: one of skip, raise")
        asked = whole("workers", workers, 1, optional=True)
        root, path = path_of("source", source), path_of("out", out)
        place = path_of("report", report) if report is not None else f"{path}.report.jsonl"
        cpus = usable_cpus()
        return cls(
            root=root,
            path=path,
            on_error=on_error,
            workers=asked or min(cpus, most_workers or cpus),
            sharding=sharding_of(shards, shard_size),
            force=force,
            dry_run=dry_run,
            progress=progress,
            outcome=PackReport(
                path=path, kind=kind, report="" if dry_run else place, dry_run=dry_run
            ),
            made=check_places(root, path, place, force=force, dry_run=dry_run),
            started=started,
        )

    def cut(self, samples: int) -> Cut | None:
        """Return where shards of so many samples at most end; None for a single file."""
        return None if self.sharding is None else self.sharding.cut(samples)

    def scanning(self) -> Progress:
        """Return the progress of a scan."""
        return Progress("scanning", unit="files", enabled=self.progress)

    def carry_out(
        self,
        job: Job,
        failures: FailureLog,
        *,
        on_estimate: Callable[[int], None] | None = None,
    ) -> PackReport:
        """Do the work, or see how much it is, and report; the report is also written.

        Args:
            job: The work.
            failures: What the scan and the job note as bad.
            on_estimate: Called with about how many bytes there are to write, before it begins.

        Raises:
            StoreExistsError: The output is there, and is of other work.
            SourceError: There is nothing that could be packed.
            DecodeError: A bad file, with ``on_error="raise"``.
            StorageFullError: Not enough room; what is done is kept.
        """
        if self.made is not None and self.made.attrs["work"] != job.work:
            raise output_exists(self.path)
        try:
            self._do(job, failures, on_estimate)
        except (DecodeError, SourceError):
            if failures.count:
                self._report(job, failures)
            raise
        duplicates: Sequence[Duplicates] = ()
        if not self.dry_run:
            store = Store(self.path)
            self.outcome.digest = store.digest
            self.outcome.bytes = store.opened.nbytes
            duplicates = job.look(store)
        self._report(job, failures, duplicates)
        return self.outcome

    def _do(
        self, job: Job, failures: FailureLog, on_estimate: Callable[[int], None] | None
    ) -> None:
        outcome = self.outcome
        if not len(job):
            raise job.nothing_packed()
        if failures.count and self.on_error == "raise":
            raise bad_file(self.root, *failures.first[0])
        outcome.estimated_bytes = outcome.bytes = job.estimate()
        if self.dry_run:
            job.count_only()
        elif self.made is not None:
            self._finish(job, self.made)
        else:
            if on_estimate is not None:
                on_estimate(outcome.estimated_bytes)
            # An estimate from a few may be wrong; one from sizes is not.
            needed = outcome.estimated_bytes // (1 if job.exact else 2)
            check_room(self.path, needed, spools=job.spools)
            self._write(job)

    def _write(self, job: Job) -> None:
        """Pack; an interrupted run of the same job is gone on with."""
        outcome, given_up = self.outcome, other_work(self.path, job.work)
        if given_up:
            outcome.warnings.append(
                f"{given_up:,} {job.noun}{'s' * (given_up != 1)} of an unfinished pack with other "
                "options or files were discarded"
            )
        with (
            job.at_work(),
            job.writer() as writer,
            Progress("packing", unit=job.unit, enabled=self.progress) as bar,
        ):
            outcome.resumed = outcome.samples = len(writer)
            job.write(writer, bar, self._pass_over(job, writer.keys()))
            if not outcome.samples:
                writer.abort(keep=False)
                raise job.nothing_packed()

    def _finish(self, job: Job, store: Store) -> None:
        """Note what became of each item in a store that an ended run has made and not reported."""
        self.outcome.resumed = self.outcome.samples = len(store)
        keys = (encode_text(store.key(number)) for number in range(len(store)))
        with job.at_work():
            for at in range(self._pass_over(job, keys), len(job)):
                job.refused(at)
        clear_published(self.path)

    def _pass_over(self, job: Job, keys: Iterable[bytes]) -> int:
        """Return where to go on after the items with these keys, and those refused among them."""
        at, end = 0, len(job)
        for key in keys:
            while at < end and job.key(at) != key:
                job.refused(at)
                at += 1
            if at == end:
                raise StoreFormatError(
                    f"{self.path}: {partial_path(self.path)} holds other work than it says; remove "
                    "it and start anew",
                    path=self.path,
                )
            job.stored(at)
            at += 1
        return at

    def _report(
        self, job: Job, failures: FailureLog, duplicates: Sequence[Duplicates] = ()
    ) -> None:
        job.account()
        failures.finish(self.outcome, self.started)
        if not self.dry_run:
            write_report(self.outcome, failures, duplicates)


def bad_file(root: str, name: str, reason: str) -> DecodeError:
    """Return the error of a bad file when bad files are not to be skipped."""
    return DecodeError(
        f"{printable(name)}: {reason}; mend or remove it, or skip bad files with on_error='skip' "
        "(--on-error skip)",
        path=os.path.join(root, name),
    )


def left_out_of(outcome: PackReport) -> str:
    """Return what was left out, for the error that says that nothing could be packed."""
    left_out = [item for item in outcome.left_out_by_reason() if item["count"]]
    if not left_out:
        return ""
    seen = [f"{item['count']:,} {printable(item['reason'])}" for item in left_out]
    more = f" and {len(seen) - 8} more kinds" if len(seen) > 8 else ""
    return f"; left out: {', '.join(seen[:8])}{more}"


def bad_of(failures: FailureLog) -> str:
    """Return what was bad, for the error that says that nothing could be packed."""
    if not failures.count:
        return ""
    bad = [f"{printable(name)}: {reason}" for name, reason in failures.first[:3]]
    more = f"; and {failures.count - len(bad):,} more" if failures.count > len(bad) else ""
    return f"; bad: {'; '.join(bad)}{more}"


def content_of(
    store: Store, facts: Callable[[int], Mapping[str, Any]]
) -> dict[str, dict[str, int]]:
    """Count the values of each fact over the samples of a store; empty ones say nothing."""
    counts: dict[str, Counter[str]] = {}
    for number in range(len(store)):
        for name, value in facts(number).items():
            if value:
                counts.setdefault(name, Counter())[str(value)] += 1
    return {name: dict(counter) for name, counter in counts.items()}
