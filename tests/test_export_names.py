"""Where an export puts its files: names that exclude each other, and folders that are there."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from packing import jpeg, run

from sharedds.errors import OptionError, StoreExistsError, StoreFormatError
from sharedds.ingest import export
from sharedds.ingest.exports.folder import NewFolder
from sharedds.store import StoreWriter


def write(path: Path, *keys: str) -> Path:
    """Make a store of these keys."""
    with StoreWriter(path, schema={"image": "keep"}) as writer:
        for number, key in enumerate(keys):
            writer.add({"image": jpeg(number)}, key=key)
    return path


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("keys", [("x", "a", "a/b"), ("x", "a/b", "a"), ("x", "a/b/c", "a")])
def test_a_file_that_would_be_a_folder_too_is_refused(
    tmp_path: Path, keys: tuple[str, ...], dry_run: bool
) -> None:
    """With both samples named; a dry run finds it as well."""
    path = write(tmp_path / "x.lmdb", *keys)
    with pytest.raises(StoreFormatError, match="cannot both be files") as error:
        export(path, tmp_path / "back", dry_run=dry_run)
    assert "sample 1 (" in str(error.value)
    assert "sample 2 (" in str(error.value)
    assert f"'{keys[1]}'" in str(error.value)
    assert f"'{keys[2]}'" in str(error.value)
    assert os.listdir(tmp_path) == ["x.lmdb"]


@pytest.mark.parametrize("dry_run", [False, True])
def test_two_files_of_one_name_are_refused(tmp_path: Path, dry_run: bool) -> None:
    """Where the extension of the content makes two names one."""
    attrs = {"recipe": {"codec": "jpeg"}}
    with StoreWriter(tmp_path / "x", schema={"image": "keep"}, attrs=attrs) as writer:
        for number, key in enumerate(("a.png.jpg", "b", "a.png")):
            writer.add({"image": jpeg(number)}, key=key)
    with pytest.raises(StoreFormatError, match=r"sample 0 .* and sample 2 .* the same name"):
        export(tmp_path / "x", tmp_path / "back", dry_run=dry_run)


def test_the_folder_a_shell_is_in_stays(tmp_path: Path) -> None:
    """It is filled, not replaced: the shell would be left in one that is gone."""
    path = write(tmp_path / "x.lmdb", "a/b", "c")
    here = tmp_path / "here"
    here.mkdir(mode=0o700)
    before = here.stat()
    done = run("export", path, ".", cwd=here)
    assert done.returncode == 0, done.stderr
    assert (here.stat().st_ino, here.stat().st_mode) == (before.st_ino, before.st_mode)
    assert sorted(os.listdir(here)) == ["a", "c"]
    assert sorted(os.listdir(tmp_path)) == ["here", "x.lmdb"]


def test_a_folder_that_is_filled_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What somebody else put there is not mixed with ours."""
    path = write(tmp_path / "x.lmdb", "a")
    (tmp_path / "back").mkdir()
    real = NewFolder.write

    def meddling(self: NewFolder, name: bytes, data: bytes | memoryview) -> None:
        (tmp_path / "back" / "mine").write_text("x")
        real(self, name, data)

    monkeypatch.setattr(NewFolder, "write", meddling)
    with pytest.raises(StoreExistsError, match="meanwhile"):
        export(path, tmp_path / "back")
    assert os.listdir(tmp_path / "back") == ["mine"]
    assert sorted(os.listdir(tmp_path)) == ["back", "x.lmdb"]


def test_a_value_that_no_picture_holds_is_named(tmp_path: Path) -> None:
    """With the file, the sample, its key and the field."""
    with StoreWriter(tmp_path / "x", schema={"depth": "float32[4, 4]"}) as writer:
        writer.add({"depth": np.zeros((4, 4), np.float32)}, key="a")
    with pytest.raises(OptionError, match=r"sample 0 \(a\), field 'depth'") as caught:
        export(tmp_path / "x", tmp_path / "back", field="depth")
    error = caught.value
    assert (error.path, error.sample, error.key) == (str(tmp_path / "x"), 0, "a")
    assert error.field == "depth"
