"""Errors contain no personal data, not even if messages of the service repeat it."""

import asyncio
import json
from collections.abc import Callable, Generator, Iterator
from datetime import date
from functools import partial
from itertools import product
from traceback import TracebackException
from typing import Any

import pytest

from faults_page import ROWS
from loanasync import (
    AccessDeniedError,
    AdditionalData,
    AlreadyEvaluatedError,
    ApprovalRequest,
    CannotCompleteError,
    CircuitBreaker,
    CircuitOpenError,
    ClientClosedError,
    ConfigurationError,
    DeadlineExceededError,
    Dialect,
    DomainError,
    InvalidFiscalCodeError,
    InvalidRequestError,
    LedgerError,
    LoanClient,
    LoanError,
    PoolTimeoutError,
    ReadTimeoutError,
    RejectedError,
    RetryPolicy,
    ServiceError,
    ShopNotAllowedError,
    SystemFaultError,
    Timeout,
    TransportError,
    UnexpectedResponseError,
    UnexpectedStatusError,
    UserData,
    UserNotFoundError,
    errors,
)
from loanasync._protocol.codec import write
from support.canned_server import response_bytes, serving
from support.privacy.plants import CODE, ECHO, LIMITS, PAYLOAD, TOKEN, planted, values_of
from support.privacy.scanner import Captured, capturing, leaks

ONCE = RetryPolicy(attempts=2, base=0.001)


def leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for each in value.values():
            yield from leaves(each)
    elif isinstance(value, list):
        for each in value:
            yield from leaves(each)
    elif not isinstance(value, bool):
        yield str(value)


def sent_by(operation: str) -> dict[str, Any]:
    model = UserData if operation == "complete" else ApprovalRequest
    sent: dict[str, Any] = json.loads(write(planted(model), Dialect.street_number()))
    return PAYLOAD if operation in ("create_request", "upload_documents") else sent


def quotes(operation: str) -> Iterator[str]:
    """Yield messages in which a service repeats the values that were sent."""
    for value in (*leaves(sent_by(operation)), CODE, TOKEN):
        yield f"{value} is not valid"
        yield f"User not found{' ' * 4_990}{value}"


def problems(**messages: Any) -> Callable[[str], bytes]:
    """Return a function that makes an error body in which a quote replaces "HERE"."""
    return lambda quote: json.dumps({"errors": messages}).replace('"HERE"', json.dumps(quote)).encode()


def domain(text: str) -> Callable[[str], bytes]:
    return problems(domain=[text, "HERE"])


BODIES: dict[type[LoanError], tuple[int, Callable[[str], bytes]]] = {
    RejectedError: (400, problems(lastname=["HERE"], city="HERE")),
    DomainError: (400, domain("No.")),
    UserNotFoundError: (400, domain("User not found")),
    AlreadyEvaluatedError: (400, domain("User already evaluated for approval")),
    ShopNotAllowedError: (400, domain("This sales point cannot apply for a loan")),
    InvalidFiscalCodeError: (400, domain("Invalid fiscalCode.")),
    AccessDeniedError: (403, lambda quote: json.dumps({"error": quote}).encode()),
    CannotCompleteError: (409, lambda quote: json.dumps({"errors": quote}).encode()),
    SystemFaultError: (500, problems(system="HERE")),
    UnexpectedStatusError: (418, problems(teapot=["HERE"])),
    UnexpectedResponseError: (
        400,
        lambda quote: json.dumps({"errors": {quote: [quote], "city": quote}}).encode(),
    ),
}
EXPECTED: dict[type[LoanError], set[type[LoanError]]] = {
    UnexpectedResponseError: set(),
    **{kind: {DomainError} for kind in (UserNotFoundError, ShopNotAllowedError, InvalidFiscalCodeError)},
}
OPERATIONS = ("create_request", "approve", "upload_documents", "complete")


async def call(client: LoanClient, operation: str, **options: Any) -> Any:
    calls: dict[str, Callable[[], Any]] = {
        "create_request": lambda: client.create_request(PAYLOAD, **options),
        "approve": lambda: client.approve(CODE, planted(ApprovalRequest), **options),
        "upload_documents": lambda: client.upload_documents(CODE, PAYLOAD, **options),
        "complete": lambda: client.complete(CODE, planted(UserData), **options),
    }
    try:
        return await calls[operation]()
    except LoanError as error:
        return error


def kinds_and_operations() -> Iterator[Any]:
    """Yield all pairs; each kind with an approval, and each operation with a rejection, for each commit."""
    for kind, operation in product(BODIES, OPERATIONS):
        is_common = operation == "approve" or kind is RejectedError
        marks = [] if is_common else [pytest.mark.scheduled]
        yield pytest.param(kind, operation, id=f"{kind.__name__}-{operation}", marks=marks)


@pytest.mark.parametrize(("kind", "operation"), list(kinds_and_operations()))
async def test_messages_that_repeat_personal_values_are_masked(kind: type[LoanError], operation: str) -> None:
    status, body = BODIES[kind]
    results = set()
    with capturing() as captured:
        async with serving(b"") as server:
            settings: Any = {"auth_token": TOKEN, "limits": LIMITS, "retry": ONCE}
            async with server.client(**settings, **captured.providers) as client:
                for quote in quotes(operation):
                    response = response_bytes(status, body(quote), "Content-Type: application/json")
                    server.script = lambda _, response=response: response  # type: ignore[misc]
                    result = await call(client, operation)
                    results.add(type(result))
                    captured.add(result)
    if operation == "approve":
        # A truncated message proves nothing, and neither does a domain message beside another one.
        assert results - {UnexpectedResponseError} == EXPECTED.get(kind, {kind})
    assert leaks(captured) == []


def mistyped() -> Iterator[tuple[str, Any]]:
    for name, value in ECHO.items():
        yield name, [value]
        yield name, {str(value): value}


@pytest.mark.parametrize("status", [201, 422])
async def test_response_with_wrong_types_shows_names_but_no_values(status: int) -> None:
    with capturing() as captured:
        async with (
            serving(b"") as server,
            server.client(auth_token=TOKEN, limits=LIMITS) as client,
        ):
            for name, wrong in mistyped():
                body = json.dumps({**ECHO, "approved": status == 201, name: wrong}).encode()
                twice = body[:-1] + b', "approved": "%s"}' % CODE.encode()
                for each in (body, twice, body[:-9], body.replace(b"true", b'"zzqlastnamevalue"')):
                    server.script = lambda _, each=each: response_bytes(status, each)  # type: ignore[misc]
                    captured.add(await call(client, "approve"))
                    server.script = lambda _, each=each: response_bytes(200, each)  # type: ignore[misc]
                    captured.add(await call(client, "complete"))
    assert leaks(captured) == []


async def test_timeouts_refusals_and_closed_client_show_no_personal_data() -> None:
    with capturing() as captured:
        async with serving(None) as server:
            for options, kind in (
                ({"timeout": Timeout(total=0.2, attempt=0.5, connect=0.1)}, DeadlineExceededError),
                ({"timeout": Timeout(total=0.0001)}, TransportError),
            ):
                async with server.client(auth_token=TOKEN, limits=LIMITS, **captured.providers) as client:
                    captured.add(await call(client, "approve", **options))
                    assert isinstance(captured.errors[-1], kind)
            opening: dict[str, Any] = {
                "breaker": CircuitBreaker(unknown=1),
                "limits": LIMITS,
            }
            async with server.client(auth_token=TOKEN, **opening, **captured.providers) as client:
                for expected in (ReadTimeoutError, CircuitOpenError):
                    short = Timeout(total=60, attempt=0.5)
                    captured.add(await call(client, "approve", timeout=short))
                    assert isinstance(captured.errors[-1], expected)
            busy = server.client(auth_token=TOKEN, limits=LIMITS, max_concurrency=1, **captured.providers)
            lane = busy._pipeline._per_loop.current()
            assert lane.slots.take()
            captured.add(await call(busy, "approve", timeout=Timeout(total=0.05)))
            assert isinstance(captured.errors[-1], PoolTimeoutError)
            await busy.aclose()
            captured.add(await call(busy, "approve"))
            assert str(captured.errors[-1]) == str(ClientClosedError())
    assert leaks(captured) == []


class Vault:
    """A user's function for the token, which is shown with its token, as its result and its exception are."""

    def __init__(self, end: str) -> None:
        self.end = end
        self.called = asyncio.Event()

    def __repr__(self) -> str:
        return TOKEN

    def __call__(self) -> "Vault":
        return self

    def __await__(self) -> Generator[Any, None, str]:
        self.called.set()
        yield from asyncio.sleep(0).__await__()
        if self.end == "raises":
            raise OSError(TOKEN)
        if self.end == "waits":
            yield from asyncio.Event().wait().__await__()
        return TOKEN if self.end == "returns" else f"{TOKEN}\n"


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_function_for_the_token_is_not_shown(operation: str) -> None:
    with capturing() as captured:
        async with serving(response_bytes(500), b"") as server:
            for end in ("raises", "waits", "returns", "is invalid"):
                settings: dict[str, Any] = {"auth_token": Vault(end), "limits": LIMITS, "retry": ONCE}
                async with server.client(**settings, **captured.providers) as client:
                    soon = Timeout(total=0.1, attempt=0.1)
                    captured.add(await call(client, operation, timeout=soon))
                    captured.add(client)
                    assert isinstance(captured.errors[-1], TransportError)
                    captured.add(client._options)
    assert len(captured.errors) == 4
    assert leaks(captured) == []


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_call_cancelled_while_it_waits_for_the_token_shows_no_token(operation: str) -> None:
    vault = Vault("waits")
    with capturing() as captured:
        async with LoanClient(**{**GOOD, "auth_token": vault}, limits=LIMITS, **captured.providers) as client:
            task = asyncio.create_task(call(client, operation))
            await vault.called.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            captured.add(caught.value)
    assert leaks(captured) == []


def test_every_error_class_is_covered() -> None:
    others = {
        CircuitOpenError,
        ClientClosedError,
        PoolTimeoutError,
        DeadlineExceededError,
        InvalidRequestError,
        ConfigurationError,
    }
    searched = {row.expected.error for row in ROWS} | set(BODIES) | others
    # Ledger errors: test_shown_by_ledgers.py.
    searched |= {LedgerError, *LedgerError.__subclasses__()}
    base_classes = {LoanError, ServiceError, TransportError}
    assert searched - {None} == {getattr(errors, name) for name in errors.__all__} - base_classes


GOOD: dict[str, Any] = {"base_url": "https://loans.example.com", "shop_id": "s", "auth_token": TOKEN}
SETTINGS: list[dict[str, Any]] = [
    {"base_url": f"https://{CODE}:{TOKEN}@loans.example.com"},
    {"base_url": f"https://loans.example.com/?token={TOKEN}"},
    {"base_url": f"https://loans.example.com/#{TOKEN}"},
    {"base_url": f"http://loans.example.com/{TOKEN}"},
    {"base_url": f"{TOKEN}"},
    {"base_url": f"https://{TOKEN * 9}.example.com"},
    {"base_url": [TOKEN]},
    {"auth_token": f"{TOKEN}\n"},
    {"auth_token": f"{TOKEN} {TOKEN}"},
    {"auth_token": f"{TOKEN}é"},
    {"auth_token": TOKEN.encode()},
    {"auth_token": None, "base_url": f"https://a:{TOKEN}@loans.example.com"},
    {"shop_id": "a/b"},
    {"dialect": "street_number"},
    {"limits": 1},
    {"retry": 3},
    {"timeout": 3},
    {"strict": "yes"},
    {"session": object()},
    {"ssl": False},
    {"max_concurrency": 0},
    {"telemetry": "all"},
]


def attempt(
    captured: Captured, act: Callable[[], object], kind: type[Exception] = ConfigurationError
) -> None:
    with pytest.raises(kind) as caught:
        act()
    captured.add(caught.value)


@pytest.mark.parametrize("wrong", SETTINGS, ids="-".join)
def test_invalid_settings_show_no_token(wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**GOOD, **wrong}
    for name in ("base_url", "shop_id", "auth_token"):
        monkeypatch.setenv(f"LOANASYNC_{name.upper()}", str(GOOD[name]))
    with capturing() as captured:
        attempt(captured, lambda: LoanClient(**settings))
        attempt(captured, lambda: LoanClient.from_env(**settings))
        changes = {name: value for name, value in wrong.items() if name not in ("base_url", "session")}
        if changes.keys() & {"shop_id", "auth_token", "dialect", "limits", "retry", "timeout", "strict"}:
            known = {"shop_id": "s", "auth_token": TOKEN, **changes}
            if known["auth_token"] is not None:
                attempt(captured, lambda: LoanClient(**GOOD).with_options(**known))
    assert leaks(captured) == []


def test_missing_settings_show_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    client = LoanClient(**GOOD)
    with capturing() as captured:
        attempt(captured, lambda: client.with_options(auth_token=TOKEN))
        monkeypatch.setenv("LOANASYNC_AUTH_TOKEN", f"{TOKEN}\n")
        monkeypatch.setenv("LOANASYNC_BASE_URL", str(GOOD["base_url"]))
        monkeypatch.delenv("LOANASYNC_SHOP_ID", raising=False)
        attempt(captured, LoanClient.from_env)
        monkeypatch.setenv("LOANASYNC_SHOP_ID", "s")
        attempt(captured, LoanClient.from_env)
    assert leaks(captured) == []


class Frame(list[Any]):
    """Rows that look like a data frame."""

    itertuples = list.__iter__


@pytest.mark.parametrize(
    "wrong",
    [
        *({"concurrency": 0}, {"rate": -1}, {"progress": 7}, {"wait": -1}, {"timeout": 3}, {"retry": 3}),
        *({"rows": Frame([(CODE, None)])}, {"rows": 7}, {"rows": CODE}, {"rows": {CODE: None}}),
    ],
)
def test_wrong_arguments_of_approve_many_show_no_row(wrong: dict[str, Any]) -> None:
    client = LoanClient(**GOOD)
    arguments = {"rows": [(CODE, planted(ApprovalRequest))], **wrong}
    with capturing() as captured:
        attempt(captured, lambda: client.approve_many(**arguments))
        traceback = TracebackException.from_exception(captured.errors[-1], capture_locals=True)
        assert "AttributeError" not in "".join(traceback.format())
    assert leaks(captured) == []


async def test_calls_that_need_a_ledger_show_no_customer() -> None:
    client = LoanClient(**GOOD)
    with capturing() as captured:
        with pytest.raises(ConfigurationError) as caught:
            await client.entry_key(CODE, order_token=TOKEN)
        captured.add(caught.value)
        with pytest.raises(ConfigurationError) as caught:
            await client.resolve(CODE, "refused", source="webhook", order_token=TOKEN)
        captured.add(caught.value)
    assert leaks(captured) == []


def wrongly_built() -> Iterator[Callable[[], object]]:
    models: tuple[Any, ...] = (ApprovalRequest, AdditionalData, UserData)
    for model in models:
        values = values_of(model)
        yield partial(model, **values, unknown=CODE)
        if model is not UserData:
            for name in values:
                yield partial(model, **{other: value for other, value in values.items() if other != name})


def test_incomplete_model_shows_no_personal_data() -> None:
    with capturing() as captured:
        for build in wrongly_built():
            try:
                captured.add(build())
            except TypeError as error:
                captured.add(error)
    assert len(captured.errors) > len(values_of(ApprovalRequest)) / 2
    assert leaks(captured) == []


UNSENDABLE = {"newField": object(), "fiscalCode": CODE}
WRONG_REQUESTS: list[Any] = [
    planted(ApprovalRequest, checked=False),
    planted(ApprovalRequest, additional=CODE),
    planted(ApprovalRequest, extra=CODE),
    planted(ApprovalRequest, extra={"newField": float("nan"), "email": "zzqextravalue"}),
    planted(ApprovalRequest, last_name=["Zzqlastnamevalue"]),
    PAYLOAD,
    planted(UserData, checked=False),
    planted(UserData, extra=CODE),
    planted(UserData, document_issue_date=date(1976, 7, 23).isoformat()),
    values_of(ApprovalRequest),
    CODE,
]


@pytest.mark.parametrize("number", range(len(WRONG_REQUESTS)))
async def test_invalid_request_shows_no_personal_data(number: int) -> None:
    wrong = WRONG_REQUESTS[number]
    with capturing() as captured:
        client = LoanClient(**GOOD, **captured.providers)
        captured.values += [wrong] if isinstance(wrong, ApprovalRequest | UserData) else []
        for code in (CODE, f"{CODE}\n1", [CODE], None, wrong):
            for act in (client.approve, client.complete):
                with pytest.raises(InvalidRequestError) as caught:
                    await act(code, wrong)  # type: ignore[arg-type]
                captured.add(caught.value)
            captured.values += [client.check(code, wrong), list(map(str, client.check(code, wrong)))]  # type: ignore[arg-type]
            for payload in (UNSENDABLE, [UNSENDABLE], CODE, {CODE: {1: float("inf")}}):
                with pytest.raises(InvalidRequestError) as caught:
                    await client.upload_documents(CODE, payload)  # type: ignore[arg-type]
                captured.add(caught.value)
                with pytest.raises(InvalidRequestError) as caught:
                    await client.create_request(payload)  # type: ignore[arg-type]
                captured.add(caught.value)
    assert leaks(captured) == []
