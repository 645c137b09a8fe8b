"""One folder on its way into one store: prepared in parallel, written in order, resumed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from sharedds.errors import SourceError, StoreFormatError
from sharedds.folder import FolderIndex
from sharedds.ingest.executor import run_in_order
from sharedds.ingest.images.labels import NO_LABEL
from sharedds.ingest.images.prepare import FORMATS, MODES, ImageRecipe, ImageResult, Ingester
from sharedds.ingest.places import clear_published, other_work
from sharedds.ingest.report import FailureLog, PackReport, bad_file
from sharedds.packed import encode_text
from sharedds.progress import Progress
from sharedds.store import Store, StoreWriter
from sharedds.store.partial import partial_path
from sharedds.text import printable

__all__ = ["Job", "nothing_packed", "room_of"]

_ROW_BYTES = 160  # columns, entry, key and tree of one sample, rounded up
_PAGE = 4096
_LARGEST_INSIDE = 2016  # longer values get pages of their own
_SAMPLED = 16
_COPIED = 16  # files that one task reads, where reading is all there is to do
_LET_GO = 1 << 16  # files after which the pages of the index are let go of
_UNNAMED = "not named in the labels file"
_FOREIGN = "no extension, and not an image"


class Job:
    """What is to be packed, and how.

    Args:
        index: The folder.
        recipe: How images are stored.
        labels: int64 (N,), the label of each file of the index, ``NO_LABEL`` for those to leave
            out; None without labels.
        classes: Class names by number.
        shuffle_seed: Store in an order of its own; None for the order of the index.
        outcome: The report to fill in.
        failures: Takes the bad files.

    Attributes:
        work: A text that is equal for equal work: only that is gone on with.
    """

    def __init__(
        self,
        index: FolderIndex,
        recipe: ImageRecipe,
        *,
        labels: npt.NDArray[np.int64] | None,
        classes: tuple[str, ...] | None,
        shuffle_seed: int | None,
        outcome: PackReport,
        failures: FailureLog,
    ) -> None:
        self.index = index
        self.recipe = recipe
        self.labels = labels
        self.classes = classes
        self.shuffle_seed = shuffle_seed
        self.outcome = outcome
        self.failures = failures
        self.order: Sequence[int] | npt.NDArray[np.int64] = range(len(index))
        if shuffle_seed is not None:
            # Raw numbers, since NumPy may one day shuffle in another way, but keeps its generators.
            draws = np.random.Philox(shuffle_seed % (1 << 64)).random_raw(len(index))
            self.order = np.argsort(np.asarray(draws), kind="stable")
        self.work = self._work()

    def count(self) -> int:
        """Return how many images there are to pack, as far as names tell."""
        if self.labels is None:
            return len(self.index)
        return int(np.count_nonzero(self.labels != NO_LABEL))

    def estimate(self) -> int:
        """Return about how many bytes the store will take: from sizes, or from some encoded."""
        recipe, index, count = self.recipe, self.index, self.count()
        if recipe.size is not None:
            return count * (recipe.size[0] * recipe.size[1] * 3 + _ROW_BYTES)
        ratio = 1.0
        if recipe.codec != "keep":
            ingester, read, made = Ingester(recipe), 0, 0
            some = np.linspace(0, len(index) - 1, min(len(index), _SAMPLED)).astype(int)
            for at in some.tolist():
                result = ingester(index.location(at))
                if isinstance(result.value, bytes):
                    read, made = read + result.source_bytes, made + len(result.value)
            ratio = made / read if read else 1.0
        total = count * _ROW_BYTES
        for start in range(0, len(index), 1 << 18):
            rows = slice(start, start + (1 << 18))
            sizes = index.sizes.array[rows]
            if self.labels is not None:
                sizes = sizes[self.labels[rows] != NO_LABEL]
            total += _stored(sizes * ratio)
            index.release()
        return total

    def count_only(self) -> None:
        """Fill in what a run would pack, as far as names tell."""
        self.outcome.samples = len(self.index)
        if self.labels is not None:
            for position in np.flatnonzero(self.labels == NO_LABEL).tolist():
                self.outcome.leave_out("label", _UNNAMED, self.index.paths[position])
                self.outcome.samples -= 1

    def run(
        self, path: str, *, workers: int, on_error: str, force: bool, progress: bool | None
    ) -> None:
        """Pack; an interrupted run of the same job is gone on with.

        Raises:
            SourceError: No image could be packed.
            DecodeError: A bad file, with ``on_error="raise"``.
            StorageFullError: No room.
        """
        given_up = other_work(path, self.work)
        writer = StoreWriter(
            path,
            schema=self.recipe.schema(labels=self.labels is not None),
            classes=self.classes,
            attrs={
                "kind": "images",
                "recipe": asdict(self.recipe),
                "formats": FORMATS,
                "modes": MODES,
                "root": printable(self.index.root),
                "work": self.work,
            },
            force=force,
            resume=self.work,
        )
        if given_up:
            images = "image" if given_up == 1 else "images"
            self.outcome.warnings.append(
                f"{given_up:,} {images} of an unfinished pack with other options or files were "
                "discarded"
            )
        ingester = Ingester(self.recipe, workers=workers)
        outcome = self.outcome
        with writer, Progress("packing", unit="images", enabled=progress) as bar:
            outcome.resumed = outcome.samples = len(writer)
            start = self._pass_over(writer.keys(), ingester)
            bar.total = len(self.index) - start
            with contextlib.closing(self._results(ingester, start, workers)) as results:
                for position, result in results:
                    self._take(writer, position, result, on_error)
                    bar.advance(1, nbytes=result.source_bytes)
            if not outcome.samples:
                writer.abort(keep=False)
                raise nothing_packed(self.index.root, outcome, self.failures)

    def finish(self, store: Store) -> None:
        """Fill in the report of a store that this job has made and an ended run did not report."""
        ingester, outcome = Ingester(self.recipe), self.outcome
        outcome.resumed = outcome.samples = len(store)
        keys = (encode_text(store.key(number)) for number in range(len(store)))
        for position in self.order[self._pass_over(keys, ingester) :]:
            self._refuse(int(position), self._prepare(ingester, int(position)))
        clear_published(store.path)

    def _work(self) -> str:
        options = json.dumps([asdict(self.recipe), self.classes, self.shuffle_seed])
        labels = "" if self.labels is None else _hash_of(self.labels)
        return f"{self.index.fingerprint} {xxhash.xxh3_128_hexdigest(options.encode())} {labels}"

    def _pass_over(self, keys: Iterable[bytes], ingester: Ingester) -> int:
        """Return where to go on; what an earlier run refused is looked at again, for the reason."""
        at = 0
        path = self.outcome.path
        for key in keys:
            while at < len(self.order) and self.index.paths.bytes(int(self.order[at])) != key:
                position = int(self.order[at])
                self._refuse(position, self._prepare(ingester, position))
                at += 1
            if at == len(self.order):
                raise StoreFormatError(
                    f"{path}: {partial_path(path)} holds other work than it says; remove it and "
                    "start anew",
                    path=path,
                )
            at += 1
        return at

    def _results(
        self, ingester: Ingester, start: int, workers: int
    ) -> Generator[tuple[int, ImageResult], None, None]:
        pixels = self.recipe.size[0] * self.recipe.size[1] * 3 if self.recipe.size else 0
        sizes = self.index.sizes.array

        def prepare(position: int) -> tuple[int, ImageResult]:
            return position, self._prepare(ingester, position)

        def items() -> Iterator[tuple[int, int]]:
            for number, position in enumerate(self.order[start:], 1):
                if not number % _LET_GO:
                    self.index.release()
                yield int(position), max(int(sizes[position]), pixels)

        copied = self.recipe.codec == "keep" and self.recipe.check == "header"
        return run_in_order(prepare, items(), workers=workers, group=_COPIED if copied else 1)

    def _prepare(self, ingester: Ingester, position: int) -> ImageResult:
        if self.labels is not None and self.labels[position] == NO_LABEL:
            return ImageResult(None, {}, 0, _UNNAMED)
        return ingester(self.index.location(position))

    def _take(self, writer: StoreWriter, position: int, result: ImageResult, on_error: str) -> None:
        self.outcome.source_bytes += result.source_bytes
        if result.value is None:
            bad = self._refuse(position, result)
            if bad and on_error == "raise":
                raise bad_file(self.index.root, self.index.paths[position], result.reason)
            return
        sample: dict[str, Any] = {"image": result.value, **result.row}
        if self.labels is not None:
            sample["label"] = int(self.labels[position])
        writer.add(sample, key=self.index.paths.bytes(position))
        self.outcome.samples += 1

    def _refuse(self, position: int, result: ImageResult) -> bool:
        """Note a file that is not packed; return whether it is a bad one."""
        name = self.index.paths[position]
        if result.reason == _UNNAMED:
            self.outcome.leave_out("label", _UNNAMED, name)
        elif result.foreign and not self.index.has_extension(position):
            self.outcome.leave_out("extension", _FOREIGN, name)
        else:
            # A reason that is gone, such as a missing permission, does not bring the file back.
            reason = result.reason or "was bad when an earlier run met it; pack anew to include it"
            self.failures.add(name, reason)
            return True
        return False


def _hash_of(labels: npt.NDArray[np.int64]) -> str:
    """Return the hash of the bytes of labels; large ones are not copied for it."""
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(labels).data)


def nothing_packed(root: str, outcome: PackReport, failures: FailureLog) -> SourceError:
    """Return the error that says what there was instead of images."""
    text = f"{printable(root)}: no image could be packed"
    left_out = outcome.left_out_by_reason()
    seen = [f"{item['count']:,} {printable(item['reason'])}" for item in left_out]
    if seen:
        more = f" and {len(seen) - 8} more kinds" if len(seen) > 8 else ""
        text += f"; left out: {', '.join(seen[:8])}{more}"
    if failures.count:
        bad = [f"{printable(name)}: {reason}" for name, reason in failures.first[:3]]
        more = f"; and {failures.count - len(bad):,} more" if failures.count > len(bad) else ""
        text += f"; bad: {'; '.join(bad)}{more}"
    return SourceError(
        f"{text}. Files that count end in jpg, png, webp, gif, bmp or tif, or in nothing at all",
        path=root,
    )


def room_of(size: int, *, alone: bool) -> int:
    """Return about how many bytes a picture takes in the file, with its columns.

    Args:
        size: Bytes of its value.
        alone: Whether that is a value by itself, or a row of a column.
    """
    return _ROW_BYTES + (_stored(np.array([size])) if alone else size)


def _stored(sizes: npt.NDArray[Any]) -> int:
    """Return how many bytes values of these sizes take in the file: whole pages, or shared ones."""
    pages = np.ceil((sizes + 16) / _PAGE) * _PAGE
    shared = _PAGE / np.maximum((_PAGE - 16) // (sizes + 24), 1)
    return int(np.where(sizes > _LARGEST_INSIDE, pages, shared).sum())
