"""Operations of torch in a loader thread: those that do not draw are what they always are."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows it by
from global_draws import bits

from sharedds.generators.torch_draws import OwnDraws

OPERATIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "affine_grid": lambda x: F.affine_grid(torch.eye(2, 3)[None], [1, 3, 4, 4], False),
    "arithmetic": lambda x: (x * 2 + 1).clamp(0, 1),
    "as_tensor": lambda x: torch.tensor([[1, 2], [3, 4]]),
    "batch_norm": lambda x: F.batch_norm(x, torch.zeros(3), torch.ones(3)),
    "conv2d": lambda x: F.conv2d(x, torch.ones(1, 3, 3, 3)),
    "deepcopy": copy.deepcopy,
    "dropout in evaluation": lambda x: F.dropout(x, 0.5, training=False),
    "einsum": lambda x: torch.einsum("bchw->bc", x),
    "fft": lambda x: torch.fft.fft2(x).real,
    "grid_sample": lambda x: F.grid_sample(x, torch.zeros(1, 2, 2, 2), align_corners=False),
    "index": lambda x: x[:, [0, 2]],
    "interpolate": lambda x: F.interpolate(x, (4, 4), mode="bilinear", antialias=True),
    "interpolate nearest": lambda x: F.interpolate(x, scale_factor=2),
    "interpolate uint8": lambda x: F.interpolate(
        (x * 255).to(torch.uint8), (4, 4), mode="bicubic", antialias=True
    ),
    "item": lambda x: x.sum().item(),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "linear": lambda x: F.linear(x, torch.ones(2, 8)),
    "median": lambda x: x.median(),
    "numpy": lambda x: torch.from_numpy(x.numpy()).permute(0, 2, 3, 1).contiguous(),
    "pad": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "save": lambda x: saved(x),
    "share_memory": lambda x: x.clone().share_memory_(),  # type: ignore[no-untyped-call]
    "sort": lambda x: list(x.sort()),
    "sparse": lambda x: x[0, 0].to_sparse().to_dense(),
    "stack": lambda x: torch.stack([x, x]),
    "tolist": lambda x: x.tolist(),
    "vmap": lambda x: torch.vmap(lambda row: row * 2)(x),
    "where": lambda x: list(torch.where(x > 0.5)),
}


def saved(x: torch.Tensor) -> torch.Tensor:
    """Through a file and back."""
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    loaded: torch.Tensor = torch.load(file)
    return loaded


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", OPERATIONS)
def test_what_does_not_draw_is_as_always(name: str, inference: bool) -> None:
    """The same bits, and the generator is where it was; whole operations reach the mode as well."""
    x = torch.linspace(0, 1, 192).view(1, 3, 8, 8)
    mode = OwnDraws(torch.Generator().manual_seed(3))
    before = mode.generator.get_state()
    with torch.inference_mode(inference):
        expected = bits(OPERATIONS[name](x))
        mode.begin()
        try:
            found = bits(OPERATIONS[name](x))
        finally:
            mode.end()
    assert found == expected
    assert torch.equal(mode.generator.get_state(), before)


def test_a_graph_of_gradients_is_as_always() -> None:
    """Transforms may differentiate."""

    def slope() -> Any:
        x = torch.linspace(0, 1, 8, requires_grad=True)
        return torch.autograd.grad((x.sin() ** 2).sum(), x)

    mode = OwnDraws(torch.Generator())
    expected = bits(slope())
    mode.begin()
    try:
        assert bits(slope()) == expected
    finally:
        mode.end()


def test_an_operation_is_taken_apart_only_if_torch_can() -> None:
    """Of all operations: asking for parts of one that has none would end the process."""
    from sharedds.generators import torch_draws

    composite = "CompositeImplicitAutograd"
    checked = 0
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if space != "aten":
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            op = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
        rule = torch_draws._rule(op) if op is not None else None
        if getattr(rule, "func", None) is torch_draws._in_parts:
            checked += 1
            assert torch._C._dispatch_has_kernel_for_dispatch_key(name, composite)
    assert checked > 100


@pytest.mark.parametrize("tagged", ["_fused_dropout", "native_dropout", "rrelu_with_noise"])
def test_every_tagged_operation_has_a_rule(tagged: str) -> None:
    """None of them runs as it is."""
    from sharedds.generators import torch_draws

    assert torch_draws._rule(getattr(torch.ops.aten, tagged).default) is not None
