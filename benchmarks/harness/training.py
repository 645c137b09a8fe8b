"""What the benchmarks of reading for training share: data, our cases, the rivals', goals."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.cases import Case, Context, Goal, Runs, against
from harness.epoch import batch_size, count_labels, read_epoch
from harness.figures import RATE, TOTAL, WORKERS
from harness.files import read_all
from harness.limits import decode_and_crop, decode_only
from sharedds import ImageDataset, Store, build_loader, export, pack

__all__ = [
    "DECODE",
    "ENGINES",
    "Form",
    "Rival",
    "limits",
    "ours",
    "over_limit",
    "over_rivals",
    "rival_cases",
    "torch_cases",
    "under_rivals",
]

DECODE = "limit: decode only, 2 processes"
ENGINES = ("process", "thread")
_TORCH, _TORCH_THERE = "torch alone", "torch alone, the rivals'"
_NAMES = {"process": "sharedds, processes", "thread": "sharedds, threads"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The shape in which images are stored.

    Args:
        name: Of the files in ``work``: ``NAME.lmdb`` is ours; in ``NAME/`` rivals find the same
            images, byte for byte: class folders, or for raw ones ``images.npy``, ``labels.npy``.
        repeat: How often an epoch has each picture, under names of its own: few pictures make an
            epoch of enough batches.
        packing: Options of :func:`sharedds.pack`.
    """

    name: str
    repeat: int
    packing: Mapping[str, Any] = field(default_factory=dict)

    def prepare(self, context: Context) -> None:
        """Write the store, and the same images for the rivals."""
        pictures, store = context.work / "pictures-linked", self.store(context)
        link_pictures(context.data, pictures, self.repeat)
        pack(pictures, store, progress=False, **self.packing)
        source = context.work / self.name
        if self.packing.get("codec") == "raw":
            _write_arrays(store, source)
        elif self.packing:
            export(store, source, progress=False)
        else:
            pictures.rename(source)
        shutil.rmtree(pictures, ignore_errors=True)

    def store(self, context: Context) -> Path:
        """Our file."""
        return context.work / f"{self.name}.lmdb"


def link_pictures(data: Path, target: Path, repeat: int) -> None:
    """Make class folders that have every picture ``repeat`` times, at no room on the disk."""
    for path in sorted(path for path in data.rglob("*") if path.is_file()):
        folder = target / path.parent.relative_to(data)
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(repeat):
            name = folder / f"{number}_{path.name}"
            try:
                os.link(path, name)
            except OSError:  # on another file system
                shutil.copyfile(path, name)


def _write_arrays(store: Path, target: Path) -> None:
    """Write the column of pixels and that of labels of a raw store as files of NumPy."""
    opened = Store(store)
    target.mkdir()
    for field_name, name in (("image", "images"), ("label", "labels")):
        column = opened.column(field_name)
        file = np.lib.format.open_memmap(target / f"{name}.npy", "w+", column.dtype, column.shape)
        for start in range(0, len(column), 256):
            file[start : start + 256] = column[start : start + 256]
        file.flush()


def ours(form: Form, engine: str, view: Callable[[], Any], workers: int = WORKERS) -> Case:
    """Our reading of a store, by worker processes or threads.

    Args:
        form: What is read.
        engine: "process" or "thread".
        view: Makes the view.
        workers: How many make batches.
    """

    def run(context: Context) -> Mapping[str, float]:
        store, counts = form.store(context), count_labels(context.work / form.name)
        read_all(store)

        def make() -> Iterable[tuple[Any, Any]]:
            return build_loader(
                ImageDataset(store, view=view()),
                batch_size=batch_size(int(counts.sum())),
                shuffle=True,
                num_workers=workers,
                engine=engine,
            )

        return read_epoch(make, counts, workers=workers)

    return Case(name=_NAMES[engine], run=run)


def limits(form: Form) -> tuple[Case, ...]:
    """What two processes reach that only decode the same files, or decode and crop in a loop."""

    def decode(context: Context) -> Mapping[str, float]:
        return decode_only(context.work / form.name)

    def decode_and_cut(context: Context) -> Mapping[str, float]:
        return decode_and_crop(context.work / form.name)

    loop = "limit: decode and crop in a loop, 2 processes"
    return Case(name=DECODE, run=decode), Case(name=loop, run=decode_and_cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A rival's way to read the same images.

    Args:
        name: What the result calls it.
        script: In ``rivals/``, without the ending.
        variant: Its last argument.
        makes: Whether it writes files of its own first.
        rounds: Run only so often; None for all.
    """

    name: str
    script: str
    variant: str = "-"
    makes: bool = True
    rounds: int | None = None

    def case(self, form: str) -> Case:
        """Its case for one form of the images."""
        script = f"{self.script}.py"
        return Case(
            name=self.name,
            rival=(script, form, "epoch", self.variant),
            keeps=f"{self.script}-{self.variant}-{form}",
            makes=(script, form, "prepare", self.variant) if self.makes else (),
            rounds=self.rounds,
        )


def rival_cases(rivals: Iterable[Rival], form: Form) -> tuple[Case, ...]:
    """The cases of rivals."""
    return tuple(rival.case(form.name) for rival in rivals)


def over_limit(engine: str, limit: str, target: float, what: str) -> Goal:
    """Return the goal to come near a limit of the machine."""
    name = _NAMES[engine]
    return Goal(
        text=f"{name}: img/s over {what}",
        values=lambda runs: against(runs, name, RATE, (limit,)),
        target=target,
        needs=(name, limit),
    )


def over_rivals(engine: str, rivals: Iterable[Rival], target: float) -> Goal:
    """Return the goal to be faster than the best rival."""
    name, names = _NAMES[engine], tuple(rival.name for rival in rivals)
    return Goal(
        text=f"{name}: img/s over the best rival",
        values=lambda runs: against(runs, name, RATE, names),
        target=target,
        needs=(name,),
        needs_one=names,
    )


def torch_cases() -> tuple[Case, Case]:
    """What torch alone takes, here and in the interpreter of the rivals, which has another one."""

    def run(context: Context) -> Mapping[str, float]:
        command = [sys.executable, str(Path(__file__).parents[1] / "rivals" / "torch_alone.py")]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        done = subprocess.run(command, env=environment, capture_output=True, check=True)
        figures: dict[str, float] = json.loads(done.stdout)
        return figures

    there = Case(name=_TORCH_THERE, rival=("torch_alone.py",), rounds=1)
    return Case(name=_TORCH, run=run, rounds=1), there


def under_rivals(engine: str, rivals: Iterable[Rival], figure: str = TOTAL) -> Goal:
    """Return the goal to hold less memory than every rival.

    Theirs count less what torch alone takes there, plus what it takes here.
    """
    name, names = _NAMES[engine], tuple(rival.name for rival in rivals)

    def values(runs: Runs) -> list[float]:
        (here,), (there,) = runs[_TORCH][figure], runs[_TORCH_THERE][figure]
        found = {other: runs[other][figure] for other in names if other in runs}
        moved = {other: {figure: [v - there + here for v in found[other]]} for other in found}
        return against({name: runs[name], **moved}, name, figure, names, min)

    return Goal(
        text=f"{name}: {figure}, over that of the smallest rival with the same torch",
        values=values,
        target=1,
        at_least=False,
        needs=(name, _TORCH, _TORCH_THERE),
        needs_one=names,
    )
