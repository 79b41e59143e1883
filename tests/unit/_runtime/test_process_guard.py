"""A client without a ledger requests an approval once, and remembers its outcome."""

import asyncio
import gc
import json
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest

from loanasync import Approved, Decision, Dialect, RawResponse, Refused, Response, errors
from loanasync._protocol.codec import write
from loanasync._runtime.guard import ProcessGuard, _without_response
from loanasync.ledger import Ledger, MemoryLedger
from loanasync.testing import ScriptedResponse, approved, computed, domain_error, refused, timed_out
from support.builders import FISCAL_CODE, additional_data, approval_request
from support.ledger_clients import held_response
from support.memory_clients import Shop, cancelled, request, started
from support.virtual_time import turns

OTHER = "TSTXYZ00A00A000B"


class StoppedTime:
    """Seconds of a clock, which a test sets."""

    now = 1000.0


async def test_memory_overlapping_calls_get_separate_errors() -> None:
    step, arrived, go = held_response(timed_out())
    shop = Shop(step)
    calls = [asyncio.create_task(shop.approve()) for _ in range(5)]
    await arrived.wait()
    go.set()
    failures = await asyncio.gather(*calls)
    assert {type(error) for error in failures} == {errors.ReadTimeoutError}
    assert len({id(error) for error in failures}) == 5
    assert shop.sent == 1


async def test_memory_lost_decision_blocks_all_later_calls() -> None:
    shop = Shop(domain_error("User already evaluated for approval"), approved())
    await shop.approve()
    again = await shop.approve(repeat_unknown=True)
    assert isinstance(again, errors.OutcomeUnknownError)
    assert (again.state, shop.script.left) == ("lost", 1)


async def test_memory_repeat_that_is_not_sent_leaves_the_outcome_unknown() -> None:
    tokens = iter([asyncio.sleep(0, "token"), asyncio.Event().wait(), asyncio.sleep(0, "token")])
    shop = Shop(timed_out(), approved(), auth_token=lambda: next(tokens))
    await shop.approve()
    repeat = asyncio.create_task(shop.approve(repeat_unknown=True))
    await turns()
    await cancelled(repeat)
    await turns()
    assert isinstance(await shop.approve(), errors.OutcomeUnknownError)
    assert isinstance(await shop.approve(repeat_unknown=True), Approved)


async def test_memory_other_payload_in_flight_raises_a_mismatch() -> None:
    step, arrived, go = held_response(approved())
    shop = Shop(step, refused())
    first = await started(shop.approve(), arrived)
    other = await shop.approve(payload=approval_request(amount=99_000))
    assert isinstance(other, errors.PayloadMismatchError)
    assert (other.state, other.outcome, shop.sent) == ("inflight", "unknown", 1)
    go.set()
    assert isinstance(await first, Approved)


@pytest.mark.parametrize(("step", "state"), [(approved(), "approved"), (timed_out(), "unknown")])
async def test_memory_other_payload_later_raises_a_mismatch(step: ScriptedResponse, state: str) -> None:
    shop = Shop(step, approved())
    await shop.approve()
    for repeat_unknown in (False, True):
        other = await shop.approve(payload=approval_request(amount=99_000), repeat_unknown=repeat_unknown)
        assert isinstance(other, errors.PayloadMismatchError)
        assert (other.state, shop.sent) == (state, 1)


async def test_order_of_members_does_not_change_the_payload(ledger: Ledger | None) -> None:
    shop = Shop(approved(), ledger=ledger)
    await shop.approve(payload=approval_request(extra={"a": {"x": 1, "y": 2}, "b": 2}))
    again = await shop.approve(payload=approval_request(extra={"b": 2, "a": {"y": 2, "x": 1}}))
    assert (type(again), shop.sent) == (Approved, 1)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"last_name": "Forl\u00ec"}, {"last_name": "Forli\u0300"}),
        ({"last_name": "Anna"}, {"last_name": "\u202aAn\u200bna\ufeff"}),
        ({"last_name": "e\u200b\u0300"}, {"last_name": "\u00e8\ufe0f"}),
        ({"city": "La\u3164Spezia"}, {"city": "La Spezia"}),
        ({"city": '"\\u200b\n\u0303\u200b'}, {"city": '"\\u200b\n\u0303'}),
        ({"extra": {"a": {"b": ["\u00e8"]}, "c": 1}}, {"extra": {"c": 1, "a": {"b": ["e\u0300\xad"]}}}),
        ({"additional": additional_data(children="2"), "iban": "\u00e8"},
         {"additional": additional_data(children="2"), "iban": "\u200be\u0300"}),
    ],
    ids=range(7),
)  # fmt: skip
async def test_texts_that_look_the_same_are_the_same_payload(
    first: dict[str, Any], second: dict[str, Any], ledger: Ledger | None
) -> None:
    for one, other in ((first, second), (second, first)):
        shop = Shop(approved(), ledger=None if ledger is None else MemoryLedger())
        await shop.approve(payload=approval_request(**one))
        again = await shop.approve(payload=approval_request(**other))
        assert (type(again), shop.sent) == (Approved, 1)
        sent = dict(shop.script.sent[0].body)
        assert sent == json.loads(write(approval_request(**one), Dialect()))  # as typed


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"last_name": "Forl\u00ec"}, {"last_name": "Forli"}),
        ({"last_name": "\u00e8\u200b"}, {"last_name": "e\u200b"}),
        ({"extra": {"\u00e8": 1, "e\u0300": 2}}, {"extra": {"\u00e8": 2, "e\u0300": 2}}),
    ],
    ids=range(3),
)
async def test_texts_that_look_different_are_another_payload(
    first: dict[str, Any], second: dict[str, Any], ledger: Ledger | None
) -> None:
    shop = Shop(approved(), ledger=ledger)
    await shop.approve(payload=approval_request(**first))
    assert isinstance(await shop.approve(payload=approval_request(**second)), errors.PayloadMismatchError)
    assert shop.sent == 1


@pytest.mark.parametrize("other", ["customer", "shop"])
async def test_memory_other_approval_is_sent_separately(other: str) -> None:
    steps = [held_response(approved()), held_response(refused())]
    shop = Shop(*(step for step, _, _ in steps))
    another = shop.client.with_options(shop_id="another", auth_token="another-token")

    def both() -> tuple[Any, Any]:
        code = OTHER if other == "customer" else FISCAL_CODE
        second = request(another if other == "shop" else shop.client, code)
        return shop.approve(), second

    overlapping = asyncio.gather(*both())
    for _, arrived, go in steps:
        await arrived.wait()
        go.set()
    for decisions in (await overlapping, await asyncio.gather(*both())):
        assert [type(each) for each in decisions] == [Approved, Refused]
    assert shop.sent == 2


async def test_memory_beyond_its_size_drops_the_oldest_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loanasync._runtime.guard._MAX_RESPONSES", 2)
    shop = Shop(timed_out(), *[approved()] * 3)
    await shop.approve(OTHER)
    for order in ("1", "2", "3"):
        await shop.approve(order_id=order)
    for order in ("3", "2"):
        assert isinstance(await shop.approve(order_id=order), Approved)
    forgotten, blocked = await shop.approve(order_id="1"), await shop.approve(OTHER)
    assert isinstance(forgotten, errors.DecisionForgottenError)
    assert (forgotten.outcome, forgotten.repeatable, shop.sent) == ("approved", False, 4)
    assert blocked == errors.OutcomeUnknownError("approve", "", "unknown", "")


async def test_memory_of_large_responses_is_bounded_by_bytes() -> None:
    """The bound, not a smaller one of the test: 80 responses of 900 kB have 72 MB."""
    numbers = [str(number) for number in range(80)]
    shop = Shop(*[computed(lambda _: approved(order_token="x" * 900_000))] * len(numbers))
    tracemalloc.start()
    try:
        for order in numbers:
            await shop.approve(order_id=order)
        gc.collect()
        allocated = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 60_000_000 < allocated < 64 * 1024**2 + 2_000_000
    for order in numbers[-70:]:
        assert isinstance(await shop.approve(order_id=order), Approved)
    for order in numbers[:6]:
        assert isinstance(await shop.approve(order_id=order), errors.DecisionForgottenError)
    assert shop.sent == len(numbers)


async def test_memory_bytes_of_unread_and_repeated_decisions_do_not_add_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("loanasync._runtime.guard._MAX_BYTES", 25_000)
    large = approved(order_token="x" * 10_000)
    step, arrived, go = held_response(large)
    shop = Shop(step, *[large] * 3)
    call = await started(shop.approve(order_id="unread"), arrived)
    await cancelled(call)
    go.set()
    await turns()
    for order in "112212":  # two bodies
        assert isinstance(await shop.approve(order_id=order), Approved)
    assert isinstance(await shop.approve(order_id="unread"), Approved)  # counts from now on
    assert isinstance(await shop.approve(order_id="1"), errors.DecisionForgottenError)
    assert isinstance(await shop.approve(order_id="2"), Approved)
    assert shop.sent == 3


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("kind", [Approved, Refused])
async def test_memory_beyond_its_size_keeps_a_decision_that_no_caller_received(
    kind: type[Decision], number: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller leaves before the response, or after it by a number of turns of the event loop."""
    caplog.set_level("INFO", "loanasync")
    monkeypatch.setattr("loanasync._runtime.guard._MAX_RESPONSES", 1)
    step, arrived, go = held_response(approved() if kind is Approved else refused())
    shop = Shop(step, *[approved()] * 3)
    call = await started(shop.approve(order_id="0"), arrived)
    go.set()
    await turns(number)
    call.cancel()
    await asyncio.wait({call})
    await turns()
    message = "approve, entry -: received the response after the last caller had left: " + kind.__name__
    assert (message in caplog.messages) is call.cancelled()
    for order in ("1", "2", "3"):
        await shop.approve(order_id=order)
    again = await shop.approve(order_id="0")
    assert isinstance(again, kind if call.cancelled() else errors.DecisionForgottenError)
    assert shop.sent == 4


async def test_memory_of_many_approvals_warns_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loanasync._runtime.guard._MANY", 2)
    shop = Shop(*[approved()] * 4)
    for order in ("1", "2"):
        await shop.approve(order_id=order)
    assert caplog.messages == []
    for order in ("3", "4"):
        await shop.approve(order_id=order)
    [record] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert (record.name, record.args) == ("loanasync", (2,))
    assert "pass a ledger to LoanClient" in record.getMessage()


@pytest.fixture
def hour(monkeypatch: pytest.MonkeyPatch) -> StoppedTime:
    """Return the clock by which the memory drops outcomes."""
    time = StoppedTime()
    monkeypatch.setattr("loanasync._runtime.guard.monotonic", lambda: time.now)
    return time


@pytest.mark.parametrize(("age", "sent"), [(3599.0, 1), (3600.0, 2)])
async def test_memory_outcome_is_removed_after_an_hour(age: float, sent: int, hour: StoppedTime) -> None:
    shop = Shop(approved(), approved())
    await shop.approve()
    hour.now += age
    assert isinstance(await shop.approve(), Approved)
    assert shop.sent == sent


async def test_memory_keeps_the_beginning_of_a_body_without_a_decision() -> None:
    shop = Shop(Response(status=502, headers={}, body=b"x" * 20_000))
    await shop.approve()
    again = await shop.approve()
    assert isinstance(again, errors.OutcomeUnknownError)
    assert again.response == RawResponse(502, b"x" * 16_384)


async def test_memory_outcomes_of_earlier_hours_are_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hour: StoppedTime
) -> None:
    monkeypatch.setattr("loanasync._runtime.guard._MANY", 2)
    shop = Shop(*[approved()] * 4)
    for order in ("1", "2"):
        await shop.approve(order_id=order)
    hour.now += 3600
    for order in ("3", "1"):
        await shop.approve(order_id=order)
    assert (shop.sent, caplog.messages) == (4, [])


async def test_outcome_after_an_hour_replaces_an_unread_decision(hour: StoppedTime) -> None:
    step, arrived, go = held_response(approved())
    shop = Shop(step, timed_out())
    call = await started(shop.approve(), arrived)
    await cancelled(call)
    go.set()
    await turns()
    hour.now += 3600
    assert isinstance(await shop.approve(), errors.ReadTimeoutError)
    blocked = await shop.approve()
    assert isinstance(blocked, errors.OutcomeUnknownError)
    assert (blocked.note, blocked.response) == ("ReadTimeoutError", None)


async def test_memory_of_a_forked_child_knows_the_requests_of_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step, arrived, go = held_response(approved())
    shop = Shop(step)
    first = await started(shop.approve(), arrived)
    with monkeypatch.context() as child:
        child.setattr("os.getpid", lambda: -1)
        assert (await shop.client.known(FISCAL_CODE)).state == "unknown"
        assert await shop.approve() == errors.OutcomeUnknownError("approve", "", "unknown", "fork")
    go.set()
    assert isinstance(await first, Approved)
    assert shop.sent == 1


def test_late_outcome_of_a_forgotten_order_is_found_by_the_next_order() -> None:
    """The claim was given up more than an hour before, so the memory has forgotten the order meanwhile."""
    guard, customer = ProcessGuard(), b"c" * 16
    first: Any = SimpleNamespace(approval=customer + b"1" * 16, payload=b"p" * 16)
    guard.record(first, "unknown", _without_response("ReadTimeoutError"))
    second: Any = SimpleNamespace(approval=customer + b"2" * 16, take_slot_now=lambda: True)
    assert guard.begin_now(second) is None


def test_flight_of_a_parent_process_replaces_no_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loanasync._runtime.guard._MAX_RESPONSES", 2)
    guard = ProcessGuard()
    kept: list[Any] = [("", 201, b"{}", None, "stated"), ("ReadTimeoutError", 0, b"", None, "stated")]
    runs: list[Any] = [SimpleNamespace(approval=bytes([each]) * 16, payload=b"p" * 16) for each in range(3)]
    guard.record(runs[0], "approved", kept[0])
    guard.record(runs[1], "unknown", kept[1])
    guard.inherit(runs[1])
    guard.inherit(runs[2])
    assert [*guard._kept.values()] == kept
