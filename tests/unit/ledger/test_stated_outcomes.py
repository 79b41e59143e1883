"""`LoanClient.resolve`: outcomes that another source states, in any order of events."""

import asyncio
import tempfile
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from loanasync import (
    Approved,
    ConfigurationError,
    ConnectionLostError,
    InFlightError,
    InvalidRequestError,
    LedgerUnavailableError,
    NotResolvedError,
    OutcomeUnknownError,
    Refused,
)
from loanasync.ledger import Entry, LedgerPolicy, MemoryLedger, Settlement, State, resolve
from loanasync.ledger.administration import rotate_key
from loanasync.ledger.model import HISTORY_LENGTH
from loanasync.testing import (
    approval_request,
    approved,
    connection_lost,
    not_connected,
    refused,
    scripted_client,
)
from support.builders import FISCAL_CODE
from support.ledger_clients import FailingLedger, Shop, held_response

STATES = {"approved": State.APPROVED, "refused": State.REFUSED, "not_evaluated": State.RELEASED}
OLD, NEW = b"0123456789abcdef", b"fedcba9876543210"
WRONG_ARGUMENTS: dict[str, object] = {
    "outcome": "released",
    "source": "service",
    "scope": None,
    "note": "anna@example.com",
    "order_token": 42,
}


class NotWaitingLedger(MemoryLedger):
    """A ledger whose `wait` returns at once, as after a long wait for a request in progress."""

    async def wait(self, key: str, within: float) -> Entry | None:
        del within
        return await self.get(key)


@pytest.fixture(autouse=True)
def _own_orphan_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


async def stated(shop: Shop, outcome: Any, **options: Any) -> Entry:
    return await shop.client.resolve(FISCAL_CODE, outcome, **{"source": "webhook", **options})


async def error_of(shop: Shop, outcome: str, **options: Any) -> NotResolvedError:
    with pytest.raises(NotResolvedError) as caught:
        await stated(shop, outcome, **options)
    return caught.value


@pytest.mark.parametrize("outcome", STATES)
@pytest.mark.parametrize("before", list(State))
async def test_resolve_settles_only_what_it_does_not_contradict(before: State, outcome: str) -> None:
    settles = {
        State.UNKNOWN: {"approved", "refused", "not_evaluated"},
        State.LOST: {"approved", "refused"},
        State.HELD: {"approved", "refused"},
    }
    shop = Shop(ledger=NotWaitingLedger())
    entry = await shop.put(before)
    after = STATES[outcome]
    if outcome in settles.get(before, ()):
        settled = await stated(shop, outcome, note="event 17")
        assert (settled.state, settled.source, settled.note) == (after, "webhook", "event 17")
        assert [change.state for change in settled.history] == [before]
    elif before is after:
        assert await stated(shop, outcome) == entry
    elif before is State.INFLIGHT and after.is_decided:
        with pytest.raises(InFlightError, match="call again later") as caught:
            await stated(shop, outcome)
        assert caught.value.key == entry.key
    else:
        error = await error_of(shop, outcome)
        assert (error.key, error.state, error.stated) == (entry.key, before.value, outcome)
        assert await shop.entry() == entry


async def test_resolve_repeated_changes_nothing() -> None:
    shop = Shop(connection_lost())
    await shop.result()
    first = await stated(shop, "refused", note="event 17")
    assert await stated(shop, "refused", note="event 18") == first == await shop.entry()
    assert isinstance(await shop.approve(), Refused)


async def test_resolve_of_a_released_entry_lets_the_request_be_sent_once() -> None:
    """A redelivered statement does not release the request that was sent after the first delivery."""
    shop = Shop(connection_lost(), connection_lost(), approved())
    await shop.result()
    await stated(shop, "not_evaluated", note="event 17")
    assert isinstance(await shop.result(), ConnectionLostError)
    error = await error_of(shop, "not_evaluated", note="event 17")
    assert error.state == "unknown"
    assert "requested again after an earlier request" in str(error)
    assert (await error_of(shop, "not_evaluated", source="back office")).state == "unknown"
    assert isinstance(await shop.result(), OutcomeUnknownError)
    await resolve(shop.ledger, await shop.entry(), State.RELEASED, "ticket 17")
    assert isinstance(await shop.approve(), Approved)


async def test_resolve_does_not_release_after_a_release_by_the_client() -> None:
    """The first delivery found a released entry and changed nothing; the second one comes too late."""
    shop = Shop(not_connected(), connection_lost())
    await shop.result()
    await stated(shop, "not_evaluated", note="event 17")
    await shop.result()
    assert (await error_of(shop, "not_evaluated", note="event 17")).state == "unknown"


async def test_resolve_does_not_release_a_request_that_was_repeated() -> None:
    shop = Shop(connection_lost(), connection_lost())
    await shop.result()
    await shop.result(repeat_unknown=True)
    assert (await shop.entry()).takeovers == 1
    assert (await error_of(shop, "not_evaluated")).state == "unknown"


@pytest.mark.parametrize("state", [State.HELD, State.LOST])
async def test_resolve_does_not_release_an_entry_that_was_held_or_lost(state: State) -> None:
    """A settlement that fails leaves the entry in flight, and unknown later."""
    shop = Shop(connection_lost())
    await shop.result()
    entry = await resolve(shop.ledger, await shop.entry(), state, "ticket 17")
    await resolve(shop.ledger, entry, State.UNKNOWN, "ticket 18")
    assert (await error_of(shop, "not_evaluated")).state == "unknown"


async def test_resolve_does_not_release_an_entry_with_a_full_history() -> None:
    """The history keeps the last 20 states, so that an earlier release may be missing."""
    shop = Shop(connection_lost())
    await shop.result()
    for number in range(HISTORY_LENGTH):
        await resolve(shop.ledger, await shop.entry(), State.UNKNOWN, f"ticket {number}")
        history = (await shop.entry()).history
    assert len(history) == HISTORY_LENGTH
    assert (await error_of(shop, "not_evaluated")).state == "unknown"


async def test_resolve_corrects_a_release_by_another_source() -> None:
    shop = Shop(connection_lost())
    await shop.result()
    await stated(shop, "not_evaluated")
    settled = await stated(shop, "approved", source="back office")
    assert (settled.state, settled.source) == (State.APPROVED, "back office")
    assert (await error_of(shop, "not_evaluated")).state == "approved"


async def test_resolve_keeps_a_release_that_the_client_proved() -> None:
    shop = Shop(not_connected())
    await shop.result()
    assert "the entry is released; ask the service" in str(await error_of(shop, "approved"))


async def test_resolve_does_not_correct_another_source() -> None:
    shop = Shop(connection_lost())
    await shop.result()
    entry = await stated(shop, "refused")
    assert (await error_of(shop, "approved", source="back office")).outcome == "refused"
    assert await shop.entry() == entry


@pytest.mark.parametrize(("late", "kind"), [(approved(), Approved), (refused(), Refused)])
async def test_resolve_during_the_request_waits_for_the_response(late: Any, kind: type) -> None:
    step, arrived, go = held_response(late)
    shop = Shop(step, patience=5)
    call = asyncio.create_task(shop.result())
    await arrived.wait()
    resolving = asyncio.create_task(stated(shop, "approved"))
    await asyncio.sleep(0)
    go.set()
    assert isinstance(await call, kind)
    if kind is Approved:
        assert (await resolving).source == "service"
    else:
        with pytest.raises(NotResolvedError, match="the entry is refused"):
            await resolving
    assert (await shop.entry()).body is not None


async def test_resolve_after_a_worker_died_waits_for_the_lease() -> None:
    shop = Shop()
    ended = await shop.put(State.RELEASED)
    await shop.ledger.claim(ended.key, token="dead", payload=ended.payload, lease=0.05)
    waiting = asyncio.create_task(shop.ledger.wait(ended.key, 5))
    assert (await stated(shop, "approved")).state is State.APPROVED
    found = await waiting
    assert found is not None
    assert found.state in (State.UNKNOWN, State.APPROVED)


async def test_resolve_as_not_evaluated_does_not_wait() -> None:
    shop = Shop(patience=60)
    await shop.put(State.INFLIGHT)
    error = await asyncio.wait_for(error_of(shop, "not_evaluated"), 5)
    assert "when it has ended" in str(error)


async def test_resolve_without_entry_creates_none() -> None:
    shop = Shop()
    error = await error_of(shop, "approved")
    assert (error.state, error.outcome) == ("missing", "unknown")
    assert "check the fiscal code, the scope and the order token" in str(error)
    assert await shop.entries() == []


async def test_resolve_finds_the_entry_of_its_scope_only() -> None:
    shop = Shop(connection_lost(), connection_lost())
    for scope in ("", "spring"):
        await shop.result(scope=scope)
    await stated(shop, "refused", scope="spring")
    assert {entry.scope: entry.state for entry in await shop.entries()} == {
        "": State.UNKNOWN,
        "spring": State.REFUSED,
    }
    assert (await error_of(shop, "refused", scope="autumn")).state == "missing"


@pytest.mark.parametrize("scope", ["", "order_token"])
async def test_resolve_finds_the_entry_of_its_order(scope: Any) -> None:
    shop = Shop(connection_lost(), connection_lost(), scope=scope)
    for order in ("A1", "A2"):
        await shop.result(request=approval_request(order_token=order), scope=order)
    own = {} if scope == "" else {"scope": "A2"}
    await stated(shop, "refused", order_token="A2", **own)
    assert {entry.scope: entry.state for entry in await shop.entries()} == {
        "A1": State.UNKNOWN,
        "A2": State.REFUSED,
    }
    assert (await error_of(shop, "refused", order_token="A3")).state == "missing"
    assert (await error_of(shop, "refused", order_token="A1", scope="A2")).state == "missing"


async def test_resolve_of_an_order_in_several_scopes_needs_the_scope() -> None:
    shop = Shop(connection_lost(), connection_lost())
    for scope in ("a", "b"):
        await shop.result(request=approval_request(order_token="A1"), scope=scope)
    error = await error_of(shop, "refused", order_token="A1")
    assert (error.state, error.key) == ("ambiguous", "")
    assert "pass the scope" in str(error)
    assert (await stated(shop, "refused", order_token="A1", scope="b")).scope == "b"


async def test_resolve_of_an_order_with_and_without_scope_is_ambiguous() -> None:
    shop = Shop(connection_lost(), connection_lost())
    for scope in ("", "b"):
        await shop.result(request=approval_request(order_token="A1"), scope=scope)
    assert (await error_of(shop, "refused", order_token="A1")).state == "ambiguous"
    assert {entry.state for entry in await shop.entries()} == {State.UNKNOWN}
    assert (await stated(shop, "refused")).scope == ""
    assert (await stated(shop, "refused", order_token="A1", scope="b")).scope == "b"


async def test_resolve_without_a_required_order_token_is_rejected() -> None:
    with pytest.raises(InvalidRequestError, match="order_token: is required"):
        await stated(Shop(scope="order_token"), "approved")


async def test_resolve_finds_the_entry_of_an_old_key() -> None:
    before = Shop(connection_lost(), key=OLD)
    await before.result()
    await rotate_key(before.ledger, LedgerPolicy(key=NEW, old_keys=[OLD]))
    shop = Shop(ledger=before.ledger, key=NEW, old_keys=[OLD])
    assert (await stated(shop, "refused")).key == (await shop.entry()).key
    assert isinstance(await shop.approve(), Refused)


async def test_resolve_prefers_an_unknown_entry_to_a_released_one() -> None:
    before = Shop(connection_lost(), key=OLD)
    await before.result()
    newer = Shop(not_connected(), ledger=before.ledger, key=NEW)
    await newer.result()
    shop = Shop(ledger=before.ledger, key=NEW, old_keys=[OLD])
    assert isinstance(await shop.result(), OutcomeUnknownError)
    await stated(shop, "refused")
    assert isinstance(await shop.approve(), Refused)


@pytest.mark.parametrize("name", WRONG_ARGUMENTS)
async def test_resolve_with_a_wrong_argument_names_it(name: str) -> None:
    shop = Shop(connection_lost())
    await shop.result()
    arguments = {"outcome": "approved", name: WRONG_ARGUMENTS[name]}
    with pytest.raises(InvalidRequestError) as caught:
        await stated(shop, arguments.pop("outcome"), **arguments)
    [problem] = caught.value.problems
    assert (problem.field, problem.code.partition(".")[0]) == (name, name)
    assert (await shop.entry()).state is State.UNKNOWN


@pytest.mark.parametrize("source", ["", " ", " service ", 7, "TSTXYZ00A00A000A"])
async def test_resolve_with_a_wrong_source_is_rejected(source: Any) -> None:
    with pytest.raises(InvalidRequestError, match="source"):
        await stated(Shop(), "approved", source=source)


async def test_resolve_with_a_note_that_is_no_text_is_rejected() -> None:
    with pytest.raises(InvalidRequestError, match="note: must be a str"):
        await stated(Shop(), "approved", note=17)


async def test_resolve_with_an_invalid_fiscal_code_is_rejected() -> None:
    with pytest.raises(InvalidRequestError, match="fiscal_code"):
        await Shop().client.resolve("RSSMRA", "approved", source="webhook")


async def test_resolve_without_ledger_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="ledger"):
        await scripted_client().resolve(FISCAL_CODE, "approved", source="webhook")


async def test_resolve_with_a_failing_ledger_can_be_repeated() -> None:
    ledger = FailingLedger()
    shop = Shop(connection_lost(), ledger=ledger)
    await shop.result()

    def broken() -> None:
        raise ConnectionError

    for name in ("get", "claim", "settle"):
        ledger.faults = {name: broken}
        with pytest.raises(LedgerUnavailableError, match="ConnectionError") as caught:
            await stated(shop, "refused")
        assert caught.value.repeatable
    ledger.faults = {}
    entry = await shop.entry()
    assert entry.state is State.INFLIGHT  # claimed by the last attempt, until its lease expires
    unknown = Settlement(state=State.UNKNOWN)
    await ledger.settle(entry.key, token=entry.token, payload=entry.payload, settlement=unknown)
    assert (await stated(shop, "refused")).state is State.REFUSED


async def test_resolve_with_an_error_of_the_ledger_raises_that_error() -> None:
    def foreign() -> None:
        raise ConfigurationError("ledger", "decisions.db is not a ledger: name another file")

    with pytest.raises(ConfigurationError, match="not a ledger"):
        await stated(Shop(ledger=FailingLedger(get=foreign)), "refused")


async def test_resolve_with_a_hanging_ledger_ends() -> None:
    shop = Shop(ledger=FailingLedger(get=asyncio.Event().wait), patience=0.01)
    with pytest.raises(LedgerUnavailableError, match="TimeoutError"):
        await stated(shop, "refused")


async def test_resolve_with_a_ledger_that_cancels_is_an_error() -> None:
    def closed() -> None:
        raise asyncio.CancelledError

    with pytest.raises(LedgerUnavailableError, match="CancelledError"):
        await stated(Shop(ledger=FailingLedger(get=closed)), "refused")


async def test_resolve_that_is_cancelled_is_cancelled() -> None:
    hanging = asyncio.Event()
    resolving = asyncio.create_task(stated(Shop(ledger=FailingLedger(get=hanging.wait)), "refused"))
    await asyncio.sleep(0)
    resolving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await resolving


@pytest.mark.parametrize("late", [State.APPROVED, State.REFUSED])
async def test_resolve_after_a_response_during_its_write_keeps_the_response(late: State) -> None:
    """The late response is written between the read and the claim of the statement."""
    ledger = FailingLedger()
    shop = Shop(connection_lost(), ledger=ledger)
    await shop.result()
    entry = await shop.entry()

    async def respond() -> None:
        ledger.faults = {}
        settlement = Settlement(state=late, status=201, body=b"{}")
        await ledger.settle(entry.key, token=entry.token, payload=entry.payload, settlement=settlement)

    ledger.faults = {"claim": respond}
    if late is State.REFUSED:
        assert (await stated(shop, "refused")).source == "service"
    else:
        assert (await error_of(shop, "refused")).state == "approved"
    assert (await shop.entry()).source == "service"


async def unwritten_decision(tmp_path: Path) -> Shop:
    """Return a shop whose approved response is in an orphan file, and whose entry is unknown."""
    ledger = FailingLedger()
    step, arrived, go = held_response(approved())
    shop = Shop(step, ledger=ledger, orphan_folder=tmp_path)
    call = asyncio.create_task(shop.result())
    await arrived.wait()

    def broken() -> None:
        raise ConnectionError

    ledger.faults = {"settle": broken}
    go.set()
    await call
    ledger.faults = {}
    return shop


@pytest.mark.parametrize("outcome", ["approved", "refused"])
async def test_resolve_imports_the_response_in_a_file_first(tmp_path: Path, outcome: str) -> None:
    shop = await unwritten_decision(tmp_path)
    if outcome == "approved":
        assert (await stated(shop, outcome)).source == "service"
    else:
        assert (await error_of(shop, outcome)).state == "approved"
    assert (await shop.entry()).body is not None
    assert list(tmp_path.iterdir()) == []


async def test_resolve_ignores_files_that_cannot_be_imported(tmp_path: Path) -> None:
    shop = Shop(connection_lost(), orphan_folder=tmp_path)
    await shop.result()
    entry = await shop.entry()
    file = tmp_path / f"{entry.key[:12]}-0.json"
    file.mkdir()
    assert (await stated(shop, "refused")).state is State.REFUSED
    other = Shop(connection_lost(), orphan_folder=Path(__file__))  # not a folder
    await other.result()
    assert (await stated(other, "refused")).state is State.REFUSED


EVENTS = ("expires", "service", "stated", "stated again", "held")


@pytest.mark.parametrize("statement", STATES)
@pytest.mark.parametrize("decision", [State.APPROVED, State.REFUSED, State.RELEASED])
async def test_resolve_in_any_order_of_events_loses_no_decision(decision: State, statement: str) -> None:
    """Play each order of five events, and compare the entry after each event with the one before."""
    stating = STATES[statement]
    for order in permutations(EVENTS):
        shop = Shop(ledger=NotWaitingLedger())
        first = await shop.put(State.INFLIGHT)
        for event in order:
            before = await shop.entry()
            after = await play(shop, first, event, decision, statement)
            changed_by_statement = after != before and event.startswith("stated")
            if before.state.is_decided:
                assert after == before, (order, event)
            if changed_by_statement:
                assert (after.state, after.source) == (stating, "webhook"), (order, event)
                assert stating.is_decided or before.state is State.UNKNOWN, (order, event)
                assert [change.state for change in after.history].count(before.state) >= 1
            if event == "service" and decision.is_decided and not before.state.is_decided:
                assert (after.state, after.source) == (decision, "service"), (order, event)
        if decision.is_decided:  # the last word is the service's, or a decision that came before it
            assert (await shop.entry()).state.is_decided, order


async def play(shop: Shop, first: Entry, event: str, decision: State, statement: str) -> Entry:
    """Play one event, and return the entry after it."""
    match event:
        case "expires" | "service":
            state = State.UNKNOWN if event == "expires" else decision
            settlement = Settlement(state=state, note=event, status=201, body=b"{}")
            await shop.ledger.settle(
                first.key, token=first.token, payload=first.payload, settlement=settlement
            )
        case "held":
            entry = await shop.entry()
            if entry.state is State.UNKNOWN:
                await resolve(shop.ledger, entry, State.HELD, "ticket 17")
        case _:
            await play_statement(shop, statement)
    return await shop.entry()


async def play_statement(shop: Shop, statement: str) -> None:
    """State the outcome. The entry has it, or has the state that the error names."""
    try:
        entry = await stated(shop, statement)
    except NotResolvedError as error:
        named: str = error.state
    except InFlightError:
        named = State.INFLIGHT
    else:
        named = STATES[statement]
        assert entry == await shop.entry()
    assert named == (await shop.entry()).state


async def test_concurrent_statements_leave_one_decision() -> None:
    shop = Shop(connection_lost())
    await shop.result()
    ends = await asyncio.gather(
        *(stated(shop, outcome) for outcome in ["approved", "refused"] * 8), return_exceptions=True
    )
    entry = await shop.entry()
    assert entry.state.is_decided
    settled = [end for end in ends if isinstance(end, Entry)]
    contradicted = [end for end in ends if isinstance(end, NotResolvedError)]
    assert len(settled) == len(contradicted) == 8
    assert {end.state for end in settled} == {entry.state}
    assert len(entry.history) == 1
