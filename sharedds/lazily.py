"""Names of a package that are loaded when they are first used (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["loaded_on_first_use"]


def loaded_on_first_use(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return what a package takes as its ``__getattr__``.

    Args:
        package: Its name.
        homes: For each name that it offers, the module below it that defines the name.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
