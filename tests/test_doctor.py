"""The doctor: verdict, exit codes, the report as text, JSON and HTML."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from torch.utils.data import Dataset, IterableDataset

from sharedds.cli import cli, main
from sharedds.datasets import LazyDataset
from sharedds.diagnose import doctor as module
from sharedds.diagnose.doctor import _planned, doctor
from sharedds.diagnose.growth import Growth, filled, growth_of, may_grow
from sharedds.diagnose.html import as_html
from sharedds.diagnose.isolated import run_isolated
from sharedds.diagnose.report import DoctorReport, size_text
from sharedds.diagnose.target import Target
from sharedds.diagnose.trial import MemoryPoint, Trial, TrialOptions, run_trial
from sharedds.errors import MissingExtraError, OptionError, SourceError
from sharedds.host.machine import machine

MB = 1_000_000


class Kept(Dataset[int]):
    """A dataset that keeps something."""

    def __init__(self, **facts: Any) -> None:
        vars(self).update(facts)

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index: int) -> int:
        """Return the number."""
        return index


class Lengths(LazyDataset[int]):
    """A sample is the length of its path."""

    def load(self, item: str) -> int:
        """Return the length."""
        return len(item)


def paths(count: int = 50_000) -> list[str]:
    """Paths as in a large folder."""
    return [f"/data/imagenet/train/{number:08d}.JPEG" for number in range(count)]


def trial(options: TrialOptions, grown: int = 0, error: str | None = None) -> Trial:
    """Make up what a trial measured: workers that grow by so much over 10,000 samples."""
    points = tuple(
        MemoryPoint(
            samples=step * 1000,
            seconds=step,
            workers=(40 * MB + step * grown // 10, 41 * MB + step * grown // 10),
            trainer=200 * MB,
            pss=400 * MB,
            irrevocable=300 * MB,
        )
        for step in range(11)
    )
    if error is not None:
        return Trial(options=options, error=error)
    return Trial(
        options=options,
        num_workers=2,
        first_batch_seconds=1.25,
        samples=10_000,
        samples_read=10_000,
        seconds=2.0,
        points=points,
    )


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let trials come out as wanted instead of starting workers."""

    def set_up(grown: int = 0, failing: dict[str, str] | None = None) -> None:
        def run(target: Target, options: TrialOptions, **_: object) -> Trial:
            return trial(options, grown, (failing or {}).get(options.start_method or ""))

        monkeypatch.setattr(module, "run_trial", run)

    return set_up


def test_a_clean_dataset_is_safe(made_up: Callable[..., None]) -> None:
    """Nothing found, nothing grown: exit code 0, and the first word says so."""
    made_up()
    report = doctor(Lengths(paths()), num_workers=2)
    assert (report.verdict, report.exit_code) == ("safe", 0)
    assert report.text().startswith("SAFE: ")
    chosen = [each.options.start_method for each in report.trials]
    assert chosen[0] == report.start_method
    assert set(chosen) == set(report.machine.start_methods.available)
    assert [each.options.loader for each in report.trials].count("torch") == 1


def test_patience_reaches_every_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """That which looks at the dataset, and that of each trial."""
    (tmp_path / "numbers_here.py").write_text("def make(): return list(range(64))\n")
    asked: list[float] = []
    real = run_isolated

    def isolated(*arguments: Any, **options: Any) -> Any:
        asked.append(options["patience"])
        return real(*arguments, **options)

    def run(target: Target, options: TrialOptions, **_: object) -> Trial:
        asked.append(options.patience)
        return trial(options)

    monkeypatch.setattr(module, "run_isolated", isolated)
    monkeypatch.setattr(module, "run_trial", run)
    assert main(["doctor", f"{tmp_path}/numbers_here.py:make", "--patience", "7"]) == 0
    assert len(asked) > 2
    assert set(asked) == {7.0}
    asked.clear()
    doctor(f"{tmp_path}/numbers_here.py:make")
    assert set(asked) == {60.0}


def test_a_dataset_whose_making_hangs_is_given_up(tmp_path: Path) -> None:
    """As soon as patience ends once it has begun, and the text says how to give it more."""
    (tmp_path / "stuck.py").write_text("import time\n\ndef make(): time.sleep(60)\n")
    with pytest.raises(OptionError, match=r"no sign of life for 1 s.*--patience SECONDS"):
        doctor(f"{tmp_path}/stuck.py:make", patience=1.0, measure=False)
    with pytest.raises(OptionError, match="patience=0"):
        doctor(f"{tmp_path}/stuck.py:make", patience=0)


def test_what_is_found_is_a_hazard_with_its_price(made_up: Callable[..., None]) -> None:
    """Exit code 1; price, place, description and remedy are in the text, the verdict first."""
    made_up()
    dataset = Kept(meta={"rows": paths(200_000)}, rng=np.random.default_rng(0))
    report = doctor(dataset, num_workers=4)
    assert (report.verdict, report.exit_code) == ("hazards", 1)
    text = report.text()
    assert re.match(r"2 HAZARDS in Kept: with 4 workers up to \d\d\.\d MB of memory", text)
    assert report.cost_of_all == 4 * max(report.hazards[0].fork, report.hazards[0].spawn or 0)
    assert re.search(r"^  dataset\.meta\['rows'\] +\d\d\.\d MB +\d\d\.\d MB$", text, re.MULTILINE)
    assert "repeats 75%" in text
    assert "self.meta['rows'] = sharedds.PackedStrings.build(rows)" in text
    assert "Pickle: " in text


def test_the_same_remedy_is_told_once(made_up: Callable[..., None]) -> None:
    """Of three generators each has its line, and one has the code."""
    made_up()
    generators = [np.random.default_rng(seed) for seed in range(3)]
    text = doctor(Kept(generators=generators), num_workers=2).text()
    assert text.count("sharedds.build_loader") == 1
    assert "3. dataset.generators[2]: as 1\n" in f"{text}\n"


def test_growth_that_copying_does_not_explain_is_a_hazard(made_up: Callable[..., None]) -> None:
    """A cache that fills is seen in the measurement, and its likely place is told."""
    made_up(grown=60 * MB)
    report = doctor(Kept(cache={}), num_workers=2)
    assert [(hazard.kind, hazard.path) for hazard in report.hazards] == [
        ("growth", "dataset.cache")
    ]
    made_up(grown=2 * MB)
    assert doctor(Kept(cache={}), num_workers=2).verdict == "safe"


def test_warming_up_is_no_growth() -> None:
    """A worker that comes to rest has no cache, however much it grew before."""
    options = TrialOptions(samples=1)
    even, early = trial(options, 60 * MB), trial(options, 0)
    assert growth_of(even, None) == Growth(nbytes=60 * MB, samples=5_000, per_1000=12 * MB)
    rest = [replace(point, workers=(99 * MB, 99 * MB)) for point in early.points[3:]]
    warm = replace(early, points=early.points[:3] + tuple(rest))
    assert may_grow(warm)
    assert growth_of(warm, None) is None


def test_only_the_first_pass_tells_of_a_cache() -> None:
    """Once every sample is kept, nothing more is: a small dataset grows in the beginning alone."""
    grown = trial(TrialOptions(samples=1), 60 * MB)
    full = [replace(point, workers=grown.points[6].workers) for point in grown.points[7:]]
    cached = replace(grown, points=grown.points[:7] + tuple(full) + tuple(full))
    assert growth_of(cached, 6_000) is None  # one pass and a half: it may be at rest
    assert growth_of(replace(cached, samples_read=20_000), 6_000) is not None


@pytest.mark.parametrize(
    ("held", "is_cache"),
    [((364, 394, 399, 398), False), ((300, 310, 334, 334), True)],
    ids=["warming up", "a cache"],
)
def test_a_cache_grows_beyond_its_first_half(held: tuple[int, ...], *, is_cache: bool) -> None:
    """Of 40 samples each of two workers has read 16 at the second look."""
    shape = trial(TrialOptions(samples=10))
    points = tuple(
        replace(shape.points[0], samples=samples, workers=(mb * MB, mb * MB))
        for samples, mb in zip((8, 32, 184, 576), held, strict=True)
    )
    growth = filled(replace(shape, samples_read=576, points=points), 40)
    assert (growth is not None) == is_cache


def test_where_no_worker_can_load_the_doctor_could_not_run(made_up: Callable[..., None]) -> None:
    """Exit code 2, and the reason, once."""
    reason = "ValueError: no such file"
    made_up(failing=dict.fromkeys(("fork", "forkserver", "spawn"), reason))
    report = doctor(Kept(), num_workers=2)
    assert (report.verdict, report.exit_code) == ("failed", 2)
    assert report.text().count(reason) == 1
    assert report.text().startswith("FAILED: ")


def test_an_empty_dataset_is_told_before_any_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trial would fail for the same reason; what it holds can be looked at all the same."""

    class Empty(Kept):
        def __len__(self) -> int:
            return 0

    monkeypatch.setattr(module, "run_trial", lambda *_, **__: pytest.fail("a trial was run"))
    with pytest.raises(OptionError, match="empty: there is nothing to load"):
        doctor(Empty())
    assert len(doctor(Empty(rows=paths()), measure=False).hazards) == 1


def test_a_dataset_that_cannot_be_sent_is_a_hazard(made_up: Callable[..., None]) -> None:
    """An open file works in a forked worker only, and there it breaks."""
    made_up(failing={"forkserver": "cannot be sent", "spawn": "cannot be sent"})
    with open(__file__, "rb") as file:
        report = doctor(Kept(file=file), num_workers=2)
    assert report.exit_code == 1
    assert "cannot start" in report.text()
    assert "it cannot be sent to workers of spawn or forkserver" in report.text().split("\n\n")[0]


@pytest.mark.parametrize("method", ["fork", "spawn", None])
def test_a_way_to_start_that_fails_is_a_hazard(
    made_up: Callable[..., None], method: str | None
) -> None:
    """Whichever it is; the reason is the last line of the worker's traceback."""
    chosen = doctor(Kept(), measure=False).start_method
    error = (
        "Caught WorkerError in DataLoader worker process 0.\nOriginal Traceback (most recent call "
        'last):\n  File "x.py", line 1, in f\n    f()\nsharedds.errors.WorkerError: worker 0 could '
        "not rebuild the dataset"
    )
    made_up(failing={method or chosen: error})
    report = doctor(Kept(), num_workers=2)
    assert (report.verdict, report.exit_code) == ("hazards", 1)
    (hazard,) = report.hazards
    assert (hazard.kind, hazard.breaks) == ("start", method == "fork")
    assert f"sharedds by {method or chosen}" in hazard.what
    assert "WorkerError: worker 0 could not rebuild the dataset" in " ".join(report.text().split())
    assert (f"workers by {chosen} fail" in report.text().split("\n\n")[0]) == (method is None)


def test_a_leak_that_ends_in_a_failure_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured for longer, the worker runs out of memory: both are in the hazard."""

    def run(target: Target, options: TrialOptions, **_: object) -> Trial:
        is_long = (options.seconds or 0) > 10
        return trial(options, 60 * MB, "the process was ended by SIGKILL" if is_long else None)

    monkeypatch.setattr(module, "run_trial", run)
    (hazard,) = doctor(Kept(cache={}), num_workers=2).hazards
    assert (hazard.kind, hazard.fork) == ("growth", 60 * MB)
    assert "SIGKILL" in hazard.what


def test_a_cache_of_a_small_dataset_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is full before there are points enough to see how it grows."""

    class Few(Kept):
        def __len__(self) -> int:
            return 300

    def run(target: Target, options: TrialOptions, **_: object) -> Trial:
        grown = trial(options, 60 * MB)
        full = [replace(point, workers=grown.points[9].workers) for point in grown.points[1:]]
        return replace(grown, points=grown.points[:1] + tuple(full))

    monkeypatch.setattr(module, "run_trial", run)
    (hazard,) = doctor(Few(cache={}), num_workers=2).hazards
    assert (hazard.kind, hazard.path) == ("growth", "dataset.cache")
    report = doctor(Few(), num_workers=2)
    assert report.verdict == "safe"  # nowhere to keep it
    assert "At the end a worker held 94.5 MB" in report.text()


def test_real_workers_that_fail_are_no_safe_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the chosen way cannot load a sample; the other trials are made up, and go well."""

    class Fails(Dataset[int]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            raise ValueError("not in a worker")

    def run(target: Target, options: TrialOptions, **_: object) -> Trial:
        is_real = (options.loader, options.start_method) == ("sharedds", "fork")
        return run_trial(target, options) if is_real else trial(options)

    monkeypatch.setattr(module, "run_trial", run)
    report = doctor(Fails(), num_workers=1, samples=16, start_method="fork")
    assert report.verdict == "hazards"
    assert [hazard.kind for hazard in report.hazards] == ["start"]
    assert "not in a worker" in report.hazards[0].what
    assert "workers by fork fail" in " ".join(report.text().split())


def test_what_no_trial_can_be_sent_says_nothing_of_forked_workers() -> None:
    """An object with a lock is not measured; that is no failure of workers by fork."""
    report = doctor(Kept(lock=threading.Lock()), num_workers=1, samples=8)
    assert [hazard.kind for hazard in report.hazards] == ["lock"]
    assert report.verdict == "hazards"


class Stream(IterableDataset[int]):
    """Samples in a row."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(100))


def test_what_is_read_in_a_row_is_measured_by_torch(made_up: Callable[..., None]) -> None:
    """build_loader does not take it, which is no failure."""
    made_up()
    report = doctor(Stream(), num_workers=2)
    assert report.verdict == "safe"
    assert {each.options.loader for each in report.trials} == {"torch"}
    methods = [each.options.start_method for each in report.trials]
    assert sorted(map(str, methods)) == sorted(report.machine.start_methods.available)
    assert "map-style" in report.text()


def test_the_objects_of_the_caller_stay_as_they_are() -> None:
    """A function that makes a dataset is called elsewhere; a transform is set on a copy."""
    called = []

    def make() -> Any:
        called.append(1)
        return torch.utils.data.TensorDataset(torch.zeros(9))

    report = doctor(make, measure=False)
    assert (report.kind, report.samples, called) == ("TensorDataset", 9, [])
    dataset = Kept(transform=None)
    assert doctor(dataset, transform="operator:neg", measure=False).verdict == "safe"
    assert vars(dataset) == {"transform": None}


class Drops(Kept):
    """A dataset whose workers make a lock of their own."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


def test_what_is_left_out_of_the_pickle_can_be_sent() -> None:
    """Nothing says that a dataset cannot be sent which can."""
    report = doctor(Drops(lock=threading.Lock()), measure=False)
    assert report.verdict == "safe"
    assert "cannot be sent" not in report.text()
    assert [note.kind for note in report.notes] == ["lock"]


class Refuses(Kept):
    """A dataset that does not want to be pickled."""

    def __reduce__(self) -> Any:
        raise RuntimeError("not me")


def test_what_refuses_to_be_pickled_is_a_hazard_too() -> None:
    """Its objects do not show it, its pickle does."""
    report = doctor(Refuses(), measure=False)
    assert [hazard.kind for hazard in report.hazards] == ["pickle"]
    assert "not me" in report.hazards[0].what


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_too_wide(made_up: Callable[..., None], width: int) -> None:
    """All of the report, code too, stays within the width."""
    made_up(grown=60 * MB)
    dataset = Kept(
        **{f"rows_of_part_{i}": {"images": paths(20_000)} for i in range(3)},
        outer=Kept(inner=Kept(targets_of_all=list(range(1000, 90_000)))),
        rng=np.random.default_rng(0),
        many=[{"path": path} for path in paths(5_000)],
        boxes=[[1.5, 2.5] for _ in range(20_000)],
        volume=np.zeros(400_000),
        volumes=[np.zeros(1000) for _ in range(400)],
        images=[np.zeros((64, 64, 3), np.uint8) for _ in range(400)],
        lock=threading.Lock(),
        iterator=iter([1]),
        transform=lambda image: image,
    )
    lines = doctor(dataset, num_workers=2).text(width).splitlines()
    assert max(map(len, lines)) <= width, max(lines, key=len)
    assert any(len(line) > width - 20 for line in lines)


def test_the_report_is_plain_values(made_up: Callable[..., None]) -> None:
    """It goes through JSON and back unchanged."""
    made_up()
    plain = doctor(Kept(rows=paths()), num_workers=2).to_dict()
    assert json.loads(json.dumps(plain))["hazards"][0]["path"] == "dataset.rows"
    assert plain["trials"][0]["worker_uss_first"] == 40_500_000
    assert plain["pickle"]["largest"] == "dataset.rows"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_workers": 0}, "num_workers=0"),
        ({"batch_size": -1}, "batch_size=-1"),
        ({"samples": True}, "samples=True"),
        ({"start_method": "thread"}, "start_method='thread'"),
    ],
)
def test_a_bad_option_is_refused(options: dict[str, Any], words: str) -> None:
    """Before anything is done, by its name and value."""
    with pytest.raises(OptionError, match=words):
        doctor(Kept(), **options)


def test_a_missing_target_is_told() -> None:
    """A misspelt path or attribute is no traceback."""
    with pytest.raises(SourceError, match="nothing is there"):
        doctor("no/such/folder")


def test_sizes_are_short() -> None:
    """Powers of 1000, one digit."""
    sizes = [0, 12, 1500, 2_340_000, 999_999_999, 12_345_678_901]
    assert list(map(size_text, sizes)) == [
        *("0", "12 bytes", "1.5 kB", "2.3 MB", "1,000.0 MB", "12.3 GB"),
    ]


# --- HTML ----------------------------------------------------------------------------------------


def report_of(made_up: Callable[..., None]) -> DoctorReport:
    """A report with hazards and trials."""
    made_up(grown=60 * MB)
    return doctor(Kept(rows=paths(), cache={}), num_workers=2)


def test_without_matplotlib_the_page_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, made_up: Callable[..., None]
) -> None:
    """It names the command that installs it."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'sharedds\[plots\]'"):
        as_html(report_of(made_up))


def test_the_page_holds_everything_and_needs_nothing(made_up: Callable[..., None]) -> None:
    """Verdict, prices, a line for each worker of each trial, and no address of anything else."""
    report = report_of(made_up)
    page = as_html(report)
    assert page == as_html(report)
    assert page.count("<svg") == 1
    assert page.count("worker 1<") == len(report.trials)
    assert "dataset.rows" in page
    outside = re.findall(
        r"""(?:src|href)=["'](?!#)""", re.sub(r"<metadata>.*?</metadata>", "", page)
    )
    assert not outside
    assert "<script" not in page


# --- the command line ----------------------------------------------------------------------------

PROGRAM = """
import os, sys
from torch.utils.data import Dataset

class Rows(Dataset):
    def __init__(self):
        self.rows = [f"/data/imagenet/train/{i:08d}.JPEG" for i in range(50_000)]
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, index):
        return len(self.rows[index])

def deadly():
    os.kill(os.getpid(), 11)
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script with datasets."""
    path = tmp_path_factory.mktemp("program") / "rows.py"
    path.write_text(PROGRAM)
    return path


def run(*words: str) -> Result:
    """Run ``sharedds doctor``."""
    return CliRunner().invoke(cli, ["doctor", *words], standalone_mode=False)


def test_the_command_tells_and_returns_the_verdict(program: Path) -> None:
    """The dataset is made in another process; JSON is one object, the exit code is 1."""
    done = run(f"{program}:Rows", "--no-measure", "--json")
    assert done.return_value == 1, done.output
    found = json.loads(done.stdout)
    assert found["verdict"] == "hazards"
    assert found["kind"] == "Rows"
    assert found["samples"] == 50_000
    assert found["hazards"][0]["path"] == "dataset.rows"


def test_what_cannot_be_made_is_exit_code_2(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A crash of the user's code takes nothing with it, and is one message."""
    done = run(f"{program}:deadly", "--no-measure")
    assert done.return_value == 2
    assert "SIGSEGV" in done.output + capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_told_at_once(
    program: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before anything is measured."""
    monkeypatch.setattr("sharedds.diagnose.html.require_plots", lambda: None)
    done = run(f"{program}:Rows", "--html", str(tmp_path / "no" / "page.html"))
    assert done.return_value == 2
    assert "cannot be written" in done.output + capsys.readouterr().err


def test_an_old_page_stays_until_there_is_a_new_one(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written beside and put in place at the end; nothing is left of one that failed."""
    report = doctor(Kept(), measure=False)
    monkeypatch.setattr("sharedds.diagnose.html.require_plots", lambda: None)
    page = tmp_path / "page.html"
    page.write_text("old")

    def fails(*_: object, **__: object) -> NoReturn:
        assert page.read_text() == "old"
        raise MemoryError("too much")

    monkeypatch.setattr(module, "doctor", fails)
    assert run(f"{program}:Rows", "--html", str(page)).return_value == 2
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]
    assert page.read_text() == "old"
    monkeypatch.setattr(module, "doctor", lambda *_, **__: report)
    monkeypatch.setattr("sharedds.diagnose.html.as_html", lambda _: "new")
    assert run(f"{program}:Rows", "--html", str(page)).return_value == 0
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]
    assert page.read_text() == "new"


def test_a_report_that_cannot_be_printed_is_no_verdict(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk has exit code 2, not that of hazards."""
    report = doctor(Kept(), measure=False)

    def fails(_: str) -> NoReturn:
        raise click.ClickException("no space left")

    monkeypatch.setattr(module, "doctor", lambda *_, **__: report)
    monkeypatch.setattr("sharedds.cli.diagnose.echo", fails)
    assert run(f"{program}:Rows").return_value == 2


def test_workers_are_measured_without_memory_kept_for_batches() -> None:
    """With few batches in advance: a worker then holds what the dataset keeps."""
    trials = _planned(machine(), "fork", 2, None)
    assert all(options.new_memory for options in trials)
    assert {options.prefetch_factor for options in trials} == {2}
    assert _planned(machine(), "fork", 0, None)[0].prefetch_factor is None
