"""Errors contain no personal data, not even if the service, a ledger or an argument repeats it."""

import asyncio
import copy
import json
import pickle
from collections.abc import Awaitable, Callable, Generator, Iterator
from datetime import date
from functools import partial
from itertools import product
from pathlib import Path
from traceback import TracebackException
from typing import Any
from unittest import mock

import pytest

from faults_page import ROWS
from loanasync import (
    AdditionalData,
    ApprovalRequest,
    CircuitBreaker,
    Dialect,
    LoanClient,
    LoanError,
    RetryPolicy,
    Timeout,
    UserData,
    errors,
)
from loanasync._protocol.codec import write
from loanasync.ledger import LedgerPolicy, MemoryLedger, PostgresLedger, RedisLedger
from loanasync.testing import ScriptedResponse, ScriptedTransport, response, timed_out
from support.canned_server import response_bytes, serving
from support.ledger_clients import FailingLedger, held_response
from support.privacy.plants import CODE, ECHO, LIMITS, PAYLOAD, REDIRECT, TOKEN, planted, values_of
from support.privacy.scanner import OUTPUT_KINDS, Captured, capturing, leaks, searched
from support.servers.process import free_port

OPERATIONS = ("create_request", "approve", "upload_documents", "complete")
each_operation = pytest.mark.parametrize("operation", OPERATIONS)
SOON = Timeout(total=0.05, attempt=0.04, connect=0.01)
APPROVED = response(201, {**ECHO, "approved": True})
REFUSED = response(422, {**ECHO, "approved": False})


async def call(client: LoanClient, operation: str = "approve", **options: Any) -> Any:
    """Return the result or the error of a call."""
    amount, code = options.pop("amount", 45_000), options.pop("code", CODE)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "create_request": lambda: client.create_request(PAYLOAD, **options),
        "approve": lambda: client.approve(code, planted(ApprovalRequest, amount=amount), **options),
        "upload_documents": lambda: client.upload_documents(CODE, PAYLOAD, **options),
        "complete": lambda: client.complete(CODE, planted(UserData), **options),
    }
    try:
        return await calls[operation]()
    except LoanError as error:
        return error


def client_of(captured: Captured, *steps: ScriptedResponse, **options: Any) -> LoanClient:
    settings = {"auth_token": TOKEN, "limits": LIMITS, **captured.providers, **options}
    return ScriptedTransport(*steps).client(**settings)


# Messages of the service that repeat what was sent.


def leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from leaves(each)
    elif not isinstance(value, bool):
        yield str(value)


def quotes(operation: str) -> Iterator[str]:
    """Yield messages in which a service repeats the values that were sent."""
    model = {"approve": ApprovalRequest, "complete": UserData}.get(operation)
    sent = PAYLOAD if model is None else json.loads(write(planted(model), Dialect.street_number()))
    for value in (*leaves(sent), CODE, TOKEN):
        yield f"{value} is not valid"
        yield f"User not found{' ' * 4_990}{value}"


def problems(**messages: Any) -> Callable[[str], bytes]:
    """Return a function that makes an error body in which a quote replaces "HERE"."""
    return lambda quote: json.dumps({"errors": messages}).replace('"HERE"', json.dumps(quote)).encode()


def domain(text: str) -> Callable[[str], bytes]:
    return problems(domain=[text, "HERE"])


BODIES: dict[type[LoanError], tuple[int, Callable[[str], bytes]]] = {
    errors.RejectedError: (400, problems(lastname=["HERE"], city="HERE")),
    errors.DomainError: (400, domain("No.")),
    errors.UserNotFoundError: (400, domain("User not found")),
    errors.AlreadyEvaluatedError: (400, domain("User already evaluated for approval")),
    errors.ShopNotAllowedError: (400, domain("This sales point cannot apply for a loan")),
    errors.InvalidFiscalCodeError: (400, domain("Invalid fiscalCode.")),
    errors.AccessDeniedError: (403, lambda quote: json.dumps({"error": quote}).encode()),
    errors.CannotCompleteError: (409, lambda quote: json.dumps({"errors": quote}).encode()),
    errors.SystemFaultError: (500, problems(system="HERE")),
    errors.UnexpectedStatusError: (418, problems(teapot=["HERE"])),
    errors.UnexpectedResponseError: (
        400,
        lambda quote: json.dumps({"errors": {quote: [quote], "city": quote}}).encode(),
    ),
}
EXPECTED: dict[type[LoanError], set[type[LoanError]]] = {
    errors.UnexpectedResponseError: set(),
    **{
        kind: {errors.DomainError}
        for kind in (errors.UserNotFoundError, errors.ShopNotAllowedError, errors.InvalidFiscalCodeError)
    },
}


def kinds_and_operations() -> Iterator[Any]:
    """Yield all pairs; each kind with an approval, and each operation with a rejection, for each commit."""
    for kind, operation in product(BODIES, OPERATIONS):
        is_common = operation == "approve" or kind is errors.RejectedError
        marks = [] if is_common else [pytest.mark.scheduled]
        yield pytest.param(kind, operation, id=f"{kind.__name__}-{operation}", marks=marks)


@pytest.mark.parametrize(("kind", "operation"), list(kinds_and_operations()))
async def test_messages_that_repeat_personal_values_are_masked(kind: type[LoanError], operation: str) -> None:
    status, body = BODIES[kind]
    results = set()
    with searched() as captured:
        for quote in quotes(operation):
            client = client_of(captured, response(status, body(quote)), retry=RetryPolicy(attempts=1))
            captured.add(result := await call(client, operation))
            results.add(type(result))
    if operation == "approve":
        # A truncated message proves nothing, and neither does a domain message beside another one.
        assert results - {errors.UnexpectedResponseError} == EXPECTED.get(kind, {kind})


@pytest.mark.parametrize("status", [201, 422])
async def test_response_with_wrong_types_shows_names_but_no_values(status: int) -> None:
    with searched() as captured:
        async with serving(b"") as server, server.client(auth_token=TOKEN, limits=LIMITS) as client:
            for name, value in ECHO.items():
                for wrong in ([value], {str(value): value}):
                    body = json.dumps({**ECHO, "approved": status == 201, name: wrong}).encode()
                    twice = body[:-1] + b', "approved": "%s"}' % CODE.encode()
                    for each in (body, twice, body[:-9], body.replace(b"true", b'"zzqlastnamevalue"')):
                        for operation, code in (("approve", status), ("complete", 200)):
                            server.script = lambda _, sent=(code, each): response_bytes(*sent)  # type: ignore[misc]
                            captured.add(await call(client, operation))


# Errors without a response of the service, each with the kind that it has.


def quoting() -> None:
    raise OSError(f"{CODE} {TOKEN} {REDIRECT} {ECHO}")


async def deadline(captured: Captured) -> Any:
    step, _, go = held_response(APPROVED)
    client = client_of(captured, step)
    error = await call(client, timeout=SOON)
    go.set()
    await client.aclose()
    return error


async def beside(captured: Captured, operation: str, end: ScriptedResponse, **options: Any) -> Any:
    """Return the error of an approval during another call."""
    step, arrived, go = held_response(end)
    client = client_of(captured, step, **options)
    other = asyncio.create_task(call(client, operation))
    await arrived.wait()
    error = await call(client, timeout=SOON)
    go.set()
    await other
    return error


async def in_flight(captured: Captured) -> Any:
    return await beside(captured, "approve", APPROVED, ledger=MemoryLedger())


async def no_slot(captured: Captured) -> Any:
    return await beside(captured, "create_request", response(200, ECHO), max_concurrency=1)


async def circuit_open(captured: Captured) -> Any:
    client = client_of(captured, timed_out(), breaker=CircuitBreaker(unknown=1))
    captured.add(await call(client))
    return await call(client, code=f"{CODE[:-1]}0")


async def closed(captured: Captured) -> Any:
    client = client_of(captured)
    await client.aclose()
    return await call(client)


async def forgotten(captured: Captured) -> Any:
    client = client_of(captured, APPROVED)
    with mock.patch("loanasync._runtime.guard._MAX_RESPONSES", 0):
        await call(client)
    return await call(client)


async def unknown(captured: Captured) -> Any:
    client = client_of(captured, timed_out(), ledger=MemoryLedger())
    captured.add(await call(client))
    return await call(client)


async def mismatched(captured: Captured) -> Any:
    client = client_of(captured, REFUSED, ledger=MemoryLedger())
    await call(client)
    return await call(client, amount=99_000)


async def unavailable(captured: Captured) -> Any:
    return await call(client_of(captured, APPROVED, ledger=FailingLedger(claim=quoting)))


async def no_valkey(captured: Captured) -> Any:
    valkey = RedisLedger(f"redis://{TOKEN}:{TOKEN}@127.0.0.1:{free_port()}/0?password={TOKEN}")
    return await call(client_of(captured, APPROVED, ledger=valkey))


async def no_postgres(captured: Captured) -> Any:
    url = f"postgresql://{TOKEN}:{TOKEN}@127.0.0.1:{free_port()}/shop?password={TOKEN}&sslmode=disable"
    return await call(client_of(captured, APPROVED, ledger=PostgresLedger(url)))


async def of_another_service(captured: Captured) -> Any:
    other = MemoryLedger()
    await other.open("https://other.example.com", LedgerPolicy(key=b"0123456789abcdef"))
    return await call(client_of(captured, ledger=other))


async def resolved(captured: Captured, ledger: MemoryLedger, **options: Any) -> Any:
    client = client_of(captured, REFUSED, ledger=ledger)
    captured.add(await call(client))
    try:
        await client.resolve(CODE, "approved", source="webhook", **options)
    except LoanError as error:
        return error


async def contradicted(captured: Captured) -> Any:
    captured.add(await resolved(captured, MemoryLedger(), note=CODE))
    return await resolved(captured, MemoryLedger(), order_token=TOKEN)


async def unavailable_to_resolve(captured: Captured) -> Any:
    return await resolved(captured, FailingLedger(get=quoting))


SCENES: list[tuple[Callable[[Captured], Awaitable[Any]], type[LoanError]]] = [
    (deadline, errors.DeadlineExceededError),
    (no_slot, errors.PoolTimeoutError),
    (circuit_open, errors.CircuitOpenError),
    (closed, errors.ClientClosedError),
    (forgotten, errors.DecisionForgottenError),
    (in_flight, errors.InFlightError),
    (unknown, errors.OutcomeUnknownError),
    (mismatched, errors.PayloadMismatchError),
    (contradicted, errors.NotResolvedError),
    (unavailable_to_resolve, errors.LedgerUnavailableError),
    (unavailable, errors.LedgerUnavailableError),
    (of_another_service, errors.LedgerMismatchError),
    (no_valkey, errors.LedgerUnavailableError),
    (no_postgres, errors.LedgerUnavailableError),
]


@pytest.mark.parametrize(("scene", "kind"), SCENES, ids=[scene.__name__ for scene, _ in SCENES])
async def test_error_without_a_response_shows_no_personal_data(
    scene: Callable[[Captured], Awaitable[Any]], kind: type[LoanError]
) -> None:
    with searched() as captured:
        captured.add(error := await scene(captured))
    assert type(error) is kind


@pytest.mark.parametrize("step", [APPROVED, REFUSED], ids=["approved", "refused"])
async def test_unrecorded_decision_is_shown_only_in_a_pickle(step: ScriptedResponse, tmp_path: Path) -> None:
    ledger = FailingLedger(settle=quoting)
    with capturing() as captured:
        client = client_of(captured, step, ledger=ledger, ledger_policy=LedgerPolicy(orphan_folder=tmp_path))
        captured.add(error := await call(client))
        captured.values += [client, ledger, *[entry async for entry in ledger.scan()]]
    assert isinstance(error, errors.DecisionNotRecordedError)
    assert leaks(captured, tuple(each for each in OUTPUT_KINDS if "pickles" not in each.name)) == []
    assert CODE.encode() in pickle.dumps(error)
    assert CODE not in f"{copy.deepcopy(error)!r} {pickle.loads(pickle.dumps(error))!r}"  # noqa: S301  (our own)


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
        if self.end in ("waits", "is cancelled"):
            yield from asyncio.Event().wait().__await__()
        return TOKEN if self.end == "returns" else f"{TOKEN}\n"


@pytest.mark.parametrize("end", ["raises", "waits", "is cancelled", "returns", "is invalid"])
@each_operation
async def test_function_for_the_token_is_not_shown(operation: str, end: str) -> None:
    vault = Vault(end)
    with searched() as captured:
        client = client_of(captured, timed_out(), auth_token=vault)
        task = asyncio.create_task(call(client, operation, timeout=Timeout(total=0.1, attempt=0.1)))
        await vault.called.wait()
        if end == "is cancelled":
            task.cancel()
        results: list[object] = await asyncio.gather(task, return_exceptions=True)
        captured.values.append(client)
        captured.add(results[0])
    assert isinstance(results[0], asyncio.CancelledError if end == "is cancelled" else errors.TransportError)


def test_every_error_class_is_covered() -> None:
    searched_for = {row.expected.error for row in ROWS} | {*BODIES} | {kind for _, kind in SCENES}
    searched_for |= {errors.InvalidRequestError, errors.ConfigurationError, errors.DecisionNotRecordedError}
    base_classes = {LoanError, errors.ServiceError, errors.TransportError, errors.LedgerError}
    assert searched_for - {None} == {getattr(errors, name) for name in errors.__all__} - base_classes


# Wrong arguments.

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


def attempt(captured: Captured, act: Callable[..., object], *arguments: Any, **options: Any) -> None:
    """Capture the error of an invalid setting."""
    with pytest.raises(errors.ConfigurationError) as caught:
        act(*arguments, **options)
    captured.add(caught.value)


@pytest.mark.parametrize("wrong", SETTINGS, ids="-".join)
def test_invalid_settings_show_no_token(wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in GOOD.items():
        monkeypatch.setenv(f"LOANASYNC_{name.upper()}", value)
    with searched() as captured:
        attempt(captured, LoanClient, **GOOD | wrong)
        attempt(captured, LoanClient.from_env, **GOOD | wrong)
        names = ("shop_id", "auth_token", "timeout")
        changes = {name: value for name, value in wrong.items() if name in names}
        if changes:
            known = {"shop_id": "s", "auth_token": TOKEN, **changes}
            if known["auth_token"] is not None:
                attempt(captured, LoanClient(**GOOD).with_options, **known)


def test_missing_settings_show_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with searched() as captured:
        attempt(captured, LoanClient(**GOOD).with_options, auth_token=TOKEN)
        monkeypatch.setenv("LOANASYNC_AUTH_TOKEN", f"{TOKEN}\n")
        monkeypatch.setenv("LOANASYNC_BASE_URL", str(GOOD["base_url"]))
        monkeypatch.delenv("LOANASYNC_SHOP_ID", raising=False)
        attempt(captured, LoanClient.from_env)
        monkeypatch.setenv("LOANASYNC_SHOP_ID", "s")
        attempt(captured, LoanClient.from_env)


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
    with searched() as captured:
        rows = [(CODE, planted(ApprovalRequest))]
        attempt(captured, LoanClient(**GOOD).approve_many, **{"rows": rows, **wrong})
        traceback = TracebackException.from_exception(captured.errors[-1], capture_locals=True)
        assert "AttributeError" not in "".join(traceback.format())


async def test_calls_that_need_a_ledger_show_no_customer() -> None:
    client = LoanClient(**GOOD)
    with searched() as captured:
        with pytest.raises(errors.ConfigurationError) as caught:
            await client.resolve(CODE, "refused", source="webhook", order_token=TOKEN)
        captured.add(caught.value)


def wrongly_built() -> Iterator[Callable[[], object]]:
    models: tuple[Any, ...] = (ApprovalRequest, AdditionalData, UserData)
    for model in models:
        values = values_of(model)
        yield partial(model, **values, unknown=CODE)
        if model is not UserData:
            for name in values:
                yield partial(model, **{other: value for other, value in values.items() if other != name})


def test_incomplete_model_shows_no_personal_data() -> None:
    with searched() as captured:
        for build in wrongly_built():
            try:
                captured.add(build())
            except TypeError as error:
                captured.add(error)
    assert len(captured.errors) > len(values_of(ApprovalRequest)) / 2


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
    with searched() as captured:
        client: Any = LoanClient(**GOOD, **captured.providers)
        captured.values += [wrong] if isinstance(wrong, ApprovalRequest | UserData) else []
        for code in (CODE, f"{CODE}\n1", [CODE], None, wrong):
            captured.values += [client.check(code, wrong), list(map(str, client.check(code, wrong)))]
            calls = [client.approve(code, wrong), client.complete(code, wrong)]
            for payload in (UNSENDABLE, [UNSENDABLE], CODE, {CODE: {1: float("inf")}}):
                calls += [client.upload_documents(CODE, payload), client.create_request(payload)]
            for each in calls:
                with pytest.raises(errors.InvalidRequestError) as caught:
                    await each
                captured.add(caught.value)
