"""Ways to damage a store, and what may come of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import xxhash
from stores import everything

from sharedds.errors import (
    SharedDSError,
)
from sharedds.store import Store

__all__ = ["PAGE", "damage", "outcome", "rewrite"]

PAGE = 4096


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


def damage(path: Path, position: int, value: bytes | None = None) -> None:
    """Flip a bit, or write some bytes."""
    with path.open("r+b") as file:
        file.seek(position)
        old = file.read(1)
        file.seek(position)
        file.write(bytes([old[0] ^ 1]) if value is None else value)


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
