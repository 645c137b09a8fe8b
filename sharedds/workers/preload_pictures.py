"""Imported by the fork server as well where the trainer has loaded the dataset of pictures.

A tenth of a second that other datasets are spared.
"""

from __future__ import annotations

import contextlib
import importlib

__all__ = ["LIBRARIES"]

LIBRARIES = ("simplejpeg", "numcodecs", "sharedds.datasets.images")

for _name in LIBRARIES:
    with contextlib.suppress(Exception):  # as in sharedds.workers.preload
        importlib.import_module(_name)
