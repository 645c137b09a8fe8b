"""libvips, loaded when it is first needed, and kept from talking."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sharedds.errors import MissingExtraError

__all__ = ["load_libvips", "quiet"]


def load_libvips(what: str) -> Any:
    """Return the module ``pyvips``.

    Args:
        what: What needs it, for the error.

    Raises:
        MissingExtraError: It is not installed, or the library below it does not load.
    """
    try:
        import pyvips  # noqa: PLC0415 - an extra
    except (ImportError, OSError) as error:
        raise MissingExtraError(f"{what} needs libvips: pip install 'sharedds[slides]'") from error
    return pyvips


@contextmanager
def quiet() -> Iterator[None]:
    """Drop what libvips logs meanwhile: it warns from threads of its own of what it raises too."""
    logger = logging.getLogger("pyvips")
    silent = _Silent()
    logger.addFilter(silent)
    try:
        yield
    finally:
        logger.removeFilter(silent)


class _Silent(logging.Filter):
    def filter(self, _record: logging.LogRecord) -> bool:
        return False
