"""Keys of a ledger: clients without them are refused, and a rotation repeats no request."""

from typing import Any

import pytest

from loanasync import Approved, LoanError, Timeout, errors
from loanasync.ledger import Entry, LedgerPolicy, MemoryLedger, State, resolve
from loanasync.ledger.administration import rotate_key
from loanasync.testing import approval_request, approved, refused, timed_out
from support.builders import FISCAL_CODE
from support.ledger_clients import KEY, FailingLedger, Shop, held_response, of_another_process
from support.memory_clients import started

OLD, NEW = KEY, b"fedcba9876543210"
BOTH = LedgerPolicy(key=NEW, old_keys=[OLD])
SHORT = Timeout(total=0.1, attempt=0.09, connect=0.01)


async def shop_after(before: Shop, *steps: Any) -> Shop:
    """Return a shop with both keys, after the key of the ledger was rotated."""
    await before.ledger.open("https://loans.example.com", before.policy)
    await rotate_key(before.ledger, BOTH)
    return Shop(*steps, ledger=before.ledger, key=NEW, old_keys=[OLD])


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (State.APPROVED, Approved),
        (State.INFLIGHT, errors.InFlightError),
        (State.UNKNOWN, errors.OutcomeUnknownError),
        (State.HELD, errors.OutcomeUnknownError),
    ],
)
async def test_entry_under_an_old_key_decides_about_the_next_call(state: State, kind: type) -> None:
    """A client with both keys uses the old one before the rotation."""
    before = Shop()
    entry = await before.put(state)
    for rotates in (False, True):
        if rotates:
            await rotate_key(before.ledger, BOTH)
        shop = Shop(approved(), ledger=before.ledger, key=NEW, old_keys=[OLD])
        result = await shop.result(timeout=SHORT)
        assert isinstance(result, kind)
        assert (result.entry if isinstance(result, LoanError) else result.meta.entry) == entry.key
        assert (await shop.client.known(FISCAL_CODE)).entry == entry.key
        assert (await shop.client.known("TSTXYZ00A00A000B")).entry != entry.key
        assert shop.script.sent == []
        other = await shop.result(request=approval_request(amount=99_000))
        assert isinstance(other, errors.PayloadMismatchError)


async def test_failed_lookup_under_an_old_key_sends_nothing() -> None:
    before = Shop(ledger=(ledger := FailingLedger()))
    await before.put(State.APPROVED)
    shop = await shop_after(before, refused())

    def fail() -> None:
        if ledger.operations.count("entries_of") == 2:  # the first one is under the new key
            raise OSError

    ledger.faults["entries_of"] = fail
    assert isinstance(await shop.result(), errors.LedgerUnavailableError)
    assert shop.script.sent == []


async def test_repeat_under_an_old_key_takes_over_the_old_entry() -> None:
    before = Shop(timed_out())
    await before.result()
    shop = await shop_after(before, approved())
    assert isinstance(await shop.approve(repeat_unknown=True), Approved)
    entry = await shop.entry()
    assert (entry.state, entry.takeovers) == (State.APPROVED, 1)


async def test_released_entry_under_an_old_key_leads_to_a_new_one() -> None:
    before = Shop()
    old = await before.put(State.RELEASED)
    shop = await shop_after(before, refused())
    await shop.approve()
    states = {entry.state: entry.key for entry in await shop.entries()}
    assert states[State.RELEASED] == old.key
    assert states[State.REFUSED] != old.key


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"key": OLD}, "has another key"),
        ({"key": b"another key of a shop"}, "has another key"),
        ({"key": NEW}, "earlier key"),
        ({"key": None}, "was created with a key"),
    ],
)
async def test_client_without_a_key_of_the_ledger_sends_nothing(policy: dict[str, Any], message: str) -> None:
    before = Shop(approved())
    await before.approve()
    await shop_after(before)
    shop = Shop(approved(), ledger=before.ledger, **policy)
    error = await shop.result()
    assert isinstance(error, errors.LedgerMismatchError)
    assert (error.outcome, error.repeatable) == ("not_sent", False)
    assert message in str(error)
    assert shop.script.sent == []


async def test_rotation_during_a_claim_sends_one_request() -> None:
    """The first client derives its key before the rotation, and claims after it."""
    ledger = FailingLedger()
    one = Shop(approved(), ledger=ledger, key=NEW, old_keys=[OLD])
    before = Shop(ledger=ledger)
    await before.ledger.open("https://loans.example.com", before.policy)

    async def rotate() -> None:
        ledger.faults.clear()
        await rotate_key(ledger, BOTH)
        other = Shop(refused(), ledger=of_another_process(ledger), key=NEW, old_keys=[OLD])
        assert not (await other.approve()).approved

    ledger.faults["claim"] = rotate
    assert not (await one.approve()).approved
    assert one.script.sent == []


async def test_claim_before_a_rotation_that_could_not_be_undone_is_not_used() -> None:
    """Otherwise the undo, which a later call writes, would release an entry whose request was sent."""

    class RotatedLedger(FailingLedger):
        async def claim(self, key: str, **options: Any) -> Entry:
            entry = await super().claim(key, **options)
            if self.operations.count("claim") == 1:
                await rotate_key(self, BOTH)
                self.faults["get"] = fail_once
            return entry

    def fail_once() -> None:
        del ledger.faults["get"]
        raise OSError

    ledger = RotatedLedger()
    shop = Shop(approved(), ledger=ledger, key=NEW, old_keys=[OLD])
    await ledger.open("https://loans.example.com", LedgerPolicy(key=OLD))
    assert isinstance(await shop.approve(), Approved)
    assert isinstance(await shop.approve(), Approved)
    assert len(shop.script.sent) == 1
    assert {entry.state for entry in await shop.entries()} == {State.APPROVED, State.RELEASED}


async def test_takeover_that_lost_its_entry_sends_no_second_request() -> None:
    """A person releases the entry, and another client approves under the new key, before the claim."""
    ledger = FailingLedger()
    before = Shop(timed_out(), ledger=ledger)
    await before.result()
    shop = await shop_after(before, approved())

    async def released() -> None:
        ledger.faults.clear()
        [entry] = [each async for each in ledger.scan()]
        await resolve(ledger, entry, State.RELEASED, "ticket 17")
        other = Shop(refused(), ledger=of_another_process(ledger), key=NEW, old_keys=[OLD])
        assert not (await other.approve()).approved

    ledger.faults["claim"] = released
    assert not (await shop.approve(repeat_unknown=True)).approved
    assert shop.script.sent == []


async def test_resolve_after_a_rotation_in_another_process_finds_the_entry() -> None:
    ledger = MemoryLedger()
    shop = Shop(timed_out(), ledger=ledger, key=NEW, old_keys=[OLD])
    await ledger.open("https://loans.example.com", LedgerPolicy(key=OLD))
    await shop.result(code="TSTXYZ00A00A000B")
    other = of_another_process(ledger)
    await rotate_key(other, BOTH)
    later = Shop(timed_out(), ledger=other, key=NEW, old_keys=[OLD])
    await later.result()
    entry = await shop.client.resolve(FISCAL_CODE, "refused", source="webhook")
    assert entry.state is State.REFUSED


async def test_rotation_during_a_request_settles_under_the_old_key() -> None:
    step, arrived, go = held_response(approved())
    before = Shop(step)
    call = await started(before.approve(), arrived)
    shop = await shop_after(before)
    go.set()
    assert isinstance(await call, Approved)
    assert isinstance(await shop.approve(), Approved)


def test_policy_masks_old_keys() -> None:
    assert "0123456789abcdef" not in repr(LedgerPolicy(old_keys=[OLD]))
