"""A store written back to a folder: the same bytes under the same names, whole or not at all."""

from __future__ import annotations

import csv
import filecmp
import os
from pathlib import Path
from typing import Any

import numpy as np
import pictures
import pytest
from packing import folder, jpeg, pixels_of, put, run

from sharedds.cli import main
from sharedds.errors import (
    CorruptDataError,
    OptionError,
    SampleKeyError,
    SourceError,
    StorageFullError,
    StoreExistsError,
    StoreFormatError,
)
from sharedds.ingest import export, pack
from sharedds.store import StoreWriter


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """Two classes of five pictures, packed."""
    pack(folder(tmp_path / "src"), tmp_path / "out.lmdb")
    return tmp_path / "out.lmdb"


def files_of(root: Path) -> list[str]:
    """Return the relative paths of all files."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def write(path: Path, *keys: str | None, **more: Any) -> Path:
    """Make a store of these keys."""
    with StoreWriter(path, schema={"image": "keep", **more.pop("schema", {})}) as writer:
        for number, key in enumerate(keys):
            writer.add({"image": jpeg(number), **more}, key=key)
    return path


def test_a_packed_folder_comes_back_identical(packed: Path, tmp_path: Path) -> None:
    """Every file, byte for byte; odd formats, odd names and deep folders too."""
    odd = {
        "a/x.PNG": pictures.black(3, 3, 8, 2),
        "a/wrong.jpg": pictures.black(4, 3, 8, 2),
        "a/none": jpeg(50),
        "b/deep/er/c:d\\e\n.gif": pictures.save(pictures.smooth(), "GIF"),
        os.fsdecode(b"b/\xff.jpeg"): jpeg(51),
    }
    root = put(tmp_path / "src", odd)
    report = pack(root, packed, force=True)
    assert report.samples == 15
    done = export(packed, tmp_path / "back")
    assert done.files == 15
    assert done.bytes == sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    names = files_of(root)
    assert names == files_of(tmp_path / "back")
    same, different, errors = filecmp.cmpfiles(root, tmp_path / "back", names, shallow=False)
    assert (len(same), different, errors) == (15, [], [])


def test_an_exported_folder_packs_to_the_same_digest(packed: Path, tmp_path: Path) -> None:
    """Nothing is lost or turned on the way there and back."""
    export(packed, tmp_path / "back")
    assert (
        pack(tmp_path / "back", tmp_path / "again.lmdb").digest
        == pack(tmp_path / "src", packed, force=True).digest
    )


@pytest.mark.parametrize(
    "key",
    ["../x.jpg", "/etc/x.jpg", "a/../../x.jpg", "a/./x.jpg", "a//x.jpg", "a/", ".", "..", "a\0b"],
)
def test_keys_that_would_leave_the_folder_are_refused(tmp_path: Path, key: str) -> None:
    """A store from elsewhere may hold any key; nothing is written anywhere."""
    path = write(tmp_path / "evil.lmdb", "good.jpg", key)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreFormatError, match="sample 1 is not a path inside a folder"):
        export(path, tmp_path / "in" / "back")
    (tmp_path / "in").rmdir()
    assert sorted(tmp_path.rglob("*")) == before


def test_links_lead_nowhere(tmp_path: Path) -> None:
    """The folder is a new one, so no link can lie in wait in it."""
    path = write(tmp_path / "x.lmdb", "a/x.jpg")
    (tmp_path / "target").mkdir()
    (tmp_path / "back").symlink_to(tmp_path / "target")
    with pytest.raises((StoreExistsError, SourceError)):
        export(path, tmp_path / "back")
    assert os.listdir(tmp_path / "target") == []


def test_a_folder_that_is_not_empty_is_refused(packed: Path, tmp_path: Path) -> None:
    """It keeps what it has; an empty one is filled."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    for place in (tmp_path / "full", tmp_path / "full" / "mine"):
        with pytest.raises(StoreExistsError, match="not an empty folder"):
            export(packed, place)
    assert os.listdir(tmp_path / "full") == ["mine"]
    (tmp_path / "empty").mkdir()
    export(packed, tmp_path / "empty")
    assert len(files_of(tmp_path / "empty")) == 10


def test_labels_are_written_on_request(packed: Path, tmp_path: Path) -> None:
    """As a table that pack reads."""
    export(packed, tmp_path / "back", labels=True)
    with open(tmp_path / "back" / "labels.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == {"path": "a/0000.jpg", "label": "a"}
    assert len(rows) == 10
    again = pack(tmp_path / "back", tmp_path / "o", labels=tmp_path / "back" / "labels.csv")
    assert again.digest == pack(tmp_path / "src", packed, force=True).digest


def test_labels_that_are_not_there_cannot_be_written(tmp_path: Path) -> None:
    """Said before anything is written."""
    path = write(tmp_path / "x.lmdb", "a.jpg")
    with pytest.raises(OptionError, match="no labels"):
        export(path, tmp_path / "back", labels=True)
    assert os.listdir(tmp_path) == ["x.lmdb"]


def test_labels_without_a_name_are_numbers(tmp_path: Path) -> None:
    """A number that no class has must not take the name of another."""
    schema = {"label": "int64"}
    with StoreWriter(tmp_path / "x", schema={"image": "keep", **schema}, classes=["p", "q"]) as out:
        for number in (1, -1, 7):
            out.add({"image": jpeg(number + 2), "label": number}, key=f"{number}.jpg")
    export(tmp_path / "x", tmp_path / "back", labels=True)
    with open(tmp_path / "back" / "labels.csv", newline="") as file:
        assert [row["label"] for row in csv.DictReader(file)] == ["q", "-1", "7"]


@pytest.mark.parametrize(("codec", "name"), [("png", "0000.jpg.png"), ("jpeg", "0000.jpg")])
def test_a_name_says_what_is_in_the_file(tmp_path: Path, codec: Any, name: str) -> None:
    """After encoding anew the right extension is added, unless it is there."""
    pack(folder(tmp_path / "src", ("a",), 1), tmp_path / "o", codec=codec)
    export(tmp_path / "o", tmp_path / "back")
    assert files_of(tmp_path / "back") == [f"a/{name}"]


def test_raw_pixels_become_png(tmp_path: Path) -> None:
    """Without loss."""
    data = pictures.save(pictures.smooth(9, 7), "PNG")
    pack(put(tmp_path / "src", {"a/x.jpg": data}), tmp_path / "o", codec="raw", size=(7, 9))
    export(tmp_path / "o", tmp_path / "back")
    found = (tmp_path / "back" / "a" / "x.jpg.png").read_bytes()
    assert np.array_equal(pixels_of(found), pixels_of(data))


def test_samples_without_keys_are_numbered(tmp_path: Path) -> None:
    """With the extension of their content."""
    export(write(tmp_path / "x.lmdb", None, None), tmp_path / "back")
    assert files_of(tmp_path / "back") == ["0.jpg", "1.jpg"]


def test_samples_without_a_value_are_counted(tmp_path: Path) -> None:
    """They have no file, and the report says so."""
    with StoreWriter(tmp_path / "x", schema={"image": "keep", "n": "int64"}) as writer:
        writer.add({"image": None, "n": 1}, key="a.jpg")
        writer.add({"image": jpeg(), "n": 2}, key="b.jpg")
    done = export(tmp_path / "x", tmp_path / "back")
    assert (done.files, done.empty) == (1, 1)
    assert files_of(tmp_path / "back") == ["b.jpg"]


def test_other_fields_can_be_written(tmp_path: Path) -> None:
    """Bytes as they are; what is neither bytes nor a picture is refused by name."""
    with StoreWriter(tmp_path / "x", schema={"raw": "bytes", "n": "int64"}) as writer:
        writer.add({"raw": b"anything", "n": 1}, key="a.bin")
    export(tmp_path / "x", tmp_path / "back", field="raw")
    assert (tmp_path / "back" / "a.bin").read_bytes() == b"anything"
    for field, reason in (("n", "not pictures or bytes"), ("image", "no field 'image'")):
        with pytest.raises(SampleKeyError, match=reason):
            export(tmp_path / "x", tmp_path / "other", field=field)
    assert sorted(os.listdir(tmp_path)) == ["back", "x"]


def test_an_interrupted_export_leaves_nothing(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not under the final name, nor beside it."""
    from sharedds.ingest import export as verb
    from sharedds.ingest.exports.folder import NewFolder

    assert verb is export
    real, count = NewFolder.write, [0]

    def stopping(self: NewFolder, name: bytes, data: bytes | memoryview) -> None:
        count[0] += 1
        if count[0] == 4:
            raise KeyboardInterrupt
        real(self, name, data)

    monkeypatch.setattr(NewFolder, "write", stopping)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(KeyboardInterrupt):
        export(packed, tmp_path / "back", labels=True)
    assert sorted(tmp_path.rglob("*")) == before


def test_damage_ends_an_export(packed: Path, tmp_path: Path) -> None:
    """With the sample named, and nothing under the final name."""
    data = bytearray(packed.read_bytes())
    picture = (tmp_path / "src" / "b" / "0002.jpg").read_bytes()
    data[data.index(picture) + 100] ^= 1
    (tmp_path / "damaged.lmdb").write_bytes(data)
    with pytest.raises(CorruptDataError, match=r"sample 7 \(b/0002\.jpg\)"):
        export(tmp_path / "damaged.lmdb", tmp_path / "back")
    assert sorted(os.listdir(tmp_path)) == sorted(
        ["src", "out.lmdb", "out.lmdb.report.jsonl", "damaged.lmdb"]
    )


def test_a_full_disk_ends_an_export(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an error that says so."""
    import builtins
    import errno

    real = open

    def full(path: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if mode == "xb":
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return real(path, mode, *rest, **options)

    monkeypatch.setattr(builtins, "open", full)
    with pytest.raises(StorageFullError, match="back: no room to write"):
        export(packed, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_place_that_cannot_be_written_is_an_error(packed: Path, tmp_path: Path) -> None:
    """With the folder named."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(SourceError, match=r"file/back: cannot be written \(Not a directory\)"):
        export(packed, tmp_path / "file" / "back")


def test_a_dry_run_reads_all_and_writes_nothing(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says what it would have written."""
    before = sorted(tmp_path.rglob("*"))
    assert main(["export", str(packed), str(tmp_path / "back"), "--dry-run", "--labels"]) == 0
    assert "10 files would be written" in capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == before


def test_the_command_writes_the_folder(packed: Path, tmp_path: Path) -> None:
    """With one line on stdout and nothing on stderr."""
    done = run("export", packed, tmp_path / "back")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().startswith(f"{tmp_path / 'back'}: 10 files written, ")
    assert files_of(tmp_path / "back") == files_of(tmp_path / "src")


def test_a_new_folder_has_ordinary_permissions(packed: Path, tmp_path: Path) -> None:
    """Those of any folder made here."""
    (tmp_path / "plain").mkdir()
    export(packed, tmp_path / "back")
    assert (tmp_path / "back").stat().st_mode == (tmp_path / "plain").stat().st_mode
