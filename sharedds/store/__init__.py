"""The store: one file that every process maps. ``docs/format.md`` specifies it."""

from sharedds.store.arrays import ChunkedArray
from sharedds.store.columns import Column, RaggedColumn, TextColumn
from sharedds.store.cut import Cut, Sharding, sharding_of
from sharedds.store.encoded import EncodedArray
from sharedds.store.info import StoreInfo, info
from sharedds.store.opened import holds_store
from sharedds.store.partial import is_partial
from sharedds.store.reader import Store
from sharedds.store.schema import Field
from sharedds.store.shard_changes import append, edit
from sharedds.store.shard_copies import ChangeReport, merge, split
from sharedds.store.shard_writer import ShardWriter, Writer, store_writer
from sharedds.store.verify import VerifyReport, verify
from sharedds.store.writer import ArrayValue, StoreWriter

__all__ = [
    "ArrayValue",
    "ChangeReport",
    "ChunkedArray",
    "Column",
    "Cut",
    "EncodedArray",
    "Field",
    "RaggedColumn",
    "ShardWriter",
    "Sharding",
    "Store",
    "StoreInfo",
    "StoreWriter",
    "TextColumn",
    "VerifyReport",
    "Writer",
    "append",
    "edit",
    "holds_store",
    "info",
    "is_partial",
    "merge",
    "sharding_of",
    "split",
    "store_writer",
    "verify",
]
