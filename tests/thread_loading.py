"""Loading with threads, for tests."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import Dataset

from sharedds.generators.thread_random import DISPATCHING
from sharedds.loader import build_loader

__all__ = ["Samples", "load", "no_thread_left", "running", "wait_until"]


class Samples(Dataset[Any]):
    """``count`` samples, each made by a function of its number."""

    def __init__(self, count: int, make: Callable[[int], Any]) -> None:
        self.count = count
        self.make = make

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def load(make: Callable[[int], Any], count: int = 16, **asked: Any) -> Any:
    """A loader with two threads."""
    options: dict[str, Any] = {"num_workers": 2, "engine": "thread", "batch_size": 2, **asked}
    return build_loader(Samples(count, make), **options)


def running() -> list[threading.Thread]:
    """The loader threads of this process."""
    return [each for each in threading.enumerate() if each.name.startswith("sharedds-loader")]


def wait_until(come: Callable[[], bool], seconds: float = 10) -> None:
    """Wait for something that other threads do."""
    ends = time.monotonic() + seconds
    while not come():
        assert time.monotonic() < ends
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Each test ends its threads, and the modules are as they were."""
    yield
    gc.collect()
    wait_until(lambda: not running())
    wait_until(lambda: random.random is not DISPATCHING.random.random)
