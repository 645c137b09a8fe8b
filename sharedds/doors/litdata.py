"""LitData: a folder with ``index.json`` and chunks of samples, each of plain leaves."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.doors.chunk_values import Packed, png_of_pixels, scalar_of
from sharedds.doors.chunks import Chunk, Chunked
from sharedds.doors.pickles import load_plain
from sharedds.doors.reading import file_facts, read_json, within
from sharedds.errors import DecodeError
from sharedds.text import printable

__all__ = ["LitData"]

_DTYPES = {
    0: "float32", 1: "float32", 2: "float64", 3: "float64", 8: "float16", 9: "float16", 11: "uint8",
    12: "int8", 13: "int16", 14: "int16", 15: "int32", 16: "int32", 17: "int64", 18: "int64",
    19: "bool", 20: "uint16",
}  # fmt: skip
_MAX_AXES = 8
_PACKED = ("compression", "encryption", "ipc_compression")


class LitData(Chunked):
    """Samples from chunks that ``litdata.optimize`` wrote, without compression.

    Args:
        root: The folder with ``index.json``.
        allow_pickle: Whether leaves that are pickles are read.
        classes: Names that fix the numbering, for labels that are text.
    """

    format = "litdata"

    def __init__(
        self, root: str, *, allow_pickle: bool = False, classes: Sequence[str] | None = None
    ) -> None:
        path = os.path.join(root, "index.json")
        try:
            index = read_json(path)
            config = index["config"]
            for name in _PACKED:
                if config.get(name):
                    raise DecodeError(
                        f"{printable(path)}: chunks with {name} are not read here", path=path
                    )
            if config.get("item_loader") not in (None, "PyTreeLoader"):
                raise DecodeError(
                    f"{printable(path)}: chunks for {config['item_loader']} hold no pictures",
                    path=path,
                )
            names = _names(config)
            columns = [
                _column(path, name, str(kind))
                for name, kind in zip(names, config["data_format"], strict=True)
            ]
            chunks = [_chunk(root, path, chunk) for chunk in index["chunks"]]
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            if isinstance(error, DecodeError):
                raise
            raise DecodeError(
                f"{printable(path)}: not an index as LitData has it "
                f"({type(error).__name__}: {error})",
                path=path,
            ) from error
        super().__init__(
            root, chunks, columns, all_sizes=True, allow_pickle=allow_pickle, classes=classes
        )


def _names(config: dict[str, Any]) -> list[str]:
    """Return a name for each leaf: the keys of a dict, or its place in a list."""
    count = len(config["data_format"])
    spec = json.loads(config["data_spec"])[1]
    kind = str(spec.get("type"))
    if kind.endswith("dict") and all(not part["children_spec"] for part in spec["children_spec"]):
        names = [str(name) for name in json.loads(spec["context"])]
        if len(set(names)) == count:
            return names
    return [f"leaf_{number}" for number in range(count)] if count > 1 else ["image"]


def _column(path: str, name: str, kind: str) -> Packed:
    word, _, rest = kind.partition(":")
    if word in ("jpeg", "image"):
        return Packed(name=name, kind="keep")
    if word in ("bytes", "file", "tifffile"):
        return Packed(name=name, kind="bytes?")
    if word == "pil":
        return Packed(name=name, kind="keep", decode=png_of_pixels)
    if word in ("str", "text"):
        return Packed(name=name, kind="str", decode=bytes.decode)
    if word in ("int", "float"):
        dtype = "int64" if word == "int" else "float64"
        return Packed(name=name, kind=dtype, decode=scalar_of(np.dtype(dtype)))
    if word == "bool":
        return Packed(name=name, kind="bool", decode=lambda data: data == b"\x01")
    if word == "tensor":
        return Packed(name=name, kind="array", decode=_tensor)
    if word == "no_header_tensor" and rest.isdecimal() and int(rest) in _DTYPES:
        known = np.dtype(_DTYPES[int(rest)])
        return Packed(
            name=name,
            kind=f"array:{known}",
            decode=lambda data: np.frombuffer(data, known.newbyteorder("<")),
        )
    if word == "pickle":
        return Packed(name=name, kind="json", decode=load_plain, pickled=True)
    raise DecodeError(
        f"{printable(path)}, {name!r}: leaves of the format {kind!r} are not read here", path=path
    )


def _tensor(data: bytes) -> npt.NDArray[Any]:
    if len(data) < 8:
        raise ValueError("a tensor without a head")
    code, axes = struct.unpack_from(">II", data)
    if code not in _DTYPES or not 1 <= axes <= _MAX_AXES or len(data) < 8 + 4 * axes:
        raise ValueError(f"a tensor of the dtype {code} and {axes} axes in {len(data)} bytes")
    shape = struct.unpack_from(f">{axes}I", data, 8)
    values = np.frombuffer(data[8 + 4 * axes :], np.dtype(_DTYPES[code]).newbyteorder("<"))
    return values.reshape(shape)


def _chunk(root: str, path: str, chunk: dict[str, Any]) -> Chunk:
    file = within(root, str(chunk["filename"]))
    if file is None:
        raise DecodeError(f"{printable(path)}: a chunk outside of its folder", path=path)
    samples = chunk["chunk_size"]
    if not isinstance(samples, int) or samples < 0:
        raise ValueError(f"a chunk of {samples!r} samples")
    return Chunk(path=file, samples=samples, size=file_facts(file)[1])
