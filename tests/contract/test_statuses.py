"""Each status with each kind of body: the outcome of the calls other than `approve`."""

from collections.abc import Iterable
from http import HTTPStatus

import pytest

from contract.test_states import NOT_PROCESSED
from loanasync import LoanError
from loanasync._protocol.endpoints import Call
from support.response_reader import COMPLETE, CREATE, DOCUMENTS, error_body, read

# In HTTP, the first statuses mean that the request was not processed; 403 is in spec §7.
REFUSING = {*NOT_PROCESSED, 403}
NAMED = sorted({*HTTPStatus} | {edge for start in range(100, 600, 100) for edge in (start, start + 99)})
STATUSES = [
    pytest.param(NAMED, id="named"),
    pytest.param(range(100, 600), id="all", marks=pytest.mark.scheduled),
]

FIELDS = error_body(lastname=["This value should not be blank."])
DOMAIN = [
    error_body(domain=[text])
    for text in ("User not found", "This sales point cannot apply for a loan", "Invalid fiscalCode.")
]
ALREADY = error_body(domain=["User already evaluated for approval"])
APPROVED, REFUSED = {"approved": True}, {"approved": False}
OTHERS: list[object] = [
    *(b"", b" ", b"<html>", b"[]", b"null", b'{"errors":{"domain":["User not found"]', b"\xff"),
    *({}, {"error": "Access denied"}, error_body(system=["System error"]), {"errors": "no"}),
    *(error_body(domain=["Something new"]), error_body(newField=["no"]), {**FIELDS, "more": 1}),
    {"approved": "false"},
]
BODIES: list[object] = [FIELDS, *DOMAIN, ALREADY, APPROVED, REFUSED, *OTHERS]


@pytest.mark.parametrize("call", [CREATE, DOCUMENTS, COMPLETE], ids=lambda call: call.endpoint.operation)
@pytest.mark.parametrize("body", BODIES, ids=str)
@pytest.mark.parametrize("statuses", STATUSES)
def test_other_calls_each_status_proves_as_in_readings_r4(
    statuses: Iterable[int], call: Call, body: object
) -> None:
    """Their fields may have any name, because the payload is not specified (spec §4.3)."""
    rejecting = [FIELDS, *DOMAIN, error_body(newField=["no"]), error_body(system=["System error"])]
    is_success = {200} if call is COMPLETE else {*range(200, 300)}
    for status in statuses:
        ended = read(call, status, body)
        if status in is_success:
            assert not isinstance(ended, LoanError) or ended.outcome in ("done", "unknown"), status
            continue
        is_proven = status in REFUSING or (status == 400 and body in rejecting)
        assert ended.outcome == ("not_evaluated" if is_proven else "unknown"), status
        assert ended.repeatable is False
        assert read(call, status, body, attempts=2).outcome == "unknown", status
