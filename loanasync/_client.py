"""`LoanClient`: the four calls of the service, `approve_many`, and the client's lifetime."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from copy import copy
from typing import TYPE_CHECKING, Self, cast

from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from loanasync._config import Options, configure, from_environment, require, slots_of
from loanasync._display.masking import JSON, AnyJSON
from loanasync._lifecycle import Closing, unclosed_warning
from loanasync._models.dialect import Dialect
from loanasync._models.requests import ApprovalRequest, UserData
from loanasync._protocol.endpoints import (
    APPROVE,
    COMPLETE,
    CREATE_REQUEST,
    UPLOAD_DOCUMENTS,
    Call,
    Outcome,
)
from loanasync._results import Decision, Problem
from loanasync._runtime.memory import Memory
from loanasync._runtime.pipeline import Pipeline
from loanasync._runtime.retry import Quota
from loanasync._settings import Limits, RetryPolicy, Timeout
from loanasync._telemetry.propagation import Propagate
from loanasync._telemetry.spans import Telemetry
from loanasync._transport.base import opener_of
from loanasync._transport.sessions import opener
from loanasync._validation import rules
from loanasync.errors import ConfigurationError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Iterable

    import aiohttp

    from loanasync._transport.base import Clock, Transport
    from loanasync._transport.tls import Trust
    from loanasync.bulk import Approvals, Progress, RowLike
    from loanasync.ledger import DecisionLedger, LedgerPolicy
    from loanasync.ledger.recorder import LedgerRecorder


class LoanClient(Closing):
    """A shop's access to the service (spec §4), for as many calls at once as it likes.

    It can be made anywhere, also before a loop runs; sessions are opened on first use, one for each event
    loop. Close it with `aclose`, or use it as ``async with LoanClient(...) as client``.

    Args:
        base_url: Address of the environment, sandbox or production; https, or http on this machine.
        shop_id: Identifier of the shop (spec §5).
        auth_token: Value of ``X-Auth-Token`` (spec §5).
        dialect: Spellings and requirements of the approval call, where its two descriptions differ.
        limits: The limits that requests are checked against.
        retry: When a call answered with 500 is repeated.
        timeout: How long a call may take, seconds.
        session: Your aiohttp session, such as one with a proxy: used in its event loop, never
            closed or changed, without its middlewares. Its connector must check certificates.
        transport: Called in each event loop for the `Transport` that sends the requests there, in place of
            aiohttp. Not with `session` or `ssl`.
        direct_connections: With False, each request goes through aiohttp's ``ClientSession.request``.
        max_concurrency: Calls at once per event loop. None: 100, or the limit of your session's connector.
        remember: Share one request between overlapping approvals, return a known decision again, and send
            nothing after an unknown outcome: 10,000 approvals of this process, for one hour.
        ledger: Stores decisions beyond this process, such as ``loanasync.ledger.SqliteLedger``; never closed.
        ledger_policy: A ``LedgerPolicy``: what becomes of unknown outcomes, keys, encryption.
        strict: Also verify the check letter of fiscal codes (needs the extra ``strict``).
        tracer_provider: OpenTelemetry's, if not the global one.
        meter_provider: OpenTelemetry's, if not the global one.
        propagate: What is sent of the trace: ``traceparent``, the ``global`` propagators', or ``off``.
        ssl: Path of a CA file (PEM) to trust in place of this machine's, or an ``ssl.SSLContext`` that checks
            certificates and host names. Not with `session`.
        clock: Time of deadlines, and of waits between attempts; for tests, as `loanasync.testing.Clock`.

    Raises:
        ConfigurationError: A setting cannot work; it is named.

    Example:
        >>> LoanClient("https://loans.example.com", shop_id="my-shop", auth_token="secret")
        LoanClient('https://loans.example.com', shop_id='my-shop', auth_token=***)
    """

    def __init__(
        self,
        base_url: str,
        *,
        shop_id: str,
        auth_token: str,
        dialect: Dialect = Dialect.street_number(),
        limits: Limits = Limits(),
        retry: RetryPolicy = RetryPolicy(),
        timeout: Timeout = Timeout(),
        session: "aiohttp.ClientSession | None" = None,
        transport: "Callable[[], Transport] | None" = None,
        direct_connections: bool = True,
        remember: bool = True,
        max_concurrency: int | None = None,
        ledger: "DecisionLedger | None" = None,
        ledger_policy: "LedgerPolicy | None" = None,
        strict: bool = False,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        propagate: Propagate = "traceparent",
        ssl: "Trust | None" = None,
        clock: "Clock | None" = None,
    ) -> None:
        try:
            shop = configure(base_url, shop_id, auth_token)
        finally:
            del base_url, auth_token  # secret, if only by mistake: must not stand in a traceback
        self._options = Options(
            shop=shop,
            dialect=dialect,
            limits=limits,
            retry=retry,
            timeout=timeout,
            strict=strict,
        )
        self._pipeline = Pipeline(
            opener(session, ssl, direct_connections=direct_connections)
            if transport is None
            else opener_of(transport, session, ssl),
            Telemetry(tracer_provider, meter_provider, propagate),
            Quota(retry.quota),
            slots_of(session, max_concurrency),
            on_unclosed=unclosed_warning() if session is None and transport is None else None,
            now=time.monotonic if clock is None else clock.now,
            sleep=asyncio.sleep if clock is None else clock.sleep,
        )
        require(bool, "remember", remember)
        self._recorder = _recorder(ledger, ledger_policy)
        # A ledger's calls share requests in any case: its entry belongs to one of them.
        has_memory = remember or self._recorder is not None
        self._memory = Memory(self._pipeline, self._recorder) if has_memory else None

    @classmethod
    def from_env(cls, **options: object) -> Self:
        """Make a client from LOANASYNC_BASE_URL, LOANASYNC_SHOP_ID and LOANASYNC_AUTH_TOKEN.

        None of them has a default, so that nothing points at production by accident.

        Args:
            options: The other arguments of `LoanClient`.

        Raises:
            ConfigurationError: A variable is not set, or its value cannot work.
        """
        try:
            return cls(**{**from_environment(os.environ), **options})  # type: ignore[arg-type]
        finally:
            del options  # a token may be among them: must not stand in a traceback

    def with_options(
        self,
        *,
        shop_id: str | None = None,
        auth_token: str | None = None,
        dialect: Dialect | None = None,
        limits: Limits | None = None,
        retry: RetryPolicy | None = None,
        timeout: Timeout | None = None,
        strict: bool | None = None,
    ) -> Self:
        """A light copy that shares sessions, retry quota and slots; closing either closes both.

        Args:
            shop_id: Another shop at the same address; give its token, too.
            auth_token: That shop's token.
            dialect: As for `LoanClient`, and so the others.
            limits: The limits that requests are checked against.
            retry: When a call answered with 500 is repeated; the quota stays the one of the client.
            timeout: How long a call may take, seconds.
            strict: Also verify the check letter of fiscal codes.

        Raises:
            ConfigurationError: A setting cannot work; it is named.

        Example:
            >>> patient = client.with_options(timeout=Timeout(total=120, attempt=90))
            >>> run(patient.approve(fiscal_code, request)).approved, patient.timeout.total
            (True, 120)
        """
        twin = copy(self)
        try:
            vars(twin)["_options"] = self._options.changed(
                shop_id=shop_id,
                auth_token=auth_token,
                dialect=dialect,
                limits=limits,
                retry=retry,
                timeout=timeout,
                strict=strict,
            )
        finally:
            del auth_token  # secret: must not stand in a traceback
        return twin

    @property
    def timeout(self) -> Timeout:
        """Limits of time for each call."""
        return self._options.timeout

    @property
    def ledger(self) -> "DecisionLedger | None":
        """The ledger, or None."""
        return None if self._recorder is None else self._recorder.ledger

    @property
    def ledger_policy(self) -> "LedgerPolicy | None":
        """The policy of the ledger, or None without a ledger.

        Example:
            >>> from loanasync.ledger import MemoryLedger
            >>> from loanasync.testing import scripted_client
            >>> scripted_client(ledger=MemoryLedger()).ledger_policy.unknown
            'hold'
        """
        return None if self._recorder is None else self._recorder.policy

    def entry_key(self, fiscal_code: str, *, scope: str = "", order_token: str | None = None) -> str:
        """Return the key of an approval's entry in the client's ledger.

        Entries that were written with one of the policy's `old_keys` have another key.

        Args:
            fiscal_code: The customer's fiscal code, 16 letters and digits; trimmed, in either case.
            scope: As given to `approve`.
            order_token: That of the request; needed with ``LedgerPolicy(scope="order_token")``.

        Raises:
            ConfigurationError: The client has no ledger.
            InvalidRequestError: The fiscal code breaks a rule, or the order token is missing.

        Example:
            >>> from loanasync.ledger import MemoryLedger
            >>> from loanasync.testing import approved, scripted_client
            >>> async def example() -> str:
            ...     async with scripted_client(approved(), ledger=MemoryLedger()) as shop:
            ...         await shop.approve(fiscal_code, request)
            ...         entry = await shop.ledger.get(shop.entry_key(fiscal_code))
            ...         return entry.state
            >>> run(example())
            <State.APPROVED: 'approved'>
        """
        if self._recorder is None:
            raise ConfigurationError("ledger", "is missing: give LoanClient a ledger")
        problems = tuple(rules.check_fiscal_code(fiscal_code, strict=self._options.strict))
        if problems:
            del fiscal_code, order_token  # personal: must not stand in a traceback
            raise InvalidRequestError(problems)
        code = rules.normalize_fiscal_code(fiscal_code)
        key = self._recorder.entry_key(self._options.shop, code, scope, order_token)
        del fiscal_code, code, order_token  # as above
        if isinstance(key, InvalidRequestError):
            raise InvalidRequestError(key.problems)
        return key

    def check(
        self,
        fiscal_code: str,
        request: ApprovalRequest | UserData,
        *,
        additional_data_needed: bool = False,
    ) -> tuple[Problem, ...]:
        """Name every rule that a request breaks (spec §2, §8), without any I/O: for checkout forms.

        Args:
            fiscal_code: The customer's fiscal code, 16 letters and digits; trimmed, in either case.
            request: What would be sent, to `approve` or to `complete`.
            additional_data_needed: Whether the service asked for the conditional block (spec §2.1).

        Returns:
            The problems, empty when the request may be sent.

        Example:
            >>> import attrs
            >>> for problem in client.check(fiscal_code, attrs.evolve(request, amount=450, province="Roma")):
            ...     print(problem)
            amount: must be between 5000 and 1500000 (euro cents)
            province: must be two upper-case letters, such as RM
        """
        endpoint = COMPLETE if isinstance(request, UserData) else APPROVE
        return endpoint.problems(
            self._options, fiscal_code, request, additional_data_needed=additional_data_needed
        )

    async def create_request(
        self,
        payload: Mapping[str, JSON],
        *,
        timeout: Timeout | None = None,
        retry: RetryPolicy | None = None,
    ) -> AnyJSON:
        """Create a request, before its approval is asked for (spec §1.1, §4.3).

        The specification leaves both shapes open. The payload is a JSON object (spec §4); the response may
        be any JSON value: an object comes as a read-only mapping, an array as a read-only sequence, and an
        empty body as an empty mapping.

        Args:
            payload: The body, sent as it is.
            timeout: Instead of the client's.
            retry: Instead of the client's.

        Raises:
            InvalidRequestError: The payload is no JSON object; nothing was sent.
            ServiceError: The service answered with an error.
            UnexpectedResponseError: The response is not JSON.
            TransportError: No answer came.

        Example:
            >>> created = run(client.create_request({"fiscalCode": "TSTXYZ00A00A000B"}))
            >>> created["fiscalCode"]
            'TSTXYZ00A00A000B'
        """
        call = CREATE_REQUEST.prepare(self._options, "", payload)
        del payload  # personal: must not stand in a traceback
        return cast("AnyJSON", await self._run(call, timeout, retry))

    async def approve(
        self,
        fiscal_code: str,
        request: ApprovalRequest,
        *,
        additional_data_needed: bool = False,
        scope: str = "",
        repeat_unknown: bool = False,
        timeout: Timeout | None = None,
        retry: RetryPolicy | None = None,
    ) -> Decision:
        """Request the approval of a created request (spec §4.1); it touches the person's credit history.

        It may be requested once; a refusal is a result, and final. Calling again with the same data is safe.
        If the call is cancelled after the request was sent, the response is still read and remembered.

        Args:
            fiscal_code: The customer's fiscal code, 16 letters and digits; trimmed, in either case.
            request: What is to be financed, and for whom; `amount` in euro cents.
            additional_data_needed: Whether the service asked for the conditional block (spec §2.1).
            scope: Distinguishes applications of one customer, such as an order's number; nothing personal.
            repeat_unknown: Send the request although an earlier one, with unknown outcome, may be evaluated.
            timeout: Instead of the client's.
            retry: Instead of the client's.

        Returns:
            `Approved` (201) or `Refused` (422).

        Raises:
            InvalidRequestError: Rules are broken; nothing was sent.
            ServiceError: The service answered with an error; its subclasses tell which.
            UnexpectedResponseError: The response is outside the specification.
            TransportError: No response arrived; see its `outcome`.
            OutcomeUnknownError: An earlier request has an unknown outcome; nothing was sent.
            PayloadMismatchError: Other data of this customer are in progress, or in the ledger.
            LedgerError: The ledger prevents the call, or could not be written.

        Example:
            >>> decision = run(client.approve(fiscal_code, request))
            >>> decision.approved, decision.amount, decision.meta.status
            (True, 45000, 201)
        """
        call = APPROVE.prepare(
            self._options, fiscal_code, request, additional_data_needed=additional_data_needed, scope=scope
        )
        del fiscal_code, request  # personal: must not stand in a traceback
        return cast("Decision", await self._run(call, timeout, retry, scope, repeat_unknown=repeat_unknown))

    def approve_many(
        self,
        rows: "Iterable[RowLike] | AsyncIterable[RowLike]",
        *,
        concurrency: int = 64,
        rate: float | None = None,
        ordered: bool = False,
        progress: "Progress" = None,
        timeout: Timeout | None = None,
        retry: RetryPolicy | None = None,
    ) -> "Approvals":
        """Ask for the approval of many customers; a result for each row, whatever becomes of it.

        Memory stays flat, however many rows there are: a row is taken when its call begins, and at most
        twice `concurrency` are taken and not read, so that a slow reader stops the sending. What rows or
        `progress` raise ends the sending; it is raised when all that was under way has been read. A
        CancelledError, GeneratorExit, StopIteration or StopAsyncIteration is raised as a RuntimeError.

        Args:
            rows: Pairs ``(fiscal_code, ApprovalRequest)``, or a `loanasync.bulk.Row` with more; any iterable,
                or an asynchronous one. Rows that break rules are not sent.
            concurrency: Calls at once; more than ``max_concurrency`` of the client wait for each other.
            rate: Calls that begin in a second, evenly spread; retries after a 500 are not counted.
            ordered: Results in the order of the rows. One that takes long holds back those after it.
            progress: True shows a bar (extra ``notebook``); or a function that is called with each
                `loanasync.bulk.RowResult` as soon as its answer has come.
            timeout: Of each call, instead of the client's.
            retry: Of each call, instead of the client's.

        Returns:
            `loanasync.bulk.Approvals`: iterate it with ``async for``, best within ``async with``.

        Raises:
            ConfigurationError: An argument cannot work; it is named.

        Example:
            >>> async def ask_all(rows):
            ...     async with client.approve_many(rows, concurrency=8) as results:
            ...         return [(result.index, result.status) async for result in results]
            >>> run(ask_all([(fiscal_code, request), ("RSSMRA", request)]))
            [(1, 'rejected'), (0, 'approved')]
        """
        from loanasync.bulk import Approvals  # noqa: PLC0415  (loaded only by clients that use it)

        return Approvals(
            self.approve,
            rows,
            concurrency=concurrency,
            rate=rate,
            ordered=ordered,
            progress=progress,
            timeout=timeout,
            retry=retry,
        )

    async def upload_documents(
        self,
        fiscal_code: str,
        payload: Mapping[str, JSON],
        *,
        timeout: Timeout | None = None,
        retry: RetryPolicy | None = None,
    ) -> AnyJSON:
        """Hand in the customer's documents, before `complete` (spec §1.4, §4.3).

        The specification leaves both shapes open. Payload and response are those of `create_request`: a
        JSON object is sent, and any JSON value is returned.

        Args:
            fiscal_code: The customer's fiscal code.
            payload: The body, sent as it is.
            timeout: Instead of the client's.
            retry: Instead of the client's.

        Raises:
            InvalidRequestError: The fiscal code or the payload cannot be; nothing was sent.
            ServiceError: The service answered with an error.
            UnexpectedResponseError: The response is not JSON.
            TransportError: No answer came.

        Example:
            >>> run(client.upload_documents(fiscal_code, {"front": "..."}))
            <Body of 2 members>
        """
        call = UPLOAD_DOCUMENTS.prepare(self._options, fiscal_code, payload)
        del fiscal_code, payload  # personal: must not stand in a traceback
        return cast("AnyJSON", await self._run(call, timeout, retry))

    async def complete(
        self,
        fiscal_code: str,
        data: UserData,
        *,
        timeout: Timeout | None = None,
        retry: RetryPolicy | None = None,
    ) -> UserData:
        """Complete an approved customer's data by interface (spec §4.2), after `upload_documents`.

        Args:
            fiscal_code: The customer's fiscal code.
            data: The additional user data (spec §2.2).
            timeout: Instead of the client's.
            retry: Instead of the client's.

        Returns:
            The data as the service saved it. A member that cannot be read is None and named in
            ``unread``: a 200 means that the data are saved, whatever the body says (spec §4.2).

        Raises:
            InvalidRequestError: Rules are broken; nothing was sent.
            ServiceError: The service answered with an error; its subclasses tell which.
            UnexpectedResponseError: The body is not a JSON object. ``outcome`` ``done``: it was saved.
            TransportError: No response arrived; see its `outcome`.

        Example:
            >>> approved = run(client.approve(fiscal_code, request))
            >>> _ = run(client.upload_documents(fiscal_code, {"front": "..."}))
            >>> run(client.complete(fiscal_code, UserData(profession="baker"))).profession
            'baker'
        """
        call = COMPLETE.prepare(self._options, fiscal_code, data)
        del fiscal_code, data  # personal: must not stand in a traceback
        return cast("UserData", await self._run(call, timeout, retry))

    async def _run(
        self,
        call: Call | InvalidRequestError,
        timeout: Timeout | None,
        retry: RetryPolicy | None,
        scope: str | None = None,
        *,
        repeat_unknown: bool = False,
    ) -> Outcome:
        if isinstance(call, InvalidRequestError):
            # Another one, since the frames above have this one: they and it would hold each other.
            raise InvalidRequestError(call.problems)
        options = self._options
        if timeout is not None or retry is not None:
            options = options.changed(timeout=timeout, retry=retry)
        if self._memory is None or scope is None:
            return await self._pipeline.run(call, options.timeout, options.retry)
        return await self._memory.approve(
            call, options.timeout, options.retry, scope, repeat_unknown=repeat_unknown
        )

    async def aclose(self) -> None:
        """Take no more calls, wait for those under way, and close what was opened; again does nothing.

        Calls still in progress after ``timeout.total`` seconds end with the error of their state.
        """
        try:
            await self._pipeline.aclose(self._options.timeout.total)
        finally:  # also if a transport of the user's cannot be closed
            if self._memory is not None:
                await self._memory.aclose()
            if self._recorder is not None:
                await self._recorder.aclose()

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Close the client when a web application ends, once the calls under way are through.

        It goes to the application as it is: ``FastAPI(lifespan=client.lifespan)``, and so to Starlette;
        ``Litestar(..., lifespan=[client.lifespan])``.

        Args:
            app: The application, which hands itself over; nothing is asked of it.

        Example:
            >>> async def application() -> None:
            ...     async with client.lifespan():
            ...         print("serving")
            >>> run(application())
            serving
        """
        del app
        async with self:
            yield

    cleanup_ctx = lifespan  # aiohttp's name: app.cleanup_ctx.append(client.cleanup_ctx)

    def close(self, within: float | None = None) -> None:
        """Close the client from outside of any event loop, such as in a fixture of a test suite.

        Connections of event loops that do not run are closed there. `aclose` also releases the claims of a
        ledger whose request was never sent, and is to be preferred.

        Args:
            within: Seconds for calls in progress; None: ``timeout.total`` of the client.

        Raises:
            RuntimeError: An event loop is running: use ``await client.aclose()``.

        Example:
            >>> from loanasync.testing import scripted_client
            >>> scripted_client().close()
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._pipeline.close_from_outside(self._options.timeout.total if within is None else within)
        else:
            raise RuntimeError("close() cannot wait within an event loop: use `await client.aclose()`")

    def __repr__(self) -> str:
        if not hasattr(self, "_options"):  # its settings were refused, and a traceback prints it all the same
            return "LoanClient(...)"
        shop = self._options.shop
        return f"LoanClient({shop.base_url!r}, shop_id={shop.shop_id!r}, auth_token=***)"


def _recorder(ledger: object, policy: object) -> "LedgerRecorder | None":
    if ledger is None and policy is None:
        return None
    from loanasync.ledger.recorder import LedgerRecorder  # noqa: PLC0415  (it brings SQLite)

    return LedgerRecorder(ledger, policy)
