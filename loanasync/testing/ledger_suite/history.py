"""Conformance tests for stored responses, subjects, corrections and the history of entries."""

import asyncio

from loanasync.ledger import DecisionLedger, Entry, Settlement, State, Subject
from loanasync.testing.ledger_suite.harness import (
    HELD,
    HOUR,
    LOST,
    RACERS,
    REFUSAL,
    RELEASED,
    SOON,
    UNKNOWN,
    LedgerHarness,
    approval,
)

HISTORY_LENGTH = 20  # number of earlier states in an entry's history
PERSONS_DECISION = Settlement(state=State.REFUSED, note="ticket 17", source="person")
SUBJECT = Subject(customer="customer", order="order", scope="spring")
NOTHING = (None, None, None)


def unclassified(state: State) -> Settlement:
    """Return a settlement with a response that could not be classified."""
    return Settlement(state=state, note="n", status=500, body=b"\x00body", fault="cut off")


def response(entry: Entry | Settlement) -> tuple[int | None, bytes | None, str | None]:
    """Return the stored response of an entry."""
    return entry.status, entry.body, entry.fault


def earlier_states(entry: Entry) -> list[tuple[State, str, str]]:
    """Return the history of an entry without its times."""
    return [(change.state, change.note, change.source) for change in entry.history]


class LedgerHistoryRules(LedgerHarness):
    """The tests of `LedgerConformance` for subjects, responses, corrections and history."""

    async def settled(self, ledger: DecisionLedger, key: str, *settlements: Settlement) -> Entry:
        """Claim an entry with the token "t", and apply the settlements with it."""
        entry = await ledger.claim(key, token="t", payload="p", lease=HOUR, subject=SUBJECT)
        for settlement in settlements:
            entry = await ledger.settle(key, token="t", payload="p", settlement=settlement)
        return entry

    async def corrected(
        self, ledger: DecisionLedger, settlement: Settlement, by: str = "u", over: str | None = "t"
    ) -> Entry:
        """Correct the entry "k", and return the entry."""
        return await ledger.settle("k", token=by, payload="p", settlement=settlement, over=over)

    async def test_settlement_without_body_keeps_the_response(self) -> None:
        async with self.opened() as ledger:
            for before in (State.UNKNOWN, State.LOST, State.HELD):
                for after in (UNKNOWN, LOST, HELD):
                    key = f"{before}-{after.state}"
                    entry = await self.settled(ledger, key, unclassified(before), after)
                    assert (entry.state, entry.note) == (after.state, after.note)
                    assert response(entry) == response(unclassified(before))
                    assert await ledger.get(key) == entry

    async def test_settlement_with_body_replaces_the_response(self) -> None:
        async with self.opened() as ledger:
            other = Settlement(state=State.UNKNOWN, status=502, body=b"")
            entry = await self.settled(ledger, "k", unclassified(State.UNKNOWN), other)
            assert response(entry) == (502, b"", None)

    async def test_settlement_without_stored_response_sets_the_status(self) -> None:
        async with self.opened() as ledger:
            entry = await self.settled(ledger, "k", Settlement(state=State.UNKNOWN, status=502))
            assert response(entry) == (502, None, None)

    async def test_decision_or_release_replaces_the_response(self) -> None:
        async with self.opened() as ledger:
            for settlement in (approval(b"{}"), REFUSAL, RELEASED, PERSONS_DECISION):
                key = f"{settlement.state}-{settlement.source}"
                entry = await self.settled(ledger, key, unclassified(State.UNKNOWN), settlement)
                assert response(entry) == response(settlement)
                assert await ledger.get(key) == entry

    async def test_takeover_keeps_the_response(self) -> None:
        async with self.opened() as ledger:
            for state in (State.UNKNOWN, State.LOST, State.HELD):
                await self.settled(ledger, state, unclassified(state))
                entry = await ledger.claim(state, token="u", payload="p", lease=SOON, over="t")
                assert entry.is_claimed_by("u")
                assert (entry.note, entry.source) == ("", "")
                assert response(entry) == response(unclassified(state))
                expired = await ledger.wait(state, HOUR)
                assert expired is not None
                assert (expired.state, response(expired)) == (State.UNKNOWN, response(unclassified(state)))

    async def test_claim_of_a_released_entry_clears_the_response(self) -> None:
        async with self.opened() as ledger:
            await self.settled(ledger, "k", unclassified(State.RELEASED))
            entry = await ledger.claim("k", token="u", payload="p", lease=HOUR, over="t")
            assert entry.is_claimed_by("u")
            assert (entry.note, entry.source, response(entry)) == ("", "", NOTHING)

    async def test_settlement_writes_its_source(self) -> None:
        async with self.opened() as ledger:
            assert (await self.settled(ledger, "k")).source == ""
            assert (await self.settled(ledger, "k", HELD)).source == "service"
            held = Settlement(state=State.HELD, source="import")
            entry = await ledger.settle("k", token="t", payload="p", settlement=held)
            assert entry.source == "import"
            assert await ledger.get("k") == entry

    async def test_claim_writes_its_subject(self) -> None:
        async with self.opened() as ledger:
            entry = await self.settled(ledger, "k", RELEASED)
            assert (entry.customer, entry.order, entry.scope) == ("customer", "order", "spring")
            other = Subject(customer="customer", order="other")
            entry = await ledger.claim("k", token="u", payload="p", lease=HOUR, subject=other)
            assert (entry.customer, entry.order, entry.scope) == ("customer", "other", "")
            assert await ledger.find(order="order") == []
            assert await ledger.find(order="other") == [entry]

    async def test_claim_without_subject_keeps_the_subject(self) -> None:
        async with self.opened() as ledger:
            await self.settled(ledger, "k", UNKNOWN)
            entry = await ledger.claim("k", token="u", payload="p", lease=HOUR, over="t")
            assert (entry.customer, entry.order, entry.scope) == ("customer", "order", "spring")

    async def test_lost_claim_does_not_write_its_subject(self) -> None:
        async with self.opened() as ledger:
            await self.settled(ledger, "k")
            other = Subject(customer="another", order="another")
            entry = await ledger.claim("k", token="u", payload="p", lease=HOUR, subject=other)
            assert (entry.customer, entry.order) == ("customer", "order")
            assert await ledger.find(customer="another") == []

    async def test_find_returns_the_entries_of_customer_and_order(self) -> None:
        async with self.opened() as ledger, self.opened() as other:
            about = {
                "a": ("anna", "1"),
                "b": ("anna", "2"),
                "c": ("bea", "2"),
                "d": ("bea", ""),
                "e": ("", ""),
            }
            for key, (customer, order) in about.items():
                subject = Subject(customer=customer, order=order)
                await ledger.claim(key, token="t", payload="p", lease=HOUR, subject=subject)
            sought = (("anna", ""), ("", "2"), ("bea", "2"), ("anna", "3"), ("carla", ""), ("", ""))
            found = [await other.find(customer=customer, order=order) for customer, order in sought]
            keys = ["".join(entry.key for entry in entries) for entries in found]
            assert keys == ["ab", "bc", "c", "", "", ""]
            assert found[0] == [await ledger.get("a"), await ledger.get("b")]

    async def test_find_returns_an_expired_lease_as_unknown(self) -> None:
        async with self.opened() as ledger:
            await ledger.claim("k", token="t", payload="p", lease=0.0, subject=SUBJECT)
            assert [entry.state for entry in await ledger.find(customer="customer")] == [State.UNKNOWN]

    async def test_purge_removes_entries_from_find(self) -> None:
        async with self.opened() as ledger:
            await self.settled(ledger, "k", REFUSAL)
            assert await ledger.purge(0) == 1
            assert await ledger.find(customer="customer") == []
            await ledger.claim("k", token="u", payload="p", lease=HOUR, subject=Subject(customer="other"))
            assert await ledger.find(customer="customer") == await ledger.find(order="order") == []

    async def test_history_has_each_earlier_settled_state(self) -> None:
        async with self.opened() as ledger:
            unknown = await self.settled(ledger, "k", UNKNOWN)
            assert unknown.history == ()
            lost = await self.settled(ledger, "k", LOST)
            assert earlier_states(lost) == [(State.UNKNOWN, UNKNOWN.note, "service")]
            assert lost.history[0].changed == unknown.changed
            await ledger.claim("k", token="u", payload="p", lease=HOUR, over="t")
            await ledger.settle("k", token="u", payload="p", settlement=RELEASED)
            claimed = await self.claimed(ledger, "k", "v")
            expected = [(each.state, each.note, "service") for each in (UNKNOWN, LOST, RELEASED)]
            assert earlier_states(claimed) == expected
            entry = await ledger.settle("k", token="v", payload="p", settlement=approval())
            assert earlier_states(entry) == expected
            assert await ledger.get("k") == entry
            assert [each.changed for each in entry.history] == sorted(each.changed for each in entry.history)

    async def test_history_has_an_expired_lease_after_a_takeover(self) -> None:
        async with self.opened() as ledger:
            before = await self.expired_claim(ledger, "k", "t")
            entry = await ledger.claim("k", token="u", payload="p", lease=HOUR, over="t")
            assert earlier_states(entry) == [(State.UNKNOWN, before.note, "")]
            assert entry.history[0].changed == before.expires

    async def test_repeated_operation_adds_nothing_to_the_history(self) -> None:
        async with self.opened() as ledger:
            await self.settled(ledger, "k", UNKNOWN, UNKNOWN)
            for _ in range(2):
                entry = await ledger.claim("k", token="u", payload="p", lease=HOUR, over="t")
                assert earlier_states(entry) == [(State.UNKNOWN, UNKNOWN.note, "service")]

    async def test_history_keeps_the_last_twenty_states(self) -> None:
        async with self.opened() as ledger:
            for number in range(HISTORY_LENGTH + 5):
                await ledger.claim("k", token=f"t{number}", payload="p", lease=HOUR)
                note = f"è \U0001f600 ' \" \\ / {number}"
                released = Settlement(state=State.RELEASED, note=note, source="person")
                await ledger.settle("k", token=f"t{number}", payload="p", settlement=released)
            entry = await ledger.get("k")
            assert entry is not None
            notes = [f"è \U0001f600 ' \" \\ / {number}" for number in range(4, HISTORY_LENGTH + 4)]
            assert earlier_states(entry) == [(State.RELEASED, each, "person") for each in notes]

    async def test_late_decision_needs_the_service_as_source(self) -> None:
        async with self.opened() as ledger:
            await self.settled(ledger, "k", UNKNOWN)
            own = await ledger.claim("k", token="u", payload="p", lease=HOUR, over="t")
            assert await ledger.settle("k", token="t", payload="p", settlement=PERSONS_DECISION) == own
            entry = await ledger.settle("k", token="t", payload="p", settlement=REFUSAL)
            assert (entry.state, entry.source) == (State.REFUSED, "service")

    async def test_correction_changes_a_decision_of_a_person(self) -> None:
        async with self.opened() as ledger:
            for before in (State.APPROVED, State.REFUSED, State.RELEASED):
                for after in (State.APPROVED, State.REFUSED, State.RELEASED, State.UNKNOWN, State.HELD):
                    key = f"{before}-{after}"
                    wrong = Settlement(state=before, note="wrong", source="person")
                    first = await self.settled(ledger, key, wrong)
                    right = Settlement(state=after, note="right", source="person", status=201, body=b"{}")
                    entry = await ledger.settle(key, token="u", payload="p", settlement=right, over="t")
                    assert (entry.state, entry.note, entry.token) == (after, "right", "u")
                    assert (entry.source, response(entry)) == ("person", (201, b"{}", None))
                    assert earlier_states(entry) == [(before, "wrong", "person")]
                    assert entry.history[0].changed == first.changed
                    assert await ledger.get(key) == entry

    async def test_correction_never_changes_a_result_of_the_service(self) -> None:
        async with self.opened() as ledger:
            for settlement in (approval(), REFUSAL, RELEASED):
                before = await self.settled(ledger, settlement.state, settlement)
                correction = Settlement(state=State.HELD, note="ticket 17", source="person")
                entry = await ledger.settle(
                    settlement.state, token="u", payload="p", settlement=correction, over="t"
                )
                assert entry == before == await ledger.get(settlement.state)

    async def test_correction_needs_token_note_and_source(self) -> None:
        async with self.opened() as ledger:
            before = await self.settled(ledger, "k", PERSONS_DECISION)
            right = Settlement(state=State.APPROVED, note="ticket 18", source="person")
            assert await self.corrected(ledger, right, over=None) == before
            assert await self.corrected(ledger, right, over="not-t") == before
            assert await self.corrected(ledger, right, by="t", over="t") == before
            for note, source in (("", "person"), (" \t\u00a0", "person"), ("ticket 18", "service")):
                wrong = Settlement(state=State.APPROVED, note=note, source=source)
                assert await self.corrected(ledger, wrong) == before
            assert await ledger.get("k") == before

    async def test_repeated_correction_changes_nothing(self) -> None:
        async with self.opened() as ledger:
            await self.settled(ledger, "k", PERSONS_DECISION)
            right = Settlement(state=State.APPROVED, note="ticket 18", source="person")
            first = await self.corrected(ledger, right)
            assert await self.corrected(ledger, right) == first
            assert await self.corrected(ledger, PERSONS_DECISION, by="v") == first

    async def test_concurrent_corrections_are_written_once(self) -> None:
        async with self.opened() as ledger, self.opened() as other:
            await self.settled(ledger, "k", PERSONS_DECISION)
            right = Settlement(state=State.HELD, note="ticket 18", source="person")
            corrections = [
                self.corrected((ledger, other)[number % 2], right, by=f"u{number}")
                for number in range(RACERS)
            ]
            entries = await asyncio.gather(*corrections)
            assert len({entry.token for entry in entries}) == 1
            assert earlier_states(entries[0]) == [(State.REFUSED, "ticket 17", "person")]

    async def test_late_decision_does_not_overwrite_a_person(self) -> None:
        async with self.opened() as ledger:
            before = await self.settled(ledger, "k", PERSONS_DECISION)
            for token in ("t", "u"):
                entry = await ledger.settle("k", token=token, payload="p", settlement=approval())
                assert entry == before
            assert await ledger.claim("k", token="u", payload="p", lease=HOUR, over="t") == before

    async def test_entry_corrected_to_unknown_accepts_a_decision_of_the_service(self) -> None:
        async with self.opened() as ledger:
            await self.settled(ledger, "k", PERSONS_DECISION)
            await self.corrected(ledger, Settlement(state=State.UNKNOWN, note="ticket 18", source="person"))
            entry = await ledger.settle("k", token="t", payload="p", settlement=approval())
            assert (entry.state, entry.source) == (State.APPROVED, "service")
            assert earlier_states(entry) == [
                (State.REFUSED, "ticket 17", "person"),
                (State.UNKNOWN, "ticket 18", "person"),
            ]
