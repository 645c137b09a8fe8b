"""NVIDIA DALI on the CPU: ``num_threads=2``, decoders that decode a random part, resize, flip.

Files are given in a random order, so that each is read once. Raw images lie in a tar file, which
its reader shuffles within a buffer: not each is read exactly once. ``filtered``: its resize with
antialias, which is its default; ``unfiltered``: without.
"""

from __future__ import annotations

import io
import random
import struct
import tarfile
from collections.abc import Iterator
from typing import Any

from harness.figures import SIDE, WORKERS
from reading import Task, need, run

dali, fn, types = need("nvidia.dali"), need("nvidia.dali.fn"), need("nvidia.dali.types")
plugin = need("nvidia.dali.plugin.pytorch")
policy = need("nvidia.dali.plugin.base_iterator").LastBatchPolicy


def prepare(task: Task) -> None:
    """Write the tar file of raw images."""
    with tarfile.open(task.folder / "data.tar", "w") as tar:
        for number, (image, label) in enumerate(task.samples()):
            for ending, data in (("raw", image.tobytes()), ("cls", struct.pack("<i", label))):
                member = tarfile.TarInfo(f"{number:08d}.{ending}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


@dali.pipeline_def(num_threads=WORKERS, device_id=None)  # type: ignore[untyped-decorator]
def decoded(files: list[str], labels: list[int], *, filtered: bool) -> Any:
    """Read files."""
    data, label = fn.readers.file(files=files, labels=labels, name="reader")
    image = fn.decoders.image_random_crop(
        data,
        device="cpu",
        output_type=types.RGB,
        random_area=[0.08, 1],
        random_aspect_ratio=[3 / 4, 4 / 3],
    )
    image = fn.resize(image, size=[SIDE, SIDE], interp_type=types.INTERP_LINEAR, antialias=filtered)
    return fn.flip(image, horizontal=fn.random.coin_flip()), label


@dali.pipeline_def(num_threads=WORKERS, device_id=None)  # type: ignore[untyped-decorator]
def raw(path: str) -> Any:
    """Read the tar file."""
    data, label = fn.readers.webdataset(
        paths=[path], ext=["raw", "cls"], random_shuffle=True, name="reader"
    )
    image = fn.crop_mirror_normalize(
        fn.reshape(data, shape=[256, 256, 3], layout="HWC"),
        dtype=types.UINT8,
        output_layout="HWC",
        crop=(SIDE, SIDE),
        crop_pos_x=fn.random.uniform(range=[0, 1]),
        crop_pos_y=fn.random.uniform(range=[0, 1]),
        mirror=fn.random.coin_flip(),
    )
    return image, fn.reinterpret(label, dtype=types.INT32)


def batches(task: Task) -> Iterator[tuple[Any, Any]]:
    """Make pipeline and iterator."""
    if task.raw:
        pipeline = raw(str(task.folder / "data.tar"), batch_size=task.batch)
    else:
        files = task.files()
        random.Random(0).shuffle(files)
        paths, labels = zip(*files, strict=True)
        filtered = task.variant != "unfiltered"
        pipeline = decoded(list(paths), list(labels), filtered=filtered, batch_size=task.batch)
    loader = plugin.DALIGenericIterator(
        [pipeline], ["image", "label"], reader_name="reader", last_batch_policy=policy.PARTIAL
    )
    return ((batch["image"], batch["label"]) for (batch,) in loader)


if __name__ == "__main__":
    import sys

    run(batches, prepare if "raw" in sys.argv[3:4] else None, exact="raw" not in sys.argv[3:4])
