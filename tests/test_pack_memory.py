"""What packing holds of its index: the pages that are being read, not those that were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from packing import jpeg, put
from processes import python

from sharedds.folder import FolderIndex, scan
from sharedds.ingest import pack
from sharedds.ingest.images import job
from sharedds.packed import MappedArray, PackedStrings

MB = 1_000_000

_WALK = """
    import numpy as np
    from sharedds.memory import process_memory
    from sharedds.packed import MappedArray, PackedStrings

    numbers = MappedArray.build(np.arange(4_000_000))
    names = PackedStrings.build(f"{i * 7919 % 999_983:016d}" for i in range(200_000))

    def walked(release):
        before, most = process_memory().file, 0
        for start in range(0, 4_000_000, 400_000):
            int(numbers.array[start : start + 400_000].sum())
            _ = [names.bytes(at) for at in range(start // 20, (start + 400_000) // 20)]
            most = max(most, process_memory().file - before)
            if release:
                numbers.release()
                names.release()
        return most

    released = walked(True)
    print(released, walked(False))
"""


@pytest.mark.memory
def test_a_walk_that_lets_go_holds_what_it_reads() -> None:
    """A tenth of the file at a time; without that the walk ends with all of it."""
    released, kept = map(int, python(_WALK).stdout.split())
    assert kept > 30 * MB, (released, kept)
    assert released < kept / 2, (released, kept)


def test_what_was_let_go_of_is_read_again() -> None:
    """As it was, by views made before and after; with nothing in it, too."""
    numbers, names = MappedArray.build(np.arange(5_000)), PackedStrings.build(["a", "b/c"])
    view = numbers.array
    numbers.release()
    names.release()
    assert np.array_equal(view, np.arange(5_000))
    assert np.array_equal(numbers.array, view)
    assert list(names) == ["a", "b/c"]
    MappedArray.build(np.empty(0)).release()
    PackedStrings.build([]).release()


def test_packing_lets_go_of_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every so many files, also with labels; the store is the same as without."""
    folder = put(tmp_path / "in", {f"{c}/{n}.jpg": jpeg() for c in "ab" for n in range(10)})
    whole = pack(folder, tmp_path / "whole.lmdb", progress=False)
    told: list[int] = []

    def release(index: FolderIndex) -> None:
        told.append(len(index))
        original(index)

    original = FolderIndex.release
    monkeypatch.setattr(FolderIndex, "release", release)
    monkeypatch.setattr(job, "_LET_GO", 4)
    report = pack(folder, tmp_path / "x.lmdb", progress=False)
    assert told == [20] * 6  # once for the estimate
    assert report.digest == whole.digest


def test_an_index_that_let_go_is_the_same(tmp_path: Path) -> None:
    """Paths, sizes and labels come back."""
    index = scan(put(tmp_path / "in", {f"{c}/{n}.jpg": jpeg() for c in "ab" for n in range(3)}))
    before = [*index.paths], index.sizes.array.tolist()
    index.release()
    assert ([*index.paths], index.sizes.array.tolist()) == before
    assert index.labels is not None
    assert index.labels.array.tolist() == [0, 0, 0, 1, 1, 1]
