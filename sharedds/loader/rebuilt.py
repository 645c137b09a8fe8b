"""What training frameworks look at and replace in a loader: its samplers, and how it is counted.

Lightning rebuilds a loader from its arguments to give it another sampler; Accelerate counts the
batches of loaders that it has prepared, to know when an epoch ends.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from sharedds.errors import OptionError
from sharedds.loader.sampled import OrderSampler, SampledBatches
from sharedds.loader.stream import OrderedBatches, Position, SampleStream

__all__ = ["checked_stream", "counted_by_accelerate", "origin_of", "remainder_of"]


def origin_of(options: Mapping[str, Any]) -> Any | None:
    """Return the loader whose order stands in the arguments of a new one; None if none does."""
    sampler = getattr(options.get("batch_sampler"), "sampler", options.get("sampler"))
    if isinstance(sampler, OrderSampler) and sampler.loader is not None:
        return sampler.loader()
    return None


def checked_stream(stream: SampleStream | None, sampler: Any, batch_sampler: Any) -> SampleStream:
    """Return the stream of a loader, unless its samplers are no longer those of the stream.

    Raises:
        OptionError: A framework has rebuilt the loader with another sampler: going on would give
            every rank all samples.
    """
    if stream is not None:
        if isinstance(stream.source, SampledBatches):
            if stream.source.sampler is sampler:
                return stream
        elif any(
            isinstance(shown, OrderSampler)
            for shown in (sampler, getattr(batch_sampler, "sampler", None))
        ):
            return stream
    raise OptionError(
        "a PlannedLoader is made by build_loader and cannot be rebuilt with another sampler. "
        "Without sampler=, or with a Sampling, it is split over the ranks already, and frameworks "
        "leave it as it is; with a sampler that yields indices, let that split them and tell the "
        "framework not to replace it (in Lightning: use_distributed_sampler=False)"
    )


def remainder_of(stream: SampleStream) -> int:
    """Return how many samples of all ranks the last step of an epoch has; -1 if it is whole or cut.

    Accelerate cuts what it gathered in the last step to so many, which leaves out what was padded.
    """
    source = stream.source
    if not isinstance(source, OrderedBatches) or source.drop_last:
        return -1
    left = source.order(Position(0, 0)).sampling.count % (source.batch_size * source.world_size)
    return left or -1


def counted_by_accelerate(loader: Any, *, begins: bool) -> None:
    """Tell Accelerate, where it is in use, that a loop over a loader begins or is over."""
    state = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    if state is None or not getattr(state, "_shared_state", None):
        return
    tell = getattr(state(), "_add_dataloader" if begins else "_remove_dataloader", None)
    if tell is not None:
        tell(loader)
