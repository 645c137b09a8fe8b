"""Small stores of every kind, and all that can be read from one."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import sharedds.store.layout
import sharedds.store.writer
from sharedds.store import ArrayValue, Field, Store, StoreWriter
from sharedds.store.opened import OpenedStore

__all__ = [
    "HEAD",
    "SCHEMA",
    "contents",
    "cut_small",
    "everything",
    "jpeg",
    "key_of",
    "opened_file",
    "png",
    "sample",
    "write",
]

#: Every kind of field, with wide and narrow columns.
SCHEMA: dict[str, str | Field] = {
    "photo": "jpeg",
    "mask": "png",
    "file": "keep",
    "volume": Field("lz4", chunk=(4, 5, 6)),
    "plain": "raw",
    "packed": "zstd",
    "boxes": "array:float32",
    "label": "int64",
    "weight": "float32[3]",
    "flag": "bool",
    "pixels": "uint8[40, 40, 3]",
    "caption": "str",
    "blob": "bytes",
    "extra": "json",
}


def opened_file(store: Store) -> OpenedStore:
    """The open file of a store that is one, and no folder of shards."""
    assert isinstance(store.opened, OpenedStore)
    return store.opened


def picture(number: int, side: int = 16) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return pixels that differ for each number."""
    return np.random.default_rng(number).integers(0, 256, (side, side, 3), np.uint8)


def coded(pixels: np.ndarray[Any, Any], kind: str) -> bytes:
    """Return the bytes of a file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def jpeg(number: int, side: int = 16) -> bytes:
    """Return a JPEG."""
    return coded(picture(number, side), "JPEG")


def png(number: int, side: int = 16) -> bytes:
    """Return a PNG."""
    return coded(picture(number, side)[:, :, 0], "PNG")


#: The headers of a picture; with any bytes behind it, it can be stored in a ``keep`` field.
HEAD = coded(picture(0, 1), "BMP")[:54]


def key_of(number: int) -> str:
    """Return the key of a sample."""
    return f"folder/é{number:03d}.jpg"


def sample(number: int) -> dict[str, Any]:
    """Return one sample of :data:`SCHEMA`; some have no value in some fields."""
    volume = np.arange(number * 7, number * 7 + 10 * 9 * 8, dtype=np.int16).reshape(10, 9, 8)
    half = volume[::2, ::2, ::2]
    scaled = ArrayValue(volume, attrs={"slope": 2, "intercept": -5.5}, levels=(half,))
    return {
        "photo": jpeg(number),
        "mask": None if number % 3 == 0 else png(number),
        "file": png(number) if number % 2 else jpeg(number + 1000, 8),
        "volume": scaled if number % 4 else None,
        "plain": np.full((number % 5, 2), number, np.float64),
        "packed": np.arange(number, dtype=np.uint32),
        "boxes": np.full((number % 4, 4), number / 2, np.float32),
        "label": number - 5,
        "weight": [number, 0.5, -number],
        "flag": number % 2 == 0,
        "pixels": picture(number, 40),
        "caption": f"sample {number} 猫 \udcff" if number % 6 else "",
        "blob": bytes(range(number % 256)),
        "extra": {"number": number, "list": [None, True, 1.5, "ä"]},
    }


def write(path: Path, count: int = 12, *, keyed: bool = True, **options: Any) -> Path:
    """Write a store of ``count`` samples and return its path."""
    options = {"schema": SCHEMA, "classes": ["a", "b\udcfe"], "attrs": {"root": "/src"}} | options
    with StoreWriter(path, **options) as writer:
        for number in range(count):
            writer.add(sample(number), key=key_of(number) if keyed else None)
    return path


def contents(store: Store) -> Iterator[tuple[str, Any]]:
    """Read everything there is in a store, in plain values that can be compared."""
    yield "fields", store.fields
    yield "attrs", store.attrs
    yield "classes", None if store.classes is None else list(store.classes)
    for number in range(len(store)):
        key = store.key(number)
        yield f"key {number}", (key, store.index_of(key))
        for name, value in store[number].items():
            plain = (
                (value.dtype.str, value.shape, value.tobytes())
                if hasattr(value, "dtype")
                else value
            )
            yield f"{name} {number}", plain
    for spec in store.header.columns:
        if "@entries" not in spec.name:
            column = np.asarray(store.column(spec.name))
            yield spec.name, (column.dtype.str, column.shape, column.tobytes())


def everything(store: Store) -> dict[str, Any]:
    """Return all that :func:`contents` yields."""
    return dict(contents(store))


def cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit after every sample or so, in segments of a few rows."""
    monkeypatch.setattr(sharedds.store.writer, "_COMMIT", 1)
    monkeypatch.setattr(sharedds.store.layout, "_WIDE_SEGMENT", 20_000)
    monkeypatch.setattr(sharedds.store.layout, "_SEGMENT", 64)
