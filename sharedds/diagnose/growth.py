"""Tells a worker that keeps what it reads from one that only warms up.

Every worker grows at first: libraries are loaded, and the allocator keeps room for the largest
sample so far. That slows down soon. A cache goes on growing with each sample, as long as there are
samples that it has not seen.
"""

from __future__ import annotations

from dataclasses import dataclass

from sharedds.diagnose.trial import Trial

__all__ = ["Growth", "filled", "grown", "growth_of", "may_grow"]

#: How much a worker must have grown to be worth a second look, in bytes.
_SUSPICIOUS = 8_000_000
_LEAST_SHARE = 0.35  # of all growth, in the second half; half of it, if it goes on evenly
_LEAST_LEFT = 0.25  # of all growth of a cache, when at most half of it can be full


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How a worker grew.

    Args:
        nbytes: By how much, in bytes.
        samples: Over how many samples that it read.
        per_1000: Bytes for each 1,000 samples, at last; 0 if that is not known.
    """

    nbytes: int
    samples: int
    per_1000: int


def may_grow(trial: Trial) -> bool:
    """Whether a trial gives reason to measure longer."""
    curve = _curve(trial)
    return len(curve) > 1 and curve[-1][1] - curve[0][1] >= _SUSPICIOUS


def grown(trial: Trial) -> Growth:
    """Return by how much a worker grew from the first to the last measurement."""
    curve = _curve(trial) or [(0, 0)]
    (begin, first), (end, last) = curve[0], curve[-1]
    samples = (end - begin) // max(1, trial.num_workers)
    return Growth(nbytes=last - first, samples=samples, per_1000=0)


def filled(trial: Trial, samples: int | None) -> Growth | None:
    """Return how a worker grew that read all there is, and so may have filled a cache.

    Where a pass is too short to see how it grows, that it did has to be enough.

    Args:
        trial: The measurement.
        samples: How many samples the dataset has.
    """
    growth = grown(trial)
    if not samples or trial.samples_read < samples or growth.nbytes < _SUSPICIOUS:
        return None
    # When each worker has read half as many as there are, a cache has half of it still to come.
    curve = _curve(trial)
    early = [used for read, used in curve[1:] if read <= samples * trial.num_workers / 2]
    if early and curve[-1][1] - early[-1] < _LEAST_LEFT * growth.nbytes:
        return None
    return growth


def growth_of(trial: Trial, samples: int | None) -> Growth | None:
    """Return how a worker grew, if it grew to the end of the trial.

    Args:
        trial: The measurement, not too short.
        samples: How many samples the dataset has. After a pass over all of them a cache is full, so
            where there were two and more, only the first one counts.
    """
    curve = _curve(trial)
    if samples and trial.samples_read > 2 * samples:
        curve = [point for point in curve if point[0] <= samples]
    if len(curve) < 4:
        return None
    (begin, first), (end, last) = curve[0], curve[-1]
    half, middle = next(point for point in curve if point[0] >= (begin + end) / 2)
    late = last - middle
    if late < max(_SUSPICIOUS, first // 10) or late < _LEAST_SHARE * (last - first):
        return None
    workers = max(1, trial.num_workers)
    return Growth(
        nbytes=last - first,
        samples=(end - begin) // workers,
        per_1000=round(late * 1000 * workers / max(1, end - half)),
    )


def _curve(trial: Trial) -> list[tuple[int, int]]:
    """Samples read, and the mean private memory of a worker then."""
    curve = []
    for point in trial.points:
        known = [uss for uss in point.workers if uss is not None]
        if known and len(known) == len(point.workers):
            curve.append((point.samples, sum(known) // len(known)))
    return curve
