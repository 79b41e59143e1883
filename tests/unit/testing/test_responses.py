"""The scripted responses of `loanasync.testing`."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from loanasync import (
    AccessDeniedError,
    AlreadyEvaluatedError,
    Approved,
    CannotCompleteError,
    ConnectError,
    ConnectionLostError,
    Dialect,
    DomainError,
    InvalidFiscalCodeError,
    LoanError,
    ReadTimeoutError,
    Refused,
    RejectedError,
    RetryPolicy,
    ShopNotAllowedError,
    SystemFaultError,
    TransportError,
    UnexpectedResponseError,
    UnexpectedStatusError,
    UserNotFoundError,
)
from loanasync.testing import (
    ScriptedResponse,
    ScriptedTransport,
    SentRequest,
    approval_request,
    approved,
    computed,
    conflict,
    connection_lost,
    denied,
    domain_error,
    not_connected,
    refused,
    rejected,
    response,
    scripted_client,
    system_error,
    timed_out,
)

CODE = "TSTXYZ50A01X000A"


async def failure(*responses: ScriptedResponse, **options: object) -> LoanError:
    with pytest.raises(LoanError) as caught:
        await scripted_client(*responses, **options).approve(CODE, approval_request())
    return caught.value


async def test_approved_echoes_the_request_and_has_a_redirect_url() -> None:
    request = approval_request(payment_day_of_month=5, iban="IT00MADEUP")
    decision = await scripted_client(approved()).approve(CODE, request)
    assert isinstance(decision, Approved)
    echoed = ("email", "last_name", "city", "street_number", "instalments", "amount", "iban", "citizenship")
    for name in (*echoed, "payment_day_of_month"):
        assert getattr(decision, name) == getattr(request, name), name
    assert decision.fiscal_code == CODE
    assert str(decision.redirect_url).startswith("https://loans.example.com/")
    assert (decision.net_amount, decision.meta.status, decision.meta.unread) == (None, 201, ())
    assert "loanFinality" not in decision.raw


async def test_refused_echoes_the_request_and_has_no_redirect_url() -> None:
    client = scripted_client(refused(net_amount=0), dialect=Dialect.civic_number())
    decision = await client.approve(CODE, approval_request(order_token="o", street_number="7"))
    assert isinstance(decision, Refused)
    assert (decision.street_number, decision.order_token, decision.net_amount) == ("7", "o", 0)
    assert (decision.meta.status, decision.meta.attempts) == (422, 1)
    assert "redirectUrl" not in decision.raw


async def test_fields_of_a_decision_may_differ_from_the_request() -> None:
    client = scripted_client(approved(amount=1, redirect_url=None, street_number="9"))
    decision = await client.approve(CODE, approval_request())
    assert isinstance(decision, Approved)
    assert (decision.amount, decision.redirect_url, decision.street_number) == (1, None, "9")


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda: approved(net_amuont=1), "Approved has no field net_amuont; did you mean net_amount?"),
        (lambda: approved(netAmount=1), "Approved has no field netAmount; did you mean net_amount?"),
        (lambda: approved(meta=1), "Approved has no field meta"),
        (lambda: refused(approved=True), "Refused has no field approved"),
        (lambda: refused(redirect_url="https://x.example"), "Refused has no field redirect_url"),
    ],
)
def test_unknown_field_of_a_decision_is_refused(write: Callable[[], ScriptedResponse], message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        write()


async def test_rejected_names_the_fields_of_the_model() -> None:
    error = await failure(rejected({"lastname": "blank", "amount": ["too small", "odd"]}))
    assert type(error) is RejectedError
    assert [(problem.field, problem.message) for problem in error.problems] == [
        ("last_name", "blank"),
        ("amount", "too small"),
        ("amount", "odd"),
    ]


async def test_rejected_with_an_unknown_field_is_unexpected() -> None:
    error = await failure(rejected({"lastname": "blank", "new": ["?"]}))
    assert type(error) is UnexpectedResponseError
    assert [problem.field for problem in error.problems] == ["last_name", "new"]
    assert error.outcome == "unknown"


@pytest.mark.parametrize("errors", [{}, {"amount": []}, {"amount": ["too small"], "email": []}])
def test_a_rejection_without_a_message_is_refused(errors: dict[str, list[str]]) -> None:
    with pytest.raises(ValueError, match="at least one message for each field"):
        rejected(errors)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("User not found", UserNotFoundError),
        ("User already evaluated for approval", AlreadyEvaluatedError),
        ("This sales point cannot apply for a loan", ShopNotAllowedError),
        ("Invalid fiscalCode.", InvalidFiscalCodeError),
        ("Something new", DomainError),
    ],
)
async def test_domain_error_has_the_class_of_its_message(message: str, kind: type[DomainError]) -> None:
    error = await failure(domain_error(message))
    assert type(error) is kind
    assert error.problems[0].message == message


@pytest.mark.parametrize(
    ("scripted", "kind", "status", "message"),
    [
        (denied(), AccessDeniedError, 403, "Access denied"),
        (denied("No."), AccessDeniedError, 403, "No."),
        (conflict(), CannotCompleteError, 409, "The request cannot be completed"),
        (conflict("Later."), CannotCompleteError, 409, "Later."),
    ],
)
async def test_denied_and_conflict_have_the_bodies_of_the_service(
    scripted: ScriptedResponse, kind: type[AccessDeniedError | CannotCompleteError], status: int, message: str
) -> None:
    error = await failure(scripted)
    assert isinstance(error, kind)
    assert (error.status, [problem.message for problem in error.problems]) == (status, [message])


async def test_system_error_is_retried_without_a_real_wait() -> None:
    script = ScriptedTransport(system_error(retry_after=4), system_error(), approved())
    decision = await asyncio.wait_for(script.client().approve(CODE, approval_request()), 5)
    assert (decision.approved, decision.meta.attempts) == (True, 3)
    assert script.clock.slept[0] == 4
    assert decision.meta.elapsed == pytest.approx(sum(script.clock.slept))
    assert script.sent[0].body == script.sent[2].body


async def test_system_errors_on_all_attempts_raise_system_fault_error() -> None:
    error = await failure(system_error(), system_error(), retry=RetryPolicy(attempts=2))
    assert isinstance(error, SystemFaultError)
    assert (error.stopped_by, error.attempts, error.problems[0].message) == ("attempts", 2, "System error")


def test_negative_retry_after_is_refused() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        system_error(retry_after=-1)


@pytest.mark.parametrize(
    ("scripted", "kind", "outcome"),
    [
        (not_connected(), ConnectError, "not_sent"),
        (connection_lost(), ConnectionLostError, "unknown"),
        (timed_out(), ReadTimeoutError, "unknown"),
    ],
)
async def test_missing_response_has_the_outcome_of_its_kind(
    scripted: ScriptedResponse, kind: type[TransportError], outcome: str
) -> None:
    error = await failure(scripted)
    assert type(error) is kind
    assert (error.outcome, error.attempts) == (outcome, 1)


async def test_response_headers_are_case_insensitive() -> None:
    assert isinstance(await failure(response(418)), UnexpectedStatusError)
    garbled = await failure(response(422, b"{"))
    assert isinstance(garbled, UnexpectedResponseError)
    assert garbled.outcome == "unknown"
    script = ScriptedTransport(response(500, b"", {"retry-after": "4"}), response(201, {"approved": True}))
    assert (await script.client().approve(CODE, approval_request())).approved
    assert script.clock.slept == [4]


@pytest.mark.parametrize(("value", "kind"), [(object(), TypeError), (float("nan"), ValueError)])
def test_a_body_that_is_not_json_is_refused(value: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        response(200, {"a": value})


async def test_computed_chooses_by_the_request_and_may_be_nested() -> None:
    def by_amount(sent: SentRequest) -> ScriptedResponse:
        return computed(lambda _: refused()) if sent.body["amount"] == 90_000 else approved()

    client = scripted_client(computed(by_amount), computed(by_amount))
    assert (await client.approve(CODE, approval_request())).approved
    assert not (await client.approve(CODE, approval_request(amount=90_000), scope="2")).approved


async def test_computed_coroutine_may_wait_while_the_caller_is_cancelled() -> None:
    arrived = asyncio.Event()

    async def hold(_: SentRequest) -> ScriptedResponse:
        arrived.set()
        await asyncio.Event().wait()
        return approved()

    script = ScriptedTransport(computed(hold))
    task = asyncio.create_task(script.client().approve(CODE, approval_request()))
    await arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(script.sent) == 1


async def test_computed_without_a_scripted_response_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a scripted response, not NoneType: use approved"):
        await scripted_client(computed(lambda _: None)).create_request({})  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (approved, "Computed(function=_Decision(status=201))"),
        (refused, "Computed(function=_Decision(status=422))"),
        (denied, "Response(status=403, body=***, fault=None)"),
        (
            timed_out,
            f"NoResponse(error={ReadTimeoutError!r}, cause_type='TimeoutError', is_sent=True)",
        ),
    ],
)
def test_scripted_response_compares_equal_and_masks_its_body(
    make: Callable[[], ScriptedResponse], expected: str
) -> None:
    assert make() == make()
    assert repr(make()) == expected
