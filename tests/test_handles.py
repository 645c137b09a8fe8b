"""Attributes that are computed once in each process."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import METHODS, forked, in_process

from sharedds.errors import (
    OptionError,
)
from sharedds.handles import (
    per_process,
)

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")


class Handle:
    """Something that must not be closed by a process that did not open it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.closed_by: Path | None = None

    def __del__(self) -> None:
        if self.closed_by is not None:
            self.closed_by.write_text(f"opened by {self.pid}, closed by {os.getpid()}")


class Reader:
    """Opens a handle when asked for it."""

    calls = 0

    @per_process
    def handle(self) -> Handle:
        """A handle."""
        type(self).calls += 1
        return Handle()

    @per_process
    def number(self) -> int:
        """A number."""
        return 1

    def pids(self) -> tuple[int, int]:
        """Return who opened the handle, and who asks."""
        return self.handle.pid, os.getpid()


class Child(Reader):
    """Adds to what its parent computes."""

    @per_process
    def number(self) -> int:
        """A number."""
        return super().number + 1


class Naive:
    """Opens a handle in its constructor, as many datasets do."""

    def __init__(self) -> None:
        self.handle = Handle()

    def pids(self) -> tuple[int, int]:
        """Return who opened the handle, and who asks."""
        return self.handle.pid, os.getpid()


def test_value_is_computed_once() -> None:
    """A second look at an attribute finds the same value."""
    reader = Reader()
    assert reader.handle is reader.handle


def test_value_is_computed_when_first_used() -> None:
    """Making an object opens nothing."""
    before = Reader.calls
    Reader()
    assert Reader.calls == before


def test_objects_do_not_share_a_value() -> None:
    """Each object has a value of its own."""
    assert Reader().handle is not Reader().handle


def test_threads_at_once_get_one_value() -> None:
    """Eight threads that ask at the same moment cause one computation."""

    class Slow:
        calls = 0

        @per_process
        def value(self) -> object:
            Slow.calls += 1
            time.sleep(0.05)
            return object()

    slow, barrier, seen = Slow(), threading.Barrier(8), []

    def ask() -> None:
        barrier.wait()
        seen.append(slow.value)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (Slow.calls, len(set(map(id, seen)))) == (1, 1)


def test_two_attributes_may_need_each_other_across_threads() -> None:
    """One attribute may be computed while another one of the same object is."""

    class Both:
        @per_process
        def first(self) -> int:
            return self.second + 1

        @per_process
        def second(self) -> int:
            return 1

    assert Both().first == 2


def test_pickle_drops_the_value() -> None:
    """A value that cannot be pickled does not keep its object from being pickled."""

    class Locked:
        @per_process
        def lock(self) -> Any:
            return threading.Lock()

    with pytest.raises(TypeError):
        pickle.dumps(threading.Lock())
    reader = Reader()
    reader.handle.closed_by = None
    again = pickle.loads(pickle.dumps(reader))
    assert again.handle is not reader.handle
    assert isinstance(Locked().lock, type(threading.Lock()))


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy])
def test_a_copy_computes_its_own(make: Callable[[Reader], Reader]) -> None:
    """A copied object does not use the value of its original, which keeps it."""
    reader = Reader()
    handle = reader.handle
    assert make(reader).handle is not handle
    assert reader.handle is handle


@pytest.mark.parametrize("method", METHODS)
def test_another_process_computes_its_own(method: str) -> None:
    """Whatever starts the process, the value was opened in it."""
    reader = Reader()
    assert reader.pids() == (os.getpid(), os.getpid())
    opened_by, asked_by = in_process(method, reader.pids)
    assert opened_by == asked_by != os.getpid()


def test_an_ordinary_attribute_is_carried_over() -> None:
    """The control of the test above: a handle from the constructor comes from another process."""
    opened_by, asked_by = in_process("spawn", Naive().pids)
    assert opened_by == os.getpid() != asked_by


def test_inheritance_works_with_super() -> None:
    """An overriding attribute can use the one it overrides, each kept under its own name."""
    child = Child()
    assert [child.number, child.number, Reader().number] == [2, 2, 1]


def test_an_exception_is_not_kept() -> None:
    """After a failure the next look tries again."""

    class Fails:
        calls = 0

        @per_process
        def value(self) -> int:
            self.calls += 1
            if self.calls == 1:
                raise OSError("not yet")
            return self.calls

    fails = Fails()
    with pytest.raises(OSError, match="not yet"):
        _ = fails.value
    assert fails.value == 2


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("touched", [True, False])
def test_an_inherited_value_is_not_closed_in_the_child(tmp_path: Path, *, touched: bool) -> None:
    """A forked child that drops the object does not close what the parent opened."""
    naive, reader = Naive(), Reader()
    naive.handle.closed_by = tmp_path / "naive"
    reader.handle.closed_by = tmp_path / "reader"
    box: list[Any] = [naive, reader]

    def drop() -> None:
        nonlocal naive, reader
        if touched:
            _ = reader.handle
            box[1].handle.closed_by = None
        del naive, reader
        box.clear()
        gc.collect()

    assert forked(drop) == 0
    naive.handle.closed_by = None
    assert (tmp_path / "naive").exists()
    assert not (tmp_path / "reader").exists()
    reader.handle.closed_by = None


def test_a_value_cannot_be_assigned() -> None:
    """Assigning says why it cannot be."""
    with pytest.raises(OptionError, match="handle is opened by each process"):
        Reader().handle = Handle()


def test_the_attribute_of_the_class_is_the_descriptor() -> None:
    """Documentation tools find the docstring."""
    assert Reader.handle.__doc__ == "A handle."
