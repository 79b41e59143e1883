"""`resolve`: settlements and corrections by a person, which late workers cannot undo."""

import json

import pytest

from loanasync import OutcomeUnknownError, Refused
from loanasync.ledger import Entry, MemoryLedger, Settlement, State, resolve
from loanasync.testing import refused
from support.ledger_clients import Shop

UNSETTLED = [State.UNKNOWN, State.LOST, State.HELD]


@pytest.mark.parametrize("before", UNSETTLED)
@pytest.mark.parametrize("after", [*UNSETTLED, State.RELEASED, State.REFUSED])
async def test_resolve_settles_an_unsettled_entry(before: State, after: State) -> None:
    shop = Shop(refused())
    entry = await shop.put(before)
    settled = await resolve(shop.ledger, entry, after, "by telephone")
    assert (settled.state, settled.note) == (after, "by telephone")
    late = Settlement(state=State.RELEASED, note="ConnectError")
    await shop.ledger.settle(entry.key, token=entry.token, payload=entry.payload, settlement=late)
    assert await shop.entry() == settled
    ended = await shop.result()
    kinds = {State.RELEASED: Refused, State.REFUSED: Refused}
    assert isinstance(ended, kinds.get(after, OutcomeUnknownError))


async def test_resolve_of_a_changed_entry_writes_nothing() -> None:
    shop = Shop(refused())
    old = await shop.put(State.UNKNOWN)
    await resolve(shop.ledger, old, State.HELD, "wait for the letter")
    found = await resolve(shop.ledger, old, State.RELEASED, "did not see the other's word")
    assert (found.state, found.note) == (State.HELD, "wait for the letter")


async def test_resolve_of_an_inflight_or_decided_entry_writes_nothing() -> None:
    shop = Shop()
    for state in (State.INFLIGHT, State.APPROVED):
        entry = await shop.put(state)
        assert (await resolve(shop.ledger, entry, State.RELEASED, "no")).state is state


async def test_resolve_to_inflight_is_rejected() -> None:
    shop = Shop()
    entry = await shop.put(State.UNKNOWN)
    with pytest.raises(ValueError, match="cannot be INFLIGHT"):
        await resolve(shop.ledger, entry, State.INFLIGHT, "no")
    assert (await shop.entry()).state is State.UNKNOWN


async def unknown_entry(
    body: bytes | None, status: int | None = 201, fault: str | None = None
) -> tuple[MemoryLedger, Entry]:
    """Create an UNKNOWN entry with a stored response."""
    ledger = MemoryLedger()
    await ledger.claim("k", token="t", payload="p", lease=60)
    settlement = Settlement(state=State.UNKNOWN, note="n", status=status, body=body, fault=fault)
    return ledger, await ledger.settle("k", token="t", payload="p", settlement=settlement)


def response(entry: Entry) -> tuple[int | None, bytes | None, str | None]:
    return entry.status, entry.body, entry.fault


@pytest.mark.parametrize("state", [State.APPROVED, State.REFUSED])
@pytest.mark.parametrize("status", [None, 200, 201, 422])
async def test_resolve_keeps_a_response_with_the_same_decision(state: State, status: int | None) -> None:
    body = json.dumps({"approved": state is State.APPROVED, "redirectUrl": "https://x"}).encode()
    ledger, entry = await unknown_entry(body, status, "another fiscal code")
    resolved = await resolve(ledger, entry, state, "ticket 17")
    assert (resolved.state, resolved.source, resolved.note) == (state, "person", "ticket 17")
    assert response(resolved) == (status or {State.APPROVED: 201, State.REFUSED: 422}[state], body, None)


@pytest.mark.parametrize("state", [State.APPROVED, State.REFUSED])
@pytest.mark.parametrize("body", [b"gAAAAABm-encrypted", b"{\xff\xfe\x00"])
async def test_resolve_keeps_an_encrypted_response(state: State, body: bytes) -> None:
    ledger, entry = await unknown_entry(body, 500)
    resolved = await resolve(ledger, entry, state, "ticket 17")
    assert response(resolved) == ({State.APPROVED: 201, State.REFUSED: 422}[state], body, None)


@pytest.mark.parametrize(
    "body",
    [
        b'{"approved": false}',
        b'{"approved": "true"}',
        b'{"approved": 1}',
        b"{}",
        b'{"approved": true, "approved": true}',
        b'{"approved": true, "redir',
        b"<html>approved</html>",
        b"[true]",
        b"",
        None,
    ],
)
async def test_resolve_drops_a_response_with_another_decision(body: bytes | None) -> None:
    ledger, entry = await unknown_entry(body)
    resolved = await resolve(ledger, entry, State.APPROVED, "ticket 17")
    assert (resolved.state, response(resolved)) == (State.APPROVED, (None, None, None))


@pytest.mark.parametrize("state", [State.UNKNOWN, State.LOST, State.HELD])
async def test_resolve_without_decision_keeps_the_response(state: State) -> None:
    ledger, entry = await unknown_entry(b'{"approved": true}')
    resolved = await resolve(ledger, entry, state, "ticket 17")
    assert (resolved.state, response(resolved)) == (state, (201, b'{"approved": true}', None))


@pytest.mark.parametrize("before", [State.APPROVED, State.REFUSED, State.RELEASED])
@pytest.mark.parametrize("after", [State.APPROVED, State.REFUSED, State.RELEASED, State.HELD])
async def test_resolve_corrects_a_decision_of_a_person(before: State, after: State) -> None:
    ledger, entry = await unknown_entry(None, None)
    wrong = await resolve(ledger, entry, before, "ticket 17")
    right = await resolve(ledger, wrong, after, "ticket 18", source="import")
    assert (right.state, right.note, right.source) == (after, "ticket 18", "import")
    assert [(each.state, each.note) for each in right.history][-1] == (before, "ticket 17")
    stale = await resolve(ledger, wrong, State.LOST, "did not see the correction")
    assert stale == right


@pytest.mark.parametrize("note", ["", " \t"])
async def test_correction_without_note_is_rejected(note: str) -> None:
    ledger, entry = await unknown_entry(None)
    wrong = await resolve(ledger, entry, State.APPROVED, note)
    with pytest.raises(ValueError, match="a correction needs a note"):
        await resolve(ledger, wrong, State.REFUSED, note)
    assert await ledger.get("k") == wrong


@pytest.mark.parametrize("source", ["service", "", " "])
async def test_resolve_with_service_or_empty_source_is_rejected(source: str) -> None:
    ledger, entry = await unknown_entry(None)
    with pytest.raises(ValueError, match="source"):
        await resolve(ledger, entry, State.APPROVED, "ticket 17", source=source)
    assert await ledger.get("k") == entry


@pytest.mark.parametrize(
    ("state", "stated"),
    [
        (State.APPROVED, State.HELD),
        (State.REFUSED, State.HELD),
        (State.RELEASED, State.APPROVED),
        (State.RELEASED, State.UNKNOWN),
    ],
)
async def test_resolve_never_changes_a_result_of_the_service(state: State, stated: State) -> None:
    ledger, _ = await unknown_entry(None)
    decided = await ledger.settle("k", token="t", payload="p", settlement=Settlement(state=state, status=201))
    assert await resolve(ledger, decided, stated, "ticket 17") == decided == await ledger.get("k")


async def test_resolve_holds_an_entry_that_a_client_released() -> None:
    shop = Shop(refused())
    released = await shop.put(State.RELEASED)
    held = await resolve(shop.ledger, released, State.HELD, "not in the restored copy")
    assert (held.state, held.history[-1].state) == (State.HELD, State.RELEASED)
    assert isinstance(await shop.result(), OutcomeUnknownError)
    assert shop.script.sent == []
