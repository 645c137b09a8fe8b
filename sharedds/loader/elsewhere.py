"""Tensors in samples that are not on the CPU: found cheaply, since every sample is looked at."""

from __future__ import annotations

from typing import Any

import torch

from sharedds.errors import SampleError
from sharedds.order import SampleKey

__all__ = ["device_elsewhere", "not_on_cpu"]


def device_elsewhere(sample: Any) -> str | None:
    """Return the device of a tensor not on the CPU: the sample itself, or directly in it."""
    if isinstance(sample, torch.Tensor):
        return _device(sample)
    if isinstance(sample, dict):
        parts: Any = sample.values()
    elif isinstance(sample, tuple | list):
        parts = sample
    else:
        return None
    for part in parts:
        if isinstance(part, torch.Tensor) and (device := _device(part)) is not None:
            return device
    return None


def _device(tensor: torch.Tensor) -> str | None:
    if type(tensor) is torch.Tensor:
        return None if tensor.is_cpu else str(tensor.device)
    with torch._C.DisableTorchFunctionSubclass():  # which would make this slow
        return None if tensor.is_cpu else str(tensor.device)


def not_on_cpu(device: str, key: SampleKey) -> SampleError:
    """Return the error for a sample that holds a tensor on a device."""
    return SampleError(
        f"sample {key.index} holds a tensor on {device}; samples must stay on the CPU: workers "
        "can send nothing else. Move whole batches in the training loop, which is also faster: "
        "batch.to(device, non_blocking=True)",
        sample=key.index,
    )
