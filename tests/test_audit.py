"""What a dataset holds: found, named, and priced as real workers then pay."""

from __future__ import annotations

import concurrent.futures
import functools
import importlib
import logging
import multiprocessing
import random
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import lmdb
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset, get_worker_info

from sharedds.datasets import ImageDataset, LazyDataset, MemmapDataset
from sharedds.diagnose.audit import Audit, audit
from sharedds.diagnose.examine import examine, examined
from sharedds.diagnose.fixes import fix_of
from sharedds.diagnose.hazards import Hazard
from sharedds.diagnose.pickles import PIPE, pickle_size
from sharedds.diagnose.prices import Pricer
from sharedds.diagnose.target import Opened
from sharedds.loader import build_loader
from sharedds.memory import process_memory

MB = 1_000_000

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


class Holds(Dataset[int]):
    """A dataset that holds something."""

    def __init__(self, **facts: Any) -> None:
        vars(self).update(facts)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        """Return the number."""
        return index


class Lengths(LazyDataset[int]):
    """A sample is the length of its path."""

    def load(self, item: str) -> int:
        """Return the length."""
        return len(item)


def path(number: int) -> str:
    """Return a path as in a large folder of classes."""
    return f"/data/imagenet/train/n{number // 1000:08d}/n{number // 1000:08d}_{number:08d}.JPEG"


def only(found: Audit) -> Hazard:
    """Return the hazard, of which there is one."""
    assert len(found.hazards) == 1, found.hazards
    return found.hazards[0]


# --- the price, against real workers -------------------------------------------------------------


def paths() -> list[str]:
    """About 40 MB of strings."""
    return [path(number) for number in range(320_000)]


def dicts() -> list[dict[str, Any]]:
    """About 40 MB of records, as of a JSON file."""
    return [
        {"path": path(number), "label": number, "weight": number * 0.1, "box": [1, 2, number, 4]}
        for number in range(60_000)
    ]


def arrays() -> dict[str, Any]:
    """About 40 MB of arrays by name."""
    return {f"case {i}": np.full((100, 100), i, np.float32) for i in range(1000)}


def images() -> list[Image.Image]:
    """About 40 MB of decoded pictures."""
    return [Image.fromarray(np.full((224, 224, 3), i, np.uint8)) for i in range(200)]


def table() -> Any:
    """About 40 MB of rows with text in them."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    names = pandas.Series([path(number) for number in range(250_000)], dtype=object)
    return pandas.DataFrame({"path": names, "label": np.arange(len(names))})


def environment(folder: Path) -> lmdb.Environment:
    """An open LMDB environment."""
    return lmdb.open(str(folder / "x.lmdb"), subdir=False)


def read(part: Any) -> None:
    """Refer to everything in some data, as code that uses it does."""
    if isinstance(part, list | tuple):
        for item in part:
            read(item)
    elif isinstance(part, dict):
        for key, value in part.items():
            read(key)
            read(value)
    elif type(part).__name__ == "DataFrame":
        for row in part.itertuples(index=False):
            read(tuple(row))


def own() -> int:
    """Private memory of this process."""
    return process_memory().uss or 0


class Read(Dataset[int]):
    """Sample i is what reading the i-th kind of data costs the process that does so."""

    def __init__(self, kinds: list[Any]) -> None:
        self.kinds = kinds

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, index: int) -> int:
        """Read it all."""
        before = own()
        read(self.kinds[index])
        return own() - before


class Delivered(Dataset[int]):
    """Each worker is sent another kind of data; sample i is the memory of the i-th worker."""

    def __init__(self, kinds: list[Any]) -> None:
        self.kinds = kinds
        self.sent = 0

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, index: int) -> int:
        """Measure this worker."""
        worker = get_worker_info()
        assert worker is not None
        assert worker.id == index
        return own()

    def __reduce__(self) -> tuple[Any, ...]:
        kind = self.kinds[self.sent % len(self.kinds)]
        self.sent += 1
        return _one_kind, (kind, len(self.kinds))


def _one_kind(kind: Any, count: int) -> Delivered:
    dataset = Delivered([None] * count)
    dataset.kinds[0] = kind
    return dataset


def delivered(kinds: list[Any], method: str) -> list[int]:
    """Return what a worker that was sent each kind of data has more than one that was sent none."""
    dataset = Delivered([None, *kinds])
    options: dict[str, Any] = {"batch_size": None, "num_workers": len(dataset)}
    loader: Any
    if method == "spawn":
        loader = DataLoader(dataset, multiprocessing_context="spawn", prefetch_factor=1, **options)
    else:
        loader = build_loader(dataset, start_method=method, prefetch_factor=1, **options)
    nothing, *measured = map(int, loader)
    return [each - nothing for each in measured]


@pytest.fixture(scope="module")
def kinds() -> list[Any]:
    """Data of the kinds that people keep in datasets."""
    return [paths(), dicts(), arrays(), images()]


def prices(kinds: list[Any]) -> list[Hazard]:
    """Return the hazard of each kind, each in a dataset of its own."""
    found = [only(audit(Holds(data=each))) for each in kinds]
    assert all(hazard.path == "dataset.data" for hazard in found)
    return found


def assert_close(price: int | None, measured: int, what: str) -> None:
    """The price is within 30 % of what was measured, or both are next to nothing."""
    assert price is not None
    assert abs(price - measured) <= max(0.3 * measured, 2 * MB), (what, price / MB, measured / MB)


@pytest.mark.memory
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_worker_pays_the_price_as_it_reads(kinds: list[Any], tmp_path: Path) -> None:
    """Strings and dicts are copied page by page; what arrays and pictures hold is not."""
    kinds = [*kinds, np.zeros(5_000_000), environment(tmp_path)]
    loader = DataLoader(
        Read(kinds), batch_size=None, num_workers=len(kinds), multiprocessing_context="fork"
    )
    measured = list(map(int, loader))
    assert min(measured[0], measured[1]) > 20 * MB
    for hazard, cost in zip(prices(kinds), measured, strict=True):
        assert_close(hazard.fork, cost, hazard.what)


@pytest.mark.memory
def test_a_worker_of_the_fork_server_pays_the_price_of_a_copy(kinds: list[Any]) -> None:
    """A copy is more than the objects: what unpickling needed in between is not given back."""
    kinds = [*kinds, np.zeros(5_000_000)]
    measured = delivered(kinds, "forkserver")
    assert min(measured) > 20 * MB
    for hazard, cost in zip(prices(kinds), measured, strict=True):
        assert_close(hazard.spawn, cost, hazard.what)


@pytest.mark.memory
def test_a_spawned_worker_pays_the_price_of_a_copy() -> None:
    """So does a worker of a plain DataLoader that starts from nothing."""
    kinds = [dicts()]
    (measured,) = delivered(kinds, "spawn")
    assert_close(prices(kinds)[0].spawn, measured, "dicts")


@pytest.mark.memory
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_table_of_objects_costs_what_is_told() -> None:
    """A DataFrame with a column of strings: all of them are touched when its rows are."""
    kinds = [table()]
    hazard = only(audit(Holds(data=kinds[0])))
    assert hazard.kind == "table"
    assert "pandas DataFrame of 250,000 rows" in hazard.what
    loader = DataLoader(Read(kinds), batch_size=None, num_workers=1, multiprocessing_context="fork")
    (measured,) = map(int, loader)
    assert_close(hazard.fork, measured, "table, forked")
    small = table().head(10).copy()
    tiny, large = delivered([small, kinds[0]], "forkserver")  # both have imported pandas
    assert_close(hazard.spawn, large - tiny, "table, sent")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_workers_draw_the_same_numbers_as_often_as_is_told() -> None:
    """Of two workers of a plain DataLoader, one repeats the other; sharedds seeds for each."""
    dataset = Draws()
    hazard = only(audit(dataset))
    assert (hazard.kind, hazard.path) == ("random", "dataset.rng")
    plain = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
    drawn = list(map(float, plain))
    assert 1 - len(set(drawn)) / len(drawn) == hazard.repeated_share(2) == 0.5
    ours = build_loader(Draws(), batch_size=None, num_workers=2, start_method="fork")
    assert len(set(map(float, ours))) == len(dataset)


class Draws(Holds):
    """A sample is a random number, of a generator made once."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        """Draw."""
        return self.rng.random()


@pytest.mark.filterwarnings("ignore:Got pickle error:UserWarning")
def test_an_open_environment_cannot_be_sent(tmp_path: Path) -> None:
    """The price says so, and a plain DataLoader then fails."""
    dataset = Holds(db=environment(tmp_path))
    hazard = only(audit(dataset))
    assert (hazard.kind, hazard.path, hazard.spawn) == ("handle", "dataset.db", None)
    assert "lmdb.open(self.path" in hazard.fix
    with pytest.raises(TypeError, match="pickle"):
        iter(DataLoader(dataset, num_workers=1, multiprocessing_context="spawn"))


# --- what is found -------------------------------------------------------------------------------


def test_a_clean_dataset_has_no_hazards(tmp_path: Path) -> None:
    """What this package keeps for a dataset costs its workers nothing, also once it was used."""
    np.save(tmp_path / "rows.npy", np.zeros((10_000, 300), np.float32))
    (tmp_path / "cat").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "cat" / "0.png")
    made: list[Dataset[Any]] = [
        Lengths(map(path, range(50_000))),
        MemmapDataset(tmp_path / "rows.npy"),
        ImageDataset(tmp_path),
    ]
    made.append(Lengths(map(path, range(50_000))).subset(range(0, 50_000, 3)))
    for dataset in made:
        _ = dataset[0]
        assert audit(dataset) == Audit(parts=audit(dataset).parts), dataset
        assert pickle_size(dataset).nbytes < PIPE


def test_a_path_says_where_it_is() -> None:
    """Through attributes, small containers, partials, closures and wrappers of torch."""
    rows = list(map(path, range(30_000)))

    def crop(image: object) -> int:
        return len(rows)

    nested = Holds(meta={"rows": rows, 3: (1, [rows])})
    assert only(audit(nested)).path == "dataset.meta['rows']"
    assert only(audit(Holds(pipeline=[functools.partial(print, rows)]))).path == (
        "dataset.pipeline[0].args[0]"
    )
    assert only(audit(Holds(transform=crop))).path == "dataset.transform -> variable 'rows'"
    assert only(audit(Subset(nested, list(range(3))))).path == "dataset.dataset.meta['rows']"
    assert only(audit(Holds(), collate_fn=crop)).path == "collate_fn -> variable 'rows'"


class InClass(Holds):
    """A dataset whose class holds the data."""

    names = tuple(map(path, range(20_000)))


def test_what_a_class_or_a_global_holds_is_found() -> None:
    """Forked workers pay for it as for any other object."""
    assert only(audit(InClass())).path == "InClass.names"


def test_what_is_shared_is_paid_for_once() -> None:
    """Two names for one list, and two lists of the same strings, cost as much as one."""
    rows = list(map(path, range(40_000)))
    once = only(audit(Holds(rows=rows)))
    twice = audit(Holds(rows=rows, again=rows, reverse=rows[::-1]))
    assert [hazard.path for hazard in twice.hazards] == ["dataset.rows"]
    assert twice.hazards[0].fork == once.fork
    same = Holds(rows=[path(1)] * 500_000)
    assert only(audit(same)).fork < 10_000
    numbers = only(audit(Holds(rows=[1_000_000] * 500_000)))
    assert numbers.fork < 10_000 < 16 * MB < (numbers.spawn or 0)  # each mention, a new number


@pytest.mark.parametrize("is_shuffled", [False, True])
def test_a_sample_tells_of_the_whole(*, is_shuffled: bool) -> None:
    """Of a million items some thousands are looked at, and the estimate is within 15 %."""
    rows = [(str(number), 1000 + number // 100) for number in range(200_000)]
    if is_shuffled:
        random.Random(0).shuffle(rows)
    price = Pricer().price(rows)
    assert price.sampled
    tuples = 64 * len(rows) + 64 * len(rows)  # a tuple; its string
    assert abs(price.fork - tuples - 32 * len(rows)) < 0.15 * price.fork
    assert abs(price.spawn - tuples - 40 * len(rows)) < 0.15 * price.spawn


class Trap:
    """An object that no code may run of."""

    __slots__ = ("data", "empty")
    data: list[str]

    def __getattr__(self, name: str) -> NoReturn:
        raise AssertionError(name)

    def __len__(self) -> NoReturn:
        raise AssertionError

    def __iter__(self) -> Iterator[NoReturn]:
        raise AssertionError

    def __bool__(self) -> NoReturn:
        raise AssertionError

    def __eq__(self, other: object) -> NoReturn:
        raise AssertionError

    __hash__ = None  # type: ignore[assignment]

    @property
    def costly(self) -> NoReturn:
        """Raise."""
        raise AssertionError


class TrapList(list[Any]):
    """A list that no code may run of."""

    def __len__(self) -> NoReturn:
        raise AssertionError

    def __iter__(self) -> NoReturn:
        raise AssertionError

    def __getitem__(self, index: object) -> NoReturn:
        raise AssertionError


def test_no_code_of_the_objects_runs() -> None:
    """Properties, methods, lengths and comparisons of the user stay untouched; slots are seen."""
    trap = Trap()
    trap.data = list(map(path, range(20_000)))
    items = TrapList([Trap(), 1])
    items.extend(path(number) for number in range(20_000))
    found = audit(Holds(trap=trap, items=items, many=[Trap()] * 100))
    assert {hazard.path for hazard in found.hazards} == {"dataset.trap.data", "dataset.items"}


class Reluctant(type):
    """A class that does not let itself be compared, and has no hash."""

    def __eq__(cls, other: object) -> NoReturn:
        raise AssertionError

    __hash__ = None  # type: ignore[assignment]


class Unasked(metaclass=Reluctant):
    """An object that does not say what it is."""

    @property
    def __class__(self) -> NoReturn:
        raise AssertionError

    @__class__.setter
    def __class__(self, kind: type) -> NoReturn:
        raise AssertionError


def test_classes_are_neither_asked_nor_compared() -> None:
    """What an object says of its class, and what its class makes of comparing, is not needed."""
    held = {"one": Unasked(), "array": np.array([Unasked()] * 50, object)}
    found = audit(
        Holds(**held, many=[Unasked() for _ in range(5_000)], rows=[*map(path, range(20_000))])
    )
    assert "dataset.rows" in {hazard.path for hazard in found.hazards}
    assert found.is_whole


class Slotted:
    """What it holds is in slots."""

    __slots__ = ("few", "lock")
    few: list[Any]
    lock: Any

    def __len__(self) -> int:
        return 8


def test_what_is_in_slots_is_paid_for_and_named() -> None:
    """A tree of small containers, and the part that does not pickle."""
    dataset = Slotted()
    dataset.few = [[[f"{i * j * k} x" for i in range(30)] for j in range(30)] for k in range(30)]
    assert only(audit(dataset)).path == "dataset.few"
    dataset.lock = threading.Lock()
    error = pickle_size(dataset).error
    assert error is not None
    assert error.startswith("dataset.lock: TypeError")


def test_what_many_objects_hold_is_looked_into() -> None:
    """A generator in each of forty objects is found as it is in each of three, and told once."""
    many = [Holds(inner=Holds(rng=np.random.default_rng(i))) for i in range(40)]
    hazard = only(audit(Holds(augmentations=many)))
    assert (hazard.kind, hazard.path) == ("random", "dataset.augmentations[...].inner.rng")
    with open(__file__, encoding="utf-8") as file:
        assert only(audit(Holds(files=[{"file": file}] * 40))).kind == "handle"


logger = logging.getLogger(__name__)


class Logs(Holds):
    """A dataset that tells what it does."""

    def __getitem__(self, index: int) -> int:
        """Tell, and return the number."""
        logger.info("sample %d", index)
        return index


def test_what_is_made_for_several_processes_is_no_hazard() -> None:
    """Loggers go by their names; shared arrays are sent to workers as they start."""
    logger.addHandler(handler := logging.StreamHandler())
    try:
        shared = multiprocessing.get_context("spawn").Array("b", 2_000_000)
        dataset = Logs(log=logger, raw=multiprocessing.RawArray("b", 2_000_000), shared=shared)
        assert not audit(dataset).hazards
        size = pickle_size(dataset)
        assert size.error is size.plain_error is None
        assert size.nbytes < 10_000
    finally:
        logger.removeHandler(handler)


def test_a_tensor_on_a_device_breaks_in_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no memory of this machine, and no forked worker can use it."""
    assert not audit(Holds(weights=torch.zeros(3))).hazards
    monkeypatch.setattr("sharedds.diagnose.signs.device_kind", lambda _: "cuda")
    hazard = only(audit(Holds(weights=torch.zeros(3))))
    assert (hazard.kind, hazard.breaks, hazard.spawn) == ("device", True, 0)
    assert "a tensor on cuda" in hazard.what
    assert "batch.to(device" in hazard.fix


def test_the_remedy_fits_the_object() -> None:
    """Of a dict, keys and values are kept; an executor is not replaced by a lock."""
    assert (
        "list(items.items())" in only(audit(Holds(paths={path(i): i for i in range(20_000)}))).fix
    )
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        assert "ThreadPoolExecutor(" in only(audit(Holds(executor=executor))).fix


def test_a_cycle_ends() -> None:
    """A dataset that refers to itself is walked once."""
    own: list[Any] = []
    dataset = Holds(own=own, again=own)
    own += [dataset, own]
    assert audit(dataset).is_whole


def test_a_tree_of_many_small_objects_is_found() -> None:
    """No container of it is large, all of it is."""

    def tree(depth: int) -> list[Any]:
        return [tree(depth - 1) if depth else str(depth * i) + "x" for i in range(12)]

    hazard = only(audit(Holds(tree=tree(3))))
    assert (hazard.kind, hazard.path) == ("objects", "dataset.tree")


class Cached(Holds):
    """A dataset with a cache without a limit."""

    @functools.cache  # noqa: B019 - the very thing that is looked for
    def volume(self, index: int) -> int:
        """Return the number."""
        return index


def imitation(module: str, name: str) -> object:
    """Make an object whose class says that it comes from a library."""
    return type(name, (), {"__module__": module})()


def arrow(name: str, nbytes: int) -> object:
    """Make an object that says of itself to be Arrow's, and to refer to so many bytes."""
    return type(name, (), {"__module__": "pyarrow.lib", "nbytes": nbytes})()


@pytest.mark.parametrize("batches", [1, 50])
def test_a_table_in_memory_is_priced_once(batches: int) -> None:
    """Its batches are the same memory, and a copy of it makes them anew."""
    table: Any = imitation("datasets.table", "InMemoryTable")
    table.table = arrow("Table", 9 * MB)
    table._batches = [arrow("RecordBatch", 9 * MB // batches) for _ in range(batches)]
    hazard = only(audit(Holds(_data=table)))
    assert (hazard.kind, hazard.path) == ("table", "dataset._data.table")
    assert 9 * MB <= hazard.most <= 9.5 * MB
    assert Pricer().price(table).spawn == pytest.approx(9 * MB, rel=0.05)


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: open(__file__, "rb"), "handle", "an open file"),  # noqa: SIM115
        (lambda: sqlite3.connect(":memory:"), "handle", "SQLite"),
        (lambda: imitation("h5py._hl.files", "File"), "handle", "HDF5"),
        (lambda: imitation("zarr.core.array", "Array"), None, ""),
        (lambda: imitation("fsspec.asyn", "AsyncFileSystem"), "handle", "remote file system"),
        (lambda: imitation("tifffile.tifffile", "TiffFile"), "handle", "TIFF"),
        (lambda: [imitation("h5py._hl.files", "File")] * 40, "handle", "HDF5"),
        (threading.Lock, "lock", "lock"),
        (lambda: (i for i in range(3)), "iterator", "generator"),
        (lambda: random.Random(0), "random", "random.Random"),
        (lambda: np.random.RandomState(0), "random", "RandomState"),
        (torch.Generator, "random", "torch.Generator"),
        (lambda: np.zeros(200_000), "array", "200000 float64"),
        (lambda: torch.zeros(400_000), "note", "shared memory"),
        (lambda: [torch.zeros(1) for _ in range(2000)], "array", "2,000 tensors need as many"),
        (lambda: [np.zeros((64, 64), np.uint8)] * 40, None, ""),
        (lambda: [np.zeros((64, 64, 3), np.uint8) for _ in range(200)], "images", "decoded"),
        (lambda: np.array([path(i) for i in range(20_000)], object), "objects", "array of 20,000"),
        (lambda: np.random.mtrand._rand, None, ""),
        (lambda: torch.default_generator, None, ""),
    ],
)
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)
def test_each_kind_is_recognised(make: Any, kind: str | None, words: str) -> None:
    """Each hazard has its kind, its words and its remedy; what is harmless has none."""
    held = make()
    found = audit(Holds(held=held))
    if kind is None:
        assert not found.hazards
    else:
        hazard = found.notes[0] if kind == "note" else only(found)
        assert kind in (hazard.kind, "note")
        assert words in hazard.what
        assert hazard.fix
        assert hazard.path.startswith("dataset.held")


def test_what_a_library_keeps_for_itself_is_no_hazard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could change it, and it need not be drawn from; one's own module is another matter."""
    for place, name in (("own", "own_module"), ("site-packages", "installed_module")):
        (tmp_path / place).mkdir()
        (tmp_path / place / f"{name}.py").write_text(
            "import random, threading\nLOCK, RNG = threading.Lock(), random.Random(0)\n"
            "def use():\n    return LOCK, RNG\n"
        )
        monkeypatch.syspath_prepend(tmp_path / place)
    own = audit(Holds(transform=importlib.import_module("own_module").use))
    theirs = audit(Holds(transform=importlib.import_module("installed_module").use))
    assert (only(own).kind, [note.kind for note in own.notes]) == ("random", ["lock"])
    assert "cannot be sent" not in own.notes[0].what  # a worker imports it
    assert (theirs.hazards, [note.kind for note in theirs.notes]) == ((), ["random"])


class LeavesOut(Holds):
    """A dataset that is opened anew by its path in each worker."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


def test_what_is_not_in_the_pickle_costs_no_copy() -> None:
    """A forked worker pays for it all the same, if it is made of objects."""
    facts = {"rows": paths()[:50_000], "table": np.zeros(1_000_000)}
    found = examined(examine(Opened(dataset=LeavesOut(**facts)))).audit
    assert (only(found).path, only(found).spawn) == ("dataset.rows", 0)
    assert only(found).fork > 2 * MB
    sent = examined(examine(Opened(dataset=Holds(**facts)))).audit
    assert all((hazard.spawn or 0) > 2 * MB for hazard in sent.hazards)
    assert len(sent.hazards) == 2


def seeds_all(worker: int) -> None:
    """Stand for MONAI's function of this kind."""


def test_generators_of_a_pipeline_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line for all transforms; a note if the loader comes with what seeds them."""
    steps = [Holds(R=np.random.RandomState(0)), Holds(inner=Holds(R=np.random.RandomState(1)))]
    steps += [Holds(R=np.random.RandomState(i)) for i in range(3)]
    dataset = Holds(transform=Holds(steps=steps))
    hazard = only(audit(dataset))
    assert (hazard.kind, hazard.path) == ("random", "dataset.transform")
    assert hazard.what.startswith("5 times: ")
    monkeypatch.setattr(seeds_all, "__module__", "monai.data.utils")
    opened = Opened(dataset=dataset, worker_init_fn=seeds_all)
    found = examined(examine(opened)).audit
    assert (found.hazards, [note.path for note in found.notes]) == ((), ["dataset.transform"])


def test_each_table_has_its_own_remedy() -> None:
    """Only pandas has itertuples."""
    for module, words in (
        ("pandas.core.frame", "itertuples"),
        ("polars.dataframe.frame", "table.rows()"),
        ("pyarrow.lib", "pa.memory_map"),
    ):
        assert words in fix_of("table", "dataset.table", imitation(module, "Table"))


def test_caches_and_lambdas_are_told() -> None:
    """A cache without a limit is a hazard; a lambda is only good to know, since it can be sent."""
    assert only(audit(Cached())).path == "Cached.volume"
    found = audit(Holds(transform=lambda image: image))
    assert not found.hazards
    assert [note.path for note in found.notes] == ["dataset.transform"]
    assert audit(Holds(cache={}, samples=[])).may_grow == ("dataset.cache", "dataset.samples")


def test_many_of_a_kind_are_told_once() -> None:
    """Twenty arrays by name are one line, not twenty."""
    found = audit(Holds(cases={f"case {i}": np.zeros((1000, 200)) for i in range(20)}))
    hazard = only(found)
    assert hazard.path == "dataset.cases[...]"
    assert hazard.what.startswith("20 times: ")
    assert hazard.spawn is not None
    assert abs(hazard.spawn - 20 * 1_600_000) < MB


# --- the pickle ----------------------------------------------------------------------------------


def test_the_largest_part_of_a_pickle_is_named() -> None:
    """Where more than half of it comes from, and how much of it that is."""
    size = pickle_size(Holds(meta={"rows": list(map(path, range(50_000)))}, other=[1] * 1000))
    assert size.is_whole
    assert size.largest == "dataset.meta['rows']"
    assert 2.5 * MB < size.largest_nbytes <= size.nbytes < 4 * MB


def test_an_array_counts_without_being_copied() -> None:
    """Its bytes are known; a tensor goes to shared memory and is no part of the pickle."""
    weights: Any = torch.zeros(2_000_000)
    size = pickle_size(Holds(volume=np.zeros(2_000_000), weights=weights))
    assert 16 * MB < size.nbytes < 16.1 * MB
    assert not weights.is_shared()


def test_what_cannot_be_pickled_is_named() -> None:
    """For all workers, or for those of a plain DataLoader only."""
    size = pickle_size(Holds(parts={"lock": threading.Lock()}))
    assert size.error is not None
    assert size.error.startswith("dataset.parts['lock']: TypeError")
    size = pickle_size(Holds(transform=lambda image: image))
    assert size.error is None
    assert size.plain_error is not None
    assert size.plain_error.startswith("dataset.transform: ")
