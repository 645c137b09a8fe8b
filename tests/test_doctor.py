"""The doctor: verdict, exit codes, the report as text, JSON and HTML."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from torch.utils.data import Dataset

from sharedds.cli import cli
from sharedds.datasets import LazyDataset
from sharedds.diagnose import doctor as module
from sharedds.diagnose.doctor import doctor
from sharedds.diagnose.growth import Growth, growth_of, may_grow
from sharedds.diagnose.html import as_html, require_plots
from sharedds.diagnose.report import DoctorReport, size_text
from sharedds.diagnose.target import Target
from sharedds.diagnose.trial import MemoryPoint, Trial, TrialOptions
from sharedds.errors import MissingExtraError, OptionError, SourceError

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


def test_where_no_worker_can_load_the_doctor_could_not_run(made_up: Callable[..., None]) -> None:
    """Exit code 2, and the reason, once."""
    reason = "ValueError: no such file"
    made_up(failing=dict.fromkeys(("fork", "forkserver", "spawn"), reason))
    report = doctor(Kept(), num_workers=2)
    assert (report.verdict, report.exit_code) == ("failed", 2)
    assert report.text().count(reason) == 1
    assert report.text().startswith("FAILED: ")


def test_a_dataset_that_cannot_be_sent_is_a_hazard(made_up: Callable[..., None]) -> None:
    """An open file works in a forked worker only, and there it breaks."""
    made_up(failing={"forkserver": "cannot be sent", "spawn": "cannot be sent"})
    with open(__file__, "rb") as file:
        report = doctor(Kept(file=file), num_workers=2)
    assert report.exit_code == 1
    assert "cannot start" in report.text()
    assert "it cannot be sent to workers of spawn or forkserver" in report.text().split("\n\n")[0]


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
    try:
        require_plots()
    except MissingExtraError:
        pytest.skip("matplotlib is not installed")
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
