"""What a call is answered with: a decision, an error, a fault, a pace, a shape."""

from collections.abc import Mapping
from typing import Any, Literal

from attrs import evolve, field, frozen

# Before the state change nothing is decided; after it the decision is made, and its answer is what suffers.
Before = Literal["500", "reset", "hang", "html502"]
After = Literal["500", "reset", "hang", "html502", "empty", "trunc", "garbage"]


@frozen
class Answer:
    """A status and its body; `evaluated` when the very call decided, `saved` when it completed.

    The body is None where nothing but the status and headers is sent.
    """

    status: int
    body: Mapping[str, Any] | list[Any] | None = field(repr=False)
    evaluated: bool = False
    saved: bool = False
    headers: Mapping[str, str] | None = None


@frozen(kw_only=True)
class Outcome:
    """What the words of a tag, a rule or a command line ask for.

    Args:
        decision: ``approved`` or ``refused``, whatever the amount.
        error: One of the answers that decide nothing: nouser, already, noshop, conflict, forbidden.
        invalid: Fields to be answered as wrong.
        before: Faults instead of the service's work, one for each of the next calls.
        endless: The one fault of `before` is for every call.
        after: A fault once the service has done its work.
        wait_before: Milliseconds to wait before the work.
        wait_after: Milliseconds to wait after the work, before the answer.
        drip: The answer's body in small pieces.
        redirect: Whether an approval has its ``redirectUrl``; one description has none (spec §2.1).
        street_number: Name of the street number in the answer; None for the one that was sent.
        canned: An answer to give as it is.
        canned_after: The canned answer comes after the work, not instead of it.
        name: The words themselves, for the journal.
    """

    decision: Literal["approved", "refused"] | None = None
    error: str | None = None
    invalid: tuple[str, ...] = ()
    before: tuple[Before, ...] = ()
    endless: bool = False
    after: After | None = None
    wait_before: int = 0
    wait_after: int = 0
    drip: bool = False
    redirect: bool = True
    street_number: Literal["streetNumber", "civicNumber"] | None = None
    canned: Answer | None = None
    canned_after: bool = False
    name: str = ""

    def fault_of(self, turn: int) -> Before | None:
        """The fault instead of the service's work for the call of this turn, counted from 0."""
        if self.endless:
            return self.before[0]
        return self.before[turn] if turn < len(self.before) else None

    def over(self, tagged: "Outcome") -> "Outcome":
        """A rule's outcome for a call that has a tag: what the rule leaves open, the tag decides."""
        if self.decision or self.error or self.invalid or self.canned is not None:
            return self
        return evolve(
            self,
            decision=tagged.decision,
            error=tagged.error,
            invalid=tagged.invalid,
            redirect=self.redirect and tagged.redirect,
            street_number=self.street_number or tagged.street_number,
        )


PLAIN = Outcome()
