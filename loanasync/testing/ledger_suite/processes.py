"""The promises of a ledger to several processes at once, some of which are killed."""

import asyncio
from contextlib import AsyncExitStack

from loanasync.ledger import State
from loanasync.testing.ledger_suite.harness import HOUR, PATIENCE, RACERS, SOON, approval
from loanasync.testing.ledger_suite.rules import LedgerConformance
from loanasync.testing.ledger_suite.worker import ledger_worker

PROCESSES = 4


class SharedLedgerConformance(LedgerConformance):
    """What every ledger has to pass that several processes use at once, on top of `LedgerConformance`.

    `opener` goes to other processes by pickle: a `functools.partial` of the ledger's class will do. Nothing
    in here is faked: processes are started, and killed with SIGKILL.

    Example:
        >>> import pytest
        >>> from functools import partial
        >>> from loanasync.ledger import SqliteLedger
        >>> from loanasync.testing import SharedLedgerConformance
        >>> class TestMyLedger(SharedLedgerConformance):
        ...     @pytest.fixture(autouse=True)
        ...     def _one_for_each_test(self, tmp_path):
        ...         self.opener = partial(SqliteLedger, tmp_path / "decisions.db")
    """

    async def test_of_many_racers_in_many_processes_one_wins(self) -> None:
        keys = [f"k{number}" for number in range(10)]
        async with AsyncExitStack() as stack:
            workers = [await stack.enter_async_context(ledger_worker(self.opener)) for _ in range(PROCESSES)]
            races = [worker.do("race", keys=keys, racers=RACERS // PROCESSES) for worker in workers]
            assert sum(await asyncio.gather(*races)) == len(keys)

    async def test_of_many_processes_that_take_over_one_wins(self) -> None:
        async with AsyncExitStack() as stack:
            ledger = await stack.enter_async_context(self.opened())
            await self.run_out(ledger, "k", "t")
            workers = [await stack.enter_async_context(ledger_worker(self.opener)) for _ in range(PROCESSES)]
            claims = [
                worker.do("claim", key="k", token=f"u{number}", payload="p", lease=HOUR, over="t")
                for number, worker in enumerate(workers)
            ]
            told = await asyncio.gather(*claims)
            assert all(each == told[0] for each in told)
            assert told[0][0] == State.INFLIGHT
            assert told[0][1].startswith("u")
            assert told[0][2] == 1

    async def test_who_is_killed_before_the_claim_leaves_nothing(self) -> None:
        async with self.opened() as ledger:
            async with ledger_worker(self.opener) as worker:
                await worker.do("claim", key="other", token="t", payload="p", lease=HOUR)
                await worker.kill()
            await self.claimed(ledger, "k", "u")

    async def test_who_is_killed_after_the_claim_leaves_the_outcome_unknown(self) -> None:
        async with self.opened() as ledger:
            async with ledger_worker(self.opener) as worker:
                assert await worker.do("claim", key="long", token="t", payload="p", lease=HOUR)
                told = await worker.do("claim", key="short", token="t", payload="p", lease=SOON)
                assert told[0] == State.INFLIGHT
                await worker.kill()
            long = await ledger.claim("long", token="u", payload="p", lease=HOUR)
            assert (long.state, long.token) == (State.INFLIGHT, "t")
            short = await ledger.wait("short", PATIENCE)
            assert short is not None
            assert short.state is State.UNKNOWN
            assert not (await ledger.claim("short", token="u", payload="p", lease=HOUR)).is_claimed_by("u")

    async def test_who_is_killed_after_the_settlement_has_settled(self) -> None:
        async with self.opened() as ledger:
            async with ledger_worker(self.opener) as worker:
                for state in set(State) - {State.INFLIGHT}:
                    await worker.do("claim", key=state, token="t", payload="p", lease=HOUR)
                    told = await worker.do("settle", key=state, token="t", payload="p", state=state)
                    assert told[0] == state
                await worker.kill()
            for state in set(State) - {State.INFLIGHT}:
                entry = await ledger.get(state)
                assert entry is not None
                assert entry.state is state

    async def test_who_is_killed_at_any_moment_has_done_what_it_said(self) -> None:
        async with self.opened() as ledger:
            for number in range(3):
                said: dict[str, str] = {}
                async with ledger_worker(self.opener) as worker:
                    await worker.start("flood", prefix=f"{number}-")
                    while len(said) < 20 * (number + 1):
                        key, state = await worker.hear()
                        said[key] = state
                    said.update(await worker.kill())
                for key, state in said.items():
                    entry = await ledger.get(key)
                    assert entry is not None
                    # Of the last one it may have settled what it did not come to say.
                    assert entry.state in {State.REFUSED, State(state)}
                    if entry.state is State.REFUSED:
                        assert entry.body == key.encode() * 50
            await self.claimed(ledger, "k", "u")

    async def test_a_process_decides_late_what_another_has_taken_over(self) -> None:
        async with self.opened() as ledger, ledger_worker(self.opener) as worker:
            await worker.do("claim", key="k", token="t", payload="p", lease=SOON)
            entry = await ledger.wait("k", PATIENCE)
            assert entry is not None
            assert entry.state is State.UNKNOWN
            mine = await ledger.claim("k", token="u", payload="p", lease=HOUR, over="t")
            assert mine.is_claimed_by("u")
            told = await worker.do("settle", key="k", token="t", payload="p", state=State.UNKNOWN)
            assert told == [State.INFLIGHT, "u", 1]
            told = await worker.do("settle", key="k", token="t", payload="p", state=State.REFUSED)
            assert told[0] == State.REFUSED
            entry = await ledger.settle("k", token="u", payload="p", settlement=approval())
            assert entry.state is State.REFUSED

    async def test_a_process_whose_clock_is_wrong_changes_nothing(self) -> None:
        for skew in (-60.0, 60.0):
            async with self.opened() as ledger, ledger_worker(self.opener, skew=skew) as off:
                mine, theirs, out = (f"{name}{skew}" for name in ("mine", "theirs", "out"))
                await self.claimed(ledger, mine, "t", 30)
                told = await off.do("claim", key=mine, token="u", payload="p", lease=30)
                assert told[:2] == [State.INFLIGHT, "t"]
                await off.do("claim", key=theirs, token="t", payload="p", lease=30)
                entry = await ledger.claim(theirs, token="u", payload="p", lease=30)
                assert (entry.state, entry.token) == (State.INFLIGHT, "t")
                await off.do("claim", key=out, token="t", payload="p", lease=SOON)
                ended = await ledger.wait(out, 30)
                assert ended is not None
                assert ended.state is State.UNKNOWN
