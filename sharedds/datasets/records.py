"""Small records as bytes (MessagePack) and back, each value as it was."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from sharedds.errors import SchemaError

__all__ = ["Records"]

# MessagePack has no tuples, no integers over 64 bits and no text that is not UTF-8.
_TUPLE, _INTEGER, _TEXT, _INSTANCE = range(4)

_LARGE = 1 << 63
_SIMPLE = frozenset({float, bool, bytes, type(None)})
_KEYS = (str, int, float, bool, bytes, type(None))
_ADVICE = (
    "an item is text, bytes, a path, a number, None, or a tuple, list, dict, named tuple or "
    "dataclass of such; keep arrays in files and give their paths"
)


class Records:
    """Turns records into bytes and back.

    Tuples stay tuples and lists lists, named tuples and dataclasses keep their class. Paths become
    text, NumPy's numbers and those of an enumeration become plain ones.

    Attributes:
        classes: Named tuples and dataclasses met so far; the bytes only hold their places here.
    """

    def __init__(self) -> None:
        self.classes: list[type] = []

    def encode(self, record: object) -> bytes:
        """Return the bytes of a record.

        Raises:
            SchemaError: It holds something else than plain values.
        """
        try:
            if type(record) is tuple and all(map(_is_simple, record)):  # most are
                return msgspec.msgpack.encode(_extended(_TUPLE, record))
            return msgspec.msgpack.encode(self._plain(record))
        except RecursionError:
            raise SchemaError(f"a {type(record).__name__} that holds itself: {_ADVICE}") from None

    def decode(self, data: bytes) -> Any:
        """Return the record of some bytes."""
        return msgspec.msgpack.decode(data, ext_hook=self._restored)

    def _plain(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, float)):
            # float() strips np.float64, which is one.
            return float(value) if isinstance(value, float) else value
        if isinstance(value, str):
            return _text(str.__str__(value))
        if isinstance(value, int):
            return _integer(int(value))
        if isinstance(value, bytes):
            return bytes(value)
        kind = type(value)
        if kind is list:
            return [self._plain(item) for item in value]
        if kind is tuple:
            return _extended(_TUPLE, [self._plain(item) for item in value])
        if kind is dict:
            return {self._key(key): self._plain(item) for key, item in value.items()}
        if isinstance(value, np.generic) and isinstance(value.item(), (bool, int, float)):
            return self._plain(value.item())
        if isinstance(value, os.PathLike):
            return _text(os.fsdecode(value))
        return self._instance(value)

    def _key(self, key: object) -> Any:
        if not isinstance(key, _KEYS):
            raise SchemaError(f"a dict with the key {key!r}: keys are text, numbers, bytes or None")
        plain = self._plain(key)
        if isinstance(plain, msgspec.msgpack.Ext):
            raise SchemaError(f"a dict with the key {key!r}: no text in UTF-8, or over 64 bits")
        return plain

    def _instance(self, value: Any) -> msgspec.msgpack.Ext:
        kind = type(value)
        values: list[Any]
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            values = list(value)
        elif dataclasses.is_dataclass(kind):
            values = [getattr(value, field.name) for field in dataclasses.fields(kind)]
        else:
            raise SchemaError(f"{kind.__name__}: {_ADVICE}")
        if kind not in self.classes:
            if not isinstance(value, tuple):
                _require_plain_class(kind)
            self.classes.append(kind)
        number = self.classes.index(kind)
        return _extended(_INSTANCE, [number, *(self._plain(item) for item in values)])

    def _restored(self, code: int, data: memoryview) -> Any:
        if code == _TUPLE:
            return tuple(msgspec.msgpack.decode(data, ext_hook=self._restored))
        if code == _INTEGER:
            return int.from_bytes(data, "little", signed=True)
        if code == _TEXT:
            return bytes(data).decode("utf-8", "surrogateescape")
        number, *values = msgspec.msgpack.decode(data, ext_hook=self._restored)
        kind: Any = self.classes[number]
        if issubclass(kind, tuple):
            return kind._make(values)
        # Not by calling the class: it may compute its fields from other arguments.
        instance = object.__new__(kind)
        for field, item in zip(dataclasses.fields(kind), values, strict=True):
            object.__setattr__(instance, field.name, item)
        return instance


def _require_plain_class(kind: type) -> None:
    try:
        object.__new__(kind)
    except TypeError:  # a dict or an exception with fields: it holds more than those
        base = kind.__base__.__name__ if kind.__base__ else "?"
        raise SchemaError(f"{kind.__name__}, which is a {base} as well: {_ADVICE}") from None


def _is_simple(value: Any) -> bool:
    """Whether MessagePack keeps a value as it is; also false where that takes longer to tell."""
    kind = type(value)
    if kind is str:
        return bool(value.isascii())
    return -_LARGE < value < _LARGE if kind is int else kind in _SIMPLE


def _extended(code: int, values: Sequence[Any]) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, msgspec.msgpack.encode(values))


def _integer(value: int) -> int | msgspec.msgpack.Ext:
    if -(1 << 63) <= value < 1 << 64:
        return value
    size = value.bit_length() // 8 + 1
    return msgspec.msgpack.Ext(_INTEGER, value.to_bytes(size, "little", signed=True))


def _text(value: str) -> str | msgspec.msgpack.Ext:
    if value.isascii():
        return value
    try:
        data = value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise SchemaError(f"{value!r} cannot be stored as UTF-8 ({error.reason})") from None
    try:
        data.decode()
    except UnicodeDecodeError:  # a file name that is no UTF-8
        return msgspec.msgpack.Ext(_TEXT, data)
    return value
