"""Proof: the responses that are certainly whole."""

import pytest

from loanasync import Meta, SystemFaultError
from loanasync._protocol.messages import End, Response
from loanasync._protocol.proof import is_proof
from support.response_reader import APPROVE


@pytest.mark.parametrize(
    ("body", "end", "expected"),
    [
        (b"", "stated", True),
        (b"any text", "stated", True),
        (b"", "closed", False),
        (b"any text", "closed", False),
        (b'{"error": "Access denied"}', "closed", True),
        (b'{"error": "Access den', "closed", False),
        (b'{"error": "a"}{', "closed", False),
        (b'["a"]', "closed", False),
        (b"<html>...</HTML>\r\n", "closed", True),
        (b"<html>...</html", "closed", False),
        (b'{"error": "Access denied"}', "cut", False),
    ],
)
def test_is_proof_depends_on_the_end_and_the_form(body: bytes, end: End, expected: bool) -> None:  # noqa: FBT001  (a column of the table)
    assert is_proof(Response(status=403, headers={}, body=body, end=end)) is expected
    # An incomplete body, or data behind the response, is never proof.
    assert not is_proof(Response(status=403, headers={}, body=body, end=end, fault="undecodable"))
    assert not is_proof(Response(status=403, headers={}, body=body, end=end, is_followed=True))


FAULT = b'{"errors": {"system": ["System error"]}}'


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (Response(status=500, headers={}, body=FAULT), True),
        (Response(status=500, headers={}, body=b""), True),
        (Response(status=500, headers={}, body=b"<html>error</html>", end="closed"), True),
        (Response(status=500, headers={}, body=FAULT, end="closed"), True),
        (Response(status=500, headers={}, body=FAULT, end="cut"), False),
        (Response(status=500, headers={}, body=b"", end="closed"), False),
        (Response(status=500, headers={}, body=FAULT, fault="too large"), False),
        (Response(status=500, headers={}, body=FAULT, is_followed=True), False),
        (Response(status=500, headers={}, body=b"User already evaluated for approval"), False),
        (Response(status=500, headers={}, body=b'{"a": {"approved": false}}'), False),
        (Response(status=500, headers={}, body=b'{"error": "evaluation engine failed"}'), False),
        (Response(status=503, headers={}, body=FAULT), False),
    ],
)
def test_500_may_be_retried_only_with_proof(response: Response, expected: bool) -> None:  # noqa: FBT001  (a column of the table)
    result = APPROVE.read(response, Meta(response.status, 1, 0.1))
    assert isinstance(result, SystemFaultError) is expected
