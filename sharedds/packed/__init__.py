"""Indexes of many items in one mapped file: no Python object for each item, O(1) to pickle.

A list of a million paths costs a hundred megabytes in every worker, and reading it dirties the
pages that a fork had shared. Here the items are bytes in a file without a name (a ``SharedFile``):
every process maps the same pages, a pickle carries only where they are, and nothing is left behind,
even after kill -9.
"""

from sharedds.packed.arrays import MappedArray, MappedArrayBuilder
from sharedds.packed.files import encode_text
from sharedds.packed.ragged import RaggedArray, RaggedArrayBuilder
from sharedds.packed.strings import PackedStrings, PackedStringsBuilder

__all__ = [
    "MappedArray",
    "MappedArrayBuilder",
    "PackedStrings",
    "PackedStringsBuilder",
    "RaggedArray",
    "RaggedArrayBuilder",
    "encode_text",
]
