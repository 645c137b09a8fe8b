"""How busy the accelerator is, where that can be read: a hint, not a measurement.

What drivers call utilisation is the share of time in which anything at all ran: a GPU that is 100 %
busy may still do little.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import torch

from sharedds.host.accelerator import torch_device

__all__ = ["UtilisationWatch", "accelerator_in_use", "utilisation_reader"]

_EVERY = 1.0  # seconds
_LONGEST = 5.0  # seconds that the driver's program may take to answer


def accelerator_in_use() -> str | None:
    """Return the kind of accelerator that this process computes on; None for the CPU alone."""
    found = torch_device()
    if found is None or (found.type == "cuda" and not torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        return None
    return str(found.type)


def utilisation_reader() -> Callable[[], float | None] | None:
    """Return what reads the share of time (0 to 1) in which the GPU of this process was busy.

    None where nothing tells: no NVIDIA GPU in use, neither pynvml nor nvidia-smi.
    """
    if accelerator_in_use() != "cuda" or torch.version.hip:
        return None
    properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    name = f"GPU-{getattr(properties, 'uuid', '')}"
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(name)
    except Exception:  # not installed, no driver, or a GPU that it does not know
        return _program_reader(name)
    return lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100


def _program_reader(name: str) -> Callable[[], float | None] | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = ["--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]

    def read() -> float | None:
        done = subprocess.run(
            [program, f"--id={name}", *query],
            capture_output=True,
            text=True,
            check=False,
            timeout=_LONGEST,
        )
        text = done.stdout.strip()
        return float(text) / 100 if text.isdecimal() else None

    return read


class UtilisationWatch:
    """Reads once a second, on a thread of its own, while it is entered.

    Args:
        read: Returns the share of time that the accelerator was busy; None where nothing tells.
    """

    def __init__(self, read: Callable[[], float | None] | None) -> None:
        self._read = read
        self._sum = 0.0
        self._count = 0

    @property
    def mean(self) -> float | None:
        """The mean of what was read; None if nothing was."""
        return self._sum / self._count if self._count else None

    def __enter__(self) -> UtilisationWatch:
        self._ended = threading.Event()
        if self._read is not None:
            threading.Thread(
                target=self._watch, args=(self._ended,), name="sharedds-utilisation", daemon=True
            ).start()
        return self

    def __exit__(self, *about: object) -> None:
        self._ended.set()

    def _watch(self, ended: threading.Event) -> None:
        while not ended.wait(_EVERY):
            try:
                busy = self._read() if self._read is not None else None
            except Exception:  # a hint is worth no error
                return
            if busy is not None:
                self._sum += busy
                self._count += 1
