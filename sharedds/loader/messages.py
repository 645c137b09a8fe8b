"""What is said of workers that died, got stuck or are slow: which samples each has in hand."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sharedds.errors import LoaderStalledError, WorkerDiedError, WorkerError
from sharedds.host.descriptors import open_files_limit
from sharedds.host.shared import shared_memory_room
from sharedds.loader.failures import name_of
from sharedds.workers.postmortem import cause_and_advice, exit_text
from sharedds.workers.stacks import stacks_of
from sharedds.workers.watch import WorkerWatch

__all__ = [
    "InHand",
    "death_of",
    "descriptors_error",
    "is_out_of_descriptors",
    "numbers_of",
    "slowness_of",
    "stall_of",
]

_NAMED = 20  # samples of a batch that a message names


class InHand:
    """Which worker was sent which batch, by number of the task; says it for people.

    Args:
        dataset: What workers read from: a reader of samples, or the dataset itself.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset.dataset if hasattr(dataset, "load") else dataset
        self._tasks: dict[int, tuple[int, Any]] = {}

    def clear(self) -> None:
        """Forget all tasks: another epoch begins."""
        self._tasks.clear()

    def sent(self, task: int, worker: int, index: Any) -> None:
        """Note that a worker was sent a batch."""
        self._tasks[task] = (worker, index)

    def taken(self, left: Mapping[int, Any]) -> list[tuple[int, Any]]:
        """Forget the tasks that are not left; returns the worker and the batch of each."""
        return [self._tasks.pop(task) for task in [t for t in self._tasks if t not in left]]

    def text(self, worker: int, left: Mapping[int, tuple[Any, ...]]) -> str:
        """Say which samples a worker has in hand and which wait for it.

        Args:
            worker: Its number.
            left: torch's account of tasks; those that were received already hold their data.
        """
        tasks = [
            index
            for task, (owner, index) in sorted(self._tasks.items())
            if owner == worker and len(left.get(task, (0, 0))) == 1
        ]
        if not tasks:
            return "nothing in hand"
        epoch = getattr(tasks[0], "epoch", None)
        of = f" of epoch {epoch}" if epoch is not None else ""
        text = f"in hand: samples {numbers_of(tasks[0])}{of}"
        names = [name_of(self._dataset, index) for index in _indices(tasks[0])[:_NAMED]]
        if any(name is not None for name in names):
            text += f" ({', '.join(map(str, names))})"
        waiting = [index for task in tasks[1:] for index in _indices(task)]
        return f"{text}; waiting for it: {_shortened(waiting)}" if waiting else text


# --- errors and warnings -------------------------------------------------------------------------


def death_of(
    workers: list[Any], dead: list[int], watch: WorkerWatch, held: Callable[[int], str]
) -> WorkerDiedError:
    """Return the error for workers that have ended.

    Args:
        workers: All workers.
        dead: The numbers of those that have ended.
        watch: What was seen of them while they lived.
        held: Says what a worker has in hand.
    """
    # If several did, a signal tells more than an exit code.
    first = min(dead, key=lambda number: workers[number].exitcode or 0)
    worker = workers[first]
    code = worker.exitcode
    also = ", ".join(
        f"worker {number} {exit_text(workers[number].exitcode)}"
        for number in dead
        if number != first
    )
    advice = cause_and_advice(
        code,
        oom_killed=watch.oom_killed(),
        room=shared_memory_room(),
        changed=watch.changed_files(),
    )
    (stack,) = stacks_of([worker], 0.1)
    lines = [
        f"worker {first} (pid {worker.pid}) {exit_text(code)}; {held(first)}",
        watch.memory_text(worker.pid),
        *([f"  at the same time: {also}"] if also else []),
        f"  cause and remedy: {advice}",
        *([f"  where it was:\n{_indented(stack)}"] if stack else []),
    ]
    return WorkerDiedError("\n".join(lines))


def stall_of(
    workers: list[Any], held: Callable[[int], str], *, waited: float, timeout: float
) -> LoaderStalledError:
    """Return the error for workers from which no batch came within the time limit."""
    stacks = stacks_of(workers)
    text = (
        f"no batch came from the workers for {waited:.1f} s (timeout={timeout:g}): they "
        "are stuck or too slow, see where each of them is; raise timeout if samples may take "
        "that long"
    )
    lines = [text]
    for number, (worker, stack) in enumerate(zip(workers, stacks, strict=True)):
        where = _indented(stack or "waiting for work, or not able to answer")
        lines += [f"  worker {number} (pid {worker.pid}), {held(number)}", where]
    return LoaderStalledError("\n".join(lines))


def slowness_of(workers: list[Any], held: Callable[[int], str], waited: float) -> str:
    """Return the warning for workers from which no batch has come for long."""
    each = "; ".join(
        f"worker {number} (pid {worker.pid}) has {held(number)}"
        for number, worker in enumerate(workers)
    )
    return (
        f"no batch came from the workers for {waited:.0f} s: {each}. With timeout=<seconds> "
        "the loader ends instead, and says where each worker is stuck"
    )


def is_out_of_descriptors(error: BaseException) -> bool:
    """Whether an error means that no more files can be opened."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return True
    return isinstance(error, RuntimeError) and "ancdata" in str(error)


def descriptors_error(purpose: str) -> WorkerError:
    """Return the error for it; ``purpose`` is what a descriptor was needed for ("to ...")."""
    limit = open_files_limit()
    return WorkerError(
        f"no descriptor is left {purpose}: this process may have {limit} files open at once, and "
        "each tensor of a batch that is kept takes one. Raise the limit (ulimit -n 65536), or keep "
        "copies of batches (tensor.clone())"
    )


# --- text ----------------------------------------------------------------------------------------


def numbers_of(task: Any) -> str:
    """Return the numbers of the samples of a task, the first of many."""
    try:
        return _shortened(_indices(task))
    except (TypeError, ValueError):  # a sampler may yield anything
        return repr(task)[:200]


def _indices(task: Any) -> list[int]:
    """The numbers of the samples of a task: a batch, a list of numbers, or a number."""
    numbers = getattr(task, "indices", task)
    return [int(number) for number in numbers] if isinstance(numbers, Iterable) else [int(numbers)]


def _shortened(numbers: list[int]) -> str:
    text = ", ".join(map(str, numbers[:_NAMED]))
    return text if len(numbers) <= _NAMED else f"{text}, ... ({len(numbers):,} in all)"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
