"""Conformance tests for ledgers that several processes use, some of which are killed."""

import asyncio
import multiprocessing
import os
import pickle
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from secrets import token_hex
from typing import Any

from loanasync.ledger import DecisionLedger, Entry, Settlement, State
from loanasync.testing.ledger_suite.harness import HOUR, PATIENCE, RACERS, SOON, approval
from loanasync.testing.ledger_suite.rules import LedgerConformance

PROCESSES = 4


class SharedLedgerConformance(LedgerConformance):
    """Conformance tests for ledgers that several processes use at once; includes `LedgerConformance`.

    The tests start other processes and kill them with SIGKILL. `opener` is sent to these processes, so it
    must support pickle: a `functools.partial` of the ledger's class does, a lambda does not.

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

    async def test_concurrent_claims_of_several_processes_have_one_owner(self) -> None:
        keys = [f"k{number}" for number in range(10)]
        async with AsyncExitStack() as stack:
            workers = [await stack.enter_async_context(ledger_worker(self.opener)) for _ in range(PROCESSES)]
            races = [worker.do("race", keys=keys, racers=RACERS // PROCESSES) for worker in workers]
            assert sum(await asyncio.gather(*races)) == len(keys)

    async def test_concurrent_takeovers_of_several_processes_have_one_owner(self) -> None:
        async with AsyncExitStack() as stack:
            ledger = await stack.enter_async_context(self.opened())
            await self.expired_claim(ledger, "k", "t")
            workers = [await stack.enter_async_context(ledger_worker(self.opener)) for _ in range(PROCESSES)]
            claims = [
                worker.do("claim", key="k", token=f"u{number}", payload="p", lease=HOUR, over="t")
                for number, worker in enumerate(workers)
            ]
            reported = await asyncio.gather(*claims)
            assert all(each == reported[0] for each in reported)
            assert reported[0][0] == State.INFLIGHT
            assert reported[0][1].startswith("u")
            assert reported[0][2] == 1

    async def test_process_killed_before_the_claim_leaves_no_entry(self) -> None:
        async with self.opened() as ledger:
            async with ledger_worker(self.opener) as worker:
                await worker.do("claim", key="other", token="t", payload="p", lease=HOUR)
                await worker.kill()
            await self.claimed(ledger, "k", "u")

    async def test_process_killed_after_the_claim_leaves_an_unknown_outcome(self) -> None:
        async with self.opened() as ledger:
            async with ledger_worker(self.opener) as worker:
                assert await worker.do("claim", key="long", token="t", payload="p", lease=HOUR)
                reported = await worker.do("claim", key="short", token="t", payload="p", lease=SOON)
                assert reported[0] == State.INFLIGHT
                await worker.kill()
            long = await ledger.claim("long", token="u", payload="p", lease=HOUR)
            assert (long.state, long.token) == (State.INFLIGHT, "t")
            short = await ledger.wait("short", PATIENCE)
            assert short is not None
            assert short.state is State.UNKNOWN
            assert not (await ledger.claim("short", token="u", payload="p", lease=HOUR)).is_claimed_by("u")

    async def test_process_killed_after_the_settlement_has_settled(self) -> None:
        async with self.opened() as ledger:
            async with ledger_worker(self.opener) as worker:
                for state in set(State) - {State.INFLIGHT}:
                    await worker.do("claim", key=state, token="t", payload="p", lease=HOUR)
                    reported = await worker.do("settle", key=state, token="t", payload="p", state=state)
                    assert reported[0] == state
                await worker.kill()
            for state in set(State) - {State.INFLIGHT}:
                entry = await ledger.get(state)
                assert entry is not None
                assert entry.state is state

    async def test_process_killed_at_any_time_keeps_its_completed_writes(self) -> None:
        async with self.opened() as ledger:
            for number in range(3):
                reported: dict[str, str] = {}
                async with ledger_worker(self.opener) as worker:
                    await worker.start("flood", prefix=f"{number}-")
                    while len(reported) < 20 * (number + 1):
                        key, state = await worker.receive()
                        reported[key] = state
                    reported.update(await worker.kill())
                for key, state in reported.items():
                    entry = await ledger.get(key)
                    assert entry is not None
                    # The process may have settled its last entry without reporting it.
                    assert entry.state in {State.REFUSED, State(state)}
                    if entry.state is State.REFUSED:
                        assert entry.body == key.encode() * 50
            await self.claimed(ledger, "k", "u")

    async def test_late_decision_of_another_process_is_written_after_a_takeover(self) -> None:
        async with self.opened() as ledger, ledger_worker(self.opener) as worker:
            await worker.do("claim", key="k", token="t", payload="p", lease=SOON)
            entry = await ledger.wait("k", PATIENCE)
            assert entry is not None
            assert entry.state is State.UNKNOWN
            own = await ledger.claim("k", token="u", payload="p", lease=HOUR, over="t")
            assert own.is_claimed_by("u")
            reported = await worker.do("settle", key="k", token="t", payload="p", state=State.UNKNOWN)
            assert reported == [State.INFLIGHT, "u", 1]
            reported = await worker.do("settle", key="k", token="t", payload="p", state=State.REFUSED)
            assert reported[0] == State.REFUSED
            entry = await ledger.settle("k", token="u", payload="p", settlement=approval())
            assert entry.state is State.REFUSED

    async def test_process_with_a_wrong_clock_has_the_same_leases(self) -> None:
        for skew in (-60.0, 60.0):
            async with self.opened() as ledger, ledger_worker(self.opener, skew=skew) as skewed:
                own, others, out = (f"{name}{skew}" for name in ("own", "others", "out"))
                await self.claimed(ledger, own, "t", 30)
                reported = await skewed.do("claim", key=own, token="u", payload="p", lease=30)
                assert reported[:2] == [State.INFLIGHT, "t"]
                await skewed.do("claim", key=others, token="t", payload="p", lease=30)
                entry = await ledger.claim(others, token="u", payload="p", lease=30)
                assert (entry.state, entry.token) == (State.INFLIGHT, "t")
                await skewed.do("claim", key=out, token="t", payload="p", lease=SOON)
                ended = await ledger.wait(out, 30)
                assert ended is not None
                assert ended.state is State.UNKNOWN


class LedgerWorker:
    """A process that uses the ledger. The test sends commands to it and receives the results."""

    def __init__(self, process: BaseProcess, connection: Connection) -> None:
        self._process = process
        self._connection = connection

    async def receive(self) -> Any:  # noqa: ANN401  (depends on the command)
        """Return the next result of the process, or None if the process has ended."""
        try:
            return await asyncio.to_thread(self._connection.recv)
        except (EOFError, OSError):
            return None

    async def start(self, do: str, **arguments: object) -> None:
        """Send a command to the process without waiting for its result."""
        await asyncio.to_thread(self._connection.send, {"do": do, **arguments})

    async def do(self, do: str, **arguments: object) -> Any:  # noqa: ANN401  (see `receive`)
        """Send a command to the process, and return its result."""
        await self.start(do, **arguments)
        return await self.receive()

    async def kill(self) -> list[Any]:
        """Kill the process, wait for its end, and return the results that were not received yet."""
        self._process.kill()
        results = []
        while (result := await self.receive()) is not None:
            results.append(result)
        await asyncio.to_thread(self._process.join)
        return results


@asynccontextmanager
async def ledger_worker(
    opener: Callable[[], DecisionLedger], *, skew: float = 0.0
) -> AsyncIterator[LedgerWorker]:
    """Start a process that opens the ledger, and kill it at the end. Its clock is wrong by `skew` seconds."""
    # A fork of this process would inherit its threads' locks; a fork of Python's fork server has no threads.
    kind = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context: Any = multiprocessing.get_context(kind)
    connection, other_end = context.Pipe()
    process = context.Process(target=_serve, args=(other_end, dict(os.environ), pickle.dumps(opener), skew))
    await asyncio.to_thread(process.start)
    other_end.close()
    worker = LedgerWorker(process, connection)
    try:
        assert await worker.receive() == "ready"
        yield worker
    finally:
        await worker.kill()
        connection.close()


def _summary(entry: Entry) -> list[object]:
    return [entry.state, entry.token, entry.takeovers]


async def _race(ledger: DecisionLedger, keys: list[str], racers: int) -> int:
    """Make `racers` concurrent claims for each key; return the number of claims that succeeded."""

    async def claim(key: str) -> bool:
        token = token_hex(8)
        entry = await ledger.claim(key, token=token, payload="p", lease=3600)
        return entry.is_claimed_by(token)

    return sum(await asyncio.gather(*(claim(key) for key in keys for _ in range(racers))))


async def _flood(connection: Connection, ledger: DecisionLedger, prefix: str) -> None:
    """Claim and settle entries without end, and report each completed operation."""
    number = 0
    while True:
        number += 1
        key = f"{prefix}{number}"
        await ledger.claim(key, token=key, payload="p", lease=3600)
        connection.send([key, State.INFLIGHT])
        settlement = Settlement(state=State.REFUSED, status=422, body=key.encode() * 50)
        await ledger.settle(key, token=key, payload="p", settlement=settlement)
        connection.send([key, State.REFUSED])


async def _run_commands(connection: Connection, ledger: DecisionLedger) -> None:
    connection.send("ready")
    while True:
        arguments: dict[str, Any] = await asyncio.to_thread(connection.recv)
        match arguments.pop("do"):
            case "claim":
                connection.send(_summary(await ledger.claim(**arguments)))
            case "settle":
                settlement = Settlement(state=State(arguments.pop("state")))
                connection.send(_summary(await ledger.settle(settlement=settlement, **arguments)))
            case "race":
                connection.send(await _race(ledger, **arguments))
            case "flood":
                await _flood(connection, ledger, **arguments)


def _serve(connection: Connection, environment: dict[str, str], opener: bytes, skew: float) -> None:
    """Run the commands of the test in the child process, until it is killed."""
    os.environ.clear()  # a fork server keeps the environment of its start
    os.environ.update(environment)
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + skew
    time.time_ns = lambda: right_ns() + int(skew * 1e9)
    ledger: DecisionLedger = pickle.loads(opener)()  # noqa: S301  (sent by the parent)
    asyncio.run(_run_commands(connection, ledger))
