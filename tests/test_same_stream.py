"""``assert_same_stream`` lets good datasets pass and names what is wrong with the others."""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, default_collate, get_worker_info

from sharedds.errors import OptionError
from sharedds.order import current_generator, current_keys
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
    from sharedds.testing.values import fields_of

    def place(value: Any) -> list[bytes]:
        return [digest for _, (digest, _) in fields_of(value, "")]

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


# --- whole batches -------------------------------------------------------------------------------


class Together(Numbers):
    """Makes whole batches: noise by key, the number, a name, a box."""

    makes_batches = True

    def __getitem__(self, index: int) -> Any:
        generator = current_generator()
        assert generator is not None
        noise = torch.from_numpy(generator.random(3))
        return {"noise": noise, "facts": [index, torch.ones(2)], "name": f"n{index}"}

    def load_batch(self, indices: Sequence[int], empty: Any) -> Any:
        """Make them in the memory that is given."""
        noise = empty((len(indices), 3), torch.float64)
        for at, key in enumerate(current_keys() or ()):
            noise[at] = torch.from_numpy(key.generator().random(3))
        facts = [torch.tensor(list(indices)), torch.ones(len(indices), 2)]
        return {"noise": noise, "facts": facts, "name": [f"n{index}" for index in indices]}


class LastRow(Together):
    """Leaves a row of the memory as it was."""

    def load_batch(self, indices: Sequence[int], empty: Any) -> Any:
        """Leave it out."""
        made = super().load_batch(indices, empty)
        made["noise"] = empty((len(indices), 3), torch.float64)
        made["noise"][:-1] = super().load_batch(indices, empty)["noise"][:-1]
        return made


class Swapped(Together):
    """Names of other samples."""

    def load_batch(self, indices: Sequence[int], empty: Any) -> Any:
        """Turn the names round."""
        made = super().load_batch(indices, empty)
        return made | {"name": made["name"][::-1]}


class Wider(Together):
    """Another dtype."""

    def load_batch(self, indices: Sequence[int], empty: Any) -> Any:
        """Convert."""
        made = super().load_batch(indices, empty)
        made["facts"][1] = made["facts"][1].double()
        return made


class Missing(Together):
    """Lacks a field."""

    def load_batch(self, indices: Sequence[int], empty: Any) -> Any:
        """Leave it out."""
        made = super().load_batch(indices, empty)
        return {name: value for name, value in made.items() if name != "name"}


class Sure(Together):
    """Fails for more than one sample."""

    def load_batch(self, indices: Sequence[int], empty: Any) -> Any:
        """Fail."""
        raise RuntimeError("too many")


class Ragged(Together):
    """Its samples do not stack."""

    def __getitem__(self, index: int) -> Any:
        return torch.ones(index)

    def load_batch(self, indices: Sequence[int], empty: Any) -> Any:
        """Pad them."""
        return empty((len(indices), 9), torch.float32)


ONLY_HERE: dict[str, Any] = {"workers": (0,)}


@pytest.mark.parametrize("collate", [None, default_collate])
def test_whole_batches_that_are_those_of_the_samples_pass(collate: Any) -> None:
    """Whether the samples are compared as they are or collated."""
    assert_same_stream(Together(10), **ONLY_HERE, batch_size=4, collate_fn=collate)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (LastRow, r"epoch 0, sample \d \(row 3 of \[\d, \d, \d, \d\]\), at \['noise'\]:"),
        (Swapped, r"sample (\d) \(row 0 of .*\), at \['name'\]\[0\]:\n.*'n\1'\n.*'n\d'"),
        (Wider, r"sample \d \(row 0 of .*, at \['facts'\]\[1\]:\n.*float32.*\n.*float64"),
        (Missing, r"batch of samples \[.*\], at \{\}:"),
        (Sure, r"Sure.load_batch fails where .*: RuntimeError: too many"),
        (Ragged, r"Ragged makes whole batches, but its samples do not collate"),
    ],
)
def test_a_wrong_whole_batch_is_found_and_named(kind: type[Together], words: str) -> None:
    """Which sample, and which part of it; the samples themselves are the same in every way."""
    with pytest.raises(AssertionError, match=words):
        assert_same_stream(kind(8), **ONLY_HERE)


def test_whole_batches_are_no_matter_to_another_collate_function() -> None:
    """A loader would not make any then."""
    assert_same_stream(Ragged(8), **ONLY_HERE, collate_fn=len)


def test_nothing_to_compare_is_refused() -> None:
    """One way alone proves nothing."""
    with pytest.raises(OptionError, match="nothing to compare"):
        assert_same_stream(Numbers(), workers=(2,), engines=["thread"])
    with pytest.raises(OptionError, match="nothing to compare"):
        assert_same_stream(Numbers(0))
