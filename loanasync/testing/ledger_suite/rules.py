"""Conformance tests for claims, settlements and lists, and the class that has the tests of all promises."""

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
WORD = Settlement(state=State.APPROVED, note="ticket 17", source="person")


async def keys(ledger: DecisionLedger, *states: State, **options: Any) -> list[str]:
    """The keys of a list, in alphabetical order."""
    return sorted([entry.key async for entry in ledger.scan(*states, **options)])


class LedgerListRules(LedgerHarness):
    """The part of `LedgerConformance` about `DecisionLedger.scan`."""

    async def bring(self, ledger: DecisionLedger, key: str, *settlements: Settlement, by: str = "t") -> None:
        """Claim an entry, and settle it once or several times."""
        await self.claimed(ledger, key, by)
        for settlement in settlements:
            await ledger.settle(key, token=by, payload="p", settlement=settlement)

    async def test_list_of_each_state_has_its_entries(self) -> None:
        async with self.opened() as ledger:
            for settlement in (RELEASED, UNKNOWN, LOST, HELD, approval(), REFUSAL):
                await self.bring(ledger, settlement.state, settlement)
            await self.claimed(ledger, "inflight", "t")
            await self.run_out(ledger, "out", "t")
            for state in State:
                more = ["out"] if state is State.UNKNOWN else []
                assert await keys(ledger, state) == sorted([state.value, *more])
            assert await keys(ledger, State.LOST, State.INFLIGHT) == ["inflight", "lost"]
            assert len(await keys(ledger)) == len(State) + 1

    async def test_list_follows_an_entry_from_state_to_state(self) -> None:
        async with self.opened() as ledger:
            await self.bring(ledger, "k", RELEASED)
            await self.bring(ledger, "k", UNKNOWN, LOST, HELD, by="s")
            assert [await keys(ledger, state) for state in State] == [[], [], [], [], ["k"], [], []]
            await ledger.claim("k", token="u", payload="p", lease=HOUR, over="s")
            assert await keys(ledger, State.INFLIGHT) == ["k"]
            await ledger.settle("k", token="u", payload="p", settlement=REFUSAL)
            assert [await keys(ledger, state) for state in State] == [[], [], [], [], [], [], ["k"]]
            await ledger.purge(0)
            assert await keys(ledger, State.REFUSED) == await keys(ledger) == []

    async def test_list_by_the_beginning_of_keys_has_these_alone(self) -> None:
        async with self.opened() as ledger:
            for key in ("3", "3f", "3f2a", "3f2a9c", "3f2b", "4"):
                await self.bring(ledger, key, UNKNOWN if len(key) % 2 else LOST)
            assert await keys(ledger, begins="3f2a") == ["3f2a", "3f2a9c"]
            assert await keys(ledger, State.UNKNOWN, begins="3") == ["3"]
            assert await keys(ledger, begins="3f2c") == []
            assert len(await keys(ledger, begins="3")) == 5

    async def test_list_of_more_than_a_page_is_whole(self) -> None:
        async with self.opened() as ledger:
            names = [f"k{number}" for number in range(1200)]
            for begin in range(0, len(names), 100):
                some = names[begin : begin + 100]
                await asyncio.gather(*(self.bring(ledger, key, LOST) for key in some))
            assert await keys(ledger, State.LOST) == await keys(ledger, begins="k") == sorted(names)

    async def test_list_without_redirect_has_approvals_alone(self) -> None:
        async with self.opened() as ledger:
            await self.bring(ledger, "whole", approval(REDIRECT))
            await self.bring(ledger, "encrypted", approval(b"\x00"))
            for name, settlement in {
                "said": WORD,
                "cut": Settlement(state=State.APPROVED, status=201, fault="not whole"),
                "none": Settlement(state=State.APPROVED, status=201, body=b"\x00", note="no redirect"),
            }.items():
                await self.bring(ledger, name, settlement)
            unread = Settlement(state=State.UNKNOWN, status=201, body=REDIRECT, note="n")
            accepted = Settlement(state=State.APPROVED, body=REDIRECT, note="x", source="person")
            await self.bring(ledger, "accepted", unread, accepted)
            await self.bring(ledger, "refused", REFUSAL)
            assert await keys(ledger, without_redirect=True) == ["cut", "none", "said"]
            assert await keys(ledger, State.REFUSED, without_redirect=True) == []
            word = Settlement(state=State.REFUSED, note="ticket 18", source="person")
            await ledger.settle("said", token="u", payload="p", settlement=word, over="t")
            assert await keys(ledger, without_redirect=True, begins="s") == []
            await ledger.purge(0)
            assert await keys(ledger, without_redirect=True) == []


class LedgerConformance(LedgerHistoryRules, LedgerListRules):
    """The tests that every ledger has to pass. Subclass it in a test file, and say how yours is opened.

    `opener` is called several times within a test, and has to open the same ledger each time: one that is
    empty when the test begins. Set it in a fixture. The tests are coroutines, so that pytest needs a plugin
    for those, such as pytest-asyncio. For a ledger that several processes use at once, take
    `SharedLedgerConformance`, which has these tests and more.

    `keys` is how many entries the test of a large ledger makes; set it to 100,000 before you trust one.

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

    async def test_a_key_that_nobody_claimed_has_no_entry(self) -> None:
        async with self.opened() as ledger:
            assert await ledger.get("k") is None
            assert await ledger.wait("k", HOUR) is None
            assert [entry async for entry in ledger.scan()] == []
            assert await ledger.purge(0) == 0

    async def test_a_claim_says_what_it_is(self) -> None:
        async with self.opened() as ledger:
            entry = await ledger.claim("k", token="t", payload="p", lease=HOUR)
            assert (entry.key, entry.state, entry.token, entry.payload) == ("k", State.INFLIGHT, "t", "p")
            assert (entry.takeovers, entry.note, entry.status) == (0, "", None)
            assert (entry.body, entry.fault) == (None, None)
            assert entry.claimed == entry.changed
            assert abs(entry.expires - entry.changed - HOUR) < 1
            assert await ledger.get("k") == entry

    async def test_of_many_racers_one_wins(self) -> None:
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

    async def test_a_claim_that_is_repeated_with_its_token_is_the_same_claim(self) -> None:
        async with self.opened() as ledger:
            first = await self.claimed(ledger, "k", "t")
            again = await self.claimed(ledger, "k", "t")
            assert (again.claimed, again.takeovers) == (first.claimed, 0)

    async def test_keys_have_nothing_to_do_with_each_other(self) -> None:
        async with self.opened() as ledger:
            keys = [f"k{number}" for number in range(RACERS)]
            await asyncio.gather(*(self.claimed(ledger, key, f"of-{key}") for key in keys))
            await ledger.settle("k1", token="of-k1", payload="p", settlement=approval())
            states = [entry.state for key in keys if (entry := await ledger.get(key))]
            assert (states.count(State.APPROVED), states.count(State.INFLIGHT)) == (1, RACERS - 1)

    async def test_what_was_asked_is_what_the_winner_asked(self) -> None:
        async with self.opened() as ledger:
            await self.claimed(ledger, "k", "t")
            assert (await ledger.claim("k", token="u", payload="other", lease=HOUR)).payload == "p"

    async def test_a_released_entry_is_claimed_anew_with_whatever_is_asked_then(self) -> None:
        async with self.opened() as ledger:
            await self.claimed(ledger, "k", "t")
            released = await ledger.settle("k", token="t", payload="p", settlement=RELEASED)
            assert (released.state, released.note) == (State.RELEASED, "ConnectError")
            entry = await ledger.claim("k", token="u", payload="other", lease=HOUR)
            assert entry.is_claimed_by("u")
            assert (entry.payload, entry.takeovers, entry.note) == ("other", 0, "")
            first = await self.run_out(ledger, "l", "t")
            await ledger.claim("l", token="u", payload="p", lease=HOUR, over="t")
            await ledger.settle("l", token="u", payload="p", settlement=RELEASED)
            anew = await self.claimed(ledger, "l", "v")
            assert (anew.takeovers, anew.claimed) == (0, anew.changed)
            assert anew.claimed > first.claimed

    async def test_a_claim_after_its_own_release_is_not_won(self) -> None:
        async with self.opened() as ledger, self.opened() as other:
            for key in ("unclaimed", "claimed"):
                if key == "claimed":
                    await self.claimed(ledger, key, "t")
                await ledger.settle(key, token="t", payload="p", settlement=RELEASED)
                late = await other.claim(key, token="t", payload="p", lease=HOUR)
                assert (late.state, late.token) == (State.RELEASED, "t")
                assert await ledger.get(key) == late
                assert (await self.claimed(ledger, key, "u")).is_claimed_by("u")

    async def test_a_lease_that_ran_out_leaves_the_outcome_unknown_and_is_not_claimable(self) -> None:
        async with self.opened() as ledger, self.opened() as other:
            entry = await self.run_out(ledger, "k", "t")
            assert (entry.state, entry.token) == (State.UNKNOWN, "t")
            claim = await other.claim("k", token="u", payload="p", lease=HOUR)
            assert (claim.state, claim.token, claim.takeovers) == (State.UNKNOWN, "t", 0)
            assert [each.state async for each in other.scan(State.UNKNOWN)] == [State.UNKNOWN]
            assert [each async for each in other.scan(State.INFLIGHT)] == []
            again = await other.claim("k", token="t", payload="p", lease=HOUR)
            assert not again.is_claimed_by("t")

    async def test_a_client_whose_clock_is_wrong_changes_nothing(self) -> None:
        right = time.time
        for skew in (-60.0, 60.0):
            key = f"k{skew}"
            wrong = mock.patch("time.time", lambda by=skew: right() + by)
            wrong_nanoseconds = mock.patch("time.time_ns", lambda by=skew: int((right() + by) * 1e9))
            async with self.opened() as ledger:
                before = await self.claimed(ledger, f"before-{key}", "t", 30)
                with wrong, wrong_nanoseconds:
                    async with self.opened() as off:
                        seen = await off.claim(f"before-{key}", token="u", payload="p", lease=30)
                        during = await self.claimed(off, key, "t", 30)
                        out = await self.run_out(off, f"out-{key}", "t")
                assert seen == before
                assert abs(during.changed - before.changed) < 30
                assert await ledger.get(key) == during
                assert out.state is State.UNKNOWN

    async def test_the_unsettled_is_taken_over_by_one_who_names_its_token(self) -> None:
        async with self.opened() as ledger:
            for settlement in (UNKNOWN, LOST, HELD, None):
                key = f"k{settlement and settlement.state}"
                if settlement is None:
                    await self.run_out(ledger, key, "t")
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
                holder = entries[0].token
                await ledger.settle(key, token=holder, payload="p", settlement=UNKNOWN)
                again = await ledger.claim(key, token="v", payload="p", lease=HOUR, over=holder)
                assert (again.is_claimed_by("v"), again.takeovers) == (True, 2)
                assert again.claimed <= again.changed

    async def test_what_is_in_flight_or_decided_is_not_taken_over(self) -> None:
        async with self.opened() as ledger:
            await self.claimed(ledger, "k", "t")
            entry = await ledger.claim("k", token="u", payload="p", lease=HOUR, over="t")
            assert (entry.state, entry.token) == (State.INFLIGHT, "t")
            await ledger.settle("k", token="t", payload="p", settlement=REFUSAL)
            entry = await ledger.claim("k", token="u", payload="p", lease=HOUR, over="t")
            assert (entry.state, entry.token) == (State.REFUSED, "t")

    async def test_the_holder_settles_also_after_the_lease(self) -> None:
        async with self.opened() as ledger:
            for settlement in (RELEASED, UNKNOWN, LOST, HELD, approval(), REFUSAL):
                key = f"k{settlement.state}"
                await self.run_out(ledger, key, "t")
                entry = await ledger.settle(key, token="t", payload="p", settlement=settlement)
                assert (entry.state, entry.note) == (settlement.state, settlement.note)
                assert entry.claimed < entry.expires <= entry.changed
                assert await ledger.get(key) == entry

    async def test_a_late_decision_lands_with_a_token_that_is_none_any_more(self) -> None:
        async with self.opened() as ledger:
            for state in (State.INFLIGHT, State.RELEASED, State.UNKNOWN, State.LOST, State.HELD):
                key = f"k{state}"
                await self.run_out(ledger, key, "t")
                await ledger.claim(key, token="u", payload="p", lease=HOUR, over="t")
                if state is not State.INFLIGHT:
                    await ledger.settle(key, token="u", payload="p", settlement=Settlement(state=state))
                entry = await ledger.settle(key, token="t", payload="p", settlement=approval(b"late"))
                assert (entry.state, entry.status, entry.body) == (State.APPROVED, 201, b"late")
                ended = await ledger.settle(key, token="u", payload="p", settlement=LOST)
                assert ended == entry == await ledger.get(key)

    async def test_a_late_decision_is_about_what_was_asked_then(self) -> None:
        async with self.opened() as ledger:
            await self.claimed(ledger, "k", "t")
            await ledger.settle("k", token="t", payload="p", settlement=RELEASED)
            await ledger.claim("k", token="u", payload="other", lease=HOUR)
            entry = await ledger.settle("k", token="t", payload="p", settlement=approval())
            assert (entry.state, entry.payload) == (State.APPROVED, "p")

    async def test_a_decision_lands_where_no_entry_is(self) -> None:
        async with self.opened() as ledger:
            entry = await ledger.settle("k", token="t", payload="p", settlement=REFUSAL)
            assert (entry.state, entry.payload, entry.status) == (State.REFUSED, "p", 422)
            assert entry.claimed == entry.changed == entry.expires
            assert await ledger.get("k") == entry

    async def test_a_decision_is_never_overwritten(self) -> None:
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

    async def test_whatever_is_no_decision_needs_the_token_of_the_last_claim(self) -> None:
        async with self.opened() as ledger:
            await self.run_out(ledger, "k", "t")
            mine = await ledger.claim("k", token="u", payload="p", lease=HOUR, over="t")
            for settlement in (RELEASED, UNKNOWN, LOST, HELD):
                assert await ledger.settle("k", token="t", payload="p", settlement=settlement) == mine
            assert await ledger.get("k") == mine

    async def test_a_settlement_that_is_repeated_changes_nothing(self) -> None:
        async with self.opened() as ledger:
            await self.claimed(ledger, "k", "t")
            first = await ledger.settle("k", token="t", payload="p", settlement=approval())
            assert await ledger.settle("k", token="t", payload="p", settlement=approval()) == first

    async def test_a_body_comes_back_byte_for_byte(self) -> None:
        async with self.opened() as ledger:
            for number, body in enumerate((b"", bytes(range(256)), b"\xe2\x82\xac" * 300_000)):
                key = f"k{number}"
                await self.claimed(ledger, key, "t")
                told = Settlement(state=State.APPROVED, status=201, body=body, note="è, \U0001f600 ' \" \\")
                entry = await ledger.settle(key, token="t", payload="p", settlement=told)
                assert entry.body == body
                assert await ledger.get(key) == entry
                assert entry.note == told.note

    async def test_who_waits_is_told_when_it_is_settled(self) -> None:
        async with self.opened() as ledger, self.opened() as other:
            await self.claimed(ledger, "k", "t")
            waiting = asyncio.create_task(other.wait("k", PATIENCE))
            early = await other.wait("k", 0)
            assert early is not None
            assert early.state is State.INFLIGHT
            assert not waiting.done()
            settled = await ledger.settle("k", token="t", payload="p", settlement=approval())
            assert await waiting == settled

    async def test_a_cancelled_move_leaves_the_ledger_usable(self) -> None:
        async with self.opened() as ledger:
            for number in range(RACERS):
                moving = asyncio.create_task(ledger.claim(f"k{number}", token="t", payload="p", lease=HOUR))
                for _ in range(number % 4):
                    await asyncio.sleep(0)
                moving.cancel()
                await asyncio.wait({moving})
            for number in range(RACERS):  # each was claimed, or was not
                await self.claimed(ledger, f"k{number}", "t")

    async def test_it_can_be_closed_twice_and_goes_on_when_it_is_used_again(self) -> None:
        ledger = self.opener()
        await self.claimed(ledger, "k", "t")
        await ledger.aclose()
        await ledger.aclose()
        async with self.opened() as other:
            assert (await other.claim("k", token="u", payload="p", lease=HOUR)).token == "t"
            await self.claimed(ledger, "l", "t")
            await ledger.aclose()

    async def test_what_is_decided_or_released_is_purged_and_the_rest_is_kept(self) -> None:
        async with self.opened() as ledger:
            for settlement in (RELEASED, UNKNOWN, LOST, HELD, approval(), REFUSAL):
                await self.claimed(ledger, settlement.state, "t")
                await ledger.settle(settlement.state, token="t", payload="p", settlement=settlement)
            await self.claimed(ledger, "inflight", "t")
            await self.run_out(ledger, "out", "t")
            assert await ledger.purge(HOUR) == 0
            assert await ledger.purge(0) == 3
            left = {entry.key async for entry in ledger.scan()}
            assert left == {"unknown", "lost", "held", "inflight", "out"}
            assert await ledger.get("approved") is None

    async def test_it_holds_many_keys(self) -> None:
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
