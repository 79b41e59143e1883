"""`resolve`: settlements and corrections by a person, which late workers cannot undo."""

import json

import pytest

from loanasync.ledger import Entry, MemoryLedger, Settlement, State, resolve
from support.settlements import HELD, LOST, RELEASED, UNKNOWN, claim, settle

BY_STATUS = {State.APPROVED: 201, State.REFUSED: 422}


async def stored(settlement: Settlement = UNKNOWN, /, **response: object) -> tuple[MemoryLedger, Entry]:
    """Return a ledger and its entry, or that of an unknown outcome with a response."""
    ledger = MemoryLedger()
    await claim(ledger)
    if response:
        settlement = Settlement(state=State.UNKNOWN, **response)  # type: ignore[arg-type]
    return ledger, await settle(ledger, settlement)


def response(entry: Entry) -> tuple[int | None, bytes | None, str | None]:
    return entry.status, entry.body, entry.fault


@pytest.mark.parametrize("before", [UNKNOWN, LOST, HELD])
@pytest.mark.parametrize("after", [*BY_STATUS, State.UNKNOWN, State.LOST, State.HELD, State.RELEASED])
async def test_resolve_settles_an_unsettled_entry(before: Settlement, after: State) -> None:
    ledger, entry = await stored(before)
    settled = await resolve(ledger, entry, after, "by telephone")
    assert (settled.state, settled.note, settled.source) == (after, "by telephone", "person")
    assert await settle(ledger, RELEASED) == settled, "the earlier owner can write a decision only"
    stale = await resolve(ledger, entry, State.RELEASED, "did not see the other's word")
    assert stale == settled == await ledger.get("k")


@pytest.mark.parametrize("before", [*BY_STATUS, State.RELEASED])
@pytest.mark.parametrize("after", [*BY_STATUS, State.RELEASED, State.HELD])
async def test_resolve_corrects_a_decision_of_a_person(before: State, after: State) -> None:
    ledger, entry = await stored()
    wrong = await resolve(ledger, entry, before, "ticket 17")
    for note in ("", " \t"):
        with pytest.raises(ValueError, match="a correction needs a note"):
            await resolve(ledger, wrong, after, note)
    right = await resolve(ledger, wrong, after, "ticket 18", source="import")
    assert (right.state, right.note, right.source) == (after, "ticket 18", "import")
    assert [(each.state, each.note) for each in right.history][-1] == (before, "ticket 17")
    assert await resolve(ledger, wrong, State.LOST, "did not see the correction") == right


@pytest.mark.parametrize(
    ("state", "source", "message"),
    [
        (State.INFLIGHT, "person", "cannot be INFLIGHT"),
        (State.APPROVED, "service", "source"),
        (State.APPROVED, " ", "source"),
    ],
)
async def test_resolve_with_a_wrong_state_or_source_is_rejected(
    state: State, source: str, message: str
) -> None:
    ledger, entry = await stored()
    with pytest.raises(ValueError, match=message):
        await resolve(ledger, entry, state, "ticket 17", source=source)
    assert await ledger.get("k") == entry


@pytest.mark.parametrize("state", BY_STATUS)
@pytest.mark.parametrize("status", [None, 200, 201, 422])
async def test_resolve_keeps_a_response_with_the_same_decision(state: State, status: int | None) -> None:
    body = json.dumps({"approved": state is State.APPROVED, "redirectUrl": "https://x"}).encode()
    ledger, entry = await stored(status=status, body=body, fault="another fiscal code")
    assert response(await resolve(ledger, entry, state, "17")) == (status or BY_STATUS[state], body, None)


@pytest.mark.parametrize("state", BY_STATUS)
@pytest.mark.parametrize("body", [b"gAAAAABm-encrypted", b"{\xff\xfe\x00"])
async def test_resolve_keeps_an_encrypted_response(state: State, body: bytes) -> None:
    ledger, entry = await stored(status=500, body=body)
    assert response(await resolve(ledger, entry, state, "17")) == (BY_STATUS[state], body, None)


@pytest.mark.parametrize(
    "body",
    [
        *(b'{"approved": false}', b'{"approved": "true"}', b"{}", b'{"approved": true, "approved": true}'),
        *(b'{"approved": true, "redir', b"<html>approved</html>", b"[true]", b"", None),
    ],
)
async def test_resolve_drops_a_response_with_another_decision(body: bytes | None) -> None:
    ledger, entry = await stored(status=201, body=body)
    assert response(await resolve(ledger, entry, State.APPROVED, "17")) == (None, None, None)
