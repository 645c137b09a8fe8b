"""Looks through a folder for slides and other large pictures: by content, never by names alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sharedds.errors import MissingExtraError, SharedDSError
from sharedds.folder.names import IMAGE_EXTENSIONS, extension
from sharedds.handles import absolute_path
from sharedds.ingest.listing import Listing, files_of, names_of, reason_of
from sharedds.packed import encode_text
from sharedds.slides import SlideFile, is_slide, recognise

__all__ = [
    "ANNOTATIONS",
    "SLIDE_ENDINGS",
    "FoundSlide",
    "FoundSlides",
    "find_slides",
    "holds_only_slides",
]

ANNOTATIONS = (".geojson", ".json")
"""Endings of files of annotations."""

_TRIED = 200
_DOUBLE = (".ome.tif", ".ome.tiff", ".ome.btf")
SLIDE_ENDINGS = (b".svs", b".ndpi", b".mrxs", b".scn", b".vms", b".vmu", b".bif", b".svslide")
_SLIDES = (*SLIDE_ENDINGS, b".tif", b".tiff")


@dataclass(frozen=True, slots=True)
class FoundSlide:
    """A slide: its key, its path below the folder, and the file."""

    key: str
    path: str
    file: SlideFile


@dataclass(slots=True, kw_only=True)
class FoundSlides(Listing):
    """What a folder holds.

    Attributes:
        slides: In the order in which they are packed.
    """

    slides: list[FoundSlide] = field(default_factory=list)


def find_slides(
    root: str,
    *,
    max_pixels: int | None = None,
    include_hidden: bool = False,
    aside: Sequence[str] = (),
    progress: Callable[[int], object] | None = None,
) -> FoundSlides:
    """Find the slides of a folder and of all folders below it; their headers are read.

    Args:
        root: The folder.
        max_pixels: See :func:`sharedds.slides.recognise`.
        include_hidden: Let files and folders count whose name starts with a dot.
        aside: Absolute paths of annotations: files, or folders whose GeoJSON files are meant. Such
            a folder may be that of the slides.
        progress: Called with how many files were looked at.

    Raises:
        SourceError: The folder cannot be listed.
        MissingExtraError: There are files that need a package which is not installed.
    """
    found = FoundSlides(root=absolute_path(root))
    files = files_of(found, include_hidden=include_hidden)
    entries: list[tuple[str, SlideFile]] = []
    for number, (path, _, _) in enumerate(files, 1):
        if progress is not None:
            progress(number)
        place = Path(found.root, path)
        if any(_is_annotation(str(place), other) for other in aside):
            found.left_out.append(("list", "annotations", path, 1))
            continue
        try:
            file = recognise(place, max_pixels=max_pixels)
        except MissingExtraError:  # missing for all
            raise
        except SharedDSError as error:
            found.bad.append((path, reason_of(error, found.root, path), (path,)))
            continue
        suffix = extension(encode_text(path.rpartition("/")[2]))
        if file is not None:
            entries.append((path, file))
        elif suffix in IMAGE_EXTENSIONS or suffix in _SLIDES:
            reason = "the name is that of a picture, the content is not"
            found.bad.append((path, reason, (path,)))
        else:
            kind = suffix.decode(errors="replace") or "not a picture"
            found.left_out.append(("extension", kind, path, 1))
    found.slides = _with_keys(entries)
    return found


def holds_only_slides(root: str, *, include_hidden: bool = False) -> bool:
    """Return whether all pictures of a folder are slides; an ordinary one ends the search.

    At most 200 files are looked into.
    """
    scan = Listing(root=absolute_path(root))
    tried = 0
    try:
        for path in names_of(scan, include_hidden=include_hidden):
            suffix = extension(encode_text(path.rpartition("/")[2]))
            if suffix not in IMAGE_EXTENSIONS and suffix not in _SLIDES:
                continue
            if tried == _TRIED:
                break
            if not is_slide(Path(scan.root, path)):
                return False
            tried += 1
    except (OSError, SharedDSError):  # told in full by the scan that follows
        return False
    return tried > 0


def _with_keys(entries: list[tuple[str, SlideFile]]) -> list[FoundSlide]:
    """Name slides by their paths, without the extension where that tells them apart."""
    paths = {path for path, _ in entries}
    stems = [_stem(path) for path, _ in entries]
    counts: dict[str, int] = {}
    for stem in stems:
        counts[stem] = counts.get(stem, 0) + 1
    return [
        # A stem may be the path of another: a.tif.png beside a.tif.
        FoundSlide(stem if counts[stem] == 1 and stem not in paths else path, path, file)
        for stem, (path, file) in zip(stems, entries, strict=True)
    ]


def _stem(path: str) -> str:
    low = path.lower()
    for ending in _DOUBLE:
        if low.endswith(ending) and len(os.path.basename(path)) > len(ending):
            return path[: -len(ending)]
    return os.path.splitext(path)[0]


def _is_annotation(path: str, other: str) -> bool:
    if path == other:
        return True
    named = path.lower().endswith(ANNOTATIONS)
    return named and path.startswith(other.rstrip(os.sep) + os.sep)
