"""Imported first by the fork server: lets it import the rest undisturbed.

Collecting garbage while libraries are imported finds none and takes a tenth of the time. And Ctrl-C
is for the trainer: a server that it ends while it imports would be missed by the next loader.
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
import sys
from types import FrameType

__all__: list[str] = []


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Do nothing in the server; in processes that it forks, what Python does."""
    if multiprocessing.parent_process() is not None:
        signal.default_int_handler(number, frame)


gc.disable()
if sys.platform != "win32":
    signal.signal(signal.SIGINT, _interrupt)
    # Blocked by who started this process, up to here.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
