"""Packs a folder of images into a store: scan, prepare in parallel, write in order, report."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Literal

import msgspec
import numpy as np
import xxhash

from sharedds.errors import (

    DecodeError,
    OptionError,
    SourceError,
    StorageFullError,
    StoreExistsError,
)
from sharedds.folder import ClassLevel, FolderIndex, scan
from sharedds.handles import absolute_path
from sharedds.ingest.executor import run_in_order
from sharedds.ingest.images import FORMATS, MODES, ImageRecipe, ImageResult, Ingester
from sharedds.ingest.labels import LabelTable, load_classes
from sharedds.ingest.report import (
    PackReport,
    bad_of,
    content_counts,
    left_out_of,
    printable,
)
from sharedds.progress import Progress
from sharedds.store import Store, StoreWriter
from sharedds.store.duplicates import find_duplicates
from sharedds.store.partial import partial_path

__all__ = ["pack"]

_COLUMNS = {
    "height": "int32",
    "width": "int32",
    "orientation": "uint8",
    "format": "uint8",
    "mode": "uint8",
    "bits": "uint8",
    "frames": "int32",
}
_ROW_BYTES = 160  # columns, entry and tree of one sample, rounded up; for the estimate


def pack(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    codec: str = "keep",
    quality: int = 90,
    max_side: int | None = None,
    short_side: int | None = None,
    size: tuple[int, int] | None = None,
    check: Literal["decode", "header"] = "decode",
    depth: Literal["keep", "8"] = "keep",
    background: tuple[int, int, int] = (255, 255, 255),
    orientation: Literal["apply", "ignore"] = "apply",
    max_pixels: int | None = ImageRecipe.__dataclass_fields__["max_pixels"].default,
    class_level: ClassLevel = "auto",
    classes: str | os.PathLike[str] | Iterable[str] | None = None,
    labels: str | os.PathLike[str] | None = None,
    numeric_classes: bool = False,
    include_hidden: bool = False,
    shuffle_seed: int | None = None,
    on_error: Literal["skip", "raise"] = "skip",
    against: Sequence[str | os.PathLike[str]] = (),
    workers: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    report: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> PackReport:
    """Pack a folder of images into one file. Interrupted, even by kill -9, the same call goes on.

    Args:
        source: The folder. Sub-folders are classes unless ``class_level`` says otherwise.
        out: The file to make; it appears when it is whole.
        codec: ``"keep"`` the original bytes, or encode anew: ``"jpeg" "png" "webp"``, or ``"raw"``
            with ``size``.
        quality: Of ``"jpeg"``.
        max_side: Shrink to this longest side, in pixels.
        short_side: Shrink to this shortest side, in pixels.
        size: (height, width) of raw pixels.
        check: ``"decode"`` proves every picture; ``"header"`` trusts beyond the header.
        depth: ``"8"`` scales 16-bit values to 8 bits when encoding anew.
        background: Colour behind transparent pixels where the codec has no alpha.
        orientation: ``"ignore"`` keeps pictures as stored, whatever EXIF says; recorded in the file.
        max_pixels: Refuse larger pictures before decoding; None for no limit.
        class_level: See :func:`sharedds.folder.scan`.
        classes: Names that fix the numbering: a list, a file with one name a line, or another store.
        labels: A CSV file with the columns path and label, instead of class folders.
        numeric_classes: Class folders are named by numbers, and these are the labels.
        include_hidden: Also pack files and folders whose name begins with a dot.
        shuffle_seed: Store in a random order, the same for the same seed.
        on_error: ``"skip"`` bad files and report them, or ``"raise"`` at the first.
        against: Stores to look for the same pictures in (a test set, say).
        workers: Threads that decode and encode; by default one for each CPU.
        force: Replace an existing file, in one step at the end.
        dry_run: Scan and estimate only; nothing is written.
        report: Where the JSONL report goes; by default ``OUT.report.jsonl``.
        progress: True or False to show a bar; by default after two seconds.

    Returns:
        What was packed and what was not; also written as JSON lines.

    Raises:
        SourceError: The folder cannot be read, or holds no image.
        StoreExistsError: ``out`` exists and ``force`` is not set.
        StorageFullError: Not enough room; what is done is kept and goes on with the same call.
        OptionError, ClassMismatchError: The options do not fit each other or the folder.
        DecodeError: A bad file, with ``on_error="raise"``.
    """
    started = time.monotonic()
    recipe = ImageRecipe(
        codec=codec,
        quality=quality,
        max_side=max_side,
        short_side=short_side,
        size=size,
        check=check,
        depth=depth,
        background=background,
        orientation=orientation,
        max_pixels=max_pixels,
    )
    if on_error not in ("skip", "raise"):
        raise OptionError(f"on_error {on_error!r}: one of skip, raise")
    if workers is not None and workers < 1:
        raise OptionError(f"workers {workers}: at least 1")
    path = absolute_path(out)
    root = absolute_path(source)
    if os.path.realpath(path).startswith(os.path.join(os.path.realpath(root), "")):
        raise OptionError(f"{path} lies inside the folder that is packed; choose another place", path=path)
    if os.path.lexists(path) and not force and not dry_run:
        raise StoreExistsError(
            f"{path} exists already; choose another name, or replace it with force (--force)", path=path
        )
    names = load_classes(classes) if classes is not None else None
    others = [Store(other) for other in against]
    with Progress("scanning", unit="files", enabled=progress) as bar:
        seen = 0

        def count(files: int) -> None:
            nonlocal seen
            bar.advance(files - seen)
            seen = files

        index = scan(
            root,
            class_level="none" if labels is not None else class_level,
            classes=None if labels is not None else names,
            numeric_classes=numeric_classes,
            include_hidden=include_hidden,
            progress=count,
        )
    table = LabelTable(labels, names) if labels is not None else None
    outcome = PackReport(path=path, files=index.files, dry_run=dry_run)
    outcome.failed = list(bad_of(index))
    outcome.left_out = left_out_of(index)
    job = _Job(index, table, recipe, shuffle_seed)
    outcome.classes = len(job.classes) if job.classes is not None else None
    outcome.warnings = _warnings(index, recipe)
    if not len(index):
        raise _nothing(root, outcome)
    outcome.estimated_bytes = outcome.bytes = job.estimate()
    if dry_run:
        outcome.samples = len(index)
        outcome.seconds = time.monotonic() - started
        return outcome
    _check_room(path, outcome.estimated_bytes)
    report_path = absolute_path(report) if report is not None else f"{path}.report.jsonl"
    try:
        job.run(path, outcome, workers or _cpus(), on_error=on_error, force=force, progress=progress)
        _examine(Store(path), others, recipe, outcome)
    finally:
        outcome.seconds = time.monotonic() - started
        if outcome.samples or outcome.failed:
            outcome.write(report_path)
    return outcome


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Job:
    """One folder on its way into one store."""

    def __init__(
        self, index: FolderIndex, table: LabelTable | None, recipe: ImageRecipe, shuffle_seed: int | None
    ) -> None:
        self.index = index
        self.table = table
        self.recipe = recipe
        self.shuffle_seed = shuffle_seed
        self.classes = table.classes if table is not None else index.classes
        self.order: Sequence[int] = range(len(index))
        if shuffle_seed is not None:
            generator = np.random.Generator(np.random.Philox(abs(shuffle_seed)))
            self.order = generator.permutation(len(index)).astype(np.int64)  # type: ignore[assignment]

    def estimate(self) -> int:
        """Return about how many bytes the store will take: from sizes, or from a sample encoded."""
        recipe, index, count = self.recipe, self.index, len(self.index)
        if recipe.size is not None:
            return count * (recipe.size[0] * recipe.size[1] * 3 + _ROW_BYTES)
        ratio = 1.0
        if recipe.codec != "keep":
            ingester, read, made = Ingester(recipe), 0, 0
            for at in np.linspace(0, count - 1, min(count, 16)).astype(int).tolist():
                result = ingester(index.location(at))
                if isinstance(result.value, bytes):
                    read, made = read + result.source_bytes, made + len(result.value)
            ratio = made / read if read else 1.0
        return int(index.total_bytes * ratio) + count * (2048 + _ROW_BYTES)

    def run(
        self, path: str, outcome: PackReport, workers: int, *, on_error: str, force: bool, progress: bool | None
    ) -> None:
        """Prepare in parallel, write in order; go on where an interrupted run was."""
        recipe = self.recipe
        schema = {"image": recipe.schema, **_COLUMNS}
        if self.classes is not None:
            schema = {"image": recipe.schema, "label": "int64", **_COLUMNS}
        writer = StoreWriter(
            path,
            schema=schema,
            classes=self.classes,
            attrs={"kind": "images", "recipe": asdict(recipe), "formats": FORMATS, "modes": MODES, "root": printable(self.index.root)},
            force=force,
            resume=self._fingerprint(),
        )
        ingester = Ingester(recipe)
        with writer, Progress("packing", total=len(self.index), unit="images", enabled=progress) as bar:
            outcome.resumed = outcome.samples = len(writer)
            start = self._skip_done(writer, ingester, outcome)
            bar.advance(start)
            for position, result in self._results(ingester, start, workers):
                self._take(writer, position, result, outcome, on_error)
                bar.advance(1, nbytes=result.source_bytes)
            if outcome.samples == 0:
                writer.abort()
                shutil.rmtree(partial_path(path), ignore_errors=True)
                raise _nothing(self.index.root, outcome)

    def _fingerprint(self) -> str:
        text = msgspec.json.encode([asdict(self.recipe), self.classes, self.shuffle_seed])
        labels = xxhash.xxh3_128_hexdigest(self.table.content()) if self.table is not None else ""
        return f"{self.index.fingerprint} {xxhash.xxh3_128_hexdigest(text)} {labels}"

    def _skip_done(self, writer: StoreWriter, ingester: Ingester, outcome: PackReport) -> int:
        """Return where to go on. Files an earlier run passed over are looked at again for the reason."""
        at = 0
        for key in writer.keys():
            while self.index.paths.bytes(int(self.order[at])) != key:
                self._missed(int(self.order[at]), ingester, outcome)
                at += 1
            at += 1
        return at

    def _missed(self, position: int, ingester: Ingester, outcome: PackReport) -> None:
        if self._label(position) is None and self.table is not None:
            self._refuse(position, ImageResult(None, {}, 0, "no label"), outcome)
            return
        result = ingester(self.index.location(position))
        reason = result.reason or "was bad when an earlier run met it; pack anew to include it"
        self._refuse(position, ImageResult(None, {}, 0, reason, result.foreign), outcome)

    def _results(
        self, ingester: Ingester, start: int, workers: int
    ) -> Iterator[tuple[int, ImageResult]]:
        index = self.index

        def prepare(position: int) -> tuple[int, ImageResult]:
            if self.table is not None and self._label(position) is None:
                return position, ImageResult(None, {}, 0, "no label")
            return position, ingester(index.location(position))

        sizes = index.sizes.array
        items = ((int(p), int(sizes[p])) for p in self.order[start:])
        return run_in_order(prepare, items, workers=workers)

    def _label(self, position: int) -> int | None:
        if self.table is not None:
            return self.table.label_of(self.index.paths.bytes(position))
        return None if self.index.labels is None else int(self.index.labels.array[position])

    def _take(
        self, writer: StoreWriter, position: int, result: ImageResult, outcome: PackReport, on_error: str
    ) -> None:
        outcome.source_bytes += result.source_bytes
        if result.value is None:
            self._refuse(position, result, outcome)
            if on_error == "raise" and not (result.foreign and not self.index.has_extension(position)):
                name = printable(self.index.paths[position])
                raise DecodeError(
                    f"{name}: {result.reason}; mend or remove it, or skip bad files with on_error='skip' "
                    "(--on-error skip)",
                    path=self.index.paths[position],
                )
            return
        sample: dict[str, Any] = {"image": result.value, **result.row}
        label = self._label(position)
        if label is not None:
            sample["label"] = label
        writer.add(sample, key=self.index.paths.bytes(position))
        outcome.samples += 1

    def _refuse(self, position: int, result: ImageResult, outcome: PackReport) -> None:
        name = self.index.paths[position]
        if result.reason == "no label":
            _count_left_out(outcome, "label", "not named in the labels file", name)
        elif result.foreign and not self.index.has_extension(position):
            _count_left_out(outcome, "extension", "no extension, and not an image", name)
        else:
            outcome.failed.append((name, result.reason))


def _count_left_out(outcome: PackReport, kind: str, reason: str, example: str) -> None:
    for item in outcome.left_out:
        if item["reason"] == reason:
            item["count"] += 1
            return
    item = {"kind": kind, "reason": reason, "example": example, "count": 1, "is_folder": False}
    outcome.left_out.append(item)


def _check_room(path: str, needed: int) -> None:
    folder = os.path.dirname(path)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    done = 0
    if os.path.isdir(partial_path(path)):
        done = sum(entry.stat().st_size for entry in os.scandir(partial_path(path)))
    free = shutil.disk_usage(folder).free + done
    if needed > free:
        raise StorageFullError(
            f"{path}: about {needed:,} bytes are needed and {free:,} are free on this disk; make room, or "
            "store less (--codec jpeg --max-side 512)",
            path=path,
        )


def _nothing(root: str, outcome: PackReport) -> SourceError:
    seen = [f"{item['count']} {item['reason']}" for item in outcome.left_out[:8]]
    bad = [f"{printable(name)}: {reason}" for name, reason in outcome.failed[:3]]
    text = f"{printable(root)}: no image could be packed"
    if seen:
        text += f"; left out: {', '.join(seen)}"
    if bad:
        text += f"; bad: {'; '.join(bad)}"
    return SourceError(f"{text}. Extensions that count: jpg png webp gif bmp tif, or none at all", path=root)


def _warnings(index: FolderIndex, recipe: ImageRecipe) -> list[str]:
    warnings = []
    if index.empty_classes:
        shown = ", ".join(printable(n) for n in index.empty_classes[:10])
        warnings.append(f"{len(index.empty_classes)} class folders hold no image and keep their number: {shown}")
    if index.numeric_mismatch:
        warnings.append(
            "class folders are named by numbers, but names are sorted as text, so label and name differ; "
            "numeric_classes=True (--numeric-classes) makes label == int(name)"
        )
    if recipe.orientation == "ignore":
        warnings.append("EXIF orientation is ignored, as asked: pictures are read as they are stored")
    return warnings


def _examine(store: Store, others: list[Store], recipe: ImageRecipe, outcome: PackReport) -> None:
    """Fill in what is known once the store is there: counts, duplicates, warnings about content."""
    outcome.digest = store.digest
    outcome.bytes = os.path.getsize(store.path)
    outcome.content = counts = content_counts(store)
    outcome.duplicates = find_duplicates(store)
    conflicts = sum(group.conflicting for group in outcome.duplicates)
    if conflicts:
        outcome.warnings.append(f"{conflicts} pictures are stored under different labels; see the report")
    if others:
        outcome.duplicates += (shared := find_duplicates(store, others))
        if shared:
            outcome.warnings.append(f"{len(shared)} pictures are also in {', '.join(o.path for o in others)}")
    modes = counts["mode"]
    alpha = sum(modes.get(m, 0) for m in ("LA", "PA", "RGBA"))
    if alpha and recipe.codec in ("keep", "png", "webp"):
        outcome.warnings.append(
            f"{alpha} pictures have an alpha channel; read as RGB, transparent pixels show a background, "
            "white unless the dataset is told otherwise"
        )
    elif alpha:
        outcome.warnings.append(f"{alpha} pictures had an alpha channel; {recipe.background} shows through")
    deep = sum(n for bits, n in counts["bits"].items() if int(bits) > 8)
    if recipe.depth == "8" and deep:
        outcome.warnings.append(f"{deep} pictures with more than 8 bits were scaled to 8, as asked")
    elif deep and deep < outcome.samples:
        outcome.warnings.append(
            f"{deep} of {outcome.samples} pictures have more than 8 bits; when read together with the others "
            "all take the depth of the first one (depth= of the dataset)"
        )
    kept = counts["format"].get("png", 0)
    if recipe.codec in ("jpeg", "webp") and kept:
        outcome.warnings.append(f"{kept} pictures are kept without loss as PNG: {recipe.codec} cannot hold them")
    if counts["frames"]["several"]:
        outcome.warnings.append(f"{counts['frames']['several']} files have several frames; the first one is read")


