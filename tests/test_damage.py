"""Damaged stores: identical data or a clear error, never anything else."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attacks import PAGE, damage, outcome
from processes import python
from stores import everything, key_of, opened_file, write

from sharedds.errors import (
    SharedDSError,
)
from sharedds.store import Store, verify


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good store of all kinds of fields, with a tree of two levels."""
    return write(tmp_path_factory.mktemp("good") / "good.lmdb", 9)


@pytest.fixture(scope="module")
def expected(good: Path) -> dict[str, Any]:
    """All that is in it."""
    return everything(Store(good))


@pytest.fixture
def path(good: Path, tmp_path: Path) -> Path:
    """A copy of the good store, to be damaged."""
    return Path(shutil.copy(good, tmp_path / "copy.lmdb"))


def test_a_file_cut_at_any_page_is_refused(
    good: Path, tmp_path: Path, expected: dict[str, Any]
) -> None:
    """Opening says that it is cut short, at every page boundary and in between."""
    whole = good.read_bytes()
    for size in {*range(0, len(whole), PAGE), *range(1, len(whole), 7919)}:
        path = tmp_path / "cut.lmdb"
        path.write_bytes(whole[:size])
        assert outcome(path, expected) == "StoreFormatError", size
        path.unlink()


def test_lmdb_itself_opens_a_file_that_is_cut(good: Path, tmp_path: Path) -> None:
    """The control: nothing in LMDB notices before it is too late."""
    path = tmp_path / "cut.lmdb"
    path.write_bytes(good.read_bytes()[: 8 * PAGE])
    done = python(
        """
        import lmdb, sys
        with lmdb.open(sys.argv[1], subdir=False, readonly=True, lock=False, max_dbs=3) as env:
            for name in (b"header", b"columns", b"chunks"):
                with env.begin(env.open_db(name, create=False)) as transaction:
                    sum(len(value) for _, value in transaction.cursor())
        """,
        path,
        ok=False,
    )
    assert done.returncode != 0
    assert "cut short" not in done.stderr


def flips(size: int, count: int, seed: int) -> Iterator[tuple[int, int]]:
    """Yield (position, bit): half of them in the first bytes of pages, where structure is."""
    chosen = random.Random(seed)
    for _ in range(count):
        position = chosen.randrange(size)
        if chosen.random() < 0.5:
            position = min(size - 1, position - position % PAGE + chosen.randrange(64))
        yield position, chosen.randrange(8)


def with_bit(data: bytearray, position: int, bit: int) -> bytearray:
    """Flip a bit in place; do it again to flip it back."""
    data[position] ^= 1 << bit
    return data


@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_bit_is_noticed_or_does_no_harm(
    good: Path, tmp_path: Path, expected: dict[str, Any], seed: int
) -> None:
    """Wherever it is: what is read is what was written, or the error is one of ours."""
    data = bytearray(good.read_bytes())
    seen = set()
    for number, (position, bit) in enumerate(flips(len(data), 120, seed)):
        path = tmp_path / f"{number}.lmdb"
        path.write_bytes(with_bit(data, position, bit))
        seen.add(outcome(path, expected))
        path.unlink()
        with_bit(data, position, bit)
    assert seen >= {"identical", "StoreFormatError", "CorruptDataError"}


def regions(good: Path) -> dict[str, tuple[int, int]]:
    """Return (offset, length) of places that matter in a store."""
    store = Store(good)
    opened = opened_file(store)
    pages = opened.pages
    found = {"meta 0": (0, 200), "meta 1": (PAGE, 200)}
    for name in ("header", "columns", "chunks"):
        tree = pages.database(name)
        assert tree is not None
        for number, (_, at, _) in enumerate(pages.walk(tree)):
            found[f"{name} page {number}"] = (at, PAGE)
    for spec in store.header.columns:
        found[spec.name] = opened._locate(spec.name, 0)
    for field in opened.chunked:
        start, _ = opened.entry_range(7, field)
        offset, length, _ = opened.column("@entries")[start].tolist()
        found[f"value of {field}"] = offset, length
    header = pages.database("header")
    assert header is not None
    for key in (b"header", b"seal"):
        place = pages.find(header, key)
        assert place is not None
        found[f"the {key.decode()}"] = place
    return found


def test_every_place_notices_a_flipped_bit(
    good: Path, tmp_path: Path, expected: dict[str, Any]
) -> None:
    """Values, columns, tables and the header are each noticed at every bit that was tried."""
    data = bytearray(good.read_bytes())
    chosen = random.Random(0)
    number = 0
    for name, (offset, length) in regions(good).items():
        bits = [(offset + chosen.randrange(length), chosen.randrange(8)) for _ in range(12)]
        for position, bit in bits:
            path = tmp_path / f"{number}.lmdb"
            number += 1
            path.write_bytes(with_bit(data, position, bit))
            found = outcome(path, expected)
            loose = "page" in name or "meta" in name  # unused bytes may change
            assert loose or found != "identical", (name, position, bit)
            with_bit(data, position, bit)
            path.unlink()


def test_no_damage_ends_a_process(good: Path, tmp_path: Path) -> None:
    """Hundreds of damaged files read in one process that lives to tell; warnings are errors."""
    done = python(
        """
        import pathlib, random, sys
        sys.path.insert(0, sys.argv[3])
        from stores import everything
        from sharedds.errors import SharedDSError
        from sharedds.store import Store, verify
        whole, folder = pathlib.Path(sys.argv[1]).read_bytes(), pathlib.Path(sys.argv[2])
        chosen = random.Random(7)
        for number in range(150):
            data = bytearray(whole)
            page = chosen.randrange(len(data) // 4096) * 4096
            for _ in range(chosen.choice([1, 8, 200])):
                data[page + chosen.randrange(4096)] = chosen.randrange(256)
            path = folder / f"{number}.lmdb"
            path.write_bytes(data)
            for use in (lambda: everything(Store(path)), lambda: verify(path),
                        lambda: verify(path, untrusted=True)):
                try:
                    use()
                except SharedDSError:
                    pass
            path.unlink()
        print("alive")
        """,
        good,
        tmp_path,
        Path(__file__).parent,
    )
    assert done.stdout == "alive\n"


@pytest.mark.parametrize("field", ["photo", "mask", "file", "volume", "plain", "packed"])
@pytest.mark.parametrize("untrusted", [False, True])
def test_verify_names_the_damaged_value(path: Path, field: str, *, untrusted: bool) -> None:
    """Sample, key, field and source file of the one flipped bit; everything else is fine."""
    opened = Store(path).opened
    start, _ = opened.entry_range(7, field)
    offset, length, _ = opened.column("@entries")[start].tolist()
    damage(path, offset + length // 2)
    report = verify(path, untrusted=untrusted, progress=False)
    (problem,) = report.problems
    assert not report.ok
    assert (problem.sample, problem.key, problem.field) == (7, key_of(7), field)
    assert problem.source == f"/src/{key_of(7)}"


def test_verify_names_a_damaged_row(path: Path) -> None:
    """Long rows have a checksum each."""
    offset, _ = opened_file(Store(path))._locate("pixels", 0)
    damage(path, offset + 7 * 4800)
    (problem,) = verify(path).problems
    assert (problem.sample, problem.field) == (7, "pixels")


def test_a_gather_of_long_rows_is_checked(path: Path) -> None:
    """A batch, a slice and the whole column as well as a single row; others stay readable."""
    offset, _ = opened_file(Store(path))._locate("pixels", 0)
    damage(path, offset + 7 * 4800)
    column = Store(path).column("pixels")
    for index in (7, [1, 7], slice(5, 9), slice(None, None, 7)):
        with pytest.raises(SharedDSError, match="sample 7, field 'pixels'"):
            column[index]
    assert column[[0, 6, 8]].shape == (3, 40, 40, 3)


@pytest.mark.parametrize("column", ["label", "caption", "@key", "@first", "volume@meta@ends"])
def test_verify_names_a_damaged_column(path: Path, column: str) -> None:
    """The column and the rows that share a checksum."""
    offset, _ = opened_file(Store(path))._locate(column, 0)
    damage(path, offset + 1)
    report = verify(path)
    assert report.problems[0].field == column
    assert "rows 0 to" in report.problems[0].text


def test_verify_finds_every_damaged_value(path: Path) -> None:
    """One error does not hide another."""
    opened = Store(path).opened
    wanted = set()
    for number in range(9):
        start, _ = opened.entry_range(number, "photo")
        offset, _, _ = opened.column("@entries")[start].tolist()
        damage(path, offset + 100)
        wanted.add((number, "photo"))
    report = verify(path)
    assert {(p.sample, p.field) for p in report.problems} == wanted
    assert report.problem_count == 9
