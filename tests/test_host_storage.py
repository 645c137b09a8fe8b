"""What kind of storage a file lies on, on made-up machines with disks of all kinds."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from machines import mount_line, write_machine

from sharedds.host.mounts import mounts
from sharedds.host.storage import Storage, storage_of

MOUNTS = "proc/self/mountinfo"
SSD, SPINNING = "0\n", "1\n"


def disk(name: str, number: str, rotational: str, *, partition: str = "") -> dict[str, str]:
    """A disk in /sys, and perhaps a partition whose number is then the one given."""
    folder = f"sys/devices/pci0/{name}"
    files = {f"{folder}/queue/rotational": rotational, f"sys/class/block/{name}": f"-> {folder}"}
    if partition:
        files[f"{folder}/{partition}/partition"] = "1\n"
        folder = f"{folder}/{partition}"
        files[f"sys/class/block/{partition}"] = f"-> {folder}"
    return files | {f"sys/dev/block/{number}": f"-> {folder}"}


def mapped(name: str, number: str, title: str, *parts: str) -> dict[str, str]:
    """A device that is made of others: encryption, a logical volume, RAID."""
    folder = f"sys/devices/virtual/block/{name}"
    slaves = {f"{folder}/slaves/{Path(part).name}": f"-> {part}" for part in parts}
    return slaves | {
        f"{folder}/queue/rotational": SSD,
        f"{folder}/dm/name": f"{title}\n",
        f"sys/class/block/{name}": f"-> {folder}",
        f"sys/dev/block/{number}": f"-> {folder}",
    }


ROOT_DISK = {MOUNTS: mount_line("/", "ext4", "/dev/sda1", device="8:1")}
NVME = disk("nvme0n1", "259:2", SSD, partition="nvme0n1p2")
ROTATING = disk("sda", "8:1", SPINNING, partition="sda1")
SECOND = disk("sdb", "8:16", SSD)
CONTAINER = "f" * 64
OVERLAY = mount_line(
    "/",
    "overlay",
    "overlay",
    options="rw,lowerdir=/var/lib/docker/overlay2/l/A,upperdir=/var/lib/docker/overlay2/x/diff",
)


def hosts(root: str) -> str:
    """The mount of /etc/hosts in a container."""
    return mount_line("/etc/hosts", "ext4", "/dev/nvme0n1p2", device="259:2", root=root)


@pytest.mark.parametrize(
    ("files", "kind", "device", "reason"),
    [
        (
            NVME | {MOUNTS: mount_line("/", "ext4", "/dev/nvme0n1p2", device="259:2")},
            "ssd",
            "nvme0n1p2",
            "nvme0n1 does not rotate",
        ),
        (ROTATING | ROOT_DISK, "spinning", "sda1", "sda rotates"),
        (
            ROTATING
            | mapped("dm-0", "253:0", "crypted", "sys/devices/pci0/sda/sda1")
            | {MOUNTS: mount_line("/data", "xfs", "/dev/mapper/crypted", device="253:0")},
            "spinning",
            "crypted",
            "crypted lies on: sda rotates",
        ),
        (
            ROTATING
            | SECOND
            | mapped("dm-0", "253:0", "a", "sys/devices/pci0/sda/sda1")
            | mapped("dm-1", "253:1", "b", "sys/devices/virtual/block/dm-0", "sys/devices/pci0/sdb")
            | {MOUNTS: mount_line("/data", "xfs", "/dev/mapper/b", device="253:1")},
            "spinning",
            "b",
            "b lies on: a lies on: sda rotates",
        ),
        (
            SECOND
            | mapped("md0", "9:0", "", "sys/devices/pci0/sdb")
            | {MOUNTS: mount_line("/data", "xfs", "/dev/md0", device="9:0")},
            "ssd",
            "md0",
            "md0 lies on: sdb does not rotate",
        ),
        (
            SECOND | {MOUNTS: mount_line("/data", "btrfs", "/dev/sdb", device="0:44")},
            "ssd",
            "sdb",
            "sdb does not rotate",
        ),
        (
            ROTATING
            | mapped("dm-0", "253:0", "pool", "sys/devices/pci0/sda/sda1")
            | {MOUNTS: mount_line("/data", "btrfs", "/dev/mapper/pool", device="0:44")},
            "spinning",
            "pool",
            "sda rotates",
        ),
        ({MOUNTS: mount_line("/", "nfs4", "server:/export")}, "network", "server:/export", "nfs4"),
        ({MOUNTS: mount_line("/", "lustre", "10.0.0.1@tcp:/l")}, "network", "10.0.0.1@tcp:/l", ""),
        ({MOUNTS: mount_line("/", "fuse.sshfs", "me@host:")}, "network", "me@host:", "fuse.sshfs"),
        ({MOUNTS: mount_line("/", "fuse.s3fs", "s3fs")}, "network", "s3fs", "fuse.s3fs"),
        ({MOUNTS: mount_line("/", "virtiofs", "share")}, "network", "share", "virtiofs"),
        ({MOUNTS: mount_line("/", "fuse.unheard", "x")}, None, "x", "no disk is known"),
        (
            SECOND
            | {
                MOUNTS: mount_line("/", "ext4", "/dev/sdb", device="8:16")
                + mount_line("/data", "fuse.gocryptfs", "/secret/data")
            },
            "ssd",
            "sdb",
            "does not rotate",
        ),
        ({MOUNTS: mount_line("/", "ecryptfs", "/x")}, None, "/x", "no disk is known"),
        ({MOUNTS: mount_line("/", "zfs", "tank/data")}, None, "tank/data", "no disk is known"),
        ({MOUNTS: mount_line("/", "tmpfs", "tmpfs")}, "memory", "tmpfs", "tmpfs"),
        (
            disk("zram0", "252:0", SSD)
            | {MOUNTS: mount_line("/", "ext4", "/dev/zram0", device="252:0")},
            "memory",
            "zram0",
            "in memory",
        ),
        (
            disk("vda", "254:0", SPINNING)
            | {MOUNTS: mount_line("/", "ext4", "/dev/vda", device="254:0")},
            None,
            "vda",
            "virtual",
        ),
        (
            disk("vda", "254:0", SSD)
            | {MOUNTS: mount_line("/", "ext4", "/dev/vda", device="254:0")},
            "ssd",
            "vda",
            "does not rotate",
        ),
        (
            ROTATING | ROOT_DISK | {"sys/devices/pci0/sda/device/vendor": "QEMU    \n"},
            None,
            "sda1",
            "virtual",
        ),
        (
            disk("nvme1n1", "259:9", SSD)
            | {
                "sys/devices/pci0/nvme1n1/device/transport": "tcp\n",
                MOUNTS: mount_line("/", "xfs", "/dev/nvme1n1", device="259:9"),
            },
            "network",
            "nvme1n1",
            "another machine",
        ),
        (
            disk("host2/session1/sdc", "8:32", SSD)
            | {MOUNTS: mount_line("/", "xfs", "/dev/sdc", device="8:32")},
            "network",
            "sdc",
            "another machine",
        ),
        (
            disk("loop0", "7:0", SPINNING)
            | ROTATING
            | {
                "sys/devices/pci0/loop0/loop/backing_file": "/images/a.img\n",
                MOUNTS: mount_line("/", "ext4", "/dev/sda1", device="8:1")
                + mount_line("/data", "squashfs", "/dev/loop0", device="7:0"),
            },
            "spinning",
            "loop0",
            "loop0 is a file on sda rotates",
        ),
        (
            ROTATING | {MOUNTS: ROOT_DISK[MOUNTS] + mount_line("/data", "tmpfs", "none")},
            "memory",
            "none",
            "tmpfs",
        ),
        (
            ROTATING
            | {
                MOUNTS: mount_line("/data", "tmpfs", "none")
                + mount_line("/data", "ext4", "/dev/sda1", device="8:1")
            },
            "spinning",
            "sda1",
            "rotates",
        ),
        (
            ROTATING | {MOUNTS: ROOT_DISK[MOUNTS] + mount_line("/dat", "tmpfs", "none")},
            "spinning",
            "sda1",
            "rotates",
        ),
        ({MOUNTS: OVERLAY}, None, "overlay", "out of sight"),
        (
            ROTATING
            | {
                MOUNTS: ROOT_DISK[MOUNTS]
                + mount_line("/data", "overlay", "o", options="rw,lowerdir=/l,upperdir=/u")
            },
            "spinning",
            "sda1",
            "below the overlay: sda rotates",
        ),
        (
            NVME | {MOUNTS: OVERLAY + hosts(f"/var/lib/docker/containers/{CONTAINER}/hosts")},
            "ssd",
            "nvme0n1p2",
            "below the overlay: nvme0n1 does not rotate",
        ),
        (
            NVME | {MOUNTS: OVERLAY + hosts(f"/containers/{CONTAINER}/hosts")},
            "ssd",
            "nvme0n1p2",
            "below the overlay",
        ),
        (
            NVME | {MOUNTS: OVERLAY + hosts(f"/other/docker/containers/{CONTAINER}/hosts")},
            None,
            "overlay",
            "out of sight",
        ),
        ({}, None, "", "its mount was not found"),
        ({MOUNTS: "garbage\n - \n\n1 2 3 4 5 6 - \n"}, None, "", "not found"),
        (ROOT_DISK, None, "/dev/sda1", "no disk is known"),
        (
            disk("sda", "8:1", "perhaps\n") | ROOT_DISK,
            None,
            "sda",
            "does not tell whether it rotates",
        ),
        ({MOUNTS: mount_line("/", "ext4", "/dev/../..", device="x:y")}, None, "/dev/../..", ""),
    ],
    ids=[
        "partition of an NVMe disk",
        "rotating disk",
        "encryption on a rotating disk",
        "volume on a fast and an encrypted slow disk",
        "RAID of fast disks",
        "btrfs",
        "btrfs on a volume",
        "NFS",
        "Lustre",
        "sshfs",
        "s3fs",
        "virtiofs",
        "unknown FUSE",
        "encrypted folder",
        "encrypted folder below itself",
        "ZFS",
        "tmpfs",
        "compressed memory",
        "virtual disk",
        "virtual disk that says it is fast",
        "disk of an emulator",
        "NVMe over TCP",
        "iSCSI",
        "image in a file",
        "longest mount",
        "last mount",
        "a name is no folder above",
        "overlay of a container",
        "overlay on a disk",
        "overlay beside a known file",
        "overlay on a disk of its own",
        "overlay beside a file of others",
        "nothing",
        "garbage",
        "no /sys",
        "flag is garbage",
        "device is garbage",
    ],
)
def test_the_kind_of_storage_is_found(
    files: dict[str, str], kind: str | None, device: str, reason: str, tmp_path: Path
) -> None:
    """Through partitions, encryption, RAID and overlays; what is not told is None."""
    found = storage_of("/data/train.lmdb", write_machine(tmp_path, files))
    assert (found.kind, found.device) == (kind, device)
    assert reason in found.reason
    assert found.path == "/data/train.lmdb"


def test_what_lies_on_itself_is_not_followed_for_ever(tmp_path: Path) -> None:
    """Devices and images in a circle, which no system should show."""
    one, other = "sys/devices/virtual/block/dm-0", "sys/devices/virtual/block/dm-1"
    files = mapped("dm-0", "253:0", "a", other) | mapped("dm-1", "253:1", "b", one)
    files[MOUNTS] = mount_line("/", "ext4", "/dev/mapper/a", device="253:0")
    assert storage_of("/x", write_machine(tmp_path / "1", files)).kind is None
    files = disk("loop0", "7:0", SSD) | {
        "sys/devices/pci0/loop0/loop/backing_file": "/data/a.img\n",
        MOUNTS: mount_line("/", "ext4", "/dev/loop0", device="7:0"),
    }
    assert storage_of("/x", write_machine(tmp_path / "2", files)).kind is None
    (tmp_path / "3/sys/dev/block").mkdir(parents=True)
    (tmp_path / "3/sys/dev/block/8:1").symlink_to("8:1")
    write_machine(tmp_path / "3", ROOT_DISK)
    assert storage_of("/x", tmp_path / "3").kind is None


def test_blanks_in_the_names_of_mounts_are_read(tmp_path: Path) -> None:
    r"""The kernel writes them as \040."""
    text = mount_line(r"/my\040disk\134x", "nfs", r"host:/a\040b")
    root = write_machine(tmp_path, {MOUNTS: text})
    (mount,) = mounts(root)
    assert (mount.point, mount.source) == ("/my disk\\x", "host:/a b")
    assert storage_of("/my disk\\x/file", root).kind == "network"
    assert storage_of("/my", root).kind is None


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_links_are_followed_to_where_the_file_is(tmp_path: Path) -> None:
    """A link in a home folder may lead to another disk; a file need not exist yet."""
    if not os.path.ismount("/dev/shm"):
        pytest.skip("no /dev/shm here")
    link = tmp_path / "link"
    link.symlink_to("/dev/shm")
    found = storage_of(link / "not yet")
    assert found.kind == "memory"
    assert found.path == str(link / "not yet")


@pytest.mark.parametrize("path", ["", "\0", "x" * 5000, "/\udcff\n", "no/such/folder"])
def test_no_path_is_an_error(path: str) -> None:
    """Whatever a path holds, the answer is a storage."""
    assert storage_of(path).path == path


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [
        (
            [("/", "apfs", "/dev/disk1", "rw"), ("/nas", "smbfs", "//host/x", "rw")],
            Storage(
                path="/nas/a",
                kind="network",
                file_system="smbfs",
                device="//host/x",
                reason="file system smbfs",
            ),
        ),
        (
            [("/", "apfs", "/dev/disk1", "rw")],
            Storage(
                path="/nas/a",
                kind=None,
                file_system="apfs",
                device="/dev/disk1",
                reason="this system does not tell",
            ),
        ),
        (
            [("/", "NTFS", "Z:", "rw,remote")],
            Storage(
                path="/nas/a",
                kind="network",
                file_system="NTFS",
                device="Z:",
                reason="a network drive",
            ),
        ),
        ([], Storage(path="/nas/a", kind=None, reason="its mount was not found")),
        (None, Storage(path="/nas/a", kind=None, reason="this system does not tell")),
    ],
    ids=["network", "disk", "network drive", "no mount", "not told"],
)
def test_systems_without_proc_know_network_drives(
    partitions: list[tuple[str, str, str, str]] | None,
    expected: Storage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of macOS and Windows tell no more than the type of the file system."""

    def listed(*, all: bool) -> list[SimpleNamespace]:
        if partitions is None:
            raise OSError
        names = ("mountpoint", "fstype", "device", "opts")
        return [SimpleNamespace(**dict(zip(names, row, strict=True))) for row in partitions]

    monkeypatch.setattr("psutil.disk_partitions", listed)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert storage_of("/nas/a") == expected
