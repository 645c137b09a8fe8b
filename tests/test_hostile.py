"""Hostile stores: headers and tables that lie, with checksums that fit."""

from __future__ import annotations

import contextlib
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
import xxhash
from attacks import outcome, rewrite
from stores import everything, jpeg, write

from sharedds.errors import (
    ImageTooLargeError,
    StoreError,
    StoreFormatError,
)
from sharedds.store import Store, StoreWriter, info, verify


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
    "segments of three rows": lambda h: column_of(h, "label").update(segment_rows=3),
    "a column twice": lambda h: h["columns"].append(h["columns"][0]),
    "a column too many": lambda h: h["columns"].append(column_of(h, "label") | {"name": "x"}),
    "no table of entries": lambda h: drop(h, "@entries"),
    "no label": lambda h: drop(h, "label"),
    "no checksums of rows": lambda h: drop(h, "pixels@xxh3"),
    "no order of keys": lambda h: drop(h, "@key@order"),
    "no checksum": lambda h: column_of(h, "label").update(checksums=[]),
    "a checksum too many": lambda h: column_of(h, "label")["checksums"].append("0" * 16),
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


@pytest.mark.parametrize("lie", [*TABLES])
def test_a_summary_of_a_table_that_lies_ends(path: Path, lie: str) -> None:
    """A summary, or an error of ours."""
    rewrite(path, columns=TABLES[lie])
    with contextlib.suppress(StoreError):
        info(path)


def test_decoded_values_are_checked_too(tmp_path: Path) -> None:
    """A picture that is not whole, stored with the right checksum, is named as such."""
    with StoreWriter(tmp_path / "x.lmdb", schema={"image": "keep"}) as writer:
        writer.add({"image": jpeg(1, 64)[:-500]}, key="broken.jpg")
    with pytest.raises(StoreError, match=r"sample 0 \(broken.jpg\), field 'image' does not decode"):
        Store(tmp_path / "x.lmdb")[0]


@pytest.mark.parametrize(
    ("attrs", "refused"),
    [
        ({}, 65_535),
        ({"recipe": {"max_pixels": 255}}, 16),
        ({"recipe": {"max_pixels": 256}}, 17),
        ({"recipe": {"max_pixels": "many"}}, 65_535),
        ({"recipe": 5}, 65_535),
    ],
)
def test_a_picture_with_too_many_pixels_is_refused_undecoded(
    tmp_path: Path, attrs: dict[str, Any], refused: int
) -> None:
    """The limit is the one the store was packed with, or the one for all."""
    bomb = bytearray(jpeg(1))
    at = bomb.index(b"\xff\xc0") + 5  # height and width
    bomb[at : at + 4] = struct.pack(">HH", refused, refused)
    with StoreWriter(tmp_path / "x.lmdb", schema={"image": "jpeg"}, attrs=attrs) as writer:
        writer.add({"image": bytes(bomb)}, key="bomb.jpg")
        writer.add({"image": jpeg(1, 15)}, key="small.jpg")
    store = Store(tmp_path / "x.lmdb")
    for call in (lambda: store[0], lambda: store.array(0, "image")):
        with pytest.raises(
            ImageTooLargeError, match=r"sample 0, field 'image'.*max_pixels"
        ) as caught:
            call()
        assert caught.value.key == "bomb.jpg"
    assert bytes(store.read("image", 0)) == bytes(bomb)
    assert store[1]["image"].shape == (15, 15, 3)
