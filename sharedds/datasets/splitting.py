"""Which samples go into which part of a random split, with or without groups."""

from __future__ import annotations

import hashlib
import itertools
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sharedds.errors import OptionError, SchemaError

__all__ = ["group_numbers", "random_parts", "random_parts_of_groups"]

Rows = npt.NDArray[np.int64]


def _checked(fractions: Sequence[float]) -> list[float]:
    shares = [float(fraction) for fraction in fractions]
    if not all(share >= 0 for share in shares) or not sum(shares) <= 1 + 1e-9:
        raise OptionError(f"fractions={fractions!r}: shares of at most 1 together are expected")
    return shares


def _permutation(count: int, seed: int) -> Rows:
    digest = hashlib.blake2b(str(operator.index(seed)).encode(), digest_size=16).digest()
    # RandomState, since NumPy promises to keep its streams as they are for ever.
    return np.random.RandomState(np.frombuffer(digest, "<u4")).permutation(count)


def random_parts(count: int, fractions: Sequence[float], seed: int) -> list[Rows]:
    """Return the samples of each part, ascending.

    Raises:
        OptionError: A negative share, or more than 1 together.
    """
    shares = _checked(fractions)
    order = _permutation(count, seed)
    ends = np.rint(np.cumsum([0.0, *shares]) * count).astype(np.int64)
    return [np.sort(order[a:b]) for a, b in itertools.pairwise(ends)]


def group_numbers(groups: Iterable[Any], count: int) -> Rows:
    """Number the groups in the order in which they first occur.

    Args:
        groups: The group of each sample: anything hashable.
        count: How many samples there are.

    Returns:
        The number of the group of each sample, (count,).

    Raises:
        OptionError: Not one group for each sample.
        SchemaError: A group that cannot be compared, such as NaN.
    """
    if hasattr(groups, "tolist"):  # arrays, tensors, columns of tables
        groups = groups.tolist()
    if not isinstance(groups, Iterable):
        raise OptionError(f"groups={groups!r}: one group for each sample is expected")
    numbers: dict[Any, int] = {}
    found = np.empty(count, np.int64)
    length = 0
    for length, group in enumerate(groups, 1):
        if length > count:
            break
        try:
            comparable = bool(group == group)
            found[length - 1] = numbers.setdefault(group, len(numbers))
        except (TypeError, ValueError):  # a list, an array
            comparable = False
        if not comparable:
            raise SchemaError(
                f"sample {length - 1} has the group {group!r}, which equals no other; give a "
                "number, a text or a tuple",
                sample=length - 1,
            )
    if length != count:
        more = "more" if length > count else str(length)
        raise OptionError(f"groups: one for each of the {count} samples is expected, not {more}")
    return found


def random_parts_of_groups(groups: Rows, fractions: Sequence[float], seed: int) -> list[Rows]:
    """Return the samples of each part, ascending; no group is in two parts.

    In an order that depends on the seed, each group goes to the part that lacks most samples. No
    part with a share stays empty.

    Args:
        groups: int64 (N,), the number of the group of each sample, from 0 without gaps.
        fractions: The share of each part; what is missing to 1 is left out.
        seed: Any integer.

    Raises:
        OptionError: Wrong shares, or fewer groups than parts that want some.
    """
    shares = _checked(fractions)
    sizes = np.bincount(groups) if groups.size else np.zeros(0, np.int64)
    wanting = {part for part, share in enumerate(shares) if share > 0}
    if len(wanting) > sizes.size:
        raise OptionError(
            f"fractions={fractions!r}: {sizes.size} groups cannot fill {len(wanting)} parts; "
            "leave out parts, or split without groups"
        )
    left_out = 1 - sum(shares)
    # A share left out by rounding alone must not win a group.
    lacking = [share * groups.size for share in [*shares, left_out if left_out > 1e-9 else -1.0]]
    part_of_group = np.empty(sizes.size, np.int64)
    for done, group in enumerate(_permutation(sizes.size, seed).tolist()):
        # The last groups belong to parts that have none yet.
        parts = wanting if len(wanting) >= sizes.size - done else range(len(lacking))
        part = max(sorted(parts), key=lacking.__getitem__)
        part_of_group[group] = part
        lacking[part] -= sizes[group]
        wanting.discard(part)
    parts_of_samples = part_of_group[groups]
    return [np.flatnonzero(parts_of_samples == part) for part in range(len(shares))]
