"""Packs a folder of slides and large pictures into a store: scan, plan, tile by tile, report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from sharedds.ingest.options import PathLike, path_of
from sharedds.ingest.packing import Packing
from sharedds.ingest.report import FailureLog, PackReport
from sharedds.ingest.slides.job import SlideJob, annotations_of
from sharedds.ingest.slides.recipe import SlideCodec, SlideRecipe
from sharedds.ingest.slides.scan import find_slides

__all__ = ["pack_slides"]

_MOST_WORKERS = 16


def pack_slides(
    source: PathLike,
    out: PathLike,
    *,
    tile: int = 256,
    codec: SlideCodec = "auto",
    quality: int = 90,
    chroma: Literal["auto", "444", "420"] = "auto",
    levels: int | Literal["auto"] = "auto",
    plane: int | None = None,
    associated: Iterable[str] = (),
    annotations: PathLike | None = None,
    max_pixels: int | None = None,
    include_hidden: bool = False,
    on_error: Literal["skip", "raise"] = "skip",
    workers: int | None = None,
    shards: int | None = None,
    shard_size: int | str | None = None,
    force: bool = False,
    dry_run: bool = False,
    report: PathLike | None = None,
    progress: bool | None = None,
) -> PackReport:
    """Pack a folder of slides into one file. Interrupted, even by kill -9, the same call goes on.

    Each slide becomes a pyramid of tiles, with the tissue, mean colour and sharpness of its cells
    (``slide_index``) and, of annotations, the pixels of each class (``slide_shapes``). Memory does
    not depend on the size of slides: some rows of tiles at a time.

    Args:
        source: The folder: TIFF, BigTIFF, Aperio, OME-TIFF, formats that OpenSlide reads, and
            pictures of any size that libvips streams.
        out: The file to make; it appears when it is whole.
        tile: Side of the tiles in pixels, a multiple of 16.
        codec: ``"keep"`` copies the JPEG tiles of the files as they are, at their size;
            ``"jpeg"`` encodes anew; ``"png"``, ``"lz4"``, ``"zstd"``, ``"webp"`` and ``"raw"`` lose
            nothing. ``"auto"`` is ``"jpeg"`` where all slides have 8 bits and 1 or 3 channels, else
            ``"zstd"``.
        quality: Of ``"jpeg"``, 1 to 100.
        chroma: Of ``"jpeg"``: colour at full (``"444"``) or half resolution (``"420"``); ``"auto"``
            is half below quality 95.
        levels: How many resolutions; ``"auto"``: those of the file, then halves until the longer
            side is at most two tiles. A level that the file has not is made of means of 2 x 2
            pixels of the level before.
        plane: Of a focus stack; by default all planes, as an axis of their own.
        associated: Pictures beside the levels to keep: ``"label"`` (it may show a patient's name),
            ``"macro"``, ``"thumbnail"``.
        annotations: A folder of GeoJSON files named as the slides are, or one file for one slide.
        max_pixels: Refuse larger streamed pictures; 100 gigapixels by default.
        include_hidden: Let files and folders count whose name starts with a dot.
        on_error: ``"skip"``: a bad slide is left out, a bad tile becomes one that is not there,
            and both are reported; or ``"raise"`` at the first.
        workers: Threads; by default one for each CPU, 16 at most. The content does not depend on
            it.
        shards: Write a folder of at most so many files; see ``docs/shards.md``.
        shard_size: Or of files of so many bytes, such as ``"16GiB"``.
        force: Replace an existing file, in one step at the end.
        dry_run: Read headers and estimate only; nothing is written.
        report: Where the JSONL report goes; by default ``OUT.report.jsonl``.
        progress: True or False to show a bar; by default after two seconds.

    Returns:
        What was packed and what was not; also written as JSON lines.

    Raises:
        SourceError: The folder or annotations cannot be read, or there is no slide.
        StoreExistsError: ``out`` exists and ``force`` is not set; or ``report`` does, and is none.
        StorageFullError: Not enough room; what is done is kept and goes on with the same call.
        OptionError: An option is wrong.
        DecodeError: A bad slide or tile, with ``on_error="raise"``.
        MissingExtraError: A file needs a package that is not installed.
    """
    recipe = SlideRecipe.of(
        tile=tile,
        codec=codec,
        quality=quality,
        chroma=chroma,
        levels=levels,
        plane=plane,
        associated=associated,
        max_pixels=max_pixels,
    )
    packing = Packing.begin(
        "slides",
        source,
        out,
        on_error=on_error,
        workers=workers,
        most_workers=_MOST_WORKERS,
        shards=shards,
        shard_size=shard_size,
        force=force,
        dry_run=dry_run,
        report=report,
        progress=progress,
    )
    drawn = "" if annotations is None else annotations_of(path_of("annotations", annotations))
    with packing.scanning() as bar:
        found = find_slides(
            packing.root,
            max_pixels=recipe.max_pixels,
            include_hidden=include_hidden,
            aside=(drawn,) if drawn else (),
            progress=lambda files: bar.advance(files - bar.count),
        )
    packing.outcome.files = found.files
    with FailureLog() as failures:
        for name, reason, _ in found.bad:
            failures.add(name, reason)
        for kind, reason, name, count in found.left_out:
            if count:
                packing.outcome.leave_out(kind, reason, name)
        job = SlideJob(found, recipe, drawn, packing=packing, failures=failures)
        return packing.carry_out(job, failures)
