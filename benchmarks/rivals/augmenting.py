"""The same augmentation as torchvision does it: a random part, 224 × 224, and a flip."""

from __future__ import annotations

import io
from typing import Any

from reading import need

__all__ = ["PillowCrop", "tensor_crop", "tensor_raw_crop"]

_SIDE = 224
_image, _transforms, _v2 = (
    need(name) for name in ("PIL.Image", "torchvision.transforms", "torchvision.transforms.v2")
)


class PillowCrop:
    """Transforms of pictures of Pillow, which filters when it shrinks."""

    def __init__(self) -> None:
        self._crop = _transforms.Compose(
            [
                _transforms.RandomResizedCrop(_SIDE),
                _transforms.RandomHorizontalFlip(),
                _transforms.PILToTensor(),
            ]
        )

    def __call__(self, picture: Any) -> Any:
        """Return a tensor (3, 224, 224) of a picture of Pillow, or of the bytes of a file."""
        if isinstance(picture, bytes):
            picture = _image.open(io.BytesIO(picture))
        return self._crop(picture.convert("RGB"))


def tensor_crop() -> Any:
    """Transforms of v2 for tensors (3, height, width), uint8; they filter."""
    return _v2.Compose([_v2.RandomResizedCrop(_SIDE, antialias=True), _v2.RandomHorizontalFlip()])


def tensor_raw_crop() -> Any:
    """Transforms of v2 for tensors (3, 256, 256), uint8."""
    return _v2.Compose([_v2.RandomCrop(_SIDE), _v2.RandomHorizontalFlip()])
