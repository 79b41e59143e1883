"""`Sandbox`: start, stop, reset, rules, journal and findings."""

import asyncio
import signal
import threading
import webbrowser
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from aiohttp import web

from loanasync.sandbox.customers import Customers, Snapshot, code_of
from loanasync.sandbox.engine import Engine
from loanasync.sandbox.journal import Journal
from loanasync.sandbox.linter import Finding, Linter
from loanasync.sandbox.process import SandboxProcess, client_of
from loanasync.sandbox.readings import NO_READINGS, Readings
from loanasync.sandbox.rules import Operation, Rule, Rules, fault_texts
from loanasync.sandbox.safety import check_host, check_shop, check_token, is_loopback, quiet_logger
from loanasync.sandbox.service import LARGEST_BODY, Service
from loanasync.sandbox.sqlite import SqliteStore
from loanasync.sandbox.web import Web

if TYPE_CHECKING:
    from loanasync import LoanClient


Description = Literal["street_number", "civic_number"]
_ALL: Any = ...  # no argument was given
_Running = tuple[asyncio.AbstractEventLoop, asyncio.Event]


class Sandbox:
    """The service on a port of this machine.

    Args:
        host: A loopback address, unless `allow_remote` says otherwise.
        port: 0 takes a free one.
        shop_id: The one shop that it knows.
        auth_token: That shop's token; made up, never a real one.
        dialect: Speak one description only; None accepts both.
        state: A file of SQLite's to remember customers in; None: they end with the object.
        faults: Rules in words, ``[operation=]words[:rate[:phase]]``, such as ``500:0.1:after``.
        seed: Where the rates of rules begin; the same seed, the same outcomes.
        journal: Calls to keep; 0 switches the journal off, for load.
        customers: Customers to remember; beyond, the oldest are forgotten.
        shop_url: Where the web application leads back to.
        allow_remote: Serve the network, too, although nothing protects what is here.
        readings: The reading of the specification to play, where it leaves a point open.

    Raises:
        TypeError: An argument has another type; it is named.
        ValueError: An argument cannot work; it is named.

    Example:
        >>> async def example() -> str:
        ...     async with Sandbox() as sandbox:
        ...         return sandbox.base_url
        >>> run(example()).startswith("http://127.0.0.1:")
        True
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        shop_id: str = "sandbox-shop",
        auth_token: str = "sandbox-token",  # noqa: S107  (made up, and valid nowhere else)
        dialect: Description | None = None,
        state: str | Path | None = None,
        faults: Iterable[str] = (),
        seed: int = 0,
        journal: int = 1000,
        customers: int = 10_000,
        shop_url: str | None = None,
        allow_remote: bool = False,
        readings: Readings = Readings(),
    ) -> None:
        check_host(host, allow_remote=allow_remote)
        check_token(auth_token)
        check_shop(shop_id, shop_url)
        if shop_id == auth_token:
            raise ValueError("shop_id and auth_token are equal: each path would have the token in it")
        if dialect not in (None, "street_number", "civic_number"):
            raise ValueError(f"dialect {dialect!r} is unknown: street_number, civic_number or None")
        if not isinstance(readings, Readings):
            raise TypeError(NO_READINGS)
        if journal < 0 or customers < 1:
            raise ValueError(f"journal {journal} must be 0 or more, customers {customers} 1 or more")
        self.shop_id = shop_id
        self.auth_token = auth_token
        self._host = host
        self._port = port
        self._shop_url = shop_url
        self._allow_remote = allow_remote
        self._runner: web.AppRunner | None = None
        self._listening: asyncio.Server | None = None
        self._address = ""
        rules = Rules(seed)
        for text in fault_texts(faults):
            rules.add_text(text)
        if state is not None and str(state) in ("", ":memory:"):
            # A database that ends with its connection, to SQLite.
            raise ValueError(f"state {str(state)!r} is no file: name one, or leave it out to keep nothing")
        self._engine = Engine(
            Customers(customers, None if state is None else SqliteStore(state)),
            rules,
            Linter(auth_token),
            Journal(journal, on=journal > 0),
            dialect,
            readings,
        )

    @property
    def base_url(self) -> str:
        """Where it listens, such as ``http://127.0.0.1:8080``.

        Raises:
            RuntimeError: It is not started.
        """
        if not self._address:
            raise RuntimeError("the sandbox has an address once it is started: use `async with Sandbox()`")
        return self._address

    @property
    def journal(self) -> Journal:
        """The calls that came."""
        return self._engine.journal

    @property
    def findings(self) -> list[Finding]:
        """Misuse of the protocol, oldest first."""
        return list(self._engine.linter.findings)

    def on(
        self,
        operation: Operation | None = None,
        *,
        fiscal_code: str | None = None,
        call: int | None = None,
        rate: float = 1.0,
        seed: int | None = None,
    ) -> Rule:
        """Mean some calls; `Rule.respond` says what they are answered with. The newest rule counts.

        Args:
            operation: create_request, approve, upload_documents or complete; None: any.
            fiscal_code: One customer's; None: anybody's.
            call: Which call of this operation for this customer, counted from 1; None: every.
            rate: The share of the calls, 0 to 1, decided for each customer and call by the seed alone.
            seed: The rule's own seed; None: the sandbox's.

        Raises:
            ValueError: An argument cannot be meant; it is named.

        Example:
            >>> rule = Sandbox().on(operation="approve", call=2).respond(500, phase="after")
            >>> rule.outcome.name
            '500after'
        """
        if fiscal_code is not None:
            fiscal_code = code_of(fiscal_code)
        which = {"operation": operation, "fiscal_code": fiscal_code, "call": call, "rate": rate}
        if seed is not None:
            which["seed"] = seed
        with self._engine.lock:
            return self._engine.rules.add(**which)

    def off(self, rule: Rule = _ALL) -> None:
        """Take one rule back; without an argument, all rules.

        Args:
            rule: A rule of this sandbox; None is not one, so that a missing rule never takes all rules back.

        Raises:
            TypeError: It is not a rule.
            ValueError: The rule is not in force: it was taken back before, or is of another sandbox.

        Example:
            >>> rule = sandbox.on().respond(503)
            >>> len(sandbox.rules)
            1
            >>> sandbox.off(rule)
            >>> sandbox.rules
            []
        """
        with self._engine.lock:
            if rule is _ALL:
                self._engine.rules.clear()
                self._engine.changed()
            else:
                self._engine.rules.remove(rule)

    @property
    def rules(self) -> list[Rule]:
        """The rules that are in force, newest first; each tells how many calls it `answered`."""
        return list(self._engine.rules)

    def reset(self, fiscal_code: str = _ALL) -> None:
        """Forget one customer; without an argument, all customers, calls, findings and rules.

        Args:
            fiscal_code: The customer's; None is not one, so that a missing code never forgets everything.

        Raises:
            KeyError: Nothing is known of this customer.
            TypeError: It is not a text.
            ValueError: It is empty.

        Example:
            >>> decision = run(client.approve(fiscal_code, request))
            >>> sandbox.reset(fiscal_code)
            >>> created = run(client.create_request({"fiscalCode": fiscal_code}))
            >>> run(client.approve(fiscal_code, request)).approved
            True
        """
        with self._engine.lock:
            if fiscal_code is _ALL:
                self._engine.reset()
            elif not any(map(self._engine.customers.forget, (code_of(fiscal_code), fiscal_code))):
                raise KeyError(
                    "nothing is known of this fiscal code: it was reset already, or never asked for"
                )
            self._engine.changed()

    def snapshot(self) -> Snapshot:
        """All customers as they are now, for `restore`.

        Example:
            >>> before = sandbox.snapshot()
            >>> decision = run(client.approve(fiscal_code, request))
            >>> sandbox.restore(before)
            >>> run(client.approve(fiscal_code, request)).approved
            True
        """
        with self._engine.lock:
            return self._engine.customers.snapshot()

    def restore(self, snapshot: Mapping[str, str]) -> None:
        """All customers as they were then, and no others; journal, findings and rules stay."""
        with self._engine.lock:
            self._engine.customers.restore(snapshot)
            self._engine.changed()

    def client(self, **options: Any) -> "LoanClient":
        """A client of the SDK for this sandbox.

        Args:
            options: Those of `loanasync.LoanClient`, without address and credentials.

        Example:
            >>> shop = sandbox.client(timeout=Timeout(total=10, attempt=5, connect=1))
            >>> run(shop.approve(fiscal_code, request)).approved
            True
            >>> run(shop.aclose())
        """
        return client_of(self.base_url, self.shop_id, self.auth_token, options)

    @classmethod
    def in_thread(cls, **options: Any) -> AbstractContextManager[Self]:
        """A sandbox that runs in a thread of its own, for blocking clients and for loops that come and go.

        Args:
            options: Those of `Sandbox`.

        Example:
            >>> with Sandbox.in_thread() as sandbox:
            ...     sandbox.base_url.startswith("http://127.0.0.1:")
            True
        """
        sandbox = cls(**options)  # wrong options are errors of this call
        return sandbox._in_thread()

    @contextmanager
    def _in_thread(self) -> Iterator[Self]:
        started = Future[_Running]()
        thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)),
            name="loanasync-sandbox",
            daemon=True,
        )
        thread.start()
        try:
            loop, stop = started.result()
        except BaseException:
            thread.join()
            raise
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()

    async def _serve(self, started: Future[_Running]) -> None:
        try:
            await self.start()
        except BaseException as error:  # noqa: BLE001  (it is raised where the sandbox was asked for)
            started.set_exception(error)
            return
        stop = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()
        await self.stop()

    @staticmethod
    def subprocess(**options: Any) -> AbstractContextManager[SandboxProcess]:
        """A sandbox that runs as a process of its own, for measurements and for being killed.

        Args:
            options: Those of `Sandbox`.

        Example:
            >>> with Sandbox.subprocess() as sandbox:
            ...     sandbox.base_url.startswith("http://127.0.0.1:")
            True
        """
        return SandboxProcess(options)

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: The port is taken.
            RuntimeError: It listens already.
            StateFileError: The state file cannot be used.

        Example:
            >>> other = Sandbox()
            >>> run(other.start())
            >>> other.base_url == sandbox.base_url
            False
            >>> run(other.stop())
        """
        if self._runner is not None:
            raise RuntimeError(f"the sandbox listens already, at {self._address}")
        self._ending = asyncio.Event()
        self._runner = web.AppRunner(
            self._application(), access_log=None, logger=quiet_logger(), shutdown_timeout=1
        )
        try:
            with self._engine.lock:
                self._engine.customers.open()
            await self._runner.setup()
            self._listening = await asyncio.get_running_loop().create_server(
                cast("web.Server", self._runner.server), self._host, self._port, reuse_address=True
            )
        except BaseException:
            await self.stop()
            raise
        host, port = self._listening.sockets[0].getsockname()[:2]
        self._address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def _application(self) -> web.Application:
        app = web.Application(client_max_size=LARGEST_BODY)
        Service(self._engine, self.shop_id, self.auth_token, self._ending).add_routes(app)
        is_own = bool if self._allow_remote else is_loopback
        Web(self._engine, self.shop_id, self._shop_url, self._ending, is_own).add_routes(app)
        return app

    async def stop(self) -> None:
        """Listen no more; what was remembered is kept for as long as the object lives."""
        runner, self._runner = self._runner, None
        self._address = ""
        if runner is not None:
            self._ending.set()
            try:
                await self._hang_up()
                await runner.cleanup()
            finally:
                with self._engine.lock:
                    self._engine.customers.close()

    async def _hang_up(self) -> None:
        server, self._listening = self._listening, None
        if server is None:
            return
        # A connection that is accepted while its server closes would be left open by asyncio: let those
        # that are on their way in come in, and then none any more.
        with suppress(NotImplementedError):  # Windows' loop has no readers
            for listening in server.sockets:
                asyncio.get_running_loop().remove_reader(listening)
        for _ in range(3):  # accepted, made, known
            await asyncio.sleep(0)
        server.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


async def serve(sandbox: Sandbox, *, open_page: bool = False) -> None:
    """Run a sandbox until Ctrl-C or SIGTERM, and say where it is.

    Args:
        sandbox: Not started yet.
        open_page: Show the inspector in the browser.

    Raises:
        OSError: The port is taken.
        ValueError: The state file cannot be used.
    """
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # Windows: Ctrl-C raises KeyboardInterrupt there
            loop.add_signal_handler(number, ended.set)
    async with sandbox:
        print(  # noqa: T201  (what a command is for)
            f"sandbox ready at {sandbox.base_url}\n"
            f"  shop id      {sandbox.shop_id}\n"
            f"  X-Auth-Token {sandbox.auth_token}\n"
            f"  inspector    {sandbox.base_url}/_sandbox/\n"
            "stop it with Ctrl-C",
            flush=True,
        )
        if open_page:
            await asyncio.to_thread(webbrowser.open, f"{sandbox.base_url}/_sandbox/")
        await ended.wait()
