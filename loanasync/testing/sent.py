"""Recorded requests of a client."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from urllib.parse import urlsplit

from attrs import field, frozen

from loanasync._display.masking import JSON, Body, mask
from loanasync._protocol.endpoints import APPROVE, COMPLETE, CREATE_REQUEST, UPLOAD_DOCUMENTS
from loanasync._protocol.messages import Request

_ENDPOINTS = (APPROVE, COMPLETE, CREATE_REQUEST, UPLOAD_DOCUMENTS)
_SECRET = "x-auth-token"  # noqa: S105  (a header's name)


class Headers(Mapping[str, str]):
    """Header fields, found in any case of their names; the token is masked when they are printed."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = dict(fields)
        self._names = {name.lower(): name for name in fields}

    def __getitem__(self, name: str) -> str:
        return self._fields[self._names[name.lower()]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        shown = {name: mask(value) if name.lower() == _SECRET else value for name, value in self.items()}
        return f"<Headers {shown}>"


@frozen(kw_only=True)
class SentRequest:
    """One request that a client sent to a `ScriptedTransport`; a repetition is one of its own.

    Reading an attribute is plain; printed, everything personal and the token are masked.

    Args:
        operation: The client's method: ``create_request``, ``approve``, ``upload_documents``, ``complete``.
        method: ``POST`` or ``PATCH``.
        template: The path with its variables unfilled, as spans have it.
        path: The path as it was sent.
        fiscal_code: The customer's, as it stands in the path; None where it is not part of it.
        headers: Header fields, by names in any case.
        body: The JSON object, by the wire's names.
        within: Seconds that the client would have waited for the answer.

    Example:
        >>> from loanasync.testing import ScriptedTransport, approved
        >>> script = ScriptedTransport(approved())
        >>> decision = run(script.client().approve(fiscal_code, request))
        >>> [sent] = script.sent
        >>> sent.operation, sent.method, sent.body["amount"], sent.headers["X-Auth-Token"]
        ('approve', 'POST', 45000, 'test-token')
    """

    operation: str
    method: str
    template: str
    path: str = field(repr=mask)
    fiscal_code: str | None = field(repr=mask)
    headers: Mapping[str, str] = field(hash=False)
    body: Mapping[str, JSON] = field(hash=False)
    within: float


def record(request: Request, within: float) -> SentRequest:
    """What a test may want to know of a request, read from what would have left the process."""
    path = urlsplit(request.url).path
    endpoint, found = next(
        (endpoint, found)
        for endpoint in _ENDPOINTS
        if endpoint.method == request.method and (found := _pattern(endpoint.template).fullmatch(path))
    )
    return SentRequest(
        operation=endpoint.operation,
        method=request.method,
        template=endpoint.template,
        path=path,
        fiscal_code=found.groupdict().get("fiscalCode"),
        headers=Headers(request.headers),
        body=Body(json.loads(request.body)),
        within=within,
    )


@cache
def _pattern(template: str) -> re.Pattern[str]:
    """Finds a template at the end of a path: an environment's address may have a path of its own."""
    return re.compile(".*" + re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", template))
