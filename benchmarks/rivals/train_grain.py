"""Grain: ``ArrayRecordDataSource`` (``group_size:1``) and its ``DataLoader`` with 2 processes.

It has no decoder of its own; simplejpeg and OpenCV do the work here, and OpenCV's linear resize
does not filter.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from harness.boxes import cut, random_box
from harness.figures import SIDE, WORKERS
from reading import Task, need, run

grain, array_record = need("grain.python"), need("array_record.python.array_record_module")
simplejpeg, cv2 = need("simplejpeg"), need("cv2")

_Transform: Any = grain.RandomMapTransform
_LABEL, _BYTES = "<q", 8  # before the image


def prepare(task: Task) -> None:
    """Write the records."""
    writer = array_record.ArrayRecordWriter(str(task.folder / "data.array_record"), "group_size:1")
    for image, label in task.samples():
        writer.write(struct.pack(_LABEL, label) + (image.tobytes() if task.raw else image))
    writer.close()


class RawCrop(_Transform):  # type: ignore[misc]
    """Cut a part out of a raw image."""

    def random_map(self, element: bytes, rng: np.random.Generator) -> Any:
        """Return image and label."""
        pixels = np.frombuffer(element, np.uint8, offset=_BYTES).reshape(256, 256, 3)
        return cut(pixels, rng), struct.unpack_from(_LABEL, element)[0]


class JpegCrop(_Transform):  # type: ignore[misc]
    """Decode, cut, resize, flip."""

    def random_map(self, element: bytes, rng: np.random.Generator) -> Any:
        """Return image and label."""
        pixels = simplejpeg.decode_jpeg(element[_BYTES:])
        top, left, height, width = random_box(pixels.shape[0], pixels.shape[1], rng)
        part = pixels[top : top + height, left : left + width]
        small = cv2.resize(part, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
        return small[:, ::-1] if rng.random() < 0.5 else small, struct.unpack_from(_LABEL, element)[
            0
        ]


def batches(task: Task) -> Any:
    """Make the loader; torch is in the trainer alone, as its workers do not need it."""
    torch = need("torch")
    cv2.setNumThreads(0)
    source = grain.ArrayRecordDataSource(str(task.folder / "data.array_record"))
    sampler = grain.IndexSampler(
        num_records=len(source),
        shuffle=True,
        seed=0,
        num_epochs=1,
        shard_options=grain.NoSharding(),
    )
    loader = grain.DataLoader(
        data_source=source,
        sampler=sampler,
        operations=[
            RawCrop() if task.raw else JpegCrop(),
            grain.Batch(batch_size=task.batch, drop_remainder=False),
        ],
        worker_count=WORKERS,
        worker_buffer_size=2,
    )
    return ((torch.from_numpy(images), labels) for images, labels in loader)


if __name__ == "__main__":
    run(batches, prepare)
