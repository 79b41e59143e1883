"""Outcomes in words: in an e-mail's tag, anna+500x2.refused@example.com, in a rule or on the command line."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal

from attrs import evolve, field, frozen

from loanasync.sandbox.validation import APPROVAL_FIELDS, USER_DATA_FIELDS


def nearest(word: object, known: Iterable[str]) -> str:
    """The most alike of the known words, however little that is."""
    return difflib.get_close_matches(str(word), sorted(known), n=1, cutoff=0.0)[0]


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


DECISIONS = ("approved", "refused")
ERRORS = ("already", "nouser", "noshop", "conflict", "forbidden")
EITHER_PHASE = ("500", "reset", "hang", "html502")
AFTER_ONLY = ("empty", "trunc", "garbage")
FAULTS = (
    *(f"{kind}before" for kind in EITHER_PHASE),
    *(f"{kind}after" for kind in (*EITHER_PHASE, *AFTER_ONLY)),
)
SHAPES = {"civic": "civicNumber", "street": "streetNumber"}

# As they are told to people, and what a wrong one is compared with.
KNOWN = (
    *(*DECISIONS, *ERRORS, "invalid.<field>", "500xN", "500after"),
    *("resetbefore", "resetafter", "hangbefore", "hangafter", "html502", "html502after"),
    *("emptyafter", "truncafter", "garbage", "slow<ms>", "slow<ms>after", "drip"),
    *("noredirect", "civic", "street"),
)

_EITHER = re.compile(f"({'|'.join(EITHER_PHASE)})(before|after)?(?:x([1-9][0-9]?))?")
_AFTER = re.compile(f"({'|'.join(AFTER_ONLY)})(?:after)?")
_SLOW = re.compile("slow([0-9]{1,5})(?:ms)?(before|after)?")
_FIELDS = {name.lower(): name for name in (*APPROVAL_FIELDS, *USER_DATA_FIELDS)}
_LONGEST = 200
_ONE_ONLY = ("decision", "error", "after", "street_number", "wait_before", "wait_after")


class UnknownTagError(ValueError):
    """Words that the sandbox does not know; the text names the nearest that it does."""


def words_of(email: object) -> str:
    """The words between ``+`` and ``@``; empty when there are none."""
    if not isinstance(email, str) or "+" not in email:
        return ""
    return email.partition("@")[0].partition("+")[2].strip(".")


def read_email(email: object) -> Outcome:
    """What an address asks for; each fault is for one call unless it says for how many.

    Raises:
        UnknownTagError: A word is not known; a silent approval would be worse.
    """
    words = words_of(email)
    return read_words(words) if words else PLAIN


@lru_cache(maxsize=1024)
def read_words(words: str, *, endless: bool = False) -> Outcome:
    """What words joined by dots ask for.

    Args:
        words: Such as ``500x2.refused`` or ``invalid.city``.
        endless: A fault that does not say for how many calls is for all of them.

    Raises:
        UnknownTagError: A word is not known, or two of them exclude each other.
    """
    if len(words) > _LONGEST:
        raise UnknownTagError(f"A sandbox tag has at most {_LONGEST} characters.")
    found: dict[str, Any] = {}
    rest = iter(word for word in words.lower().split(".") if word)
    for word in rest:
        for name, value in _read(word, rest):
            if name in ("before", "invalid"):
                found[name] = (*found.get(name, ()), *value)
            elif name in _ONE_ONLY and found.get(name, value) != value:
                raise UnknownTagError("Two of these sandbox tags exclude each other: choose one of them.")
            else:
                found[name] = value
    if "decision" in found and found.get("error", "conflict") != "conflict":
        raise UnknownTagError("A decision and an error exclude each other: choose one of these sandbox tags.")
    counted = found.pop("counted", False)
    whole = endless and not counted and len(found.get("before", ())) == 1
    return Outcome(**found, endless=whole, name=words)


def _read(word: str, rest: Iterator[str]) -> Iterator[tuple[str, Any]]:
    for reader in (_plain, _either_phase, _after_only, _slow):
        found = reader(word)
        if found:
            return iter(found.items())
    if word == "invalid":
        return iter([("invalid", (_field(next(rest, "")),))])
    raise _unknown(word)


def _plain(word: str) -> dict[str, Any]:
    if word in DECISIONS:
        return {"decision": word}
    if word in ERRORS:
        return {"error": word}
    if word in SHAPES:
        return {"street_number": SHAPES[word]}
    return {"drip": {"drip": True}, "noredirect": {"redirect": False}}.get(word, {})


def _either_phase(word: str) -> dict[str, Any]:
    match = _EITHER.fullmatch(word)
    if not match:
        return {}
    kind, phase, times = match.groups()
    if phase == "after":
        return {"after": kind} if times is None else {}
    return {"before": (kind,) * int(times or 1), "counted": times is not None}


def _after_only(word: str) -> dict[str, Any]:
    match = _AFTER.fullmatch(word)
    return {"after": match[1]} if match else {}


def _slow(word: str) -> dict[str, Any]:
    match = _SLOW.fullmatch(word)
    return {"wait_after" if match[2] == "after" else "wait_before": int(match[1])} if match else {}


def _field(word: str) -> str:
    if word in _FIELDS:
        return _FIELDS[word]
    # What stands in an address may be a name: it is not said again.
    raise UnknownTagError(
        f"Unknown field in sandbox tag +invalid, did you mean +invalid.{_FIELDS[nearest(word, _FIELDS)]}?"
    )


def _unknown(word: str) -> UnknownTagError:
    known = ", ".join(f"+{each}" for each in KNOWN)
    return UnknownTagError(f"Unknown sandbox tag, did you mean +{nearest(word, KNOWN)}? Known: {known}")
