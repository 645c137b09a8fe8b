"""What this process may use of the machine it runs on: "no information" is a normal answer.

Each name is loaded when first used: a worker needs little of this. The whole machine is looked at
by :func:`sharedds.host.machine.machine`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharedds.lazily import loaded_on_first_use

if TYPE_CHECKING:
    from sharedds.host.accelerator import Accelerator
    from sharedds.host.cpus import CpuShare, usable_cpus
    from sharedds.host.descriptors import DescriptorLimits, descriptor_limits
    from sharedds.host.machine import Machine
    from sharedds.host.memory import MachineMemory, machine_memory
    from sharedds.host.shared import SharedMemoryRoom, shared_memory_room
    from sharedds.host.starting import StartMethods, start_methods
    from sharedds.host.storage import Storage, storage_of

__all__ = [
    "Accelerator",
    "CpuShare",
    "DescriptorLimits",
    "Machine",
    "MachineMemory",
    "SharedMemoryRoom",
    "StartMethods",
    "Storage",
    "descriptor_limits",
    "machine_memory",
    "shared_memory_room",
    "start_methods",
    "storage_of",
    "usable_cpus",
]

_HOMES = {
    "Accelerator": "accelerator",
    "CpuShare": "cpus",
    "DescriptorLimits": "descriptors",
    "Machine": "machine",
    "MachineMemory": "memory",
    "SharedMemoryRoom": "shared",
    "StartMethods": "starting",
    "Storage": "storage",
    "descriptor_limits": "descriptors",
    "machine_memory": "memory",
    "shared_memory_room": "shared",
    "start_methods": "starting",
    "storage_of": "storage",
    "usable_cpus": "cpus",
}

__getattr__ = loaded_on_first_use(__name__, _HOMES)
