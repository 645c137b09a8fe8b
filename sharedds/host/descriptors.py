"""How many files this process may have open at once: each tensor of a batch that is kept is one."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass, replace

if sys.platform != "win32":
    import resource

__all__ = [
    "DescriptorLimits",
    "descriptor_limits",
    "open_files_limit",
    "raise_open_files_limit",
]

#: Above this, limits serve no purpose here, and some programs walk through all of them. Of macOS's
#: hard limit no more than OPEN_MAX is sure to be granted.
_MOST_DESCRIPTORS = 10_240 if sys.platform == "darwin" else 65_536
#: Tried where the system does not grant what its hard limit promises.
_FEWER_DESCRIPTORS = (10_240, 4_096, 1_024)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptorLimits:
    """Files that this process may have open at once.

    Attributes:
        soft: The limit now; None for no limit.
        hard: How far the process may raise it; None for no limit.
        open: How many are open now; None where that is not told.
    """

    soft: int | None
    hard: int | None
    open: int | None = None

    @property
    def reachable(self) -> int | None:
        """What :func:`raise_open_files_limit` makes of the soft limit; None for no limit."""
        if self.soft is None:
            return None
        most = _MOST_DESCRIPTORS if self.hard is None else min(self.hard, _MOST_DESCRIPTORS)
        return max(self.soft, most)


def descriptor_limits() -> DescriptorLimits | None:
    """Return the limits of this process; None where the system knows none."""
    limits = _limits()
    return None if limits is None else replace(limits, open=_open_now())


def open_files_limit() -> int | None:
    """Return how many files this process may have open; None for no limit, or none that is told."""
    limits = _limits()
    return None if limits is None else limits.soft


def raise_open_files_limit() -> DescriptorLimits | None:
    """Let this process open as many files as it is allowed to, within reason.

    Returns:
        The limits afterwards; None where the system knows none.
    """
    if sys.platform == "win32" or (limits := _limits()) is None:
        return None
    if limits.reachable is not None and limits.reachable != limits.soft:
        hard = resource.RLIM_INFINITY if limits.hard is None else limits.hard
        soft = limits.soft or 0
        fewer = [n for n in _FEWER_DESCRIPTORS if soft < n < limits.reachable]
        for count in (limits.reachable, *fewer):
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
                break
    return descriptor_limits()


def _limits() -> DescriptorLimits | None:
    if sys.platform == "win32":
        return None
    soft, hard = (
        None if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    return DescriptorLimits(soft=soft, hard=hard)


def _open_now() -> int | None:
    for folder in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            return len(os.listdir(folder)) - 1  # one of them is the listing's own
    return None
