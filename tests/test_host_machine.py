"""The machine as a whole, made-up ones and the real one; accelerators; what makes fork unsafe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from machines import GIB, mount_line, write_machine

import sharedds
import sharedds.host
from sharedds.host.accelerator import Accelerator, accelerator, torch_device
from sharedds.host.descriptors import DescriptorLimits
from sharedds.host.machine import Machine, machine
from sharedds.host.shared import SharedMemoryRoom
from sharedds.host.starting import StartMethods, start_methods
from sharedds.host.storage import Storage

MODEL = "Model: \t\t NVIDIA H200\nIRQ:   5\n"
NVIDIA = {
    "dev/nvidia0": "",
    "dev/nvidia1": "",
    "dev/nvidiactl": "",
    "proc/driver/nvidia/gpus/0000:01:00.0/information": MODEL,
}
AMD = {
    "dev/kfd": "",
    "sys/class/kfd/kfd/topology/nodes/0/gpu_id": "0\n",
    "sys/class/kfd/kfd/topology/nodes/1/gpu_id": "45678\n",
}


# --- accelerators --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "environ", "count", "name"),
    [
        (NVIDIA, {}, 2, "NVIDIA H200"),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": "1"}, 1, "NVIDIA H200"),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": "0,-1,1"}, 1, "NVIDIA H200"),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": "GPU-1f,GPU-2f,GPU-3f"}, 2, "NVIDIA H200"),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": ""}, 0, ""),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": "-1"}, 0, ""),
        ({"dev/nvidiactl": "", "dev/nvidia-uvm": ""}, {}, 0, ""),
        ({"dev/nvhost-gpu": ""}, {}, 1, ""),
        ({"usr/lib/wsl/lib/libcuda.so.1": ""}, {}, 1, ""),
        (AMD, {}, 1, "AMD GPU (ROCm)"),
        (AMD, {"ROCR_VISIBLE_DEVICES": ""}, 0, ""),
        ({"dev/kfd": ""}, {}, 0, ""),
        ({"dev/nvidia0": "", "proc/driver/nvidia/gpus/0/information": "\0"}, {}, 1, ""),
        ({}, {}, 0, ""),
    ],
)
def test_accelerators_are_found_by_their_files(
    files: dict[str, str], environ: dict[str, str], count: int, name: str, tmp_path: Path
) -> None:
    """Without torch, and without waking them up; what is hidden is none."""
    found = accelerator(write_machine(tmp_path, files), environ=environ)
    assert (found.count if found else 0) == count
    if found is not None:
        assert (found.kind, found.name) == ("cuda", name)
        assert "/dev/" in found.reason or "libcuda" in found.reason


def torch_with(kind: str | None, *, is_initialized: bool) -> Any:
    """What is asked of torch; the name of a device only where CUDA is in use already."""

    def name_of(number: int) -> str:
        assert is_initialized, "this would start CUDA"
        return "Some GPU"

    device = SimpleNamespace(type=kind) if kind else None
    return SimpleNamespace(
        accelerator=SimpleNamespace(
            current_accelerator=lambda check_available: device, device_count=lambda: 4
        ),
        cuda=SimpleNamespace(is_initialized=lambda: is_initialized, get_device_name=name_of),
    )


@pytest.mark.parametrize(
    ("kind", "is_initialized", "name"), [("cuda", True, "Some GPU"), ("cuda", False, None)]
)
def test_torch_is_asked_only_where_it_is_loaded(
    kind: str, is_initialized: bool, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And never anything that would start CUDA."""
    monkeypatch.setitem(sys.modules, "torch", torch_with(kind, is_initialized=is_initialized))
    found = accelerator(environ={})
    assert found is not None
    assert (found.kind, found.count, found.reason) == (kind, 4, "says torch")
    assert name is None or found.name == name


def test_what_torch_cannot_use_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build for the CPU alone on a machine with a GPU trains on the CPU."""
    monkeypatch.setitem(sys.modules, "torch", torch_with(None, is_initialized=False))
    assert accelerator(environ={}) is None


@pytest.mark.parametrize("before", [None, "0"])
def test_torch_is_asked_in_a_way_that_does_not_start_cuda(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a variable of the environment, which is afterwards as it was."""
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    if before is None:
        monkeypatch.delenv(name, raising=False)
    else:
        monkeypatch.setenv(name, before)
    torch = torch_with("cuda", is_initialized=False)
    device, seen = SimpleNamespace(type="cuda"), []

    def current(*, check_available: bool) -> Any:
        seen.append((check_available, os.environ[name]))
        return device

    torch.accelerator.current_accelerator = current
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert torch_device() is device
    assert accelerator() is not None
    assert seen == [(True, "1")] * 2
    assert os.environ.get(name) == before
    monkeypatch.delitem(sys.modules, "torch")
    assert torch_device() is None


def test_half_of_torch_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """While another thread imports it, its parts are not there yet."""
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    accelerator(environ={})
    assert not any("CUDA" in hazard for hazard in start_methods().fork_hazards)


# --- starting processes --------------------------------------------------------------------------


@contextmanager
def a_thread(name: str) -> Iterator[None]:
    """A thread that lives as long as the block."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name=name)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


needs_fork = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")


@needs_fork
def test_threads_that_are_alive_are_named() -> None:
    """By the names that Python knows them by."""
    with a_thread("reader of pictures"):
        (hazard,) = start_methods().fork_hazards
        assert "reader of pictures" in hazard
        assert "locks" in hazard
    assert not any("reader" in hazard for hazard in start_methods().fork_hazards)


@needs_fork
def test_threads_of_native_code_are_counted(tmp_path: Path) -> None:
    """Python knows nothing of them; the kernel has their names."""
    names = ["python", "pool", "pool", "a", "b", "c", "d", ""]
    files = {f"proc/self/task/{100 + n}/comm": f"{name}\n" for n, name in enumerate(names)}
    (hazard,) = start_methods(write_machine(tmp_path, files)).fork_hazards
    assert hazard.startswith("7 other threads alive")
    assert hazard.endswith(": pool (2), a, b, c and 2 more")


@needs_fork
def test_cuda_in_use_makes_fork_unsafe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other ways to start a process stay; without CUDA nothing is said of it."""
    monkeypatch.setitem(sys.modules, "torch", torch_with("cuda", is_initialized=True))
    methods = start_methods()
    assert "CUDA" in methods.fork_hazards[0]
    assert {"fork", "spawn"} <= set(methods.available)
    monkeypatch.setitem(sys.modules, "torch", torch_with("cuda", is_initialized=False))
    assert not any("CUDA" in hazard for hazard in start_methods().fork_hazards)


def test_without_fork_it_has_no_hazards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has one way to start a process."""
    monkeypatch.setattr("multiprocessing.get_all_start_methods", lambda: ["spawn"])
    with a_thread("one"):
        methods = start_methods()
    assert methods.available == ("spawn",)
    assert methods.fork_hazards == ()


# --- all of it -----------------------------------------------------------------------------------

SERVER: dict[str, str] = NVIDIA | {
    "proc/meminfo": "MemTotal: 1056964608 kB\nMemAvailable: 900000000 kB\n",
    "proc/self/cgroup": "0::/pods/train\n",
    "proc/self/status": "Cpus_allowed_list:\t0-255\n",
    "proc/self/mountinfo": mount_line("/", "ext4", "/dev/nvme0n1", device="259:0")
    + mount_line("/data", "nfs4", "filer.example.org:/very/long/export/of/pictures"),
    "proc/self/task/1/comm": "python\n",
    "sys/fs/cgroup/pods/cpu.max": "200000 100000\n",
    "sys/fs/cgroup/pods/train/memory.max": str(64 * GIB),
    "sys/fs/cgroup/pods/train/memory.current": str(60 * GIB),
    "sys/fs/cgroup/pods/train/memory.stat": f"inactive_file {40 * GIB}\n",
    "sys/dev/block/259:0": "-> sys/devices/nvme0n1",
    "sys/devices/nvme0n1/queue/rotational": "0\n",
    "dev/shm/": "",
}


def server(root: Path) -> Machine:
    """A container of 2 CPUs and 64 GiB on a host of 256 CPUs, with two ranks."""
    return machine(
        ("/scratch/a.lmdb", "/data/b.lmdb"),
        root=write_machine(root, SERVER),
        environ={"LOCAL_WORLD_SIZE": "2"},
    )


def test_a_server_is_seen_as_what_its_container_may_use(tmp_path: Path) -> None:
    """Not as what the host has."""
    found = server(tmp_path)
    assert (found.cpus.count, found.local_ranks) == (1, 2)
    assert (found.memory.limit, found.memory.available) == (64 * GIB, 44 * GIB)
    assert found.accelerator is not None
    assert [storage.kind for storage in found.storage] == ["ssd", "network"]
    assert found.shared_memory is not None


@pytest.mark.parametrize("width", [80, 120])
def test_the_machine_is_one_screen(width: int, tmp_path: Path) -> None:
    """No line is too long, and each fact comes with what decided it."""
    lines = server(tmp_path).text(width).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= 24
    text = " ".join(" ".join(lines).split())
    for fact in (
        "2 CPUs by a cgroup quota of 2 of /pods, shared by 2 ranks",
        "2 (LOCAL_WORLD_SIZE)",
        "68.7 GB (memory.max of control group /pods/train)",
        "47.2 GB (below memory.max of control group /pods/train)",
        "2 × cuda, NVIDIA H200 (from /dev/nvidia*)",
        "/scratch/a.lmdb: ssd on nvme0n1 as ext4 (nvme0n1 does not rotate)",
        "/data/b.lmdb: network on filer.example.org:/very/long/export/of/pictures as nfs4",
    ):
        assert fact in text


def test_the_width_is_that_of_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within what is good to read."""
    found = server(tmp_path)
    for columns, width in (("100", 100), ("10", 60), ("1000", 120)):
        monkeypatch.setenv("COLUMNS", columns)
        assert str(found) == found.text(width)


@pytest.mark.parametrize(
    ("change", "name", "expected"),
    [
        ({"descriptors": DescriptorLimits(soft=None, hard=None)}, "open files", "no limit"),
        (
            {"descriptors": DescriptorLimits(soft=512, hard=4096, open=30)},
            "open files",
            "at most 512, 30 open now  (a loader raises it to 4,096)",
        ),
        (
            {"descriptors": DescriptorLimits(soft=512, hard=None)},
            "open files",
            "at most 512  (a loader raises it to 65,536)",
        ),
        ({"descriptors": DescriptorLimits(soft=9, hard=9, open=3)}, "open files", "3 open now"),
        ({"is_daemon": True}, "processes", "may start none"),
        ({"start_methods": StartMethods(available=("spawn",))}, "fork now", "not on this system"),
        (
            {"start_methods": StartMethods(available=("fork",), fork_hazards=("one", "two"))},
            "fork now",
            "one; two",
        ),
        ({"shared_memory": SharedMemoryRoom(1_000_000, 64_000_000)}, "/dev/shm", "1.0 MB free"),
        (
            {"accelerator": Accelerator(kind="xpu", count=1, name="", reason="r")},
            "accel",
            "1 × xpu",
        ),
        ({"storage": (Storage(path="a", kind=None),)}, "storage", "a: unknown"),
        ({"storage": (Storage(path="\udcff\n", kind=None),)}, "storage", r"\udcff\n: unknown"),
    ],
)
def test_each_fact_has_a_line(
    change: dict[str, Any], name: str, expected: str, tmp_path: Path
) -> None:
    """In words; what cannot be printed is written as Python would."""
    text = replace(server(tmp_path), **change).text(120)
    assert expected in next(line for line in text.splitlines() if line.strip().startswith(name))


def test_nothing_is_a_normal_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a system that tells nothing, the text says unknown and no call fails."""
    monkeypatch.setattr("sharedds.host.machine.descriptor_limits", lambda: None)
    found = machine("x", root=tmp_path, environ={})
    assert (found.memory.total, found.memory.available, found.memory.limit) == (None, None, None)
    assert (found.shared_memory, found.accelerator, found.descriptors) == (None, None, None)
    assert found.cpus.count >= 1
    rows = {line[:12].strip(): line[13:].strip() for line in str(found).splitlines()}
    for name in ("memory", "left", "/dev/shm", "open files"):
        assert rows[name] == "unknown"
    assert rows["storage"].startswith("x: unknown")


def test_garbage_in_every_file_is_no_error(tmp_path: Path) -> None:
    """Each file of the server holds each kind of nonsense once."""
    for number, text in enumerate(
        ("", "\n", "max", "-1", "9" * 5000, "\0\u00ff: x - y", "1 2 3 4 5 6 7")
    ):
        files = {
            name: old if old.startswith("-> ") or name.endswith("/") else text
            for name, old in SERVER.items()
        }
        root = write_machine(tmp_path / str(number), files)
        found = machine(["/data/a", "\0"], root=root, environ=dict.fromkeys(NAMES, text))
        assert found.cpus.count >= 1
        assert json.loads(json.dumps(found.to_dict()))["cpus"]["count"] >= 1
        assert str(found)


NAMES = (
    "LOCAL_WORLD_SIZE",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_STEP_ID",
    "SLURM_NODEID",
    "SLURM_CPUS_PER_TASK",
    "SLURM_CPUS_ON_NODE",
    "SLURM_MEM_PER_NODE",
    "SLURM_MEM_PER_CPU",
    "CUDA_VISIBLE_DEVICES",
)


def test_the_real_machine_answers() -> None:
    """Wherever this runs; here, files and the system agree."""
    found = sharedds.machine(Path(__file__))
    assert 1 <= found.cpus.count <= psutil.cpu_count()
    assert found.memory.total == psutil.virtual_memory().total
    assert found.memory.available is not None
    assert 0 < found.memory.available <= psutil.virtual_memory().total
    assert found.start_methods.available
    assert not found.is_daemon
    (storage,) = found.storage
    assert storage.path == __file__
    assert isinstance(found, sharedds.Machine)
    text = str(found)
    assert len(text.splitlines()) <= 24
    for name in ("CPUs", "memory", "/dev/shm", "open files", "accelerator", "fork now", __file__):
        assert name in text


def test_the_machine_becomes_plain_values(tmp_path: Path) -> None:
    """Its keys are those of the attributes, in their order, on any machine."""
    found = server(tmp_path)
    plain = found.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert list(plain) == [field.name for field in fields(Machine)]
    assert list(machine(root=tmp_path / "none", environ={}).to_dict()) == list(plain)
    assert plain["storage"][1]["kind"] == "network"
    assert plain["accelerator"] == {
        "kind": "cuda",
        "count": 2,
        "name": "NVIDIA H200",
        "reason": "from /dev/nvidia*",
    }
    assert isinstance(found.accelerator, Accelerator)


OTHER_SYSTEM = """
import json, multiprocessing, os, pathlib, platform, sys
import click, psutil

def nothing(*arguments, **options):
    raise FileNotFoundError

name = sys.argv[1]
pathlib.Path.read_text = os.listdir = nothing
del os.sched_getaffinity
if name == "win32":
    sys.modules["resource"] = None
    del os.statvfs
sys.platform = name
platform.system = lambda: name
import sharedds
print(json.dumps(sharedds.machine("/x").to_dict()), str(sharedds.machine()).count("unknown"))
"""


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems_answer_what_they_know(system: str) -> None:
    """There is no /proc; on Windows there are no limits of processes either."""
    code = [sys.executable, "-c", OTHER_SYSTEM, system]
    done = subprocess.run(code, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plain, _, unknown = done.stdout.rpartition(" ")
    found = json.loads(plain)
    assert found["cpus"]["count"] >= 1
    assert found["memory"]["total"] > 0
    assert found["memory"]["limit"] is None
    assert found["storage"][0]["kind"] is None
    assert (found["descriptors"] is None) == (system == "win32")
    assert (int(unknown) > 0) == (system == "win32")


def test_names_of_the_room_are_found_where_they_are_defined() -> None:
    """Loaded late, and typed as they are."""
    for name in sharedds.host.__all__:
        value = getattr(sharedds.host, name)
        assert value.__name__ == name
        assert value.__module__ == f"sharedds.host.{sharedds.host._HOMES[name]}"
    assert list(sharedds.host._HOMES) == sharedds.host.__all__
    with pytest.raises(AttributeError, match="no attribute 'Machin'"):
        _ = sharedds.host.Machin


def test_to_look_loads_nothing_heavy() -> None:
    """Neither torch nor LMDB nor NumPy; this is what a worker can afford at any time."""
    code = (
        "import sharedds, sys\n"
        "str(sharedds.machine('.'))\n"
        "print(sorted({'torch', 'lmdb', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
