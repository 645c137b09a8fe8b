"""Arrays in files as a dataset: rows of ``.npy`` or raw files, or one file for each sample."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import xxhash

from sharedds.datasets.array_files import (
    ArrayLayout,
    OpenArray,
    OpenArrays,
    map_array,
    npy_layout,
    raw_layout,
)
from sharedds.datasets.indexed import IndexedDataset
from sharedds.datasets.randomness import making_sample, with_keys
from sharedds.errors import OptionError, SharedDSError, SourceError, StoreChangedError
from sharedds.handles import absolute_path, per_process
from sharedds.packed import MappedArray, MappedArrayBuilder, PackedStrings, PackedStringsBuilder

__all__ = ["MemmapDataset"]


class MemmapDataset(IndexedDataset[Any]):
    """Samples from array files: each row along the first axis, or one file for each.

    Files are mapped when first read, by each process for itself, and only the latest used ones stay
    mapped. Nothing is ever unpickled. A pickle takes a few kilobytes, whatever the files. A sample
    is a NumPy array; torch makes tensors of a batch. Subclass it and override :meth:`load`, or
    give a ``transform``, to make something else of it.

    Args:
        files: A path, or an iterable of paths, read once as a stream.
        dtype: For raw files: the dtype of the values. None for ``.npy`` files.
        shape: For raw files: the shape of one sample.
        offset: For raw files: bytes before the first value.
        per_file: Whether a whole file is one sample. Its header is read when it is opened.
        transform: Called with the array; what it returns is the sample.
        copy: Whether a sample is a copy, writable and in the byte order of the machine. Without,
            it is a read-only view of the file, which torch warns about.

    Raises:
        SourceError: A file is missing, is no such file, is cut short or holds Python objects.
        OptionError: Options that do not go together, or no file at all.

    Example:
        >>> MemmapDataset("volumes.npy")[3].shape  # doctest: +SKIP
        (128, 128)
    """

    def __init__(
        self,
        files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        dtype: npt.DTypeLike | None = None,
        shape: Sequence[int] | None = None,
        offset: int = 0,
        per_file: bool = False,
        transform: Callable[[Any], Any] | None = None,
        copy: bool = True,
    ) -> None:
        self.transform = transform
        self._copy = copy
        self._per_file = per_file
        self._raw = _raw_options(dtype, shape, offset)
        paths = PackedStringsBuilder()
        ends = MappedArrayBuilder(np.int64)
        digest = xxhash.xxh3_128()
        total = 0
        items: set[tuple[np.dtype[Any], tuple[int, ...]] | None] = set()
        for path in [files] if isinstance(files, (str, bytes, os.PathLike)) else files:
            location = absolute_path(path)
            rows, facts, item = self._look(location)
            if len(items) < 2:  # more tell no more
                items.add(item)
            total += rows
            # With each path, a hash of what must not change in its file.
            paths.append(f"{location}\0{_hashed(facts)}")
            ends.append(total)
            digest.update(f"{os.path.basename(location)!r} {facts}\n".encode())
        self._paths: PackedStrings = paths.finish()
        self._ends: MappedArray = ends.finish()
        self._total = total
        self._digest = digest.hexdigest()
        same = items.pop() if len(items) == 1 else None
        self._item_bytes = math.prod(same[1]) * same[0].itemsize if same is not None else None
        if not len(self._paths):
            raise OptionError("files is empty; give the path of one array file or more")

    def _look(self, path: str) -> tuple[int, str, tuple[np.dtype[Any], tuple[int, ...]] | None]:
        """Return how many samples a file has, what must not change about it, and what one is."""
        try:
            if self._per_file:
                size = _regular(path, os.stat(path))
                return 1, str(size), self._raw[:2] if self._raw is not None else None
            with open(path, "rb") as file:
                size = _regular(path, os.fstat(file.fileno()))
                if self._raw is not None:
                    layout = raw_layout(path, size, *self._raw, rows=True)
                else:
                    layout = npy_layout(path, file, size)
        except SourceError:
            raise
        except OSError as error:
            raise SourceError(f"{path}: cannot be read ({error.strerror})", path=path) from error
        if not layout.shape:
            raise SourceError(
                f"{path}: holds a single number and no rows; per_file=True takes it as one sample",
                path=path,
            )
        return layout.shape[0], _facts(layout), (layout.dtype, layout.shape[1:])

    def _count(self) -> int:
        return self._total

    def _content(self) -> str:
        return self._digest

    @per_process
    def _arrays(self) -> OpenArrays:
        return OpenArrays()

    def _locate(self, index: SupportsIndex) -> tuple[int, int]:
        """Return the number of a file, and the row in it."""
        position = self._position(index)
        ends = self._ends.array
        if self._per_file or len(ends) == 1:
            return (position, 0) if self._per_file else (0, position)
        number = int(ends.searchsorted(position, "right"))
        return number, position - (int(ends[number - 1]) if number else 0)

    def _file(self, number: int) -> OpenArray:
        """Return a file, mapped and whole."""
        arrays = self._arrays
        found = arrays.get(number)
        if found is None:
            path, _, wanted = self._paths[number].partition("\0")
            file, layout = map_array(path, self._raw, rows=not self._per_file)
            if not self._per_file and wanted != _hashed(_facts(layout)):
                ends = self._ends.array
                rows = int(ends[number] - (ends[number - 1] if number else 0))
                raise StoreChangedError(
                    f"{path}: holds {layout.dtype} of shape {layout.shape}, and had {rows} rows "
                    "and perhaps another shape or dtype when the dataset was made; make the "
                    "dataset anew",
                    path=path,
                )
            found = arrays.put(number, file, layout)
        found[0].require_whole()
        return found

    def _array(self, number: int, row: int) -> npt.NDArray[Any]:
        array = self._file(number)[2]
        if not self._per_file:
            array = array[row : row + 1].reshape(array.shape[1:])
        return _writable(array) if self._copy else array

    def load(self, array: npt.NDArray[Any]) -> Any:
        """Return the sample of one array; a subclass may make something else of it."""
        return array if self.transform is None else self.transform(array)

    def __getitem__(self, index: SupportsIndex) -> Any:
        """Return sample ``index``; negative numbers count from the end.

        Raises:
            SampleIndexError: There is no such sample.
            SourceError: Its file cannot be read any more.
            StoreChangedError: It changed since the dataset was made.
        """
        number, row = self._locate(index)
        array = self._array(number, row)
        return self._made(index, array, making_sample())

    def _made(
        self, index: SupportsIndex, array: npt.NDArray[Any], context: AbstractContextManager[Any]
    ) -> Any:
        try:
            with context:
                return self.load(array)
        except Exception as error:
            error.add_note(f"while loading sample {operator.index(index)}, {self.key(index)}")
            raise

    @property
    def sample_nbytes(self) -> int | None:
        """Bytes of a sample in a batch; None where it is not known without loading one.

        Known where samples are the arrays as they are, and all files hold arrays of one shape and
        dtype.
        """
        own = type(self)
        is_plain = own.load is MemmapDataset.load and self.transform is None
        if not is_plain or own.__getitem__ is not MemmapDataset.__getitem__:
            return None
        return self._item_bytes

    @property
    def reads_batches(self) -> bool:
        """Whether samples are the arrays as they are: then a batch is gathered file by file."""
        plain = type(self).load is MemmapDataset.load and self.transform is None
        return plain and self._copy and not self._per_file

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Any]:
        """Return several samples: those of one file are gathered at once."""
        self.advise(indices)
        places = [self._locate(index) for index in indices]
        arrays: list[Any] = [None] * len(places)
        if self._copy and not self._per_file:
            by_file: dict[int, list[int]] = {}
            for at, (number, _) in enumerate(places):
                by_file.setdefault(number, []).append(at)
            for number, members in by_file.items():
                rows = [places[at][1] for at in members]
                gathered = _writable(self._file(number)[2][rows])
                for at, array in zip(members, gathered, strict=True):
                    arrays[at] = np.asarray(array)
        else:
            arrays = [self._array(*place) for place in places]
        contexts = with_keys(len(places))
        return [self._made(*sample) for sample in zip(indices, arrays, contexts, strict=True)]

    def advise(self, indices: Sequence[SupportsIndex]) -> None:
        """Ask the system to fetch these samples, without waiting."""
        wanted: dict[int, list[int]] = {}
        for number, row in map(self._locate, indices):
            wanted.setdefault(number, []).append(row)
        for number, rows in wanted.items():
            try:
                file, layout, array = self._file(number)
            except SharedDSError:  # told when the sample is read, which may then be left out
                continue
            if self._per_file or layout.fortran:  # rows of a Fortran array lie all over it
                file.advise([(layout.offset, layout.end - layout.offset)])
            elif len(array):
                size = array.nbytes // len(array)
                file.advise((layout.offset + row * size, size) for row in rows)

    def key(self, index: SupportsIndex) -> str:
        """Return the path of the file of a sample, and the row in it."""
        number, row = self._locate(index)
        path = self._paths[number].partition("\0")[0]
        return path if self._per_file else f"{path}[{row}]"

    def __repr__(self) -> str:
        return f"MemmapDataset({len(self)} samples in {len(self._paths)} files)"


def _facts(layout: ArrayLayout) -> str:
    return f"{layout.dtype.str} {layout.shape} {layout.offset} {layout.fortran}"


def _hashed(facts: str) -> str:
    return xxhash.xxh3_64_hexdigest(facts.encode())


def _writable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy in C order and the byte order of the machine; what is one already stays."""
    native = array.dtype.newbyteorder("=")
    if array.flags.owndata and array.flags.writeable and array.flags.c_contiguous:
        return array.astype(native, copy=False)
    return np.array(array, native, order="C", copy=True)


def _raw_options(
    dtype: npt.DTypeLike | None, shape: Sequence[int] | None, offset: int
) -> tuple[np.dtype[Any], tuple[int, ...], int] | None:
    if dtype is None and shape is None:
        if offset:
            raise OptionError(f"offset={offset}: only for raw files, with dtype and shape")
        return None
    if dtype is None or shape is None:
        raise OptionError(
            "raw files need both dtype and shape, the shape of one sample; .npy files neither"
        )
    try:
        kind = np.dtype(dtype)
        size = tuple(operator.index(n) for n in shape)
        start = operator.index(offset)
    except TypeError as error:
        raise OptionError(f"dtype={dtype!r}, shape={shape!r}, offset={offset!r}: {error}") from None
    if kind.hasobject or not kind.itemsize:
        raise OptionError(f"dtype={kind}: plain numbers are expected; objects are never unpickled")
    if start < 0 or any(n < 1 for n in size):
        raise OptionError(f"shape={size}, offset={start}: they are positive")
    return kind, size, start


def _regular(path: str, info: os.stat_result) -> int:
    """Return the size of a file that can be mapped."""
    if not os.path.isfile(path):
        raise SourceError(f"{path}: a file is expected, not a folder or a device", path=path)
    return info.st_size
