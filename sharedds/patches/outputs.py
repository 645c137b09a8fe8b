"""What a model gives, as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.errors import SchemaError

__all__ = ["as_array"]

Values = npt.NDArray[Any]


def as_array(value: Any) -> Values:
    """Return an array or a tensor, wherever it is, as an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if "bfloat16" in str(value.dtype):  # which NumPy does not have
            value = value.float()
        value = value.numpy()
    try:
        return np.asarray(value)
    except ValueError as error:
        raise SchemaError(f"{type(value).__name__} is no array ({error})") from error
