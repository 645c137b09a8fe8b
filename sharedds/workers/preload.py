"""Imported by the fork server before it starts workers, so that they share the pages of libraries.

None of these starts threads, touches CUDA or opens a file when it is imported.
"""

from __future__ import annotations

import contextlib
import gc
import importlib

__all__ = ["LIBRARIES"]

LIBRARIES = (
    "torch.utils.data",
    "numpy",
    "lmdb",
    "PIL.Image",
    "sharedds.datasets.lazy",
    "sharedds.datasets.memmap",
    "sharedds.loader.build",
)

for _name in LIBRARIES:
    # Preloading saves time and memory and decides nothing. A library that is missing or broken is
    # reported where it is used; an error here would end the server and with it every loader.
    with contextlib.suppress(Exception):
        importlib.import_module(_name)

with contextlib.suppress(Exception):
    importlib.import_module("PIL.Image").preinit()  # the common formats, as the first open() does

# A full garbage collection writes to every object that it looks at, and so gives a worker a copy of
# its own of 40 MB of them. Frozen ones are passed over, in the workers too.
gc.freeze()
gc.enable()  # stopped by sharedds.workers.importing
