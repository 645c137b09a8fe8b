"""Scanning an image folder: what counts, and what becomes of everything else."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from trees import make, reasons

from sharedds.errors import OptionError, SourceError
from sharedds.folder import LeftOut, left_out, scan

# --- which names count ---------------------------------------------------------------------------


def test_extensions_count_in_any_case(tmp_path: Path) -> None:
    """Upper-case and rare extensions of pictures count; patterns such as *.jpg miss them."""
    names = ["a.jpg", "b.JPG", "c.Jpeg", "d.PNG", "e.pNg", "f.TIF", "g.webp", "h.jfif", "i.JPE"]
    names += ["k.gif", "l.bmp", "m.dib", "n.tiff"]
    assert len(list(make(tmp_path, *names).glob("*.jpg"))) == 1
    assert list(scan(tmp_path).paths) == names


def test_other_extensions_are_counted_with_an_example(tmp_path: Path) -> None:
    """Every other extension is one group with its count and its first file."""
    index = scan(make(tmp_path, "a.jpg", "b.jpg.bak", "c.HEIC", "d.heic", "e.txt"))
    assert [item for item in index.left_out if item.reason == ".heic"] == [
        LeftOut(kind="extension", reason=".heic", example="c.HEIC", count=2)
    ]
    assert reasons(index) == {
        ("extension", ".bak"): 1,
        ("extension", ".heic"): 2,
        ("extension", ".txt"): 1,
    }
    assert index.count() == index.count("extension") == 4


def test_names_without_extension_wait_for_their_content(tmp_path: Path) -> None:
    """A file without an extension is in the index, which says that the name proves nothing."""
    index = scan(make(tmp_path, "README", "a.jpg", "trailing.", "v1.2/picture"), class_level="none")
    assert {path: index.has_extension(i) for i, path in enumerate(index.paths)} == {
        "README": False,
        "a.jpg": True,
        "trailing.": False,
        "v1.2/picture": False,
    }


def test_numbered_extensions_do_not_grow_the_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a limit, extensions are counted together."""
    monkeypatch.setattr(left_out, "MAX_EXTENSIONS", 3)
    index = scan(make(tmp_path, *(f"scan.{i:03d}" for i in range(10)), "z.001"))
    assert reasons(index) == {
        ("extension", ".000"): 1,
        ("extension", ".001"): 2,
        ("extension", ".002"): 1,
        ("extension", "other extensions"): 7,
    }


def make_hidden(root: Path) -> Path:
    """Write a tree with two good pictures and traces of systems and tools everywhere."""
    make(root, "a/0.jpg", "b/0.jpg", ".DS_Store", "a/.DS_Store", "a/._0.jpg", "b/Thumbs.db")
    make(root, ".ipynb_checkpoints/0-checkpoint.jpg", "a/.ipynb_checkpoints/0-checkpoint.jpg")
    return make(root, "__MACOSX/a/._0.jpg", ".git/x.jpg", "@eaDir/0.jpg/THUMB.jpg", "b/.x.jpg")


def test_hidden_and_junk_are_neither_data_nor_classes(tmp_path: Path) -> None:
    """Hidden names and traces of systems are counted by kind; a plain listing is misled."""
    make_hidden(tmp_path)
    assert len([name for name in os.listdir(tmp_path) if (tmp_path / name).is_dir()]) == 6
    index = scan(tmp_path)
    assert index.classes == ("a", "b")
    assert list(index.paths) == ["a/0.jpg", "b/0.jpg"]
    assert reasons(index) == {
        ("hidden", ".DS_Store"): 2,
        ("hidden", ".git"): 1,
        ("hidden", ".ipynb_checkpoints"): 2,
        ("hidden", "@eaDir"): 1,
        ("hidden", "Thumbs.db"): 1,
        ("hidden", "__MACOSX"): 1,
        ("hidden", "hidden"): 1,
        ("hidden", "macOS companion ._*"): 1,
    }
    assert index.count("bad") == 0


def test_include_hidden_lets_dot_names_count_but_no_junk(tmp_path: Path) -> None:
    """With include_hidden dot files are data, dot folders are still no classes, junk stays out."""
    index = scan(make_hidden(tmp_path), include_hidden=True)
    assert list(index.paths) == [
        "a/.ipynb_checkpoints/0-checkpoint.jpg",
        "a/0.jpg",
        "b/.x.jpg",
        "b/0.jpg",
    ]
    assert index.classes == ("a", "b")
    assert reasons(index)["class", "no class folder"] == 2
    assert reasons(index)["hidden", "macOS companion ._*"] == 1


# --- what is no file -----------------------------------------------------------------------------


def test_everything_unusable_has_its_own_reason(tmp_path: Path) -> None:
    """Empty files, folders, pipes, sockets and broken links are told apart, and none is opened."""
    make(tmp_path, "a/ok.jpg", "a/x.jpg/")
    make(tmp_path, "a/0.jpg", "a/1.jpg", "a/2.jpg", data=b"")
    os.mkfifo(tmp_path / "a/y.jpg")  # opening it would wait for ever
    os.mkfifo(tmp_path / "a/pipe.txt")
    with socket.socket(socket.AF_UNIX) as server:
        folder = os.getcwd()
        os.chdir(tmp_path / "a")  # the name of a socket must be short
        server.bind("s.png")
        os.chdir(folder)
    os.symlink("nowhere.jpg", tmp_path / "a/gone.jpg")
    os.symlink("self.jpg", tmp_path / "a/self.jpg")
    index = scan(tmp_path)
    assert list(index.paths) == ["a/ok.jpg"]
    assert reasons(index) == {
        ("bad", "broken link"): 2,
        ("bad", "empty"): 3,
        ("bad", "not a regular file"): 2,
        ("extension", ".txt"): 1,
        ("folder", "directory with an image name"): 1,
    }
    assert index.files == 9 == len(index) + index.count()
    assert [x.example for x in index.left_out if x.reason == "empty"] == [
        "a/0.jpg",
        "a/1.jpg",
        "a/2.jpg",
    ]


def test_a_folder_named_like_a_picture_is_walked(tmp_path: Path) -> None:
    """A folder x.jpg is a folder: its files and its class count."""
    index = scan(make(tmp_path, "x.jpg/1.jpg"))
    assert list(index.paths) == ["x.jpg/1.jpg"]
    assert index.classes == ("x.jpg",)


def test_many_bad_files_are_counted_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a limit the last one listed stands for the rest, and the sum stays right."""
    monkeypatch.setattr(left_out, "LISTED", 3)
    index = scan(make(tmp_path, *(f"{i}.jpg" for i in range(9)), data=b""))
    assert [(item.example, item.count) for item in index.left_out] == [
        ("0.jpg", 1),
        ("1.jpg", 1),
        ("2.jpg", 7),
    ]


def test_links_to_files_and_folders_are_followed(tmp_path: Path) -> None:
    """Linked files and folders count under the path that leads to them."""
    make(tmp_path, "else/1.jpg", "root/a/0.jpg")
    os.symlink("../else", tmp_path / "root/b")
    os.symlink("../../else/1.jpg", tmp_path / "root/a/2.jpg")
    index = scan(tmp_path / "root")
    assert list(index.paths) == ["a/0.jpg", "a/2.jpg", "b/1.jpg"]
    assert index.classes == ("a", "b")


@pytest.mark.parametrize("target", [".", "..", "../.."], ids=["self", "root", "above the root"])
def test_loops_of_links_end(tmp_path: Path, target: str) -> None:
    """A link that leads back up, at once or through a folder below, is reported, not walked."""
    make(tmp_path, "root/a/0.jpg")
    os.symlink(target, tmp_path / "root/a/loop")
    index = scan(tmp_path / "root")
    assert "a/0.jpg" in list(index.paths)
    assert len(index) == 1
    assert ("folder", "leads back to a folder above it") in reasons(index)


def test_a_folder_that_cannot_be_listed_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One forbidden folder is named with its reason; the others are scanned."""
    make(tmp_path, "a/0.jpg", "b/0.jpg", "c/0.jpg")
    real = os.scandir

    def deny(path: bytes) -> Any:
        if path.rstrip(b"/").endswith(b"/b"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", deny)
    index = scan(tmp_path)
    assert list(index.paths) == ["a/0.jpg", "c/0.jpg"]
    assert index.left_out == (
        LeftOut(
            kind="bad",
            reason="cannot be listed (Permission denied)",
            example="b",
            is_folder=True,
        ),
    )
    assert index.classes == ("a", "b", "c")


def test_a_file_that_vanishes_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file deleted between the listing and its stat does not end the scan."""
    make(tmp_path, "a.jpg", "b.jpg", "c.jpg")
    real = os.stat

    def vanish(path: Any, **kwargs: Any) -> os.stat_result:
        if os.fsencode(path).endswith(b"b.jpg"):
            raise FileNotFoundError(2, "No such file or directory")
        return real(path, **kwargs)

    monkeypatch.setattr(os, "stat", vanish)
    index = scan(tmp_path)
    assert reasons(index) == {("bad", "vanished during the scan"): 1}
    assert list(index.paths) == ["a.jpg", "c.jpg"]


# --- the root ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"), [("missing", "no such folder"), ("f.jpg", "a file; give the folder")]
)
def test_a_root_that_is_no_folder_is_refused(tmp_path: Path, name: str, text: str) -> None:
    """A missing root and a file as the root are errors that name the path and the remedy."""
    make(tmp_path, "f.jpg")
    with pytest.raises(SourceError, match=text) as caught:
        scan(tmp_path / name)
    assert caught.value.path == str(tmp_path / name)


def test_a_root_without_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A root that may not be listed is an error, not an empty index."""

    def deny(_: bytes) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", deny)
    with pytest.raises(SourceError, match=r"Permission denied.*permission to read"):
        scan(tmp_path)


@pytest.mark.parametrize("root", ["", 7, None])
def test_a_root_that_is_no_path_is_refused(root: Any) -> None:
    """An empty path does not mean the current folder, and a number is no path."""
    with pytest.raises(OptionError, match="path"):
        scan(root)


def test_a_nul_in_the_root_is_refused() -> None:
    """A path that no system can have is a wrong argument."""
    with pytest.raises(OptionError, match="zero byte"):
        scan("a\0b")


def test_an_empty_folder_is_an_empty_index(tmp_path: Path) -> None:
    """Nothing to find is no error here: the caller says what it means."""
    index = scan(tmp_path)
    assert (len(index), index.files, index.total_bytes, index.left_out) == (0, 0, 0, ())
    assert index.sizes.array.shape == (0,)


@pytest.mark.parametrize("spelling", ["relative", "slash", "bytes"])
def test_the_root_is_kept_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    """However the root is spelled, locations stay right when the process changes folder."""
    make(tmp_path, "in/a/0.jpg", data=b"seen")
    monkeypatch.chdir(tmp_path)
    spellings: dict[str, str | bytes] = {
        "relative": "in",
        "slash": f"{tmp_path}/in/",
        "bytes": os.fsencode(tmp_path / "in"),
    }
    index = scan(spellings[spelling])
    monkeypatch.chdir("/")
    assert index.root == str(tmp_path / "in")
    assert Path(os.fsdecode(index.location(0))).read_bytes() == b"seen"
