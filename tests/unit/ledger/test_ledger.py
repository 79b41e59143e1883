"""The methods of a ledger with a store in memory. test_transitions.py has the rules of its states."""

import asyncio
from typing import Any
from unittest import mock

import pytest
from attrs import evolve

from loanasync.ledger import Ledger, MemoryLedger, Settlement, State, Subject
from loanasync.ledger.ledger import lacks_redirect
from loanasync.ledger.store import PAGE_SIZE
from support.settlements import (
    HELD,
    HOUR,
    LOST,
    REFUSAL,
    RELEASED,
    UNKNOWN,
    approval,
    by_person,
    claim,
    settle,
)

SETTLEMENTS = (RELEASED, UNKNOWN, LOST, HELD, approval(), REFUSAL)
REDIRECT = b'{"approved":true,"redirectUrl":"https://loans.example.com/x"}'


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger()


async def keys(ledger: Ledger, *states: State, **options: Any) -> list[str]:
    return sorted([entry.key async for entry in ledger.scan(*states, **options)])


async def one_of_each(ledger: Ledger) -> None:
    for settlement in SETTLEMENTS:
        await settle(ledger, settlement, key=settlement.state)
    await claim(ledger, "inflight")
    await claim(ledger, "expired", lease=0.0)
    await ledger.erase("erased", "")


async def test_claim_or_settlement_that_is_not_allowed_returns_the_entry(ledger: Ledger) -> None:
    assert await ledger.get("k") is None
    entry = await claim(ledger)
    assert entry.is_claimed_by("t")
    assert await claim(ledger) == entry == await claim(ledger, token="u", payload="other")
    assert await settle(ledger, LOST, token="u") == entry == await ledger.get("k")
    decided = await settle(ledger, REFUSAL)
    assert await claim(ledger, token="u", over="t") == decided == await ledger.get("k")


@pytest.mark.parametrize("owner", ["another", None])
async def test_claim_whose_time_is_over_is_not_written(ledger: Ledger, owner: str | None) -> None:
    """The entry of another owner is returned nevertheless."""
    found = None if owner is None else await claim(ledger, token=owner)
    if found is None:
        with pytest.raises(TimeoutError):
            await claim(ledger, within=-1.0)
    else:
        assert await claim(ledger, within=-1.0) == found
    assert await ledger.get("k") == found


async def test_settlement_with_an_outdated_claim_reads_the_entry_again(ledger: Ledger) -> None:
    """The caller passes the entry as its claim returned it. Meanwhile another client changed the entry."""
    claimed = await claim(ledger, lease=0.0)
    own = await claim(ledger, token="u", over="t")
    assert await settle(ledger, LOST, claimed=claimed) == own
    entry = await settle(ledger, REFUSAL, claimed=claimed)
    assert (entry.state, entry.takeovers) == (State.REFUSED, 1)
    assert await ledger.purge(0) == 1
    assert (await settle(ledger, REFUSAL, claimed=claimed)).state is State.REFUSED


async def test_wait_returns_when_the_entry_is_settled(ledger: Ledger) -> None:
    assert await ledger.wait("k", HOUR) is None
    claimed = await claim(ledger)
    waiting = asyncio.create_task(ledger.wait("k", HOUR))
    assert await ledger.wait("k", 0) == claimed
    assert not waiting.done()
    assert await settle(ledger, approval()) == await waiting


async def test_scan_by_state_returns_the_entries_of_that_state(ledger: Ledger) -> None:
    await one_of_each(ledger)
    for state in State:
        more = ["expired"] if state is State.UNKNOWN else []
        assert await keys(ledger, state) == sorted([state.value, *more])
    assert await keys(ledger, State.LOST, State.INFLIGHT) == ["inflight", "lost"]
    assert len(await keys(ledger)) == len(State) + 1


async def test_scan_and_purge_of_several_pages_reach_all_entries(ledger: Ledger) -> None:
    names = [f"k{number:04}" for number in range(2 * PAGE_SIZE + 200)]
    for key in ("j", *names, "l"):
        await settle(ledger, REFUSAL, key=key)
    for begins in ("k", "k0", "k1", "kk"):
        listed = [key for key in names if key.startswith(begins)]
        assert await keys(ledger, State.REFUSED, begins=begins) == await keys(ledger, begins=begins) == listed
    assert await ledger.purge(0) == len(names) + 2
    assert await keys(ledger) == []


async def test_lacks_redirect_is_true_only_for_approvals(ledger: Ledger) -> None:
    cut = Settlement(state=State.APPROVED, status=201, fault="not whole")
    none = Settlement(state=State.APPROVED, status=201, body=b"\x00", note="no redirect")
    accepted = Settlement(state=State.APPROVED, body=REDIRECT, note="x", source="person")
    some = {"whole": approval(REDIRECT), "encrypted": approval(b"\x00"), "refused": REFUSAL, "cut": cut}
    some |= {"none": none, "stated": by_person(State.APPROVED), "accepted": accepted}
    without = {"null": b'{"redirectUrl": null}', "blank": b'{"redirectUrl": " "}'}
    some |= {key: evolve(accepted, body=body) for key, body in without.items()}
    for key, settlement in some.items():
        await settle(ledger, settlement, key=key)
    found = [entry.key async for entry in ledger.scan() if lacks_redirect(entry)]
    assert sorted(found) == ["blank", "cut", "none", "null", "stated"]


async def test_purge_deletes_only_old_decided_and_released_entries(ledger: Ledger) -> None:
    await one_of_each(ledger)
    assert await ledger.purge(HOUR) == 0
    assert await ledger.purge(0) == 3
    assert await keys(ledger) == ["erased", "expired", "held", "inflight", "lost", "unknown"]


async def test_entries_of_a_customer_are_current_and_oldest_first(ledger: Ledger) -> None:
    for key, order, lease in (("b", "1", 60.0), ("a", "2", 0.0)):
        await claim(ledger, key, subject=Subject(customer="anna", order=order), lease=lease)
    found = await ledger.entries_of("anna")
    assert [(entry.key, entry.state) for entry in found] == [("b", State.INFLIGHT), ("a", State.UNKNOWN)]
    assert await ledger.entries_of("bea") == []


async def test_refresh_of_an_unchanged_header_disturbs_no_claim(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim is undone if the header that it was made with is not the known one any more."""
    before, read = await ledger.refresh(), ledger._store.header

    async def header() -> object:
        assert ledger.known_header is before
        return await read()

    monkeypatch.setattr(ledger._store, "header", header)
    assert await ledger.refresh() is before
    monkeypatch.setattr(ledger._store, "header", mock.AsyncMock(side_effect=OSError("away")))
    with pytest.raises(OSError, match="away"):
        await ledger.refresh()
    assert ledger.known_header is None, "the next claim reads it"


def test_offset_of_a_slow_response_is_never_too_high(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim would otherwise be written after its caller has given up."""
    ledger = MemoryLedger()
    monkeypatch.setattr("loanasync.ledger.ledger.time.monotonic", lambda: 110.0)
    ledger._compare_clocks(1_000.0, 100.0)
    assert ledger._offset == 1_000.0 - 110.0
