"""Very large pictures: what a sample of one takes, and what the doctor says of them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from processes import python

from sharedds.codecs import encode_jpeg
from sharedds.datasets import ImageDataset
from sharedds.diagnose.doctor import doctor
from sharedds.diagnose.hazards import LARGE_PIXELS, large_pictures
from sharedds.ingest import pack

HEIGHT, WIDTH = 5000, 5200
DECODED = HEIGHT * WIDTH * 3

#: Four times the same samples, each time with the most that they took in between, in bytes.
_SAMPLES = """
    import sys, threading
    import torch
    from sharedds.codecs import decode
    from sharedds.datasets import ImageDataset
    from sharedds.memory import process_memory
    from sharedds.views import CenterCrop

    folder, few = sys.argv[1], [0, 1, 2]

    def took(read):
        _ = read([0])  # what libraries keep for good
        before, most, done = process_memory().anonymous, [0], threading.Event()

        def watch():
            while not done.wait(0.002):
                most[0] = max(most[0], process_memory().anonymous)

        watcher = threading.Thread(target=watch)
        watcher.start()
        made = read(few)
        done.set()
        watcher.join()
        del made
        return most[0] - before, process_memory().anonymous - before

    def part(image):
        return image[:, 1000:1512, 1000:1512]

    def empty(shape, dtype, channels_last=False):
        kind = torch.channels_last if channels_last else torch.contiguous_format
        return torch.empty(shape, dtype=dtype, memory_format=kind)

    seen = ImageDataset(folder, view=CenterCrop(512))
    cropped = ImageDataset(folder, transform=part)
    plain = ImageDataset(folder)
    ways = {
        "kept": lambda numbers: [part(plain[number]) for number in numbers],
        "batch": lambda numbers: seen.load_batch(numbers, empty),
        "samples": lambda numbers: [seen[number] for number in numbers],
        "transform": lambda numbers: cropped.__getitems__(numbers),
    }
    for name, read in ways.items():
        print(name, *took(read))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three large pictures, without classes."""
    made = tmp_path_factory.mktemp("large")
    rows = np.linspace(0, 255, HEIGHT).astype(np.uint8)
    picture = np.broadcast_to(rows[:, None, None], (HEIGHT, WIDTH, 3))
    data = encode_jpeg(np.ascontiguousarray(picture), quality=75)
    for number in range(3):
        (made / f"{number}.jpg").write_bytes(data)
    return made


@pytest.fixture(scope="module")
def figures(folder: Path) -> dict[str, tuple[int, int]]:
    """How many decoded pictures each way of reading three took at most, and keeps, in percent."""
    lines = [line.split() for line in python(_SAMPLES, folder).stdout.splitlines()]
    return {
        name: (int(most) * 100 // DECODED, int(left) * 100 // DECODED) for name, most, left in lines
    }


@pytest.mark.memory
def test_a_crop_that_is_a_view_keeps_its_picture(figures: dict[str, tuple[int, int]]) -> None:
    """What the other tests are about: crops of three pictures hold all of the three."""
    assert figures["kept"][0] > 250


@pytest.mark.memory
@pytest.mark.parametrize("way", ["batch", "samples", "transform"])
def test_one_picture_is_decoded_at_a_time(figures: dict[str, tuple[int, int]], way: str) -> None:
    """The next one begins when the one before is gone, also where a transform crops."""
    assert 50 < figures[way][0] < 150, figures


@pytest.mark.memory
@pytest.mark.parametrize("way", ["batch", "samples", "transform"])
def test_nothing_of_a_picture_stays(figures: dict[str, tuple[int, int]], way: str) -> None:
    """After the samples a process has what it had before."""
    assert figures[way][1] < 15, figures


def test_a_transform_that_crops_shows_the_same(folder: Path) -> None:
    """The copy has the values of the view, and the order of its memory."""
    shown = ImageDataset(folder)[0][:, 1000:1200, 900:1200]
    image = ImageDataset(folder, transform=lambda image: image[:, 1000:1200, 900:1200])[0]
    assert image.equal(shown)
    assert np.argsort(image.stride()).tolist() == np.argsort(shown.stride()).tolist()


# --- what the doctor says ------------------------------------------------------------------------


def test_the_doctor_recommends_slides(folder: Path) -> None:
    """With the size, what a sample costs, and the command."""
    report = doctor(folder, measure=False)
    assert report.verdict == "safe"
    [note] = [note for note in report.notes if note.kind == "large"]
    assert f"{WIDTH:,} x {HEIGHT:,} pixels" in note.what
    assert f"sharedds pack {shlex.quote(str(folder))} slides.lmdb --kind slide" in note.what
    assert "SlideDataset" in note.fix
    assert "--kind slide" in " ".join(report.text().split())
    assert json.dumps(report.to_dict()["notes"])


def test_pictures_of_a_usual_size_are_not_told_of(tmp_path: Path) -> None:
    """One pixel less than the stated size is none too many."""
    height = 1000
    width = LARGE_PIXELS // height - 1
    grey = np.zeros((height, width, 1), np.uint8)
    (tmp_path / "a.jpg").write_bytes(encode_jpeg(grey))
    assert large_pictures(ImageDataset(tmp_path)) is None
    (tmp_path / "b.jpg").write_bytes(encode_jpeg(np.zeros((height, width + 1, 1), np.uint8)))
    assert large_pictures(ImageDataset(tmp_path)) is not None


def test_large_pictures_of_a_store_are_told_of(folder: Path, tmp_path: Path) -> None:
    """By the sizes that packing noted; no picture is read."""
    path = tmp_path / "x.lmdb"
    pack(folder, path, check="header", progress=False)
    note = large_pictures(ImageDataset(path))
    assert note is not None
    assert "FOLDER" in note.what


def test_bad_files_do_not_hide_large_ones(folder: Path, tmp_path: Path) -> None:
    """What cannot be read is told when it is loaded; here the others decide."""
    (tmp_path / "bad.jpg").write_bytes(bytes(2_000_000))
    assert large_pictures(ImageDataset(tmp_path)) is None
    (tmp_path / "good.jpg").write_bytes((folder / "0.jpg").read_bytes())
    assert large_pictures(ImageDataset(tmp_path)) is not None
