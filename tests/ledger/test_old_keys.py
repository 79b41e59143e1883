"""A ledger whose secret was changed: its entries are found under the old ones."""

from pathlib import Path
from typing import Any

import pytest
from remembering import FailingLedger, Shop

from loanasync import (
    Approved,
    ConfigurationError,
    InFlightError,
    LedgerUnavailableError,
    LoanClient,
    OutcomeUnknownError,
    PayloadMismatchError,
    Timeout,
)
from loanasync.ledger import LedgerPolicy, MemoryLedger, SqliteLedger, State
from loanasync.testing import approval_request, approved, refused, timed_out

OLD, NEW = b"0123456789abcdef", b"fedcba9876543210"
TOKEN = "token-of-last-year"
SHORT = Timeout(total=0.1, attempt=0.09, connect=0.01)
each_secret = pytest.mark.parametrize("old", [OLD, TOKEN], ids=["key", "token"])


def shop_before(old: Any, *steps: Any, **policy: Any) -> Shop:
    """A shop whose ledger has the old secret."""
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
    await before.comes_to()
    shop = shop_after(before, old, approved())
    error = await shop.comes_to()
    assert isinstance(error, OutcomeUnknownError)
    assert error.key == (await shop.entry()).key
    assert shop.script.sent == []


async def test_probe_under_an_old_key_takes_the_old_entry_over() -> None:
    before = shop_before(OLD, timed_out())
    await before.comes_to()
    shop = shop_after(before, OLD, approved(), unknown="probe")
    assert isinstance(await shop.approve(), Approved)
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
    assert isinstance(await shop.comes_to(timeout=SHORT), kind)
    assert shop.script.sent == []


async def test_other_data_under_an_old_key_are_a_mismatch() -> None:
    before = shop_before(OLD, approved())
    await before.approve()
    shop = shop_after(before, OLD)
    assert isinstance(await shop.comes_to(request=approval_request(amount=99_000)), PayloadMismatchError)


async def test_released_entry_under_an_old_key_leads_to_a_new_one() -> None:
    before = shop_before(OLD)
    old = await before.put(State.RELEASED)
    shop = shop_after(before, OLD, refused())
    await shop.approve()
    states = {entry.state: entry.key for entry in await shop.entries()}
    assert states[State.RELEASED] == old.key
    assert states[State.REFUSED] != old.key
    assert not (await Shop(ledger=shop.ledger, key=NEW).approve()).approved


async def test_decision_under_any_key_comes_before_other_entries() -> None:
    before = shop_before(OLD, approved())
    await before.approve()
    racing = Shop(timed_out(), ledger=before.ledger, key=NEW)
    await racing.comes_to()
    assert isinstance(await shop_after(before, OLD).approve(), Approved)


async def test_old_key_that_cannot_be_looked_up_sends_nothing() -> None:
    def broken() -> None:
        raise ConnectionError

    shop = Shop(approved(), ledger=FailingLedger(get=broken), key=NEW, old_keys=[OLD])
    assert isinstance(await shop.comes_to(), LedgerUnavailableError)
    assert shop.script.left == 1


@pytest.mark.parametrize("old", [b"0123456789abcdef", "token", [b"short"], [""], [1]])
def test_policy_with_wrong_old_keys_is_refused(old: Any) -> None:
    with pytest.raises(ConfigurationError, match="old_keys"):
        LedgerPolicy(old_keys=old)


def test_policy_masks_old_keys() -> None:
    shown = repr(LedgerPolicy(old_keys=[OLD, TOKEN]))
    assert TOKEN not in shown
    assert "0123456789abcdef" not in shown


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
