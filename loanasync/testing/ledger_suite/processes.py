"""Conformance tests for ledgers that several processes use, some of which are killed."""

import asyncio
import json
import pickle
import signal
import sys
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from secrets import token_hex
from typing import Any

from loanasync.ledger import DecisionLedger, Entry, Settlement, State
from loanasync.testing.ledger_suite.harness import HOUR, PATIENCE, RACERS, SOON, approval
from loanasync.testing.ledger_suite.rules import LedgerConformance

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


# The path first: the pickled opener may need it to be found. A wrong clock stands before anything reads it.
_SCRIPT = """
import sys, json, time
path, skew = json.loads(sys.stdin.readline())
sys.path[:] = path
right, right_ns = time.time, time.time_ns
time.time = lambda: right() + skew
time.time_ns = lambda: right_ns() + int(skew * 1e9)
from loanasync.testing.ledger_suite.processes import serve
serve()
"""


class LedgerWorker:
    """The parent's side."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        await self._process.stdin.drain()

    async def hear(self) -> Any:  # noqa: ANN401  (JSON, which the test that asked knows)
        """The next line that it says; None when it says no more."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        return json.loads(line) if line.endswith(b"\n") else None

    async def begin(self, opener: Callable[[], DecisionLedger], skew: float) -> None:
        """Hand over what it needs, and wait until it is ready."""
        await self._tell(json.dumps([sys.path, skew]))
        await self._tell(b64encode(pickle.dumps(opener)).decode())
        assert await self.hear() == "ready"

    async def start(self, do: str, **arguments: object) -> None:
        """Send a command to the process, and do not wait."""
        await self._tell(json.dumps({"do": do, **arguments}))

    async def do(self, do: str, **arguments: object) -> Any:  # noqa: ANN401  (JSON)
        """Send a command to the process, and return its result."""
        await self.start(do, **arguments)
        return await self.hear()

    async def kill(self) -> list[Any]:
        """End it as no program can prevent, wait until it is gone, and hear its last words."""
        if self._process.returncode is None:
            self._process.send_signal(getattr(signal, "SIGKILL", signal.SIGTERM))
        words = []
        while (word := await self.hear()) is not None:
            words.append(word)
        await self._process.wait()
        return words


@asynccontextmanager
async def ledger_worker(
    opener: Callable[[], DecisionLedger], *, skew: float = 0.0
) -> AsyncIterator[LedgerWorker]:
    """Start a process that opens the ledger with a clock wrong by `skew` seconds; kill it at the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _SCRIPT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    worker = LedgerWorker(process)
    try:
        await worker.begin(opener, skew)
        yield worker
    finally:
        await worker.kill()


def _say(what: object) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201  (this is how it speaks)


def _told(entry: Entry) -> list[object]:
    return [entry.state, entry.token, entry.takeovers]


async def _race(ledger: DecisionLedger, keys: list[str], racers: int) -> int:
    """Race `racers` claims for each key; return the number of claims that won."""

    async def won(key: str) -> bool:
        token = token_hex(8)
        entry = await ledger.claim(key, token=token, payload="p", lease=3600)
        return entry.is_claimed_by(token)

    return sum(await asyncio.gather(*(won(key) for key in keys for _ in range(racers))))


async def _flood(ledger: DecisionLedger, prefix: str) -> None:
    """Claim and settle without end, and say of each move that it was made."""
    number = 0
    while True:
        number += 1
        key = f"{prefix}{number}"
        await ledger.claim(key, token=key, payload="p", lease=3600)
        _say([key, State.INFLIGHT])
        settlement = Settlement(state=State.REFUSED, status=422, body=key.encode() * 50)
        await ledger.settle(key, token=key, payload="p", settlement=settlement)
        _say([key, State.REFUSED])


async def _serve(ledger: DecisionLedger) -> None:
    _say("ready")
    while line := await asyncio.to_thread(sys.stdin.readline):
        arguments: dict[str, Any] = json.loads(line)
        match arguments.pop("do"):
            case "claim":
                _say(_told(await ledger.claim(**arguments)))
            case "settle":
                settlement = Settlement(state=State(arguments.pop("state")))
                _say(_told(await ledger.settle(settlement=settlement, **arguments)))
            case "race":
                _say(await _race(ledger, **arguments))
            case "flood":
                await _flood(ledger, **arguments)


def serve() -> None:
    """The child's side."""
    opener: Callable[[], DecisionLedger] = pickle.loads(b64decode(sys.stdin.readline()))  # noqa: S301  (the parent's)
    asyncio.run(_serve(opener()))
