"""`Sandbox`, the local service."""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, cast

from aiohttp import web

from loanasync._models.classes import LazyModule
from loanasync.sandbox import safety
from loanasync.sandbox.customers import Customers, normalize_fiscal_code
from loanasync.sandbox.engine import Engine
from loanasync.sandbox.faults import Faults
from loanasync.sandbox.journal import Journal
from loanasync.sandbox.linter import Finding, Linter
from loanasync.sandbox.service import MAX_BODY, Service
from loanasync.sandbox.web import Web

if TYPE_CHECKING:
    from loanasync import _client as sdk
else:
    sdk = LazyModule("loanasync._client")


Description = Literal["street_number", "civic_number"]
_OMITTED: Any = ...  # the default of an optional argument for which None is an error


class Sandbox:
    """A local HTTP server that implements the service of the specification.

    Use it as an async context manager in a running event loop, or with `in_thread`.
    Calls, findings and faults stay available after a stop.

    Args:
        host: Address to listen on; a loopback address, unless `allow_remote` is True.
        port: Port to listen on; 0 selects a free port.
        shop_id: Identifier of the one shop that the sandbox serves.
        auth_token: Token of the shop. Use a made-up one, never a real one.
        dialect: Accept only one description of the approval, ``street_number`` or ``civic_number``; None
            accepts both.
        state: Path of an SQLite file that stores the customers; None keeps them in memory.
        faults: Faults for `fault`, such as ``500after:0.1``.
        seed: Seed of the faults' random choices. The same seed gives the same outcomes.
        journal: Number of calls to keep.
        customers: Number of customers to remember. When there are more, the oldest are forgotten.
        shop_url: URL or path of the link "Back to the shop" on the customer's page; None shows no link.
        allow_remote: Allow a host that is not a loopback address. The sandbox has no access control.
        refusal: Status of a refusal, 422 or 201 (spec §3, §4.1).
        validation: Status of validation errors, 400 or 422 (spec §7).
        evaluates: Whether each ``customer`` or each ``order`` token is evaluated once (spec §3).

    Raises:
        TypeError: An argument has the wrong type; the message names it.
        ValueError: An argument is not valid; the message names it.

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
        auth_token: str = "sandbox-token",  # noqa: S107  (made up; not valid anywhere else)
        dialect: Description | None = None,
        state: str | Path | None = None,
        faults: Iterable[str] = (),
        seed: int = 0,
        journal: int = 1000,
        customers: int = 10_000,
        shop_url: str | None = None,
        allow_remote: bool = False,
        refusal: Literal[422, 201] = 422,
        validation: Literal[400, 422] = 400,
        evaluates: Literal["customer", "order"] = "customer",
    ) -> None:
        texts = {"host": host, "shop_id": shop_id, "auth_token": auth_token, "shop_url": shop_url or ""}
        safety.require_type(str, **texts)
        safety.require_type(int, port=port, seed=seed, journal=journal, customers=customers)
        safety.check_host(host, allow_remote=allow_remote)
        safety.check_token(auth_token)
        safety.check_shop(shop_id, shop_url)
        if shop_id == auth_token:
            raise ValueError("shop_id and auth_token are equal: use another one, the shop_id is in the URL")
        for name, value, choices in (
            ("dialect", dialect, (None, "street_number", "civic_number")),
            ("refusal", refusal, (422, 201)),
            ("validation", validation, (400, 422)),
            ("evaluates", evaluates, ("customer", "order")),
        ):
            if value not in choices:
                raise ValueError(f"{name} {value!r} must be one of {', '.join(map(repr, choices))}")
        if min(journal, customers) < 1:
            raise ValueError(f"journal {journal} and customers {customers} must be 1 or more")
        self.shop_id = shop_id
        self.auth_token = auth_token
        self._host = host
        self._port = port
        self._shop_url = shop_url
        self._allow_remote = allow_remote
        self._runner: web.AppRunner | None = None
        self._listening: asyncio.Server | None = None
        self._address = ""
        if state is not None and str(state) in ("", ":memory:"):
            # SQLite would use a temporary database.
            raise ValueError(f"state {str(state)!r} is not a file: pass a path, or omit it to store nothing")
        self._engine = Engine(
            customers=Customers(customers, state),
            faults=Faults(faults, seed),
            linter=Linter(auth_token),
            journal=Journal(journal),
            dialect=dialect,
            refusal=refusal,
            rejection=validation,
            by_order=evaluates == "order",
        )

    @property
    def base_url(self) -> str:
        """URL of the running sandbox, such as ``http://127.0.0.1:8080``.

        Raises:
            RuntimeError: The sandbox is not running.
        """
        if not self._address:
            raise RuntimeError("the sandbox is not running: start it with `async with Sandbox()`")
        return self._address

    @property
    def journal(self) -> Journal:
        """The journal of the calls to this sandbox."""
        return self._engine.journal

    @property
    def findings(self) -> list[Finding]:
        """The misuses of the protocol that were found, oldest first."""
        return list(self._engine.linter.findings)

    def fault(self, text: str, fiscal_code: str | None = None) -> None:
        """Set the outcome of some calls.

        If several faults match a call, the newest one applies. A fault takes precedence over the e-mail tag,
        but one of a lost connection or a delay keeps the decision of the tag.

        Args:
            text: The fault as ``[operation=]words[:rate]``: the operation of the calls, by default any; words
                as in an e-mail tag; the share of the calls, from 0 to 1. The choice depends on the sandbox's
                seed, the customer and the number of the call only.
            fiscal_code: Fiscal code of the customer; None for any.

        Raises:
            TypeError: An argument has the wrong type; the message names it.
            ValueError: An argument is not valid; the message names it.

        Example:
            >>> sandbox.fault("approve=refused", fiscal_code)
            >>> run(client.approve(fiscal_code, request)).approved
            False
        """
        code = None if fiscal_code is None else normalize_fiscal_code(fiscal_code)
        with self._engine.lock:
            self._engine.faults.add(text, code)
            self._engine.notify()

    def clear_faults(self) -> None:
        """Remove all faults, also those of ``faults=``.

        Example:
            >>> sandbox.clear_faults()
        """
        with self._engine.lock:
            self._engine.faults.clear()
            self._engine.notify()

    def reset(self, fiscal_code: str = _OMITTED) -> None:
        """Remove one customer; without an argument, remove all customers, calls, findings and faults.

        Args:
            fiscal_code: Fiscal code of the customer. None is an error, so that a missing code does not remove
                everything.

        Raises:
            KeyError: No call named this customer, or the customer was reset already.
            TypeError: The fiscal code is not a string.
            ValueError: The fiscal code is empty.

        Example:
            >>> decision = run(client.approve(fiscal_code, request))
            >>> sandbox.reset(fiscal_code)
            >>> created = run(client.create_request({"fiscalCode": fiscal_code}))
            >>> run(client.approve(fiscal_code, request)).approved
            True
        """
        forget = self._engine.customers.forget
        with self._engine.lock:
            if fiscal_code is _OMITTED:
                self._engine.reset()
            elif not any(map(forget, (normalize_fiscal_code(fiscal_code), fiscal_code))):
                raise KeyError("unknown fiscal code: no call has named this customer since the last reset")
            self._engine.notify()

    def client(self, **options: Unpack["sdk.ClientOptions"]) -> "sdk.LoanClient":
        """Return a `loanasync.LoanClient` for this sandbox.

        Args:
            options: Arguments of `loanasync.LoanClient`. Address and credentials are those of the sandbox.

        Example:
            >>> shop = sandbox.client(timeout=Timeout(total=10, attempt=5, connect=1))
            >>> run(shop.approve(fiscal_code, request)).approved
            True
            >>> run(shop.aclose())
        """
        from loanasync import LoanClient  # noqa: PLC0415  (the sandbox runs without the SDK)

        address: Any = {"base_url": self.base_url, "shop_id": self.shop_id, "auth_token": self.auth_token}
        client = LoanClient(**{**address, **options})
        client._set_for_tests()  # noqa: SLF001  (of this package)
        return client

    @classmethod
    def in_thread(cls, **options: Any) -> AbstractContextManager[Self]:
        """Run a sandbox in a separate thread, inside a ``with`` block.

        Use it for blocking clients, and for tests that use several event loops.

        Args:
            options: Arguments of `Sandbox`.

        Example:
            >>> with Sandbox.in_thread() as sandbox:
            ...     sandbox.base_url.startswith("http://127.0.0.1:")
            True
        """
        sandbox = cls(**options)  # raises for invalid options here, not in the with block
        return sandbox._in_thread()

    @contextmanager
    def _in_thread(self) -> Iterator[Self]:
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        loop = runner.get_loop()

        def serve() -> None:
            loop.run_forever()
            runner.close()

        thread = threading.Thread(target=serve, name="loanasync-sandbox", daemon=True)
        thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self.start(), loop).result()
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self.stop(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    async def start(self) -> Self:
        """Start the server in the running event loop.

        Returns:
            The sandbox, so that a notebook can write ``sandbox = await Sandbox().start()``.

        Raises:
            OSError: The port is in use.
            RuntimeError: The sandbox is already running.
            StateFileError: The state file cannot be used.

        Example:
            >>> other = run(Sandbox().start())
            >>> other.base_url == sandbox.base_url
            False
            >>> run(other.stop())
        """
        if self._runner is not None:
            raise RuntimeError(f"the sandbox is already running at {self._address}")
        self._stopping = asyncio.Event()
        app = web.Application(client_max_size=MAX_BODY)
        is_own_host = bool if self._allow_remote else safety.is_loopback
        Service(self._engine, self.shop_id, self.auth_token, self._stopping, is_own_host).add_routes(app)
        Web(self._engine, self.shop_id, self._shop_url, self._stopping, is_own_host).add_routes(app)
        self._runner = web.AppRunner(app, access_log=None, logger=safety.server_logger(), shutdown_timeout=1)
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
        return self

    async def stop(self) -> None:
        """Stop the server. Journal, findings and faults stay available, and `start` can follow.

        Example:
            >>> other = run(Sandbox().start())
            >>> run(other.stop())
        """
        runner, self._runner = self._runner, None
        self._address = ""
        if runner is not None:
            self._stopping.set()
            self._engine.notify()
            try:
                await self._close_listener()
                await runner.cleanup()
            finally:
                with self._engine.lock:
                    self._engine.customers.close()

    async def _close_listener(self) -> None:
        server, self._listening = self._listening, None
        if server is None:
            return
        # asyncio does not close connections that are accepted while the server closes. So stop accepting,
        # let pending connections finish their set-up, then close the server.
        with suppress(NotImplementedError):  # the event loop on Windows has no readers
            for listening in server.sockets:
                asyncio.get_running_loop().remove_reader(listening)
        for _ in range(3):  # accept, create the transport, register it
            await asyncio.sleep(0)
        server.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __repr__(self) -> str:
        if not self._address:
            return "<Sandbox that is not running>"
        return f"<Sandbox at {self._address}, inspector: {self._address}/_sandbox/>"

    def _repr_html_(self) -> str:
        if not self._address:
            return escape(repr(self))
        address = escape(self._address)
        return f'Sandbox at {address}: <a href="{address}/_sandbox/" target="_blank">open the inspector</a>'
