"""One folder on its way into one store: prepared in parallel, written in order, resumed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from sharedds.errors import SourceError
from sharedds.folder import FolderIndex
from sharedds.ingest.executor import run_in_order
from sharedds.ingest.images.examine import examine
from sharedds.ingest.images.labels import NO_LABEL
from sharedds.ingest.images.prepare import FORMATS, MODES, ImageRecipe, ImageResult, Ingester
from sharedds.ingest.packing import REFUSED_EARLIER, Packing, bad_file, bad_of, left_out_of
from sharedds.ingest.report import FailureLog
from sharedds.progress import Progress
from sharedds.store import Store, Writer, store_writer
from sharedds.store.duplicates import Duplicates
from sharedds.text import printable

__all__ = ["ImageJob", "room_of"]

_ROW_BYTES = 160  # columns, entry, key and tree of one sample, rounded up
_PAGE = 4096
_LARGEST_INSIDE = 2016  # longer values get pages of their own
_SAMPLED = 16
_COPIED = 16  # files that one task reads, where reading is all there is to do
_LET_GO = 1 << 16  # files after which the pages of the index are let go of
_UNNAMED = "not named in the labels file"
_FOREIGN = "no extension, and not an image"


class ImageJob:
    """What is to be packed, and how.

    Args:
        index: The folder.
        recipe: How images are stored.
        labels: int64 (N,), the label of each file of the index, ``NO_LABEL`` for those to leave
            out; None without labels.
        classes: Class names by number.
        shuffle_seed: Store in an order of its own; None for the order of the index.
        others: Stores to look for the same pictures in.
        packing: How it is run, and the report to fill in.
        failures: Takes the bad files.
    """

    noun, unit = "image", "images"
    spools: tuple[str, ...] = ()

    def __init__(
        self,
        index: FolderIndex,
        recipe: ImageRecipe,
        *,
        labels: npt.NDArray[np.int64] | None,
        classes: tuple[str, ...] | None,
        shuffle_seed: int | None,
        others: Sequence[Store],
        packing: Packing,
        failures: FailureLog,
    ) -> None:
        self.index = index
        self.recipe = recipe
        self.labels = labels
        self.classes = classes
        self.shuffle_seed = shuffle_seed
        self.others = others
        self.packing = packing
        self.outcome = packing.outcome
        self.failures = failures
        self.exact = recipe.codec in ("keep", "raw")
        self._ingester = Ingester(recipe, workers=packing.workers)
        self.order: Sequence[int] | npt.NDArray[np.int64] = range(len(index))
        if shuffle_seed is not None:
            # Raw numbers, since NumPy may one day shuffle in another way, but keeps its generators.
            draws = np.random.Philox(shuffle_seed % (1 << 64)).random_raw(len(index))
            self.order = np.argsort(np.asarray(draws), kind="stable")
        self.work = self._work()

    def __len__(self) -> int:
        return len(self.index)

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
            read, made = 0, 0
            some = np.linspace(0, len(index) - 1, min(len(index), _SAMPLED)).astype(int)
            for at in some.tolist():
                result = self._ingester(index.location(at))
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

    def at_work(self) -> AbstractContextManager[object]:
        """Nothing is held: pictures are prepared in memory."""
        return nullcontext()

    def key(self, at: int) -> bytes:
        """Return the key of a picture: its path."""
        return self.index.paths.bytes(int(self.order[at]))

    def stored(self, at: int) -> None:
        """Nothing is known of a picture that an earlier run has stored beyond that."""

    def refused(self, at: int) -> None:
        """Look at a file again that an earlier run has refused, for the reason."""
        position = int(self.order[at])
        self._refuse(position, self._prepare(position))

    def writer(self) -> Writer:
        """Return the writer of the store."""
        return store_writer(
            self.packing.path,
            cut=self.packing.cut(self.count()),
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
            force=self.packing.force,
            resume=self.work,
        )

    def write(self, writer: Writer, bar: Progress, start: int) -> None:
        """Prepare and write the pictures from ``start`` on."""
        bar.total = len(self.index) - start
        with contextlib.closing(self._results(start)) as results:
            for position, result in results:
                self._take(writer, position, result)
                bar.advance(1, nbytes=result.source_bytes)

    def account(self) -> None:
        """Count the files: each is a picture."""
        self.outcome.stored_files = self.outcome.samples
        self.outcome.failed_files = self.failures.count

    def look(self, store: Store) -> Sequence[Duplicates]:
        """Count what is in the finished store; return the pictures that are equal."""
        return examine(store, self.others, self.recipe, self.outcome)

    def nothing_packed(self) -> SourceError:
        """Return the error that says what there was instead of images."""
        return SourceError(
            f"{printable(self.index.root)}: no image could be packed{left_out_of(self.outcome)}"
            f"{bad_of(self.failures)}. Files that count end in jpg, png, webp, gif, bmp or tif, or "
            "in nothing at all",
            path=self.index.root,
        )

    def _work(self) -> str:
        options = json.dumps([asdict(self.recipe), self.classes, self.shuffle_seed])
        labels = "" if self.labels is None else _hash_of(self.labels)
        return f"{self.index.fingerprint} {xxhash.xxh3_128_hexdigest(options.encode())} {labels}"

    def _results(self, start: int) -> Generator[tuple[int, ImageResult], None, None]:
        pixels = self.recipe.size[0] * self.recipe.size[1] * 3 if self.recipe.size else 0
        sizes = self.index.sizes.array

        def prepare(position: int) -> tuple[int, ImageResult]:
            return position, self._prepare(position)

        def items() -> Iterator[tuple[int, int]]:
            for number, position in enumerate(self.order[start:], 1):
                if not number % _LET_GO:
                    self.index.release()
                yield int(position), max(int(sizes[position]), pixels)

        copied = self.recipe.codec == "keep" and self.recipe.check == "header"
        group = _COPIED if copied else 1
        return run_in_order(prepare, items(), workers=self.packing.workers, group=group)

    def _prepare(self, position: int) -> ImageResult:
        if self.labels is not None and self.labels[position] == NO_LABEL:
            return ImageResult(None, {}, 0, _UNNAMED)
        return self._ingester(self.index.location(position))

    def _take(self, writer: Writer, position: int, result: ImageResult) -> None:
        self.outcome.source_bytes += result.source_bytes
        if result.value is None:
            bad = self._refuse(position, result)
            if bad and self.packing.on_error == "raise":
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
            self.failures.add(name, result.reason or REFUSED_EARLIER)
            return True
        return False


def _hash_of(labels: npt.NDArray[np.int64]) -> str:
    """Return the hash of the bytes of labels; large ones are not copied for it."""
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(labels).data)


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
