"""Work in parallel: results in order, bounded work in flight, nothing left running."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from sharedds.ingest.executor import MemoryBudget, run_in_order


def numbers(count: int, cost: int = 1) -> Iterator[tuple[int, int]]:
    """Yield items with their cost."""
    return ((number, cost) for number in range(count))


def test_results_come_in_the_order_of_the_items() -> None:
    """Though later ones are done first."""

    def slow_first(number: int) -> int:
        time.sleep(0.02 if number % 5 == 0 else 0)
        return number

    assert list(run_in_order(slow_first, numbers(30), workers=4)) == list(range(30))


@pytest.mark.parametrize(("cost", "most"), [(1, 16), (64 << 20, 2), (1 << 40, 1)])
def test_work_in_flight_is_bounded(cost: int, most: int) -> None:
    """By number and by bytes; one item always may pass."""
    begun, taken, highest = 0, 0, 0
    items = numbers(60, cost)

    def counted() -> Iterator[tuple[int, int]]:
        nonlocal begun, highest
        for item in items:
            if begun >= 30:  # the window must not narrow as work goes on
                highest = max(highest, begun - taken)
            begun += 1
            yield item

    for _ in run_in_order(lambda number: number, counted(), workers=2):
        taken += 1
    assert taken == 60
    assert highest == most


def test_an_error_is_raised_where_its_result_would_come() -> None:
    """What came before it is there, and no thread goes on."""

    def fails(number: int) -> int:
        if number == 3:
            raise ValueError(number)
        return number

    results = run_in_order(fails, numbers(30), workers=2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="3"):
        next(results)
    assert not any(t.name.startswith("sharedds-pack") for t in threading.enumerate())


def test_closing_stops_what_has_not_begun() -> None:
    """A pack that is interrupted does not decode its queue to the end."""
    done: list[int] = []

    def work(number: int) -> int:
        time.sleep(0.01)
        done.append(number)
        return number

    results = run_in_order(work, numbers(1000), workers=2)
    next(results)
    results.close()
    assert len(done) < 8
    assert not any(t.name.startswith("sharedds-pack") for t in threading.enumerate())


def test_threads_wait_for_memory() -> None:
    """Together they never hold more than the limit, except for one that is larger."""
    budget, lock = MemoryBudget(10), threading.Lock()
    held: list[int] = []
    sums: list[list[int]] = []

    def hold(size: int) -> None:
        with budget.holding(size):
            with lock:
                held.append(size)
                sums.append(list(held))
            time.sleep(0.002)
            with lock:
                held.remove(size)

    threads = [threading.Thread(target=hold, args=(size,)) for size in [4, 3, 25, 5, 1, 9] * 5]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(sums) == 30
    assert all(sum(sizes) <= 10 or sizes == [25] for sizes in sums)
