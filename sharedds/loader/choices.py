"""One pure function for each choice of a plan, with the reason and what bound it.

What the user asked for wins, after it was checked. How much of it fits is another matter, see
:mod:`sharedds.loader.fitting`; here stands what would be best if there were room.
"""

from __future__ import annotations

from dataclasses import replace

from sharedds.errors import OptionError
from sharedds.host.starting import FORK_AFTER_CUDA
from sharedds.loader.known import (
    ENGINES,
    Choice,
    DatasetFacts,
    LoaderFacts,
    LoaderRequest,
    counted,
    truth,
    whole_number,
)
from sharedds.text import decimal_size

__all__ = [
    "MOST_PREFETCH",
    "MOST_WORKERS_ON_FAST_STORAGE",
    "choose_engine",
    "choose_persistence",
    "choose_pinning",
    "choose_prefetch",
    "choose_read_ahead",
    "choose_seeding",
    "choose_start_method",
    "choose_threads",
    "choose_threads_per_worker",
    "choose_workers",
    "many_workers",
    "with_engine",
]

MOST_WORKERS_ON_FAST_STORAGE = 16

_MOST_WORKERS = 8
_FEWEST_WORKERS = 2
#: With so many CPUs and fast storage, more workers than usual are worth their memory.
_MANY_CPUS = 18
_FAST = ("ssd", "memory")

_PREFETCH = 2
MOST_PREFETCH = 8
#: Samples of so many bytes are volumes: one batch in advance is memory enough.
_LARGE_SAMPLE = 32 << 20
#: Batches of each worker that are ready or under way take so many bytes at most, or are two.
_AHEAD_OF_WORKER = 128 << 20

#: Stored records of so many bytes are read in one go by a spinning disk, if it is left alone.
_LARGE_RECORD = 1 << 20
_WORKERS_ON_SPINNING = 2
#: So many bytes are asked for at once: more would push the first out again, or clog the network.
_MOST_ASKED_FOR = 256 << 20
_MOST_ASKED_OF_NETWORK = 64 << 20

_AUTO = "engine='auto'"
_IN_PROCESS = "no workers: batches are made in this process"


def with_engine(request: LoaderRequest, dataset: DatasetFacts) -> LoaderRequest:
    """Return the request with engine="auto" decided; what was asked for stays."""
    if request.engine != "auto":
        return request
    is_whole = dataset.makes_batches and not dataset.runs_user_code
    is_free = request.start_method is None and (request.threads_per_worker or 1) == 1
    return replace(
        request,
        engine="thread" if is_whole and is_free else "process",
        origins=(*request.origins, ("engine", _AUTO)),
    )


def choose_engine(request: LoaderRequest) -> Choice[str]:
    """Return what the workers are."""
    if request.engine not in ENGINES:
        known = ", ".join(map(repr, ENGINES))
        raise OptionError(f"engine={request.engine!r}: one of {known} fits")
    said = request.said("engine")
    if request.engine == "thread":
        why = "one copy of all, for work that releases the GIL"
        return Choice("thread", f"{said}: {why}", "rule" if said == _AUTO else "request")
    why = "Python code of several samples runs at once"
    return Choice("process", f"{said}: {why}" if said == _AUTO else why)


def choose_seeding(request: LoaderRequest) -> Choice[str]:
    """Return when the global generators are seeded."""
    mode = request.seed_globals
    reasons = {
        "sample": "all generators follow (seed, epoch, index)",
        "batch": "all follow (seed, epoch, index), anew for a batch",
        "off": "torch seeds each worker: results depend on how many there are",
    }
    if mode not in reasons:
        raise OptionError(f"seed_globals={mode!r}: one of {', '.join(map(repr, reasons))} fits")
    return Choice(mode, reasons[mode], "rule" if mode == "sample" else "request")


def choose_threads(request: LoaderRequest, *, workers: int) -> Choice[int | None]:
    """Return how many threads torch may use in a worker."""
    if not workers:
        return Choice(None, _IN_PROCESS)
    if request.engine == "thread":
        return Choice(1, "one core a loader thread; training keeps its own")
    return Choice(1, "one core a worker; this process keeps its own")


def choose_threads_per_worker(
    request: LoaderRequest, facts: LoaderFacts, dataset: DatasetFacts, *, workers: int
) -> Choice[int]:
    """Return how many threads make the samples of one batch."""
    asked = whole_number("threads_per_worker", request.threads_per_worker, least=1)
    if asked is None:
        return Choice(1, "a batch is made by one thread")
    said = request.said("threads_per_worker")
    if asked == 1:
        return Choice(1, said, "request")
    if (refusal := _threads_refused(request, dataset)) is not None:
        raise OptionError(f"threads_per_worker={asked}: {refusal}")
    reason = f"{said}: they share the handles of a worker"
    if max(1, workers) * asked > facts.cpus:
        reason += f"; this process may use {counted(facts.cpus, 'CPU')} only"
    return Choice(asked, reason, "request")


def _threads_refused(request: LoaderRequest, dataset: DatasetFacts) -> str | None:
    if request.engine == "thread" and request.num_workers != 0:
        return "with engine='thread' workers are threads already; ask for more by num_workers"
    if dataset.makes_batches:
        return None
    if dataset.reads_batches:
        return "the dataset reads a batch at once (load_many or __getitems__); leave it out"
    if request.seed_globals == "batch":
        return (
            "with seed_globals='batch' samples draw one after another; the nearest that works is "
            "seed_globals='sample'"
        )
    return None


# --- workers -------------------------------------------------------------------------------------


def choose_workers(
    request: LoaderRequest, facts: LoaderFacts, dataset: DatasetFacts
) -> Choice[int]:
    """Return how many workers there should be if there were room for all."""
    asked = whole_number("num_workers", request.num_workers, least=0)
    is_process = request.engine == "process"
    threads = whole_number("threads_per_worker", request.threads_per_worker, least=1) or 1
    if asked is not None:
        return _asked_workers(asked, request, facts)
    if facts.is_daemon and is_process:
        return Choice(0, "this process is itself a worker and may not start others", "daemon")
    return _usual_workers(facts, dataset, threads)


def many_workers(
    request: LoaderRequest, facts: LoaderFacts, dataset: DatasetFacts
) -> Choice[int] | None:
    """Return a choice of more workers than usual, for when all of them fit; None: not here."""
    if request.num_workers is not None or (request.threads_per_worker or 1) > 1:
        return None
    kind = dataset.storage.kind if dataset.storage else None
    if kind not in _FAST or facts.cpus < _MANY_CPUS or facts.memory_available is None:
        return None
    wanted = min(MOST_WORKERS_ON_FAST_STORAGE, facts.cpus - 2)
    if (batches := _batches(facts, dataset)) is not None and batches < wanted:
        return None
    name = "memory" if kind == "memory" else "an SSD"
    reason = f"{_available(facts)}; {name} feeds {wanted} workers, with memory to spare"
    return Choice(wanted, reason, "CPUs" if facts.cpus - 2 <= wanted else "rule")


def _asked_workers(asked: int, request: LoaderRequest, facts: LoaderFacts) -> Choice[int]:
    if asked and facts.is_daemon and request.engine == "process":
        raise OptionError(
            f"num_workers={asked}: this process is itself a worker and may not start others; the "
            "nearest that works is num_workers=0 (leave it out), or engine='thread'"
        )
    said = request.said("num_workers")
    if asked > facts.cpus:
        said += f"; this process may use {counted(facts.cpus, 'CPU')} only"
    return Choice(asked, said, "request")


def _usual_workers(facts: LoaderFacts, dataset: DatasetFacts, threads: int) -> Choice[int]:
    fewest = min(_FEWEST_WORKERS, max(1, facts.cpus // threads))
    wanted = max(fewest, min(_MOST_WORKERS, (facts.cpus - 2) // threads))
    available = _available(facts)
    if threads > 1:
        available += f"; {threads} threads a worker"
    kind = dataset.storage.kind if dataset.storage else None
    batches = _batches(facts, dataset)
    if batches is not None and batches < wanted:
        return Choice(batches, f"no more workers than batches ({batches})", "batches")
    record = dataset.record_bytes or 0
    if kind == "spinning" and record >= _LARGE_RECORD and wanted > _WORKERS_ON_SPINNING:
        reason = (
            f"a spinning disk reads records of {decimal_size(record)} best one after another; more "
            "workers would make it jump"
        )
        return Choice(_WORKERS_ON_SPINNING, reason, "storage")
    enough = wanted == _MOST_WORKERS
    left = facts.cpus - wanted * threads
    if enough:
        reason = f"{available}; {_MOST_WORKERS} workers are enough"
    else:
        reason = f"{available}; {left} left for training" if left > 0 else available
    if kind == "spinning":
        reason += "; a spinning disk may be slower than they are"
    elif kind == "network":
        name = dataset.storage.file_system if dataset.storage else ""
        reason += f"; while one waits for the network ({name or 'file system'}) others work"
    return Choice(wanted, reason, "rule" if enough else "CPUs")


def _available(facts: LoaderFacts) -> str:
    return facts.cpus_reason or f"{counted(facts.cpus, 'CPU')} for this process"


def _batches(facts: LoaderFacts, dataset: DatasetFacts) -> int | None:
    return dataset.batches if dataset.batches is not None else facts.batches


# --- how they start and end ----------------------------------------------------------------------


def choose_start_method(
    request: LoaderRequest, facts: LoaderFacts, *, workers: int
) -> Choice[str | None]:
    """Return how worker processes start."""
    asked = request.start_method
    if asked is not None:
        if asked not in facts.start_methods:
            known = ", ".join(facts.start_methods)
            raise OptionError(f"start_method={asked!r}: this platform offers {known}")
        if request.engine == "thread":
            raise OptionError(f"start_method={asked!r}: threads are not started by a method")
        if asked == "fork" and facts.cuda_initialized and workers:
            raise OptionError(FORK_AFTER_CUDA)
    if not workers:
        return Choice(None, _IN_PROCESS)
    if request.engine == "thread":
        return Choice(None, "threads of this process")
    if asked is not None:
        said = request.said("start_method")
        if asked == "fork" and facts.fork_hazards:
            said += f"; not safe: {'; '.join(facts.fork_hazards)}"
        return Choice(asked, said, "request")
    method = facts.start_methods[0]
    if method == "forkserver":
        return Choice(method, "forks fast; no handles, threads or CUDA state")
    return Choice(method, "the safe way to start a process on this platform", "platform")


def choose_persistence(request: LoaderRequest, *, workers: int, method: str | None) -> Choice[bool]:
    """Return whether workers stay for the next epoch."""
    asked = truth("persistent_workers", request.persistent_workers)
    if asked and request.num_workers == 0:
        raise OptionError(
            "persistent_workers=True needs worker processes, and num_workers=0 asks for none; "
            "leave out one of them"
        )
    if not workers:
        return Choice(False, _IN_PROCESS)
    if asked is not None:
        return Choice(asked, request.said("persistent_workers"), "request")
    if request.engine == "thread":
        return Choice(False, "threads start at once")
    if method == "spawn":
        return Choice(True, "a spawned worker takes seconds to start")
    if method == "forkserver":
        return Choice(False, "start fast from the fork server")
    return Choice(False, "a fork is fast")


# --- batches -------------------------------------------------------------------------------------


def choose_prefetch(
    request: LoaderRequest, dataset: DatasetFacts, *, workers: int
) -> Choice[int | None]:
    """Return how many batches of each worker are ready or under way, if there is room for all."""
    asked = whole_number("prefetch_factor", request.prefetch_factor, least=1)
    if asked is not None and request.num_workers == 0:
        raise OptionError(
            f"prefetch_factor={asked} needs worker processes, and num_workers=0 asks for none; "
            "leave out one of them"
        )
    if not workers:
        return Choice(None, _IN_PROCESS)
    if asked is not None:
        return Choice(asked, request.said("prefetch_factor"), "request")
    size = dataset.sample_bytes
    if size is None:
        return Choice(_PREFETCH, "the usual: the size of a sample is not known")
    if size >= _LARGE_SAMPLE:
        reason = f"one ahead is enough: a sample takes {decimal_size(size)}"
        return Choice(1, reason, "sample size")
    batch = max(1, size * (dataset.batch_size or 1))
    number = min(MOST_PREFETCH, max(_PREFETCH, _AHEAD_OF_WORKER // batch))
    smooth = "small ones are cheap to keep ready" if number > _PREFETCH else "large batches"
    return Choice(number, f"batches of {decimal_size(batch)}: {smooth}", "sample size")


def choose_pinning(
    request: LoaderRequest, facts: LoaderFacts, dataset: DatasetFacts
) -> Choice[bool]:
    """Return whether batches are copied to pinned memory."""
    asked = truth("pin_memory", request.pin_memory)
    if facts.accelerator is None:
        return Choice(False, "no accelerator to copy to", "accelerator")
    if facts.accelerator == "mps":
        return Choice(False, "MPS shares its memory with the CPU", "accelerator")
    if asked is False:
        return Choice(False, request.said("pin_memory"), "request")
    reason = f"copies to {facts.accelerator} overlap with computing"
    if dataset.sample_bytes is not None:
        reason += "; torch rounds to powers of two"
    if asked:
        return Choice(True, f"{request.said('pin_memory')}; {reason}", "request")
    return Choice(True, reason, "accelerator")


def choose_read_ahead(dataset: DatasetFacts) -> Choice[int]:
    """Return how many records of a batch are asked of the storage before the first is read."""
    storage, record = dataset.storage, dataset.record_bytes
    kind = storage.kind if storage else None
    batch = dataset.batch_size or 1
    if kind == "memory":
        return Choice(0, "the data is in memory already", "storage")
    most = _MOST_ASKED_OF_NETWORK if kind == "network" else _MOST_ASKED_FOR
    if record and record * batch > most:
        number = max(1, min(batch, most // record))
        reason = f"records of {decimal_size(record)}: so many are {decimal_size(number * record)}"
        return Choice(number, reason, "record size")
    reasons = {
        "ssd": "an SSD serves many reads at once",
        "spinning": "the disk reads a batch in the order of its places",
        "network": "one round trip for a batch, not one for each record",
    }
    return Choice(batch, reasons.get(kind or "", "kind of storage not known: asking does no harm"))
