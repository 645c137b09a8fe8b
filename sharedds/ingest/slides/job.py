"""The slides of a folder on their way into a store: one after another, resumed inside of one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path

import xxhash

from sharedds.errors import DecodeError, SchemaError, SourceError
from sharedds.ingest.listing import reason_of
from sharedds.ingest.places import clear_published, other_work
from sharedds.ingest.report import FailureLog, PackReport, bad_file
from sharedds.ingest.slides.index import cell_of
from sharedds.ingest.slides.prepare import SlideWork, fill_spool, sample_of, stored_share
from sharedds.ingest.slides.recipe import SlidePlan, SlideRecipe
from sharedds.ingest.slides.scan import ANNOTATIONS, FoundSlide, FoundSlides
from sharedds.ingest.slides.shapes import Shapes, read_shapes
from sharedds.ingest.slides.spool import TileSpool, remove_spool, spool_path
from sharedds.packed import encode_text
from sharedds.progress import Progress
from sharedds.store import Store, StoreWriter
from sharedds.text import printable

__all__ = ["SlideJob", "nothing_packed"]

_SHRUNK = {"jpeg": 0.12, "png": 0.6, "webp": 0.5, "lz4": 0.75, "zstd": 0.65, "raw": 1.0}
_SAMPLED = 8  # slides that are looked into for an estimate
_EARLIER = "was bad when an earlier run met it; pack anew to include it"


class SlideJob:
    """What is to be packed, and how.

    Args:
        found: What the folder holds.
        recipe: How slides are stored.
        annotations: A folder of GeoJSON files named as the slides, or one file; empty for none.
        outcome: The report to fill in.
        failures: Takes the bad slides.

    Attributes:
        work: A text that is equal for equal work: only that is gone on with.
    """

    def __init__(
        self,
        found: FoundSlides,
        recipe: SlideRecipe,
        annotations: str,
        *,
        outcome: PackReport,
        failures: FailureLog,
    ) -> None:
        self.found = found
        self.recipe = recipe
        self.outcome = outcome
        self.failures = failures
        self.codec = recipe.codec_for(slide.file.header for slide in found.slides)
        self.labelled = bool(annotations)
        self._shapes = dict(self._drawn(annotations)) if annotations else {}
        self.classes = tuple(sorted({c for each in self._shapes.values() for c in each.classes}))
        self.plans: dict[str, SlidePlan] = {}
        self.slides = [slide for slide in found.slides if self._planned(slide)]
        sides = [side for plan in self.plans.values() for side in plan.levels[0].tile]
        self.cell = cell_of(math.gcd(*sides)) if sides else 0  # one for all slides
        for key, plan in self.plans.items():
            self.plans[key] = dataclasses.replace(plan, cell=self.cell)
        self.work = self._work()

    def _planned(self, slide: FoundSlide) -> bool:
        try:
            self.plans[slide.key] = self.recipe.plan(slide.file.header, self.codec)
        except DecodeError as error:
            self._refuse(slide, reason_of(error, self.found.root, slide.path))
            return False
        return True

    def _drawn(self, annotations: str) -> Iterator[tuple[str, Shapes]]:
        """Yield the regions of each slide that has some."""
        if os.path.isfile(annotations):
            if len(self.found.slides) != 1:
                raise SourceError(
                    f"{printable(annotations)}: one file of annotations for "
                    f"{len(self.found.slides):,} slides; give a folder with a file for each",
                    path=annotations,
                )
            yield self.found.slides[0].key, read_shapes(annotations)
            return
        used = set()
        for slide in self.found.slides:
            stem = os.path.join(annotations, os.path.splitext(slide.path)[0])
            for name in (f"{stem}.geojson", f"{stem}.json", f"{annotations}/{slide.key}.geojson"):
                if os.path.isfile(name):
                    used.add(os.path.normpath(name))
                    yield slide.key, read_shapes(name)
                    break
        self._tell_unused(annotations, used)

    def _tell_unused(self, annotations: str, used: set[str]) -> None:
        """Warn of files of annotations that are named as no slide: a slip would lose labels."""
        unused = [
            os.path.relpath(os.path.join(folder, name), annotations)
            for folder, _, names in os.walk(annotations)
            for name in names
            if name.lower().endswith(ANNOTATIONS)
            and os.path.normpath(os.path.join(folder, name)) not in used
        ]
        if unused:
            self.outcome.warnings.append(
                f"{len(unused):,} of the annotations are named as no slide, such as "
                f"{printable(min(unused))}; name them as the slides are"
            )

    def _work(self) -> str:
        drawn = {key: shapes.fingerprint for key, shapes in self._shapes.items()}
        names = [slide.key for slide in self.slides]
        options = json.dumps([self.recipe.to_json(), self.codec, names, drawn])
        return f"{self.found.fingerprint} {xxhash.xxh3_128_hexdigest(options.encode())}"

    def estimate(self) -> int:
        """Return about how many bytes the store will take: some tiles are encoded to see."""
        total = 0.0
        shares = self._shares()
        for slide in self.slides:
            header, plan = slide.file.header, self.plans[slide.key]
            pixels = sum(level.shape[0] * level.shape[1] for level in plan.levels)
            raw = pixels * header.channels * header.dtype.itemsize * len(plan.planes)
            kept = sum(level.keeps for level in plan.levels)
            usual = sum(shares.values()) / len(shares) if shares else _SHRUNK[self.codec]
            total += header.nbytes if kept else raw * shares.get(slide.key, usual)
        return round(total)

    def _shares(self) -> dict[str, float]:
        """Return the share of its pixels' bytes that is stored, of some slides."""
        shares = {}
        encoded = [s for s in self.slides if not self.plans[s.key].levels[0].keeps]
        for slide in encoded[:: -(-len(encoded) // _SAMPLED) or 1]:
            share = stored_share(slide.file, self.plans[slide.key], self.recipe)
            if share is not None:
                shares[slide.key] = share
        return shares

    def count_only(self) -> None:
        """Fill in what a run would pack, as far as headers tell."""
        self.outcome.samples = len(self.slides)
        self._account()

    def run(
        self, path: str, *, workers: int, on_error: str, force: bool, progress: bool | None
    ) -> None:
        """Pack; an interrupted run of the same job is gone on with, inside of a slide too.

        Raises:
            SourceError: No slide could be packed.
            DecodeError: A bad slide or tile, with ``on_error="raise"``.
            StorageFullError: No room.
        """
        given_up = other_work(path, self.work)
        if given_up:
            self.outcome.warnings.append(
                f"{given_up:,} slide{'s' * (given_up != 1)} of an unfinished pack with other "
                "options or files were discarded"
            )
        with contextlib.ExitStack() as stack:
            writer = stack.enter_context(self._writer(path, force=force))
            total = sum(self.plans[slide.key].tiles for slide in self.slides)
            bar = stack.enter_context(
                Progress("packing", unit="tiles", total=total, enabled=progress)
            )
            self.outcome.resumed = self.outcome.samples = len(writer)
            for slide in self.slides[self._pass_over(writer, bar) :]:
                self._pack(writer, bar, path, slide, workers=workers, on_error=on_error)
            remove_spool(path)  # of a run that was killed after its last slide
            self._account()
            if not self.outcome.samples:
                writer.abort(keep=False)
                raise nothing_packed(self.found, self.failures)

    def finish(self, store: Store) -> None:
        """Fill in the report of a store that this job has made and an ended run did not report."""
        done = {store.key(number) for number in range(len(store))}
        self.outcome.resumed = self.outcome.samples = len(done)
        for slide in self.slides:
            if slide.key in done:
                self._note(slide, ())
            else:
                self._refuse(slide, _EARLIER)
        self._account()
        clear_published(store.path)

    def _writer(self, path: str, *, force: bool) -> StoreWriter:
        channels = self.slides[0].file.header.channels
        return StoreWriter(
            path,
            schema=self.recipe.schema(self.codec, labelled=self.labelled, channels=channels),
            attrs={
                "kind": "slide",
                "tile": self.recipe.tile,
                "cell": self.cell,
                "class_names": list(self.classes),
                "options": self.recipe.to_json(),
                "work": self.work,
            },
            force=force,
            resume=self.work,
        )

    def _pass_over(self, writer: StoreWriter, bar: Progress) -> int:
        """Return where to go on; what an earlier run refused stays refused."""
        at = 0
        for key in writer.keys():  # noqa: SIM118 - a writer is no mapping
            while at < len(self.slides) and encode_text(self.slides[at].key) != key:
                self._refuse(self.slides[at], _EARLIER)
                at += 1
            if at < len(self.slides):
                self._note(self.slides[at], ())
                bar.advance(self.plans[self.slides[at].key].tiles)
            at += 1
        return at

    def _pack(
        self,
        writer: StoreWriter,
        bar: Progress,
        path: str,
        slide: FoundSlide,
        *,
        workers: int,
        on_error: str,
    ) -> None:
        work = SlideWork(
            file=slide.file,
            plan=self.plans[slide.key],
            recipe=self.recipe,
            shapes=self._shapes.get(slide.key),
            classes=self.classes,
            labelled=self.labelled,
        )
        spool = TileSpool(spool_path(path), f"{self.work} {slide.key}")
        finished = False
        try:
            with slide.file.open() as reader:
                fill_spool(
                    work,
                    reader,
                    spool,
                    workers=workers,
                    raises=on_error == "raise",
                    advance=lambda tiles, nbytes: bar.advance(tiles, nbytes=nbytes),
                )
                writer.add(sample_of(work, reader, spool), key=slide.key)
            finished = True
        except (DecodeError, SourceError, SchemaError) as error:
            finished = True
            reason = reason_of(error, self.found.root, slide.path)
            self._refuse(slide, reason)
            if on_error == "raise":
                raise bad_file(self.found.root, slide.path, reason) from error
            return
        finally:
            if finished:
                spool.remove()
            else:
                spool.close()
        self.outcome.source_bytes += slide.file.header.nbytes
        self.outcome.samples += 1
        self._note(slide, work.remarks)

    def _note(self, slide: FoundSlide, remarks: tuple[str, ...] | list[str]) -> None:
        for text in (*slide.file.header.remarks, *remarks):
            told = reason_of(SourceError(text), self.found.root, slide.path)
            self.failures.note(self.outcome, slide.key, told)

    def _refuse(self, slide: FoundSlide, reason: str) -> None:
        self.failures.add(slide.path, reason)
        self.outcome.failed_files += 1

    def _account(self) -> None:
        """Count the files: each is stored, failed, or left out."""
        self.outcome.stored_files = self.outcome.samples
        self.outcome.failed_files += len(self.found.bad)


def nothing_packed(found: FoundSlides, failures: FailureLog) -> SourceError:
    """Return the error that says what there was instead of slides."""
    text = f"{printable(found.root)}: no slide could be packed"
    if failures.count:
        bad = [f"{printable(name)}: {reason}" for name, reason in failures.first[:3]]
        more = f"; and {failures.count - len(bad):,} more" if failures.count > len(bad) else ""
        text += f"; bad: {'; '.join(bad)}{more}"
    elif found.left_out:
        kinds = sorted({printable(reason) for _, reason, _, count in found.left_out if count})
        text += f"; left out: {', '.join(kinds[:8])}"
    return SourceError(
        f"{text}. Slides are TIFF, the formats of scanners' makers, and pictures as JPEG, PNG or "
        "WebP",
        path=found.root,
    )


def annotations_of(path: str) -> str:
    """Return where annotations are.

    Raises:
        SourceError: There is neither a file nor a folder.
    """
    place = Path(path)
    if not place.exists():
        raise SourceError(f"{printable(path)}: no such file or folder of annotations", path=path)
    return str(place.absolute())
