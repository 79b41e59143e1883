"""Entries of a ledger, their states and settlements, and the stored format that all backends share."""

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from attrs import field, frozen

from loanasync._models.decisions import OTHER_ORDER
from loanasync._models.masking import mask


class State(StrEnum):
    """The state of an approval in the ledger.

    Example:
        >>> from loanasync.ledger import State
        >>> State("approved").is_decided, State.UNKNOWN.is_decided
        (True, False)
    """

    RELEASED = "released"
    """The service provably did not evaluate the customer. The request may be sent."""
    INFLIGHT = "inflight"
    """A claim owns the entry, and its owner may be sending the request. UNKNOWN once the lease expires."""
    UNKNOWN = "unknown"
    """The request may have been sent, and it is not known whether the service decided."""
    LOST = "lost"
    """The service reported that it has decided, but the decision did not arrive."""
    HELD = "held"
    """A person blocked the entry. The request must not be sent."""
    APPROVED = "approved"
    """The service approved the request, or a person recorded that it did."""
    REFUSED = "refused"
    """The service refused the request, or a person recorded that it did."""
    ERASED = "erased"
    """The data of the customer were erased on request. No order of the customer is sent."""

    @property
    def is_decided(self) -> bool:
        """True for a decision (APPROVED or REFUSED). A decision never expires."""
        return self in DECIDED


DECIDED = frozenset({State.APPROVED, State.REFUSED})
UNSETTLED = frozenset({State.UNKNOWN, State.LOST, State.HELD})

FORMAT = 5  # of all ledgers and orphan files; no other format is read
HISTORY_LENGTH = 20  # number of earlier states in an entry's history
SERVICE = "service"  # source of a settlement that a client wrote from the service's response
PERSON = "person"  # source of a settlement that a person wrote
_COLUMNS = ("key", "state", "revision", "customer", "claimed", "changed", "expires")
_DOCUMENT = ("order", "order_token", "token", "payload", "takeovers", "note", "status", "fault", "source")
CREATED = "created"  # note of an entry whose loan request may have been created
NOT_SENT = "not sent"  # note of an entry whose claim was undone
NO_REDIRECT = "no redirect"  # note of an approval whose response has no redirect URL


@frozen(kw_only=True)
class Subject:
    """The customer and the order of an approval, which its entry keeps.

    Args:
        customer: HMAC digest of shop and fiscal code; the same for every order.
        order: The `order_id` of `LoanClient.approve`; not personal.
        order_token: HMAC digest of the order token; empty without an order token.

    Example:
        >>> from loanasync.ledger import Subject
        >>> Subject(customer="5d41", order="A-1001")
        Subject(customer='5d41', order='A-1001', order_token='')
    """

    customer: str = ""
    order: str = ""
    order_token: str = ""


NO_SUBJECT = Subject()


@frozen(kw_only=True)
class Change:
    """An earlier state of an entry.

    Args:
        state: The earlier state.
        changed: Time at which the entry entered that state, in seconds since 1970.
        note: Note of the settlement that led to that state.
        source: Source of that settlement; empty for a claim whose lease expired.

    Example:
        >>> from loanasync.ledger import Change, State
        >>> Change(state=State.LOST, changed=0.0, note="AlreadyEvaluatedError", source="service").state
        <State.LOST: 'lost'>
    """

    state: State
    changed: float
    note: str
    source: str


@frozen(kw_only=True)
class Settlement:
    """The new state of a claimed entry, and the response that led to it.

    Args:
        state: The new state. Not INFLIGHT: only a claim sets that.
        note: The reason, for a person to read: the name of an error class, or a person's own words.
        status: HTTP status of the response, if there is one.
        body: Body of the response, encrypted if `LedgerPolicy.encrypt` is set.
        fault: The reason why the body is missing, incomplete or outside the specification; None if it is not.
        source: ``"service"`` if a client received the response from the service. Any other word, such as
            ``"person"``, names another source.

    Raises:
        ValueError: The state is INFLIGHT, or the source is empty.

    Example:
        >>> from loanasync.ledger import Settlement, State
        >>> Settlement(state=State.HELD, note="by telephone", source="person")
        Settlement(state=<State.HELD: 'held'>, note='by telephone', ..., source='person')
    """

    state: State
    note: str = ""
    status: int | None = None
    body: bytes | None = field(default=None, repr=mask)
    fault: str | None = None
    source: str = SERVICE

    def __attrs_post_init__(self) -> None:
        if self.state is State.INFLIGHT:
            raise ValueError("a settlement ends a claim: its state cannot be INFLIGHT")
        if not self.source.strip():
            raise ValueError("a settlement needs a source, such as 'service' or 'person'")


@frozen(kw_only=True)
class Entry:
    """The record of one approval in a ledger. Times are seconds since 1970 by the ledger's own clock.

    Args:
        key: Key of the entry: an HMAC of the customer, the shop and the order, which reveals none of them.
        state: State of the approval.
        order: Number of the order, from the `Subject` of the claim.
        note: Note of the settlement.
        source: Source of the settlement; empty while the entry is in flight.
        changed: Time at which the entry entered its state.
        claimed: Time of the first claim since the entry was last released.
        expires: Time at which the lease of the last claim expires.
        takeovers: Number of claims that took over an unsettled entry since the first claim.
        status: HTTP status of the stored response. An entry without a decision may have a response, too: one
            that could not be classified.
        body: Body of that response, encrypted if `LedgerPolicy.encrypt` is set.
        fault: The reason why that body is missing, incomplete or outside the specification, or None.
        customer: Digest of the customer, from the `Subject` of the claim.
        order_token: Digest of the order token, from the `Subject` of the claim.
        payload: Digest of the request's data, to detect a request with other data under the same key.
        token: Token of the last claim. Its owner may settle the entry; with any other token, only a decision
            of the service is accepted.
        history: Earlier states, oldest first; at most the last 20.
        revision: Random text that is new with each change of the entry.
        left: Seconds until the lease expires, at the time of reading, by a clock that cannot be set.

    Example:
        >>> from loanasync.ledger import MemoryLedger
        >>> entry = run(MemoryLedger().claim("k", token="t", payload="p", lease=90.0))
        >>> entry.state, entry.is_claimed_by("t"), entry.takeovers, entry.is_correctable
        (<State.INFLIGHT: 'inflight'>, True, 0, False)
    """

    key: str
    state: State
    order: str = ""
    note: str = ""
    source: str = ""
    changed: float
    claimed: float
    expires: float
    takeovers: int = 0
    status: int | None = None
    body: bytes | None = field(default=None, repr=mask)
    fault: str | None = None
    customer: str = ""
    order_token: str = ""
    payload: str
    token: str = field(repr=False)
    history: tuple[Change, ...] = ()
    revision: str = field(default="", repr=False)
    left: float = field(default=0.0, eq=False, repr=False)

    @property
    def is_correctable(self) -> bool:
        """True if a person decided or released the entry. Only then may it be corrected."""
        return self.source not in ("", SERVICE) and (self.state is State.RELEASED or self.state.is_decided)

    @property
    def is_unresolved(self) -> bool:
        """True if a person has to ask the service for its decision."""
        return self.state in (State.UNKNOWN, State.LOST) and self.note != OTHER_ORDER

    def is_claimed_by(self, token: str) -> bool:
        """Return True if the claim with this token owns the entry: its owner may send the request."""
        return self.state is State.INFLIGHT and self.token == token


def set_times(entry: Entry, *, claimed: float, changed: float, expires: float, left: float) -> Entry:
    """Set the times of a new entry that only its store has seen. `evolve` would take a sixth of a claim."""
    for name, value in (("claimed", claimed), ("changed", changed), ("expires", expires), ("left", left)):
        object.__setattr__(entry, name, value)
    return entry


def dump_entry(entry: Entry) -> tuple[str, str, str, str, float, float, float, str, bytes | None]:
    """Return the columns `_COLUMNS`, the document with the other members, and the body, as stores keep them.

    The store sets each time that is 0.
    """
    members = {name: value for name in _DOCUMENT if (value := getattr(entry, name)) not in ("", 0, None)}
    if entry.history:
        members["history"] = [[each.state, each.changed, each.note, each.source] for each in entry.history]
    ids = (entry.key, entry.state.value, entry.revision, entry.customer)
    return (*ids, entry.claimed, entry.changed, entry.expires, json.dumps(members), entry.body)


def load_entry(columns: Sequence[Any], document: str | bytes, body: bytes | None, *, left: float) -> Entry:
    """Return the entry for the columns `_COLUMNS` of a store, its document and its body."""
    members = {**dict(zip(_COLUMNS, columns, strict=True)), "payload": "", **json.loads(document)}
    members["state"] = State(members["state"])
    members["history"] = tuple(
        Change(state=State(state), changed=changed, note=note, source=source)
        for state, changed, note, source in members.get("history", ())
    )
    return Entry(**members, body=body, left=left)
