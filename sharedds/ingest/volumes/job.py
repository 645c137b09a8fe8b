"""The cases of a folder on their way into a store: prepared ahead, written in order, resumed."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable
from pathlib import Path

import xxhash

from sharedds.errors import DecodeError, SchemaError, SourceError, StoreFormatError
from sharedds.ingest.executor import run_in_order
from sharedds.ingest.listing import without_root
from sharedds.ingest.places import clear_published, other_work
from sharedds.ingest.report import FailureLog, PackReport, bad_file
from sharedds.ingest.volumes.cases import Case, Description, Layout, hidden
from sharedds.ingest.volumes.codecs import codecs_for, codecs_of_earlier_run
from sharedds.ingest.volumes.prepare import Prepared, VolumeIngester, remarks_on
from sharedds.ingest.volumes.recipe import Codecs, VolumeRecipe
from sharedds.ingest.volumes.scan import Found
from sharedds.ingest.volumes.scratch import scratch_folder
from sharedds.packed import encode_text
from sharedds.progress import Progress
from sharedds.store import Store, StoreWriter
from sharedds.store.partial import partial_path
from sharedds.text import printable

__all__ = ["VolumeJob", "nothing_packed"]

_TRIED = 3  # cases that the choice of a codec is made from
_IN_FLIGHT = 128 << 20
_SHRUNK = {"raw": 1.0, "lz4": 0.65, "zstd": 0.55, "auto": 0.65}
_LABEL_SHRUNK = 0.1


class VolumeJob:
    """What is to be packed, and how.

    Args:
        found: What the folder holds.
        layout: Which of it makes which case.
        description: Names of channels and classes.
        recipe: How volumes are stored.
        outcome: The report to fill in.
        failures: Takes the bad cases.

    Attributes:
        work: A text that is equal for equal work: only that is gone on with.
    """

    def __init__(
        self,
        found: Found,
        layout: Layout,
        description: Description,
        recipe: VolumeRecipe,
        *,
        outcome: PackReport,
        failures: FailureLog,
    ) -> None:
        self.found = found
        self.cases = layout.cases
        self.description = description
        self.recipe = recipe
        self.outcome = outcome
        self.failures = failures
        self.labels = any(case.label is not None for case in layout.cases)
        self.groups = any(case.group for case in layout.cases)
        self._stored: set[str] = set()
        self._failed: set[str] = set()
        self.work = self._work(layout)

    def _work(self, layout: Layout) -> str:
        cases = [
            (c.name, [e.name for e in c.entries], c.channels, c.group, c.problem)
            for c in layout.cases
        ]
        classes = sorted(self.description.classes.items())
        options = json.dumps([self.recipe.to_json(), classes, cases])
        return f"{self.found.fingerprint} {xxhash.xxh3_128_hexdigest(options.encode())}"

    def estimate(self) -> int:
        """Return about how many bytes the store will take."""
        total = 0.0
        for case in self.cases:
            for entry in case.entries:
                header = entry.volume.header
                label = entry is case.label
                share = _LABEL_SHRUNK if label else _SHRUNK[self.recipe.codec]
                total += math.prod(header.full_shape) * header.dtype.itemsize * share
        return round(total)

    def count_only(self) -> None:
        """Fill in what a run would pack, as far as headers tell."""
        for case in self.cases:
            if case.problem:
                self._refuse(Prepared(case, reason=case.problem))
            else:
                self.outcome.samples += 1
                self._stored.update(path for entry in case.entries for path in entry.files)
        self._account()

    def run(
        self, path: str, *, workers: int, on_error: str, force: bool, progress: bool | None
    ) -> None:
        """Pack; an interrupted run of the same job is gone on with.

        Raises:
            SourceError: No case could be packed.
            DecodeError: A bad case, with ``on_error="raise"``.
            StorageFullError: No room.
        """
        given_up = other_work(path, self.work)
        if given_up:
            cases = "case" if given_up == 1 else "cases"
            self.outcome.warnings.append(
                f"{given_up:,} {cases} of an unfinished pack with other options or files were "
                "discarded"
            )
        with scratch_folder(path) as scratch, contextlib.ExitStack() as stack:
            ingester = self._ingester(scratch)
            stack.callback(ingester.close)
            codecs = codecs_of_earlier_run(path, self.work)
            ahead: list[Prepared] = []
            if codecs is None and self.recipe.codec != "auto":
                codecs = Codecs(image=self.recipe.codec, label=self.recipe.codec)
            if codecs is None:
                ahead = self._first(ingester)
                codecs = codecs_for(each.sample or {} for each in ahead)
            writer = stack.enter_context(self._writer(path, codecs, force=force))
            bar = stack.enter_context(Progress("packing", unit="cases", enabled=progress))
            self.outcome.resumed = self.outcome.samples = len(writer)
            start = self._pass_over(writer.keys(), ingester)
            bar.total = len(self.cases) - start
            self._write(
                writer,
                bar,
                ingester,
                ahead,
                start,
                codecs=codecs,
                workers=workers,
                on_error=on_error,
            )
            self._account()
            if not self.outcome.samples:
                writer.abort(keep=False)
                raise nothing_packed(self.found.root, self.outcome, self.failures)

    def finish(self, store: Store) -> None:
        """Fill in the report of a store that this job has made and an ended run did not report."""
        self.outcome.resumed = self.outcome.samples = len(store)
        with (
            scratch_folder(store.path) as scratch,
            contextlib.closing(self._ingester(scratch)) as ingester,
        ):
            keys = (encode_text(store.key(number)) for number in range(len(store)))
            for case in self.cases[self._pass_over(keys, ingester) :]:
                self._refuse(self._looked_at(ingester, case))
        self._account()
        clear_published(store.path)

    def _ingester(self, scratch: Path) -> VolumeIngester:
        return VolumeIngester(
            self.recipe, self.found.root, scratch, labels=self.labels, groups=self.groups
        )

    def _writer(self, path: str, codecs: Codecs, *, force: bool) -> StoreWriter:
        names = {str(number): name for number, name in self.description.classes.items()}
        return StoreWriter(
            path,
            schema=self.recipe.schema(codecs, labels=self.labels, groups=self.groups),
            attrs={
                "kind": "volume",
                "patch": None if self.recipe.patch is None else list(self.recipe.patch),
                "class_names": names,
                "options": self.recipe.to_json(),
                "format_of_labels": 1,
                "work": self.work,
            },
            force=force,
            resume=self.work,
        )

    def _first(self, ingester: VolumeIngester) -> list[Prepared]:
        """Prepare cases until there are some that can be packed."""
        ahead: list[Prepared] = []
        for case in self.cases:
            ahead.append(ingester(case))
            if sum(each.sample is not None for each in ahead) == _TRIED:
                break
        return ahead

    def _write(
        self,
        writer: StoreWriter,
        bar: Progress,
        ingester: VolumeIngester,
        ahead: list[Prepared],
        start: int,
        *,
        codecs: Codecs,
        workers: int,
        on_error: str,
    ) -> None:
        for prepared in ahead:
            self._take(writer, ingester, prepared, codecs, on_error)
            bar.advance(1, nbytes=prepared.nbytes)
        left = self.cases[start + len(ahead) :]
        # Each holds a slab of its own, and its unpacked files; so there are about as many as
        # threads, however small the volumes are.
        cost = _IN_FLIGHT // (workers + 1)
        items = ((case, cost) for case in left)
        with contextlib.closing(run_in_order(ingester, items, workers=workers)) as results:
            for prepared in results:
                self._take(writer, ingester, prepared, codecs, on_error)
                bar.advance(1, nbytes=prepared.nbytes)

    def _take(
        self,
        writer: StoreWriter,
        ingester: VolumeIngester,
        prepared: Prepared,
        codecs: Codecs,
        on_error: str,
    ) -> None:
        case = prepared.case
        self.outcome.source_bytes += prepared.nbytes
        if prepared.sample is not None:
            try:
                writer.add(prepared.value_of(codecs), key=self.recipe.key(case.name))
            except (DecodeError, SourceError, SchemaError) as error:
                prepared.fail(error, self.found.root)
        ingester.done(prepared)
        if prepared.sample is None:
            name, reason = self._refuse(prepared)
            if on_error == "raise":
                raise bad_file(self.found.root, name, reason)
            return
        self.outcome.samples += 1
        self._note_stored(case)

    def _note_stored(self, case: Case) -> None:
        self._stored.update(path for entry in case.entries for path in entry.files)
        for text in remarks_on(case):
            self.failures.note(self.outcome, self.recipe.key(case.name), self._told(case, text))

    def _looked_at(self, ingester: VolumeIngester, case: Case) -> Prepared:
        """Prepare a case that an earlier run refused, for the reason."""
        prepared = ingester(case)
        ingester.done(prepared)
        if prepared.sample is not None:
            prepared.reason = "was bad when an earlier run met it; pack anew to include it"
        return prepared

    def _pass_over(self, keys: Iterable[bytes], ingester: VolumeIngester) -> int:
        """Return where to go on; what an earlier run refused is looked at again."""
        at, path = 0, self.outcome.path
        for key in keys:
            while at < len(self.cases) and encode_text(self.recipe.key(self.cases[at].name)) != key:
                self._refuse(self._looked_at(ingester, self.cases[at]))
                at += 1
            if at == len(self.cases):
                raise StoreFormatError(
                    f"{path}: {partial_path(path)} holds other work than it says; remove it and "
                    "start anew",
                    path=path,
                )
            self._note_stored(self.cases[at])
            at += 1
        return at

    def _refuse(self, prepared: Prepared) -> tuple[str, str]:
        """Note a case that is not packed; return how it is called, and why."""
        case = prepared.case
        name = prepared.culprit or case.name
        reason = without_root(prepared.reason, self.found.root).removeprefix(f"{name}: ")
        reason = self._told(case, reason)
        if self.recipe.anonymous:
            name = self.recipe.key(case.name)
        self.failures.add(name, reason)
        self._failed.update(path for entry in case.entries for path in entry.files)
        return name, reason

    def _told(self, case: Case, text: str) -> str:
        """Return a text as it may be passed on."""
        if not self.recipe.anonymous:
            return text
        names = {case.name, case.missing}
        for entry in case.entries:
            names |= {entry.name, entry.path, *entry.files}
        return hidden(text, names, lambda _: self.recipe.key(case.name))

    def _account(self) -> None:
        """Count the files: each is stored, failed, or left out."""
        self.outcome.stored_files = len(self._stored)
        self.outcome.failed_files = len(self._failed - self._stored)
        self.outcome.failed_files += sum(len(files) for _, _, files in self.found.bad)


def nothing_packed(root: str, outcome: PackReport, failures: FailureLog) -> SourceError:
    """Return the error that says what there was instead of volumes."""
    text = f"{printable(root)}: no volume could be packed"
    left_out = outcome.left_out_by_reason()
    seen = [f"{item['count']:,} {printable(item['reason'])}" for item in left_out if item["count"]]
    if seen:
        more = f" and {len(seen) - 8} more kinds" if len(seen) > 8 else ""
        text += f"; left out: {', '.join(seen[:8])}{more}"
    if failures.count:
        bad = [f"{printable(name)}: {reason}" for name, reason in failures.first[:3]]
        more = f"; and {failures.count - len(bad):,} more" if failures.count > len(bad) else ""
        text += f"; bad: {'; '.join(bad)}{more}"
    return SourceError(
        f"{text}. Volumes are NIfTI, DICOM, NRRD, MetaImage and NumPy files", path=root
    )
