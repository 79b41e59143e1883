"""Clients with a ledger over a script, and ledgers that fail when they are told to."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from loanasync import ApprovalRequest, Decision, LoanClient, LoanError
from loanasync.ledger import DecisionLedger, Entry, LedgerPolicy, MemoryLedger, Settlement, State
from loanasync.testing import ScriptedResponse, ScriptedTransport, SentRequest, approved, computed
from support.builders import FISCAL_CODE, approval_request

__all__ = ["FailingLedger", "Shop", "held_response"]


class FailingLedger:
    """A ledger whose moves fail as they are told: each fault is called instead of the move of its name."""

    def __init__(self, **faults: Callable[[], Any]) -> None:
        self.whole = MemoryLedger()
        self.faults = faults
        self.moves: list[str] = []

    async def _move(self, name: str) -> None:
        self.moves.append(name)
        if name in self.faults:
            came = self.faults[name]()
            if asyncio.iscoroutine(came):
                await came

    async def claim(self, key: str, **options: Any) -> Entry:
        await self._move("claim")
        return await self.whole.claim(key, **options)

    async def settle(self, key: str, **options: Any) -> Entry:
        await self._move("settle")
        return await self.whole.settle(key, **options)

    async def get(self, key: str) -> Entry | None:
        await self._move("get")
        return await self.whole.get(key)

    async def wait(self, key: str, within: float) -> Entry | None:
        await self._move("wait")
        return await self.whole.wait(key, within)

    def scan(self, *states: State, **options: Any) -> AsyncIterator[Entry]:
        return self.whole.scan(*states, **options)

    async def find(self, *, customer: str = "", order: str = "") -> list[Entry]:
        await self._move("find")
        return await self.whole.find(customer=customer, order=order)

    async def purge(self, older_than: float) -> int:
        return await self.whole.purge(older_than)

    async def aclose(self) -> None:
        await self._move("aclose")


class Shop:
    """A shop with a ledger, its script, and what the ledger has."""

    def __init__(
        self,
        *steps: ScriptedResponse,
        ledger: DecisionLedger | None = None,
        options: dict[str, Any] | None = None,
        **policy: Any,
    ) -> None:
        self.ledger = MemoryLedger() if ledger is None else ledger
        self.script = ScriptedTransport(*steps)
        self.options = {**(options or {}), "ledger": self.ledger, "ledger_policy": LedgerPolicy(**policy)}
        self.client = self.new_client()

    def new_client(self, **options: Any) -> LoanClient:
        """A client as another worker has it, over the same script and ledger."""
        return self.script.client(**{**self.options, **options})

    async def approve(
        self, client: LoanClient | None = None, code: str = FISCAL_CODE, **options: Any
    ) -> Decision:
        request: ApprovalRequest = options.pop("request", None) or approval_request()
        return await (client or self.client).approve(code, request, **options)

    async def result(self, client: LoanClient | None = None, **options: Any) -> Decision | LoanError:
        try:
            return await self.approve(client, **options)
        except LoanError as error:
            return error

    async def entries(self) -> list[Entry]:
        return [entry async for entry in self.ledger.scan()]

    async def entry(self) -> Entry:
        (entry,) = await self.entries()
        return entry

    async def put(self, state: State, **asked: Any) -> Entry:
        """What another worker has left: an entry of this shop's customer in a state."""
        learning = MemoryLedger()
        await self.approve(
            ScriptedTransport(approved()).client(**{**self.options, "ledger": learning}), **asked
        )
        (found,) = [entry async for entry in learning.scan()]
        entry = await self.ledger.claim(found.key, token="another's", payload=found.payload, lease=3600)
        if state is State.INFLIGHT:
            return entry
        settlement = Settlement(state=state, note="as put")
        return await self.ledger.settle(
            found.key, token="another's", payload=found.payload, settlement=settlement
        )


def held_response(answer: ScriptedResponse) -> tuple[ScriptedResponse, asyncio.Event, asyncio.Event]:
    """A step that comes when its second event is set; the first is set when the request is there."""
    arrived, go = asyncio.Event(), asyncio.Event()

    async def hold(_: SentRequest) -> ScriptedResponse:
        arrived.set()
        await go.wait()
        return answer

    return computed(hold), arrived, go
