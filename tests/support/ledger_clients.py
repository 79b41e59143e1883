"""Clients with a ledger and a scripted transport, and a ledger whose operations fail on demand."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from attrs import evolve

from loanasync import ApprovalRequest, Decision, LoanClient, LoanError, Timeout
from loanasync.ledger import (
    Entry,
    Ledger,
    LedgerPolicy,
    MemoryLedger,
    Settlement,
    State,
    Subject,
    create_ledger,
)
from loanasync.ledger.header import Header
from loanasync.testing import ScriptedResponse, ScriptedTransport, SentRequest, approved, computed
from support.builders import FISCAL_CODE, approval_request
from support.memory_clients import checked

KEY = b"0123456789abcdef"  # of the ledgers of these shops, so that all of them derive the same entry keys


class FailingLedger(MemoryLedger):
    """A memory ledger that calls a function before operations, for example to raise an error.

    Args:
        faults: Functions by the name of the operation before which they are called. They may be coroutine
            functions.

    Attributes:
        operations: Names of all operations so far.
    """

    def __init__(self, **faults: Callable[[], Any]) -> None:
        super().__init__()
        self.faults = faults
        self.operations: list[str] = []

    async def _call(self, name: str) -> None:
        self.operations.append(name)
        if name in self.faults:
            fault = self.faults[name]()
            if asyncio.iscoroutine(fault):
                await fault

    async def open(self, *arguments: Any) -> Header:
        if "open" in self.faults:
            await self._call("open")
        return await super().open(*arguments)

    async def claim(self, key: str, **options: Any) -> Entry:
        await self._call("claim")
        return await super().claim(key, **options)

    async def settle(self, key: str, **options: Any) -> Entry:
        await self._call("settle")
        return await super().settle(key, **options)

    async def get(self, key: str) -> Entry | None:
        await self._call("get")
        return await super().get(key)

    async def wait(self, key: str, within: float) -> Entry | None:
        await self._call("wait")
        return await super().wait(key, within)

    async def entries_of(self, customer: str) -> list[Entry]:
        await self._call("entries_of")
        return await super().entries_of(customer)

    async def aclose(self) -> None:
        await self._call("aclose")


class ResolvedLedger(FailingLedger):
    """A person resolves the entry as refused while the request is in progress."""

    async def settle(self, key: str, **options: Any) -> Entry:
        return evolve(await super().settle(key, **options), state=State.REFUSED)


class NotWaitingLedger(MemoryLedger):
    """A memory ledger that records the seconds of each wait, and returns at once as after that time."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    async def wait(self, key: str, within: float) -> Entry | None:
        self.waits.append(within)
        return await self.get(key)


def broken() -> NoReturn:
    """Raise the error of a full disk."""
    raise OSError(28, "No space left on device")


def orphans_in(folder: Path) -> int:
    return len(list(folder.glob("*.json")))


class Shop:
    """A client with a ledger and a scripted transport."""

    def __init__(
        self,
        *steps: ScriptedResponse,
        ledger: Ledger | None = None,
        options: dict[str, Any] | None = None,
        **policy: Any,
    ) -> None:
        self.ledger = MemoryLedger() if ledger is None else ledger
        self.script = ScriptedTransport(*steps)
        self.policy = LedgerPolicy(**{"key": KEY, **policy})
        self.options = {**(options or {}), "ledger": self.ledger, "ledger_policy": self.policy}
        self.client = self.new_client()

    def new_client(self, **options: Any) -> LoanClient:
        """Return another client with the same transport and ledger, as a second worker has it."""
        return self.script.client(**{**self.options, **options})

    async def approve(
        self, client: LoanClient | None = None, code: str = FISCAL_CODE, **options: Any
    ) -> Decision:
        request: ApprovalRequest = options.pop("request", None) or approval_request()
        return await (client or self.client).approve(code, request, **options)

    async def result(self, client: LoanClient | None = None, **options: Any) -> Decision | LoanError:
        """Return the decision or the error of an approval."""
        try:
            return await self.approve(client, **options)
        except LoanError as error:
            return checked(error, client or self.client)

    async def open_ledger(self) -> None:
        """Create the ledger if it does not exist, as the first approval does."""
        await self.ledger.open(self.options.get("base_url", "https://loans.example.com"), self.policy)

    async def entries(self) -> list[Entry]:
        return [entry async for entry in self.ledger.scan()]

    async def entry(self) -> Entry:
        (entry,) = await self.entries()
        return entry

    async def put(self, state: State, **options: Any) -> Entry:
        """Create an entry of this customer in a state, as another worker would."""
        await self.open_ledger()
        other = MemoryLedger()  # to find out the key and the payload
        await self.approve(
            ScriptedTransport(approved()).client(**{**self.options, "ledger": other, "timeout": Timeout()}),
            **options,
        )
        (found,) = [entry async for entry in other.scan()]
        subject = Subject(customer=found.customer, order=found.order, order_token=found.order_token)
        claim = self.ledger.claim(
            found.key, token="another's", payload=found.payload, lease=3600, subject=subject
        )
        entry = await claim
        if state is State.INFLIGHT:
            return entry
        settlement = Settlement(state=state, note="as put")
        return await self.ledger.settle(
            found.key, token="another's", payload=found.payload, settlement=settlement
        )


async def create(ledger: Ledger, base_url: str = "https://loans.example.com") -> None:
    """Create the ledger of these shops, or of the shops of another service."""
    await create_ledger(ledger, base_url=base_url, policy=LedgerPolicy(key=KEY))


def of_another_process(ledger: MemoryLedger) -> MemoryLedger:
    """Return another ledger object with the same store, as another process has it."""
    other = MemoryLedger()
    other._store = ledger._store
    return other


def held_response(response: ScriptedResponse) -> tuple[ScriptedResponse, asyncio.Event, asyncio.Event]:
    """Return a response that is delayed until the second event is set; the request sets the first one."""
    arrived, go = asyncio.Event(), asyncio.Event()

    async def hold(_: SentRequest) -> ScriptedResponse:
        arrived.set()
        await go.wait()
        return response

    return computed(hold), arrived, go
