"""Types of the public API, as users see them; mypy checks this file, and it is never run."""

from collections.abc import Mapping
from typing import Any, assert_never, assert_type

from loanasync import (
    ApprovalRequest,
    Approved,
    Decision,
    Dialect,
    Known,
    LoanClient,
    Problems,
    Refused,
    RetryPolicy,
    Timeout,
    UserData,
)
from loanasync.errors import AlreadyEvaluatedError, ServiceError
from loanasync.ledger import Ledger, LedgerPolicy, SqliteLedger, create_ledger
from loanasync.testing import (
    Metric,
    ScriptedResponse,
    ScriptedTransport,
    SentRequest,
    TelemetryRecorder,
    approval_request,
    approved,
    computed,
    refused,
    scripted_client,
)


async def calls(client: LoanClient, request: ApprovalRequest, data: UserData) -> None:
    assert_type(client.check("code", request), Problems)
    assert_type(await client.approve("code", request), Approved | Refused)
    assert_type(await client.complete("code", data), UserData)
    created = await client.create_request({"fiscalCode": "code", "nested": [{"a": None}]})
    assert isinstance(created, Mapping)
    async with client as same:
        assert_type(same, LoanClient)
    assert_type(client.with_options(), LoanClient)


async def ledgers(client: LoanClient) -> None:
    ledger = SqliteLedger("decisions.db", must_exist=True)
    await create_ledger(ledger, base_url="https://loans.example.com", policy=LedgerPolicy())
    assert_type(LoanClient.from_env(ledger=ledger, ledger_policy=LedgerPolicy()), LoanClient)
    assert_type(client.ledger, Ledger | None)
    assert_type(await client.known("code", order_id="A-1001"), Known)


class _ShopClient(LoanClient):
    """A client of a shop."""


def clients_from_environment(ledger: Ledger) -> None:
    assert_type(_ShopClient.from_env(), _ShopClient)
    assert_type(LoanClient.from_env(timeout=Timeout(total=5), ledger=ledger, ledger_policy=None), LoanClient)


def token() -> str:
    return "token"


async def token_of_a_vault() -> str:
    return "token"


def clients_with_a_function_for_the_token(client: LoanClient) -> None:
    assert_type(LoanClient("a", shop_id="b", auth_token=token), LoanClient)
    assert_type(client.with_options(shop_id="b", auth_token=token_of_a_vault), LoanClient)


def decisions_are_matched_exhaustively(decision: Decision) -> str | None:
    match decision:
        case Approved(redirect_url=url):
            return url
        case Refused():
            return None
        case _:
            assert_never(decision)


def attributes(decision: Decision, error: AlreadyEvaluatedError, service: ServiceError) -> None:
    assert_type(decision.approved, bool)
    assert_type(decision.net_amount, int | None)
    kind = Approved if decision.to_dict()["approved"] else Refused
    assert_type(kind.from_dict(decision.to_dict()), Approved | Refused)
    assert_type(error.after_retry, bool)
    assert_type(service.status, int)
    assert_type(service.problems, Problems)


async def respond(sent: SentRequest) -> ScriptedResponse:
    return approved() if sent.body["amount"] == 1 else refused()


def help_for_tests(recorder: TelemetryRecorder) -> None:
    assert_type(approval_request(amount=1), ApprovalRequest)
    script = ScriptedTransport(approved(net_amount=1), computed(respond), computed(lambda _: refused()))
    assert_type(script.client(telemetry=recorder.telemetry), LoanClient)
    assert_type(scripted_client(approved()), LoanClient)
    assert_type(script.sent, list[SentRequest])
    assert_type(recorder.metric("loanasync.inflight"), Metric)
    ScriptedTransport(approved)  # type: ignore[arg-type]


# Wrong uses: mypy reports an ignore that is not needed, so each line must be an error.
def misuse(client: LoanClient, decision: Approved, refused: Refused, anything: Any) -> None:
    ApprovalRequest(amount=1)  # type: ignore[call-arg]
    ApprovalRequest(anything, anything)  # type: ignore[call-arg]
    LoanClient("https://loans.example.com")  # type: ignore[call-arg]
    LoanClient("https://loans.example.com", shop_id="a", auth_token="b", timeout=3)  # type: ignore[arg-type]
    LoanClient.from_env(timeout=5, total=5)  # type: ignore[arg-type, call-arg]
    decision.approved = False  # type: ignore[misc, assignment]
    refused.redirect_url  # type: ignore[attr-defined]  # noqa: B018  (a refusal has no redirect)
    client.approve("code", {"amount": 1})  # type: ignore[arg-type, unused-coroutine]
    client.approve("code", request=UserData()).approved  # type: ignore[arg-type, attr-defined]  # noqa: B018
    LoanClient("a", shop_id="b", auth_token="c", dialect="street_number")  # type: ignore[arg-type]
    LoanClient("a", shop_id="b", auth_token="c", session=anything, retries=3)  # type: ignore[call-arg]
    LoanClient("a", shop_id="b", auth_token=token_of_a_vault())  # type: ignore[arg-type]
    LoanClient("a", shop_id="b", auth_token=len)  # type: ignore[arg-type]
    Dialect(street_number_field="number")  # type: ignore[arg-type]
    RetryPolicy(attempts="3")  # type: ignore[arg-type]
    LoanClient.from_env(ledger="decisions.db", ledgr=anything)  # type: ignore[arg-type, call-arg]
    client.with_options(base_url="https://loans.example.com")  # type: ignore[call-arg]
    decision.approval_message_api_full  # type: ignore[attr-defined]  # noqa: B018  ("must not be used")


def a_match_without_refused_is_an_error(decision: Decision) -> str:
    match decision:
        case Approved():
            return "send the customer on"
        case _:
            assert_never(decision)  # type: ignore[arg-type]


def nor_may_it_fall_through(decision: Decision) -> str:  # type: ignore[return]
    match decision:
        case Approved():
            return "send the customer on"
