"""WebDataset: tars of 125 samples, shards and a buffer of 1,000 shuffled, its own decoders."""

from __future__ import annotations

import os
from typing import Any

from augmenting import PillowCrop, tensor_raw_crop
from harness.figures import WORKERS
from reading import Task, need, run

torch, webdataset = need("torch"), need("webdataset")

_SHARD, _BUFFER = 125, 1000


def prepare(task: Task) -> None:
    """Write the tars; of a tiny form each stands for many by links."""
    ending = "npy" if task.raw else "jpg"
    few = task.count if not task.form.startswith("tiny-") else min(task.count, 1000)
    with webdataset.ShardWriter(str(task.folder / "%06d.tar"), maxcount=_SHARD, verbose=0) as sink:
        for number, (image, label) in zip(range(few), task.samples(), strict=False):
            sink.write({"__key__": f"{number:08d}", ending: image, "cls": label})
    written = sorted(task.folder.glob("*.tar"))
    for number in range(len(written), task.count // _SHARD):
        os.link(written[number % len(written)], task.folder / f"{number:06d}.tar")


def batches(task: Task) -> Any:
    """Make the loader."""
    urls = [str(path) for path in sorted(task.folder.glob("*.tar"))]
    dataset = webdataset.WebDataset(urls, shardshuffle=len(urls)).shuffle(_BUFFER)
    if task.raw:
        crop = tensor_raw_crop()
        dataset = dataset.decode().to_tuple("npy", "cls")
        dataset = dataset.map_tuple(lambda a: crop(torch.from_numpy(a).permute(2, 0, 1)), int)
    else:
        dataset = dataset.decode("pil").to_tuple("jpg", "cls").map_tuple(PillowCrop(), int)
    return webdataset.WebLoader(
        dataset.batched(task.batch), batch_size=None, num_workers=WORKERS, persistent_workers=True
    )


if __name__ == "__main__":
    run(batches, prepare)
