"""The state machine of an entry: one table of state and event, and what an entry keeps."""

from functools import partial

import pytest
from attrs import evolve

from loanasync.ledger import Entry, Settlement, State, Subject
from loanasync.ledger.model import HISTORY_LENGTH
from loanasync.ledger.transitions import LEASE_EXPIRED, as_read, claim, settle
from support.settlements import HELD, LOST, REFUSAL, RELEASED, UNKNOWN, approval, by_person

SUBJECT = Subject(customer="customer", order="A-1001", order_token="order")
RESPONSE = {"status": 500, "body": b"\x00body", "fault": "cut off"}


def entry(state: State, **values: object) -> Entry:
    """Return an entry with the token "t", as a store returns it."""
    given = {"source": "" if state is State.INFLIGHT else "service", "left": 60.0, "revision": "1", **values}
    times = {"claimed": 1.0, "changed": 2.0, "expires": 3.0}
    return Entry(key="k", state=state, token="t", payload="p", **times, **given)  # type: ignore[arg-type]


BEFORE = {
    "no entry": None,
    "inflight": entry(State.INFLIGHT),
    "expired": entry(State.INFLIGHT, left=0.0),
    **{each.value: entry(each) for each in State if each is not State.INFLIGHT},
    **{
        f"{each.value} by a person": entry(each, source="person", note="ticket 17")
        for each in (State.APPROVED, State.REFUSED, State.RELEASED)
    },
}
claimed = partial(claim, key="k", payload="p", revision="2", over=None)
settled = partial(settle, key="k", payload="p", revision="2", token="t")
by_owner = {
    name: partial(settled, settlement=each)
    for name, each in {
        "release": RELEASED,
        "unknown": UNKNOWN,
        "lost": LOST,
        "held": HELD,
        "approve": approval(),
    }.items()
}
EVENTS = {
    "claim": partial(claimed, token="u"),
    "claim again": partial(claimed, token="t"),
    "take over": partial(claimed, token="u", over="t"),
    "take over another": partial(claimed, token="u", over="x"),
    **by_owner,
    "refuse late": partial(settled, token="old", settlement=REFUSAL),
    "lost late": partial(settled, token="old", settlement=LOST),
    "by a person": partial(settled, token="u", settlement=by_person(State.APPROVED)),
    **{
        f"resolve to {each.value}": partial(settled, token="u", over="1", settlement=by_person(each))
        for each in (State.REFUSED, State.APPROVED, State.RELEASED, State.UNKNOWN, State.HELD)
    },
}
# The letter of the state after the event; "." if the event changes nothing.
LETTERS = {
    "i": State.INFLIGHT,
    "r": State.RELEASED,
    "u": State.UNKNOWN,
    "l": State.LOST,
    "h": State.HELD,
    "A": State.APPROVED,
    "R": State.REFUSED,
    ".": None,
}
TABLE = {
    # claim, again, take over, another; release, unknown, lost, held, approve; both late;
    # by a person; resolve to refused, approved, released, unknown, held
    "no entry": "iiii rulhA Rl A RAruh",
    "inflight": ".... rulhA R. . .....",
    "expired": "..i. rulhA R. . RAruh",
    "released": "i... rulhA R. . ....h",
    "unknown": "..i. rulhA R. . RAruh",
    "lost": "..i. rulhA R. . RAruh",
    "held": "..i. rulhA R. . RAruh",
    "approved": ".... ..... .. . .....",
    "refused": ".... ..... .. . .....",
    "erased": ".... ..... .. . ..r..",
    "released by a person": "i... rulhA R. . RAruh",
    "approved by a person": ".... ..... .. . RAruh",
    "refused by a person": ".... ..... .. . RAruh",
}


@pytest.mark.parametrize("before", BEFORE)
def test_state_and_event_lead_to_the_state_of_the_table(before: str) -> None:
    expected = dict(zip(EVENTS, TABLE[before].replace(" ", ""), strict=True))
    stored = BEFORE[before]
    for name, event in EVENTS.items():
        after = event(stored)
        assert (after and after.state) == LETTERS[expected[name]], name
        if after is None or stored is None:
            continue
        # Each settled state that is left is in the history; a claim keeps what a takeover must know.
        left = as_read(stored)
        is_resolved = name.startswith("resolve")
        is_left = after.state is not left.state or is_resolved
        # A late owner's settlement replaces the end of the lease.
        is_owners = stored.state is State.INFLIGHT and after.state is not State.INFLIGHT and not is_resolved
        has_left = is_left and not is_owners
        assert [(each.state, each.changed, each.note, each.source) for each in after.history] == (
            [(left.state, left.changed, left.note, left.source)] if has_left else []
        ), name
        assert after.takeovers == (name == "take over")
        assert after.claimed == (0.0 if name == "claim" else stored.claimed)


def test_expired_lease_is_read_as_unknown_since_it_expired() -> None:
    found = as_read(entry(State.INFLIGHT, left=0.0))
    assert (found.state, found.changed, found.note, found.token) == (State.UNKNOWN, 3.0, LEASE_EXPIRED, "t")
    assert as_read(entry(State.INFLIGHT, left=0.001)).state is State.INFLIGHT


@pytest.mark.parametrize("state", [State.UNKNOWN, State.LOST, State.HELD])
def test_response_stays_until_a_decision_a_release_or_another_response(state: State) -> None:
    stored = entry(state, **RESPONSE)

    def response(after: Entry | None) -> dict[str, object]:
        assert after is not None
        return {name: getattr(after, name) for name in RESPONSE}

    other = {"status": 502, "body": b"", "fault": None}
    for settlement, expected in (
        (UNKNOWN, RESPONSE),
        (LOST, RESPONSE),
        (HELD, RESPONSE),
        (Settlement(state=State.UNKNOWN, status=502), RESPONSE),
        (Settlement(state=State.UNKNOWN, **other), other),  # type: ignore[arg-type]
        (approval(b"{}"), {"status": 201, "body": b"{}", "fault": None}),
        (REFUSAL, {"status": 422, "body": None, "fault": "truncated"}),
        (RELEASED, dict.fromkeys(RESPONSE)),
        (by_person(State.REFUSED), dict.fromkeys(RESPONSE)),
    ):
        assert response(settled(stored, settlement=settlement)) == expected
    assert response(claimed(stored, token="u", over="t")) == RESPONSE
    without = settled(entry(state), settlement=Settlement(state=State.UNKNOWN, status=502))
    assert response(without) == {"status": 502, "body": None, "fault": None}


def test_claim_and_settlement_write_payload_and_subject() -> None:
    before = entry(State.RELEASED, customer="anna", order="1", order_token="spring")
    subject = Subject(customer="anna", order="2")
    for given, expected in (({}, ("anna", "1", "spring")), ({"subject": subject}, ("anna", "2", ""))):
        after = claimed(before, token="u", **{"payload": "other", **given})  # type: ignore[arg-type]
        assert after is not None
        assert (after.payload, after.customer, after.order, after.order_token) == ("other", *expected)
    created = settled(None, settlement=REFUSAL, subject=SUBJECT)
    assert created is not None
    assert (created.customer, created.order, created.order_token) == ("customer", "A-1001", "order")
    late = settled(before, token="old", payload="own", settlement=REFUSAL)
    assert late is not None
    assert (late.payload, late.customer, late.token) == ("own", "anna", "old")


@pytest.mark.parametrize(
    ("note", "source", "token", "over"),
    [
        ("ticket 18", "person", "u", None),
        ("ticket 18", "person", "u", "not-1"),
        ("ticket 18", "person", "t", "1"),
        ("", "person", "u", "1"),
        (" \t\u00a0", "person", "u", "1"),
        ("ticket 18", "service", "u", "1"),
    ],
)
def test_correction_needs_token_note_and_source(note: str, source: str, token: str, over: str | None) -> None:
    before = BEFORE["refused by a person"]
    for state in State:
        if state is not State.INFLIGHT:
            wrong = Settlement(state=state, note=note, source=source)
            assert settled(before, settlement=wrong, token=token, over=over) is None


def test_history_keeps_the_last_states() -> None:
    found = entry(State.UNKNOWN, note="0")
    for number in range(1, HISTORY_LENGTH + 5):
        state = State.HELD if number % 2 else State.UNKNOWN
        after = settled(
            evolve(found, changed=1.0 * number), settlement=Settlement(state=state, note=f"{number}")
        )
        assert after is not None
        found = after
    assert [each.note for each in found.history] == [f"{number}" for number in range(4, HISTORY_LENGTH + 4)]
