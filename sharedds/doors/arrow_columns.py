"""Columns of Arrow and Parquet as fields of a store: the pictures, the label, and the rest."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharedds.codecs import IMAGE_FORMATS, sniff
from sharedds.doors.labels import LabelReader
from sharedds.doors.stream import FieldNames
from sharedds.errors import MissingExtraError

__all__ = [
    "BAD_VALUE",
    "Column",
    "difference",
    "features_of",
    "plan_columns",
    "pyarrow",
    "value_of",
]

_LABELS = ("label", "labels", "class", "cls", "target")
_MAX_CLASSES = 1_000_000
BAD_VALUE = (ValueError, TypeError, OverflowError, LookupError, RuntimeError)
"""What values raise that no Python object stands for; Arrow's own errors are among them."""


def pyarrow() -> Any:
    """Return the library.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        for part in ("compute", "parquet"):
            importlib.import_module(f"pyarrow.{part}")
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise MissingExtraError(
            "Arrow and Parquet need pyarrow: pip install 'sharedds[arrow]'"
        ) from error


@dataclass(slots=True, kw_only=True)
class Column:
    """A column, and the field it becomes.

    Attributes:
        name: Of the column.
        field: Of the store.
        kind: As a schema names it; ``"keep"`` is a picture.
        struct: Of a picture: whether its bytes lie in a struct.
        axes: Of arrays: how many, 1 or 2.
        width: Of arrays of two axes: the length of the second, once a row has told it.
        names: Of class labels: their names.
    """

    name: str
    field: str
    kind: str
    struct: bool = False
    axes: int = 0
    width: int = 0
    names: tuple[str, ...] | None = None

    @property
    def nothing(self) -> Any:
        """What stands for a missing value."""
        if self.kind.startswith("array:"):
            shape = (0,) if self.axes == 1 else (0, self.width)
            return np.zeros(shape, self.kind[6:])
        return {"str": "", "bytes": b"", "json": None}.get(self.kind, math.nan)

    def look(self, values: Any, labels: LabelReader) -> None:
        """Take notice of a part of the column: of missing values, lengths and labels."""
        if self.kind == "keep":
            return
        if self.field == "label":
            if self.names is None:
                for scalar in values.unique():
                    with contextlib.suppress(*BAD_VALUE):  # told of its sample
                        label = scalar.as_py()
                        if label is not None:
                            labels.see(label if isinstance(label, (int, str)) else repr(label))
        elif values.null_count and self.kind.lstrip("u").startswith(("int", "bool")):
            self.kind = "json"  # no number stands for none
        elif self.axes:
            self._look_at_lengths(values)

    def _look_at_lengths(self, values: Any) -> None:
        """See whether rows are arrays of one shape but for their first axis; else they are JSON."""
        inner = values.flatten()
        if self.axes == 2:
            lengths = set(pyarrow().compute.list_value_length(inner).unique().to_pylist())
            if self.width:
                lengths.add(self.width)
            if len(lengths) > 1 or None in lengths:
                self.kind, self.axes = "json", 0
                return
            self.width = next(iter(lengths), 0)
            inner = inner.flatten()
        if inner.null_count:
            self.kind, self.axes = "json", 0


def features_of(metadata: Mapping[bytes, bytes] | None) -> dict[str, Any]:
    """Return what the metadata of a schema say of its columns, as ``datasets`` writes them."""
    try:
        info = json.loads((metadata or {}).get(b"huggingface", b"{}"))
        features = info["info"]["features"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


def difference(first: Any, other: Any) -> str:
    """Return what keeps a file from being read with the columns of another; empty for nothing."""
    if len(set(other.names)) < len(other.names):
        return f"two columns have one name: {sorted(other.names)[:12]}"
    for field in first:
        at = other.get_field_index(field.name)
        if at < 0:
            return f"it has no column {field.name!r}, which the first file has"
        mine, theirs = _family(field.type), _family(other.field(at).type)
        if mine != theirs and "null" not in (mine, theirs):
            return (
                f"its column {field.name!r} is of the type {other.field(at).type}, that of the "
                f"first file of {field.type}"
            )
    return ""


def _family(kind: Any) -> str:
    """Return which types can stand for each other; all values of one may be missing."""
    if _has_bytes(kind):
        return "pictures"
    if pyarrow().types.is_null(kind):
        return "null"
    found, axes = _kind(kind)
    return f"{'text' if found in ('str', 'bytes', 'json') else 'numbers'} of {axes} axes"


def plan_columns(schema: Any, features: Mapping[str, Any], first: Any) -> list[Column]:
    """Return the columns of a schema with the fields they become; pictures first.

    Args:
        schema: Of Arrow.
        features: What is said about the columns, by name.
        first: The first rows, which tell bytes that are pictures from others.
    """
    names = FieldNames()
    shown = [
        (field.name, _has_bytes(field.type))
        for field in schema
        if _is_picture(field, _type_of(features, field.name), first)
    ]
    shown.sort(key=lambda picture: picture[0] not in ("image", "img", "picture", "jpg", "png"))
    label = _label(schema, features)
    columns = [
        Column(name=name, field=names.give(name) if at else "image", kind="keep", struct=struct)
        for at, (name, struct) in enumerate(shown)
    ]
    known = {name for name, _ in shown}
    for field in schema:
        if field.name in known:
            continue
        feature = features.get(field.name)
        kind, axes = _kind(field.type)
        classes = _names_of(feature) if _type_of(features, field.name) == "ClassLabel" else None
        given = "label" if field.name == label else names.give(field.name)
        columns.append(Column(name=field.name, field=given, kind=kind, axes=axes, names=classes))
    return columns


def value_of(column: Column, value: Any) -> Any:
    """Return a value as the store takes it.

    Raises:
        ValueError: It is none of its kind.
    """
    if value is None:
        return column.nothing
    if column.kind.startswith("array:"):
        if column.axes == 2 and not len(value):
            return column.nothing
        return np.asarray(value, column.kind[6:])
    if column.kind == "json":
        return _plain(value)
    return value


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it: what it has no word for becomes text."""
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def _kind(kind: Any) -> tuple[str, int]:
    """Return the kind of field for a type of Arrow, and how many axes its arrays have."""
    types = pyarrow().types
    if types.is_dictionary(kind):
        kind = kind.value_type
    number = _number(kind)
    if number:
        return number, 0
    if types.is_string(kind) or types.is_large_string(kind):
        return "str", 0
    if types.is_binary(kind) or types.is_large_binary(kind):
        return "bytes", 0
    if _is_list(kind):
        inner = kind.value_type
        if _number(inner):
            return f"array:{_number(inner)}", 1
        if _is_list(inner) and _number(inner.value_type):
            return f"array:{_number(inner.value_type)}", 2
    return "json", 0


def _number(kind: Any) -> str:
    types = pyarrow().types
    if types.is_boolean(kind):
        return "bool"
    if types.is_integer(kind):
        return str(kind)
    return {"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(kind), "")


def _is_list(kind: Any) -> bool:
    types = pyarrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_binary(kind: Any) -> bool:
    types = pyarrow().types
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _has_bytes(kind: Any) -> bool:
    if not pyarrow().types.is_struct(kind):
        return False
    at = kind.get_field_index("bytes")
    if at < 0:
        return False
    inner = kind.field(at).type
    return _is_binary(inner) or pyarrow().types.is_null(inner)  # null where all are files


def _is_picture(field: Any, feature: str, first: Any) -> bool:
    if _has_bytes(field.type):
        return True
    if not _is_binary(field.type):
        return False
    if feature == "Image":
        return True
    some = () if first is None else first.column(field.name).to_pylist()
    found = [value for value in some if value]
    return bool(found) and sniff(found[0]) in IMAGE_FORMATS


def _type_of(features: Mapping[str, Any], name: str) -> str:
    feature = features.get(name)
    return str(feature.get("_type", "")) if isinstance(feature, dict) else ""


def _names_of(feature: Any) -> tuple[str, ...] | None:
    names = feature.get("names") if isinstance(feature, dict) else None
    if not isinstance(names, list) or not 0 < len(names) <= _MAX_CLASSES:
        return None
    whole = all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    return tuple(names) if whole else None


def _label(schema: Any, features: Mapping[str, Any]) -> str:
    """Return the column that is the label: by its name, or the first of classes."""
    usable = [field.name for field in schema if _kind(field.type)[0] not in ("json", "bytes")]
    usable = [name for name in usable if not _kind(schema.field(name).type)[1]]
    named: Sequence[str] = [name for name in _LABELS if name in usable]
    classes = [name for name in usable if _type_of(features, name) == "ClassLabel"]
    first = [name for name in named if name in classes] or list(named) or classes
    return first[0] if first else ""
