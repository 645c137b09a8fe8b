"""A stream of samples on its way into one store: checked in parallel, written in order, resumed."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Generator, Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any

import xxhash

from sharedds.doors.stream import Contents, Door, Item
from sharedds.errors import DecodeError, SchemaError, SourceError, StoreFormatError
from sharedds.ingest.executor import run_in_order
from sharedds.ingest.images.prepare import FORMATS, MODES, ImageRecipe, ImageResult, Ingester
from sharedds.ingest.places import clear_published, other_work
from sharedds.ingest.report import FailureLog, PackReport
from sharedds.packed import encode_text
from sharedds.progress import Progress
from sharedds.store import Store, StoreWriter
from sharedds.store.partial import partial_path
from sharedds.text import printable

__all__ = ["DoorJob"]

_KEPT = ImageRecipe(check="header")
_TOLD = 1_000
_WAS_BAD = "was bad when an earlier run met it; pack anew to include it"


class DoorJob:
    """What is to be packed, and how.

    Args:
        door: The source, after :meth:`~sharedds.doors.stream.Door.look`.
        contents: What that found.
        recipe: How pictures of the field ``image`` are stored; other picture fields keep their
            bytes.
        outcome: The report to fill in.
        failures: Takes the bad samples.

    Attributes:
        work: A text that is equal for equal work: only that is gone on with.
    """

    def __init__(
        self,
        door: Door,
        contents: Contents,
        recipe: ImageRecipe,
        *,
        outcome: PackReport,
        failures: FailureLog,
    ) -> None:
        self.door, self.contents, self.recipe = door, contents, recipe
        self.outcome, self.failures = outcome, failures
        self.work = self._work()

    def schema(self) -> dict[str, str]:
        """Return the schema of the store: of pictures, then the fields of the source."""
        fields = dict(self.contents.fields)
        label = {"label": fields.pop("label")} if "label" in fields else {}
        base = self.recipe.schema(labels=False)
        more = {name: "keep" for name in self.contents.pictures if name != "image"}
        return {"image": base.pop("image"), **more, **label, **base, **fields}

    def run(
        self, path: str, *, workers: int, on_error: str, force: bool, progress: bool | None
    ) -> None:
        """Pack; an interrupted run of the same job is gone on with.

        Raises:
            SourceError: Nothing could be packed.
            DecodeError: A bad sample, with ``on_error="raise"``.
            StorageFullError: No room.
        """
        given_up = other_work(path, self.work)
        writer = StoreWriter(
            path,
            schema=self.schema(),
            classes=self.contents.classes,
            attrs={
                "kind": "images",
                "recipe": asdict(self.recipe),
                "formats": FORMATS,
                "modes": MODES,
                "root": printable(self.door.root),
                "source": {"format": self.door.format, **self.contents.attrs},
                "work": self.work,
            },
            force=force,
            resume=self.work,
        )
        if given_up:
            self.outcome.warnings.append(
                f"{given_up:,} samples of an unfinished pack with other options or files were "
                "discarded"
            )
        outcome = self.outcome
        with writer, Progress("packing", unit="samples", enabled=progress) as bar:
            outcome.resumed = outcome.samples = outcome.files = len(writer)
            bar.total = self.contents.samples
            ingester = Ingester(self.recipe, workers=workers)
            rest = self._after(writer.keys(), ingester)
            with contextlib.closing(self._results(ingester, rest, workers)) as results:
                for item, checked in results:
                    self._take(writer, item, checked, on_error)
                    bar.advance(1, nbytes=item.nbytes)
            if not outcome.samples:
                writer.abort(keep=False)
                raise self.nothing()

    def finish(self, store: Store) -> None:
        """Fill in the report of a store that this job has made and an ended run did not report."""
        ingester, outcome = Ingester(self.recipe), self.outcome
        outcome.resumed = outcome.samples = outcome.files = len(store)
        keys = (encode_text(store.key(number)) for number in range(len(store)))
        for item in self._after(keys, ingester):
            self._refuse(item, self._reason(item, self._prepare(ingester, item)))
        clear_published(store.path)

    def nothing_found(self) -> SourceError:
        """Return the error of a source in which not even a bad sample was found to count."""
        for item in islice(self.door.items(), _TOLD):
            self._refuse(item, item.reason)
        return self.nothing()

    def nothing(self) -> SourceError:
        """Return the error that says why there is nothing in the store."""
        bad = [f"{printable(name)}: {reason}" for name, reason in self.failures.first[:3]]
        more = f"; and {self.failures.count - len(bad):,} more" if self.failures.count > 3 else ""
        text = f"; bad: {'; '.join(bad)}{more}" if bad else ""
        return SourceError(
            f"{printable(self.door.root)}: no sample could be packed of this "
            f"{self.door.format} source{text}",
            path=self.door.root,
        )

    def _work(self) -> str:
        contents = self.contents
        said = [self.door.format, asdict(self.recipe), contents.classes, dict(contents.fields)]
        text = json.dumps([*said, contents.pictures, contents.files, dict(contents.attrs)])
        return f"door {xxhash.xxh3_128_hexdigest(text.encode('utf-8', 'surrogatepass'))}"

    def _after(self, keys: Iterable[bytes], ingester: Ingester) -> Iterator[Item]:
        """Yield what comes after the samples an earlier run did; what it refused is told again."""
        items = self.door.items()
        for key in keys:
            for item in items:
                if encode_text(item.key) == key:
                    break
                reason = self._reason(item, self._prepare(ingester, item))
                self._refuse(item, reason or _WAS_BAD)
            else:
                path = self.outcome.path
                raise StoreFormatError(
                    f"{path}: {partial_path(path)} holds other work than it says; remove it and "
                    "start anew",
                    path=path,
                )
        yield from items

    def _results(
        self, ingester: Ingester, rest: Iterator[Item], workers: int
    ) -> Generator[tuple[Item, dict[str, ImageResult]], None, None]:
        def prepare(item: Item) -> tuple[Item, dict[str, ImageResult]]:
            return item, self._prepare(ingester, item)

        return run_in_order(prepare, ((item, item.nbytes) for item in rest), workers=workers)

    def _prepare(self, ingester: Ingester, item: Item) -> dict[str, ImageResult]:
        if item.reason or item.left_out:
            return {}
        kept = ingester if self.recipe.codec == "keep" else Ingester(_KEPT)
        checked = {}
        for name, picture in item.pictures.items():
            if picture is None:
                continue
            prepare = ingester if name == "image" else kept
            if isinstance(picture, str):
                checked[name] = prepare(os.fsencode(picture))
            else:
                checked[name] = prepare.of_bytes(picture, item.key)
        return checked

    def _reason(self, item: Item, checked: dict[str, ImageResult]) -> str:
        """Return why a sample cannot be packed; empty where it can."""
        if item.reason or item.left_out:
            return item.reason
        for name, result in checked.items():
            if result.value is None:
                return result.reason if name == "image" else f"{name}: {result.reason}"
        return "" if "image" in checked else "no picture"

    def _take(
        self, writer: StoreWriter, item: Item, checked: dict[str, ImageResult], on_error: str
    ) -> None:
        outcome = self.outcome
        outcome.source_bytes += sum(result.source_bytes for result in checked.values())
        reason = self._reason(item, checked)
        if not reason and not item.left_out:
            sample: dict[str, Any] = dict.fromkeys(self.contents.pictures)
            sample |= {name: result.value for name, result in checked.items()}
            sample |= {**checked["image"].row, **item.values}
            try:
                writer.add(sample, key=encode_text(item.key))
                outcome.samples, outcome.files = outcome.samples + 1, outcome.files + 1
                return
            except (SchemaError, DecodeError) as error:
                reason = str(error)
        if self._refuse(item, reason) and on_error == "raise":
            raise DecodeError(
                f"{printable(item.key)}: {reason}; mend or remove it, or skip bad samples with "
                "on_error='skip' (--on-error skip)",
                path=self.door.root,
            )

    def _refuse(self, item: Item, reason: str) -> bool:
        """Note a sample that is not packed; return whether it is a bad one."""
        self.outcome.files += 1
        if item.left_out:
            self.outcome.leave_out("sample", item.left_out, item.key)
            return False
        self.failures.add(item.key, reason)
        return True
