"""Conformance tests for lists: by state, by the beginning of a key, and approvals without a redirect."""

import asyncio
from typing import Any

from loanasync.ledger import DecisionLedger, Settlement, State
from loanasync.testing.ledger_suite.harness import (
    HELD,
    HOUR,
    LOST,
    REFUSAL,
    RELEASED,
    UNKNOWN,
    LedgerHarness,
    approval,
)

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
