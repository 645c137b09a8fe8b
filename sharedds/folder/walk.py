"""A sorted walk over a folder: one listing of each folder, one stat of each file, bounded memory.

The order is that of the paths' components, compared as bytes: it does not depend on the file
system, the locale or the machine. Folders that hold millions of names are sorted in runs, each
packed into one bytes object, and merged; nothing here grows by a Python object for each name.
"""

from __future__ import annotations

import dataclasses
import errno
import heapq
import os
import stat
from collections.abc import Callable, Iterator
from typing import NamedTuple

from sharedds.errors import SourceError
from sharedds.folder.left_out import LeftOutList
from sharedds.folder.names import IMAGE_EXTENSIONS, extension, hidden_reason

__all__ = ["File", "Folder", "Walker"]

RUN_SIZE = 65_536
"""So many names of one folder are sorted at a time."""

PROGRESS_STEP = 1_000
"""Progress is told each time so many files were seen."""

# An entry is its name, a NUL, and one letter for its type. NUL is below every byte of a name, so
# entries sort as their names do. No name holds "/", so that joins the entries of a run.
_FILE, _FOLDER, _LINK, _OTHER = b"\0f", b"\0d", b"\0l", b"\0o"


@dataclasses.dataclass(slots=True, eq=False)
class Folder:
    """A folder being walked.

    Attributes:
        path: Its path relative to the root with a ``/`` at the end; empty for the root.
        parent: The folder it lies in; None for the root.
        linked: It, or one above it, was reached through a link.
        identity: (device, inode) of what it really is, once that was asked.
    """

    path: bytes = b""
    parent: Folder | None = None
    linked: bool = False
    identity: tuple[int, int] | None = None


class File(NamedTuple):
    """A file that may be a picture.

    Attributes:
        folder: The folder it lies in.
        path: Its path relative to the root.
        size: Bytes.
        mtime: Time of the last change, in nanoseconds.
    """

    folder: Folder
    path: bytes
    size: int
    mtime: int


class Walker:
    """Walks a folder and all below it; links are followed, loops are not.

    Args:
        root: An absolute path.
        left_out: Takes everything that is not yielded, with its reason.
        include_hidden: Let names that start with a dot count.
        progress: Called with the number of files seen, every 1,000 files and at the end, and with
            an unchanged number while a large folder is being listed.

    Attributes:
        files: Files seen so far: every entry that is not a folder.
    """

    def __init__(
        self,
        root: bytes,
        *,
        left_out: LeftOutList,
        include_hidden: bool = False,
        progress: Callable[[int], object] | None = None,
    ) -> None:
        self.files = 0
        self._base = root if root.endswith(b"/") else root + b"/"
        self._left_out = left_out
        self._include_hidden = include_hidden
        self._progress = progress

    def walk(self) -> Iterator[Folder | File]:
        """Yield every folder before what lies in it, and every file that may be a picture.

        Raises:
            SourceError: The root cannot be listed.
        """
        root = Folder()
        try:
            # A stack, since folders may be nested deeper than Python calls may be.
            stack = [(root, self._entries(root))]
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            raise _root_error(os.fsdecode(self._base.rstrip(b"/") or b"/"), error) from error
        yield root
        while stack:
            folder, entries = stack[-1]
            entered = None
            for entry in entries:
                found = self._visit(folder, entry)
                if isinstance(found, Folder):
                    entered = found
                    break
                if found is not None:
                    yield found
            if entered is None:
                stack.pop()
                continue
            yield entered
            try:
                stack.append((entered, self._entries(entered)))
            except OSError as error:
                reason = f"cannot be listed ({error.strerror})"
                self._left_out.add("bad", reason, entered.path[:-1], is_folder=True)
        if self._progress is not None and self.files % PROGRESS_STEP:
            self._progress(self.files)

    def _entries(self, folder: Folder) -> Iterator[bytes]:
        """List a folder once; return its entries in sorted order."""
        runs: list[bytes] = []
        names: list[bytes] = []
        with os.scandir(self._base + folder.path) as listing:
            for entry in listing:
                if entry.is_file(follow_symlinks=False):
                    kind = _FILE
                elif entry.is_dir(follow_symlinks=False):
                    kind = _FOLDER
                else:
                    kind = _LINK if entry.is_symlink() else _OTHER
                names.append(entry.name + kind)
                if len(names) >= RUN_SIZE:
                    names.sort()
                    runs.append(b"/".join(names))
                    names.clear()
                    if self._progress is not None:
                        self._progress(self.files)
        names.sort()
        if not runs:
            return iter(names)
        return heapq.merge(*map(_unpack, runs), names)

    def _visit(self, folder: Folder, entry: bytes) -> Folder | File | None:
        """Judge one entry: a folder to enter, a file to yield, or None when it is left out."""
        name, kind = entry[:-2], entry[-2:]
        path = folder.path + name
        status: os.stat_result | None = None
        failure: OSError | None = None
        if kind == _LINK:
            try:
                status = os.stat(self._base + path)
            except OSError as error:
                failure = error
        if kind == _FOLDER or (status is not None and stat.S_ISDIR(status.st_mode)):
            return self._visit_folder(folder, name, status)
        self.files += 1
        if self._progress is not None and self.files % PROGRESS_STEP == 0:
            self._progress(self.files)
        if hidden := hidden_reason(name, include_hidden=self._include_hidden):
            self._left_out.add("hidden", hidden, path)
            return None
        suffix = extension(name)
        if suffix and suffix not in IMAGE_EXTENSIONS:
            text = suffix.decode("utf-8", "surrogateescape")
            self._left_out.add("extension", text, path)
            return None
        if kind == _FILE:
            try:
                status = os.stat(self._base + path)
            except OSError as error:
                failure = error
        if failure is not None:
            self._left_out.add("bad", _stat_reason(failure, is_link=kind == _LINK), path)
        elif status is None or not stat.S_ISREG(status.st_mode):
            self._left_out.add("bad", "not a regular file", path)
        elif status.st_size == 0:
            self._left_out.add("bad", "empty", path)
        else:
            return File(folder, path, status.st_size, status.st_mtime_ns)
        return None

    def _visit_folder(
        self, parent: Folder, name: bytes, link: os.stat_result | None
    ) -> Folder | None:
        path = parent.path + name
        if hidden := hidden_reason(name, include_hidden=self._include_hidden):
            self._left_out.add("hidden", hidden, path, is_folder=True)
            return None
        folder = Folder(
            path + b"/",
            parent,
            linked=parent.linked or link is not None,
            identity=None if link is None else (link.st_dev, link.st_ino),
        )
        # Only a link leads back up, at once or further down: no stat of folders in ordinary trees.
        if folder.linked and self._is_loop(folder):
            self._left_out.add("folder", "leads back to a folder above it", path, is_folder=True)
            return None
        if extension(name) in IMAGE_EXTENSIONS:
            self._left_out.add("folder", "directory with an image name", path, is_folder=True)
        return folder

    def _is_loop(self, folder: Folder) -> bool:
        try:
            identity = self._identity(folder)
            above = folder.parent
            while above is not None:
                if self._identity(above) == identity:
                    return True
                above = above.parent
        except OSError:
            return False  # listing it will fail too, and says why
        return False

    def _identity(self, folder: Folder) -> tuple[int, int]:
        if folder.identity is None:
            status = os.stat(self._base + folder.path)
            folder.identity = (status.st_dev, status.st_ino)
        return folder.identity


def _unpack(run: bytes) -> Iterator[bytes]:
    start = 0
    while (end := run.find(b"/", start)) >= 0:
        yield run[start:end]
        start = end + 1
    yield run[start:]


def _stat_reason(error: OSError, *, is_link: bool) -> str:
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
        return "broken link" if is_link else "vanished during the scan"
    return f"cannot be examined ({error.strerror})"


def _root_error(root: str, error: OSError | ValueError) -> SourceError:
    if isinstance(error, FileNotFoundError):
        text = "no such folder; check the path"
    elif isinstance(error, NotADirectoryError):
        text = "this is a file; give the folder that holds the images"
    elif isinstance(error, PermissionError):
        text = f"cannot be listed ({error.strerror}); it needs permission to read and enter it"
    else:
        text = f"cannot be listed ({getattr(error, 'strerror', None) or error}); check the path"
    return SourceError(f"{root!r}: {text}", path=root)
