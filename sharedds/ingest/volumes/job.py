"""The cases of a folder on their way into a store: prepared ahead, written in order, resumed."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager

import xxhash

from sharedds.errors import DecodeError, SampleKeyError, SchemaError, SourceError
from sharedds.ingest.executor import run_in_order
from sharedds.ingest.listing import without_root
from sharedds.ingest.packing import (
    REFUSED_EARLIER,
    Packing,
    bad_file,
    bad_of,
    content_of,
    left_out_of,
)
from sharedds.ingest.report import FailureLog
from sharedds.ingest.volumes.cases import Case, Description, Layout, hidden
from sharedds.ingest.volumes.codecs import codecs_for, codecs_of_earlier_run
from sharedds.ingest.volumes.prepare import Prepared, VolumeIngester, remarks_on
from sharedds.ingest.volumes.recipe import Codecs, VolumeRecipe
from sharedds.ingest.volumes.scan import Found
from sharedds.packed import encode_text
from sharedds.progress import Progress
from sharedds.store import Store, Writer, store_writer
from sharedds.store.duplicates import Duplicates
from sharedds.text import printable

__all__ = ["VolumeJob"]

_TRIED = 3  # cases that the choice of a codec is made from
_IN_FLIGHT = 128 << 20
_SHRUNK = {"raw": 1.0, "blosc": 0.65, "lz4": 0.65, "zstd": 0.55, "auto": 0.65}
_LABEL_SHRUNK = 0.1


class VolumeJob:
    """What is to be packed, and how.

    Args:
        found: What the folder holds.
        layout: Which of it makes which case.
        description: Names of channels and classes.
        recipe: How volumes are stored.
        packing: How it is run, and the report to fill in.
        failures: Takes the bad cases.
    """

    noun, unit = "case", "cases"
    exact = False
    spools: tuple[str, ...] = ()

    def __init__(
        self,
        found: Found,
        layout: Layout,
        description: Description,
        recipe: VolumeRecipe,
        *,
        packing: Packing,
        failures: FailureLog,
    ) -> None:
        self.found = found
        self.cases = layout.cases
        self.description = description
        self.recipe = recipe
        self.packing = packing
        self.outcome = packing.outcome
        self.failures = failures
        self.labels = any(case.label is not None for case in layout.cases)
        self.groups = any(case.group for case in layout.cases)
        self._ingester = VolumeIngester(recipe, found.root, labels=self.labels, groups=self.groups)
        self._codecs = Codecs(image=recipe.codec, label=recipe.codec)
        self._ahead: list[Prepared] = []
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

    def __len__(self) -> int:
        return len(self.cases)

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

    def at_work(self) -> AbstractContextManager[object]:
        """Hold a folder beside the output for what has to be unpacked."""
        return self._ingester.unpacking_beside(self.packing.path)

    def key(self, at: int) -> bytes:
        """Return the key of a case."""
        return encode_text(self.recipe.key(self.cases[at].name))

    def stored(self, at: int) -> None:
        """Note a case that an earlier run has stored."""
        self._note_stored(self.cases[at])

    def refused(self, at: int) -> None:
        """Prepare a case again that an earlier run has refused, for the reason."""
        prepared = self._ingester(self.cases[at])
        self._ingester.done(prepared)
        if prepared.sample is not None:
            prepared.reason = REFUSED_EARLIER
        self._refuse(prepared)

    def writer(self) -> Writer:
        """Return the writer of the store; cases are tried first where a codec is to be chosen."""
        self._ahead, self._codecs = self._tried()
        names = {str(number): name for number, name in self.description.classes.items()}
        return store_writer(
            self.packing.path,
            cut=self.packing.cut(len(self)),
            schema=self.recipe.schema(self._codecs, labels=self.labels, groups=self.groups),
            attrs={
                "kind": "volume",
                "patch": None if self.recipe.patch is None else list(self.recipe.patch),
                "class_names": names,
                "options": self.recipe.to_json(),
                "format_of_labels": 1,
                "work": self.work,
            },
            force=self.packing.force,
            resume=self.work,
        )

    def write(self, writer: Writer, bar: Progress, start: int) -> None:
        """Prepare and write the cases from ``start`` on."""
        bar.total = len(self.cases) - start
        for prepared in self._ahead:
            self._take(writer, prepared)
            bar.advance(1, nbytes=prepared.nbytes)
        left = self.cases[start + len(self._ahead) :]
        # Each holds a slab of its own, and its unpacked files; so there are about as many as
        # threads, however small the volumes are.
        workers = self.packing.workers
        items = ((case, _IN_FLIGHT // (workers + 1)) for case in left)
        with contextlib.closing(run_in_order(self._ingester, items, workers=workers)) as results:
            for prepared in results:
                self._take(writer, prepared)
                bar.advance(1, nbytes=prepared.nbytes)

    def _tried(self) -> tuple[list[Prepared], Codecs]:
        """Return how blocks are coded, and the cases that were prepared to find out."""
        codecs = codecs_of_earlier_run(self.packing.path, self.work)
        if codecs is not None:
            return [], codecs
        if self.recipe.codec != "auto":
            return [], Codecs(image=self.recipe.codec, label=self.recipe.codec)
        ahead: list[Prepared] = []
        for case in self.cases:
            ahead.append(self._ingester(case))
            if sum(each.sample is not None for each in ahead) == _TRIED:
                break
        return ahead, codecs_for(each.sample or {} for each in ahead)

    def _take(self, writer: Writer, prepared: Prepared) -> None:
        case = prepared.case
        self.outcome.source_bytes += prepared.nbytes
        if prepared.sample is not None:
            try:
                writer.add(prepared.value_of(self._codecs), key=self.recipe.key(case.name))
            except (DecodeError, SourceError, SchemaError) as error:
                prepared.fail(error, self.found.root)
        self._ingester.done(prepared)
        if prepared.sample is None:
            name, reason = self._refuse(prepared)
            if self.packing.on_error == "raise":
                raise bad_file(self.found.root, name, reason)
            return
        self.outcome.samples += 1
        self._note_stored(case)

    def _note_stored(self, case: Case) -> None:
        self._stored.update(path for entry in case.entries for path in entry.files)
        for text in remarks_on(case):
            self.failures.note(self.outcome, self.recipe.key(case.name), self._told(case, text))

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

    def account(self) -> None:
        """Count the files: each is stored, failed, or left out."""
        self.outcome.stored_files = len(self._stored)
        self.outcome.failed_files = len(self._failed - self._stored)
        self.outcome.failed_files += sum(len(files) for _, _, files in self.found.bad)

    def look(self, store: Store) -> Sequence[Duplicates]:
        """Count what is in the finished store."""
        labels = "label" in store.fields

        def facts(number: int) -> dict[str, str]:
            image = store.array(number, "image")
            found = {
                "format": image.attrs.get("format", ""),
                "dtype": image.dtype.name,
                "axis": image.attrs.get("axis", "none"),
                "orientation": image.attrs.get("orientation", "unknown"),
                "photometric": image.attrs.get("photometric", ""),
            }
            if labels:
                try:
                    found["label"] = store.array(number, "label").dtype.name
                except SampleKeyError:
                    found["label"] = "none"
            return found

        self.outcome.content = content_of(store, facts)
        return ()

    def nothing_packed(self) -> SourceError:
        """Return the error that says what there was instead of volumes."""
        return SourceError(
            f"{printable(self.found.root)}: no volume could be packed{left_out_of(self.outcome)}"
            f"{bad_of(self.failures)}. Volumes are NIfTI, DICOM, NRRD, MetaImage and NumPy files",
            path=self.found.root,
        )
