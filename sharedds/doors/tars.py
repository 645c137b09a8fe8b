"""WebDataset: tar files whose members are samples, those with the same name up to its first dot."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from sharedds.doors.labels import LabelReader, as_number, beside
from sharedds.doors.reading import file_facts, listed
from sharedds.doors.stream import TWICE, Contents, FieldNames, Item, Keys
from sharedds.doors.tar_members import MAX_MEMBERS, TAR_ENDINGS, Group, expand, read_groups
from sharedds.errors import DecodeError, SourceError
from sharedds.text import printable

__all__ = ["WebDataset"]

PICTURES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "jpe", "jfif")
_LABELS = ("cls", "class", "label")
_NUMBERS = ("cls2", "count", "index", "inx", "id")
_TEXTS = ("txt", "text", "caption", "transcript")
_MAX_AXES = 8


class WebDataset:
    """Samples from tar files.

    Args:
        root: A tar, a folder of tars, or a pattern with braces.
        classes: Names for the numbers in ``.cls``; ``classes.txt`` beside the tars serves as well.
    """

    format = "webdataset"

    def __init__(self, root: str, *, classes: Sequence[str] | None = None) -> None:
        self.root = root
        if os.path.isdir(root):
            self._shards = listed(root, *TAR_ENDINGS)
        else:
            self._shards = expand(root)
        if not self._shards:
            raise SourceError(f"{printable(root)}: no tar files in it", path=root)
        self._files = [file_facts(path) for path in self._shards]
        self._labels = LabelReader(classes)
        folder = root if os.path.isdir(root) else os.path.dirname(root)
        self._names = beside(folder) if classes is None else None
        self._fields: dict[str, tuple[str, str]] = {}  # suffix: field and kind
        self._by_shard, self._keys = False, Keys()

    def look(self, advance: Callable[[int], object]) -> Contents:
        """Go through the headers of all members once, and read the labels."""
        seen = _Seen()
        damage: DecodeError | None = None
        for path in self._shards:
            try:
                for group in read_groups(path, wanted=_is_small, passed=seen.pass_over):
                    seen.add(group, self._labels, _stem(path))
                    advance(1)
            except DecodeError as error:  # told again when it is read
                damage = damage or error
        if damage is not None and not seen.counts:
            raise damage
        if seen.small_names and self._names is not None:
            self._labels.classes = self._names
        self._labels.settle(self.root)
        self._by_shard = bool(seen.keys.twice())
        self._keys = seen.longer if self._by_shard else seen.keys
        pictures = self._name_fields(seen)
        fields = {name: kind for name, kind in self._fields.values() if name not in pictures}
        return Contents(
            pictures=pictures,
            fields=fields,
            classes=self._labels.classes,
            samples=len(seen.keys),
            nbytes=seen.nbytes,
            files=tuple(self._files),
            notes=self._notes(seen),
            attrs={"suffixes": {name: suffix for suffix, (name, _) in self._fields.items()}},
            passed_over=[(why, example, n) for why, (example, n) in seen.passed_over.items()],
        )

    def items(self) -> Iterator[Item]:
        """Yield the samples, tar by tar."""
        self._keys.start()
        for path in self._shards:
            before = f"{_stem(path)}/" if self._by_shard else ""
            try:
                for group in read_groups(path):
                    yield self._item(group, before)
            except DecodeError as error:  # samples before the damage are whole
                yield Item(key=path, reason=str(error))

    def _notes(self, seen: _Seen) -> list[str]:
        notes = []
        if self._by_shard:
            notes.append("keys occur in several tars; the name of the tar is put before each")
        for suffix, (_, kind) in self._fields.items():
            missing = len(seen.keys) - seen.counts[suffix]
            if missing and kind in ("str", "bytes", "json"):
                notes.append(f"{missing:,} samples have no .{suffix}; it is empty there")
        return notes

    def _name_fields(self, seen: _Seen) -> tuple[str, ...]:
        """Decide which suffix becomes which field; return the picture fields."""
        names = FieldNames()
        shown = [s for s in seen.counts if s.rpartition(".")[2] in PICTURES]
        plain = [s for s in shown if "." not in s]
        if not shown:
            raise SourceError(
                f"{printable(self.root)}: no pictures among its members; they end in "
                f"{', '.join(sorted(seen.counts)[:8]) or 'nothing'}",
                path=self.root,
            )
        order = {suffix: at for at, suffix in enumerate(PICTURES)}
        plain.sort(key=lambda s: (-seen.counts[s], order[s]))
        first = plain if plain and not seen.together else plain[:1]
        if not plain:
            first = [min(shown, key=lambda s: (not s.startswith(("image.", "img.", "input.")), s))]
        for suffix in first:
            self._fields[suffix] = ("image", "keep")
        pictures = ["image"]
        label = next((suffix for suffix in _LABELS if suffix in seen.counts), "")
        for suffix in sorted(seen.counts):
            if suffix in first:
                continue
            base, _, last = suffix.rpartition(".")
            if last in PICTURES:
                name = names.give(base if base and not _repeats(base, shown) else suffix)
                self._fields[suffix] = (name, "keep")
                pictures.append(name)
            elif suffix == label and self._labels.kind:
                self._fields[suffix] = ("label", self._labels.kind)
            else:
                short = base if base and not _repeats(base, list(seen.counts)) else suffix
                self._fields[suffix] = (names.give(short), self._kind(suffix, last, seen))
        return tuple(pictures)

    def _kind(self, suffix: str, last: str, seen: _Seen) -> str:
        if last == "json":
            return "json"
        if last in _NUMBERS:
            every = seen.whole[suffix] == len(seen.keys)
            return "int64" if every else "str"
        if last == "npy" and len(seen.arrays[suffix]) == 1 and "" not in seen.arrays[suffix]:
            return next(iter(seen.arrays[suffix])).split()[0]
        return "str" if last in (*_TEXTS, *_LABELS) else "bytes"

    def _item(self, group: Group, before: str) -> Item:
        pictures: dict[str, bytes | str | None] = {}
        values: dict[str, Any] = {}
        main = ""
        problem = group.problem
        for suffix, (name, kind) in self._fields.items():
            data = group.data.get(suffix)
            if kind == "keep":
                if data is not None or name not in pictures:
                    pictures[name] = data
                if data is not None and name == "image":
                    main = suffix
                continue
            try:
                values[name] = self._value(suffix, name, kind, data)
            except (
                ValueError,
                EOFError,
                MemoryError,
                RecursionError,
                msgspec.MsgspecError,
            ) as error:
                problem = problem or f"its .{suffix} {_why(kind, data, error)}"
        key = f"{before}{group.key}.{group.written[main]}" if main else f"{before}{group.key}"
        if self._keys.again(f"{before}{group.key}"):
            problem = problem or TWICE
        if not main:
            problem = problem or "no picture among its members"
        return Item(key=key, pictures=pictures, values=values, nbytes=group.nbytes, reason=problem)

    def _value(self, suffix: str, name: str, kind: str, data: bytes | None) -> Any:
        if name == "label":
            if data is None:
                raise ValueError("missing")
            return self._labels.value(data.decode().strip())
        if kind == "int64":
            return int((data or b"").decode().strip())
        if kind.startswith("array:"):
            return _array(data)
        if kind == "json":
            return None if data is None else msgspec.json.decode(data)
        return (data or b"") if kind == "bytes" else (data or b"").decode()


class _Seen:
    """What the first pass finds: which suffixes there are, how often, and whether keys repeat."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.whole: Counter[str] = Counter()
        self.keys, self.longer = Keys(), Keys()
        self.arrays: dict[str, set[str]] = {}
        self.nbytes = 0
        self.together = False
        self.small_names = True
        self.passed_over: dict[str, tuple[str, int]] = {}

    def add(self, group: Group, labels: LabelReader, shard: str) -> None:
        """Take notice of a sample."""
        self.keys.see(group.key)
        self.longer.see(f"{shard}/{group.key}")
        self.nbytes += group.nbytes
        self.counts.update(list(group.data))
        if len(self.counts) > MAX_MEMBERS:
            raise SourceError(
                f"over {MAX_MEMBERS} different endings, such as .{group.data.popitem()[0]}: "
                "these tars do not hold samples as WebDataset names them"
            )
        self.together |= sum(suffix in PICTURES for suffix in group.data) > 1
        label = next((suffix for suffix in _LABELS if suffix in group.data), "")
        for suffix, data in group.data.items():
            text = "" if data is None else data.decode("utf-8", "replace").strip()
            if suffix == label and data is not None:
                labels.see(text)
                self.small_names &= as_number(text) is not None
            elif suffix.rpartition(".")[2] == "npy":
                self.arrays.setdefault(suffix, set()).add(_kind_of_array(data))
            elif suffix.rpartition(".")[2] in _NUMBERS:
                self.whole[suffix] += as_number(text) is not None

    def pass_over(self, why: str, example: str) -> None:
        """Count a member that belongs to no sample."""
        first, count = self.passed_over.get(why, (example, 0))
        self.passed_over[why] = (first, count + 1)


def _repeats(base: str, suffixes: Sequence[str]) -> bool:
    return sum(suffix.rpartition(".")[0] == base for suffix in suffixes) > 1


def _why(kind: str, data: bytes | None, error: Exception) -> str:
    if data is None:
        return "is missing"
    return {"str": "is not UTF-8"}.get(kind, f"does not hold {kind} ({error})")


def _array(data: bytes | None) -> npt.NDArray[Any]:
    """Return the array in a ``.npy`` member; objects in it are never unpickled."""
    if data is None:
        raise ValueError("missing")
    array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    return np.asarray(array)


def _kind_of_array(data: bytes | None) -> str:
    """Return the kind of field, and the number of axes, for a small array; empty for others."""
    try:
        array = _array(data)
        dtype = array.dtype.newbyteorder("=")
        known = dtype.kind in "biuf" and dtype.itemsize <= 8 and 1 <= array.ndim <= _MAX_AXES
        return f"array:{dtype} {array.ndim}" if known else ""
    except (ValueError, EOFError, MemoryError):
        return ""


def _stem(path: str) -> str:
    return os.path.basename(path).split(".")[0]


def _is_small(name: str) -> bool:
    suffix = os.path.basename(name).partition(".")[2].lower()
    return suffix.rpartition(".")[2] in (*_LABELS, *_NUMBERS, "npy")
