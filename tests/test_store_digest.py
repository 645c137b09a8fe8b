"""The digest of a store, and work that goes on where it stopped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stores import SCHEMA, cut_small, everything, jpeg, key_of, sample, write

from sharedds.store import ArrayValue, Store, StoreWriter, verify


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of twelve samples with fields of every kind."""
    return write(tmp_path_factory.mktemp("stores") / "all.lmdb")


@pytest.fixture(scope="module")
def store(path: Path) -> Store:
    """The same, opened."""
    return Store(path)


@pytest.fixture
def small_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit after every sample or so, in segments of a few rows."""
    cut_small(monkeypatch)


@pytest.mark.usefixtures("small_commits")
@pytest.mark.parametrize("stop", range(0, 12, 3))
def test_work_goes_on_where_it_stopped(tmp_path: Path, stop: int) -> None:
    """The same text goes on after the last commit; the result is that of an undisturbed run."""
    options: dict[str, Any] = {"schema": SCHEMA, "resume": "work"}
    writer = StoreWriter(tmp_path / "x.lmdb", **options)
    for number in range(stop):
        writer.add(sample(number), key=key_of(number))
    writer.abort()
    with StoreWriter(tmp_path / "x.lmdb", **options) as writer:
        done = len(writer)
        assert stop - 4 < done <= stop
        assert list(writer.keys()) == [key_of(i).encode() for i in range(done)]
        for number in range(done, 12):
            writer.add(sample(number), key=key_of(number))
    whole = Store(write(tmp_path / "whole.lmdb", classes=None, attrs=None))
    assert everything(Store(tmp_path / "x.lmdb")) == everything(whole)
    assert verify(tmp_path / "x.lmdb", untrusted=True).ok


@pytest.mark.usefixtures("small_commits")
def test_keys_of_a_resumed_run_include_empty_ones(tmp_path: Path) -> None:
    """Each key once, in order, whatever its length."""
    keys = [b"a", b"", b"ccc"]
    writer = StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"}, resume="w")
    for key in keys:
        writer.add({"x": 1}, key=key)
    writer.abort()
    writer = StoreWriter(tmp_path / "x.lmdb", schema={"x": "int64"}, resume="w")
    assert list(writer.keys()) == keys
    writer.abort()


@pytest.mark.usefixtures("small_commits")
@pytest.mark.parametrize(
    "options", [{"resume": "other"}, {"schema": {"x": "int32"}}, {"resume": None}]
)
def test_other_work_starts_anew(tmp_path: Path, options: dict[str, Any]) -> None:
    """Another text, another schema or none at all: what was begun does not count."""
    first: dict[str, Any] = {"schema": {"x": "int64"}, "resume": "work"}
    writer = StoreWriter(tmp_path / "x.lmdb", **first)
    writer.add({"x": 1})
    writer.abort()
    with StoreWriter(tmp_path / "x.lmdb", **first | options) as writer:
        assert len(writer) == 0
    assert len(Store(tmp_path / "x.lmdb")) == 0
    assert os.listdir(tmp_path) == ["x.lmdb"]


@pytest.mark.usefixtures("small_commits")
@pytest.mark.parametrize("damage", ["spool", "data.lmdb", "short spool"])
def test_a_damaged_working_folder_starts_anew(tmp_path: Path, damage: str) -> None:
    """A crash of the machine may leave anything; nobody has to clean up."""
    options: dict[str, Any] = {"schema": {"x": "int64"}, "resume": "work"}
    writer = StoreWriter(tmp_path / "x.lmdb", **options)
    for number in range(3):
        writer.add({"x": number})
    writer.abort()
    file = tmp_path / "x.lmdb.partial" / damage.split()[-1]
    if damage == "short spool":
        os.truncate(file, 20)
    else:
        file.write_bytes(b"\0" * file.stat().st_size)
    with StoreWriter(tmp_path / "x.lmdb", **options) as writer:
        assert len(writer) == 0
        writer.add({"x": 5})
    assert Store(tmp_path / "x.lmdb")[0] == {"x": 5}


def test_the_digest_does_not_depend_on_commits(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch, small_commits: None
) -> None:
    """However it was cut and committed, equal content has one digest, and reads the same."""
    monkeypatch.setattr("sharedds.store.partial._STEP", (4 << 20) + 5000)
    cut = Store(write(tmp_path / "cut.lmdb"))
    assert cut.column("pixels").segments > Store(path).column("pixels").segments
    assert cut.digest == Store(path).digest
    assert everything(cut) == everything(Store(path))
    assert verify(cut.path, untrusted=True).ok


CHANGED = [
    ("photo", jpeg(99)),
    ("mask", None),
    ("volume", ArrayValue(np.zeros((10, 9, 8), np.int16))),
    ("packed", np.arange(5, dtype=np.uint32)),
    ("boxes", np.zeros((12, 1), np.float32)),
    ("label", 77),
    ("weight", [0, 0, 1]),
    ("flag", False),
    ("pixels", np.zeros((40, 40, 3), np.uint8)),
    ("caption", "other"),
    ("blob", b"other"),
    ("extra", []),
]


@pytest.mark.parametrize(("field", "value"), CHANGED, ids=[name for name, _ in CHANGED])
def test_the_digest_tells_any_difference(
    tmp_path: Path, store: Store, field: str, value: Any
) -> None:
    """Another value in one field of one sample is another digest."""
    with StoreWriter(tmp_path / "x.lmdb", schema=SCHEMA, classes=["a", "b\udcfe"]) as writer:
        for number in range(12):
            other = {field: value} if number == 4 else {}
            writer.add(sample(number) | other, key=key_of(number))
    assert Store(tmp_path / "x.lmdb").digest != store.digest


def test_the_digest_tells_keys_and_classes_but_not_attributes(tmp_path: Path, store: Store) -> None:
    """Names belong to the content; notes about it do not."""
    others: list[dict[str, Any]] = [
        {"keyed": False},
        {"classes": ["a", "c"]},
        {"classes": None},
        {"attrs": {"b": 1}},
    ]
    digests = {
        Store(write(tmp_path / f"{number}.lmdb", **options)).digest
        for number, options in enumerate(others)
    }
    assert len(digests) == 4
    assert store.digest in digests
