"""The common template of training loaders, as one call."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest
import torch
from streams import Draws, same
from torch.utils.data import DataLoader, SequentialSampler

from sharedds.errors import OptionError
from sharedds.loader import OptimizedDataLoader, PlannedLoader, build_loader


def create(count: int = 100, **options: Any) -> PlannedLoader[Any]:
    """A template loader with forked workers."""
    return OptimizedDataLoader.create(Draws(count), **{"start_method": "fork"} | options)


def test_the_template_shuffles_drops_and_keeps_its_workers() -> None:
    """Batches of 32, two workers that stay, a real DataLoader."""
    loader = create(num_workers=2)
    assert isinstance(loader, DataLoader)
    assert (loader.batch_size, loader.drop_last, loader.persistent_workers) == (32, True, True)
    orders = [torch.cat([batch[0] for batch in loader]).tolist() for _ in range(2)]
    assert [len(set(order)) for order in orders] == [96, 96]
    assert orders[0] != orders[1]


def test_it_is_build_loader_with_other_defaults() -> None:
    """The same stream for the same options."""
    built = build_loader(Draws(100), batch_size=32, shuffle=True, drop_last=True, num_workers=0)
    assert same(list(create(num_workers=0, start_method=None)), list(built))
    options = inspect.signature(OptimizedDataLoader.create).parameters
    assert set(options) - {"more"} <= set(inspect.signature(build_loader).parameters)


@pytest.mark.parametrize("mps", [False, True])
def test_no_accelerator_is_no_reason_to_warn(mps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinning is part of the template; where it is impossible the plan says so, quietly."""
    device = torch.device("mps") if mps else None
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda check_available: device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = create(num_workers=0, start_method=None)
        assert len(list(loader)) == 3
    assert loader.pin_memory is False
    assert dict(loader.plan.reasons)["pin_memory"] in loader.plan.text(100)


def test_it_pins_where_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an accelerator, unless told not to."""
    cuda = torch.device("cuda")
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda check_available: cuda)
    assert create().pin_memory is True
    assert create(pin_memory=False).pin_memory is False


@pytest.mark.parametrize(
    "options",
    [{"num_workers": 0}, {"num_workers": 2, "persistent_workers": False}, {"count": 0}],
    ids=str,
)
def test_workers_stay_only_where_there_are_any(options: dict[str, Any]) -> None:
    """Torch refuses persistent workers without workers; a template must not."""
    assert create(**options).persistent_workers is False


def test_a_sampler_takes_the_place_of_shuffling() -> None:
    """It is the order that was asked for."""
    loader = create(num_workers=0, start_method=None, sampler=SequentialSampler(range(64)))
    assert torch.cat([batch[0] for batch in loader]).tolist() == list(range(64))


def test_nonsense_is_refused_as_ever() -> None:
    """The options are those of build_loader, checks included."""
    with pytest.raises(OptionError, match="batch_size=0"):
        create(batch_size=0)
    with pytest.raises(TypeError, match="batch_sise"):
        create(batch_sise=3)
