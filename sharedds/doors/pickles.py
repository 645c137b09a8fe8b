"""Pickles from outside, read only on request, and only those of plain values and arrays.

Loading a pickle runs whatever it names. Here it may name nothing but what rebuilds NumPy arrays,
and gets stand-ins of these: NumPy's own believe the state they are given, and with that of an array
of objects any address can be read. Everything else is refused before it is called.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.errors import DecodeError

__all__ = ["REFUSED", "load_plain"]

REFUSED = (
    "its values are pickles, which can run any code when they are read; if you trust who wrote "
    "them, say so with allow_pickle=True (--allow-pickle)"
)

_KINDS = "biufcSU"
_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray", "numpy._core.numeric")


class _Dtype:
    """Stands for a dtype; its own state, which NumPy would believe, is taken for the byte order."""

    def __init__(self, text: Any, *_: Any) -> None:
        self.dtype = np.dtype(str(text))
        if self.dtype.kind not in _KINDS:
            raise pickle.UnpicklingError(f"it names the dtype {self.dtype}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])


class _Array(np.ndarray[Any, Any]):
    """An array that takes only a state that fits."""

    def __setstate__(self, state: Any) -> None:
        version, shape, dtype, columns_first, data = state
        _require_fitting(data, dtype.dtype, shape)
        fitting: Any = (version, tuple(shape), dtype.dtype, bool(columns_first), data)
        super().__setstate__(fitting)


def _require_fitting(data: Any, dtype: np.dtype[Any], shape: Any) -> None:
    whole = isinstance(data, (bytes, bytearray)) and all(isinstance(n, int) for n in shape)
    if not whole or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(data):
        raise pickle.UnpicklingError(f"an array of the shape {shape} and of other values")


def _reconstruct(*_: Any) -> _Array:
    return _Array(0, np.uint8)


def _frombuffer(data: Any, dtype: _Dtype, shape: Any, order: str) -> npt.NDArray[Any]:
    _require_fitting(data, dtype.dtype, shape)
    array: npt.NDArray[Any] = np.frombuffer(data, dtype.dtype)
    return array.reshape(shape, order="F" if order == "F" else "C")


def _scalar(dtype: _Dtype, data: Any) -> Any:
    if isinstance(data, str):  # as Python 2 wrote bytes
        data = data.encode("latin-1")
    _require_fitting(data, dtype.dtype, ())
    return np.frombuffer(data, dtype.dtype)[0]


def _encode(text: str, how: str = "") -> bytes:
    if how not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"bytes as text in {how!r}")
    return text.encode("latin-1")


def _bytearray(data: bytes | str = b"", how: str = "") -> bytearray:
    return bytearray(_encode(data, how) if isinstance(data, str) else memoryview(data))


def _no_bytes() -> bytes:
    return b""  # as pickles for Python 2 have it


_ALLOWED: dict[tuple[str, str], Any] = {
    **{(module, "_reconstruct"): _reconstruct for module in _MODULES},
    **{(module, "scalar"): _scalar for module in _MODULES},
    **{(module, "_frombuffer"): _frombuffer for module in _MODULES},
    ("numpy", "ndarray"): "an array",  # named for _reconstruct, and never called
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
    **{(module, "bytes"): _no_bytes for module in ("builtins", "__builtin__")},
    **{(module, "bytearray"): _bytearray for module in ("builtins", "__builtin__")},
}


class _Plain(pickle.Unpickler):
    """Builds numbers, text, bytes, lists, dicts and arrays, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        found = _ALLOWED.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return found

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to something outside")


def load_plain(data: bytes) -> Any:
    """Return what a pickle of plain values and arrays holds.

    Raises:
        DecodeError: It is damaged, or names anything else.
    """
    try:
        return _Plain(io.BytesIO(data)).load()
    except Exception as error:  # damaged pickles raise whatever their opcodes lead to
        raise DecodeError(f"a pickle that is not read: {error}") from error
