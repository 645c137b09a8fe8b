"""ArrayRecord, which Grain reads: ``ArrayRecordWriter`` with ``group_size:1``.

With several processes each writes a shard of its own; the writer itself is for one process.
"""

from __future__ import annotations

import multiprocessing
import struct
from pathlib import Path

from array_record.python.array_record_module import (  # type: ignore[import-not-found]
    ArrayRecordWriter,
)
from sources import measure, samples


def _write_part(files: list[tuple[str, int]], path: str, work: str) -> None:
    writer = ArrayRecordWriter(path, "group_size:1")
    for data, label in samples(files, work):
        writer.write(struct.pack("<q", label) + data)
    writer.close()


def write(files: list[tuple[str, int]], folder: Path, work: str, processes: int) -> None:
    """Write a dataset."""
    names = [
        str(folder / f"data-{i:05d}-of-{processes:05d}.array_record") for i in range(processes)
    ]
    parts = [(files[i::processes], names[i], work) for i in range(processes)]
    if processes == 1:
        _write_part(*parts[0])
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        pool.starmap(_write_part, parts)


if __name__ == "__main__":
    measure(write)
