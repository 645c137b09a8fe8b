"""What to write instead, as code, for each kind of hazard."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch

from sharedds.diagnose.containers import first_items, is_a, is_exactly, is_object_array

__all__ = ["fix_of"]

_FUNCTION = """\
def transform(image):    # at the top of a module
    ...
# or keep it, and let sharedds send it by value:
loader = sharedds.build_loader(dataset, ...)"""

_RANDOM = """\
# seeds {name} anew for each sample:
loader = sharedds.build_loader(dataset, seed=0, ...)
# or, in a sharedds.LazyDataset, draw from the stream of the sample:
shift = self.rng.integers(0, 32)"""

_CACHE = """\
@functools.lru_cache(maxsize=128)        # a limit, for each worker
# or, for what is opened once in each process:
@sharedds.per_process"""

_TABLE = """\
class Rows(sharedds.LazyDataset):        # rows packed in one file
    def __init__(self, table):
        super().__init__({rows})

    def load(self, row):
        ..."""

_ARROW = """\
with pa.OSFile("{name}.arrow", "wb") as file:       # once
    with pa.ipc.new_file(file, {name}.schema) as out:
        out.write({name})

@sharedds.per_process                    # mapped, not copied
def {name}(self):
    return pa.ipc.open_file(pa.memory_map("{name}.arrow")).read_all()"""

_RECORDS = """\
class Samples(sharedds.LazyDataset):     # items packed in one file
    def __init__(self, items):
        super().__init__(items)          # was: self.{name} = items

    def load(self, item):
        ..."""

_MAPPING = """\
class Samples(sharedds.LazyDataset):     # items packed in one file
    def __init__(self, items):           # was: self.{name} = items
        super().__init__(list(items.items()))

    def load(self, item):
        key, value = item
        ..."""

_STRINGS = "{place} = sharedds.PackedStrings.build({name})"
_ROWS = "{place} = sharedds.RaggedArray.build({name}, dtype=np.{dtype})"
_NUMBERS = "{place} = np.asarray({name})"

_ARRAY = """\
np.save("{name}.npy", {name})            # once

@sharedds.per_process                    # mapped, not copied
def {name}(self):
    return np.load("{name}.npy", mmap_mode="r")"""

_ARRAYS = """\
for i, array in enumerate({name}):       # once
    np.save(f"{name}/{{i:06d}}.npy", array)
# then map them, when they are read:
files = sorted(Path("{name}").glob("*.npy"))
dataset = sharedds.MemmapDataset(files, per_file=True)"""

_IMAGES = """\
class Images(sharedds.LazyDataset):      # keep paths, decode when asked
    def load(self, path):
        return transform(Image.open(path).convert("RGB"))
# or pack them once, decoded, for all workers together:
#   sharedds pack images/ images.lmdb --codec raw --size 224x224
dataset = sharedds.ImageDataset("images.lmdb")"""

_HANDLE = """\
@sharedds.per_process                    # opened by each process
def {name}(self):
    return {opens}"""

_LOCK = """\
@sharedds.per_process                    # made by each process
def {name}(self):
    return {makes}"""

_ITERATOR = "{place} = sharedds.PackedStrings.build({name})   # read by number"

_DEVICE = """\
self.{name} = ...                        # keep it on the CPU
for batch in loader:                     # and move batches, in the trainer
    batch = batch.to(device, non_blocking=True)"""

_START = """\
# shows the failure: what a worker does with the dataset, in this process
import pickle
dataset = pickle.loads(pickle.dumps(dataset))
dataset[0]"""

_LARGE = """\
# once; a sample then reads the tiles that it shows, at the resolution asked for:
#   sharedds pack {folder} slides.lmdb --kind slide
dataset = sharedds.SlideDataset(
    "slides.lmdb", patch=sharedds.UniformPatches(512, per_case=100)
)"""

_GROWTH = """\
# Keep nothing from one sample to the next, or keep a bounded number:
@functools.lru_cache(maxsize=128)"""


def fix_of(kind: str, path: str, about: Any = None) -> str:
    """Return code that avoids a hazard.

    Args:
        kind: Of the hazard.
        path: Where it is; its last name is used in the code.
        about: The object, or for handles and locks the expression that makes it; for large
            pictures the folder of them, as a shell reads it.
    """
    name = _last_name(path)
    if kind == "handle":
        return _HANDLE.format(
            name=name, opens=about or "...                          # open it here"
        )
    if kind == "lock":
        return _LOCK.format(name=name, makes=about or "threading.Lock()")
    if kind == "objects":
        return _of_objects(path, about)
    if kind == "large":
        return _LARGE.format(folder=about)
    if kind == "table":
        return _of_table(about).replace("{name}", name)
    if kind == "array":
        template = _ARRAY if is_a(about, (np.ndarray, torch.Tensor)) else _ARRAYS
        return template.format(name=name)
    texts = {
        "cache": _CACHE,
        "function": _FUNCTION,
        "growth": _GROWTH,
        "images": _IMAGES,
        "iterator": _ITERATOR,
        "device": _DEVICE,
        "start": _START,
        "random": _RANDOM,
    }
    return texts[kind].replace("{name}", name).replace("{place}", _place(path))


def _of_objects(path: str, obj: Any) -> str:
    name, place = _last_name(path), _place(path)
    is_sequence = is_object_array(obj) or is_a(obj, (list, tuple))
    items = first_items(obj, 100) if is_sequence else []
    if _all_are(items, str):
        return _STRINGS.format(name=name, place=place)
    if _all_are(items, int, float, bool):
        return _NUMBERS.format(name=name, place=place)
    if _all_are(items, list, tuple):
        inner = [part for item in items for part in item]
        if _all_are(inner, int, float):
            dtype = "float64" if any(type(part) is float for part in inner) else "int64"
            return _ROWS.format(name=name, place=place, dtype=dtype)
    return (_MAPPING if is_a(obj, dict) else _RECORDS).format(name=name)


def _of_table(table: Any) -> str:
    package = type(table).__module__.partition(".")[0]
    if package == "pyarrow":
        return _ARROW
    rows = "table.rows()" if package == "polars" else "table.itertuples(index=False, name=None)"
    return _TABLE.replace("{rows}", rows)


def _all_are(items: list[Any], *kinds: type) -> bool:
    """Whether there are items, all of some classes; a class of the user's is never compared."""
    return bool(items) and all(is_exactly(item, *kinds) for item in items)


def _last_name(path: str) -> str:
    """Return the last name of a path as an identifier: of a key, a variable or an attribute."""
    quoted = re.findall(r"'([A-Za-z_]\w*)'", path)
    names = quoted or re.findall(r"[A-Za-z_]\w*", path.rpartition(".")[2] or path)
    return names[-1].lstrip("_") if names and names[-1].strip("_") else "data"


def _place(path: str) -> str:
    """Return how the dataset itself writes a path."""
    is_own = path.startswith("dataset.") and " -> " not in path and "[...]" not in path
    return f"self.{path[8:]}" if is_own else f"self.{_last_name(path)}"
