"""A shop of one flow: its calls, their ends, and the ledger, if it has one."""

import asyncio
from functools import cache
from typing import Any

from loanasync import ApprovalRequest, LoanClient, LoanError, RetryPolicy, UserData, testing
from loanasync._runtime.flights import Flight
from loanasync.ledger import Entry, LedgerPolicy, MemoryLedger
from loanasync.ledger.memory import MemoryStore
from loanasync.sandbox import Readings
from support.raw_shop import BODY, CODE
from support.readings.service import CURRENT, Clock, Gate, Log, Service

__all__ = ["Ledger", "Shop"]

_BASE_URL, _SHOP, _TOKEN = "https://loans.example.com", "test-shop", "test-token"
_NOWHERE = "/dev/null/orphans"  # a folder that cannot be created, so no orphan file is written
_RETRY = RetryPolicy(attempts=3, base=0.1, cap=0.2, quota=1_000_000)
_USER_DATA: UserData = testing.user_data()


class Ledger(MemoryLedger):
    """A ledger whose leases a flow can expire, and whose operations can fail."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: frozenset[str] = frozenset()
        self.gates: dict[str, Gate] = {}

    def expire(self) -> None:
        """End the leases of all entries."""
        store = self._store
        assert isinstance(store, MemoryStore)
        store._entries = {key: (entry, 0.0) for key, (entry, _) in store._entries.items()}

    async def wait(self, key: str, within: float) -> Entry | None:
        """Return the current entry, without waiting for a process that has died."""
        del within
        return await self.get(key)

    async def claim(self, key: str, **options: Any) -> Entry:
        entry = await super().claim(key, **options)
        await self._ended("claim")
        return entry

    async def settle(self, key: str, **options: Any) -> Entry:
        if "settle" in self.broken:
            raise OSError("the ledger is broken")
        entry = await super().settle(key, **options)
        await self._ended("settle")
        return entry

    async def _ended(self, operation: str) -> None:
        if operation in self.broken:
            raise OSError("the ledger is broken")
        if operation in self.gates:
            await self.gates.pop(operation).pass_through()


@cache
def _policy(evaluates: str) -> LedgerPolicy:
    # A shop uses this scope if the service evaluates each order (R6).
    return LedgerPolicy(scope="order_token" if evaluates == "order" else "", orphan_folder=_NOWHERE)


@cache
def approval(tag: str, order: str, amount: int) -> ApprovalRequest:
    email = f"anna+{tag}@example.com" if tag else "anna@example.com"
    return testing.approval_request(email=email, order_token=order, amount=amount)


class Shop:
    """A shop with one customer, and a service of one reading.

    Args:
        readings: The reading that the service follows.
        with_ledger: Whether the shop's clients share a ledger.
    """

    def __init__(self, readings: Readings, *, with_ledger: bool) -> None:
        self.readings = readings
        self.clock = Clock()
        self.service = Service(readings, self.clock, has_ledger=with_ledger)
        self.ledger = Ledger() if with_ledger else None
        self.policy = _policy(readings.evaluates)
        self.calls: list[Log] = []
        self.orders: set[str] = set()
        self._clients: list[LoanClient] = []
        self._tasks: list[asyncio.Task[object]] = []
        self._process = 0
        self.start_process()

    def start_process(self) -> None:
        """Start another process of the shop, whose memory is empty; it shares the ledger."""
        self._process += 1
        client = LoanClient(
            _BASE_URL,
            shop_id=_SHOP,
            auth_token=_TOKEN,
            retry=_RETRY,
            ledger=self.ledger,
            ledger_policy=None if self.ledger is None else self.policy,
            transport=self.service,
        )
        self._clients.append(client)

    @property
    def client(self) -> LoanClient:
        """The client of the process that was started last."""
        return self._clients[-1]

    def faults(self, *faults: str, operation: str = "approve") -> None:
        """Apply these faults to the next requests of an operation, in order."""
        self.service.faults.extend(faults)
        self.service.faulty = operation

    def hold_connection(self) -> Gate:
        """Hold the next request before its first byte."""
        gate = self.service.connecting = Gate()
        return gate

    def hold_response(self) -> Gate:
        """Hold the next response, when the service has done its work."""
        gate = self.service.responding = Gate()
        return gate

    def prepare(self) -> None:
        """Create the customer's request without the SDK: most flows begin later."""
        self.service.work("create_request", CODE, {"fiscalCode": CODE})

    async def create(self, **members: Any) -> object:
        return await self._call(
            "create_request", "", self.client.create_request({"fiscalCode": CODE, **members})
        )

    async def approve(
        self, tag: str = "", *, order: str = "first", amount: int = 45_000, repeat_unknown: bool = False
    ) -> object:
        self.orders.add(order)
        # Without a ledger's policy, a shop names each order, if the service evaluates each one (R6).
        scope = order if self.ledger is None and self.readings.evaluates == "order" else ""
        call = self.client.approve(
            CODE, approval(tag, order, amount), scope=scope, repeat_unknown=repeat_unknown
        )
        return await self._call("approve", order, call, is_allowed=repeat_unknown)

    def approving(self, tag: str = "", **options: Any) -> "asyncio.Task[object]":
        """Begin an approval, to be awaited or cancelled."""
        task = asyncio.create_task(self.approve(tag, **options))
        self._tasks.append(task)
        return task

    async def upload_documents(self) -> object:
        return await self._call("upload_documents", "", self.client.upload_documents(CODE, {"front": "..."}))

    async def complete(self) -> object:
        return await self._call("complete", "", self.client.complete(CODE, _USER_DATA))

    def decide_elsewhere(self, tag: str = "", *, order: str = "first") -> None:
        """Request the approval without the SDK, as another system of the shop would."""
        body = {**BODY, "orderToken": order, "email": approval(tag, order, 45_000).email}
        self.service.work("approve", CODE, body)

    async def _call(self, operation: str, order: str, call: Any, *, is_allowed: bool = False) -> object:
        service = self.service
        # With a ledger, all processes of a shop are as one.
        process = 0 if self.ledger is not None else self._process
        log = Log(operation, service.key(CODE, order), order, process, is_allowed)
        self.calls.append(log)
        token = CURRENT.set(log)
        try:
            log.end = await call
        except LoanError as error:
            log.end = error
        finally:
            CURRENT.reset(token)
        log.truth = service.decisions.get(log.key)
        return log.end

    @property
    def has_working_ledger(self) -> bool:
        return self.ledger is not None and not self.ledger.broken

    def let_leases_run_out(self) -> None:
        if self.ledger is not None:
            self.ledger.expire()

    def break_ledger(self, *operations: str) -> None:
        """Make these operations of the ledger fail; without arguments, repair it."""
        if self.ledger is not None:
            self.ledger.broken = frozenset(operations)

    def hold_ledger(self, operation: str) -> Gate:
        """Hold the next operation of the ledger after its write; without a ledger, the next response."""
        if self.ledger is None:
            return self.hold_response()
        gate = self.ledger.gates[operation] = Gate()
        return gate

    async def entries(self) -> list[tuple[str, Entry]]:
        """Return the ledger's entries, each with its order."""
        if self.ledger is None:
            return []
        found = [
            (order, await self.ledger.get(await self.client.entry_key(CODE, order_token=order)))
            for order in sorted(self.orders)
        ]
        return [(order, entry) for order, entry in found if entry is not None]

    async def settle_down(self) -> None:
        """Wait until tasks in the background have ended."""
        for _ in range(20):
            if not any(map(_in_flight, self._clients)):
                return
            await asyncio.sleep(0)

    async def kill(self) -> None:
        """End tasks that the flow left waiting, such as those of a process that has died."""
        waiting: list[asyncio.Future[Any]] = [each for each in self._tasks if not each.done()]
        await _cancel(waiting)
        flights = [flight for client in self._clients for flight in _in_flight(client)]
        await _cancel([flight.task for flight in flights if flight.task is not None])


async def _cancel(futures: "list[asyncio.Future[Any]]") -> None:
    for each in futures:
        each.cancel()
    if futures:
        await asyncio.wait(futures)


def _in_flight(client: LoanClient) -> list[Flight]:
    return list(client._flights._in_flight.values())
