"""Arrays in files, mapped: ``.npy`` files, and raw numbers whose dtype and shape are known."""

from __future__ import annotations

import ast
import io
import itertools
import math
import sys
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from sharedds.errors import SourceError, StoreError
from sharedds.handles import MappedFile, map_file, per_process

if sys.platform != "win32":
    import resource

__all__ = ["ArrayLayout", "OpenArray", "OpenArrays", "map_array", "npy_layout", "raw_layout"]

_MOST_HEADER = 10_000  # bytes of text in the header of a .npy file; NumPy's own limit
# Of each version: bytes of the length, and how the text that follows is encoded.
_VERSIONS = {(1, 0): (2, "latin-1"), (2, 0): (4, "latin-1"), (3, 0): (4, "utf-8")}
_MOST_OPEN = 64  # files that a process keeps mapped for all its datasets


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayLayout:
    """How an array lies in its file.

    Attributes:
        dtype: Of its values; never objects.
        shape: Its shape.
        fortran: Whether the first axis is the one whose values are neighbours.
        offset: Bytes before the first value.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    offset: int

    @property
    def end(self) -> int:
        """Bytes the file needs to have."""
        return self.offset + math.prod(self.shape) * self.dtype.itemsize

    def view(self, data: memoryview) -> npt.NDArray[Any]:
        """Return the array as a view of the bytes of the file."""
        flat = np.frombuffer(data[self.offset : self.end], self.dtype)
        return flat.reshape(self.shape, order="F" if self.fortran else "C")


#: A mapped file, how its array lies in it, and the array.
OpenArray = tuple[MappedFile, ArrayLayout, npt.NDArray[Any]]


def _checked_dtype(dtype: npt.DTypeLike, path: str) -> np.dtype[Any]:
    """Return a dtype whose values are plain bytes.

    Raises:
        SourceError: It holds objects, which only pickle could read, or nothing at all.
    """
    found = np.dtype(dtype)
    if found.hasobject:
        raise SourceError(
            f"{path}: holds Python objects, which are pickled; nothing here is ever unpickled. "
            "Save it as an array of numbers",
            path=path,
        )
    if found.itemsize == 0:
        raise SourceError(f"{path}: values of dtype {found} have no bytes", path=path)
    return found


def npy_layout(path: str, file: BinaryIO, size: int) -> ArrayLayout:
    """Read the header of a ``.npy`` file; nothing is unpickled.

    Args:
        path: Named in errors.
        file: The file, at its beginning.
        size: Bytes of the whole file.

    Raises:
        SourceError: Not such a file, damaged, of objects, or shorter than its header says.
    """
    try:
        version = np.lib.format.read_magic(file)
    except ValueError as error:
        raise SourceError(
            f"{path}: not a .npy file ({size:,} bytes); for raw numbers give dtype and shape",
            path=path,
        ) from error
    try:
        shape, fortran, dtype = _header(version, file)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        text = str(error).partition("\n")[0]
        raise SourceError(f"{path}: the .npy header is damaged ({text})", path=path) from error
    return _require_whole(
        ArrayLayout(
            dtype=_checked_dtype(dtype, path), shape=shape, fortran=fortran, offset=file.tell()
        ),
        path,
        size,
    )


def _header(version: tuple[int, int], file: BinaryIO) -> tuple[tuple[int, ...], bool, Any]:
    """Return shape, order and dtype. NumPy has no public reader of version 3."""
    if version not in _VERSIONS:
        raise ValueError(f"version {version}, known are 1.0, 2.0 and 3.0")
    digits, encoding = _VERSIONS[version]
    length = int.from_bytes(file.read(digits), "little")
    if length > _MOST_HEADER:
        raise ValueError(f"a header of {length:,} bytes")
    facts = ast.literal_eval(file.read(length).decode(encoding))
    if not isinstance(facts, dict) or set(facts) != {"descr", "fortran_order", "shape"}:
        raise ValueError("it does not say descr, fortran_order and shape")
    shape, fortran = facts["shape"], facts["fortran_order"]
    whole = isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)
    if not whole or not isinstance(fortran, bool):
        raise ValueError(f"shape {shape!r}, fortran_order {fortran!r}")
    return shape, fortran, np.lib.format.descr_to_dtype(facts["descr"])


def raw_layout(
    path: str, size: int, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, *, rows: bool
) -> ArrayLayout:
    """Return how raw numbers lie in a file: one array, or as many rows as there is room for.

    Args:
        path: Named in errors.
        size: Bytes of the file.
        dtype: Of the values.
        shape: Of one sample.
        offset: Bytes before the first value.
        rows: Whether there are many samples, the first axis.

    Raises:
        SourceError: The file is too short, or ends inside a sample.
    """
    one = math.prod(shape) * dtype.itemsize
    if rows:
        count, rest = divmod(size - offset, one)
        if count < 0 or rest:
            raise SourceError(
                f"{path}: {size - offset:,} bytes after offset {offset:,}, which is no whole number"
                f" of samples of {one:,} bytes ({dtype}, shape {shape}); it is cut short, or dtype,"
                " shape or offset are wrong",
                path=path,
            )
        shape = (count, *shape)
    return _require_whole(
        ArrayLayout(dtype=dtype, shape=shape, fortran=False, offset=offset), path, size
    )


def _require_whole(layout: ArrayLayout, path: str, size: int) -> ArrayLayout:
    if size < layout.end:
        raise SourceError(
            f"{path}: cut short: {layout.end:,} bytes expected for {layout.dtype} of shape "
            f"{layout.shape}, {size:,} found; copy or write it again",
            path=path,
        )
    return layout


def map_array(
    path: str, raw: tuple[np.dtype[Any], tuple[int, ...], int] | None, *, rows: bool
) -> tuple[MappedFile, ArrayLayout]:
    """Map a file and find out how its array lies in it.

    Args:
        path: The file.
        raw: dtype, shape of a sample and offset of a raw file; None for a ``.npy`` file.
        rows: Whether the first axis counts samples.

    Raises:
        SourceError: It cannot be read, or is not what is expected.
    """
    try:
        file = map_file(path)
    except StoreError as error:  # an array is no store
        raise SourceError(str(error), path=path) from error
    if raw is not None:
        return file, raw_layout(path, file.size, *raw, rows=rows)
    head = io.BytesIO(file.view[: _MOST_HEADER + 64])
    return file, npy_layout(path, head, file.size)


class _Recent:
    """The files that a process used last, over all datasets; safe for threads."""

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[int, int], OpenArray] = OrderedDict()
        # Garbage collection may end a dataset, and come here, while this thread is in here.
        self._lock = threading.RLock()
        self._most = _most_open()

    def get(self, key: tuple[int, int]) -> OpenArray | None:
        with self._lock:
            found = self._open.get(key)
            if found is not None:
                self._open.move_to_end(key)
            return found

    def put(self, key: tuple[int, int], found: OpenArray) -> None:
        with self._lock:
            self._open[key] = found
            while len(self._open) > self._most:
                self._open.popitem(last=False)

    def forget(self, owner: int) -> None:
        """Let go of all files of a dataset."""
        with self._lock:
            for key in [key for key in self._open if key[0] == owner]:
                self._open.pop(key, None)


class _Process:
    @per_process
    def recent(self) -> _Recent:
        """Those of this process."""
        return _Recent()


_process = _Process()
_owners = itertools.count()


def _most_open() -> int:
    """Return how many files stay mapped; each takes two descriptors, and others need some too."""
    if sys.platform == "win32":
        return _MOST_OPEN
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST_OPEN if limit < 0 else max(4, min(_MOST_OPEN, limit // 8))


class OpenArrays:
    """The arrays that a dataset has open in a process, as far as they are among the latest used."""

    def __init__(self) -> None:
        self._owner = next(_owners)
        self._recent = _process.recent
        weakref.finalize(self, self._recent.forget, self._owner).atexit = False

    def get(self, number: int) -> OpenArray | None:
        """Return an array that is open; None if it is not."""
        return self._recent.get((self._owner, number))

    def put(self, number: int, file: MappedFile, layout: ArrayLayout) -> OpenArray:
        """Keep an array open, in place of the one used longest ago if there are many."""
        found = file, layout, layout.view(file.view)
        self._recent.put((self._owner, number), found)
        return found
