"""The network between programs and the service: a transport at the public seam, and connections in memory."""

import asyncio
import json
from math import inf
from typing import TYPE_CHECKING, cast

from loanasync import NoResponse, Request, Response, errors
from simulation.invariants import check_write
from simulation.record import Key, Write
from simulation.service import EVALUATED, NAMES, UNKNOWN_USER, Behaviour, Reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulation.event_loop import Connection
    from simulation.world import Process, World

_LATENCY = 0.02  # seconds of each way
_DELAYS = {0.0: 60, 0.4: 6, 3.0: 4, 9.0: 3, 45.0: 2}  # seconds that the service takes longer
_CONNECTS = {"opens": 60, "refuses": 2, "is slow": 2, "fails strangely": 1}
_LOST = "loses the request"
_ROUTE = {"delivers": 80, _LOST: 2}
_CUTS = {1.0: 50, 0.0: 1, 0.3: 1, 0.6: 1, 0.9: 1}  # the part of a response that arrives
_SURPLUS = {"": 25, "another response follows": 4, "closes after it": 2}
_ENDS = {"returns": 60, "raises": 1}
_IDLE = 1.0  # seconds after which the server closes an idle connection, as it announces


class Network:
    """Carries requests of all processes to the service, and its responses back."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self._connections = 0

    def write(
        self, process: "Process", guard: str, path: str, body: bytes, *, is_reused: bool = False
    ) -> "Exchange":
        """Note that the first byte of a request was written, and send it to the service."""
        _, _, _, shop, _, *rest = path.split("/")
        exchange = Exchange(self.world, process, is_reused=is_reused)
        if len(rest) == 1:
            key = self.world.service.key_of(shop, rest[0], json.loads(body))
            exchange.send_approval(guard, key, json.loads(body))
        else:  # creation, documents or completion: nothing is evaluated
            members = json.loads(body)
            name = NAMES.get(rest[0] if rest else members.get("fiscalCode", ""), "A")
            reply = self.world.service.create(name) if not rest else Reply(200, body)
            exchange.respond(reply, 2 * _LATENCY)
        return exchange

    async def connect(self, process: "Process") -> None:
        """Open a connection, or fail to."""
        self._connections += 1
        match self.world.choose("opens", _CONNECTS, "connect", process.name, self._connections):
            case "refuses":
                await asyncio.sleep(_LATENCY)
                raise ConnectionRefusedError(111, "refused")
            case "is slow":
                await asyncio.sleep(7.0)
            case "fails strangely":
                raise OSError("strange")
            case _:
                await asyncio.sleep(_LATENCY)

    def exchange_bytes(self, process: "Process", connection: "Connection", head: str, body: bytes) -> None:
        """Answer a request that was written to a connection in memory."""
        method, path, _ = head.split(" ", 2)
        if self.world.now >= connection.idle_until:
            self.world.record.violate("fresh", "a request is written while the server closes the connection")
        is_reused = bool(connection.request)
        connection.idle_until, connection.request = inf, head
        closes = "connection: close" in head.lower()
        path += "/complete" if method == "PATCH" else ""
        exchange = self.write(process, process.guard, path, body, is_reused=is_reused)
        exchange.on_end = lambda result: self._respond(connection, result, closes=closes)
        connection.on_end = exchange.abandon

    def _respond(self, connection: "Connection", result: Response | NoResponse, *, closes: bool) -> None:
        """Write a response to a connection, and sometimes more than that."""
        if isinstance(result, NoResponse):
            connection.lose(ConnectionResetError(104, "reset"))
            return
        length = len(result.body) + (9 if result.fault else 0)
        close = "Connection: close\r\n" if closes else f"Keep-Alive: timeout={_IDLE:g}\r\n"
        head = f"HTTP/1.1 {result.status} X\r\nContent-Length: {length}\r\n{close}\r\n"
        data = head.encode() + result.body
        connection.receive(data)
        if result.fault or closes:
            connection.lose()
            return
        connection.idle_until = self.world.now - _LATENCY + _IDLE
        process = connection.process
        process.later(_IDLE + _LATENCY, connection.close_if_idle)
        surplus = self.world.choose("", _SURPLUS, "surplus", len(self.world.record.writes))
        if surplus == "closes after it":
            process.later(_LATENCY, connection.lose)
        elif surplus:
            process.later(_LATENCY, lambda: connection.receive_surplus(data))


class Exchange:
    """One request and its response."""

    def __init__(self, world: "World", process: "Process", *, is_reused: bool) -> None:
        self._world = world
        self._process = process
        self._is_reused = is_reused  # its connection had another exchange before
        self.write: Write | None = None
        self.on_end: Callable[[Response | NoResponse], object] | None = None  # receives the response

    def send_approval(self, guard: str, key: Key, members: dict[str, object]) -> None:
        """Send a request for an approval to the service."""
        world, process = self._world, self._process
        write = self.write = Write(process, guard, key, world.now)
        check_write(world, write)
        world.record.writes.append(write)
        write.behaviour, behaviour = world.service.choose(key)
        number = world.service.arrivals[key]
        world.note(process, f"writes request {len(world.record.writes)} for {key}")
        if world.choose("delivers", _ROUTE, "route", key, number) == _LOST:
            world.note("network", "loses the request")
            return
        world.service.pending[key] += 1
        world.later(_LATENCY, lambda: self._arrive(write, behaviour, members, number))

    def _arrive(self, write: Write, behaviour: Behaviour, members: dict[str, object], number: int) -> None:
        service = self._world.service
        delay = self._world.choose(0.0, _DELAYS, "delay", write.key, number)
        service.pending[write.key] -= 1
        was_decided = write.key in service.decisions
        reply = service.handle(write.key, behaviour, members)
        write.evaluated = write.key in service.decisions and not was_decided
        ends = behaviour.ends
        note = ends or f"status {reply.status}"
        late = f" after {delay:g} s" if delay else ""
        self._world.note("service", f"{write.behaviour}: {note}{late} for {write.key}")
        if ends == "silence":
            return
        if ends == "loss":
            lost = NoResponse(error=errors.ConnectionLostError, cause_type="ClientOSError", is_sent=True)
            self._process.later(_LATENCY + delay, lambda: self._end(lost))
            return
        proves = not write.evaluated and (behaviour.proves or reply == UNKNOWN_USER)
        part = self._world.choose(1.0, _CUTS, "part", write.key, number)
        if part < 1:
            self._world.note("network", f"cuts the response after {part:.0%}")
        self.respond(reply, _LATENCY + delay, proves=proves, part=part)

    def respond(self, reply: Reply, delay: float, *, proves: bool = False, part: float = 1.0) -> None:
        """Deliver a response, or a part of it, after some seconds."""
        cut = part < 1
        body = reply.body[: int(len(reply.body) * part)]
        response = Response(status=reply.status, headers={}, body=body, fault="truncated" if cut else None)

        def deliver() -> None:
            write = self.write
            if self.on_end is not None and write is not None:
                write.received = reply.status
                write.proves = proves and not cut
                write.says_decided = reply in EVALUATED and not cut
                write.approved = _decision(reply, write, cut=cut, is_reused=self._is_reused)
            self._end(response)

        self._process.later(delay, deliver)

    def abandon(self) -> None:
        """Receive no response any more."""
        if self.write is not None and self.write.ended is None:
            self.write.ended = self._world.now
        self.on_end = None

    def _end(self, result: Response | NoResponse) -> None:
        on_end = self.on_end
        self.abandon()
        if on_end is not None:
            on_end(result)


def _decision(reply: Reply, write: Write, *, cut: bool, is_reused: bool) -> bool | None:
    """Return the decision that a client must read in a response; None for a response without one."""
    if cut or reply.status not in (201, 422) or reply.body.count(b'"approved"') > 1:
        return None
    if not reply.body:
        # On a used connection, a response without a fiscal code may belong to another request.
        return False if reply.status == 422 and not is_reused else None
    members = json.loads(reply.body)
    is_own = NAMES.get(members.get("fiscalCode", "")) == write.key.customer
    return members.get("approved") if is_own else None


class SeamTransport:
    """A `loanasync.Transport` that sends requests through the simulated network."""

    def __init__(self, process: "Process", guard: str) -> None:
        self._process = process
        self._guard = guard
        self._is_closed = False
        self._open: set[asyncio.Future[Response | NoResponse]] = set()

    def check(self) -> None:
        """A call can always begin."""

    async def send(self, request: Request, *, connect: float, within: float) -> Response | NoResponse:
        """See `loanasync.Transport.send`."""
        request.is_sent = False
        deadline = self._process.loop.time() + within
        try:
            async with asyncio.timeout(min(connect, within)):
                await self._process.world.network.connect(self._process)
        except OSError as error:
            return _unsent(type(error).__name__)
        if self._is_closed:
            return _unsent("SessionClosed")
        request.is_sent = True
        path = request.url.removeprefix("https://loans.example.com")
        if request.method == "PATCH":
            path += "/complete"
        response: asyncio.Future[Response | NoResponse] = self._process.loop.create_future()
        exchange = self._process.world.network.write(self._process, self._guard, path, request.body)

        def receive(result: Response | NoResponse) -> None:
            if not response.done():  # by `aclose`
                response.set_result(result)

        exchange.on_end = receive
        self._open.add(response)
        try:
            number = len(self._process.world.record.writes)
            if self._process.world.choose("returns", _ENDS, "transport", number) == "raises":
                raise ConnectionResetError  # as a transport of a shop may do, with bytes written
            while not await self._is_over(response, deadline, survives=request.survives_cancellation):
                pass
            # After a freeze, the response may have arrived at the same time as the end of the wait.
            return response.result() if response.done() else _lost(errors.ReadTimeoutError, "TimeoutError")
        finally:
            self._open.discard(response)
            exchange.abandon()

    async def _is_over(
        self, response: "asyncio.Future[Response | NoResponse]", deadline: float, *, survives: bool
    ) -> bool:
        """Wait for a response until its deadline. Return False if the task was cancelled and must read on."""
        try:
            await asyncio.wait((response,), timeout=deadline - self._process.loop.time())
        except asyncio.CancelledError:
            if not survives:
                raise
            cast("asyncio.Task[object]", asyncio.current_task()).uncancel()
            return False
        return True

    async def aclose(self) -> None:
        """End the requests in progress."""
        self._is_closed = True
        for future in tuple(self._open):
            if not future.done():
                future.set_result(_lost(errors.ConnectionLostError, "SessionClosed"))


def _unsent(cause: str) -> NoResponse:
    return NoResponse(error=errors.ConnectError, cause_type=cause, is_sent=False)


def _lost(error: type[errors.TransportError], cause: str) -> NoResponse:
    return NoResponse(error=error, cause_type=cause, is_sent=True)
