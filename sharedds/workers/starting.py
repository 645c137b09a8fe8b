"""How worker processes start, live and end.

torch asks a multiprocessing context for queues, events and processes. The contexts here are those
of the standard library with five differences:

* what a worker needs is sent by value (:mod:`sharedds.workers.transport`), and the worker neither
  imports nor runs the user's main module;
* under forkserver the heavy libraries are imported once, by the server, before the first worker;
* a worker limits its threads, and ends when the process that uses the loader has ended, however;
* a worker leaves Ctrl-C to the trainer, and can be asked from outside where it is;
* a batch that cannot be sent back becomes an error in the trainer, not a wait for ever.
"""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.connection
import multiprocessing.queues
import os
import signal
import sys
import threading
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext, SpawnContext, SpawnProcess
from typing import Any

import torch

from sharedds.errors import OptionError
from sharedds.host.starting import FORK_AFTER_CUDA, available_start_methods
from sharedds.workers.buffers import guard_shared_memory
from sharedds.workers.launching import launched_by_server, main_module_left_out, start_server
from sharedds.workers.queues import AnsweringQueue
from sharedds.workers.stacks import answer_on, open_line
from sharedds.workers.transport import ReceivedCall, SealedCall

__all__ = ["available_start_methods", "prepare_start", "start_context"]

#: Read by these libraries when they are first loaded; a value set by the user stays.
_THREAD_VARIABLES = (
    "BLOSC_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)


def prepare_start(method: str) -> None:
    """Begin what takes long before the first worker can start by ``method``; returns at once."""
    if method == "forkserver":
        start_server()


def start_context(method: str) -> BaseContext:
    """Return the context that starts loader workers by ``method``."""
    return _CONTEXTS[method]


# --- in the worker -------------------------------------------------------------------------------


def _end_with_trainer() -> None:
    """Start a thread that ends this process when its trainer is gone, killed or not.

    torch looks at the parent's process id, which under forkserver is that of the server. The
    sentinel alone is not enough either: a sibling forked later holds its other end open.
    """
    trainer = multiprocessing.parent_process()
    if trainer is None or trainer.pid is None:
        return
    pid = trainer.pid
    signals: list[Any] = [trainer.sentinel]
    patience = None
    try:
        signals.append(os.pidfd_open(pid))
    except (AttributeError, OSError):  # not Linux, an old kernel, or forbidden: ask each second
        patience = 1.0
    direct = hasattr(os, "getppid") and os.getppid() == pid

    def watch() -> None:
        while not multiprocessing.connection.wait(signals, timeout=patience):
            if direct and os.getppid() != pid:
                break
        os._exit(1)

    threading.Thread(target=watch, name="sharedds-orphan-guard", daemon=True).start()


def _limit_threads() -> None:
    """One thread for each library, loaded already or later: workers are the parallelism."""
    for name in _THREAD_VARIABLES:
        os.environ.setdefault(name, "1")
    torch.set_num_threads(1)
    if (cv2 := sys.modules.get("cv2")) is not None:
        cv2.setNumThreads(0)
    if (blosc := sys.modules.get("numcodecs.blosc")) is not None:
        blosc.set_nthreads(1)


def _take_over(environment: dict[str, str] | None) -> None:
    """Let the environment be that of the trainer."""
    if environment is not None and environment != os.environ:
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)


def _leave_interrupts_to_trainer() -> None:
    """Do nothing on Ctrl-C: the trainer decides whether to end its workers.

    A handler that does nothing, since programs that the dataset runs would inherit that the signal
    is ignored.
    """
    signal.signal(signal.SIGINT, lambda number, frame: None)


class _Worker:
    """What the worker processes of all start methods share.

    Attributes:
        line: Where this worker writes its stacks; the trainer's end once it was started.
    """

    _target: Any
    _args: tuple[Any, ...]
    _kwargs: dict[str, Any]
    line: Connection | None = None
    is_loader_worker = True
    #: Of the trainer at the start of the worker; a fork server keeps that of its own start.
    _environment: dict[str, str] | None = None

    def start(self) -> None:
        """Start the worker, with a line on which it can be asked where it is."""
        ours, self.line = open_line()
        theirs = self.line
        try:
            super().start()  # type: ignore[misc]
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.line = ours

    def run(self) -> None:
        """Work until the loader has no more to do."""
        # A full garbage collection writes to every object that it looks at, and so gives a forked
        # worker copies of its own of all that it shares with the trainer: 40 MB after torch.
        gc.freeze()
        _take_over(self._environment)
        _leave_interrupts_to_trainer()
        _end_with_trainer()
        if self.line is not None:
            answer_on(self.line)
        guard_shared_memory()
        _limit_threads()
        if isinstance(self._target, ReceivedCall):
            call = self._target.open()
            _limit_threads()  # those of the libraries that the dataset has brought along
            call()
        else:
            self._target(*self._args, **self._kwargs)

    def _seal(self, method: str) -> None:
        self._target, self._args, self._kwargs = (
            SealedCall(self._target, self._args, self._kwargs, method),
            (),
            {},
        )


# --- contexts ------------------------------------------------------------------------------------


class _Queues:
    def Queue(self, maxsize: int = 0) -> multiprocessing.queues.Queue[Any]:  # noqa: N802
        return AnsweringQueue(maxsize, ctx=self)


class _SpawnWorker(_Worker, SpawnProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 - the name multiprocessing calls
        process_obj._seal("spawn")
        with main_module_left_out():
            return SpawnProcess._Popen(process_obj)


class _SpawnContext(_Queues, SpawnContext):
    Process = _SpawnWorker


_CONTEXTS: dict[str, BaseContext] = {"spawn": _SpawnContext()}

if sys.platform != "win32":
    from multiprocessing.context import (
        ForkContext,
        ForkProcess,
        ForkServerContext,
        ForkServerProcess,
    )

    class _ForkWorker(_Worker, ForkProcess):
        @staticmethod
        def _Popen(process_obj: Any) -> Any:  # noqa: N802
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                raise OptionError(FORK_AFTER_CUDA)
            # A collection that is due anyway would strike in the child, before it can freeze what
            # it shares. This one passes over what is old, and puts the next one off.
            gc.collect(1)
            return ForkProcess._Popen(process_obj)

    class _ServerWorker(_Worker, ForkServerProcess):
        @staticmethod
        def _Popen(process_obj: Any) -> Any:  # noqa: N802
            process_obj._seal("forkserver")
            process_obj._environment = dict(os.environ)
            return launched_by_server(lambda: ForkServerProcess._Popen(process_obj))

    class _ForkContext(_Queues, ForkContext):
        Process = _ForkWorker

    class _ServerContext(_Queues, ForkServerContext):
        Process = _ServerWorker

    _CONTEXTS |= {"fork": _ForkContext(), "forkserver": _ServerContext()}
