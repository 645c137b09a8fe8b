"""``sharedds pack`` as a person or a script meets it: help, summary, JSON, progress, exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from packing import environment, folder, jpeg, put, run

from sharedds import cli
from sharedds.cli import VERBS, main
from sharedds.store import Store


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of five pictures."""
    return folder(tmp_path / "photos")


def command(name: str) -> click.Command:
    """Return the command of a verb."""
    found = cli.cli.get_command(click.Context(cli.cli), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", VERBS)
def test_every_option_is_described(name: str) -> None:
    """Nobody has to guess what a word does."""
    for parameter in command(name).params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.name}"
            assert parameter.help[0].isupper() or parameter.help[0].isdigit()
            assert "." in parameter.help


@pytest.mark.parametrize("name", VERBS)
def test_help_fits_a_terminal(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No line is longer than 80 characters, and the exit codes are told where there are several."""
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert ("Exit codes" in shown) == (name in ("pack", "verify", "doctor"))


def test_a_clean_pack_is_told_in_a_few_lines(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was made, how large, of what, and its digest; stderr has the estimate."""
    out = str(tmp_path / "out.lmdb")
    assert main(["pack", str(photos), out]) == 0
    shown = capsys.readouterr()
    first, *rest = shown.out.splitlines()
    assert first.startswith(f"{out}: 10 images of 2 classes, ")
    assert [line.split()[0] for line in rest] == ["format", "mode", "digest"]
    assert Store(out).digest in shown.out
    assert re.fullmatch(r"about 1\d\.\d kB in 10 images to write\n", shown.err)


def test_a_messy_pack_names_what_needs_a_look(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reasons are grouped, bad files listed, and the place of the whole report is told."""
    files = {f"a/bad{n:02d}.jpg": b"no" for n in range(12)} | {f"{n}.jpg": jpeg() for n in range(3)}
    put(photos, files | {"a/one.txt": b"x", "b/copy.jpg": (photos / "a/0000.jpg").read_bytes()})
    (photos / "empty").mkdir()
    out = str(tmp_path / "out.lmdb")
    assert main(["pack", str(photos), out]) == 3
    shown = capsys.readouterr()
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert "left out 3 files: no class folder (such as 0.jpg)" in lines
    assert "left out 1 file: .txt (a/one.txt)" in lines
    assert "duplicates 1 group of equal pictures" in lines
    assert "bad 12 files" in lines
    assert f"report {out}.report.jsonl" in lines
    assert sum(line.startswith("a/bad") for line in lines) == 10
    assert f"... and 2 more; {out}.report.jsonl names them all" in lines
    estimate, *notes = shown.err.splitlines()
    assert estimate.startswith("about ")
    assert all(line.startswith("note: ") for line in notes)
    assert "1 class folder holds no image" in shown.err
    assert "under different labels" in shown.err


def test_exit_codes_tell_what_happened(photos: Path, tmp_path: Path) -> None:
    """0 all packed, 3 some bad, 4 strict found something, 1 nothing packed, 2 wrong usage."""
    out = str(tmp_path / "out.lmdb")
    put(tmp_path / "bad", {"a/x.jpg": b"no"})
    assert main(["pack", str(photos), out, "--quiet", "--strict"]) == 0
    assert main(["pack", str(photos), out, "--quiet"]) == 1
    assert main(["pack", str(tmp_path / "bad"), str(tmp_path / "x")]) == 1
    assert main(["pack", str(photos)]) == 2
    assert main(["pack", str(photos), str(photos / "inside")]) == 2
    assert main(["pack", str(photos), str(tmp_path / "x"), "--max-side", "8"]) == 2
    assert main(["pack", str(photos), str(tmp_path / "x"), "--size", "9x"]) == 2
    put(photos, {"a/bad.jpg": b"no"})
    assert main(["pack", str(photos), out, "--quiet", "--force"]) == 3
    assert main(["pack", str(photos), out, "--quiet", "--force", "--strict"]) == 4
    assert main(["pack", str(photos), str(tmp_path / "x"), "--on-error", "raise"]) == 1
    assert not (tmp_path / "x").exists()


def test_options_reach_the_function(photos: Path, tmp_path: Path) -> None:
    """Sizes, colours, limits and switches as they are written in a shell."""
    out = str(tmp_path / "out.lmdb")
    words = "--codec raw --size 8x12 --depth 8 --background #ff8800 --max-pixels 1_000"
    words += " --ignore-orientation --shuffle-seed 3 --class-level none --workers 2"
    assert main(["pack", str(photos), out, *words.split()]) == 0
    store = Store(out)
    assert store.column("image").shape == (10, 8, 12, 3)
    recipe = store.attrs["recipe"]
    assert recipe["background"] == [255, 136, 0]
    assert recipe["max_pixels"] == 1000
    assert (recipe["depth"], recipe["orientation"]) == ("8", "ignore")
    assert "label" not in store.fields
    words = "--codec raw --size 8 --background grey --max-pixels none --force"
    assert main(["pack", str(photos), out, *words.split()]) == 0
    recipe = Store(out).attrs["recipe"]
    assert (recipe["size"], recipe["background"], recipe["max_pixels"]) == ([8, 8], [128] * 3, None)
    assert main(["pack", str(photos), out, "--max-pixels", "2M", "--force"]) == 0
    assert Store(out).attrs["recipe"]["max_pixels"] == 2_000_000


@pytest.mark.parametrize(
    ("word", "value"),
    [("--background", "pink"), ("--max-pixels", "-3"), ("--max-pixels", "0"), ("--size", "8x8x3")],
)
def test_a_value_that_cannot_be_read_is_named(
    photos: Path, capsys: pytest.CaptureFixture[str], word: str, value: str
) -> None:
    """With the option it was given for, and what is expected."""
    assert main(["pack", str(photos), "x", f"{word}={value}"]) == 2
    shown = capsys.readouterr().err
    assert f"'{word}'" in shown
    assert value in shown


def test_json_is_one_object_and_nothing_else(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also with bad files and notes."""
    put(photos, {"a/bad.jpg": b"no", "c.jpg": jpeg()})
    assert main(["pack", str(photos), str(tmp_path / "o"), "--json"]) == 3
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert shown.out.count("\n") == 1
    assert (found["samples"], found["failed_count"], found["files"]) == (10, 1, 12)
    assert found["failed"][0]["path"] == "a/bad.jpg"
    assert found["samples"] + found["failed_count"] + found["left_out_count"] == found["files"]
    assert shown.err == ""


def test_quiet_is_quiet(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the exit code speaks."""
    put(photos, {"a/bad.jpg": b"no"})
    assert main(["pack", str(photos), str(tmp_path / "o"), "--quiet"]) == 3
    assert capsys.readouterr() == ("", "")


def test_a_dry_run_tells_what_would_be_made(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the same words, and nothing is made."""
    assert main(["pack", str(photos), str(tmp_path / "o"), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("10 images of 2 classes would be packed into about ")
    assert os.listdir(tmp_path) == ["photos"]


def test_an_error_is_one_line(photos: Path, tmp_path: Path) -> None:
    """No traceback, nothing on stdout."""
    (tmp_path / "out.lmdb").write_text("mine")
    done = run("pack", photos, tmp_path / "out.lmdb")
    assert done.returncode == 1
    assert done.stdout == b""
    text = done.stderr.decode()
    assert text.startswith(f"Error: {tmp_path / 'out.lmdb'} exists already; ")
    assert text.count("\n") == 1


SLOW = """
import sys, time
from sharedds.ingest.images.prepare import Ingester
real = Ingester.__call__
def slow(self, path):
    time.sleep(0.3)
    return real(self, path)
Ingester.__call__ = slow
from sharedds.cli import main
sys.exit(main(["pack", *sys.argv[1:], "--workers", "1"]))
"""


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo terminal")
@pytest.mark.parametrize("quiet", [False, True], ids=["shown", "quiet"])
def test_long_work_shows_a_bar_on_a_terminal(photos: Path, tmp_path: Path, quiet: bool) -> None:
    """After two seconds, on stderr; stdout has the summary and nothing else."""
    import pty

    master, slave = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(photos), str(tmp_path / "o"), *["--quiet"] * quiet],
        stdout=subprocess.PIPE,
        stderr=slave,
        env=environment(TERM="xterm", COLUMNS="120"),
    )
    os.close(slave)
    shown = bytearray()
    try:
        while data := os.read(master, 4096):
            shown += data
    except OSError:  # the other side is closed: this is how a terminal ends
        pass
    finally:
        os.close(master)
    out, _ = child.communicate(timeout=30)
    assert child.returncode == 0
    if quiet:
        assert (bytes(shown), out) == (b"", b"")
        return
    assert b"packing" in shown
    assert b"of 10 images (" in shown
    assert "━".encode() in shown
    lines = out.decode().splitlines()
    assert lines[0].startswith(f"{tmp_path / 'o'}: 10 images of 2 classes")
    assert [line.split()[0] for line in lines[1:]] == ["format", "mode", "digest"]
