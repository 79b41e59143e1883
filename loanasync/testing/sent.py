"""Recorded requests of a client."""

import json
import re
from collections.abc import Mapping
from functools import cache
from urllib.parse import urlsplit

from attrs import field, frozen
from multidict import CIMultiDict

from loanasync._models.masking import JSON, Body, mask
from loanasync._protocol.endpoints import APPROVE, COMPLETE, CREATE_REQUEST, UPLOAD_DOCUMENTS
from loanasync._protocol.messages import Request

_ENDPOINTS = (APPROVE, COMPLETE, CREATE_REQUEST, UPLOAD_DOCUMENTS)
_SECRET = "x-auth-token"  # noqa: S105  (a header's name)


class Headers(CIMultiDict[str]):
    """Headers with case-insensitive names; the auth token is masked in `repr()`."""

    def __repr__(self) -> str:
        masked = {name: mask(value) if name.lower() == _SECRET else value for name, value in self.items()}
        return f"<Headers {masked}>"


@frozen(kw_only=True)
class SentRequest:
    """One request that a client sent to a `ScriptedTransport`; each retry is a separate one.

    `repr()` masks personal data and the auth token. Attributes return the real values.

    Args:
        operation: The client's method: ``create_request``, ``approve``, ``upload_documents``, ``complete``.
        method: ``POST`` or ``PATCH``.
        template: The path with variables such as ``{fiscalCode}``.
        path: The path that was sent.
        fiscal_code: The fiscal code in the path; None if the path has none.
        headers: The headers, with case-insensitive names.
        body: The JSON object that was sent, with the field names of the service.
        within: The limit for the response, in seconds.

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
    """Return a `SentRequest` for an HTTP request, read from its URL, headers and body."""
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
    """Return a pattern for paths that end with `template`; the base URL may have a path too."""
    return re.compile(".*" + re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", template))
