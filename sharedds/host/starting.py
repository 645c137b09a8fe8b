"""How processes can be started here, and what makes fork unsafe now."""

from __future__ import annotations

__all__ = ["FORK_AFTER_CUDA"]

FORK_AFTER_CUDA = (
    "start_method='fork': CUDA is already in use in this process, and a forked worker would "
    "inherit a broken copy of it; leave start_method out, or pass 'forkserver' or 'spawn'"
)
