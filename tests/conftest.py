"""What is done once for all tests, so that no process of theirs does it again and again."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Generator

import pytest


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
