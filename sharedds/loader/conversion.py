"""What becomes of the tensors of a batch on a device: where they go, dtype, normalisation.

Which of them are pictures is one rule, stated at :class:`Conversion`; all else only moves.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from sharedds.errors import OptionError
from sharedds.handles import unsent

__all__ = ["Conversion", "self_moving"]

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
#: Of whole numbers, what stands for 1.0. Other whole numbers are no pictures.
_TOPS = {torch.uint8: 255.0, torch.uint16: 65535.0}
_PICTURES = {*_TOPS, *_DTYPES, torch.float64}
#: A picture has at least two dimensions of space beside samples and channels.
_LEAST_SPACE = 2


class Conversion:
    """Moves a batch, and makes of its pictures what training takes.

    A **picture** is a tensor of dtype uint8, uint16 or floating point that has a dimension of
    samples, one of channels and at least two of space: (N, C, H, W), (N, C, D, H, W). ``only``
    names the entries of the batch that are pictures instead: in those, every tensor of such a dtype
    is one, whatever its shape, and elsewhere none. All other tensors keep dtype and values: labels,
    masks of shape (N, H, W), bool, and whole numbers other than uint8 and uint16.

    With ``dtype``, ``mean`` or ``std`` given, a picture ``x`` becomes ``(v - mean) / std``, where

    ========  =============  ===========================================
    ``x``     ``v``          ``mean`` and ``std`` are those of
    ========  =============  ===========================================
    uint8     ``x / 255``    values from 0 to 1, as with torchvision
    uint16    ``x / 65535``  values from 0 to 1
    floating  ``x``          the values as they are
    ========  =============  ===========================================

    step by step in float32 (of float64 in float64), rounded to ``dtype`` once, at the end. ``mean``
    is 0 and ``std`` is 1 where not given, so that ``dtype`` alone scales uint8 to 0..1. Strides are
    kept: what is channels_last stays so.

    Tuples, lists, mappings and named tuples are gone through, at any depth. An object with methods
    ``pin_memory`` and ``to`` (a packed sequence, a batch of graphs) moves itself; any other object
    stays as it is. What does not change is the same object afterwards, containers included.

    Args:
        dtype: float32, float16 or bfloat16. None: as it comes, but float32 of whole numbers if
            there is something to normalise.
        mean: A number, or one for each channel.
        std: The same; above 0.
        only: Names (or positions, from 0) of the entries of the batch that are pictures.
        channels: Which dimension has the channels; those before it are samples.

    Raises:
        OptionError: A value that makes no sense.
    """

    _factors = unsent[dict[tuple[Any, ...], torch.Tensor]]()

    def __init__(
        self,
        *,
        dtype: torch.dtype | None = None,
        mean: float | Iterable[float] | None = None,
        std: float | Iterable[float] | None = None,
        only: str | int | Sequence[str | int] | None = None,
        channels: int = 1,
    ) -> None:
        self.dtype = _checked_dtype(dtype)
        self.mean = _numbers("mean", mean)
        self.std = _numbers("std", std)
        self.only = _names(only)
        self._channels = channels
        counts = {len(values) for values in (self.mean, self.std) if values is not None}
        self._count = max(counts, default=1)
        self._is_needed = self.dtype is not None or bool(counts)
        if len(counts - {1}) > 1:
            raise OptionError(
                f"mean={mean!r} and std={std!r} are for different numbers of channels: give as "
                "many of both, or one number for all"
            )
        if self.std is not None and min(self.std) <= 0:
            raise OptionError(f"std={std!r}: numbers above 0 are expected")
        if self.only is not None and not self._is_needed:
            raise OptionError(
                f"only={only!r} tells what to convert, but nothing tells to what: give dtype, mean "
                "or std, or leave it out"
            )

    def __call__(self, batch: Any, device: torch.device) -> Any:
        """Return a batch on ``device``; what is there and stays as it is, is not copied.

        Work goes to the current stream of the device. What is pinned is not waited for.

        Raises:
            OptionError: ``mean`` or ``std`` do not fit a picture, or ``only`` names what is not
                there. The text says which tensor.
        """
        with torch.no_grad():
            if self.only is None:
                return self._moved(batch, device, "batch", None)
            self._check_entries(batch, self.only)
            return self._container(batch, device, "batch", self.only)

    # --- nested batches --------------------------------------------------------------------------

    def _moved(self, part: Any, device: torch.device, name: str, chosen: bool | None) -> Any:
        """Move a part; ``chosen``: whether ``only`` names it, None where the rule decides."""
        if isinstance(part, torch.Tensor):
            return self._tensor(part, device, name, chosen)
        if isinstance(part, Mapping):
            return self._container(part, device, name, chosen)
        if _moves_itself(part):
            return part.to(device)
        if isinstance(part, tuple | list):
            return self._container(part, device, name, chosen)
        return part

    def _container(
        self, part: Any, device: torch.device, name: str, chosen: bool | tuple[Any, ...] | None
    ) -> Any:
        entries = _entries(part)
        moved = []
        for keys, value in entries:
            is_chosen = any(key in chosen for key in keys) if isinstance(chosen, tuple) else chosen
            path = f"{name}.{keys[0]}" if len(keys) > 1 else f"{name}[{keys[0]!r}]"
            moved.append(self._moved(value, device, path, is_chosen))
        if all(new is old for new, (_, old) in zip(moved, entries, strict=True)):
            return part
        return _rebuilt(part, moved)

    def _check_entries(self, batch: Any, only: tuple[str | int, ...]) -> None:
        kind = type(batch).__name__
        if not isinstance(batch, Mapping | tuple | list):
            raise OptionError(f"only={_shown(only)}: the batch is a {kind} and has no entries")
        known = [key for keys, _ in _entries(batch) for key in keys]
        for key in only:
            if key not in known:
                raise OptionError(
                    f"only={_shown(only)}: the batch, a {kind}, has no entry {key!r}; there are: "
                    + (", ".join(map(repr, known)) or "none")
                )

    # --- tensors ---------------------------------------------------------------------------------

    def _tensor(
        self, tensor: torch.Tensor, device: torch.device, name: str, chosen: bool | None
    ) -> torch.Tensor:
        is_picture = self._is_picture(tensor, chosen)
        if is_picture:
            self._check(tensor, name)
        if tensor.device != device:
            # torch remembers on which stream pinned memory is read; other memory is waited for.
            is_pinned = tensor.device.type == "cpu" and tensor.is_pinned()
            tensor = tensor.to(device, non_blocking=is_pinned)
        return self._converted(tensor) if is_picture else tensor

    def _is_picture(self, tensor: torch.Tensor, chosen: bool | None) -> bool:
        if not self._is_needed or chosen is False or tensor.dtype not in _PICTURES:
            return False
        return chosen is True or tensor.ndim > self._channels + _LEAST_SPACE

    def _check(self, tensor: torch.Tensor, name: str) -> None:
        what = f"{name} is {_kind(tensor.dtype)} of shape {tuple(tensor.shape)}"
        found = tensor.shape[self._channels] if tensor.ndim > self._channels else 0
        if self._count > 1 and found != self._count:
            given = "mean" if self.mean is not None and len(self.mean) > 1 else "std"
            raise OptionError(
                f"{given} has {self._count} values, but {what}, with {found} channels (dimension "
                f"{self._channels}): give one value for each, or one for all; if that is no "
                "picture, name the entries of the batch that are, with only="
            )
        top = _TOPS.get(tensor.dtype)
        for option, values in (("mean", self.mean or ()), ("std", self.std or ())):
            if top and not all(0 <= value <= 1 for value in values):
                raise OptionError(
                    f"{option}={_shown(values)}, but {what}, and mean and std are those of values "
                    f"from 0 to 1: divide both by {top:.0f} if they are of whole numbers"
                )

    def _converted(self, tensor: torch.Tensor) -> torch.Tensor:
        """Compute the formula on the device where the tensor is."""
        top = _TOPS.get(tensor.dtype)
        dtype = self.dtype or (tensor.dtype if top is None else torch.float32)
        working = torch.float64 if tensor.dtype == torch.float64 else torch.float32
        steps: list[tuple[Callable[..., torch.Tensor], float | torch.Tensor]] = []
        if top is not None:
            steps.append((torch.div, top))
        if self.mean is not None:
            steps.append((torch.sub, self._factor(self.mean, tensor, working)))
        if self.std is not None:
            steps.append((torch.div, self._factor(self.std, tensor, working)))
        if not steps:
            return tensor.to(dtype)
        made = tensor.to(working)
        for step, factor in steps:
            # In place from the second step on; the first may find the caller's own tensor.
            made = step(made, factor, out=None if made is tensor else made)
        return made.to(dtype)

    def _factor(
        self, values: tuple[float, ...], tensor: torch.Tensor, working: torch.dtype
    ) -> float | torch.Tensor:
        """One number, or a tensor that has one for each channel; made once for a device."""
        if len(values) == 1:
            return values[0]
        if self._factors is None:
            self._factors = {}
        key = values, tensor.ndim, tensor.device, working
        if key not in self._factors:
            shape = [1] * tensor.ndim
            shape[self._channels] = len(values)
            made = torch.tensor(values, dtype=working, device=tensor.device)
            self._factors[key] = made.view(shape)
        return self._factors[key]


# --- containers ----------------------------------------------------------------------------------


def self_moving(part: Any) -> Iterator[Any]:
    """Yield the objects in a batch that move themselves, however deep in containers."""
    if isinstance(part, Mapping):
        for value in part.values():
            yield from self_moving(value)
    elif _moves_itself(part):
        if not isinstance(part, torch.Tensor):
            yield part
    elif isinstance(part, tuple | list):
        for value in part:
            yield from self_moving(value)


def _moves_itself(part: Any) -> bool:
    return hasattr(part, "pin_memory") and hasattr(part, "to")


def _entries(part: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """What is in a container, each with its key; in a named tuple with its name and position."""
    if isinstance(part, Mapping):
        return [((key,), value) for key, value in part.items()]
    names = getattr(part, "_fields", None)
    if names is not None:
        return [((name, at), part[at]) for at, name in enumerate(names)]
    return [((at,), value) for at, value in enumerate(part)]


def _rebuilt(part: Any, values: list[Any]) -> Any:
    """A container like ``part`` with other values."""
    if isinstance(part, Mapping):
        pairs = dict(zip(part, values, strict=True))
        try:
            changed: Any = copy.copy(part)  # it may have more to it than its entries
            changed.update(pairs)
        except (AttributeError, TypeError):  # nobody may change it
            return pairs
        return changed
    if isinstance(part, tuple):
        return type(part)(*values) if hasattr(part, "_fields") else type(part)(values)
    changed = copy.copy(part)
    changed[:] = values
    return changed


# --- checks --------------------------------------------------------------------------------------


def _checked_dtype(dtype: Any) -> torch.dtype | None:
    if dtype is None:
        return None
    if isinstance(dtype, torch.dtype) and dtype in _DTYPES:
        return dtype
    shown = _kind(dtype) if isinstance(dtype, torch.dtype) else repr(dtype)
    raise OptionError(
        f"dtype={shown}: torch.float32, torch.float16 or torch.bfloat16 is expected, or None to "
        "leave pictures as they come; labels and masks keep their dtype in any case"
    )


def _numbers(name: str, given: Any) -> tuple[float, ...] | None:
    if given is None:
        return None
    is_one = isinstance(given, int | float) or getattr(given, "ndim", None) == 0
    try:
        values = tuple(float(value) for value in ([given] if is_one else given))
    except (TypeError, ValueError):
        values = ()
    if isinstance(given, bool | str) or not values or not all(map(math.isfinite, values)):
        raise OptionError(f"{name}={given!r}: a number, or one for each channel, is expected")
    return values


def _names(given: Any) -> tuple[str | int, ...] | None:
    if given is None:
        return None
    names = given if isinstance(given, list | tuple) else (given,)
    if not names or not all(type(name) in (str, int) for name in names):
        raise OptionError(
            f"only={given!r}: names or positions of entries of a batch are expected, such as "
            "'image' or (0, 1)"
        )
    return tuple(names)


def _kind(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shown(values: tuple[Any, ...]) -> str:
    return repr(values[0] if len(values) == 1 else values)
