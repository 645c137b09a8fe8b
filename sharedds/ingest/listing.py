"""The files of a folder that is looked through file by file: in order, with what cannot be read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

import xxhash

from sharedds.errors import SharedDSError, SourceError
from sharedds.folder.names import hidden_reason
from sharedds.packed import encode_text
from sharedds.text import printable

__all__ = ["Listing", "files_of", "in_order", "names_of", "reason_of", "without_root"]


@dataclass(slots=True, kw_only=True)
class Listing:
    """What was seen of a folder; each kind adds what it found there.

    Attributes:
        root: The folder, absolute.
        files: How many files were seen.
        bad: (path, reason, relative paths of its files) of what should be packed and cannot be.
        left_out: (kind, reason, path, count) of other files; 0 for a folder.
        fingerprint: 32 hex digits that change when a path, size or time changes.
    """

    root: str
    files: int = 0
    bad: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)
    left_out: list[tuple[str, str, str, int]] = field(default_factory=list)
    fingerprint: str = ""


def names_of(listing: Listing, *, include_hidden: bool) -> Iterator[str]:
    """Yield the relative path of every file in order; links are followed, loops are not.

    Raises:
        SourceError: The root cannot be listed.
    """
    stack: list[tuple[str, tuple[str, ...]]] = [("", (os.path.realpath(listing.root),))]
    while stack:
        folder, above = stack.pop()
        place = os.path.join(listing.root, folder)
        try:
            with os.scandir(place) as entries:
                names = sorted((entry.name, entry.is_dir()) for entry in entries)
        except OSError as error:
            reason = f"cannot be listed ({error.strerror})"
            if isinstance(error, NotADirectoryError):
                reason = "this is a file; give the folder that holds the volumes"
            if not folder:
                text = f"{printable(listing.root)}: {reason}"
                raise SourceError(text, path=listing.root) from error
            listing.left_out.append(("folder", reason, folder, 0))
            continue
        below: list[tuple[str, tuple[str, ...]]] = []
        for name, is_folder in names:
            path = f"{folder}/{name}".lstrip("/")
            hidden = hidden_reason(encode_text(name), include_hidden=include_hidden)
            if hidden:
                listing.left_out.append(("hidden", hidden, path, 0 if is_folder else 1))
            elif not is_folder:
                yield path
            else:
                real = os.path.realpath(os.path.join(place, name))
                if real in above:
                    reason = "leads back to a folder above it"
                    listing.left_out.append(("folder", reason, path, 0))
                else:
                    below.append((path, (*above, real)))
        stack += reversed(below)


def files_of(listing: Listing, *, include_hidden: bool) -> list[tuple[str, int, int]]:
    """Return (path, size, time of the last change) of each regular file, in order of the paths.

    How many files there are, and the fingerprint of them, is noted in the listing.

    Raises:
        SourceError: The root cannot be listed.
    """
    files = []
    for path in names_of(listing, include_hidden=include_hidden):
        try:
            status = os.stat(os.path.join(listing.root, path))
        except OSError as error:
            listing.bad.append((path, f"cannot be examined ({error.strerror})", (path,)))
            continue
        if stat.S_ISREG(status.st_mode):
            files.append((path, status.st_size, status.st_mtime_ns))
        else:
            listing.left_out.append(("file", "not a regular file", path, 1))
    files.sort(key=lambda file: in_order(file[0]))
    listing.files = len(files) + len(listing.bad)
    listing.files += sum(count for _, _, _, count in listing.left_out)
    digest = xxhash.xxh3_128()
    for path, size, mtime in files:
        digest.update(b"%s\0%d %d\n" % (encode_text(path), size, mtime))
    listing.fingerprint = digest.hexdigest()
    return files


def in_order(name: str) -> tuple[bytes, ...]:
    """Return what names are sorted by: their parts, as bytes."""
    return tuple(encode_text(part) for part in name.split("/"))


def reason_of(error: BaseException, root: str, path: str = "") -> str:
    """Return why something failed, without the place of the folder, nor the name said before."""
    strerror = getattr(error, "strerror", None) if not isinstance(error, SharedDSError) else None
    return without_root(str(strerror or error), root).removeprefix(f"{path}: ")


def without_root(text: str, root: str) -> str:
    """Return a text without the place of the folder: reports are passed on."""
    for place in (root, os.path.realpath(root)):
        text = text.replace(place.rstrip("/") + "/", "").replace(place, "the folder")
    return text
