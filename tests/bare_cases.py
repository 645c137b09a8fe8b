"""A case to draw patches of, for tests: a shape, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Bare", "Triple"]

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Bare:
    """A case without a label."""

    shape: Triple
    name: str = "bare"
    classes: tuple[int, ...] = ()

    def voxels(self, class_id: int) -> int:
        """Return none."""
        return 0

    def locate(self, class_id: int, number: int) -> Triple:
        """Fail: nothing is there."""
        raise AssertionError
