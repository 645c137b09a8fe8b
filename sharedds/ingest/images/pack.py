"""Packs a folder of pictures into a store: scan, prepare in parallel, write in order, report."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Literal

import numpy as np
import numpy.typing as npt

from sharedds.codecs import DEFAULT_MAX_PIXELS
from sharedds.errors import OptionError, SourceError
from sharedds.folder import ClassLevel, FolderIndex, scan
from sharedds.ingest.images.examine import remarks_on_folder
from sharedds.ingest.images.job import ImageJob
from sharedds.ingest.images.labels import NO_LABEL, LabelTable, load_classes
from sharedds.ingest.images.prepare import Codec, ImageRecipe
from sharedds.ingest.options import PathLike, path_list, path_of, whole
from sharedds.ingest.packing import Packing
from sharedds.ingest.report import FailureLog, PackReport
from sharedds.store import Store
from sharedds.text import printable

__all__ = ["pack_images"]


def pack_images(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    codec: Codec = "keep",
    quality: int = 90,
    chroma: Literal["auto", "444", "420"] = "auto",
    raw_share: float = 0.0,
    raw_below: int = 0,
    max_side: int | None = None,
    short_side: int | None = None,
    size: tuple[int, int] | None = None,
    check: Literal["decode", "header"] = "decode",
    depth: Literal["keep", "8"] = "keep",
    background: tuple[int, int, int] | str = (255, 255, 255),
    orientation: Literal["apply", "ignore"] = "apply",
    max_pixels: int | None = DEFAULT_MAX_PIXELS,
    class_level: ClassLevel = "auto",
    classes: str | os.PathLike[str] | Iterable[str] | None = None,
    labels: str | os.PathLike[str] | None = None,
    numeric_classes: bool = False,
    include_hidden: bool = False,
    shuffle_seed: int | None = None,
    on_error: Literal["skip", "raise"] = "skip",
    against: PathLike | Iterable[PathLike] = (),
    workers: int | None = None,
    shards: int | None = None,
    shard_size: int | str | None = None,
    force: bool = False,
    dry_run: bool = False,
    report: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    on_scan: Callable[[FolderIndex], None] | None = None,
    on_estimate: Callable[[int, int], None] | None = None,
) -> PackReport:
    """Pack a folder of images into one file. Interrupted, even by kill -9, the same call goes on.

    Args:
        source: The folder. Sub-folders are classes unless ``class_level`` says otherwise.
        out: The file to make; it appears when it is whole.
        codec: ``"keep"`` the original bytes, or encode anew: ``"jpeg" "png" "webp"``, or ``"raw"``
            with ``size``.
        quality: Of ``"jpeg"``; ``"webp"`` is without loss.
        chroma: Of ``"jpeg"``: colour at full (``"444"``) or half resolution (``"420"``); ``"auto"``
            is half below quality 95.
        raw_share: With ``"jpeg"``: store this share of the pictures, from 0 to 1, as pixels: read
            several times faster, and several times as large. The content of a file decides.
        raw_below: With ``"jpeg"``: store pictures whose pixels take fewer bytes as pixels.
        max_side: Shrink to this longest side, in pixels.
        short_side: Shrink to this shortest side, in pixels.
        size: (height, width) of raw pixels.
        check: ``"decode"`` proves every picture; ``"header"`` trusts beyond the header.
        depth: ``"8"`` scales 16-bit values to 8 bits when encoding anew.
        background: Colour behind transparent pixels where the codec has no alpha: white, black,
            grey, hexadecimal, or (red, green, blue).
        orientation: ``"ignore"`` leaves pictures as stored, whatever EXIF says; kept in the file.
        max_pixels: Refuse larger pictures before decoding; None for no limit.
        class_level: See :func:`sharedds.folder.scan`.
        classes: Names that fix the numbering: a list, a file of one name a line, another store.
        labels: A CSV file with the columns path and label, instead of class folders. Files that it
            does not name are left out.
        numeric_classes: Class folders are named by numbers, and these are the labels.
        include_hidden: Also pack files and folders whose name begins with a dot.
        shuffle_seed: Store in a random order of the whole set, the same for the same seed.
        on_error: ``"skip"`` bad files and report them, or ``"raise"`` at the first.
        against: A store, or several, to look for the same pictures in (a test set, say).
        workers: Threads that decode and encode; by default one for each CPU.
        shards: Write a folder of at most so many files; see ``docs/shards.md``.
        shard_size: Or of files of so many bytes, such as ``"16GiB"``.
        force: Replace an existing file, in one step at the end; who has it open goes on reading it.
        dry_run: Scan and estimate only; nothing is written.
        report: Where the JSONL report goes; by default ``OUT.report.jsonl``.
        progress: True or False to show a bar; by default after two seconds.
        on_scan: Called with what the folder holds, before anything is read or written.
        on_estimate: Called before the first picture is packed, with how many there are and about
            how many bytes the store will take.

    Returns:
        What was packed and what was not; also written as JSON lines.

    Raises:
        SourceError: The folder cannot be read, or holds no image; or the report cannot be written.
        StoreExistsError: ``out`` exists and ``force`` is not set; or ``report`` does, and is none.
        StorageFullError: Not enough room; what is done is kept and goes on with the same call.
        OptionError, ClassMismatchError: The options do not fit each other or the folder.
        DecodeError: A bad file, with ``on_error="raise"``.
    """
    recipe = ImageRecipe(
        codec=codec,
        quality=quality,
        chroma=chroma,
        raw_share=raw_share,
        raw_below=raw_below,
        max_side=max_side,
        short_side=short_side,
        size=size,
        check=check,
        depth=depth,
        background=background,
        orientation=orientation,
        max_pixels=max_pixels,
    )
    shuffle_seed = whole("shuffle_seed", shuffle_seed, None, optional=True)
    if labels is not None and (numeric_classes or class_level not in ("auto", "none")):
        raise OptionError(
            "labels= takes the place of class folders; drop numeric_classes or class_level"
        )
    packing = Packing.begin(
        "images",
        source,
        out,
        on_error=on_error,
        workers=workers,
        shards=shards,
        shard_size=shard_size,
        force=force,
        dry_run=dry_run,
        report=report,
        progress=progress,
    )
    outcome = packing.outcome
    names = load_classes(classes) if classes is not None else None
    others = [Store(other) for other in path_list("against", against)]
    table = LabelTable(path_of("labels", labels), names) if labels is not None else None
    with packing.scanning() as bar:
        index = scan(
            packing.root,
            class_level="none" if table is not None else class_level,
            classes=None if table is not None else names,
            numeric_classes=numeric_classes,
            include_hidden=include_hidden,
            progress=lambda files: bar.advance(files - bar.count),
        )
    if on_scan is not None:
        on_scan(index)
    with FailureLog() as failures:
        outcome.files = index.files
        failures.take_over(index, outcome)
        outcome.warnings = remarks_on_folder(index, recipe)
        job = ImageJob(
            index,
            recipe,
            labels=_labels(index, table, outcome),
            classes=table.classes if table is not None else index.classes,
            shuffle_seed=shuffle_seed,
            others=others,
            packing=packing,
            failures=failures,
        )
        outcome.classes = len(job.classes) if job.classes is not None else None

        def tell(estimated: int) -> None:
            if on_estimate is not None:
                on_estimate(job.count(), estimated)

        return packing.carry_out(job, failures, on_estimate=tell)


def _labels(
    index: FolderIndex, table: LabelTable | None, outcome: PackReport
) -> npt.NDArray[np.int64] | None:
    if table is None:
        return None if index.labels is None else index.labels.array
    labels, missing, example = table.match(index.paths)
    if missing:
        outcome.warnings.append(
            f"{missing:,} paths in {printable(table.path)} are not pictures of this folder, such "
            f"as {printable(example)}"
        )
    if len(index) and not np.any(labels != NO_LABEL):
        raise SourceError(
            f"{printable(table.path)}: none of its paths is a picture in {printable(index.root)}; "
            f"it names '{printable(example)}', the folder has '{printable(index.paths[0])}'",
            path=table.path,
        )
    return labels
