"""A compiled step takes the batches of a loader as they are, in one graph."""

from __future__ import annotations

import importlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from streams import Augmented, fork
from torch.distributed.checkpoint.stateful import Stateful

from sharedds.generators.thread_random import (
    ThreadGenerators,
    drawing_from,
    redirect_globals,
    restore_globals,
)


def trained(workers: int, *, is_compiled: bool) -> tuple[list[int], torch.Tensor]:
    """Train an epoch; return the numbers of the samples, and the weights."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(192, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    seen: list[int] = []

    def loss_of(images: torch.Tensor) -> torch.Tensor:
        squares: torch.Tensor = layer(images.flatten(1)).square()
        return squares.mean()

    step: Any = loss_of
    if is_compiled:
        step = torch.compile(loss_of, backend="aot_eager", fullgraph=True)
    loader = fork(Augmented(10), batch_size=4, shuffle=True, seed=3, num_workers=workers)
    for images, numbers in loader:
        optimizer.zero_grad()
        step(images).backward()
        optimizer.step()
        seen += numbers.tolist()
    return seen, layer.weight.detach()


@pytest.mark.filterwarnings("ignore")  # those of the compiler are its own
@pytest.mark.parametrize("workers", [0, 2])
def test_a_compiled_step_trains_as_any_other(workers: int) -> None:
    """Each sample once, the smaller last batch included, and the same weights."""
    seen, weights = trained(workers, is_compiled=True)
    expected, others = trained(0, is_compiled=False)
    assert seen == expected
    assert sorted(seen) == list(range(10))
    torch.testing.assert_close(weights, others)


@pytest.mark.filterwarnings("ignore")  # those of the compiler are its own
def test_a_loader_thread_seeds_itself_beside_the_compiler() -> None:
    """Which puts a wrapper in place of ``torch.manual_seed``: it would seed the trainer."""
    importlib.import_module("torch._dynamo")
    wrapper, before = torch.manual_seed, torch.get_rng_state()
    assert wrapper is not torch.random.manual_seed

    def seeded() -> torch.Tensor:
        with drawing_from(ThreadGenerators()):
            torch.manual_seed(5)
            return torch.rand(3)

    redirect_globals()
    try:
        with ThreadPoolExecutor(1) as threads:
            found = threads.submit(seeded).result()
    finally:
        restore_globals()
    assert torch.equal(found, torch.rand(3, generator=torch.Generator().manual_seed(5)))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.manual_seed is wrapper


def test_a_loader_is_stateful() -> None:
    """The protocol that torch's distributed checkpoints and torchdata look for."""
    assert isinstance(fork(Augmented(4)), Stateful)
