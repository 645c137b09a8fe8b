"""What is mounted where, as this process sees it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sharedds.host.system import ROOT, system_text

__all__ = ["Mount", "mounts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A line of ``/proc/self/mountinfo``.

    Attributes:
        point: The folder where it is.
        root: Which folder of the file system is there; "/" unless a part of it is mounted.
        device: ``major:minor``; the major number is 0 where there is no block device.
        file_system: Its type ("ext4", "nfs4", "overlay", ...).
        source: What is mounted ("/dev/sda1", "server:/export", ...).
        options: Options of the file system.
    """

    point: str
    root: str
    device: str
    file_system: str
    source: str
    options: tuple[str, ...] = ()

    def option(self, name: str) -> str | None:
        """Return the value of the option ``name=value``."""
        for option in self.options:
            key, equals, value = option.partition("=")
            if equals and key == name:
                return value
        return None


def mounts(root: Path = ROOT) -> list[Mount]:
    """Return all mounts in the order of the system: of two on one folder the later is seen.

    Args:
        root: The folder that holds ``proc``.
    """
    found = []
    for line in system_text(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        words, rest = left.split(" "), right.split(" ")
        if len(words) < 6 or len(rest) < 2:
            continue
        found.append(
            Mount(
                point=_unescaped(words[4]),
                root=_unescaped(words[3]),
                device=words[2],
                file_system=rest[0],
                source=_unescaped(rest[1]),
                options=tuple(map(_unescaped, rest[2].split(","))) if len(rest) > 2 else (),
            )
        )
    return found


def _unescaped(text: str) -> str:
    r"""Blanks and the like are written as \040."""
    if "\\" not in text:
        return text
    data = re.sub(
        rb"\\([0-3][0-7]{2})",
        lambda match: bytes([int(match[1], 8)]),
        text.encode("utf-8", "surrogateescape"),
    )
    return data.decode("utf-8", "replace")
