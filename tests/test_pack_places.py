"""Where a pack writes, what it may replace, and options as people write them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from packing import events, folder, jpeg, put

from sharedds.errors import OptionError, SharedDSError, SourceError, StoreExistsError
from sharedds.ingest import pack
from sharedds.ingest.images.prepare import Ingester
from sharedds.store import Store, writer


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of five pictures."""
    return folder(tmp_path / "photos")


@pytest.mark.parametrize("name", ["a/0000.jpg", "new.jsonl"])
def test_a_report_inside_the_source_is_refused(photos: Path, tmp_path: Path, name: str) -> None:
    """Force or not: it would replace a picture, or be packed itself."""
    before = (photos / "a/0000.jpg").read_bytes()
    for force in (False, True):
        with pytest.raises(OptionError, match="inside the folder that is packed"):
            pack(photos, tmp_path / "out.lmdb", report=photos / name, force=force)
    assert (photos / "a/0000.jpg").read_bytes() == before
    assert os.listdir(tmp_path) == ["photos"]


@pytest.mark.parametrize("content", [b"my notes", b"", b'{"event": "other"}\n', b"\xff\0"])
def test_a_report_replaces_only_a_report(photos: Path, tmp_path: Path, content: bytes) -> None:
    """Anything else is somebody's, unless force says so."""
    mine = tmp_path / "mine"
    mine.write_bytes(content)
    for dry_run in (True, False):
        with pytest.raises(StoreExistsError, match="not the report of a pack"):
            pack(photos, tmp_path / "out.lmdb", report=mine, dry_run=dry_run)
    assert mine.read_bytes() == content
    assert not (tmp_path / "out.lmdb").exists()
    pack(photos, tmp_path / "out.lmdb", report=mine, force=True)
    assert events(mine)[0]["event"] == "summary"
    pack(photos, tmp_path / "other.lmdb", report=mine)
    assert events(mine)[0]["path"] == str(tmp_path / "other.lmdb")


def test_a_file_beside_the_report_keeps_its_content(photos: Path, tmp_path: Path) -> None:
    """While it is written, the report has a name that nobody else has."""
    mine = tmp_path / "out.lmdb.report.jsonl.tmp"
    mine.write_text("mine")
    pack(photos, tmp_path / "out.lmdb")
    assert mine.read_text() == "mine"
    assert len(os.listdir(tmp_path)) == 4


def test_a_report_whose_name_is_too_long_is_refused_first(photos: Path, tmp_path: Path) -> None:
    """Not after hours of packing; and devices are no reports."""
    for force in (False, True):
        with pytest.raises(SourceError, match=r"cannot be written \(File name too long\)") as error:
            pack(photos, tmp_path / "out.lmdb", report=tmp_path / ("r" * 256), force=force)
        assert os.path.isabs(error.value.path or "")
        with pytest.raises(OptionError, match="cannot be the report"):
            pack(photos, tmp_path / "out.lmdb", report="/dev/null", force=force)
    assert os.listdir(tmp_path) == ["photos"]
    pack(photos, tmp_path / "out.lmdb", report=tmp_path / ("r" * 255))


def test_a_dry_run_refuses_what_a_run_would(photos: Path, tmp_path: Path) -> None:
    """An output that exists, one inside the source, and a report without a folder."""
    out = tmp_path / "out.lmdb"
    pack(photos, out)
    with pytest.raises(StoreExistsError):
        pack(photos, out, dry_run=True)
    assert pack(photos, out, dry_run=True, force=True).samples == 10
    with pytest.raises(OptionError, match="inside"):
        pack(photos, photos / "out.lmdb", dry_run=True)
    with pytest.raises(SourceError, match="no such folder for the report"):
        pack(photos, tmp_path / "x", dry_run=True, report=tmp_path / "gone" / "r")


@pytest.mark.parametrize("option", ["labels", "classes"])
def test_errors_about_side_files_carry_absolute_paths(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """Where the process is by then makes no difference."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SharedDSError) as error:
        pack(photos, "out.lmdb", **{option: "gone.txt"})  # type: ignore[arg-type]
    assert error.value.path == str(tmp_path / "gone.txt")


@pytest.mark.parametrize("change", ["options", "files"])
def test_work_that_is_given_up_is_told(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """A half-done pack with other options or files is discarded, with how much it was."""
    out = tmp_path / "out.lmdb"
    put(photos, {"a/9999.jpg": b"no"})  # the sixth
    with monkeypatch.context() as inner:
        inner.setattr(writer, "_COMMIT", 1)
        with pytest.raises(SharedDSError):
            pack(photos, out, on_error="raise", workers=1)
    if change == "files":
        put(photos, {"b/new.jpg": jpeg(88)})
    report = pack(photos, out, **({"codec": "png"} if change == "options" else {}))  # type: ignore[arg-type]
    assert report.resumed == 0
    assert "5 images of an unfinished pack with other options or files were discarded" in (
        report.warnings
    )


def test_work_that_goes_on_is_not_called_given_up(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same pack says nothing of the kind."""
    put(photos, {"a/9999.jpg": b"no"})
    with monkeypatch.context() as inner:
        inner.setattr(writer, "_COMMIT", 1)
        with pytest.raises(SharedDSError):
            pack(photos, tmp_path / "o", on_error="raise", workers=1)
    report = pack(photos, tmp_path / "o")
    assert (report.resumed, report.warnings) == (5, [])


def test_nothing_packed_removes_nothing_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What somebody put in the working folder meanwhile stays."""
    real = Ingester.__call__

    def meddling(self: Ingester, path: bytes) -> object:
        (tmp_path / "o.partial" / "mine").write_text("x")
        return real(self, path)

    monkeypatch.setattr(Ingester, "__call__", meddling)
    with pytest.raises(SourceError, match="no image could be packed"):
        pack(put(tmp_path / "src", {"a/x.jpg": b"no"}), tmp_path / "o")
    assert os.listdir(tmp_path / "o.partial") == ["mine"]


def test_options_are_taken_as_python_has_them(photos: Path, tmp_path: Path) -> None:
    """Names of colours, numbers of NumPy, lists for pairs, one path for a list of paths."""
    first = pack(photos, tmp_path / "first.lmdb")
    report = pack(
        photos,
        tmp_path / "o",
        codec="raw",
        size=[np.int64(8), 9],  # type: ignore[arg-type]
        background="grey",
        quality=np.uint8(90),  # type: ignore[arg-type]
        against=tmp_path / "first.lmdb",
    )
    recipe = Store(report.path).attrs["recipe"]
    assert (recipe["size"], recipe["background"]) == ([8, 9], [128, 128, 128])
    again = pack(photos, tmp_path / "again.lmdb", against=first.path)
    assert again.duplicate_count == 10
