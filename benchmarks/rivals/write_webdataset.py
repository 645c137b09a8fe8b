"""WebDataset: ``ShardWriter``, tars of 125 pictures. Its writer is one process."""

from __future__ import annotations

from pathlib import Path

import webdataset  # type: ignore[import-not-found]
from sources import measure, samples


def write(files: list[tuple[str, int]], folder: Path, work: str, processes: int) -> None:
    """Write a dataset."""
    if processes != 1:
        raise SystemExit("webdataset's ShardWriter is one process")
    with webdataset.ShardWriter(str(folder / "%06d.tar"), maxcount=125, verbose=0) as sink:
        for number, (data, label) in enumerate(samples(files, work)):
            sink.write({"__key__": f"{number:08d}", "jpg": data, "cls": label})


if __name__ == "__main__":
    measure(write)
