"""Which names in a folder are pictures, and which are traces of systems and tools.

Names are bytes here, exactly as the file system has them.
"""

from __future__ import annotations

__all__ = ["IMAGE_EXTENSIONS", "extension", "has_extension", "hidden_reason"]

IMAGE_EXTENSIONS = frozenset(
    {
        b".bmp",
        b".dib",
        b".gif",
        b".jfif",
        b".jpe",
        b".jpeg",
        b".jpg",
        b".png",
        b".tif",
        b".tiff",
        b".webp",
    }
)
"""Lower-case extensions of files that are taken for pictures."""

# Compared in lower case: the systems that write these names do not tell cases apart.
_JUNK = {
    b"$recycle.bin": "$RECYCLE.BIN",
    b".appledouble": ".AppleDouble",
    b".ds_store": ".DS_Store",
    b".fseventsd": ".fseventsd",
    b".spotlight-v100": ".Spotlight-V100",
    b".trashes": ".Trashes",
    b"@eadir": "@eaDir",
    b"__macosx": "__MACOSX",
    b"desktop.ini": "desktop.ini",
    b"ehthumbs.db": "Thumbs.db",
    b"lost+found": "lost+found",
    b"system volume information": "System Volume Information",
    b"thumbs.db": "Thumbs.db",
}

_TOOLS = {b".git": ".git", b".ipynb_checkpoints": ".ipynb_checkpoints"}


def extension(name: bytes) -> bytes:
    """Return the extension of a file name in lower case, with its dot; empty if it has none.

    Dots at the start do not begin an extension, and a dot at the end does not make one.
    """
    dot = name.rfind(b".")
    if dot <= 0 or dot == len(name) - 1 or not name[:dot].strip(b"."):
        return b""
    return name[dot:].lower()


def has_extension(path: bytes) -> bool:
    """Whether the last part of a path has an extension."""
    return extension(path[path.rfind(b"/") + 1 :]) != b""


def hidden_reason(name: bytes, *, include_hidden: bool) -> str | None:
    """Return what kind of hidden or junk entry ``name`` is, or None if it counts.

    Args:
        name: The name of a file or folder, without its path.
        include_hidden: Let names that start with a dot count. What operating systems scatter
            (``._*``, ``Thumbs.db``, ``__MACOSX``...) never counts.
    """
    junk = _JUNK.get(name.lower())
    if junk is not None:
        return junk
    if not name.startswith(b"."):
        return None
    if name.startswith(b"._"):
        return "macOS companion ._*"
    return None if include_hidden else _TOOLS.get(name, "hidden")
