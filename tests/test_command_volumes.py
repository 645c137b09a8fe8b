"""``sharedds pack --kind volume`` as a person or a script meets it: help, summary, JSON, codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from volumes import idx, nifti

from sharedds.cli import main
from sharedds.store import Store


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """Three cases with labels; the last one's is of another shape."""
    for name in ("a", "b", "c"):
        nifti(tmp_path / f"src/images/{name}.nii.gz", idx((20, 18, 10)))
        side = 11 if name == "c" else 10
        label = (idx((20, 18, side)) % 2).astype("u1")
        nifti(tmp_path / f"src/labels/{name}.nii.gz", label)
    return tmp_path / "src"


def test_help_has_a_section_for_each_kind(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever packs volumes need not read what JPEG is about."""
    assert main(["pack", "--help"]) == 0
    shown = capsys.readouterr().out
    pictures, rest = shown.split("Options for volumes:")
    volumes, both = rest.split("\nOptions:")
    assert "--quality" in pictures
    assert {"--patch", "--spacing", "--anonymous"} <= set(volumes.split())
    assert {"--kind", "--labels", "--force", "--help"} <= {w.strip(",") for w in both.split()}


def test_a_pack_is_told_in_lines_that_fit(
    scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was made, of what, and each bad case with its reason below; exit code 3."""
    out = str(tmp_path / "out.lmdb")
    assert main(["pack", str(scans), out, "--codec", "lz4"]) == 3
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{out}: 2 cases, ")
    assert "cases/s)" in first
    facts = dict(
        line.split(maxsplit=1) for line in rest if line.startswith("  ") and line[2] != " "
    )
    assert facts["layout"] == "folders of images and of labels"
    assert facts["dtype"] == "int16 (2)"
    assert facts["label"] == "uint8 (2)"
    assert facts["digest"] == Store(out).digest
    assert facts["bad"] == "1 case"
    at = rest.index("    labels/c.nii.gz")
    reason = " ".join(line.strip() for line in rest[at + 1 :])
    assert reason.startswith("the label has the shape (20, 18, 11), its image (20, 18, 10)")
    assert max(len(line) for line in rest[at:]) <= 80


def test_options_reach_the_function(scans: Path, tmp_path: Path) -> None:
    """As they are written in a shell; they stand in the header."""
    out = str(tmp_path / "out.lmdb")
    words = "--kind volume --codec zstd --patch 8,8,4 --spacing 1,1,2 --orientation ras"
    words += " --foreground-above=-5 --dtype float32 --resample-labels --prefer qform"
    words += " --keep-tags KVP,SliceThickness --anonymous --allow-gaps --allow-single --invert"
    assert main(["pack", str(scans), out, "--quiet", *words.split()]) == 0
    store = Store(out)
    assert store.attrs["options"] == {
        "patch": [8, 8, 4], "spacing": [1.0, 1.0, 2.0], "orientation": "RAS",
        "crop_foreground": -5.0, "dtype": "float32", "codec": "zstd", "allow_gaps": True,
        "allow_single": True, "invert": True, "keep_tags": ["KVP", "SliceThickness"],
        "anonymous": True, "prefer": "qform", "resample_labels": True,
    }  # fmt: skip
    assert store.attrs["patch"] == [8, 8, 4]
    assert store.header.fields[0].codec == "zstd"
    assert store.array(0, "image").dtype == np.float32


def test_a_csv_gives_cases_and_groups(scans: Path, tmp_path: Path) -> None:
    """Also when it lies in the folder itself."""
    (scans / "cases.csv").write_text(
        "case,image,label,group\none,images/a.nii.gz,labels/a.nii.gz,north\n"
        "two,images/b.nii.gz,,south\n"
    )
    out = str(tmp_path / "out.lmdb")
    words = ["--labels", str(scans / "cases.csv"), "--codec", "lz4", "--json"]
    assert main(["pack", str(scans), out, *words]) == 0
    store = Store(out)
    assert [store.key(n) for n in range(2)] == ["one", "two"]
    assert [store.value("group", n) for n in range(2)] == ["north", "south"]
    assert store.value("label", 1) is None


def test_json_accounts_for_every_file(
    scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stored, failed and left out are all there were."""
    (scans / "readme.txt").write_text("x")
    assert main(["pack", str(scans), str(tmp_path / "out.lmdb"), "--codec", "lz4", "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["samples"], found["failed_count"]) == ("volumes", 2, 1)
    assert (found["stored_files"], found["failed_files"], found["left_out_count"]) == (4, 2, 1)
    assert found["files"] == 7


def test_exit_codes_tell_what_happened(scans: Path, tmp_path: Path) -> None:
    """0 all packed, 1 nothing, 2 wrong usage, 4 strict found something."""
    out = str(tmp_path / "out.lmdb")
    assert main(["pack", str(scans), out, "--quiet", "--resample-labels"]) == 0
    assert main(["pack", str(scans), out, "--quiet"]) == 1
    assert main(["pack", str(scans), out, "--quiet", "--force", "--strict"]) == 4
    (tmp_path / "none").mkdir()
    nothing = str(tmp_path / "x.lmdb")
    assert main(["pack", str(tmp_path / "none"), nothing, "--kind", "volume"]) == 1
    assert main(["pack", str(scans), nothing, "--patch", "8,8"]) == 2
    assert main(["pack", str(scans), nothing, "--orientation", "up"]) == 2
    assert main(["pack", str(scans), nothing, "--quality", "80"]) == 2
    assert main(["pack", str(scans), nothing, "--dry-run", "--quiet"]) == 0
    assert not Path(nothing).exists()
