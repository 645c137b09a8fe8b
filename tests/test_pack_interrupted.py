"""A pack that is killed or stopped leaves nothing half done, and the same command goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from packing import entries, environment, folder, jpeg, put, stored
from processes import unmeasured

from sharedds.errors import IncompleteStoreError, SharedDSError
from sharedds.ingest import PackReport, pack
from sharedds.ingest.images.prepare import ImageResult, Ingester
from sharedds.store import Store, verify, writer
from sharedds.store.partial import Partial

# A pack that commits every few pictures, takes its time, and says when it begins to write.
CHILD = """
import sys, time
from sharedds.ingest.images.prepare import Ingester
from sharedds.store import writer
writer._COMMIT = 4096
real = Ingester.__call__
def slow(self, path):
    time.sleep(0.002)
    return real(self, path)
Ingester.__call__ = slow
print("ready", flush=True)
from sharedds.cli import main
sys.exit(main(["pack", sys.argv[1], sys.argv[2], "--quiet"]))
"""


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three hundred pictures, some of them bad or no pictures at all."""
    root = folder(tmp_path / "photos", ("a", "b", "c"), count=100)
    for number in range(0, 300, 23):
        name = f"{'abc'[number // 100]}/{number % 100:04d}"
        (root / f"{name}.jpg").write_bytes(jpeg(number)[:99])
        put(root, {f"{name}-notes": b"not a picture"})
    return root


def start(root: Path, out: Path) -> subprocess.Popen[str]:
    """Start packing and wait until everything is imported."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(root), str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=unmeasured() | {"PYTHONPATH": environment()["PYTHONPATH"]},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def end(child: subprocess.Popen[str], signum: int) -> tuple[int, str]:
    """Send a signal; return the exit code and what was said."""
    child.send_signal(signum)
    _, said = child.communicate(timeout=10)
    return child.returncode, said


def done_so_far(out: Path) -> bool:
    """Whether anything was committed yet."""
    spool = Path(f"{out}.partial") / "spool"
    return spool.exists() and spool.stat().st_size > 0


def facts(report: PackReport) -> tuple[object, ...]:
    """Return what must not depend on interruptions."""
    return (
        report.samples,
        report.digest,
        report.failed,
        report.left_out,
        report.content,
        report.files,
        entries(report.report, "failed"),
    )


def test_killed_at_any_moment_it_goes_on_to_the_same_store(photos: Path, tmp_path: Path) -> None:
    """20 times kill -9: nothing under the final name, then the digest of an undisturbed pack."""
    undisturbed = pack(photos, tmp_path / "whole.lmdb")
    expected = stored(tmp_path / "whole.lmdb")
    moments = random.Random(7)
    resumed = 0
    for number in range(20):
        out = tmp_path / f"{number}.lmdb"
        child = start(photos, out)
        if number % 2:  # however slow the machine is, there is something to go on with
            while child.poll() is None and not done_so_far(out):
                time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.3))
        code, _ = end(child, signal.SIGKILL)
        if out.exists():  # it was quicker
            assert Store(out).digest == undisturbed.digest
            continue
        assert code == -signal.SIGKILL
        with pytest.raises(SharedDSError):
            Store(out)
        report = pack(photos, out, workers=1 + number % 3)
        resumed += report.resumed > 0
        assert facts(report) == facts(undisturbed)
        assert stored(out) == expected
        assert verify(out).ok
        assert not Path(f"{out}.partial").exists()
    assert resumed >= 5, "the moments were badly chosen: hardly anything was gone on with"


def test_ctrl_c_ends_soon_and_keeps_what_is_done(photos: Path, tmp_path: Path) -> None:
    """Exit code 130 within five seconds, one line, no traceback; then the same command goes on."""
    out = tmp_path / "out.lmdb"
    child = start(photos, out)
    while not done_so_far(out):
        time.sleep(0.005)
    started = time.monotonic()
    code, said = end(child, signal.SIGINT)
    assert time.monotonic() - started < 5
    assert code == 130
    assert "Traceback" not in said
    assert said.strip().endswith("Interrupted.")
    assert not out.exists()
    assert not Path(f"{out}.report.jsonl").exists()
    report = pack(photos, out)
    assert report.resumed > 0
    assert facts(report) == facts(pack(photos, tmp_path / "whole.lmdb"))


def test_an_unfinished_pack_is_not_mistaken_for_a_store(photos: Path, tmp_path: Path) -> None:
    """Opening the output or its working folder says that it is unfinished."""
    out = tmp_path / "out.lmdb"
    child = start(photos, out)
    while not done_so_far(out):
        time.sleep(0.005)
    end(child, signal.SIGKILL)
    with pytest.raises(SharedDSError, match=r"unfinished pack.*run the same pack again"):
        Store(out)
    with pytest.raises(IncompleteStoreError, match="incomplete"):
        Store(f"{out}.partial")


def interrupt(
    root: Path, out: Path, after: int, patch: pytest.MonkeyPatch, **options: object
) -> None:
    """Pack until so many pictures were prepared, then stop as Ctrl-C does."""
    real, count = Ingester.__call__, [0]

    def stopping(self: Ingester, path: bytes) -> ImageResult:
        count[0] += 1
        if count[0] > after:
            raise KeyboardInterrupt
        return real(self, path)

    with patch.context() as inner:
        inner.setattr(writer, "_COMMIT", 2048)
        inner.setattr(Ingester, "__call__", stopping)
        with pytest.raises(KeyboardInterrupt):
            pack(root, out, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options", [{}, {"shuffle_seed": 4}, {"codec": "raw", "size": (200, 200)}, {"codec": "webp"}]
)
def test_what_was_done_is_not_done_again(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object]
) -> None:
    """The next run prepares only the rest, and the bad files once more, for their reasons."""
    out = tmp_path / "out.lmdb"
    interrupt(photos, out, 150, monkeypatch, **options)
    prepared: list[bytes] = []
    real = Ingester.__call__

    def counting(self: Ingester, path: bytes) -> ImageResult:
        prepared.append(path)
        return real(self, path)

    monkeypatch.setattr(Ingester, "__call__", counting)
    report = pack(photos, out, **options)  # type: ignore[arg-type]
    assert report.resumed > 50
    again = report.samples - report.resumed
    bad = report.failed_count + report.left_out_count
    some = 16 if options.get("codec") == "webp" else 0  # pictures encoded for the estimate
    assert again <= len(prepared) <= again + bad + some
    whole = pack(photos, tmp_path / "whole.lmdb", **options)  # type: ignore[arg-type]
    assert facts(report) == facts(whole)


@pytest.mark.parametrize(
    "options", [{}, {"codec": "raw", "size": (100, 100)}, {"codec": "raw", "size": (8, 8)}]
)
def test_killed_while_it_is_sealed_it_only_seals_again(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """All pictures are in, the columns are half written: nothing is prepared twice."""
    out = tmp_path / "out.lmdb"
    real, count = Partial.put, [0]

    def stopping(self: Partial, database: str, key: bytes, value: Any, **rest: Any) -> None:
        if database == "columns":
            count[0] += 1
            if count[0] == 6:
                raise KeyboardInterrupt
        real(self, database, key, value, **rest)

    with monkeypatch.context() as inner, pytest.raises(KeyboardInterrupt):
        inner.setattr(Partial, "put", stopping)
        pack(photos, out, **options)
    assert not out.exists()
    report = pack(photos, out, **options)
    assert report.resumed == report.samples
    assert facts(report) == facts(pack(photos, tmp_path / "whole.lmdb", **options))
    assert verify(out).ok


@pytest.mark.parametrize(
    "change",
    [{"0/new.jpg": jpeg(999)}, {"c/new.jpg": jpeg(999)}, {"a/0001.jpg": jpeg(999)}],
    ids=["class added", "file added", "file changed"],
)
def test_a_source_that_changed_meanwhile_starts_anew(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, bytes]
) -> None:
    """Half of the old and half of the new would be neither; so nothing old is used."""
    out = tmp_path / "out.lmdb"
    interrupt(photos, out, 150, monkeypatch)
    put(photos, change)
    report = pack(photos, out)
    assert report.resumed == 0
    assert facts(report) == facts(pack(photos, tmp_path / "whole.lmdb"))


def test_other_options_start_anew(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of one encoding and half of another would be worse than nothing."""
    out = tmp_path / "out.lmdb"
    interrupt(photos, out, 150, monkeypatch, codec="png")
    report = pack(photos, out, codec="png", max_side=8)
    assert report.resumed == 0
    assert report.digest == pack(photos, tmp_path / "o", codec="png", max_side=8).digest


def test_a_file_mended_without_a_trace_stays_out_and_is_named(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were it put in now, the order would be another than that of an undisturbed pack."""
    out = tmp_path / "out.lmdb"
    bad = photos / "a" / "0023.jpg"
    content = jpeg(1)
    before = bad.stat()
    bad.write_bytes(content[:-10] + bytes(10))
    os.utime(bad, ns=(before.st_atime_ns, before.st_mtime_ns))
    broken = pack(photos, tmp_path / "o", dry_run=True)
    assert broken.samples
    bad.write_bytes(b"x" * len(content))
    os.utime(bad, ns=(before.st_atime_ns, before.st_mtime_ns))
    interrupt(photos, out, 150, monkeypatch)
    bad.write_bytes(content)
    os.utime(bad, ns=(before.st_atime_ns, before.st_mtime_ns))
    report = pack(photos, out)
    assert report.resumed > 0
    assert dict(report.failed)["a/0023.jpg"] == (
        "was bad when an earlier run met it; pack anew to include it"
    )


def test_an_error_on_the_way_keeps_what_is_done(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With on_error="raise" too: without it the same pack goes on."""
    out = tmp_path / "out.lmdb"
    monkeypatch.setattr(writer, "_COMMIT", 2048)
    (photos / "a" / "0000.jpg").unlink()  # the first bad one is the 24th now
    with pytest.raises(SharedDSError, match=r"a/0023\.jpg"):
        pack(photos, out, on_error="raise")
    assert not out.exists()
    assert pack(photos, out).resumed > 0
