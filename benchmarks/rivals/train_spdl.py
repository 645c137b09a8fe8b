"""SPDL: ``PipelineBuilder`` with 2 threads, a batch for each task.

JPEG files: FFmpeg decodes, and its filter graph cuts, scales (it filters) and flips. Raw images:
slices of a mapped array.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from harness.boxes import cut, random_box
from harness.figures import SIDE, WORKERS
from reading import Task, need, run

io, pipelines, torch = need("spdl.io"), need("spdl.pipeline"), need("torch")

_FILTER = "crop=w={2}:h={3}:x={1}:y={0},scale={4}:{4}:flags=bilinear{5},format=pix_fmts=rgb24"
Sample = tuple[Any, int]


def _frames(path: str, rng: np.random.Generator) -> Any:
    packets = io.demux_image(path)
    top, left, height, width = random_box(packets.height, packets.width, rng)
    flip = ",hflip" if rng.random() < 0.5 else ""
    how = _FILTER.format(top, left, width, height, SIDE, flip)
    return io.decode_packets(packets, filter_desc=how)


def _decoded(batch: list[Sample]) -> tuple[Any, Any]:
    rng = np.random.default_rng()
    buffer = io.convert_frames([_frames(path, rng) for path, _ in batch])
    return io.to_torch(buffer), np.array([label for _, label in batch])


def _sliced(batch: list[Sample]) -> tuple[Any, Any]:
    rng = np.random.default_rng()
    out = np.empty((len(batch), SIDE, SIDE, 3), np.uint8)
    for slot, (image, _) in zip(out, batch, strict=True):
        slot[...] = cut(image, rng)
    return torch.from_numpy(out), np.array([label for _, label in batch])


def batches(task: Task) -> Iterator[tuple[Any, Any]]:
    """Make the pipeline."""
    samples: list[Sample]
    if task.raw:
        images, labels = task.arrays()
        samples = [(images[number], label) for number, label in enumerate(labels.tolist())]
    else:
        samples = task.files()
    order = np.random.default_rng(0).permutation(len(samples)).tolist()
    starts = range(0, len(order), task.batch)
    tasks = ([samples[i] for i in order[start : start + task.batch]] for start in starts)
    pipeline = (
        pipelines.PipelineBuilder()
        .add_source(tasks)
        .pipe(_sliced if task.raw else _decoded, concurrency=WORKERS)
        .add_sink(2 * WORKERS)
        .build(num_threads=WORKERS)
    )
    with pipeline.auto_stop():
        yield from pipeline.get_iterator()


if __name__ == "__main__":
    run(batches)
