"""Damaged, foreign and hostile files: identical data or a clear error, never anything else."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
import xxhash
from processes import python
from stores import SCHEMA, everything, jpeg, key_of, png, sample, write

from sharedds.errors import (
    IncompleteStoreError,
    SharedDSError,
    SourceError,
    StoreChangedError,
    StoreError,
    StoreFormatError,
    StoreNotFoundError,
)
from sharedds.store import Store, StoreWriter, verify
from sharedds.store.layout import CHUNK_KEY
from sharedds.store.pages import Pages

PAGE = 4096


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


def outcome(path: Path, expected: dict[str, Any]) -> str:
    """Open and read everything; return the name of the error, or ``"identical"``."""
    started, problem, found = time.monotonic(), None, None
    try:
        found = everything(Store(path))
    except SharedDSError as error:
        problem = error
    assert time.monotonic() - started < 1
    if problem is None:
        assert found == expected
        return "identical"
    assert str(path) in str(problem)
    return type(problem).__name__


# --- damage --------------------------------------------------------------------------------------


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
    opened = store.opened
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


# --- verify --------------------------------------------------------------------------------------


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


def damage(path: Path, position: int, value: bytes | None = None) -> None:
    """Flip a bit, or write some bytes."""
    with path.open("r+b") as file:
        file.seek(position)
        old = file.read(1)
        file.seek(position)
        file.write(bytes([old[0] ^ 1]) if value is None else value)


def test_verify_names_a_damaged_row(path: Path) -> None:
    """Long rows have a checksum each."""
    offset, _ = Store(path).opened._locate("pixels", 0)
    damage(path, offset + 7 * 4800)
    (problem,) = verify(path).problems
    assert (problem.sample, problem.field) == (7, "pixels")


def test_a_gather_of_long_rows_is_checked(path: Path) -> None:
    """A batch, a slice and the whole column as well as a single row; others stay readable."""
    offset, _ = Store(path).opened._locate("pixels", 0)
    damage(path, offset + 7 * 4800)
    column = Store(path).column("pixels")
    for index in (7, [1, 7], slice(5, 9), slice(None, None, 7)):
        with pytest.raises(SharedDSError, match="sample 7, field 'pixels'"):
            column[index]
    assert column[[0, 6, 8]].shape == (3, 40, 40, 3)


@pytest.mark.parametrize("column", ["label", "caption", "@key", "@first", "volume@meta@ends"])
def test_verify_names_a_damaged_column(path: Path, column: str) -> None:
    """The column and the rows that share a checksum."""
    offset, _ = Store(path).opened._locate(column, 0)
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


# --- hostile headers -----------------------------------------------------------------------------


def rewrite(
    path: Path,
    change: Callable[[dict[str, Any]], Any] = lambda header: None,
    columns: Callable[[dict[bytes, bytes]], Any] = lambda columns: None,
    *,
    text: bytes | None = None,
) -> None:
    """Change the header and columns of a store as somebody would who knows the checksums."""
    with lmdb.open(str(path), subdir=False, lock=False, max_dbs=3) as environment:
        header_db, columns_db = (environment.open_db(n) for n in (b"header", b"columns"))
        with environment.begin(write=True) as transaction:
            cells = {bytes(k): bytes(v) for k, v in transaction.cursor(columns_db)}
            columns(cells)
            for key, value in cells.items():
                transaction.put(key, value, db=columns_db)
            header = json.loads(transaction.get(b"header", db=header_db) or b"")
            for column in header["columns"]:
                if "checksums" in column:
                    cell = cells[column["name"].encode() + bytes(5)]
                    column["checksums"] = [xxhash.xxh3_64_hexdigest(cell)]
            header = change(header) or header
            data = json.dumps(header).encode() if text is None else text
            transaction.put(b"header", data, db=header_db)
            transaction.put(b"seal", xxhash.xxh3_64_digest(data), db=header_db)


def column_of(header: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the description of a column in a header."""
    found: dict[str, Any] = next(c for c in header["columns"] if c["name"] == name)
    return found


def field_of(header: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the description of a field in a header."""
    found: dict[str, Any] = next(f for f in header["fields"] if f["name"] == name)
    return found


def drop(header: dict[str, Any], name: str) -> None:
    """Take a column out of a header."""
    header["columns"].remove(column_of(header, name))


LIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another format": lambda h: h.update(format="other"),
    "a later version": lambda h: h.update(version=2),
    "a version that is none": lambda h: h.update(version="1"),
    "a list": lambda h: [h],
    "an unknown name": lambda h: h.update(extra=1),
    "samples 2^62": lambda h: h.update(samples=1 << 62),
    "samples 2^63": lambda h: h.update(samples=1 << 63),
    "samples 2^200": lambda h: h.update(samples=1 << 200),
    "fewer samples": lambda h: h.update(samples=3),
    "negative samples": lambda h: h.update(samples=-1),
    "samples as text": lambda h: h.update(samples="9"),
    "samples as null": lambda h: h.update(samples=None),
    "more entries": lambda h: h.update(entries=h["entries"] + 1),
    "entries 2^62": lambda h: h.update(entries=1 << 62),
    "one entry each": lambda h: h.update(one_entry_each=True),
    "no keys": lambda h: h.update(keyed=False),
    "more classes": lambda h: h.update(classes=3),
    "no fields": lambda h: h.update(fields=[]),
    "a field twice": lambda h: h["fields"].append(h["fields"][0]),
    "a field with a path": lambda h: field_of(h, "photo").update(name="../photo"),
    "a field of another kind": lambda h: field_of(h, "photo").update(kind="pickle"),
    "an image as blocks": lambda h: field_of(h, "photo").update(kind="blocks", codec="lz4"),
    "an unknown codec": lambda h: field_of(h, "photo").update(codec="jpeg2000"),
    "a dtype of objects": lambda h: field_of(h, "label").update(dtype="|O"),
    "a dtype of 16 bytes": lambda h: field_of(h, "label").update(dtype="<c16"),
    "a huge shape": lambda h: field_of(h, "weight").update(shape=[1 << 40, 1 << 40]),
    "a shape of nothing": lambda h: field_of(h, "weight").update(shape=[0]),
    "a shape of nine": lambda h: field_of(h, "weight").update(shape=[1] * 9),
    "a column of objects": lambda h: column_of(h, "label").update(dtype="|O"),
    "a column of floats": lambda h: column_of(h, "label").update(dtype="<f8"),
    "rows 2^40": lambda h: column_of(h, "caption").update(rows=1 << 40),
    "rows 2^64": lambda h: column_of(h, "caption").update(rows=1 << 64),
    "negative rows": lambda h: column_of(h, "caption").update(rows=-1),
    "fewer rows": lambda h: column_of(h, "label").update(rows=3),
    "segments of no rows": lambda h: column_of(h, "label").update(segment_rows=0),
    "segments of one row": lambda h: column_of(h, "label").update(segment_rows=1),
    "a column twice": lambda h: h["columns"].append(h["columns"][0]),
    "a column too many": lambda h: h["columns"].append(column_of(h, "label") | {"name": "x"}),
    "no table of entries": lambda h: drop(h, "@entries"),
    "no label": lambda h: drop(h, "label"),
    "no checksums of rows": lambda h: drop(h, "pixels@xxh3"),
    "no order of keys": lambda h: drop(h, "@key@order"),
    "no checksum": lambda h: column_of(h, "label").update(checksums=[]),
    "checksums of rows elsewhere": lambda h: column_of(h, "pixels").update(checksums=["00"]),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_refused(path: Path, lie: str) -> None:
    """Before anything is read or allocated by it, although its checksum is right."""
    rewrite(path, LIES[lie])
    started = time.monotonic()
    with pytest.raises(StoreFormatError) as caught:
        Store(path)
    assert str(path) in str(caught.value)
    assert caught.value.path == str(path)
    assert time.monotonic() - started < 1


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"null",
        b"\xff",
        b"[" * 200_000,
        b'{"format":"sharedds","version":1}',
        b"1" * 1000,
    ],
    ids=range(7),
)
def test_a_header_that_is_none_is_refused(path: Path, text: bytes) -> None:
    """Whatever bytes there are."""
    rewrite(path, text=text)
    with pytest.raises(StoreFormatError):
        Store(path)


def test_a_header_that_is_too_long_is_refused(path: Path) -> None:
    """Before it is parsed."""
    with (
        lmdb.open(str(path), subdir=False, lock=False, max_dbs=3, map_size=1 << 28) as environment,
        environment.begin(environment.open_db(b"header"), write=True) as transaction,
    ):
        transaction.put(b"header", bytes((64 << 20) + 1))
        transaction.put(b"seal", xxhash.xxh3_64_digest(bytes((64 << 20) + 1)))
    with pytest.raises(StoreFormatError, match="67,108,865 bytes; 67,108,864 is the limit"):
        Store(path)


def test_the_codecs_there_are_are_named(path: Path) -> None:
    """An unknown codec is told together with the known ones, an unknown version with this one."""
    rewrite(path, LIES["an unknown codec"])
    with pytest.raises(StoreFormatError, match=r"jpeg2000.*known: jpeg, png, webp, keep"):
        Store(path)
    rewrite(path, LIES["a later version"])
    with pytest.raises(StoreFormatError, match="format version 2, this release reads 1"):
        Store(path)


def cell(columns: dict[bytes, bytes], name: str, at: int, number: int) -> None:
    """Overwrite one number of 8 bytes in a column."""
    key = name.encode() + bytes(5)
    data = bytearray(columns[key])
    struct.pack_into("<Q", data, at * 8, number)
    columns[key] = bytes(data)


TABLES: dict[str, Callable[[dict[bytes, bytes]], Any]] = {
    "an entry outside the file": lambda c: cell(c, "@entries", 0, 1 << 62),
    "an entry of 2^63 bytes": lambda c: cell(c, "@entries", 1, 1 << 63),
    "entries that overlap": lambda c: cell(c, "@entries", 3, _entry(c, 0)),
    "an entry over the header": lambda c: cell(c, "@entries", 0, 0),
    "counts that run backwards": lambda c: cell(c, "@first", 4, 0),
    "counts beyond the end": lambda c: cell(c, "@first", 4, 1 << 60),
    "texts beyond the end": lambda c: cell(c, "caption@ends", 3, 1 << 60),
    "texts that run backwards": lambda c: cell(c, "caption@ends", 3, 0),
    "a negative shape": lambda c: cell(c, "boxes@shape", 2, (1 << 64) - 1),
    "a huge shape": lambda c: cell(c, "boxes@shape", 2, 1 << 62),
    "an order beyond the end": lambda c: cell(c, "@key@order", 0, 1 << 40),
    "an order of equals": lambda c: cell(c, "@key@order", 0, _order(c, 1)),
    "an order of others": lambda c: c.update(
        {b"@key@order" + bytes(5): np.arange(9, dtype="<u8").tobytes()}
    ),
    "an order beyond any end": lambda c: cell(c, "@key@order", 0, (1 << 64) - 1),
    "a column that is missing": lambda c: c.update({b"label" + bytes(5): b""}),
    "a column that is longer": lambda c: c.update({b"label" + bytes(5): bytes(80)}),
    "JSON that is none": lambda c: c.update(
        {b"extra" + bytes(5): b"{" * len(c[b"extra" + bytes(5)])}
    ),
    "arrays that are none": lambda c: c.update(
        {b"volume@meta" + bytes(5): b"{" * len(c[b"volume@meta" + bytes(5)])}
    ),
}


def _order(columns: dict[bytes, bytes], at: int) -> int:
    return int(np.frombuffer(columns[b"@key@order" + bytes(5)], "<u8")[at])


def _entry(columns: dict[bytes, bytes], at: int) -> int:
    return int(np.frombuffer(columns[b"@entries" + bytes(5)], "<u8")[at])


@pytest.mark.parametrize("lie", TABLES)
def test_a_table_that_lies_is_noticed(path: Path, expected: dict[str, Any], lie: str) -> None:
    """Numbers inside columns, with checksums that fit: reading ends in an error of ours."""
    rewrite(path, columns=TABLES[lie])
    assert outcome(path, expected) not in ("identical", "IncompleteStoreError")


@pytest.mark.parametrize("lie", TABLES)
@pytest.mark.parametrize("untrusted", [False, True])
def test_verify_finds_a_table_that_lies(path: Path, lie: str, *, untrusted: bool) -> None:
    """A report with problems, or the error that it is no store."""
    rewrite(path, columns=TABLES[lie])
    try:
        report = verify(path, untrusted=untrusted)
    except StoreError:
        return
    assert not report.ok


def test_decoded_values_are_checked_too(tmp_path: Path) -> None:
    """Bytes that were never a picture, stored with the right checksum, are named as such."""
    with StoreWriter(tmp_path / "x.lmdb", schema={"image": "keep"}) as writer:
        writer.add({"image": jpeg(1)[:200]}, key="broken.jpg")
    with pytest.raises(StoreError, match=r"sample 0 \(broken.jpg\), field 'image' does not decode"):
        Store(tmp_path / "x.lmdb")[0]


# --- hostile structure ---------------------------------------------------------------------------


def tree_record(path: Path, name: str) -> int:
    """Return the offset of the record of a named database."""
    pages = Pages(memoryview(path.read_bytes()), str(path))
    found = pages.find(pages.main, name.encode())
    assert found is not None
    return found[0]


def tree_page(path: Path, name: str, kind: int) -> int:
    """Return the offset of the first branch (1) or leaf (2) page of a database."""
    pages = Pages(memoryview(path.read_bytes()), str(path))
    tree = pages.database(name)
    assert tree is not None
    return next(at for found, at, _ in pages.walk(tree) if found == kind)


@pytest.fixture(scope="module")
def tall(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose tree of chunks has branches."""
    path = tmp_path_factory.mktemp("tall") / "tall.lmdb"
    with StoreWriter(path, schema={"image": "keep"}) as writer:
        for number in range(300):
            writer.add({"image": b"\x89PNG\r\n\x1a\n" + number.to_bytes(2, "big") * 20})
    pages = Store(path).opened.pages
    tree = pages.database("chunks")
    assert tree is not None
    assert tree.depth == 2
    return path


def set_number(path: Path, at: int, form: str, number: int) -> None:
    """Overwrite a number in the file."""
    damage(path, at, struct.pack(form, number))


def cycle(path: Path) -> None:
    """Let a branch point to itself."""
    at = tree_page(path, "chunks", 1)
    node = at + struct.unpack_from("<H", path.read_bytes(), at + 16)[0]
    set_number(path, node, "<H", at // PAGE)


def swap(path: Path) -> None:
    """Put two keys of a leaf out of order."""
    at = tree_page(path, "chunks", 2)
    first, second = path.read_bytes()[at + 16 : at + 18], path.read_bytes()[at + 18 : at + 20]
    damage(path, at + 16, second + first)


def shared_page(path: Path) -> None:
    """Let two nodes of a branch lead to one page."""
    at = tree_page(path, "chunks", 1)
    data = path.read_bytes()
    first, second = (at + n for n in struct.unpack_from("<HH", data, at + 16))
    damage(path, second, data[first : first + 4])


ATTACKS: dict[str, Callable[[Path], Any]] = {
    "a tree that runs in circles": cycle,
    "keys out of order": swap,
    "a page used twice": shared_page,
    "a tree that is too deep": lambda p: set_number(p, tree_record(p, "chunks") + 6, "<H", 60_000),
    "a tree of another depth": lambda p: set_number(p, tree_record(p, "chunks") + 6, "<H", 3),
    "a tree of flags": lambda p: set_number(p, tree_record(p, "chunks") + 4, "<H", 4),
    "a root outside": lambda p: set_number(p, tree_record(p, "chunks") + 40, "<Q", 1 << 40),
    "a root in the header": lambda p: set_number(p, tree_record(p, "chunks") + 40, "<Q", 0),
    "entries that are not there": lambda p: set_number(p, tree_record(p, "chunks") + 32, "<Q", 301),
    "a leaf of another kind": lambda p: set_number(p, tree_page(p, "chunks", 2) + 10, "<H", 0x22),
    "nodes outside their page": lambda p: set_number(p, tree_page(p, "chunks", 2) + 16, "<H", 4095),
    "more nodes than fit": lambda p: set_number(p, tree_page(p, "chunks", 2) + 12, "<H", 60_000),
    "no nodes at all": lambda p: set_number(p, tree_page(p, "chunks", 2) + 12, "<H", 16),
    "a page with another number": lambda p: set_number(p, tree_page(p, "chunks", 2), "<Q", 7),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_verify_refuses_a_hostile_structure(tall: Path, tmp_path: Path, attack: str) -> None:
    """Each is found before LMDB is given the file, in less than a second."""
    path = Path(shutil.copy(tall, tmp_path / "attack.lmdb"))
    assert verify(path, untrusted=True).ok
    ATTACKS[attack](path)
    started = time.monotonic()
    with pytest.raises(StoreFormatError, match=r"attack\.lmdb"):
        verify(path, untrusted=True)
    assert time.monotonic() - started < 1


@pytest.mark.parametrize("attack", ATTACKS)
def test_reading_a_hostile_structure_ends(tall: Path, tmp_path: Path, attack: str) -> None:
    """Reading never follows the tree of chunks: it is the data that were written, or an error."""
    path = Path(shutil.copy(tall, tmp_path / "attack.lmdb"))
    ATTACKS[attack](path)
    wanted = [bytes(v) for v in Store(tall).read_many("image", range(300))]
    with contextlib.suppress(SharedDSError):
        assert [bytes(v) for v in Store(path).read_many("image", range(300))] == wanted
    assert not _ok(path)


def _ok(path: Path) -> bool:
    try:
        return verify(path, untrusted=True).ok
    except StoreError:
        return False


def test_a_list_of_free_pages_may_be_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of commits, whose numbers as bytes are not in order, are a good structure."""
    monkeypatch.setattr("sharedds.store.writer._COMMIT", 1)
    with StoreWriter(tmp_path / "x.lmdb", schema={"x": "keep"}) as writer:
        for number in range(400):
            writer.add({"x": b"BM" + bytes(60 + number * 40)})
    assert verify(tmp_path / "x.lmdb", untrusted=True).ok


# --- foreign files -------------------------------------------------------------------------------


def foreign_lmdb(path: Path) -> None:
    """Make an LMDB file of somebody else."""
    with (
        lmdb.open(str(path), subdir=False, lock=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(b"key", b"value")


def other_version(path: Path) -> None:
    """Make a store of another LMDB format version."""
    write(path, 1)
    for page in (0, PAGE):
        at = path.read_bytes().index(b"\xde\xc0\xef\xbe", page)
        damage(path, at + 4, struct.pack("<I", 9))


FOREIGN: dict[str, tuple[Callable[[Path], Any], type[SharedDSError], str]] = {
    "text": (lambda p: p.write_text("hello " * 5000), StoreFormatError, "no LMDB mark.*hello"),
    "short text": (lambda p: p.write_text("hello"), StoreFormatError, "5 bytes are too few"),
    "empty": (Path.touch, StoreFormatError, "is empty"),
    "picture": (lambda p: p.write_bytes(png(0, 200)), StoreFormatError, "no LMDB mark.*PNG"),
    "zeros": (lambda p: p.write_bytes(bytes(1 << 20)), StoreFormatError, "no LMDB mark"),
    "folder": (Path.mkdir, StoreFormatError, "a folder without a store"),
    "missing": (lambda p: None, StoreNotFoundError, "no such file; check the spelling"),
    "pipe": (os.mkfifo, StoreFormatError, "a pipe"),
    "another LMDB file": (foreign_lmdb, StoreFormatError, "but not a store of sharedds"),
    "another LMDB version": (other_version, StoreFormatError, "LMDB data format 9.*only 1"),
    "a circle of links": (lambda p: p.symlink_to(p), SourceError, "cannot be opened"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_no_store_is_refused(tmp_path: Path, kind: str) -> None:
    """The error tells the whole path and what was found, at once, and nothing is created."""
    make, error, text = FOREIGN[kind]
    path = tmp_path / "thing.lmdb"
    make(path)
    before = sorted(os.listdir(tmp_path))
    started = time.monotonic()
    with pytest.raises(error, match=text) as caught:
        Store(path)
    assert time.monotonic() - started < 1
    assert str(path) in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == before


def test_an_unfinished_store_says_so(tmp_path: Path) -> None:
    """The folder, the file in it, and the name it will have."""
    path = tmp_path / "x.lmdb"
    writer = StoreWriter(path, schema={"x": "int64"}, resume="work")
    writer.add({"x": 1})
    writer._partial.commit(samples=1, entries=0)
    writer.abort()
    partial = tmp_path / "x.lmdb.partial"
    for unfinished in (partial, partial / "data.lmdb"):
        with pytest.raises(IncompleteStoreError, match="run the same pack again"):
            Store(unfinished)
    with pytest.raises(StoreNotFoundError, match="holds an unfinished pack"):
        Store(path)


# --- names of a store ----------------------------------------------------------------------------


def test_all_spellings_open_the_same_store(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, Any]
) -> None:
    """File or folder, with a slash, as a path, relative, below the home folder, by a link."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "folder.lmdb"
    folder.mkdir()
    shutil.copy(good, folder / "data.mdb")
    (tmp_path / "link").symlink_to(good)
    spellings: list[str | Path] = [
        good,
        str(good),
        f"{good}/",
        os.path.relpath(good),
        tmp_path / "link",
        folder,
        f"{folder}/",
        folder / "data.mdb",
        "folder.lmdb",
        "./folder.lmdb/data.mdb",
        "~/folder.lmdb",
        "~/link",
    ]
    stores = [Store(spelling) for spelling in spellings]
    monkeypatch.chdir("/")
    assert {store.digest for store in stores} == {Store(good).digest}
    assert all(bytes(store.read("photo", 0)) == jpeg(0) for store in stores)
    monkeypatch.setenv("HOME", "/nowhere")
    assert everything(stores[-1]) == expected


def test_a_store_that_was_replaced_is_noticed(path: Path) -> None:
    """An object goes on with the file it has open; one that opens anew refuses another content."""
    store = Store(path)
    closed = Store(path)
    del closed.__dict__["per_process Store.opened"]
    write(path, 2, force=True)
    assert len(store) == 9
    assert store[8]["label"] == sample(8)["label"]
    with pytest.raises(StoreChangedError, match="was replaced by another store"):
        len(closed)
    assert len(Store(path)) == 2


def test_a_store_that_was_packed_again_is_the_same(path: Path) -> None:
    """Equal content under the same name is as good as the file it was."""
    store = Store(path)
    del store.__dict__["per_process Store.opened"]
    write(path, 9, force=True)
    assert list(store[3]) == list(SCHEMA)


def test_chunks_have_the_keys_of_the_specification(good: Path) -> None:
    """Big-endian numbers, so that the order of the keys is the order of the samples."""
    assert CHUNK_KEY.pack(1, 2, 3, 4) == bytes.fromhex("0000000000000001 02 03 00000004")
    assert CHUNK_KEY.size == 14
    assert len(Store(good)) == 9
