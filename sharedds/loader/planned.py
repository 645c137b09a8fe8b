"""The loader itself: a torch DataLoader whose stream does not depend on its workers."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from torch.utils.data import DataLoader, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter, _SingleProcessDataLoaderIter

from sharedds.errors import OptionError, StateError, WorkerError
from sharedds.generators.seeding import GlobalSeeding
from sharedds.loader.failures import FailedSample, collate_with_failures
from sharedds.loader.ledger import FailureLedger
from sharedds.loader.plan import LoaderPlan
from sharedds.loader.processes import ProcessIterator
from sharedds.loader.samples import SampleReader, WorkerStart
from sharedds.loader.stream import EpochPass, OrderedBatches, Position, SampleStream
from sharedds.loader.threads import ThreadIterator
from sharedds.order import LoaderState, SampleKey

__all__ = ["LoaderPass", "OrderSampler", "PlannedLoader"]

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
        plan: Every choice with its reason; print it.
    """

    plan: LoaderPlan
    _seeding: GlobalSeeding
    _ledger: FailureLedger
    _stream_given: SampleStream | None = None
    _newest: weakref.ref[LoaderPass] | None = None

    def set_up(
        self,
        *,
        plan: LoaderPlan,
        stream: SampleStream,
        seeding: GlobalSeeding,
        ledger: FailureLedger,
    ) -> PlannedLoader[T]:
        """Give a new loader what it does not share with torch's; returns the loader."""
        self.plan = plan
        self._stream_given = stream
        self._seeding = seeding
        self._ledger = ledger
        return self

    @property
    def _stream(self) -> SampleStream:
        if self._stream_given is None:
            raise OptionError(
                "a PlannedLoader is made by build_loader and cannot be rebuilt from its arguments; "
                "tell a framework that replaces samplers to leave it as it is (in Lightning: "
                "use_distributed_sampler=False), since it is split over the ranks already"
            )
        return self._stream_given

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
        return newest is not None and not newest.is_over

    # --- iterating -------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return how many batches of this rank a whole epoch has."""
        return len(self._stream)

    def __iter__(self) -> LoaderPass:  # type: ignore[override]
        """Begin the next epoch, or go on in it after a resume."""
        begun = self._stream.begin()
        # Seeds of workers: not a function of how many passes were begun before.
        key = SampleKey(self._stream.seed, begun.epoch, self.plan.rank)
        self.generator.manual_seed(key.number("workers") >> 1)
        inner = self._iterator if self.persistent_workers else None
        if inner is not None and not getattr(inner, "_shutdown", False):
            if self._newest is not None and (older := self._newest()) is not None:
                older.supersede()
            inner._reset(_View(self))
        else:
            inner = self._get_iterator()
            self._iterator = inner if self.persistent_workers else None
        self._ledger.begin(begun.epoch, count=begun.position.failed)
        made = LoaderPass(inner, begun, self._ledger, in_process=self.num_workers == 0)
        self._newest = weakref.ref(made)
        return made

    def _get_iterator(self) -> _BaseDataLoaderIter:
        view = _View(self)
        if self.num_workers == 0:
            return _SingleProcessDataLoaderIter(view)
        if self.plan.engine == "thread":
            return ThreadIterator(view)
        return ProcessIterator(view)


class _View:
    """A loader as torch's iterators shall see it: with our reader and our batches."""

    def __init__(self, loader: PlannedLoader[Any]) -> None:
        self._loader = loader
        self.collate_fn = collate_with_failures(loader.collate_fn)
        self.dataset = SampleReader(
            loader.dataset,
            seeding=loader._seeding,
            policy=loader._ledger.policy,
            collate_fn=self.collate_fn,
            pool=loader._stream.source.pool,
        )
        self.policy = loader._ledger.policy
        self.seeding = loader._seeding
        self.worker_init_fn = WorkerStart(loader.worker_init_fn)
        self._index_sampler = loader._stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class LoaderPass(Iterator[Any]):
    """The batches of one pass over a loader.

    Attributes:
        is_over: Whether the last batch was handed out.
    """

    def __init__(
        self,
        inner: _BaseDataLoaderIter,
        begun: EpochPass,
        ledger: FailureLedger,
        *,
        in_process: bool,
    ) -> None:
        self._inner = inner
        self._begun = begun
        self._ledger = ledger
        self._in_process = in_process
        reader: Any = inner._dataset
        self._reader: SampleReader | None = reader if in_process and reader.seeding else None
        self._is_ended = False
        self._is_superseded = False
        self._is_broken = False

    @property
    def is_over(self) -> bool:
        """Whether the last batch was handed out."""
        return self._is_ended or self._begun.is_over

    def supersede(self) -> None:
        """Give nothing more: the workers serve another pass now."""
        self._is_superseded = True

    def __len__(self) -> int:
        """Return how many batches this pass has in all."""
        return len(self._begun)

    def __next__(self) -> Any:
        if self._is_ended:
            raise StopIteration
        if self._is_broken:
            raise WorkerError(
                "the workers of this loop ended with the error before; begin a new loop, after "
                "loader.load_state_dict(loader.state_dict()) to go on from here"
            )
        if self._is_superseded:
            raise StateError(
                "another loop over this loader has begun, and its workers, which stay "
                "(persistent_workers=True), serve one loop at a time; for loops at the same time "
                "build the loader with persistent_workers=False, or one loader for each"
            )
        is_batch = False
        while not is_batch:
            try:
                batch, is_batch = self._ledger.take(self._next())
            except StopIteration:
                self._is_ended = True
                self._begun.end()
                self._ledger.finish()
                raise
            except Exception:
                self._begun.failed()
                self._is_broken = bool(getattr(self._inner, "_shutdown", False))
                raise
            # Also one of which all samples were left out.
            self._begun.handed(self._ledger.count_of(self._begun.epoch))
        return batch

    def _next(self) -> Any:
        if not self._in_process:
            return next(self._inner)
        self._begun.forget_sent()  # of a batch that Ctrl-C interrupted
        if self._reader is None:
            return next(self._inner)
        with self._reader.kept():
            return next(self._inner)


class OrderSampler(Sampler[int]):
    """The order of the next epoch as plain indices, for code that looks at ``loader.sampler``.

    Args:
        stream: The stream of the loader; it is not moved by iterating here.
        source: Its batches.
    """

    def __init__(self, stream: SampleStream, source: OrderedBatches) -> None:
        self._stream = stream
        self._source = source

    def __iter__(self) -> Iterator[int]:
        for batch, _ in self._source.batches(self._stream.next_position):
            yield from batch.indices.tolist()

    def __len__(self) -> int:
        return self._source.samples_of_rank(self._stream.next_position)

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass of the loader begin ``epoch``."""
        self._stream.set_epoch(epoch)
