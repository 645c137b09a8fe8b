"""Columns of every shape, in one segment or many."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import python

import sharedds.store.columns
import sharedds.store.layout
from sharedds.errors import CorruptDataError, SampleIndexError, SampleKeyError, SchemaError
from sharedds.store import Store, StoreWriter, verify
from sharedds.store.columns import Column

ROWS = 100
NUMBERS = np.arange(ROWS * 3, dtype=np.int32).reshape(ROWS, 3)
WIDE = np.arange(ROWS * 1100, dtype=np.float32).reshape(ROWS, 1100)


@pytest.fixture(params=["one segment", "many segments", "all mapped"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store of 100 rows, cut into segments of 16 and 8 rows and blocks of 4, or not at all."""
    if request.param != "one segment":
        monkeypatch.setattr(sharedds.store.layout, "_SEGMENT", 200)
        monkeypatch.setattr(sharedds.store.layout, "_WIDE_SEGMENT", 40_000)
        monkeypatch.setattr(sharedds.store.layout, "_BLOCK", 50)
    if request.param == "all mapped":
        monkeypatch.setattr(sharedds.store.columns, "_COPIED", 0)
        monkeypatch.setattr(sharedds.store.columns, "_MAPPED", 0)
    path = tmp_path / "columns.lmdb"
    schema = {"one": "int64", "three": "int32[3]", "wide": "float32[1100]", "text": "str"}
    with StoreWriter(path, schema=schema) as writer:
        for i in range(ROWS):
            row = {"one": i, "three": NUMBERS[i], "wide": WIDE[i], "text": f"text {i}" * (i % 3)}
            writer.add(row)
    store = Store(path)
    assert (store.column("one").segments > 1) == (request.param != "one segment")
    assert (store.column("wide").segments > 1) == (request.param != "one segment")
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


# --- blocks ---


@pytest.fixture
def blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of 100 numbers in segments of 32 rows and blocks of 8."""
    monkeypatch.setattr(sharedds.store.layout, "_SEGMENT", 256)
    monkeypatch.setattr(sharedds.store.layout, "_BLOCK", 64)
    with StoreWriter(tmp_path / "blocks.lmdb", schema={"x": "int64"}) as writer:
        for i in range(ROWS):
            writer.add({"x": 0x5EED0000 + i})
    return tmp_path / "blocks.lmdb"


def damage_row(path: Path, row: int) -> None:
    """Flip a bit of a number."""
    data = path.read_bytes()
    value = (0x5EED0000 + row).to_bytes(8, "little")
    assert value in data  # and maybe again, on a page that is free
    path.write_bytes(data.replace(value, bytes([value[0] ^ 1]) + value[1:]))


def test_a_block_is_checked_once(blocks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is first touched, by whatever index, and no other block with it."""
    checked: list[int] = []
    check = Column.check_block

    def check_and_note(column: Column, block: int) -> None:
        checked.append(block)
        check(column, block)

    monkeypatch.setattr(Column, "check_block", check_and_note)
    column = Store(blocks).column("x")
    for touch, expected in (
        (lambda: column[17], [2]),
        (lambda: column[23], [2]),
        (lambda: column[30:34], [2, 3, 4]),
        (lambda: column[[99, 16, 0, 99]], [2, 3, 4, 0, 12]),
        (lambda: column.segment(1), [2, 3, 4, 0, 12, 5, 6, 7]),
        (lambda: np.asarray(column), [2, 3, 4, 0, 12, 5, 6, 7, 1, 8, 9, 10, 11]),
        (lambda: list(column), [2, 3, 4, 0, 12, 5, 6, 7, 1, 8, 9, 10, 11]),
    ):
        touch()
        assert checked == expected


@pytest.mark.parametrize("index", [43, slice(40, 41), slice(None), [1, 47], slice(99, 0, -1)])
def test_a_damaged_block_is_never_returned(blocks: Path, index: Any) -> None:
    """Each time it is touched the error names its rows; those of other blocks are still read."""
    damage_row(blocks, 45)
    column = Store(blocks).column("x")
    for _ in range(2):
        with pytest.raises(CorruptDataError, match=r"'x', rows 40 to 47 fail their checksum"):
            column[index]
    assert column[39] + 1 == column[48] - 8


def test_verify_names_every_damaged_block(blocks: Path) -> None:
    """Also two in one segment, and the last one, which is short."""
    for row in (33, 63, 98):
        damage_row(blocks, row)
    report = verify(blocks)
    assert [problem.text.split(", ")[1][:14] for problem in report.problems] == [
        "rows 32 to 39 ",
        "rows 56 to 63 ",
        "rows 96 to 99 ",
    ]
    assert {problem.field for problem in report.problems} == {"x"}


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_rows_read_at_random_leave_nothing_mapped(tmp_path: Path) -> None:
    """Of 24 MB, one by one or many at once; a view of all of them has all of them mapped."""
    path = tmp_path / "rows.lmdb"
    row = np.arange(1000, dtype=np.float32)
    with StoreWriter(path, schema={"x": "float32[1000]"}) as writer:
        for _ in range(6000):
            writer.add({"x": row})
    code = """
        import sys
        import numpy as np
        from sharedds.memory import process_memory
        from sharedds.store import Store
        column = Store(sys.argv[1]).column("x")
        order = np.random.default_rng(0).permutation(len(column))
        column[5], column[[5]]
        before = process_memory().uss
        for number in order.tolist():
            column[number]
        print(process_memory().uss - before)
        for start in range(0, len(order), 64):
            column[order[start : start + 64]]
        print(process_memory().uss - before)
        np.asarray(column).sum()
        print(process_memory().uss - before)
    """
    one_by_one, batches, whole = map(int, python(code, path).stdout.split())
    assert one_by_one < 4_000_000
    assert batches < 4_000_000
    assert whole > 20_000_000
