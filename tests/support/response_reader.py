"""A call of each endpoint, and a function that reads a response to it."""

import json
from typing import Any

from loanasync import Dialect, Meta
from loanasync._protocol import endpoints
from loanasync._protocol.endpoints import Call
from loanasync._protocol.messages import End, Response
from loanasync._shop import configure
from support.builders import FISCAL_CODE, approval_request, user_data

SHOP = configure("https://loans.example.com/base/", "shop:1", "secret-token")
STREET = Dialect.street_number()
APPROVE = endpoints.APPROVE.call(SHOP, STREET, FISCAL_CODE, approval_request())
COMPLETE = endpoints.COMPLETE.call(SHOP, STREET, FISCAL_CODE, user_data())
CREATE = endpoints.CREATE_REQUEST.call(SHOP, STREET, None, {"fiscalCode": FISCAL_CODE})
DOCUMENTS = endpoints.UPLOAD_DOCUMENTS.call(SHOP, STREET, FISCAL_CODE, {})


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
