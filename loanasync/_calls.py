"""The calls of the specification (§4) as values: what is sent, and how each status is read."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from attrs import define, field, frozen

from loanasync import _codec as codec
from loanasync._configuration import Shop
from loanasync._decisions import Approved, Decision, Refused
from loanasync._dialect import Dialect
from loanasync._display import JSON, AnyJSON, Body, mask, shown_as
from loanasync._json import Malformed, decode, decode_any, encode, repeated
from loanasync._meta import Meta, Problem
from loanasync._models import ApprovalRequest, UserData
from loanasync._problems import personal_values, read_problems
from loanasync._rules import check_fiscal_code, normalize_fiscal_code
from loanasync.errors import (
    AccessDeniedError,
    AlreadyEvaluatedError,
    CannotCompleteError,
    LoanError,
    RejectedError,
    SystemFaultError,
    TransportError,
    UnexpectedReplyError,
    UnexpectedStatusError,
)
from loanasync.errors._service import ReplyOutcome
from loanasync.errors._transport import RequestSent

__all__ = ["OPERATIONS", "SYSTEM_FAULT", "Call", "Endpoint", "NoAnswer", "Outcome", "Reply", "Request"]
__all__ += ["approve", "complete", "create_request", "upload_documents"]

SYSTEM_FAULT = 500  # spec §7: the one status after which a call may be repeated

Outcome: TypeAlias = Decision | UserData | AnyJSON


# What each call makes anew is not frozen: a frozen object takes three times as long to make.


@define(kw_only=True)
class Request:
    """One HTTP request as the transport gets it; all of it is personal or secret but the method."""

    method: str
    url: str = field(repr=mask)
    headers: Mapping[str, str] = field(repr=mask)
    body: bytes = field(repr=mask)


@define(kw_only=True)
class Reply:
    """An answer as the transport hands it over; `fault` says why its body is not whole, if it is not."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=mask)
    fault: str | None = None


@frozen(kw_only=True)
class NoAnswer:
    """The transport's word that no answer came: what to call it, and whether the request may have arrived."""

    error: type[TransportError]
    cause_type: str
    request_sent: RequestSent


@frozen(kw_only=True)
class Endpoint:
    """One row of spec §4: how a call is named and addressed, and a reader for each of its statuses."""

    operation: str
    method: str
    template: str
    statuses: Mapping[int, "Reader"] = field(repr=False)


@define(kw_only=True)
class Call:
    """One call, ready to be sent as often as its retries need it."""

    endpoint: Endpoint
    shop: Shop
    fiscal_code: str | None = field(repr=mask)
    body: bytes = field(repr=mask)

    def request(self, trace_headers: Mapping[str, str]) -> Request:
        """The HTTP request; its address is percent-encoded, and the fiscal code is part of it."""
        return Request(
            method=self.endpoint.method,
            url=self._address(self.shop.shop_id, self.fiscal_code),
            headers={**trace_headers, **self.shop.headers},
            body=self.body,
        )

    @property
    def redacted_url(self) -> str:
        """The address as it may be shown."""
        return self._address("REDACTED", "REDACTED")

    def _address(self, shop_id: str, fiscal_code: str | None) -> str:
        path = self.endpoint.template.replace("{shopId}", shop_id)
        return self.shop.base_url + path.replace("{fiscalCode}", fiscal_code or "")

    def read(self, reply: Reply, meta: Meta) -> "Outcome | LoanError":
        """What an answer means.

        Errors are handed back, so that no frame that saw the body stands in their traceback.
        """
        reader = self.endpoint.statuses.get(reply.status, _unexpected_status)
        return reader(self, reply, meta)


Reader: TypeAlias = Callable[[Call, Reply, Meta], Outcome | LoanError]


def _unexpected(
    call: Call, reasons: tuple[str, ...], meta: Meta, outcome: ReplyOutcome = "unknown"
) -> LoanError:
    return UnexpectedReplyError(call.endpoint.operation, reasons, outcome, meta)


def _object(reply: Reply) -> dict[str, Any]:
    if reply.fault is not None:
        raise Malformed(f"body: {reply.fault}")
    return decode(reply.body)


def _is_another(echoed: object, fiscal_code: str | None) -> bool:
    if echoed == fiscal_code:
        return False
    # An echo that is masked or empty says nothing.
    if not isinstance(echoed, str) or any(check_fiscal_code(echoed)):
        return False
    return normalize_fiscal_code(echoed) != fiscal_code


def _decision(
    kind: type[Approved] | type[Refused], call: Call, reply: Reply, meta: Meta
) -> Outcome | LoanError:
    # spec §3: true on 201, false on 422; anything in between is not guessed at.
    approved = kind is Approved
    by_status: ReplyOutcome = "approved" if approved else "refused"
    try:
        members = _object(reply)
        twice = repeated(reply.body, (b"approved", b"redirectUrl"))
    except Malformed as malformed:
        return _unexpected(call, malformed.args, meta, by_status)
    said = members.get("approved")
    if twice:
        reasons = [f"{name}: given more than once" for name in twice]
    elif "approved" not in members:
        reasons = ["approved: missing"]
    elif type(said) is not bool:
        reasons = ["approved: expected a boolean"]
    elif said is not approved:
        reasons = [f"approved: contradicts status {reply.status}"]
    elif _is_another(members.get("fiscalCode"), call.fiscal_code):
        # spec §2.1: it is echoed. What mixes answers up stands in between, and one person's decision is
        # never given to another.
        return _unexpected(call, ("fiscalCode: of another customer",), meta)
    elif approved and not isinstance(members.get("redirectUrl", ""), str | None):
        reasons = ["redirectUrl: expected a string"]
    else:
        return codec.read_decision(kind, members, meta)
    contradicted = "approved" in members and ("approved" in twice or said is not approved)
    return _unexpected(call, tuple(reasons), meta, "unknown" if contradicted else by_status)


def _problems(call: Call, reply: Reply) -> tuple[tuple[Problem, ...], type[RejectedError]]:
    if reply.fault is not None:
        raise Malformed(f"body: {reply.fault}")
    sent = decode(call.body)
    personal = personal_values(sent, call.fiscal_code, call.shop.headers["X-Auth-Token"])
    problems, domain_error = read_problems(reply.body, personal)
    return problems, domain_error or RejectedError


def _rejected(call: Call, reply: Reply, meta: Meta) -> LoanError:
    try:
        problems, error = _problems(call, reply)
    except Malformed as malformed:
        return _unexpected(call, malformed.args, meta)
    if issubclass(error, AlreadyEvaluatedError):
        # Only a 500 is ever retried, so a second attempt means that the first was answered with one.
        return error(call.endpoint.operation, problems, meta, meta.attempts > 1)
    return error(call.endpoint.operation, problems, meta)


def _failed(
    error: type[AccessDeniedError | CannotCompleteError | SystemFaultError | UnexpectedStatusError],
    call: Call,
    reply: Reply,
    meta: Meta,
) -> LoanError:
    """A status that says all by itself; a proxy's HTML in its body takes nothing from that."""
    try:
        problems = _problems(call, reply)[0]
    except Malformed:
        problems = ()
    return error(call.endpoint.operation, problems, meta)


_unexpected_status = partial(_failed, UnexpectedStatusError)


def _is_empty(reply: Reply) -> bool:
    return reply.fault is None and not reply.body.strip()


def _saved(call: Call, reply: Reply, meta: Meta) -> UserData | LoanError:
    # spec §4.2: 200 is success, so the data are saved even if the body cannot be read.
    if _is_empty(reply):
        return UserData()
    try:
        return codec.read_user_data(_object(reply))
    except Malformed as malformed:
        return _unexpected(call, malformed.args, meta, "done")


def _open_shape(call: Call, reply: Reply, meta: Meta) -> AnyJSON | LoanError:
    # spec §4.3: the shape is not shown, so any JSON value is accepted, and an empty body, too.
    if _is_empty(reply):
        return Body()
    if reply.fault is not None:
        return _unexpected(call, (f"body: {reply.fault}",), meta)
    try:
        return shown_as(decode_any(reply.body))
    except Malformed as malformed:
        return _unexpected(call, malformed.args, meta)


_ERRORS: Mapping[int, Reader] = {
    400: _rejected,
    403: partial(_failed, AccessDeniedError),
    SYSTEM_FAULT: partial(_failed, SystemFaultError),
}
# spec §4.3 names no status of the prerequisite calls: any success is one, and §7 tells of the errors.
_OPEN: Mapping[int, Reader] = {**dict.fromkeys(range(200, 300), _open_shape), **_ERRORS}

REQUESTS = "/api/shops/{shopId}/requests"
REQUEST = REQUESTS + "/{fiscalCode}"

APPROVE = Endpoint(  # spec §4.1
    operation="approve",
    method="POST",
    template=REQUEST,
    statuses={
        201: partial(_decision, Approved),
        **_ERRORS,
        409: partial(_failed, CannotCompleteError),
        422: partial(_decision, Refused),
    },
)
COMPLETE = Endpoint(  # spec §4.2
    operation="complete", method="PATCH", template=REQUEST, statuses={200: _saved, **_ERRORS}
)
CREATE_REQUEST = Endpoint(  # spec §4.3
    operation="create_request", method="POST", template=REQUESTS, statuses=_OPEN
)
UPLOAD_DOCUMENTS = Endpoint(  # spec §4.3
    operation="upload_documents", method="POST", template=REQUEST + "/documents", statuses=_OPEN
)
OPERATIONS = tuple(each.operation for each in (CREATE_REQUEST, APPROVE, UPLOAD_DOCUMENTS, COMPLETE))


def approve(shop: Shop, dialect: Dialect, fiscal_code: str, request: ApprovalRequest) -> Call:
    """Spec §4.1."""
    body = codec.write(request, dialect)
    return Call(endpoint=APPROVE, shop=shop, fiscal_code=fiscal_code, body=body)


def complete(shop: Shop, dialect: Dialect, fiscal_code: str, data: UserData) -> Call:
    """Spec §4.2."""
    body = codec.write(data, dialect)
    return Call(endpoint=COMPLETE, shop=shop, fiscal_code=fiscal_code, body=body)


def create_request(shop: Shop, payload: Mapping[str, JSON]) -> Call:
    """Spec §4.3: the shape is open, a JSON object."""
    return Call(endpoint=CREATE_REQUEST, shop=shop, fiscal_code=None, body=encode(payload))


def upload_documents(shop: Shop, fiscal_code: str, payload: Mapping[str, JSON]) -> Call:
    """Spec §4.3: the shape is open, a JSON object."""
    body = encode(payload)
    return Call(endpoint=UPLOAD_DOCUMENTS, shop=shop, fiscal_code=fiscal_code, body=body)
