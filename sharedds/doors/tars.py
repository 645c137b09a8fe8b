"""WebDataset: tar files whose members are samples, those with the same name up to its first dot.

Nothing is ever unpacked to a path: members are read, and their names are keys. Members are seen one
after another, so that a tar of any number of them takes the same memory.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from sharedds.doors.labels import LabelReader, as_number, beside
from sharedds.doors.reading import Bounded, file_facts, listed, reading
from sharedds.doors.stream import TWICE, Contents, FieldNames, Item, Keys
from sharedds.errors import DecodeError, OptionError, SourceError
from sharedds.text import printable

__all__ = ["TAR_ENDINGS", "WebDataset", "expand"]

TAR_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
PICTURES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "jpe", "jfif")
_LABELS = ("cls", "class", "label")
_NUMBERS = ("cls2", "count", "index", "inx", "id")
_TEXTS = ("txt", "text", "caption", "transcript")
_MAX_SMALL = 1 << 20
_MAX_MEMBER = (1 << 32) - 1
_MAX_SUFFIXES = 200
_MAX_AXES = 8
_BRACES = re.compile(r"\{([0-9]+)\.\.([0-9]+)\}|\{([^{}]*,[^{}]*)\}")
_MAX_SHARDS = 1_000_000


def expand(pattern: str) -> list[str]:
    """Return the paths that a pattern such as ``train-{0000..0099}.tar`` stands for, in order.

    Raises:
        OptionError: They would be over a million.
    """
    found = _BRACES.search(pattern)
    if found is None:
        return [pattern]
    if found[3] is not None:
        words = found[3].split(",")
    else:
        first, last, width = int(found[1]), int(found[2]), len(found[1])
        if not 0 <= last - first < _MAX_SHARDS:
            raise OptionError(f"{printable(pattern)}: from {first} to {last} are no shards")
        words = [f"{number:0{width}}" for number in range(first, last + 1)]
    rest = expand(pattern[found.end() :])
    if len(words) * len(rest) > _MAX_SHARDS:
        raise OptionError(f"{printable(pattern)}: over {_MAX_SHARDS:,} shards")
    return [f"{pattern[: found.start()]}{word}{end}" for word in words for end in rest]


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
                for group in self._groups(path, seen.pass_over):
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
                for group in self._groups(path, None, read=True):
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

    def _item(self, group: _Group, before: str) -> Item:
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
        key = f"{before}{group.key}.{main}" if main else f"{before}{group.key}"
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

    def _groups(
        self, path: str, passed: Callable[[str, str], object] | None, *, read: bool = False
    ) -> Iterator[_Group]:
        """Yield the samples of one tar; members beyond ``small`` ones are read only if wanted."""
        group = _Group("")
        for member, data in self._members(path, passed, read=read):
            name = member.name.removeprefix("./")
            folder, slash, base = name.rpartition("/")
            stem, _, suffix = base.partition(".")
            key = f"{folder}{slash}{stem}"
            if key != group.key or not group.data:
                if group.data:
                    yield group
                group = _Group(key)
            group.add(suffix.lower(), data, member.size)
        if group.data:
            yield group

    def _members(
        self, path: str, passed: Callable[[str, str], object] | None, *, read: bool
    ) -> Iterator[tuple[tarfile.TarInfo, bytes | None]]:
        with reading(path), open(path, "rb") as raw:
            plain = _is_plain(raw)
            file: Any = Bounded(raw, os.fstat(raw.fileno()).st_size) if plain else raw
            try:
                with tarfile.open(fileobj=file, mode="r:" if plain else "r|*") as tar:
                    while (member := tar.next()) is not None:
                        tar.members.clear()  # type: ignore[attr-defined] # else it keeps them all
                        why = _passed_over(member)
                        if why:
                            if passed is not None:
                                passed(why, f"{path}/{member.name}")
                            continue
                        small = member.size <= _MAX_SMALL and not read
                        wanted = read or (small and _is_small(member.name))
                        yield member, _read(tar, member) if wanted else None
                    if plain and tar.offset >= os.fstat(raw.fileno()).st_size:
                        raise tarfile.ReadError("it has no end mark, so it may be cut")
            except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
                raise DecodeError(
                    f"{printable(path)}: a damaged tar ({error})",
                    path=path,
                ) from error


class _Group:
    """The members of one sample."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.data: dict[str, bytes | None] = {}
        self.nbytes = 0
        self.problem = ""

    def add(self, suffix: str, data: bytes | None, size: int) -> None:
        """Take one more member."""
        if suffix in self.data:
            self.problem = f"two members end in .{suffix}"
        self.data[suffix] = data
        self.nbytes += size


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

    def add(self, group: _Group, labels: LabelReader, shard: str) -> None:
        """Take notice of a sample."""
        self.keys.see(group.key)
        self.longer.see(f"{shard}/{group.key}")
        self.nbytes += group.nbytes
        self.counts.update(list(group.data))
        if len(self.counts) > _MAX_SUFFIXES:
            raise SourceError(
                f"over {_MAX_SUFFIXES} different endings, such as .{group.data.popitem()[0]}: "
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


def _is_plain(file: Any) -> bool:
    """Whether a file is a tar without compression; leaves it at its start."""
    head = file.read(512)
    file.seek(0)
    return len(head) < 512 or head[257:262] == b"ustar" or not head.startswith(
        (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0")
    )  # fmt: skip


def _is_small(name: str) -> bool:
    suffix = os.path.basename(name).partition(".")[2].lower()
    return suffix.rpartition(".")[2] in (*_LABELS, *_NUMBERS, "npy")


def _passed_over(member: tarfile.TarInfo) -> str:
    """Return why a member belongs to no sample; empty where it does."""
    if member.isdir():
        return "folders"
    base = os.path.basename(member.name)
    if not member.isreg() or member.issparse():
        return "links, devices and sparse files"
    if base.startswith((".", "__")) or "." not in base:
        return "hidden files and files without an ending"
    return "" if member.size <= _MAX_MEMBER else "files of 4 GiB and more"


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    data = b"" if file is None else file.read()  # piece by piece, whatever the header claims
    if len(data) != member.size:
        raise tarfile.ReadError(f"{printable(member.name)} is cut off")
    return data
