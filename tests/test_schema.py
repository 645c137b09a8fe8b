"""What may stand in a schema."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharedds.errors import SchemaError
from sharedds.store import Field
from sharedds.store.layout import WIDE_ROW, rows_per_segment
from sharedds.store.schema import parse_schema


@pytest.mark.parametrize(
    ("kind", "stored", "dtype", "shape"),
    [
        ("jpeg", "image", "", ()),
        ("keep", "image", "", ()),
        ("lz4", "blocks", "", ()),
        ("array", "ragged", "", ()),
        ("array:uint8", "ragged", "|u1", ()),
        ("int64", "column", "<i8", ()),
        ("float32[4]", "column", "<f4", (4,)),
        ("uint8[64, 64, 3]", "column", "|u1", (64, 64, 3)),
        ("u2[1,2]", "column", "<u2", (1, 2)),
        ("bool", "column", "|b1", ()),
        ("str", "text", "", ()),
        ("bytes", "bytes", "", ()),
        ("json", "json", "", ()),
    ],
)
def test_a_kind_is_understood(kind: str, stored: str, dtype: str, shape: tuple[int, ...]) -> None:
    """Each kind that the manual names, and where it is stored."""
    (field,) = parse_schema({"x": kind})
    assert (field.kind, field.dtype, field.shape) == (stored, dtype, shape)


@pytest.mark.parametrize(
    "kind",
    [
        "jpg", "", "Int64", "int", "int128", "float128", "complex64", "object", "int64[", "int64[]",
        "int64[0]", "int64[-1]", "int64[4,,5]", "int64[,]", "int64[1.5]", "array:", "array:object",
        "str[4]", "S4", "M8[s]", "int64\n", "a", "arrays", "json:x",
    ],
)  # fmt: skip
def test_another_kind_is_refused(kind: str) -> None:
    """The error names the field, the kind and, where it is unknown, all that there are."""
    with pytest.raises(SchemaError) as caught:
        parse_schema({"thing": kind})
    assert caught.value.field == "thing"
    assert repr(kind) in str(caught.value)


@settings(deadline=None)
@given(st.text(max_size=12))
def test_any_text_is_a_kind_or_refused(kind: str) -> None:
    """No text leads to another error."""
    with contextlib.suppress(SchemaError):
        parse_schema({"x": kind})


@pytest.mark.parametrize("kind", ["uint8[1,1,1,1,1,1,1,1,1]", "float64[1000000, 1000]"])
def test_what_could_not_be_read_is_refused(kind: str) -> None:
    """Nine dimensions, or a row of 4 GiB."""
    with pytest.raises(SchemaError, match=r"8 dimensions.*4 GiB"):
        parse_schema({"x": kind})


@pytest.mark.parametrize("name", ["", "1a", "a b", "a@b", "é", "a" * 65, 7, None, "a\n", "@key"])
def test_a_name_that_is_none_is_refused(name: Any) -> None:
    """Names are identifiers, so that they can be column names and keyword arguments."""
    with pytest.raises(SchemaError, match="field name"):
        parse_schema({name: "int64"})


@pytest.mark.parametrize(
    "schema", [{}, [], None, "jpeg", ["image"], {f"f{i}": "i4" for i in range(256)}]
)
def test_no_schema_is_refused(schema: Any) -> None:
    """At least one field, at most 255, in a mapping."""
    with pytest.raises(SchemaError):
        parse_schema(schema)


@pytest.mark.parametrize(
    "field",
    [
        Field("jpeg", quality=0),
        Field("jpeg", quality=101),
        Field("jpeg", quality="90"),  # type: ignore[arg-type]
        Field("lz4", chunk=()),
        Field("lz4", chunk=(0, 4)),
        Field("lz4", chunk=(1.5,)),  # type: ignore[arg-type]
        Field("lz4", chunk=(1,) * 9),
        Field(None),  # type: ignore[arg-type]
        7,
    ],
)
def test_options_that_make_no_sense_are_refused(field: Any) -> None:
    """Quality is 1 to 100; blocks have a volume."""
    with pytest.raises(SchemaError, match="'x'"):
        parse_schema({"x": field})


@settings(deadline=None)
@given(st.integers(1, 1 << 34))
def test_a_segment_stays_below_its_limit(row: int) -> None:
    """A power of two of rows, 64 MiB at most, 4 MiB for wide rows, and one row at least."""
    rows = rows_per_segment(row)
    limit = 4 << 20 if row >= WIDE_ROW else 64 << 20
    assert rows & (rows - 1) == 0
    assert rows == 1 or rows * row <= limit
    assert rows * 2 * row > limit
