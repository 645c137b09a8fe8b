"""Voxels of foreground as other libraries draw them. Arguments: DATA FOLDER VARIANT.

Variants: ``monai``: ``ClassesToIndices``, the numbers of all voxels by class; ``torchio``: the
probability map and its cumulative sum of a ``LabelSampler``; ``nnunet``: the places that its
preprocessor samples of each class. Each by the library's own functions.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from harness.organs import CLASSES, Draw, draws, label_path, sides
from reading import need


def _monai(path: Path) -> Draw:
    transforms, torch = need("monai.transforms"), need("torch")
    utils = need("monai.transforms.utils")
    label = torch.from_numpy(np.load(path))[None]
    indices = transforms.ClassesToIndices(num_classes=len(CLASSES) + 1)(label)
    shape = tuple(label.shape[1:])
    random = np.random.RandomState(0)
    small = (1, 1, 1)  # for larger ones it returns a middle that is moved inside

    def draw() -> tuple[int, int, int]:
        (centre,) = utils.generate_label_classes_crop_centers(
            small, 1, shape, indices, [0, 1, 1, 1], random
        )
        i, j, k = (int(each) for each in centre)
        return i, j, k

    return draw


def _torchio(path: Path) -> Draw:
    tio, torch = need("torchio"), need("torch")
    torch.manual_seed(0)
    label = tio.LabelMap(tensor=torch.from_numpy(np.load(path))[None])
    sampler = tio.data.LabelSampler(1, "label", {0: 0, **dict.fromkeys(CLASSES, 1)})
    subject = tio.Subject(label=label)
    odds = sampler.process_probability_map(sampler.get_probability_map(subject), subject)
    sums = sampler.get_cumulative_distribution_function(odds)

    def draw() -> tuple[int, int, int]:
        i, j, k = (int(each) for each in sampler.sample_probability_map(odds, sums))
        return i, j, k

    return draw


def _nnunet(path: Path) -> Draw:
    with contextlib.redirect_stdout(None):  # it tells which of its folders are not set
        preprocessing = need("nnunetv2.preprocessing.preprocessors.default_preprocessor")
    sample = preprocessing.DefaultPreprocessor._sample_foreground_locations
    places = sample(np.load(path)[None], list(CLASSES))
    random = np.random.RandomState(0)  # what it draws with, seeded

    def draw() -> tuple[int, int, int]:
        chosen = places[CLASSES[random.choice(len(CLASSES))]]
        _, i, j, k = (int(each) for each in chosen[random.choice(len(chosen))])
        return i, j, k

    return draw


def main() -> None:
    """Draw at each size; print the figures."""
    _, folder, variant = sys.argv[1:]
    ready: Any = {"monai": _monai, "torchio": _torchio, "nnunet": _nnunet}[variant]
    labels = Path(folder).parent / "labels"
    figures: dict[str, float] = {}
    for side in sides(quick=False):
        made = functools.partial(ready, label_path(labels, side))
        figures |= draws(labels, side, made, quick=False)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
