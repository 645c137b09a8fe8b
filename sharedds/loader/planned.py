"""The loader itself: a torch DataLoader whose stream does not depend on its workers."""

from __future__ import annotations

import copy
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader

from sharedds.cache import CacheStats
from sharedds.datasets.offers import caches_of
from sharedds.errors import OptionError, StateError
from sharedds.generators.seeding import GlobalSeeding
from sharedds.handles import unsent
from sharedds.loader.accounts import Counters, LoaderMemory, LoaderStats, pinned_bytes
from sharedds.loader.ahead import Stage
from sharedds.loader.choices import MOST_PREFETCH
from sharedds.loader.conversion import Conversion
from sharedds.loader.device import DeviceLoader, find_device
from sharedds.loader.failures import FailedSample
from sharedds.loader.flight import InFlight
from sharedds.loader.guard import MemoryGuard
from sharedds.loader.heap import is_tight
from sharedds.loader.in_process import InProcessIterator
from sharedds.loader.ledger import FailureLedger
from sharedds.loader.plan import LoaderPlan, Planned
from sharedds.loader.processes import ProcessIterator
from sharedds.loader.ranking import Split, describe_last_step, find_rank
from sharedds.loader.rebuilt import checked_stream, counted_by_accelerate, origin_of, remainder_of
from sharedds.loader.replay import Replay
from sharedds.loader.running import LoaderPass, Running
from sharedds.loader.sampled import OrderSampler, ShownBatches
from sharedds.loader.seen import LoaderView
from sharedds.loader.spare import SpareMemory
from sharedds.loader.stream import EpochPass, OrderedBatches, Position, SampleStream
from sharedds.loader.threads import ThreadIterator
from sharedds.loader.tree import ProcessTree, busy_share
from sharedds.order import LoaderState, SampleKey
from sharedds.workers.loans import new_loans

__all__ = ["PlannedLoader"]

T = TypeVar("T")
Integers = npt.NDArray[np.int64]


class PlannedLoader(DataLoader[T]):
    """A ``torch.utils.data.DataLoader`` that knows why it is set up as it is, and where it stands.

    Every ``iter()`` begins the next epoch by itself; :meth:`set_epoch` chooses another one.
    Batches are bit-identical for any number of workers, and after a resume from
    :meth:`state_dict` at any batch, with whatever workers, batch size and number of ranks.

    Without workers that stay (``persistent_workers``) several passes may be under way at once, each
    with an epoch of its own; the state is that of the newest one. Workers that stay serve one pass
    at a time: an older one then raises :class:`~sharedds.errors.StateError`.

    Made by :func:`~sharedds.loader.build_loader`.

    Attributes:
        plan: Every choice with its reason; print it. Where nobody told the size of a sample, the
            first batch does, and decides how many are made in advance from then on.
    """

    plan: LoaderPlan
    _seeding: GlobalSeeding
    _ledger: FailureLedger
    _batch_transform: Callable[[Any], Any] | None = None
    _sized: Callable[[int], LoaderPlan] | None = None
    _stream_given: SampleStream | None = None
    _split: Split | None = None
    _newest = unsent[weakref.ref[LoaderPass]]()
    _running = unsent[Running]()
    _iterator = unsent[Any]()
    _memory = unsent[SpareMemory]()
    _most_in_flight: int | None = None
    #: Whether batches of worker processes travel in buffers that stay; new memory for each if not.
    _keeps_buffers = True
    #: Accelerate would split batches over the ranks again, in a loader of its own; it takes states.
    _is_accelerate_prepared = use_stateful_dataloader = True

    def __init__(self, dataset: Any, **options: Any) -> None:
        super().__init__(dataset, **options)
        if (origin := origin_of(options)) is not None:  # a framework wants to watch its indices
            names = ("plan", "_sized", "_seeding", "_ledger", "_batch_transform", "_stream_given")
            vars(self).update({name: getattr(origin, name) for name in (*names, "_split")})
            # Given a sampler of batches, torch sets both as if there were none.
            vars(self).update(batch_size=origin.batch_size, drop_last=origin.drop_last)
            self.generator = self.generator or torch.Generator()

    def set_up(
        self,
        *,
        planned: Planned,
        stream: SampleStream,
        seeding: GlobalSeeding,
        ledger: FailureLedger,
        batch_transform: Callable[[Any], Any] | None = None,
        split: Split | None = None,
    ) -> PlannedLoader[T]:
        """Give a new loader what it does not share with torch's; returns the loader.

        With ``split``, no rank was known yet: the process group tells it before a pass begins.
        """
        self.plan, self._sized = planned.plan, planned.sized
        self._stream_given = stream
        self._seeding = seeding
        self._ledger = ledger
        self._batch_transform = batch_transform
        self._split = split
        if isinstance(self.sampler, OrderSampler):
            self.sampler.loader = weakref.ref(self)
            if self.batch_size is not None:
                shown = ShownBatches(self.sampler, self.batch_size, self.drop_last)
                vars(self)["batch_sampler"] = shown
        return self

    @property
    def _stream(self) -> SampleStream:
        stream = checked_stream(self._stream_given, self.sampler, self.batch_sampler)
        if self._split is not None and not self._is_under_way():
            self._take_rank(stream, self._split)
        return stream

    def _take_rank(self, stream: SampleStream, split: Split) -> None:
        """Split the order over the ranks, if the process group began after the loader was built."""
        own = find_rank(None, None)
        if own.world_size == 1:
            return
        stream.source = source = split.over(own)
        self._split = None
        self.plan = self.plan.on_rank(describe_last_step(own, source))
        self._ledger.samples = source.samples_of_rank(Position(0, 0))

    def check_worker_number_rationality(self) -> None:
        """Do nothing: the plan has counted the CPUs and says so in its reasons."""

    # --- where it stands -------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader stands: a few numbers, exact to the batch.

        It counts the batches that were handed out, not those made in advance. In the middle of a
        loop, and after it was broken off, it is the place after the last batch that came out of
        the loop; at the end of an epoch, the beginning of the next one.
        """
        return self._stream.state(under_way=self._is_under_way()).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state says, from the next ``iter()`` on.

        Number of workers, batch size and number of ranks may differ from those of the state.

        Raises:
            StateError: The state is damaged, or of another dataset, seed or sampling; or it comes
                too late, since a loop over this loader is under way.
        """
        loaded = LoaderState.from_dict(state)
        if self._is_under_way():
            raise StateError(
                "load_state_dict comes too late: a loop over this loader is under way and would go "
                "on as before; call it before iter(loader)"
            )
        self._stream.load(loaded)

    def set_epoch(self, epoch: int) -> None:
        """Let the next ``iter()`` begin ``epoch``; a loop that is under way goes on as it is.

        Nobody needs to call it: epochs follow each other by themselves. Scripts that do, as for
        torch's DistributedSampler, change nothing; if the next pass goes on in the middle of this
        very epoch after a resume, it still does.

        Raises:
            OptionError: Not a whole number from 0.
        """
        if isinstance(epoch, bool) or not hasattr(epoch, "__index__") or epoch.__index__() < 0:
            raise OptionError(f"epoch={epoch!r}: a whole number, 0 or more, is expected")
        self._stream.set_epoch(epoch.__index__())

    @property
    def epoch(self) -> int:
        """The epoch of the loop that is under way, else the one that the next loop begins."""
        return self._stream.position(under_way=self._is_under_way()).epoch

    @property
    def failures(self) -> tuple[FailedSample, ...]:
        """What could not be loaded in the epoch of the newest loop, in the order of the batches.

        Nothing with ``on_error="raise"``; after a resume, what has failed since.
        """
        return tuple(self._ledger.failures)

    @property
    def padded_indices(self) -> Integers:
        """Indices (int64) that some rank gets in addition in this epoch, so that all get as many.

        Fewer than there are ranks; empty in evaluation.
        """
        source = self._stream.source
        if not isinstance(source, OrderedBatches):
            return np.empty(0, np.int64)
        return source.order(Position(self.epoch, 0)).padded

    @property
    def dropped(self) -> int:
        """How many samples of an epoch no rank gets, because of ``drop_last``."""
        source = self._stream.source
        if isinstance(source, OrderedBatches):
            return source.order(Position(self.epoch, 0)).dropped
        whole = source.count
        return whole % (self.batch_size or 1) if self.drop_last and whole is not None else 0

    def _is_under_way(self) -> bool:
        newest = self._newest() if self._newest is not None else None
        return newest is not None and not newest.is_over and not newest.is_broken

    def to(
        self,
        device: str | int | torch.device,
        *,
        dtype: torch.dtype | None = None,
        mean: float | Iterable[float] | None = None,
        std: float | Iterable[float] | None = None,
        only: str | int | Sequence[str | int] | None = None,
    ) -> DeviceLoader:
        """Return an iterable over the same batches on a device, one of them ahead.

        Bytes travel; dtype and normalisation are made there, beside training. Epochs and state are
        those of this loader: either may be asked. Which tensors are pictures, and what exactly is
        computed, is stated at :class:`~sharedds.loader.conversion.Conversion`; without ``dtype``,
        ``mean`` and ``std`` nothing changes but the place.

        Args:
            device: "cuda", "cuda:1", "mps", "cpu", a ``torch.device``, or the number of a device.
            dtype: Of pictures: torch.float32, float16 or bfloat16. uint8 is scaled to 0..1.
            mean: To subtract from pictures, for values from 0 to 1: a number, or one a channel.
            std: To divide them by; the same.
            only: Names or positions of those entries of a batch that are pictures.

        Raises:
            OptionError: A value that makes no sense, or a device that is not there.
        """
        channels = 0 if self.batch_size is None else 1
        conversion = Conversion(dtype=dtype, mean=mean, std=std, only=only, channels=channels)
        return DeviceLoader(self, find_device(device), conversion)

    # --- what it costs ---------------------------------------------------------------------------

    def memory(self) -> LoaderMemory:
        """Measure what this process and the workers hold now; some 5 ms for each process."""
        running = self._running
        count = running.flight.count if running is not None and self._is_under_way() else 0
        size = running.counters.batch_bytes if running is not None else None
        return LoaderMemory(
            processes=ProcessTree(running.workers if running is not None else {}).exact(),
            batches_in_flight=count,
            in_flight=count * size if size is not None else None,
            pinned=pinned_bytes() if self.pin_memory else 0,
            budget=self.plan.max_memory,
        )

    def stats(self) -> LoaderStats:
        """Return how the newest loop goes: what was handed out, how fast, and who waits for whom.

        It may be asked at any time, also from another thread.
        """
        running = self._running
        cache = CacheStats.together(cache.stats() for cache in caches_of(self.dataset))
        if running is None:
            return LoaderStats(epoch=self.epoch, cache=cache)
        counters, flight = running.counters, running.flight
        # An epoch is accounted for until the next one begins.
        left_out = sum(failed.replacement is None for failed in self._ledger.failures)
        return LoaderStats(
            epoch=running.begun.epoch,
            batches=counters.batches,
            samples=running.begun.samples - left_out,
            bytes=counters.bytes,
            first_batch_seconds=counters.first,
            waited=counters.waited,
            between=counters.between,
            in_flight=flight.count if self._is_under_way() else 0,
            allowed=flight.allowed,
            most=flight.most,
            busy=busy_share(running.workers, running.threads),
            cache=cache,
        )

    def replay(self, n: int) -> Replay:
        """Return an iterable that serves ``n`` batches, loaded once, again and again.

        A loop over it costs no loading, so training alone can be timed: as many batches as an epoch
        of this loader has, each the same object whenever its turn comes. The loader itself, its
        position and its state stay as they are.

        Args:
            n: How many batches to load; they are kept in memory.

        Raises:
            OptionError: Not a whole number from 1.
        """
        if isinstance(n, bool) or not hasattr(n, "__index__") or n.__index__() < 1:
            raise OptionError(f"replay({n!r}): a whole number of batches, 1 or more, is expected")
        length = self._stream.source.length(Position(self._stream.next_position.epoch, 0))
        count = n.__index__() if length is None else min(n.__index__(), length)
        return Replay(self._twin(count), count, length)

    def _twin(self, most: int) -> PlannedLoader[T]:
        """The same loader with a position and accounts of its own, that makes little in advance."""
        twin = copy.copy(self)
        twin._most_in_flight = most
        source = self._stream.source
        twin._stream_given = SampleStream(
            source, seed=self._stream.seed, samples=self._stream.samples, fingerprint=str
        )
        twin._stream_given.set_epoch(self._stream.next_position.epoch)
        twin._ledger = FailureLedger(
            dataclasses.replace(self._ledger.policy, log=None), self._ledger.samples
        )
        twin._newest = twin._running = None
        twin._iterator = twin._memory = None
        vars(twin)["persistent_workers"] = False
        vars(twin)["generator"] = torch.Generator()
        return twin

    # --- iterating -------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return how many batches of this rank a whole epoch has."""
        return len(self._stream)

    def __iter__(self) -> LoaderPass:  # type: ignore[override]
        """Begin the next epoch, or go on in it after a resume."""
        return self._begin()

    def _begin(self, stage: Callable[[], Stage] | None = None) -> LoaderPass:
        """Begin a pass; ``stage`` makes what its batches go through, once workers are started."""
        begun = self._stream.begin()
        try:
            return self._start(begun, stage)
        except BaseException:  # no worker could start, or Ctrl-C: the place is not lost
            self._stream.take_back()
            raise

    def _start(self, begun: EpochPass, stage: Callable[[], Stage] | None) -> LoaderPass:
        # Seeds of workers: not a function of how many passes were begun before.
        key = SampleKey(self._stream.seed, begun.epoch, self.plan.rank)
        self.generator.manual_seed(key.number("workers") >> 1)
        inner: Any = self._iterator if self.persistent_workers else None
        if inner is not None and inner._shutdown:
            inner = None
        if inner is not None and self._newest is not None and (older := self._newest()) is not None:
            older.supersede()
        flight = inner.in_flight if inner is not None else self._in_flight()
        guard = self._guard(flight)
        counters = Counters(exact=guard is not None)
        if inner is not None:
            inner._reset(LoaderView(self, flight))
        else:
            inner = self._get_iterator(flight)
            self._iterator = inner if self.persistent_workers else None
        self._ledger.begin(begun.epoch, count=begun.position.failed)
        self._running = Running(inner, begun, counters, flight)
        made = LoaderPass(
            inner,
            self._running,
            self._ledger,
            guard,
            stage() if stage is not None else None,
            dataset=self.dataset,
        )
        if self._sized is not None and self._most_in_flight is None:
            made.on_first = self._take_size
        self._newest = weakref.ref(made)
        counted_by_accelerate(self, begins=True)
        made.on_end = functools.partial(counted_by_accelerate, self, begins=False)
        return made

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the newest loop has handed out its last batch; Accelerate asks."""
        return self._newest is not None and not self._is_under_way()

    @property
    def remainder(self) -> int:
        """Samples of the last step of all ranks, -1 if it is whole; Accelerate asks."""
        return remainder_of(self._stream)

    def _in_flight(self) -> InFlight:
        most = self.num_workers * (self.prefetch_factor or 0)
        limit = self._most_in_flight
        return InFlight(most if limit is None else min(most, limit), self.num_workers)

    def _take_size(self, sample_bytes: int, flight: InFlight) -> None:
        """Make as many batches in advance as suit the samples of the first one."""
        if self._sized is None:
            return
        self.plan, self._sized = self._sized(sample_bytes), None
        self.prefetch_factor = self.plan.prefetch_factor
        flight.most = flight.allowed = self._in_flight().most

    def _guard(self, flight: InFlight) -> MemoryGuard | None:
        flight.begin()
        budget = self.plan.max_memory
        if budget is None:
            return None
        guard = MemoryGuard(budget, flight=flight, tree=ProcessTree(), batch_size=self.batch_size)
        guard.check_trainer()
        return guard

    def _get_iterator(self, flight: InFlight | None = None) -> Any:
        flight = flight if flight is not None else self._in_flight()
        if self.num_workers == 0:
            view = LoaderView(self, flight)
            if self._memory is None and not self._is_tight():
                self._memory = SpareMemory()
            view.dataset.memory = self._memory  # that of the pass before
            return InProcessIterator(view)
        if self.plan.engine == "thread":
            return ThreadIterator(LoaderView(self, flight))
        loans = None
        if self._keeps_buffers and self._has_room_for_buffers():
            ahead = MOST_PREFETCH if self._sized is not None else self.prefetch_factor or 1
            loans = new_loans(self.num_workers, ahead=ahead)
        return ProcessIterator(LoaderView(self, flight, loans, sends=True))

    def _has_room_for_buffers(self) -> bool:
        """Whether idle buffers, and batches that wait in some unseen, cannot exceed a budget."""
        budget, estimate = self.plan.max_memory, self.plan.estimate
        if budget is None:
            return True
        if estimate is None or self._is_tight():
            return False
        return budget - estimate.total >= 2 * estimate.in_flight

    def _is_tight(self) -> bool:
        """Whether a budget leaves no room for memory that processes keep to use it again."""
        plan = self.plan
        if plan.max_memory is None:
            return False
        planned = plan.estimate.total if plan.estimate is not None else None
        return is_tight(plan.max_memory, planned, plan.num_workers)
