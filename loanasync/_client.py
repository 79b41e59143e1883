"""`LoanClient`, the client of the service."""

import asyncio
import math
import os
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from logging import WARNING
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, TypedDict, Unpack

import aiohttp

from loanasync._environment import ledger_variables, shop_settings
from loanasync._models.classes import Closing, LazyModule, unclosed_warning
from loanasync._models.decisions import Decision, Known, Problems
from loanasync._models.masking import JSON, AnyJSON
from loanasync._models.requests import ApprovalRequest, UserData
from loanasync._protocol import rules
from loanasync._protocol.endpoints import (
    APPROVE,
    COMPLETE,
    CREATE_REQUEST,
    KNOWN,
    UPLOAD_DOCUMENTS,
    Call,
    prepare_options,
)
from loanasync._runtime.breaker import Breaker
from loanasync._runtime.flights import MEMORIES, Flights
from loanasync._runtime.pipeline import Pipeline
from loanasync._runtime.retry import Quota
from loanasync._settings import (
    CircuitBreaker,
    Dialect,
    Limits,
    Options,
    RetryPolicy,
    Telemetry,
    Timeout,
    require,
    require_wait,
    slot_count,
)
from loanasync._shop import AuthToken, configure
from loanasync._telemetry.log import log
from loanasync._telemetry.spans import Instruments
from loanasync._transport.base import Clock, Transport
from loanasync._transport.selection import proxy_of, transport_factory, user_transport_factory
from loanasync._transport.tls import Trust
from loanasync.errors import (
    ClientClosedError,
    ConfigurationError,
    InvalidRequestError,
    LedgerUnavailableError,
    LoanError,
)

if TYPE_CHECKING:
    from loanasync import bulk
    from loanasync import ledger as ledgers
    from loanasync.ledger.guard import LedgerGuard
else:
    bulk, ledgers = LazyModule("loanasync.bulk"), LazyModule("loanasync.ledger")


class ClientOptions(TypedDict, total=False):
    """The arguments of `LoanClient`, for the annotations of `LoanClient.from_env`."""

    base_url: str
    shop_id: str
    auth_token: AuthToken
    dialect: Dialect
    limits: Limits
    retry: RetryPolicy
    timeout: Timeout
    breaker: CircuitBreaker | None
    session: aiohttp.ClientSession | None
    transport: Callable[[], Transport] | None
    direct_connections: bool
    proxy: str | None
    max_concurrency: int | None
    ledger: "ledgers.Ledger | None"
    ledger_policy: "ledgers.LedgerPolicy | None"
    strict: bool
    telemetry: Telemetry
    ssl: Trust | None


class LoanClient(Closing):
    """Async client of the service for one shop (spec §4).

    A client can be created before an event loop runs. It can be used in several event loops and opens one
    session in each of them, on first use. Close it with `aclose`, or use it in an ``async with`` block.
    Entering the block checks the ledger and opens the session; otherwise the first call does.

    A client cannot be copied or pickled. Create one in each process. Without a ledger, the clients of one
    process share the memory of approvals, also after a client was closed. Clients with `session` share that
    of their session, and a client with `transport` has its own.

    Args:
        base_url: URL of the environment, sandbox or production. It must use https, or http to
            ``localhost``, 127.0.0.1 or [::1].
        shop_id: Identifier of the shop (spec §5).
        auth_token: Value of the header ``X-Auth-Token`` (spec §5), or a function that returns it. The
            function may be async. It is called before each request, also before retries, in the event loop of
            the call. If it raises an exception or returns no valid token, nothing is sent, and the call ends
            with a `ConnectError`. Its time counts towards ``Timeout.total``.
        dialect: Field names and required fields of `approve`, where its two descriptions differ.
        limits: Limits that requests are checked against.
        retry: Retries after HTTP status 500.
        timeout: Time limits of each call, seconds.
        breaker: Pause of approvals while the service decides none, shared with the copies of the client. None
            turns it off.
        session: Your aiohttp session. The client uses its connector and its default headers. Its
            hooks, middlewares and cookie jar are not used, and it is neither closed nor changed. Its
            connector must check certificates. A session with a proxy, credentials or ``trust_env`` is
            refused.
        transport: Function that returns a `Transport`, called once per event loop. The transport sends the
            requests instead of aiohttp. Cannot be combined with `session`, `proxy` or `ssl`. If the function
            has an attribute `clock`, such as a `loanasync.testing.Clock`, the client uses that clock for
            deadlines and for waits between attempts.
        direct_connections: Write requests directly to connections, which is faster. If False, send each
            request with aiohttp's ``ClientSession.request``. This is also used if aiohttp lacks a name
            that the direct way needs, and while a mock replaces the methods that send.
        proxy: URL of an HTTP proxy that tunnels the connections, or ``env`` to read the environment's
            ``https_proxy`` and ``no_proxy``. The URL may contain a user name and a password. Cannot be
            combined with `session`.
        max_concurrency: Maximum number of concurrent calls per event loop. By default 100, or the limit of
            your session's connector.
        ledger: Store for decisions that outlives the process, such as ``loanasync.ledger.SqliteLedger``. The
            client does not close it, unless `from_env` opened it.
        ledger_policy: A ``LedgerPolicy``: treatment of unknown outcomes, keys and encryption.
        strict: Also verify the check letter of fiscal codes. Requires the extra ``strict``.
        telemetry: OpenTelemetry's providers, by default the global ones, and the trace headers to send.
        ssl: Path of a CA file (PEM) to trust instead of the system's certificates, or an ``ssl.SSLContext``
            that checks certificates and host names. Cannot be combined with `session`.

    Raises:
        ConfigurationError: A setting is invalid; the error names it.

    Example:
        >>> LoanClient("https://loans.example.com", shop_id="my-shop", auth_token="secret")
        LoanClient('https://loans.example.com', shop_id='my-shop', auth_token=***)
    """

    def __init__(
        self,
        base_url: str,
        *,
        shop_id: str,
        auth_token: AuthToken,
        dialect: Dialect = Dialect.street_number(),
        limits: Limits = Limits(),
        retry: RetryPolicy = RetryPolicy(),
        timeout: Timeout = Timeout(),
        breaker: CircuitBreaker | None = CircuitBreaker(),
        session: aiohttp.ClientSession | None = None,
        transport: Callable[[], Transport] | None = None,
        direct_connections: bool = True,
        proxy: str | None = None,
        max_concurrency: int | None = None,
        ledger: "ledgers.Ledger | None" = None,
        ledger_policy: "ledgers.LedgerPolicy | None" = None,
        strict: bool = False,
        telemetry: Telemetry = Telemetry(),
        ssl: Trust | None = None,
    ) -> None:
        try:
            shop = configure(base_url, shop_id, auth_token)
            tunnel = proxy_of(proxy, shop.base_url)
        finally:
            # Secrets (a URL may contain one) must not be in a traceback.
            del base_url, auth_token, proxy
        self._options = Options(
            shop=shop,
            dialect=dialect,
            limits=limits,
            retry=retry,
            timeout=timeout,
            strict=strict,
        )
        open_transport = (
            transport_factory(session, ssl, tunnel, direct_connections=direct_connections)
            if transport is None
            else user_transport_factory(transport, session=session, ssl=ssl, proxy=tunnel)
        )
        require(Telemetry, "telemetry", telemetry)
        slots = slot_count(session, max_concurrency)
        if breaker is not None:
            require(CircuitBreaker, "breaker", breaker)
        self._ledger_guard = _ledger_guard(ledger, ledger_policy, shop.base_url)
        self._is_for_tests = False
        self._owns_ledger = False
        self._applications: list[object] = []  # in whose lifespan the client is; shared by its copies
        self._opens_session = session is None and transport is None
        clock: Clock | None = getattr(transport, "clock", None)
        self._pipeline = Pipeline(
            open_transport,
            Instruments(telemetry),
            Quota(retry.quota),
            slots,
            breaker=None if breaker is None else Breaker(breaker),
            on_unclosed=unclosed_warning() if self._opens_session else None,
            now=time.monotonic if clock is None else clock.now,
            sleep=asyncio.sleep if clock is None else clock.sleep,
        )
        memory = MEMORIES.of(session if ledger is None else ledger)
        self._flights = Flights(self._pipeline, self._ledger_guard, memory)
        if transport is not None:
            self._set_for_tests()

    @classmethod
    def from_env(cls, **options: Unpack[ClientOptions]) -> Self:
        """Create a client from environment variables, which have no defaults.

        The shop is LOANASYNC_BASE_URL, LOANASYNC_SHOP_ID and LOANASYNC_AUTH_TOKEN. The ledger is
        LOANASYNC_LEDGER: a file's path, or an address ``redis://`` or ``postgresql://``. Its policy has the
        key LOANASYNC_LEDGER_KEY, the old keys LOANASYNC_LEDGER_OLD_KEYS (separated by commas) and the cipher
        LOANASYNC_LEDGER_CIPHER (``module:object``). The client closes a ledger that it opened so.

        Arguments have precedence; None for `ledger` or `ledger_policy` is no argument. With `ledger`, the
        values of all variables of the ledger are ignored; with `ledger_policy`, those of its policy are only
        checked.

        Args:
            options: The arguments of `LoanClient`.

        Raises:
            ConfigurationError: A variable is not set, its value is invalid, or its name is mistyped.

        Example:
            >>> from unittest import mock
            >>> shop = {"LOANASYNC_BASE_URL": "https://loans.example.com", "LOANASYNC_SHOP_ID": "my-shop"}
            >>> with mock.patch.dict("os.environ", shop, LOANASYNC_AUTH_TOKEN="secret"):
            ...     LoanClient.from_env(timeout=Timeout(total=5))
            LoanClient('https://loans.example.com', shop_id='my-shop', auth_token=***)
        """
        arguments: dict[str, Any] = {}
        try:
            arguments = {**shop_settings(os.environ), **options}
            owns_ledger = bool(ledger_variables(os.environ)) and arguments.get("ledger") is None
            if owns_ledger:
                from loanasync.ledger.address import ledger_settings  # noqa: PLC0415  (imports SQLite)

                settings = ledger_settings(os.environ)
                arguments["ledger"] = settings.ledger
                arguments["ledger_policy"] = arguments.get("ledger_policy") or settings.policy
            client = cls(**arguments)
        finally:
            del options, arguments  # may contain a token: must not be in a traceback
        client._owns_ledger = owns_ledger
        return client

    def with_options(
        self,
        *,
        shop_id: str | None = None,
        auth_token: AuthToken | None = None,
        timeout: Timeout | None = None,
    ) -> Self:
        """Return a copy of this client for another shop, or with other time limits.

        Both share sessions, slots, retry quota, circuit breaker, ledger, and the memory of approvals. Closing
        one of them closes both.

        Args:
            shop_id: Identifier of another shop. Requires `auth_token`.
            auth_token: Token of that shop, or a function that returns it.
            timeout: Time limits of each call, seconds.

        Raises:
            ConfigurationError: A setting is invalid; the error names it.

        Example:
            >>> patient = client.with_options(timeout=Timeout(total=120, attempt=90))
            >>> run(patient.approve(fiscal_code, request)).approved, patient.timeout.total
            (True, 120)
        """
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        try:
            vars(other)["_options"] = self._options.with_changes(
                shop_id=shop_id, auth_token=auth_token, timeout=timeout
            )
        finally:
            del auth_token  # secret: must not be in a traceback
        return other

    def _set_for_tests(self) -> None:
        """Accept a MemoryLedger in workers. Without a ledger, remember approvals in this client only."""
        self._is_for_tests = True
        if self._ledger_guard is None:
            self._flights.shared = None

    @property
    def timeout(self) -> Timeout:
        """Time limits of each call."""
        return self._options.timeout

    @property
    def ledger(self) -> "ledgers.Ledger | None":
        """The ledger of the client, or None."""
        return None if self._ledger_guard is None else self._ledger_guard.ledger

    @property
    def ledger_policy(self) -> "ledgers.LedgerPolicy | None":
        """The policy of the ledger, or None without a ledger.

        Example:
            >>> from loanasync.ledger import MemoryLedger
            >>> from loanasync.testing import scripted_client
            >>> scripted_client(ledger=MemoryLedger()).ledger_policy.wait
            2.0
        """
        return None if self._ledger_guard is None else self._ledger_guard.policy

    async def resolve(
        self,
        fiscal_code: str,
        outcome: Literal["approved", "refused", "not_evaluated"],
        *,
        source: str,
        order_id: str = "",
        order_token: str | None = None,
        note: str = "",
    ) -> "ledgers.Entry":
        """Write the outcome of an approval to the ledger, as a webhook, a back office or a person states it.

        The call can be repeated, and may come before or after the service's response. It never changes a
        decision in the ledger. If the request is still in progress, it waits up to
        ``LedgerPolicy.patience`` seconds for the response, which has precedence.

        Other processes that wait for this approval continue. An approval that is resolved without a response
        has no redirect URL. `loanasync.ledger.resolve` writes all states, and corrects an entry.

        Args:
            fiscal_code: Fiscal code of the customer, 16 letters and digits in either case. It is trimmed.
            outcome: ``approved`` or ``refused``: the service's decision. ``not_evaluated``: the service
                did not evaluate the customer; the next call of `approve` sends the request. State it only
                about a request that has ended. It releases only the first request of an entry, because it may
                be delivered again after a later request.
            source: The source of the outcome, such as ``"webhook"``. It is stored, so it must not contain
                personal data.
            order_id: The `order_id` that was passed to `approve`.
            order_token: Order token of the request, as a statement of the service names it: finds the entry
                without its `order_id`.
            note: A text for people, such as a ticket number or the id of the webhook's event. It is stored,
                so it must not contain personal data.

        Returns:
            The current entry. Its state is the stated outcome.

        Raises:
            ConfigurationError: The client has no ledger.
            InvalidRequestError: An argument is invalid.
            NotResolvedError: The customer has no entry, or the entry contradicts the outcome. Nothing was
                written.
            InFlightError: The request is still in progress. Call again later.
            LedgerUnavailableError: The ledger is not available. Repeat the call.

        Example:
            >>> from loanasync.ledger import MemoryLedger
            >>> from loanasync.testing import connection_lost, scripted_client
            >>> async def example() -> None:
            ...     async with scripted_client(connection_lost(), ledger=MemoryLedger()) as shop:
            ...         try:
            ...             await shop.approve(fiscal_code, request)
            ...         except LoanError as error:
            ...             print(error.outcome)
            ...         await shop.resolve(fiscal_code, "refused", source="webhook", note="event 17")
            ...         print((await shop.approve(fiscal_code, request)).approved)
            >>> run(example())
            unknown
            False
        """
        if self._ledger_guard is None:
            del fiscal_code, order_token, note  # personal: must not be in a traceback
            raise ConfigurationError("ledger", "is missing; pass ledger=... to LoanClient")
        from loanasync.ledger.keys import Approval  # noqa: PLC0415  (only with a ledger)
        from loanasync.ledger.resolution import resolve_customer, statement_problems  # noqa: PLC0415  (likewise)

        problems = (
            *rules.check_fiscal_code(fiscal_code, strict=self._options.strict),
            *statement_problems(outcome, source, note, order_token),
            *rules.check_order_id(order_id),
        )
        if problems:
            del fiscal_code, order_token, note, source  # personal: must not be in a traceback
            raise InvalidRequestError(problems)
        code = rules.normalize_fiscal_code(fiscal_code)
        approval = Approval(self._options.shop.shop_id, code, order_id, order_token)
        del fiscal_code, code, order_token  # personal: must not be in a traceback
        result = await resolve_customer(self._ledger_guard, approval, outcome, source, note)
        del approval
        if isinstance(result, LoanError):
            raise type(result)(*result.args)  # a copy, without a reference cycle
        return result

    def check(
        self,
        fiscal_code: str,
        request: ApprovalRequest | UserData,
        *,
        additional_data_needed: bool = False,
    ) -> Problems:
        """Return all rules that a request breaks (spec §2, §8), without any I/O.

        Use it to validate a checkout form.

        Args:
            fiscal_code: Fiscal code of the customer, 16 letters and digits in either case. It is trimmed.
            request: An `ApprovalRequest` for `approve`, or `UserData` for `complete`.
            additional_data_needed: True if the service asked for the additional data (spec §2.1).

        Returns:
            The problems, empty if the request is valid. A notebook shows them as a table.

        Example:
            >>> import attrs
            >>> for problem in client.check(fiscal_code, attrs.evolve(request, amount=450, province="Roma")):
            ...     print(problem)
            amount: must be a whole number between 5000 and 1500000 (euro cents)
            province: must be two upper-case letters, such as RM
        """
        endpoint = COMPLETE if isinstance(request, UserData) else APPROVE
        _, problems = endpoint.checked(
            self._options, fiscal_code, request, additional_data_needed=additional_data_needed
        )
        return Problems(problems)

    async def create_request(
        self,
        payload: Mapping[str, JSON],
        *,
        timeout: Timeout | None = None,
        retry: RetryPolicy | None = None,
    ) -> AnyJSON:
        """Create a request (spec §1.1, §4.3). Call this before `approve`.

        The specification does not define the members of payload and response. The payload must be a JSON
        object (spec §4).

        Args:
            payload: The body, sent unchanged.
            timeout: Time limits of this call instead of the client's.
            retry: Retries of this call instead of the client's.

        Returns:
            The JSON value of the response. An object is a read-only mapping, an array is a read-only
            sequence, and an empty body is an empty mapping.

        Raises:
            InvalidRequestError: The payload is not a JSON object; no request was sent.
            ServiceError: The service responded with an error.
            UnexpectedResponseError: The response is not JSON.
            TransportError: No response arrived; see its `outcome`.

        Example:
            >>> created = run(client.create_request({"fiscalCode": "TSTXYZ00A00A000B"}))
            >>> created["fiscalCode"]
            'TSTXYZ00A00A000B'
        """
        call = CREATE_REQUEST.prepare(self._options, "", payload)
        del payload  # personal: must not be in a traceback
        result: AnyJSON = await self._start(call, timeout, retry)
        return result

    async def approve(
        self,
        fiscal_code: str,
        request: ApprovalRequest,
        *,
        additional_data_needed: bool = False,
        order_id: str = "",
        repeat_unknown: bool = False,
        wait: float | None = None,
        timeout: Timeout | None = None,
        retry: RetryPolicy | None = None,
    ) -> Decision:
        """Request the approval of a created request (spec §4.1).

        An approval affects the customer's credit history and can be requested only once. A refusal is a
        result and is final. Calling again with the same data is safe: the known decision is returned. If the
        call is cancelled after the request was sent, the response is still read and remembered.

        Args:
            fiscal_code: Fiscal code of the customer, 16 letters and digits in either case. It is trimmed.
            request: Data of the order and the customer. `amount` is in euro cents.
            additional_data_needed: True if the service asked for the additional data (spec §2.1).
            order_id: Number of the order, never of an attempt: each order is a separate approval. Without
                it the customer has one approval. An order whose outcome is open stops the customer's next
                one. It must not contain personal data.
            repeat_unknown: Send the request even if an earlier one has an unknown outcome and may have been
                evaluated.
            wait: Seconds to wait for another event loop or thread that is requesting the same approval, and
                with a ledger for another process, never longer than ``timeout.total``. By default
                ``LedgerPolicy.wait``, 2 seconds. It does not apply to calls that share one request.
            timeout: Time limits of this call instead of the client's.
            retry: Retries of this call instead of the client's.

        Returns:
            `Approved` (201), or `Refused` (422, in one description of the service 201).

        Raises:
            InvalidRequestError: The request breaks rules; no request was sent.
            ServiceError: The service responded with an error; its subclasses name the error.
            UnexpectedResponseError: The response does not follow the specification.
            TransportError: No response arrived; see its `outcome`.
            OutcomeUnknownError: An earlier request has an unknown outcome; no request was sent.
            PayloadMismatchError: This customer's approval was requested with other data or for another order.
            CircuitOpenError: The circuit breaker is open; no request was sent. Call again later.
            InFlightError: The approval is still being decided by another worker; no request was sent.
            LedgerError: The ledger prevents the call, or could not be written.

        Example:
            >>> decision = run(client.approve(fiscal_code, request))
            >>> decision.approved, decision.amount, decision.meta.status
            (True, 45000, 201)
        """
        call = APPROVE.prepare(
            self._options,
            fiscal_code,
            request,
            additional_data_needed=additional_data_needed,
            order_id=order_id,
            repeat_unknown=repeat_unknown,
            wait=wait,
        )
        del fiscal_code, request  # personal: must not be in a traceback
        decision: Decision = await self._start(call, timeout, retry)
        return decision

    async def known(self, fiscal_code: str, *, order_id: str = "", timeout: Timeout | None = None) -> Known:
        """Return what the ledger, or the memory of this process, knows of an approval. Send nothing.

        It needs no form, does not compare the data, and does not wait for a request in progress.

        Args:
            fiscal_code: Fiscal code of the customer, as for `approve`.
            order_id: The `order_id` of `approve`.
            timeout: Time limits of this call instead of the client's.

        Raises:
            InvalidRequestError: The fiscal code or the order is invalid.
            LedgerError: The ledger cannot be read, or does not fit this client.

        Example:
            >>> run(client.known(fiscal_code)).state
            'none'
            >>> _ = run(client.approve(fiscal_code, request))
            >>> run(client.known(fiscal_code)).state
            'approved'
        """
        options = self._options
        problems = (
            *rules.check_fiscal_code(fiscal_code, strict=options.strict),
            *rules.check_order_id(order_id),
        )
        try:
            if problems:
                raise self._pipeline.telemetry.not_begun("known", InvalidRequestError(problems, "known"))
            code = rules.normalize_fiscal_code(fiscal_code)
            call = Call(KNOWN, options.shop, code, b"{}", order_id=order_id)
            if timeout is not None:
                options = options.with_changes(timeout=timeout)
        finally:
            del fiscal_code  # personal: must not be in a traceback
        return await self._flights.read(
            call, options.timeout, options.retry, lambda guard, run: guard.known(run)
        )

    async def check_ledger(self) -> None:
        """Check that the ledger can be used and fits this client, for example in a readiness probe.

        It reads the header of the ledger, and creates and changes nothing. A ledger that the first call will
        create is in order. So is a client without a ledger. Entering a client checks the ledger, too: there
        a ledger that is not available is only a warning, and a header that is known is not read again.

        Raises:
            LedgerMismatchError: The ledger does not exist, belongs to another service, or has another key.
            LedgerUnavailableError: The ledger is not available.

        Example:
            >>> from loanasync.ledger import SqliteLedger
            >>> run(sandbox.client(ledger=SqliteLedger("/nowhere/decisions.db")).check_ledger())
            Traceback (most recent call last):
                ...
            loanasync.LedgerUnavailableError: check_ledger: the ledger is not available (FileNotFoundErro...
        """
        guard = self._ledger_guard
        error = None if guard is None else await guard.check_header(guard.policy.patience, again=True)
        if error is not None:
            raise error

    async def _approve_row(
        self,
        fiscal_code: str,
        request: ApprovalRequest,
        *,
        additional_data_needed: bool = False,
        order_id: str = "",
        wait: float,
        timeout: Timeout | None = None,
        retry: RetryPolicy | None = None,
    ) -> Decision:
        """Request an approval as `approve` does, and wait for the response even beyond ``timeout.total``."""
        call = APPROVE.prepare(
            self._options,
            fiscal_code,
            request,
            additional_data_needed=additional_data_needed,
            order_id=order_id,
            wait=wait,
        )
        del fiscal_code, request  # personal: must not be in a traceback
        decision: Decision = await self._start(call, timeout, retry, waits_for_response=True)
        return decision

    def approve_many(
        self,
        rows: "Iterable[bulk.RowLike] | AsyncIterable[bulk.RowLike]",
        *,
        concurrency: int = 64,
        stop_after: int | None = 20,
        rate: float | None = None,
        progress: "bulk.Progress" = None,
        wait: float = math.inf,
        timeout: Timeout | None = None,
        retry: RetryPolicy | None = None,
    ) -> "bulk.Approvals":
        """Request the approvals of many customers and return one result per row.

        Memory use does not depend on the number of rows. A row is read when its call starts. At most
        ``2 * concurrency`` rows are in progress or wait to be read, so reading slowly slows down the calls.

        The calls begin slowly: four at a time, and one more with each decision, up to `concurrency`. While
        the circuit breaker is open, rows wait, and one at a time tries again. After a first decision, they
        also wait, at most for an hour, if nothing can be sent, for example while the service restarts. If you
        stop the calls then, the rows that wait get the error that `Approvals.paused` has.

        An exception from `rows` or `progress` stops further calls. It is raised after you have read the
        results of all calls in progress. If it is a CancelledError, GeneratorExit, StopIteration or
        StopAsyncIteration, a RuntimeError is raised instead.

        Args:
            rows: Iterable or async iterable of pairs ``(fiscal_code, ApprovalRequest)`` or of
                `loanasync.bulk.Row`. Rows that break rules are not sent.
            concurrency: Maximum number of concurrent calls, also limited by the client's ``max_concurrency``.
            stop_after: Take no more rows after this number of rows in sequence without a decision, whatever
                their errors are. A RuntimeWarning and `Approvals.stopped` have the reason. Rows that the
                client or the ledger did not send, and rows that were in flight when the circuit breaker
                opened, are not counted. None: do not stop. A shop that the service refuses stops the calls
                after the first row, or five in sequence.
            rate: Maximum number of calls started per second, evenly spaced. Retries are not counted.
            progress: True to show a progress bar (extra ``notebook``), or a function that is called with each
                `loanasync.bulk.RowResult` as soon as its response has arrived.
            wait: With a ledger, seconds that a row waits for another process that is requesting it, at most
                until ``timeout.total``. In a notebook, pass 0 to see such rows at once.
            timeout: Time limits of each call instead of the client's.
            retry: Retries of each call instead of the client's.

        Returns:
            A `loanasync.bulk.Approvals`. Iterate over it with ``async for``, preferably in ``async with``, or
            call its `to_frame` for a pandas DataFrame.

        Raises:
            ConfigurationError: An argument is invalid; the error names it.

        Example:
            >>> async def approve_all(rows):
            ...     async with client.approve_many(rows, concurrency=8) as results:
            ...         return [(result.index, result.status) async for result in results]
            >>> run(approve_all([(fiscal_code, request), ("RSSMRA", request)]))
            [(1, 'rejected'), (0, 'approved')]
        """
        from loanasync.bulk import Approvals  # noqa: PLC0415  (loaded only by clients that use it)
        from loanasync.bulk.options import BulkOptions  # noqa: PLC0415  (likewise)
        from loanasync.bulk.turns import Turns  # noqa: PLC0415  (likewise)

        try:
            options = BulkOptions(
                concurrency=concurrency,
                stop_after=stop_after,
                rate=rate,
                progress=progress,
                wait=wait,
                timeout=timeout,
                retry=retry,
            )
            turns = Turns(self._pipeline.open_circuit, self._pipeline.sleep)
            return Approvals(self._approve_row, rows, options, turns)
        finally:
            del rows  # personal: must not be in a traceback

    async def upload_documents(
        self,
        fiscal_code: str,
        payload: Mapping[str, JSON],
        *,
        timeout: Timeout | None = None,
        retry: RetryPolicy | None = None,
    ) -> AnyJSON:
        """Upload the customer's documents (spec §1.4, §4.3). Call this before `complete`.

        The specification does not define the members of payload and response. The payload must be a JSON
        object (spec §4).

        Args:
            fiscal_code: Fiscal code of the customer.
            payload: The body, sent unchanged.
            timeout: Time limits of this call instead of the client's.
            retry: Retries of this call instead of the client's.

        Returns:
            The JSON value of the response, as for `create_request`.

        Raises:
            InvalidRequestError: The fiscal code or the payload is invalid; no request was sent.
            ServiceError: The service responded with an error.
            UnexpectedResponseError: The response is not JSON.
            TransportError: No response arrived; see its `outcome`.

        Example:
            >>> run(client.upload_documents(fiscal_code, {"front": "..."}))
            <Body of 2 members>
        """
        call = UPLOAD_DOCUMENTS.prepare(self._options, fiscal_code, payload)
        del fiscal_code, payload  # personal: must not be in a traceback
        result: AnyJSON = await self._start(call, timeout, retry)
        return result

    async def complete(
        self,
        fiscal_code: str,
        data: UserData,
        *,
        timeout: Timeout | None = None,
        retry: RetryPolicy | None = None,
    ) -> UserData:
        """Send the additional data of an approved customer (spec §4.2). Call `upload_documents` first.

        Args:
            fiscal_code: Fiscal code of the customer.
            data: The additional user data (spec §2.2).
            timeout: Time limits of this call instead of the client's.
            retry: Retries of this call instead of the client's.

        Returns:
            The data as saved by the service. A member that cannot be read is None and listed in ``unread``.
            Status 200 means that the data were saved, even if the body cannot be read (spec §4.2).

        Raises:
            InvalidRequestError: The data break rules; no request was sent.
            ServiceError: The service responded with an error; its subclasses name the error.
            UnexpectedResponseError: The body is not a JSON object. The data were saved (`outcome` is
                ``done``).
            TransportError: No response arrived; see its `outcome`.

        Example:
            >>> approved = run(client.approve(fiscal_code, request))
            >>> _ = run(client.upload_documents(fiscal_code, {"front": "..."}))
            >>> run(client.complete(fiscal_code, UserData(profession="baker"))).profession
            'baker'
        """
        call = COMPLETE.prepare(self._options, fiscal_code, data)
        del fiscal_code, data  # personal: must not be in a traceback
        saved: UserData = await self._start(call, timeout, retry)
        return saved

    def _start(
        self,
        call: Call | InvalidRequestError,
        timeout: Timeout | None,
        retry: RetryPolicy | None,
        *,
        waits_for_response: bool = False,
    ) -> Coroutine[Any, Any, Any]:  # the type of its result depends on the endpoint of the call
        """Return the coroutine that runs a call. It is not an `async def`, which would add a coroutine.

        Raises:
            InvalidRequestError: `call` is this error.
            ConfigurationError: A setting of the call is invalid.
        """
        telemetry, options = self._pipeline.telemetry, self._options
        if isinstance(call, InvalidRequestError):
            # Raise a copy: raising `call` itself would make a reference cycle with the frames above.
            raise telemetry.not_begun(call.operation or "", InvalidRequestError(*call.args))
        try:
            if timeout is not None or retry is not None:
                options = options.with_changes(timeout=timeout, retry=retry)
            if call.wait is not None:
                require_wait("wait", call.wait)
        except ConfigurationError as error:
            telemetry.not_begun(call.endpoint.operation, error)
            raise
        if call.endpoint is not APPROVE:
            return self._flights.call(call, options.timeout, options.retry)
        return self._flights.approve(
            call, options.timeout, options.retry, waits_for_response=waits_for_response
        )

    async def __aenter__(self) -> Self:
        if self._pipeline.is_closed:
            raise ClientClosedError
        # A web shop enters its client when it starts, so that no customer waits for this.
        prepare_options(self._options)
        if self._ledger_guard is not None:
            error = await self._ledger_guard.check_header(_CHECK_TIME)
            if isinstance(error, LedgerUnavailableError):  # it may work later
                log(WARNING, "%s; no request is sent until the ledger works", error)
            elif error is not None:
                raise error
        if self._opens_session:
            self._pipeline.open()
        return self

    async def aclose(self, within: float | None = None) -> None:
        """Wait for calls in progress, then close sessions and connections.

        New calls raise `ClientClosedError`. Calls still in progress after the wait end with an error. Calling
        `aclose` again has no effect; while another `aclose` is in progress, it waits for that.

        Args:
            within: Seconds to wait for calls in progress. None waits for ``timeout.longest`` of the client,
                or of a call with longer limits whose response is awaited.
        """
        drain = self._flights.longest(self._options.timeout, within)
        async with self._pipeline.closing(drain):
            try:
                await self._pipeline.aclose(drain)
            finally:  # even if closing a user's transport fails
                await self._flights.aclose()
                if self._ledger_guard is not None:
                    await self._ledger_guard.aclose()
                    if self._owns_ledger:
                        await self._ledger_guard.ledger.aclose()

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Load what the first call needs, and close the client when a web application shuts down.

        Pass this method to the application: ``FastAPI(lifespan=client.lifespan)``,
        ``Starlette(lifespan=client.lifespan)`` or ``Litestar(..., lifespan=[client.lifespan])``. In
        aiohttp.web, use ``app.cleanup_ctx.append(client.cleanup_ctx)``. If several applications use the
        client, the last one that shuts down closes it.

        Args:
            app: The application, passed by the framework and not used.

        Example:
            >>> async def application() -> None:
            ...     async with client.lifespan():
            ...         print("serving")
            >>> run(application())
            serving
        """
        self._applications.append(app)
        try:
            await self.__aenter__()
            yield
        finally:
            self._applications.pop()
            if not self._applications:
                await self.aclose()

    cleanup_ctx = lifespan  # aiohttp's name: app.cleanup_ctx.append(client.cleanup_ctx)

    def close(self, within: float | None = None) -> None:
        """Close the client without an event loop, for example in a pytest fixture.

        Connections of event loops that are not running are closed, too. Those of the ledger that `from_env`
        opened are closed with ``loop.shutdown_asyncgens()``, as `asyncio.run` does. Prefer `aclose` if you
        can: it also releases ledger claims of requests that were never sent.

        Args:
            within: Seconds to wait for calls in progress. None waits as long as `aclose` does.

        Raises:
            RuntimeError: An event loop is running. Use ``await client.aclose()``.

        Example:
            >>> from loanasync.testing import scripted_client
            >>> scripted_client().close()
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise RuntimeError("close() cannot be called in an event loop; use `await client.aclose()`")
        try:
            drain = self._flights.longest(self._options.timeout, within)
            self._pipeline.close_from_outside(drain)
        finally:
            if self._ledger_guard is not None and self._owns_ledger:
                loop = asyncio.new_event_loop()  # `asyncio.run` would unset the loop of this thread
                loop.run_until_complete(self._ledger_guard.ledger.aclose())
                loop.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "LoanClient cannot be copied or pickled: create one in each process; with_options() returns a "
            "light copy"
        )

    def __repr__(self) -> str:
        if not hasattr(self, "_options"):  # `__init__` raised, and the client is printed in its traceback
            return "LoanClient(...)"
        shop = self._options.shop
        return f"LoanClient({shop.base_url!r}, shop_id={shop.shop_id!r}, auth_token=***)"


_CHECK_TIME = 2.0  # seconds to check the ledger before the first call


def _ledger_guard(ledger: object, policy: object, service: str) -> "LedgerGuard | None":
    if ledger is None and policy is None:
        return None
    from loanasync.ledger.guard import LedgerGuard  # noqa: PLC0415  (imports SQLite)

    return LedgerGuard(ledger, policy, service)
