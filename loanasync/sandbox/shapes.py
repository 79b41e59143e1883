"""Response bodies of the service (spec §2, §7), each in the shape that a reading gives it."""

from collections.abc import Mapping
from typing import Any, Literal

from attrs import evolve

from loanasync.sandbox.outcomes import Answer
from loanasync.sandbox.readings import Readings
from loanasync.sandbox.validation import Errors

DomainError = Literal["nouser", "already", "noshop", "code"]

# spec §7, domain errors. The specification says nothing about another wording or language: both are assumed.
DOMAIN: Mapping[str, Mapping[DomainError, str]] = {
    "verbatim": {
        "nouser": "User not found",
        "already": "User already evaluated for approval",
        "noshop": "This sales point cannot apply for a loan",
        "code": "Invalid fiscalCode.",
    },
    "reworded": {
        "nouser": "No user has this code.",
        "already": "This user has been evaluated already.",
        "noshop": "Loans are not available at this sales point.",
        "code": "The fiscal code is not valid.",
    },
    "localized": {
        "nouser": "Utente non trovato",
        "already": "Utente già valutato per approvazione",
        "noshop": "Questo punto vendita non può richiedere un finanziamento",
        "code": "Codice fiscale non valido.",
    },
}

# The seven places of an Italian fiscal code that have digits, and the letters that can replace them.
_DIGIT_PLACES = (6, 7, 9, 10, 12, 13, 14)
_OMOCODIA = "LMNPQRSTUV"
_SHOWN = 4  # characters at each end of a masked code
_DATES = ("documentIssueDate", "documentExpirationDate")  # spec §2.2
_MIDNIGHT = "T00:00:00+00:00"


def denied() -> Answer:
    """Return the response to wrong credentials (spec §5, §7)."""
    return Answer(403, {"error": "Access denied"})  # spec §7: `error`, singular, and a string


def system_error() -> Answer:
    """Return the response of a fault inside the service (spec §7)."""
    return Answer(500, {"errors": {"system": ["System error"]}})


def conflict() -> Answer:
    """Return the 409: `errors` is a single string (spec §7); its wording is not shown, so assumed."""
    return Answer(409, {"errors": "The request cannot be completed"})


def unreadable() -> Answer:
    """Return the response to a body that is no JSON object (spec §4); not shown, so assumed."""
    return Answer(400, {"errors": {"body": ["This value should be a JSON object."]}})


def rejected(errors: Errors, readings: Readings) -> Answer:
    """Return the response to wrong fields (spec §7)."""
    return Answer(int(readings.validation), {"errors": errors})


def domain_error(name: DomainError, readings: Readings) -> Answer:
    """Return the response with one of the domain errors of spec §7."""
    text = DOMAIN[readings.domain][name]
    if name == "already" and readings.already_evaluated == "409":
        return Answer(409, {"errors": text})
    return Answer(400, {"errors": {"domain": [text]}})


def is_already_evaluated(answer: Answer) -> bool:
    """Return whether a response says "already evaluated", in any reading."""
    errors = answer.body.get("errors") if isinstance(answer.body, Mapping) else None
    told = errors.get("domain") if isinstance(errors, Mapping) else [errors]
    return told in [[texts["already"]] for texts in DOMAIN.values()]


def shaped(answer: Answer, shape: str) -> Answer:
    """Return the response with its body as an object, as an array, or without a body."""
    return evolve(answer, body={"object": answer.body, "array": [answer.body], "empty": None}[shape])


def completed(sent: Mapping[str, Any], readings: Readings) -> Mapping[str, Any] | None:
    """Return the body of the 200 of a completion (spec §4.2: "returns these same fields")."""
    if readings.completion == "empty":
        return None
    fields = dict(sent)
    if readings.completion == "partial":
        fields = dict(list(fields.items())[: len(fields) // 2])
    if readings.dates == "time":
        fields |= {name: f"{fields[name]}{_MIDNIGHT}" for name in _DATES if name in fields}
    return fields


def echoed_code(code: str, readings: Readings) -> dict[str, str]:
    """Return the member `fiscalCode` of a decision (spec §2.1), or nothing."""
    if readings.fiscal_code == "missing":
        return {}
    if readings.fiscal_code == "masked":
        code = code[:_SHOWN] + "*" * (len(code) - 2 * _SHOWN) + code[-_SHOWN:]
    elif readings.fiscal_code == "omocodia":
        code = _with_omocodia(code)
    return {"fiscalCode": code}


def _with_omocodia(code: str) -> str:
    for place in reversed(_DIGIT_PLACES):  # the last digit is the first that is replaced
        if code[place : place + 1].isdecimal():
            return code[:place] + _OMOCODIA[int(code[place])] + code[place + 1 :]
    return code


def redirect_url(url: str, readings: Readings) -> dict[str, str]:
    """Return the member `redirectUrl` of an approval (spec §1.3, §2.1), or nothing."""
    return {"present": {"redirectUrl": url}, "missing": {}, "empty": {"redirectUrl": ""}}[
        readings.redirect_url
    ]
