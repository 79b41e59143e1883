"""`LoanClient.resolve`: outcomes that another source states, in any order of events."""

import asyncio
import tempfile
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from loanasync import Approved, Refused, errors
from loanasync.ledger import Change, Entry, LedgerPolicy, MemoryLedger, Settlement, State, resolve
from loanasync.ledger.administration import rotate_key
from loanasync.ledger.keys import Place, find_entry
from loanasync.ledger.model import HISTORY_LENGTH, NO_SUBJECT
from loanasync.ledger.resolution import Statement, result_without_writing
from loanasync.testing import approval_request, approved, connection_lost, refused, scripted_client
from support.builders import FISCAL_CODE
from support.ledger_clients import KEY, FailingLedger, NotWaitingLedger, Shop, broken, held_response
from support.memory_clients import started
from support.virtual_time import StoppedClock, turns

STATES = {"approved": State.APPROVED, "refused": State.REFUSED, "not_evaluated": State.RELEASED}
NEW = b"fedcba9876543210"


@pytest.fixture(autouse=True)
def _own_orphan_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


async def stated(shop: Shop, outcome: Any, **options: Any) -> Entry:
    return await shop.client.resolve(FISCAL_CODE, outcome, **{"source": "webhook", **options})


async def error_of(shop: Shop, outcome: str, **options: Any) -> errors.NotResolvedError:
    with pytest.raises(errors.NotResolvedError) as caught:
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
    shop = Shop(ledger=(ledger := NotWaitingLedger()))
    entry = await shop.put(before)
    after = STATES[outcome]
    if outcome in settles.get(before, ()):
        note = "event 3f2a9c17d0b43f2a9c17d0b4"  # longer than a fiscal code
        settled = await stated(shop, outcome, note=note)
        assert (settled.state, settled.source, settled.note) == (after, "webhook", note)
        assert [change.state for change in settled.history] == [before]
    elif before is after:
        assert await stated(shop, outcome) == entry
    elif before is State.INFLIGHT and after.is_decided:
        with pytest.raises(errors.InFlightError, match="call again later") as caught:
            await stated(shop, outcome)
        assert caught.value.key == entry.key
        assert ledger.waits == [pytest.approx(shop.policy.patience, abs=5)]
    else:
        error = await error_of(shop, outcome)
        assert (error.key, error.state, error.stated) == (entry.key, before.value, outcome)
        assert await shop.entry() == entry


@pytest.mark.parametrize(
    ("seconds", "kind"), [(15.0, errors.InFlightError), (25.0, errors.LedgerUnavailableError)]
)
async def test_resolve_waits_once_for_the_request_and_once_for_the_ledger(seconds: float, kind: type) -> None:
    clock = StoppedClock()

    class SlowLedger(NotWaitingLedger):
        async def wait(self, key: str, within: float) -> Entry | None:
            clock.passed += seconds
            await turns()
            return await super().wait(key, within)

    shop = Shop(ledger=SlowLedger(), patience=10.0)
    await shop.put(State.INFLIGHT)
    with pytest.raises(kind):
        await stated(shop, "approved")


def entry(state: State, *history: State, source: str = "service", takeovers: int = 0) -> Entry:
    """Return an entry with these earlier states."""
    changes = tuple(Change(state=each, changed=0.0, note="", source="service") for each in history)
    given = {"source": source, "takeovers": takeovers, "history": changes}
    return Entry(key="k", state=state, token="t", payload="p", claimed=0.0, changed=0.0, expires=0.0, **given)  # type: ignore[arg-type]


def released(source: str, note: str) -> Entry:
    """Return an unknown entry that was released before."""
    change = Change(state=State.RELEASED, changed=0.0, note=note, source=source)
    return evolve(entry(State.UNKNOWN), history=(change,))


@pytest.mark.parametrize(
    ("found", "outcome", "result"),
    [
        (entry(State.UNKNOWN), "not_evaluated", None),
        (entry(State.UNKNOWN, State.UNKNOWN), "not_evaluated", None),
        # The statement may be about an earlier request, or a person decides.
        *(
            (entry(State.UNKNOWN, State.UNKNOWN, each), "not_evaluated", "stated earlier")
            for each in (State.RELEASED, State.LOST, State.HELD)
        ),
        # Nothing was sent: the claim was undone, or `approve-many --create` has noted the creation.
        *((released("service", note), "not_evaluated", None) for note in ("created", "not sent")),
        (released("service", "RejectedError"), "not_evaluated", "stated earlier"),
        (released("person", "not sent"), "not_evaluated", "stated earlier"),
        (entry(State.UNKNOWN, takeovers=1), "not_evaluated", "stated earlier"),
        (entry(State.UNKNOWN, *[State.UNKNOWN] * HISTORY_LENGTH), "not_evaluated", "stated earlier"),
        (entry(State.RELEASED, source="webhook"), "approved", None),
        (entry(State.RELEASED), "approved", "contradicts"),  # the client has proved it
        (entry(State.REFUSED, source="webhook"), "approved", "contradicts"),
    ],
)
def test_statement_is_written_only_if_it_is_about_this_request(
    found: Entry, outcome: str, result: str | None
) -> None:
    assert result_without_writing(found, Statement(STATES[outcome], "webhook", "event 17")) == result


async def test_resolve_of_a_released_entry_lets_the_request_be_sent_once() -> None:
    """A redelivered statement does not release the request that was sent after the first delivery."""
    shop = Shop(connection_lost(), connection_lost(), approved())
    await shop.result()
    first = await stated(shop, "not_evaluated", note="event 17")
    assert await stated(shop, "not_evaluated", note="event 17") == first
    assert isinstance(await shop.result(), errors.ConnectionLostError)
    error = await error_of(shop, "not_evaluated", note="event 17")
    assert error.state == "unknown"
    assert "may be older than the last request" in str(error)
    await resolve(shop.ledger, await shop.entry(), State.RELEASED, "ticket 17")
    assert isinstance(await shop.approve(), Approved)


@pytest.mark.parametrize("clock_is_late", [False, True])
async def test_resolve_releases_no_request_that_has_ended_since(
    monkeypatch: pytest.MonkeyPatch, *, clock_is_late: bool
) -> None:
    """While the ledger answers late, the request of this moment is sent, and may be evaluated."""
    step, arrived, go = held_response(connection_lost())
    time_of_day = MemoryLedger.time_of_day

    async def late(ledger: MemoryLedger) -> float:
        await asyncio.sleep(0.2)
        return await time_of_day(ledger)

    async def end_request() -> None:
        ledger.faults = {}
        go.set()
        assert isinstance(await call, errors.ConnectionLostError)

    shop = Shop(step, ledger=(ledger := FailingLedger(get=end_request)))
    call = await started(shop.result(), arrived)
    with monkeypatch.context() as patched:
        if clock_is_late:
            patched.setattr(MemoryLedger, "time_of_day", late)
        assert (await error_of(shop, "not_evaluated")).state == "unknown"
    assert (await shop.entry()).state is State.UNKNOWN
    assert (await stated(shop, "not_evaluated")).state is State.RELEASED


@pytest.mark.parametrize(("late", "kind"), [(approved(), Approved), (refused(), Refused)])
async def test_resolve_during_the_request_waits_for_the_response(late: Any, kind: type) -> None:
    step, arrived, go = held_response(late)
    shop = Shop(step, patience=5)
    call = await started(shop.result(), arrived)
    resolving = asyncio.create_task(stated(shop, "approved"))
    await asyncio.sleep(0)
    go.set()
    assert isinstance(await call, kind)
    if kind is Approved:
        assert (await resolving).source == "service"
    else:
        with pytest.raises(errors.NotResolvedError, match="the entry is refused"):
            await resolving
    assert (await shop.entry()).body is not None


async def test_resolve_as_not_evaluated_does_not_wait() -> None:
    shop = Shop(patience=60)
    await shop.put(State.INFLIGHT)
    error = await asyncio.wait_for(error_of(shop, "not_evaluated"), 5)
    assert "when it has ended" in str(error)


async def test_resolve_without_entry_creates_none() -> None:
    shop = Shop()
    error = await error_of(shop, "approved")
    assert (error.state, error.outcome) == ("missing", "unknown")
    assert "check the fiscal code, the order_id and the order token" in str(error)
    assert await shop.entries() == []


@pytest.mark.parametrize(
    ("approvals", "arguments", "found"),
    [
        ([("", None), ("spring", None)], {"order_id": "spring"}, "spring"),
        ([("", None)], {"order_id": "spring"}, "missing"),
        ([("a", "1"), ("b", "2")], {"order_token": "2"}, "b"),
        ([("a", "1"), ("b", "2")], {"order_token": "3"}, "missing"),
        ([("a", "1"), ("b", "2")], {"order_token": "1", "order_id": "b"}, "b"),
        ([("", "1"), ("b", "1")], {"order_token": "1"}, "ambiguous"),
    ],
)
async def test_resolve_finds_the_entry_of_its_order_or_order_token(
    approvals: list[tuple[str, str | None]], arguments: dict[str, str], found: str
) -> None:
    shop = Shop()
    for order, token in approvals:
        await shop.put(State.UNKNOWN, request=approval_request(order_token=token), order_id=order)
    if found in ("missing", "ambiguous"):
        error = await error_of(shop, "refused", **arguments)
        assert error.state == found
        assert ("pass the order_id" in str(error)) is (found == "ambiguous")
    else:
        assert (await stated(shop, "refused", **arguments)).order == found
    states = {each.order: each.state for each in await shop.entries()}
    assert states == {order: State.REFUSED if order == found else State.UNKNOWN for order, _ in approvals}


async def test_resolve_finds_the_entry_of_an_old_key() -> None:
    before = Shop(connection_lost(), key=KEY)
    await before.result()
    await rotate_key(before.ledger, LedgerPolicy(key=NEW, old_keys=[KEY]))
    shop = Shop(ledger=before.ledger, key=NEW, old_keys=[KEY])
    settled = await stated(shop, "refused")
    assert (settled.key, settled.note) == ((await shop.entry()).key, "webhook")
    assert isinstance(await shop.approve(), Refused)


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ({"outcome": "released"}, "outcome"),
        ({"source": "service"}, "source"),
        ({"source": " "}, "source"),
        ({"source": 7}, "source"),
        ({"source": FISCAL_CODE}, "source"),
        ({"order_id": None}, "order_id"),
        ({"note": "anna@example.com"}, "note"),
        ({"note": 17}, "note"),
        ({"order_token": 42}, "order_token"),
        ({"fiscal_code": "RSSMRA"}, "fiscal_code"),
    ],
)
async def test_resolve_with_a_wrong_argument_names_it(argument: dict[str, Any], problem: str) -> None:
    right = {"fiscal_code": FISCAL_CODE, "outcome": "approved", "source": "webhook"}
    with pytest.raises(errors.InvalidRequestError) as caught:
        await Shop().client.resolve(**{**right, **argument})
    assert [(each.field, each.code.partition(".")[0]) for each in caught.value.problems] == [(problem,) * 2]


async def test_strict_client_checks_the_check_letter_without_a_request() -> None:
    client = Shop(options={"strict": True}).client
    for call in (client.resolve(FISCAL_CODE, "refused", source="webhook"), client.known(FISCAL_CODE)):
        with pytest.raises(errors.InvalidRequestError, match="has a wrong check letter"):
            await call


async def test_resolve_without_ledger_is_a_configuration_error() -> None:
    with pytest.raises(errors.ConfigurationError, match="ledger"):
        await scripted_client().resolve(FISCAL_CODE, "approved", source="webhook")


@pytest.mark.parametrize("outcome", STATES)
async def test_resolve_with_a_failing_ledger_can_be_repeated(outcome: str) -> None:
    ledger = FailingLedger()
    shop = Shop(connection_lost(), ledger=ledger, patience=0.05)
    await shop.result()

    for name, fault in (("get", broken), ("get", asyncio.Event().wait), ("settle", broken)):
        ledger.faults = {name: fault}
        with pytest.raises(errors.LedgerUnavailableError) as caught:
            await stated(shop, outcome)
        assert caught.value.repeatable
        assert (await shop.entry()).state is State.UNKNOWN
    ledger.faults = {}
    assert (await stated(shop, outcome)).state is STATES[outcome]


@pytest.mark.parametrize(
    ("newer", "older", "found"),
    [
        (State.RELEASED, State.UNKNOWN, "older"),
        (State.UNKNOWN, State.RELEASED, "newer"),
        (State.UNKNOWN, State.APPROVED, "older"),
        (State.APPROVED, State.REFUSED, "newer"),
        (State.LOST, State.UNKNOWN, "newer"),
    ],
)
async def test_resolve_prefers_a_decision_then_the_newer_key(newer: State, older: State, found: str) -> None:
    """A released entry is the last choice."""
    shop = Shop()
    await shop.open_ledger()
    for key, state in (("newer", newer), ("older", older)):
        await shop.ledger.claim(key, token="t", payload="p", lease=60)
        await shop.ledger.settle(key, token="t", payload="p", settlement=Settlement(state=state))
    places = [Place("newer", NO_SUBJECT), Place("older", NO_SUBJECT)]
    entry = await find_entry(shop.ledger, places)
    assert isinstance(entry, Entry)
    assert entry.key == found


@pytest.mark.parametrize("late", [State.APPROVED, State.REFUSED])
async def test_resolve_after_a_response_during_its_write_keeps_the_response(late: State) -> None:
    """The late response is written between the read and the write of the statement."""
    ledger = FailingLedger()
    shop = Shop(connection_lost(), ledger=ledger)
    await shop.result()
    entry = await shop.entry()

    async def respond() -> None:
        ledger.faults = {}
        settlement = Settlement(state=late, status=201, body=b"{}")
        await ledger.settle(entry.key, token=entry.token, payload=entry.payload, settlement=settlement)

    ledger.faults = {"settle": respond}
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
    call = await started(shop.result(), arrived)

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
    except errors.NotResolvedError as error:
        named: str = error.state
    except errors.InFlightError:
        named = State.INFLIGHT
    else:
        named = STATES[statement]
        assert entry == await shop.entry()
    assert named == (await shop.entry()).state
