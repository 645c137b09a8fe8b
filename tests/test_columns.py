"""Columns of every shape, in one segment or many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sharedds.store.layout
from sharedds.errors import SampleIndexError, SampleKeyError, SchemaError
from sharedds.store import Store, StoreWriter
from sharedds.store.columns import Column

ROWS = 100
NUMBERS = np.arange(ROWS * 3, dtype=np.int32).reshape(ROWS, 3)
WIDE = np.arange(ROWS * 1100, dtype=np.float32).reshape(ROWS, 1100)


@pytest.fixture(params=["one segment", "many segments"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store of 100 rows, cut into segments of 16 and 8 rows, or not at all."""
    if request.param == "many segments":
        monkeypatch.setattr(sharedds.store.layout, "_SEGMENT", 200)
        monkeypatch.setattr(sharedds.store.layout, "_WIDE_SEGMENT", 40_000)
    path = tmp_path / "columns.lmdb"
    schema = {"one": "int64", "three": "int32[3]", "wide": "float32[1100]", "text": "str"}
    with StoreWriter(path, schema=schema) as writer:
        for i in range(ROWS):
            row = {"one": i, "three": NUMBERS[i], "wide": WIDE[i], "text": f"text {i}" * (i % 3)}
            writer.add(row)
    store = Store(path)
    assert (store.column("one").segments > 1) == (request.param == "many segments")
    assert (store.column("wide").segments > 1) == (request.param == "many segments")
    return store


@pytest.fixture(params=["three", "wide"])
def column(request: pytest.FixtureRequest, store: Store) -> tuple[Column, np.ndarray[Any, Any]]:
    """A column and what it should be."""
    return store.column(request.param), NUMBERS if request.param == "three" else WIDE


Pair = tuple[Column, np.ndarray[Any, Any]]
indices = st.one_of(
    st.integers(-ROWS, ROWS - 1),
    st.slices(ROWS),
    st.lists(st.integers(-ROWS, ROWS - 1), max_size=20),
    st.lists(st.integers(-ROWS, ROWS - 1), max_size=20).map(lambda n: np.asarray(n, np.int16)),
    st.lists(st.booleans(), min_size=ROWS, max_size=ROWS).map(np.asarray),
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)
@given(index=indices)
def test_an_index_gives_what_numpy_gives(column: Pair, index: Any) -> None:
    """A number, a slice, a list, an array or a mask: rows as of an array in memory."""
    stored, expected = column
    rows = index
    if not isinstance(index, (int, slice)):
        rows = np.asarray(index, None if len(index) else np.int64)
    wanted = expected[rows]
    found = stored[index]
    assert np.array_equal(found, wanted)
    assert found.dtype == expected.dtype


def test_the_whole_is_an_array(column: Pair) -> None:
    """NumPy takes a column as an array, converted where it asks for it."""
    stored, expected = column
    assert np.array_equal(np.asarray(stored), expected)
    assert np.asarray(stored, np.float64).dtype == np.float64
    assert (stored.shape, stored.dtype, len(stored)) == (expected.shape, expected.dtype, ROWS)
    assert np.array_equal(list(stored), expected)


def test_a_grid_of_indices_gives_a_grid_of_rows(column: Pair) -> None:
    """Indices of two dimensions give rows of one dimension more."""
    stored, expected = column
    grid = np.array([[1, 99], [-1, 50]])
    assert np.array_equal(stored[grid], expected[grid])


def test_rows_are_read_only(column: Pair) -> None:
    """Nobody writes to what every process maps."""
    assert not column[0][0].flags.writeable


@pytest.mark.parametrize("index", [ROWS, -ROWS - 1, 1 << 70, [0, ROWS], [-ROWS - 1]])
def test_a_row_that_is_not_there_is_refused(column: Pair, index: Any) -> None:
    """The error says how many rows there are, however it is asked."""
    with pytest.raises(SampleIndexError, match="has 100 rows, no row"):
        column[0][index]


@pytest.mark.parametrize("index", [(0, 1), None, ..., 1.0, [0.5], "a", np.ones(3, bool)])
def test_what_names_no_rows_is_refused(column: Pair, index: Any) -> None:
    """The same in one segment as in many: two indices at once, masks of another length, ..."""
    with pytest.raises(SchemaError, match="takes one index"):
        column[0][index]


def test_texts_are_a_column_too(store: Store) -> None:
    """Texts by number, from both ends, and all of them."""
    texts = store.texts("text")
    expected = [f"text {i}" * (i % 3) for i in range(ROWS)]
    assert list(texts) == expected
    assert (texts[-1], len(texts)) == (expected[-1], ROWS)
    with pytest.raises(SampleIndexError, match="no row 100"):
        texts[ROWS]
    with pytest.raises(SchemaError, match="whole number"):
        texts["a"]  # type: ignore[index]


def test_a_column_that_is_not_there_is_refused(store: Store) -> None:
    """The error names the columns there are, and not those of the system."""
    with pytest.raises(SampleKeyError, match=r"no column 'two'; columns: wide, one, three, text"):
        store.column("two")
    with pytest.raises(SampleKeyError, match="fields:"):
        store.texts("one")


def test_an_empty_column_is_an_empty_array(tmp_path: Path) -> None:
    """No rows keep their shape and dtype."""
    with StoreWriter(tmp_path / "empty.lmdb", schema={"x": "int32[3]"}):
        pass
    column = Store(tmp_path / "empty.lmdb").column("x")
    assert np.asarray(column).shape == column[:5].shape == column[[]].shape == (0, 3)
    with pytest.raises(SampleIndexError):
        column[0]
