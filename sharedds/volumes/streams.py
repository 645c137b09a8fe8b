"""Voxels in files: mapped where they lie as they are, else unpacked once into a scratch file."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from sharedds.errors import DecodeError, SharedDSError, SourceError, StorageFullError
from sharedds.handles.mapped import map_file
from sharedds.volumes.voxels import Layout, MappedVoxels, as_source

__all__ = [
    "MOST_INFLATED",
    "gunzipped",
    "head_of",
    "is_gzip",
    "mapped_voxels",
    "scratch_file",
    "starts_like_dicom",
    "unpacked_voxels",
    "written_to",
]

MOST_INFLATED = 1032  # no deflate stream grows by more, so a header that promises more is wrong
_PIECE = 1 << 20
_SPARE = 64 << 20  # what may follow the promised voxels in a compressed file, beyond their own size


@contextmanager
def mapped_voxels(path: Path, layout: Layout) -> Iterator[MappedVoxels]:
    """Open the voxels of a file that holds them as they are.

    Raises:
        DecodeError: It is shorter than the layout needs.
        SourceError: It cannot be opened.
    """
    with as_source(str(path)):
        file = map_file(path)
    if file.size < layout.end:
        raise DecodeError(
            f"{path}: is cut short: {layout.end} bytes are expected, {file.size} found; "
            "copy it anew",
            path=str(path),
        )
    voxels = MappedVoxels(file, layout)
    try:
        yield voxels
    finally:
        voxels.close()


@contextmanager
def unpacked_voxels(
    path: Path, pieces: Iterable[bytes], layout: Layout, scratch: Path
) -> Iterator[MappedVoxels]:
    """Write the voxels of unpacked content to a scratch file, map that, and remove it at the end.

    Args:
        path: Where the content comes from, for errors.
        pieces: The whole content from its first byte on; read once, to its end.
        layout: Where the voxels lie in the content.
        scratch: The folder of the scratch file; it needs ``layout.nbytes`` of room.

    Raises:
        DecodeError: The content is damaged, shorter than the layout needs, or far longer.
        SourceError: It cannot be read.
        StorageFullError: There is no room in ``scratch``.
    """
    if not layout.nbytes:
        raise DecodeError(f"{path}: holds no voxels, its shape is {layout.shape}", path=str(path))
    with scratch_file(scratch) as written:
        with open(written, "wb", buffering=0) as file:
            _write(path, pieces, layout, file.fileno(), written)
        with mapped_voxels(written, replace(layout, offset=0)) as voxels:
            yield voxels


@contextmanager
def scratch_file(scratch: Path) -> Iterator[Path]:
    """Make an empty file in a folder, and remove it at the end.

    Raises:
        SourceError: None can be made there.
    """
    try:
        descriptor, name = tempfile.mkstemp(prefix="voxels-", dir=scratch)
    except OSError as error:
        raise SourceError(
            f"{scratch}: no scratch file can be made ({error.strerror})", path=str(scratch)
        ) from error
    os.close(descriptor)
    try:
        yield Path(name)
    finally:
        with suppress(OSError):
            os.unlink(name)


@contextmanager
def written_to(name: Path, what: str) -> Iterator[None]:
    """Say what cannot be unpacked into a scratch file; other errors of this package pass.

    Raises:
        StorageFullError: There is no room.
        SourceError: It cannot be written for another reason.
    """
    try:
        yield
    except SharedDSError:
        raise
    except OSError as error:
        text = f"{name}: {what} cannot be unpacked there ({error.strerror})"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFullError(text, path=str(name)) from error
        raise SourceError(text, path=str(name)) from error


def is_gzip(head: bytes) -> bool:
    """Return whether these first bytes of a file are those of gzip."""
    return head[:3] == b"\x1f\x8b\x08"


def starts_like_dicom(head: bytes) -> bool:
    """Tell whether a file that starts so can be DICOM.

    With the usual preamble, that is certain; old files start at once with their first element,
    which is of group 2 or 8.

    Args:
        head: The first 132 bytes or more.
    """
    if head[128:132] == b"DICM":
        return True
    if len(head) < 16:
        return False
    orders: tuple[Literal["little", "big"], ...] = ("little", "big")
    for order in orders:
        group, element = (int.from_bytes(head[i : i + 2], order) for i in (0, 2))
        explicit = head[4:6].isalpha() and head[4:6].isupper()
        length = int.from_bytes(head[4:8], order)
        short = length <= 1024 and length % 2 == 0
        if group in (2, 8) and element <= 0x100 and (explicit or short):
            return True
    return False


def head_of(path: Path, count: int) -> bytes:
    """Return the first ``count`` bytes of a file, or fewer where it is shorter.

    Raises:
        SourceError: It cannot be read.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for
            raise SourceError(f"{path}: is no file with content", path=str(path))
        with open(path, "rb") as file:
            return file.read(count)
    except SourceError:
        raise
    except OSError as error:
        raise _unreadable(path, error) from error


def gunzipped(path: Path, offset: int = 0) -> Iterator[bytes]:
    """Yield the content of a gzip file in pieces of at most 1 MiB, its checksums checked.

    Several members are one content. What follows the last of them is padding and is passed over.
    A zlib stream is taken for a member too.

    Args:
        path: The file.
        offset: Where the compressed data begins.

    Raises:
        DecodeError: It is cut short or damaged.
        SourceError: It cannot be read.
    """
    member: Any = zlib.decompressobj(47)
    given = 0
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            rest = b""
            while rest or (rest := file.read(_PIECE)):
                if member is None:
                    rest = rest.lstrip(b"\0")
                    if len(rest) < 3:
                        rest += file.read(_PIECE)
                    if not is_gzip(rest):
                        if rest.strip(b"\0"):
                            return
                        rest = b""
                        continue
                    member = zlib.decompressobj(31)
                piece = member.decompress(rest, _PIECE)
                rest = member.unconsumed_tail
                if member.eof:
                    rest, member = member.unused_data, None
                given += len(piece)
                if piece:
                    yield piece
            # All is read, but the last member may still hold what did not fit in a piece.
            while member is not None:
                piece = member.decompress(b"", _PIECE)
                if not piece and not member.eof:
                    raise DecodeError(
                        f"{path}: is cut short: the compressed data ends in the middle, after "
                        f"{given} bytes of content; copy it anew",
                        path=str(path),
                    )
                if member.eof:
                    member = None
                given += len(piece)
                yield piece
    except zlib.error as error:
        reason = str(error).rpartition(": ")[2]
        raise DecodeError(
            f"{path}: the compressed data is damaged ({reason}, after {given} bytes of content); "
            "copy it anew",
            path=str(path),
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _write(path: Path, pieces: Iterable[bytes], layout: Layout, target: int, name: Path) -> None:
    """Write the part of the content that holds the voxels; read the rest too, for its checksum."""
    at = 0
    for piece in pieces:
        part = memoryview(piece)[max(0, layout.offset - at) : max(0, layout.end - at)]
        at += len(piece)
        while part:
            with written_to(name, f"{layout.nbytes:,} bytes of {path}"):
                part = part[os.write(target, part) :]
        if at > 2 * layout.end + _SPARE:
            raise DecodeError(
                f"{path}: unpacks to more than {at} bytes, while its header promises "
                f"{layout.end}; it is damaged or made to harm",
                path=str(path),
            )
    if at < layout.end:
        raise DecodeError(
            f"{path}: is cut short: {layout.end} bytes of content are expected, {at} found",
            path=str(path),
        )


def _unreadable(path: Path, error: OSError) -> SourceError:
    return SourceError(f"{path}: cannot be read ({error.strerror})", path=str(path))
