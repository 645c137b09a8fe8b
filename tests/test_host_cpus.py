"""CPUs that a process may use, on made-up machines: who limits them, and who shares them."""

from __future__ import annotations

from pathlib import Path

import pytest
from machines import mount_line, write_machine

from sharedds.host.cpus import cpu_quota, usable_cpus
from sharedds.host.groups import control_groups
from sharedds.host.ranks import local_ranks, slurm_count

TWO_CORES = "200000 100000\n"


def status(cpus: str) -> dict[str, str]:
    """The affinity of the process on a made-up machine."""
    return {"proc/self/status": f"Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t{cpus}\n"}


HOST = status("0-255")
SLURM = {"SLURM_STEP_ID": "0", "SLURM_NTASKS_PER_NODE": "8", "SLURM_CPUS_ON_NODE": "128"}


@pytest.mark.parametrize(
    ("files", "environ", "count", "reason"),
    [
        (status("0-7"), {}, 8, "8 CPUs for this process"),
        (status("3"), {}, 1, "1 CPU for this process"),
        (status("0-3,8-11,64"), {}, 9, "9 CPUs for this process"),
        (HOST | {"sys/fs/cgroup/cpu.max": TWO_CORES}, {}, 2, "2 CPUs by a cgroup quota of 2"),
        (
            HOST
            | {
                "proc/self/cgroup": "0::/pod/box\n",
                "sys/fs/cgroup/pod/cpu.max": TWO_CORES,
                "sys/fs/cgroup/pod/box/cpu.max": "1600000 100000",
            },
            {},
            2,
            "2 CPUs by a cgroup quota of 2 of /pod",
        ),
        (HOST, {"LOCAL_WORLD_SIZE": "8"}, 32, "256 CPUs for this process, shared by 8 ranks"),
        (HOST, {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 64, "shared by 4 ranks"),
        (HOST, {"MPI_LOCALNRANKS": "2"}, 128, "shared by 2 ranks"),
        (
            HOST | {"sys/fs/cgroup/cpu.max": "1600000 100000"},
            {"LOCAL_WORLD_SIZE": "8"},
            2,
            "16 CPUs by a cgroup quota of 16, shared by 8 ranks",
        ),
        (status("0-15"), SLURM, 16, "16 CPUs for this process"),
        (status("0-127"), SLURM, 16, "128 CPUs by SLURM_CPUS_ON_NODE, shared by 8 ranks"),
        (status("0-63"), SLURM, 16, "128 CPUs by SLURM_CPUS_ON_NODE, shared by 8 ranks"),
        (HOST, {"SLURM_CPUS_ON_NODE": "32"}, 32, "32 CPUs by SLURM_CPUS_ON_NODE"),
        (
            status("0-127"),
            SLURM | {"SLURM_CPUS_PER_TASK": "4"},
            4,
            "4 CPUs by SLURM_CPUS_PER_TASK",
        ),
        (
            status("0-63"),
            {"SLURM_NTASKS_PER_NODE": "1", "SLURM_CPUS_PER_TASK": "64", "LOCAL_WORLD_SIZE": "8"},
            8,
            "shared by 8 ranks",
        ),
        (HOST | {"sys/fs/cgroup/cpu.max": "5000 100000"}, {}, 1, "a cgroup quota of 0.05"),
        (status("0-1"), {"LOCAL_WORLD_SIZE": "8"}, 1, "2 CPUs for this process, shared by 8"),
    ],
    ids=[
        "laptop",
        "one core",
        "list with holes",
        "256 cores, quota of 2",
        "the parent binds",
        "8 ranks",
        "Open MPI",
        "Intel MPI",
        "8 ranks below a quota",
        "SLURM binds each task",
        "SLURM binds no task",
        "SLURM binds tasks to sockets",
        "SLURM binds nothing",
        "SLURM grants to each task",
        "torchrun in one SLURM task",
        "a part of a core",
        "more ranks than cores",
    ],
)
def test_the_share_of_a_process_is_the_least_of_all(
    files: dict[str, str], environ: dict[str, str], count: int, reason: str, tmp_path: Path
) -> None:
    """Affinity, quota, SLURM and the ranks beside it; the reason names what decided."""
    share = usable_cpus(environ=environ, root=write_machine(tmp_path, files))
    assert share.count == count
    assert reason in share.reason


@pytest.mark.parametrize(
    "text",
    [
        "",
        "max",
        "max 100000",
        "max max",
        "-1 100000",
        "0 100000",
        "200000 0",
        "2e5 100000",
        "two cores",
        "200000 100000 7",
        "\0\0 \xff",
        f"{'9' * 5000} 1",
        "²00000 100000",
    ],
)
def test_a_quota_that_is_none_limits_nothing(text: str, tmp_path: Path) -> None:
    """Whatever a file holds, no error and no limit comes of it."""
    assert cpu_quota(write_machine(tmp_path, {"sys/fs/cgroup/cpu.max": text})) is None


def test_a_file_that_cannot_be_read_limits_nothing(tmp_path: Path) -> None:
    """A folder instead of a file, as good as any other failure."""
    root = write_machine(
        tmp_path, {"sys/fs/cgroup/cpu.max/": "", "proc/self/cgroup/": "", "proc/self/status/": ""}
    )
    assert cpu_quota(root) is None
    assert usable_cpus(environ={}, root=root).count >= 1


# --- control groups ------------------------------------------------------------------------------

QUOTA_V1 = {"cpu.cfs_quota_us": "300000", "cpu.cfs_period_us": "100000"}


def below(folder: str, files: dict[str, str]) -> dict[str, str]:
    """The same files in a folder."""
    return {f"{folder}/{name}": text for name, text in files.items()}


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        (
            {"proc/self/cgroup": "0::/../../other\n", "sys/fs/cgroup/cpu.max": TWO_CORES}
            | {"sys/fs/cgroup/other/cpu.max": "100000 100000"},
            2,
        ),
        ({"proc/self/cgroup": "0::/docker/a\n", "sys/fs/cgroup/cpu.max": TWO_CORES}, 2),
        (
            {"proc/self/cgroup": "3:cpuacct,cpu:/box\n0::/\n"}
            | below("sys/fs/cgroup/cpuacct,cpu/box", QUOTA_V1),
            3,
        ),
        (
            {"proc/self/cgroup": "3:cpu,cpuacct:/box\n0::/\n"}
            | below("sys/fs/cgroup/cpu", QUOTA_V1),
            3,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/docker/a/job\n0::/\n",
                "proc/self/mountinfo": mount_line(
                    "/sys/fs/cgroup/cpu", "cgroup", "cgroup", root="/docker/a", options="rw,cpu"
                ),
            }
            | below("sys/fs/cgroup/cpu/job", QUOTA_V1),
            3,
        ),
        (
            {
                "proc/self/cgroup": "0::/job\n",
                "proc/self/mountinfo": mount_line("/cg", "cgroup2", "none"),
                "cg/job/cpu.max": TWO_CORES,
                "sys/fs/cgroup/cpu.max": "100000 100000",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/box\n3:cpu:/\n0::/box\n",
                "sys/fs/cgroup/unified/box/cpu.max": TWO_CORES,
            }
            | below("sys/fs/cgroup/cpu", QUOTA_V1),
            2,
        ),
        ({"proc/self/cgroup": "garbage\n::\n0:\n\n:cpu\n7:cpuset:/x\n"}, None),
        (
            {
                "proc/self/cgroup": f"0::/{'x' * 5000}/y\n",
                "sys/fs/cgroup/cpu.max": TWO_CORES,
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "0::/gone (deleted)\n",
                "proc/self/mountinfo": "no mount\n - \n36 35\n" + " " * 20 + "- a b\n",
                "sys/fs/cgroup/cpu.max": TWO_CORES,
            },
            2,
        ),
    ],
    ids=[
        "outside of the namespace",
        "path of the host in a container",
        "controllers in another order",
        "a link for one controller",
        "a part is mounted",
        "mounted elsewhere",
        "both versions",
        "garbage",
        "a name of 5,000 letters",
        "a group that is gone",
    ],
)
def test_groups_are_found_wherever_they_are(
    files: dict[str, str], quota: float | None, tmp_path: Path
) -> None:
    """Of both versions, in containers too, up to the top of what is seen here."""
    assert cpu_quota(write_machine(tmp_path, files)) == quota


def test_cpus_and_memory_are_looked_for_in_one_way(tmp_path: Path) -> None:
    """The same groups for both where one hierarchy has both."""
    root = write_machine(
        tmp_path, {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000"}
    )
    groups = control_groups("memory", root)
    assert [group.name for group in groups] == ["/a/b", "/a", "/"]
    assert control_groups("cpu", root) == groups


# --- ranks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "count", "are_tasks"),
    [
        ({}, 1, False),
        ({"LOCAL_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 8, False),
        ({"LOCAL_WORLD_SIZE": "nonsense", "MPI_LOCALNRANKS": "3"}, 3, False),
        ({"LOCAL_WORLD_SIZE": "-8"}, 1, False),
        ({"LOCAL_WORLD_SIZE": "0"}, 1, False),
        ({"SLURM_NTASKS_PER_NODE": "16"}, 1, False),
        ({"SLURM_STEP_ID": "0", "SLURM_NTASKS_PER_NODE": "4"}, 4, True),
        (
            {"SLURM_STEP_ID": "1", "SLURM_NTASKS_PER_NODE": "8", "SLURM_STEP_TASKS_PER_NODE": "1"},
            1,
            False,
        ),
        ({"LOCAL_WORLD_SIZE": "4", "SLURM_STEP_ID": "0", "SLURM_NTASKS_PER_NODE": "4"}, 4, True),
        ({"LOCAL_WORLD_SIZE": "4", "SLURM_NTASKS_PER_NODE": "4"}, 4, False),
        ({"LOCAL_WORLD_SIZE": "4", "SLURM_NTASKS_PER_NODE": "1"}, 4, False),
        ({"SLURM_TASKS_PER_NODE": "8(x2)"}, 1, False),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "8(x2)"}, 8, True),
        (
            {"SLURM_STEP_ID": "0", "SLURM_TASKS_PER_NODE": "8(x2),3", "SLURM_NODEID": "2"},
            3,
            True,
        ),
        ({"SLURM_STEP_ID": "0", "SLURM_TASKS_PER_NODE": "8(x"}, 1, False),
    ],
)
def test_ranks_of_this_machine_are_counted(
    environ: dict[str, str], count: int, are_tasks: bool
) -> None:
    """By what launchers say; a batch script alone on its node has no tasks beside it."""
    ranks = local_ranks(environ)
    assert (ranks.count, ranks.are_tasks) == (count, are_tasks)
    assert ranks.reason in environ or ranks.count == 1


@pytest.mark.parametrize(
    ("text", "node", "count"),
    [
        ("16", None, 16),
        ("16(x3),8", "2", 16),
        ("16(x3),8", "3", 8),
        ("16(x3),8", "9", 8),
        ("16,8", "x", 16),
        (None, None, None),
        ("0", None, None),
        ("16(x3", None, None),
        ("9" * 50, None, None),
    ],
)
def test_counts_of_nodes_are_read_as_slurm_writes_them(
    text: str | None, node: str | None, count: int | None
) -> None:
    """Repeated ones in brackets."""
    assert slurm_count(text, node) == count
