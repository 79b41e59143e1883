"""A service of one reading behind the SDK's transport seam, with faults and a record of each request."""

import asyncio
import json
from collections import deque
from contextvars import ContextVar
from typing import Any, Self

from attrs import define, field

from loanasync._protocol.messages import NoResponse, Request, Response
from loanasync.errors import ConnectError, ConnectionLostError, ReadTimeoutError, TransportError
from loanasync.sandbox import Readings
from loanasync.sandbox.engine import Call, Engine
from loanasync.sandbox.outcomes import Response as SandboxResponse
from support.raw_shop import CODE

__all__ = ["CANCELLED", "CURRENT", "Clock", "Exchange", "Gate", "Key", "Log", "Service", "members_of"]

Key = tuple[str, str]  # fiscal code; order token, or "" where the service evaluates a customer once

# Each fault is for one request. "before": the service did no work; "after": it did, and its response suffers.
UNANSWERED: dict[str, tuple[type[TransportError], str]] = {
    "no connection": (ConnectError, "ClientConnectorError"),
    "reset": (ConnectionLostError, "ConnectionResetError"),
    "silence": (ReadTimeoutError, "TimeoutError"),
}
STATUSES: dict[str, tuple[int, bytes]] = {
    "500": (500, b'{"errors": {"system": ["System error"]}}'),
    "502": (502, b"<html><h1>502 Bad Gateway</h1></html>"),
    "403": (403, b'{"error": "Access denied"}'),
    "303": (303, b""),
}
ANOTHER = "TSTXYZ99T99T999T"
CANCELLED = object()


class Clock:
    """A clock that only advances when the SDK waits."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.gate: Gate | None = None

    def now(self) -> float:
        return self.time

    def hold(self) -> "Gate":
        """Hold the next wait of the SDK."""
        gate = self.gate = Gate()
        return gate

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        gate, self.gate = self.gate, None
        if gate is not None:
            await gate.pass_through()
        await asyncio.sleep(0)


class Gate:
    """A point where a request waits until the flow releases it."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.go = asyncio.Event()

    async def pass_through(self) -> None:
        self.arrived.set()
        await self.go.wait()


@define(eq=False)
class Exchange:
    """One request of the SDK, and its response."""

    is_sent: bool = False  # it reached the service
    is_done: bool = False  # the service evaluated, saved or created because of it
    fault: str = ""
    response: Response | NoResponse | None = None  # None: the SDK received nothing

    @property
    def is_system_fault(self) -> bool:
        return isinstance(self.response, Response) and self.response.status == 500

    @property
    def members(self) -> dict[str, Any]:
        """The JSON object of a whole response, or an empty one."""
        if not isinstance(self.response, Response) or self.response.fault is not None:
            return {}
        return members_of(self.response.body)


def members_of(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body, or an empty one."""
    try:
        members = json.loads(body)
    except ValueError:
        return {}
    return members if isinstance(members, dict) else {}


@define(eq=False)
class Log:
    """One call of the shop, its requests, and how it ended."""

    operation: str
    key: Key
    order: str = ""
    process: int = 0
    is_repeat_allowed: bool = False  # the shop, or its policy, repeats an unknown outcome on purpose
    end: object = CANCELLED  # also while the call is in progress
    exchanges: list[Exchange] = field(factory=list)
    truth: bool | None = None  # the decision of the service for the key when the call ended


# The call that a request belongs to: tasks that the SDK begins inherit it.
CURRENT: ContextVar[Log] = ContextVar("CURRENT")


class Service:
    """The sandbox's engine as a transport; it counts evaluations by the key that its reading evaluates.

    This service returns "already evaluated" for a repetition (spec §3), but another service might evaluate
    again. So each request that a later call repeats counts as an evaluation, too. A repetition after a 500
    within one call does not count (spec §7). With a ledger, any later request for the key is a repetition;
    without one, a request with the same data.
    """

    def __init__(self, readings: Readings, clock: Clock, *, has_ledger: bool) -> None:
        self.readings = readings
        self.has_ledger = has_ledger
        self.clock = clock
        self.engine = Engine.in_memory(readings)
        self.faults: deque[str] = deque()
        self.faulty = "approve"
        self.connecting: Gate | None = None  # for the next request, before its first byte
        self.responding: Gate | None = None  # for the next request, when the service has done its work
        self.evaluations: dict[Key, int] = {}
        self.decisions: dict[Key, bool] = {}
        self._seen: dict[tuple[Key, bytes], Log] = {}

    def key(self, code: str, order: str) -> Key:
        """Return the key that the service evaluates."""
        return code, order if self.readings.evaluates == "order" else ""

    def __call__(self) -> Self:
        return self

    def check(self) -> None:
        """Accept any call."""

    async def aclose(self) -> None:
        """Do nothing: there is no connection."""

    async def send(self, request: Request, *, connect: float, within: float) -> Response | NoResponse:
        """Carry one request to the service and its response back."""
        del connect
        request.is_sent = False
        log = CURRENT.get()
        exchange = Exchange()
        log.exchanges.append(exchange)
        if log.operation == self.faulty and self.faults:
            exchange.fault = self.faults.popleft()
        await _through(self, "connecting")
        kind, _, phase = exchange.fault.partition(" ")
        if kind == "no":
            exchange.response = _unanswered(exchange.fault, is_sent=False)
            return exchange.response
        request.is_sent = exchange.is_sent = True
        response: Response | NoResponse | None = None
        if phase != "before":
            response = self._worked(log, exchange, request.body)
        if kind in UNANSWERED:
            self.clock.time += within if kind == "silence" else 0
            response = _unanswered(kind, is_sent=True)
        elif kind in STATUSES:
            status, body = STATUSES[kind]
            response = Response(status=status, headers={}, body=body)
        assert response is not None, exchange.fault
        try:
            await _through(self, "responding")
            await asyncio.sleep(0)  # lets other tasks run, like any response
        finally:
            exchange.response = response  # also if the SDK gave up the request: the response is already sent
        return response

    def _worked(self, log: Log, exchange: Exchange, body: bytes) -> Response:
        code = log.key[0]
        if log.operation == "approve":
            self._count_repetition(log, body)
        response = self.work(log.operation, code, json.loads(body))
        exchange.is_done = response.evaluated or response.status < 300
        return _with_fault(response, exchange.fault)

    def _count_repetition(self, log: Log, body: bytes) -> None:
        first = self._seen.setdefault((log.key, b"" if self.has_ledger else body), log)
        if first is log:
            is_allowed = len(log.exchanges) == 1 or log.exchanges[-2].is_system_fault  # spec §7
        else:
            is_allowed = log.is_repeat_allowed or first.process != log.process
        if log.key in self.evaluations and not is_allowed:
            self.evaluations[log.key] += 1

    def has_done(self, operation: str) -> bool:
        """Return whether the service carried out an operation other than an approval."""
        customer = self.engine.customers.of(CODE)
        done = {
            "create_request": customer.created,
            "upload_documents": customer.documents,
            "complete": bool(customer.user_data),
        }
        return done[operation]

    def work(self, operation: str, code: str, body: dict[str, Any]) -> SandboxResponse:
        """Do the work of one request, of this shop or of another sender."""
        call = Call(operation, code, body)
        unreadable = self.engine.plan(call)
        assert unreadable is None, unreadable
        response = self.engine.process(call).response
        if response.evaluated:
            key = self.key(code, body.get("orderToken", ""))
            self.evaluations[key] = self.evaluations.get(key, 0) + 1
            approved = self.engine.customers.of(code).approved
            assert approved is not None
            self.decisions[key] = approved
        return response


async def _through(service: Service, name: str) -> None:
    gate: Gate | None = getattr(service, name)
    if gate is not None:
        setattr(service, name, None)
        await gate.pass_through()


def _unanswered(kind: str, *, is_sent: bool) -> NoResponse:
    error, cause = UNANSWERED[kind]
    return NoResponse(error=error, cause_type=cause, is_sent=is_sent)


def _with_fault(response: SandboxResponse, fault: str) -> Response:
    """Return the response that the SDK receives, with the fault applied."""
    body = b"" if response.body is None else json.dumps(response.body).encode()
    why: str | None = None
    match fault:
        case "cut":
            body, why = body[: len(body) // 2], "truncated"
        case "cut early":
            body, why = body[:5], "truncated"
        case "empty":
            body = b""
        case "garbage":
            body = b'{"approved": \x00\xff tr'
        case "another customer" | "another customer, cut":
            assert isinstance(response.body, dict)
            first = {"approved": None, "fiscalCode": None}  # so that the part has both
            body = json.dumps({**first, **response.body, "fiscalCode": ANOTHER}).encode()
            if fault.endswith("cut"):
                body, why = body[: len(body) // 2], "truncated"
    return Response(status=response.status, headers={}, body=body, fault=why)
