"""The store: one file that every process maps. ``docs/format.md`` specifies it."""

from sharedds.store.arrays import ChunkedArray
from sharedds.store.columns import Column, RaggedColumn, TextColumn
from sharedds.store.encoded import EncodedArray
from sharedds.store.info import StoreInfo, info
from sharedds.store.opened import holds_store
from sharedds.store.partial import is_partial
from sharedds.store.reader import Store
from sharedds.store.schema import Field
from sharedds.store.verify import VerifyReport, verify
from sharedds.store.writer import ArrayValue, StoreWriter

__all__ = [
    "ArrayValue",
    "ChunkedArray",
    "Column",
    "EncodedArray",
    "Field",
    "RaggedColumn",
    "Store",
    "StoreInfo",
    "StoreWriter",
    "TextColumn",
    "VerifyReport",
    "holds_store",
    "info",
    "is_partial",
    "verify",
]
