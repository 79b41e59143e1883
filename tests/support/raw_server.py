"""A server that plays raw bytes, to the letter and to the end of a connection."""

import asyncio
import contextlib
import enum
import socket
import ssl
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import ClassVar, TypeAlias

import trustme
from attrs import frozen

__all__ = [
    "PATIENCE",
    "Certificate",
    "Drip",
    "Exchange",
    "Play",
    "RawServer",
    "authority",
    "certificate",
    "running",
]
__all__ += ["until"]

PATIENCE = 20  # seconds; only a test that fails waits for so long


class Play(enum.Enum):
    """A step of a server other than bytes."""

    READ = "the whole request is read"
    READ_HALF = "the head's first bytes are read"
    FIN = "the connection is closed in order, with TLS's own farewell"
    RST = "the connection is reset"
    SILENCE = "nothing, until the client hangs up"
    AFTER_THE_CALL = "nothing, until the call is over"
    NOT_LISTENING = "no more connections are taken"


@frozen
class Drip:
    """Bytes that come one by one and never end."""

    drop: bytes


Step: TypeAlias = bytes | Play | Drip
Exchange: TypeAlias = tuple[Step, ...]


class Certificate(enum.Enum):
    """What a server shows for itself."""

    GOOD = "of the authority, for 127.0.0.1 and localhost"
    OTHER_HOST = "of the authority, for another host"
    EXPIRED = "of the authority, for a time that is over"
    NOT_YET = "of the authority, for a time that is to come"
    UNKNOWN = "of an authority that nobody knows"
    SELF_SIGNED = "of itself"


@cache
def authority() -> trustme.CA:
    return trustme.CA()


@cache
def certificate(kind: Certificate) -> ssl.SSLContext:
    """What a server needs in order to show a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    now = datetime.now(UTC)
    if kind is Certificate.SELF_SIGNED:
        itself = trustme.CA()
        with itself.cert_pem.tempfile() as shown, itself.private_key_pem.tempfile() as key:
            context.load_cert_chain(shown, key)
        return context
    issuer = trustme.CA() if kind is Certificate.UNKNOWN else authority()
    host = "loans.example.com" if kind is Certificate.OTHER_HOST else "127.0.0.1"
    leaf = issuer.issue_cert(
        host,
        *(() if kind is Certificate.OTHER_HOST else ("localhost",)),
        not_before=now + timedelta(days=1) if kind is Certificate.NOT_YET else now - timedelta(days=9),
        not_after=now - timedelta(days=1) if kind is Certificate.EXPIRED else now + timedelta(days=9),
    )
    leaf.configure_cert(context)
    return context


async def until(holds: Callable[[], bool]) -> None:
    """Let everybody else go on until something holds that nobody tells of."""
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110  (as said)
            await asyncio.sleep(0)


class RawServer:
    """Plays one exchange for each request, on as many connections as it takes."""

    def __init__(
        self,
        *exchanges: Exchange,
        tls: ssl.SSLContext | None = None,
        scheme: str = "http",
        host: str = "127.0.0.1",
    ) -> None:
        self.exchanges = deque(exchanges)
        self.requests: list[bytes] = []
        self.call_over = asyncio.Event()
        self.accepted = 0
        self.talks: set[asyncio.Task[None]] = set()
        self._tls = tls
        self._address = f"{scheme}://{host}"
        self._fillers: list[socket.socket] = []
        self._no_callers: set[object] = set()
        self._server: asyncio.Server | None = None
        self._port = 0
        self._bind()
        self._port = self._socket.getsockname()[1]

    @property
    def base_url(self) -> str:
        return f"{self._address}:{self._port}"

    def listen(self) -> None:
        """Let the system take connections, and never accept one of them."""
        self._socket.listen(16)

    def overfill(self) -> None:
        """Let the system take so few connections that there is no room for another."""
        self._socket.listen(0)
        for _ in range(4):
            filler = socket.socket()
            filler.settimeout(0)
            filler.connect_ex(("127.0.0.1", self._port))
            self._fillers.append(filler)
            self._no_callers.add(filler.getsockname())

    async def accept(self) -> None:
        """Accept connections, those that waited first."""
        self._give_room()
        if self._socket.fileno() < 0:
            self._bind()
        self._server = await asyncio.start_server(self._accepted, sock=self._socket, ssl=self._tls)

    async def recover(self, tls: ssl.SSLContext | None) -> None:
        """Be from now on what a server should be."""
        self._tls = tls
        if self._server is not None:
            self.refuse()
        await self.accept()

    def _bind(self) -> None:
        # Named as TCP, so that asyncio sends each step at once instead of collecting them.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", self._port))

    async def stop(self) -> None:
        """Take no more connections, and see every one end."""
        self.refuse()
        await self.all_hung_up()

    def refuse(self) -> None:
        """Let the system refuse connections."""
        self._give_room()
        if self._server is not None:
            self._server.close()
            self._server = None
        self._socket.close()

    def _give_room(self) -> None:
        while self._fillers:
            self._fillers.pop().close()

    async def all_hung_up(self) -> None:
        """See every connection end: the client holds none any more."""
        await until(lambda: not self.talks)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if writer.get_extra_info("peername") in self._no_callers:
            writer.close()
            return
        self.accepted += 1
        talk = asyncio.create_task(self._talk(reader, writer))
        self.talks.add(talk)
        talk.add_done_callback(self.talks.discard)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(self, reader, writer)
        with contextlib.suppress(ConnectionError, ssl.SSLError, TimeoutError):
            while self.exchanges and not writer.is_closing():
                exchange = self.exchanges.popleft()
                try:
                    for step in exchange:
                        await connection.play(step)
                except asyncio.IncompleteReadError as nothing:
                    if not nothing.partial:  # an idle connection that the client closed
                        self.exchanges.appendleft(exchange)
                    break
            await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError, TimeoutError):
            await writer.wait_closed()


class _Connection:
    def __init__(self, server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer

    async def play(self, step: Step) -> None:
        if isinstance(step, Play):
            await self._steps[step](self)
            return
        await self._write(step if isinstance(step, bytes) else step.drop)
        while isinstance(step, Drip) and not self._reader.at_eof():
            await asyncio.sleep(0.01)
            await self._write(step.drop)

    async def _write(self, content: bytes) -> None:
        self._writer.write(content)
        await self._writer.drain()

    async def _read(self) -> None:
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        self._server.requests.append(head + await self._reader.readexactly(length))

    async def _read_half(self) -> None:
        await self._reader.readexactly(100)

    async def _fin(self) -> None:
        self._writer.close()

    async def _rst(self) -> None:
        raw: socket.socket = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def _silence(self) -> None:
        await self._reader.read()

    async def _after_the_call(self) -> None:
        await self._server.call_over.wait()

    async def _not_listening(self) -> None:
        self._server.refuse()

    _steps: ClassVar[dict[Play, Callable[["_Connection"], Awaitable[None]]]] = {
        Play.READ: _read,
        Play.READ_HALF: _read_half,
        Play.FIN: _fin,
        Play.RST: _rst,
        Play.SILENCE: _silence,
        Play.AFTER_THE_CALL: _after_the_call,
        Play.NOT_LISTENING: _not_listening,
    }


@asynccontextmanager
async def running(
    server: RawServer, begin: Callable[[RawServer], None] | None = None
) -> AsyncIterator[RawServer]:
    """A server that accepts, or begins otherwise."""
    if begin is None:
        await server.accept()
    else:
        begin(server)
    try:
        yield server
    finally:
        await server.stop()
