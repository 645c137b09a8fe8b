"""Stores of volumes to export and to look at: several steps, channels, names of classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from volume_stores import block_table

from sharedds.store import ArrayValue, Field, StoreWriter

__all__ = ["Scan", "store_of"]


@dataclass(frozen=True, kw_only=True)
class Scan:
    """A case: voxels, what is kept with them, and labels with their affine."""

    image: npt.NDArray[Any]
    affine: npt.NDArray[np.float64] | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)
    label: npt.NDArray[Any] | None = None
    label_affine: npt.NDArray[np.float64] | None = None


def store_of(
    path: Path,
    scans: Mapping[str, Scan],
    *,
    chunk: tuple[int, int, int] = (8, 8, 8),
    class_names: Mapping[str, str] | None = None,
) -> Path:
    """Write a store as packing makes it; cases without a label have no value there."""
    labelled = any(scan.label is not None for scan in scans.values())
    schema: dict[str, str | Field] = {"image": Field("lz4")}
    if labelled:
        schema |= {"label": Field("zstd"), "label_blocks": "array:int64"}
    schema["shape"] = "int64[4]"
    attrs = {"kind": "volume", "patch": None, "class_names": dict(class_names or {})}
    with StoreWriter(path, schema=schema, attrs=attrs) as writer:
        for key, scan in scans.items():
            lead = (1,) if scan.image.ndim == 4 else ()
            kept = dict(scan.attrs)
            if scan.affine is not None:
                kept["affine"] = scan.affine.tolist()
            steps = scan.image.shape[0] if lead else 1
            sample: dict[str, Any] = {
                "image": ArrayValue(scan.image, attrs=kept, chunk=(*lead, *chunk)),
                "shape": [steps, *scan.image.shape[-3:]],
            }
            if labelled:
                sample |= _label(scan, chunk)
            writer.add(sample, key=key)
    return path


def _label(scan: Scan, chunk: tuple[int, int, int]) -> dict[str, Any]:
    if scan.label is None:
        return {"label": None, "label_blocks": np.zeros((0, 2), np.int64)}
    fitting = [min(c, n) for c, n in zip(chunk, scan.label.shape, strict=True)]
    attrs, table = block_table(scan.label, fitting)
    affine = scan.affine if scan.label_affine is None else scan.label_affine
    if affine is not None:
        attrs["affine"] = affine.tolist()
    return {"label": ArrayValue(scan.label, attrs=attrs, chunk=chunk), "label_blocks": table}
