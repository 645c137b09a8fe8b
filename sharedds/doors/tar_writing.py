"""A store as WebDataset: tars of samples, each a few members of the same name."""

from __future__ import annotations

import io
import json
import math
import tarfile
from typing import Any

import numpy as np

from sharedds.doors.outgoing import Leaving, Outgoing
from sharedds.doors.stream import Keys
from sharedds.ingest.exports.folder import NewFolder
from sharedds.progress import Progress

__all__ = ["write_tars"]


def write_tars(
    source: Outgoing, out: NewFolder | None, *, shard_size: int, bar: Progress
) -> tuple[int, int]:
    """Write tars of at most about ``shard_size`` bytes, and ``classes.txt``.

    Args:
        source: What to write.
        out: The folder; None to read only.
        shard_size: Bytes.
        bar: Told of each sample.

    Returns:
        How many files there are, and their bytes of samples.
    """
    names = source.class_lines()
    suffixes = _suffixes(source)
    whole_names = _stems_repeat(source)
    files = total = 0
    members: list[tuple[str, bytes]] = []
    samples = source.samples()
    sample = next(samples, None)
    while sample is not None:
        name = f"shard-{files:06d}.tar".encode()
        tar = _Tar(out, name)
        with tar:
            while sample is not None:
                members = _members(sample, suffixes, whole=whole_names)
                size = sum(len(data) for _, data in members)
                if tar.size and tar.size + size > shard_size:
                    break
                tar.add(members)
                total += size
                bar.advance(1, nbytes=size)
                sample = next(samples, None)
        files += 1
    if names is not None and out is not None:
        out.write(b"classes.txt", names)
    return files, total


class _Tar:
    """One tar that is being written; without a folder it only counts."""

    def __init__(self, out: NewFolder | None, name: bytes) -> None:
        self._file = None if out is None else out.create(name)
        self._tar: tarfile.TarFile | None = None
        self.size = 0

    def __enter__(self) -> _Tar:
        if self._file is not None:
            file = self._file.__enter__()
            self._tar = tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT)
        return self

    def __exit__(self, *error: Any) -> None:
        if self._file is not None and self._tar is not None:
            if error[0] is None:
                self._tar.close()
            self._file.__exit__(*error)

    def add(self, members: list[tuple[str, bytes]]) -> None:
        """Append the members of a sample; owner and time are left open, so that equal is equal."""
        for name, data in members:
            self.size += 512 + len(data)
            if self._tar is not None:
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(data), 0o444
                self._tar.addfile(member, io.BytesIO(data))
                self._tar.members.clear()  # type: ignore[attr-defined] # else it keeps them all


def _members(sample: Leaving, suffixes: dict[str, str], *, whole: bool) -> list[tuple[str, bytes]]:
    """Return (name, bytes) of what stands for a sample in a tar."""
    folder, slash, base = (sample.name if whole else sample.stem).rpartition("/")
    base = base.replace("%", "%25").replace(".", "%2E")  # its first dot would end the key
    if base.startswith("__"):
        base = f"%5F{base[1:]}"
    stem = f"{folder}{slash}{base}"
    found = []
    for field, data in sample.pictures.items():
        if data is not None:
            ending = sample.ending(field)
            before = "" if field == "image" else f"{field}."
            found.append((f"{stem}.{before}{ending}", data))
    columns = {}
    for field, value in sample.values.items():
        if field in suffixes:
            data = _bytes_of(value)
            if data is not None:
                found.append((f"{stem}.{suffixes[field]}", data))
        else:
            columns[field] = value
    if columns:
        plain = {name: _as_json(value) for name, value in columns.items()}
        found.append((f"{stem}.columns.json", json.dumps(plain, ensure_ascii=False).encode()))
    return found


def _suffixes(source: Outgoing) -> dict[str, str]:
    """Return the ending of each field that gets a member of its own."""
    said = source.store.attrs.get("source", {})
    known = said.get("suffixes", {}) if said.get("format") == "webdataset" else {}
    found: dict[str, str] = {}
    for field in source.values:
        name = field.name
        scalar = field.kind == "column" and not field.shape
        if name == "label" and scalar:
            found[name] = "cls" if np.dtype(field.dtype).kind in "iub" else "label"
        elif isinstance(known.get(name), str):
            found[name] = known[name]
        elif field.kind in ("text", "json", "bytes"):
            ending = {"text": "txt", "json": "json", "bytes": "bin"}[field.kind]
            found[name] = ending if name == ending else f"{name}.{ending}"
        elif not scalar:
            found[name] = f"{name}.npy"
    return found


def _bytes_of(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, np.ndarray) and value.ndim:
        file = io.BytesIO()
        np.lib.format.write_array(file, value, allow_pickle=False)
        return file.getvalue()
    if isinstance(value, (np.generic, np.ndarray)):
        return str(_plain(value)).encode()
    if isinstance(value, (bool, int, float)):
        return str(value).encode()
    return json.dumps(value, ensure_ascii=False).encode()


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, (np.generic, np.ndarray)) else value


def _as_json(value: Any) -> Any:
    """Return a plain value as JSON has it, which has no words for NaN and infinity."""
    found = _plain(value)
    return None if isinstance(found, float) and not math.isfinite(found) else found


def _stems_repeat(source: Outgoing) -> bool:
    """Whether two samples would have one name without the endings of their keys."""
    keys = Keys()
    for index in range(len(source)):
        keys.see(Leaving(index, source.name(index), {}, {}).stem)
    return bool(keys.twice())
