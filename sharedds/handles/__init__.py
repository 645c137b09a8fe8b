"""Handles that live in one process: never pickled, never carried across a fork.

This is the only room that knows about fork, spawn and pickle. It offers:

* :class:`per_process` - an attribute computed once in each process that asks for it;
* :class:`unsent` - an attribute that stays behind when its object is pickled;
* :class:`MadeHere` - whether this is still the process that made an object;
* :class:`ForkGate` - what a fork has to wait for; :class:`Unforked` - whether there was one since;
* :func:`map_file` - one read-only mapping for each real file of a process, however it is spelled;
* :class:`SharedFile` - bytes in a file without a name, which other processes reach in O(1);
* :class:`WritableFile` - such a file that many processes write to; :class:`SharedCounts`;
* :class:`Remade` - such a file of which nothing is missed where it is gone;
* :func:`open_environment` - one LMDB environment for each real file of a process.

The two registries identify a file by device and inode, since two paths may lead to one file. In a
forked child they start empty: what was inherited is kept alive but never used or closed, because a
destructor that runs in the child may act on something that belongs to the parent.
"""

from sharedds.handles.environment import open_environment, require_lmdb_path
from sharedds.handles.mapped import MappedFile, Passing, map_file
from sharedds.handles.process import ForkGate, MadeHere, Unforked, per_process, unsent
from sharedds.handles.reading import read_at
from sharedds.handles.shared import SharedFile, anonymous_file
from sharedds.handles.storage import absolute_path, free_bytes, storage_errors
from sharedds.handles.writable import Remade, SharedCounts, WritableFile, lock_file, unlock_file

__all__ = [
    "ForkGate",
    "MadeHere",
    "MappedFile",
    "Passing",
    "Remade",
    "SharedCounts",
    "SharedFile",
    "Unforked",
    "WritableFile",
    "absolute_path",
    "anonymous_file",
    "free_bytes",
    "lock_file",
    "map_file",
    "open_environment",
    "per_process",
    "read_at",
    "require_lmdb_path",
    "storage_errors",
    "unlock_file",
    "unsent",
]
