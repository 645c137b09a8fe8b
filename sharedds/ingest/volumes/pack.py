"""Packs a folder of medical volumes into a store: scan, pair, check, write, report."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import xxhash

from sharedds.ingest.options import PathLike, path_of
from sharedds.ingest.packing import Packing
from sharedds.ingest.report import LISTED, FailureLog, PackReport
from sharedds.ingest.volumes.cases import Case, Description, Layout, hidden
from sharedds.ingest.volumes.job import VolumeJob
from sharedds.ingest.volumes.layouts import find_cases
from sharedds.ingest.volumes.recipe import Prefer, VolumeCodec, VolumeRecipe
from sharedds.ingest.volumes.scan import Found, find_volumes
from sharedds.ingest.volumes.series import SAME_INSTANCE
from sharedds.ingest.volumes.table import cases_of_table, load_description, read_table
from sharedds.packed import encode_text

__all__ = ["pack_volumes"]

_MOST_WORKERS = 8  # each holds up to 64 MiB of voxels


def pack_volumes(
    source: PathLike,
    out: PathLike,
    *,
    patch: Sequence[int] | None = None,
    labels: PathLike | None = None,
    spacing: Sequence[float] | float | None = None,
    orientation: str | None = None,
    crop_foreground: bool | float = False,
    dtype: Any = None,
    codec: VolumeCodec = "auto",
    allow_gaps: bool = False,
    allow_single: bool = False,
    invert: bool = False,
    keep_tags: Iterable[str] = (),
    anonymous: bool = False,
    prefer: Prefer = "sform",
    resample_labels: bool = False,
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
    """Pack a folder of volumes into one file. Interrupted, even by kill -9, the same call goes on.

    Files are recognised by content: NIfTI, DICOM series, NRRD, MetaImage, NumPy. A case is one
    sample: an image (i, j, k) or (steps, i, j, k) in the dtype of the file, and its label.
    ``docs/volumes.md`` says which layouts of folders are understood.

    Args:
        source: The folder.
        out: The file to make; it appears when it is whole.
        patch: (i, j, k) of the patches a training will read: shapes the blocks.
        labels: A CSV file with the columns case, image, label, group instead of names that tell.
        spacing: Resample to these millimetres along (i, j, k), or one number for all three.
        orientation: Turn the axes to point there, such as ``"RAS"``; voxels stay what they are.
        crop_foreground: Cut to the box of the voxels that measure above this number; True for above
            the lowest value of the volume, which is that of a masked background. The air of a CT is
            seldom one value: give -500 or so.
        dtype: Convert to this dtype where every value fits.
        codec: Of the blocks: ``"raw"``, ``"blosc"``, ``"zstd"``, ``"lz4"``; ``"auto"``
            tries the first three on some.
        allow_gaps: Of DICOM series: fill missing slices instead of refusing the series.
        allow_single: Of DICOM series: a single slice is a volume.
        invert: Of DICOM series: turn MONOCHROME1 round.
        keep_tags: DICOM keywords whose values are kept; they may name patients.
        anonymous: Name cases by a hash of their path.
        prefer: Which placement of a NIfTI file counts where its two disagree, or ``"refuse"``.
        resample_labels: Put labels of another grid onto that of their image, by nearest neighbour,
            instead of refusing the case.
        include_hidden: Also look at files and folders whose name begins with a dot.
        on_error: ``"skip"`` bad cases and report them, or ``"raise"`` at the first.
        workers: Threads that unpack and check; by default one for each CPU, 8 at most.
        shards: Write a folder of at most so many files; see ``docs/shards.md``.
        shard_size: Or of files of so many bytes, such as ``"16GiB"``.
        force: Replace an existing file, in one step at the end.
        dry_run: Read headers and estimate only; nothing is written.
        report: Where the JSONL report goes; by default ``OUT.report.jsonl``.
        progress: True or False to show a bar; by default after two seconds.

    Returns:
        What was packed and what was not; also written as JSON lines, without any place.

    Raises:
        SourceError: The folder cannot be read, or holds no volume; or the report cannot be written.
        StoreExistsError: ``out`` exists and ``force`` is not set; or ``report`` does, and is none.
        StorageFullError: Not enough room; what is done is kept and goes on with the same call.
        OptionError: An option is wrong, or names allow for several ways to pair files.
        DecodeError: A bad case, with ``on_error="raise"``.
        MissingExtraError: A file needs a package that is not installed.
    """
    recipe = VolumeRecipe.of(
        patch=patch,
        spacing=spacing,
        orientation=orientation,
        crop_foreground=crop_foreground,
        dtype=dtype,
        codec=codec,
        allow_gaps=bool(allow_gaps),
        allow_single=bool(allow_single),
        invert=bool(invert),
        keep_tags=keep_tags,
        anonymous=bool(anonymous),
        prefer=prefer,
        resample_labels=bool(resample_labels),
    )
    packing = Packing.begin(
        "volumes",
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
    outcome = packing.outcome
    listed = None if labels is None else path_of("labels", labels)
    rows = None if listed is None else read_table(listed)
    with packing.scanning() as bar:
        found = find_volumes(
            packing.root,
            recipe.dicom,
            prefer=recipe.prefer,
            include_hidden=include_hidden,
            aside=() if listed is None else (listed,),
            progress=lambda files: bar.advance(files - bar.count),
        )
    description = Description()
    if found.description:
        description = load_description(os.fspath(found.location(found.description)))
    if listed is None or rows is None:
        layout = find_cases(found.entries, description)
    else:
        layout = cases_of_table(listed, rows, packing.root, found.entries)
    outcome.files, outcome.layout = found.files, layout.kind
    with FailureLog() as failures:
        _take_over(found, layout, recipe, outcome, failures)
        outcome.warnings += _remarks_on_layout(layout, recipe)
        job = VolumeJob(found, layout, description, recipe, packing=packing, failures=failures)
        return packing.carry_out(job, failures)


def _take_over(
    found: Found,
    layout: Layout,
    recipe: VolumeRecipe,
    outcome: PackReport,
    failures: FailureLog,
) -> None:
    """Note what a scan found that becomes no case."""

    def told(path: str) -> str:
        if not recipe.anonymous:
            return path
        return f"file-{xxhash.xxh3_64_hexdigest(encode_text(path))}"

    def plain(text: str, *names: str) -> str:
        return hidden(text, names, told) if recipe.anonymous else text

    for path, reason, files in found.bad:
        more = f" ({len(files):,} files)" if len(files) > 1 else ""
        failures.add(told(path), plain(reason, path, *files) + more)
    for kind, reason, path, count in found.left_out:
        copied = reason.partition(SAME_INSTANCE)[2]
        _leave_out(outcome, kind, plain(reason, path, copied), told(path), count)
    for entry, reason in layout.left_out:
        for path in entry.files:
            _leave_out(outcome, "layout", reason, told(path), 1)


def _leave_out(outcome: PackReport, kind: str, reason: str, path: str, count: int) -> None:
    """Count a file that was left out; those of DICOM and of the layout are listed one by one."""
    if kind in ("dicom", "layout", "list", "folder") and len(outcome.left_out) < LISTED:
        entry = {"kind": kind, "reason": reason, "example": path, "count": max(count, 1)}
        outcome.left_out.append({**entry, "is_folder": not count})
    else:
        outcome.leave_out(kind, reason, path)


def _remarks_on_layout(layout: Layout, recipe: VolumeRecipe) -> list[str]:
    """Return what a person should know of the folder as a whole."""
    remarks = []
    labelled = sum(case.label is not None for case in layout.cases)
    if 0 < labelled < len(layout.cases):
        bare = next(case.name for case in layout.cases if case.label is None)
        remarks.append(
            f"{len(layout.cases) - labelled:,} of {len(layout.cases):,} cases have no label, such "
            f"as {recipe.key(bare)}"
        )
    named = sum(_names_patient(case) for case in layout.cases)
    if named and not recipe.anonymous:
        paths = "1 path contains" if named == 1 else f"{named:,} paths contain"
        remarks.append(
            f"{paths} a patient's name or number, which is kept as the name of the case; "
            "anonymous=True (--anonymous) names cases by a hash"
        )
    return remarks


def _names_patient(case: Case) -> bool:
    words = {word for entry in case.entries for word in entry.patient}
    name = case.name.lower()
    return any(word in name for word in words)
