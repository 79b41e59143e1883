"""Memory of many approvals."""

import gc
import tracemalloc

import pytest

from support.bulk import approvals_of, approve_at_once, rows


@pytest.mark.parametrize("most", [2_000, pytest.param(20_000, marks=pytest.mark.scheduled)])
async def test_approve_many_memory_does_not_grow_with_the_rows(most: int) -> None:
    async def peak(number: int) -> int:
        gc.collect()
        tracemalloc.start()
        try:
            async for _ in approvals_of(approve_at_once, rows(number), concurrency=64):
                pass
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    await peak(100)
    # The lowest of two, since threads of other tests may allocate at the same time.
    many, few = [min([await peak(number) for _ in range(2)]) for number in (most, 500)]
    assert many < 1.2 * few
