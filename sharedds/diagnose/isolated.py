"""Work in a fresh process: bounded in time, answered over a file, and nothing stays behind.

What runs there is code of the user. It may fail, crash, hang, print or end the process; whatever it
does becomes a text, and everything that it has started is ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from sharedds.errors import SharedDSError
from sharedds.text import printable

__all__ = ["MAKING", "Finished", "kill_group", "run_isolated"]

MAKING = "making the dataset"

_TICK = 0.05
_LAST_WORDS = 1.0  # seconds that a process which hangs has to write where it is
_GOODBYE = 10.0  # seconds that a process which has answered has to end by itself
_OUTPUT = 4000  # characters
_START = 60.0  # seconds that a process has at least to say that it has begun
_PULSE = 2.0  # seconds
_WITHOUT_A_WORD = 10.0  # times the patience, however busy a process is
_FORGOTTEN = 3600.0  # seconds since anything was written to a folder that nobody uses
_PREFIX = "sharedds-trial-"
_HERE = os.path.dirname(__file__) + os.sep
_LONGEST_FOLDER = 70  # characters; the path of a socket may have 107, and some are added

#: A process that outlives this one by a moment. The trial has a thread for that, which ends it in
#: good order; but code that does not let go of the interpreter stops all threads.
_GUARD = """
import os, shutil, signal, sys, time
line, group, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
os.read(line, 1)
try:
    for _ in range(20):
        os.killpg(group, 0)
        time.sleep(0.1)
    os.killpg(group, signal.SIGKILL)
except OSError:
    pass
shutil.rmtree(folder, ignore_errors=True)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What became of some work in a process of its own.

    Attributes:
        results: What it answered, as plain values, one for each part of the work that ended.
        error: What went wrong, in one line; None if nothing did.
        details: A traceback or a stack, if there is one.
        output: The end of what the process printed.
        phase: What it did last.
    """

    results: tuple[dict[str, Any], ...] = ()
    error: str | None = None
    details: str = ""
    output: str = ""
    phase: str = "starting"


def run_isolated(
    task: str,
    work: Mapping[str, Any],
    make_recipe: Callable[[Path], Mapping[str, Any]],
    *,
    patience: float = 60.0,
    tick: Callable[[str], None] | None = None,
) -> Finished:
    """Run a task of :mod:`sharedds.diagnose.child` in a fresh process.

    Args:
        task: Its name.
        work: What it is given, as plain values.
        make_recipe: Called with a temporary folder; returns how to make the dataset.
        patience: Seconds without a sign of life after which the process counts as hanging: a word,
            computing, reading, or waiting for storage. Without a word at all, ten times as long.
        tick: Called several times a second with what the process does.

    Returns:
        What became of it; never an exception of the user's code.
    """
    _sweep(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        try:
            recipe = dict(make_recipe(folder))
        except SharedDSError as error:
            return Finished(error=str(error))
        return _run(folder, task, {**work, "target": recipe}, patience, tick)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(
    folder: Path,
    task: str,
    work: dict[str, Any],
    patience: float,
    tick: Callable[[str], None] | None,
) -> Finished:
    line, ours = os.pipe()
    held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # where there are no locks, nothing is swept
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        job = {"task": task, "line": line, "path": sys.path, "work": work}
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        with open(folder / "output", "wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "sharedds.diagnose.child", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(line,),
                start_new_session=True,
                env=_environment(folder),
            )
        guard: subprocess.Popen[bytes] | None = None
        try:
            guard = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _GUARD, str(line), str(process.pid), folder],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(line,),
                start_new_session=True,
            )
            silence = _wait(process, folder, patience, tick)
        finally:
            if guard is not None:  # before the pipe closes, or it would take our end for a sign
                guard.kill()
                guard.wait()
            _end(process)
    finally:
        os.close(line)
        os.close(ours)
        os.close(held)
    return _finished(folder, process.returncode, silence)


def _environment(folder: Path) -> dict[str, str]:
    """Ours, with a temporary folder that goes when the process is gone, and this package's place.

    Processes that are killed leave their temporary files, as the sockets of a fork server.
    """
    root = Path(__file__).parents[2]
    environ = dict(os.environ)
    # Python finds its own folder of packages itself; put first, backports in it would hide what
    # they stand in for.
    if root.name not in ("site-packages", "dist-packages"):
        known = os.environ.get("PYTHONPATH")
        environ["PYTHONPATH"] = f"{root}{os.pathsep}{known}" if known else str(root)
    if len(os.fsencode(folder)) <= _LONGEST_FOLDER:
        environ["TMPDIR"] = str(folder)
    return environ


def _wait(
    process: subprocess.Popen[bytes],
    folder: Path,
    patience: float,
    tick: Callable[[str], None] | None,
) -> str:
    """Wait for the end; return how a process hangs, empty if it does not."""
    seen, since = -1, time.monotonic()
    said = since
    life = _Life(process.pid, since, min(_PULSE, patience / 4))
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_TICK)
            return ""
        now = time.monotonic()
        size = _size(folder / "phase")
        if size != seen:
            seen, since, said = size, now, now
        elif now - since > life.spacing and life.shows(now, _phase(folder)):
            since = now
        if tick is not None:
            tick(_phase(folder))
        if (folder / "done").exists():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GOODBYE)
            return ""
        least = patience if size else max(patience, _START)
        longest = _WITHOUT_A_WORD * least
        if now - since > least or now - said > longest:
            with contextlib.suppress(subprocess.TimeoutExpired, ProcessLookupError):
                process.send_signal(signal.SIGABRT)  # faulthandler writes the stacks
                process.wait(_LAST_WORDS)
            if now - since > least:
                return f"no sign of life for {least:g} s"
            return f"not a word for {longest:g} s"


class _Life:
    """Whether a process and those below it work, though they say nothing.

    Args:
        pid: Of the process.
        now: The time.
        spacing: Seconds between two looks.
    """

    def __init__(self, pid: int, now: float, spacing: float) -> None:
        self.spacing = spacing
        self._pid = pid
        self._at = now
        self._known: tuple[float, int] | None = None

    def shows(self, now: float, phase: str) -> bool:
        """Look, if it is time to; return whether they worked since the look before."""
        if now - self._at < self.spacing and self._known is not None:
            return False
        passed, self._at = now - self._at, now
        cpu, nbytes, waits = 0.0, 0, False
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(self._pid)
            for each in [root, *root.children(recursive=True)]:
                with contextlib.suppress(psutil.Error, AttributeError):
                    used = each.cpu_times()
                    cpu += used.user + used.system
                    waits = waits or each.status() == psutil.STATUS_DISK_SLEEP
                    nbytes += each.io_counters().read_chars
        known, self._known = self._known, (cpu, nbytes)
        if known is None:
            return waits
        # Later on, what looks at the stacks works a little, too.
        busy, read = (0.01, 0.0) if phase in ("starting", MAKING) else (0.2, 1e6)
        return waits or cpu - known[0] > busy * passed or nbytes - known[1] > read * passed


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and all that it has started, which share its group."""
    trackers = kill_group(process.pid)
    process.wait()
    psutil.wait_procs(trackers, timeout=_LAST_WORDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _sweep(places: Path) -> None:
    """Remove the folders of trials that were ended together with all that looked after them.

    Whoever uses one holds a lock on it, also where the numbers of its processes mean nothing to us.
    """
    before = time.time() - _FORGOTTEN
    for folder in places.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                about = os.fstat(held)
                if about.st_uid == os.getuid() and about.st_mtime < before:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(held)


def kill_group(group: int, *, but: int | None = None) -> list[psutil.Process]:
    """Kill the processes of a group, but not those that clean up after the others.

    The standard library's resource tracker takes away named semaphores, and then ends by itself,
    when all that used them are gone.

    Args:
        group: The number of the group.
        but: A process to leave alone.

    Returns:
        The resource trackers.
    """
    trackers = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if each.pid == but or os.getpgid(each.pid) != group:
                continue
            if any("resource_tracker" in word for word in each.cmdline()):
                trackers.append(each)
            else:
                each.kill()
    return trackers


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _phase(folder: Path) -> str:
    """Return what the process said last that it does."""
    with contextlib.suppress(OSError):
        lines = (folder / "phase").read_text("utf-8", "replace").splitlines()
        return lines[-1] if lines else "starting"
    return "starting"


def _finished(folder: Path, code: int, silence: str) -> Finished:
    found = sorted(folder.glob("result-*.json"))
    results = [json.loads(path.read_text("utf-8")) for path in found]
    output, phase = _printed(folder / "output"), _phase(folder)
    error, details = None, ""
    if (folder / "done").exists():
        pass
    elif (folder / "failure.json").exists():
        failure = json.loads((folder / "failure.json").read_text("utf-8"))
        error, details = failure["error"], failure["details"]
    else:
        details = _stack(output)
        if silence:
            error = f"{silence} while {phase}"
        elif code < 0:
            error = f"the process was ended by {_signal(-code)} while {phase}"
        else:
            error = f"the process ended with exit code {code} while {phase}"
        if place := _place(details):
            error += f", at {place}"
    return Finished(
        results=tuple(results), error=error, details=details, output=output, phase=phase
    )


def _printed(path: Path) -> str:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _OUTPUT))
        lines = file.read().decode("utf-8", "replace").splitlines()
        return "\n".join(printable(line) for line in lines)
    return ""


def _stack(output: str) -> str:
    """Return the stack that faulthandler wrote of the thread that counts."""
    begin = output.rfind("Current thread 0x")
    if begin < 0:
        begin = output.rfind("Thread 0x")
    if begin < 0:
        return ""
    lines = output[begin:].splitlines()
    stack = [line for line in lines[1:] if line.lstrip().startswith("File ")]
    ours = [number for number, line in enumerate(stack) if _HERE in line]  # what called it
    return "\n".join(stack[: ours[0]] if ours and ours[0] else stack)


def _place(stack: str) -> str:
    """Return the innermost place that is neither Python's nor a library's."""
    for file, number, function in re.findall(r'File "(.+?)", line (\d+) in (.+)', stack):
        ours = os.sep + "sharedds" + os.sep in file
        if not ours and "site-packages" not in file and not file.startswith(sys.base_prefix):
            return f"{file}:{number} in {function}"
    return ""


def _signal(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
