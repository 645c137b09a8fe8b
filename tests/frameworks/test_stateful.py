"""torchdata's StatefulDataLoader: our loader keeps its protocol, our datasets work inside it."""

from __future__ import annotations

from typing import Any

import pytest
from accounting import COUNT, Numbered, counted, numbers

import sharedds

stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata")

pytestmark = pytest.mark.filterwarnings("ignore")


def torchdata_loader(workers: int) -> Any:
    """The loader of torchdata, of our dataset; each epoch in a random order."""
    return stateful.StatefulDataLoader(Numbered(), batch_size=4, shuffle=True, num_workers=workers)


def our_loader(workers: int) -> Any:
    """Ours."""
    return sharedds.build_loader(
        Numbered(), batch_size=4, shuffle=True, seed=7, num_workers=workers
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("made", [torchdata_loader, our_loader], ids=["theirs", "ours"])
def test_an_epoch_goes_on_where_its_state_says(made: Any, workers: int) -> None:
    """Before and after, each sample once; the state of a new loader is the only thing carried."""
    loader = made(workers)
    batches = iter(loader)
    begun = [numbers(next(batches)) for _ in range(3)]
    state = loader.state_dict()
    rest = [numbers(batch) for batch in batches]
    resumed = made(workers)
    resumed.load_state_dict(state)
    assert [numbers(batch) for batch in resumed] == rest
    assert counted(*begun, *rest) == counted(range(COUNT))
    assert counted(*map(numbers, resumed)) == counted(range(COUNT))  # the next epoch is whole


def test_our_loader_has_the_protocol() -> None:
    """What torchdata calls Stateful: frameworks look for it."""
    assert isinstance(our_loader(0), stateful.Stateful)
