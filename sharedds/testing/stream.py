"""Whether a dataset gives the same stream however it is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import default_collate

from sharedds.errors import OptionError
from sharedds.loader import build_loader
from sharedds.order import Shuffled
from sharedds.testing.causes import causes_of
from sharedds.testing.values import Fields, fields_of
from sharedds.testing.whole import compare_whole

__all__ = ["assert_same_stream"]


@dataclasses.dataclass(frozen=True, slots=True)
class _Way:
    """One way to load."""

    workers: int
    engine: str = "process"
    is_again: bool = False

    def __str__(self) -> str:
        if self.workers == 0:
            return "without workers" + (", a second time" if self.is_again else "")
        kind = {"process": "worker process"}.get(self.engine, self.engine)
        plural = "" if self.workers == 1 else "es" if kind.endswith("s") else "s"
        return f"with {self.workers} {kind}{plural}"


def assert_same_stream(
    dataset: Any,
    *,
    workers: Sequence[int] = (0, 1, 2),
    engines: Sequence[str] = ("process", "thread"),
    start_method: str | None = None,
    batch_size: int = 4,
    seed: int = 0,
    epochs: int = 2,
    samples: int = 64,
    seed_globals: str = "sample",
    collate_fn: Callable[[list[Any]], Any] | None = None,
) -> None:
    """Check that a dataset gives the same stream however it is loaded, bit for bit.

    The same shuffled epochs are loaded in each way and compared with the first: tensors, arrays,
    numbers, text, bytes, pictures and containers of them. NaNs are equal to each other.

    Where a dataset makes whole batches (``load_batch``), these are compared as well: with what
    torch's ``default_collate`` makes of single samples, unless there is another ``collate_fn``.

    Args:
        dataset: A map-style dataset with a length.
        workers: Numbers of workers to load with; 0 is without, once more to see it repeat.
        engines: What the workers are: "process", "thread" or both.
        start_method: How worker processes start; None lets the plan choose.
        batch_size: Samples in a batch.
        seed: Any integer.
        epochs: How many epochs of each way are compared.
        samples: Only the first so many samples are loaded.
        seed_globals: As of :func:`sharedds.build_loader`.
        collate_fn: Checked as well if given; otherwise samples are compared as they are.

    Raises:
        AssertionError: The stream differs; the text names the first sample and place, shows both
            values and lists likely causes. Or a whole batch differs from its samples.
        OptionError: There is nothing to compare.

    Example:
        >>> assert_same_stream(torch.arange(10), workers=(0, 1), engines=["thread"])
    """
    ways = [_Way(count) for count in workers if count == 0][:1]
    ways += [_Way(0, is_again=True) for _ in ways]
    ways += [_Way(count, engine) for engine in engines for count in workers if count]
    count = min(len(dataset), samples)
    if len(ways) < 2 or count < 1:
        raise OptionError(
            f"workers={tuple(workers)}, engines={tuple(engines)}, {count} samples: "
            "nothing to compare"
        )
    options = {
        "batch_size": batch_size,
        "seed": seed,
        "seed_globals": seed_globals,
        "collate_fn": collate_fn or _as_they_are,
        "pin_memory": False,
    }
    expected: list[Fields] | None = None
    for way in ways:
        extra = {"start_method": start_method} if way.engine == "process" and way.workers else {}
        try:
            found = list(_stream(dataset, way, count, epochs, {**options, **extra}))
        except OptionError as error:
            raise AssertionError(f"{_name(dataset)} cannot be loaded {way}: {error}") from error
        if expected is None:
            expected = found
            continue
        _compare(dataset, collate_fn, (ways[0], expected), (way, found), seed, batch_size, count)
    if collate_fn is None or collate_fn is default_collate:
        compare_whole(dataset, seed=seed, epochs=epochs, batch_size=batch_size, count=count)


def _as_they_are(samples: list[Any]) -> list[Any]:
    return samples


def _stream(
    dataset: Any, way: _Way, count: int, epochs: int, options: dict[str, Any]
) -> Iterator[Fields]:
    loader: Any = build_loader(
        dataset,
        sampler=Shuffled(count),
        num_workers=way.workers,
        engine=way.engine,
        persistent_workers=True if way.workers else None,
        **options,
    )
    for _ in range(epochs):
        for batch in loader:
            parts = batch if options["collate_fn"] is _as_they_are else [batch]
            for part in parts:
                yield dict(fields_of(part, ""))


# --- comparing -----------------------------------------------------------------------------------


def _compare(
    dataset: Any,
    collate_fn: Any,
    first: tuple[_Way, list[Fields]],
    second: tuple[_Way, list[Fields]],
    seed: int,
    batch_size: int,
    count: int,
) -> None:
    way, expected = first
    other, found = second
    if found == expected:
        return
    for number, (own, its) in enumerate(zip(expected, found, strict=False)):
        place = next((path for path in own | its if own.get(path) != its.get(path)), None)
        if place is None:
            continue
        size = batch_size if collate_fn else 1
        epoch, step = divmod(number, -(-count // size))
        positions = np.arange(step * size, min(count, (step + 1) * size))
        indices = Shuffled(count).at(seed, epoch, positions).tolist()
        what = f"the batch of samples {indices}" if collate_fn else f"sample {indices[0]}"
        where = f"in epoch {epoch}, {what}{f', at {place}' if place else ''}"
        engine = other.engine if other.workers else None
        lines = [
            f"the stream of {_name(dataset)} depends on how it is loaded, first {where}:",
            f"  {way}: {own.get(place, (b'', 'nothing'))[1]}",
            f"  {other}: {its.get(place, (b'', 'nothing'))[1]}",
            "likely causes:",
            *(f"  - {cause}" for cause in causes_of(dataset, collate_fn, engine)),
        ]
        raise AssertionError("\n".join(lines))
    raise AssertionError(
        f"{_name(dataset)} gave {len(expected)} samples {way}, but {len(found)} {other}"
    )


def _name(dataset: Any) -> str:
    return type(dataset).__name__
