"""Samples that cannot be loaded: what is done about them, who is told, and how many are too many.

A worker turns what a sample raised into a :class:`FailedSample` and sends it along with the batch,
as data: torch rebuilds an exception from its text alone, which loses which sample it was.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch.utils.data import Subset, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from sharedds.errors import OptionError, SampleError
from sharedds.handles import absolute_path
from sharedds.host.memory import machine_memory
from sharedds.host.system import megabytes
from sharedds.order import SampleKey

if sys.platform != "win32":
    import resource

__all__ = [
    "Delivery",
    "ErrorPolicy",
    "FailedSample",
    "Reader",
    "has_failures",
    "name_of",
    "split_failures",
]

_LEAST_BUDGET = 10
_SHARE_BUDGET = 0.01
_LONGEST_CAUSE = 65_536  # bytes of a pickled exception that is worth sending


class Reader(Protocol):
    """What is needed of the reader of samples.

    It may have a method ``another(key, attempt)``, which returns the key of a sample to take in
    place of one that failed: a pure function, or the stream depends on who asks.
    """

    @property
    def dataset(self) -> Any:
        """The user's dataset."""
        ...

    def load(self, key: SampleKey) -> Any:
        """Return a sample, or raise."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPolicy:
    """What to do when a sample cannot be loaded.

    Args:
        on_error: "raise" ends the loop with a SampleError; "skip" leaves the sample out, so that
            its batch is shorter (a batch of which nothing is left is left out as a whole);
            "replace" takes another sample, always the same one for the same seed and epoch.
        budget: How many samples of an epoch may fail before it ends with a SampleError after all:
            a number, or a share such as 0.05; None stands for 1 %, but at least 10.
        log: A file to which a line of JSON is added for each failed sample.
        attempts: How many samples "replace" tries before it gives up.

    Raises:
        OptionError: A value that makes no sense, or a log in a folder that does not exist.
    """

    on_error: Literal["raise", "skip", "replace"] = "raise"
    budget: int | float | None = None
    log: str | os.PathLike[str] | None = None
    attempts: int = 10

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "skip", "replace"):
            raise OptionError(
                f"on_error={self.on_error!r}: 'raise', 'skip' or 'replace' is expected"
            )
        if self.budget is not None and not _is_budget(self.budget):
            raise OptionError(
                f"error budget {self.budget!r}: a number of samples, or a share from 0.0 to 1.0, "
                "is expected"
            )
        if isinstance(self.attempts, bool) or self.attempts < 1:
            raise OptionError(f"attempts={self.attempts!r}: 1 or more is expected")
        if self.log is not None:
            path = absolute_path(self.log)
            if not os.path.isdir(os.path.dirname(path)):
                raise OptionError(f"{path}: there is no such folder for the error log", path=path)
            object.__setattr__(self, "log", path)

    @property
    def raises(self) -> bool:
        """Whether the first failure ends the loop."""
        return self.on_error == "raise"

    def failed(self, error: Exception, key: SampleKey, reader: Reader) -> list[Any]:
        """In a worker: return what stands in the batch in place of a sample that failed.

        Args:
            error: What the sample raised; call this while it is handled.
            key: The key of the sample.
            reader: Where other samples come from.

        Returns:
            One item for :func:`split_failures`: a record of what
            failed, or a replacement with the record. Nothing is raised here, so that the trainer
            learns of it in the order of the batches.
        """
        failed = _record(error, key, name_of(reader.dataset, key.index))
        if self.on_error != "replace" or failed.is_final:
            return [failed]
        return [_find_another(key, reader, self.attempts, failed)]

    def allowed(self, samples: int | None) -> int:
        """Return how many of an epoch's samples may fail; ``samples`` None for an unknown count."""
        if self.budget is None:
            return max(_LEAST_BUDGET, int(_SHARE_BUDGET * (samples or 0)))
        if isinstance(self.budget, float):
            return int(self.budget * (samples or 0))
        return self.budget


def _is_budget(budget: Any) -> bool:
    if isinstance(budget, float):
        return 0 <= budget <= 1
    return isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0


# --- in a worker ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedSample:
    """A sample that could not be loaded, as data that any process can read.

    Args:
        index: Its number.
        epoch: The pass over the data.
        name: Its key or item, where the dataset tells.
        path: The file that the error names.
        worker: The worker that tried; None in the trainer.
        error: Type and text of what it raised.
        trace: The traceback.
        replacement: The sample taken instead.
        is_final: Whether no policy helps.
        cause: The exception, pickled; empty where it cannot be.
    """

    index: int
    epoch: int
    name: str | None
    path: str | None
    worker: int | None
    error: str
    trace: str = field(repr=False)
    replacement: int | None = None
    is_final: bool = False
    cause: bytes = field(default=b"", repr=False)

    def __str__(self) -> str:
        name = f" ({self.name})" if self.name is not None else ""
        return f"sample {self.index}{name}: {self.error}"

    def exception(self) -> SampleError:
        """Return the error to raise, with the original as its cause where it could travel."""
        name = f" ({self.name})" if self.name is not None else ""
        file = f", file {self.path}" if self.path not in (None, self.name) else ""
        where = f"worker {self.worker}" if self.worker is not None else "the trainer"
        advice = "" if self.is_final else "; on_error='skip' or 'replace' goes on without it"
        error = SampleError(
            f"sample {self.index}{name} of epoch {self.epoch} could not be loaded by {where}{file}:"
            f" {self.error}{advice}\n\n{self.trace}",
            path=self.path,
            sample=self.index,
            key=self.name,
        )
        if self.cause:
            with contextlib.suppress(Exception):  # its class may be unknown here
                error.__cause__ = pickle.loads(self.cause)  # noqa: S301 - from our own worker
        return error


@dataclass(frozen=True, slots=True)
class _Replacement:
    """A sample in place of another one, which failed."""

    sample: Any
    failed: FailedSample


def _find_another(
    key: SampleKey, reader: Reader, attempts: int, failed: FailedSample
) -> FailedSample | _Replacement:
    tried: list[FailedSample] = []
    for attempt in range(attempts):
        other = _another(key, reader, attempt)
        try:
            sample = reader.load(other)
        except MemoryError as error:
            return _record(error, other, name_of(reader.dataset, other.index))
        except Exception as error:
            tried.append(_record(error, other, name_of(reader.dataset, other.index)))
        else:
            return _Replacement(sample, _changed(failed, replacement=other.index))
    text = f"{failed.error}; all {attempts} samples tried in its place failed too:"
    text += "".join(f"\n  {other}" for other in tried)
    return _changed(failed, error=text, trace=failed.trace + _traces(tried), is_final=True)


def _traces(tried: list[FailedSample]) -> str:
    """The traceback of the first sample with each error."""
    first = {other.error: other for other in reversed(tried)}
    return "".join(
        f"\ntried in its place, {other}:\n{other.trace}" for other in reversed(first.values())
    )


def _another(key: SampleKey, reader: Reader, attempt: int) -> SampleKey:
    """The key of another sample: a function of the key alone, whoever asks."""
    choose = getattr(reader, "another", None)
    if choose is not None:  # it knows from which samples this loader may draw
        return choose(key, attempt)  # type: ignore[no-any-return]
    number = key.number(f"replacement {attempt}")
    return dataclasses.replace(key, index=number % len(reader.dataset))


def _changed(failed: FailedSample, **facts: Any) -> FailedSample:
    return dataclasses.replace(failed, **facts)


def _record(error: Exception, key: SampleKey, name: str | None) -> FailedSample:
    info = get_worker_info()
    text = f"{type(error).__name__}: {_text_of(error)}"
    is_final = isinstance(error, MemoryError)
    if is_final:  # what is short is short for all samples: leaving out this one decides nothing
        text += f" ({_memory_facts()}; use fewer workers, a smaller batch or smaller samples)"
    place = None
    with contextlib.suppress(Exception):  # a property of somebody's class
        place = getattr(error, "path", None) or getattr(error, "filename", None)
    trace = error.__traceback__.tb_next if error.__traceback__ else None  # without our own frame
    return FailedSample(
        index=int(key.index),
        epoch=int(key.epoch),
        name=name,
        path=os.fsdecode(place) if isinstance(place, (str, bytes, os.PathLike)) else None,
        worker=info.id if info is not None else None,
        error=text,
        trace="".join(traceback.format_exception(type(error), error, trace)),
        is_final=is_final,
        cause=_pickled(error),
    )


def _text_of(error: Exception) -> str:
    try:
        return str(error)
    except Exception as failed:
        return f"<no text: {type(failed).__name__} in its __str__>"


def _memory_facts() -> str:
    limit = ""
    if sys.platform != "win32":
        soft = resource.getrlimit(resource.RLIMIT_AS)[0]
        limit = f", address space limited to {megabytes(soft)}" if soft > 0 else ""
    return f"memory ran out: {machine_memory()}{limit}"


def _pickled(error: Exception) -> bytes:
    """The exception as bytes, if it comes back from them as what it was."""
    try:
        data = pickle.dumps(error)
        is_whole = type(pickle.loads(data)) is type(error)  # noqa: S301 - made a line above
    except (Exception, SystemExit):  # code of its class runs here
        return b""
    return data if is_whole and len(data) <= _LONGEST_CAUSE else b""


def name_of(dataset: object, index: int) -> str | None:
    """Return what a dataset calls a sample: by its ``key`` or ``item``; None where it has none."""
    if isinstance(dataset, Subset):
        with contextlib.suppress(Exception):
            return name_of(dataset.dataset, dataset.indices[index])
        return None
    for method in ("key", "item"):
        with contextlib.suppress(Exception):
            return str(getattr(dataset, method)(index))
    return None


# --- on the way ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Delivery:
    """A batch with more to say than the batch itself.

    Args:
        batch: The batch, or an InlineBatch.
        failures: What failed in it.
        is_empty: Whether there is nothing to hand out.
    """

    batch: Any
    failures: tuple[FailedSample, ...] = ()
    is_empty: bool = False

    def pin_memory(self) -> Delivery:
        """Pin the batch; torch's pinning thread calls this."""
        return Delivery(_pinned(self.batch), self.failures, self.is_empty)


def _pinned(batch: Any) -> Any:
    return pin_memory(batch)  # type: ignore[no-untyped-call]


_RECORDS = frozenset({FailedSample, _Replacement})


def split_failures(items: list[Any]) -> tuple[list[Any], tuple[FailedSample, ...]]:
    """Return the good samples of a batch, replacements included, and the records of the others."""
    if _RECORDS.isdisjoint(map(type, items)):
        return items, ()
    good = [
        item.sample if isinstance(item, _Replacement) else item
        for item in items
        if not isinstance(item, FailedSample)
    ]
    return good, tuple(_failures_in(items))


def has_failures(items: Iterable[Any]) -> bool:
    """Whether a list of samples holds records of some that failed."""
    return any(True for _ in _failures_in(items))


def _failures_in(items: Iterable[Any]) -> Iterator[FailedSample]:
    for item in items:
        if isinstance(item, FailedSample):
            yield item
        elif isinstance(item, _Replacement):
            yield item.failed
