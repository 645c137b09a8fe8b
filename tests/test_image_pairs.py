"""Pictures that belong together, such as an image and its mask, show the same part."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import noise
from PIL import Image
from torch.utils.data import Dataset, default_collate

from sharedds.datasets import ImageDataset, same_view
from sharedds.errors import OptionError
from sharedds.loader import build_loader
from sharedds.order import SampleKey, using_key, using_keys
from sharedds.views import CenterCrop, Full, RandomCrop, RandomResizedCrop, View

COUNT = 12
VIEW = RandomCrop(24, flip=0.5, flip_vertical=0.5)
KEYS = [SampleKey(4, 2, index) for index in range(COUNT)]


def memory(
    shape: tuple[int, ...], dtype: torch.dtype, *, channels_last: bool = False
) -> torch.Tensor:
    """Return memory for a batch."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty(shape, dtype=dtype, memory_format=layout)


class Pairs(Dataset[Any]):
    """Images, and masks that hold the very same numbers."""

    makes_batches = True

    def __init__(self, folder: Path, view: View = VIEW, other: View | None = None) -> None:
        self.images = ImageDataset(folder / "images", mode="L", view=view)
        self.masks = ImageDataset(folder / "masks", mode="index", view=other or view)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        with same_view():
            return self.images[index], self.masks[index]

    def load_batch(self, indices: Sequence[int], empty: Any) -> Any:
        """Return the same for several at once."""
        with same_view():
            return [self.images.load_batch(indices, empty), self.masks.load_batch(indices, empty)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images and masks of several sizes."""
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
        for number in range(COUNT):
            picture = Image.fromarray(noise(40 + number, 50, 1, seed=number)[..., 0])
            picture.save(tmp_path / kind / f"{number:02}.png")
    return tmp_path


def test_an_image_and_its_mask_show_the_same_part(folder: Path) -> None:
    """Without it the mask is drawn from the numbers that follow, and shows another part."""
    pairs = Pairs(folder)
    for key in KEYS:
        with using_key(key):
            image, mask = pairs[key.index]
        assert torch.equal(image, mask)
    with using_key(KEYS[0]):
        assert not torch.equal(pairs.images[0], pairs.masks[0])


def test_the_first_picture_shows_what_it_would_alone(folder: Path) -> None:
    """And what follows has other numbers, as after one picture."""
    pairs = Pairs(folder)
    with using_key(KEYS[0]):
        alone = [pairs.images[0], pairs.images[0]]
    with using_key(KEYS[0]):
        image, _ = pairs[0]
        after = pairs.images[0]
    assert torch.equal(image, alone[0])
    assert torch.equal(after, alone[1])


def test_outside_a_loader_they_agree_as_well(folder: Path) -> None:
    """There torch's global generator chooses, once."""
    pairs = Pairs(folder)
    torch.manual_seed(3)
    images = [pairs[index] for index in range(COUNT)]
    assert all(torch.equal(*pair) for pair in images)
    torch.manual_seed(3)
    assert all(torch.equal(pair[0], pairs.images[at]) for at, pair in enumerate(images))


def test_batches_made_at_once_are_those_of_single_samples(folder: Path) -> None:
    """Each picture of a batch has its own part, and its mask the same."""
    pairs = Pairs(folder)
    with using_keys(KEYS):
        images, masks = pairs.load_batch(range(COUNT), memory)
    assert torch.equal(images, masks)
    singles = []
    for key in KEYS:
        with using_key(key):
            singles.append(pairs[key.index])
    assert all(map(torch.equal, default_collate(singles), (images, masks)))


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"num_workers": 2},
        {"num_workers": 1, "threads_per_worker": 2},
        {"num_workers": 2, "engine": "thread"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_loaders_of_all_kinds_keep_pairs_together(folder: Path, options: dict[str, Any]) -> None:
    """And all of them make the same batches."""
    plain = build_loader(
        Pairs(folder), batch_size=4, shuffle=True, seed=1, num_workers=0, collate_fn=_collate
    )
    loader = build_loader(Pairs(folder), batch_size=4, shuffle=True, seed=1, **options)
    for (images, masks), (expected, _) in zip(loader, plain, strict=True):
        assert torch.equal(images, masks)
        assert torch.equal(images, expected)


def _collate(samples: list[Any]) -> Any:
    return default_collate(samples)


def test_all_frames_of_a_clip_show_the_same_part(folder: Path) -> None:
    """As many as are read inside, in whichever way."""
    images = Pairs(folder, RandomResizedCrop(8)).images
    with using_key(KEYS[0]), same_view():
        frames = [images[3], images[3], *images.__getitems__([3, 3])]
    assert all(torch.equal(frames[0], frame) for frame in frames)


def test_views_that_want_other_numbers_are_refused(folder: Path) -> None:
    """They could not show the same part."""
    pairs = Pairs(folder, VIEW, RandomResizedCrop(24))
    assert pairs.images.view.uniforms != pairs.masks.view.uniforms  # type: ignore[union-attr]
    with pytest.raises(OptionError, match="same_view: 1 at once of"):
        pairs[0]


def test_batches_of_two_sizes_are_refused(folder: Path) -> None:
    """Whose part would it be?"""
    pairs = Pairs(folder)
    with same_view(), pytest.raises(OptionError, match=r"3 at once .* after 4 of"):
        pairs.images.load_batch(range(4), memory)
        pairs.masks.load_batch(range(3), memory)


def test_one_inside_another_has_its_own_part(folder: Path) -> None:
    """And the outer one goes on as before, also after an error."""
    images = Pairs(folder).images
    with same_view():
        first = images[0]
        with pytest.raises(ZeroDivisionError), same_view():
            inner = [images[0] for _ in range(2)]
            raise ZeroDivisionError
        assert torch.equal(images[0], first)
    assert torch.equal(*inner)
    assert not torch.equal(inner[0], first)


def test_other_threads_are_not_concerned(folder: Path) -> None:
    """They make samples of their own."""
    images = Pairs(folder).images
    found: list[torch.Tensor] = []
    with same_view():
        first = images[0]
        thread = threading.Thread(target=lambda: found.extend(images[0] for _ in range(2)))
        thread.start()
        thread.join()
    assert not torch.equal(*found)
    assert not any(torch.equal(first, other) for other in found)


def test_views_without_a_choice_need_no_numbers(folder: Path) -> None:
    """Nothing is drawn for pictures that are shown whole or in the middle."""
    for view in (CenterCrop(8), Full()):
        image, mask = Pairs(folder, view)[0]
        assert np.array_equal(image, mask)
