"""The state of a loader: a few numbers, checked when read."""

from __future__ import annotations

import dataclasses
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedds.errors import StateError
from sharedds.order import LoaderState, Shuffled
from sharedds.order.state import STATE_VERSION

COUNTS = st.integers(0, 2**63 - 1)
STATES = st.builds(
    LoaderState,
    seed=st.integers(),
    epoch=COUNTS,
    consumed=COUNTS,
    samples=COUNTS,
    fingerprint=st.text(),
    sampling=st.dictionaries(
        st.text().filter(lambda name: name != "count"), st.integers() | st.text()
    ),
)


def state() -> dict[str, Any]:
    """Return a state as a checkpoint holds it."""
    return LoaderState(
        seed=1, epoch=2, consumed=3, samples=10, fingerprint="ab", sampling=Shuffled(10).facts()
    ).to_dict()


@given(STATES)
def test_a_state_survives_json(before: LoaderState) -> None:
    """Whatever is in it: through JSON and back it is equal, and so is its dictionary."""
    plain = json.loads(json.dumps(before.to_dict()))
    after = LoaderState.from_dict(plain)
    assert after == before
    assert after.to_dict() == plain == before.to_dict()


def test_a_state_is_small_and_plain() -> None:
    """Exactly these fields, of plain types."""
    assert state() == {
        "version": STATE_VERSION,
        "seed": 1,
        "epoch": 2,
        "consumed": 3,
        "samples": 10,
        "fingerprint": "ab",
        "sampling": {"kind": "shuffled", "count": 10},
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", "1"),
        ("seed", True),
        ("seed", 1.0),
        ("epoch", -1),
        ("epoch", None),
        ("consumed", 2**63),
        ("consumed", 2.5),
        ("consumed", 11),
        ("samples", -5),
        ("samples", [1]),
        ("fingerprint", None),
        ("fingerprint", 5),
        ("sampling", None),
        ("sampling", [1]),
        ("version", STATE_VERSION + 1),
        ("version", "1"),
        ("version", True),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object) -> None:
    """The error says which field has which value, in its text and as an attribute."""
    with pytest.raises(StateError) as caught:
        LoaderState.from_dict({**state(), field: value})
    assert f"{field}={value!r}" in str(caught.value)
    assert caught.value.field == field
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.field) == (str(caught.value), field)


@pytest.mark.parametrize("value", [None, 1.5, True, [1]])
def test_wrong_facts_of_the_sampling_are_named(value: object) -> None:
    """Only whole numbers and text."""
    with pytest.raises(StateError, match=r"sampling\.items="):
        LoaderState.from_dict({**state(), "sampling": {"items": value}})
    with pytest.raises(StateError, match=r"sampling=3"):
        LoaderState.from_dict({**state(), "sampling": {3: "x"}})


@pytest.mark.parametrize("field", list(state()))
def test_a_missing_field_is_named(field: str) -> None:
    """A state that lost a field is not guessed at."""
    lost = {name: value for name, value in state().items() if name != field}
    with pytest.raises(StateError, match=f"{field} is missing") as caught:
        LoaderState.from_dict(lost)
    assert caught.value.field == field


def test_an_unknown_field_is_named() -> None:
    """What this release does not know might matter."""
    with pytest.raises(StateError, match="snapshot is no field"):
        LoaderState.from_dict({**state(), "snapshot": 1})


@pytest.mark.parametrize("other", [None, 5, "state", [state()]])
def test_something_else_is_refused(other: object) -> None:
    """The error says what was given."""
    with pytest.raises(StateError, match=type(other).__name__):
        LoaderState.from_dict(other)


def test_failures_are_in_a_state_that_has_some() -> None:
    """Others stay as they always were, and those are read as well."""
    before = LoaderState(seed=1, epoch=2, consumed=3, samples=4)
    assert "failed" not in before.to_dict()
    assert LoaderState.from_dict(before.to_dict()).failed == 0
    after = dataclasses.replace(before, failed=2)
    assert LoaderState.from_dict(after.to_dict()) == after
    with pytest.raises(StateError, match="failed=-1"):
        LoaderState.from_dict({**before.to_dict(), "failed": -1})


def test_a_state_does_not_share_its_dictionaries() -> None:
    """Changing what was given, or what was returned, changes no state."""
    facts: dict[str, int | str] = {"kind": "shuffled"}
    kept = LoaderState(seed=0, epoch=0, consumed=0, samples=0, sampling=facts)
    facts["kind"] = "other"
    kept.to_dict()["sampling"]["kind"] = "other"
    assert kept.to_dict()["sampling"] == {"kind": "shuffled"}
