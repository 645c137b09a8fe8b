"""Is ``max_memory`` kept while training, and what does a plain ``DataLoader`` take for the same?

Measured: from outside, every 50 ms: the memory of the training process and all below it, as
proportional memory (PSS) in all, and the part of it that the kernel cannot take back (anonymous and
shm); the peak of both. Batches on their way are shared memory that no process may have touched:
files there that any of them holds open are counted whole, and once. Two jobs: the photos with a
crop and a flip, batch 64; samples of 100 MB (a volume each, made by the worker), batch 2. A step
takes 20 ms. Each with ``build_loader`` under budgets of 1, 2 and 4 GiB, and with torch's
``DataLoader`` with 2 and 4 workers and what it does by itself. Batches are ready in advance where
steps are slow: samples of 100 MB with steps of 0.3 s, with 2 GiB, and by torch with 8 workers that
have 4 batches in advance each. A budget that is refused before the start counts as kept, and the
case says so with a rate of 0: the nearest plan is in the error.
Kept out: packing.
Reproduce: ``scripts/bench memory_budget --data FOLDER``.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from harness import Benchmark, Case, Context, Goal, Runs, main
from torch.utils.data import DataLoader

from sharedds import ImageDataset, build_loader
from sharedds.errors import OptionError, SourceError
from sharedds.memory import ProcessMemory, process_tree

_Run = Callable[[Context], Mapping[str, float]]

_GIB = 1 << 30
_PEAK, _OWN, _RATE = "GiB PSS, peak", "GiB anonymous and shm, peak", "samples/s"
_PHOTOS, _VOLUMES = "photos", "100 MB samples"
_BUDGETS = (1, 2, 4)
_PLAIN = (2, 4)
_SECONDS, _QUICK_SECONDS = 12.0, 0.3
_STEP, _SLOW_STEP = 0.02, 0.3
_AHEAD = 2  # torch, by itself
#: The job, GiB or None for torch, its workers, batches in advance of each, seconds for a step.
_Job = tuple[str, int | None, int, int, float]
_BATCHES = "/dev/shm/torch_"


class _Volumes:
    """Samples of 100 MB that cost little to make."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((100, 1000, 1000), index % 251, dtype=torch.uint8)


def _crop(image: torch.Tensor) -> torch.Tensor:
    """A random square of 224 pixels, at times mirrored."""
    top, left = (int(torch.randint(0, max(1, side - 223), ())) for side in image.shape[-2:])
    part = image[..., top : top + 224, left : left + 224]
    part = torch.nn.functional.pad(part, (0, 224 - part.shape[-1], 0, 224 - part.shape[-2]))
    return part.flip(-1) if torch.rand(()) < 0.5 else part


def _train(
    job: str, data: str, budget: str, workers: str, ahead: str, step: str, seconds: str
) -> None:
    """Train for a while and print how many samples came in a second."""
    dataset: Any = ImageDataset(data, transform=_crop) if job == _PHOTOS else _Volumes()
    batch_size = 64 if job == _PHOTOS else 2
    loader: Any
    if budget == "none":
        loader = DataLoader(
            dataset,
            batch_size,
            shuffle=True,
            num_workers=int(workers),
            prefetch_factor=int(ahead),
        )
    else:
        try:
            loader = build_loader(
                dataset, batch_size=batch_size, shuffle=True, max_memory=int(budget) * _GIB
            )
        except OptionError as error:
            print(f"refused: {error}", file=sys.stderr)
            print(0.0)
            return
    count, begin, end = 0, 0.0, 0.0
    while not end or end - begin < float(seconds):
        for batch in loader:
            count += len(batch[0] if isinstance(batch, list | tuple) else batch)
            time.sleep(float(step))
            end = time.perf_counter()
            if not begin:  # the first batch is the start of the workers
                begin, count = end, 0
            if end - begin >= float(seconds):
                break
    print(count / (end - begin))


def _held(tree: Iterable[ProcessMemory]) -> tuple[int, int]:
    """Bytes of the tree: in all, and what the kernel cannot take back."""
    files: dict[int, int] = {}
    mapped: set[int] = set()
    pss = anonymous = shared = 0
    for one in tree:
        pss += one.pss or 0
        anonymous += one.anonymous or 0
        shared += one.shared_memory or 0
        with contextlib.suppress(OSError):  # it has just ended
            files |= _opened(one.pid)
            mapped |= _mapped(one.pid)
    # What is mapped counts once it is touched, in the shares; the rest only by its file.
    unmapped = sum(size for inode, size in files.items() if inode not in mapped)
    held = max(shared + unmapped, sum(files.values()))
    return pss - shared + held, anonymous + held


def _opened(pid: int) -> dict[int, int]:
    """Size of each file with a batch that a process holds open, by inode; unlinked ones, too."""
    found = {}
    folder = f"/proc/{pid}/fd/"
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(folder + name).startswith(_BATCHES):
                info = os.stat(folder + name)
                found[info.st_ino] = info.st_blocks * 512
    return found


def _mapped(pid: int) -> set[int]:
    """The inodes of the files with batches that a process maps."""
    with open(f"/proc/{pid}/maps") as file:
        return {int(line.split(None, 5)[4]) for line in file if _BATCHES in line}


def _running(job: _Job) -> _Run:
    kind, budget, workers, ahead, step = job

    def run(context: Context) -> Mapping[str, float]:
        words = (kind, context.data, budget or "none", workers, ahead, step)
        seconds = _QUICK_SECONDS if context.quick else _SECONDS
        command = [sys.executable, __file__, "--train", *map(str, words), str(seconds)]
        peak = own = 0
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            while child.poll() is None:
                time.sleep(0.05)
                try:
                    held = _held(process_tree(child.pid))
                except (OSError, SourceError):  # it has just ended
                    break
                peak, own = max(peak, held[0]), max(own, held[1])
            text = child.communicate()[0]
        if child.returncode:
            raise SystemExit("training failed")
        return {_PEAK: peak / _GIB, _OWN: own / _GIB, _RATE: float(text.split()[-1])}

    return run


def _name(job: _Job) -> str:
    kind, budget, workers, ahead, step = job
    slow = f", steps of {step} s" if step != _STEP else ""
    if budget is not None:
        return f"{kind}, sharedds, {budget} GiB{slow}"
    advance = f", {ahead} ahead" if ahead != _AHEAD else ""
    return f"{kind}, torch, {workers} workers{advance}{slow}"


def _share(name: str, budget: int) -> Callable[[Runs], list[float]]:
    return lambda runs: [peak / budget for peak in runs[name][_PEAK]]


_JOBS: tuple[_Job, ...] = (
    *(
        (kind, budget, workers, _AHEAD, _STEP)
        for kind in (_PHOTOS, _VOLUMES)
        for budget, workers in (*((size, 0) for size in _BUDGETS), *((None, n) for n in _PLAIN))
    ),
    (_VOLUMES, 2, 0, _AHEAD, _SLOW_STEP),
    (_VOLUMES, None, 8, 4, _SLOW_STEP),
)

BENCHMARK = Benchmark(
    quick_cases=1,
    file=__file__,
    question="Is max_memory kept while training, and what does a plain DataLoader take?",
    cases=tuple(Case(name=_name(job), run=_running(job)) for job in _JOBS),
    goals=tuple(
        Goal(
            text=f"peak PSS of the tree over the budget: {_name(job)}",
            values=_share(_name(job), job[1]),
            target=1.0,
            at_least=False,
            needs=(_name(job),),
        )
        for job in _JOBS
        if job[1] is not None
    ),
    rounds=3,
)

if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        _train(*sys.argv[2:])
    else:
        main(BENCHMARK)
