"""Under torchrun 1 to 4 ranks share a stream, go on with others, and end with the cause."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from streams import Draws, fork

#: Global batches have 12 samples for any number of ranks; the last one has 5.
COUNT, GLOBAL, SEED = 41, 12, 7
#: Steps of all ranks before training is broken off.
BROKEN_OFF = 2

SCRIPT = f"""
import json, os, sys
from datetime import timedelta
from pathlib import Path
import torch
import torch.distributed as dist
from streams import Draws, fork

def begin(rank, world):
    store = dist.FileStore(f"{{sys.argv[1]}}/store{{world}}", world)
    wait = timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=wait)
    try:
        train(rank, world)
    finally:
        dist.destroy_process_group()

def loader(**options):
    size = {GLOBAL} // dist.get_world_size()
    return fork(Draws({COUNT}), batch_size=size, seed={SEED}, shuffle=True, **options)

def step(batch):
    total = torch.tensor([float(len(batch[0]))])
    dist.all_reduce(total)  # as training does: all ranks must come here equally often
    return torch.stack(batch, dim=1).tolist()

def train(rank, world):
    seen = {{}}
    for name, options in (("padded", {{}}), ("dropped", {{"drop_last": True}})):
        seen[name] = [step(batch) for batch in loader(**options)]
    exact = loader(pad=False)
    seen["exact"] = [torch.stack(batch, dim=1).tolist() for batch in exact]
    begun = loader()
    batches = iter(begun)
    seen["begun"] = [step(next(batches)) for _ in range({BROKEN_OFF})]
    seen["state"] = begun.state_dict()
    state = Path(sys.argv[1], "state.json")
    if state.exists():
        resumed = loader(num_workers=1)
        resumed.load_state_dict(json.loads(state.read_text()))
        seen["resumed"] = [step(batch) for batch in resumed]
    Path(sys.argv[1], f"{{world}}-{{rank}}.json").write_text(json.dumps(seen))

# Two groups, one after the other: starting torch is what takes the time.
own = int(os.environ["RANK"])
begin(own, 4)
if own < 3:
    begin(own, 3)
"""

Seen = list[dict[str, Any]]


def torchrun(script: Path, world_size: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script on some ranks."""
    here = Path(__file__).parent
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*command, f"--nproc-per-node={world_size}", str(script), *arguments],
        env=os.environ | {"PYTHONPATH": f"{here}:{here.parent}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def alone(**options: Any) -> list[Any]:
    """The samples of an epoch in one process, in their order."""
    loader = fork(Draws(COUNT), batch_size=GLOBAL, seed=SEED, shuffle=True, **options)
    return in_turn([{"all": samples(loader)}], "all")


def samples(loader: Any) -> list[Any]:
    """The batches of a loader, as lists of samples."""
    return [torch.stack(batch, dim=1).tolist() for batch in loader]


def in_turn(ranks: Seen, what: str) -> list[Any]:
    """The samples of all ranks in the order of the epoch: step by step, rank by rank."""
    steps = itertools.zip_longest(*(rank[what] for rank in ranks), fillvalue=[])
    return [list(sample) for step in steps for batch in step for sample in batch]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Seen]:
    """What 3 and 4 ranks have seen; they also go on where one alone stopped."""
    folder = tmp_path_factory.mktemp("worlds")
    script = folder / "train.py"
    script.write_text(SCRIPT)
    one = fork(Draws(COUNT), batch_size=GLOBAL, seed=SEED, shuffle=True)
    batches = iter(one)
    for _ in range(BROKEN_OFF):
        next(batches)
    (folder / "state.json").write_text(json.dumps(one.state_dict()))
    done = torchrun(script, 4, str(folder))
    assert done.returncode == 0, done.stderr
    seen = {}
    for world in (3, 4):
        paths = [folder / f"{world}-{rank}.json" for rank in range(world)]
        seen[world] = [json.loads(path.read_text()) for path in paths]
    return seen


@pytest.mark.parametrize("world", [3, 4])
def test_the_stream_is_that_of_one_process(worlds: dict[int, Seen], world: int) -> None:
    """Step by step and rank by rank, what is drawn for each sample included."""
    assert in_turn(worlds[world], "exact") == alone()


@pytest.mark.parametrize("world", [3, 4])
def test_an_uneven_end_is_padded_so_that_all_take_as_many_steps(
    worlds: dict[int, Seen], world: int
) -> None:
    """By samples of the beginning, fewer than there are ranks; each comes at least once."""
    ranks = worlds[world]
    shapes = [[len(batch) for batch in rank["padded"]] for rank in ranks]
    assert all(shape == shapes[0] for shape in shapes)
    whole = alone()
    seen = in_turn(ranks, "padded")
    padded = len(seen) - COUNT
    assert 0 <= padded < world
    assert Counter(map(tuple, seen)) == Counter(map(tuple, whole + whole[:padded]))


@pytest.mark.parametrize("world", [3, 4])
def test_an_uneven_end_is_dropped_if_asked(worlds: dict[int, Seen], world: int) -> None:
    """All ranks then have whole batches only."""
    assert in_turn(worlds[world], "dropped") == alone()[: COUNT // GLOBAL * GLOBAL]


@pytest.mark.parametrize("world", [3, 4])
def test_more_ranks_go_on_where_one_stopped(worlds: dict[int, Seen], world: int) -> None:
    """What one process has begun and the ranks end is one epoch."""
    rest = alone()[BROKEN_OFF * GLOBAL :]
    seen = in_turn(worlds[world], "resumed")
    assert Counter(map(tuple, seen[: len(rest)])) >= Counter(map(tuple, rest[:GLOBAL]))
    assert set(map(tuple, seen)) >= set(map(tuple, rest))
    assert len(seen) - len(rest) < world


@pytest.mark.parametrize("others", [1, 2])
def test_fewer_ranks_go_on_where_four_stopped(worlds: dict[int, Seen], others: int) -> None:
    """All four have the same state; what follows is the rest of the epoch."""
    ranks = worlds[4]
    assert all(rank["state"] == ranks[0]["state"] for rank in ranks)
    loaders = [
        fork(
            Draws(COUNT),
            batch_size=GLOBAL // others,
            seed=SEED,
            shuffle=True,
            pad=False,
            rank=rank,
            world_size=others,
        )
        for rank in range(others)
    ]
    parts: Seen = []
    for loader in loaders:
        loader.load_state_dict(ranks[0]["state"])
        parts.append({"rest": samples(loader)})
    assert in_turn(ranks, "begun") + in_turn(parts, "rest") == alone()


# --- one that fails ------------------------------------------------------------------------------

FAILING = """
import os, signal, sys
from datetime import timedelta
import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from streams import fork

class Numbers(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        if sys.argv[1] == "sample" and os.environ["RANK"] == "1" and index == 45:
            raise ValueError("sample 45 is damaged")
        return torch.ones(1) * index

dist.init_process_group("gloo", timeout=timedelta(seconds=1800))
for step, batch in enumerate(fork(Numbers(), batch_size=4, num_workers=1)):
    if sys.argv[1] == "trainer" and dist.get_rank() == 1 and step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(batch)
"""


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        ("sample", "sample 45 is damaged"),
        ("trainer", "Signal 9 (SIGKILL)"),
    ],
)
def test_one_rank_that_fails_ends_the_others_with_the_cause(
    what: str, cause: str, tmp_path: Path
) -> None:
    """Within seconds, though the others wait in a collective that allows half an hour."""
    script = tmp_path / "fail.py"
    script.write_text(FAILING)
    begun = time.monotonic()
    done = torchrun(script, 2, what)
    assert done.returncode != 0
    assert cause in done.stderr
    assert time.monotonic() - begun < 60
