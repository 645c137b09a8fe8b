"""Packing that cannot be: wrong options, outputs in the way, no permission, no room."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pictures
import pytest
from packing import (
    environment,
    folder,
    jpeg,
    put,
    run,
    run_as_nobody,
    run_script,
    stored,
)

from sharedds.errors import (
    OptionError,
    SourceError,
    StorageFullError,
    StoreError,
    StoreExistsError,
)
from sharedds.ingest import pack
from sharedds.store import Store, StoreWriter


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of five pictures."""
    return folder(tmp_path / "photos")


@pytest.fixture
def shared_place() -> Iterator[Path]:
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        yield Path(place)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_side": 9, "short_side": 9, "codec": "png"}, "max_side and short_side exclude"),
        ({"max_side": 9}, "max_side needs pictures to be encoded anew"),
        ({"depth": "8"}, "depth needs pictures to be encoded anew"),
        ({"codec": "raw"}, "codec 'raw' and size"),
        ({"codec": "png", "size": (8, 8)}, "codec 'raw' and size"),
        ({"codec": "tga"}, "codec 'tga': one of keep, jpeg"),
        ({"quality": 0}, "quality 0"),
        ({"codec": "jpeg", "max_side": 0}, "max_side 0"),
        ({"background": (0, 0, 256)}, "background"),
        ({"max_pixels": 0}, "max_pixels 0"),
        ({"workers": 0}, "workers 0"),
        ({"on_error": "stop"}, "on_error 'stop'"),
        ({"size": (3,), "codec": "raw"}, r"size \(3,\)"),
        ({"size": 64, "codec": "raw"}, "size 64"),
        ({"size": "64x64", "codec": "raw"}, "size '64x64'"),
        ({"size": (8, 8.5), "codec": "raw"}, "size 8.5"),
        ({"quality": "90"}, "quality '90'"),
        ({"quality": 90.5}, "quality 90.5"),
        ({"quality": True}, "quality True"),
        ({"codec": "png", "max_side": 16.5}, "max_side 16.5"),
        ({"codec": ["png"]}, r"codec \['png'\]"),
        ({"background": "pink"}, "background 'pink'"),
        ({"background": (0, 0)}, r"background \(0, 0\)"),
        ({"background": 7}, "background 7"),
        ({"max_pixels": "200M"}, "max_pixels '200M'"),
        ({"workers": 1.5}, "workers 1.5"),
        ({"shuffle_seed": "x"}, "shuffle_seed 'x'"),
        ({"against": 3}, "against 3"),
        ({"against": [3]}, "against 3"),
        ({"labels": 3}, "labels 3"),
        ({"report": 3}, "report 3"),
        ({"classes": 3}, "classes 3"),
        ({"classes": {"a": 1}}, "classes a dict"),
        ({"classes": {"a", "b"}}, "classes a set"),
        ({"classes": [("a", np.zeros(9))]}, r"not tuple \(\('a', a ndarray\)\)"),
        ({"labels": "x.csv", "numeric_classes": True}, "labels= takes the place"),
        ({"labels": "x.csv", "class_level": "folder"}, "labels= takes the place"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    photos: Path, tmp_path: Path, options: dict[str, object], reason: str
) -> None:
    """Before anything is read or written, with the option named."""
    with pytest.raises(OptionError, match=reason):
        pack(photos, tmp_path / "out.lmdb", **options)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == ["photos"]


def test_an_output_inside_the_source_is_refused(photos: Path) -> None:
    """It would be packed itself the next time; links do not hide it."""
    (photos.parent / "link").symlink_to(photos)
    for place in (photos / "out.lmdb", photos.parent / "link" / "a" / "out.lmdb"):
        with pytest.raises(OptionError, match="inside the folder that is packed"):
            pack(photos, place)


@pytest.mark.parametrize(("name", "reason"), [("gone", "no such folder"), ("file", "is a file")])
def test_a_source_that_is_no_folder_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    """With its path in the message."""
    (tmp_path / "file").write_bytes(jpeg())
    with pytest.raises(SourceError, match=f"{name}.*{reason}"):
        pack(tmp_path / name, tmp_path / "out.lmdb")


def test_a_folder_without_permission_is_told_apart(shared_place: Path) -> None:
    """One message that names the folder, and exit code 1."""
    photos = folder(shared_place / "photos")
    (shared_place / "closed").mkdir(mode=0o555)
    done = run_as_nobody("pack", str(photos), str(shared_place / "closed" / "out.lmdb"))
    assert done.returncode == 1
    assert str(shared_place / "closed" / "out.lmdb").encode() in done.stderr
    assert b"Permission denied" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_report_that_cannot_be_written_is_refused_first(photos: Path, tmp_path: Path) -> None:
    """Not after hours of packing."""
    with pytest.raises(SourceError, match="no such folder for the report"):
        pack(photos, tmp_path / "out.lmdb", report=tmp_path / "gone" / "r.jsonl")
    with pytest.raises(OptionError, match="cannot be the report"):
        pack(photos, tmp_path / "out.lmdb", report=tmp_path)
    assert os.listdir(tmp_path) == ["photos"]


def test_an_existing_output_is_refused_and_left_alone(photos: Path, tmp_path: Path) -> None:
    """Byte for byte the same afterwards."""
    out = tmp_path / "out.lmdb"
    pack(photos, out)
    before = out.read_bytes(), out.stat().st_mtime_ns
    other = folder(tmp_path / "other", ("c",))
    with pytest.raises(StoreExistsError, match="replace it with force"):
        pack(other, out)
    assert (out.read_bytes(), out.stat().st_mtime_ns) == before


def test_a_forced_pack_replaces_in_one_step(photos: Path, tmp_path: Path) -> None:
    """Who has the old store open goes on reading it; who opens the path finds the new one."""
    out = tmp_path / "out.lmdb"
    pack(photos, out)
    old = Store(out)
    expected = [bytes(old.read("image", i)) for i in range(10)]
    pack(folder(tmp_path / "other", ("c",), count=3), out, force=True)
    assert [bytes(old.read("image", i)) for i in range(10)] == expected
    assert list(stored(out)) == ["c/0000.jpg", "c/0001.jpg", "c/0002.jpg"]


def test_a_forced_pack_that_fails_keeps_the_old_file(photos: Path, tmp_path: Path) -> None:
    """Nothing is removed before there is something to put in its place."""
    out = tmp_path / "out.lmdb"
    pack(photos, out)
    before = out.read_bytes()
    for root in (put(tmp_path / "bad", {"a/x.jpg": b"no"}), folder(tmp_path / "empty", ())):
        root.mkdir(exist_ok=True)
        with pytest.raises(SourceError, match="no image could be packed"):
            pack(root, out, force=True)
    assert out.read_bytes() == before
    assert not (tmp_path / "out.lmdb.partial").exists()


def test_too_little_room_is_told_before_the_start(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the bytes needed and the bytes free."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: DiskUsage())
    with pytest.raises(StorageFullError, match=r"out\.lmdb: about [\d,]+ bytes .* 1,000 are free"):
        pack(photos, tmp_path / "out.lmdb")
    assert not (tmp_path / "out.lmdb.partial").exists()


class DiskUsage:
    """A disk with hardly any room."""

    free = 1000


def test_a_limit_met_on_the_way_is_an_error_not_a_signal(tmp_path: Path) -> None:
    """It names the output, what is needed and what is free; with room the command goes on."""
    rows = [row.tobytes() for row in pictures.noise(256, 768)]
    noise = pictures.png(256, 256, 8, 2, rows)
    root = put(tmp_path / "src", {f"a/{n:02d}.png": noise for n in range(40)})
    out = str(tmp_path / "out.lmdb")
    limit = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5 << 20, 5 << 20))\n"
        "from sharedds.cli import main\n"
        f"sys.exit(main(['pack', {str(root)!r}, {out!r}]))"
    )
    done = run_script(limit)
    text = done.stderr.decode()
    assert done.returncode == 1, text
    assert out in text
    assert "needed" in text
    assert "free" in text
    assert "Traceback" not in text
    assert not os.path.exists(out)
    assert run("pack", str(root), out).returncode == 0
    assert len(Store(out)) == 40


def can_mount() -> bool:
    """Whether this process may mount a file system."""
    with tempfile.TemporaryDirectory() as place:
        words = ["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place]
        try:
            return subprocess.run(words, capture_output=True).returncode == 0
        except OSError:
            return False


@pytest.mark.skipif(not can_mount(), reason="needs permission to mount")
@pytest.mark.parametrize("codec", ["keep", "png"])
def test_a_full_disk_is_an_error_that_can_be_gone_on_from(tmp_path: Path, codec: str) -> None:
    """An 8 MB disk: known from the sizes at once, or met on the way when encoding anew."""
    rows = [row.tobytes() for row in pictures.noise(256, 768)]
    noise = pictures.png(256, 256, 8, 2, rows)
    root = put(tmp_path / "src", {f"a/{n:02d}.png": noise for n in range(60)})
    (tmp_path / "disk").mkdir()
    out = tmp_path / "disk" / "out.lmdb"
    command = f"{sys.executable} -m sharedds pack {root} {out} --codec {codec}"
    script = (
        f"mount -t tmpfs -o size=8m tmpfs {tmp_path / 'disk'} && cd / && "
        f"{{ {command}; echo code=$?; ls {out}; "
        f"mount -o remount,size=64m {tmp_path / 'disk'} && {command} --json; echo code=$?; }}"
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, env=environment()
    )
    assert done.stdout.count("code=1\n") == 1, done
    assert done.stdout.rstrip().endswith("code=0"), done
    assert '"samples": 60' in done.stdout
    assert str(out) in done.stderr
    assert "needed" in done.stderr
    assert "free" in done.stderr
    assert "Traceback" not in done.stderr


def test_packing_at_once_into_one_output_is_refused(photos: Path, tmp_path: Path) -> None:
    """The second one says so and disturbs nothing."""
    other = StoreWriter(tmp_path / "out.lmdb", schema={"x": "int64"}, resume="other")
    with other, pytest.raises(StoreError, match="is being written by another"):
        pack(photos, tmp_path / "out.lmdb")
