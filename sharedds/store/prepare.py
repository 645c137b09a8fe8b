"""Turns one sample into what will be written, refusing it before anything has changed."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import xxhash

from sharedds.errors import DecodeError, SchemaError, SharedDSError, SourceError
from sharedds.packed import encode_text
from sharedds.store.layout import FieldSpec
from sharedds.store.values import (
    BlockPlan,
    RaggedKind,
    encode_picture,
    fixed_bytes,
    fixed_view,
    ragged_array,
    variable_bytes,
)

__all__ = ["Preparer", "Sample", "checksum"]


def checksum(data: bytes | memoryview) -> bytes:
    """Return the xxh3-64 of some bytes as a column keeps it."""
    return xxhash.xxh3_64_intdigest(data).to_bytes(8, "little")


@dataclass(slots=True)
class Sample:
    """A sample that was found to fit, not yet written.

    Attributes:
        number: Its place in the store.
        key: Its name.
        rows: (column, bytes) to append.
        ends: (field, how many values its rows grew by).
        wide: (field, row) of fixed shape that are long; a row is still that of the caller.
        chunks: For each chunked field, an iterable of (level, number, bytes).
        learned: What the first arrays of ragged fields decide.
    """

    number: int
    key: bytes | None = None
    rows: list[tuple[str, bytes]] = field(default_factory=list)
    ends: list[tuple[str, int]] = field(default_factory=list)
    wide: list[tuple[str, memoryview]] = field(default_factory=list)
    chunks: list[Iterable[tuple[int, int, bytes]]] = field(default_factory=list)
    learned: dict[str, RaggedKind] = field(default_factory=dict)

    def append(self, name: str, data: bytes, values: int) -> None:
        """Append bytes to a column of variable length."""
        self.rows.append((name, data))
        self.ends.append((f"{name}@ends", values))

    def refusal(self, error: SharedDSError, field_name: str | None) -> SharedDSError:
        """Return an error again, saying which sample and field."""
        text = None if self.key is None else self.key.decode("utf-8", "backslashreplace")
        where = f"sample {self.number}" + (f" ({text})" if text else "")
        where += f", field {field_name!r}" if field_name else ""
        kind = type(error) if isinstance(error, (DecodeError, SourceError)) else SchemaError
        refusal = kind(f"{where}: {error}", sample=self.number, key=text, field=field_name)
        refusal.__cause__ = error
        return refusal


class Preparer:
    """Knows the schema, and what the first samples decided.

    Args:
        fields: The schema.

    Attributes:
        ragged: What the arrays of a ragged field have in common, once there was one.
        keyed: Whether samples have keys, once there was one.
    """

    def __init__(self, fields: Sequence[FieldSpec]) -> None:
        # What never changes is looked up once: most of the work on a small sample would be this.
        self._fields = [(spec, "wide" if spec.wide else spec.kind) for spec in fields]
        self._names = {spec.name for spec in fields}
        self.ragged: dict[str, RaggedKind] = {}
        self.keyed: bool | None = None

    def prepare(self, number: int, values: Mapping[str, Any], key: Any) -> Sample:
        """Turn everything but blocks into bytes; nothing changes, here or in the store.

        Args:
            number: Of the sample, for errors.
            values: By field.
            key: Of the sample, or None.

        Raises:
            SchemaError, DecodeError, SourceError: See :meth:`StoreWriter.add`.
        """
        sample = Sample(number)
        try:
            sample.key = None if key is None else encode_text(key)
            if self.keyed is not None and self.keyed != (sample.key is not None):
                raise SchemaError("give a key to every sample or to none")
            if not isinstance(values, Mapping):
                raise SchemaError(f"a mapping of fields to values is expected, not {values!r}")
            if values.keys() != self._names:
                missing = [spec.name for spec, _ in self._fields if spec.name not in values]
                unknown = [name for name in values if name not in self._names]
                raise SchemaError(f"fields missing {missing}, not in the schema {unknown}")
        except SchemaError as error:
            raise sample.refusal(error, None) from error
        for spec, kind in self._fields:
            try:
                self._prepare_field(spec, kind, values[spec.name], sample)
            except SharedDSError as error:
                raise sample.refusal(error, spec.name) from error
        if sample.key is not None:
            sample.append("@key", sample.key, len(sample.key))
            sample.rows.append(("@key@hash", checksum(sample.key)))
        return sample

    def require_fitting(self, sample: Sample) -> None:
        """Refuse a sample of another store that does not go with those before it.

        Raises:
            SchemaError: One has a key and the other none, or arrays have other dimensions.
        """
        if self.keyed is not None and self.keyed != (sample.key is not None):
            raise sample.refusal(SchemaError("give a key to every sample or to none"), None)
        for name, kind in sample.learned.items():
            known = self.ragged.get(name, kind)
            if known != kind:
                text = f"{kind.dtype} of {kind.dimensions} dimensions, those before: {known}"
                raise sample.refusal(SchemaError(text), name)

    def accept(self, sample: Sample) -> None:
        """Remember what this sample decides; it has been written."""
        self.ragged |= sample.learned
        self.keyed = sample.key is not None

    def _prepare_field(self, spec: FieldSpec, kind: str, value: Any, sample: Sample) -> None:
        name = spec.name
        if kind == "column":
            sample.rows.append((name, fixed_bytes(spec, value)))
        elif kind == "image":
            picture = [] if value is None else [(0, 0, encode_picture(spec, value))]
            sample.chunks.append(picture)
        elif kind == "blocks":
            plan = None if value is None else BlockPlan.of(spec, value)
            meta = b"" if plan is None else msgspec.json.encode(plan.meta)
            sample.append(f"{name}@meta", meta, len(meta))
            sample.chunks.append(() if plan is None else plan.blocks())
        elif kind == "wide":
            row = fixed_view(spec, value)
            sample.wide.append((name, row))
            sample.rows.append((f"{name}@xxh3", checksum(row)))
        elif kind == "ragged":
            array = ragged_array(spec, value, self.ragged.get(name))
            sample.learned[name] = RaggedKind(array.dtype, array.ndim)
            sample.append(name, array.tobytes(), array.size)
            shape = struct.pack(f"<{array.ndim}q", *array.shape)
            sample.rows.append((f"{name}@shape", shape))
        else:
            data = variable_bytes(spec, value)
            sample.append(name, data, len(data))
