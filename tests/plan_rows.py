"""The plan as a table, first part: how many workers a machine, a dataset and a request give."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sharedds.host.storage import Storage, StorageKind
from sharedds.loader.plan import DatasetFacts, LoaderFacts, LoaderPlan, LoaderRequest, make_plan

__all__ = [
    "BUDGET",
    "HUGE",
    "LAPTOP",
    "MAC",
    "PHOTOS",
    "PLAIN",
    "SERVER",
    "VOLUMES",
    "WORKER_ROWS",
    "Row",
    "stored",
]

MB, GB, MIB, GIB = 10**6, 10**9, 1 << 20, 1 << 30


def stored(kind: StorageKind | None, file_system: str = "ext4") -> Storage:
    """Some storage."""
    return Storage(path="/data", kind=kind, file_system=file_system)


PLAIN: dict[str, Any] = {
    "cpus": 16,
    "batches": 10_000,
    "start_methods": ("forkserver", "fork", "spawn"),
}
LAPTOP: dict[str, Any] = {
    "cpus": 8,
    "memory_available": 10 * GB,
    "shared_memory_free": 7 * GB,
    "descriptors": 65_536,
    "descriptors_open": 40,
}
SERVER: dict[str, Any] = {
    "cpus": 64,
    "memory_available": 400 * GB,
    "shared_memory_free": 200 * GB,
    "descriptors": 65_536,
    "descriptors_open": 40,
    "accelerator": "cuda",
}
BUDGET: dict[str, Any] = {**SERVER, "accelerator": None, "trainer_bytes": 150 * MB}
MAC: dict[str, Any] = {"cpus": 10, "start_methods": ("spawn", "fork"), "accelerator": "mps"}
PHOTOS: dict[str, Any] = {
    "sample_bytes": 150_528,
    "batch_size": 64,
    "record_bytes": 110_000,
    "tensor_bytes": (150_528, 8),
}
VOLUMES: dict[str, Any] = {"sample_bytes": 100 * MB, "batch_size": 1, "record_bytes": 60 * MB}
HUGE: dict[str, Any] = {"sample_bytes": GB, "batch_size": 1}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table: ``choice`` shall have ``value``, and ``reason`` in its reason."""

    name: str
    machine: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, Any] = field(default_factory=dict)
    choice: str = "num_workers"
    value: Any = None
    reason: str
    limit: str | None = None

    def plan(self) -> LoaderPlan:
        """Plan it."""
        return make_plan(
            LoaderRequest(**self.asked),
            LoaderFacts(**(PLAIN | self.machine)),
            DatasetFacts(**self.data),
        )


WORKER_ROWS = [
    # --- workers: CPUs, quota, ranks, batches
    Row(name="laptop", machine=LAPTOP, value=6, reason="2 left for training", limit="CPUs"),
    Row(name="one CPU", machine={"cpus": 1}, value=1, reason="1 CPU for this process"),
    Row(name="two CPUs", machine={"cpus": 2}, value=2, reason="2 CPUs for this process"),
    Row(name="server", machine=SERVER, value=8, reason="8 workers are enough", limit="rule"),
    Row(
        name="256 cores, quota of 2",
        machine={**SERVER, "cpus": 2, "cpus_reason": "2 CPUs by a cgroup quota of 2"},
        data={"storage": stored("ssd")},
        value=2,
        reason="cgroup quota of 2",
        limit="CPUs",
    ),
    Row(
        name="8 ranks",
        machine={**SERVER, "cpus": 4, "cpus_reason": "32 CPUs, shared by 8 ranks"},
        value=2,
        reason="shared by 8 ranks; 2 left",
    ),
    Row(
        name="SLURM",
        machine={"cpus": 4, "cpus_reason": "4 CPUs by SLURM_CPUS_PER_TASK"},
        value=2,
        reason="SLURM_CPUS_PER_TASK",
    ),
    Row(name="3 batches", machine={"batches": 3}, value=3, reason="batches (3)", limit="batches"),
    Row(name="empty", machine={"batches": 0}, value=0, reason="batches (0)", limit="batches"),
    # --- workers: storage
    Row(
        name="SSD and memory to spare",
        machine=SERVER,
        data={**PHOTOS, "storage": stored("ssd")},
        value=16,
        reason="an SSD feeds 16 workers",
    ),
    Row(
        name="data in memory, 20 cores",
        machine={**SERVER, "cpus": 20},
        data={**PHOTOS, "storage": stored("memory", "tmpfs")},
        value=16,
        reason="memory feeds 16 workers",
    ),
    Row(
        name="SSD, 17 cores",
        machine={**SERVER, "cpus": 17},
        data={**PHOTOS, "storage": stored("ssd")},
        value=8,
        reason="8 workers are enough",
    ),
    Row(
        name="SSD, no memory to spare",
        machine={**SERVER, "memory_available": 2 * GB},
        data={**PHOTOS, "storage": stored("ssd")},
        value=8,
        reason="8 workers are enough",
    ),
    Row(
        name="SSD, memory unknown",
        machine={**SERVER, "memory_available": None},
        data={**PHOTOS, "storage": stored("ssd")},
        value=8,
        reason="8 workers are enough",
    ),
    Row(
        name="spinning disk, large records",
        machine=SERVER,
        data={**VOLUMES, "storage": stored("spinning")},
        value=2,
        reason="spinning disk reads records of 60.0 MB best one after another",
        limit="storage",
    ),
    Row(
        name="spinning disk, photos",
        machine=SERVER,
        data={**PHOTOS, "storage": stored("spinning")},
        value=8,
        reason="spinning disk may be slower",
    ),
    Row(
        name="NFS",
        machine=SERVER,
        data={**PHOTOS, "storage": stored("network", "nfs4")},
        value=8,
        reason="waits for the network (nfs4)",
    ),
    # --- workers: room in /dev/shm, memory, descriptors
    Row(
        name="64 MB of shm, photos",
        machine={**LAPTOP, "shared_memory_free": 64 * MIB},
        data=PHOTOS,
        value=5,
        reason="5 of 6 fit: /dev/shm has 67.1 MB free",
        limit="/dev/shm",
    ),
    Row(
        name="64 MB of shm, photos: fewer in advance first",
        machine={**LAPTOP, "shared_memory_free": 64 * MIB},
        data=PHOTOS,
        choice="prefetch_factor",
        value=1,
        reason="/dev/shm has 67.1 MB free",
    ),
    Row(
        name="64 MB of shm, 1 GB samples",
        machine={**SERVER, "shared_memory_free": 64 * MIB},
        data=HUGE,
        value=1,
        reason="1 of 8 fit: /dev/shm has 67.1 MB free; what does not fit travels through the pipe",
        limit="/dev/shm",
    ),
    Row(
        name="64 MB of shm, 1 GB samples, no memory either",
        machine={**LAPTOP, "shared_memory_free": 64 * MIB, "memory_available": GB},
        data={**HUGE, "sample_bytes": 250 * MB},
        value=0,
        reason="none of 6 fits: 1.0 GB of memory are left",
        limit="memory",
    ),
    Row(
        name="64 MB of shm, 1 GB samples, workers asked for",
        machine={**SERVER, "shared_memory_free": 64 * MIB},
        data=HUGE,
        asked={"num_workers": 4},
        value=4,
        reason="as requested; /dev/shm has 67.1 MB free, and it may take 5.0 GB; what does not fit "
        "travels through the pipe, slower",
        limit="/dev/shm",
    ),
    Row(
        name="64 MB of shm, large batches of photos",
        machine={**LAPTOP, "shared_memory_free": 64 * MIB},
        data={"sample_bytes": 150_528, "batch_size": 256},
        value=1,
        reason="1 of 6 fit: /dev/shm has 67.1 MB free",
        limit="/dev/shm",
    ),
    Row(
        name="64 MB of shm, batches in advance asked for",
        machine={**LAPTOP, "shared_memory_free": 64 * MIB},
        data=PHOTOS,
        asked={"num_workers": 2, "prefetch_factor": 8},
        choice="prefetch_factor",
        value=8,
        reason="as requested; /dev/shm has 67.1 MB free, and it may take 163.8 MB",
        limit="/dev/shm",
    ),
    Row(
        name="64 MB of shm, threads",
        machine={**SERVER, "shared_memory_free": 64 * MIB},
        data=HUGE,
        asked={"engine": "thread"},
        value=8,
        reason="8 workers are enough",
    ),
    Row(
        name="1 GB samples, 10 GB left",
        machine={**LAPTOP, "shared_memory_free": 9 * GB},
        data=HUGE,
        value=3,
        reason="3 of 6 fit: 10.0 GB of memory are left",
        limit="memory",
    ),
    Row(
        name="1 GB samples, 8 ranks share memory",
        machine={**SERVER, "cpus": 8, "local_ranks": 8, "memory_available": 64 * GB},
        data=HUGE,
        value=1,
        reason="1 of 6 fit: 8.0 GB of memory are left for each of 8 ranks",
    ),
    Row(
        name="4 ranks share shm",
        machine={**SERVER, "cpus": 8, "local_ranks": 4, "shared_memory_free": 256 * MIB},
        data=PHOTOS,
        value=5,
        reason="5 of 6 fit: /dev/shm has 67.1 MB free for each of 4 ranks",
        limit="/dev/shm",
    ),
    Row(
        name="64 ranks share memory, samples not known",
        machine={**SERVER, "cpus": 8, "local_ranks": 64, "memory_available": 20 * GB},
        value=1,
        reason="1 of 6 fit: 312.5 MB of memory are left",
        limit="memory",
    ),
    Row(
        name="512 descriptors, photos",
        machine={**LAPTOP, "descriptors": 512},
        data=PHOTOS,
        value=6,
        reason="2 left for training",
    ),
    Row(
        name="512 descriptors, samples of 20 tensors",
        machine={**LAPTOP, "descriptors": 512, "descriptors_open": 30},
        data={"sample_bytes": 20 * MB, "batch_size": 1, "tensor_bytes": (MB,) * 20},
        choice="prefetch_factor",
        value=1,
        reason="512 files may be open, 30 are",
        limit="descriptors",
    ),
    Row(
        name="64 descriptors",
        machine={**LAPTOP, "descriptors": 64, "descriptors_open": 8},
        value=2,
        reason="64 files may be open",
        limit="descriptors",
    ),
    # --- workers: this process, requests
    Row(
        name="daemon",
        machine={"is_daemon": True},
        value=0,
        reason="itself a worker",
        limit="daemon",
    ),
    Row(
        name="daemon, threads",
        machine={"is_daemon": True},
        asked={"engine": "thread"},
        value=8,
        reason="8 workers are enough",
    ),
    Row(
        name="more than CPUs",
        machine={"cpus": 2},
        asked={"num_workers": 40},
        value=40,
        reason="as requested; this process may use 2 CPUs only",
        limit="request",
    ),
    Row(
        name="more than the memory that is left",
        machine={**LAPTOP, "shared_memory_free": 20 * GB},
        data=HUGE,
        asked={"num_workers": 6},
        value=6,
        reason="as requested; 10.0 GB of memory are left, and it may take 13.4 GB",
        limit="memory",
    ),
    Row(
        name="as a saved plan says",
        asked={"num_workers": 5, "origins": (("num_workers", "as tuned"),)},
        value=5,
        reason="as tuned",
    ),
]
