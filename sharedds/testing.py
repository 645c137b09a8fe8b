"""Contracts that users' own datasets can be held to, in their own test suites."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
import reprlib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from sharedds.errors import OptionError
from sharedds.loader import build_loader
from sharedds.order import Shuffled

__all__ = ["assert_same_stream"]

#: Place in a sample -> what is there: a digest, and a short text for people.
_Fields = dict[str, tuple[bytes, str]]


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
            values and lists likely causes.
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
    expected: list[_Fields] | None = None
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


def _as_they_are(samples: list[Any]) -> list[Any]:
    return samples


def _stream(
    dataset: Any, way: _Way, count: int, epochs: int, options: dict[str, Any]
) -> Iterator[_Fields]:
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
                yield dict(_fields(part, ""))


# --- comparing -----------------------------------------------------------------------------------


def _compare(
    dataset: Any,
    collate_fn: Any,
    first: tuple[_Way, list[_Fields]],
    second: tuple[_Way, list[_Fields]],
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
        lines = [
            f"the stream of {_name(dataset)} depends on how it is loaded, first {where}:",
            f"  {way}: {own.get(place, (b'', 'nothing'))[1]}",
            f"  {other}: {its.get(place, (b'', 'nothing'))[1]}",
            "likely causes:",
            *(f"  - {cause}" for cause in _causes(dataset, collate_fn, other)),
        ]
        raise AssertionError("\n".join(lines))
    raise AssertionError(
        f"{_name(dataset)} gave {len(expected)} samples {way}, but {len(found)} {other}"
    )


def _name(dataset: Any) -> str:
    return type(dataset).__name__


def _fields(value: Any, path: str) -> Iterator[tuple[str, tuple[bytes, str]]]:
    """Yield the places of a value with what stands there."""
    kind = type(value).__qualname__
    if isinstance(value, torch.Tensor):
        yield path, _tensor(value)
    elif isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        yield path, _array(np.asarray(value), kind)
    elif isinstance(value, np.ndarray):
        yield from _fields(value.tolist(), path)
    elif isinstance(value, float):
        yield path, _entry(kind, "nan" if value != value else value.hex(), repr(value))
    elif value is None or isinstance(value, str | bytes | bytearray | int | complex):
        yield path, _entry(kind, repr(value), reprlib.repr(value))
    elif isinstance(value, Mapping):
        yield f"{path}{{}}", _entry(kind, sorted(map(repr, value)), reprlib.repr(list(value)))
        for key, part in value.items():
            yield from _fields(part, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple):
        yield f"{path}[]", _entry(kind, len(value), f"{kind} of {len(value)}")
        names = getattr(value, "_fields", range(len(value)))
        for name, part in zip(names, value, strict=True):
            yield from _fields(
                part, f"{path}[{name}]" if isinstance(name, int) else f"{path}.{name}"
            )
    elif isinstance(value, set | frozenset):
        yield path, _entry(kind, sorted(map(repr, value)), reprlib.repr(value))
    elif hasattr(value, "tobytes") and hasattr(value, "mode"):  # a Pillow image
        head = (value.mode, value.size)
        yield path, _entry(kind, (head, value.tobytes()), f"{kind} {head}")
    elif dataclasses.is_dataclass(value) or getattr(value, "__dict__", None):
        yield f"{path}()", _entry(kind, "", kind)
        for name in _attributes(value):
            yield from _fields(getattr(value, name), f"{path}.{name}")
    else:
        yield path, _entry(kind, pickle.dumps(value), reprlib.repr(value))


def _attributes(value: Any) -> list[str]:
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    return sorted(vars(value))


def _entry(kind: str, content: object, shown: str) -> tuple[bytes, str]:
    return hashlib.blake2b(f"{kind} {content!r}".encode(errors="surrogatepass")).digest(), shown


def _tensor(value: torch.Tensor) -> tuple[bytes, str]:
    head = f"{value.dtype}, shape {tuple(value.shape)}"
    flat = (
        value.detach().cpu().to_dense() if value.layout != torch.strided else value.detach().cpu()
    )
    flat = flat.resolve_conj().resolve_neg().contiguous().flatten()
    if flat.is_floating_point():
        flat = torch.where(flat.isnan(), torch.full_like(flat, float("nan")), flat)
    data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return hashlib.blake2b(
        head.encode() + data
    ).digest(), f"tensor of {head}: {_beginning(flat[:4].tolist(), flat.numel())}"


def _array(value: np.ndarray[Any, Any], kind: str) -> tuple[bytes, str]:
    head = f"{value.dtype}, shape {value.shape}"
    flat = np.ascontiguousarray(value).ravel()
    if flat.dtype.kind in "fc":
        flat = np.where(np.isnan(flat), np.array(np.nan, flat.dtype), flat)
    digest = hashlib.blake2b(f"{kind} {head}".encode() + flat.tobytes()).digest()
    return digest, f"{kind} of {head}: {_beginning(flat[:4].tolist(), flat.size)}"


def _beginning(values: list[Any], size: int) -> str:
    return ", ".join(map(repr, values)) + (", ..." if size > len(values) else "")


# --- why -----------------------------------------------------------------------------------------

_CLOCK = "the clock ({}): a sample must not depend on when it is made"
_SYSTEM = "randomness of the system ({}), which no seed reaches: draw from self.rng or numpy.random"
_PLACE = "who makes the sample ({}): a worker's number, process or thread is not part of its key"
_HASH = "hashes ({}), which differ from process to process for text: use sorted(), or xxhash"
_MAKES = "a generator made while samples are made ({}): without a seed each has another stream"
_TELLTALE = {
    **dict.fromkeys(("time", "time_ns", "perf_counter", "monotonic", "now", "today"), _CLOCK),
    **dict.fromkeys(("urandom", "uuid1", "uuid4", "secrets", "SystemRandom", "getrandom"), _SYSTEM),
    **dict.fromkeys(("getpid", "get_worker_info", "get_ident", "current_thread"), _PLACE),
    **dict.fromkeys(("current_process", "gethostname", "environ"), _PLACE),
    **dict.fromkeys(("hash", "set", "frozenset", "id"), _HASH),
    **dict.fromkeys(("default_rng", "RandomState", "Random", "seed_everything"), _MAKES),
}
_LIBRARIES = frozenset({"builtins", "numpy", "sharedds", "torch", "typing"})
_CARRIED = (
    "something kept from sample to sample in the dataset (a counter, an iterator, a random stream "
    "of its own), so that a sample depends on which ones were made before it"
)
_ANYWHERE = (
    "the clock, os.urandom, uuid or secrets: no seed reaches those",
    "a generator of a kind that cannot be reseeded, or hidden too deep to be found",
    _CARRIED,
)
_OF_PROCESSES = (
    _CARRIED,
    "the order of a set, or hash() of text: they differ from process to process",
    "the number of the worker, its process id, or the environment",
    "something that importing a module anew makes different",
)
_STORED = (
    "a random function that was stored in an object (self.draw = random.random), or a hidden "
    "instance (numpy.random.mtrand._rand): threads cannot redirect these; call random.random() by "
    "its module, or use engine='process'"
)
_OF_THREADS = (
    _STORED,
    "something that threads share and change: a buffer or a cache in the dataset, a global",
)


def _causes(dataset: Any, collate_fn: Any, way: _Way) -> Iterator[str]:
    """Yield likely causes: what the code names first, then what is common where it happened."""
    found: dict[str, list[str]] = {}
    for name in sorted(_names(dataset, 3) | _names(collate_fn, 3)):
        if name in _TELLTALE:
            found.setdefault(_TELLTALE[name], []).append(name)
    for cause, names in found.items():
        yield f"its code names {cause.format(', '.join(names))}"
    if way.workers == 0:
        yield from _ANYWHERE
    elif way.engine == "process":
        yield from _OF_PROCESSES
    else:
        yield from _OF_THREADS


def _names(value: Any, depth: int) -> set[str]:
    """Return the names that the code of an object uses, and of the objects in it."""
    if depth == 0 or value is None:
        return set()
    if isinstance(value, types.MethodType):
        value = value.__func__
    if isinstance(value, types.FunctionType):
        return _of_code(value.__code__)
    found: set[str] = set()
    if isinstance(value, list | tuple):
        return found.union(*(_names(part, depth) for part in value[:32]))
    for owner in type(value).__mro__:
        if owner.__module__.partition(".")[0] in _LIBRARIES:
            continue
        for name, member in vars(owner).items():
            function = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(function, types.FunctionType) and name != "__init__":
                found |= _of_code(function.__code__)
    for part in tuple(getattr(value, "__dict__", {}).values())[:32]:
        found |= _names(part, depth - 1)
    return found


def _of_code(code: types.CodeType) -> set[str]:
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return set(code.co_names).union(*(_of_code(part) for part in inner))
