"""The account of everything a scan left out: each with its reason, in bounded memory."""

from __future__ import annotations

import dataclasses
from typing import Literal

__all__ = ["Kind", "LeftOut", "LeftOutList"]

Kind = Literal["bad", "class", "extension", "folder", "hidden"]

LISTED = 1_000
"""So many entries of one reason are listed one by one; beyond that they are counted."""

MAX_EXTENSIONS = 1_000
"""So many extensions are told apart (names such as ``scan.000123`` would make millions)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Files or folders that are not in the index, and why.

    Attributes:
        kind: ``"bad"`` would be a picture but cannot be one, or a folder that cannot be listed;
            ``"class"`` a picture that lies in no class folder; ``"extension"`` a name that is not a
            picture's; ``"hidden"`` hidden files and junk of systems; ``"folder"`` a remark about a
            folder of which no file is lost.
        reason: Why, in words; for ``"extension"`` the extension with its dot.
        example: Path of one of them relative to the root, with ``/``.
        count: How many; above 1 the example stands for all.
        is_folder: These are folders: they are not counted as files.
    """

    kind: Kind
    reason: str
    example: str
    count: int = 1
    is_folder: bool = False


class LeftOutList:
    """Collects what is left out.

    Hidden names and foreign extensions are grouped, with the first as the example. The others are
    listed one by one up to ``LISTED`` of one reason; the last of these then stands for the rest.
    """

    def __init__(self) -> None:
        self._paths: dict[tuple[Kind, str, bool], list[bytes]] = {}
        self._counts: dict[tuple[Kind, str, bool], int] = {}
        self._extensions = 0

    def add(self, kind: Kind, reason: str, path: bytes, *, is_folder: bool = False) -> None:
        """Note one file or folder by its path relative to the root."""
        key = (kind, reason, is_folder)
        if kind == "extension" and key not in self._counts:
            if self._extensions >= MAX_EXTENSIONS:
                key = (kind, "other extensions", is_folder)
            self._extensions += 1
        self._counts[key] = self._counts.get(key, 0) + 1
        paths = self._paths.setdefault(key, [])
        if len(paths) < (1 if kind in ("extension", "hidden") else LISTED):
            paths.append(path)

    def finish(self) -> tuple[LeftOut, ...]:
        """Return the account, sorted by kind and reason, paths in the order of the scan."""
        return tuple(
            LeftOut(
                kind=kind,
                reason=reason,
                example=path.decode("utf-8", "surrogateescape"),
                count=self._counts[key] - i if i == len(self._paths[key]) - 1 else 1,
                is_folder=is_folder,
            )
            for key in sorted(self._paths)
            for kind, reason, is_folder in [key]
            for i, path in enumerate(self._paths[key])
        )
