"""Hostile stores: pages that lead astray."""

from __future__ import annotations

import contextlib
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attacks import PAGE, damage
from stores import HEAD, opened_file

from sharedds.errors import (
    SharedDSError,
    StoreError,
    StoreFormatError,
)
from sharedds.store import Store, StoreWriter, verify
from sharedds.store.pages import Pages


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
            writer.add({"image": HEAD + number.to_bytes(2, "big") * 20})
    pages = opened_file(Store(path)).pages
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
            writer.add({"x": HEAD + bytes(8 + number * 40)})
    assert verify(tmp_path / "x.lmdb", untrusted=True).ok
