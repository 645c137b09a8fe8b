"""Two ranks that torchrun starts find each other, share an epoch, and one can go on alone."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import unmeasured
from streams import Draws, fork

COUNT, BATCH, SEED = 23, 4, 7
#: Batches that each rank takes before training is broken off.
BEFORE_BREAK = 2

SCRIPT = f"""
import json, os, sys
from datetime import timedelta
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from streams import Draws, fork

def loader(workers=2, **options):
    dataset = Draws({COUNT})
    return fork(dataset, batch_size={BATCH}, seed={SEED}, num_workers=workers, **options)

def samples(batches):
    return [torch.stack(batch, dim=1).tolist() for batch in batches]

facts = {{"before": str(loader(workers=0).plan)}}
dist.init_process_group("gloo", timeout=timedelta(seconds=60))

facts["evaluation"] = samples(loader())

training = loader(shuffle=True)
facts["plan"] = str(training.plan)
facts["padded"] = training.padded_indices.tolist()
model = DistributedDataParallel(torch.nn.Linear(4, 1, dtype=torch.float64))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
facts["training"] = []
for batch in training:
    facts["training"] += samples([batch])
    optimizer.zero_grad()
    model(torch.stack(batch, dim=1)).mean().backward()  # waits for the other rank
    optimizer.step()
facts["weights"] = model.module.weight.tolist()

broken_off = loader(shuffle=True)
batches = iter(broken_off)
facts["begun"] = samples(next(batches) for _ in range({BEFORE_BREAK}))
facts["state"] = broken_off.state_dict()
del batches

seen = [None] * dist.get_world_size()
dist.all_gather_object(seen, [int(s[0]) for batch in facts["evaluation"] for s in batch])
facts["gathered"] = seen
Path(sys.argv[1], str(dist.get_rank())).write_text(json.dumps(facts))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the two ranks of one run of torchrun have seen."""
    folder = tmp_path_factory.mktemp("ranks")
    script = folder / "train.py"
    script.write_text(SCRIPT)
    here = Path(__file__).parent
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, "--nproc-per-node", "2", str(script), str(folder)],
        env=unmeasured() | {"PYTHONPATH": f"{here}:{here.parent}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / str(rank)).read_text()) for rank in range(2)]


Ranks = list[dict[str, Any]]


def whole(**options: Any) -> list[Any]:
    """The samples of an epoch in one process, in their order."""
    return flat(fork(Draws(COUNT), batch_size=BATCH, seed=SEED, **options))


def flat(loader: Any) -> list[Any]:
    """The samples of the batches of a loader, as lists."""
    return [list(sample) for batch in loader for sample in zip(*map(list, batch), strict=True)]


def in_turn(ranks: Ranks, what: str) -> list[Any]:
    """The samples of all ranks in the order of the epoch: batch by batch, rank by rank."""
    steps = zip(*(rank[what] for rank in ranks), strict=True)
    return [sample for step in steps for batch in step for sample in batch]


def test_ranks_are_found(ranks: Ranks) -> None:
    """By the environment, and by torch.distributed once it runs."""
    for number, rank in enumerate(ranks):
        assert "RANK and WORLD_SIZE in the environment" in rank["before"]
        assert "says torch.distributed" in rank["plan"]
        assert f"{number} of 2" in rank["plan"]


def test_evaluation_counts_every_sample_once(ranks: Ranks) -> None:
    """Gathered from all ranks there is each sample, none twice, and as one process sees it."""
    for rank in ranks:
        assert sorted(itertools.chain(*rank["gathered"])) == list(range(COUNT))
    seen = [sample for rank in ranks for batch in rank["evaluation"] for sample in batch]
    assert sorted(seen) == whole()


def test_training_takes_as_many_steps_on_every_rank(ranks: Ranks) -> None:
    """Gradients were exchanged at each step; what was repeated for that is known."""
    sizes = [[len(batch) for batch in rank["training"]] for rank in ranks]
    assert sizes[0] == sizes[1]
    assert ranks[0]["weights"] == ranks[1]["weights"]
    repeated = ranks[0]["padded"]
    assert repeated == ranks[1]["padded"]
    assert len(repeated) == 1
    seen = [int(sample[0]) for sample in in_turn(ranks, "training")]
    assert sorted(seen) == sorted([*range(COUNT), *repeated])


def test_one_process_takes_up_what_two_have_begun(ranks: Ranks) -> None:
    """The samples of both, then those of the one that goes on, are those of an unbroken epoch."""
    begun = in_turn(ranks, "begun")
    assert len(begun) == 2 * BATCH * BEFORE_BREAK
    assert ranks[0]["state"] == ranks[1]["state"]
    one = fork(Draws(COUNT), batch_size=BATCH, seed=SEED, shuffle=True)
    one.load_state_dict(ranks[0]["state"])
    assert begun + flat(one) == whole(shuffle=True)
