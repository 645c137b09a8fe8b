"""Packing slides: interrupted inside of one, with any number of workers, in little memory."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from processes import python, started
from slide_files import jpeg_bytes, page, picture, write_slide, write_tiff

from sharedds.cli import main
from sharedds.errors import DecodeError, StorageFullError
from sharedds.ingest import pack_slides
from sharedds.ingest.slides.spool import TileSpool, remove_spool, spool_path
from sharedds.store import Store

PACK = """
    import sys
    from sharedds.ingest import pack_slides
    report = pack_slides(sys.argv[1], sys.argv[2], tile=32, codec=sys.argv[3], progress=False)
    print(report.digest)
"""


def some(folder: Path) -> Path:
    """A slide with tiles, a picture that is streamed, and one more slide."""
    noise = np.random.default_rng(0).integers(0, 256, (900, 800, 3), np.uint8)
    write_tiff(folder / "a.tif", [page(noise, tile=64)])
    Image.fromarray(noise[:700]).save(folder / "b.png")
    write_slide(folder / "c.tif", picture(512, 384))
    return folder


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("codec", ["jpeg", "zstd"])
def test_the_content_does_not_depend_on_workers(tmp_path: Path, workers: int, codec: Any) -> None:
    """The digest of one worker's."""
    some(tmp_path / "src")
    options: dict[str, Any] = {"codec": codec, "tile": 64, "progress": False}
    alone = pack_slides(tmp_path / "src", tmp_path / "1.lmdb", workers=1, **options)
    several = pack_slides(tmp_path / "src", tmp_path / "n.lmdb", workers=workers, **options)
    assert several.digest == alone.digest


def test_a_run_that_is_killed_goes_on_inside_of_a_slide(tmp_path: Path) -> None:
    """To the same content, whenever it was killed, and with nothing left beside it."""
    codec: Any = "zstd"
    source, out = some(tmp_path / "src"), tmp_path / "out.lmdb"
    whole = pack_slides(source, tmp_path / "whole.lmdb", tile=32, codec=codec, progress=False)
    seen = []
    for wanted in (1, 150, 700, 5, 900):  # tiles in the spool when the run is killed
        process = started(PACK, source, out, codec)
        while process.poll() is None:
            spool = Path(spool_path(str(out)))
            size = spool.stat().st_size if spool.exists() else 0
            if size > wanted * 200:
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.001)
        process.wait(60)
        assert not out.exists() or process.returncode == 0
        seen.append(process.returncode)
        if process.stdout is not None and process.stderr is not None:
            process.stdout.close()
            process.stderr.close()
        if process.stdin is not None:
            process.stdin.close()
        if process.returncode == 0:
            break
    assert -signal.SIGKILL in seen
    report = pack_slides(source, out, tile=32, codec=codec, progress=False)
    assert report.digest == whole.digest
    assert report.samples == 3
    names = {"out.lmdb", "out.lmdb.report.jsonl", "src", "whole.lmdb", "whole.lmdb.report.jsonl"}
    assert set(os.listdir(tmp_path)) == names


def test_a_spool_keeps_what_is_whole(tmp_path: Path) -> None:
    """Cut or damaged at any byte, the records before are there; for other work, none."""
    path = str(tmp_path / "x.tiles")
    spool = TileSpool(path, "this")
    records = [(bytes([n]) * (20 + n), bytes([n]) * n) for n in range(6)]
    ends = []
    for number, (tile, figures) in enumerate(records):
        spool.append(tile, figures, is_bad=number == 4)
        ends.append(os.path.getsize(path))
    spool.close()
    data = Path(path).read_bytes()
    for cut in range(ends[0], len(data) + 1):
        Path(path).write_bytes(data[:cut])
        again = TileSpool(path, "this")
        whole = sum(end <= cut for end in ends)
        assert len(again) == whole
        assert [(again.tile(n), again.figures(n)) for n in range(whole)] == records[:whole]
        assert again.bad == ((4,) if whole > 4 else ())
        again.append(b"more", b"")
        assert again.tile(whole) == b"more"
        again.close()
    flipped = bytearray(data)
    flipped[ends[1] + 30] ^= 1
    Path(path).write_bytes(flipped)
    for purpose, count in (("this", 2), ("other", 0)):
        found = TileSpool(path, purpose)
        assert len(found) == count
        found.close()


def test_tiles_of_a_run_killed_at_its_end_are_taken_away(tmp_path: Path) -> None:
    """After the last slide was committed, before its tiles went: there is nothing left to pack."""
    noise = np.random.default_rng(0).integers(0, 256, (1800, 1600, 3), np.uint8)
    write_tiff(tmp_path / "src" / "a.tif", [page(noise, tile=256)])
    out = tmp_path / "out.lmdb"
    done = python(
        """
        import os, sys, time
        from pathlib import Path
        from sharedds.ingest.slides import job, pack_slides

        def killed(self):
            time.sleep(1)  # what is written behind is committed
            os._exit(9)

        job.TileSpool.remove = killed
        pack_slides(sys.argv[1], sys.argv[2], codec="raw", progress=False)
        """,
        tmp_path / "src",
        out,
        ok=False,
    )
    assert (done.returncode, Path(spool_path(str(out))).exists()) == (9, True)
    report = pack_slides(tmp_path / "src", out, codec="raw", progress=False)
    assert report.resumed == 1
    assert sorted(os.listdir(tmp_path)) == ["out.lmdb", "out.lmdb.report.jsonl", "src"]


def test_tiles_of_a_killed_run_count_as_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full of them has room for the rest; without them it has none."""
    some(tmp_path / "src")
    out = tmp_path / "out.lmdb"
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(StorageFullError, match="1,000 are free"):
        pack_slides(tmp_path / "src", out, progress=False)
    Path(spool_path(str(out))).write_bytes(bytes(8 << 20))
    assert pack_slides(tmp_path / "src", out, progress=False).samples == 3


def test_somebody_elses_file_is_not_taken_away(tmp_path: Path) -> None:
    """Only what begins as a file of tiles does."""
    other = Path(spool_path(str(tmp_path / "out.lmdb")))
    other.write_bytes(b"something else")
    remove_spool(str(tmp_path / "out.lmdb"))
    assert other.exists()


def test_tiles_that_were_skipped_are_bad_for_a_run_that_skips_none(tmp_path: Path) -> None:
    """It goes on with what an earlier run did, which left a tile out."""
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8)
    made = page(noise, tile=64, compression="deflate")
    data = list(made.data)
    data[3] = b"no deflate"
    write_tiff(tmp_path / "src" / "a.tif", [dataclasses.replace(made, data=data)])
    out = tmp_path / "out.lmdb"
    killed = python(
        """
        import os, sys
        from sharedds.ingest.slides import job, pack_slides

        class Spool(job.TileSpool):
            def append(self, *values, **options):
                super().append(*values, **options)
                if len(self) > 10:
                    os._exit(9)

        job.TileSpool = Spool
        pack_slides(sys.argv[1], sys.argv[2], tile=64, progress=False)
        """,
        tmp_path / "src",
        out,
        ok=False,
    )
    assert killed.returncode == 9
    for text in ("earlier run", "row 0, column 3"):
        with pytest.raises(DecodeError, match=text):
            pack_slides(tmp_path / "src", out, tile=64, on_error="raise", progress=False)


def test_other_options_begin_anew(tmp_path: Path) -> None:
    """Tiles of an unfinished run with other options are not taken over."""
    source = some(tmp_path / "src")
    out = tmp_path / "out.lmdb"
    spool = TileSpool(spool_path(str(out)), "something else a")
    spool.append(b"wrong", b"wrong")
    spool.close()
    whole = pack_slides(source, tmp_path / "whole.lmdb", tile=64, progress=False)
    assert pack_slides(source, out, tile=64, progress=False).digest == whole.digest


def test_other_regions_are_other_work(tmp_path: Path) -> None:
    """As many polygons of the same classes, elsewhere: what is there is not taken over."""
    write_slide(tmp_path / "src" / "a.tif", picture(512, 384))
    drawn = tmp_path / "a.geojson"
    digests = []
    for left in (0, 64):
        ring = [[left, 0], [left + 64, 0], [left + 64, 64], [left, 64]]
        drawn.write_text(json.dumps({"type": "Polygon", "coordinates": [ring]}))
        report = pack_slides(
            tmp_path / "src",
            tmp_path / "x.lmdb",
            annotations=drawn,
            force=True,
            progress=False,
        )
        work = Store(tmp_path / "x.lmdb").attrs["work"]
        digests.append((work, report.digest))
    assert digests[0][0] != digests[1][0]
    assert digests[0][1] != digests[1][1]


def test_a_large_slide_takes_the_memory_of_some_tiles(tmp_path: Path) -> None:
    """120 megapixels, 360 MB decoded: less than half of that, whatever the size."""
    one = jpeg_bytes(picture(512, 512), quality=60)
    tiled = page(picture(512, 512), tile=512, compression="jpeg")
    many = dataclasses.replace(tiled, width=12_000, height=10_000, data=[one] * (24 * 20))
    write_tiff(tmp_path / "src" / "giga.tif", [many])
    done = python(
        """
        import sys, threading
        from pathlib import Path
        from sharedds.ingest import pack_slides

        def anonymous():
            lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
            return sum(int(x.split()[1]) for x in lines if x.startswith("Anonymous:")) / 1024

        before, ended, most = anonymous(), threading.Event(), [0.0]

        def look():
            while not ended.wait(0.05):
                most[0] = max(most[0], anonymous())

        thread = threading.Thread(target=look)
        thread.start()
        pack_slides(sys.argv[1], sys.argv[2], codec="keep", progress=False)
        ended.set()
        thread.join()
        print(most[0] - before)
        """,
        tmp_path / "src",
        tmp_path / "out.lmdb",
    )
    assert float(done.stdout) < 150
    assert Store(tmp_path / "out.lmdb").array(0, "image").shape == (10_000, 12_000, 3)


def size_of(path: str | Path) -> tuple[int, int]:
    """Width and height of a picture."""
    with Image.open(path) as image:
        return image.size


def test_the_command_line_packs_shows_and_exports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slide there and back, with a preview between."""
    write_slide(tmp_path / "src" / "a.tif", picture(600, 500))
    (tmp_path / "src" / "bad.tif").write_bytes(b"II*\0")
    out = str(tmp_path / "out.lmdb")
    words = ["pack", str(tmp_path / "src"), out, "--kind", "slide", "--tile", "128", "--quiet"]
    assert main(words) == 3
    assert main(["pack", str(tmp_path / "src"), out, "--kind", "slide", "--tile", "128"]) == 1
    assert "exists" in capsys.readouterr().err
    again = [*words[:-1], "--force", "--json", "--levels", "2", "--codec", "keep"]
    assert main(again) == 3
    report = json.loads(capsys.readouterr().out)
    assert (report["kind"], report["samples"], report["failed_count"]) == ("slides", 1, 1)
    assert main(["info", out, "--preview", str(tmp_path / "a.png"), "--sample", "a"]) == 0
    assert "1 of 1 samples" in capsys.readouterr().out
    assert size_of(tmp_path / "a.png")[0] > 400
    assert main(["export", out, str(tmp_path / "back")]) == 0
    assert os.listdir(tmp_path / "back") == ["a.tif"]
    part = str(tmp_path / "part.png")
    assert main(["export", out, part, "--region", "10,20,64,48", "--level", "1"]) == 0
    assert size_of(part) == (64, 48)
    assert main(["export", out, part, "--level", "1"]) == 1
    assert main(["pack", str(tmp_path / "src"), out, "--levels", "none"]) == 2
