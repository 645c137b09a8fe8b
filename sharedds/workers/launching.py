"""In the trainer: launching processes without its main module, and the server that forks them.

The fork server imports the heavy libraries once, before the first worker, which takes a second. It
is started when a loader is built, and so works while the trainer prepares something else.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.spawn
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from typing import Any, TypeVar

if sys.platform != "win32":
    from multiprocessing import forkserver

__all__ = ["launched_by_server", "main_module_left_out", "start_server"]

T = TypeVar("T")

#: The last thing that the fork server imports; it ignores what it cannot import.
_PRELOAD = ("torch", "numpy", "sharedds.workers.preload")
_FIRST = "sharedds.workers.importing"
#: Imported too where the trainer has loaded this: after the server has started it is too late.
_PICTURES = ("sharedds.datasets.images", "sharedds.workers.preload_pictures")

#: Seconds that a server which hangs up gets to end.
_PATIENCE = 2.0

_launching = threading.RLock()


@contextlib.contextmanager
def main_module_left_out() -> Iterator[None]:
    """While open, processes started by this thread get no main module to import.

    Other threads are not affected, and asking for the default start method does not fix it, as the
    original function would.
    """
    thread = threading.get_ident()

    def prepare(name: str) -> dict[str, Any]:
        if threading.get_ident() != thread:
            return original(name)
        chosen: Any = multiprocessing.get_start_method(allow_none=True)
        data = original(name)
        if chosen is None:
            multiprocessing.set_start_method(None, force=True)
        data.pop("init_main_from_path", None)
        data.pop("init_main_from_name", None)
        return data

    with _launching:
        original = multiprocessing.spawn.get_preparation_data
        multiprocessing.spawn.get_preparation_data = prepare
        try:
            yield
        finally:
            multiprocessing.spawn.get_preparation_data = original


# --- the fork server -----------------------------------------------------------------------------


def start_server() -> None:
    """Start the fork server unless it runs; it imports the libraries while this process goes on."""
    with _launching:
        if _is_running():
            return
        server = forkserver._forkserver
        asked = [name for name in getattr(server, "_preload_modules", ()) if name != "__main__"]
        pictures = [_PICTURES[1]] if _PICTURES[0] in sys.modules else []
        wanted = [_FIRST, *asked, *_PRELOAD[:-1], *pictures, _PRELOAD[-1]]
        forkserver.set_forkserver_preload([*dict.fromkeys(wanted)])
        # The tracker first: starting it lets Ctrl-C through, which must not reach the server until
        # that can cope with it.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with main_module_left_out():
                forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def launched_by_server(launch: Callable[[], T]) -> T:
    """Start a process by the fork server, which is started again if it has ended.

    Args:
        launch: Starts the process; called a second time if the server ends before it answers.

    Returns:
        What ``launch`` returned.
    """
    with main_module_left_out():
        start_server()
        try:
            return launch()
        except (EOFError, ConnectionError):
            if not _has_ended():
                raise
        start_server()
        return launch()


def _is_running() -> bool:
    """Whether there is a fork server of this process; one that has ended is forgotten."""
    server: Any = forkserver._forkserver
    pid = getattr(server, "_forkserver_pid", None)
    if pid is None:
        return False
    try:
        ended, _ = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # this process was forked from the one that has it as a child
        ended = pid
    if not ended:
        return True
    os.close(server._forkserver_alive_fd)
    server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None
    return False


def _has_ended() -> bool:
    ends = time.monotonic() + _PATIENCE
    while _is_running():
        if time.monotonic() > ends:
            return False
        time.sleep(0.01)
    return True
