"""What is diagnosed: a store, a folder of images, or any dataset, and how to make it once more.

A trial runs in a process of its own and makes the dataset there anew, as a training script would.
So a :class:`Target` is first of all a recipe; it runs no code of the user until it is opened.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import cloudpickle
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from sharedds.datasets import ImageDataset
from sharedds.errors import OptionError, SharedDSError, SourceError
from sharedds.handles import absolute_path
from sharedds.store import Store, holds_store
from sharedds.workers.transport import explain

__all__ = ["Opened", "StackOrList", "StoreSamples", "Target", "load_target"]

#: Where the files of what imports modules begin: it says nothing of one that fails.
_NO_PLACES = (
    "<frozen",
    *(os.path.dirname(file) + os.sep for file in (__file__, importlib.__file__)),
)
_EXPECTED = "a store, a folder of images, module:attribute or file.py:attribute"


class StoreSamples(Dataset[Any]):
    """The samples of a store of any schema, as dicts of decoded fields.

    Args:
        path: Of the store.
    """

    def __init__(self, path: str) -> None:
        self.store = Store(path)

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return one sample."""
        return self.store[index]

    def key(self, index: int) -> str:
        """Return the name of a sample."""
        return self.store.key(index)

    @property
    def fingerprint(self) -> str:
        """What tells this store from others."""
        return f"StoreSamples:{len(self)}:{self.store.digest}"


class StackOrList:
    """torch's collate, and a plain list of the samples where they do not stack."""

    def __call__(self, samples: list[Any]) -> Any:
        """Make a batch."""
        try:
            return default_collate(samples)
        except (RuntimeError, TypeError):
            return samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A dataset, made in this process.

    Attributes:
        dataset: The dataset.
        collate_fn: How its batches are made; None for torch's way.
        batch_size: That of the DataLoader it was found in, else None.
        sampler: Its order, where that is none of torch's usual two; only torch's loader takes it.
        worker_init_fn: What its workers begin with.
    """

    dataset: Any
    collate_fn: Callable[[list[Any]], Any] | None = None
    batch_size: int | None = None
    sampler: Iterable[Any] | None = None
    worker_init_fn: Callable[[int], None] | None = None

    def name_of(self, index: int) -> str:
        """Return what the dataset calls a sample, or its number."""
        dataset = self.dataset
        try:
            if callable(key := getattr(dataset, "key", None)):
                return str(key(index))
            for listed in ("samples", "imgs", "files", "paths", "image_paths"):
                entries = getattr(dataset, listed, None)
                if entries is not None and len(entries) == len(dataset):
                    entry = entries[index]
                    entry = entry[0] if isinstance(entry, tuple) and entry else entry
                    if isinstance(entry, str | os.PathLike):
                        return os.fspath(entry)
        except Exception:  # the user's code, asked for something it need not know
            return f"sample {index}"
        return f"sample {index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is diagnosed, and how to make it in any process.

    Attributes:
        kind: "store", "folder", "attribute" (of a module or file), "object", or "pickle" (one in a
            file, in a child process).
        name: For people.
        source: The path, or ``module:attribute``.
        transform: ``module:attribute`` of a transform to give to the dataset.
        value: The object itself, of the kind "object".
    """

    kind: Literal["store", "folder", "attribute", "object", "pickle"]
    name: str
    source: str = ""
    transform: str | None = None
    value: Any = None

    def open(self) -> Opened:
        """Make the dataset in this process.

        Raises:
            OptionError: The user's code failed, or what it made is no dataset.
            SharedDSError: The store or folder cannot be read.
        """
        if self.kind in ("store", "folder"):
            transform = self._transform()
            if self.kind == "store" and "image" not in Store(self.source).fields:
                if transform is not None:
                    raise OptionError(f"{self.name}: a store without images takes no transform")
                return Opened(dataset=StoreSamples(self.source), collate_fn=StackOrList())
            dataset = ImageDataset(self.source, transform=transform)
            return Opened(dataset=dataset, collate_fn=StackOrList())
        opened = _as_dataset(_guarded(self.name, self._found), self.name)
        if self.transform is not None:
            if not hasattr(opened.dataset, "transform"):
                kind = type(opened.dataset).__name__
                raise OptionError(f"--transform: {kind} has no attribute transform to set it on")
            opened.dataset.transform = self._transform()
        return opened

    def recipe(self, folder: Path) -> dict[str, str | None]:
        """Return how to make the dataset in another process, as JSON values.

        Args:
            folder: Where an object goes, as a file.

        Raises:
            OptionError: The object cannot be sent to another process; the text names the part.
        """
        if self.kind != "object":
            return {
                "kind": self.kind,
                "name": self.name,
                "source": self.source,
                "transform": self.transform,
            }
        try:
            data = cloudpickle.dumps(self.value)
        except Exception as error:
            part, reason = explain("dataset", self.value, by_value=True) or ("dataset", str(error))
            raise OptionError(
                f"{part} cannot be sent to a process of its own: {reason}; name the dataset as "
                "'module:attribute' instead, so that it is made anew there"
            ) from error
        path = folder / "dataset.pickle"
        path.write_bytes(data)
        return {
            "kind": "pickle",
            "name": self.name,
            "source": str(path),
            "transform": self.transform,
        }

    def _found(self) -> Any:
        if self.kind == "attribute":
            return _attribute(self.source)
        if self.kind == "pickle":  # written by our own parent process
            return cloudpickle.loads(Path(self.source).read_bytes())
        return self.value

    def _transform(self) -> Any:
        if (source := self.transform) is None:
            return None
        found = _guarded(source, lambda: _attribute(source))
        made = _guarded(source, found) if isinstance(found, type) else found
        if not callable(made):
            raise OptionError(f"--transform {source}: a {type(made).__name__} cannot be called")
        return made


def load_target(target: Any, *, transform: str | None = None) -> Target:
    """Find out what a target is; code of the user is not run before it is opened.

    Args:
        target: The path of a store or of a folder of images; ``"module:attribute"`` or
            ``"file.py:attribute"`` of a dataset, a DataLoader, or a class or function that makes
            one when called without arguments; or such an object itself.
        transform: ``"module:attribute"`` of a transform for it.

    Raises:
        OptionError: It is nothing of these.
        SourceError: There is no such path.
    """
    if transform is not None and ":" not in transform:
        raise OptionError(f"transform={transform!r}: module:attribute is expected")
    if isinstance(target, Target):
        return target if transform is None else replace(target, transform=transform)
    if not isinstance(target, str | os.PathLike):
        name = target.__name__ if hasattr(target, "__name__") else type(target).__name__
        return Target(kind="object", name=str(name), value=target, transform=transform)
    text = os.fspath(target)
    path = absolute_path(text)
    if os.path.isdir(path):
        kind: Literal["store", "folder"] = "store" if holds_store(path) else "folder"
        return Target(kind=kind, name=text, source=path, transform=transform)
    if os.path.exists(path):
        if path.endswith(".py"):
            raise OptionError(f"{text}: which dataset in it? Write {text}:NAME")
        return Target(kind="store", name=text, source=path, transform=transform)
    module, colon, attribute = text.rpartition(":")
    if not colon or not module or not attribute:
        raise SourceError(f"{text}: nothing is there; pass {_EXPECTED}", path=path)
    if module.endswith(".py"):
        module = absolute_path(module)
        if not os.path.isfile(module):
            raise SourceError(f"{module}: no such file; pass {_EXPECTED}", path=module)
    elif "/" in module:
        raise SourceError(f"{text}: nothing is there; pass {_EXPECTED}", path=path)
    source = f"{module}:{attribute}"
    return Target(kind="attribute", name=text, source=source, transform=transform)


# --- the user's code -----------------------------------------------------------------------------


def _guarded(name: str, function: Callable[[], Any]) -> Any:
    """Call what runs the user's code; its failure becomes an error of ours."""
    try:
        return function()
    except SharedDSError:
        raise
    except (Exception, SystemExit) as error:
        places = [
            place
            for place in traceback.extract_tb(error.__traceback__)
            if not place.filename.startswith(_NO_PLACES)
        ]
        where = f" ({places[-1].filename}, line {places[-1].lineno})" if places else ""
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        raise OptionError(f"{name} cannot be made: {text}{where}") from error


def _attribute(source: str) -> Any:
    module_name, _, path = source.rpartition(":")
    module = _module(module_name)
    found: Any = module
    for part in path.split("."):
        if not hasattr(found, part):
            known = [name for name in vars(module) if not name.startswith("_")]
            raise OptionError(
                f"{module_name} has no {path}; it has {', '.join(known[:20]) or 'nothing'}"
            )
        found = getattr(found, part)
    return found


def _module(name: str) -> ModuleType:
    if not name.endswith(".py"):
        if "" not in sys.path and (here := os.getcwd()) not in sys.path:
            sys.path.insert(0, here)  # as for `python -m`
        return importlib.import_module(name)
    folder, stem = os.path.split(name[:-3])
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as for `python file.py`; workers find the module there, too
    loaded = sys.modules.get(stem)
    if loaded is not None and getattr(loaded, "__file__", None) == name:
        return loaded
    is_taken = loaded is not None or stem in sys.stdlib_module_names or not stem.isidentifier()
    own = f"_sharedds_target_{zlib.crc32(name.encode()):08x}" if is_taken else stem
    spec = importlib.util.spec_from_file_location(own, name)
    if spec is None or spec.loader is None:
        raise OptionError(f"{name}: cannot be imported as a module")
    module = sys.modules[own] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(own, None)  # it may have gone by itself
        raise
    if is_taken:  # no worker could import it under its own name
        cloudpickle.register_pickle_by_value(module)
    return module


def _as_dataset(found: Any, name: str) -> Opened:
    made = found
    if isinstance(found, type) or (callable(found) and not _is_dataset(found)):
        made = _guarded(f"{name}()", found)
    if isinstance(made, DataLoader):
        size = made.batch_size
        if size is None:
            raise OptionError(
                f"{name} is a DataLoader without a batch size (batch_size=None, or a batch_sampler "
                "of its own), whose batches cannot be made here; name its dataset instead"
            )
        order = None if isinstance(made.dataset, IterableDataset) else made.sampler
        is_usual = isinstance(order, SequentialSampler | RandomSampler)
        return Opened(
            dataset=made.dataset,
            collate_fn=made.collate_fn,
            batch_size=size,
            sampler=None if is_usual else order,
            worker_init_fn=made.worker_init_fn,
        )
    if not _is_dataset(made):
        raise OptionError(
            f"{name} is a {type(made).__name__}, which is no dataset: one has __getitem__ and "
            "__len__; pass a dataset, or a class or function that makes one without arguments"
        )
    return Opened(dataset=made)


def _is_dataset(found: Any) -> bool:
    if isinstance(found, type):
        return False
    if isinstance(found, IterableDataset | DataLoader):
        return True
    return hasattr(found, "__getitem__") and hasattr(found, "__len__")
