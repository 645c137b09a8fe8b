"""Numbers of class folders: stable, the names' own, or those of a reference."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import labelled, make

from sharedds.errors import ClassMismatchError, OptionError
from sharedds.folder import scan
from sharedds.folder.classes import ClassNumbers, class_name

# --- levels --------------------------------------------------------------------------------------


def test_top_level_gives_nested_files_to_the_first_folder(tmp_path: Path) -> None:
    """Files below x/s1 and x/s2 belong to x."""
    index = scan(make(tmp_path, "x/s1/1.jpg", "x/s2/1.jpg", "y/1.jpg"), class_level="top")
    assert labelled(index) == {"x/s1/1.jpg": "x", "x/s2/1.jpg": "x", "y/1.jpg": "y"}


def test_folder_level_makes_a_class_of_each_folder(tmp_path: Path) -> None:
    """The class is the whole folder; folders without files of their own are none."""
    index = scan(make(tmp_path, "x/s1/1.jpg", "x/s2/1.jpg", "y/1.jpg", "z/"), class_level="folder")
    assert index.classes == ("x/s1", "x/s2", "y")
    assert labelled(index) == {"x/s1/1.jpg": "x/s1", "x/s2/1.jpg": "x/s2", "y/1.jpg": "y"}
    assert index.empty_classes == ()


def test_folder_level_numbers_whole_names(tmp_path: Path) -> None:
    """Numbers follow the sorted names even where the order of the paths is another one."""
    make(tmp_path, "a/b/1.jpg", "a/2.jpg", "a-b/1.jpg")
    index = scan(tmp_path, class_level="folder")
    assert list(index.paths) == ["a/2.jpg", "a/b/1.jpg", "a-b/1.jpg"]  # a is before a-b, ...
    assert index.classes == ("a", "a-b", "a/b")  # ... but a-b is before a/b
    assert all(os.path.dirname(path) == name for path, name in labelled(index).items())


def test_a_file_in_the_root_has_no_class(tmp_path: Path) -> None:
    """With classes, a file beside the class folders is left out and reported."""
    index = scan(make(tmp_path, "a/1.jpg", "root.jpg", "README"))
    assert list(index.paths) == ["a/1.jpg"]
    assert [(x.kind, x.reason, x.example) for x in index.left_out] == [
        ("class", "no class folder", "README"),
        ("class", "no class folder", "root.jpg"),
    ]
    assert index.files == 3 == len(index) + index.count()


@pytest.mark.parametrize("level", ["top", "folder"])
def test_a_level_that_was_asked_for_is_kept(tmp_path: Path, level: Any) -> None:
    """A flat folder has no classes: asking for them leaves everything out, with the reason."""
    index = scan(make(tmp_path, "1.jpg", "2.jpg"), class_level=level)
    assert (len(index), index.classes, index.count("class")) == (0, (), 2)


def test_no_classes_on_request(tmp_path: Path) -> None:
    """Level none keeps all files, in folders and beside them, without labels."""
    index = scan(make(tmp_path, "a/1.jpg", "b.jpg"), class_level="none")
    assert list(index.paths) == ["a/1.jpg", "b.jpg"]
    assert index.labels is None
    assert index.classes is None


@pytest.mark.parametrize(
    ("names", "level"),
    [
        (["a/1.jpg", "README"], "top"),
        (["1.jpg", "2.jpg"], "none"),
        (["1.jpg", "docs/README", "z.jpg"], "none"),
        (["1.jpg", "empty/"], "none"),
        (["a/digit", "README"], "top"),
        (["a/deep/1.jpg", "1.jpg"], "top"),
    ],
)
def test_auto_follows_the_pictures(tmp_path: Path, names: list[str], level: str) -> None:
    """Pictures in folders mean classes; files without an extension decide only if all are such."""
    index = scan(make(tmp_path, *names))
    assert index.class_level == level
    if level == "none":
        assert list(index.paths) == sorted(name for name in names if not name.endswith("/"))


# --- numbers -------------------------------------------------------------------------------------


def test_an_empty_class_folder_keeps_its_number(tmp_path: Path) -> None:
    """Folders without a picture are classes, named for a warning; hidden content is none."""
    make(tmp_path, "a/1.jpg", "b/", "c/.DS_Store", "d/notes.txt", "e/1.jpg")
    index = scan(tmp_path)
    assert index.classes == ("a", "b", "c", "d", "e")
    assert index.empty_classes == ("b", "c", "d")
    assert labelled(index)["e/1.jpg"] == "e"


def test_two_spellings_of_an_accent_are_two_classes(tmp_path: Path) -> None:
    """Names are compared byte for byte, not normalised."""
    names = [unicodedata.normalize(form, "\u00e4") for form in ("NFC", "NFD")]
    index = scan(make(tmp_path, *(f"{name}/1.jpg" for name in names)))
    assert index.classes == tuple(sorted(names))
    assert len(set(names)) == 2


def test_classes_are_sorted_as_bytes(tmp_path: Path) -> None:
    """Neither case nor locale plays a part."""
    index = scan(
        make(tmp_path, *(f"{name}/1.jpg" for name in ["b", "B", "_", "\u00e9", "z", "10", "9"]))
    )
    assert index.classes == ("10", "9", "B", "_", "b", "z", "\u00e9")


@given(st.lists(st.lists(st.sampled_from("ab-./0"), min_size=1).map("".join)))
def test_numbers_are_ranks_in_the_sorted_names(names: list[str]) -> None:
    """In whatever order names are met, their final numbers are those of the sorted list."""
    numbers = ClassNumbers()
    given_numbers = [numbers.meet(name.encode()) for name in names]
    final, ranks = numbers.finish()
    assert list(final) == sorted(set(names))
    for name, number in zip(names, given_numbers, strict=True):
        assert final[number if ranks is None else ranks[number]] == name


@pytest.mark.parametrize(
    ("folder", "top", "whole"),
    [
        (b"", None, None),
        (b"a", b"a", b"a"),
        (b"a/b", b"a", b"a/b"),
        (b"a/.h/b", b"a", b"a"),
        (b".h/a", None, None),
    ],
)
def test_the_class_of_a_folder(folder: bytes, top: bytes | None, whole: bytes | None) -> None:
    """The class ends where a hidden folder begins."""
    assert class_name(folder, whole=False) == top
    assert class_name(folder, whole=True) == whole


# --- a reference ---------------------------------------------------------------------------------


def test_without_a_reference_splits_disagree(tmp_path: Path) -> None:
    """Each split numbers its own folders; the reference makes them agree."""
    train = scan(make(tmp_path / "train", "a/1.jpg", "b/1.jpg", "c/1.jpg", "e/"))
    val = make(tmp_path / "val", "b/1.jpg", "c/1.jpg")
    alone, agreed = scan(val), scan(val, classes=train.classes)
    assert alone.labels is not None
    assert agreed.labels is not None
    assert alone.labels.array.tolist() == [0, 1]
    assert agreed.labels.array.tolist() == [1, 2]
    assert agreed.classes == ("a", "b", "c", "e")
    assert agreed.empty_classes == ()


def test_a_reference_may_have_any_order(tmp_path: Path) -> None:
    """Numbers are the positions in the reference, sorted or not."""
    index = scan(make(tmp_path, "a/1.jpg", "b/1.jpg"), classes=["b", "other", "a"])
    assert index.labels is not None
    assert index.labels.array.tolist() == [2, 0]


@pytest.mark.parametrize("names", [["d/1.jpg"], ["d/"]], ids=["with a file", "empty"])
def test_a_folder_the_reference_lacks_is_refused(tmp_path: Path, names: list[str]) -> None:
    """The error names the unknown classes and a short list of the known ones."""
    make(tmp_path, "c0/1.jpg", *names)
    with pytest.raises(ClassMismatchError, match=r"lacks 'd'; it has 'c0', .* and 40 more"):
        scan(tmp_path, classes=[f"c{i}" for i in range(50)])


def test_a_reference_with_slashes_means_whole_folders(tmp_path: Path) -> None:
    """With auto, the names of the reference say which level is meant."""
    make(tmp_path, "x/s1/1.jpg", "x/s2/1.jpg")
    index = scan(tmp_path, classes=["x/s0", "x/s1", "x/s2"])
    assert labelled(index) == {"x/s1/1.jpg": "x/s1", "x/s2/1.jpg": "x/s2"}
    with pytest.raises(ClassMismatchError, match="lacks 'x/s2'"):
        scan(tmp_path, classes=["x/s0", "x/s1"])


# --- numeric names -------------------------------------------------------------------------------


def test_numeric_names_sorted_as_text_are_flagged(tmp_path: Path) -> None:
    """Folder 10 sorts before folder 2: the index says that labels and names differ."""
    index = scan(make(tmp_path, *(f"{n}/1.jpg" for n in (0, 1, 2, 10, 25))))
    assert index.classes == ("0", "1", "10", "2", "25")
    assert index.numeric_mismatch
    assert labelled(index)["10/1.jpg"] == "10"


@pytest.mark.parametrize("names", [["0", "1", "2"], ["1", "10", "x"]])
def test_agreeing_or_other_names_are_not_flagged(tmp_path: Path, names: list[str]) -> None:
    """There is no remark when label and name agree or not all names are numbers."""
    assert not scan(make(tmp_path, *(f"{n}/1.jpg" for n in names))).numeric_mismatch


def test_numeric_classes_are_their_own_labels(tmp_path: Path) -> None:
    """The label is the number in the name; gaps get their number as the name."""
    index = scan(make(tmp_path, "2/1.jpg", "10/1.jpg", "03/1.jpg", "4/"), numeric_classes=True)
    assert index.labels is not None
    assert dict(zip(index.paths, index.labels.array.tolist(), strict=True)) == {
        "03/1.jpg": 3,
        "10/1.jpg": 10,
        "2/1.jpg": 2,
    }
    assert index.classes == ("0", "1", "2", "03", "4", "5", "6", "7", "8", "9", "10")
    assert index.empty_classes == ("4",)
    assert not index.numeric_mismatch


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["7/1.jpg", "07/1.jpg"], "'07' and '7' are the same number"),
        (["0/1.jpg", "cat/1.jpg"], "'cat' is not a number"),
        (["1000001/1.jpg"], "above 1,000,000"),
        (["\u0663/1.jpg"], "is not a number"),
        (["-1/1.jpg"], "'-1' is not a number"),
    ],
)
def test_names_that_cannot_be_labels_are_refused(
    tmp_path: Path, names: list[str], text: str
) -> None:
    """Two names for one number, other names, and numbers without end are errors that name them."""
    with pytest.raises(OptionError, match=text):
        scan(make(tmp_path, *names), numeric_classes=True)


# --- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"class_level": "deep"}, "class_level must be one of auto, top, folder, none"),
        ({"classes": "ab"}, "not one string"),
        ({"classes": ["a", "a"]}, "'a' twice"),
        ({"classes": ["a", 1]}, "strings, not int"),
        ({"classes": ["a"], "numeric_classes": True}, "give one of them"),
        ({"classes": ["a"], "class_level": "none"}, "leaves no classes for classes"),
        ({"numeric_classes": True, "class_level": "none"}, "no classes for numeric_classes"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    tmp_path: Path, options: dict[str, Any], text: str
) -> None:
    """Wrong and contradicting options are refused before anything is scanned."""
    with pytest.raises(OptionError, match=text):
        scan(tmp_path / "missing", **options)
