"""Conformance tests for claims, settlements and scans, and the class that has all conformance tests."""

import asyncio
import time
from contextlib import AsyncExitStack
from secrets import token_hex
from typing import Any
from unittest import mock

from loanasync.ledger import DecisionLedger, Settlement, State
from loanasync.testing.ledger_suite.harness import (
    HELD,
    HOUR,
    LOST,
    PATIENCE,
    RACERS,
    REFUSAL,
    RELEASED,
    UNKNOWN,
    LedgerHarness,
    approval,
)
from loanasync.testing.ledger_suite.history import LedgerHistoryRules

REDIRECT = b'{"approved":true,"redirectUrl":"https://loans.example.com/x"}'
PERSONS_DECISION = Settlement(state=State.APPROVED, note="ticket 17", source="person")


async def keys(ledger: DecisionLedger, *states: State, **options: Any) -> list[str]:
    """Return the sorted keys of the entries of a scan."""
    return sorted([entry.key async for entry in ledger.scan(*states, **options)])


class LedgerListRules(LedgerHarness):
    """The tests of `LedgerConformance` for `DecisionLedger.scan`."""

    async def add_entry(
        self, ledger: DecisionLedger, key: str, *settlements: Settlement, by: str = "t"
    ) -> None:
        """Claim an entry, and apply the settlements in order."""
        await self.claimed(ledger, key, by)
        for settlement in settlements:
            await ledger.settle(key, token=by, payload="p", settlement=settlement)

    async def test_scan_by_state_returns_the_entries_of_that_state(self) -> None:
        async with self.opened() as ledger:
            for settlement in (RELEASED, UNKNOWN, LOST, HELD, approval(), REFUSAL):
                await self.add_entry(ledger, settlement.state, settlement)
            await self.claimed(ledger, "inflight", "t")
            await self.expired_claim(ledger, "out", "t")
            for state in State:
                more = ["out"] if state is State.UNKNOWN else []
                assert await keys(ledger, state) == sorted([state.value, *more])
            assert await keys(ledger, State.LOST, State.INFLIGHT) == ["inflight", "lost"]
            assert len(await keys(ledger)) == len(State) + 1

    async def test_scan_by_state_follows_an_entry_through_its_states(self) -> None:
        async with self.opened() as ledger:
            await self.add_entry(ledger, "k", RELEASED)
            await self.add_entry(ledger, "k", UNKNOWN, LOST, HELD, by="s")
            assert [await keys(ledger, state) for state in State] == [[], [], [], [], ["k"], [], []]
            await ledger.claim("k", token="u", payload="p", lease=HOUR, over="s")
            assert await keys(ledger, State.INFLIGHT) == ["k"]
            await ledger.settle("k", token="u", payload="p", settlement=REFUSAL)
            assert [await keys(ledger, state) for state in State] == [[], [], [], [], [], [], ["k"]]
            await ledger.purge(0)
            assert await keys(ledger, State.REFUSED) == await keys(ledger) == []

    async def test_scan_by_key_prefix_returns_only_these_entries(self) -> None:
        async with self.opened() as ledger:
            for key in ("3", "3f", "3f2a", "3f2a9c", "3f2b", "4"):
                await self.add_entry(ledger, key, UNKNOWN if len(key) % 2 else LOST)
            assert await keys(ledger, begins="3f2a") == ["3f2a", "3f2a9c"]
            assert await keys(ledger, State.UNKNOWN, begins="3") == ["3"]
            assert await keys(ledger, begins="3f2c") == []
            assert len(await keys(ledger, begins="3")) == 5

    async def test_scan_of_several_pages_returns_all_entries(self) -> None:
        async with self.opened() as ledger:
            names = [f"k{number}" for number in range(1200)]
            for begin in range(0, len(names), 100):
                some = names[begin : begin + 100]
                await asyncio.gather(*(self.add_entry(ledger, key, LOST) for key in some))
            assert await keys(ledger, State.LOST) == await keys(ledger, begins="k") == sorted(names)

    async def test_scan_without_redirect_returns_only_approvals(self) -> None:
        async with self.opened() as ledger:
            await self.add_entry(ledger, "whole", approval(REDIRECT))
            await self.add_entry(ledger, "encrypted", approval(b"\x00"))
            for name, settlement in {
                "stated": PERSONS_DECISION,
                "cut": Settlement(state=State.APPROVED, status=201, fault="not whole"),
                "none": Settlement(state=State.APPROVED, status=201, body=b"\x00", note="no redirect"),
            }.items():
                await self.add_entry(ledger, name, settlement)
            unclassified = Settlement(state=State.UNKNOWN, status=201, body=REDIRECT, note="n")
            accepted = Settlement(state=State.APPROVED, body=REDIRECT, note="x", source="person")
            await self.add_entry(ledger, "accepted", unclassified, accepted)
            await self.add_entry(ledger, "refused", REFUSAL)
            assert await keys(ledger, without_redirect=True) == ["cut", "none", "stated"]
            assert await keys(ledger, State.REFUSED, without_redirect=True) == []
            correction = Settlement(state=State.REFUSED, note="ticket 18", source="person")
            await ledger.settle("stated", token="u", payload="p", settlement=correction, over="t")
            assert await keys(ledger, without_redirect=True, begins="s") == []
            await ledger.purge(0)
            assert await keys(ledger, without_redirect=True) == []


class LedgerConformance(LedgerHistoryRules, LedgerListRules):
    """The tests that every ledger must pass. Subclass it in a test file.

    The tests are coroutines, so pytest needs a plugin such as pytest-asyncio. For a ledger that several
    processes use at once, subclass `SharedLedgerConformance`, which has these tests and more.

    Attributes:
        opener: Opens the ledger. Set it in a fixture. A test calls it several times; it must open the same
            ledger each time, and the ledger must be empty when the test begins.
        keys: Number of entries that the test of a large ledger creates. Use 100,000 before a first release
            of a backend.

    Example:
        >>> import pytest
        >>> from loanasync.ledger import MemoryLedger
        >>> from loanasync.testing import LedgerConformance
        >>> class TestMyLedger(LedgerConformance):
        ...     @pytest.fixture(autouse=True)
        ...     def _one_for_each_test(self):
        ...         ledger = MemoryLedger()
        ...         self.opener = lambda: ledger
    """

    async def test_unclaimed_key_has_no_entry(self) -> None:
        async with self.opened() as ledger:
            assert await ledger.get("k") is None
            assert await ledger.wait("k", HOUR) is None
            assert [entry async for entry in ledger.scan()] == []
            assert await ledger.purge(0) == 0

    async def test_claim_returns_the_new_entry(self) -> None:
        async with self.opened() as ledger:
            entry = await ledger.claim("k", token="t", payload="p", lease=HOUR)
            assert (entry.key, entry.state, entry.token, entry.payload) == ("k", State.INFLIGHT, "t", "p")
            assert (entry.takeovers, entry.note, entry.status) == (0, "", None)
            assert (entry.body, entry.fault) == (None, None)
            assert entry.claimed == entry.changed
            assert abs(entry.expires - entry.changed - HOUR) < 1
            assert await ledger.get("k") == entry

    async def test_concurrent_claims_have_one_owner(self) -> None:
        async with AsyncExitStack() as stack:
            handles = [await stack.enter_async_context(self.opened()) for _ in range(4)]
            claims = [
                handles[number % 4].claim("k", token=f"t{number}", payload="p", lease=HOUR)
                for number in range(RACERS)
            ]
            entries = await asyncio.gather(*claims)
            assert [entry.is_claimed_by(f"t{number}") for number, entry in enumerate(entries)].count(
                True
            ) == 1
            assert len({entry.token for entry in entries}) == 1

    async def test_repeated_claim_has_no_effect(self) -> None:
        async with self.opened() as ledger:
            first = await self.claimed(ledger, "k", "t")
            again = await self.claimed(ledger, "k", "t")
            assert (again.claimed, again.takeovers) == (first.claimed, 0)

    async def test_entries_with_different_keys_are_independent(self) -> None:
        async with self.opened() as ledger:
            keys = [f"k{number}" for number in range(RACERS)]
            await asyncio.gather(*(self.claimed(ledger, key, f"of-{key}") for key in keys))
            await ledger.settle("k1", token="of-k1", payload="p", settlement=approval())
            states = [entry.state for key in keys if (entry := await ledger.get(key))]
            assert (states.count(State.APPROVED), states.count(State.INFLIGHT)) == (1, RACERS - 1)

    async def test_entry_has_the_payload_of_the_winning_claim(self) -> None:
        async with self.opened() as ledger:
            await self.claimed(ledger, "k", "t")
            assert (await ledger.claim("k", token="u", payload="other", lease=HOUR)).payload == "p"

    async def test_released_entry_is_claimed_with_another_payload(self) -> None:
        async with self.opened() as ledger:
            await self.claimed(ledger, "k", "t")
            released = await ledger.settle("k", token="t", payload="p", settlement=RELEASED)
            assert (released.state, released.note) == (State.RELEASED, "ConnectError")
            entry = await ledger.claim("k", token="u", payload="other", lease=HOUR)
            assert entry.is_claimed_by("u")
            assert (entry.payload, entry.takeovers, entry.note) == ("other", 0, "")
            first = await self.expired_claim(ledger, "l", "t")
            await ledger.claim("l", token="u", payload="p", lease=HOUR, over="t")
            await ledger.settle("l", token="u", payload="p", settlement=RELEASED)
            again = await self.claimed(ledger, "l", "v")
            assert (again.takeovers, again.claimed) == (0, again.changed)
            assert again.claimed > first.claimed

    async def test_claim_after_its_own_release_fails(self) -> None:
        async with self.opened() as ledger, self.opened() as other:
            for key in ("unclaimed", "claimed"):
                if key == "claimed":
                    await self.claimed(ledger, key, "t")
                await ledger.settle(key, token="t", payload="p", settlement=RELEASED)
                late = await other.claim(key, token="t", payload="p", lease=HOUR)
                assert (late.state, late.token) == (State.RELEASED, "t")
                assert await ledger.get(key) == late
                assert (await self.claimed(ledger, key, "u")).is_claimed_by("u")

    async def test_expired_lease_is_unknown_and_not_claimable(self) -> None:
        async with self.opened() as ledger, self.opened() as other:
            entry = await self.expired_claim(ledger, "k", "t")
            assert (entry.state, entry.token) == (State.UNKNOWN, "t")
            claim = await other.claim("k", token="u", payload="p", lease=HOUR)
            assert (claim.state, claim.token, claim.takeovers) == (State.UNKNOWN, "t", 0)
            assert [each.state async for each in other.scan(State.UNKNOWN)] == [State.UNKNOWN]
            assert [each async for each in other.scan(State.INFLIGHT)] == []
            again = await other.claim("k", token="t", payload="p", lease=HOUR)
            assert not again.is_claimed_by("t")

    async def test_client_with_a_wrong_clock_has_the_same_leases(self) -> None:
        right = time.time
        for skew in (-60.0, 60.0):
            key = f"k{skew}"
            wrong = mock.patch("time.time", lambda by=skew: right() + by)
            wrong_nanoseconds = mock.patch("time.time_ns", lambda by=skew: int((right() + by) * 1e9))
            async with self.opened() as ledger:
                before = await self.claimed(ledger, f"before-{key}", "t", 30)
                with wrong, wrong_nanoseconds:
                    async with self.opened() as skewed:
                        other_entry = await skewed.claim(f"before-{key}", token="u", payload="p", lease=30)
                        during = await self.claimed(skewed, key, "t", 30)
                        out = await self.expired_claim(skewed, f"out-{key}", "t")
                assert other_entry == before
                assert abs(during.changed - before.changed) < 30
                assert await ledger.get(key) == during
                assert out.state is State.UNKNOWN

    async def test_unsettled_entry_is_taken_over_by_naming_its_token(self) -> None:
        async with self.opened() as ledger:
            for settlement in (UNKNOWN, LOST, HELD, None):
                key = f"k{settlement and settlement.state}"
                if settlement is None:
                    await self.expired_claim(ledger, key, "t")
                else:
                    await self.claimed(ledger, key, "t")
                    await ledger.settle(key, token="t", payload="p", settlement=settlement)
                wrong = await ledger.claim(key, token="u", payload="p", lease=HOUR, over="not-t")
                assert (wrong.token, wrong.takeovers) == ("t", 0)
                racers = [
                    ledger.claim(key, token=f"u{number}", payload="p", lease=HOUR, over="t")
                    for number in range(RACERS)
                ]
                entries = await asyncio.gather(*racers)
                won = [entry.is_claimed_by(f"u{number}") for number, entry in enumerate(entries)]
                assert won.count(True) == 1
                assert {entry.takeovers for entry in entries} == {1}
                assert {entry.note for entry in entries} == {""}
                owner = entries[0].token
                await ledger.settle(key, token=owner, payload="p", settlement=UNKNOWN)
                again = await ledger.claim(key, token="v", payload="p", lease=HOUR, over=owner)
                assert (again.is_claimed_by("v"), again.takeovers) == (True, 2)
                assert again.claimed <= again.changed

    async def test_inflight_or_decided_entry_is_not_taken_over(self) -> None:
        async with self.opened() as ledger:
            await self.claimed(ledger, "k", "t")
            entry = await ledger.claim("k", token="u", payload="p", lease=HOUR, over="t")
            assert (entry.state, entry.token) == (State.INFLIGHT, "t")
            await ledger.settle("k", token="t", payload="p", settlement=REFUSAL)
            entry = await ledger.claim("k", token="u", payload="p", lease=HOUR, over="t")
            assert (entry.state, entry.token) == (State.REFUSED, "t")

    async def test_owner_settles_after_its_lease_expired(self) -> None:
        async with self.opened() as ledger:
            for settlement in (RELEASED, UNKNOWN, LOST, HELD, approval(), REFUSAL):
                key = f"k{settlement.state}"
                await self.expired_claim(ledger, key, "t")
                entry = await ledger.settle(key, token="t", payload="p", settlement=settlement)
                assert (entry.state, entry.note) == (settlement.state, settlement.note)
                assert entry.claimed < entry.expires <= entry.changed
                assert await ledger.get(key) == entry

    async def test_late_decision_is_written_with_an_older_token(self) -> None:
        async with self.opened() as ledger:
            for state in (State.INFLIGHT, State.RELEASED, State.UNKNOWN, State.LOST, State.HELD):
                key = f"k{state}"
                await self.expired_claim(ledger, key, "t")
                await ledger.claim(key, token="u", payload="p", lease=HOUR, over="t")
                if state is not State.INFLIGHT:
                    await ledger.settle(key, token="u", payload="p", settlement=Settlement(state=state))
                entry = await ledger.settle(key, token="t", payload="p", settlement=approval(b"late"))
                assert (entry.state, entry.status, entry.body) == (State.APPROVED, 201, b"late")
                ended = await ledger.settle(key, token="u", payload="p", settlement=LOST)
                assert ended == entry == await ledger.get(key)

    async def test_late_decision_has_the_payload_of_its_own_claim(self) -> None:
        async with self.opened() as ledger:
            await self.claimed(ledger, "k", "t")
            await ledger.settle("k", token="t", payload="p", settlement=RELEASED)
            await ledger.claim("k", token="u", payload="other", lease=HOUR)
            entry = await ledger.settle("k", token="t", payload="p", settlement=approval())
            assert (entry.state, entry.payload) == (State.APPROVED, "p")

    async def test_decision_without_an_entry_creates_it(self) -> None:
        async with self.opened() as ledger:
            entry = await ledger.settle("k", token="t", payload="p", settlement=REFUSAL)
            assert (entry.state, entry.payload, entry.status) == (State.REFUSED, "p", 422)
            assert entry.claimed == entry.changed == entry.expires
            assert await ledger.get("k") == entry

    async def test_decision_is_never_overwritten(self) -> None:
        async with self.opened() as ledger:
            await self.claimed(ledger, "k", "t")
            decided = await ledger.settle("k", token="t", payload="p", settlement=REFUSAL)
            for token in ("t", "u"):
                for other in (
                    approval(),
                    Settlement(state=State.REFUSED, status=422),
                    RELEASED,
                    UNKNOWN,
                    HELD,
                ):
                    entry = await ledger.settle("k", token=token, payload="other", settlement=other)
                    assert entry == decided
            assert await ledger.claim("k", token="u", payload="p", lease=HOUR) == decided
            assert await ledger.get("k") == decided

    async def test_settlement_without_decision_needs_the_last_token(self) -> None:
        async with self.opened() as ledger:
            await self.expired_claim(ledger, "k", "t")
            own = await ledger.claim("k", token="u", payload="p", lease=HOUR, over="t")
            for settlement in (RELEASED, UNKNOWN, LOST, HELD):
                assert await ledger.settle("k", token="t", payload="p", settlement=settlement) == own
            assert await ledger.get("k") == own

    async def test_repeated_settlement_changes_nothing(self) -> None:
        async with self.opened() as ledger:
            await self.claimed(ledger, "k", "t")
            first = await ledger.settle("k", token="t", payload="p", settlement=approval())
            assert await ledger.settle("k", token="t", payload="p", settlement=approval()) == first

    async def test_body_is_stored_byte_for_byte(self) -> None:
        async with self.opened() as ledger:
            for number, body in enumerate((b"", bytes(range(256)), b"\xe2\x82\xac" * 300_000)):
                key = f"k{number}"
                await self.claimed(ledger, key, "t")
                approved = Settlement(
                    state=State.APPROVED, status=201, body=body, note="è, \U0001f600 ' \" \\"
                )
                entry = await ledger.settle(key, token="t", payload="p", settlement=approved)
                assert entry.body == body
                assert await ledger.get(key) == entry
                assert entry.note == approved.note

    async def test_wait_returns_when_the_entry_is_settled(self) -> None:
        async with self.opened() as ledger, self.opened() as other:
            await self.claimed(ledger, "k", "t")
            waiting = asyncio.create_task(other.wait("k", PATIENCE))
            early = await other.wait("k", 0)
            assert early is not None
            assert early.state is State.INFLIGHT
            assert not waiting.done()
            settled = await ledger.settle("k", token="t", payload="p", settlement=approval())
            assert await waiting == settled

    async def test_cancelled_operation_leaves_the_ledger_usable(self) -> None:
        async with self.opened() as ledger:
            for number in range(RACERS):
                claiming = asyncio.create_task(ledger.claim(f"k{number}", token="t", payload="p", lease=HOUR))
                for _ in range(number % 4):
                    await asyncio.sleep(0)
                claiming.cancel()
                await asyncio.wait({claiming})
            for number in range(RACERS):  # each was claimed, or was not
                await self.claimed(ledger, f"k{number}", "t")

    async def test_closed_ledger_opens_again_on_the_next_use(self) -> None:
        ledger = self.opener()
        await self.claimed(ledger, "k", "t")
        await ledger.aclose()
        await ledger.aclose()
        async with self.opened() as other:
            assert (await other.claim("k", token="u", payload="p", lease=HOUR)).token == "t"
            await self.claimed(ledger, "l", "t")
            await ledger.aclose()

    async def test_purge_deletes_only_decided_and_released_entries(self) -> None:
        async with self.opened() as ledger:
            for settlement in (RELEASED, UNKNOWN, LOST, HELD, approval(), REFUSAL):
                await self.claimed(ledger, settlement.state, "t")
                await ledger.settle(settlement.state, token="t", payload="p", settlement=settlement)
            await self.claimed(ledger, "inflight", "t")
            await self.expired_claim(ledger, "out", "t")
            assert await ledger.purge(HOUR) == 0
            assert await ledger.purge(0) == 3
            left = {entry.key async for entry in ledger.scan()}
            assert left == {"unknown", "lost", "held", "inflight", "out"}
            assert await ledger.get("approved") is None

    async def test_large_ledger_returns_all_entries(self) -> None:
        async with self.opened() as ledger:

            async def approve(number: int) -> None:
                key, token = f"k{number}", token_hex(8)
                await self.claimed(ledger, key, token)
                if number % 10:
                    await ledger.settle(key, token=token, payload="p", settlement=approval())

            for begin in range(0, self.keys, 100):
                await asyncio.gather(*(approve(number) for number in range(begin, begin + 100)))
            counts = dict.fromkeys(State, 0)
            keys = set()
            async for entry in ledger.scan():
                counts[entry.state] += 1
                keys.add(entry.key)
            assert len(keys) == self.keys
            assert (counts[State.INFLIGHT], counts[State.APPROVED]) == (self.keys / 10, self.keys * 9 / 10)
            assert len([entry async for entry in ledger.scan(State.INFLIGHT, State.LOST)]) == self.keys / 10
            last = await ledger.get(f"k{self.keys - 1}")
            assert last is not None
            assert last.state is State.APPROVED
