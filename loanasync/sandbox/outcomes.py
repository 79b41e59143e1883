"""Outcomes in words, as in the tag of anna+500x2.refused@example.com and in faults such as approve=500:0.1.

To add a word, add it to `TAG_WORDS` and `_WORDS`; a fault to `FAULTS` instead, an error to `ERRORS` instead.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal

from attrs import evolve, field, frozen

from loanasync.sandbox.validation import FIELDS


def nearest(word: object, known: Iterable[str]) -> str:
    """Return the known word that is most similar to `word`."""
    return difflib.get_close_matches(str(word), sorted(known), n=1, cutoff=0.0)[0]


@frozen
class Response:
    """An HTTP response before it is encoded.

    Args:
        status: HTTP status.
        body: JSON object of the body.
        evaluated: True if this call made the decision.
        saved: True if this call completed the user data.
        headers: More headers, of errors that the specification does not have.
    """

    status: int
    body: Mapping[str, Any] = field(repr=False)
    evaluated: bool = False
    saved: bool = False
    headers: Mapping[str, str] | None = None


def _domain_error(message: str) -> Response:
    return Response(400, {"errors": {"domain": [message]}})


# spec §7, by word; `code` is a word of no tag
ERRORS: Mapping[str, Response] = {
    "already": _domain_error("User already evaluated for approval"),
    "nouser": _domain_error("User not found"),
    "noshop": _domain_error("This sales point cannot apply for a loan"),
    "code": _domain_error("Invalid fiscalCode."),
    "forbidden": Response(403, {"error": "Access denied"}),  # `error` is singular and its value a string
    "conflict": Response(409, {"errors": "The request cannot be completed"}),  # a string; wording assumed
}
SYSTEM_ERROR = Response(500, {"errors": {"system": ["System error"]}})


def decision_texts(*, approved: bool) -> dict[str, str]:
    """Return the deprecated texts of a decision (spec §2.1); wording assumed."""
    word = "approved" if approved else "refused"
    return {"approvalMessageApiFull": f"The request was {word}.", "approvalMessageApiSemiFull": word}


@frozen(kw_only=True)
class Fault:
    """A fault of the service or of the connection.

    Args:
        before: Whether the fault can occur before the call is processed. Every fault can occur after that.
        response: The service's error response; None if the fault is not a response of the service.
        silent: Whether nothing is sent.
        status: Status to send instead of the status of the response.
        body: Bytes to send instead of the body of the response.
        content_type: Media type of `body`.
    """

    before: bool = False
    response: Response | None = None
    silent: bool = False
    status: int | None = None
    body: bytes | None = None
    content_type: str = "application/json"


FAULTS: Mapping[str, Fault] = {
    "500": Fault(before=True, response=SYSTEM_ERROR),
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
# Names in the journal.
FAULT_NAMES = (
    *(f"{name}before" for name, fault in FAULTS.items() if fault.before),
    *(f"{name}after" for name in FAULTS),
)

# Words without a number or a field, and the attributes of `Outcome` that they set.
_WORDS: Mapping[str, Mapping[str, Any]] = {
    "approved": {"decision": "approved"},
    "refused": {"decision": "refused"},
    "additional": {"additional": True},
    "noredirect": {"redirect": False},
    "civic": {"street_number": "civicNumber"},
    "street": {"street_number": "streetNumber"},
    **{word: {"error": word} for word in ERRORS if word != "code"},
}
# N is a count, <ms> a number of milliseconds, <field> a field name.
TAG_WORDS = (
    *_WORDS,
    *("invalid.<field>", "500xN", "resetbefore", "hangbefore", "html502"),
    *("500after", "resetafter", "hangafter", "html502after", "emptyafter", "truncafter", "garbage"),
    *("slow<ms>", "slow<ms>after"),
)

_FAULT = re.compile(f"({'|'.join(FAULTS)})(before|after)?(?:x([1-9][0-9]?))?")
_SLOW = re.compile("slow([0-9]{1,5})(?:ms)?(before|after)?")
_FIELDS = {name.lower(): name for fields in FIELDS.values() for name in fields}
_MAX_TAG_LENGTH = 200


@frozen(kw_only=True)
class Outcome:
    """The outcome that a tag or a fault of the sandbox chooses.

    Args:
        decision: ``approved`` or ``refused``, for any amount.
        error: An error without a decision, one of `ERRORS`.
        invalid: Fields to report as invalid.
        before: Names of faults that replace the processing of the call, one for each of the next calls.
        additional: Require the conditional fields of an approval (spec §2.1).
        every_call: Apply the one fault in `before` to every call.
        after: Name of a fault that occurs after the call was processed.
        wait_before: Milliseconds to wait before processing.
        wait_after: Milliseconds to wait after processing, before the response.
        redirect: Whether an approval has a ``redirectUrl``; one description has none (spec §2.1).
        street_number: Name of the street number in the response; None for the name in the request.
        name: The words.
    """

    decision: Literal["approved", "refused"] | None = None
    error: str | None = None
    invalid: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    additional: bool = False
    every_call: bool = False
    after: str | None = None
    wait_before: int = 0
    wait_after: int = 0
    redirect: bool = True
    street_number: Literal["streetNumber", "civicNumber"] | None = None
    name: str = ""

    def fault_for(self, turn: int) -> str | None:
        """Return the fault that replaces the processing of a call; `turn` counts its calls from 0."""
        if self.every_call:
            return self.before[0]
        return self.before[turn] if turn < len(self.before) else None

    def merged_with(self, tagged: "Outcome") -> "Outcome":
        """Return this outcome of a fault, completed by the tag where the fault does not choose a response."""
        if self.decision or self.error or self.invalid:
            return self
        return evolve(
            self,
            decision=tagged.decision,
            error=tagged.error,
            invalid=tagged.invalid,
            redirect=self.redirect and tagged.redirect,
            additional=self.additional or tagged.additional,
            street_number=self.street_number or tagged.street_number,
        )


DEFAULT_OUTCOME = Outcome()


class UnknownTagError(ValueError):
    """A tag has an unknown word; the message suggests the most similar known word."""


def tag_of(email: object) -> str:
    """Return the part of an e-mail address between ``+`` and ``@``, or an empty string."""
    if not isinstance(email, str) or "+" not in email:
        return ""
    return email.partition("@")[0].partition("+")[2].strip(".")


def parse_email(email: object) -> Outcome:
    """Return the outcome for the tag of an e-mail address. A fault without a count applies to one call.

    Raises:
        UnknownTagError: A word is not known. Ignoring it would silently approve the request.
    """
    words = tag_of(email)
    return parse_words(words) if words else DEFAULT_OUTCOME


@lru_cache(maxsize=1024)
def parse_words(words: str, *, every_call: bool = False) -> Outcome:
    """Return the outcome for words joined by dots.

    Args:
        words: For example ``500x2.refused`` or ``invalid.city``.
        every_call: A fault without a count applies to every call, not to one.

    Raises:
        UnknownTagError: A word is not known, or two of them exclude each other.
    """
    if len(words) > _MAX_TAG_LENGTH:
        raise UnknownTagError(f"A sandbox tag has at most {_MAX_TAG_LENGTH} characters.")
    found: dict[str, Any] = {}
    rest = iter(word for word in words.lower().split(".") if word)
    for word in rest:
        for name, value in _parse_word(word, rest).items():
            if isinstance(value, tuple):
                found[name] = (*found.get(name, ()), *value)
            elif found.setdefault(name, value) != value:
                raise UnknownTagError("Two of these sandbox tags exclude each other: choose one of them.")
    if {"decision", "error"} <= found.keys():
        raise UnknownTagError("A decision and an error exclude each other: choose one of these sandbox tags.")
    is_uncounted = found.pop("uncounted", False)
    whole = every_call and is_uncounted and len(found["before"]) == 1
    return Outcome(**found, every_call=whole, name=words)


def _parse_word(word: str, rest: Iterator[str]) -> Mapping[str, Any]:
    """Return the attributes of `Outcome` for one word."""
    if word in _WORDS:
        return _WORDS[word]
    if match := _FAULT.fullmatch(word):
        name, phase, times = match.groups()
        is_before = FAULTS[name].before
        if times is None and (phase == "after" or (phase is None and not is_before)):
            return {"after": name}
        if is_before and phase != "after":
            return {"before": (name,) * int(times)} if times else {"before": (name,), "uncounted": True}
    if match := _SLOW.fullmatch(word):
        return {"wait_after" if match[2] == "after" else "wait_before": int(match[1])}
    if word == "invalid":
        return {"invalid": (_field_name(next(rest, "")),)}
    known = ", ".join(f"+{each}" for each in TAG_WORDS)
    raise UnknownTagError(f"Unknown sandbox tag, did you mean +{nearest(word, TAG_WORDS)}? Known: {known}")


def _field_name(word: str) -> str:
    if word in _FIELDS:
        return _FIELDS[word]
    # The word is not repeated in the message: in an e-mail address it may be a person's name.
    raise UnknownTagError(
        f"Unknown field in sandbox tag +invalid, did you mean +invalid.{_FIELDS[nearest(word, _FIELDS)]}?"
    )
