"""Labels of packed pictures: from folders, from other sets, from a table; and equal pictures."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pictures
import pytest
from packing import entries, events, folder, jpeg, put, run, stored
from PIL import Image

from sharedds.cli import main
from sharedds.errors import ClassMismatchError, OptionError, SourceError
from sharedds.ingest import PackReport, pack
from sharedds.store import Store


def labels(path: str | os.PathLike[str]) -> dict[str, int]:
    """Return the label of each picture by its key."""
    store = Store(path)
    numbers = np.asarray(store.column("label")).tolist()
    return {store.key(i): number for i, number in enumerate(numbers)}


def classes(path: str | os.PathLike[str]) -> list[str]:
    """Return the class names by number."""
    names = Store(path).classes
    return [] if names is None else list(names)


@pytest.fixture
def train(tmp_path: Path) -> PackReport:
    """Classes a, b, c and e, of which e is empty."""
    root = folder(tmp_path / "train", ("a", "b", "c"), count=2)
    (root / "e").mkdir()
    return pack(root, tmp_path / "train.lmdb")


# --- numbering -----------------------------------------------------------------------------------


def test_an_empty_class_keeps_its_number_and_is_named(train: PackReport) -> None:
    """The number of classes is stored, whether they have pictures or not."""
    assert classes(train.path) == ["a", "b", "c", "e"]
    assert train.classes == 4
    assert any("1 class folder holds no image" in text and ": e" in text for text in train.warnings)


def test_another_set_takes_over_the_numbers(train: PackReport, tmp_path: Path) -> None:
    """Numbered by itself, b would be 0; with the reference it is what it is in training."""
    val = folder(tmp_path / "val", ("b", "c"), count=1)
    pack(val, tmp_path / "alone.lmdb")
    assert labels(tmp_path / "alone.lmdb") == {"b/0000.jpg": 0, "c/0000.jpg": 1}
    assert run("pack", val, tmp_path / "v.lmdb", "--classes", train.path).returncode == 0
    assert labels(tmp_path / "v.lmdb") == {"b/0000.jpg": 1, "c/0000.jpg": 2}
    assert classes(tmp_path / "v.lmdb") == ["a", "b", "c", "e"]


def test_an_unknown_class_is_refused_by_name(train: PackReport, tmp_path: Path) -> None:
    """Before anything is packed."""
    val = folder(tmp_path / "val", ("b", "c", "d"), count=1)
    with pytest.raises(ClassMismatchError, match="lacks 'd'"):
        pack(val, tmp_path / "v.lmdb", classes=train.path)
    assert not (tmp_path / "v.lmdb").exists()


@pytest.mark.parametrize(
    "content",
    [b"c\nb\r\na\n\n", b"\xef\xbb\xbfc\nb\na", b' ["c", "b", "a"]', b"c\nb\na\n[x]\n"],
    ids=["lines", "bom", "json", "bracket"],
)
def test_class_names_come_from_a_file(tmp_path: Path, content: bytes) -> None:
    """One name a line, or a JSON list."""
    (tmp_path / "names.txt").write_bytes(content)
    root = folder(tmp_path / "src", ("a", "b"), count=1)
    pack(root, tmp_path / "out.lmdb", classes=tmp_path / "names.txt")
    assert labels(tmp_path / "out.lmdb") == {"a/0000.jpg": 2, "b/0000.jpg": 1}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no class names"),
        (b"a\nb\na\n", "'a' is named twice"),
        (b'["a", 3]', "not int"),
    ],
)
def test_a_file_of_class_names_is_checked(tmp_path: Path, content: bytes, reason: str) -> None:
    """With the file in the message."""
    (tmp_path / "names.txt").write_bytes(content)
    root = folder(tmp_path / "src", count=1)
    with pytest.raises(OptionError, match=rf"names\.txt: .*{reason}"):
        pack(root, tmp_path / "out.lmdb", classes=tmp_path / "names.txt")


def test_a_missing_file_of_class_names_is_an_error(tmp_path: Path) -> None:
    """A mistyped path must not number the classes in another way."""
    with pytest.raises(SourceError, match=r"gone\.txt: class names cannot be read"):
        pack(folder(tmp_path / "src"), tmp_path / "out.lmdb", classes=tmp_path / "gone.txt")


def test_numbers_as_names_are_noticed_and_can_be_the_labels(tmp_path: Path) -> None:
    """As text "10" comes before "2"; the pack says so and offers the other way."""
    names = ("0", "1", "2", "10", "25")
    root = folder(tmp_path / "src", names, count=1)
    report = pack(root, tmp_path / "text.lmdb")
    found, listed = labels(report.path), classes(report.path)
    assert all(listed[number] == key.split("/")[0] for key, number in found.items())
    assert found["2/0000.jpg"] != 2
    assert any("--numeric-classes" in text for text in report.warnings)
    assert main(["pack", str(root), str(tmp_path / "n.lmdb"), "--numeric-classes", "--strict"]) == 0
    assert labels(tmp_path / "n.lmdb") == {f"{name}/0000.jpg": int(name) for name in names}
    assert classes(tmp_path / "n.lmdb")[25] == "25"


def test_deeper_folders_belong_to_the_top_one_or_are_classes(tmp_path: Path) -> None:
    """As asked; what lies in no class folder is in the report."""
    files = {"x/s1/1.jpg": jpeg(1), "x/s2/1.jpg": jpeg(2), "root.jpg": jpeg(3)}
    root = put(tmp_path / "src", files)
    report = pack(root, tmp_path / "top.lmdb")
    assert labels(report.path) == {"x/s1/1.jpg": 0, "x/s2/1.jpg": 0}
    [item] = entries(report.report, "left_out")
    assert (item["kind"], item["example"]) == ("class", "root.jpg")
    pack(root, tmp_path / "all.lmdb", class_level="folder")
    assert classes(tmp_path / "all.lmdb") == ["x/s1", "x/s2"]
    pack(root, tmp_path / "none.lmdb", class_level="none")
    assert len(stored(tmp_path / "none.lmdb")) == 3
    assert "label" not in Store(tmp_path / "none.lmdb").fields


# --- a table of labels ---------------------------------------------------------------------------


def table(tmp_path: Path, *rows: str, head: str = "path,label") -> Path:
    """Write a table of labels."""
    path = tmp_path / "labels.csv"
    path.write_text("\n".join([head, *rows, ""]), encoding="utf-8", errors="surrogateescape")
    return path


def test_labels_come_from_a_table(tmp_path: Path) -> None:
    """Folders then mean nothing; files that it does not name are left out and counted."""
    root = put(tmp_path / "src", {f"x/{n}.jpg": jpeg(n) for n in range(4)})
    rows = table(tmp_path, "x/0.jpg,dog", "./x/1.jpg,cat", '"x/2.jpg",dog')
    report = pack(root, tmp_path / "out.lmdb", labels=rows)
    assert labels(report.path) == {"x/0.jpg": 1, "x/1.jpg": 0, "x/2.jpg": 1}
    assert classes(report.path) == ["cat", "dog"]
    assert [(i["reason"], i["count"]) for i in report.left_out] == [
        ("not named in the labels file", 1)
    ]
    assert report.samples + report.failed_count + report.left_out_count == report.files == 4
    seen = pack(root, tmp_path / "x.lmdb", labels=rows, dry_run=True)
    assert (seen.samples, seen.left_out_count) == (3, 1)


def test_rows_of_a_table_that_lead_nowhere_are_told(tmp_path: Path) -> None:
    """A table for another folder must not go unnoticed."""
    root = folder(tmp_path / "src", ("a",), count=1)
    known = ["a/0000.jpg,x"] * 3  # the same row again is no harm
    rows = table(tmp_path, *known, "a/gone.jpg,x", "a/gone too.jpg,y")
    report = pack(root, tmp_path / "out.lmdb", labels=rows)
    assert any("2 paths in" in text and "a/gone" in text for text in report.warnings)
    with pytest.raises(SourceError, match="none of its paths is a picture"):
        pack(root, tmp_path / "x.lmdb", labels=table(tmp_path, "src/a/0000.jpg,x"))


def test_numbers_in_a_table_are_the_labels(tmp_path: Path) -> None:
    """So that label == int(name), with gaps filled."""
    root = folder(tmp_path / "src", ("a",), count=2)
    pack(root, tmp_path / "o", labels=table(tmp_path, "a/0000.jpg,3", "a/0001.jpg,0"))
    assert labels(tmp_path / "o") == {"a/0000.jpg": 3, "a/0001.jpg": 0}
    assert classes(tmp_path / "o") == ["0", "1", "2", "3"]


def test_names_fix_the_numbers_of_a_table(tmp_path: Path) -> None:
    """Labels that are not among them are refused."""
    root = folder(tmp_path / "src", ("a",), count=2)
    rows = table(tmp_path, "a/0000.jpg,x", "a/0001.jpg,z")
    pack(root, tmp_path / "o", labels=rows, classes=["z", "y", "x"])
    assert labels(tmp_path / "o") == {"a/0000.jpg": 2, "a/0001.jpg": 0}
    with pytest.raises(ClassMismatchError, match=r"labels \['z'\] are not among the 2 classes"):
        pack(root, tmp_path / "p", labels=rows, classes=["y", "x"])


def test_a_table_may_name_undecodable_paths(tmp_path: Path) -> None:
    """Byte for byte, as a program that lists the folder would write them."""
    name = os.fsdecode(b"\xff\xe4.jpg")
    root = put(tmp_path / "src", {name: jpeg()})
    pack(root, tmp_path / "o", labels=table(tmp_path, f"{name},x"))
    assert labels(tmp_path / "o") == {name: 0}


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (["a/0000.jpg,x", "a/0000.jpg,y"], "'a/0000.jpg' is named twice"),
        (["a/0000.jpg"], "line 2: a path and a label are expected"),
        (["a/0000.jpg,"], "line 2: a path and a label are expected"),
        ([], "no rows"),
    ],
)
def test_a_table_is_checked(tmp_path: Path, rows: list[str], reason: str) -> None:
    """With the file and the place in the message."""
    root = folder(tmp_path / "src", ("a",), count=1)
    with pytest.raises((OptionError, SourceError), match=rf"labels\.csv.*{reason}"):
        pack(root, tmp_path / "o", labels=table(tmp_path, *rows))


def test_a_table_without_its_head_is_refused(tmp_path: Path) -> None:
    """Else its first line would be lost."""
    root = folder(tmp_path / "src", ("a",), count=1)
    with pytest.raises(SourceError, match="must name the columns path and label"):
        pack(root, tmp_path / "o", labels=table(tmp_path, "a/0000.jpg,x", head="a/0001.jpg,x"))


# --- equal pictures ------------------------------------------------------------------------------


def splits(tmp_path: Path) -> tuple[Path, Path]:
    """Return a training and a test folder that share three files; one is under two labels."""
    files = {f"a/{n}.png": pictures.save(pictures.smooth(20 + n, 9), "PNG") for n in range(18)}
    files |= {"b/0.png": files["a/0.png"], "b/1.png": pictures.black(4, 4, 8, 2)}
    other = {f"a/copy{n}.png": files[f"a/{n}.png"] for n in (3, 4, 5)}
    other["a/again.jpg"] = pictures.save(pictures.smooth(26, 9), "JPEG")
    other["a/own.png"] = pictures.black(5, 4, 8, 2)
    return put(tmp_path / "train", files), put(tmp_path / "val", other)


def test_equal_files_under_two_labels_are_reported(tmp_path: Path) -> None:
    """One group, with all its paths and labels; storing goes on, and strict tells."""
    train, _ = splits(tmp_path)
    out = str(tmp_path / "out.lmdb")
    assert main(["pack", str(train), out]) == 0
    [group] = entries(f"{out}.report.jsonl", "duplicate")
    assert group["conflicting"] is True
    assert [(m["path"], m["label"]) for m in group["members"]] == [
        ("a/0.png", "a"),
        ("b/0.png", "b"),
    ]
    assert len(stored(out)) == 20
    assert main(["pack", str(train), out, "--force", "--strict"]) == 4


def test_equal_files_across_sets_are_reported(tmp_path: Path) -> None:
    """Three groups with all paths; a picture encoded anew is not called equal."""
    train, val = splits(tmp_path)
    pack(train, tmp_path / "train.lmdb")
    report = pack(val, tmp_path / "val.lmdb", against=[tmp_path / "train.lmdb"])
    groups = entries(report.report, "duplicate")
    assert [[m["path"] for m in group["members"]] for group in groups] == [
        [f"a/copy{n}.png", f"a/{n}.png"] for n in (3, 4, 5)
    ]
    for group in groups:
        stores = [os.path.basename(m["store"]) for m in group["members"]]
        assert stores == ["val.lmdb", "train.lmdb"]
    assert report.duplicate_count == 3
    assert any("3 pictures are also in" in text for text in report.warnings)
    words = ["pack", str(val), str(tmp_path / "v.lmdb"), "--against", str(tmp_path / "train.lmdb")]
    assert main(words) == 0
    assert main([*words, "--force", "--strict"]) == 4


def test_a_set_encoded_in_another_way_cannot_be_compared_and_that_is_said(tmp_path: Path) -> None:
    """Nothing found would otherwise look like nothing there."""
    train, val = splits(tmp_path)
    pack(train, tmp_path / "train.lmdb", codec="png", max_side=10)
    report = pack(val, tmp_path / "val.lmdb", against=[tmp_path / "train.lmdb"])
    assert any("packed with other options" in text for text in report.warnings)


@pytest.mark.parametrize("size", [(4, 4), (40, 40)], ids=["narrow", "wide"])
def test_equal_raw_pixels_are_found(tmp_path: Path, size: tuple[int, int]) -> None:
    """Columns have no table of entries; their rows are compared."""
    files = {"a/0.jpg": jpeg(0, 50, 50), "a/1.jpg": jpeg(1, 50, 50), "b/2.jpg": jpeg(0, 50, 50)}
    report = pack(put(tmp_path / "src", files), tmp_path / "o", codec="raw", size=size)
    assert [[m[1] for m in group.members] for group in report.duplicates] == [[0, 2]]


def test_large_groups_of_equal_files_are_cut_short_in_memory(tmp_path: Path) -> None:
    """Counts are whole everywhere, names are whole in the report on disk."""
    files = {f"a/{n:03d}.png": pictures.black(3, 3, 8, 2) for n in range(150)}
    report = pack(put(tmp_path / "src", files), tmp_path / "o")
    [group] = report.duplicates
    assert (group.count, len(group.members)) == (150, 10)
    [line] = entries(report.report, "duplicate")
    assert (line["count"], len(line["members"])) == (150, 150)


def test_conflicts_come_first(tmp_path: Path) -> None:
    """Among many groups those with different labels are the ones to look at."""
    same = {f"a/{n}.png": pictures.black(n // 2 + 1, 3, 8, 2) for n in range(20)}
    clash = {"a/z.png": pictures.black(99, 3, 8, 2), "b/z.png": pictures.black(99, 3, 8, 2)}
    report = pack(put(tmp_path / "src", same | clash), tmp_path / "o")
    assert [group.conflicting for group in report.duplicates] == [True, *[False] * 10]
    assert report.duplicate_count == 11
    assert json.dumps(report.to_json())
    assert events(report.report)[0]["duplicate_count"] == 11


def test_equal_pixels_in_other_files_are_not_called_equal(tmp_path: Path) -> None:
    """It is files that are compared, not what they show."""
    picture = Image.fromarray(pictures.noise(9, 9, 3))
    files = {"a/x.png": pictures.save(picture, "PNG"), "a/x.bmp": pictures.save(picture, "BMP")}
    assert pack(put(tmp_path / "src", files), tmp_path / "o").duplicate_count == 0
