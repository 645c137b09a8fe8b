"""Images with a cache: the same samples, decoded once, as long as their files stay as they are."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import noise, orientation_block, save
from PIL import Image
from stores import jpeg, png
from torch.utils.data import Subset

import sharedds.cache.decoded
import sharedds.datasets.stored
from sharedds.cache import DecodedCache
from sharedds.codecs import decode
from sharedds.datasets import ConcatDataset, ImageDataset
from sharedds.errors import DecodeError, OptionError
from sharedds.ingest import pack
from sharedds.loader import build_loader
from sharedds.memory import process_memory
from sharedds.store import Store, StoreWriter
from sharedds.testing import assert_same_stream
from sharedds.views import RandomResizedCrop

pytestmark = pytest.mark.skipif(not hasattr(os, "pwrite"), reason="needs POSIX")

COUNT = 24
ENGINES = ["fork", "forkserver", "spawn", "thread", "none"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Pictures of several sizes."""
    path = tmp_path / "x.lmdb"
    with StoreWriter(path, schema={"image": "jpeg", "label": "int64"}) as writer:
        for number in range(COUNT):
            writer.add({"image": jpeg(number, 40 + number), "label": number})
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of their own."""
    target = tmp_path / "pictures"
    target.mkdir()
    for number in range(COUNT):
        (target / f"{number:02d}.png").write_bytes(png(number, 20))
    return target


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What this process decodes: one entry for each picture."""
    calls: list[int] = []
    real = decode

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        return real(*arguments, **options)

    monkeypatch.setattr(sharedds.datasets.stored, "decode", counted)
    return calls


def samples(dataset: Any) -> Iterator[tuple[torch.Tensor, int]]:
    """All samples, by number."""
    return (dataset[number] for number in range(len(dataset)))


def test_the_second_time_nothing_is_decoded(store: Path, decoded: list[int]) -> None:
    """And every sample is what it was, and what it is without a cache."""
    kept = ImageDataset(store, cache="1MiB")
    first, second, plain = (list(samples(d)) for d in (kept, kept, ImageDataset(store)))
    assert len(decoded) == 2 * COUNT
    for one, two, three in zip(first, second, plain, strict=True):
        assert torch.equal(one[0], two[0])
        assert torch.equal(one[0], three[0])
    assert kept.cache is not None
    stats = kept.cache.stats()
    assert (stats.entries, stats.hits, stats.misses) == (COUNT, COUNT, COUNT)


def test_a_sample_may_be_written_to(store: Path) -> None:
    """It is a copy: what is kept is nobody's to change."""
    kept = ImageDataset(store, cache="1MiB")
    before = kept[0][0].clone()
    for _ in range(2):
        kept[0][0].zero_()
    assert torch.equal(kept[0][0], before)


def test_a_transform_that_writes_in_place_changes_nothing_kept(store: Path) -> None:
    """As one that normalises in place."""
    kept = ImageDataset(store, cache="1MiB", transform=lambda image: image.fill_(7))
    for _ in range(2):
        assert (kept[0][0] == 7).all()
    plain = ImageDataset(store)
    assert kept.cache is not None
    assert np.array_equal(kept.cache.get(0), plain[0][0].permute(1, 2, 0))  # type: ignore[arg-type]


def loader_of(dataset: Any, engine: str, **options: Any) -> Any:
    """Return a loader with two workers of a kind."""
    how: dict[str, Any] = {"num_workers": 2, "timeout": 60}
    if engine == "none":
        how = {"num_workers": 0}
    elif engine == "thread":
        how["engine"] = "thread"
    else:
        how["start_method"] = engine
    return build_loader(dataset, batch_size=6, shuffle=True, seed=3, **how, **options)


def numbered(loader: Any) -> dict[int, torch.Tensor]:
    """Read an epoch; return its images by label."""
    return {int(n): x for xs, ns in loader for x, n in zip(xs, ns, strict=True)}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("engine", ENGINES)
def test_workers_of_all_kinds_fill_one_cache(store: Path, engine: str) -> None:
    """The second epoch finds what other workers kept in the first; crops differ as ever."""
    view = RandomResizedCrop(16, flip=0.5)
    loader = loader_of(ImageDataset(store, view=view, cache="1MiB"), engine)
    first, second = numbered(loader), numbered(loader)
    assert len(second) == COUNT
    assert any(not torch.equal(first[number], second[number]) for number in range(COUNT))
    stats = loader.stats().cache
    assert stats is not None
    assert (stats.entries, stats.hits, stats.misses) == (COUNT, COUNT, COUNT)
    assert "24 samples" in str(loader.stats())
    assert loader.stats().to_dict()["cache"]["hits"] == COUNT


def test_the_stream_does_not_depend_on_what_was_kept(store: Path) -> None:
    """Same batches with a cache that is empty, full, or has room for some only."""
    view = RandomResizedCrop(16, flip=0.5)
    streams = []
    for cache, epochs in (("1MiB", 1), ("1MiB", 2), ("60kB", 2)):
        dataset = ImageDataset(store, view=view, cache=cache)
        loader = loader_of(dataset, "none")
        for _ in range(epochs):
            loader.set_epoch(5)
            batches = list(loader)
        streams.append(torch.cat([images for images, _ in batches]))
    assert dataset.cache is not None
    assert 0 < dataset.cache.stats().entries < COUNT
    assert torch.equal(streams[0], streams[1])
    assert torch.equal(streams[0], streams[2])


def test_the_stream_is_the_same_for_any_number_of_workers(store: Path) -> None:
    """With a cache that is filled on the way."""
    dataset = ImageDataset(store, view=RandomResizedCrop(16, flip=0.5), cache="40kB")
    assert_same_stream(dataset, workers=(0, 2))


def test_batches_and_single_samples_agree(store: Path) -> None:
    """A batch made at once is that of its samples, whether kept or not."""
    plain = ImageDataset(store, view=RandomResizedCrop(16), cache="1MiB")
    loader = build_loader(plain, batch_size=6, num_workers=0, seed=1)
    single = build_loader(
        plain, batch_size=6, num_workers=0, seed=1, collate_fn=lambda batch: batch
    )
    for (images, _), batch in zip(loader, single, strict=True):
        assert all(torch.equal(x, y[0]) for x, y in zip(images, batch, strict=True))


def test_a_changed_file_is_decoded_again(folder: Path, decoded: list[int]) -> None:
    """Of a folder, whose files may change beneath their names."""
    kept = ImageDataset(folder, cache="1MiB")
    before, other = kept[0].clone(), kept[1].clone()
    Image.fromarray(np.full((30, 31, 3), 9, np.uint8)).save(folder / "00.png")
    assert kept[0].shape == (3, 30, 31)
    assert before.shape != kept[0].shape
    assert torch.equal(kept[1], other)
    assert len(decoded) == 3


def test_a_file_that_is_gone_is_an_error_though_it_is_kept(folder: Path) -> None:
    """As without a cache."""
    kept = ImageDataset(folder, cache="1MiB")
    assert kept[0] is not None
    (folder / "00.png").unlink()
    with pytest.raises(OSError, match=r"00\.png"):
        _ = kept[0]


def test_a_bad_picture_is_reported_each_time(folder: Path) -> None:
    """Nothing of it is kept."""
    (folder / "03.png").write_bytes(b"\x89PNG\r\n\x1a\n none")
    kept = ImageDataset(folder, cache="1MiB")
    for _ in range(2):
        with pytest.raises(DecodeError, match=r"03\.png"):
            _ = kept[3]


def test_ranks_and_runs_that_name_a_folder_share(store: Path, tmp_path: Path) -> None:
    """What one dataset decoded another finds, if it decodes in the same way."""
    options: dict[str, Any] = {"cache": "1MiB", "cache_folder": tmp_path / "cache"}
    list(samples(ImageDataset(store, **options)))
    again = ImageDataset(store, **options, view=RandomResizedCrop(8))
    list(samples(again))
    assert again.cache is not None
    assert again.cache.stats().hits == COUNT
    for other in ({"mode": "L"}, {"depth": "8"}, {"max_pixels": None}, {"background": (0, 0, 0)}):
        different = ImageDataset(store, **options, **other)
        list(samples(different))
        assert different.cache is not None
        assert different.cache.stats().hits == 0


def test_another_store_has_another_cache(store: Path, tmp_path: Path) -> None:
    """Also if it has the same name."""
    options: dict[str, Any] = {"cache": "1MiB", "cache_folder": tmp_path / "cache"}
    list(samples(ImageDataset(store, **options)))
    store.unlink()
    with StoreWriter(store, schema={"image": "jpeg"}) as writer:
        for number in range(COUNT):
            writer.add({"image": jpeg(number + 1, 40)})
    again = ImageDataset(store, **options)
    list(samples(again))
    assert again.cache is not None
    assert again.cache.stats().hits == 0


def test_what_else_decides_pixels_is_part_of_what_a_cache_is_for(tmp_path: Path) -> None:
    """Two stores of one folder have one digest; of one the orientation is ignored."""
    (tmp_path / "in").mkdir()
    data = save(Image.fromarray(noise(30, 40, 3)), "JPEG", exif=orientation_block(6))
    (tmp_path / "in" / "0.jpg").write_bytes(data)
    pack(tmp_path / "in", tmp_path / "upright.lmdb", progress=False)
    pack(tmp_path / "in", tmp_path / "ignored.lmdb", orientation="ignore", progress=False)
    digests, shapes = set(), []
    for name in ("upright", "ignored"):
        path = tmp_path / f"{name}.lmdb"
        digests.add(Store(path).digest)
        dataset = ImageDataset(path, cache="1MiB", cache_folder=tmp_path / "cache")
        shapes.append(tuple(dataset[0].shape))
    assert len(digests) == 1
    assert shapes == [(3, 40, 30), (3, 30, 40)]


def test_folders_with_the_same_names_have_caches_of_their_own(folder: Path, tmp_path: Path) -> None:
    """One for both would be written anew by each; another way to the same folder is the same."""
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    (tmp_path / "link").symlink_to(folder)
    hits = []
    for path in (folder, other, folder, tmp_path / "link"):
        dataset = ImageDataset(path, cache="1MiB", cache_folder=tmp_path / "cache")
        list(samples(dataset))
        assert dataset.cache is not None
        hits.append(dataset.cache.stats().hits)
    assert hits == [0, 0, COUNT, COUNT]


def test_a_file_written_over_with_its_old_time_is_decoded_again(tmp_path: Path) -> None:
    """In place, of the same size, its time put back: as by rsync --inplace --times."""
    path = tmp_path / "0.bmp"
    Image.fromarray(np.full((8, 8, 3), 1, np.uint8)).save(path)
    kept = ImageDataset(tmp_path, cache="1MiB")
    assert (kept[0] == 1).all()
    before = path.stat()
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # as coarse as the clock of the kernel
        with open(path, "r+b") as file:
            Image.fromarray(np.full((8, 8, 3), 2, np.uint8)).save(file, "BMP")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    assert after.st_mtime_ns == before.st_mtime_ns
    assert (kept[0] == 2).all()


def test_pictures_that_fail_leave_nothing_behind(tmp_path: Path) -> None:
    """However many there are: what was found out about them goes with them."""
    for number in range(1500):
        (tmp_path / f"{number}.png").write_bytes(b"\x89PNG\r\n\x1a\n none")
    kept = ImageDataset(tmp_path, cache="1MiB")

    def read(numbers: range) -> None:
        for number in numbers:
            with contextlib.suppress(DecodeError):
                _ = kept[number]

    read(range(100))
    tracemalloc.start()
    try:
        read(range(100, 200))
        before, _ = tracemalloc.get_traced_memory()
        read(range(200, 1500))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 50_000


def test_what_is_kept_has_the_stamp_of_the_file_that_was_read(folder: Path) -> None:
    """A file may be replaced after it was read and before its pixels are kept."""
    kept = ImageDataset(folder, cache="1MiB")
    stored = kept._pictures.stored
    found = stored.find(0)
    Image.fromarray(np.full((30, 31, 3), 9, np.uint8)).save(folder / "00.png")
    assert stored.whole(found).shape == (20, 20, 3)
    assert kept[0].shape == (3, 30, 31)


def test_subsets_and_joins_have_the_cache_of_their_parts(store: Path) -> None:
    """One for all: what a subset decodes the whole finds, and it is counted once."""
    whole = ImageDataset(store, cache="1MiB")
    part = whole.subset(range(5))
    list(samples(part))
    assert whole.cache is part.cache
    joined: Any = ConcatDataset(Subset(whole, range(10)), part)
    loader = build_loader(joined, batch_size=5, num_workers=0, collate_fn=list)
    list(loader)
    stats = loader.stats().cache
    assert stats is not None
    assert stats.hits == 10
    assert stats.capacity == 1 << 20


def test_without_a_cache_there_is_none(store: Path) -> None:
    """Statistics say so."""
    loader = build_loader(ImageDataset(store), batch_size=6, num_workers=0, collate_fn=list)
    list(loader)
    assert loader.stats().cache is None
    assert loader.stats().to_dict()["cache"] is None


def test_pictures_stored_as_pixels_are_not_kept(tmp_path: Path) -> None:
    """Nothing would be spared."""
    with StoreWriter(tmp_path / "x.lmdb", schema={"image": "uint8[4, 4, 3]"}) as writer:
        writer.add({"image": np.zeros((4, 4, 3), np.uint8)})
    assert ImageDataset(tmp_path / "x.lmdb", cache="1MiB").cache is None


@pytest.mark.parametrize("cache", ["much", 0, -1, True, 1.5, "0", ""])
def test_a_size_that_is_none_is_refused(store: Path, cache: Any) -> None:
    """The text says what is expected."""
    with pytest.raises(OptionError, match="32GiB"):
        ImageDataset(store, cache=cache)


def test_a_folder_without_a_size_is_refused(store: Path, tmp_path: Path) -> None:
    """There is no size to go by."""
    with pytest.raises(OptionError, match="how large"):
        ImageDataset(store, cache_folder=tmp_path)


def test_a_dataset_with_a_cache_pickles_to_a_few_kilobytes(store: Path) -> None:
    """And its copy has the same cache."""
    kept = ImageDataset(store, cache="4MiB")
    list(samples(kept))
    text = pickle.dumps(kept)
    assert len(text) < 8_000
    copy = pickle.loads(text)
    list(samples(copy))
    assert kept.cache is not None
    assert kept.cache.stats().hits == COUNT


class Own(ImageDataset):
    """A dataset of somebody who has a cache of another kind, under the same name."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, cache="1MiB")
        self.cache = {}  # type: ignore[assignment]


def test_a_subclass_may_use_the_name_for_itself(store: Path, decoded: list[int]) -> None:
    """Its pictures are kept all the same."""
    own = Own(store)
    for _ in range(2):
        list(own.__getitems__(list(range(COUNT))))
    assert len(decoded) == COUNT
    assert build_loader(own, batch_size=4, num_workers=0).stats().cache is None


class Volumes(torch.utils.data.Dataset[torch.Tensor]):
    """A dataset of one's own that keeps what it makes."""

    def __init__(self) -> None:
        self.cache = DecodedCache(8, 1 << 20, key="volumes")

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        volume = self.cache.get(index)
        if volume is None:
            volume = np.full((5, 6, 7), index, np.float32)
            self.cache.put(index, volume)
        return torch.tensor(volume)


def test_a_dataset_of_ones_own_is_counted_as_well() -> None:
    """By its attribute ``cache``."""
    loader: Any = build_loader(Volumes(), batch_size=4, num_workers=2)
    for _ in range(2):
        assert sorted(batch[0, 0, 0, 0].item() for batch in loader) == [0.0, 4.0]
    stats = loader.stats().cache
    assert stats is not None
    assert (stats.entries, stats.hits) == (8, 8)


# --- what it costs -------------------------------------------------------------------------------


class Weighed(torch.utils.data.Dataset[int]):
    """A sample is the heap of the worker that made it, when it had read everything."""

    def __init__(self, inner: ImageDataset, rounds: int) -> None:
        self.inner = inner
        self.rounds = rounds

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        for _ in range(self.rounds):
            for number in range(len(self.inner)):
                _ = self.inner[number]
        return process_memory().anonymous or 0


def large_store(path: Path, count: int, side: int) -> Path:
    """Return a store of large pictures."""
    with StoreWriter(path, schema={"image": "jpeg"}) as writer:
        data = jpeg(0, side)
        for _ in range(count):
            writer.add({"image": data})
    return path


@pytest.mark.memory
def test_private_memory_of_a_worker_does_not_grow_with_the_cache(tmp_path: Path) -> None:
    """Sixty megabytes are kept and read again: the heap is that of a worker with one picture."""
    store = large_store(tmp_path / "x.lmdb", 80, 500)
    heaps = []
    for cache, rounds in (("1MiB", 1), ("100MiB", 2)):
        dataset = ImageDataset(store, cache=cache)
        loader = build_loader(
            Weighed(dataset, rounds), batch_size=1, num_workers=1, start_method="forkserver"
        )
        heaps.append(int(next(iter(loader))))
        assert dataset.cache is not None
        assert (dataset.cache.stats().entries == 80) is (cache == "100MiB")
    assert heaps[1] - heaps[0] < 10_000_000, heaps


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs memory file systems")
def test_a_budget_counts_a_cache_in_memory(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that it may take, before it is filled."""
    monkeypatch.setattr(sharedds.cache.decoded, "memory_folder", lambda nbytes: "/dev/shm")
    options: dict[str, Any] = {"batch_size": 6, "num_workers": 1, "max_memory": "2GiB"}
    plain = build_loader(ImageDataset(store, view=RandomResizedCrop(16)), **options).plan.estimate
    kept = ImageDataset(store, view=RandomResizedCrop(16), cache="200MiB")
    assert kept.cache is not None
    assert kept.cache.in_memory
    counted = build_loader(kept, **options).plan.estimate
    assert plain is not None
    assert counted is not None
    assert counted.other - plain.other >= 200 << 20
    with pytest.raises(OptionError, match="max_memory"):
        build_loader(ImageDataset(store, view=RandomResizedCrop(16), cache="1900MiB"), **options)


def test_a_budget_does_not_count_a_cache_on_a_disk(store: Path, tmp_path: Path) -> None:
    """The system takes it back where memory is short."""
    view = RandomResizedCrop(16)
    kept = ImageDataset(store, view=view, cache="1900MiB", cache_folder=tmp_path / "cache")
    assert kept.cache is not None
    assert not kept.cache.in_memory
    assert build_loader(kept, batch_size=6, num_workers=1, max_memory="2GiB").plan.estimate
