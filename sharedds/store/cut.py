"""Where shards end, and how that is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sharedds.errors import OptionError
from sharedds.text import parse_size

__all__ = ["Cut", "Sharding", "sharding_of"]

_MOST = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Where a shard ends.

    Attributes:
        samples: At so many samples; None for no limit.
        nbytes: With the sample that makes it so many bytes; None for no limit.
    """

    samples: int | None = None
    nbytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """Shards as asked for: how many, or of how many bytes each.

    Attributes:
        count: At most so many, of equal numbers of samples.
        nbytes: Each ends with the sample that makes it so large.
    """

    count: int | None = None
    nbytes: int | None = None

    def cut(self, samples: int) -> Cut:
        """Return where shards end.

        Args:
            samples: How many there will be at most.
        """
        each = None if self.count is None else max(1, -(-samples // self.count))
        return Cut(samples=each, nbytes=self.nbytes)


def sharding_of(shards: Any, shard_size: Any) -> Sharding | None:
    """Return what two options ask for; None for a single file.

    Args:
        shards: How many, or None.
        shard_size: Bytes, a text such as ``"16GiB"``, or None.

    Raises:
        OptionError: Both are given, or one is out of range.
    """
    if shards is not None and shard_size is not None:
        raise OptionError("shards= says how many, shard_size= how large; give one of them")
    if shards is not None:
        if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= _MOST:
            raise OptionError(f"shards={shards!r}: a whole number in 1..{_MOST:,}")
        return Sharding(count=shards)
    if shard_size is None:
        return None
    size = parse_size(shard_size) if isinstance(shard_size, str) else shard_size
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise OptionError(f"shard_size={shard_size!r}: bytes, or a text such as '16GiB'")
    return Sharding(nbytes=size)
