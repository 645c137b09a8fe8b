"""The isolation test: stages told apart by the stack, and a verdict that follows from numbers."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset, default_collate

from sharedds.cli import main
from sharedds.datasets import ImageDataset
from sharedds.diagnose import isolated
from sharedds.diagnose.bench import bench
from sharedds.diagnose.child import failure
from sharedds.diagnose.frames import classify
from sharedds.diagnose.isolated import Finished
from sharedds.diagnose.profile import profile_samples
from sharedds.diagnose.target import Opened, Target
from sharedds.diagnose.trial import Trial, TrialOptions
from sharedds.diagnose.verdict import StageCost, Verdict, judge
from sharedds.errors import OptionError, WorkerError
from sharedds.ingest import pack


def stages_of(function: Callable[[], Any], *, is_collating: bool = False) -> dict[str, set[str]]:
    """Call a function and return the stages of each C function that it calls, by name."""
    found: dict[str, set[str]] = {}
    is_inside = False

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal is_inside
        if event == "c_call" and not is_inside:
            is_inside = True
            stage, _ = classify(frame, is_collating=is_collating)
            is_inside = False
            found.setdefault(getattr(argument, "__name__", "?"), set()).add(stage)

    sys.setprofile(watch)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found


class Files(Dataset[Any]):
    """As people write them: read, decode, transform, all in one method."""

    def __init__(self, folder: Path, transform: Callable[[Any], Any] | None = None) -> None:
        self.paths = sorted(folder.glob("*.jpg"))
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        with open(self.paths[index], "rb") as file:
            data = file.read()
        pixels = simplejpeg.decode_jpeg(data)
        return self.transform(pixels) if self.transform else pixels


class Opening(Files):
    """The same by Pillow, which reads and decodes behind one name."""

    def __getitem__(self, index: int) -> Any:
        with Image.open(self.paths[index]) as file:
            image = file.convert("RGB")
        return self.transform(image) if self.transform else image


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A few pictures of one size."""
    rng = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for number in range(12):
        pixels = rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.jpg")
    return tmp_path / "images"


def test_reading_is_found_in_a_method_that_does_more(folder: Path) -> None:
    """Though C functions show no frame."""
    found = stages_of(lambda: Files(folder)[0])
    assert found["open"] == found["read"] == {"read"}


def test_what_pillow_does_is_reading_and_decoding(folder: Path) -> None:
    """Its lazy files, too: the bytes are read while a picture is decoded."""
    found = stages_of(lambda: Opening(folder)[0])
    assert found["read"] == {"read"}
    assert found["decode"] == {"decode"}


def test_what_a_transform_calls_is_the_transform(folder: Path) -> None:
    """By the name of the attribute, wherever its function comes from."""
    resized = stages_of(lambda: Opening(folder, lambda image: image.resize((8, 8)))[0])
    assert resized["resize"] == {"transform"}
    summed = stages_of(lambda: Files(folder, lambda pixels: torch.from_numpy(pixels).sum())[0])
    assert summed["from_numpy"] == summed["sum"] == {"transform"}
    assert summed["read"] == {"read"}


def test_a_lazy_picture_that_a_transform_loads_is_decoded(folder: Path) -> None:
    """Whoever asks for the pixels first: it is the decoder that works."""

    class Lazy(Opening):
        def __getitem__(self, index: int) -> Any:
            assert self.transform is not None
            return self.transform(Image.open(self.paths[index]))

    found = stages_of(lambda: Lazy(folder, np.asarray)[0])
    assert found["decode"] == {"decode"}


def test_our_own_datasets_are_told_apart(folder: Path, tmp_path: Path) -> None:
    """Pages of a store are reading, its codecs decode."""
    pack(folder, tmp_path / "out.lmdb", progress=False)
    found = stages_of(lambda: ImageDataset(tmp_path / "out.lmdb", transform=torch.sum)[0])
    assert "read" in found["xxh3_64_intdigest"]
    assert "decode" in set().union(*found.values())


def test_other_ways_to_read_and_decode_are_known(tmp_path: Path) -> None:
    """NumPy's files, memory maps, compressed and pickled values."""
    np.save(tmp_path / "a.npy", np.zeros(100))
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"abc"))
    assert stages_of(lambda: np.load(tmp_path / "a.npy"))["fromfile"] == {"read"}
    assert stages_of(lambda: zlib.decompress(zlib.compress(b"x")))["decompress"] == {"decode"}
    data = pickle.dumps([1])
    assert stages_of(lambda: pickle.loads(data))["loads"] == {"decode"}
    assert stages_of(lambda: (tmp_path / "b.gz").read_bytes())["read"] == {"read"}


def test_collating_is_told_apart() -> None:
    """That of torch, and whatever a collate function of the user's calls."""
    samples = [torch.zeros(3), torch.ones(3)]
    assert stages_of(lambda: default_collate(samples))["stack"] == {"collate"}
    found = stages_of(lambda: torch.stack(samples), is_collating=True)
    assert found["stack"] == {"collate"}


def test_the_rest_is_other() -> None:
    """Python code of the dataset itself, which no list of names can know."""
    assert stages_of(lambda: sorted([3, 1, 2]))["sorted"] == {"other"}


class Slow(Dataset[Any]):
    """Spends its time in the transform, and more of it for one sample."""

    def __len__(self) -> int:
        return 8

    def transform(self, index: int) -> torch.Tensor:
        """Wait."""
        time.sleep(0.02 if index == 5 else 0.004)
        return torch.zeros(2)

    def key(self, index: int) -> str:
        """Return a name."""
        return f"patient {index}"

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transform(index)


def test_a_profile_finds_where_the_time_goes_and_the_slowest_sample() -> None:
    """Waiting is no computing, and the slowest sample has its name."""
    profile = _profiled(Opened(dataset=Slow()), batch_size=4)
    spent = profile["stages"]
    assert max(spent, key=lambda name: spent[name]["wall"]) == "transform"
    assert spent["transform"]["cpu"] < spent["transform"]["wall"] / 2
    assert profile["slowest"][0]["name"] == "patient 5"


def test_a_profile_sees_a_decoder_at_work(tmp_path: Path) -> None:
    """An extension that not even the interpreter's own hooks tell of."""
    pixels = np.random.default_rng(0).integers(0, 256, (600, 800, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "large.jpg")
    spent = _profiled(Opened(dataset=Files(tmp_path)), batch_size=2)["stages"]
    assert max(spent, key=lambda name: spent[name]["wall"]) == "decode"


def test_our_own_code_is_not_billed_to_the_user() -> None:
    """Drawing the order of tiny samples costs more than they do, and is no stage of theirs."""
    tiny: Any = TensorDataset(torch.arange(10_000))
    for dataset in (tiny, list(range(100))):
        profile = _profiled(Opened(dataset=dataset), batch_size=32)
        assert not [place for place, _ in profile["other_places"] if "diagnose" in place]
        assert sum(spent["wall"] for spent in profile["stages"].values()) > 0
        assert profile["seconds"] < 0.3 + 0.1


def _profiled(opened: Opened, batch_size: int) -> dict[str, Any]:
    threads = torch.get_num_threads()
    try:
        return profile_samples(
            opened, batch_size=batch_size, seconds=0.3, say=lambda phase: None, slowest=1
        )[0]
    finally:
        torch.set_num_threads(threads)


# --- the verdict ---------------------------------------------------------------------------------


def costs(**stages: tuple[float, float]) -> tuple[StageCost, ...]:
    """Return stages by (computing, waiting) in milliseconds."""
    whole = sum(computing + waiting for computing, waiting in stages.values())
    return tuple(
        StageCost(
            name=name,
            milliseconds=computing + waiting,
            computing=computing,
            waiting=waiting,
            share=(computing + waiting) / whole,
        )
        for name, (computing, waiting) in stages.items()
    )


PHOTOS = costs(read=(0.1, 0), decode=(1.4, 0), transform=(0.3, 0), transfer=(0.2, 0), other=(0, 0))
DISK = costs(read=(0.1, 10), decode=(0.8, 0), transfer=(0.1, 0))


def verdict(stages: tuple[StageCost, ...], workers: int, cpus: int, rate: float) -> Verdict:
    """Judge a loader that has a quiet machine."""
    return judge(stages, rate=rate, workers=workers, cpus=cpus, busy=1.0, others=0.0)


def test_cpus_that_are_used_up_are_the_bound() -> None:
    """The stage that takes most of them is named, and more workers give nothing."""
    found = verdict(PHOTOS, workers=2, cpus=2, rate=1000)
    assert found.bound == "decode"
    assert "70 % of the computing is decoding" in found.text
    assert "give nothing" in found.text
    assert dict(found.expected)[4] == pytest.approx(1000)


def test_fewer_workers_than_cpus_are_the_bound() -> None:
    """So many as the CPUs carry, and what they would give."""
    found = verdict(PHOTOS, workers=1, cpus=8, rate=500)
    assert found.bound == "workers"
    assert found.enough_workers == 8
    assert dict(found.expected)[8] == pytest.approx(4000)
    assert found.advice == "num_workers=8"


def test_waiting_for_storage_is_overlapped_by_more_workers_than_cpus() -> None:
    """They wait side by side."""
    found = verdict(DISK, workers=2, cpus=2, rate=180)
    assert found.bound == "storage"
    assert found.enough_workers > 2
    assert dict(found.expected)[4] == pytest.approx(360)


def test_more_workers_than_the_cpus_carry_are_too_many() -> None:
    """Fewer would do."""
    found = verdict(PHOTOS, workers=8, cpus=2, rate=1000)
    assert found.enough_workers == 2
    assert "2 workers would do as well" in found.text


def test_samples_that_cost_nothing_but_sending_need_no_workers() -> None:
    """Then workers are slower than none."""
    found = verdict(costs(read=(0.01, 0), transfer=(0.3, 0)), workers=2, cpus=2, rate=6000)
    assert found.bound == "transfer"
    assert found.enough_workers == 0
    assert dict(found.expected)[0] > 6000


def test_threads_of_torch_that_slow_each_other_down_are_the_bound() -> None:
    """Then what workers would give follows from one thread, not from several."""
    found = judge(
        PHOTOS, rate=20, workers=0, cpus=2, busy=2.0, others=0.0, sending=0.2, one_thread_rate=500
    )
    assert found.bound == "threads"
    assert "torch.set_num_threads(1)" in found.advice
    assert dict(found.expected)[0] == 20
    assert dict(found.expected)[2] > 500


def test_other_programs_are_named() -> None:
    """What they take is not the loader's fault."""
    found = judge(PHOTOS, rate=500, workers=2, cpus=2, busy=1.0, others=0.9)
    assert "Other programs keep 0.9 CPUs busy" in found.text


@pytest.mark.parametrize("stages", [PHOTOS, DISK, costs(other=(0.005, 0), transfer=(0.03, 0))])
@pytest.mark.parametrize("others", [0.0, 0.6, 1.0, 3.0])
@pytest.mark.parametrize("workers", [0, 1, 2, 4, 9])
def test_the_words_say_what_the_table_says(
    stages: tuple[StageCost, ...], others: float, workers: int
) -> None:
    """One prediction is behind both: what is worth a change is named, and nothing else is."""
    found = judge(stages, rate=500, workers=workers, cpus=2, busy=1.0, others=others)
    rates = dict(found.expected)
    gain = rates[found.enough_workers] / rates[workers] - 1
    assert max(rates.values()) <= rates[found.enough_workers] / 0.95 + 1e-6
    assert ("give nothing" in found.text) <= (gain <= 0.05)
    assert ("do as well" in found.text) == (found.enough_workers < workers and gain <= 0.05)
    if found.enough_workers < workers and gain > 0.05:
        assert found.headline.startswith("fewer workers are faster")
        assert found.advice.startswith(f"num_workers={found.enough_workers}")


def test_no_workers_that_are_faster_are_the_advice() -> None:
    """Of samples that are ready, sending is most of the work."""
    stages = costs(other=(0.007, 0), collate=(0.001, 0), transfer=(0.035, 0))
    found = verdict(stages, workers=2, cpus=2, rate=48_000)
    assert found.enough_workers == 0
    assert found.advice.startswith("num_workers=0")
    assert "No workers at all would give some" in found.text


def test_a_loader_that_gave_nothing_is_judged_all_the_same() -> None:
    """Though nothing follows from it."""
    assert verdict(PHOTOS, workers=2, cpus=2, rate=0).bound


# --- as a whole ----------------------------------------------------------------------------------


def test_bench_tells_of_a_folder(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line prints one JSON object: the report as plain values."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    words = ["bench", str(folder), "--workers", "1", "--batch-size", "4", "--seconds", "1"]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    names = [stage["name"] for stage in told["stages"]]
    assert names == ["read", "decode", "transform", "collate", "transfer", "other"]
    assert sum(stage["share"] for stage in told["stages"]) == pytest.approx(1)
    assert told["loader"]["samples_per_second"] > 0
    assert told["slowest"][0]["key"].endswith(".jpg")
    assert told["verdict"]["bound"]


def test_no_line_of_a_report_is_wider_than_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the first one either, which names the target."""

    def run(*arguments: object, **options: object) -> Finished:
        opened = Opened(dataset=TensorDataset(torch.arange(100)))
        return Finished(results=(_profiled(opened, 4) | {"batch_size": 4}, {"error": "no " * 60}))

    def run_trial(target: Target, options: TrialOptions, **more: object) -> Trial:
        return Trial(options=options, num_workers=1, batch_size=4, samples=4, seconds=1.0)

    monkeypatch.setattr("sharedds.diagnose.bench.run_isolated", run)
    monkeypatch.setattr("sharedds.diagnose.bench.run_trial", run_trial)
    name = f"/data/{'somewhere/' * 12}scans.py:Scans"
    report = bench(Target(kind="attribute", name=name, source=name), seconds=0.5)
    assert max(map(len, str(report).splitlines())) <= 80


def test_the_stack_of_a_process_that_hangs_ends_where_ours_begins() -> None:
    """What called the user's code says nothing; a stack of ours alone is kept."""
    own = f'  File "{isolated.__file__}", line 7 in g'
    text = 'Current thread 0x1 (most recent call first):\n  File "a.py", line 1 in f\n'
    assert isolated._stack(text + own) == '  File "a.py", line 1 in f'
    assert isolated._stack(f"Current thread 0x1:\n{own}\n{own}") == f"{own}\n{own}"


def test_samples_that_do_not_stack_are_told_with_a_remedy() -> None:
    """What torch says names neither; in shared memory, not even shapes."""
    with pytest.raises(RuntimeError) as stacked:
        torch.stack([torch.zeros(2), torch.zeros(3)])
    in_worker = RuntimeError("Trying to resize storage that is not resizable")
    for error in (stacked.value, in_worker):
        text = failure(error)["error"]
        assert str(error) in text
        assert "collate_fn of its own" in text
    assert failure(RuntimeError("no disk"))["error"] == "RuntimeError: no disk"


def test_samples_that_fail_say_so_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """One message that names the cause, after the traceback of the user's code."""

    def run(*arguments: object, **options: object) -> Finished:
        return Finished(error="KeyError: 7", details="Traceback\n  in __getitem__")

    monkeypatch.setattr("sharedds.diagnose.bench.run_isolated", run)
    with pytest.raises(WorkerError, match=r"^list: KeyError: 7\n  Traceback\n    in __getitem__"):
        bench([1, 2], seconds=0.5)


@pytest.mark.parametrize(
    "options",
    [
        {"seconds": 0},
        {"batch_size": 0},
        {"num_workers": -1},
        {"patience": 0},
        {"seconds": float("nan")},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    """Before anything is started."""
    with pytest.raises(OptionError, match="is expected"):
        bench([1, 2], **options)
