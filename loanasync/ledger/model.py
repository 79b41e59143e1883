"""Entries of a ledger, their parts, and the stored format that all backends share."""

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import TypeAlias

from attrs import field, frozen

from loanasync._display.masking import mask
from loanasync.errors import ConfigurationError


class State(StrEnum):
    """Where an approval stands.

    Example:
        >>> from loanasync.ledger import State
        >>> State("approved").is_decided, State.UNKNOWN.is_decided
        (True, False)
    """

    RELEASED = "released"
    """Provably not evaluated, so that it may be asked (again)."""
    INFLIGHT = "inflight"
    """Somebody asks right now; when their lease runs out, this is UNKNOWN."""
    UNKNOWN = "unknown"
    """It was asked, and whether the service decided is not known."""
    LOST = "lost"
    """The service has decided, and its decision did not reach the ledger."""
    HELD = "held"
    """A person said that nobody must ask."""
    APPROVED = "approved"
    REFUSED = "refused"

    @property
    def is_decided(self) -> bool:
        """Whether this is the service's decision, which stands for ever."""
        return self in DECIDED


DECIDED = frozenset({State.APPROVED, State.REFUSED})
UNSETTLED = frozenset({State.UNKNOWN, State.LOST, State.HELD})

FORMAT = 2  # format 1 has no subject, source and history; its entries are rewritten when they change
HISTORY_LENGTH = 20  # earlier states that an entry keeps
SERVICE = "service"  # the source of a settlement that a client wrote from the service's own response
PERSON = "person"  # the source of what a person settles
NO_REDIRECT = "no redirect"  # the note of an approval that the service gave without a redirect

Body: TypeAlias = bytes | None


@frozen(kw_only=True)
class Subject:
    """The customer, the order and the scope of an approval, by which its entries are found again.

    Args:
        customer: HMAC digest of shop, environment and fiscal code; the same for every scope.
        order: HMAC digest of the order token; empty without one.
        scope: Given to ``approve(scope=...)``; not personal.

    Example:
        >>> from loanasync.ledger import Subject
        >>> Subject(customer="5d41", scope="spring")
        Subject(customer='5d41', order='', scope='spring')
    """

    customer: str = ""
    order: str = ""
    scope: str = ""


NO_SUBJECT = Subject()


@frozen(kw_only=True)
class Change:
    """An earlier state of an entry.

    Args:
        state: The state that the entry left.
        changed: Time at which the entry came to that state.
        note: Note of that state.
        source: Source of that state; empty for a claim whose lease ran out.

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
    """What became of a claim.

    Args:
        state: Any but INFLIGHT, which only a claim leads to.
        note: What led to it, for a person to read: the name of an error's class, or their own words.
        status: HTTP status of the service's answer, for a decision.
        body: Body of that answer, as it came or encrypted.
        fault: Why that body is not whole, if it is not.
        source: ``"service"`` for a client that writes the service's own response; another word, such as
            ``"person"``, for a state that somebody else states.

    Raises:
        ValueError: The state is INFLIGHT, or the source is empty.

    Example:
        >>> from loanasync.ledger import Settlement, State
        >>> Settlement(state=State.HELD, note="by telephone", source="person")
        Settlement(state=<State.HELD: 'held'>, note='by telephone', ..., source='person')
    """

    state: State = field()
    note: str = ""
    status: int | None = None
    body: Body = field(default=None, repr=mask)
    fault: str | None = None
    source: str = field(default=SERVICE)

    @state.validator
    def _check_state(self, _: object, state: State) -> None:
        if state is State.INFLIGHT:
            raise ValueError("a settlement ends a claim: its state cannot be INFLIGHT")

    @source.validator
    def _check_source(self, _: object, source: str) -> None:
        if not source.strip():
            raise ValueError("a settlement needs a source, such as 'service' or 'person'")


@frozen(kw_only=True)
class Entry:
    """What a ledger knows of one approval. Times are seconds since 1970 by the ledger's own clock.

    Args:
        key: Which approval; an HMAC, so that who reads the ledger does not know of whom it tells.
        state: Where it stands.
        token: Of the last claim. Who has it may settle the entry; anybody else may only bring a decision.
        payload: Digest of what was asked, to notice another question under the same key.
        claimed: When it was claimed first, since it was last released.
        changed: When it came to this state.
        expires: When the last claim's lease runs out.
        takeovers: How often it was claimed by naming the token of an unsettled claim, since the first.
        note: As of the settlement.
        status: HTTP status of the response that is kept. An entry that is not decided may keep a response,
            too: one that was received and could not be classified.
        body: Body of that response, as it came or encrypted.
        fault: Why that body is not whole, if it is not.
        customer: Digest of the customer, from the `Subject` of the claim.
        order: Digest of the order token, from the `Subject` of the claim.
        scope: Scope, from the `Subject` of the claim.
        source: Source of the settlement; empty while the entry is in flight.
        history: Earlier states, oldest first; the last 20 are kept.

    Example:
        >>> from loanasync.ledger import MemoryLedger
        >>> entry = run(MemoryLedger().claim("k", token="t", payload="p", lease=90.0))
        >>> entry.state, entry.is_claimed_by("t"), entry.takeovers, entry.is_correctable
        (<State.INFLIGHT: 'inflight'>, True, 0, False)
    """

    key: str
    state: State
    token: str
    payload: str
    claimed: float
    changed: float
    expires: float
    takeovers: int = 0
    note: str = ""
    status: int | None = None
    body: Body = field(default=None, repr=mask)
    fault: str | None = None
    customer: str = ""
    order: str = ""
    scope: str = ""
    source: str = ""
    history: tuple[Change, ...] = ()

    @property
    def is_correctable(self) -> bool:
        """True if a person, not the service, decided or released the entry, so that it may be corrected."""
        return (self.state.is_decided or self.state is State.RELEASED) and self.source not in ("", SERVICE)

    def is_claimed_by(self, token: str) -> bool:
        """Whether a claim with this token holds the entry, so that its holder may ask the service."""
        return self.state is State.INFLIGHT and self.token == token


def check_format(number: int) -> None:
    """Refuse an entry that a later version wrote.

    Raises:
        ConfigurationError: Its format is later than ours.
    """
    if not 1 <= number <= FORMAT:
        raise ConfigurationError(
            "ledger", "has entries of a later version of loanasync: install that version here, too"
        )


def source_in_format_1(state: State, body: bytes | None, fault: str | None) -> str:
    """Return the source of an entry that format 1 stored.

    A client always stored a body or a fault with a decision, so a decision without both is a person's.
    """
    if state is State.INFLIGHT:
        return ""
    return PERSON if state in DECIDED and body is None and fault is None else SERVICE


def dump_history(history: Sequence[Change]) -> str:
    """Return a history as JSON: a list of [state, changed, note, source]."""
    return json.dumps([[each.state, each.changed, each.note, each.source] for each in history])


def load_history(text: str) -> tuple[Change, ...]:
    """Read a history from its JSON."""
    return tuple(
        Change(state=State(state), changed=float(changed), note=note, source=source)
        for state, changed, note, source in json.loads(text)
    )
