"""A notebook whose cells define everything trains with workers, by every start method."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from processes import unmeasured

#: Every cell begins by noting that it ran.
NOTE = "open(JOURNAL, 'a').write({name!r} + '\\n')\n"

CELLS = {
    "plain": """
import json, os, torch
from torch.utils.data import DataLoader, Dataset
print("the notebook runs")
runs = 0
OFFSET = 100

class Plain(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return index

try:
    print(list(DataLoader(Plain(), num_workers=1, multiprocessing_context="spawn")))
except RuntimeError as error:
    print(error)
""",
    "define": """
from sharedds import LazyDataset, build_loader
from sharedds.errors import SampleError

runs += 1

class BadPicture(Exception):
    pass

class Numbers(LazyDataset):
    def __init__(self, items, transform):
        super().__init__(items)
        self.transform = transform

    def load(self, item):
        global runs
        runs += 1
        if item == "bad":
            raise BadPicture(f"cannot read {item}")
        return self.transform(int(item))

def make_collate(scale):
    def collate(samples):
        return torch.tensor(samples) * scale, os.getpid()
    return collate

def train(items, method=None):
    dataset = Numbers(items, transform=lambda x: x + OFFSET)
    loader = build_loader(
        dataset, batch_size=3, num_workers=2, start_method=method, collate_fn=make_collate(2),
        timeout=60,
    )
    seen, workers = [], set()
    for batch, pid in loader:
        seen += batch.tolist()
        workers.add(pid)
    return {"seen": seen, "workers": len(workers - {os.getpid()}), "plan": str(loader.plan)}
""",
    "default": "print(json.dumps(train(map(str, range(6)))))",
    "spawn": "print(json.dumps(train(map(str, range(6)), 'spawn')))",
    "fork": "print(json.dumps(train(map(str, range(6)), 'fork')))",
    "error": """
try:
    train(["1", "2", "3", "bad"])
except SampleError as error:
    print(type(error.__cause__) is BadPicture)
    print(error)
""",
    "again": """
OFFSET = 200

class Numbers(Numbers):
    def load(self, item):
        return self.transform(int(item) * 10)

print(json.dumps(train(map(str, range(6)))))
""",
    "state": "print(runs)",
}


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What a kernel that ran all cells wrote: by cell, then by stream.

    ``["ran"]["journal"]`` has the names of the cells in the order in which they ran, anywhere.
    """
    folder = tmp_path_factory.mktemp("notebook")
    journal = folder / "journal"
    first = f"JOURNAL = {str(journal)!r}\n"
    cells: Any = nbformat.v4
    book = cells.new_notebook()
    for name, code in CELLS.items():
        source = first + NOTE.format(name=name) + code
        book.cells.append(cells.new_code_cell(source, id=name))
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(variable, str(folder))
        for variable in os.environ.keys() - unmeasured().keys():
            patch.delenv(variable)
        NotebookClient(book, timeout=60, kernel_name="python3").execute(cwd=str(folder))
    written: dict[str, dict[str, str]] = {"ran": {"journal": journal.read_text()}}
    for cell in book.cells:
        streams = written[cell.id] = {"stdout": "", "stderr": ""}
        for output in cell.outputs:
            streams[output.name] += output.text
    return written


Notebook = dict[str, dict[str, str]]


def test_workers_of_a_plain_loader_do_not_find_a_class_of_a_cell(notebook: Notebook) -> None:
    """The control: a spawned worker has a main module without what the cells have defined."""
    assert "exited unexpectedly" in notebook["plain"]["stdout"]


@pytest.mark.parametrize("method", ["default", "spawn", "fork"])
def test_what_cells_define_trains_with_workers(notebook: Notebook, method: str) -> None:
    """A dataset, a lambda in it and a closure that collates: an epoch by two other processes."""
    found = json.loads(notebook[method]["stdout"])
    assert found["seen"] == [2 * (100 + number) for number in range(6)]
    assert found["workers"] == 2
    chosen = "forkserver" if method == "default" else method
    assert re.search(rf"start_method +{chosen} ", found["plan"])


def test_a_class_that_is_defined_again_is_the_one_that_trains(notebook: Notebook) -> None:
    """Workers get what its name means now, and globals as they are now."""
    found = json.loads(notebook["again"]["stdout"])
    assert found["seen"] == [2 * (200 + 10 * number) for number in range(6)]


def test_cells_run_once(notebook: Notebook) -> None:
    """Workers run no cell, print nothing of the notebook and do not change its variables."""
    assert notebook["ran"]["journal"].split() == list(CELLS)
    assert notebook["state"]["stdout"] == "1\n"
    assert all("the notebook runs" not in notebook[n]["stdout"] for n in CELLS if n != "plain")
    for method in ("default", "spawn", "again"):
        assert notebook[method]["stderr"] == ""


def test_an_error_names_sample_and_item(notebook: Notebook) -> None:
    """And its class is that of the cell, so that the notebook can catch it."""
    kept, text = notebook["error"]["stdout"].split("\n", 1)
    assert kept == "True"
    assert "sample 3 of Numbers" in text
    assert "'bad'" in text
    assert "BadPicture: cannot read bad" in text
