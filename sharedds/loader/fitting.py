"""How many workers and batches fit: into memory, ``/dev/shm`` and the descriptors there are.

What is wanted is made smaller in a fixed order until it fits: first batches in advance, down to
one for each worker, then workers, then none at all. So more room never means less of either.
Batches for which ``/dev/shm`` has no room travel through a pipe: for that, one worker always stays.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, replace

from sharedds.errors import OptionError
from sharedds.host.shared import SHARED_MEMORY
from sharedds.loader.budget import Shape, estimate_memory, limit_text
from sharedds.loader.known import DatasetFacts, LoaderFacts, LoaderRequest, counted
from sharedds.text import decimal_size

__all__ = ["Bound", "Fitted", "bounds_of", "fit", "fits", "overfull"]

#: Of free memory and of free room in /dev/shm, the rest is left to others.
_SHARE_USED = 0.9
#: Descriptors of pipes, locks and the sentinel that each worker costs the trainer (5, and some).
_DESCRIPTORS_OF_WORKER = 6
#: Tensors in a batch where that is not known.
_TENSORS = 2
#: Smaller tensors travel by value and cost no descriptor.
_SMALL = 1 << 15

_NOTHING = "no batch size fits"
_THROUGH_PIPE = "what does not fit travels through the pipe, slower"
_MEMORY_ADVICE = "; engine='thread' takes less, since threads hold no libraries of their own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Something there is only so much of.

    Attributes:
        name: "max_memory", "memory", "/dev/shm" or "descriptors".
        room: How much there is.
        need: How much a loader of a shape takes.
        said: The room, for people.
        is_hard: Whether what does not fit cannot work; else it is an estimate of this machine.
        text: A figure of ``need``, for people.
        advice: What else helps, for people.
        least_workers: Fewer workers than that are never better.
        otherwise: What becomes of more than fits, for people.
    """

    name: str
    room: int
    need: Callable[[Shape], int]
    said: str
    is_hard: bool = True
    text: Callable[[float], str] = decimal_size
    advice: str = ""
    least_workers: int = 0
    otherwise: str = ""

    def holds(self, shape: Shape) -> bool:
        """Whether a loader of this shape fits."""
        return self.need(shape) <= self.room


@dataclass(frozen=True, slots=True)
class Fitted:
    """What was found to fit.

    Attributes:
        shape: The largest shape that fits.
        bound: What made it smaller than wanted; None if it is as wanted.
        tight: A bound that is passed although the shape cannot be made smaller.
    """

    shape: Shape
    bound: Bound | None = None
    tight: Bound | None = None


def bounds_of(
    request: LoaderRequest, facts: LoaderFacts, dataset: DatasetFacts
) -> tuple[Bound, ...]:
    """Return what limits workers and batches here, as far as it is known."""
    found = []
    size = dataset.planned_sample_bytes or 0
    ranks = max(1, facts.local_ranks)
    for_each = f" for each of {ranks} ranks" if ranks > 1 else ""
    if request.engine == "process":
        if facts.shared_memory_free is not None:
            free = facts.shared_memory_free // ranks
            found.append(
                Bound(
                    name=SHARED_MEMORY,
                    room=int(free * _SHARE_USED),
                    need=lambda s: s.batches * s.batch_size * size if s.num_workers else 0,
                    said=f"{SHARED_MEMORY} has {decimal_size(free)} free{for_each}",
                    is_hard=False,
                    text=lambda need: f"{decimal_size(need)}; {_THROUGH_PIPE}",
                    least_workers=1,
                    otherwise=_THROUGH_PIPE,
                )
            )
        if facts.descriptors is not None:
            found.append(_descriptors(facts, dataset))
    if facts.memory_available is not None:
        left = facts.memory_available // ranks
        held = replace(facts, trainer_bytes=None, other_bytes=0)
        if facts.is_server_running:
            held = replace(held, server_bytes=0)
        found.append(
            Bound(
                name="memory",
                room=int(left * _SHARE_USED),
                # Of samples nobody knows, one worker is not too much by its own size.
                need=lambda s: (
                    estimate_memory(s, held, dataset).total if size or s.num_workers > 1 else 0
                ),
                said=f"{decimal_size(left)} of memory are left{for_each}",
                is_hard=False,
            )
        )
    if request.max_memory is not None:
        found.append(
            Bound(
                name="max_memory",
                room=request.max_memory,
                need=lambda s: estimate_memory(s, facts, dataset).total,
                said=f"max_memory={limit_text(request.max_memory)}",
                advice=_MEMORY_ADVICE if request.engine == "process" else "",
            )
        )
    return tuple(found)


def fits(shape: Shape, bounds: tuple[Bound, ...], *, memory_share: float = 1.0) -> bool:
    """Whether a shape fits all bounds, and that of memory with something to spare."""
    return all(
        bound.need(shape) <= bound.room * (memory_share if bound.name == "memory" else 1.0)
        for bound in bounds
    )


def fit(
    wanted: Shape, request: LoaderRequest, bounds: tuple[Bound, ...], facts: LoaderFacts
) -> Fitted:
    """Return the largest shape that fits and leaves alone what was asked for.

    Args:
        wanted: The shape if there were no bounds.
        request: What was asked for.
        bounds: What there is.
        facts: For the refusal: what this process has already.

    Raises:
        OptionError: Not even the smallest fits; the text names the nearest that does.
    """
    path = _smaller_and_smaller(
        wanted,
        is_workers_fixed=request.num_workers is not None,
        is_prefetch_fixed=request.prefetch_factor is not None,
    )
    at, limit, tight = 0, None, None
    for bound in bounds:
        known = [shape for shape in path if shape.num_workers >= bound.least_workers] or path
        first = next((i for i, shape in enumerate(known) if bound.holds(shape)), None)
        if first is None:
            if bound.is_hard:
                raise OptionError(_refusal(bound, path[-1], wanted, request, bounds, facts))
            first, tight = len(known) - 1, bound
        if first > at:
            at, limit = first, bound
    if tight is not None and tight.otherwise:
        if tight.holds(path[at]):  # another bound has left no worker
            tight = None
        elif tight is limit and path[at].num_workers < wanted.num_workers:
            limit, tight = replace(limit, said=f"{limit.said}; {limit.otherwise}"), None
    return Fitted(path[at], limit, tight)


def overfull(
    shape: Shape, request: LoaderRequest, facts: LoaderFacts, dataset: DatasetFacts
) -> str | None:
    """Return why a loader of this shape takes more memory than there is; None if it does not.

    The text names the nearest that fits. What is not known of the samples is no reason.
    """
    if dataset.planned_sample_bytes is None:
        return None
    bounds = tuple(
        bound
        for bound in bounds_of(request, facts, dataset)
        if bound.is_hard or bound.name == "memory"
    )
    for bound in bounds:
        if bound.name == "memory" and not bound.holds(shape):
            takes = bound.text(bound.need(shape))
            nearest = _nearest(shape, bounds, bound, facts)
            return f"the loader may take {takes}, and {bound.said}; {nearest}"
    return None


def _smaller_and_smaller(
    wanted: Shape, *, is_workers_fixed: bool, is_prefetch_fixed: bool
) -> list[Shape]:
    workers, prefetch = wanted.num_workers, wanted.prefetch_factor
    if workers == 0:
        return [wanted]
    least = prefetch if is_prefetch_fixed else 1
    path = [replace(wanted, prefetch_factor=each) for each in range(prefetch, least - 1, -1)]
    if not is_workers_fixed:
        fewer = range(workers - 1, 0, -1)
        path += [replace(wanted, num_workers=n, prefetch_factor=least) for n in fewer]
        path.append(replace(wanted, num_workers=0, prefetch_factor=0))
    return path


def _descriptors(facts: LoaderFacts, dataset: DatasetFacts) -> Bound:
    limit = facts.descriptors or 0
    sizes = dataset.tensor_bytes

    def need(shape: Shape) -> int:
        tensors = sum(size * shape.batch_size > _SMALL for size in sizes) if sizes else _TENSORS
        if not shape.num_workers:
            return 0
        own = facts.descriptors_open + shape.num_workers * _DESCRIPTORS_OF_WORKER
        return own + shape.batches * tensors

    return Bound(
        name="descriptors",
        # Once half of them are taken, the loader copies each batch to save descriptors.
        room=limit // 2,
        need=need,
        said=f"{limit:,} files may be open, {facts.descriptors_open:,} are",
        advice="; or raise the limit (ulimit -n)",
        text=lambda count: counted(int(count), "descriptor"),
    )


# --- saying what would fit -----------------------------------------------------------------------


def _refusal(
    bound: Bound,
    least: Shape,
    wanted: Shape,
    request: LoaderRequest,
    bounds: tuple[Bound, ...],
    facts: LoaderFacts,
) -> str:
    asked = [
        f"{name}={value}"
        for name in ("num_workers", "prefetch_factor")
        if (value := getattr(request, name)) is not None
    ]
    what = f"{' and '.join(asked)} cannot be met" if asked else "no loader fits"
    takes = bound.text(bound.need(least))
    hard = tuple(each for each in bounds if each.is_hard)
    nearest = _nearest(wanted, hard, bound, facts)
    if request.persistent_workers and "num_workers=0" in nearest:
        nearest += ", without persistent_workers"
    advice = "" if nearest.startswith(_NOTHING) else bound.advice
    return f"{what}: {takes} are needed, but {bound.said}; {nearest}{advice}"


def _nearest(wanted: Shape, bounds: tuple[Bound, ...], bound: Bound, facts: LoaderFacts) -> str:
    """Say what would fit: fewer workers or batches, else smaller batches."""
    free = _smaller_and_smaller(wanted, is_workers_fixed=False, is_prefetch_fixed=False)
    for shape in free:
        if fits(shape, bounds):
            return f"the nearest that fits is {_shape_text(shape, bound)}"
    for shape in (replace(wanted, num_workers=1, prefetch_factor=1), free[-1]):
        if size := _largest_batch(shape, bounds):
            smaller = _shape_text(replace(shape, batch_size=size), bound)
            return f"the nearest that fits is batch_size={size} with {smaller}"
    single = replace(free[-1], batch_size=1)
    held = ""
    if bound.name == "max_memory" and facts.trainer_bytes:
        held = f", of which this process has {decimal_size(facts.trainer_bytes)} already"
    needs = bound.text(bound.need(single))
    return f"{_NOTHING}: batch_size=1 with num_workers=0 takes {needs}{held}"


def _largest_batch(shape: Shape, bounds: tuple[Bound, ...]) -> int:
    """Return the largest batch size below that of a shape that fits; 0 if none does."""
    # What is needed grows with the batch, so those that fit come first.
    return bisect.bisect_left(
        range(1, shape.batch_size),
        True,
        key=lambda size: not fits(replace(shape, batch_size=size), bounds),
    )


def _shape_text(shape: Shape, bound: Bound) -> str:
    parts = f"num_workers={shape.num_workers}"
    if shape.num_workers:
        parts += f", prefetch_factor={shape.prefetch_factor}"
    need = bound.need(shape)
    return f"{parts} ({bound.text(need)})" if need else parts
