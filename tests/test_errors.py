"""Errors: one tree, each the built-in that fits, and whole after crossing a process boundary."""

import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from torch._utils import ExceptionWrapper

from sharedds import errors
from sharedds.errors import SampleKeyError, SharedDSError

CLASSES: list[type[SharedDSError]] = [getattr(errors, name) for name in errors.__all__]

# What an ordinary except clause catches, and the parent inside the tree.
PARENTS: dict[str, tuple[str, type[BaseException]]] = {
    "SharedDSError": ("Exception", Exception),
    "OptionError": ("SharedDSError", ValueError),
    "MissingExtraError": ("SharedDSError", ImportError),
    "SourceError": ("SharedDSError", OSError),
    "DecodeError": ("SharedDSError", ValueError),
    "ImageTooLargeError": ("DecodeError", ValueError),
    "SchemaError": ("SharedDSError", TypeError),
    "StoreError": ("SharedDSError", Exception),
    "StoreNotFoundError": ("StoreError", FileNotFoundError),
    "StoreExistsError": ("StoreError", FileExistsError),
    "StoreFormatError": ("StoreError", ValueError),
    "IncompleteStoreError": ("StoreFormatError", ValueError),
    "CorruptDataError": ("StoreError", ValueError),
    "StoreChangedError": ("StoreError", RuntimeError),
    "StoreBusyError": ("StoreError", RuntimeError),
    "StorageFullError": ("StoreError", OSError),
    "SampleIndexError": ("SharedDSError", IndexError),
    "SampleKeyError": ("SharedDSError", KeyError),
    "ClassMismatchError": ("SharedDSError", ValueError),
    "SampleError": ("SharedDSError", RuntimeError),
    "StateError": ("SharedDSError", ValueError),
    "MemoryBudgetError": ("SharedDSError", MemoryError),
    "WorkerError": ("SharedDSError", RuntimeError),
    "WorkerDiedError": ("WorkerError", RuntimeError),
    "LoaderStalledError": ("WorkerError", TimeoutError),
}

TEXT = "train.lmdb: sample 7 ('cat/1.jpg') has a bad checksum; run: sharedds verify train.lmdb"


def make(kind: type[SharedDSError]) -> SharedDSError:
    """Return an error with every fact filled in."""
    return kind(TEXT, path="train.lmdb", sample=7, key="cat/1.jpg", field="image")


def facts(error: SharedDSError) -> tuple[object, ...]:
    """Return everything an error knows."""
    return type(error), str(error), error.path, error.sample, error.key, error.field


def test_every_class_is_public_and_has_known_parents() -> None:
    """The module holds no error that the list, or this test, forgot."""
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, BaseException)
    }
    assert defined == set(errors.__all__) == set(PARENTS)


@pytest.mark.parametrize("kind", CLASSES)
def test_each_error_is_the_built_in_that_fits(kind: type[SharedDSError]) -> None:
    """An ordinary except clause works, and the root catches everything."""
    parent, built_in = PARENTS[kind.__name__]
    assert issubclass(kind, SharedDSError)
    assert issubclass(kind, built_in)
    assert kind.__bases__[0].__name__ == parent


@pytest.mark.parametrize("kind", CLASSES)
def test_the_text_is_the_message_and_nothing_else(kind: type[SharedDSError]) -> None:
    """No quotes of a KeyError, no errno of an OSError."""
    assert str(make(kind)) == TEXT
    assert str(kind()) == ""
    assert str(KeyError(TEXT)) != TEXT


@pytest.mark.parametrize("protocol", [0, 2, pickle.HIGHEST_PROTOCOL])
@pytest.mark.parametrize("kind", CLASSES)
def test_each_error_survives_pickling(kind: type[SharedDSError], protocol: int) -> None:
    """Type, text and facts are the same on the other side."""
    error = make(kind)
    error.add_note("while packing photos/")
    copy = pickle.loads(pickle.dumps(error, protocol))
    assert facts(copy) == facts(error)
    assert copy.__notes__ == ["while packing photos/"]


def test_an_error_whose_arguments_are_fields_does_not_survive() -> None:
    """The usual way, fields in the constructor and a text to the parent, cannot be unpickled."""
    with pytest.raises(TypeError, match="missing"):
        pickle.loads(pickle.dumps(NaiveError("train.lmdb", 7)))


class NaiveError(Exception):
    """An error as it is often written."""

    def __init__(self, path: str, sample: int) -> None:
        super().__init__(f"{path}: sample {sample}")


def fail() -> None:
    """Raise in another process."""
    raise make(SampleKeyError)


def test_an_error_crosses_a_real_process_boundary() -> None:
    """What a pool's process raises arrives whole."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        error = pool.submit(fail).exception()
    assert isinstance(error, SampleKeyError)
    assert facts(error) == facts(make(SampleKeyError))


@pytest.mark.parametrize("kind", CLASSES)
def test_torch_keeps_the_type(kind: type[SharedDSError]) -> None:
    """The wrapper in which torch carries a worker's error raises the same type again."""
    try:
        raise make(kind)
    except SharedDSError:
        wrapper = ExceptionWrapper(  # type: ignore[no-untyped-call]
            where="in DataLoader worker process 0"
        )
    with pytest.raises(SharedDSError) as caught:
        pickle.loads(pickle.dumps(wrapper)).reraise()
    assert caught.type is kind
    assert TEXT in str(caught.value)
    assert "worker process 0" in str(caught.value)
