"""Pickles from outside, read only on request, and only those of plain values and arrays.

Loading a pickle runs whatever it names. Here it may name nothing but what rebuilds NumPy arrays;
everything else is refused before it is called.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from sharedds.errors import DecodeError

__all__ = ["REFUSED", "load_plain"]

REFUSED = (
    "its values are pickles, which can run any code when they are read; if you trust who wrote "
    "them, say so with allow_pickle=True (--allow-pickle)"
)

_ALLOWED = frozenset(
    (module, name)
    for name in ("_reconstruct", "scalar", "_frombuffer")
    for module in ("numpy.core.multiarray", "numpy._core.multiarray", "numpy._core.numeric")
) | {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"), ("builtins", "bytearray")}


class _Plain(pickle.Unpickler):
    """Builds numbers, text, bytes, lists, dicts and arrays, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module, name)

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
