"""Folders to pack, the command line as a shell runs it, and what a pack left behind."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pictures
from PIL import Image
from processes import unmeasured

from sharedds.codecs import decode
from sharedds.ingest import PackReport, pack
from sharedds.store import Store

__all__ = [
    "REPOSITORY",
    "entries",
    "environment",
    "events",
    "folder",
    "image",
    "jpeg",
    "pack_files",
    "pixels_of",
    "put",
    "row",
    "run",
    "run_as_nobody",
    "run_script",
    "stored",
]

REPOSITORY = Path(__file__).parents[1]


def jpeg(seed: int = 0, width: int = 24, height: int = 16, quality: int = 95) -> bytes:
    """Return a small JPEG of noise."""
    pixels = pictures.noise(height, width, 3, seed=seed)
    return pictures.save(Image.fromarray(pixels), "JPEG", quality=quality)


def put(root: Path, files: Mapping[str, bytes]) -> Path:
    """Write files with these names below ``root``; names may hold surrogate escapes."""
    for name, data in files.items():
        path = os.path.join(os.fsencode(root), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    return root


def folder(root: Path, classes: tuple[str, ...] = ("a", "b"), count: int = 5) -> Path:
    """Fill class folders with different small JPEGs, ``a/0000.jpg`` and so on."""
    number = 0
    files = {}
    for name in classes:
        for i in range(count):
            files[f"{name}/{i:04d}.jpg"] = jpeg(number)
            number += 1
    return put(root, files)


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a child that finds this package wherever it runs."""
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **more}


def run(
    *words: str | os.PathLike[str],
    flags: tuple[str, ...] = (),
    timeout: float = 60,
    **options: Any,
) -> subprocess.CompletedProcess[bytes]:
    """Run the command line in a process of its own; ``flags`` are for the interpreter."""
    options.setdefault("env", environment())
    return subprocess.run(
        [sys.executable, *flags, "-m", "sharedds", *words],
        capture_output=True,
        timeout=timeout,
        **options,
    )


def run_script(text: str, *words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run Python source in a process of its own; its coverage is not measured."""
    paths = environment()["PYTHONPATH"]
    options.setdefault("env", unmeasured() | {"PYTHONPATH": paths})
    return subprocess.run(
        [sys.executable, "-c", text, *words], capture_output=True, timeout=120, **options
    )


def run_as_nobody(*words: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command line as a user with few permissions: another one, if this is root."""
    script = """
import os, sys
from sharedds.cli import main
main([*sys.argv[1:], "--dry-run", "--quiet"])  # load all that this user may not read
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
os.chdir("/")
sys.exit(main(sys.argv[1:]))
"""
    # That user may not write where coverage would be collected, and would say so on stderr.
    return run_script(script, *words, env=unmeasured())


def entries(report: str | os.PathLike[str], event: str) -> list[dict[str, Any]]:
    """Return the lines of one kind of a JSONL report."""
    return [line for line in events(report) if line["event"] == event]


def events(report: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return all lines of a JSONL report; each must be JSON by itself, in ASCII."""
    with open(report, encoding="ascii") as file:
        return [json.loads(line) for line in file]


def stored(path: str | os.PathLike[str]) -> dict[str, bytes]:
    """Return the stored bytes of every image by its key."""
    store = Store(path)
    return {store.key(i): bytes(store.read("image", i)) for i in range(len(store))}


def pixels_of(data: bytes) -> np.ndarray[Any, np.dtype[Any]]:
    """Return what Pillow makes of a picture, in colour."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def pack_files(place: Path, files: dict[str, bytes], **options: Any) -> PackReport:
    """Pack these files into ``place/out.lmdb``."""
    return pack(put(place / "src", files), place / "out.lmdb", force=True, **options)


def image(report: PackReport, key: str) -> pictures.Array:
    """Return a stored picture as it is read, upright, in the channels it has."""
    store = Store(report.path)
    index = store.index_of(key)
    kinds = {field.name: field.kind for field in store.header.fields}
    if kinds["image"] == "column":
        return np.array(store.column("image")[index])
    return decode(
        store.read("image", index),
        mode="keep",
        orientation=int(store.column("orientation")[index]),
        max_pixels=None,
    )


def row(report: PackReport, key: str) -> dict[str, Any]:
    """Return the columns of a sample, codes as names."""
    store = Store(report.path)
    index = store.index_of(key)
    values = {n: store.value(n, index) for n in store.fields if n != "image"}
    for name in values:
        names = store.attrs.get(f"{name.removeprefix('source_')}s", [])
        if names:
            values[name] = names[values[name]]
    return values
