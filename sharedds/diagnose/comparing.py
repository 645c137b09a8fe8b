"""How rates compare, as far as the noise lets one say so: pure arithmetic.

Rates of one round were measured one after another, in the same minute on the same machine, so what
counts is how they compare within rounds: others that use the machine slow all of them down.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

__all__ = ["FEWEST_PAIRS", "Comparison", "Settings", "compare", "noise", "standing"]

#: Student's t: the bound that 0.5 % of the draws exceed, by degrees of freedom. It is looked at
#: several times, and of several plans the luckiest is compared, so 5 % would be too many.
_T = (
    *(63.7, 9.92, 5.84, 4.60, 4.03, 3.71, 3.50, 3.36, 3.25, 3.17),
    *(3.11, 3.05, 3.01, 2.98, 2.95, 2.92, 2.90, 2.88, 2.86, 2.85),
)
_LEAST_NOISE = 0.01
#: Fewer decide nothing.
FEWEST_PAIRS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a plan is tried with.

    Attributes:
        engine: "process" or "thread".
        num_workers: Workers; 0 loads in the training process.
        prefetch_factor: Batches each worker prepares; None without workers.
        threads_per_worker: Threads that make the samples of one batch.
    """

    engine: str
    num_workers: int
    prefetch_factor: int | None = None
    threads_per_worker: int = 1

    @property
    def label(self) -> str:
        """In words."""
        threads = self.threads_per_worker
        several = f" of {threads} threads" if threads > 1 else ""
        if not self.num_workers:
            return f"no workers, {threads} threads" if several else "no workers"
        noun = "thread" if self.engine == "thread" else "process"
        plural = "" if self.num_workers == 1 else "es" if noun == "process" else "s"
        return f"{self.num_workers} {noun}{plural}{several}, prefetch {self.prefetch_factor}"

    def arguments(self) -> dict[str, Any]:
        """Return them as arguments of :func:`~sharedds.build_loader`."""
        several = {"threads_per_worker": self.threads_per_worker}
        threads = several if self.threads_per_worker > 1 else {}
        if not self.num_workers:
            return {"num_workers": 0, **threads}
        return {
            "engine": self.engine,
            "num_workers": self.num_workers,
            "prefetch_factor": self.prefetch_factor,
            **threads,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How much faster one plan is than another, as a factor.

    Attributes:
        factor: The geometric mean over the pairs; above 1 is faster.
        low: The lower end of its 99 % confidence interval.
        high: The upper end.
        pairs: How many pairs there are.
    """

    factor: float
    low: float
    high: float
    pairs: int

    def wins(self, least: float) -> bool:
        """Whether it is faster beyond the noise, and by the factor ``least`` or more."""
        return self.pairs >= FEWEST_PAIRS and self.low > 1 and self.factor >= least


def compare(pairs: Sequence[tuple[float, float]]) -> Comparison:
    """Compare rates that were measured side by side.

    Args:
        pairs: (rate, rate of the plan it is compared with), samples per second.
    """
    ratios = [math.log(mine / other) for mine, other in pairs if mine > 0 and other > 0]
    if not ratios:
        return Comparison(factor=1.0, low=0.0, high=math.inf, pairs=0)
    mean = fmean(ratios)
    if len(ratios) == 1:
        return Comparison(factor=math.exp(mean), low=0.0, high=math.inf, pairs=1)
    bound = _T[min(len(ratios) - 2, len(_T) - 1)]
    half = bound * stdev(ratios) / math.sqrt(len(ratios))
    return Comparison(
        factor=math.exp(mean),
        low=math.exp(mean - half),
        high=math.exp(mean + half),
        pairs=len(ratios),
    )


def standing(
    rounds: Iterable[Mapping[Settings, float]], default: Settings
) -> dict[Settings, list[float]]:
    """Return for each plan the logarithm of its rate over the default's, of each round."""
    found: dict[Settings, list[float]] = {}
    for rates in rounds:
        if not rates.get(default):
            continue
        for settings, rate in rates.items():
            if rate > 0:
                found.setdefault(settings, []).append(math.log(rate / rates[default]))
    return found


def noise(found: Mapping[Settings, Sequence[float]]) -> float:
    """Return how much one logarithm of a ratio scatters, from all plans together."""
    squares, freedom = 0.0, 0
    for ratios in found.values():
        if len(ratios) > 1 and any(ratios):  # those of the default itself are all 0
            squares += stdev(ratios) ** 2 * (len(ratios) - 1)
            freedom += len(ratios) - 1
    return max(_LEAST_NOISE, math.sqrt(squares / freedom)) if freedom else 0.1
