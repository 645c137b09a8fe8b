"""Ways to store the pictures of a folder, what each was measured to be like, and which to take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from statistics import median_low
from typing import Any

from sharedds.ingest.images.prepare import ImageRecipe

__all__ = ["ENOUGH", "PackPlan", "Way", "candidates", "predict", "recommend", "words_of"]

ENOUGH = 3_000.0
"""Images a second that one large GPU takes to train a ResNet-50 at 224 pixels, about."""

_LONG, _SHORT = 512, 256
_AS_FAST = 0.8  # of the fastest: a way that loses less is preferred
_CACHED = 0.8  # of the memory that is left: files up to this stay in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to store the pictures.

    Attributes:
        name: For people.
        recipe: The options of :func:`sharedds.pack`.
        loses: What a training can never have back; empty where nothing is lost.
        refused: Pictures of the sample that cannot be stored so.
        stored_bytes: Of the whole store, estimated.
        picture_bytes: What is read for one picture.
        decode_rate: Pictures a second that one core reads from memory: checked and decoded to RGB
            in the size in which they are stored.
        pack_seconds: To pack all of them with all cores, without the writing.
        machine_rate: Pictures a second that all cores would read, if the storage keeps up.
        bound: What limits that: ``"cores"`` or ``"storage"``.
        cached: Whether the store fits in the memory that is left, so that only the first epoch
            depends on the storage.
    """

    name: str
    recipe: ImageRecipe
    loses: str = ""
    refused: int = 0
    stored_bytes: int = 0
    picture_bytes: float = 0.0
    decode_rate: float = 0.0
    pack_seconds: float = 0.0
    machine_rate: float = 0.0
    bound: str = "cores"
    cached: bool = False

    @property
    def words(self) -> str:
        """Options of the command line for it."""
        return words_of(self.recipe)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackPlan:
    """What :func:`plan_packing` found; nothing was written.

    Attributes:
        source: The folder.
        pictures: How many there are, as far as names tell.
        source_bytes: Bytes of their files.
        measured: How many of them were measured, chosen at random from all parts of the folder.
        failed: (path, reason) of those of the sample that cannot be read.
        seconds: How long it took.
        cpus: CPUs that this process may use.
        storage: Where the folder lies, and what kind of storage that is.
        storage_rate: Bytes a second read from there, several files at a time, out of the cache as
            far as the system lets go of them; None where that could not be measured.
        memory: Bytes that are left for cached files; None where that is not known.
        room: Bytes that are free where the store would lie.
        ways: The ways that were measured, those that lose least first.
        chosen: Name of the one that is recommended.
        reason: Why.
    """

    source: str
    pictures: int
    source_bytes: int
    measured: int
    failed: tuple[tuple[str, str], ...]
    seconds: float
    cpus: int
    storage: str
    storage_rate: float | None
    memory: int | None
    room: int
    ways: tuple[Way, ...]
    chosen: str
    reason: str

    @property
    def choice(self) -> Way:
        """The way that is recommended."""
        return next(way for way in self.ways if way.name == self.chosen)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        values = asdict(self)
        values["failed"] = [{"path": path, "reason": reason} for path, reason in self.failed]
        values["ways"] = [{**asdict(way), "words": way.words} for way in self.ways]
        return values


def candidates(
    sizes: Sequence[tuple[int, int]], formats: Sequence[str], rules: ImageRecipe
) -> tuple[Way, ...]:
    """Return the ways that make sense for pictures such as these, those that lose least first.

    Args:
        sizes: (height, width) of some pictures, upright.
        formats: Their formats.
        rules: What holds for all ways: depth, background, orientation, check and limit of pixels.
            Where it encodes anew by itself, it is the last of the ways.
    """
    plain = replace(
        rules, codec="keep", size=None, max_side=None, short_side=None, depth="keep",
        raw_share=0.0, raw_below=0,
    )  # fmt: skip
    anew = replace(plain, codec="jpeg", depth=rules.depth, quality=90)
    ways = [Way(name="keep", recipe=plain)]
    if any(max(size) > _LONG for size in sizes):
        smaller = replace(anew, max_side=_LONG)
        ways += [
            Way(
                name=f"jpeg, long side {_LONG}",
                recipe=smaller,
                loses=f"detail beyond {_LONG} pixels, and what encoding twice costs",
            ),
            Way(
                name="the same, half as pixels",
                recipe=replace(smaller, raw_share=0.5),
                loses=f"detail beyond {_LONG} pixels",
            ),
        ]
    elif Counter(formats).most_common(1)[0][0] in ("jpeg", "bmp", "tiff"):
        ways.append(Way(name="jpeg, quality 90", recipe=anew, loses="what encoding twice costs"))
    if any(min(size) > _SHORT for size in sizes):
        ways.append(
            Way(
                name=f"jpeg, short side {_SHORT}",
                recipe=replace(anew, short_side=_SHORT),
                loses=f"detail beyond {_SHORT} pixels: crops of less will be blurred",
            )
        )
    ways.append(_raw(sizes, anew))
    if rules.codec != "keep" and rules not in [way.recipe for way in ways]:
        ways.append(Way(name="as asked", recipe=rules, loses="what the options say"))
    return tuple(ways)


def _raw(sizes: Sequence[tuple[int, int]], anew: ImageRecipe) -> Way:
    first = sizes[0]
    if max(first) <= _SHORT and set(sizes) == {first}:
        size, loses = first, ""
    else:
        side = min(_SHORT, median_low(min(size) for size in sizes))
        size = (side, side)
        loses = f"what lies outside the middle, and detail beyond {side} pixels"
    return Way(
        name=f"raw {size[0]}x{size[1]}",
        recipe=replace(anew, codec="raw", size=size),
        loses=loses,
    )


def predict(way: Way, *, cpus: int, storage_rate: float | None, memory: int | None) -> Way:
    """Return a way with what the whole machine would make of it: cores, or the storage if slower.

    A store that fits in memory is read from the storage once, so that does not bound it.
    """
    by_cores = way.decode_rate * cpus
    cached = memory is not None and way.stored_bytes <= _CACHED * memory
    by_storage = by_cores if storage_rate is None else storage_rate / max(way.picture_bytes, 1.0)
    if cached or by_cores <= by_storage:
        return replace(way, machine_rate=by_cores, bound="cores", cached=cached)
    return replace(way, machine_rate=by_storage, bound="storage", cached=cached)


def recommend(ways: Sequence[Way], *, room: int, rate: float = ENOUGH) -> tuple[Way, str]:
    """Return the way to take, and why.

    The first that reaches ``rate`` or, where none does, is within 20 % of the fastest. What does
    not fit on the disk, or cannot hold all pictures, is left aside.

    Args:
        ways: Those that lose least first.
        room: Bytes that are free.
        rate: Images a second that the training takes.
    """
    usable = [w for w in ways if not w.refused and w.stored_bytes <= room] or list(ways[:1])
    most = max(way.machine_rate for way in usable)
    wanted = min(rate, _AS_FAST * most) if most < rate else rate
    chosen = next(way for way in usable if way.machine_rate >= wanted)
    return chosen, _reason(chosen, ways[0], rate)


def _reason(way: Way, keep: Way, rate: float) -> str:
    if way.machine_rate >= rate:
        why = f"reaches the {rate:,.0f} images/s that training takes"
    else:
        why = f"nothing reaches {rate:,.0f} images/s, this comes near"
    if way is not keep:
        faster = _times(way.machine_rate, keep.machine_rate)
        why += f"; {faster} as fast as keep in {_times(way.stored_bytes, keep.stored_bytes)}"
        why += " the room"
    return f"{why}; {f'loses {way.loses}' if way.loses else 'loses nothing'}"


def _times(one: float, other: float) -> str:
    ratio = one / max(other, 1e-9)
    return f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:.2g} times"


def words_of(recipe: ImageRecipe) -> str:
    """Return the words of the command line that stand for a recipe."""
    words = []
    for field in fields(recipe):
        value = getattr(recipe, field.name)
        if value == field.default:
            continue
        if field.name == "orientation":
            words.append("--ignore-orientation")
            continue
        if field.name == "size":
            value = f"{value[0]}x{value[1]}"
        elif field.name == "background":
            value = bytes(value).hex()
        elif field.name == "max_pixels" and value is None:
            value = "none"
        words.append(f"--{field.name.replace('_', '-')} {value}")
    return " ".join(words)
