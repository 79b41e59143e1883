"""A server that plays a script of raw bytes and connection events."""

import asyncio
import contextlib
import enum
import socket
import ssl
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TypeAlias

import trustme
from attrs import frozen

PATIENCE = 20  # seconds; only a failing test waits that long
FILLER = "127.0.0.2"  # not the client's address: its connection may get the port of a closed filler


class Play(enum.Enum):
    """A step of a server's script other than bytes; the values are printed on the reliability page."""

    READ = "the whole request is read"
    READ_HALF = "the head's first bytes are read"
    FIN = "the connection is closed in order, with TLS's own farewell"
    RST = "the connection is reset"
    CUT = "the connection is closed, without TLS's own farewell"
    SILENCE = "nothing, until the client hangs up"
    AFTER_THE_CALL = "nothing, until the call is over"
    NOT_LISTENING = "no more connections are taken"


@frozen
class Drip:
    """The same bytes, sent again and again without an end."""

    drop: bytes


Step: TypeAlias = bytes | Play | Drip
Exchange: TypeAlias = tuple[Step, ...]


class Certificate(enum.Enum):
    """The kinds of certificates that a server can present."""

    GOOD = "trusted, for 127.0.0.1 and localhost"
    OTHER_HOST = "trusted, for another host"
    EXPIRED = "trusted, expired"
    NOT_YET = "trusted, not yet valid"
    UNKNOWN = "from an unknown authority"
    SELF_SIGNED = "self-signed"


@cache
def authority() -> trustme.CA:
    return trustme.CA()


@cache
def certificate(kind: Certificate) -> ssl.SSLContext:
    """Return the SSL context of a server with a certificate of this kind."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    now = datetime.now(UTC)
    if kind is Certificate.SELF_SIGNED:
        itself = trustme.CA()
        with itself.cert_pem.tempfile() as certificate_file, itself.private_key_pem.tempfile() as key:
            context.load_cert_chain(certificate_file, key)
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


def tls_of(scheme: str) -> ssl.SSLContext | None:
    """Return the SSL context of a server with this scheme."""
    return certificate(Certificate.GOOD) if scheme == "https" else None


async def until(holds: Callable[[], bool]) -> None:
    """Yield to other tasks until `holds()` is True, for a condition without an event to wait for."""
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110  (there is no event)
            await asyncio.sleep(0)


class RawServer:
    """Plays one exchange of its script for each request, on any number of connections.

    It may be listening without accepting (`listen`), have a full backlog (`overfill`), accept (`accept`) or
    refuse connections (`refuse`).
    """

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
        self.played = 0  # exchanges
        self.tasks: set[asyncio.Task[None]] = set()
        self._tls = tls
        self._address = f"{scheme}://{host}"
        self._fillers: list[socket.socket] = []
        self._server: asyncio.Server | None = None
        self._port = 0
        self._bind()
        self._port = self._socket.getsockname()[1]

    @property
    def base_url(self) -> str:
        return f"{self._address}:{self._port}"

    def listen(self) -> None:
        """Listen without accepting: the system completes connections, and nothing reads from them."""
        self._socket.listen(16)

    def overfill(self) -> None:
        """Listen with a full backlog: new connections are never completed."""
        self._socket.listen(0)
        for _ in range(4):
            filler = socket.socket()
            filler.settimeout(0)
            filler.bind((FILLER, 0))
            filler.connect_ex(("127.0.0.1", self._port))
            self._fillers.append(filler)

    async def accept(self) -> None:
        """Accept connections, including those that wait in the backlog."""
        self._drain_backlog()
        self._server = await asyncio.start_server(self._accepted, sock=self._socket, ssl=self._tls)

    async def recover(self, tls: ssl.SSLContext | None) -> None:
        """Accept connections with working settings from now on."""
        self._tls = tls
        if self._server is not None:
            self.refuse()
        await self.accept()

    def _bind(self) -> None:
        # With an explicit IPPROTO_TCP asyncio sets TCP_NODELAY, so each step is sent at once.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", self._port))

    async def stop(self) -> None:
        """Refuse new connections, and wait until all connections are closed."""
        self._stop_listening()
        await self.wait_until_closed()

    def refuse(self) -> None:
        """Stop listening, and keep the port from other servers: the system refuses connections."""
        self._stop_listening()
        self._bind()

    def _stop_listening(self) -> None:
        self._drain_backlog()
        if self._server is not None:
            self._server.close()
            self._server = None
        self._socket.close()

    def _drain_backlog(self) -> None:
        while self._fillers:
            self._fillers.pop().close()

    async def wait_until_closed(self) -> None:
        """Wait until the client has closed all connections."""
        await until(lambda: not self.tasks)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if writer.get_extra_info("peername")[0] == FILLER:
            writer.close()
            return
        self.accepted += 1
        task = asyncio.create_task(self._serve(reader, writer))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError, TimeoutError):
            while self.exchanges and not writer.is_closing():
                exchange = self.exchanges.popleft()
                try:
                    for step in exchange:
                        await self._play(step, reader, writer)
                    self.played += 1
                except asyncio.IncompleteReadError as error:
                    if not error.partial:  # the client closed an idle connection
                        self.exchanges.appendleft(exchange)
                    break
            await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError, TimeoutError):
            await writer.wait_closed()

    async def _play(self, step: Step, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match step:
            case bytes() | Drip():
                await _send(step, reader, writer)
            case Play.READ:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
            case Play.READ_HALF:
                await reader.readexactly(100)
            case Play.FIN:
                writer.close()
            case Play.RST:
                raw: socket.socket = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            case Play.CUT:
                writer.get_extra_info("socket").shutdown(socket.SHUT_WR)
            case Play.SILENCE:
                await reader.read()
            case Play.AFTER_THE_CALL:
                await self.call_over.wait()
            case Play.NOT_LISTENING:
                self.refuse()


async def _send(step: bytes | Drip, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(step if isinstance(step, bytes) else step.drop)
    await writer.drain()
    while isinstance(step, Drip) and not reader.at_eof():
        await asyncio.sleep(0.01)
        writer.write(step.drop)
        await writer.drain()


@asynccontextmanager
async def running(
    server: RawServer, begin: Callable[[RawServer], None] | None = None
) -> AsyncIterator[RawServer]:
    """Run a server that accepts connections, or that `begin` puts into another state."""
    if begin is None:
        await server.accept()
    else:
        begin(server)
    try:
        yield server
    finally:
        await server.stop()
