"""What do several ranks on one machine, each with its own workers, hold of one store in memory?

Measured: ranks are processes of their own with RANK and WORLD_SIZE, as torchrun starts them; each
opens the store, has a loader with two workers that stay, and reads its part of an epoch. When all
are done and still there: the proportional memory (PSS) of the pages of the store in all processes,
the sum of what each counts for itself (RSS) beside it, and memory of no file for each rank with its
workers (anonymous and shm, PSS). "in memory" keeps the records as bytes objects in each rank.
Kept out: writing the store; the group of torch.distributed, which a loader does not need.
Reproduce: ``scripts/bench ranks_memory``. 2,000 records of 128 KiB, about 262 MB.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from harness import Benchmark, Case, Context, Goal, Runs, main
from torch.utils.data import Dataset

from sharedds.loader import build_loader
from sharedds.store import Store, StoreWriter

_COUNT, _BYTES, _MB = 2_000, 128 << 10, 1e6
_QUICK_COUNT = 40
_STORE, _EACH = "MB PSS of the store", "MB RSS of the store, each counted"
_OWN = "MB of no file, a rank with its workers"


class Stored(Dataset[int]):
    """The first byte of each record, after all of it was read."""

    def __init__(self, path: str) -> None:
        self.store = Store(path)

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, index: int) -> int:
        return int(np.frombuffer(self.store.read("record", index), np.uint8).max())


class InMemory(Dataset[int]):
    """The same of objects in this process."""

    def __init__(self, path: str) -> None:
        store = Store(path)
        self.records = [bytes(store.read("record", i)) for i in range(len(store))]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> int:
        return int(np.frombuffer(self.records[index], np.uint8).max())


KINDS: dict[str, Callable[[str], Any]] = {"store": Stored, "in memory": InMemory}


def prepare(context: Context) -> None:
    """Write the store."""
    rng = np.random.default_rng(0)
    with StoreWriter(context.work / "records.lmdb", schema={"record": "raw"}) as writer:
        for _ in range(_QUICK_COUNT if context.quick else _COUNT):
            writer.add({"record": np.frombuffer(rng.bytes(_BYTES), np.uint8)})


def be_rank(kind: str, path: str, workers: int) -> None:
    """Read the part of this rank, say so, and stay until told."""
    loader = build_loader(
        KINDS[kind](path),
        batch_size=10,
        num_workers=workers,
        persistent_workers=True,
    )
    for _ in loader:
        pass
    print("read", flush=True)
    sys.stdin.readline()


def below(pids: list[int]) -> list[list[int]]:
    """Return each process with all that are below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    trees = [[pid] for pid in pids]
    for tree in trees:
        for pid in tree:
            tree += children.get(pid, [])
    return trees


def weighed(pid: int, path: str) -> dict[str, int]:
    """Return the bytes of PSS and RSS of one file in a process, and the PSS of no file."""
    sizes = {"pss": 0, "rss": 0, "own": 0}
    is_of_store = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, _, rest = line.partition(":")
        if rest.endswith(" kB"):
            if is_of_store and name in ("Pss", "Rss"):
                sizes[name.lower()] += int(rest.split()[0]) << 10
        elif "-" in line.partition(" ")[0]:
            is_of_store = line.endswith(path)
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("Pss_Anon", "Pss_Shmem"):
            sizes["own"] += int(rest.split()[0]) << 10
    return sizes


def _running(kind: str, ranks: int) -> Callable[[Context], Mapping[str, float]]:
    def run(context: Context) -> Mapping[str, float]:
        path = context.work / "records.lmdb"
        workers = 1 if context.quick else 2
        command = [sys.executable, __file__, "--rank", kind, str(path), str(workers)]
        with contextlib.ExitStack() as stack:
            started: list[subprocess.Popen[bytes]] = []
            for rank in range(ranks):
                told = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
                process = subprocess.Popen(
                    command,
                    env=os.environ | told,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
                started.append(stack.enter_context(process))
                stack.callback(process.kill)
            for process in started:
                if process.stdout is None or process.stdout.readline() != b"read\n":
                    raise SystemExit("a rank ended before it had read its part")
            trees = below([process.pid for process in started])
            sizes = [[weighed(pid, str(path)) for pid in tree] for tree in trees]
            for process in started:
                process.communicate(b"\n", timeout=60)
        size = path.stat().st_size / _MB
        every = [weight for tree in sizes for weight in tree]
        return {
            _STORE: sum(weight["pss"] for weight in every) / _MB,
            _EACH: sum(weight["rss"] for weight in every) / _MB,
            "MB of the file": size,
            _OWN: sum(weight["own"] for weight in every) / _MB / ranks,
        }

    return run


def _name(kind: str, ranks: int) -> str:
    return f"{kind}: {ranks} {'rank' if ranks == 1 else 'ranks'}"


def _share(runs: Runs) -> list[float]:
    four = runs[_name("store", 4)]
    return [pss / size for pss, size in zip(four[_STORE], four["MB of the file"], strict=True)]


def _more(runs: Runs) -> list[float]:
    pairs = zip(runs[_name("store", 4)][_OWN], runs[_name("store", 1)][_OWN], strict=True)
    return [four - one for four, one in pairs]


BENCHMARK = Benchmark(
    file=__file__,
    question="What do several ranks, each with two workers, hold of one store in memory?",
    cases=(
        *(Case(name=_name("store", n), run=_running("store", n)) for n in (1, 4)),
        *(Case(name=_name("in memory", n), run=_running("in memory", n)) for n in (1, 4)),
    ),
    goals=(
        Goal(
            text="MB PSS of the store with 4 ranks over those of the file",
            values=_share,
            target=1.05,
            at_least=False,
            needs=(_name("store", 4),),
        ),
        Goal(
            text="MB of no file a rank more with 4 ranks than with 1",
            values=_more,
            target=5,
            at_least=False,
            needs=(_name("store", 4), _name("store", 1)),
        ),
    ),
    prepare=prepare,
    needs_pictures=False,
    rounds=1,
    quick_cases=2,
)

if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        be_rank(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main(BENCHMARK)
