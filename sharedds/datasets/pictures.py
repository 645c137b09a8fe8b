"""Pictures as a view shows them, one by one or straight into a batch.

A view says which part is shown before anything is decoded. A JPEG is then decoded at the smallest
scale (1, 1/2, 1/4 or 1/8) at which the part still has as many pixels as are shown, so that nothing
is scaled up that a full decode would not scale up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from sharedds.codecs import Scratch, orient, stored_box
from sharedds.datasets.scaling import Canvas, empty_pictures
from sharedds.datasets.sources import ImageSource
from sharedds.datasets.stored import Found, Options, Pixels, StoredPictures, as_mode
from sharedds.errors import DecodeError
from sharedds.handles import per_process
from sharedds.views import Full, View

__all__ = ["Form", "Pictures", "by_itself"]

Integers: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Box: TypeAlias = tuple[int, int, int, int]

_FACTORS = (8, 4, 2)
_AT_ONCE = 64  # pictures whose parts are chosen together ...
_BYTES = 8 << 20  # ... unless their files are large, and copied into memory
_CHANNELS = {"RGB": 3, "L": 1, "RGBA": 4, "index": 1}
_LARGE = 8 << 20  # bytes of pixels


@dataclass(frozen=True, slots=True)
class Form:
    """What all pictures have in common as they are shown.

    Attributes:
        shape: (C, H, W)
        dtype: uint8 or uint16.
    """

    shape: tuple[int, int, int]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of one picture."""
        channels, height, width = self.shape
        return channels * height * width * self.dtype.itemsize


class Pictures:
    """The pictures of a source as a view shows them.

    Args:
        source: Where they are stored.
        options: How they are decoded.
        view: What is shown of each; None for all of it, as it is.
    """

    def __init__(self, source: ImageSource, options: Options, view: View | None) -> None:
        self.stored = StoredPictures(source, options)
        self.view = view
        self._source = source
        self._mode = options.mode
        self._shown: View = view if view is not None else Full()

    @per_process
    def form(self) -> Form | None:
        """What all pictures have in common; None where they differ, or it cannot be known."""
        output, channels = self._output(), self._channels()
        if output is None or channels is None:
            return None
        if self._source.shape() is not None:
            bits = 8
        elif self._mode == "index":
            bits = self.stored.first_bits()
        else:
            bits = {"8": 8, "16": 16, "keep": 0}[self.stored.depth]
        if not 0 < bits <= 16:
            return None
        return Form((channels, *output), torch.uint8 if bits <= 8 else torch.uint16)

    def _output(self) -> tuple[int, int] | None:
        shape, view = self._source.shape(), self._shown
        if view.output is not None or shape is None:
            return view.output
        places = view.places(np.array([shape[:2]]), np.zeros((1, view.uniforms)))
        height, width = places.outputs[0].tolist()
        return height, width

    def _channels(self) -> int | None:
        shape = self._source.shape()
        if self._mode == "keep":
            return None if shape is None else shape[2]
        return _CHANNELS[self._mode]

    @per_process
    def _scratch(self) -> tuple[Scratch, Scratch]:
        """Where a JPEG is decoded, and where a part of it lies before it is scaled."""
        return Scratch(), Scratch()

    def whole(self, position: int) -> Pixels:
        """Return a whole picture: (H, W, C), upright, writable, memory of its own."""
        pixels = self.stored.whole(self.stored.find(position))
        return pixels if pixels.flags.writeable else pixels.copy()

    def one(self, position: int, uniforms: Floats) -> torch.Tensor:
        """Return a picture as it is shown.

        Args:
            position: Its number.
            uniforms: (:attr:`View.uniforms`,)

        Returns:
            (C, H, W), channels last in memory.

        Raises:
            DecodeError, SourceError, CorruptDataError: It cannot be read; the text names it.
        """
        found = self.stored.find(position)
        places = self._shown.places(np.array([found.size]), uniforms[None])
        (box,), (flips,) = places.boxes.tolist(), places.flips.tolist()
        height, width = places.outputs[0].tolist()
        part = self._part(found, box, (height, width))
        image = empty_pictures((1, part.shape[2], height, width), _dtype(part))
        self._canvas(image).show(0, part, flips)
        return image[0]

    def fill(self, images: torch.Tensor, positions: Integers, uniforms: Floats) -> None:
        """Write pictures into a batch, as they are shown.

        Several threads may do so at the same time.

        Args:
            images: (n, C, H, W) as :attr:`form` says, channels last.
            positions: (n,) numbers of the pictures.
            uniforms: (n, :attr:`View.uniforms`)

        Raises:
            DecodeError, SourceError, CorruptDataError: One cannot be read, or is not like that.
        """
        shape = self._source.shape()
        if shape is not None:
            self._fill_rows(shape[:2], images, positions, uniforms)
            return
        output = (images.shape[2], images.shape[3])
        canvas = self._canvas(images)
        for group in self._groups(positions):
            numbers = np.fromiter(group, np.int64)
            sizes = np.array([found.size for found in group.values()], np.int64)
            places = self._shown.places(sizes, uniforms[numbers])
            for (at, found), box, flips in zip(
                group.items(), places.boxes.tolist(), places.flips.tolist(), strict=True
            ):
                part = self._part(found, box, output)
                if part.shape[2] != images.shape[1] or _dtype(part) != images.dtype:
                    raise DecodeError(
                        f"sample {found.position} has {part.shape[2]} channels of {part.dtype}, "
                        f"the batch {images.shape[1]} of {images.dtype}",
                        sample=found.position,
                    )
                canvas.show(at, part, flips)
                # A name that lives on would keep all of a large picture while the next one is read
                # and decoded: twice the memory.
                del part, found
            group.clear()
            self._source.release()

    def _groups(self, positions: Integers) -> Iterator[dict[int, Found]]:
        """Yield pictures that were read and not yet decoded, by their places in the batch."""
        group: dict[int, Found] = {}
        size = 0
        for at, position in enumerate(positions.tolist()):
            found = group[at] = self.stored.find(position)
            size += len(found.data) if isinstance(found.data, bytes) else 0
            if len(group) == _AT_ONCE or size > _BYTES:
                yield group
                group, size = {}, 0
        if group:
            yield group

    def _fill_rows(
        self, size: tuple[int, int], images: torch.Tensor, positions: Integers, uniforms: Floats
    ) -> None:
        """Write finished pixels, in the order in which they lie in the file."""
        order = np.argsort(positions, kind="stable")
        rows = self._source.rows(positions[order])
        places = self._shown.places(np.tile(size, (len(order), 1)), uniforms[order])
        canvas = self._canvas(images)
        for at, row, box, flips in zip(
            order.tolist(), rows, places.boxes.tolist(), places.flips.tolist(), strict=True
        ):
            canvas.show(at, as_mode(_cut(row, box), self._mode), flips)

    # --- the steps: a part of a picture, into its place

    def _part(self, found: Found, box: Box, output: tuple[int, int]) -> Pixels:
        """Return a part of a picture, shrunk as far as it keeps as many pixels as are shown.

        It is good until this thread decodes the next picture.
        """
        header = found.header
        if header is None or header.format != "jpeg" or self.stored.cache is not None:
            return _cut(self.stored.whole(found), box)
        box = stored_box(box, found.size, found.orientation)
        factor = self._factor(box, output if found.orientation < 5 else output[::-1])
        decoded, _ = self._scratch
        # Most damage shows at the end of the data only, so that is reached where damage may be.
        rows = box[0] + box[2] if self._source.proved() else None
        pixels = self.stored.decoded(
            found, orientation=1, factor=factor, rows=rows, scratch=decoded
        )
        if factor > 1 and pixels.shape[1] < header.width:
            box = _shrunk(box, factor)
        part = _cut(pixels, box)
        return part if found.orientation == 1 else orient(part, found.orientation)

    def _factor(self, box: Box, output: tuple[int, int]) -> int:
        """Return by how much a JPEG may shrink while it is decoded."""
        is_blended = self._shown.antialias and self._mode != "index"
        if not is_blended or min(box[2] // output[0], box[3] // output[1]) < 2:
            return 1
        for factor in _FACTORS:
            _, _, height, width = _shrunk(box, factor)
            if height >= output[0] and width >= output[1]:
                return factor
        return 1

    def _canvas(self, images: torch.Tensor) -> Canvas:
        _, scratch = self._scratch
        blend, antialias = self._mode != "index", self._shown.antialias
        return Canvas(images, blend=blend, antialias=antialias, scratch=scratch)


def by_itself(image: Any) -> Any:
    """Return an image without the large picture that it is a part of.

    To crop a tensor makes a view, which would keep the whole picture until the batch is collated,
    and so all those of a batch at once.
    """
    if not isinstance(image, torch.Tensor) or image.layout != torch.strided:
        return image
    whole = image.untyped_storage().nbytes()
    return image.clone() if whole > _LARGE and 2 * image.nbytes <= whole else image


def _cut(pixels: Pixels, box: Box) -> Pixels:
    top, left, height, width = box
    return pixels[top : top + height, left : left + width]


def _shrunk(box: Box, factor: int) -> Box:
    """Return a box in a picture that is smaller by a factor, its edges rounded to nearest."""
    top, left, height, width = box
    first_row, first_column, end_row, end_column = (
        (2 * edge + factor) // (2 * factor) for edge in (top, left, top + height, left + width)
    )
    return first_row, first_column, end_row - first_row, end_column - first_column


def _dtype(pixels: Pixels) -> Any:
    return torch.uint8 if pixels.dtype == np.uint8 else torch.from_numpy(pixels[:0].copy()).dtype
