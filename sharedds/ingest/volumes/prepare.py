"""What happens to one case: opened, checked, changed, counted; its voxels are read when written."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sharedds.errors import DecodeError, MissingExtraError, SharedDSError, StorageFullError
from sharedds.ingest.listing import reason_of
from sharedds.ingest.volumes.cases import Case, Entry
from sharedds.ingest.volumes.foreground import box_of_foreground
from sharedds.ingest.volumes.labels import WholeNumbers, compare_grids, count_label
from sharedds.ingest.volumes.narrow import narrowed
from sharedds.ingest.volumes.recipe import Codecs, VolumeRecipe
from sharedds.ingest.volumes.scan import SAME_PLACE
from sharedds.ingest.volumes.scratch import scratch_folder
from sharedds.ingest.volumes.slabs import SLAB_BYTES, BlockFile, OneSlab, Slabs, Stacked
from sharedds.store.blocking import EFFORT
from sharedds.store.values import ArrayValue
from sharedds.volumes.changes import (
    converted,
    cropped,
    onto_grid,
    reoriented,
    resampled,
)
from sharedds.volumes.derived import Derived
from sharedds.volumes.geometry import corner_distance, orientation_of, spacing_of
from sharedds.volumes.source import VolumeData, VolumeHeader

__all__ = ["Prepared", "VolumeIngester", "remarks_on"]

_WALKS = 4  # of a file; more, and its blocks are laid out in a file of their own first
_RESAMPLE = "resample_labels=True (--resample-labels) puts it onto the grid of its image"


@dataclass(slots=True)
class Prepared:
    """A case that can be written, or why it cannot.

    Attributes:
        case: The case.
        sample: A value for each field; None where it was refused.
        reason: Why it was refused.
        culprit: Relative path of the file at fault.
        nbytes: Of the files.
    """

    case: Case
    sample: dict[str, Any] | None = None
    reason: str = ""
    culprit: str = ""
    nbytes: int = 0
    _files: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def close(self) -> None:
        """Let go of its files."""
        self._files.close()

    def value_of(self, codecs: Codecs) -> dict[str, Any]:
        """Return the sample as the writer takes it."""
        sample = dict(self.sample or {})
        for name, codec in (("image", codecs.image), ("label", codecs.label)):
            if isinstance(sample.get(name), ArrayValue):
                sample[name] = sample[name]._replace(effort=EFFORT[codec])
        return sample

    def fail(self, error: BaseException, root: str) -> None:
        """Note that it could not be written; what a file's reader said comes first."""
        self.reason = str(error.__cause__ or error)
        for name, entry in (("image", self.case.images[0]), ("label", self.case.label)):
            value = (self.sample or {}).get(name)
            found = None if value is None else value.data.error
            if found is not None and entry is not None:
                self.reason, self.culprit = reason_of(found, root), entry.path
        self.sample = None


class VolumeIngester:
    """Prepares cases; several threads may do so at once.

    Args:
        recipe: How they are stored.
        root: The folder, absolute: taken out of what errors say.
        labels, groups: Whether the store has these fields.
    """

    def __init__(self, recipe: VolumeRecipe, root: str, *, labels: bool, groups: bool) -> None:
        self.recipe = recipe
        self._root = root
        self._scratch: Path | None = None  # the system's
        self._labels = labels
        self._groups = groups
        self._open: dict[int, Prepared] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def unpacking_beside(self, path: str) -> Iterator[None]:
        """Unpack what has to be in a folder beside an output; at the end all files are let go of.

        Raises:
            StoreBusyError, StoreExistsError: See :func:`scratch_folder`.
        """
        with scratch_folder(path) as self._scratch, contextlib.closing(self):
            yield

    def __call__(self, case: Case) -> Prepared:
        """Open, check and count a case; what is wrong with it is a reason, not an error."""
        prepared = Prepared(case, nbytes=sum(e.volume.header.nbytes for e in case.entries))
        if case.problem:
            prepared.reason = case.problem
            return prepared
        with self._lock:
            self._open[id(prepared)] = prepared
        try:
            self._prepare(prepared)
        except (StorageFullError, MissingExtraError):
            raise
        except (SharedDSError, OSError) as error:
            prepared.sample = None
            prepared.reason = reason_of(error, self._root)
            self.done(prepared)
        return prepared

    def done(self, prepared: Prepared) -> None:
        """Let go of the files of a case."""
        with self._lock:
            self._open.pop(id(prepared), None)
        prepared.close()

    def close(self) -> None:
        """Let go of the files of all cases."""
        for prepared in list(self._open.values()):
            self.done(prepared)

    def _prepare(self, prepared: Prepared) -> None:
        case, recipe = prepared.case, self.recipe
        folder = prepared._files.enter_context(
            tempfile.TemporaryDirectory(dir=self._scratch, ignore_cleanup_errors=True)
        )
        scratch = Path(folder)
        header, data = self._image(prepared, scratch)
        original = header
        header, data = narrowed(header, data)
        header, data, box = self._changed(header, data)
        spacing = None if header.affine is None else spacing_of(header.affine)
        chunk = recipe.chunk(header.shape, header.dtype.itemsize, spacing)
        full = chunk if header.axis == "none" else (1, *chunk)
        held = OneSlab()
        sample: dict[str, Any] = {
            "image": ArrayValue(
                self._slabs(prepared, data, full, held, scratch),
                _attrs(header, case.channels),
                chunk=full,
            )
        }
        if self._labels:
            sample |= self._label(prepared, original, header, box, chunk, held, scratch)
        sample["shape"] = [header.steps, *header.shape]
        if self._groups:
            sample["group"] = case.group or ""
        prepared.sample = sample

    def _opened(
        self, prepared: Prepared, entry: Entry, scratch: Path
    ) -> tuple[VolumeHeader, VolumeData]:
        prepared.culprit = entry.path
        header: VolumeHeader = entry.volume.header
        if min(header.full_shape) < 1:
            raise DecodeError(f"no voxels in it (its shape is {header.full_shape})")
        return header, prepared._files.enter_context(entry.volume.open(scratch))

    def _image(self, prepared: Prepared, scratch: Path) -> tuple[VolumeHeader, VolumeData]:
        """Open the image of a case; several files become its channels."""
        entries = prepared.case.images
        opened = [self._opened(prepared, entry, scratch) for entry in entries]
        header, data = opened[0]
        if len(opened) == 1:
            return header, data
        for entry, (other, _) in zip(entries[1:], opened[1:], strict=True):
            prepared.culprit = entry.path
            if "time" in (header.axis, other.axis):
                raise DecodeError("it has several moments, so it cannot be a channel of a case")
            if difference := _different(header, other):
                raise DecodeError(
                    f"{difference} than {entries[0].path}; volumes become channels of one case "
                    "where their grids are the same: resample them, or pack each by itself"
                )
        prepared.culprit = entries[0].path
        stacked = Stacked([each for _, each in opened], [each for each, _ in opened])
        common = {
            name: value
            for name, value in header.attrs.items()
            if all(other.attrs.get(name) == value for other, _ in opened)
        }
        merged = replace(
            header,
            axis="channel",
            steps=stacked.shape[0],
            dtype=stacked.dtype,
            slope=stacked.slope,
            intercept=stacked.intercept,
            attrs=common,
        )
        return merged, stacked

    def _changed(
        self, header: VolumeHeader, data: VolumeData
    ) -> tuple[VolumeHeader, VolumeData, tuple[Any, Any] | None]:
        """Change an image as the recipe says; return the box that was cut out, too."""
        recipe, box = self.recipe, None
        if recipe.orientation is not None:
            header, data = reoriented(data, header, recipe.orientation)
        if recipe.spacing is not None:
            header, data = resampled(data, header, recipe.spacing, nearest=False)
        if recipe.crop_foreground is not False:
            box = box_of_foreground(header, data, recipe.threshold)
            header, data = cropped(data, header, *box)
        if recipe.dtype is not None:
            header, data = converted(data, header, recipe.dtype)
        return header, data, box

    def _label(
        self,
        prepared: Prepared,
        original: VolumeHeader,
        image: VolumeHeader,
        box: tuple[Any, Any] | None,
        chunk: tuple[int, int, int],
        held: OneSlab,
        scratch: Path,
    ) -> dict[str, Any]:
        """Open, check, change and count the label of a case."""
        entry = prepared.case.label
        if entry is None:
            return {"label": None, "label_blocks": np.zeros((0, 2), np.int64)}
        header, data = self._opened(prepared, entry, scratch)
        if header.axis != "none":
            raise DecodeError(
                f"a label has three axes, this one has {header.steps} {header.axis} steps; pack "
                "it as an image, or make one label of it"
            )
        match = compare_grids(original, header)
        if match.target:
            header, data = reoriented(data, header, match.target)
        elif not match.same and self.recipe.resample_labels:
            header, data = onto_grid(data, header, original)
        elif not match.same:
            raise DecodeError(f"{match.difference}; {_RESAMPLE}")
        # From here on it has the very grid of its image: a difference in the fifth decimal would
        # give it another shape when both are resampled.
        header = replace(header, affine=original.affine)
        if self.recipe.orientation is not None:
            header, data = reoriented(data, header, self.recipe.orientation)
        if self.recipe.spacing is not None:
            header, data = resampled(data, header, self.recipe.spacing, nearest=True)
        if box is not None:
            header, data = cropped(data, header, *box)
        if header.shape != image.shape:
            raise DecodeError(f"its shape became {header.shape}, that of its image {image.shape}")
        facts = count_label(data, header, chunk)
        slabs = self._slabs(prepared, data, chunk, held, scratch)
        attrs = facts.attrs()
        if image.affine is not None:
            attrs["affine"] = image.affine.tolist()
        whole = WholeNumbers(slabs, header, facts.dtype)
        return {
            "label": ArrayValue(whole, attrs, chunk=chunk),
            "label_blocks": facts.blocks,
        }

    def _slabs(
        self,
        prepared: Prepared,
        data: VolumeData,
        chunk: tuple[int, ...],
        held: OneSlab,
        scratch: Path,
    ) -> Slabs | BlockFile:
        # Of what is computed, intermediate values take several times the room of a slab.
        limit = SLAB_BYTES // 4 if isinstance(data, Derived) else SLAB_BYTES
        slabs = Slabs(data, chunk, held=held, limit=limit)
        if slabs.count <= _WALKS:
            return slabs
        blocks = BlockFile(data, chunk, scratch, limit=limit)
        prepared._files.callback(blocks.close)
        return blocks


def remarks_on(case: Case) -> list[str]:
    """Return what the headers of a case say that a person should know; each thing once."""
    image = case.images[0].volume.header
    remarks = dict.fromkeys(text for entry in case.images for text in entry.volume.header.remarks)
    if case.label is not None:
        label = case.label.volume.header
        match = compare_grids(image, label)
        of_label = [text for text in label.remarks if text not in remarks]
        if match.remark:  # says what its header lacks
            of_label = []
            remarks[match.remark] = None
        remarks |= dict.fromkeys(f"of the label: {text}" for text in of_label)
    return list(remarks)


def _different(one: VolumeHeader, other: VolumeHeader) -> str:
    """Return in what way two grids differ, as "it has ...", or nothing."""
    if one.shape != other.shape:
        return f"it has the shape {other.shape}, another"
    if one.affine is None or other.affine is None:
        return ""
    distance = corner_distance(one.affine, other.affine, one.shape)
    if distance > SAME_PLACE * min(spacing_of(one.affine)):
        return f"it lies up to {distance:.3g} mm elsewhere"
    return ""


def _attrs(header: VolumeHeader, channels: tuple[str, ...]) -> dict[str, Any]:
    """Return what is kept with an image, as JSON."""
    attrs: dict[str, Any] = dict(header.attrs)
    attrs["format"] = header.format
    if header.affine is not None:
        attrs["affine"] = header.affine.tolist()
        attrs["orientation"] = orientation_of(header.affine)
        attrs["spacing"] = list(spacing_of(header.affine))
    if (header.slope, header.intercept) != (1.0, 0.0):
        attrs["slope"], attrs["intercept"] = float(header.slope), float(header.intercept)
    if header.axis != "none":
        attrs["axis"] = header.axis
    if header.step_seconds is not None:
        attrs["step_seconds"] = float(header.step_seconds)
    if channels and len(channels) == header.steps:
        attrs["channels"] = list(channels)
    return attrs
