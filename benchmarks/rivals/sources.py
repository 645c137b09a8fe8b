"""What the rivals' writers share: which files to write, the picture work, and how time is taken."""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from PIL import Image, ImageOps


def labelled_files(data: Path) -> list[tuple[str, int]]:
    """Return (path, label) of every picture of a folder of class folders, sorted."""
    classes = sorted(entry.name for entry in os.scandir(data) if entry.is_dir())
    return [
        (os.path.join(data, name, file), label)
        for label, name in enumerate(classes)
        for file in sorted(os.listdir(data / name))
    ]


def as_it_is(path: str) -> bytes:
    """Return the bytes of a file."""
    return Path(path).read_bytes()


def shrunk(path: str) -> bytes:
    """Return a picture shrunk to 512 pixels and encoded as JPEG of quality 90, 4:2:0, by Pillow."""
    with Image.open(path) as picture:
        picture.thumbnail((512, 512))
        out = io.BytesIO()
        picture.save(out, "JPEG", quality=90, subsampling="4:2:0")
    return out.getvalue()


def pixels(path: str) -> bytes:
    """Return 256 x 256 pixels by Pillow: decoded no larger than needed, scaled to cover, cut."""
    with Image.open(path) as picture:
        picture.draft("RGB", (256, 256))
        fitted = ImageOps.fit(picture.convert("RGB"), (256, 256), Image.Resampling.BILINEAR)
    return fitted.tobytes()


WORK: dict[str, Callable[[str], bytes]] = {"copy": as_it_is, "shrink": shrunk, "pixels": pixels}


def samples(files: list[tuple[str, int]], work: str) -> Iterator[tuple[bytes, int]]:
    """Yield (bytes, label) of each picture, prepared."""
    prepare = WORK[work]
    for path, label in files:
        yield prepare(path), label


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def measure(write: Callable[[list[tuple[str, int]], Path, str, int], None]) -> None:
    """Time ``write(files, folder, work, processes)`` and print the figures.

    Arguments of the script: data, scratch, ``copy``, ``shrink`` or ``pixels``, and the number of
    processes.
    """
    data, scratch, work, processes = (
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        sys.argv[3],
        int(sys.argv[4]),
    )
    files = labelled_files(data)
    for path, _ in files:
        as_it_is(path)
    os.sync()
    started, cpu = time.perf_counter(), _cpu_seconds()
    write(files, scratch, work, processes)
    written = time.perf_counter() - started
    subprocess.run(["sync", "-f", str(scratch)], check=True)
    synced = time.perf_counter() - started
    size = sum(path.stat().st_size for path in scratch.rglob("*") if path.is_file())
    figures = {
        "img/s, synced": len(files) / synced,
        "img/s before the sync": len(files) / written,
        "ms CPU an image": (_cpu_seconds() - cpu) * 1e3 / len(files),
        "MB on disk": size / 1e6,
    }
    print(json.dumps(figures))
