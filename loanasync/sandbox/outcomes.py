"""Outcomes as words: the tags of e-mail addresses such as anna+500x2.refused@example.com, and rules.

A new tag is a row of `TAGS`. A new fault is a row of `FAULTS` besides, a new error a row of `ERRORS`.
"""

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


# spec §7
DENIED = Answer(403, {"error": "Access denied"})  # `error`, singular, and a string
CONFLICT = Answer(409, {"errors": "The request cannot be completed"})  # a single string; wording assumed
SYSTEM_ERROR = Answer(500, {"errors": {"system": ["System error"]}})


@frozen(kw_only=True)
class Fault:
    """A fault of the service or of the connection.

    Args:
        before: Whether it can also come instead of the service's work. Each can come after the work.
        answer: The service's own response to it; None if the shop gets no response of the service.
        silent: Whether nothing is sent.
        status: Status that is sent instead of the response's.
        body: Bytes that are sent instead of the response's.
        content_type: The media type of `body`.
    """

    before: bool = False
    answer: Answer | None = None
    silent: bool = False
    status: int | None = None
    body: bytes | None = None
    content_type: str = "application/json"


FAULTS: Mapping[str, Fault] = {
    "500": Fault(before=True, answer=SYSTEM_ERROR),
    "reset": Fault(before=True, silent=True),
    "hang": Fault(before=True, silent=True),
    "html502": Fault(
        before=True,
        status=502,
        body=b"<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>",
        content_type="text/html; charset=utf-8",
    ),
    "empty": Fault(body=b""),
    "trunc": Fault(),
    "garbage": Fault(body=b'{"approved": \x00\xff tr'),
}
# As the journal names them.
FAULT_NAMES = (
    *(f"{name}before" for name, fault in FAULTS.items() if fault.before),
    *(f"{name}after" for name in FAULTS),
)

# All other errors are domain errors, whose wording a reading decides.
ERRORS: Mapping[str, Answer] = {"forbidden": DENIED, "conflict": CONFLICT}


@frozen
class Tag:
    """A word of a tag.

    Args:
        text: The response, in a sentence for the reference.
        asks: Attributes of `Outcome`; empty for a fault, and for a word with a number or a field.
    """

    text: str
    asks: Mapping[str, Any] = {}


# By section of the reference page. N is a count, <ms> a number of milliseconds, <field> the name of a field.
TAGS: Mapping[str, Mapping[str, Tag]] = {
    "Decisions": {
        "approved": Tag(
            "201, whatever the amount; without a tag it is a 422 above 1,000,000 cents",
            {"decision": "approved"},
        ),
        "refused": Tag("422, final", {"decision": "refused"}),
        "noredirect": Tag(
            "201 without `redirectUrl`, as one description has it", {"without": ("redirectUrl",)}
        ),
        "civic": Tag("the street number comes back as `civicNumber`", {"street_number": "civicNumber"}),
        "street": Tag("the street number comes back as `streetNumber`", {"street_number": "streetNumber"}),
    },
    "Errors that decide nothing": {
        "invalid.<field>": Tag("400 for this field, or any other; a field of the completion is wrong there"),
        "already": Tag('400 "User already evaluated for approval"', {"error": "already"}),
        "nouser": Tag('400 "User not found"', {"error": "nouser"}),
        "noshop": Tag('400 "This sales point cannot apply for a loan"', {"error": "noshop"}),
        "forbidden": Tag("403", {"error": "forbidden"}),
        "conflict": Tag("409", {"error": "conflict"}),
    },
    "Faults before the decision": {
        "500xN": Tag("500, as often as it says"),
        "resetbefore": Tag("a connection that is reset"),
        "hangbefore": Tag("nothing, for as long as the client waits"),
        "html502": Tag("502 with HTML, as from a proxy"),
    },
    "Faults after the decision": {
        "500after": Tag("500"),
        "resetafter": Tag("a connection that is reset"),
        "hangafter": Tag("nothing, for as long as the client waits"),
        "html502after": Tag("502 with HTML, as from a proxy"),
        "emptyafter": Tag("the status with no body"),
        "truncafter": Tag("half of the body"),
        "garbage": Tag("the status with bytes that are no JSON"),
    },
    "Answers that take their time": {
        "slow<ms>": Tag("the answer, 300 milliseconds late; every time"),
        "slow<ms>after": Tag("the answer, 300 milliseconds after the decision; every time"),
        "drip": Tag("the answer in twenty pieces, 50 milliseconds apart; every time", {"drip": True}),
    },
}
_WORDS = {word: tag for group in TAGS.values() for word, tag in group.items()}
KNOWN = tuple(_WORDS)

_FAULT = re.compile(f"({'|'.join(FAULTS)})(before|after)?(?:x([1-9][0-9]?))?")
_SLOW = re.compile("slow([0-9]{1,5})(?:ms)?(before|after)?")
_FIELDS = {name.lower(): name for name in (*APPROVAL_FIELDS, *USER_DATA_FIELDS)}
_LONGEST = 200
_ONE_ONLY = ("decision", "error", "after", "street_number", "wait_before", "wait_after")
_SEVERAL = ("before", "invalid", "without")


@frozen(kw_only=True)
class Outcome:
    """The outcome that the words of a tag, a rule or a command line ask for.

    Args:
        decision: ``approved`` or ``refused``, whatever the amount.
        error: One of the answers that decide nothing: nouser, already, noshop, or one of `ERRORS`.
        invalid: Fields to be answered as wrong.
        before: Names of faults instead of the service's work, one for each of the next calls.
        endless: The one fault of `before` is for every call.
        after: Name of a fault once the service has done its work.
        wait_before: Milliseconds to wait before the work.
        wait_after: Milliseconds to wait after the work, before the answer.
        drip: The answer's body in small pieces.
        without: Members that the decision leaves out; one description has no ``redirectUrl`` (spec §2.1).
        street_number: Name of the street number in the answer; None for the one that was sent.
        canned: An answer to give as it is.
        canned_after: The canned answer comes after the work, not instead of it.
        name: The words themselves, for the journal.
    """

    decision: Literal["approved", "refused"] | None = None
    error: str | None = None
    invalid: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    endless: bool = False
    after: str | None = None
    wait_before: int = 0
    wait_after: int = 0
    drip: bool = False
    without: tuple[str, ...] = ()
    street_number: Literal["streetNumber", "civicNumber"] | None = None
    canned: Answer | None = None
    canned_after: bool = False
    name: str = ""

    def fault_of(self, turn: int) -> str | None:
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
            without=self.without + tagged.without,
            street_number=self.street_number or tagged.street_number,
        )


PLAIN = Outcome()


class UnknownTagError(ValueError):
    """Words that the sandbox does not know; the text names the nearest that it does."""


def words_of(email: object) -> str:
    """Return the words between ``+`` and ``@``, or an empty text."""
    if not isinstance(email, str) or "+" not in email:
        return ""
    return email.partition("@")[0].partition("+")[2].strip(".")


def read_email(email: object) -> Outcome:
    """Return the outcome that an address asks for; a fault without a count is for one call.

    Raises:
        UnknownTagError: A word is not known; a silent approval would be worse.
    """
    words = words_of(email)
    return read_words(words) if words else PLAIN


@lru_cache(maxsize=1024)
def read_words(words: str, *, endless: bool = False) -> Outcome:
    """Return the outcome that words joined by dots ask for.

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
        for name, value in _read(word, rest).items():
            if name in _SEVERAL:
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


def _read(word: str, rest: Iterator[str]) -> Mapping[str, Any]:
    """Return what one word asks for, as attributes of `Outcome`."""
    if word in _WORDS and _WORDS[word].asks:
        return _WORDS[word].asks
    if match := _FAULT.fullmatch(word):
        name, phase, times = match.groups()
        is_before = FAULTS[name].before
        if times is None and (phase == "after" or (phase is None and not is_before)):
            return {"after": name}
        if is_before and phase != "after":
            return {"before": (name,) * int(times or 1), "counted": times is not None}
    if match := _SLOW.fullmatch(word):
        return {"wait_after" if match[2] == "after" else "wait_before": int(match[1])}
    if word == "invalid":
        return {"invalid": (_field(next(rest, "")),)}
    known = ", ".join(f"+{each}" for each in KNOWN)
    raise UnknownTagError(f"Unknown sandbox tag, did you mean +{nearest(word, KNOWN)}? Known: {known}")


def _field(word: str) -> str:
    if word in _FIELDS:
        return _FIELDS[word]
    # What stands in an address may be a name: it is not said again.
    raise UnknownTagError(
        f"Unknown field in sandbox tag +invalid, did you mean +invalid.{_FIELDS[nearest(word, _FIELDS)]}?"
    )
