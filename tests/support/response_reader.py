"""A call of each endpoint, and a function that reads a response to it."""

import json
from typing import Any

from loanasync import Dialect, Limits, Meta, RetryPolicy, Timeout
from loanasync._protocol import endpoints
from loanasync._protocol.endpoints import Call, Endpoint
from loanasync._protocol.messages import End, Response
from loanasync._settings import Options
from loanasync._shop import configure
from support.builders import FISCAL_CODE, approval_request, user_data

OPTIONS = Options(
    shop=configure("https://loans.example.com/base/", "shop:1", "secret-token"),
    dialect=Dialect.street_number(),
    limits=Limits(),
    retry=RetryPolicy(),
    timeout=Timeout(),
    strict=False,
)


def call_of(endpoint: Endpoint, payload: object) -> Call:
    """Return a call with a valid payload."""
    call = endpoint.prepare(OPTIONS, FISCAL_CODE, payload)
    assert isinstance(call, Call), call
    return call


APPROVE = call_of(endpoints.APPROVE, approval_request())
COMPLETE = call_of(endpoints.COMPLETE, user_data())
CREATE = call_of(endpoints.CREATE_REQUEST, {"fiscalCode": FISCAL_CODE})
DOCUMENTS = call_of(endpoints.UPLOAD_DOCUMENTS, {})


def read(
    call: Call,
    status: int,
    body: object,
    *,
    attempts: int = 1,
    fault: str | None = None,
    end: End = "stated",
    is_followed: bool = False,
    is_reused: bool = False,
    after_unknown: bool = False,
) -> Any:
    """Return the outcome of a response; a body that is not bytes is encoded as JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = Response(
        status=status,
        headers={},
        body=content,
        fault=fault,
        end=end,
        is_followed=is_followed,
        is_reused=is_reused,
    )
    meta = Meta(status=status, attempts=attempts, elapsed=0.1, after_unknown=after_unknown)
    return call.read(response, meta)


def error_body(**messages: object) -> dict[str, object]:
    """Return an error body (spec §7)."""
    return {"errors": messages}
