"""What is diagnosed: how a target is named, found and made, and what is said when it cannot be."""

from __future__ import annotations

import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from sharedds.diagnose.target import StackOrList, Target, load_target
from sharedds.errors import OptionError, SourceError
from sharedds.store import StoreWriter

CODE = """
    from torch.utils.data import DataLoader, Dataset

    MADE = []

    class Squares(Dataset):
        transform = None

        def __init__(self):
            MADE.append(self)

        def __len__(self):
            return 5

        def __getitem__(self, index):
            value = index * index
            return self.transform(value) if self.transform else value

    class Needs(Squares):
        def __init__(self, root):
            pass

    def factory():
        return Squares()

    def broken():
        raise RuntimeError("no such disk")

    def leaves():
        raise SystemExit(3)

    def doubled(value):
        return 2 * value

    class Box:
        inner = Squares

    instance = Squares()
    loader = DataLoader(instance, batch_size=3, collate_fn=list)
    number = 7
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with datasets, as a user has it."""
    path = tmp_path / "scans_of_mine.py"
    path.write_text(textwrap.dedent(CODE))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return path


@pytest.mark.parametrize("name", ["Squares", "factory", "instance", "loader", "Box.inner"])
def test_a_class_an_instance_a_function_and_a_loader_are_targets(code: Path, name: str) -> None:
    """All of them lead to the dataset."""
    opened = load_target(f"{code}:{name}").open()
    assert [opened.dataset[i] for i in range(5)] == [0, 1, 4, 9, 16]


def test_a_loader_keeps_its_batches(code: Path) -> None:
    """Batch size and collate function of a DataLoader are those of the user."""
    opened = load_target(f"{code}:loader").open()
    assert opened.batch_size == 3
    assert opened.collate_fn is list


def test_a_module_in_the_working_folder_is_found(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``module:attribute`` means what it does for ``python -m``."""
    monkeypatch.chdir(code.parent)
    assert len(load_target("scans_of_mine:Squares").open().dataset) == 5


def test_no_code_runs_before_a_target_is_opened(code: Path) -> None:
    """Naming a target is safe, whatever its file does when it is imported."""
    code.write_text("raise RuntimeError('imported')")
    target = load_target(f"{code}:Squares")
    with pytest.raises(OptionError, match="RuntimeError: imported"):
        target.open()


def test_a_file_named_like_a_library_is_found_all_the_same(code: Path) -> None:
    """``random.py`` of the user is no other module, and no other module becomes it."""
    import random

    path = code.rename(code.parent / "random.py")
    assert len(load_target(f"{path}:Squares").open().dataset) == 5
    assert sys.modules["random"] is random


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("broken", r"RuntimeError: no such disk \(.*scans_of_mine.py, line \d+\)"),
        ("leaves", "SystemExit: 3"),
        ("Needs", "TypeError.*root"),
        ("number", "is a int, which is no dataset"),
        ("nope", "has no nope; it has .*Squares"),
    ],
)
def test_what_cannot_be_made_says_why(code: Path, name: str, reason: str) -> None:
    """The user's error becomes one line that names the place."""
    with pytest.raises(OptionError, match=reason):
        load_target(f"{code}:{name}").open()


def test_a_module_that_is_missing_is_told_without_a_place(tmp_path: Path) -> None:
    """The place would be one in Python's own machinery, which says nothing."""
    bad = tmp_path / "syntax_of_mine.py"
    bad.write_text("def f(:")
    for target, reason in (
        ("no_module_of_mine:x", "No module named 'no_module_of_mine'"),
        (f"{bad}:x", r"SyntaxError: invalid syntax \(syntax_of_mine.py, line 1\)"),
    ):
        with pytest.raises(OptionError, match=f"{reason}$"):
            load_target(target).open()


@pytest.mark.parametrize(
    ("text", "error", "reason"),
    [
        ("nowhere", SourceError, "nothing is there"),
        ("nowhere/at/all:thing", SourceError, "nothing is there"),
        ("nowhere.py:thing", SourceError, "no such file"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(
    text: str, error: type[Exception], reason: str
) -> None:
    """Before anything is started, with what would be expected."""
    with pytest.raises(error, match=reason):
        load_target(text)


def test_a_file_of_code_needs_a_name(code: Path) -> None:
    """The message shows how to write it."""
    with pytest.raises(OptionError, match=r"which dataset in it\? Write .*:NAME"):
        load_target(str(code))


def test_a_transform_is_given_to_the_dataset(code: Path) -> None:
    """By name, as the dataset."""
    opened = load_target(f"{code}:Squares", transform=f"{code}:doubled").open()
    assert opened.dataset[3] == 18


def test_a_transform_needs_a_place_to_go() -> None:
    """A dataset without the attribute is not given one that it would never use."""
    with pytest.raises(OptionError, match="list has no attribute transform"):
        load_target([1, 2], transform="math:sqrt").open()


def test_a_folder_and_a_store_of_images_are_targets(tmp_path: Path) -> None:
    """Pictures come with their labels, and of any size: what does not stack is a list."""
    for name, width in (("cat", 8), ("dog", 9)):
        (tmp_path / "images" / name).mkdir(parents=True)
        Image.new("RGB", (width, 8)).save(tmp_path / "images" / name / "0.png")
    opened = load_target(tmp_path / "images").open()
    samples = [opened.dataset[i] for i in range(2)]
    assert [label for _, label in samples] == [0, 1]
    assert opened.collate_fn is not None
    assert opened.collate_fn(samples) is samples
    assert opened.name_of(1) == "dog/0.png"


def test_a_store_of_any_schema_is_a_target(tmp_path: Path) -> None:
    """Without pictures, samples are dicts of its fields."""
    with StoreWriter(tmp_path / "own.lmdb", schema={"value": "float64"}) as writer:
        writer.add({"value": 2.5}, key="first")
    opened = load_target(tmp_path / "own.lmdb").open()
    assert opened.dataset[0] == {"value": 2.5}
    assert opened.name_of(0) == "first"


class Named(Dataset[int]):
    """As torchvision's: a list of paths and labels."""

    def __init__(self) -> None:
        self.samples = [("a/x.jpg", 0), ("b/y.jpg", 1)]

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return index


def test_a_sample_has_the_name_that_its_dataset_gives_it() -> None:
    """``key()``, else the path in the list that many datasets keep, else its number."""
    assert load_target(Named()).open().name_of(1) == "b/y.jpg"
    assert load_target([3, 4]).open().name_of(1) == "sample 1"


def test_an_object_is_made_anew_from_its_recipe(tmp_path: Path) -> None:
    """It travels by value, so that classes of a script or notebook do as well."""
    recipe: dict[str, Any] = load_target(Named()).recipe(tmp_path)
    again = Target(**recipe).open().dataset
    assert type(again) is Named
    assert again[1] == 1


def test_an_object_that_cannot_travel_says_which_part(tmp_path: Path) -> None:
    """And what to do instead."""
    dataset: Any = Named()
    dataset.lock = threading.Lock()
    with pytest.raises(OptionError, match=r"dataset\.lock cannot be sent.*module:attribute"):
        load_target(dataset).recipe(tmp_path)


def test_a_batch_is_stacked_where_it_can_be() -> None:
    """Otherwise it is the list of its samples."""
    same = [torch.zeros(2), torch.ones(2)]
    other = [torch.zeros(2), torch.ones(3)]
    assert StackOrList()(same).shape == (2, 2)
    assert StackOrList()(other) is other


def test_a_loader_in_python_is_a_target() -> None:
    """No name is needed for what is there already."""
    loader = DataLoader(Named(), batch_size=2)
    opened = load_target(loader).open()
    assert isinstance(opened.dataset, Named)
    assert opened.batch_size == 2


def test_arrays_are_datasets() -> None:
    """Whatever has a length and items by number."""
    assert len(load_target(np.arange(4)).open().dataset) == 4


@pytest.mark.parametrize("code", ["", "del sys.modules[__name__]\n"], ids=["stays", "goes"])
def test_a_file_that_fails_is_not_left_half_loaded(code: str, tmp_path: Path) -> None:
    """Its own error is what is told, also where it has taken itself away."""
    file = tmp_path / "half_loaded_target.py"
    file.write_text(f"import sys\n{code}raise RuntimeError('no data here')\n")
    with pytest.raises(OptionError, match="no data here"):
        load_target(f"{file}:data").open()
    assert "half_loaded_target" not in sys.modules
