"""What kind of storage a file lies on, which decides how to read it."""

from __future__ import annotations

import importlib
import os
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from sharedds.host.mounts import Mount, mounts
from sharedds.host.system import ROOT, system_text

__all__ = ["Storage", "StorageKind", "storage_of"]

StorageKind = Literal["ssd", "spinning", "network", "memory"]

_NETWORK = frozenset(
    {
        *("9p", "acfs", "afpfs", "afs", "beegfs", "beegfs_nodev", "ceph", "cifs", "coda"),
        *("davfs", "drvfs", "fakeowner", "glusterfs", "gpfs", "lustre", "mmfs", "ncpfs", "nfs"),
        *("nfs3", "nfs4", "orangefs", "panfs", "prl_fs", "pvfs2", "quobyte", "smb2", "smb3"),
        *("smbfs", "vboxsf", "virtiofs", "vmhgfs", "webdav", "wekafs"),
    }
)
#: Behind FUSE; of others it is not known where their data is.
_NETWORK_FUSE = frozenset(
    {
        *("alluxio-fuse", "blobfuse", "blobfuse2", "ceph", "ceph-fuse", "davfs", "davfs2"),
        *("gcsfuse", "geesefs", "glusterfs", "goofys", "google-drive-ocamlfuse", "grpcfuse"),
        *("hdfs-fuse", "juicefs", "lizardfs", "mfs", "moosefs", "mount-s3", "mountpoint-s3"),
        *("quobyte", "rclone", "s3fs", "s3ql", "seaweedfs", "smbnetfs", "sshfs", "vmhgfs-fuse"),
        *("wekafs",),
    }
)
#: These show another folder, which they name as what is mounted.
_OVER_FOLDER = frozenset({"ecryptfs", "fuse.bindfs", "fuse.gocryptfs"})
_MEMORY = frozenset({"devtmpfs", "hugetlbfs", "ramfs", "tmpfs"})
#: Sellers of virtual disks, which call themselves spinning whatever is below them.
_VIRTUAL = frozenset({"QEMU", "VBOX", "VMware", "Msft", "Virtio"})
#: Layers of devices upon devices upon files end somewhere.
_DEEPEST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Where a file lies.

    Attributes:
        path: The file or folder that was asked about.
        kind: What it is like to read: None where that is not known.
        file_system: Type of the file system; empty where that is not known.
        device: The block device it is on, else what is mounted; empty where neither is known.
        reason: What told the kind, for people.
    """

    path: str
    kind: StorageKind | None
    file_system: str = ""
    device: str = ""
    reason: str = ""


def storage_of(path: str | os.PathLike[str], root: Path = ROOT) -> Storage:
    """Return the kind of storage below a file or folder; it need not exist yet.

    Disks below encryption, RAID, logical volumes and loop devices are looked up, and so is what an
    overlay writes to, where this process can see it.

    Args:
        path: The file or folder.
        root: The folder that holds ``proc`` and ``sys``.
    """
    name = os.fspath(path)
    place = os.path.abspath(name)
    if root == ROOT:
        try:
            place = os.path.realpath(place)
        except (OSError, ValueError):  # a path that no system can hold
            return Storage(path=name, kind=None, reason="no such path can exist")
        if sys.platform != "linux":
            return _elsewhere(name, place)
    return replace(_look(place, mounts(root), root, _DEEPEST), path=name)


# --- file systems --------------------------------------------------------------------------------


def _look(place: str, mounted: list[Mount], root: Path, depth: int) -> Storage:
    mount = _mount_of(place, mounted)
    if mount is None:
        return Storage(path=place, kind=None, reason="its mount was not found")
    found = Storage(path=place, kind=None, file_system=mount.file_system, device=mount.source)
    kind = _kind_by_name(mount.file_system)
    if kind is not None:
        return replace(found, kind=kind, reason=f"file system {mount.file_system}")
    if mount.file_system == "overlay" and depth:
        return _below_overlay(found, mount, mounted, root, depth)
    if mount.file_system in _OVER_FOLDER and mount.source.startswith("/") and depth:
        below = _look(mount.source, mounted, root, depth - 1)
        return replace(found, kind=below.kind, device=below.device, reason=below.reason)
    disk = _disk_of(mount, root)
    if disk is None:
        return replace(found, reason=f"no disk is known below {mount.file_system}")
    kind, reason = _kind_of_disk(disk, mounted, root, depth)
    return replace(found, kind=kind, device=_disk_name(disk), reason=reason)


def _mount_of(place: str, mounted: list[Mount]) -> Mount | None:
    """The mount with the longest path above a place; the later of two on the same folder."""
    best, longest = None, 0
    for mount in mounted:
        point = mount.point.rstrip("/")
        is_above = place == point or place.startswith(point + "/")
        if is_above and len(point) >= longest:
            best, longest = mount, len(point)
    return best


def _kind_by_name(file_system: str) -> StorageKind | None:
    below = file_system.removeprefix("fuse.")
    if below != file_system:
        return "network" if below in _NETWORK_FUSE else None
    if file_system in _NETWORK:
        return "network"
    return "memory" if file_system in _MEMORY else None


def _below_overlay(
    found: Storage, mount: Mount, mounted: list[Mount], root: Path, depth: int
) -> Storage:
    upper = mount.option("upperdir") or (mount.option("lowerdir") or "").split(":")[0]
    own = _mount_of(upper, mounted) if upper.startswith("/") else None
    below = None
    if own is not None and own.point != mount.point and own.file_system != "overlay":
        below = _look(upper, mounted, root, depth - 1)
    elif (neighbour := _docker_disk(upper, mounted)) is not None:
        below = _look(neighbour.point, mounted, root, depth - 1)
    if below is None:
        return replace(found, reason="what the overlay lies on is out of sight")
    reason = f"below the overlay: {below.reason}"
    return replace(found, kind=below.kind, device=below.device, reason=reason)


def _docker_disk(upper: str, mounted: list[Mount]) -> Mount | None:
    """In a container of Docker, one of the files that it mounts from beside the overlay.

    These are in DOCKER/containers/ID/hosts, the overlay is in DOCKER/overlay2/ID/diff.
    """
    docker, overlay, _ = upper.partition("/overlay2/")
    for mount in mounted if overlay else ():
        match = re.fullmatch(r"(.*)/containers/[0-9a-f]{64}/[a-z.]+", mount.root)
        if match is not None and docker.endswith(match[1]):
            return mount
    return None


# --- disks ---------------------------------------------------------------------------------------


def _disk_of(mount: Mount, root: Path) -> Path | None:
    """The folder in ``/sys`` of the block device below a mount."""
    if re.fullmatch(r"[1-9]\d*:\d+", mount.device, re.ASCII):
        folder = root / "sys/dev/block" / mount.device
        if os.path.isdir(folder):
            return _resolved(folder)
    blocks = root / "sys/class/block"
    name = mount.source.removeprefix("/dev/")
    if name == mount.source or not name:
        return None
    if name.startswith("mapper/"):
        for folder in _entries(blocks):
            if system_text(folder / "dm/name").strip() == name.removeprefix("mapper/"):
                return _resolved(folder)
        return None
    folder = blocks / name.replace("/", "!")
    return _resolved(folder) if os.path.isdir(folder) else None


def _kind_of_disk(
    disk: Path, mounted: list[Mount], root: Path, depth: int
) -> tuple[StorageKind | None, str]:
    name = _disk_name(disk)
    if not depth:
        return None, f"{name} lies on too many others"
    if os.path.exists(disk / "partition"):
        return _kind_of_disk(disk.parent, mounted, root, depth - 1)
    parts = [_resolved(folder) for folder in _entries(disk / "slaves")]
    if parts:
        return _kind_of_parts(
            name, [_kind_of_disk(part, mounted, root, depth - 1) for part in parts]
        )
    if backing := system_text(disk / "loop/backing_file").strip():
        below = _look(backing, mounted, root, depth - 1)
        return below.kind, f"{name} is a file on {below.reason}"
    if re.match(r"(nbd|rbd|drbd)\d", name) or _is_remote(disk):
        return "network", f"{name} is a disk of another machine"
    if re.match(r"(zram|ram)\d", name):
        return "memory", f"{name} is in memory"
    flag = system_text(disk / "queue/rotational").strip()
    if flag == "0":
        return "ssd", f"{name} does not rotate"
    if flag != "1":
        return None, f"{name} does not tell whether it rotates"
    vendor = system_text(disk / "device/vendor").strip()
    if re.match(r"(vd|xvd)[a-z]", name) or vendor in _VIRTUAL:
        return None, f"{name} is virtual and says it rotates, as such disks always do"
    return "spinning", f"{name} rotates"


def _kind_of_parts(
    name: str, parts: list[tuple[StorageKind | None, str]]
) -> tuple[StorageKind | None, str]:
    """The slowest part decides; one that is not known leaves all but the slowest open."""
    kinds = {kind for kind, _ in parts}
    for kind in ("network", "spinning", None, "ssd", "memory"):
        if kind in kinds:
            reason = next(text for own, text in parts if own == kind)
            return kind, f"{name} lies on: {reason}"
    return None, name


def _is_remote(disk: Path) -> bool:
    """Whether a disk is reached by iSCSI or NVMe over a network."""
    transport = system_text(disk / "device/transport").strip()
    return transport in {"tcp", "rdma", "fc"} or any(
        re.fullmatch(r"session\d+", part) for part in disk.parts
    )


def _disk_name(disk: Path) -> str:
    mapped = system_text(disk / "dm/name").strip()
    return mapped or disk.name.replace("!", "/")


def _resolved(folder: Path) -> Path:
    try:
        return folder.resolve()
    except (OSError, RuntimeError):  # links in a circle
        return folder


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _elsewhere(name: str, place: str) -> Storage:
    """On systems without ``/proc``: network drives are known by the type of file system."""
    try:
        # Loaded where it is needed: on Linux it is not.
        partitions = importlib.import_module("psutil").disk_partitions(all=True)
    except (OSError, RuntimeError):
        return Storage(path=name, kind=None, reason="this system does not tell")
    above = [
        part
        for part in partitions
        if os.path.normcase(place).startswith(os.path.normcase(part.mountpoint))
    ]
    if not above:
        return Storage(path=name, kind=None, reason="its mount was not found")
    part = max(above, key=lambda part: len(part.mountpoint))
    kind: StorageKind | None = _kind_by_name(part.fstype)
    reason = f"file system {part.fstype}" if kind else "this system does not tell"
    if "remote" in part.opts.split(","):  # on Windows
        kind, reason = "network", "a network drive"
    return Storage(path=name, kind=kind, file_system=part.fstype, device=part.device, reason=reason)
