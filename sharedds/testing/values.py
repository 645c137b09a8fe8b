"""What stands where in a sample or batch: compared bit for bit, and shown to people."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["Fields", "fields_of"]

#: Place in a sample -> what is there: a digest, and a short text for people.
Fields = dict[str, tuple[bytes, str]]


def fields_of(value: Any, path: str) -> Iterator[tuple[str, tuple[bytes, str]]]:
    """Yield the places of a value with what stands there."""
    kind = type(value).__qualname__
    if isinstance(value, torch.Tensor):
        yield path, _tensor(value)
    elif isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        yield path, _array(np.asarray(value), kind)
    elif isinstance(value, np.ndarray):
        yield from fields_of(value.tolist(), path)
    elif isinstance(value, float):
        yield path, _entry(kind, "nan" if value != value else value.hex(), repr(value))
    elif value is None or isinstance(value, str | bytes | bytearray | int | complex):
        yield path, _entry(kind, repr(value), reprlib.repr(value))
    elif isinstance(value, Mapping):
        yield f"{path}{{}}", _entry(kind, sorted(map(repr, value)), reprlib.repr(list(value)))
        for key, part in value.items():
            yield from fields_of(part, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple):
        yield f"{path}[]", _entry(kind, len(value), f"{kind} of {len(value)}")
        names = getattr(value, "_fields", range(len(value)))
        for name, part in zip(names, value, strict=True):
            yield from fields_of(
                part, f"{path}[{name}]" if isinstance(name, int) else f"{path}.{name}"
            )
    elif isinstance(value, set | frozenset):
        yield path, _entry(kind, sorted(map(repr, value)), reprlib.repr(value))
    elif hasattr(value, "tobytes") and hasattr(value, "mode"):  # a Pillow image
        head = (value.mode, value.size)
        yield path, _entry(kind, (head, value.tobytes()), f"{kind} {head}")
    elif dataclasses.is_dataclass(value) or getattr(value, "__dict__", None):
        yield f"{path}()", _entry(kind, "", kind)
        for name in _attributes(value):
            yield from fields_of(getattr(value, name), f"{path}.{name}")
    else:
        yield path, _entry(kind, pickle.dumps(value), reprlib.repr(value))


def _attributes(value: Any) -> list[str]:
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    return sorted(vars(value))


def _entry(kind: str, content: object, shown: str) -> tuple[bytes, str]:
    return hashlib.blake2b(f"{kind} {content!r}".encode(errors="surrogatepass")).digest(), shown


def _tensor(value: torch.Tensor) -> tuple[bytes, str]:
    head = f"{value.dtype}, shape {tuple(value.shape)}"
    flat = (
        value.detach().cpu().to_dense() if value.layout != torch.strided else value.detach().cpu()
    )
    flat = flat.resolve_conj().resolve_neg().contiguous().flatten()
    if flat.is_floating_point():
        flat = torch.where(flat.isnan(), torch.full_like(flat, float("nan")), flat)
    data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return hashlib.blake2b(
        head.encode() + data
    ).digest(), f"tensor of {head}: {_beginning(flat[:4].tolist(), flat.numel())}"


def _array(value: np.ndarray[Any, Any], kind: str) -> tuple[bytes, str]:
    head = f"{value.dtype}, shape {value.shape}"
    flat = np.ascontiguousarray(value).ravel()
    if flat.dtype.kind in "fc":
        flat = np.where(np.isnan(flat), np.array(np.nan, flat.dtype), flat)
    digest = hashlib.blake2b(f"{kind} {head}".encode() + flat.tobytes()).digest()
    return digest, f"{kind} of {head}: {_beginning(flat[:4].tolist(), flat.size)}"


def _beginning(values: list[Any], size: int) -> str:
    return ", ".join(map(repr, values)) + (", ..." if size > len(values) else "")
