"""What bounds a loader, and what more workers would give: a pure function of what was measured.

One worker makes a sample in the time that computing, waiting for storage and sending take. Workers
wait side by side but share the CPUs. So a loader is bound by its workers while these together are
slower than the CPUs, and by the CPUs beyond that.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StageCost", "Verdict", "judge"]

#: Workers count as the bound if the CPUs would allow so much more.
_ROOM = 1.12
#: Storage counts as the bound if so much of a sample's time is waiting for it.
_MOSTLY = 0.5
#: The CPUs that others use are worth a word from so many on.
_OTHERS = 0.25
#: So much less than the costs would allow is worth a word, too.
_MOST_LOST = 0.6
#: So much more is no more than the noise.
_AS_WELL = 0.05

_DOING = {
    "read": "reading and checking bytes",
    "decode": "decoding",
    "transform": "the transform",
    "collate": "collating",
    "transfer": "sending batches to the trainer",
    "other": "code that fits no stage",
}

_ADVICE = {
    "read": "pack the data into one store, or move it to faster storage",
    "decode": "store smaller pictures (pack --short-side), or decoded ones (--codec raw)",
    "transform": "crop before anything else, work on uint8, or move it to the accelerator",
    "collate": "return tensors of one shape, and let torch's own collate stack them",
    "transfer": "send smaller batches (uint8, not float32) or use engine='thread'",
    "other": "the places listed below are where it is spent",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """What one stage costs each sample, in milliseconds.

    Attributes:
        name: "read", "decode", "transform", "collate", "transfer" or "other".
        milliseconds: All of it, without the time in which others had the CPU.
        computing: CPU time.
        waiting: For storage, or whatever else is no CPU.
        share: Of the time of a sample, from 0 to 1.
    """

    name: str
    milliseconds: float
    computing: float
    waiting: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What bounds a loader.

    Attributes:
        bound: "workers" (too few), "storage", "threads" (those of torch, without workers), or the
            stage that takes most of the CPUs: "read", "decode", "transform", "collate",
            "transfer", "other".
        headline: In a few words.
        text: Why, and what more workers would give, with numbers.
        advice: What would help.
        expected: Samples per second for other numbers of workers: pairs (workers, rate).
        enough_workers: The fewest workers that come within 5 % of the most.
    """

    bound: str
    headline: str
    text: str
    advice: str
    expected: tuple[tuple[int, float], ...]
    enough_workers: int


def judge(
    stages: tuple[StageCost, ...],
    *,
    rate: float,
    workers: int,
    threads: bool = False,
    cpus: int,
    busy: float | None,
    others: float | None = None,
    sending: float | None = None,
    one_thread_rate: float | None = None,
) -> Verdict:
    """Judge what bounds a loader.

    Args:
        stages: What each stage costs a sample, transfer included.
        rate: Samples per second that the loader gave.
        workers: How many workers it had.
        threads: Whether they were threads, which send nothing.
        cpus: CPUs this process may use.
        busy: CPUs that the loader kept busy.
        others: CPUs that other programs kept busy meanwhile; None if unknown.
        sending: Milliseconds that a sample's transfer would cost; None for that of the stages.
        one_thread_rate: Samples per second of one thread without workers, where torch had no more.
    """
    in_stages = sum(stage.computing for stage in stages if stage.name == "transfer")
    sent = in_stages if sending is None else sending
    making = sum(stage.computing for stage in stages if stage.name != "transfer")
    waiting = sum(stage.waiting for stage in stages)
    taken = others or 0.0

    def predicted(count: int) -> float:
        computing = making + (0.0 if threads or count == 0 else sent)
        at_work = max(count, 1)
        # What others leave, or what a fair scheduler gives to so many.
        ours = max(cpus - taken, cpus * at_work / (at_work + taken))
        if count == 0:
            alone = 1000 / max(making / min(1.0, ours) + waiting, 1e-6)
            return alone if one_thread_rate is None else min(alone, one_thread_rate)
        by_workers = 1000 * count / max(computing + waiting, 1e-6)
        return min(by_workers, 1000 * ours / max(computing, 1e-6))

    # What was measured knows what a model does not: caches, memory, the scheduler.
    rate = max(rate, 1e-9)
    scale = rate / predicted(workers)
    is_split = workers == 0 and one_thread_rate is not None and rate < _MOST_LOST * one_thread_rate
    if is_split and one_thread_rate is not None:
        scale = one_thread_rate / predicted(0)
    most = max(2 * cpus, workers + 2)
    ceiling = max(predicted(count) for count in range(most + 1))
    enough = next(count for count in range(most + 1) if predicted(count) >= 0.95 * ceiling)
    powers = (2**power for power in range(8))
    counts = sorted({0, workers, enough, *(each for each in powers if each <= most)})
    expected = tuple(
        (count, rate if count == workers else scale * predicted(count)) for count in counts
    )
    reached = scale * predicted(enough)
    if is_split and one_thread_rate is not None:
        return Verdict(
            bound="threads",
            headline="torch's threads wait for each other",
            text=(
                "Without workers, torch splits the work of each sample over several threads: "
                f"{rate:,.0f} samples/s. One thread alone makes {one_thread_rate:,.0f}"
                + (
                    f", and {_count(enough, 'worker')} would give some {reached:,.0f}."
                    if enough
                    else "."
                )
                + (f" Other programs keep {taken:.1f} CPUs busy." if taken >= _OTHERS else "")
            ),
            advice=(f"num_workers={enough}, or " if enough else "") + "torch.set_num_threads(1)",
            expected=expected,
            enough_workers=enough,
        )
    # What follows tells of this loader, in which nothing may be sent.
    computing = making + (0.0 if workers == 0 or threads else sent)
    whole = computing + waiting
    heaviest = max(stages, key=lambda stage: stage.computing)
    gain = reached / rate - 1
    each = f"A sample takes {computing:.3g} ms of computing"
    if waiting >= 0.02 * whole:
        each += f" and {waiting:.3g} ms of waiting for storage"
    company = ""
    if taken >= _OTHERS:
        company = f" Other programs keep {taken:.1f} CPUs busy: measure again without them."
    elif scale < _MOST_LOST:
        company = (
            f" The loader gives {100 * scale:.0f} % of what that would allow: its processes wait "
            "for each other, or for memory; larger batches may help."
        )
    share = heaviest.computing / max(computing, 1e-9)
    most_of_it = f"{100 * share:.0f} % of the computing is {_DOING[heaviest.name]}"
    if ceiling > _ROOM * predicted(workers) and gain > 0 and enough > workers:
        wait_share = waiting / whole
        is_storage = wait_share >= _MOSTLY
        doing = "waits for storage" if is_storage else "works on its own sample"
        who = "the trainer itself" if workers == 0 else _count(workers, "worker")
        one = "It" if workers == 0 else "Each"
        why = f"{one} {doing} most of the time, and {_count(cpus, 'CPU')} are there for {who}"
        if workers >= cpus and not is_storage:  # they wait for others, who want the CPUs as well
            why = f"More workers would get a larger share of the {_count(cpus, 'CPU')}"
        text = (
            f"{each}. {why}: {_count(enough, 'worker')} would give some {reached:,.0f} samples/s "
            f"(+{100 * gain:.0f} %). Beyond that the CPUs are the bound, and {most_of_it}.{company}"
        )
        return Verdict(
            bound="storage" if is_storage else "workers",
            headline="storage is waited for" if is_storage else "too few workers",
            text=text,
            advice=f"num_workers={enough}",
            expected=expected,
            enough_workers=enough,
        )
    used = "" if busy is None else f", of which the loader keeps {busy:.1f} busy"
    text = f"{each}, on {_count(cpus, 'CPU')}{used}: {most_of_it}. "
    headline = f"the CPUs are the bound, {_DOING[heaviest.name]} most of all"
    advice = _ADVICE[heaviest.name]
    if gain > _AS_WELL and enough > workers:
        text += f"{_count(enough, 'worker')} would give at most {100 * gain:.0f} % more."
    elif workers > enough:
        who = _count(enough, "worker") if enough else "no workers at all"
        if gain > _AS_WELL:
            text += f"{_sentence(who)} would give some {reached:,.0f} (+{100 * gain:.0f} %)."
            headline = f"fewer workers are faster: what costs most is {_DOING[heaviest.name]}"
            advice = f"num_workers={enough}" + ("" if enough else ", with torch.set_num_threads(1)")
        else:
            text += f"{_sentence(who)} would do as well: more share the same CPUs."
    else:
        text += "More workers would share the same CPUs and give nothing."
    return Verdict(
        bound=heaviest.name,
        headline=headline,
        text=text + company,
        advice=advice,
        expected=expected,
        enough_workers=enough,
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
