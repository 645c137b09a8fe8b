"""Random operations of torch with a generator of one's own.

Operations that draw are known by their tag (``nondeterministic_seeded``). Most take a generator, or
have a variant that does; with a generator seeded alike they give bit for bit what they give from
``torch.default_generator``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sharedds.errors import OptionError

__all__ = ["OwnDraws"]


class OwnDraws(TorchDispatchMode):
    """Gives every operation that draws on the CPU, and is given none, one generator.

    In force in the thread that calls :meth:`begin` until it calls :meth:`end`. Not a ``with``: that
    would set flags of the whole process as well, and while they are set torch.compile stands aside
    in all threads.

    Args:
        generator: Takes the place of ``torch.default_generator``.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = generator

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch shall wrap the method below, for which it imports its compiler."""
        return False

    def begin(self) -> None:
        """Come into force in this thread."""
        torch._C._push_on_torch_dispatch_stack(self)

    def end(self) -> None:
        """End the latest :meth:`begin` of this thread."""
        torch._C._pop_torch_dispatch_stack(None)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        try:
            rule = _RULES[func]
        except KeyError:
            rule = _RULES[func] = _rule(func)
        if rule is not None:
            return rule(self, args, kwargs or {})
        return func(*args, **kwargs) if kwargs else func(*args)


#: How an operation is run; None for as it is.
_Rule = Callable[[OwnDraws, tuple[Any, ...], dict[str, Any]], Any]
_RULES: dict[Any, _Rule | None] = {}

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_DEFAULT: int = torch.default_generator._cdata  # type: ignore[attr-defined]
#: Tagged as random, but only chooses an implementation.
_HARMLESS = frozenset({"aten::_fused_sdp_choice"})


def _rule(op: Any) -> _Rule | None:
    if not hasattr(op, "_schema"):  # higher-order operations have their own ways
        return None
    names = [argument.name for argument in op._schema.arguments]
    if "generator" in names:
        return functools.partial(_draw, op, names.index("generator"))
    if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), _COMPOSITE):
        # Comes whole only under torch.inference_mode; its parts may draw.
        return functools.partial(_in_parts, op)
    if torch.Tag.nondeterministic_seeded not in op.tags or op._schema.name in _HARMLESS:
        return None
    for name in op._overloadpacket.overloads():
        other = getattr(op._overloadpacket, name)
        others = [argument.name for argument in other._schema.arguments]
        if "generator" in others and [n for n in others if n != "generator"] == names:
            return functools.partial(_draw, other, others.index("generator"))
    return functools.partial(_refuse, op, names)


def _draw(op: Any, place: int, mode: OwnDraws, args: tuple[Any, ...], kwargs: Any) -> Any:
    device = _device(args, kwargs)
    generator = args[place] if place < len(args) else kwargs.get("generator")
    if device != "meta" and (generator is None or generator._cdata == _DEFAULT):
        if device != "cpu":
            raise OptionError(
                f"torch.{_name(op)} draws on {device} in a loader thread, from the generator that "
                "training uses; draw on the CPU, or pass generator= to it"
            )
        generator = mode.generator
    if place < len(args):
        return op(*args[:place], generator, *args[place + 1 :], **kwargs)
    return op(*args, **{**kwargs, "generator": generator})


def _in_parts(op: Any, mode: OwnDraws, args: tuple[Any, ...], kwargs: Any) -> Any:
    mode.begin()
    try:
        # Not op.decompose, which may prefer a way to do it that draws otherwise.
        return op._op_dk(_COMPOSITE, *args, **kwargs)
    finally:
        mode.end()


def _refuse(
    op: Any, names: list[str], mode: OwnDraws, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    given = dict(zip(names, args, strict=False)) | kwargs
    if given.get("dropout_p", 0.0 if "dropout_p" in names else None) == 0:
        return op(*args, **kwargs)
    raise OptionError(
        f"torch.{_name(op)} draws from torch's global generator and cannot be given another one, "
        "so its result would depend on what other threads draw; use engine='process', or "
        "seed_globals='off' if the stream need not be repeatable"
    )


def _device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    device = kwargs.get("device")
    if device is None:
        out = kwargs.get("out")
        tensors = (value for value in (out, *args) if isinstance(value, torch.Tensor))
        device = next((tensor.device for tensor in tensors), None)
    return "cpu" if device is None else torch.device(device).type


def _name(op: Any) -> str:
    return str(op._schema.name.rpartition("::")[2])
