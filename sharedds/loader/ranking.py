"""Which part of each step this process takes, and how that is known."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace

import torch

from sharedds.errors import OptionError
from sharedds.host.ranks import local_ranks
from sharedds.loader.known import RankFacts, counted
from sharedds.loader.stream import OrderedBatches, Position
from sharedds.order import Sequential

__all__ = ["Split", "describe_last_step", "describe_sampler", "find_rank"]


class Split:
    """How an order is split over ranks, once it is known which of them this process is.

    Args:
        whole: The order of one process alone.
        pad: As of ``build_loader``.

    Raises:
        OptionError: ``pad`` makes no sense.
    """

    def __init__(self, whole: OrderedBatches, pad: bool | None) -> None:
        if pad is not None and not isinstance(pad, bool):
            raise OptionError(f"pad={pad!r}: True, False or None is expected")
        if pad and whole.drop_last:
            raise OptionError("pad=True and drop_last=True exclude each other: choose one")
        self._whole = whole
        self._pad = pad

    def over(self, own: RankFacts) -> OrderedBatches:
        """Return the part of a rank."""
        is_training = not isinstance(self._whole.sampling, Sequential)
        pad = self._pad
        if pad is None:
            pad = own.world_size > 1 and not self._whole.drop_last and is_training
        return replace(self._whole, rank=own.rank, world_size=own.world_size, pad=pad)


def find_rank(rank: int | None, world_size: int | None) -> RankFacts:
    """Return what was asked for, else what torch.distributed or the environment says.

    Raises:
        OptionError: Only one of the two is given, or they are no rank.
    """
    if (rank is None) != (world_size is None):
        raise OptionError(
            f"rank={rank!r} and world_size={world_size!r}: give both, or neither to find them out"
        )
    if rank is not None and world_size is not None:
        return _checked_rank(rank, world_size, "as requested")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        own, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        return RankFacts(rank=own, world_size=world, reason="says torch.distributed")
    return _rank_of(os.environ) or RankFacts()


def describe_last_step(own: RankFacts, source: OrderedBatches) -> RankFacts:
    """Return the rank with what becomes of samples that do not fill a step.

    Warns where ranks run side by side and none of them knows which one it is.
    """
    beside = local_ranks()
    if beside.count > 1 and own == RankFacts():
        warnings.warn(
            f"{beside.count} processes train side by side here ({beside.reason}), and nothing "
            "tells which of them this is: each loads all samples. Initialize the process group "
            "before the first batch, or pass rank= and world_size= (0 and 1 if that is meant)",
            stacklevel=3,
        )
    order = source.order(Position(0, 0))
    padded, several = len(order.padded), own.world_size > 1
    if source.drop_last:
        left = counted(order.dropped, "sample")
        kind, reason = "dropped", f"{left} of each epoch left out: drop_last"
    elif source.pad:
        kind = "padded"
        reason = f"{counted(padded, 'sample')} of the beginning repeated: all ranks get as many"
    elif several:
        kind, reason = "split", "every sample counts exactly once; ranks may differ by one batch"
    else:
        kind, reason = "kept", "every sample counts exactly once"
    if source.sampling.repeats and kind in {"kept", "split"}:
        reason = "every draw counts exactly once"
    return RankFacts(
        rank=own.rank,
        world_size=own.world_size,
        reason=own.reason,
        last_step=kind,
        last_step_reason=reason,
    )


def describe_sampler(own: RankFacts, sampler: object) -> RankFacts:
    """Return the rank where a sampler yields all indices of this rank."""
    name = type(sampler).__name__
    reason = f"all indices of {name} are for this rank"
    if own.world_size > 1:
        reason += f"; with {own.world_size} ranks it must split them itself"
    return RankFacts(
        rank=own.rank,
        world_size=own.world_size,
        reason=own.reason,
        last_step="as sampled",
        last_step_reason=reason,
    )


def _rank_of(environ: Mapping[str, str]) -> RankFacts | None:
    own, world = environ.get("RANK"), environ.get("WORLD_SIZE")
    if own is None or world is None:
        return None
    try:
        return _checked_rank(int(own), int(world), "from RANK and WORLD_SIZE in the environment")
    except ValueError:
        raise OptionError(
            f"RANK={own!r} and WORLD_SIZE={world!r} in the environment are no rank; pass rank and "
            "world_size"
        ) from None


def _checked_rank(rank: int, world_size: int, reason: str) -> RankFacts:
    for name, value in (("rank", rank), ("world_size", world_size)):
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise OptionError(f"{name}={value!r}: a whole number is expected")
    own, world = operator.index(rank), operator.index(world_size)
    if not 0 <= own < world:
        raise OptionError(
            f"rank={own} and world_size={world}: ranks count from 0 to world_size - 1"
        )
    return RankFacts(rank=own, world_size=world, reason=reason)
