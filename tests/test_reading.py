"""Bytes of a file from any place."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sharedds.handles import read_at


@pytest.mark.parametrize("has_pread", [True, False])
def test_threads_read_from_their_own_places(
    tmp_path: Path, has_pread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a file has one place for all; what is beyond the end is not there."""
    if not has_pread:
        monkeypatch.delattr(os, "pread", raising=False)
    data = os.urandom(1 << 16)
    (tmp_path / "x").write_bytes(data)
    with open(tmp_path / "x", "rb") as file, ThreadPoolExecutor(4) as pool:
        places = [n * 37 % len(data) for n in range(3000)]
        found = pool.map(lambda at: read_at(file.fileno(), 100, at), places)
        assert list(found) == [data[at : at + 100] for at in places]
