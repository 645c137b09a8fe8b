"""``assert_same_stream`` lets good datasets pass and names what is wrong with the others."""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, get_worker_info

from sharedds.errors import OptionError
from sharedds.testing import assert_same_stream


class Point(NamedTuple):
    """Something with names."""

    x: float
    y: float


@dataclass
class Box:
    """Something with fields."""

    size: float


class Numbers(Dataset[Any]):
    """The first ``count`` whole numbers."""

    def __init__(self, count: int = 8) -> None:
        self.count = count
        self.rng = np.random.default_rng(1)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return index


class Good(Numbers):
    """Draws in every way that is served, and returns all kinds of things."""

    def __getitem__(self, index: int) -> Any:
        return {
            "index": index,
            "python": random.gauss(0, 1),
            "numpy": np.random.rand(3),  # noqa: NPY002 - the global generator is the subject
            "torch": [torch.rand(2), torch.dropout(torch.ones(4), 0.5, True)],
            "held": Point(self.rng.random(), float("nan")),
            "box": Box(-0.0),
            "rest": ("text", b"bytes", None, True, 1j, {1, 2}, np.float32(3), torch.ones(0)),
        }


def test_a_dataset_that_draws_from_served_generators_passes() -> None:
    """Globals and generators of its own, without workers, with processes and with threads."""
    assert_same_stream(Good(), workers=(0, 2))


class Clock(Numbers):
    """Depends on when it is made."""

    def __getitem__(self, index: int) -> Any:
        return {"index": index, "when": [time.time_ns()]}


class System(Numbers):
    """Draws from the system."""

    def __getitem__(self, index: int) -> Any:
        return uuid.uuid4().int if index % 2 else os.urandom(4)


class Carried(Numbers):
    """Has a random stream of its own kind, which goes on from sample to sample."""

    state = 1

    def __getitem__(self, index: int) -> Any:
        self.state = self.state * 48271 % 2147483647
        return torch.tensor([index, self.state])


class Who(Numbers):
    """Depends on the worker."""

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        return np.array([index, -1 if info is None else info.id])


class Stored(Numbers):
    """Keeps a global random function, past which threads cannot get."""

    def __init__(self) -> None:
        super().__init__()
        self.draws = [random.random]

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)
        return self.draws[0]()


THREAD = {"engines": ["thread"]}
PROCESS = {"workers": (0, 1), "engines": ["process"]}


@pytest.mark.parametrize(
    ("dataset", "options", "words"),
    [
        (Clock(), THREAD, ["at ['when'][0]", "a second time", "time_ns", "the clock"]),
        (System(), THREAD, ["randomness of the system (urandom, uuid4)", "no seed"]),
        (Carried(), THREAD, ["kept from sample to sample", "tensor of torch.int64, shape (2,)"]),
        (Who(), PROCESS, ["with 1 worker process:", "get_worker_info", "who makes the sample"]),
        (Stored(), THREAD, ["with 1 thread:", "self.draw = random.random", "engine='process'"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Dataset) else "",
)
@pytest.mark.filterwarnings("ignore:while threads made samples:RuntimeWarning")
def test_hidden_randomness_is_found_and_named(
    dataset: Numbers, options: dict[str, Any], words: list[str]
) -> None:
    """The text has the sample, the place, both values and the likely cause."""
    with pytest.raises(AssertionError) as caught:
        assert_same_stream(dataset, **options)
    text = str(caught.value)
    assert f"the stream of {type(dataset).__name__} depends on how it is loaded" in text
    assert "in epoch 0, sample " in text
    assert "  without workers: " in text
    for word in words:
        assert word in text


def test_hashes_that_differ_from_process_to_process_are_found() -> None:
    """A spawned process has another hash for text; the code is searched through helpers too."""

    class Hashed(Numbers):
        def __getitem__(self, index: int) -> Any:
            return self.code(f"sample {index}")

        def code(self, text: str) -> int:
            return hash(text)

    with pytest.raises(AssertionError, match=r"its code names hashes \(hash\)"):
        assert_same_stream(
            Hashed(), workers=(0, 1), engines=["process"], start_method="spawn", epochs=1
        )


def bad_collate(samples: list[int]) -> Any:
    """Makes batches that differ each time."""
    return {"samples": samples, "stamp": time.perf_counter()}


def test_a_collate_function_is_held_to_it_too() -> None:
    """A difference made by it is named by batch."""
    with pytest.raises(
        AssertionError, match=r"batch of samples \[\d.*at \['stamp'\](.|\n)*perf_co"
    ):
        assert_same_stream(Numbers(), engines=["thread"], collate_fn=bad_collate, batch_size=3)


def test_a_dataset_that_an_engine_refuses_fails() -> None:
    """With the reason that the engine gave."""

    class Refused(Numbers):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    with pytest.raises(AssertionError, match=r"cannot be loaded with 1 thread: .*dataset\.rng"):
        assert_same_stream(Refused(), engines=["thread"])


def test_values_are_compared_bit_for_bit() -> None:
    """Minus zero is not zero; a NaN is a NaN, whatever its bits."""
    from sharedds.testing import _fields

    def place(value: Any) -> list[bytes]:
        return [digest for _, (digest, _) in _fields(value, "")]

    other_nan = np.array([0x7FC00001], np.uint32).view(np.float32)
    assert place(np.array([np.nan], np.float32)) == place(other_nan)
    assert place(torch.from_numpy(other_nan)) == place(torch.tensor([float("nan")]))
    assert place(float("nan")) == place(-float("nan"))
    for one, another in (
        (0.0, -0.0),
        (torch.zeros(2), -torch.zeros(2)),
        (np.zeros(2), -np.zeros(2)),
        (1, 1.0),
        (1, True),
        ("a", b"a"),
        ([1], (1,)),
        (torch.ones(2), torch.ones(2, dtype=torch.float64)),
        (np.ones((2, 1)), np.ones((1, 2))),
        ({"a": 1}, {"b": 1}),
    ):
        assert place(one) != place(another)


def test_nothing_to_compare_is_refused() -> None:
    """One way alone proves nothing."""
    with pytest.raises(OptionError, match="nothing to compare"):
        assert_same_stream(Numbers(), workers=(2,), engines=["thread"])
    with pytest.raises(OptionError, match="nothing to compare"):
        assert_same_stream(Numbers(0))
