"""What one Python object costs: itself in memory, its copy in a worker, its pickle.

For each kind of object three figures, in bytes: what an unpickled copy takes, with what unpickling
leaves behind; what it adds to a pickle; and what goes to shared memory. What it refers to is not
part of it.
"""

from __future__ import annotations

import collections
import gc
import logging
import mmap
import pathlib
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from sharedds.diagnose.graph import OWN_ROOMS

__all__ = ["Costs", "allocated", "coster", "device_kind", "image_bytes", "is_image", "tensor_bytes"]

#: Bytes of a copy, in a pickle, in shared memory.
Costs = tuple[int, int, int]

_PAGE = 4096
_DICT = 64  # a dict without its table

_NBYTES: Callable[[Any], int] = np.ndarray.nbytes.__get__
_DTYPE: Callable[[Any], Any] = np.ndarray.dtype.__get__
_NDIM: Callable[[Any], int] = np.ndarray.ndim.__get__

# Code and what else travels by name, or belongs to the interpreter.
_SKIPPED = (
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType),
    *(types.FrameType, types.GeneratorType, types.MappingProxyType, types.MethodDescriptorType),
    *(types.WrapperDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType),
    *(weakref.ref, logging.Logger, np.dtype, torch.dtype, torch.device),
    *(type(None), bool, type(Ellipsis), type(NotImplemented)),
)


def allocated(size: int) -> int:
    """Return the bytes that an allocation of ``size`` bytes takes.

    Up to 512 bytes come from CPython's pools in steps of 16; more comes from malloc, which adds a
    header, and from 128 KiB on maps whole pages.
    """
    if size <= 512:
        return -(-size // 16) * 16
    if size < 128 << 10:
        return -(-(size + 8) // 16) * 16
    return -(-(size + 16) // _PAGE) * _PAGE


def is_image(kind: type) -> bool:
    """Whether a class is Pillow's image, or made of it."""
    return any(c.__module__ == "PIL.Image" and c.__name__ == "Image" for c in kind.__mro__)


def image_bytes(image: Any) -> int:
    """Return the bytes of the pixels of a Pillow image in memory; 0 if it is not loaded."""
    facts = vars(image)
    if (facts.get("_im") or facts.get("im")) is None:
        return 0
    mode = facts.get("_mode") or facts.get("mode") or "RGB"
    width, height = facts.get("_size") or facts.get("size") or (0, 0)
    return int(width) * int(height) * (1 if mode in ("1", "L", "P") else 2 if "16" in mode else 4)


def device_kind(tensor: torch.Tensor) -> str:
    """Return the kind of device that a tensor is on, such as ``cpu`` or ``cuda``."""
    with torch._C.DisableTorchFunctionSubclass():
        return str(tensor.device.type)


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor in this machine's memory."""
    with torch._C.DisableTorchFunctionSubclass():
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            return 0
        return tensor.element_size() * tensor.nelement()


#: By the id of the class, which is kept: classes may redefine how they compare.
_costers: dict[int, tuple[type, Callable[[Any], Costs] | None]] = {}


def coster(kind: type) -> Callable[[Any], Costs] | None:
    """Return what tells the costs of objects of a class; ``None`` for what costs nothing."""
    if id(kind) not in _costers:
        try:
            _costers[id(kind)] = kind, _findcoster(kind)
        except Exception:  # a class that does not let itself be asked
            _costers[id(kind)] = kind, _foreign
    return _costers[id(kind)][1]


def _findcoster(kind: type) -> Callable[[Any], Costs] | None:
    if issubclass(kind, _SKIPPED) or kind.__module__.startswith(OWN_ROOMS):
        return None
    if (built_in := _BUILT_IN.get(id(kind))) is not None:
        return built_in
    if issubclass(kind, np.ndarray):
        return _array
    if issubclass(kind, torch.Tensor):
        return _tensor
    if issubclass(kind, mmap.mmap):
        return None
    if is_image(kind):
        return _image
    if kind.__module__.partition(".")[0] == "pyarrow":
        return _arrow
    if issubclass(kind, pathlib.PurePath):
        return _foreign  # made anew of its parts, with no state
    return _instance if kind.__flags__ & (1 << 9) else _foreign  # a class of Python, or of C


def _text(obj: Any) -> Costs:
    size = sys.getsizeof(obj)
    return allocated(size), max(6, size - 40), 0


def _list(obj: list[Any]) -> Costs:
    return 80 + allocated(8 * len(obj)), 4, 0


def _dict(obj: dict[Any, Any]) -> Costs:
    return _DICT + allocated(max(0, sys.getsizeof(obj) - _DICT)), 4, 0


def _set(obj: Any) -> Costs:
    return allocated(sys.getsizeof(obj)), 4, 0


def _array(obj: Any) -> Costs:
    size, header = _NBYTES(obj), 112 + 32 * _NDIM(obj)
    # Unpickled: the state with its tuples; small values are copied out of their bytes.
    left = 256 + (allocated(33 + size) if size <= 1000 else 0)
    return header + allocated(size + 33) + left, 140 + size, 0


def _tensor(obj: torch.Tensor) -> Costs:
    return 1500, 400, tensor_bytes(obj)


def _image(obj: Any) -> Costs:
    size = image_bytes(obj)
    plain = size * 3 // 4 if (vars(obj).get("_mode") or "RGB") == "RGB" else size
    return size + plain + 1500, plain + 200, 0


def _arrow(obj: Any) -> Costs:
    size = getattr(obj, "nbytes", 0)
    return (size + 500, size + 200, 0) if isinstance(size, int) else (500, 200, 0)


def _instance(obj: Any) -> Costs:
    """An object with attributes: itself, its dict, and the state that it was restored from."""
    size = object.__sizeof__(obj) + 16
    count = len(gc.get_referents(obj)) - 1  # without its class
    state = 192 if count <= 5 else 64 + 40 * count
    has_dict = getattr(type(obj), "__dictoffset__", 0) != 0
    held = _DICT + allocated(16 + 8 * count) if has_dict else _DICT
    return allocated(size) + held + state, 12 + 4 * count, 0


def _foreign(obj: Any) -> Costs:
    """An object of an extension: itself, and the arguments that it was made of."""
    return allocated(object.__sizeof__(obj) + 16) + 112, 40, 0


_BUILT_IN: dict[int, Callable[[Any], Costs]] = {
    **dict.fromkeys(map(id, (str, bytes, bytearray, complex)), _text),
    id(list): _list,
    id(dict): _dict,
    **dict.fromkeys(map(id, (tuple, set, frozenset, collections.deque)), _set),
}
