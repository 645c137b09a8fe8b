"""Which accelerator there is, without waking it up: to look must not start CUDA."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharedds.host.system import ROOT, system_text, whole_number

__all__ = ["Accelerator", "accelerator", "torch_device"]

#: Has torch ask the driver which devices there are, where it would start CUDA else.
_WITHOUT_CUDA = "PYTORCH_NVML_BASED_CUDA_CHECK"
_HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """What training can use beside the CPU.

    Attributes:
        kind: Type as torch names it: "cuda" (ROCm as well), "mps", "xpu", ...
        count: How many this process may use.
        name: Of the first one; empty where that is not told.
        reason: Where this is known from, for people.
    """

    kind: str
    count: int
    name: str
    reason: str


def accelerator(
    root: Path = ROOT, *, environ: Mapping[str, str] | None = None
) -> Accelerator | None:
    """Return the accelerator that this process may use.

    torch is asked only where it is loaded already; it knows what it can use. Otherwise files of
    devices are looked for. A made-up machine is judged by its files alone.

    Args:
        root: The folder that holds ``dev``, ``proc`` and ``sys``.
        environ: Environment variables; None takes those of this process.

    Returns:
        The accelerator; None where none was found.
    """
    environ = os.environ if environ is None else environ
    torch: Any = sys.modules.get("torch")
    if torch is not None and root == ROOT:
        try:
            return _ask(torch, root)
        except Exception:  # noqa: S110 - half imported, or an old one without the module
            pass
    return _by_files(root, environ)


def torch_device() -> Any:
    """Return the device that torch would compute on beside the CPU; None without one, or torch.

    CUDA is not started by asking, so a process may still be forked; without the driver's library
    (NVML), torch has no other way.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    before = os.environ.get(_WITHOUT_CUDA)
    os.environ[_WITHOUT_CUDA] = "1"
    try:
        return torch.accelerator.current_accelerator(check_available=True)
    finally:
        if before is None:
            os.environ.pop(_WITHOUT_CUDA, None)
        else:
            os.environ[_WITHOUT_CUDA] = before


def _ask(torch: Any, root: Path) -> Accelerator | None:
    device = torch_device()
    if device is None:
        return None
    name = ""
    if device.type == "cuda" and torch.cuda.is_initialized():  # else asking would start it
        name = str(torch.cuda.get_device_name(0))
    elif device.type == "cuda":
        name = _nvidia_model(root)
    count = int(torch.accelerator.device_count())
    return Accelerator(kind=str(device.type), count=count, name=name, reason="says torch")


def _by_files(root: Path, environ: Mapping[str, str]) -> Accelerator | None:
    for look in (_nvidia, _amd, _apple):
        found = look(root)
        if found is not None:
            return _visible(found, environ)
    return None


def _nvidia(root: Path) -> Accelerator | None:
    devices = [name for name in _names(root / "dev") if re.fullmatch(r"nvidia\d+", name)]
    count, reason = len(devices), "from /dev/nvidia*"
    if not count:
        # A Jetson, and Linux below Windows.
        for path in ("dev/nvhost-gpu", "usr/lib/wsl/lib/libcuda.so.1"):
            if os.path.exists(root / path):
                count, reason = 1, f"from /{path}"
                break
        else:
            return None
    return Accelerator(kind="cuda", count=count, name=_nvidia_model(root), reason=reason)


def _nvidia_model(root: Path) -> str:
    folder = root / "proc/driver/nvidia/gpus"
    for name in _names(folder):
        for line in system_text(folder / name / "information").splitlines():
            key, colon, value = line.partition(":")
            if colon and key.strip() == "Model":
                return value.strip()
    return ""


def _amd(root: Path) -> Accelerator | None:
    if not os.path.exists(root / "dev/kfd"):
        return None
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    # Nodes without a number are CPUs.
    count = sum(bool(whole_number(system_text(nodes / name / "gpu_id"))) for name in _names(nodes))
    if not count:
        return None
    return Accelerator(kind="cuda", count=count, name="AMD GPU (ROCm)", reason="from /dev/kfd")


def _apple(root: Path) -> Accelerator | None:
    if root != ROOT or (platform.system(), platform.machine()) != ("Darwin", "arm64"):
        return None
    return Accelerator(kind="mps", count=1, name="Apple GPU", reason="part of this processor")


def _visible(found: Accelerator, environ: Mapping[str, str]) -> Accelerator | None:
    for name in _HIDING:
        value = environ.get(name)
        if value is None or found.kind != "cuda":
            continue
        shown = []
        for part in value.split(","):
            if not part.strip() or part.strip().startswith("-"):
                break  # CUDA itself stops at the first that is none
            shown.append(part)
        count = min(found.count, len(shown))
        if not count:
            return None
        found = Accelerator(
            kind=found.kind, count=count, name=found.name, reason=f"{found.reason} and {name}"
        )
    return found


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
