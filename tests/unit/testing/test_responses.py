"""The scripted responses of `loanasync.testing`."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from loanasync import Approved, Dialect, LoanError, Refused, RetryPolicy, errors
from loanasync.testing import (
    ScriptedResponse,
    ScriptedTransport,
    SentRequest,
    approval_request,
    approved,
    computed,
    conflict,
    denied,
    domain_error,
    refused,
    rejected,
    response,
    scripted_client,
    system_error,
    timed_out,
)

CODE = "TSTXYZ50A01X000A"


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
    changed = approved(amount=1, redirect_url=None, street_number="9")
    decision = await scripted_client(changed).approve(CODE, request)
    assert isinstance(decision, Approved)
    assert (decision.amount, decision.redirect_url, decision.street_number) == (1, None, "9")


async def test_refused_echoes_the_request_and_has_no_redirect_url() -> None:
    client = scripted_client(refused(net_amount=0), dialect=Dialect.civic_number())
    decision = await client.approve(CODE, approval_request(order_token="o", street_number="7"))
    assert isinstance(decision, Refused)
    assert (decision.street_number, decision.order_token, decision.net_amount) == ("7", "o", 0)
    assert (decision.meta.status, decision.meta.attempts) == (422, 1)
    assert "redirectUrl" not in decision.raw


@pytest.mark.parametrize(
    ("write", "error", "message"),
    [
        (
            lambda: approved(net_amuont=1),
            TypeError,
            "Approved has no field net_amuont; did you mean net_amount?",
        ),
        (
            lambda: approved(netAmount=1),
            TypeError,
            "Approved has no field netAmount; did you mean net_amount?",
        ),
        (lambda: approved(meta=1), TypeError, "Approved has no field meta"),
        (lambda: refused(approved=True), TypeError, "Refused has no field approved"),
        (lambda: refused(redirect_url="https://x.example"), TypeError, "Refused has no field redirect_url"),
        (lambda: rejected({}), ValueError, "at least one message for each field"),
        (
            lambda: rejected({"amount": ["no"], "email": []}),
            ValueError,
            "at least one message for each field",
        ),
        (lambda: system_error(retry_after=-1), ValueError, "0 or more"),
        (lambda: response(200, {"a": object()}), TypeError, "."),  # type: ignore[dict-item]
        (lambda: response(200, {"a": float("nan")}), ValueError, "."),
        (lambda: response("201"), TypeError, "status '201' must be an int"),  # type: ignore[arg-type]
        (lambda: response(201, "{}"), TypeError, "must be bytes or a JSON object, not str"),  # type: ignore[arg-type]
        (lambda: rejected(["x"]), TypeError, "must be a mapping of fields to messages, not list"),  # type: ignore[arg-type]
    ],
)
def test_invalid_response_is_refused(write: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        write()


@pytest.mark.parametrize("decision", [approved(), refused()])
async def test_decision_scripted_for_another_call_says_so(decision: ScriptedResponse) -> None:
    with pytest.raises(
        AssertionError, match=r"was scripted for create_request: put response\(201\) before it"
    ):
        await scripted_client(decision, response(201)).create_request({})


UNKNOWN, NOT_EVALUATED = "unknown", "not_evaluated"


@pytest.mark.parametrize(
    ("scripted", "kind", "outcome", "problems"),
    [
        (
            rejected({"lastname": "blank", "amount": ["too small", "odd"]}),
            errors.RejectedError,
            NOT_EVALUATED,
            ["last_name: blank", "amount: too small", "amount: odd"],
        ),
        (
            rejected({"lastname": "blank", "new": ["?"]}),
            errors.UnexpectedResponseError,
            UNKNOWN,
            ["last_name: blank", "new: ?"],
        ),
        (domain_error("Something new"), errors.DomainError, UNKNOWN, ["Something new"]),
        (denied("No."), errors.AccessDeniedError, NOT_EVALUATED, ["No."]),
        (conflict("Later."), errors.CannotCompleteError, UNKNOWN, ["Later."]),
        (system_error(), errors.SystemFaultError, UNKNOWN, ["System error"]),
        (response(418), errors.UnexpectedStatusError, UNKNOWN, []),
        (response(422, b"{"), errors.UnexpectedResponseError, UNKNOWN, []),
    ],
)
async def test_response_has_its_error_outcome_and_problems(
    scripted: ScriptedResponse, kind: type[LoanError], outcome: str, problems: list[str]
) -> None:
    with pytest.raises(LoanError) as caught:
        await scripted_client(scripted, retry=RetryPolicy(attempts=1)).approve(CODE, approval_request())
    assert (type(caught.value), caught.value.outcome) == (kind, outcome)
    found = getattr(caught.value, "problems", ())
    for problem, expected in zip(found, problems, strict=True):
        assert f"{problem.field}: {problem.message}".endswith(expected)


async def test_system_error_is_retried_without_a_real_wait() -> None:
    header = response(500, b"", {"retry-after": "4"})
    script = ScriptedTransport(system_error(retry_after=4), header, approved())
    decision = await asyncio.wait_for(script.client().approve(CODE, approval_request()), 5)
    assert (decision.approved, decision.meta.attempts, script.clock.slept) == (True, 3, [4, 4])
    assert decision.meta.elapsed == pytest.approx(8)
    assert script.sent[0].body == script.sent[2].body


async def test_computed_chooses_by_the_request_and_may_be_nested() -> None:
    def by_amount(sent: SentRequest) -> ScriptedResponse:
        return computed(lambda _: refused()) if sent.body["amount"] == 90_000 else approved()

    client = scripted_client(computed(by_amount), computed(by_amount))
    assert (await client.approve(CODE, approval_request(), order_id="1")).approved
    assert not (await client.approve(CODE, approval_request(amount=90_000), order_id="2")).approved
    with pytest.raises(TypeError, match="expected a scripted response, not NoneType: use approved"):
        await scripted_client(computed(lambda _: None)).create_request({})  # type: ignore[arg-type, return-value]


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


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (approved, "Computed(function=_Decision(status=201))"),
        (
            denied,
            "Response(status=403, body=***, fault=None, end='stated', is_followed=False, is_reused=False)",
        ),
        (
            lambda: system_error(retry_after=0),
            "Response(status=500, body=***, fault=None, end='stated', is_followed=False, is_reused=False)",
        ),
        (
            timed_out,
            f"NoResponse(error={errors.ReadTimeoutError!r}, cause_type='TimeoutError', is_sent=True)",
        ),
    ],
)
def test_scripted_response_compares_equal_and_masks_its_body(
    make: Callable[[], ScriptedResponse], expected: str
) -> None:
    assert make() == make()
    assert repr(make()) == expected
    assert denied("No.") == response(403, {"error": "No."}), "as in spec §7"
