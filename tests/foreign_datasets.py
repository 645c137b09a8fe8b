"""Small datasets of other formats, written by hand as their specifications say."""

import io
import json
import struct
import tarfile
from functools import cache
from pathlib import Path
from typing import Any, Literal

import lmdb
import numpy as np
from PIL import Image

__all__ = [
    "datum",
    "jpeg",
    "litdata_of",
    "lmdb_of",
    "mds_of",
    "npy",
    "picture",
    "tar_of",
    "wds_members",
]


@cache
def jpeg(number: int) -> bytes:
    """Return the bytes of a picture that no other number has."""
    return picture(number, "JPEG")


def picture(number: int, form: str) -> bytes:
    """Return a picture in a format of Pillow."""
    values = np.random.default_rng(number).integers(0, 255, (20 + number, 24, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(values).save(file, form)
    return file.getvalue()


def npy(array: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> bytes:
    """Return an array as the bytes of a ``.npy`` file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def wds_members(count: int) -> list[tuple[str, bytes]]:
    """Return (name, bytes) of the members of samples as WebDataset has them."""
    members = []
    for number in range(count):
        stem = f"d/{number:04}"
        members += [
            (f"{stem}.jpg", jpeg(number)),
            (f"{stem}.cls", str(number % 3).encode()),
            (f"{stem}.json", f'{{"n": {number}}}'.encode()),
            (f"{stem}.txt", f"caption {number}".encode()),
            (f"{stem}.boxes.npy", npy(np.full((number, 4), number, np.float32))),
        ]
    return members


def tar_of(
    path: Path, members: list[tuple[str, bytes]], *, mode: Literal["w", "w:gz"] = "w"
) -> None:
    """Write a tar."""
    with tarfile.open(path, mode) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def mds_of(folder: Path, samples: list[list[bytes]], columns: list[tuple[str, str]]) -> Path:
    """Write one MDS shard of columns (name, encoding), and its index; return the shard."""
    sizes = [8 if encoding == "int" else None for _, encoding in columns]
    rows = []
    for values in samples:
        lengths = [len(v) for v, size in zip(values, sizes, strict=True) if size is None]
        rows.append(struct.pack(f"<{len(lengths)}I", *lengths) + b"".join(values))
    start = 4 + 4 * (len(rows) + 1)
    offsets = np.cumsum([start, *map(len, rows)]).astype("<u4")
    folder.mkdir(parents=True)
    shard = folder / "shard.00000.mds"
    shard.write_bytes(struct.pack("<I", len(rows)) + offsets.tobytes() + b"".join(rows))
    said = {
        "column_names": [name for name, _ in columns],
        "column_encodings": [encoding for _, encoding in columns],
        "column_sizes": sizes,
        "compression": None,
        "format": "mds",
        "hashes": [],
        "raw_data": {"basename": shard.name, "bytes": shard.stat().st_size, "hashes": {}},
        "samples": len(rows),
        "size_limit": 1 << 26,
        "version": 2,
        "zip_data": None,
    }
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": [said]}))
    return shard


def litdata_of(folder: Path, samples: list[list[bytes]], leaves: list[tuple[str, str]]) -> None:
    """Write one chunk of LitData with leaves (name, format), and its index."""
    rows = [
        struct.pack(f"<{len(values)}I", *map(len, values)) + b"".join(values) for values in samples
    ]
    offsets = np.cumsum([4 + 4 * (len(rows) + 1), *map(len, rows)]).astype("<u4")
    folder.mkdir(parents=True)
    data = struct.pack("<I", len(rows)) + offsets.tobytes() + b"".join(rows)
    (folder / "chunk-0-0.bin").write_bytes(data)
    leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    names = json.dumps([name for name, _ in leaves])
    spec = {"type": "builtins.dict", "context": names, "children_spec": [leaf] * len(leaves)}
    config = {
        "compression": None,
        "data_format": [kind for _, kind in leaves],
        "data_spec": json.dumps([1, spec]),
        "item_loader": "PyTreeLoader",
    }
    chunk = {"chunk_bytes": len(data), "chunk_size": len(rows), "filename": "chunk-0-0.bin"}
    (folder / "index.json").write_text(json.dumps({"chunks": [chunk], "config": config}))


def lmdb_of(folder: Path, entries: dict[bytes, bytes]) -> None:
    """Write an LMDB folder, as other programs do."""
    with lmdb.open(str(folder), map_size=1 << 24) as env, env.begin(write=True) as writer:
        for key, value in entries.items():
            writer.put(key, value)


def datum(label: int, data: bytes, shape: tuple[int, int, int] | None = None) -> bytes:
    """Return a Datum of Caffe: a coded picture, or pixels (channel, height, width)."""
    fields = b""
    for number, side in enumerate(shape or (), 1):
        fields += bytes([number << 3]) + _varint(side)
    fields += bytes([4 << 3 | 2]) + _varint(len(data)) + data + bytes([5 << 3]) + _varint(label)
    return fields + (b"" if shape else bytes([7 << 3, 1]))


def _varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found, value = found + bytes([value & 127 | 128]), value >> 7
    return found + bytes([value])
