"""Facts about the machine that a figure means nothing without."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

__all__ = ["cores", "machine_facts"]

_OURS = (
    "sharedds",
    "lmdb",
    "msgspec",
    "numcodecs",
    "numpy",
    "pillow",
    "simplejpeg",
    "torch",
    "xxhash",
)
_RIVALS = (
    "torch",
    "torchvision",
    "mosaicml-streaming",
    "datasets",
    "pyarrow",
    "webdataset",
    "array_record",
    "grain",
    "litdata",
    "spdl-io",
    "spdl-core",
    "nvidia-dali-cuda120",
    "monai",
    "torchio",
    "nnunetv2",
    "batchgenerators",
    "blosc2",
    "zarr",
    "nibabel",
    "ffcv",
    "tensordict",
    "simplejpeg",
    "opencv-python-headless",
    "pillow",
)
_ASK = """
import importlib.metadata, json, platform, sys
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def cores() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _first(path: str, name: str) -> str:
    try:
        for line in Path(path).read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    except OSError:
        pass
    return ""


def _cpu() -> str:
    info = "/proc/cpuinfo"
    model = _first(info, "model name") or platform.processor() or platform.machine()
    family, number = _first(info, "cpu family"), _first(info, "model")
    return f"{model} (family {family}, model {number})" if family else model


def _disk(folder: Path) -> str:
    best, kind, device = "", "unknown", ""
    try:
        for line in Path("/proc/mounts").read_text().splitlines():
            source, target, filesystem = line.split()[:3]
            inside = folder == Path(target) or Path(target) in folder.parents
            if inside and len(target) >= len(best):
                best, kind, device = target, filesystem, source
    except OSError:
        return kind
    name = Path(device).name
    turning = Path(f"/sys/block/{name}/queue/rotational")
    how = ""
    if turning.exists():
        how = ", rotating" if turning.read_text().strip() == "1" else ", not rotating"
    virtual = " (virtual)" if name.startswith("vd") else ""
    return f"{kind} on {name}{virtual}{how}"


def _versions(peers: str | None) -> tuple[dict[str, str], dict[str, str]]:
    ours = {name: importlib.metadata.version(name) for name in _OURS}
    if peers is None:
        return ours, {}
    done = subprocess.run([peers, "-c", _ASK, *_RIVALS], capture_output=True, text=True, check=True)
    return ours, json.loads(done.stdout)


def machine_facts(work: Path, peers: str | None) -> dict[str, Any]:
    """Return what a result says about the machine.

    Args:
        work: The folder whose disk is named.
        peers: The interpreter of the rivals, whose versions are asked for; None for none.
    """
    ours, theirs = _versions(peers)
    memory = _first("/proc/meminfo", "MemTotal").split()
    return {
        "cpu": _cpu(),
        "cores": cores(),
        "memory_gib": round(int(memory[0]) / (1 << 20), 1) if memory else None,
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "disk": _disk(work.resolve()),
        "libraries": ours,
        "rivals": theirs,
    }
