"""What info and verify say of a store, to people and to programs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pictures
import pytest
from packing import folder, jpeg, put, run
from PIL import Image

from sharedds.cli import main
from sharedds.errors import StoreFormatError, StoreNotFoundError
from sharedds.ingest import PackReport, pack
from sharedds.store import ArrayValue, Store, StoreWriter, info


@pytest.fixture
def report(tmp_path: Path) -> PackReport:
    """Pictures of several kinds in two classes, and a third class that is empty."""
    exif = Image.Exif()
    exif[0x0112] = 6
    root = folder(tmp_path / "src", count=3)
    (root / "c").mkdir()
    put(
        root,
        {
            "b/grey.png": pictures.save(Image.fromarray(pictures.noise(9, 9)), "PNG"),
            "b/deep.png": pictures.save(Image.fromarray(pictures.noise(9, 9, dtype="u2")), "PNG"),
            "b/turned.jpg": pictures.save(pictures.smooth(), "JPEG", exif=exif),
        },
    )
    return pack(root, tmp_path / "out.lmdb")


def test_info_sums_up_a_packed_folder(report: PackReport) -> None:
    """Counts, classes, digest, and the mix of formats, modes and orientations."""
    found = info(report.path)
    assert (found.samples, found.keyed, found.format_version) == (9, True, 1)
    assert found.digest == report.digest
    assert found.bytes == os.path.getsize(report.path)
    assert found.classes == {"a": 3, "b": 6, "c": 0}
    assert found.content == {
        "format": {"jpeg": 7, "png": 2},
        "mode": {"L": 1, "RGB": 7, "I;16": 1},
        "bits": {"8": 8, "16": 1},
        "orientation": {"1": 8, "6": 1},
    }
    assert {name: counts for name, counts in report.content.items() if name != "frames"} == (
        found.content
    )
    assert found.attrs["recipe"]["codec"] == "keep"


def test_info_knows_the_size_of_each_field(report: PackReport, tmp_path: Path) -> None:
    """The bytes of its values, without the space around them."""
    sizes = {
        field.name: (field.kind, field.values, field.bytes) for field in info(report.path).fields
    }
    pictures_size = sum(path.stat().st_size for path in (tmp_path / "src").rglob("*.*"))
    assert sizes["image"] == ("keep", 9, pictures_size)
    assert sizes["label"] == ("int64", 9, 72)
    assert sizes["mode"] == ("uint8", 9, 9)


def test_info_knows_fields_of_every_kind(tmp_path: Path) -> None:
    """Also those with several chunks, none at all, or names that mean something else elsewhere."""
    schema = {
        "image": "png",
        "volume": "zstd",
        "boxes": "array:float32",
        "mode": "str",
        "format": "float32",
        "bits": "uint8[2]",
        "label": "json",
    }
    volume = np.zeros((4, 4, 4), np.int16)
    with StoreWriter(tmp_path / "x", schema=schema, classes=["p"]) as writer:
        for number in range(3):
            writer.add(
                {
                    "image": pictures.noise(5, 5, 3) if number else None,
                    "volume": ArrayValue(volume, chunk=(2, 4, 4)),
                    "boxes": np.zeros((number, 4), np.float32),
                    "mode": "text",
                    "format": 1.5,
                    "bits": np.zeros(2, np.uint8),
                    "label": {"any": number},
                }
            )
    found = info(tmp_path / "x")
    fields = {field.name: field for field in found.fields}
    assert (fields["image"].values, fields["volume"].values) == (2, 3)
    store = Store(tmp_path / "x")
    assert fields["image"].bytes == sum(len(store.read("image", i)) for i in (1, 2))
    assert fields["boxes"].kind == "ragged float32"
    assert fields["bits"].kind == "uint8[2]"
    assert (found.content, found.classes, found.keyed) == ({}, None, False)


def test_an_empty_store_has_an_info(tmp_path: Path) -> None:
    """Nothing is divided by nothing."""
    with StoreWriter(tmp_path / "x", schema={"image": "keep", "label": "int64"}, classes=["p"]):
        pass
    found = info(tmp_path / "x")
    assert (found.samples, found.classes) == (0, {"p": 0})
    assert main(["info", str(tmp_path / "x")]) == 0
    assert main(["verify", str(tmp_path / "x")]) == 0


def test_encoding_anew_is_told_beside_what_the_files_were(tmp_path: Path) -> None:
    """What is stored and what it came from are two things."""
    root = put(tmp_path / "src", {"a/x.jpg": jpeg(), "a/y.png": pictures.black(4, 4, 1, 0)})
    pack(root, tmp_path / "o", codec="png")
    content = info(tmp_path / "o").content
    assert content["format"] == {"png": 2}
    assert content["source_format"] == {"jpeg": 1, "png": 1}
    assert content["mode"] == {"L": 1, "RGB": 1}
    assert content["source_mode"] == {"1": 1, "RGB": 1}
    assert (content["bits"], content["source_bits"]) == ({"8": 2}, {"1": 1, "8": 1})


def test_the_command_prints_it_for_people(
    report: PackReport, capsys: pytest.CaptureFixture[str]
) -> None:
    """Head, mix, table of fields, table of classes."""
    assert main(["info", report.path]) == 0
    shown = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines[0].startswith(f"{report.path}: 9 samples, ")
    assert f"digest {report.digest}" in lines
    assert "packed with codec keep, checked by decoding" in lines
    assert "format jpeg (7), png (2)" in lines
    assert "label int64 9 72 bytes" in lines
    assert "1 b 6" in lines
    assert "2 c 0" in lines
    assert not any(line != line.rstrip() for line in shown.splitlines())


def test_many_classes_are_shown_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first 20, and how many more there are."""
    root = put(tmp_path / "src", {f"c{n:02d}/x.jpg": jpeg(n) for n in range(25)})
    pack(root, tmp_path / "o")
    assert main(["info", str(tmp_path / "o")]) == 0
    short = capsys.readouterr().out
    assert "c19" in short
    assert "c20" not in short
    assert "... and 5 more classes (--all shows them)" in short
    assert main(["info", str(tmp_path / "o"), "--all"]) == 0
    assert "c24" in capsys.readouterr().out


def test_the_command_prints_one_json_object(
    report: PackReport, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same facts as the function returns."""
    assert main(["info", report.path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(
        json.dumps(info(report.path).to_json())
    )


def test_info_of_something_else_is_an_error(tmp_path: Path) -> None:
    """With the path, and nothing is created."""
    (tmp_path / "text").write_text("no store at all")
    with pytest.raises(StoreFormatError, match="text"):
        info(tmp_path / "text")
    with pytest.raises(StoreNotFoundError, match="gone"):
        info(tmp_path / "gone")
    assert os.listdir(tmp_path) == ["text"]


# --- verify --------------------------------------------------------------------------------------


def damaged(report: PackReport, tmp_path: Path) -> Path:
    """Return a copy of a store with one bit flipped in the picture ``b/0001.jpg``."""
    data = bytearray(Path(report.path).read_bytes())
    picture = (tmp_path / "src" / "b" / "0001.jpg").read_bytes()
    data[data.index(picture) + 200] ^= 0x10
    (tmp_path / "damaged.lmdb").write_bytes(data)
    return tmp_path / "damaged.lmdb"


def test_verify_finds_nothing_in_a_good_store(report: PackReport) -> None:
    """Exit code 0, and how much was compared."""
    for flags in ((), ("--untrusted",)):
        done = run("verify", report.path, *flags)
        assert done.returncode == 0, done.stderr
        assert b"all 9 samples (9 values, " in done.stdout
        assert report.digest.encode() in done.stdout


def test_verify_names_what_is_damaged(report: PackReport, tmp_path: Path) -> None:
    """Sample, field and source file; exit code 3."""
    path = damaged(report, tmp_path)
    index = Store(report.path).index_of("b/0001.jpg")
    done = run("verify", path)
    assert done.returncode == 3
    [line] = [line for line in done.stdout.decode().splitlines() if "b/0001.jpg" in line]
    assert line.split()[:2] == [str(index), "image"]
    assert "fails its checksum" in line


def test_verify_prints_one_json_object(
    report: PackReport, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the damage in it."""
    assert main(["verify", report.path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    assert main(["verify", str(damaged(report, tmp_path)), "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is False
    [problem] = found["problems"]
    assert problem["field"] == "image"
    assert "b/0001.jpg" in (problem["key"], problem["source"])


def test_verify_of_something_else_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 and one message."""
    (tmp_path / "text").write_text("no store at all")
    assert main(["verify", str(tmp_path / "text")]) == 1
    assert main(["verify", str(tmp_path / "gone")]) == 1
    assert capsys.readouterr().err.count("Error: ") == 2
