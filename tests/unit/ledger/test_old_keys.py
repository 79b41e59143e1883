"""Ledger entries under old keys are found after a change of the key."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from loanasync import (
    Approved,
    ConfigurationError,
    InFlightError,
    LedgerUnavailableError,
    LoanClient,
    OutcomeUnknownError,
    PayloadMismatchError,
    Refused,
    Timeout,
)
from loanasync.ledger import LedgerPolicy, MemoryLedger, SqliteLedger, State
from loanasync.testing import approval_request, approved, refused, timed_out
from support.ledger_clients import FailingLedger, Shop

OLD, NEW = b"0123456789abcdef", b"fedcba9876543210"
TOKEN = "token-of-last-year"
SHORT = Timeout(total=0.1, attempt=0.09, connect=0.01)
each_secret = pytest.mark.parametrize("old", [OLD, TOKEN], ids=["key", "token"])


def shop_before(old: Any, *steps: Any, **policy: Any) -> Shop:
    """Return a shop whose policy has the old key."""
    if isinstance(old, str):
        return Shop(*steps, options={"auth_token": old}, **policy)
    return Shop(*steps, key=old, **policy)


def shop_after(before: Shop, old: Any, *steps: Any, **policy: Any) -> Shop:
    return Shop(*steps, ledger=before.ledger, key=NEW, old_keys=[NEW, old], **policy)


@each_secret
async def test_decision_under_an_old_key_is_replayed(old: Any) -> None:
    before = shop_before(old, approved())
    first = await before.approve()
    shop = shop_after(before, old)
    again = await shop.approve()
    assert isinstance(again, Approved)
    assert again.redirect_url == first.redirect_url  # type: ignore[union-attr]
    assert again.meta.entry == (await shop.entry()).key
    assert shop.script.sent == []


@each_secret
async def test_unknown_outcome_under_an_old_key_sends_nothing(old: Any) -> None:
    before = shop_before(old, timed_out())
    await before.result()
    shop = shop_after(before, old, approved())
    error = await shop.result()
    assert isinstance(error, OutcomeUnknownError)
    assert error.key == (await shop.entry()).key
    assert shop.script.sent == []


async def test_repeat_under_an_old_key_takes_over_the_old_entry() -> None:
    before = shop_before(OLD, timed_out())
    await before.result()
    shop = shop_after(before, OLD, approved())
    assert isinstance(await shop.approve(repeat_unknown=True), Approved)
    entry = await shop.entry()
    assert (entry.state, entry.takeovers) == (State.APPROVED, 1)
    assert isinstance(await before.approve(), Approved)


@pytest.mark.parametrize(
    ("state", "kind"), [(State.INFLIGHT, InFlightError), (State.HELD, OutcomeUnknownError)]
)
async def test_entry_in_any_state_under_an_old_key_blocks(state: State, kind: type) -> None:
    before = shop_before(OLD)
    await before.put(state)
    shop = shop_after(before, OLD, approved())
    assert isinstance(await shop.result(timeout=SHORT), kind)
    assert shop.script.sent == []


async def test_other_data_under_an_old_key_is_a_mismatch() -> None:
    before = shop_before(OLD, approved())
    await before.approve()
    shop = shop_after(before, OLD)
    assert isinstance(await shop.result(request=approval_request(amount=99_000)), PayloadMismatchError)


async def test_released_entry_under_an_old_key_leads_to_a_new_one() -> None:
    before = shop_before(OLD)
    old = await before.put(State.RELEASED)
    shop = shop_after(before, OLD, refused())
    await shop.approve()
    states = {entry.state: entry.key for entry in await shop.entries()}
    assert states[State.RELEASED] == old.key
    assert states[State.REFUSED] != old.key
    assert not (await Shop(ledger=shop.ledger, key=NEW).approve()).approved


async def test_decision_under_any_key_has_precedence() -> None:
    before = shop_before(OLD, approved())
    await before.approve()
    racing = Shop(timed_out(), ledger=before.ledger, key=NEW)
    await racing.result()
    assert isinstance(await shop_after(before, OLD).approve(), Approved)


@pytest.mark.parametrize("old", [OLD, None], ids=["key", "token"])
async def test_clients_that_exchange_keys_send_one_request(old: bytes | None) -> None:
    """During a rolling restart, each client has the other's key as an old key, and both claim at once."""
    both = asyncio.Barrier(2)
    claims = 0

    async def together() -> None:
        nonlocal claims
        claims += 1
        if claims <= 2:
            await both.wait()

    ledger = FailingLedger(claim=together)
    options = {"auth_token": TOKEN}
    one = Shop(approved(), ledger=ledger, options=options, key=old, old_keys=[NEW])
    other = Shop(approved(), ledger=ledger, options=options, key=NEW, old_keys=[old or TOKEN])
    decisions = await asyncio.gather(one.approve(), other.approve())
    assert all(decision.approved for decision in decisions)
    assert len(one.script.sent) + len(other.script.sent) == 1


@pytest.mark.parametrize("fault", [timed_out(), refused()])
async def test_entry_created_under_an_old_key_during_the_claim_wins(fault: Any) -> None:
    """The other client claims, sends and settles between this client's lookup and its claim."""
    ledger = FailingLedger()
    other = Shop(fault, ledger=ledger, key=OLD)
    shop = Shop(approved(), ledger=ledger, key=NEW, old_keys=[OLD])

    async def settled_by_another() -> None:
        ledger.faults.clear()
        await other.result()

    ledger.faults["claim"] = settled_by_another
    ended = await shop.result()
    assert isinstance(ended, Refused | OutcomeUnknownError)
    assert shop.script.sent == []
    assert isinstance(await shop.result(), type(ended))


async def test_failing_lookup_after_the_claim_sends_nothing() -> None:
    ledger = FailingLedger()
    shop = Shop(approved(), ledger=ledger, key=NEW, old_keys=[OLD])

    def break_looks() -> None:
        ledger.faults["get"] = broken

    def broken() -> None:
        raise ConnectionError

    ledger.faults["claim"] = break_looks
    assert isinstance(await shop.result(), LedgerUnavailableError)
    assert shop.script.sent == []
    ledger.faults.clear()
    assert isinstance(await shop.approve(), Approved)


async def test_failing_lookup_of_an_old_key_sends_nothing() -> None:
    def broken() -> None:
        raise ConnectionError

    shop = Shop(approved(), ledger=FailingLedger(get=broken), key=NEW, old_keys=[OLD])
    assert isinstance(await shop.result(), LedgerUnavailableError)
    assert shop.script.left == 1


@pytest.mark.parametrize("old", [b"0123456789abcdef", "token", [b"short"], [""], [1]])
def test_policy_with_invalid_old_keys_is_rejected(old: Any) -> None:
    with pytest.raises(ConfigurationError, match="old_keys"):
        LedgerPolicy(old_keys=old)


def test_policy_masks_old_keys() -> None:
    text = repr(LedgerPolicy(old_keys=[OLD, TOKEN]))
    assert TOKEN not in text
    assert "0123456789abcdef" not in text


@pytest.mark.parametrize(
    ("kind", "key", "warns"), [("sqlite", None, True), ("sqlite", NEW, False), ("memory", None, False)]
)
def test_client_with_a_durable_ledger_without_key_warns(
    kind: str, key: bytes | None, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, warns: bool
) -> None:
    ledger = SqliteLedger(tmp_path / "decisions.db") if kind == "sqlite" else MemoryLedger()
    policy = LedgerPolicy(key=key)
    LoanClient("https://loans.example.com", shop_id="s", auth_token="t", ledger=ledger, ledger_policy=policy)
    assert ("LedgerPolicy(key=" in caplog.text) is warns
