"""Which blocks an array is cut into, what a patch then costs, and which codec suits its numbers.

The blocks of :func:`block_shape` follow the patches that will be read. Along an axis, a patch of
``p`` voxels touches blocks over ``p + c - 1`` voxels on average, ``c`` being the edge of a block:
small blocks waste little, large ones need fewer look-ups. About 32³ is where neither shows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.codecs import BLOCK_CODECS, BlockDecoder, encode_block
from sharedds.errors import OptionError

__all__ = [
    "EFFORT",
    "CodecChoice",
    "CodecTrial",
    "PatchCost",
    "block_shape",
    "choose_codec",
    "patch_cost",
    "slab_shape",
]

EFFORT = {"raw": 0, "lz4": 5, "zstd": 3, "blosc": 5}  # what an encoder is told, no decoder
_VOXELS = 32**3  # most in a block
_BYTES = 128 << 10  # and most bytes: blocks of 8-byte numbers are halved once more
_EDGE = 96  # of the patch that is expected where none is given, in voxels of the mean size
_SLAB = 16 << 20
_TRIED = ("raw", "blosc", "zstd")  # "lz4" is as large as "blosc", and slower to decode

_SPEED = {"auto": 1e9, "speed": 16e9, "size": 0.0}  # bytes/s at which stored bytes arrive
_ALIKE = {"auto": 0.2, "speed": 0.1, "size": 0.02}  # costs this near to the least are a tie
_REPEATS = 5  # the fastest counts: whatever else runs only slows down


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchCost:
    """What one patch at a uniformly drawn place costs, on average.

    Attributes:
        blocks: Blocks that it touches.
        bytes_touched: Bytes of these blocks, decoded.
        amplification: Bytes touched for each byte of the patch; 1 would be without waste.
    """

    blocks: float
    bytes_touched: float
    amplification: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecTrial:
    """One way to code blocks, as measured on samples.

    Attributes:
        codec: ``"raw"``, ``"blosc"``, ``"zstd"`` or ``"lz4"``.
        shuffle: Whether bytes are grouped by significance first.
        ratio: Bytes of the numbers over bytes stored.
        seconds_per_gb: Decoding, for 10⁹ bytes of numbers, by one thread.
    """

    codec: str
    shuffle: bool
    ratio: float
    seconds_per_gb: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecChoice:
    """The way to code blocks that was chosen, and all that were tried.

    Attributes:
        codec: ``"raw"``, ``"blosc"``, ``"zstd"`` or ``"lz4"``, for :class:`~sharedds.store.Field`.
        shuffle: For :class:`~sharedds.store.Field`.
        effort: For :class:`~sharedds.store.ArrayValue`.
        ratio: Bytes of the numbers over bytes stored.
        seconds_per_gb: Decoding, for 10⁹ bytes of numbers, by one thread.
        table: All trials, the chosen one included, in a fixed order.
    """

    codec: str
    shuffle: bool
    effort: int
    ratio: float
    seconds_per_gb: float
    table: tuple[CodecTrial, ...]


def block_shape(
    shape: Sequence[int],
    itemsize: int,
    *,
    patch: Sequence[int] | None = None,
    spacing: Sequence[float] | None = None,
) -> tuple[int, ...]:
    """Return the shape of the blocks for an array that is read by patches.

    The rule: each axis begins with the power of two that covers the patch there; then the edge that
    is longest in relation to the patch is halved (of equal ones the first, since rows along the
    last axis are copied fastest), until the block has at most 32³ voxels and 128 KiB. So a cubic
    patch gives cubes; a flat one gives flat blocks; a patch of 1 voxel along an axis gives slabs of
    1 voxel there, and nothing is read that a slice does not show.

    Without a patch one is assumed: a cube in millimetres by the spacing, as many voxels as 96³.
    So thick slices give blocks that are short across the slices.

    Args:
        shape: Of the array.
        itemsize: Bytes of a voxel.
        patch: Shape of the patches, one number for each axis.
        spacing: Millimetres (or any unit) between voxels along each axis.

    Raises:
        OptionError: Another number of axes, or sizes that are not positive.

    Example:
        >>> block_shape((480, 512, 512), 2, patch=(128, 128, 128))
        (32, 32, 32)
        >>> block_shape((480, 512, 512), 2, patch=(1, 512, 512))
        (1, 128, 256)
        >>> block_shape((512, 512, 60), 2, spacing=(0.8, 0.8, 5.0))
        (64, 64, 8)
    """
    sides = [max(1, n) for n in shape]
    if itemsize < 1:
        raise OptionError(f"itemsize={itemsize}: bytes of a voxel, 1 or more")
    targets = [
        min(float(p), n) for p, n in zip(_expected(sides, patch, spacing), sides, strict=True)
    ]
    block = [_power_of_two(t, n) for t, n in zip(targets, sides, strict=True)]
    while _voxels(block, sides) > _VOXELS or _voxels(block, sides) * itemsize > _BYTES:
        longest = max(
            (axis for axis, edge in enumerate(block) if edge > 1),
            key=lambda axis: (block[axis] / targets[axis], -axis),
            default=None,
        )
        if longest is None:
            break
        block[longest] //= 2
    return tuple(min(c, n) for c, n in zip(block, sides, strict=True))


def _power_of_two(target: float, side: int) -> int:
    return 1 << (max(1, min(math.ceil(target), side)) - 1).bit_length()


def _voxels(block: Sequence[int], sides: Sequence[int]) -> int:
    return math.prod(min(c, n) for c, n in zip(block, sides, strict=True))


def _expected(
    sides: Sequence[int], patch: Sequence[int] | None, spacing: Sequence[float] | None
) -> list[float]:
    """Return the patch to expect: the one given, or a cube in millimetres."""
    if patch is not None:
        if len(patch) != len(sides) or min(patch, default=1) < 1:
            raise OptionError(
                f"patch={tuple(patch)}: one positive number for each of {len(sides)} axes"
            )
        return [float(p) for p in patch]
    if spacing is None:
        return [float(_EDGE)] * len(sides)
    if len(spacing) != len(sides) or not all(0 < s < math.inf for s in spacing):
        raise OptionError(
            f"spacing={tuple(spacing)}: one positive number for each of {len(sides)} axes"
        )
    mean = math.exp(sum(math.log(s) for s in spacing) / len(spacing))
    return [max(1.0, _EDGE * mean / s) for s in spacing]


def slab_shape(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return blocks of whole planes, up to 16 MiB: for ``raw`` arrays that are copied from the map.

    A region of such an array is a few strided copies, as from ``np.memmap``; a block is compared
    with its checksum once in each process.

    Args:
        shape: Of the array.
        itemsize: Bytes of a voxel.

    Example:
        >>> slab_shape((480, 512, 512), 2)
        (32, 512, 512)
    """
    block = [max(1, n) for n in shape]
    for axis in range(len(block)):
        below = math.prod(block[axis + 1 :]) * itemsize
        block[axis] = max(1, min(block[axis], _SLAB // max(1, below)))
        if block[axis] > 1 or below <= _SLAB:
            break
    return tuple(block)


def patch_cost(
    shape: Sequence[int], itemsize: int, chunk: Sequence[int], patch: Sequence[int]
) -> PatchCost:
    """Return what a patch costs on average, its place uniform among those inside the array.

    Exact, the smaller blocks at the far edges included. A patch that is larger than the array along
    an axis is the whole of it there.

    Args:
        shape: Of the array.
        itemsize: Bytes of a voxel.
        chunk: Shape of the blocks.
        patch: Shape of the patch.

    Raises:
        OptionError: Not one positive number for each axis.

    Example:
        >>> cost = patch_cost((512, 512, 512), 2, (32, 32, 32), (128, 128, 128))
        >>> round(cost.blocks), round(cost.amplification, 1)
        (123, 1.9)
    """
    for name, sizes in (("chunk", chunk), ("patch", patch)):
        if len(sizes) != len(shape) or min(sizes, default=1) < 1:
            raise OptionError(
                f"{name}={tuple(sizes)}: one positive number for each of {len(shape)} axes"
            )
    if 0 in shape:
        return PatchCost(blocks=0.0, bytes_touched=0.0, amplification=1.0)
    blocks = touched = asked = 1.0
    for side, edge, size in zip(shape, chunk, patch, strict=True):
        size = min(size, side)
        starts = np.arange(side - size + 1)
        first, last = starts // edge, (starts + size - 1) // edge
        blocks *= float(np.mean(last - first + 1))
        touched *= float(np.mean(np.minimum((last + 1) * edge, side) - first * edge))
        asked *= size
    return PatchCost(blocks=blocks, bytes_touched=touched * itemsize, amplification=touched / asked)


def choose_codec(
    samples: Sequence[npt.NDArray[Any]],
    *,
    among: Sequence[str] = _TRIED,
    prefer: str = "auto",
) -> CodecChoice:
    """Try the codecs on blocks, with and without shuffle, and choose one.

    The cost of a way is the time until a block's numbers are there: decoding, as measured here,
    and the transfer of what is stored, at 1 GB/s for ``"auto"`` (a disk, or a page cache that is
    short) and 16 GB/s for ``"speed"`` (everything fits in memory); for ``"size"`` it is the bytes
    alone. Costs within 20, 10 and 2 % of the least are a tie, which the fewest bytes decide, and
    after them the order raw, lz4, zstd, blosc, without shuffle first. So the clock decides only
    between ways that are far apart.

    Args:
        samples: Blocks of the array (or of several of one dtype), as they will be stored.
        among: The codecs to try.
        prefer: ``"auto"``, ``"speed"`` or ``"size"``.

    Raises:
        OptionError: No samples, or another codec or preference.
    """
    if prefer not in _SPEED:
        raise OptionError(f"prefer={prefer!r}: 'auto', 'speed' or 'size'")
    unknown = sorted(set(among) - set(BLOCK_CODECS))
    if unknown or not among:
        raise OptionError(f"among={tuple(among)}: some of {', '.join(BLOCK_CODECS)}")
    blocks = [np.ascontiguousarray(sample) for sample in samples if sample.size]
    if not blocks:
        raise OptionError("choose_codec needs at least one block with numbers in it")
    wide = blocks[0].dtype.itemsize > 1
    table = tuple(
        _try(blocks, codec, shuffle=shuffle)
        for codec in BLOCK_CODECS
        if codec in among
        for shuffle in (False, True)
        if not shuffle or (wide and codec != "raw")
    )
    costs = [_cost(trial, prefer) for trial in table]
    alike = [
        trial
        for trial, cost in zip(table, costs, strict=True)
        if cost <= min(costs) * (1 + _ALIKE[prefer])
    ]
    best = max(alike, key=lambda trial: trial.ratio)  # of equal ones the first
    return CodecChoice(
        codec=best.codec,
        shuffle=best.shuffle,
        effort=EFFORT[best.codec],
        ratio=best.ratio,
        seconds_per_gb=best.seconds_per_gb,
        table=table,
    )


def _cost(trial: CodecTrial, prefer: str) -> float:
    if prefer == "size":
        return 1 / trial.ratio
    return trial.seconds_per_gb / 1e9 + 1 / trial.ratio / _SPEED[prefer]


def _try(blocks: list[npt.NDArray[Any]], codec: str, *, shuffle: bool) -> CodecTrial:
    coded = [encode_block(block, codec, shuffle=shuffle, effort=EFFORT[codec]) for block in blocks]
    total = sum(block.nbytes for block in blocks)
    least = math.inf
    for _ in range(_REPEATS):
        started = time.perf_counter()
        decoder = BlockDecoder(codec, blocks[0].dtype, shuffle=shuffle)
        for _ in decoder.decode_all(coded, [block.shape for block in blocks]):
            pass
        least = min(least, time.perf_counter() - started)
    return CodecTrial(
        codec=codec,
        shuffle=shuffle,
        ratio=total / sum(map(len, coded)),
        seconds_per_gb=least / total * 1e9,
    )
