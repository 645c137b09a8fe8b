"""The control groups of this process, from its own up to the top: each of them sets limits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sharedds.host.mounts import Mount, mounts
from sharedds.host.system import ROOT, system_text

__all__ = ["ControlGroup", "control_groups"]

_PLACE = "sys/fs/cgroup"


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """A group that this process is in.

    Attributes:
        folder: Where its files are.
        version: 1 or 2.
        name: Its path as this process sees it, for people.
    """

    folder: Path
    version: int
    name: str

    def text(self, name: str) -> str:
        """Return the text of one of its files; nothing where there is none to read."""
        return system_text(self.folder / name)


def control_groups(controller: str, root: Path = ROOT) -> list[ControlGroup]:
    """Return the groups that govern "cpu" or "memory" of this process, its own first.

    A limit of any of them holds. With both versions mounted there are groups of both.

    Args:
        controller: The name of the controller.
        root: The folder that holds ``proc`` and ``sys``.
    """
    found: dict[Path, ControlGroup] = {}
    mounted = mounts(root)
    for line in system_text(root / "proc/self/cgroup").splitlines() or ["0::/"]:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            version = 2
        elif controller in controllers.split(","):
            version = 1
        else:
            continue
        for top, above in _tops(mounted, controller, controllers, version, root):
            for folder, name in _upwards(top, above, path):
                found.setdefault(folder, ControlGroup(folder, version, name))
    return list(found.values())


def _tops(
    mounted: list[Mount], controller: str, controllers: str, version: int, root: Path
) -> Iterator[tuple[Path, str]]:
    """Where a hierarchy is mounted, and which of its groups is seen there."""
    kind = "cgroup2" if version == 2 else "cgroup"
    told = [
        (root / mount.point.lstrip("/"), mount.root)
        for mount in mounted
        if mount.file_system == kind and (version == 2 or controller in mount.options)
    ]
    if told:
        yield from told
        return
    names = (
        ("", "unified")
        if version == 2
        else dict.fromkeys((controllers, controller, "cpu,cpuacct", "cpuacct,cpu"))
    )
    for name in names:
        if version == 2 or controller in name.split(","):
            yield root / _PLACE / name, "/"


def _upwards(top: Path, above: str, path: str) -> Iterator[tuple[Path, str]]:
    """The folder of a group and of those above it, as far as they are here.

    In a container the path may be that of the host, of which only the last part is mounted; a path
    that begins with ``..`` is outside of what is mounted, so that only the top is known.
    """
    parts = [part for part in path.split("/") if part]
    hidden = [part for part in above.split("/") if part]
    if ".." in parts or ".." in hidden:
        parts = []
    elif hidden and parts[: len(hidden)] == hidden:
        parts = parts[len(hidden) :]
    for depth in range(len(parts), -1, -1):
        folder = top.joinpath(*parts[:depth])
        if os.path.isdir(folder):  # says no, too, where looking is not allowed
            yield folder, "/" + "/".join(parts[:depth])
