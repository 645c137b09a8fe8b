"""Draws in a loader thread: the numbers of seeded global generators, and nobody is disturbed."""

# ruff: noqa: NPY002 - the global functions are the subject
from __future__ import annotations

import copy
import inspect
import pickle
import random
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import cloudpickle
import global_draws
import numpy as np
import pytest
import torch
from global_draws import OF_NUMPY, OF_RANDOM, OF_TORCH, bits

from sharedds.errors import OptionError
from sharedds.generators.thread_random import (
    DISPATCHING,
    GlobalsWatch,
    ThreadGenerators,
    drawing_from,
    global_torch_generator,
    redirect_globals,
    restore_globals,
)

T = TypeVar("T")
SEED = 0x5EED_1234_5678


@pytest.fixture(autouse=True)
def restored_globals() -> Iterator[None]:
    """Tests seed the global generators; the next test finds them as they were."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


@pytest.fixture
def redirected() -> Iterator[None]:
    """The dispatching functions are in place."""
    redirect_globals()
    yield
    restore_globals()


def seed_all() -> None:
    """Seed as a process does for a sample."""
    random.seed(SEED)
    np.random.seed(SEED & 0xFFFF_FFFF)
    global_torch_generator().manual_seed(SEED & 0xFFFF_FFFF)


def states() -> tuple[Any, ...]:
    """The real global generators, as they are now."""
    numpy: Any = np.random.mtrand._rand.get_state()
    return (
        random._inst.getstate(),
        (numpy[1].tobytes(), *numpy[2:]),
        torch.default_generator.get_state().numpy().tobytes(),
    )


def in_thread(function: Callable[[], T], *, own: bool = True) -> T:
    """Run in another thread, by default one with generators of its own, as loader threads are."""
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            if own:
                with drawing_from(ThreadGenerators()):
                    done.append(function())
            else:
                done.append(function())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


def seeded(draw: Callable[[], Any]) -> Any:
    """What a draw gives twice in a row after seeding, and what comes after it."""
    seed_all()
    return bits([draw(), draw(), random.random(), np.random.rand(), torch.rand(())])


# --- the same numbers ----------------------------------------------------------------------------

CASES = {
    f"{home} {name}": draw
    for home, draws in (("random", OF_RANDOM), ("numpy", OF_NUMPY), ("torch", OF_TORCH))
    for name, draw in draws.items()
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("redirected")
def test_a_draw_in_a_loader_thread_is_that_of_seeded_globals(case: str) -> None:
    """Each function gives bit for bit what it gives where the real globals are seeded alike."""
    expected = seeded(CASES[case])
    before = states()
    assert in_thread(lambda: seeded(CASES[case])) == expected
    assert states() == before


def test_without_its_own_generators_a_thread_disturbs_the_trainer() -> None:
    """The naive way, draws from a plain thread, moves all three generators of the process."""
    before = states()
    in_thread(lambda: (random.random(), np.random.rand(), torch.rand(3)), own=False)
    assert all(now != then for now, then in zip(states(), before, strict=True))


def test_every_function_of_random_and_numpy_is_redirected() -> None:
    """No function that serves a hidden instance is left out, and each has a case above."""
    for module, instance, cases in (
        (random, random._inst, OF_RANDOM),
        (np.random, np.random.mtrand._rand, OF_NUMPY),
    ):
        home = vars(getattr(DISPATCHING, module.__name__.partition(".")[0]))
        for name, value in vars(module).items():
            if getattr(value, "__self__", None) is instance:
                assert name in home
                assert name in cases or name == "random_integers"  # deprecated


@pytest.mark.usefixtures("redirected")
def test_early_names_are_redirected_in_every_module() -> None:
    """``from random import random as r`` in a module imported before does not escape."""
    assert global_draws.bound_early is DISPATCHING.random.random
    assert global_draws.numpy_bound_early is DISPATCHING.numpy.permutation


def test_originals_come_back() -> None:
    """After the last user everything is as it was, also names bound while it lasted."""
    before = [dict(vars(module)) for module in (random, np.random, torch, torch.random)]
    late = types.ModuleType("late")
    sys.modules["late"] = late
    try:
        redirect_globals()
        redirect_globals()
        restore_globals()
        assert random.random is DISPATCHING.random.random
        late.__dict__["draw"] = random.random
        restore_globals()
        assert late.__dict__["draw"] is random.random is global_draws.bound_early
    finally:
        del sys.modules["late"]
    after = [dict(vars(module)) for module in (random, np.random, torch, torch.random)]
    assert after == before


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_a_dispatching_function_that_stays_somewhere_still_works(
    dumps: Callable[[Any], bytes],
) -> None:
    """Kept beyond its time it is the original, and can be pickled by name and copied."""
    draw = DISPATCHING.random.random
    random.seed(3)
    expected = random.random()
    random.seed(3)
    assert draw() == expected
    assert pickle.loads(dumps(draw)) is draw
    assert copy.deepcopy(draw) is draw
    assert "x" in inspect.signature(DISPATCHING.random.shuffle).parameters


# --- nobody is disturbed -------------------------------------------------------------------------


@pytest.mark.usefixtures("redirected")
def test_the_trainers_stream_goes_on_as_if_alone() -> None:
    """Draws of the main thread, dropout included, are the same with two busy threads as without."""

    def train() -> Any:
        seed_all()
        return [
            bits(
                [
                    random.gauss(0, 1),
                    np.random.randn(3),
                    torch.dropout(torch.ones(9), 0.5, True),
                    torch.randperm(9),
                ]
            )
            for _ in range(50)
        ]

    def load() -> None:
        with drawing_from(ThreadGenerators()):
            while not stop.is_set():
                seed_all()
                for draw in (random.gauss, np.random.randn):
                    draw()
                torch.dropout(torch.ones(9), 0.5, True)
                torch.randperm(9)

    expected = train()
    stop = threading.Event()
    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        assert train() == expected
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.usefixtures("redirected")
def test_two_threads_do_not_share_a_stream() -> None:
    """Interleaved draw by draw, each thread has the numbers of its own seed."""
    turn = threading.Barrier(2)

    def draw() -> Any:
        seed_all()
        drawn = []
        for _ in range(20):
            turn.wait(10)
            drawn.append(bits([random.random(), np.random.rand(), torch.rand(2)]))
        return drawn

    found: list[Any] = []

    def run() -> None:
        with drawing_from(ThreadGenerators()):
            found.append(draw())

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]


@pytest.mark.usefixtures("redirected")
def test_a_generator_of_ones_own_stays_in_charge() -> None:
    """``generator=`` given by a transform is used as it is."""
    expected = torch.rand(3, generator=torch.Generator().manual_seed(8))
    own = in_thread(lambda: torch.rand(3, generator=torch.Generator().manual_seed(8)))
    assert torch.equal(own, expected)


def test_torch_does_not_stand_aside_elsewhere() -> None:
    """No flag of the whole process is set: torch.compile in the trainer goes on compiling."""
    from torch.utils import _python_dispatch

    with drawing_from(ThreadGenerators()):
        assert not _python_dispatch.is_in_torch_dispatch_mode()
        assert torch._C._len_torch_dispatch_stack() == 1
    assert torch._C._len_torch_dispatch_stack() == 0


# --- what cannot be served -----------------------------------------------------------------------


def test_an_operation_that_takes_no_generator_is_refused_by_name() -> None:
    """Never a silently different stream: an error that says what and what to do."""
    with pytest.raises(OptionError, match=r"torch\.native_dropout draws .*engine='process'"):
        in_thread(lambda: torch.native_dropout(torch.ones(9), 0.5, True))


def test_a_shape_without_numbers_may_be_drawn() -> None:
    """On the meta device there is nothing to draw."""
    assert in_thread(lambda: torch.rand(3, device="meta")).shape == (3,)


def test_a_draw_on_another_device_is_refused() -> None:
    """The generator of an accelerator belongs to training."""
    from sharedds.generators.torch_draws import OwnDraws

    mode = OwnDraws(torch.Generator())
    rule = torch.ops.aten.rand.default
    with pytest.raises(OptionError, match=r"torch\.rand draws on cuda .*generator="):
        mode.__torch_dispatch__(rule, (), ([3],), {"device": torch.device("cuda")})


def test_the_watch_notices_draws_that_go_past() -> None:
    """A method of a hidden instance, a stored function, torch's own generator object."""
    stored = random.random
    for name, draw in {
        "random": stored,
        "numpy.random": np.random.mtrand._rand.rand,
        "torch": torch.default_generator.seed,
    }.items():
        redirect_globals()
        try:
            watch = GlobalsWatch()
            in_thread(lambda: (random.random(), np.random.rand(), torch.rand(2)))
            assert not watch.changed()
            assert not watch.warning()
            in_thread(draw)
            assert watch.changed() == (name,)
            assert name in watch.warning()
        finally:
            restore_globals()
