"""Names of files on their way into a store: extensions, hidden ones, odd bytes, long paths."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from packing import entries, environment, events, folder, jpeg, put, run, run_as_nobody, stored

from sharedds.cli import main
from sharedds.errors import SourceError
from sharedds.ingest import export, pack
from sharedds.store import Store

ASCII = environment(LC_ALL="C", PYTHONIOENCODING="ascii")

ODD = (
    b"\xe4.jpg",
    "\u00e4.jpg".encode(),
    "a\u0308.jpg".encode(),
    "\u732b.jpg".encode(),
    b"new\nline.jpg",
    b" lead.jpg",
    b"-rf.jpg",
)


def odd_folder(root: Path) -> dict[str, bytes]:
    """Write pictures with these names into a class folder that is not UTF-8."""
    files = {os.fsdecode(b"a\xff/" + name): jpeg(i) for i, name in enumerate(ODD)}
    put(root, files)
    return files


def test_extensions_count_in_any_case(tmp_path: Path) -> None:
    """All pictures are packed; the others are grouped by extension with a count and an example."""
    names = ("a.jpg", "b.JPG", "c.Jpeg", "d.PNG", "e.pNg", "f.TIF", "g.webp", "h.jfif", "i.JPE")
    files = {f"x/{name}": jpeg(i) for i, name in enumerate(names)}
    files |= {f"x/{n}.jpg.bak": b"x" for n in range(3)} | {"x/k.txt": b"x"}
    report = pack(put(tmp_path / "src", files), tmp_path / "out.lmdb")
    assert {key.removeprefix("x/") for key in stored(report.path)} == set(names)
    left_out = {item["reason"]: item["count"] for item in entries(report.report, "left_out")}
    assert left_out == {".bak": 3, ".txt": 1}
    assert report.samples + report.failed_count + report.left_out_count == len(files)


def test_a_folder_of_other_files_says_what_it_has(tmp_path: Path) -> None:
    """No empty store is left, and the message lists the extensions."""
    root = put(tmp_path / "src", {f"a/{n}.HEIC": b"x" for n in range(3)} | {"a/n.txt": b"x"})
    with pytest.raises(SourceError, match=r"no image could be packed; left out: 3 \.heic, 1 \.txt"):
        pack(root, tmp_path / "out.lmdb")
    assert os.listdir(tmp_path) == ["src"]


def test_an_empty_folder_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With exit code 1 and one message."""
    (tmp_path / "src").mkdir()
    assert main(["pack", str(tmp_path / "src"), str(tmp_path / "out.lmdb")]) == 1
    shown = capsys.readouterr()
    assert "no image could be packed" in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_hidden_things_are_neither_classes_nor_failures(tmp_path: Path) -> None:
    """A notebook's folder would become class 0; here it is one count of its kind."""
    root = folder(tmp_path / "src", count=2)
    double = bytes.fromhex("00051607") + bytes(4092)
    put(
        root,
        {
            ".DS_Store": b"x",
            "a/.DS_Store": b"x",
            "a/._0000.jpg": double,
            "b/Thumbs.db": b"x",
            ".ipynb_checkpoints/0000-checkpoint.jpg": jpeg(),
            "a/.ipynb_checkpoints/0000-checkpoint.jpg": jpeg(),
            "__MACOSX/a/._0000.jpg": double,
            ".git/x.jpg": jpeg(),
            "@eaDir/0000.jpg/SYNOPHOTO_THUMB_M.jpg": jpeg(),
        },
    )
    naive = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
    assert naive.index("a") > 1
    report = pack(root, tmp_path / "out.lmdb")
    store = Store(report.path)
    assert store.classes is not None
    assert list(store.classes) == ["a", "b"]
    assert (report.samples, report.failed) == (4, [])
    kinds = {item["reason"]: item["count"] for item in entries(report.report, "left_out")}
    assert kinds == {
        ".DS_Store": 2,
        "macOS companion ._*": 1,
        "Thumbs.db": 1,
        ".ipynb_checkpoints": 2,
        "__MACOSX": 1,
        ".git": 1,
        "@eaDir": 1,
    }


def test_hidden_pictures_can_be_included(tmp_path: Path) -> None:
    """A hidden folder still is no class: its pictures belong to the folder around it."""
    root = folder(tmp_path / "src", count=1)
    put(root, {"a/.kept/x.jpg": jpeg(8), "a/.y.jpg": jpeg(9)})
    pack(root, tmp_path / "out.lmdb", include_hidden=True)
    store = Store(tmp_path / "out.lmdb")
    assert sorted(store.key(i) for i in range(len(store))) == [
        "a/.kept/x.jpg",
        "a/.y.jpg",
        "a/0000.jpg",
        "b/0000.jpg",
    ]
    assert store.classes is not None
    assert list(store.classes) == ["a", "b"]


def test_names_of_any_bytes_are_kept_and_found(tmp_path: Path) -> None:
    """Seven different names make seven keys, and each comes back byte for byte."""
    files = odd_folder(tmp_path / "src")
    pack(tmp_path / "src", tmp_path / "out.lmdb")
    assert stored(tmp_path / "out.lmdb") == files
    store = Store(tmp_path / "out.lmdb")
    for name, data in files.items():
        assert bytes(store.read("image", store.index_of(name))) == data
        assert bytes(store.read("image", store.index_of(os.fsencode(name)))) == data
    assert store.classes is not None
    assert [os.fsencode(name) for name in store.classes] == [b"a\xff"]


def test_the_command_line_prints_any_name_in_plain_ascii(tmp_path: Path) -> None:
    """Where the locale knows nothing but ASCII, nothing fails and nothing is unreadable."""
    odd_folder(tmp_path / "src")
    put(tmp_path / "src", {os.fsdecode(b"a\xff/bad\xe4\n\x1b[31m.jpg"): b"no"})
    out = str(tmp_path / "out.lmdb")
    for words in (
        ("pack", str(tmp_path / "src"), out),
        ("info", out),
        ("info", out, "--json"),
        ("verify", out),
        ("export", out, str(tmp_path / "back")),
    ):
        done = run(*words, env=ASCII)
        assert done.returncode == (3 if words[0] == "pack" else 0), done.stderr
        assert done.stdout.isascii()
        assert b"\x1b" not in done.stdout
        assert done.stderr.isascii()
        assert done.stderr.count(b"\n") == (words[0] == "pack")  # the estimate
        if words[0] == "pack":
            assert b"\\xff/bad\\udce4\\n\\x1b[31m.jpg" in done.stdout.replace(b"\\udcff", b"\\xff")
    assert json.loads(run("info", out, "--json", env=ASCII).stdout)["samples"] == len(ODD)


def test_errors_print_any_name_in_plain_ascii(tmp_path: Path) -> None:
    """An output, a source or an option that is not UTF-8 is escaped, not a traceback."""
    odd = os.fsdecode(b"\xff\xe4\x1b")
    for words, code in (
        (("info", str(tmp_path / odd)), 1),
        (("pack", str(tmp_path / odd), str(tmp_path / "x")), 1),
        (("pack", "a", "b", f"--{odd}"), 2),
        (("pack", "a", "b", "--codec", odd), 2),
        (("pack", "a", "b", "--size", odd), 2),
    ):
        done = run(*words, env=ASCII)
        assert done.returncode == code
        assert done.stderr.isascii()
        assert b"Traceback" not in done.stderr
        assert b"\x1b" not in done.stderr
        assert b"Error: " in done.stderr


def test_the_report_gives_back_the_bytes_of_names(tmp_path: Path) -> None:
    """Every line is JSON, in ASCII; undecodable bytes come back by os.fsencode."""
    odd_folder(tmp_path / "src")
    put(tmp_path / "src", {os.fsdecode(b"a\xff/bad\xe4\n.jpg"): b"no"})
    report = pack(tmp_path / "src", tmp_path / "out.lmdb")
    assert events(report.report)
    [bad] = entries(report.report, "failed")
    assert os.fsencode(bad["path"]) == b"a\xff/bad\xe4\n.jpg"


def test_the_source_may_have_any_name(tmp_path: Path) -> None:
    """Undecodable bytes make no difference; an output that LMDB cannot name is refused."""
    root = folder(tmp_path / os.fsdecode(b"src\xff"), count=1)
    assert run("pack", root, tmp_path / "o", env=ASCII).returncode == 0
    assert len(stored(tmp_path / "o")) == 2
    done = run("pack", root, tmp_path / os.fsdecode(b"o\xff"), env=ASCII)
    assert done.returncode == 2
    assert b"LMDB can only write where the path is UTF-8" in done.stderr


def test_paths_longer_than_any_key_of_lmdb_are_whole(tmp_path: Path) -> None:
    """Its keys end at 511 bytes; two paths that are equal up to there stay two."""
    base = "a/" + "/".join(["d" * 100] * 6)
    files = {f"{base}/1.jpg": jpeg(1), f"{base}/2.jpg": jpeg(2), f"a/{'n' * 251}.jpg": jpeg(3)}
    assert all(len(name) > 511 for name in list(files)[:2])
    pack(put(tmp_path / "src", files), tmp_path / "out.lmdb")
    assert stored(tmp_path / "out.lmdb") == files
    store = Store(tmp_path / "out.lmdb")
    for name, data in files.items():
        assert bytes(store.read("image", store.index_of(name))) == data


def test_the_longest_names_survive_an_export_after_encoding_anew(tmp_path: Path) -> None:
    """The extension that is added must not make a name too long for the file system."""
    name = f"a/{'n' * 251}.jpg"
    pack(put(tmp_path / "src", {name: jpeg()}), tmp_path / "out.lmdb", codec="png")
    export(tmp_path / "out.lmdb", tmp_path / "back")
    assert os.listdir(tmp_path / "back" / "a") == ["n" * 251 + ".png"]


def test_a_file_without_permission_is_reported_and_the_rest_is_packed(tmp_path: Path) -> None:
    """With the reason the system gives."""
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o777)
        root = folder(place / "src", count=3)
        (root / "a" / "0001.jpg").chmod(0)
        done = run_as_nobody("pack", str(root), str(place / "out.lmdb"))
        assert done.returncode == 3, done.stderr
        [bad] = entries(place / "out.lmdb.report.jsonl", "failed")
        assert (bad["path"], bad["reason"]) == ("a/0001.jpg", "cannot be read (Permission denied)")
        assert len(stored(place / "out.lmdb")) == 5


def test_each_folder_is_listed_once(tmp_path: Path) -> None:
    """And nothing walks the folder again while it is packed."""
    root = folder(tmp_path / "src", ("a", "b", "c/d"), count=2)
    listed: list[str] = []
    real = os.scandir

    def counting(path: object = ".") -> object:
        listed.append(os.fsdecode(os.fspath(path)))  # type: ignore[call-overload]
        return real(path)  # type: ignore[call-overload]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", counting)
        patch.setattr(os, "listdir", lambda *_: pytest.fail("listed by another way"))
        patch.setattr(os, "walk", lambda *_: pytest.fail("listed by another way"))
        try:
            pack(root, tmp_path / "out.lmdb", dry_run=True)
        finally:
            patch.undo()
    inside = sorted(path.rstrip("/") for path in listed if path.startswith(str(root)))
    assert inside == [str(root / name).rstrip("/") for name in ("", "a", "b", "c", "c/d")]
