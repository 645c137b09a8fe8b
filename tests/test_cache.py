"""Decoded samples kept once: what is found again, what is not, and what it may take."""

from __future__ import annotations

import gc
import os
import pickle
import resource
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cache_writers import fill, made, wrong_in
from processes import METHODS, descriptors, forked, in_process, mounted, python

import sharedds.cache.decoded
import sharedds.cache.place
import sharedds.handles.writable
from sharedds.cache import CacheStats, DecodedCache
from sharedds.cache.layout import HEAD, RECORD, WORD
from sharedds.errors import (
    OptionError,
    SampleIndexError,
    SchemaError,
    StorageFullError,
)
from sharedds.handles import SharedCounts
from sharedds.host.shared import SharedMemoryRoom

pytestmark = pytest.mark.skipif(not hasattr(os, "pwrite"), reason="needs POSIX")

MB = 1_000_000


def cache(count: int = 100, nbytes: int = 10 * MB, **options: Any) -> DecodedCache:
    """Return a cache."""
    return DecodedCache(count, nbytes, **({"key": "test"} | options))


@pytest.mark.parametrize("dtype", ["u1", "<u2", ">i4", "f2", "f8", "c8", "?"])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (5, 4, 3), (2, 3, 1, 2, 2, 3)])
def test_an_array_comes_back_as_it_was(dtype: str, shape: tuple[int, ...]) -> None:
    """Any numbers in up to six dimensions: same type, same shape, same bytes."""
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    kept = cache()
    assert kept.get(3) is None
    assert kept.put(3, array)
    found = kept.get(3)
    assert found is not None
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert found.tobytes() == array.tobytes()


def test_an_array_in_another_order_is_copied_right() -> None:
    """Strides are not kept, values are."""
    array = np.arange(60).reshape(3, 4, 5).transpose(2, 0, 1)[::-1]
    kept = cache()
    kept.put(0, array)
    assert np.array_equal(kept.get(0), array)  # type: ignore[arg-type]


def test_what_is_found_is_a_view_that_nobody_can_write_to() -> None:
    """Nothing is copied, and no user can change what others see."""
    kept = cache()
    kept.put(0, made(0))
    found = kept.get(0)
    assert found is not None
    assert not found.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        found[:] = 0
    with pytest.raises(ValueError, match="WRITEABLE"):
        found.flags.writeable = True


def test_a_view_outlives_its_cache() -> None:
    """The mapping stays until the last view of it is gone."""
    kept = cache()
    kept.put(0, made(5))
    found = kept.get(0)
    del kept
    assert np.array_equal(found, made(5))  # type: ignore[arg-type]


def test_numbers_count_from_the_end_as_in_a_list() -> None:
    """And one that is out of range is an error, not a miss."""
    kept = cache(10)
    kept.put(-1, made(9))
    assert kept.get(9) is not None
    with pytest.raises(SampleIndexError):
        kept.get(10)


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([None]), np.zeros((1,) * 7)])
def test_what_cannot_be_kept_is_refused(array: Any) -> None:
    """A mistake of the caller is an error."""
    with pytest.raises(SchemaError, match="sample 4"):
        cache().put(4, array)


def test_what_was_put_first_stays() -> None:
    """Putting a sample again costs no room and changes nothing."""
    kept = cache()
    assert kept.put(0, made(0))
    taken = kept.stats().nbytes
    assert kept.put(0, made(1))
    assert kept.stats().nbytes == taken
    assert np.array_equal(kept.get(0), made(0))  # type: ignore[arg-type]


def test_another_stamp_is_another_sample() -> None:
    """A file that was changed is decoded again, and what is kept of it replaced."""
    kept = cache()
    kept.put(0, made(0), stamp=1)
    assert kept.get(0) is None
    assert kept.get(0, stamp=2) is None
    before = kept.get(0, stamp=1)
    assert kept.put(0, made(1), stamp=2)
    assert np.array_equal(kept.get(0, stamp=2), made(1))  # type: ignore[arg-type]
    assert np.array_equal(before, made(0))  # type: ignore[arg-type]


def test_a_full_cache_keeps_what_it_has_and_takes_no_more() -> None:
    """It says so, never takes more than its bytes, and smaller samples still fit."""
    kept = cache(100, 300_000)
    large = np.zeros((200, 200, 3), np.uint8)
    answers = [kept.put(number, large) for number in range(5)]
    assert answers == [True, True, False, False, False]
    assert kept.put(50, made(50)[:10])
    stats = kept.stats()
    assert stats.entries == 3
    assert stats.nbytes <= stats.capacity == 300_000
    assert os.fstat(kept._file._descriptor).st_size == 300_000
    assert os.fstat(kept._file._descriptor).st_blocks * 512 <= 300_000 + 4096


def test_each_kept_sample_takes_its_bytes_and_sixty_four(tmp_path: Path) -> None:
    """As documented, rounded up to a multiple of 64."""
    kept = cache()
    before = kept.stats().nbytes
    kept.put(0, np.zeros(1000, np.uint8))
    assert kept.stats().nbytes - before == 64 + 1024


def test_a_cache_too_small_for_its_index_is_refused() -> None:
    """The text says how much it takes."""
    with pytest.raises(OptionError, match=r"index of 1,000,000 samples alone takes 8\.0 MB"):
        cache(1_000_000, 5 * MB)


def test_hits_and_misses_are_counted() -> None:
    """Putting counts nothing; asking what is missing neither."""
    kept = cache(10)
    assert kept.stats().hit_rate is None
    for number in (1, 2):
        kept.get(number)
        kept.put(number, made(number))
    for _ in range(6):
        kept.get(1)
    assert kept.missing([0, 1, 2, 3]) == [0, 3]
    stats = kept.stats()
    assert (stats.entries, stats.hits, stats.misses, stats.hit_rate) == (2, 6, 2, 0.75)
    assert stats.to_dict()["hit_rate"] == 0.75
    assert "2 samples" in str(stats)
    assert "75%" in str(stats)


def test_stats_without_a_question_have_no_rate() -> None:
    """Nothing is divided by nothing."""
    stats = CacheStats(entries=0, nbytes=0, capacity=1, hits=0, misses=0)
    assert stats.hit_rate is None
    assert "found" not in str(stats)


# --- whose it is ---------------------------------------------------------------------------------


def read_and_fill(kept: DecodedCache) -> tuple[int, bool]:
    """In another process: is the first there, and put the second."""
    found = kept.get(0)
    kept.put(1, made(1))
    return os.getpid(), found is not None and np.array_equal(found, made(0))


@pytest.mark.parametrize("method", METHODS)
def test_processes_of_all_kinds_share_it(method: str) -> None:
    """Each sees what others put, and the counts of all are one."""
    kept = cache()
    kept.put(0, made(0))
    pid, is_right = in_process(method, read_and_fill, kept)
    assert is_right
    assert pid != os.getpid()
    assert np.array_equal(kept.get(1), made(1))  # type: ignore[arg-type]
    assert kept.stats().hits == 2


@pytest.mark.parametrize("count", [10, 1_000_000])
def test_a_pickle_is_small_whatever_is_in_it(count: int) -> None:
    """It says where the bytes are."""
    kept = cache(count, 20 * MB)
    for number in range(10):
        kept.put(number, made(number))
    assert len(pickle.dumps(kept)) < 1500
    assert np.array_equal(pickle.loads(pickle.dumps(kept)).get(4), made(4))


def test_a_cache_leaves_with_its_last_user() -> None:
    """Open files return to what they were."""
    before = descriptors()
    kept = cache()
    kept.put(0, made(0))
    copy = pickle.loads(pickle.dumps(kept))
    assert descriptors() > before
    del kept, copy
    assert descriptors() == before


def test_two_caches_have_nothing_in_common() -> None:
    """Without a folder each is on its own, also with the same key."""
    one, two = cache(), cache()
    one.put(0, made(0))
    assert two.get(0) is None


def test_threads_put_the_same_samples_at_once() -> None:
    """All are kept, all are right, and no room is lost."""
    kept, answers = cache(200, 20 * MB), []
    workers = [
        threading.Thread(target=lambda seed=seed: answers.append(fill(kept, 200, seed)))
        for seed in range(6)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert answers == [200] * 6
    assert kept.stats().entries == 200
    assert wrong_in(kept, 200) == []


def test_a_forked_child_goes_on_on_its_own() -> None:
    """Parent and child put at once without sharing a lock or a row of counts."""
    kept = cache(200, 20 * MB)
    kept.get(0)

    def child() -> None:
        kept.get(0)
        assert fill(kept, 200, 1) == 200

    assert forked(child) == 0
    assert fill(kept, 200, 2) == 200
    assert wrong_in(kept, 200) == []
    assert kept.stats().misses == 2


def test_counts_of_processes_that_have_ended_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rows are taken over with what stands in them, however many there were."""
    monkeypatch.setattr(sharedds.handles.writable, "_ROWS", 4)
    kept = cache()
    kept.get(0)
    assert [forked(lambda: kept.get(0)) for _ in range(20)] == [0] * 20
    kept.get(0)
    assert kept.stats().misses == 22


def test_who_finds_no_row_goes_uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics are no reason to fail."""
    monkeypatch.setattr(sharedds.handles.writable, "_ROWS", 1)
    kept = cache()
    kept.get(0)
    assert forked(lambda: kept.get(0)) == 0
    assert kept.stats().misses == 1


def test_a_copy_gives_its_row_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies that come and go in one process need one more row, not one each."""
    monkeypatch.setattr(sharedds.handles.writable, "_ROWS", 2)
    kept = cache()
    for _ in range(5):
        pickle.loads(pickle.dumps(kept)).get(0)
    assert kept.stats().misses == 5


def test_who_holds_the_lock_and_stands_still_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was stopped while it took room: samples are not kept, after one short wait."""
    kept = cache()
    other = pickle.loads(pickle.dumps(kept))
    waits: list[float] = []
    real = sharedds.handles.writable.lock_file

    def noted(descriptor: int, seconds: float) -> bool:
        waits.append(seconds)
        return real(descriptor, seconds)

    with other._file.locked(1) as is_locked:
        assert is_locked
        monkeypatch.setattr(sharedds.handles.writable, "lock_file", noted)
        assert not kept.put(0, made(0))
        assert not kept.put(1, made(1))
    assert waits == [0.2, 0.0]
    assert kept.put(0, made(0))


# --- no room -------------------------------------------------------------------------------------


def test_a_limit_on_file_sizes_is_no_error_and_no_death() -> None:
    """As on a full disk: what has no room is not kept, and the room is not lost."""
    done = python(
        """
        import resource, sys
        import numpy as np
        from sharedds.cache import DecodedCache
        cache = DecodedCache(100, 10_000_000, key="x")
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
        array = np.ones(300_000, np.uint8)
        print(*[cache.put(number, array) for number in range(6)])
        assert all(cache.get(number) is None for number in range(3, 6))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        print(sum(cache.put(number, array) for number in range(100)))
        """
    )
    assert done.stdout.split() == ["True"] * 3 + ["False"] * 3 + ["33"]


def test_a_limit_on_file_sizes_below_that_of_the_cache_is_told() -> None:
    """At once, when it is made."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5 * MB, before[1]))
    try:
        with pytest.raises(StorageFullError, match="no room to write"):
            cache()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


FULL = """
    import sys
    import numpy as np
    from sharedds.cache import DecodedCache
    cache = DecodedCache(100, 20_000_000, key="x", folder="/mnt")
    answers = [cache.put(n, np.full(100_000, n, np.uint8)) for n in range(100)]
    print(sum(answers), answers[0], answers[-1])
    found = [cache.get(n) for n in range(100)]
    print(all((found[n] == n).all() if answers[n] else found[n] is None for n in range(100)))
"""


def test_a_full_memory_file_system_is_no_death() -> None:
    """Two megabytes of room for twenty of cache; writing through the map would be SIGBUS."""
    naive = "import mmap; f = open('/mnt/n', 'w+b'); f.truncate(20_000_000); m = mmap.mmap("
    naive += "f.fileno(), 20_000_000); m[:] = bytes(20_000_000)"
    done = mounted(
        """
        mount -t tmpfs -o size=2m tmpfs /mnt
        "$1" -c "$2" || echo "naive ended with $?"
        rm /mnt/n
        "$1" -c "$3"
        """,
        sys.executable,
        naive,
        "\n".join(line[4:] for line in FULL.splitlines()),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["naive", "ended", "with", "135", "20", "True", "False", "True"]


def test_a_file_that_was_cut_short_is_a_miss(tmp_path: Path) -> None:
    """To touch what is gone would end the process."""
    kept = cache(folder=tmp_path)
    kept.put(0, made(0))
    (name,) = tmp_path.iterdir()
    os.truncate(name, HEAD)
    assert kept.get(0) is None
    assert not kept.put(1, made(1))


def place_of(kept: DecodedCache, number: int) -> int:
    """Where the record of a sample begins."""
    place = kept._place(number)
    assert place is not None
    return place[0]


@pytest.mark.parametrize("at", [0, 8, 16, 24, 30, 60])
def test_a_record_that_was_damaged_is_a_miss(at: int) -> None:
    """One byte of what describes a sample is another one."""
    kept = cache()
    kept.put(3, made(3))
    offset = place_of(kept, 3) + at
    kept._file.write(offset, bytes([kept._file.view[offset] ^ 1]))
    assert kept.get(3) is None


@pytest.mark.parametrize("entry", [1, 64, 1 << 39, 1 << 63, (1 << 64) - 1, (10 * MB - 64) // 64])
def test_an_entry_that_leads_nowhere_is_a_miss(entry: int) -> None:
    """As one that was read half written."""
    kept = cache()
    kept._file.write(kept._layout.entry(3), WORD.pack(entry))
    assert kept.get(3) is None


def test_an_entry_that_leads_to_another_sample_is_a_miss() -> None:
    """A record says whose it is."""
    kept = cache()
    kept.put(3, made(3))
    entry = kept._layout.pack_place(place_of(kept, 3), 100)
    kept._file.write(kept._layout.entry(4), entry)
    assert kept.get(4) is None


def test_a_disk_is_asked_for_what_is_kept_on_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """For whole records, before any of it is read; memory is asked for nothing."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, *place: asked.append(place[:2]))
    for kept in (cache(), cache(folder=tmp_path)):
        for number in (1, 2):
            kept.put(number, made(number))
        kept.advise([0, 1, 2])
    assert [offset for offset, _ in asked] == [place_of(kept, 1), place_of(kept, 2)]
    for number, (_, length) in zip((1, 2), asked, strict=True):
        assert made(number).nbytes + RECORD <= length < made(number).nbytes + 5000


# --- where it is ---------------------------------------------------------------------------------


def test_it_is_in_memory_where_there_is_plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter is left for batches, and each rank has its part."""
    room = SharedMemoryRoom(free=100 * MB, total=200 * MB)
    monkeypatch.setattr(sharedds.cache.place, "shared_memory_room", lambda: room)
    monkeypatch.setattr(sharedds.cache.place, "_promised", [])
    folder = sharedds.cache.place.memory_folder
    assert folder(75 * MB) == "/dev/shm"
    assert folder(76 * MB) is None
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert folder(19 * MB) is None
    assert folder(18 * MB) == "/dev/shm"


def test_what_was_promised_to_one_is_not_free_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Files are empty at first: two caches would each get three quarters of the same room."""
    room = SharedMemoryRoom(free=100 * MB, total=200 * MB)
    monkeypatch.setattr(sharedds.cache.place, "shared_memory_room", lambda: room)
    monkeypatch.setattr(sharedds.cache.place, "_promised", [])
    folder = sharedds.cache.place.memory_folder
    first = cache(nbytes=60 * MB)
    second = cache(nbytes=60 * MB)
    assert (first.in_memory, second.in_memory) == (True, False)
    assert folder(30 * MB) == "/dev/shm"
    assert folder(31 * MB) is None
    del first, second
    gc.collect()
    assert folder(75 * MB) == "/dev/shm"


def test_other_ranks_promise_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has caches of the same sizes."""
    room = SharedMemoryRoom(free=100 * MB, total=200 * MB)
    monkeypatch.setattr(sharedds.cache.place, "shared_memory_room", lambda: room)
    monkeypatch.setattr(sharedds.cache.place, "_promised", [])
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    first = cache(nbytes=30 * MB)
    assert first.in_memory
    assert sharedds.cache.place.memory_folder(15 * MB) == "/dev/shm"
    assert sharedds.cache.place.memory_folder(16 * MB) is None


def test_what_a_cache_has_taken_is_promised_no_more() -> None:
    """The system does not count it as free any longer."""
    kept = cache()
    before = kept._file.room_to_come
    assert 9 * MB < before <= 10 * MB
    assert kept.put(0, np.ones(4 * MB, np.uint8))
    assert before - 4.1 * MB < kept._file.room_to_come <= before - 4 * MB


def test_counters_that_have_no_room_are_told(tmp_path: Path) -> None:
    """As where the temporary folder is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(StorageFullError, match=f"{tmp_path}: no room to write"):
            SharedCounts(columns=2, folder=str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_it_is_in_the_temporary_folder_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a name there, too."""
    monkeypatch.setattr(sharedds.cache.decoded, "memory_folder", lambda nbytes: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept = cache()
    assert kept.put(0, made(0))
    assert not kept.in_memory
    assert os.fstat(kept._file._descriptor).st_dev == tmp_path.stat().st_dev
    assert list(tmp_path.iterdir()) == []


def test_without_a_way_to_reserve_room_zeros_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on systems that know no posix_fallocate."""
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    kept = cache(300_000)
    assert os.fstat(kept._file._descriptor).st_blocks * 512 >= 8 * 300_000
    assert kept.put(299_999, made(7))
    assert np.array_equal(kept.get(299_999), made(7))  # type: ignore[arg-type]


def test_without_proc_it_is_locked_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where open files cannot be opened again by number."""
    kept = cache(folder=tmp_path)
    real = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: "/proc/" not in str(path) and real(path))
    assert kept.put(0, made(0))


def test_without_locks_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writers could take the same room."""
    kept = cache()
    monkeypatch.setattr(sharedds.handles.writable, "fcntl", None)
    assert not kept.put(0, made(0))
    assert kept.get(0) is None


def test_too_many_open_files_are_no_error() -> None:
    """Where a file cannot be opened again to lock it, the sample is not kept."""
    kept = cache()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    kept.get(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        assert not kept.put(0, made(0))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert kept.put(0, made(0))


def test_more_than_its_index_can_tell_is_refused() -> None:
    """Places are counted in units of 64 bytes, in 40 bits."""
    with pytest.raises(OptionError, match="64 TiB"):
        cache(nbytes=(64 << 40) + 1)
