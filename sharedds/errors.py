"""Every error that sharedds raises, as one tree.

Each class is also the built-in that fits it, so ordinary ``except`` clauses work::

    SharedDSError
    ├── OptionError            ValueError         bad arguments, or ones that exclude each other
    ├── MissingExtraError      ImportError        an optional dependency is not installed
    ├── SourceError            OSError            an input cannot be found, listed or read
    ├── DecodeError            ValueError         bytes that are not what they claim to be
    │   └── ImageTooLargeError                    more pixels than the limit, refused undecoded
    ├── SchemaError            TypeError          a sample that does not fit the schema
    ├── StoreError
    │   ├── StoreNotFoundError FileNotFoundError  nothing at this path
    │   ├── StoreExistsError   FileExistsError    the output is there already
    │   ├── StoreFormatError   ValueError         not a store, another version, or damaged
    │   │   └── IncompleteStoreError              an unfinished pack
    │   ├── CorruptDataError   ValueError         a value that fails its checksum or does not decode
    │   ├── StoreChangedError  RuntimeError       the file is not the one this object was made from
    │   ├── StoreBusyError     RuntimeError       another writer is at work on it
    │   └── StorageFullError   OSError            the disk, a quota or a size limit is exhausted
    ├── SampleIndexError       IndexError         no sample with this number
    ├── SampleKeyError         KeyError           no sample, field or column with this name
    ├── ClassMismatchError     ValueError         class names that do not agree
    ├── SampleError            RuntimeError       one sample could not be loaded; names it
    ├── StateError             ValueError         a loader state that does not fit, or is too late
    ├── MemoryBudgetError      MemoryError        the loader holds more than max_memory, all in all
    └── WorkerError            RuntimeError       loading failed in a worker process
        ├── WorkerDiedError                       a worker ended without a word: signal or exit code
        └── LoaderStalledError TimeoutError       no batch came within the time limit
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "ClassMismatchError",
    "CorruptDataError",
    "DecodeError",
    "ImageTooLargeError",
    "IncompleteStoreError",
    "LoaderStalledError",
    "MemoryBudgetError",
    "MissingExtraError",
    "OptionError",
    "SampleError",
    "SampleIndexError",
    "SampleKeyError",
    "SchemaError",
    "SharedDSError",
    "SourceError",
    "StateError",
    "StorageFullError",
    "StoreBusyError",
    "StoreChangedError",
    "StoreError",
    "StoreExistsError",
    "StoreFormatError",
    "StoreNotFoundError",
    "WorkerDiedError",
    "WorkerError",
]


class SharedDSError(Exception):
    """Root of all errors of this package.

    Args:
        text: What happened, to which value, and what to do about it.
        path: The file concerned, if there is one.
        sample: The number of the sample concerned.
        key: The key (or source path) of that sample.
        field: The field or column concerned.
    """

    def __init__(
        self,
        text: str = "",
        *,
        path: str | None = None,
        sample: int | None = None,
        key: str | None = None,
        field: str | None = None,
    ) -> None:
        super().__init__(text)
        self.path = path
        self.sample = sample
        self.key = key
        self.field = field

    def __str__(self) -> str:
        # KeyError would print the repr and OSError its errno fields; a message is a message.
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process boundaries: rebuild from the text, then restore the facts. Of an
        # ImportError, `path` is no entry of __dict__, so the facts are named one by one.
        facts = {name: getattr(self, name) for name in ("path", "sample", "key", "field")}
        return type(self), (str(self),), {**self.__dict__, **facts}


class OptionError(SharedDSError, ValueError):
    """A bad argument, or arguments that exclude each other."""


class MissingExtraError(SharedDSError, ImportError):
    """An optional dependency is not installed; the message names the command that installs it."""


class SourceError(SharedDSError, OSError):
    """An input cannot be found, listed or read."""


class DecodeError(SharedDSError, ValueError):
    """Bytes that are not what they claim to be."""


class ImageTooLargeError(DecodeError):
    """A picture with more pixels than the limit, refused before anything is decoded."""


class SchemaError(SharedDSError, TypeError):
    """A sample, field or schema that does not fit."""


class StoreError(SharedDSError):
    """Anything about a store as a file."""


class StoreNotFoundError(StoreError, FileNotFoundError):
    """Nothing exists at this path."""


class StoreExistsError(StoreError, FileExistsError):
    """The output exists already and ``force`` was not given."""


class StoreFormatError(StoreError, ValueError):
    """Not a store, a version this release does not read, or a damaged structure."""


class IncompleteStoreError(StoreFormatError):
    """The working folder of an unfinished pack."""


class CorruptDataError(StoreError, ValueError):
    """A stored value that fails its checksum or does not decode."""


class StoreChangedError(StoreError, RuntimeError):
    """The file at this path is not the one this object was made from."""


class StoreBusyError(StoreError, RuntimeError):
    """Another writer is at work on this store."""


class StorageFullError(StoreError, OSError):
    """The disk, a quota or a file size limit is exhausted."""


class SampleIndexError(SharedDSError, IndexError):
    """No sample with this number."""


class SampleKeyError(SharedDSError, KeyError):
    """No sample, field or column with this name."""


class ClassMismatchError(SharedDSError, ValueError):
    """Class names that do not agree."""


class SampleError(SharedDSError, RuntimeError):
    """One sample could not be loaded; the text names it and holds the original traceback."""


class StateError(SharedDSError, ValueError):
    """A loader state that does not fit this loader, or comes too late."""


class MemoryBudgetError(SharedDSError, MemoryError):
    """The trainer and its loader hold more than ``max_memory``; the text says who holds what."""


class WorkerError(SharedDSError, RuntimeError):
    """Loading failed in a worker process."""


class WorkerDiedError(WorkerError):
    """A worker process ended without a word: by a signal, or with an exit code."""


class LoaderStalledError(WorkerError, TimeoutError):
    """No batch came within the time limit."""
