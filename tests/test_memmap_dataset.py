"""MemmapDataset: rows of array files, opened by each process for itself."""

from __future__ import annotations

import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import METHODS, descriptors, in_process, python
from torch.utils.data import DataLoader

from sharedds.datasets import MemmapDataset
from sharedds.errors import (
    OptionError,
    SampleError,
    SampleIndexError,
    SourceError,
    StoreChangedError,
)
from sharedds.handles import map_file
from sharedds.loader import build_loader


def saved(path: Path, array: npt.NDArray[Any]) -> Path:
    """Save an array and return where."""
    np.save(path, array)
    return path


@pytest.fixture
def numbers(tmp_path: Path) -> npt.NDArray[np.float32]:
    """Ten rows in ``a.npy``, five in ``b.npy``; returned one after another."""
    rows = np.random.default_rng(0).random((15, 3, 4)).astype(np.float32)
    saved(tmp_path / "a.npy", rows[:10])
    saved(tmp_path / "b.npy", rows[10:])
    return rows


def test_the_size_of_a_sample_is_known_where_all_are_alike(
    tmp_path: Path, numbers: npt.NDArray[np.float32]
) -> None:
    """Without loading one; not where a transform or another file makes something else of it."""
    files = [tmp_path / "a.npy", tmp_path / "b.npy"]
    assert MemmapDataset(files).sample_nbytes == numbers[0].nbytes == 48
    (tmp_path / "raw").write_bytes(bytes(24))
    raw: dict[str, Any] = {"dtype": "<u2", "shape": (2, 3)}
    assert MemmapDataset(tmp_path / "raw", **raw).sample_nbytes == 12
    wide = saved(tmp_path / "wide.npy", np.zeros((4, 5), np.float32))
    assert MemmapDataset([*files, wide]).sample_nbytes is None
    assert MemmapDataset(files, transform=torch.from_numpy).sample_nbytes is None
    assert MemmapDataset(files, per_file=True).sample_nbytes is None
    estimate = build_loader(MemmapDataset(files), batch_size=4, num_workers=0).plan.estimate
    assert estimate is not None
    assert estimate.in_flight == 3 * 4 * 48


# --- reading -------------------------------------------------------------------------------------


def test_each_row_is_a_sample(tmp_path: Path, numbers: npt.NDArray[np.float32]) -> None:
    """Rows of all files in their order, from either end."""
    dataset = MemmapDataset([tmp_path / "a.npy", str(tmp_path / "b.npy")])
    assert len(dataset) == 15
    assert np.array_equal(np.stack(list(dataset)), numbers)
    assert np.array_equal(dataset[-1], numbers[14])
    assert dataset.key(12) == f"{tmp_path / 'b.npy'}[2]"
    with pytest.raises(SampleIndexError, match="15 samples"):
        dataset[15]


def test_a_batch_is_its_samples(tmp_path: Path, numbers: npt.NDArray[np.float32]) -> None:
    """Gathered from several files, in the order asked for, repeats and negative numbers too."""
    dataset = MemmapDataset([tmp_path / "a.npy", tmp_path / "b.npy"])
    indices = [12, 0, 3, 12, -1, 11]
    assert np.array_equal(np.stack(dataset.__getitems__(indices)), numbers[indices])
    part = dataset.subset([14, 2])
    assert np.array_equal(np.stack(part.__getitems__([1, 0])), numbers[[2, 14]])


@pytest.mark.parametrize(
    "array",
    [
        np.arange(5),
        np.asfortranarray(np.arange(24.0).reshape(4, 3, 2)),
        np.arange(6, dtype=">i4").reshape(3, 2),
        np.array([True, False]),
        np.zeros((3, 0)),
        np.zeros(4, [("x", "<i2"), ("ü猫", "<f8")]),  # needs version 3 of the format
        np.zeros((2, 3), "<c16"),
        np.array(["a", "bcd"]),
    ],
    ids=["1-d", "fortran", "big-endian", "bool", "empty rows", "fields", "complex", "text"],
)
def test_every_array_is_read_as_numpy_reads_it(tmp_path: Path, array: npt.NDArray[Any]) -> None:
    """One row or a batch of them: equal to ``np.load``, native, in C order and writable."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "stored in format 3.0"
        path = saved(tmp_path / "x.npy", array)
    dataset = MemmapDataset(path)
    for row, sample, gathered in zip(
        array, dataset, dataset.__getitems__(range(len(array))), strict=True
    ):
        for found in (sample, gathered):
            assert np.array_equal(found, row)
            assert found.dtype.isnative
            assert found.flags.c_contiguous
            assert found.flags.writeable


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.data())
def test_files_of_any_length_are_one_sequence(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], data: st.DataObject
) -> None:
    """Empty files among them change nothing."""
    folder = tmp_path_factory.mktemp("files")
    values = np.arange(sum(lengths) * 2).reshape(-1, 2)
    ends = np.cumsum(lengths)
    files = [
        saved(folder / f"{i}.npy", values[end - length : end])
        for i, (end, length) in enumerate(zip(ends.tolist(), lengths, strict=True))
    ]
    dataset = MemmapDataset(files)
    assert len(dataset) == len(values)
    if len(values):
        indices = data.draw(st.lists(st.integers(0, len(values) - 1), min_size=1))
        assert np.array_equal(np.stack(dataset.__getitems__(indices)), values[indices])
        assert np.array_equal(np.stack([dataset[i] for i in indices]), values[indices])


def test_a_sample_is_a_copy_unless_told_otherwise(tmp_path: Path) -> None:
    """Writing to a sample leaves the file alone; a view cannot be written to."""
    path = saved(tmp_path / "x.npy", np.zeros((3, 2)))
    with pytest.raises(ValueError, match="read-only"):
        np.load(path, mmap_mode="r")[0][:] = 1  # what a map gives by itself
    dataset = MemmapDataset(path)
    dataset[0][:] = 1
    torch.from_numpy(dataset[0]).fill_(1)  # torch would warn about a read-only array
    dataset.__getitems__([0, 1])[0][:] = 1
    assert not np.load(path).any()
    view = MemmapDataset(path, copy=False)[0]
    with pytest.raises(ValueError, match="read-only"):
        view[:] = 1


def test_raw_files_are_read_with_dtype_shape_and_offset(tmp_path: Path) -> None:
    """As many samples as the file has room for."""
    values = np.arange(24, dtype="<u2").reshape(4, 2, 3)
    (tmp_path / "x.raw").write_bytes(b"header--" + values.tobytes())
    dataset = MemmapDataset(tmp_path / "x.raw", dtype="<u2", shape=(2, 3), offset=8)
    assert np.array_equal(np.stack(list(dataset)), values)


def test_a_file_may_be_a_sample(tmp_path: Path) -> None:
    """Files of different shapes, one number alone included, one sample each."""
    arrays = [np.zeros((2, 3)), np.arange(4), np.asarray(5.0)]
    files = [saved(tmp_path / f"{i}.npy", array) for i, array in enumerate(arrays)]
    dataset = MemmapDataset(files, per_file=True)
    for read in (list(dataset), dataset.__getitems__([0, 1, 2])):
        assert all(np.array_equal(a, b) for a, b in zip(read, arrays, strict=True))
    assert dataset.key(1) == str(files[1])
    (tmp_path / "x.raw").write_bytes(bytes(6))
    raw = MemmapDataset([tmp_path / "x.raw"], dtype="u1", shape=(2, 3), per_file=True)
    assert raw[0].shape == (2, 3)


def test_load_and_transform_make_the_sample(tmp_path: Path) -> None:
    """Both are called with the array, singly and in batches, with a generator of their own."""

    class Sums(MemmapDataset):
        def load(self, array: npt.NDArray[Any]) -> Any:
            return float(array.sum()), self.rng.random()

    path = saved(tmp_path / "x.npy", np.arange(6.0).reshape(3, 2))
    assert MemmapDataset(path, transform=lambda array: array.max())[1] == 3
    samples = [Sums(path)[0], *Sums(path).__getitems__([1, 2])]
    assert [total for total, _ in samples] == [1, 5, 9]
    assert len({number for _, number in samples}) == 3


def test_an_error_of_a_transform_names_file_and_row(tmp_path: Path) -> None:
    """The note leads to the row."""
    path = saved(tmp_path / "x.npy", np.zeros((3, 2)))
    dataset = MemmapDataset(path, transform=lambda array: 1 // 0)
    for read in (lambda: dataset[1], lambda: dataset.__getitems__([1])):
        with pytest.raises(ZeroDivisionError) as caught:
            read()
        assert caught.value.__notes__ == [f"while loading sample 1, {path}[1]"]


# --- what is refused -----------------------------------------------------------------------------


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    """A pickle in an array could run anything."""
    path = tmp_path / "x.npy"
    np.save(path, np.array([{"a": 1}, None], object), allow_pickle=True)
    with pytest.raises(SourceError, match="Python objects"):
        MemmapDataset(path)
    with pytest.raises(SourceError, match="Python objects"):
        MemmapDataset(path, per_file=True)[0]


def test_a_file_cut_short_says_what_is_missing(tmp_path: Path) -> None:
    """Bytes expected and bytes found, when the dataset is made."""
    path = saved(tmp_path / "x.npy", np.zeros((100, 10)))
    os.truncate(path, 5_000)
    with pytest.raises(SourceError, match=r"x\.npy: cut short: 8,128 bytes .* 5,000 found"):
        MemmapDataset(path)
    raw = tmp_path / "x.raw"
    raw.write_bytes(bytes(31))
    with pytest.raises(SourceError, match="no whole number of samples of 8 bytes"):
        MemmapDataset(raw, dtype="f4", shape=(2,))
    with pytest.raises(SourceError, match="cut short: 40 bytes"):
        MemmapDataset([raw], dtype="f4", shape=(10,), per_file=True)[0]


def test_a_file_cut_short_while_open_is_no_crash(tmp_path: Path) -> None:
    """Touching what is gone would end the process by SIGBUS."""
    path = saved(tmp_path / "x.npy", np.zeros((10_000, 10)))
    dataset = MemmapDataset(path)
    assert dataset[9_999] is not None
    os.truncate(path, 10_000)
    for read in (lambda: dataset[9_999], lambda: dataset.__getitems__([9_999])):
        with pytest.raises(StoreChangedError, match="cut short while it was open"):
            read()


def test_a_file_that_became_another_is_refused(tmp_path: Path) -> None:
    """Fewer rows than were counted: the numbers of all later samples would shift."""
    path = saved(tmp_path / "x.npy", np.zeros((10, 2)))
    dataset = MemmapDataset(path)
    path.unlink()
    saved(path, np.zeros((9, 2)))
    with pytest.raises(StoreChangedError, match="had 10 rows"):
        dataset[0]
    path.unlink()
    with pytest.raises(SourceError, match="no such file"):
        dataset[0]


HEADER = b"\x93NUMPY\1\0\x46\0{'descr': '<f8', 'fortran_order': False, 'shape': (%s,), }"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04 an npz",
        b"\x93NUMPY\x09\0" + bytes(80),
        b"\x93NUMPY\1\0\xff\xff{",
        b"\x93NUMPY\3\0\xff\xff\xff\xff",
        b"\x93NUMPY\3\0\5\0\0\0{1:2}",
        b"\x93NUMPY\1\0\2\0{}",
        (HEADER % b"-1").ljust(80) + bytes(100),
        (HEADER % b"9").replace(b"<f8", b"|V0").ljust(80) + bytes(100),
        (HEADER % b"9").replace(b"False", b"1").ljust(80) + bytes(100),
        (HEADER % b"99999999999999999").replace(b" ", b"").ljust(80) + bytes(100),
        (HEADER % b"True").ljust(80) + bytes(100),
        b"\x93NUMPY\1\0\x46\0" + b"(" * 70,
    ],
)
def test_hostile_files_are_refused(tmp_path: Path, data: bytes) -> None:
    """Nothing that a header says is believed; the file is named."""
    path = tmp_path / "x.npy"
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"x\.npy"):
        MemmapDataset(path)
    with pytest.raises(SourceError, match=r"x\.npy"):
        MemmapDataset([path], per_file=True)[0]


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """Missing, a folder, a single number instead of rows."""
    with pytest.raises(SourceError, match="cannot be read"):
        MemmapDataset(tmp_path / "none.npy")
    for per_file in (False, True):
        with pytest.raises(SourceError, match=r"directory|a file is expected"):
            MemmapDataset(tmp_path, per_file=per_file)
    with pytest.raises(SourceError, match="no rows"):
        MemmapDataset(saved(tmp_path / "x.npy", np.asarray(1)))


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "f4"},
        {"shape": (2,)},
        {"offset": 8},
        {"dtype": object, "shape": (2,)},
        {"dtype": "f4", "shape": (-1,)},
        {"dtype": "f4", "shape": (2,), "offset": -1},
        {"dtype": "no", "shape": (2,)},
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    """Before any file is opened."""
    with pytest.raises(OptionError):
        MemmapDataset(tmp_path / "none.npy", **options)


def test_no_file_at_all_is_refused() -> None:
    """An empty list is a mistake, such as a pattern that matched nothing."""
    with pytest.raises(OptionError, match="files is empty"):
        MemmapDataset([])


# --- processes -----------------------------------------------------------------------------------


def test_a_pickle_is_small_whatever_was_opened(tmp_path: Path) -> None:
    """A NumPy map pickles its data; the dataset pickles where the files are."""
    path = saved(tmp_path / "x.npy", np.zeros((1000, 100)))
    assert len(pickle.dumps(np.load(path, mmap_mode="r"))) > 800_000
    for files in ([path], [path] * 1000):
        dataset = MemmapDataset(files)
        assert dataset[5] is not None
        data = pickle.dumps(dataset)
        assert len(data) < 60_000
        assert np.array_equal(pickle.loads(data)[5], dataset[5])


@pytest.mark.parametrize("method", METHODS)
def test_other_processes_read_it(tmp_path: Path, method: str) -> None:
    """Workers of every kind read the same, after this process has."""
    dataset = MemmapDataset(saved(tmp_path / "x.npy", np.arange(6).reshape(3, 2)))
    assert dataset[2].tolist() == [4, 5]
    assert in_process(method, dataset.__getitem__, 2).tolist() == [4, 5]
    assert in_process(method, getattr, dataset, "fingerprint") == dataset.fingerprint


def test_few_files_stay_open(tmp_path: Path) -> None:
    """Descriptors do not grow with the number of files, and none is left behind."""
    files = [saved(tmp_path / f"{i}.npy", np.full((2, 2), i)) for i in range(150)]
    before = descriptors()
    dataset = MemmapDataset(files)
    read = np.stack(dataset.__getitems__(range(300)))
    assert read[:, 0].tolist() == [i // 2 for i in range(300)]
    assert descriptors() - before < 140
    del dataset
    assert descriptors() == before


class Opened(MemmapDataset):
    """Says who reads and who opened the file."""

    def load(self, array: npt.NDArray[Any]) -> Any:
        """Return the value and both processes."""
        return int(array[0]), os.getpid(), OPENED_BY[0]


OPENED_BY: list[int] = []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_worker_opens_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the parent has open is not used by its children."""

    def recorded(path: str) -> Any:
        OPENED_BY[:] = [os.getpid()]
        return map_file(path)

    monkeypatch.setattr("sharedds.datasets.array_files.map_file", recorded)
    dataset = Opened(saved(tmp_path / "x.npy", np.arange(300).reshape(300, 1)))
    assert dataset[0] == (0, os.getpid(), os.getpid())
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=10,
        shuffle=True,
        num_workers=2,
        multiprocessing_context="fork",
        collate_fn=list,
    )
    for _ in range(2):
        seen = [sample for batch in loader for sample in batch]
        assert sorted(value for value, _, _ in seen) == list(range(300))
        assert all(reader == opener != os.getpid() for _, reader, opener in seen)


def test_the_fingerprint_is_that_of_the_files(tmp_path: Path) -> None:
    """Names, shapes and dtypes, wherever the folder is."""
    for folder, dtype in (("a", "f4"), ("b", "f4"), ("c", "i4")):
        (tmp_path / folder).mkdir()
        saved(tmp_path / folder / "x.npy", np.zeros((3, 2), dtype))
    a, b, c = (MemmapDataset(tmp_path / name / "x.npy").fingerprint for name in "abc")
    assert a == b
    assert a != c


@pytest.mark.parametrize("options", [{}, {"per_file": True}, {"transform": torch.from_numpy}])
def test_a_missing_file_can_be_left_out(tmp_path: Path, options: dict[str, Any]) -> None:
    """Asking for it in advance is no reason to give up the whole batch."""
    files = [saved(tmp_path / f"{i}.npy", np.full((1, 2), i)) for i in range(4)]
    dataset = MemmapDataset(files, **options)
    files[1].unlink()
    loader = build_loader(dataset, batch_size=2, num_workers=0, on_error="skip")
    with pytest.warns(UserWarning, match="sample 1"):
        assert [len(batch) for batch in loader] == [1, 2]
    with pytest.raises(SampleError, match="no such file"):
        list(build_loader(dataset, batch_size=2, num_workers=0))


@pytest.mark.parametrize("other", [np.zeros((10, 3)), np.zeros((10, 2), np.float32)])
def test_other_values_of_as_many_rows_are_refused(tmp_path: Path, other: npt.NDArray[Any]) -> None:
    """Another shape or dtype is another array, although the numbers of samples fit."""
    path = saved(tmp_path / "x.npy", np.zeros((10, 2)))
    dataset = MemmapDataset(path)
    path.unlink()
    saved(path, other)
    with pytest.raises(StoreChangedError, match="had 10 rows and perhaps another shape"):
        dataset[0]


def test_many_datasets_of_many_files_share_few_descriptors(tmp_path: Path) -> None:
    """Under a limit of 128 open files, where keeping a map of each does not work."""
    for number in range(300):
        np.save(tmp_path / f"{number:03d}.npy", np.full((2, 2), number))
    done = python(
        """
        import glob, os, resource, sys
        import numpy as np
        from sharedds import MemmapDataset, build_loader, concat
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
        files = sorted(glob.glob(sys.argv[1] + "/*.npy"))
        try:
            kept = [np.load(file, mmap_mode="r") for file in files]
        except OSError:
            print("too many")
        kept = None
        together = MemmapDataset(files), MemmapDataset(files, per_file=True)
        joined = concat(*together, *map(MemmapDataset, files[:9]))
        loader = build_loader(joined, batch_size=50, shuffle=True, num_workers=0, collate_fn=list)
        print(sum(len(batch) for batch in loader), len(os.listdir("/proc/self/fd")) < 100)
        """,
        tmp_path,
    )
    assert done.stdout.split() == ["too", "many", "918", "True"]
