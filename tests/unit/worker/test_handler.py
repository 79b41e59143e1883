"""`handle` returns a final result of plain JSON, or raises an error if nothing was evaluated."""

import asyncio
import json
import traceback
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import format_trace_id

from loanasync import LoanError, RetryPolicy, Telemetry, Timeout, errors
from loanasync.bulk.next_steps import next_step
from loanasync.ledger import State, resolve
from loanasync.testing import (
    ScriptedResponse,
    SentRequest,
    approved,
    computed,
    connection_lost,
    denied,
    not_connected,
    refused,
    rejected,
    response,
    system_error,
)
from loanasync.worker import handle, message
from support.builders import FISCAL_CODE, approval_request
from support.ledger_clients import FailingLedger, Shop, broken
from support.virtual_time import VirtualTime


async def result(shop: Shop, **options: Any) -> dict[str, Any]:
    ended = await handle(shop.client, message(FISCAL_CODE, approval_request(**options)))
    plain: dict[str, Any] = json.loads(json.dumps(ended))
    assert plain == ended
    return plain


def test_task_waits_for_a_response_beyond_the_total_time_limit() -> None:
    """The event loop of some queues stops between two tasks, and the response would be lost."""

    async def slow(_: SentRequest) -> ScriptedResponse:
        await asyncio.sleep(3)
        return approved()

    shop = Shop(computed(slow), options={"timeout": Timeout(total=1, attempt=5, connect=1)})
    assert VirtualTime().run(result(shop))["status"] == "approved"


async def test_decision_result_has_no_personal_data_but_the_redirect() -> None:
    ended = await result(Shop(approved(redirect_url="https://loans.example.com/#secret", net_amount=43_650)))
    assert ended["decision"] == {
        "approved": True,
        "amount": 45_000,
        "net_amount": 43_650,
        "instalments": 12,
        "zero_interest_rate": ended["decision"]["zero_interest_rate"],
        "payment_day_of_month": None,
        "redirect_url": "https://loans.example.com/#secret",
    }
    assert (ended["meta"]["status"], ended["meta"]["attempts"], ended["meta"]["trace_id"]) == (201, 1, None)
    assert 0 <= ended["meta"]["elapsed"] < 60
    refusal = await result(Shop(refused()))
    assert (refusal["decision"]["approved"], refusal["decision"]["redirect_url"]) == (False, None)


@pytest.mark.parametrize("state", [State.UNKNOWN, State.LOST, State.HELD])
async def test_unknown_result_names_the_entry_to_resolve(state: State) -> None:
    shop = Shop()
    entry = await shop.put(state)
    ended = await result(shop)
    assert (ended["status"], ended["outcome"], ended["repeatable"]) == ("unknown", "unknown", False)
    assert (ended["error"]["type"], ended["error"]["entry"]) == ("OutcomeUnknownError", entry.key)
    assert not shop.script.sent


async def test_payload_mismatch_is_final() -> None:
    shop = Shop(approved())
    await result(shop)
    ended = await result(shop, amount=46_000)
    assert (ended["status"], ended["outcome"], ended["repeatable"]) == ("failed", "approved", False)
    assert (ended["error"]["type"], ended["not_stored"]) == ("PayloadMismatchError", None)


async def test_unrecorded_decision_is_in_the_result_and_in_a_file(tmp_path: Path) -> None:
    shop = Shop(approved(), ledger=FailingLedger(settle=broken), orphan_folder=tmp_path)
    ended = await result(shop)
    assert (ended["status"], ended["outcome"], ended["repeatable"]) == ("approved", "approved", False)
    assert ended["decision"]["redirect_url"]
    assert ended["error"] is None  # a consumer that checks `error` first also sees a decision
    assert ended["not_stored"]["type"] == "DecisionNotRecordedError"
    assert Path(ended["not_stored"]["file"]).parent == tmp_path


@pytest.mark.parametrize("encrypt", [None, Fernet(Fernet.generate_key())], ids=["plain", "encrypted"])
@pytest.mark.parametrize("step", [response(201, b'{"amount": 45000, "approved": '), connection_lost()])
async def test_result_after_resolve_is_the_decision_of_the_ledger(
    step: ScriptedResponse, encrypt: Fernet | None
) -> None:
    shop = Shop(step, encrypt=encrypt)
    assert (await result(shop))["status"] == "unknown"
    await resolve(shop.ledger, await shop.entry(), State.APPROVED, "ticket 17")
    for client in (shop.client, shop.new_client()):
        ended = await handle(client, message(FISCAL_CODE, approval_request()))
        assert (ended["status"], ended["outcome"], ended["error"]) == ("approved", "approved", None)
        assert (ended["decision"]["approved"], ended["decision"]["redirect_url"]) == (True, None)
        assert ended["meta"]["entry"] == (await shop.entry()).key


async def test_result_without_a_response_has_entry_and_trace(tracing: TracerProvider) -> None:
    """The span of the call is the root, so the trace id is the call's own."""
    options = {"telemetry": Telemetry(tracer_provider=tracing), "retry": RetryPolicy(attempts=1)}
    shop = Shop(connection_lost(), options=options)
    lost, held_back = await result(shop), await result(shop)
    assert held_back["error"]["type"] == "OutcomeUnknownError"
    entry = (await shop.entry()).key
    assert {each["meta"]["entry"] for each in (lost, held_back)} == {entry}
    assert len({each["meta"]["trace_id"] for each in (lost, held_back)} - {None}) == 2
    wrong = await handle(shop.client, message(FISCAL_CODE, approval_request(amount=1)))
    assert (wrong["status"], wrong["error"]["entry"], wrong["meta"]["attempts"]) == ("rejected", None, 0)


async def test_result_without_a_call_has_the_trace_of_its_task(tracing: TracerProvider) -> None:
    with tracing.get_tracer("queue").start_as_current_span("task") as span:
        wrong = await handle(Shop().client, {})
    assert wrong["meta"]["trace_id"] == format_trace_id(span.get_span_context().trace_id)


async def raised(shop: Shop) -> LoanError:
    with pytest.raises(LoanError) as caught:
        await result(shop)
    text = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=True).format())
    own_frames = text.partition("/loanasync/worker/")[2]
    assert FISCAL_CODE not in own_frames
    assert "anna@example.com" not in own_frames
    return caught.value


async def test_denial_after_a_system_error_is_a_result() -> None:
    """The first attempt may have been evaluated, so the message is not tried again."""
    denial = response(403, {"error": "Access denied"})
    ended = await result(Shop(system_error(), denial, options={"retry": RetryPolicy(base=0.001)}))
    assert (ended["status"], ended["error"]["type"]) == ("unknown", "AccessDeniedError")


@pytest.mark.parametrize(
    ("denial", "step"),
    [
        (denied(), "refused shop"),
        (response(403, {"errors": {"address": ["blocked"]}}), "try again"),
        (response(403), "try again"),
    ],
)
async def test_denial_is_about_the_shop_only_if_the_service_says_so(
    denial: ScriptedResponse, step: str
) -> None:
    with pytest.raises(LoanError) as caught:
        await result(Shop(denial))
    assert next_step(caught.value) == step


async def test_error_of_an_unsent_request_is_raised() -> None:
    assert isinstance(await raised(Shop(not_connected())), errors.ConnectError)
    shop = Shop(ledger=FailingLedger(claim=broken))
    assert isinstance(await raised(shop), errors.LedgerUnavailableError)
    await shop.client.aclose()
    assert isinstance(await raised(shop), errors.ClientClosedError)


async def test_wrong_configuration_is_raised() -> None:
    def later() -> None:
        raise errors.ConfigurationError("ledger", "has entries of a later version")

    assert isinstance(
        await raised(Shop(ledger=FailingLedger(get=later, claim=later))), errors.ConfigurationError
    )


async def test_request_in_flight_elsewhere_is_raised() -> None:
    shop = Shop(options={"timeout": Timeout(total=0.05, attempt=0.04, connect=0.03)})
    await shop.put(State.INFLIGHT)
    assert isinstance(await raised(shop), errors.InFlightError)


async def test_result_hides_messages_of_the_service() -> None:
    ended = await result(Shop(rejected({"city": [f"unknown for {FISCAL_CODE}"]})))
    assert [(each["field"], each["message"]) for each in ended["error"]["problems"]] == [("city", "***")]


async def test_result_hides_the_text_of_foreign_exceptions() -> None:
    def quoting(*_: object, **__: object) -> None:
        raise KeyError(FISCAL_CODE)

    shop = Shop()
    shop.client._approve_row = quoting  # type: ignore[assignment,method-assign]  # whatever may go wrong within
    ended = await result(shop)
    assert (ended["status"], ended["error"]["type"]) == ("unknown", "TransportError")
    assert "no response (KeyError)" in ended["error"]["message"]
    assert (ended["outcome"], ended["repeatable"]) == ("unknown", False)
    assert FISCAL_CODE not in json.dumps(ended)


@pytest.mark.parametrize(
    "error",
    [
        errors.ConfigurationError("ledger", "has entries of a later version"),
        errors.LedgerMismatchError("approve", "", "decisions.db", "has another key"),
    ],
)
def test_error_of_every_call_pauses_the_task(error: LoanError) -> None:
    assert next_step(error) == "pause"
