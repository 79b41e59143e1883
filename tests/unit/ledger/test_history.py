"""The rules of stored responses, subjects, corrections and the history of entries, on a ledger in memory."""

import asyncio

import pytest

from loanasync.ledger import Entry, Ledger, MemoryLedger, Settlement, State, Subject
from loanasync.ledger.model import HISTORY_LENGTH
from support.settlements import (
    HELD,
    LOST,
    REFUSAL,
    RELEASED,
    UNKNOWN,
    approval,
    by_person,
    claim,
    settle,
)

SUBJECT = Subject(customer="customer", order="order", scope="spring")
UNSETTLED = (State.UNKNOWN, State.LOST, State.HELD)
STATED = by_person(State.REFUSED)


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger()


def unclassified(state: State) -> Settlement:
    """Return a settlement with a response that could not be classified."""
    return Settlement(state=state, note="n", status=500, body=b"\x00body", fault="cut off")


def response(entry: Entry | Settlement | None) -> tuple[int | None, bytes | None, str | None]:
    assert entry is not None
    return entry.status, entry.body, entry.fault


def earlier(entry: Entry) -> list[tuple[State, str, str]]:
    """Return the history of an entry without its times."""
    return [(change.state, change.note, change.source) for change in entry.history]


# Responses


@pytest.mark.parametrize("before", UNSETTLED)
@pytest.mark.parametrize("after", [UNKNOWN, LOST, HELD])
async def test_settlement_without_body_keeps_the_response(
    ledger: Ledger, before: State, after: Settlement
) -> None:
    entry = await settle(ledger, unclassified(before), after)
    assert (entry.state, entry.note) == (after.state, after.note)
    assert response(entry) == response(unclassified(before))


async def test_settlement_with_body_replaces_the_response(ledger: Ledger) -> None:
    other = Settlement(state=State.UNKNOWN, status=502, body=b"")
    assert response(await settle(ledger, unclassified(State.UNKNOWN), other)) == (502, b"", None)


async def test_settlement_without_stored_response_sets_the_status(ledger: Ledger) -> None:
    entry = await settle(ledger, UNKNOWN, Settlement(state=State.UNKNOWN, status=502))
    assert response(entry) == (502, None, None)


@pytest.mark.parametrize("settlement", [approval(b"{}"), REFUSAL, RELEASED, STATED])
async def test_decision_or_release_replaces_the_response(ledger: Ledger, settlement: Settlement) -> None:
    entry = await settle(ledger, unclassified(State.UNKNOWN), settlement)
    assert response(entry) == response(settlement)


@pytest.mark.parametrize("state", UNSETTLED)
async def test_takeover_keeps_the_response(ledger: Ledger, state: State) -> None:
    await settle(ledger, unclassified(state))
    entry = await claim(ledger, token="u", over="t", lease=0.0)
    assert (entry.token, entry.note, entry.source) == ("u", "", "")
    assert response(entry) == response(await ledger.get("k")) == response(unclassified(state))


async def test_claim_of_a_released_entry_clears_the_response(ledger: Ledger) -> None:
    await settle(ledger, unclassified(State.RELEASED))
    entry = await claim(ledger, token="u")
    assert (entry.token, entry.note, entry.source) == ("u", "", "")
    assert response(entry) == (None, None, None)


# Subjects and sources


async def test_settlement_writes_its_source(ledger: Ledger) -> None:
    assert (await claim(ledger)).source == ""
    assert (await settle(ledger, HELD)).source == "service"
    assert (await settle(ledger, Settlement(state=State.HELD, source="import"))).source == "import"


async def test_claim_writes_its_subject(ledger: Ledger) -> None:
    await claim(ledger, subject=SUBJECT)
    entry = await settle(ledger, RELEASED)
    assert (entry.customer, entry.order, entry.scope) == ("customer", "order", "spring")
    entry = await claim(ledger, token="u", subject=Subject(customer="customer", order="other"))
    assert (entry.customer, entry.order, entry.scope) == ("customer", "other", "")
    assert await ledger.find(order="order") == []
    assert await ledger.find(order="other") == [entry]


async def test_claim_without_subject_keeps_the_subject(ledger: Ledger) -> None:
    await claim(ledger, subject=SUBJECT, lease=0.0)
    entry = await claim(ledger, token="u", over="t")
    assert (entry.customer, entry.order, entry.scope) == ("customer", "order", "spring")


async def test_failed_claim_does_not_write_its_subject(ledger: Ledger) -> None:
    entry = await claim(ledger, subject=SUBJECT)
    assert await claim(ledger, token="u", subject=Subject(customer="another")) == entry
    assert await ledger.find(customer="another") == []


async def test_find_returns_current_entries_oldest_first(ledger: Ledger) -> None:
    for key, lease in (("b", 60.0), ("a", 0.0)):
        await claim(ledger, key, subject=SUBJECT, lease=lease)
    found = await ledger.find(customer="customer", order="order")
    assert [(entry.key, entry.state) for entry in found] == [("b", State.INFLIGHT), ("a", State.UNKNOWN)]
    assert await ledger.find() == []


# The history


async def test_history_has_each_earlier_settled_state(ledger: Ledger) -> None:
    await claim(ledger)
    unknown = await settle(ledger, UNKNOWN)
    assert unknown.history == ()
    lost = await settle(ledger, LOST)
    assert earlier(lost) == [(State.UNKNOWN, UNKNOWN.note, "service")]
    assert lost.history[0].changed == unknown.changed
    await claim(ledger, token="u", over="t")
    await settle(ledger, RELEASED, token="u")
    claimed = await claim(ledger, token="v")
    expected = [(each.state, each.note, "service") for each in (UNKNOWN, LOST, RELEASED)]
    assert earlier(claimed) == expected == earlier(await settle(ledger, approval(), token="v"))


async def test_history_has_an_expired_lease_after_a_takeover(ledger: Ledger) -> None:
    await claim(ledger, lease=0.0)
    before = await ledger.get("k")
    assert before is not None
    entry = await claim(ledger, token="u", over="t")
    assert earlier(entry) == [(State.UNKNOWN, before.note, "")]
    assert entry.history[0].changed == before.expires


async def test_repeated_operation_adds_nothing_to_the_history(ledger: Ledger) -> None:
    await settle(ledger, UNKNOWN, UNKNOWN)
    for _ in range(2):
        entry = await claim(ledger, token="u", over="t")
        assert earlier(entry) == [(State.UNKNOWN, UNKNOWN.note, "service")]


async def test_history_keeps_the_last_states(ledger: Ledger) -> None:
    for number in range(HISTORY_LENGTH + 5):
        await claim(ledger, token=f"t{number}")
        entry = await settle(ledger, by_person(State.RELEASED, f"{number}"), token=f"t{number}")
    notes = [f"{number}" for number in range(4, HISTORY_LENGTH + 4)]
    assert earlier(entry) == [(State.RELEASED, note, "person") for note in notes]


# Corrections


@pytest.mark.parametrize("before", [State.APPROVED, State.REFUSED, State.RELEASED])
@pytest.mark.parametrize("after", [State.APPROVED, State.REFUSED, State.RELEASED, State.UNKNOWN, State.HELD])
async def test_correction_changes_a_decision_of_a_person(ledger: Ledger, before: State, after: State) -> None:
    first = await settle(ledger, by_person(before, "wrong"))
    right = Settlement(state=after, note="right", source="person", status=201, body=b"{}")
    entry = await settle(ledger, right, token="u", over="t")
    assert (entry.state, entry.note, entry.token, entry.source) == (after, "right", "u", "person")
    assert response(entry) == (201, b"{}", None)
    assert earlier(entry) == [(before, "wrong", "person")]
    assert entry.history[0].changed == first.changed
    assert await ledger.get("k") == entry


@pytest.mark.parametrize("settlement", [approval(), REFUSAL, RELEASED])
async def test_correction_never_changes_a_result_of_the_service(
    ledger: Ledger, settlement: Settlement
) -> None:
    before = await settle(ledger, settlement)
    assert await settle(ledger, by_person(State.HELD), token="u", over="t") == before


@pytest.mark.parametrize(
    ("note", "source", "token", "over"),
    [
        ("ticket 18", "person", "u", None),
        ("ticket 18", "person", "u", "not-t"),
        ("ticket 18", "person", "t", "t"),
        ("", "person", "u", "t"),
        (" \t\u00a0", "person", "u", "t"),
        ("ticket 18", "service", "u", "t"),
    ],
)
async def test_correction_needs_token_note_and_source(
    ledger: Ledger, note: str, source: str, token: str, over: str | None
) -> None:
    before = await settle(ledger, STATED)
    wrong = Settlement(state=State.APPROVED, note=note, source=source)
    assert await settle(ledger, wrong, token=token, over=over) == before == await ledger.get("k")


async def test_repeated_correction_changes_nothing(ledger: Ledger) -> None:
    await settle(ledger, STATED)
    right = by_person(State.APPROVED, "ticket 18")
    first = await settle(ledger, right, token="u", over="t")
    assert await settle(ledger, right, token="u", over="t") == first
    assert await settle(ledger, STATED, token="v", over="t") == first


async def test_concurrent_corrections_are_written_once(ledger: Ledger) -> None:
    await settle(ledger, STATED)
    right = by_person(State.HELD, "ticket 18")
    entries = await asyncio.gather(*(settle(ledger, right, token=f"u{n}", over="t") for n in range(32)))
    assert len({entry.token for entry in entries}) == 1
    assert earlier(entries[0]) == [(State.REFUSED, "ticket 17", "person")]


async def test_late_decision_does_not_overwrite_a_person(ledger: Ledger) -> None:
    before = await settle(ledger, STATED)
    for token in ("t", "u"):
        assert await settle(ledger, approval(), token=token) == before
    assert await claim(ledger, token="u", over="t") == before


async def test_entry_corrected_to_unknown_accepts_a_decision_of_the_service(ledger: Ledger) -> None:
    await settle(ledger, STATED)
    await settle(ledger, by_person(State.UNKNOWN, "ticket 18"), token="u", over="t")
    entry = await settle(ledger, approval())
    assert (entry.state, entry.source) == (State.APPROVED, "service")
    assert earlier(entry) == [(State.REFUSED, "ticket 17", "person"), (State.UNKNOWN, "ticket 18", "person")]
