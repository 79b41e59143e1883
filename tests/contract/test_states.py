"""Each status with each kind of body: the state of an approval, by the readings R1 to R5 alone.

The states are derived from the readings without code of the SDK. docs/contributing/spec-coverage.md lists the
points that the specification leaves open ("Not shown"):

- R1: a refusal with 201, or a 201 without a readable decision (spec §3, §4.1).
- R2: a 422 without `approved: false` (spec §7).
- R3: a 409 (spec §4.1, §7).
- R4: responses that prove that nothing was evaluated (spec §4.1, §7).
- R5: a different fiscal code in the response (spec §2.1).
"""

import html
import json
import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice, product
from typing import Any

import pytest
from attrs import frozen

from loanasync import Approved, Decision, LoanError, RawResponse, Response, RetryPolicy
from loanasync.ledger import MemoryLedger
from loanasync.testing import ScriptedTransport, approval_request, system_error

NOT_PROCESSED = (301, 307, 308, 401, 404, 405, 407, 410, 411, 413, 414, 415, 417, 421, 426, 428, 429, 431)
STATUSES = (200, 201, 303, 308, 400, 403, 404, 409, 422, 429, 500, 502, 599)
LATER_STATUSES = (200, 201, 400, 403, 404, 409, 422, 429, 500)  # after a 500
OTHER_STATUSES = (101, 202, 204, 302, 402, 406, 408, 418, 425, 451, 501, 503, 504, *NOT_PROCESSED)
# spec §7: the texts that release, in the form in which R4 compares them
RELEASABLE = ("user not found", "this sales point cannot apply for a loan", "invalid fiscalcode")
FIELDS = ("lastname", "city", "streetNumber", "fiscalCode", "privacy")  # spec §2.1, §7: those used here
EVALUATED = (
    *("User already evaluated for approval", "USER ALREADY EVALUATED."),
    *("The user has already been evaluated", "evaluated  already", "Utente già valutato"),
    "L'utente è gia' stato valutato",
)
MENTIONED = ("Valutazione effettuata", "evaluation failed")
DOMAIN_TEXTS = (
    *("User not found", "user NOT found.", " User  not\nfound ", "User not found..", "User not found!"),
    *("This sales point cannot apply for a loan", "this sales point cannot apply for a loan."),
    *("Invalid fiscalCode.", "INVALID FISCALCODE", "Invalid fiscal code", "Utente non trovato", ""),
)
ANOTHER = "TSTXYZ99T99T999T"  # the fiscal code of another customer
VALUES = ("true", "false", '"true"', "1", "null", '{"approved": true}')


@frozen
class Row:
    """A response, the state of the approval after it, and if its body has a boolean `approved`."""

    status: int
    body: bytes
    fault: str | None
    is_first: bool
    state: str
    has_decision: bool

    @property
    def name(self) -> str:
        attempt = "first attempt" if self.is_first else "after a 500"
        return f"{self.status} {self.body!r}, {self.fault or 'whole'}, {attempt}: {self.state}"


def rows() -> Iterator[Row]:
    """Yield bodies with statuses, as the response to the first attempt or to the one after a 500."""
    bodies = [*dict.fromkeys(_bodies())]
    attempts = [*product(bodies, STATUSES, [True]), *product(bodies, LATER_STATUSES, [False])]
    attempts += [*product(bodies[::4], OTHER_STATUSES, [True]), *product(bodies[:1], range(100, 600), [True])]
    for (body, fault), status, is_first in attempts:
        has_decision = _has_decision(body, fault)
        state = _state(status, body, fault, is_first=is_first, has_decision=has_decision)
        yield Row(status, body, fault, is_first, state, has_decision)


def _bodies() -> Iterator[tuple[bytes, str | None]]:
    whole = [*RAW_BODIES, *_bodies_with_approved(), *(json.dumps(each).encode() for each in _error_bodies())]
    yield from ((body, None) for body in whole)
    yield from ((body[: len(body) * 3 // 4], "timed out") for body in whole[::4])
    for value, begin in product(("true", "fal", "", '"true"', "nu", "false,"), ("{", '{"x":1,', '{"y":{')):
        yield f'{begin}"approved":{value}'.encode(), "truncated"
    for text in ('{"approved": true, "approved": true,', '{"approved": false, "approved": true,', "{"):
        yield text.encode(), "too large"
    yield rb'{"error": "Utente gi\u00e0 valutato", "x', "truncated"
    yield from ((body, "undecodable") for body in (b"", b"\x1f\x8b\x00", b'{"approved": false}'))


RAW_BODIES = (
    *(b"", b" \r\n", b"<html><h1>Not found</h1></html>", b"\xff\xfe", b"[]", b"null", b"5", b'"no"'),
    *(b'{"error": "Access denied"}', b"{ error: 'Access denied' }", b'{"errors": {"domain": ["User'),
    *(b'{"approved": true', b'[{"approved": true}]', b'{"x":1,"approved":false,"approved":false}'),
    *(b'{"detail": "{\\"approved\\": true}"}', b"<pre>{&quot;approved&quot;: true}</pre>"),
    *(b'{"approved":true,"approved":null}', b'{"\\u0061pproved": true}', b'{"approved": False}'),
    b'{"error": "User already evaluated", "error": "Access denied"}',
    b'{"errors": {"domain": "User already evaluated", "domain": "User not found"}}',
    b'{"errors": {"domain": ["User not found"]}, "errors": {"city": ["no"]}}',
)


def _bodies_with_approved() -> Iterator[bytes]:
    for value in VALUES:
        yield f'{{"data": {{"approved": {value}}}}}'.encode()
        yield f'{{"approved": {value}}}'.encode()
        yield f'{{"approved": {value}, "fiscalCode": "{ANOTHER}"}}'.encode()
        for messages in ('{"city": ["no"]}', '{"domain": ["User not found"]}', f'"{EVALUATED[0]}"'):
            yield f'{{"approved": {value}, "errors": {messages}}}'.encode()


def _error_bodies() -> Iterator[object]:
    found = DOMAIN_TEXTS[0]
    errors: list[object] = [
        *({"city": ["no"]}, {"city": "no"}, {"city": ["no"], "privacy": ["no", "no"]}, {"newField": ["no"]}),
        *({"city": ["no"], "newField": ["no"]}, {"city": []}, {"city": None}, {"city": [5]}, {"city": [" "]}),
        *({"city": {"a": "no"}}, {"system": ["System error"]}, {"": ["no"]}, {}, [], None, ["no"], "no"),
        *({"domain": []}, {"domain": [5]}, {"domain": {"a": found}}, {"domain": [], "city": ["no"]}),
        *({"domain": [found], "city": []}, {"domain": [found, DOMAIN_TEXTS[-5]]}, {"streetNumber": [found]}),
        *({"domain": [text]} for text in (*DOMAIN_TEXTS, *EVALUATED)),
    ]
    for text in (found, "Something new", EVALUATED[0], EVALUATED[-2], *MENTIONED):
        errors += [{"domain": text}, {"domain": [text], "city": ["no"]}, {"domain": [found, text]}]
        errors += [{"city": [text]}, {"newField": {"a": [text]}}, text]
        yield from ({"error": text}, [text])
    yield from ({"errors": each} for each in errors)
    yield from ({"errors": each, "more": 1} for each in ({"city": ["no"]}, {"domain": [found]}))
    yield from ({"errors": {"city": ["no"]}, "domain": [found]}, {"city": ["no"]}, {"message": "no"})


def _state(status: int, body: bytes, fault: str | None, *, is_first: bool, has_decision: bool) -> str:
    if status in (201, 422):
        return _decided_state(status, body, fault)  # R1, R2, R5
    members = _json(body, fault)
    part = body.decode(errors="replace").replace("\\u00e0", "à")
    texts = [part] if members is None else [*_texts(members)]
    evaluated = (*EVALUATED, "User already evaluat")  # also of a part of a body
    if any(each in text for each, text in product(evaluated, texts)):
        return "lost"
    if has_decision or not is_first:
        return "unknown"
    if members is not None and any(each in text for each, text in product(MENTIONED, texts)):
        return "unknown"
    if fault is not None:
        return "unknown"  # the rest of the body may contain a decision
    is_proof = status in (*NOT_PROCESSED, 403) or (status == 400 and _is_rejection(members))
    return "released" if is_proof else "unknown"  # unknown also for a 409 (R3)


def _decided_state(status: int, body: bytes, fault: str | None) -> str:
    value, decided = ("true", "approved") if status == 201 else ("false", "refused")
    members = _json(body, fault)
    text = body.decode(errors="replace")
    if isinstance(members, tuple):
        values = [each for name, each in members if name == "approved"]
        if len(values) != 1 or not isinstance(values[0], bool) or ("fiscalCode", ANOTHER) in members:
            return "unknown"
        return decided if values[0] is (status == 201) else "refused" if status == 201 else "unknown"
    if status == 422 and fault in (None, "undecodable"):
        return "unknown" if text.strip() or fault else "refused"
    is_stated = re.fullmatch(rf'{{[^][{{}}]*"approved" ?: ?{value}\b.*', text)
    return decided if is_stated and text.count('"approved"') == 1 and ANOTHER not in text else "unknown"


def _is_rejection(members: Any) -> bool:
    """R4: a whole body of field messages without `domain`, or one releasable text alone."""
    match members:
        case (("errors", (("domain", [str(text)] | str(text)),)),):
            return " ".join(text.casefold().split()).removesuffix(".") in RELEASABLE
        case (("errors", tuple(errors)),) if errors:
            return all(name in FIELDS and _are_messages(value) for name, value in errors)
    return False


def _are_messages(value: Any) -> bool:
    texts = value if isinstance(value, list) else [value]
    return bool(texts) and all(isinstance(text, str) and text.strip() for text in texts)


def _has_decision(body: bytes, fault: str | None) -> bool:
    """Return True for a boolean `approved` at any depth; in a part of a body, also if it is cut off."""
    members = _json(body, fault)
    texts = [body.decode(errors="replace")] if members is None else _texts(members)
    if any(re.search(r'"approved" ?:? ?(t|f|F|$)', html.unescape(text)) for text in texts):
        return True
    return any(name == "approved" and isinstance(value, bool) for name, value in _pairs(members))


def _json(body: bytes, fault: str | None) -> Any:
    """Return the JSON in a body, with objects as tuples of pairs; None if it is not whole or not JSON."""
    try:
        return json.loads(body, object_pairs_hook=tuple) if fault is None else None
    except ValueError:
        return None


def _pairs(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the names and values of all members of a JSON value. Items of lists have no name."""
    if isinstance(value, list):
        value = tuple(("", each) for each in value)
    for name, each in value if isinstance(value, tuple) else ():
        yield name, each
        yield from _pairs(each)


def _texts(value: Any) -> Iterator[str]:
    return (text for pair in [("", value), *_pairs(value)] for text in pair if isinstance(text, str))


# The client.

REQUEST = approval_request()
RELEASED, DECIDED = "released", {"approved", "refused"}


@pytest.fixture(autouse=True)
def _no_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "loanasync")  # otherwise pytest formats thousands of log records


class Shop:
    """A client that gets one row after another, each for another customer."""

    def __init__(self, ledger: MemoryLedger | None = None) -> None:
        self.ledger = ledger
        self.script = ScriptedTransport()
        self.client = self.script.client(ledger=ledger, retry=RetryPolicy(quota=100_000), breaker=None)
        self._number = 0

    async def approve(self, row: Row, *, is_again: bool = False) -> Decision | LoanError:
        self._number += not is_again
        attempts = 1 if row.is_first else 2
        try:
            return await self.client.approve(
                f"TSTXYZ{self._number:010}", REQUEST, retry=RetryPolicy(attempts=attempts)
            )
        except LoanError as error:
            return error

    async def first(self, row: Row) -> Decision | LoanError:
        response = Response(status=row.status, headers={}, body=row.body, fault=row.fault)
        self.script.add(*(() if row.is_first else (system_error(),)), response)
        return await self.approve(row)


def outcome(found: Decision | LoanError) -> str:
    if isinstance(found, LoanError):
        return found.outcome
    return "approved" if isinstance(found, Approved) else "refused"


def expected_outcome(row: Row) -> str:
    return row.state if row.state in DECIDED else "not_evaluated" if row.state == RELEASED else "unknown"


def check(wrong: list[str]) -> None:
    if wrong:
        pytest.fail("\n".join([f"{len(wrong)} rows are wrong", *wrong[:20]]), pytrace=False)


async def test_states_in_the_ledger_follow_the_readings() -> None:
    wrong = []
    shop = Shop(ledger := MemoryLedger())
    for row in rows():
        found = await shop.first(row)
        entry = await ledger.get((found.entry if isinstance(found, LoanError) else found.meta.entry) or "")
        got = entry and entry.state.value, outcome(found)
        if got != (row.state, expected_outcome(row)):
            wrong.append(f"{row.name}, not {got}")
        response = getattr(found, "response", None)
        if row.has_decision and row.state not in DECIDED and response != RawResponse(row.status, row.body):
            wrong.append(f"{row.name}: the error lacks the response")
    check(wrong)


async def test_states_without_a_ledger_send_again_only_what_was_released() -> None:
    wrong = []
    shop = Shop()
    for row in islice(rows(), 0, None, 5):
        first = outcome(await shop.first(row))
        sent = len(shop.script.sent)
        with suppress(AssertionError):  # the script has no other response
            await shop.approve(row, is_again=True)
        is_sent_again = len(shop.script.sent) > sent
        if (first, is_sent_again) != (expected_outcome(row), row.state == RELEASED):
            wrong.append(f"{row.name}, not {first}, sent again: {is_sent_again}")
    check(wrong)
