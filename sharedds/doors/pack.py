"""Packs what a folder or file holds: pictures, volumes, slides, or another format of dataset."""

from __future__ import annotations

import time
from dataclasses import fields
from typing import Any, Literal, Unpack

from sharedds.doors.job import DoorJob
from sharedds.doors.recognise import FORMATS, DoorFormat, Entrance, open_door, recognise
from sharedds.doors.stream import Contents
from sharedds.errors import DecodeError, OptionError, SourceError
from sharedds.ingest import pack as pack_folder
from sharedds.ingest.executor import usable_cpus
from sharedds.ingest.images.examine import examine
from sharedds.ingest.images.labels import load_classes
from sharedds.ingest.images.prepare import ImageRecipe
from sharedds.ingest.kinds import Kind, PackOptions
from sharedds.ingest.options import PathLike, path_list, path_of, shown, whole
from sharedds.ingest.places import check_places, check_room, output_exists
from sharedds.ingest.report import FailureLog, PackReport, write_report
from sharedds.progress import Progress
from sharedds.store import Store

__all__ = ["pack"]

_RECIPE = frozenset(field.name for field in fields(ImageRecipe))
_OTHERS = frozenset(
    (
        *("classes", "on_error", "against", "workers", "force", "dry_run", "report", "progress"),
        "on_estimate",
    )
)
_ROW_BYTES = 200


def pack(
    source: PathLike,
    out: PathLike,
    *,
    kind: Kind = "auto",
    format: DoorFormat = "auto",
    images: PathLike | None = None,
    split: str | None = None,
    allow_pickle: bool = False,
    **options: Unpack[PackOptions],
) -> PackReport:
    """Pack a folder, or another dataset, into one file. Interrupted, the same call goes on.

    Args:
        source: The folder of pictures, volumes or slides; or a dataset of another format, which
            its content tells: ``docs/formats-in-and-out.md`` has them all.
        out: The file to make; it appears when it is whole.
        kind: Of a folder: ``"image"``, ``"volume"``, ``"slide"``, or ``"auto"``: what it holds.
        format: ``"folder"``, ``"webdataset"``, ``"csv"``, ``"coco"``, ``"voc"``, ``"parquet"``,
            ``"huggingface"``, ``"mds"``, ``"lmdb"``, ``"litdata"``, or ``"auto"``: looked at.
        images: The folder that file names in a CSV file or in annotations are relative to.
        split: Of a dataset that has several: which one.
        allow_pickle: Read values of LMDB, MDS or LitData that are pickles; only those of plain
            Python values and arrays, and never without this.
        options: Of :func:`sharedds.ingest.pack_images`, ``pack_volumes`` and ``pack_slides``; of
            another format those about pictures, ``classes``, ``against`` and those of all.

    Returns:
        What was packed and what was not; also written as JSON lines.

    Raises:
        OptionError: An option that does not go with what there is.
        SourceError: The source cannot be read, or holds nothing to pack.
        StoreExistsError: ``out`` exists and ``force`` is not set.
        StorageFullError: Not enough room; what is done is kept and goes on with the same call.
        MissingExtraError: Arrow and Parquet are read with pyarrow, which is not installed.
        DecodeError: The source is damaged; or a bad sample, with ``on_error="raise"``.
    """
    if format not in FORMATS:
        raise OptionError(f"format {shown(format)}: one of {', '.join(FORMATS)}")
    found = format
    if format == "auto":
        found = "folder" if kind != "auto" else recognise(path_of("source", source))
    if found == "folder":
        _refuse_door_options(images=images, split=split, allow_pickle=allow_pickle)
        return pack_folder(source, out, kind=kind, **options)
    if kind not in ("auto", "image"):
        raise OptionError(f"kind {kind!r} is of folders; a {found} source holds pictures")
    for name in options:
        if name not in _RECIPE | _OTHERS:
            raise OptionError(f"{name} is an option for folders; {found} sources have none such")
    entrance = Entrance(
        root=path_of("source", source),
        images=None if images is None else path_of("images", images),
        split=split,
        allow_pickle=bool(allow_pickle),
        classes=_classes(options),
    )
    return _pack(entrance, found, path_of("out", out), dict(options))


def _refuse_door_options(**options: Any) -> None:
    for name, value in options.items():
        if value:
            raise OptionError(f"{name} goes with datasets of other formats, not with a folder")


def _classes(options: Any) -> tuple[str, ...] | None:
    classes = options.get("classes")
    return None if classes is None else load_classes(classes)


def _pack(entrance: Entrance, found: DoorFormat, path: str, options: dict[str, Any]) -> PackReport:
    started = time.monotonic()
    recipe = ImageRecipe(**{name: options[name] for name in options if name in _RECIPE})
    on_error: Literal["skip", "raise"] = options.get("on_error", "skip")
    if on_error not in ("skip", "raise"):
        raise OptionError(f"on_error {shown(on_error)}: one of skip, raise")
    workers = whole("workers", options.get("workers"), 1, optional=True) or usable_cpus()
    force, dry_run = bool(options.get("force")), bool(options.get("dry_run"))
    report = options.get("report")
    place = path_of("report", report) if report is not None else f"{path}.report.jsonl"
    outcome = PackReport(path=path, report="" if dry_run else place, dry_run=dry_run)
    made = check_places(entrance.root, path, place, force=force, dry_run=dry_run)
    others = [Store(other) for other in path_list("against", options.get("against") or ())]
    door = open_door(found, entrance)
    with Progress("looking", unit="samples", enabled=options.get("progress")) as bar:
        contents = door.look(lambda count: bar.advance(count))
    _require_fitting(contents, recipe)
    outcome.layout = found
    outcome.warnings = list(contents.notes)
    with FailureLog() as failures:
        job = DoorJob(door, contents, recipe, outcome=outcome, failures=failures)
        if made is not None and made.attrs["work"] != job.work:
            raise output_exists(path)
        for reason, example, count in contents.passed_over:
            said = {"kind": "member", "reason": reason, "example": example, "count": count}
            outcome.left_out.append({**said, "is_folder": False})
        left_out = outcome.left_out_count
        outcome.classes = None if contents.classes is None else len(contents.classes)
        outcome.estimated_bytes = outcome.bytes = _estimate(contents, recipe)
        try:
            _run(job, made, path, workers, on_error, options)
        except (DecodeError, SourceError):
            if failures.count and not dry_run:
                outcome.files += left_out
                failures.finish(outcome, started)
                write_report(outcome, failures)
            raise
        outcome.files += left_out
        duplicates = [] if dry_run else examine(Store(path), others, recipe, outcome)
        failures.finish(outcome, started)
        if not dry_run:
            write_report(outcome, failures, duplicates)
        return outcome


def _run(
    job: DoorJob,
    made: Store | None,
    path: str,
    workers: int,
    on_error: str,
    options: dict[str, Any],
) -> None:
    outcome, contents = job.outcome, job.contents
    if not contents.samples:
        raise job.nothing_found()
    if options.get("dry_run"):
        outcome.samples = outcome.files = contents.samples
        return
    if made is not None:
        job.finish(made)
        return
    on_estimate = options.get("on_estimate")
    if on_estimate is not None:
        on_estimate(contents.samples, outcome.estimated_bytes)
    exact = job.recipe.codec in ("keep", "raw")
    check_room(path, outcome.estimated_bytes // (1 if exact else 2))
    job.run(
        path,
        workers=workers,
        on_error=on_error,
        force=bool(options.get("force")),
        progress=options.get("progress"),
    )


def _estimate(contents: Contents, recipe: ImageRecipe) -> int:
    if recipe.size is not None:
        return contents.samples * (recipe.size[0] * recipe.size[1] * 3 + _ROW_BYTES)
    return contents.nbytes + contents.samples * _ROW_BYTES


def _require_fitting(contents: Contents, recipe: ImageRecipe) -> None:
    if recipe.codec != "keep" and (several := contents.pictures[1:]):
        raise OptionError(
            f"codec {recipe.codec!r} would change the field image and not {', '.join(several)}, "
            "which belong to it; keep the bytes (codec='keep')"
        )
    if recipe.codec != "keep" and contents.attrs.get("boxes"):
        raise OptionError(
            f"codec {recipe.codec!r} may shrink or turn pictures, and boxes are in their pixels; "
            "keep the bytes (codec='keep')"
        )
