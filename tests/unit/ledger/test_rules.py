"""The rules of claims, settlements, scans and purges, on a ledger in memory."""

import asyncio
from typing import Any

import pytest
from attrs import evolve

from loanasync.ledger import Ledger, MemoryLedger, Settlement, State
from loanasync.ledger.store import PAGE_SIZE
from loanasync.ledger.transitions import as_read
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
RACERS = 32
REDIRECT = b'{"approved":true,"redirectUrl":"https://loans.example.com/x"}'


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger()


def by_state(settlement: Settlement) -> str:
    return settlement.state.value


# Claims


async def test_unclaimed_key_has_no_entry(ledger: Ledger) -> None:
    assert await ledger.get("k") is None
    assert await ledger.wait("k", HOUR) is None
    assert [entry async for entry in ledger.scan()] == []
    assert await ledger.purge(0) == 0


async def test_claim_returns_the_new_entry(ledger: Ledger) -> None:
    entry = await claim(ledger)
    assert (entry.key, entry.state, entry.token, entry.payload) == ("k", State.INFLIGHT, "t", "p")
    assert (entry.takeovers, entry.note, entry.status, entry.body, entry.fault) == (0, "", None, None, None)
    assert await ledger.get("k") == entry


async def test_concurrent_claims_have_one_owner(ledger: Ledger) -> None:
    entries = await asyncio.gather(*(claim(ledger, token=f"t{number}") for number in range(RACERS)))
    assert len({entry.token for entry in entries}) == 1


async def test_repeated_claim_has_no_effect(ledger: Ledger) -> None:
    entry = await claim(ledger)
    assert await claim(ledger) == entry
    assert entry.is_claimed_by("t")


async def test_claim_of_an_owned_entry_returns_its_payload(ledger: Ledger) -> None:
    entry = await claim(ledger)
    assert await claim(ledger, token="u", payload="other") == entry


async def test_released_entry_is_claimed_with_another_payload(ledger: Ledger) -> None:
    await claim(ledger, lease=0.0)
    await claim(ledger, token="u", over="t")
    released = await settle(ledger, RELEASED, token="u")
    assert (released.state, released.note, released.takeovers) == (State.RELEASED, "ConnectError", 1)
    entry = await claim(ledger, token="v", payload="other")
    assert entry.is_claimed_by("v")
    assert (entry.payload, entry.takeovers, entry.note) == ("other", 0, "")
    assert entry.claimed == entry.changed > released.claimed


@pytest.mark.parametrize("was_claimed", [True, False])
async def test_claim_after_its_own_release_fails(ledger: Ledger, *, was_claimed: bool) -> None:
    if was_claimed:
        await claim(ledger)
    released = await settle(ledger, RELEASED)
    assert await claim(ledger) == released == await ledger.get("k")
    assert (await claim(ledger, token="u")).is_claimed_by("u")


async def test_expired_lease_is_unknown_and_not_claimable(ledger: Ledger) -> None:
    await claim(ledger, lease=0.0)
    entry = await ledger.get("k")
    assert entry is not None
    assert (entry.state, entry.token, entry.changed) == (State.UNKNOWN, "t", entry.expires)
    for token in ("t", "u"):
        assert await claim(ledger, token=token) == entry
    assert [each async for each in ledger.scan(State.UNKNOWN)] == [entry]
    assert [each async for each in ledger.scan(State.INFLIGHT)] == []


@pytest.mark.parametrize(("left", "state"), [(0.001, State.INFLIGHT), (0.0, State.UNKNOWN)])
async def test_lease_ends_when_no_time_is_left(ledger: Ledger, left: float, state: State) -> None:
    entry = await claim(ledger)
    assert as_read(evolve(entry, left=left)).state is state


@pytest.mark.parametrize("before", [UNKNOWN, LOST, HELD, None])
async def test_unsettled_entry_is_taken_over_by_naming_its_token(
    ledger: Ledger, before: Settlement | None
) -> None:
    first = await claim(ledger, lease=0.0)
    if before is not None:
        await settle(ledger, before)
    wrong = await claim(ledger, token="u", over="not-t")
    assert (wrong.token, wrong.takeovers) == ("t", 0)
    claims = (claim(ledger, token=f"u{number}", over="t") for number in range(RACERS))
    [owner] = {(entry.token, entry.takeovers, entry.note) for entry in await asyncio.gather(*claims)}
    assert owner[1:] == (1, "")
    await settle(ledger, UNKNOWN, token=owner[0])
    again = await claim(ledger, token="v", over=owner[0])
    assert (again.is_claimed_by("v"), again.takeovers, again.claimed) == (True, 2, first.claimed)


async def test_inflight_or_decided_entry_is_not_taken_over(ledger: Ledger) -> None:
    entry = await claim(ledger)
    assert await claim(ledger, token="u", over="t") == entry
    entry = await settle(ledger, REFUSAL)
    assert await claim(ledger, token="u", over="t") == entry


# Settlements


@pytest.mark.parametrize("settlement", SETTLEMENTS, ids=by_state)
async def test_owner_settles_after_its_lease_expired(ledger: Ledger, settlement: Settlement) -> None:
    claimed = await claim(ledger, lease=0.0)
    entry = await settle(ledger, settlement)
    assert (entry.state, entry.note) == (settlement.state, settlement.note)
    assert (entry.claimed, entry.expires) == (claimed.claimed, claimed.expires)
    assert entry.changed >= entry.expires
    assert await ledger.get("k") == entry


@pytest.mark.parametrize("last", [None, RELEASED, UNKNOWN, LOST, HELD])
async def test_late_decision_is_written_with_an_older_token(ledger: Ledger, last: Settlement | None) -> None:
    await claim(ledger, lease=0.0, payload="own")
    await claim(ledger, token="u", over="t")
    if last is not None:
        await settle(ledger, last, token="u")
    entry = await settle(ledger, approval(b"late"), payload="own")
    assert (entry.state, entry.status, entry.body, entry.payload) == (State.APPROVED, 201, b"late", "own")
    assert await settle(ledger, LOST, token="u") == entry == await ledger.get("k")


@pytest.mark.parametrize("settlement", SETTLEMENTS, ids=by_state)
async def test_settlement_without_an_entry_creates_it(ledger: Ledger, settlement: Settlement) -> None:
    entry = await settle(ledger, settlement)
    assert (entry.state, entry.payload, entry.status) == (settlement.state, "p", settlement.status)
    assert entry.claimed == entry.changed == entry.expires
    assert await ledger.get("k") == entry


async def test_decision_is_never_overwritten(ledger: Ledger) -> None:
    await claim(ledger)
    decided = await settle(ledger, REFUSAL)
    for settlement in (*SETTLEMENTS, Settlement(state=State.REFUSED, status=422)):
        for token in ("t", "u"):
            assert await settle(ledger, settlement, token=token, payload="other") == decided
    assert await claim(ledger, token="u") == decided == await ledger.get("k")


async def test_settlement_without_decision_needs_the_last_token(ledger: Ledger) -> None:
    await claim(ledger, lease=0.0)
    own = await claim(ledger, token="u", over="t")
    for settlement in (RELEASED, UNKNOWN, LOST, HELD, by_person(State.APPROVED)):
        assert await settle(ledger, settlement) == own
    assert await ledger.get("k") == own


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
    claimed = await claim(ledger)
    waiting = asyncio.create_task(ledger.wait("k", HOUR))
    assert await ledger.wait("k", 0) == claimed
    assert not waiting.done()
    assert await settle(ledger, approval()) == await waiting


# Scans and purges


async def keys(ledger: Ledger, *states: State, **options: Any) -> list[str]:
    return sorted([entry.key async for entry in ledger.scan(*states, **options)])


async def one_of_each(ledger: Ledger) -> None:
    for settlement in SETTLEMENTS:
        await settle(ledger, settlement, key=settlement.state)
    await claim(ledger, "inflight")
    await claim(ledger, "expired", lease=0.0)


async def test_scan_by_state_returns_the_entries_of_that_state(ledger: Ledger) -> None:
    await one_of_each(ledger)
    for state in State:
        more = ["expired"] if state is State.UNKNOWN else []
        assert await keys(ledger, state) == sorted([state.value, *more])
    assert await keys(ledger, State.LOST, State.INFLIGHT) == ["inflight", "lost"]
    assert len(await keys(ledger)) == len(State) + 1


async def test_scan_by_key_prefix_returns_only_these_entries(ledger: Ledger) -> None:
    for key in ("3", "3f", "3f2a", "3f2a9c", "3f2b", "4"):
        await settle(ledger, UNKNOWN if len(key) % 2 else LOST, key=key)
    assert await keys(ledger, begins="3f2a") == ["3f2a", "3f2a9c"]
    assert await keys(ledger, State.UNKNOWN, begins="3") == ["3"]
    assert await keys(ledger, begins="3f2c") == []
    assert len(await keys(ledger, begins="3")) == 5


async def test_scan_of_several_pages_returns_all_entries(ledger: Ledger) -> None:
    names = [f"k{number:04}" for number in range(2 * PAGE_SIZE + 200)]
    for key in names:
        await settle(ledger, LOST, key=key)
    for options in ({}, {"begins": "k"}, {"begins": "k0"}):
        listed = [key for key in names if key.startswith(options.get("begins", ""))]
        assert await keys(ledger, State.LOST, **options) == await keys(ledger, **options) == listed


async def test_scan_without_redirect_returns_only_approvals(ledger: Ledger) -> None:
    cut = Settlement(state=State.APPROVED, status=201, fault="not whole")
    none = Settlement(state=State.APPROVED, status=201, body=b"\x00", note="no redirect")
    accepted = Settlement(state=State.APPROVED, body=REDIRECT, note="x", source="person")
    some = {"whole": approval(REDIRECT), "encrypted": approval(b"\x00"), "refused": REFUSAL, "cut": cut}
    some |= {"none": none, "stated": by_person(State.APPROVED), "accepted": accepted}
    for key, settlement in some.items():
        await settle(ledger, settlement, key=key)
    assert await keys(ledger, without_redirect=True) == ["cut", "none", "stated"]
    assert await keys(ledger, State.REFUSED, without_redirect=True) == []
    assert len(await keys(ledger, State.APPROVED)) == 6
    await settle(ledger, by_person(State.REFUSED, "ticket 18"), key="stated", token="u", over="t")
    assert await keys(ledger, without_redirect=True) == ["cut", "none"]


async def test_purge_deletes_only_decided_and_released_entries(ledger: Ledger) -> None:
    await one_of_each(ledger)
    await settle(ledger, by_person(State.APPROVED), key="without redirect")
    assert await ledger.purge(HOUR) == 0
    assert await ledger.purge(0) == 4
    assert await keys(ledger) == ["expired", "held", "inflight", "lost", "unknown"]
    assert await ledger.get("approved") is None


async def test_purge_of_several_pages_deletes_all_old_entries(ledger: Ledger) -> None:
    for number in range(2 * PAGE_SIZE + 200):
        await settle(ledger, REFUSAL, key=f"{number}")
    assert await ledger.purge(0) == 2 * PAGE_SIZE + 200
    assert await keys(ledger) == []
