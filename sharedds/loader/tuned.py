"""Plans that were found by measuring, kept in small files for the next run.

A file belongs to one dataset on one kind of machine. It lies in ``$SHAREDDS_CACHE/tuned``, else in
``sharedds/tuned`` below the cache folder of the user (``$XDG_CACHE_HOME``, else ``~/.cache``).
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash

from sharedds.errors import OptionError, SourceError
from sharedds.host.machine import Machine
from sharedds.loader.plan import LoaderPlan

__all__ = ["path_for", "read_tuned", "tuned_folder", "tuned_key", "tuned_keys", "write_tuned"]

_VERSION = 1


def tuned_key(dataset: str, machine: Machine) -> str:
    """Return what a tuned plan belongs to, as text for people.

    Args:
        dataset: The digest of a store or the fingerprint of a dataset.
        machine: Where it was, or is to be, used. What changes from run to run does not count. Its
            CPUs are those of one rank: what is best for one alone is too much for each of several.

    Raises:
        OptionError: ``dataset`` is empty.
    """
    if not dataset:
        raise OptionError("a tuned plan belongs to a dataset that has a fingerprint; this has none")
    found, memory = machine.accelerator, machine.memory.total
    parts = [
        machine.system.partition(" ")[0],
        f"{machine.cpus.count} CPUs",
        f"{memory / (1 << 30):.0f} GiB" if memory else "",
        f"{found.count} {found.kind}" if found is not None else "",
    ]
    return f"{dataset} on {', '.join(part for part in parts if part)}"


def tuned_keys(dataset: str, environ: Mapping[str, str] | None = None) -> list[str]:
    """Return what plans are kept for a dataset, on whatever machines.

    Args:
        dataset: The digest of a store or the fingerprint of a dataset.
        environ: Environment variables; None takes those of this process.
    """
    found = []
    for path in tuned_folder(environ).glob("[!.]*.json"):
        try:
            key = json.loads(path.read_text(encoding="utf-8"))["key"]
        except (OSError, ValueError, LookupError, TypeError):
            continue
        if isinstance(key, str) and key.startswith(f"{dataset} on "):
            found.append(key)
    return sorted(found)


def tuned_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder of tuned plans; it need not exist.

    Args:
        environ: Environment variables; None takes those of this process.
    """
    environ = os.environ if environ is None else environ
    if own := environ.get("SHAREDDS_CACHE"):
        return Path(own) / "tuned"
    caches = environ.get("XDG_CACHE_HOME", "")
    # By the standard, a path that is not absolute counts as not set.
    root = Path(caches) if os.path.isabs(caches) else Path(os.path.expanduser("~/.cache"))
    return root / "sharedds" / "tuned"


def path_for(key: str, environ: Mapping[str, str] | None = None) -> Path:
    """Return where the plan of a key is kept."""
    return tuned_folder(environ) / f"{xxhash.xxh3_128_hexdigest(key.encode())}.json"


def write_tuned(
    key: str,
    plan: LoaderPlan,
    *,
    measured: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Path:
    """Keep a plan; a file that was there is replaced as a whole.

    Args:
        key: What it belongs to, see :func:`tuned_key`.
        plan: The plan.
        measured: What it was chosen by, as plain values, for people.
        environ: Environment variables; None takes those of this process.

    Returns:
        The file.

    Raises:
        SourceError: It cannot be written.
    """
    path = path_for(key, environ)
    content = {
        "version": _VERSION,
        "key": key,
        "plan": plan.to_dict(),
        "measured": dict(measured or {}),
    }
    text = json.dumps(content, indent=2) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".json")
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        raise SourceError(
            f"{path}: the tuned plan cannot be kept ({error.strerror}); point SHAREDDS_CACHE to a "
            "folder that can be written to",
            path=str(path),
        ) from error
    return path


def read_tuned(key: str, environ: Mapping[str, str] | None = None) -> LoaderPlan | None:
    """Return the plan that was kept for a key; None if there is none.

    Raises:
        OptionError: The file is damaged, or of another version.
    """
    path = path_for(key, environ)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise OptionError(f"{path}: no tuned plan can be read ({error})", path=str(path)) from error
    if not isinstance(content, dict) or content.get("version") != _VERSION:
        raise OptionError(f"{path}: not a tuned plan of version {_VERSION}", path=str(path))
    plan = content.get("plan")
    if content.get("key") != key or not isinstance(plan, dict):
        raise OptionError(f"{path}: not the tuned plan of {key}", path=str(path))
    try:
        return LoaderPlan.from_dict(plan)
    except OptionError as error:
        raise OptionError(f"{path}: {error}", path=str(path)) from error
