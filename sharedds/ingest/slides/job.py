"""The slides of a folder on their way into a store: one after another, resumed inside of one."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import xxhash

from sharedds.errors import DecodeError, SchemaError, SourceError
from sharedds.ingest.listing import reason_of
from sharedds.ingest.packing import REFUSED_EARLIER, Packing, bad_file, bad_of, content_of
from sharedds.ingest.report import FailureLog
from sharedds.ingest.slides.index import cell_of
from sharedds.ingest.slides.prepare import SlideWork, fill_spool, sample_of, stored_share
from sharedds.ingest.slides.recipe import SlidePlan, SlideRecipe
from sharedds.ingest.slides.scan import ANNOTATIONS, FoundSlide, FoundSlides
from sharedds.ingest.slides.shapes import Shapes, read_shapes
from sharedds.ingest.slides.spool import TileSpool, remove_spool, spool_path
from sharedds.packed import encode_text
from sharedds.progress import Progress
from sharedds.store import Store, Writer, store_writer
from sharedds.store.duplicates import Duplicates
from sharedds.text import printable

__all__ = ["SlideJob", "annotations_of"]

_SHRUNK = {"jpeg": 0.12, "png": 0.6, "webp": 0.5, "lz4": 0.75, "zstd": 0.65, "raw": 1.0}
_SAMPLED = 8  # slides that are looked into for an estimate


class SlideJob:
    """What is to be packed, and how.

    Args:
        found: What the folder holds.
        recipe: How slides are stored.
        annotations: A folder of GeoJSON files named as the slides, or one file; empty for none.
        packing: How it is run, and the report to fill in.
        failures: Takes the bad slides.
    """

    noun, unit = "slide", "tiles"
    exact = False

    def __init__(
        self,
        found: FoundSlides,
        recipe: SlideRecipe,
        annotations: str,
        *,
        packing: Packing,
        failures: FailureLog,
    ) -> None:
        self.found = found
        self.recipe = recipe
        self.packing = packing
        self.outcome = packing.outcome
        self.failures = failures
        self.spools: tuple[str, ...] = (spool_path(packing.path),)
        self._bad = 0
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

    def __len__(self) -> int:
        return len(self.slides)

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

    def at_work(self) -> AbstractContextManager[object]:
        """Nothing is held: slides are opened one after another."""
        return nullcontext()

    def key(self, at: int) -> bytes:
        """Return the key of a slide."""
        return encode_text(self.slides[at].key)

    def stored(self, at: int) -> None:
        """Note a slide that an earlier run has stored."""
        self._note(self.slides[at], ())

    def refused(self, at: int) -> None:
        """Note a slide that an earlier run has refused; it is not read again for the reason."""
        self._refuse(self.slides[at], REFUSED_EARLIER)

    def writer(self) -> Writer:
        """Return the writer of the store."""
        channels = self.slides[0].file.header.channels
        return store_writer(
            self.packing.path,
            cut=self.packing.cut(len(self)),
            schema=self.recipe.schema(self.codec, labelled=self.labelled, channels=channels),
            attrs={
                "kind": "slide",
                "tile": self.recipe.tile,
                "cell": self.cell,
                "class_names": list(self.classes),
                "options": self.recipe.to_json(),
                "work": self.work,
            },
            force=self.packing.force,
            resume=self.work,
        )

    def write(self, writer: Writer, bar: Progress, start: int) -> None:
        """Prepare and write the slides from ``start`` on; one that was begun is gone on with."""
        left = self.slides[start:]
        bar.total = sum(self.plans[slide.key].tiles for slide in left)
        for slide in left:
            self._pack(writer, bar, slide)
        remove_spool(self.packing.path)  # of a run that was killed after its last slide

    def _pack(self, writer: Writer, bar: Progress, slide: FoundSlide) -> None:
        raises = self.packing.on_error == "raise"
        work = SlideWork(
            file=slide.file,
            plan=self.plans[slide.key],
            recipe=self.recipe,
            shapes=self._shapes.get(slide.key),
            classes=self.classes,
            labelled=self.labelled,
        )
        spool = TileSpool(spool_path(self.packing.path), f"{self.work} {slide.key}")
        finished = False
        try:
            with slide.file.open() as reader:
                fill_spool(
                    work,
                    reader,
                    spool,
                    workers=self.packing.workers,
                    raises=raises,
                    advance=lambda tiles, nbytes: bar.advance(tiles, nbytes=nbytes),
                )
                writer.add(sample_of(work, reader, spool), key=slide.key)
            finished = True
        except (DecodeError, SourceError, SchemaError) as error:
            finished = True
            reason = reason_of(error, self.found.root, slide.path)
            self._refuse(slide, reason)
            if raises:
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
        self._bad += 1

    def account(self) -> None:
        """Count the files: each is stored, failed, or left out."""
        self.outcome.stored_files = self.outcome.samples
        self.outcome.failed_files = self._bad + len(self.found.bad)

    def look(self, store: Store) -> Sequence[Duplicates]:
        """Count what is in the finished store."""
        blank = []

        def facts(number: int) -> dict[str, str]:
            image = store.array(number, "image")
            size = image.attrs.get("mpp")
            if not store.array(number, "tissue")[...].any():
                blank.append(store.key(number))
            return {
                "format": str(image.attrs.get("format", "")),
                "dtype": image.dtype.name,
                "channels": str(image.shape[-1]),
                "levels": str(len(image.levels)),
                "mpp": f"{size[0]:.4g}" if size else "unknown",
            }

        self.outcome.content = content_of(store, facts)
        if blank:
            more = f" and {len(blank) - 5:,} more" if len(blank) > 5 else ""
            self.outcome.warnings.append(
                f"no tissue was found on {len(blank):,} of them: {', '.join(blank[:5])}{more}"
            )
        return ()

    def nothing_packed(self) -> SourceError:
        """Return the error that says what there was instead of slides."""
        text = f"{printable(self.found.root)}: no slide could be packed{bad_of(self.failures)}"
        if not self.failures.count and self.found.left_out:
            kinds = sorted({printable(reason) for _, reason, _, n in self.found.left_out if n})
            text += f"; left out: {', '.join(kinds[:8])}"
        return SourceError(
            f"{text}. Slides are TIFF, the formats of scanners' makers, and pictures as JPEG, PNG "
            "or WebP",
            path=self.found.root,
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
