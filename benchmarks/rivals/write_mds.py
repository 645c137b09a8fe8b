"""MosaicML Streaming: ``MDSWriter`` with a bytes column, shards of its default size.

With several processes, as its documentation says: each writes a folder of its own, and the indexes
are merged.
"""

from __future__ import annotations

import multiprocessing
from pathlib import Path

from sources import measure, samples
from streaming import MDSWriter  # type: ignore[import-not-found]
from streaming.base.util import merge_index  # type: ignore[import-not-found]


def _write_part(files: list[tuple[str, int]], folder: str, work: str) -> None:
    with MDSWriter(out=folder, columns={"image": "bytes", "label": "int"}) as writer:
        for data, label in samples(files, work):
            writer.write({"image": data, "label": label})


def write(files: list[tuple[str, int]], folder: Path, work: str, processes: int) -> None:
    """Write a dataset."""
    if processes == 1:
        _write_part(files, str(folder), work)
        return
    parts = [(files[i::processes], str(folder / str(i)), work) for i in range(processes)]
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        pool.starmap(_write_part, parts)
    merge_index(str(folder), keep_local=True)


if __name__ == "__main__":
    measure(write)
