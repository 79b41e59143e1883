"""A person settles what nobody else can, and no worker that wakes up late can undo that."""

import pytest
from remembering import Shop

from loanasync import OutcomeUnknownError, Refused, UnexpectedReplyError
from loanasync.ledger import Settlement, State, resolve
from loanasync.testing import refused

UNSETTLED = [State.UNKNOWN, State.LOST, State.HELD]


@pytest.mark.parametrize("before", UNSETTLED)
@pytest.mark.parametrize("after", [*UNSETTLED, State.RELEASED, State.REFUSED])
async def test_a_person_settles_what_is_unsettled(before: State, after: State) -> None:
    shop = Shop(refused())
    entry = await shop.put(before)
    settled = await resolve(shop.ledger, entry, after, "by telephone")
    assert (settled.state, settled.note) == (after, "by telephone")
    late = Settlement(state=State.RELEASED, note="ConnectError")
    await shop.ledger.settle(entry.key, token=entry.token, payload=entry.payload, settlement=late)
    assert await shop.entry() == settled
    ended = await shop.comes_to()
    kinds = {State.RELEASED: Refused, State.REFUSED: UnexpectedReplyError}
    assert isinstance(ended, kinds.get(after, OutcomeUnknownError))


async def test_a_person_who_was_told_of_another_state_settles_nothing() -> None:
    shop = Shop(refused())
    old = await shop.put(State.UNKNOWN)
    await resolve(shop.ledger, old, State.HELD, "wait for the letter")
    found = await resolve(shop.ledger, old, State.RELEASED, "did not see the other's word")
    assert (found.state, found.note) == (State.HELD, "wait for the letter")


async def test_what_is_in_flight_or_decided_is_for_no_person_to_settle() -> None:
    shop = Shop()
    for state in (State.INFLIGHT, State.APPROVED):
        entry = await shop.put(state)
        assert (await resolve(shop.ledger, entry, State.RELEASED, "no")).state is state


async def test_nobody_settles_to_in_flight() -> None:
    shop = Shop()
    entry = await shop.put(State.UNKNOWN)
    with pytest.raises(ValueError, match="cannot be INFLIGHT"):
        await resolve(shop.ledger, entry, State.INFLIGHT, "no")
    assert (await shop.entry()).state is State.UNKNOWN
