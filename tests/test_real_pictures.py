"""Real photographs and real odd files, where they are at hand: packed, proved, and given back."""

from __future__ import annotations

import filecmp
from pathlib import Path

import numpy as np
import pytest
from packing import pixels_of, stored
from PIL import Image

from sharedds.codecs import decode
from sharedds.ingest import export, pack
from sharedds.store import Store, verify

DATA = Path(__file__).parents[2] / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no real pictures at {DATA}")


def test_photographs_are_packed_proved_and_given_back(tmp_path: Path) -> None:
    """Packed, verified, exported: every file is identical, and nothing was left out."""
    photos = DATA / "photos"
    report = pack(photos, tmp_path / "out.lmdb")
    assert report.samples == report.files == sum(1 for _ in photos.glob("*/*"))
    assert (report.failed_count, report.left_out_count) == (0, 0)
    assert verify(tmp_path / "out.lmdb").ok
    export(tmp_path / "out.lmdb", tmp_path / "back")
    names = sorted(str(path.relative_to(photos)) for path in photos.glob("*/*"))
    assert names == sorted(
        str(path.relative_to(tmp_path / "back")) for path in (tmp_path / "back").glob("*/*")
    )
    same, different, errors = filecmp.cmpfiles(photos, tmp_path / "back", names, shallow=False)
    assert (len(same), different, errors) == (len(names), [], [])


def test_every_odd_file_lands_where_it_should(tmp_path: Path) -> None:
    """Packed and readable, or reported by name; no third way."""
    odd = DATA / "odd"
    report = pack(odd, tmp_path / "out.lmdb")
    files = {path.name: path.read_bytes() for path in odd.iterdir()}
    assert [name for name, _ in report.failed] == ["truncated.jpg"]
    assert "truncated" in report.failed[0][1]
    assert {item["example"] for item in report.left_out} == {"logo.svg", "targa.tga"}
    packed = stored(tmp_path / "out.lmdb")
    assert packed.keys() == files.keys() - {"truncated.jpg", "logo.svg", "targa.tga"}
    for name, data in packed.items():
        assert data == files[name]
        pixels = decode(data)
        assert pixels.shape[2] == 3
        if name.startswith(("sample.jpg", "small.bmp", "indexed.png")):
            assert np.abs(pixels.astype(int) - pixels_of(data)).mean() < 2
    assert report.content["orientation"] == {"1": 17} | {str(n): 1 for n in range(2, 9)}
    assert report.samples + report.failed_count + report.left_out_count == len(files)


@pytest.mark.parametrize("number", range(1, 9))
def test_turned_photographs_are_read_as_the_upright_one(tmp_path: Path, number: int) -> None:
    """With the orientation they match it, without they do not; also when encoded anew."""
    folder = tmp_path / "src"
    folder.mkdir()
    for name in {"rotation_1.jpg", f"rotation_{number}.jpg"}:
        (folder / name).write_bytes((DATA / "odd" / name).read_bytes())
    upright = decode((folder / "rotation_1.jpg").read_bytes())
    name = f"rotation_{number}.jpg"
    for codec in ("keep", "png"):
        out = tmp_path / codec
        pack(folder, out, codec=codec)
        store = Store(out)
        index = store.index_of(name)
        data = store.read("image", index)
        found = decode(data, orientation=int(store.column("orientation")[index]))
        assert difference(found, upright) < 25
    if number > 1:
        assert difference(decode((folder / name).read_bytes(), orientation=1), upright) > 40


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """Return the mean absolute difference, the second scaled to the size of the first."""
    height, width = one.shape[:2]
    scaled = Image.fromarray(other).resize((width, height), Image.Resampling.BILINEAR)
    return float(np.abs(one.astype(int) - np.asarray(scaled)).mean())
