"""Patches by nnU-Net's own dataset and loader, over blosc2 files as its preprocessing writes them.

Variants: ``float32``: normalised, as it stores volumes; ``int16``: as they were, which its reader
takes, too. Blocks and chunks are those that it chooses for the patch; places of the foreground are
those that its preprocessor samples. The loader draws cases with replacement.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness.patches import BATCH_CASES, PER_CASE, Pass
from patching import Work, run
from reading import need

with contextlib.redirect_stdout(None):  # it tells which of its folders are not set
    dataset = need("nnunetv2.training.dataloading.nnunet_dataset")
    loading = need("nnunetv2.training.dataloading.data_loader")
    labels = need("nnunetv2.utilities.label_handling.label_handling")
    preprocessing = need("nnunetv2.preprocessing.preprocessors.default_preprocessor")
    augmenter = need("batchgenerators.dataloading.nondet_multi_threaded_augmenter")
    single = need("batchgenerators.dataloading.single_threaded_augmenter")
    nibabel = need("nibabel")
_CLASSES = {"background": 0, "bone": 1, "air": 2}


def prepare(work: Work) -> None:
    """Write its files."""
    for files in work.task.pairs("nii"):
        image = np.asarray(nibabel.load(files["image"]).dataobj)[None]
        label = np.asarray(nibabel.load(files["label"]).dataobj).astype(np.int16)[None]
        if work.variant == "float32":
            foreground = image[label > 0].astype(np.float32)
            low, high = np.percentile(foreground, (0.5, 99.5))
            image = image.clip(low, high).astype(np.float32)
            image = (image - foreground.mean()) / max(float(foreground.std()), 1e-8)
        sample = preprocessing.DefaultPreprocessor._sample_foreground_locations
        properties = {"class_locations": sample(label, [1, 2])}
        patch = (work.task.patch,) * 3
        shapes = []
        for values in (image, label):
            shapes += dataset.comp_blosc2_params(values.shape, patch, values.itemsize)
        dataset.nnUNetDatasetBlosc2.save_case(
            image,
            label,
            properties,
            str(work.folder / Path(files["image"]).stem),
            blocks=shapes[0],
            chunks=shapes[1],
            blocks_seg=shapes[2],
            chunks_seg=shapes[3],
        )


def reader(work: Work) -> Pass:
    """Make the loader and what runs it."""
    patch = (work.task.patch,) * 3
    loader = loading.nnUNetDataLoader(
        dataset.nnUNetDatasetBlosc2(str(work.folder)),
        BATCH_CASES * PER_CASE,
        patch,
        patch,
        labels.LabelManager(_CLASSES, None),
        oversample_foreground_percent=1.0,
    )
    batches: Iterable[Any]
    if work.workers:
        batches = augmenter.NonDetMultiThreadedAugmenter(
            data_loader=loader,
            transform=None,
            num_processes=work.workers,
            num_cached=max(6, work.workers // 2),
            seeds=None,
            pin_memory=False,
            wait_time=0.002,
        )
    else:
        batches = single.SingleThreadedAugmenter(loader, None)
    endless = iter(batches)

    def one_pass() -> Iterator[tuple[Any, Any]]:
        for batch in itertools.islice(endless, work.task.cases // BATCH_CASES):
            yield batch["data"], batch["target"]

    return one_pass


def places(work: Work) -> list[Path]:
    """What is read."""
    return [work.folder]


if __name__ == "__main__":
    run(reader, places, prepare)
