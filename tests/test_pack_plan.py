"""What ``pack --plan`` measures and recommends: rules on made-up figures, and a folder for real."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pictures
import pytest
from packing import folder, jpeg, put

from sharedds.cli import main
from sharedds.codecs import encode_image
from sharedds.errors import OptionError, SourceError
from sharedds.ingest import ImageRecipe, pack, plan_packing
from sharedds.ingest.images import planning
from sharedds.ingest.images.ways import Way, candidates, predict, recommend, words_of
from sharedds.store import Store

GB = 10**9
PHOTO = (500, 375)


def way(name: str, **figures: Any) -> Way:
    """Return a way with figures; only its name matters for what it stores."""
    return Way(name=name, recipe=ImageRecipe(), **figures)


def test_the_storage_bounds_what_does_not_fit_in_memory() -> None:
    """The same pictures: cores decide where the cache holds them, the slower of both elsewhere."""
    raw = way("raw", stored_bytes=200 * GB, picture_bytes=200_000, decode_rate=5_000)
    slow: dict[str, Any] = {"cpus": 4, "storage_rate": 1e9}
    found = predict(raw, memory=64 * GB, **slow)
    assert (found.machine_rate, found.bound, found.cached) == (5_000, "storage", False)
    found = predict(raw, memory=400 * GB, **slow)
    assert (found.machine_rate, found.bound, found.cached) == (20_000, "cores", True)
    found = predict(raw, memory=None, cpus=4, storage_rate=None)
    assert (found.machine_rate, found.bound) == (20_000, "cores")


@pytest.mark.parametrize(
    ("rates", "room", "rate", "chosen"),
    [
        ((900, 1000, 5000), 100, 800, "keep"),  # enough, and nothing is lost
        ((900, 1000, 5000), 100, 950, "small"),
        ((900, 1000, 5000), 100, 1001, "raw"),
        ((900, 1000, 5000), 100, 9000, "raw"),  # nothing is
        ((900, 4100, 5000), 100, 9000, "small"),  # nearly as fast as the fastest
        ((700, 1000, 5000), 35, 9000, "small"),  # raw does not fit on the disk
    ],
)
def test_what_loses_least_and_is_fast_enough_is_recommended(
    rates: tuple[int, ...], room: int, rate: float, chosen: str
) -> None:
    """The order of the ways is that of what they lose."""
    ways = [
        way(name, machine_rate=number, stored_bytes=size)
        for name, number, size in zip(("keep", "small", "raw"), rates, (30, 20, 40), strict=True)
    ]
    found, reason = recommend(ways, room=room, rate=rate)
    assert found.name == chosen
    assert ("nothing reaches" in reason) == (max(rates) < rate)


def test_a_way_that_cannot_hold_all_pictures_is_not_recommended() -> None:
    """However fast it is."""
    ways = [way("keep", machine_rate=1), way("raw", machine_rate=9, refused=1)]
    assert recommend(ways, room=1)[0].name == "keep"


def test_ways_fit_the_pictures() -> None:
    """Nothing is enlarged, and small pictures of one size become pixels of that size."""
    rules = ImageRecipe()

    def names(sizes: list[tuple[int, int]], kind: str = "jpeg") -> list[str]:
        return [one.name for one in candidates(sizes, [kind] * len(sizes), rules)]

    large = names([PHOTO, (768, 1024)])
    assert large == [
        "keep", "jpeg, long side 512", "the same, half as pixels", "jpeg, short side 256",
        "raw 256x256",
    ]  # fmt: skip
    assert names([PHOTO]) == ["keep", "jpeg, quality 90", "jpeg, short side 256", "raw 256x256"]
    assert names([(32, 32)] * 3, "png") == ["keep", "raw 32x32"]
    assert names([(28, 32), (64, 48), (40, 99)], "png") == ["keep", "raw 40x40"]
    assert names([(96, 64)] * 2, "png") == ["keep", "raw 96x64"]


def test_what_was_asked_for_is_measured_too() -> None:
    """Options that encode anew are one more way; those that all ways share go into each."""
    asked = ImageRecipe(codec="jpeg", max_side=384, background="black", depth="8")
    ways = candidates([PHOTO], ["jpeg"], asked)
    assert ways[-1].recipe == asked
    assert {one.recipe.background for one in ways} == {(0, 0, 0)}
    assert [one.recipe.depth for one in ways] == ["keep", *["8"] * (len(ways) - 1)]


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (ImageRecipe(), ""),
        (
            ImageRecipe(codec="jpeg", max_side=512, raw_share=0.5),
            "--codec jpeg --raw-share 0.5 --max-side 512",
        ),
        (
            ImageRecipe(codec="raw", size=(64, 96), background="ff8800", max_pixels=None),
            "--codec raw --size 64x96 --background ff8800 --max-pixels none",
        ),
        (ImageRecipe(orientation="ignore", check="header"), "--check header --ignore-orientation"),
    ],
)
def test_the_words_of_a_recipe_make_that_recipe(
    tmp_path: Path, recipe: ImageRecipe, words: str
) -> None:
    """What is printed can be run."""
    assert words_of(recipe) == words
    source = folder(tmp_path / "src")
    assert main(["pack", str(source), str(tmp_path / "o"), "--quiet", *words.split()]) == 0
    found = dict(Store(tmp_path / "o").attrs["recipe"])
    for name in ("size", "background"):
        found[name] = tuple(found[name]) if found[name] else None
    assert ImageRecipe(**found) == recipe


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of pictures, some larger than what is made of them."""
    files = {f"a/{n}.jpg": pictures.save(pictures.smooth(640, 400 + n), "JPEG") for n in range(6)}
    return put(tmp_path / "photos", files)


def test_a_folder_is_measured_and_nothing_is_written(photos: Path, tmp_path: Path) -> None:
    """Each way has its figures; that of the sizes is what packing gives."""
    before = sorted(os.listdir(tmp_path))
    plan = plan_packing(photos, seconds=0.2, progress=False)
    assert sorted(os.listdir(tmp_path)) == before
    assert plan.pictures == 6
    assert 1 <= plan.measured <= 6
    assert plan.chosen in [one.name for one in plan.ways]
    for one in plan.ways:
        assert one.decode_rate > 0
        assert one.machine_rate > 0
        assert one.pack_seconds > 0
    kept, *_, raw = plan.ways
    assert raw.recipe.size == (256, 256)
    assert raw.picture_bytes == 256 * 256 * 3
    assert kept.picture_bytes == pytest.approx(plan.source_bytes / 6, rel=0.1)
    out = tmp_path / "raw.lmdb"
    report = pack(photos, out, codec="raw", size=(256, 256), dry_run=True, progress=False)
    assert raw.stored_bytes == report.bytes


def test_bad_files_are_told_and_do_not_count(photos: Path) -> None:
    """A plan is made of those that are pictures; without one there is none."""
    put(photos, {"a/bad.jpg": b"no picture", "a/cut.jpg": jpeg(1, 256, 256)[:9000]})
    plan = plan_packing(photos, seconds=5, progress=False)
    assert plan.measured == 6
    assert sorted(path for path, _ in plan.failed) == ["a/bad.jpg", "a/cut.jpg"]
    assert not any(one.refused for one in plan.ways)
    with pytest.raises(SourceError, match=r"none of 1 files tried is a picture, such as x/0.jpg"):
        plan_packing(put(photos / "alone", {"x/0.jpg": b"no"}), progress=False)
    with pytest.raises(SourceError, match="no image in it"):
        plan_packing(put(photos / "empty", {"x/0.txt": b"no"}), progress=False)


def test_a_way_that_refuses_pictures_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """16-bit pictures do not fit raw pixels of 8 bits: counted, and that way is not taken."""
    deep = pictures.noise(40, 30, dtype="u2")
    root = put(tmp_path / "src", {f"a/{n}.png": encode_image(deep, "png") for n in range(3)})
    assert main(["pack", str(root), "--plan"]) == 0
    shown = capsys.readouterr()
    assert "3 of the pictures measured cannot be stored as raw 40x30" in shown.err
    assert "take     keep" in shown.out
    plan = plan_packing(root, recipe=ImageRecipe(codec="png", depth="8"), progress=False)
    assert not any(one.refused for one in plan.ways)


@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_plan_fits_the_terminal(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str
) -> None:
    """A table, what bounds it, the advice, and a command to paste, which may be longer."""
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["pack", str(photos), "--plan", "--rate", "1"]) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert lines[1].split()[:3] == ["way", "on", "disk"]
    run = next(line for line in lines if line.startswith("  run"))
    assert run.split() == ["run", "sharedds", "pack", str(photos), "OUT"]
    assert all(len(line) <= int(columns) for line in lines if str(photos) not in line)
    assert "\x1b" not in shown


def test_a_plan_as_json(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object; each way with the options of the function and the words of the command line."""
    words = "--plan --json --codec jpeg --quality 50"
    assert main(["pack", str(photos), *words.split()]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pictures"] == 6
    last = found["ways"][-1]
    assert (last["name"], last["words"]) == ("as asked", "--codec jpeg --quality 50")
    assert last["recipe"]["quality"] == 50


def test_out_is_only_left_out_for_a_plan(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else it is missed; and a rate is for a plan only."""
    assert main(["pack", str(photos)]) == 2
    assert "OUT" in capsys.readouterr().err
    assert main(["pack", str(photos), str(tmp_path / "o"), "--rate", "5"]) == 2
    assert "--plan" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("options", [{"seconds": 0}, {"rate": -1}, {"rate": True}])
def test_numbers_of_a_plan_are_above_zero(photos: Path, options: dict[str, Any]) -> None:
    """Anything else is named."""
    with pytest.raises(OptionError, match="above 0"):
        plan_packing(photos, **options)


def test_the_sample_is_of_all_parts_of_the_folder() -> None:
    """Ten classes of many files: a sample of them has about as many of each."""
    sample = planning._sample(100_000)
    assert len(sample) == len(set(sample)) == 512
    assert sample == planning._sample(100_000)
    first = [position // 10_000 for position in sample[:128]]  # however early it ends
    assert all(first.count(part) >= 4 for part in range(10))
    assert sorted(planning._sample(3)) == [0, 1, 2]
