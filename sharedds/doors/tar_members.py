"""Tars member by member, and members that belong together.

Nothing is ever unpacked to a path: members are read, and their names are keys. Members are seen one
after another, so that a tar of any number of them takes the same memory.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

from sharedds.doors.reading import Bounded, reading
from sharedds.errors import DecodeError, OptionError, SourceError
from sharedds.text import printable

__all__ = ["MAX_MEMBERS", "TAR_ENDINGS", "Group", "expand", "read_groups"]

TAR_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
MAX_MEMBERS = 200
"""So many different endings may the members of samples have."""

_BRACES = re.compile(r"\{([0-9]+)\.\.([0-9]+)\}|\{([^{}]*,[^{}]*)\}")
_MAX_SHARDS = 1_000_000
_MAX_SMALL = 1 << 20
_MAX_MEMBER = (1 << 32) - 1
_MAX_HEADER = 1 << 20
_DAMAGE = (
    *(tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError),
    *(EOFError, ValueError, OverflowError),
)
_OPENERS: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
}


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


class Group:
    """The members of one sample.

    Attributes:
        key: What their names have in common.
        data: Of each ending, in small letters, the bytes; None where they were not read.
        written: The endings as they are written.
        nbytes: Of all members.
        problem: What is wrong with them; mostly empty.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.data: dict[str, bytes | None] = {}
        self.written: dict[str, str] = {}
        self.nbytes = 0
        self.problem = ""

    def add(self, written: str, data: bytes | None, size: int) -> None:
        """Take one more member.

        Raises:
            SourceError: There are too many for one sample.
        """
        suffix = written.lower()
        if suffix in self.data:
            self.problem = f"two members end in .{suffix}"
        if len(self.data) > MAX_MEMBERS:
            raise SourceError(
                f"over {MAX_MEMBERS} members belong to {printable(self.key)}: these tars do not "
                "hold samples as WebDataset names them"
            )
        self.data[suffix], self.written[suffix] = data, written
        self.nbytes += size


def read_groups(
    path: str,
    *,
    wanted: Callable[[str], bool] | None = None,
    passed: Callable[[str, str], object] | None = None,
) -> Iterator[Group]:
    """Yield the samples of one tar.

    Args:
        path: Of it.
        wanted: Says by its name whether a small member is read; None reads all.
        passed: Told (reason, name) of members that belong to no sample.

    Raises:
        DecodeError: It is damaged; samples before the damage were given.
        SourceError: It cannot be read.
    """
    group = Group("")
    for member, data in _members(path, wanted, passed):
        name = member.name.removeprefix("./")
        folder, slash, base = name.rpartition("/")
        stem, _, suffix = base.partition(".")
        key = f"{folder}{slash}{stem}"
        if key != group.key or not group.data:
            if group.data:
                yield group
            group = Group(key)
        group.add(suffix, data, member.size)
    if group.data:
        yield group


def _members(
    path: str, wanted: Callable[[str], bool] | None, passed: Callable[[str, str], object] | None
) -> Iterator[tuple[tarfile.TarInfo, bytes | None]]:
    with reading(path), open(path, "rb") as raw:
        size = os.fstat(raw.fileno()).st_size
        opener = _opener(raw)
        # Compressed ones are read forwards only, so that going to a place costs nothing more.
        file = Bounded(raw, size) if opener is None else Bounded(opener(raw), 1 << 62)
        file.most = _MAX_HEADER  # opening reads the first header
        try:
            with tarfile.open(fileobj=file, mode="r:") as tar:  # type: ignore[call-overload]
                while (member := _next(tar, file)) is not None:
                    tar.members.clear()  # else it keeps them all
                    why = _passed_over(member)
                    if why:
                        if passed is not None:
                            passed(why, f"{path}/{member.name}")
                        continue
                    small = member.size <= _MAX_SMALL
                    read = wanted is None or (small and wanted(member.name))
                    yield member, _read(tar, member) if read else None
                if opener is None and tar.offset >= size:
                    raise tarfile.ReadError("it has no end mark, so it may be cut")
        except _DAMAGE as error:
            raise DecodeError(f"{printable(path)}: a damaged tar ({error})", path=path) from error


def _next(tar: tarfile.TarFile, file: Bounded) -> tarfile.TarInfo | None:
    """Return the next member; what stands before it may claim any size, and is not believed."""
    file.most = _MAX_HEADER
    try:
        return tar.next()
    finally:
        file.most = None


def _opener(file: IO[bytes]) -> Callable[[Any], Any] | None:
    """Return what decompresses a file, None for a plain one; leaves it at its start."""
    head = file.read(512)
    file.seek(0)
    if head[257:262] == b"ustar":
        return None
    return next((opener for magic, opener in _OPENERS.items() if head.startswith(magic)), None)


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
