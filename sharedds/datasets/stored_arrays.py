"""Arrays in a packed store, whatever they are of: which fields hold them, and which samples."""

from __future__ import annotations

import os

from sharedds.errors import OptionError
from sharedds.store import Store

__all__ = ["has_array", "holds_arrays", "store_of_arrays"]


def store_of_arrays(path: str | os.PathLike[str], *, kind: str, made_of: str) -> Store:
    """Open a store whose field ``image`` holds arrays.

    Args:
        path: The store.
        kind: What the arrays are, as ``sharedds pack --kind`` calls it.
        made_of: What such a field is made of, in words.

    Raises:
        StoreNotFoundError, StoreFormatError: The store cannot be opened.
        OptionError: There is no such field.
    """
    store = Store(path)
    if not holds_arrays(store, "image"):
        fields = store.header.fields
        found = ", ".join(f"{field.name}: {field.codec or field.kind}" for field in fields)
        raise OptionError(
            f"{store.path}: no field 'image' of {made_of}; it has {found}. {kind.title()}s are "
            f"packed by `sharedds pack DIR OUT --kind {kind}`",
            path=store.path,
            field="image",
        )
    return store


def holds_arrays(store: Store, field: str) -> bool:
    """Whether there is a field of arrays that is called so."""
    return any(each.name == field and each.kind == "blocks" for each in store.header.fields)


def has_array(store: Store, field: str, sample: int) -> bool:
    """Whether a sample has an array in such a field."""
    return bool(store.opened.text(f"{field}@meta").bytes(sample))
