"""Uniform random numbers from a counter: any of them, in any order, at the cost of a few sums."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["uniforms"]

# The step of the counter and how it is mixed: SplitMix64 (Steele, Lea, Flood: "Fast splittable
# pseudorandom number generators", 2014), with the constants of Stafford's 13th mixer.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def uniforms(numbers: npt.NDArray[np.uint64], first: int, count: int) -> npt.NDArray[np.float64]:
    """Return numbers in [0, 1), each with 53 random bits; the same on all machines.

    Args:
        numbers: (n,), where the counter of each stream begins, itself random.
        first: How many numbers of each stream to pass over.
        count: How many to return of each.

    Returns:
        (n, count)
    """
    steps = np.arange(first + 1, first + count + 1, dtype=np.uint64) * _STEP
    mixed = numbers[:, None] + steps
    for shift, factor in _MIX:
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
