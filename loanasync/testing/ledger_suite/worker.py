"""Another process that uses the ledger under test: told what to do line by line, killed at any step."""

import asyncio
import json
import pickle
import signal
import sys
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from secrets import token_hex
from typing import Any

from loanasync.ledger import DecisionLedger, Entry, Settlement, State

# The path first: the pickled opener may need it to be found. A wrong clock stands before anything reads it.
_SCRIPT = """
import sys, json, time
path, skew = json.loads(sys.stdin.readline())
sys.path[:] = path
right, right_ns = time.time, time.time_ns
time.time = lambda: right() + skew
time.time_ns = lambda: right_ns() + int(skew * 1e9)
from loanasync.testing.ledger_suite.worker import serve
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
        """Let it do something, without waiting."""
        await self._tell(json.dumps({"do": do, **arguments}))

    async def do(self, do: str, **arguments: object) -> Any:  # noqa: ANN401  (as above)
        """Let it do something, and hear what came of it."""
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
    """A process that has the ledger open, and whose clock is wrong by so many seconds; killed at the end."""
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
    """How many of so many racers for each of these keys have won."""

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
