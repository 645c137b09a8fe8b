"""Decoded blocks kept in a process: bounded in bytes, right with threads, forks and pickles."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharedds.errors import OptionError
from sharedds.store import Field, Store, StoreWriter
from sharedds.store.block_cache import BlockCache


def block(number: int, size: int = 10) -> npt.NDArray[Any]:
    """Return a block of ``size`` bytes."""
    return np.full(size, number, np.uint8)


def test_what_was_used_last_stays() -> None:
    """The least recently asked for goes first."""
    cache = BlockCache(30)
    for number in range(3):
        cache.put(number, block(number))
    assert cache.get(0) is not None
    cache.put(3, block(3))
    assert [cache.get(number) is not None for number in range(4)] == [True, False, True, True]
    stats = cache.stats
    assert (stats.bytes, stats.blocks, stats.hits, stats.misses, stats.evicted) == (30, 3, 4, 1, 1)


@settings(max_examples=100, deadline=None)
@given(
    puts=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=40),
    limit=st.integers(0, 60),
)
def test_bytes_are_counted_exactly(puts: list[tuple[int, int]], limit: int) -> None:
    """Whatever is put, replaced and let go: the sum of what is there, never over the limit."""
    cache = BlockCache(limit)
    for key, size in puts:
        cache.put(key, block(key, size))
        held = [cache.get(key) for key in range(6)]
        assert cache.stats.bytes == sum(b.nbytes for b in held if b is not None) <= limit
        assert cache.stats.blocks == sum(b is not None for b in held)


def test_a_block_over_the_limit_is_not_kept() -> None:
    """And pushes nothing out."""
    cache = BlockCache(20)
    cache.put("small", block(1))
    cache.put("large", block(2, 21))
    assert cache.get("large") is None
    assert cache.get("small") is not None


def test_another_limit_holds_at_once() -> None:
    """What is over it goes; 0 keeps none; clear lets go of everything."""
    cache = BlockCache(100)
    for number in range(10):
        cache.put(number, block(number))
    cache.resize(25)
    assert (cache.limit, cache.stats.bytes, cache.stats.evicted) == (25, 20, 8)
    cache.clear()
    assert (cache.stats.bytes, cache.stats.blocks) == (0, 0)
    cache.resize(0)
    cache.put(1, block(1))
    assert cache.get(1) is None
    assert "0 blocks, 0 of 0 bytes" in repr(cache)


@pytest.mark.parametrize("limit", [-1, 1.5, True, "64MiB"])
def test_a_limit_is_a_number_of_bytes(limit: Any) -> None:
    """Nothing else."""
    with pytest.raises(OptionError):
        BlockCache(limit)


def test_what_is_kept_cannot_be_changed() -> None:
    """Or every later patch would be wrong."""
    cache = BlockCache(100)
    cache.put(1, block(1))
    kept = cache.get(1)
    assert kept is not None
    with pytest.raises(ValueError, match="read-only"):
        kept[0] = 2


def test_threads_share_a_cache() -> None:
    """The count is right after all have finished."""
    cache = BlockCache(500)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for key in rng.integers(0, 100, 2000).tolist():
            found = cache.get(key)
            assert found is None or found[0] == key
            if found is None:
                cache.put(key, block(key))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = cache.stats
    assert stats.hits + stats.misses == 8000
    assert stats.bytes == stats.blocks * 10 <= 500


# --- in a store -----------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two volumes of 4³ blocks, as lz4 and as raw."""
    volume = np.arange(20**3, dtype=np.int16).reshape(20, 20, 20)
    schema = {"image": Field("lz4", chunk=(5, 5, 5)), "plain": Field("raw", chunk=(5, 5, 5))}
    with StoreWriter(tmp_path / "x.lmdb", schema=schema) as writer:
        for factor in (1, -1):
            writer.add({"image": volume * factor, "plain": volume})
    return tmp_path / "x.lmdb"


def test_nothing_is_kept_unless_asked(path: Path) -> None:
    """A store without a cache holds no block."""
    store = Store(path)
    store.array(0, "image").patch((0, 0, 0), (9, 9, 9))
    assert store.block_cache(0).stats.misses == 0


def test_a_block_is_decoded_once(path: Path) -> None:
    """Patches that overlap find it, through other arrays of the store too, and are still right."""
    store = Store(path)
    before = store.array(0, "image")
    cache = store.block_cache(1 << 20)
    first = before.patch((0, 0, 0), (10, 10, 10), scaled=False)
    again = store.array(0, "image").patch((5, 5, 5), (10, 10, 10), scaled=False)
    assert np.array_equal(first[5:, 5:, 5:], again[:5, :5, :5])
    assert (cache.stats.misses, cache.stats.hits, cache.stats.blocks) == (15, 1, 15)
    assert cache.stats.bytes == 15 * 250
    assert np.array_equal(before[:], np.arange(8000, dtype=np.int16).reshape(20, 20, 20))


def test_arrays_do_not_mix(path: Path) -> None:
    """The same block of another sample, field or level is another block."""
    store = Store(path)
    store.block_cache(1 << 20)
    plus, minus = (store.array(sample, "image")[:6] for sample in (0, 1))
    assert np.array_equal(plus, -minus)
    assert np.array_equal(store.array(0, "image")[:6], plus)


def test_raw_blocks_are_not_kept(path: Path) -> None:
    """They are views of the file."""
    store = Store(path)
    cache = store.block_cache()
    store.array(0, "plain").patch((0, 0, 0), (9, 9, 9))
    assert (cache.limit, cache.stats.blocks, cache.stats.misses) == (64 << 20, 0, 0)


def test_what_a_reader_changes_stays_its_own(path: Path) -> None:
    """A region of one block is a copy, not the block that is kept."""
    store = Store(path)
    store.block_cache(1 << 20)
    array = store.array(0, "image")
    part = array[:5, :5, :5]
    part[...] = 0
    assert array[0, 0, 1] == 1


def test_a_copy_of_the_store_has_the_limit_and_no_blocks(path: Path) -> None:
    """The cache is never pickled."""
    store = Store(path)
    store.block_cache(1 << 20)
    size = len(pickle.dumps(store))
    store.array(0, "image")[:]
    assert len(pickle.dumps(store)) == size < 1000
    other = pickle.loads(pickle.dumps(store))
    other.array(0, "image")[:5]
    assert store.block_cache(1 << 20).stats.blocks == 64
    assert other.block_cache(1 << 20).stats.blocks == 16


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_its_own(path: Path) -> None:
    """Also while another thread of the parent is inside the cache."""
    store = Store(path)
    cache = store.block_cache(1 << 20)
    array = store.array(0, "image")
    array[:5]
    with cache._lock:
        child = os.fork()
        if child == 0:
            right = False
            try:
                right = bool(array[0, 0, 3] == 3) and store._blocks.stats.blocks == 1
            finally:
                os._exit(0 if right else 1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert cache.stats.blocks == 16
