"""What this process may use of the machine it runs on: "no information" is a normal answer."""

from __future__ import annotations

from sharedds.host.cpus import CpuShare, cpu_quota, usable_cpus
from sharedds.host.starting import FORK_AFTER_CUDA

__all__ = ["FORK_AFTER_CUDA", "CpuShare", "cpu_quota", "usable_cpus"]
