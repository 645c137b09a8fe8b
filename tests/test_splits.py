"""Loaders for several splits: one numbering of the classes, or none at all."""

from pathlib import Path
from typing import Any

import pytest
from pictures import save, smooth
from torch.utils.data import Dataset, Subset

import sharedds
from sharedds.errors import ClassMismatchError, OptionError


class Named(Dataset[int]):
    """A dataset with names of classes."""

    def __init__(self, *classes: str) -> None:
        self.classes = list(classes)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


def folder(root: Path, *classes: str) -> Path:
    """A folder of class folders with a picture each."""
    for name in classes:
        (root / name).mkdir(parents=True)
        (root / name / "1.png").write_bytes(save(smooth(8, 8), "png"))
    return root


def build(**splits: Dataset[Any]) -> Any:
    """Loaders without workers."""
    return sharedds.build_loaders(splits, num_workers=0, batch_size=4)


def test_splits_that_were_scanned_apart_are_refused(tmp_path: Path) -> None:
    """A class that one lacks shifts the labels of all others; each alone says nothing."""
    train = sharedds.ImageDataset(folder(tmp_path / "train", "a", "b", "c"))
    val = sharedds.ImageDataset(folder(tmp_path / "val", "b", "c"))
    assert [train.label(1), val.label(0)] == [1, 0]  # both are b
    with pytest.raises(ClassMismatchError) as caught:
        build(train=train, val=val)
    text = str(caught.value)
    assert "{'a': 0, 'b': 1, 'c': 2}" in text
    assert "{'b': 0, 'c': 1}" in text
    assert "classes=train" in text


def test_splits_that_share_a_numbering_are_loaded(tmp_path: Path) -> None:
    """The remedy that the error names."""
    train = sharedds.ImageDataset(folder(tmp_path / "train", "a", "b", "c"))
    val = sharedds.ImageDataset(folder(tmp_path / "val", "b", "c"), classes=train)
    loaders = build(train=train, val=val)
    assert list(loaders) == ["train", "val"]
    assert [labels.tolist() for _, labels in loaders["val"]] == [[1, 2]]


def test_a_split_that_lacks_the_last_classes_is_right() -> None:
    """Those that it has keep their numbers."""
    assert build(train=Named("a", "b", "c"), val=Named("a", "b"))


def test_every_pair_of_splits_is_compared_also_inside_a_subset() -> None:
    """The third differs from the second, and torch's Subset hides its classes."""
    with pytest.raises(ClassMismatchError, match="'val' and 'test'"):
        build(train=Named("a"), val=Named("a", "b", "c"), test=Subset(Named("a", "c", "b"), [0]))


def test_datasets_without_classes_are_not_compared() -> None:
    """Nothing is known of them."""
    assert build(train=Named("a", "b"), val=Subset(range(4), [0, 1]))  # type: ignore[arg-type]


def test_only_the_training_split_is_shuffled() -> None:
    """Unless others are named."""
    loaders = build(train=Named("a"), val=Named("a"))
    orders = {name: [i for batch in each for i in batch.tolist()] for name, each in loaders.items()}
    assert orders["val"] == list(range(8))
    assert orders["train"] != list(range(8))
    assert sorted(orders["train"]) == list(range(8))
    none = sharedds.build_loaders({"train": Named("a")}, shuffle=(), num_workers=0)
    assert [batch.item() for batch in none["train"]] == list(range(8))


@pytest.mark.parametrize("shuffle", [True, "train", None])
def test_shuffle_takes_names(shuffle: Any) -> None:
    """True would shuffle validation, and a text is a collection of letters."""
    with pytest.raises(OptionError, match="names of splits"):
        sharedds.build_loaders({"train": Named("a")}, shuffle=shuffle)
