"""What is done once for all tests, so that no process of theirs does it again and again."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Generator

import pytest

#: Files that take long: begun first, so that no core waits at the end for the last of them.
_LONG = (
    "test_benchmarks",
    "test_benchmarks_training",
    "test_torch_equivalents",
    "test_pack_encoding",
    "test_index_memory",
    "test_store_crashes",
    "test_pack_interrupted",
    "test_audit",
    "test_doctor",
    "test_shared_buffers",
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests, and prepare what thousands of tests and of forked workers use.

    What is there now stays until the end: a million objects of the tests, torch and the other
    libraries. No garbage collection looks at them again. And when coverage starts, in each forked
    worker anew, it asks for the stack with the module of each frame: that takes 0.1 s, unless
    ``inspect`` has been through all modules before.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        inspect.getmodule(compile("", "of no module", "exec"))
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take long first; all others stay in their order."""
    places = {name: at for at, name in enumerate(_LONG)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))
