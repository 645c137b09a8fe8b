"""Pictures, volumes or slides: what a folder holds, and which options go with it."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from sharedds.errors import OptionError, SharedDSError
from sharedds.folder import ClassLevel, FolderIndex
from sharedds.ingest.options import PathLike, shown
from sharedds.ingest.slides.scan import SLIDE_ENDINGS, holds_only_slides
from sharedds.ingest.volumes.scan import contents, is_volume_name
from sharedds.text import printable
from sharedds.volumes.opening import is_dicom

__all__ = [
    "HoldsSlidesError",
    "HoldsVolumesError",
    "Kind",
    "PackOptions",
    "check_pictures",
    "is_for_slides",
    "is_for_volumes",
]

Kind = Literal["auto", "image", "volume", "slide"]


class _ForImages(TypedDict, total=False):
    quality: int
    chroma: Literal["auto", "444", "420"]
    raw_share: float
    raw_below: int
    max_side: int | None
    short_side: int | None
    size: tuple[int, int] | None
    check: Literal["decode", "header"]
    depth: Literal["keep", "8"]
    background: tuple[int, int, int] | str
    max_pixels: int | None
    class_level: ClassLevel
    classes: str | os.PathLike[str] | Iterable[str] | None
    numeric_classes: bool
    shuffle_seed: int | None
    against: PathLike | Iterable[PathLike]
    on_estimate: Callable[[int, int], None] | None


class _ForVolumes(TypedDict, total=False):
    patch: Sequence[int] | None
    spacing: Sequence[float] | float | None
    crop_foreground: bool | float
    dtype: Any
    allow_gaps: bool
    allow_single: bool
    invert: bool
    keep_tags: Iterable[str]
    anonymous: bool
    prefer: Literal["sform", "qform", "refuse"]
    resample_labels: bool


class _ForSlides(TypedDict, total=False):
    tile: int
    levels: int | Literal["auto"]
    plane: int | None
    associated: Iterable[str]
    annotations: str | os.PathLike[str] | None


class PackOptions(_ForImages, _ForVolumes, _ForSlides, total=False):
    """Options of :func:`sharedds.pack`; which kind each is for, the three base classes say.

    Slides also take ``quality``, ``chroma`` and ``max_pixels``.
    """

    codec: Literal["keep", "jpeg", "png", "webp", "raw", "auto", "lz4", "zstd", "blosc"]
    orientation: str | None
    labels: str | os.PathLike[str] | None
    include_hidden: bool
    on_error: Literal["skip", "raise"]
    workers: int | None
    shards: int | None
    shard_size: int | str | None
    force: bool
    dry_run: bool
    report: str | os.PathLike[str] | None
    progress: bool | None


_NAMES = {"image": "pictures", "volume": "volumes", "slide": "slides"}
_OF_SLIDES = frozenset(_ForSlides.__annotations__)
_OWN = {
    "image": frozenset(_ForImages.__annotations__),
    "volume": frozenset(_ForVolumes.__annotations__),
    "slide": _OF_SLIDES | {"quality", "chroma", "max_pixels"},
}
_LOOKED_AT, _TRIED = 20_000, 200
_CODECS = {
    "image": ("keep", "jpeg", "png", "webp"),
    "volume": ("auto", "lz4", "zstd", "blosc"),
    "slide": ("auto", "keep", "jpeg", "png", "webp", "lz4", "zstd"),
}


class HoldsSlidesError(Exception):
    """A folder that was scanned for pictures turned out to hold slides."""


class HoldsVolumesError(Exception):
    """A folder that was scanned for pictures turned out to hold volumes."""


def is_for_slides(root: str, kind: Kind, options: Mapping[str, Any]) -> bool:
    """Return whether slides are to be packed.

    Without being told, only where all pictures of the folder are slides: files of scanners' makers,
    or with levels. Where pictures are looked for first, their scan tells: :func:`check_pictures`.

    Args:
        root: The folder.
        kind: As asked for.
        options: Those that were given.

    Raises:
        OptionError: An option goes with another kind.
    """
    if kind == "slide" or (kind == "auto" and options.keys() & _OF_SLIDES):
        _require_known(options)
        check_options(root, "slide", options, what="is packed as")
        return True
    if kind != "auto" or options.get("codec") not in _CODECS["volume"]:
        return False  # the scan for pictures tells: see check_pictures
    return _holds_slides(root, options)


def _holds_slides(root: str, options: Mapping[str, Any]) -> bool:
    """Return whether a folder holds slides alone, and no option says otherwise."""
    if options.keys() & (_OWN["volume"] | _OWN["image"]) - _OWN["slide"] - {"on_estimate"}:
        return False  # who writes them knows what is there
    if not holds_only_slides(root, include_hidden=bool(options.get("include_hidden"))):
        return False
    check_options(root, "slide", options)
    return True


def _require_known(options: Mapping[str, Any]) -> None:
    unknown = [name for name in options if name not in PackOptions.__annotations__]
    if unknown:
        raise TypeError(f"pack() got an unexpected keyword argument {unknown[0]!r}")


def is_for_volumes(root: str, kind: Kind, options: Mapping[str, Any]) -> bool | None:
    """Return whether volumes are to be packed; None where pictures are looked for first.

    A folder of millions of pictures is listed once, by the scan for pictures; it then says whether
    there were volumes instead: see :func:`check_pictures`.

    Args:
        root: The folder.
        kind: As asked for.
        options: Those that were given.

    Raises:
        OptionError: The folder holds both, or an option goes with the other kind.
    """
    if kind not in get_args(Kind):
        raise OptionError(f"kind {shown(kind)}: one of {', '.join(get_args(Kind))}")
    _require_known(options)
    if kind != "auto":
        check_options(root, "volume" if kind == "volume" else "image", options, what="is packed as")
        return kind == "volume"
    says = options.keys() & (_OWN["volume"] | {"labels"})
    if not says and options.get("codec") not in _CODECS["volume"]:
        orientation = options.get("orientation", "apply")
        if orientation in ("apply", "ignore"):
            return None
    found = contents(root, include_hidden=bool(options.get("include_hidden")))
    if found == "both":
        raise _both(root)
    check_options(root, "volume" if found == "volume" else "image", options)
    return found == "volume"


def check_pictures(index: FolderIndex, options: Mapping[str, Any]) -> None:
    """Look at what a scan for pictures found and passed over.

    Args:
        index: Of the folder.
        options: Those that were given.

    Raises:
        HoldsVolumesError: The folder holds volumes and no pictures.
        HoldsSlidesError: All its pictures are slides.
        OptionError: It holds both, or volumes and an option is for pictures.
    """
    pictures = any(index.has_extension(number) for number in range(len(index)))
    if _may_be_slides(index) and _holds_slides(index.root, options):
        raise HoldsSlidesError
    if pictures:
        named = (item.example for item in index.left_out if item.kind == "extension")
        if any(map(is_volume_name, named)) or _slices_among(index):
            raise _both(index.root)
        return
    found = contents(index.root, include_hidden=bool(options.get("include_hidden")))
    if found == "volume":
        check_options(index.root, "volume", options)
        raise HoldsVolumesError


def _may_be_slides(index: FolderIndex) -> bool:
    """Return whether no picture that was found is one that is no slide, as far as names tell."""
    if len(index):
        return index.paths.bytes(0).lower().endswith((b".tif", b".tiff", *SLIDE_ENDINGS))
    named = (item.example for item in index.left_out if item.kind == "extension")
    return any(os.fsencode(name).lower().endswith(SLIDE_ENDINGS) for name in named)


def _slices_among(index: FolderIndex) -> bool:
    """Return whether files without an extension, which may be pictures, are slices instead."""
    some = range(min(len(index), _LOOKED_AT))
    bare = itertools.islice((at for at in some if not index.has_extension(at)), _TRIED)
    for number in bare:
        with contextlib.suppress(SharedDSError, OSError):  # told when it is packed
            if is_dicom(Path(os.fsdecode(index.location(number)))):
                return True
    return False


def check_options(
    root: str,
    kind: Literal["image", "volume", "slide"],
    options: Mapping[str, Any],
    *,
    what: str = "holds",
) -> None:
    """Refuse an option that goes with another kind.

    Raises:
        OptionError: There is one; the text names it.
    """
    others: list[Literal["image", "volume", "slide"]] = ["image", "volume", "slide"]
    others.remove(kind)
    for name in options:
        if name in _OWN[kind] or name == "on_estimate":
            continue
        for other in others:
            if name in _OWN[other]:
                raise OptionError(
                    f"{name} is an option for {_NAMES[other]}; {printable(root)} {what} "
                    f"{_NAMES[kind]}"
                )
    if kind == "slide" and (wrong := [n for n in ("labels", "orientation") if n in options]):
        raise OptionError(f"{wrong[0]} is no option for slides; {printable(root)} {what} slides")
    codec = options.get("codec")
    known = {*_CODECS[kind], "raw"}
    if isinstance(codec, str) and codec not in known:
        for other in others:
            if codec in _CODECS[other]:
                raise OptionError(
                    f"codec {codec!r} is for {_NAMES[other]}; {printable(root)} {what} "
                    f"{_NAMES[kind]}: {', '.join(sorted(known))}"
                )


def _both(root: str) -> OptionError:
    return OptionError(
        f"{printable(root)} holds pictures and volumes; say which to pack with kind='image' or "
        "kind='volume' (--kind)"
    )
