"""The process that a trial runs in: ``python -m sharedds.diagnose.child FOLDER``."""

from __future__ import annotations

import faulthandler
import json
import os
import re
import shutil
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import torch

from sharedds.diagnose.examine import examine
from sharedds.diagnose.isolated import MAKING, kill_group
from sharedds.diagnose.loading import measure_loading
from sharedds.diagnose.profile import profile_samples
from sharedds.diagnose.target import Opened, Target
from sharedds.diagnose.transfer import measure_transfer
from sharedds.errors import SharedDSError

__all__ = ["Report", "failure", "main"]

_HERE = os.path.dirname(__file__) + os.sep
#: What torch says where tensors of several shapes shall be one, in the trainer and in a worker.
_NOT_ALIKE = ("stack expects each tensor to be equal size", "storage that is not resizable")
_NO_STACK = (
    "; samples of different shapes do not stack: make them alike in the dataset, or name a "
    "DataLoader with a collate_fn of its own"
)


class Report:
    """What the process tells the one that started it, as files of a folder.

    Args:
        folder: Where they go.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._results = 0

    def say(self, phase: str) -> None:
        """Tell what is done now; also a sign of life."""
        with open(self._folder / "phase", "a", encoding="utf-8") as file:
            file.write(phase.replace("\n", " ") + "\n")

    def add(self, result: Mapping[str, Any]) -> None:
        """Hand over the result of one part of the work."""
        self._write(f"result-{self._results:04}.json", result)
        self._results += 1

    def fail(self, error: BaseException) -> None:
        """Hand over what went wrong."""
        self._write("failure.json", failure(error))

    def done(self) -> None:
        """Tell that all of the work is done."""
        self._write("done", {})

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        part = self._folder / f"{name}.part"
        part.write_text(json.dumps(value), encoding="utf-8")
        part.rename(self._folder / name)


def failure(error: BaseException) -> dict[str, str]:
    """Return an error as plain text: one line, and the traceback of the user's code."""
    if isinstance(error, SharedDSError):  # its text may go on with the traceback of a sample
        text, _, details = str(error).partition("\n\n")
        if told := _of_worker(str(error)):
            text, details = re.sub(r"^sharedds\.[\w.]+: ", "", told), str(error)
        return {"error": text, "details": details or _trace(error.__cause__)}
    if isinstance(error, SystemExit):
        text = f"the code of the dataset ended the process: SystemExit({error.code!r})"
    else:
        # KeyError would show the repr.
        text = str(error.args[0] if len(error.args) == 1 else error)
        text = _of_worker(text) or f"{type(error).__name__}: {error}".rstrip(": ")
    if any(words in text for words in _NOT_ALIKE):
        text += _NO_STACK
    return {"error": text, "details": _trace(error)}


def _trace(error: BaseException | None) -> str:
    """Return a traceback without our own part of the stack, which says nothing."""
    if error is None:
        return ""
    place = error.__traceback__
    while place is not None and place.tb_frame.f_code.co_filename.startswith(_HERE):
        place = place.tb_next
    return "".join(traceback.format_exception(type(error), error, place))


def _of_worker(text: str) -> str | None:
    """Return the last line of the traceback that torch puts into the error of a worker."""
    _, found, trace = text.partition("Original Traceback (most recent call last):")
    lines = [line for line in trace.splitlines() if re.match(r"[A-Za-z_][\w.]*(: |$)", line)]
    return lines[-1] if found and lines else None


def _run_trials(opened: Opened, work: Mapping[str, Any], report: Report) -> None:
    threads = torch.get_num_threads()
    for options in work["trials"]:
        torch.set_num_threads(threads)  # whatever the trial before has made of it
        try:
            report.add(measure_loading(opened, options, report.say))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the user's code, whatever it does
            report.add(failure(error))


def _run_profile(opened: Opened, work: Mapping[str, Any], report: Report) -> None:
    report.say("loading the first samples")
    size = work["batch_size"] or opened.batch_size or work["default_batch_size"]
    profile, samples = profile_samples(
        opened, batch_size=size, seconds=work["seconds"], say=report.say
    )
    report.add(profile | {"batch_size": size})
    report.say("sending samples from a worker")
    try:
        cost = measure_transfer(
            samples,
            collate_fn=opened.collate_fn,
            batch_size=size,
            seconds=work["transfer_seconds"],
        )
    except Exception as error:  # samples that no worker can be given
        report.add(failure(error))
    else:
        report.add({"seconds_per_sample": cost})


_TASKS: dict[str, Callable[[Opened, Mapping[str, Any], Report], None]] = {
    "examine": lambda opened, _, report: report.add(examine(opened, report.say)),
    "profile": _run_profile,
    "trials": _run_trials,
}


def _end_with_parent(line: int, folder: Path) -> None:
    """Start a thread that ends this group of processes once nobody waits for it any more."""

    def watch() -> None:
        os.read(line, 1)  # returns when the other end is closed, by whatever end of its process
        shutil.rmtree(folder, ignore_errors=True)
        kill_group(os.getpgrp(), but=psutil.Process().pid)
        os._exit(1)

    threading.Thread(target=watch, name="sharedds-orphan-guard", daemon=True).start()


def main(folder: Path) -> None:
    """Do the job that is described in a folder, and leave the results there."""
    report = Report(folder)
    try:
        faulthandler.enable()
        job = json.loads((folder / "job.json").read_text("utf-8"))
        _end_with_parent(job["line"], folder)
        sys.path[:] = job["path"]
        report.say(MAKING)
        opened = Target(**job["work"]["target"]).open()
        _TASKS[job["task"]](opened, job["work"], report)
        report.done()
    except BaseException as error:  # the user's code, whatever it does
        report.fail(error)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
