"""Before packing: what ways to store the pictures of a folder would take and give on this machine.

A sample is read from the storage, then stored and read back in memory in each way; nothing is
written. Rates are those of decoding alone, so a training gets at most that many.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import xxhash

from sharedds.codecs import IMAGE_FORMATS, ImageHeader, decode, probe, sniff
from sharedds.errors import DecodeError, OptionError, SourceError
from sharedds.folder import ClassLevel, FolderIndex, scan
from sharedds.handles import free_bytes
from sharedds.host import machine_memory, storage_of, usable_cpus
from sharedds.ingest.executor import run_in_order
from sharedds.ingest.images.job import room_of
from sharedds.ingest.images.prepare import ImageRecipe, Ingester
from sharedds.ingest.images.ways import ENOUGH, PackPlan, Way, candidates, predict, recommend
from sharedds.ingest.options import color, path_of, shown
from sharedds.progress import Progress
from sharedds.text import printable

__all__ = ["plan_packing"]

_SAMPLE = 512
_READERS = 16  # files asked for at a time, as a batch of a store is
_READING = 0.2  # of the time
_FAILED = 10


def plan_packing(
    source: str | os.PathLike[str],
    *,
    recipe: ImageRecipe | None = None,
    out: str | os.PathLike[str] | None = None,
    rate: float = ENOUGH,
    seconds: float = 10.0,
    class_level: ClassLevel = "auto",
    include_hidden: bool = False,
    progress: bool | None = None,
) -> PackPlan:
    """Measure ways to store the pictures of a folder, and recommend one. Nothing is written.

    Each is measured on the same pictures, drawn at random from all parts of the folder: the size,
    the time of one core to pack it, and to read it back from memory (checksum, decoding to RGB).
    How fast the storage is, is measured by reading the sample's files, first dropped from the cache
    of the system where it lets go of them.

    Args:
        source: The folder.
        recipe: Depth, background, orientation, check and limit of pixels, for all ways; if it
            encodes anew, it is measured as one more way.
        out: Where the store would be made; by default beside the folder. Asked for free room.
        rate: Images a second that the training takes: the way that loses least and reaches it is
            recommended; where none does, the one within 20 % of the fastest. By default what one
            large GPU takes to train a ResNet-50.
        seconds: About how long to measure; one picture is always finished.
        class_level: See :func:`sharedds.folder.scan`.
        include_hidden: See :func:`sharedds.folder.scan`.
        progress: True or False to show a bar; by default after two seconds.

    Raises:
        SourceError: The folder cannot be read, or no picture of the sample can.
        OptionError: A number that is not above zero.
    """
    for name, value in (("seconds", seconds), ("rate", rate)):
        if isinstance(value, (bool, str)) or not value > 0:
            raise OptionError(f"{name} {shown(value)}: a number above 0")
    started = time.monotonic()
    rules = ImageRecipe() if recipe is None else recipe
    root = path_of("source", source)
    place = os.path.dirname(root if out is None else path_of("out", out))
    with Progress("scanning", unit="files", enabled=progress) as bar:
        index = scan(
            root,
            class_level=class_level,
            include_hidden=include_hidden,
            progress=lambda files: bar.advance(files - bar.count),
        )
    if not len(index):
        raise SourceError(f"{printable(root)}: no image in it to measure", path=root)
    sample = _sample(len(index))
    memory, cpus = machine_memory().available, usable_cpus().count
    until = time.monotonic() + seconds
    seen, storage_rate = _look(index, sample, rules, seconds=_READING * seconds)
    tallies, failed = _measure(index, seen, rules, until=until, progress=progress)
    ways = tuple(
        predict(
            tally.way_of(len(index), index.total_bytes, cpus),
            cpus=cpus,
            storage_rate=storage_rate,
            memory=memory,
        )
        for tally in tallies
    )
    room = free_bytes(place)
    chosen, reason = recommend(ways, room=room, rate=rate)
    found = storage_of(root)
    return PackPlan(
        source=root,
        pictures=len(index),
        source_bytes=index.total_bytes,
        measured=tallies[0].pictures,
        failed=tuple(failed[:_FAILED]),
        seconds=time.monotonic() - started,
        cpus=cpus,
        storage=found.reason or found.file_system,
        storage_rate=storage_rate,
        memory=memory,
        room=room,
        ways=ways,
        chosen=chosen.name,
        reason=reason,
    )


def _sample(count: int) -> list[int]:
    """Return numbers of pictures: one at random from each part of the folder, in random order.

    The same for the same folder. However early the measuring ends, all parts have had their share.
    """
    parts = min(count, _SAMPLE)
    draws = np.random.default_rng(0)
    places = (np.arange(parts) + draws.random(parts)) * (count / parts)
    sample: list[int] = draws.permutation(places.astype(np.int64)).tolist()
    return sample


@dataclass(frozen=True, slots=True)
class _Seen:
    """A file of the sample that was read; ``header`` is None where it is no picture."""

    position: int
    size: int
    header: ImageHeader | None = None


def _look(
    index: FolderIndex, sample: Sequence[int], rules: ImageRecipe, *, seconds: float
) -> tuple[list[_Seen], float | None]:
    """Read files, several at a time, each dropped from the cache before.

    Returns:
        Those that were read in this time, at least one, and the bytes a second.
    """

    def look(position: int) -> _Seen:
        try:
            with open(index.location(position), "rb", buffering=0) as file:
                data = file.read()
            if sniff(data) not in IMAGE_FORMATS:
                return _Seen(position, len(data))
            return _Seen(position, len(data), probe(data, max_pixels=rules.max_pixels))
        except (OSError, DecodeError):
            return _Seen(position, 0)

    for position in sample:
        with (
            contextlib.suppress(OSError, AttributeError),
            open(index.location(position), "rb", buffering=0) as file,
        ):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    started = time.monotonic()
    seen: list[_Seen] = []
    items = ((position, int(index.sizes.array[position])) for position in sample)
    with contextlib.closing(run_in_order(look, items, workers=_READERS)) as results:
        for one in results:
            seen.append(one)
            if time.monotonic() - started >= seconds:
                break
    read = sum(one.size for one in seen)
    return seen, read / max(time.monotonic() - started, 1e-9) if read else None


@dataclass(slots=True)
class _Tally:
    """What was measured of one way."""

    way: Way
    ingester: Ingester
    pictures: int = 0
    refused: int = 0
    value_bytes: int = 0
    stored_bytes: int = 0
    packing: float = 0.0  # seconds of a core, whoever else is at work on it
    decoding: float = 0.0

    def take(self, path: bytes) -> str:
        """Store one picture and read it back; return why not, if it cannot be."""
        started = time.thread_time()
        result = self.ingester(path)
        packed = time.thread_time()
        if result.value is None:
            self.refused += 1
            return result.reason
        try:
            decoding = min(_read_back(result.value, self.way.recipe) for _ in range(2))
        except DecodeError as error:  # the header was good enough to be packed
            self.refused += 1
            return str(error)
        size = len(result.value) if isinstance(result.value, bytes) else result.value.nbytes
        self.pictures += 1
        self.packing += packed - started
        self.decoding += decoding
        self.value_bytes += size
        self.stored_bytes += room_of(size, alone=isinstance(result.value, bytes))
        return ""

    def way_of(self, count: int, total_bytes: int, cpus: int) -> Way:
        """Return the way with its figures, for ``count`` pictures of so many bytes together."""
        done = max(self.pictures, 1)
        stored = self.stored_bytes / done * count
        if self.way.recipe.codec == "keep" and self.value_bytes:
            stored *= (total_bytes / count) / (self.value_bytes / done)  # known, not sampled
        return replace(
            self.way,
            refused=self.refused,
            stored_bytes=round(stored),
            picture_bytes=self.value_bytes / done,
            decode_rate=self.pictures / max(self.decoding, 1e-9),
            pack_seconds=self.packing / done * count / cpus,
        )


def _read_back(value: bytes | npt.NDArray[np.uint8], recipe: ImageRecipe) -> float:
    """Return the seconds of a core to check and decode a stored picture."""
    started = time.thread_time()
    xxhash.xxh3_64_intdigest(value if isinstance(value, bytes) else value.data)
    if isinstance(value, bytes):
        decode(
            value,
            background=color(recipe.background),
            orientation=1 if recipe.orientation == "ignore" else None,
            max_pixels=recipe.max_pixels,
        )
    else:
        np.array(value)  # a row is copied out of the map
    return time.thread_time() - started


def _measure(
    index: FolderIndex,
    seen: Sequence[_Seen],
    rules: ImageRecipe,
    *,
    until: float,
    progress: bool | None,
) -> tuple[list[_Tally], list[tuple[str, str]]]:
    """Store the pictures in each way and read them back, as many as there is time for."""
    headers = [one.header for one in seen if one.header is not None]
    if not headers:
        raise SourceError(
            f"{printable(index.root)}: none of {len(seen)} files tried is a picture, such as "
            f"{printable(index.paths[seen[0].position])}",
            path=index.root,
        )
    sizes = [_upright(header, rules) for header in headers]
    ways = candidates(sizes, [header.format for header in headers], rules)
    tallies = [_Tally(way, Ingester(way.recipe)) for way in ways]
    failed: list[tuple[str, str]] = []
    with Progress("measuring", unit="images", enabled=progress) as bar:
        for one in seen:
            path = index.location(one.position)
            reason = tallies[0].take(path)
            if reason:  # it is no picture in any way
                failed.append((index.paths[one.position], reason))
            else:
                for tally in tallies[1:]:
                    tally.take(path)
            bar.advance(1, nbytes=one.size)
            if tallies[0].pictures and time.monotonic() >= until:
                break
    tallies[0].refused = 0
    if not tallies[0].pictures:
        name, reason = failed[0]
        raise SourceError(
            f"{printable(index.root)}: none of {len(failed)} pictures tried can be read, such as "
            f"{printable(name)}: {reason}",
            path=index.root,
        )
    return tallies, failed


def _upright(header: ImageHeader, rules: ImageRecipe) -> tuple[int, int]:
    size = (header.height, header.width)
    return size[::-1] if header.orientation >= 5 and rules.orientation == "apply" else size
