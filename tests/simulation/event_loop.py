"""An asyncio event loop with virtual time, without sockets and threads, and its connections in memory."""

import asyncio
import contextvars
import socket
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections import deque

    from simulation.world import Process

_TIE = 1e-7  # seconds; timers of equal time run in an order that the seed chooses


class _NoSelector:
    """The selector of an event loop without file descriptors."""

    def select(self, timeout: float | None) -> list[object]:
        """Return no event, without waiting."""
        del timeout
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """The event loop of a simulated process. `World.run` calls `step`, one iteration at a time.

    `looptime` was considered. It moves the clock of a real event loop, and has one loop: it cannot stop one
    process while others continue, and its order of events is that of the selector.
    """

    # Attributes of BaseEventLoop without types.
    _ready: "deque[asyncio.Handle]"
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, process: "Process") -> None:
        super().__init__()
        self._process = process
        self._selector = _NoSelector()  # BaseEventLoop calls its `select`

    def step(self) -> None:
        """Run the timers that are due and the callbacks that are ready."""
        self.stop()  # `run_forever` then ends after one iteration
        self.run_forever()

    @property
    def is_ready(self) -> bool:
        """Return True if an iteration would run a callback now."""
        return bool(self._ready) or self.next_timer <= self._process.world.now

    @property
    def next_timer(self) -> float:
        """Return the time of the first timer, which may be cancelled; infinity without one."""
        return self._scheduled[0].when() if self._scheduled else inf

    @property
    def timers(self) -> int:
        """Return the number of timers that are not cancelled."""
        return sum(not timer.cancelled() for timer in self._scheduled)

    def time(self) -> float:
        return self._process.world.now

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        when += _TIE * self._process.random("timer")
        return super().call_at(when, callback, *args, context=context)

    def _process_events(self, event_list: list[object]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Run a function after this iteration. A thread could also run before or after other callbacks."""
        del executor
        future = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001  (raised where the future is awaited)
                future.set_exception(error)
            else:
                future.set_result(result)

        self._process.later(0.0, run)
        return future

    async def sock_connect(self, sock: socket.socket, address: object) -> None:
        """Open a connection of the simulated network. `sock` is never connected."""
        del address
        try:
            await self._process.world.network.connect(self._process)
        finally:
            sock.close()

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], *_: object, **__: object
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Return a connection to the simulated service, which `sock_connect` has opened."""
        protocol = protocol_factory()
        connection = Connection(self._process, cast("asyncio.Protocol", protocol))
        protocol.connection_made(connection)
        return connection, protocol


class Connection(asyncio.Transport):
    """A connection in memory. The service reads what is written, and sends bytes to the protocol."""

    def __init__(self, process: "Process", protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.process = process
        self.idle_until = inf  # the time at which the server closes it; infinity during an exchange
        self.request = ""  # the head of the last request
        self._protocol = protocol
        self._written = bytearray()
        self._is_closing = False
        self.on_end: Callable[[], None] | None = None  # called when the connection ends

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast("asyncio.Protocol", protocol)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def write(self, data: Any) -> None:
        if not self._is_closing:
            self._written += data
            head, end, body = bytes(self._written).partition(b"\r\n\r\n")
            length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0] or 0)
            if end and len(body) >= length:
                self._written.clear()
                self.process.world.network.exchange_bytes(self.process, self, head.decode(), body)

    def receive(self, data: bytes) -> None:
        """Pass bytes of the service to the protocol, as the event loop of a socket does."""
        if not self._is_closing:
            self.process.loop.call_soon(self._pass_on, data)

    def _pass_on(self, data: bytes) -> None:
        if not self._is_closing:
            self._protocol.data_received(data)

    def receive_surplus(self, data: bytes) -> None:
        """Pass on a response once more, unless the next request is about the same person in another shop.

        The echoed fiscal code is then the right one, so nothing shows that the response is another one's.
        """
        code = self.request.partition(" HTTP/")[0].rpartition("/")[2]
        if code.encode() not in data or self.idle_until < inf:
            self.receive(data)

    def close_if_idle(self) -> None:
        """End the connection as a server does that has no request for some time."""
        if self.idle_until <= self.process.world.now:
            self.lose()

    def lose(self, error: Exception | None = None) -> None:
        """End the connection from the side of the service, after the bytes that it has sent."""
        self.process.loop.call_soon(self._end, error)

    def close(self) -> None:
        self._end(None)

    def abort(self) -> None:
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if not self._is_closing:
            self._is_closing = True
            if self.on_end is not None:
                self.on_end()
            self.process.loop.call_soon(self._protocol.connection_lost, error)
