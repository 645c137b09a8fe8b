"""A pack that is killed after its store has got its name still gets its report, from a rerun."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from packing import events, folder, jpeg, put, run, run_script

from sharedds.errors import StoreExistsError
from sharedds.ingest import pack
from sharedds.store import Store

# A pack that ends as kill -9 ends it, right after one call of the function that is named.
KILLED = """
import os, signal, sys
import sharedds.ingest.images.job
from sharedds.store.partial import Partial
def killing(real):
    def call(*values, **options):
        real(*values, **options)
        os.kill(os.getpid(), signal.SIGKILL)
    return call
job = sys.modules["sharedds.ingest.images.job"]
place = {"os": os, "Partial": Partial, "job": job}[sys.argv[1]]
setattr(place, sys.argv[2], killing(getattr(place, sys.argv[2])))
from sharedds.cli import main
main(["pack", sys.argv[3], sys.argv[4], "--quiet"])
"""
MOMENTS = [("os", "link"), ("Partial", "publish"), ("job", "examine")]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Good pictures, two equal ones, a bad one, and files that are none."""
    root = folder(tmp_path / "photos")
    put(root, {"a/bad.jpg": b"no", "b/zz.jpg": b"no", "a/notes.txt": b"x", "b/none": b"x"})
    put(root, {"b/copy.jpg": jpeg(0)})
    return root


def lines(report: Path) -> list[dict[str, object]]:
    """Return a report without what differs from run to run."""
    found = events(report)
    for name in ("path", "report", "seconds", "source_bytes", "resumed"):
        del found[0][name]
    for line in found[1:]:
        for member in line.get("members", []):
            del member["store"]
    return found


@pytest.mark.parametrize(("place", "name"), MOMENTS, ids=[name for _, name in MOMENTS])
def test_killed_before_its_report_the_same_command_writes_it(
    photos: Path, tmp_path: Path, place: str, name: str
) -> None:
    """Exit code, digest and lines of an undisturbed run; nothing is left over; then it is done."""
    whole = pack(photos, tmp_path / "whole.lmdb")
    out = tmp_path / "out.lmdb"
    done = run_script(KILLED, place, name, str(photos), str(out))
    assert done.returncode == -9, done.stderr
    assert not Path(f"{out}.report.jsonl").exists()
    assert Store(out).digest == whole.digest
    before = out.stat().st_ino
    done = run("pack", photos, out)
    assert done.returncode == 3, done.stderr
    assert out.stat().st_ino == before
    assert lines(Path(f"{out}.report.jsonl")) == lines(Path(whole.report))
    assert sorted(os.listdir(tmp_path)) == [
        *("out.lmdb", "out.lmdb.report.jsonl", "photos"),
        *("whole.lmdb", "whole.lmdb.report.jsonl"),
    ]
    assert run("pack", photos, out).returncode == 1  # it exists, and is complete


@pytest.mark.parametrize("options", [{"shuffle_seed": 4}, {"codec": "raw", "size": (9, 9)}])
def test_the_missing_report_can_be_made_for_any_kind_of_pack(
    photos: Path, tmp_path: Path, options: dict[str, object]
) -> None:
    """Whatever the order and the way of storing."""
    first = pack(photos, tmp_path / "out.lmdb", **options)  # type: ignore[arg-type]
    expected = lines(Path(first.report))
    os.unlink(first.report)
    again = pack(photos, tmp_path / "out.lmdb", **options)  # type: ignore[arg-type]
    assert (again.digest, again.samples) == (first.digest, first.samples)
    assert lines(Path(first.report)) == expected


def test_other_work_is_not_reported_as_this_one(photos: Path, tmp_path: Path) -> None:
    """Other options, other files, or a store that is not of a pack: it exists, and that is that."""
    out = tmp_path / "out.lmdb"
    os.unlink(pack(photos, out).report)
    with pytest.raises(StoreExistsError):
        pack(photos, out, codec="png")
    with pytest.raises(StoreExistsError):
        pack(photos, out, dry_run=True, shuffle_seed=1)
    put(photos, {"a/new.jpg": jpeg(77)})
    with pytest.raises(StoreExistsError):
        pack(photos, out)
    assert not Path(f"{out}.report.jsonl").exists()


def test_a_working_folder_of_others_is_left_alone(photos: Path, tmp_path: Path) -> None:
    """Only what the output was made in is cleared away with it."""
    out = tmp_path / "out.lmdb"
    os.unlink(pack(photos, out).report)
    put(tmp_path, {"out.lmdb.partial/data.lmdb": b"mine", "out.lmdb.partial/state.json": b"{}"})
    pack(photos, out)
    assert (tmp_path / "out.lmdb.partial" / "data.lmdb").read_bytes() == b"mine"
