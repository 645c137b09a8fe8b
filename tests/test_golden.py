"""The file format does not change by accident: fixed bytes, both ways.

``golden/version1.lmdb`` was written by :func:`build` when the format was fixed. It must be read for
as long as version 1 is. What is written today must have the same keys and values.
"""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path

import lmdb
import numpy as np
import pytest
import xxhash

from sharedds.store import ArrayValue, Field, Store, StoreWriter, verify

GOLDEN = Path(__file__).parent / "golden" / "version1.lmdb"

#: A grey picture of one pixel: PNG, 67 bytes.
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
)
VOLUME = np.arange(24, dtype="<i2").reshape(4, 3, 2)
WIDE = np.arange(4096, dtype=np.uint32).astype(np.uint8)

#: Key and value of each chunk.
CHUNKS = {
    "0000000000000000000000000000": PIXEL.hex(),
    "0000000000000000010000000000": VOLUME[:3].tobytes().hex(),
    "0000000000000000010000000001": VOLUME[3:].tobytes().hex(),
    "0000000000000000010100000000": VOLUME[::2].tobytes().hex(),
}

#: Each column: dtype, rows, shape of a row, rows per segment, checksum, and the bytes.
COLUMNS: dict[str, tuple[str, int, list[int], int, str, str]] = {
    "wide": ("|u1", 2, [4096], 1024, "", WIDE.tobytes().hex() + WIDE[::-1].tobytes().hex()),
    "volume@meta": (
        "|u1",
        116,
        [],
        67108864,
        "6869162d9e4791ad",
        (
            "7b226474797065223a223c6932222c226c6576656c73223a5b7b227368617065223a5b342c332c32"
            "5d2c226368756e6b223a5b332c332c325d7d2c7b227368617065223a5b322c332c325d2c22636875"
            "6e6b223a5b322c332c325d7d5d2c226174747273223a7b22736c6f7065223a322e357d7d"
        ),
    ),
    "volume@meta@ends": (
        "<u8",
        3,
        [],
        8388608,
        "78e5850aaf887820",
        "000000000000000074000000000000007400000000000000",
    ),
    "boxes": ("<f4", 4, [], 16777216, "a82f522ec4510db4", "0000803f000000400000404000008040"),
    "boxes@ends": (
        "<u8",
        3,
        [],
        8388608,
        "736c247a445fb749",
        "000000000000000004000000000000000400000000000000",
    ),
    "boxes@shape": (
        "<i8",
        2,
        [2],
        4194304,
        "646693281b0d065b",
        "0100000000000000040000000000000000000000000000000400000000000000",
    ),
    "label": ("<i2", 2, [], 33554432, "0db3369088125ef0", "feff2c01"),
    "wide@xxh3": ("<u8", 2, [], 8388608, "f0c67dfe25d87956", "51918707377c4bebcf0c03a87d01bd1a"),
    "text": ("|u1", 3, [], 67108864, "6b82fbe0bd87fd1b", "c3a4ff"),
    "text@ends": (
        "<u8",
        3,
        [],
        8388608,
        "781cb113855b2faa",
        "000000000000000003000000000000000300000000000000",
    ),
    "blob": ("|u1", 2, [], 67108864, "d6645fc3051a9457", "0001"),
    "blob@ends": (
        "<u8",
        3,
        [],
        8388608,
        "f1c911d6cc877ea5",
        "000000000000000002000000000000000200000000000000",
    ),
    "extra": ("|u1", 15, [], 67108864, "e4035a7be681ac58", "7b2261223a5b312c6e756c6c5d7d37"),
    "extra@ends": (
        "<u8",
        3,
        [],
        8388608,
        "3bb6625d072dc1f4",
        "00000000000000000e000000000000000f00000000000000",
    ),
    "@key": ("|u1", 11, [], 67108864, "86b39c4363aa4e16", "636174732f312e706e67ff"),
    "@key@ends": (
        "<u8",
        3,
        [],
        8388608,
        "f8a1fb40fa871f7f",
        "00000000000000000a000000000000000b00000000000000",
    ),
    "@key@hash": ("<u8", 2, [], 8388608, "a79b3971ef5503ae", "04e69238187459242ed7296b3cecbcd6"),
    "@key@order": ("<u8", 2, [], 8388608, "0cfbaea74a8cc0e5", "00000000000000000100000000000000"),
    "@classes": ("|u1", 6, [], 67108864, "1d75e685d0a37983", "636174646f67"),
    "@classes@ends": (
        "<u8",
        3,
        [],
        8388608,
        "49f2159a075e3fa1",
        "000000000000000003000000000000000600000000000000",
    ),
    "@first": (
        "<u8",
        5,
        [],
        8388608,
        "bf62e776d579ca12",
        ("00000000000000000100000000000000040000000000000004000000000000000400000000000000"),
    ),
    "@entries": (
        "<u8",
        4,
        [3],
        2097152,
        "",
        (
            "43000000000000008307567980a1a4b72400000000000000a643a11522523a060c00000000000000"
            "a81638f7d992451e18000000000000005d5a3eea77d240d6"
        ),
    ),
}

#: The header without its columns.
HEADER = {
    "format": "sharedds",
    "version": 1,
    "samples": 2,
    "entries": 4,
    "digest": "894d6e47adee3596551977659e6f87b9",
    "fields": [
        {"name": "image", "kind": "image", "codec": "png", "quality": 90},
        {"name": "volume", "kind": "blocks", "codec": "raw", "chunk": [3, 3, 2]},
        {"name": "boxes", "kind": "ragged", "dtype": "<f4"},
        {"name": "label", "kind": "column", "dtype": "<i2"},
        {"name": "wide", "kind": "column", "dtype": "|u1", "shape": [4096]},
        {"name": "text", "kind": "text"},
        {"name": "blob", "kind": "bytes"},
        {"name": "extra", "kind": "json"},
    ],
    "one_entry_each": False,
    "keyed": True,
    "classes": 2,
    "attrs": {"note": "é"},
}


def build(path: Path) -> None:
    """Write two samples with a field of every kind."""
    schema: dict[str, str | Field] = {
        "image": "png",
        "volume": Field("raw", chunk=(3, 3, 2)),
        "boxes": "array:float32",
        "label": "int16",
        "wide": "uint8[4096]",
        "text": "str",
        "blob": "bytes",
        "extra": "json",
    }
    with StoreWriter(path, schema=schema, attrs={"note": "é"}, classes=["cat", "dog"]) as writer:
        writer.add(
            {
                "image": PIXEL,
                "volume": ArrayValue(VOLUME, attrs={"slope": 2.5}, levels=(VOLUME[::2],)),
                "boxes": [[1, 2, 3, 4]],
                "label": -2,
                "wide": WIDE,
                "text": "ä\udcff",
                "blob": b"\0\1",
                "extra": {"a": [1, None]},
            },
            key="cats/1.png",
        )
        writer.add(
            {
                "image": None,
                "volume": None,
                "boxes": np.zeros((0, 4)),
                "label": 300,
                "wide": WIDE[::-1],
                "text": "",
                "blob": b"",
                "extra": 7,
            },
            key=b"\xff",
        )


def databases(path: Path) -> dict[str, dict[bytes, bytes]]:
    """Read all entries of a file with plain LMDB."""
    found = {}
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False, max_dbs=3) as environment:
        for name in ("header", "columns", "chunks"):
            database = environment.open_db(name.encode(), create=False)
            with environment.begin(database) as transaction:
                found[name] = {bytes(k): bytes(v) for k, v in transaction.cursor()}
    return found


def test_what_is_written_today_is_version_1(tmp_path: Path) -> None:
    """Keys and values are those of the specification, but for where LMDB puts them."""
    build(tmp_path / "new.lmdb")
    found = databases(tmp_path / "new.lmdb")
    assert {k.hex(): v.hex() for k, v in found["chunks"].items()} == CHUNKS
    entries = np.frombuffer(found["columns"][b"@entries\0\0\0\0\0"], "<u8").reshape(-1, 3)
    found["columns"][b"@entries\0\0\0\0\0"] = entries[:, 1:].tobytes()
    assert found["columns"] == {
        name.encode() + bytes(5): bytes.fromhex(data) for name, (*_, data) in COLUMNS.items()
    }
    header = json.loads(found["header"][b"header"])
    columns = header.pop("columns")
    assert header == HEADER
    assert {
        c["name"]: (
            c["dtype"],
            c["rows"],
            c.get("shape", []),
            c["segment_rows"],
            c.get("checksums", [""])[0],
        )
        for c in columns
    } == {name: facts[:-1] for name, facts in COLUMNS.items()}
    seal = xxhash.xxh3_64_intdigest(found["header"][b"header"])
    assert found["header"] == {
        b"header": found["header"][b"header"],
        b"seal": struct.pack(">Q", seal),
    }


def test_entries_lie_where_their_table_says() -> None:
    """An offset is one of the file, where the bytes of the value begin."""
    whole, found = GOLDEN.read_bytes(), databases(GOLDEN)
    table = np.frombuffer(found["columns"][b"@entries\0\0\0\0\0"], "<u8").reshape(-1, 3).tolist()
    for (offset, length, checksum), value in zip(table, found["chunks"].values(), strict=True):
        assert whole[offset : offset + length] == value
        assert xxhash.xxh3_64_intdigest(value) == checksum


@pytest.fixture(scope="module")
def store() -> Store:
    """The file that was written when the format was fixed."""
    return Store(GOLDEN)


def test_the_golden_file_reads_to_known_values(store: Store) -> None:
    """Every field of both samples, by key and by number."""
    first, second = store[store.index_of("cats/1.png")], store[store.index_of(b"\xff")]
    assert (len(store), store.key(0), store.key(1)) == (2, "cats/1.png", "\udcff")
    assert bytes(store.read("image", 0)) == PIXEL
    assert first["image"].tolist() == [[[128]]]
    assert np.array_equal(first["volume"], VOLUME)
    assert (first["boxes"].tolist(), first["boxes"].dtype) == ([[1, 2, 3, 4]], np.float32)
    assert (first["label"], first["text"], first["blob"]) == (-2, "ä\udcff", b"\0\1")
    assert first["extra"] == {"a": [1, None]}
    assert np.array_equal(store.column("wide"), [WIDE, WIDE[::-1]])
    assert (second["image"], second["volume"], second["boxes"].shape) == (None, None, (0, 4))
    assert (second["label"], second["text"], second["blob"]) == (300, "", b"")
    assert second["extra"] == 7


def test_the_golden_file_keeps_levels_and_attributes(store: Store) -> None:
    """Of the array, and of the store."""
    volume = store.array(0, "volume")
    assert (volume.chunk, volume.levels, volume.attrs) == (
        (3, 3, 2),
        ((4, 3, 2), (2, 3, 2)),
        {"slope": 2.5},
    )
    assert np.array_equal(volume.level(1)[:], VOLUME[::2])
    assert (list(store.classes or ()), store.attrs) == (["cat", "dog"], {"note": "é"})


def test_the_golden_file_verifies(store: Store) -> None:
    """Its digest is that of its content, as it is computed today."""
    assert verify(GOLDEN, untrusted=True).ok
    assert store.digest == HEADER["digest"]
