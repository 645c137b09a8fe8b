"""Recognises, by the names of their classes alone, things that do not survive a new process."""

from __future__ import annotations

import concurrent.futures
import io
import mmap
import queue
import random
import threading
import types
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sharedds.diagnose.containers import is_a
from sharedds.diagnose.graph import own_attributes
from sharedds.diagnose.sizes import device_kind

__all__ = ["LIBRARIES_AFTER_FORK", "Sign", "random_kind", "sign_of", "table_kind"]

#: Modules whose threads or locks a forked worker inherits in a broken state, with the remedy.
LIBRARIES_AFTER_FORK = {
    "cv2": (
        "OpenCV keeps a pool of threads that a forked worker does not have",
        "cv2.setNumThreads(0)",
    ),
    "h5py": ("HDF5 keeps state and a lock that a fork copies", "start_method='forkserver'"),
    "SimpleITK": (
        "SimpleITK keeps a pool of threads that a forked worker does not have",
        "start_method='forkserver'",
    ),
    "tensorflow": (
        "TensorFlow keeps threads that a forked worker does not have",
        "start_method='forkserver'",
    ),
    "grpc": ("gRPC keeps threads that a forked worker does not have", "start_method='forkserver'"),
}

_SHARED_POSITION = "forked workers share its position in the file and read what others asked for"
_SHARED_MAP = "a forked worker may not use it, nor open the same file again"
_SHARED_STATE = "forked workers share its file and its state, and break each other's reads"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """What is known of objects of a class.

    Args:
        kind: "handle", "lock", "iterator" or "device".
        label: What it is, with its article.
        pickles: Whether spawn and forkserver can send it to a worker.
        after_fork: What is wrong with it in a forked worker.
        opens: The expression that opens or makes it, for the fix; empty where there is none.
    """

    kind: str
    label: str
    pickles: bool = False
    after_fork: str = _SHARED_STATE
    opens: str = ""


# By module (or its beginning) and class.
_HANDLES: dict[tuple[str, str], Sign] = {
    ("h5py", "File"): Sign(kind="handle", label="an open HDF5 file", opens="h5py.File(self.path)"),
    ("h5py", "HLObject"): Sign(
        kind="handle", label="an object of an open HDF5 file", opens='h5py.File(self.path)["name"]'
    ),
    ("lmdb", "Environment"): Sign(
        kind="handle",
        label="an open LMDB environment",
        after_fork=_SHARED_MAP,
        opens="lmdb.open(self.path, readonly=True, lock=False)",
    ),
    ("lmdb", "Transaction"): Sign(
        kind="handle",
        label="an LMDB transaction",
        after_fork=_SHARED_MAP,
        opens="lmdb.open(self.path, readonly=True, lock=False).begin()",
    ),
    ("lmdb", "Cursor"): Sign(
        kind="handle",
        label="an LMDB cursor",
        after_fork=_SHARED_MAP,
        opens="lmdb.open(self.path, readonly=True, lock=False).begin().cursor()",
    ),
    ("sqlite3", "Connection"): Sign(
        kind="handle",
        label="an open SQLite database",
        after_fork="SQLite may not be carried across a fork",
        opens="sqlite3.connect(self.path)",
    ),
    ("sqlite3", "Cursor"): Sign(kind="handle", label="an SQLite cursor"),
    ("_socket", "socket"): Sign(
        kind="handle",
        label="an open socket",
        after_fork="forked workers read each other's answers from it",
    ),
    # What a zarr array reads: a folder is opened for each chunk, and an archive is a ZipFile.
    ("fsspec", "AsyncFileSystem"): Sign(
        kind="handle",
        label="a remote file system with open connections",
        pickles=True,
        after_fork="its event loop runs on a thread that a forked worker does not have",
        opens="fsspec.filesystem(...)",
    ),
    ("tifffile", "TiffFile"): Sign(
        kind="handle",
        label="an open TIFF file",
        after_fork=_SHARED_POSITION,
        opens="tifffile.TiffFile(self.path)",
    ),
    ("nibabel", "DataobjImage"): Sign(
        kind="handle",
        label="a nibabel image, which keeps what get_fdata() returns, in float64",
        pickles=True,
        after_fork="each worker comes to hold every volume that it has read",
        opens="nibabel.load(path, mmap=False)",
    ),
    ("nibabel", "ArrayProxy"): Sign(
        kind="handle", label="a nibabel array proxy", pickles=True, after_fork=_SHARED_POSITION
    ),
    ("zipfile", "ZipFile"): Sign(
        kind="handle",
        label="an open ZIP file",
        after_fork=_SHARED_POSITION,
        opens="zipfile.ZipFile(self.path)",
    ),
    ("tarfile", "TarFile"): Sign(
        kind="handle",
        label="an open TAR file",
        after_fork=_SHARED_POSITION,
        opens="tarfile.open(self.path)",
    ),
    ("openslide", "AbstractSlide"): Sign(
        kind="handle", label="an open slide", opens="openslide.OpenSlide(self.path)"
    ),
    ("tiffslide", "TiffSlide"): Sign(
        kind="handle", label="an open slide", opens="tiffslide.TiffSlide(self.path)"
    ),
    ("numpy", "NpzFile"): Sign(
        kind="handle",
        label="an open NPZ file",
        after_fork=_SHARED_POSITION,
        opens="np.load(self.path)",
    ),
    ("netCDF4", "Dataset"): Sign(kind="handle", label="an open NetCDF file"),
    ("rasterio", "DatasetBase"): Sign(kind="handle", label="an open raster file"),
    ("cv2", "VideoCapture"): Sign(
        kind="handle", label="an open video", opens="cv2.VideoCapture(self.path)"
    ),
    ("decord", "VideoReader"): Sign(kind="handle", label="an open video"),
    ("av", "Container"): Sign(kind="handle", label="an open video"),
    ("pyarrow", "ParquetFile"): Sign(
        kind="handle", label="an open Parquet file", opens="pq.ParquetFile(self.path)"
    ),
    ("pyarrow", "NativeFile"): Sign(kind="handle", label="an open Arrow file"),
    ("subprocess", "Popen"): Sign(kind="handle", label="a running program"),
    ("botocore", "BaseClient"): Sign(
        kind="handle", label="a client with open connections", opens="boto3.client('s3')"
    ),
    ("requests", "Session"): Sign(
        kind="handle",
        label="an HTTP session with open connections",
        pickles=True,
        opens="requests.Session()",
    ),
}

# Compiled into one file, its classes say that they are Python's own.
_HANDLES |= {
    ("builtins", name): sign for (package, name), sign in _HANDLES.items() if package == "lmdb"
}

_LOCKS = (
    *(type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event),
    *(threading.Thread, queue.Queue, concurrent.futures.Executor),
)
_ITERATORS = frozenset(
    {"generator", "coroutine", "async_generator", "map", "filter", "zip", "enumerate", "reversed"}
)
_IO_BASE: type = io.IOBase.__mro__[1]  # of C, which asks no class of the user's
_IN_MEMORY = (io.BytesIO, io.StringIO)


def sign_of(obj: Any) -> Sign | None:
    """Return what is known of an object that does not survive a new process, or None."""
    if is_a(obj, torch.Tensor):
        return _device_sign(obj)
    if is_a(obj, _IO_BASE):
        is_open = not is_a(obj, _IN_MEMORY) and _is_open(obj)
        opens = "open(self.path, 'rb')"
        return (
            Sign(kind="handle", label="an open file", after_fork=_SHARED_POSITION, opens=opens)
            if is_open
            else None
        )
    if is_a(obj, mmap.mmap):
        return Sign(
            kind="handle",
            label="a memory map",
            after_fork="",
            opens="mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)",
        )
    if is_a(obj, _LOCKS):
        name = type(obj).__name__
        return Sign(
            kind="lock",
            label=f"a {name}",
            opens=_made_by(obj),
            after_fork="held by another thread at the fork, it stays locked in the worker for ever",
        )
    if _is_iterator(obj):
        return Sign(
            kind="iterator",
            label=f"a {type(obj).__name__}, which can be read once",
            pickles=not is_a(obj, types.GeneratorType),
            after_fork="each worker goes on with a copy of its own, and reads the same items",
        )
    for kind in type(obj).__mro__:
        package = kind.__module__.partition(".")[0]
        found = _HANDLES.get((package, kind.__name__))
        if found is not None:
            return found
    return _lazy_image(obj)


def _device_sign(tensor: torch.Tensor) -> Sign | None:
    if (kind := device_kind(tensor)) in ("cpu", "meta"):
        return None
    return Sign(
        kind="device",
        label=f"a tensor on {kind}",
        pickles=True,
        after_fork="a forked worker cannot use the device, and each one started by spawn or "
        "forkserver opens a context of its own there",
    )


def _made_by(obj: Any) -> str:
    """The expression that makes a lock, a queue, a thread or an executor, for the fix."""
    for name in ("Lock", "RLock"):
        if type(obj) is type(getattr(threading, name)()):
            return f"threading.{name}()"
    kind = type(obj)
    package = "concurrent.futures" if is_a(obj, concurrent.futures.Executor) else kind.__module__
    known = package.partition(".")[0] in ("threading", "queue", "concurrent")
    return f"{package}.{kind.__name__}(...)" if known else f"{kind.__name__}(...)"


def random_kind(obj: Any) -> str | None:
    """Return what a random generator is called, None for anything else and for global ones."""
    if obj is torch.default_generator or obj is getattr(np.random.mtrand, "_rand", None):
        return None
    if obj is getattr(random, "_inst", None):
        return None
    if is_a(obj, np.random.Generator):
        return "a NumPy Generator"
    if is_a(obj, np.random.RandomState):
        return "a NumPy RandomState"
    if is_a(obj, random.Random) and not is_a(obj, random.SystemRandom):
        return "a random.Random"
    return "a torch.Generator" if is_a(obj, torch.Generator) else None


def table_kind(obj: Any) -> str | None:
    """Return the name of a table or column of a library, such as ``pandas DataFrame``."""
    for kind in type(obj).__mro__:
        package, name = kind.__module__.partition(".")[0], kind.__name__
        if (package, name) in _TABLES:
            return f"{package} {name}"
    return None


_TABLES = {
    *(("pandas", name) for name in ("DataFrame", "Series", "Index")),
    *(("polars", name) for name in ("DataFrame", "Series")),
    *(("pyarrow", name) for name in ("Table", "RecordBatch", "ChunkedArray", "Array")),
}


def _is_open(file: io.IOBase) -> bool:
    """Whether a file is open; asked of Python's own classes only, any other counts as open."""
    if type(file).__module__ != "_io":
        return True
    try:
        return not file.closed
    except ValueError:
        return False


def _is_iterator(obj: Any) -> bool:
    kind = type(obj)
    if kind.__module__ == "itertools":
        return True
    return kind.__module__ == "builtins" and (
        kind.__name__ in _ITERATORS or kind.__name__.endswith("iterator")
    )


def _lazy_image(obj: Any) -> Sign | None:
    """A Pillow image that was opened and not loaded holds its file open."""
    names = [f"{kind.__module__}.{kind.__name__}" for kind in type(obj).__mro__]
    if "PIL.ImageFile.ImageFile" not in names or own_attributes(obj).get("fp") is None:
        return None
    return Sign(
        kind="handle",
        label="a Pillow image that is opened and not loaded",
        pickles=True,
        after_fork=_SHARED_POSITION,
        opens="Image.open(self.path)",
    )
