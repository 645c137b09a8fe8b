"""Which plans are still worth trying, and which seems best; no process is started here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean, median

from sharedds.diagnose.comparing import Settings, noise, standing
from sharedds.diagnose.trial import Trial

__all__ = ["LEAST_GAIN", "ROUNDS", "Race", "first_candidates"]

LEAST_GAIN = 1.03  # what a plan must be better than the default to be worth a change
ROUNDS = 2  # before a plan may leave

_WORTH_IT = 0.02  # more workers must give so much more (a logarithm) for still more to be tried


@dataclass(slots=True)
class Race:
    """What is known of the plans so far, and which are still tried.

    Attributes:
        default: The plan that the loader would choose.
        ceiling: The most memory, in bytes; None for no limit.
        most_workers: Where the number of workers ends.
        shares: Whether several threads may make one batch in a worker process.
        rounds: Samples per second of each plan, by round.
        memory: The most that each plan held, in bytes.
        out: Why a plan is not tried any more.
        alive: Plans that are still tried.
    """

    default: Settings
    ceiling: int | None
    most_workers: int
    shares: bool = False
    rounds: list[dict[Settings, float]] = field(default_factory=list)
    memory: dict[Settings, int] = field(default_factory=dict)
    out: dict[Settings, str] = field(default_factory=dict)
    alive: list[Settings] = field(default_factory=list)

    def add(self, settings: Settings) -> bool:
        """Let a plan join, if it is new."""
        if settings in self.alive or settings in self.out:
            return False
        if settings.num_workers > self.most_workers:
            return False
        self.alive.append(settings)
        return True

    def record(self, results: Mapping[Settings, Trial]) -> None:
        """Take the results of a round; what failed or held too much memory leaves."""
        rates = {}
        for settings, trial in results.items():
            if trial.error is not None or not trial.samples_per_second:
                self._leave(settings, f"failed: {trial.error or 'no samples'}")
                continue
            held = trial.peak_irrevocable or 0
            self.memory[settings] = max(held, self.memory.get(settings, 0))
            if self.ceiling is not None and held > self.ceiling:
                self._leave(settings, "over the memory limit")
                continue
            rates[settings] = trial.samples_per_second
        self.rounds.append(rates)

    def _leave(self, settings: Settings, reason: str) -> None:
        self.out[settings] = reason
        if settings in self.alive:
            self.alive.remove(settings)

    def means(self) -> dict[Settings, float]:
        """Return the mean logarithm of each plan's rate over the default's."""
        return {s: fmean(r) for s, r in standing(self.rounds, self.baseline).items()}

    @property
    def baseline(self) -> Settings:
        """What the others are compared with: the default, unless it does not run at all."""
        if self.default not in self.out:
            return self.default
        return self.alive[0] if self.alive else self.default

    def drop_those_behind(self) -> None:
        """Let those leave that are slower than the best by more than the noise."""
        found = standing(self.rounds, self.baseline)
        scatter = noise(found)
        means = {s: fmean(ratios) for s, ratios in found.items() if s in self.alive}
        if not means:
            return
        best = max(means.values())
        for settings, mean in means.items():
            count = len(found[settings])
            if count < ROUNDS or settings == self.baseline:
                continue
            if mean + 3 * scatter * math.sqrt(2 / count) < best:
                self._leave(settings, "slower")

    def grow(self) -> bool:
        """Let more workers join where the most so far were the best; whether any did."""
        means = {s: mean for s, mean in self.means().items() if s in self.alive}
        has_grown = False
        kinds = sorted({(s.engine, s.threads_per_worker) for s in means if s.num_workers})
        for kind in kinds:
            family = sorted(
                (s for s in means if (s.engine, s.threads_per_worker) == kind and s.num_workers),
                key=lambda s: s.num_workers,
            )
            top = family[-1]
            below = [means[s] for s in family if s.num_workers < top.num_workers]
            if below and means[top] < max(below) + _WORTH_IT:
                continue
            if means[top] + _WORTH_IT < max(means.values()):
                continue
            more = top.num_workers + max(1, top.num_workers // 2)
            has_grown |= self._add_with_room(replace(top, num_workers=more), like=top)
        return has_grown

    def vary(self) -> bool:
        """Let the best plan join with other depths of prefetching and other numbers of threads.

        Returns:
            Whether any did.
        """
        best = self.best()
        others = []
        if best.num_workers and (depth := best.prefetch_factor) is not None:
            others += [replace(best, prefetch_factor=max(1, depth // 2))]
            others += [replace(best, prefetch_factor=depth * 2)]
        if self.shares and best.engine == "process":
            threads = best.threads_per_worker
            others += [replace(best, threads_per_worker=max(1, threads // 2))]
            others += [replace(best, threads_per_worker=threads * 2)]
        has_grown = False
        for settings in others:
            has_grown |= self._add_with_room(settings, like=best)
        return has_grown

    def _add_with_room(self, settings: Settings, *, like: Settings) -> bool:
        """Let a plan join unless it would clearly take more memory than there may be."""
        held = self.memory.get(like, 0)
        none = Settings(engine="process", num_workers=0)
        if self.ceiling is not None and like.engine == "process" and none in self.memory:
            per_worker = max(0, held - self.memory[none]) / max(1, like.num_workers)
            if self.memory[none] + per_worker * settings.num_workers > 1.1 * self.ceiling:
                self._leave(settings, "not tried: it would be over the memory limit")
                return False
        return self.add(settings)

    def best(self) -> Settings:
        """Return the plan that seems best; of those as fast within the noise, the cheapest.

        The default has precedence over what is hardly faster.
        """
        found = standing(self.rounds, self.baseline)
        means = {s: fmean(ratios) for s, ratios in found.items() if s in self.alive}
        if not means:
            return self.baseline
        top = max(means.values())
        hardly = math.log(LEAST_GAIN) / 2
        if means.get(self.default, -math.inf) >= top - hardly:
            return self.default
        scatter, depth = noise(found), self.default.prefetch_factor
        near = [
            s
            for s, mean in means.items()
            if mean >= top - max(hardly, scatter * math.sqrt(2 / len(found[s])))
            and s != self.default
        ]
        return min(
            near,
            key=lambda s: (
                self.memory.get(s, 0),
                s.num_workers * s.threads_per_worker,
                s.prefetch_factor != depth,
            ),
        )

    def rate(self, settings: Settings) -> float | None:
        """Return the median of a plan's rates."""
        rates = [rates[settings] for rates in self.rounds if settings in rates]
        return median(rates) if rates else None


def first_candidates(default: Settings, cpus: int, *, shares: bool = False) -> Iterator[Settings]:
    """Yield the plans that a race begins with.

    Args:
        default: The plan that the loader would choose.
        cpus: CPUs that there are.
        shares: Whether several threads may make one batch in a worker process.
    """
    yield default
    yield Settings(engine="process", num_workers=0)
    depth = default.prefetch_factor or 2
    for count in sorted({1, max(1, cpus // 2), cpus, min(cpus + 1, cpus * 3 // 2)}):
        yield Settings(engine="process", num_workers=count, prefetch_factor=depth)
    for count in sorted({max(1, cpus // 2), cpus}):
        yield Settings(engine="thread", num_workers=count, prefetch_factor=depth)
    if shares and cpus > 1:
        yield Settings(engine="process", num_workers=0, threads_per_worker=cpus)
        for count, threads in sorted({(1, cpus), (max(1, cpus // 2), 2)}):
            yield Settings(
                engine="process",
                num_workers=count,
                prefetch_factor=depth,
                threads_per_worker=threads,
            )
