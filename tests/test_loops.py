import asyncio
import os

import pytest

from loanasync._loops import PerLoop


class Made:
    def __init__(self) -> None:
        self.closed_in: asyncio.AbstractEventLoop | None = None


async def close(made: Made, _: float) -> None:
    made.closed_in = asyncio.get_running_loop()


async def test_a_loop_gets_one_of_its_own_and_keeps_it() -> None:
    own = PerLoop(Made, close)
    made = own.here()
    assert own.here() is made
    await own.aclose(0)
    assert made.closed_in is asyncio.get_running_loop()
    assert own.here() is not made


def test_what_belongs_to_a_dead_loop_is_forgotten() -> None:
    own = PerLoop(Made, close)

    async def here() -> Made:
        return own.here()

    first, second = asyncio.run(here()), asyncio.run(here())
    assert first is not second
    assert [entry.own for entry in own._made.values()] == [second]


def test_what_belongs_to_a_loop_that_stands_still_is_left_alone() -> None:
    own = PerLoop(Made, close)

    async def here() -> Made:
        return own.here()

    with asyncio.Runner() as still:
        made = still.run(here())
        asyncio.run(own.aclose(0))
        assert made.closed_in is None


async def test_a_forked_child_touches_nothing_of_its_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    own = PerLoop(Made, close)
    parents = own.here()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    childs = own.here()
    assert childs is not parents
    await own.aclose(0)
    assert childs.closed_in is not None
    assert parents.closed_in is None
    assert own._inherited, "kept, so that no garbage collector closes the parent's sockets"
    monkeypatch.setattr(os, "getpid", lambda: -2)
    await own.aclose(0)
    assert parents.closed_in is None
