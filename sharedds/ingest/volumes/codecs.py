"""How the blocks of a store of volumes are coded: tried on some of them, alike on every machine."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.errors import DecodeError, SourceError
from sharedds.ingest.volumes.recipe import Codecs
from sharedds.store.blocking import choose_codec
from sharedds.store.lock import read_state
from sharedds.store.partial import partial_path
from sharedds.store.values import ArrayValue

__all__ = ["codecs_for", "codecs_of_earlier_run", "sample_blocks"]

_SECONDS = {"raw": 0.1, "blosc": 0.25, "zstd": 1.2}
"""To decode 10⁹ bytes, one thread, as measured once on blocks of CT and MR.

Fixed, so that the same files give the same store, and the same digest, whatever else a machine has
to do meanwhile.
"""
_TRANSFER = 1.0  # seconds until 10⁹ stored bytes are there
_ALIKE = 1.2  # costs this near to the least are a tie, which the fewest bytes decide
_SAMPLED = 6

Block = npt.NDArray[Any]


def codecs_for(samples: Iterable[dict[str, Any]]) -> Codecs:
    """Try codecs on blocks of some cases; one way for each field, whatever dtypes the cases have.

    The cost of a way is the time to decode, at a fixed speed of the codec, and to fetch what is
    stored at 1 GB/s. Costs within 20 % of the least are a tie, and the fewest bytes win.

    Args:
        samples: Of cases: a value for each field. One that cannot be read counts for nothing; that
            is told when the case is written.
    """
    blocks: dict[str, list[Block]] = {"image": [], "label": []}
    for sample in samples:
        for name, some in blocks.items():
            if sample.get(name) is not None:
                with contextlib.suppress(SourceError, DecodeError):
                    some += sample_blocks(sample[name])
    image, image_shuffle = _best(blocks["image"])
    label, label_shuffle = _best(blocks["label"])
    return Codecs(
        image=image, label=label, image_shuffle=image_shuffle, label_shuffle=label_shuffle
    )


def _best(blocks: list[Block]) -> tuple[str, bool | None]:
    """Return the codec, and whether it shuffles, for blocks of one dtype or several."""
    total = sum(block.nbytes for block in blocks)
    if not total:
        return "blosc", None
    stored: dict[tuple[str, bool], float] = {}
    for dtype in sorted({block.dtype.str for block in blocks}):
        group = [block for block in blocks if block.dtype.str == dtype]
        size = sum(block.nbytes for block in group)
        ratios = {(each.codec, each.shuffle): each.ratio for each in choose_codec(group).table}
        for codec in _SECONDS:
            for shuffle in (False, True)[: 1 if codec == "raw" else 2]:
                # Bytes of one byte are not shuffled, whatever the field says.
                ratio = ratios.get((codec, shuffle), ratios[codec, False])
                stored[codec, shuffle] = stored.get((codec, shuffle), 0.0) + size / ratio
    costs = {way: _SECONDS[way[0]] * total + _TRANSFER * size for way, size in stored.items()}
    alike = [way for way, cost in costs.items() if cost <= _ALIKE * min(costs.values())]
    return min(alike, key=lambda way: stored[way])  # of equal ones the first


def sample_blocks(value: ArrayValue) -> list[Block]:
    """Return some blocks of an array, from its middle and half way to two corners.

    Raises:
        SourceError, DecodeError: It cannot be read.
    """
    data, chunk = value.data, value.chunk or value.data.shape
    blocks = []
    for share in np.linspace(0.3, 0.7, _SAMPLED):
        start = [
            min(int(n * share) // c, -(-n // c) - 1) * c
            for n, c in zip(data.shape, chunk, strict=True)
        ]
        region = tuple(
            slice(s, min(s + c, n)) for s, c, n in zip(start, chunk, data.shape, strict=True)
        )
        blocks.append(np.ascontiguousarray(data[region]))
    return blocks


def codecs_of_earlier_run(path: str, work: str) -> Codecs | None:
    """Return how an unfinished run of the same work codes its blocks.

    Args:
        path: The output.
        work: The text that is equal for equal work.
    """
    state = read_state(partial_path(path))
    try:
        _, other, fields = json.loads(state or b"")["work"]
    except (ValueError, KeyError, TypeError):
        return None
    if other != work:
        return None
    kinds = {each["name"]: each for each in fields}
    image, label = kinds["image"], kinds.get("label", kinds["image"])
    return Codecs(
        image=image["codec"],
        label=label["codec"],
        image_shuffle=image.get("shuffle"),
        label_shuffle=label.get("shuffle"),
    )
