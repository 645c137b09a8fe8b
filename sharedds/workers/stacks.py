"""Where a worker is: asked for when it is stuck, told by itself when native code crashes."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from multiprocessing.connection import Connection, Pipe
from typing import Any

from torch.utils.data._utils import signal_handling

from sharedds.workers.postmortem import is_signal_caught

__all__ = ["answer_on", "open_line", "stacks_of"]

#: Makes a worker write its stacks, even while it is in C code; None where there is no such signal
#: that nobody else uses: a thread of the worker answers there, which C code can keep waiting.
_STACK_SIGNAL: int | None = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else None
_MOST_STACK_BYTES = 20_000
#: The lowest calls of threads that multiprocessing and this module run in each worker.
_SERVICE_CALL = re.compile(
    r"resource_sharer\.py.* in _serve$|queues\.py.* in _feed$| in (watch|rest_when_idle)$"
)


def open_line() -> tuple[Connection, Connection]:
    """Return the trainer's and the worker's end of a line on which the worker tells its stacks.

    A worker that crashes while nobody reads must not wait: what does not fit in the pipe is lost.
    """
    if _STACK_SIGNAL is None:
        return Pipe()
    ours, theirs = Pipe(duplex=False)
    os.set_blocking(theirs.fileno(), False)
    return ours, theirs


# --- in a worker ---------------------------------------------------------------------------------


def answer_on(line: Connection) -> None:
    """Let this process tell where it is: when asked, and on Linux when it crashes too."""
    if _STACK_SIGNAL is None:
        threading.Thread(
            target=_answer_in_thread, args=(line,), name="sharedds-stacks", daemon=True
        ).start()
        return
    faulthandler.register(_STACK_SIGNAL, file=line.fileno(), all_threads=True)
    torch_signals: Any = signal_handling
    original = torch_signals._set_worker_signal_handlers

    def set_handlers() -> None:
        original()
        faulthandler.disable()  # it may be at work for the parent, with handlers that go below
        # torch's own handlers for these say of each bus error that shared memory is the cause.
        for name in ("SIGBUS", "SIGSEGV", "SIGFPE"):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        faulthandler.enable(file=line.fileno(), all_threads=False)

    torch_signals._set_worker_signal_handlers = set_handlers


def _answer_in_thread(line: Connection) -> None:
    own = threading.get_ident()
    with contextlib.suppress(EOFError, OSError):
        while line.recv_bytes():
            frames = sys._current_frames().items()
            stacks = [traceback.format_stack(frame) for ident, frame in frames if ident != own]
            line.send_bytes("\n".join("".join(reversed(stack)) for stack in stacks).encode())


# --- in the trainer: asking a worker where it is -------------------------------------------------


def stacks_of(workers: Iterable[Any], patience: float = 2.0) -> list[str]:
    """Return where workers are, living or crashed, as stacks with the innermost call first.

    Threads that wait for work, and what is below the dataset in the others, are left out.

    Args:
        workers: Processes that a context of :func:`start_context` made, started.
        patience: Seconds to wait for all of them together.

    Returns:
        One text for each, empty for a worker that does not answer: stopped, starting, or (without
        a signal to use) held by C code.
    """
    asked = [(worker, getattr(worker, "line", None)) for worker in workers]
    for worker, line in asked:
        if line is not None and worker.is_alive():
            _ask(worker.pid, line)
    end = time.monotonic() + patience
    return [_hear(line, end) if line is not None else "" for _, line in asked]


def _ask(pid: int, line: Connection) -> None:
    with contextlib.suppress(OSError):
        if _STACK_SIGNAL is None:
            line.send_bytes(b"stacks")
        elif not sys.platform.startswith("linux") or is_signal_caught(pid, _STACK_SIGNAL):
            os.kill(pid, _STACK_SIGNAL)  # one without a handler yet would die of it


def _hear(line: Connection, end: float) -> str:
    heard = b""
    with contextlib.suppress(EOFError, OSError):
        # What comes first may take a while; the rest follows at once.
        while line.poll(0.1 if heard else max(0.0, end - time.monotonic())):
            part = line.recv_bytes() if _STACK_SIGNAL is None else os.read(line.fileno(), 65_536)
            heard += part
            if not part or len(heard) > _MOST_STACK_BYTES or _STACK_SIGNAL is None:
                break
    return _trimmed(heard[:_MOST_STACK_BYTES].decode(errors="replace"))


def _trimmed(dump: str) -> str:
    kept = []
    for stack in dump.split("\n\n"):
        lines = [line for line in stack.splitlines() if not line.startswith("Extension modules")]
        if any(_SERVICE_CALL.search(line) for line in lines):
            continue
        end = next((n for n, line in enumerate(lines) if "in _worker_loop" in line), len(lines))
        kept += lines[:end]
    return "\n".join(kept).strip()
