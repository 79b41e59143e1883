"""The endpoints of the specification (§4), and the reader of the response for each status, without any I/O.

To add an endpoint, add an `Endpoint` at the end of this module, its name to `OPERATIONS`, and a method to
`LoanClient`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

from attrs import define, evolve, field, frozen

from loanasync._config import Options, Shop
from loanasync._display.masking import JSON, AnyJSON, Body, mask, masked
from loanasync._models.dialect import Dialect
from loanasync._models.requests import ApprovalRequest, UserData
from loanasync._protocol import codec
from loanasync._protocol.echo import is_another_customers
from loanasync._protocol.error_bodies import is_already_evaluated, read_problems, rejection
from loanasync._protocol.json import (
    Malformed,
    decode,
    decode_any,
    decode_part,
    encode,
    has_repeated_names,
    repeated,
)
from loanasync._protocol.messages import UNDECODABLE, Request, Response
from loanasync._protocol.redaction import is_made_of
from loanasync._results import Approved, Decision, Meta, Problem, RawResponse, Refused
from loanasync._validation import rules
from loanasync.errors import (
    AccessDeniedError,
    AlreadyEvaluatedError,
    CannotCompleteError,
    InvalidRequestError,
    LoanError,
    SystemFaultError,
    UnexpectedResponseError,
    UnexpectedStatusError,
)
from loanasync.errors.service import UnexpectedOutcome

SYSTEM_FAULT = 500  # spec §7: the one status after which a call may be repeated
REFUSED = 422  # spec §3

Outcome: TypeAlias = Decision | UserData | AnyJSON


@frozen(kw_only=True)
class Endpoint:
    """One row of spec §4.

    Args:
        operation: Name of the call.
        method: HTTP method.
        template: Path with the variables of the specification.
        has_customer: Whether the fiscal code is part of the path.
        check: Yields the broken rules of a content; takes the options and ``additional_data_needed``, too.
        write: Returns the bytes of a checked content in a dialect.
        statuses: A reader for each status; any other one is unexpected.
    """

    operation: str
    method: str
    template: str
    has_customer: bool = True
    check: Callable[[Any, Options, bool], Iterator[Problem]] = field(repr=False)
    write: Callable[[Any, Dialect], bytes] = field(repr=False)
    statuses: Mapping[int, "Reader"] = field(repr=False)

    def problems(
        self, options: Options, fiscal_code: str, content: object, *, additional_data_needed: bool
    ) -> tuple[Problem, ...]:
        """Return all broken rules of a call."""
        code = rules.check_fiscal_code(fiscal_code, strict=options.strict) if self.has_customer else ()
        return (*code, *self.check(content, options, additional_data_needed))

    def prepare(
        self,
        options: Options,
        fiscal_code: str,
        content: object,
        *,
        additional_data_needed: bool = False,
        scope: str = "",
    ) -> "Call | InvalidRequestError":
        """Return a call that may be sent, or all broken rules.

        The error is returned and not raised: the frames here hold personal values, and a traceback keeps
        frames.
        """
        found = self.problems(options, fiscal_code, content, additional_data_needed=additional_data_needed)
        problems = (*found, *rules.check_scope(scope))
        if problems:
            return InvalidRequestError(problems)
        code = rules.normalize_fiscal_code(fiscal_code) if self.has_customer else None
        return self.call(options.shop, options.dialect, code, content)

    def call(self, shop: Shop, dialect: Dialect, fiscal_code: str | None, content: object) -> "Call":
        """Return the call with a checked content."""
        return Call(
            endpoint=self,
            shop=shop,
            fiscal_code=fiscal_code,
            body=self.write(content, dialect),
            order_token=content.order_token if isinstance(content, ApprovalRequest) else None,
        )


# A call is not frozen, for the same reason as its messages.
@define(kw_only=True)
class Call:
    """One call, ready to be sent as often as its retries need it, and its progress.

    `entry` is its key in the ledger. It is `after_unknown` if an earlier call has an unknown outcome. If it
    `outlives_caller`, the response to a request that was sent is read although the caller was cancelled. The
    pipeline sets its progress: when it started, its trace, the number of attempts, the last 500, the request
    in progress, whether no further one is made, and whether it has a slot of the concurrency limit.
    `is_abandoned` is set when nobody waits for the outcome any more.
    """

    endpoint: Endpoint
    shop: Shop
    fiscal_code: str | None = field(repr=mask)
    body: bytes = field(repr=mask)
    order_token: str | None = field(default=None, repr=mask)
    entry: str | None = None
    after_unknown: bool = False
    outlives_caller: bool = False
    started: float = 0.0
    trace_id: str | None = None
    attempts: int = 0
    fault: "Response | None" = field(default=None, repr=False)
    sending: Request | None = None
    has_ended: bool = False
    has_slot: bool = False
    is_abandoned: bool = False

    @property
    def may_be_evaluated(self) -> bool:
        """True if a request of this call, or of an earlier one, may have reached the service."""
        return (
            self.after_unknown
            or self.fault is not None
            or (self.sending is not None and self.sending.is_sent)
        )

    @property
    def is_waiting(self) -> bool:
        """True while it waits for the ledger, a slot, a connection or a retry: it may be cancelled."""
        return not self.has_ended and (self.sending is None or not self.sending.is_sent)

    def request(self, trace_headers: Mapping[str, str]) -> Request:
        """Return the HTTP request; its URL is percent-encoded and contains the fiscal code."""
        return Request(
            method=self.endpoint.method,
            url=self._address(self.shop.shop_id, self.fiscal_code),
            headers={**trace_headers, **self.shop.headers},
            body=self.body,
            outlives_caller=self.outlives_caller,
        )

    @property
    def redacted_url(self) -> str:
        """The URL without shop id and fiscal code."""
        return self._address("REDACTED", "REDACTED")

    def _address(self, shop_id: str, fiscal_code: str | None) -> str:
        path = self.endpoint.template.replace("{shopId}", shop_id)
        return self.shop.base_url + path.replace("{fiscalCode}", fiscal_code or "")

    @property
    def sent(self) -> tuple[object, ...]:
        """Values of the customer and of the shop that were sent: the service may repeat them.

        Raises:
            Malformed: The body is nested more deeply than can be read.
        """
        return decode(self.body), self.fiscal_code, self.shop.headers["X-Auth-Token"]

    def is_repeated_in(self, name: str) -> bool:
        """Return True if a name that the service chose, such as a request id, has a value that was sent."""
        try:
            return is_made_of(name, *self.sent)
        except Malformed:
            return True

    def read(self, reply: Response, meta: Meta) -> "Outcome | LoanError":
        """Return the outcome or the error that a response means.

        Errors are returned and not raised, so that no frame with the body is in their traceback.
        """
        reader = self.endpoint.statuses.get(reply.status, _unexpected_status)
        return reader(self, reply, meta)


Reader: TypeAlias = Callable[[Call, Response, Meta], Outcome | LoanError]


def _unexpected(
    call: Call,
    reply: Response,
    reasons: tuple[str, ...],
    meta: Meta,
    *,
    outcome: UnexpectedOutcome = "unknown",
    problems: tuple[Problem, ...] = (),
) -> LoanError:
    response = RawResponse(reply.status, reply.body)
    return UnexpectedResponseError(call.endpoint.operation, reasons, outcome, meta, problems, response)


def _object(reply: Response) -> dict[str, Any]:
    if reply.fault is not None:
        raise Malformed(f"body: {reply.fault}")
    return decode(reply.body)


_EXACT = (b"approved", b"redirectUrl", b"fiscalCode")  # members whose repetition must not go unnoticed
_ANOTHER = "fiscalCode: of another customer"


def _decided(call: Call, reply: Response, meta: Meta) -> Outcome | LoanError:
    """A 201 or a 422 (spec §3, §7): a decision is only what `approved` says, as a boolean."""
    try:
        members = _object(reply)
        twice = repeated(reply.body, _EXACT)
    except Malformed as malformed:
        return _decided_in_part(call, reply, meta, malformed.args)
    approved = members.get("approved")
    codes = twice.get("fiscalCode") or [members.get("fiscalCode")]
    if "approved" in twice:
        reason = "approved: given more than once"
    elif "approved" not in members:
        reason = "approved: missing"
    elif type(approved) is not bool:
        reason = "approved: expected a boolean"
    elif approved and reply.status == REFUSED:
        reason = f"approved: contradicts status {reply.status}"
    elif codes not in ([call.fiscal_code], [None]) and _is_of_another(codes, call):
        reason = _ANOTHER
    else:
        if "redirectUrl" in twice:
            members["redirectUrl"] = twice[
                "redirectUrl"
            ]  # which of them is right is unknown: named as unread
        return codec.read_decision(Approved if approved else Refused, members, meta)
    return _unexpected(call, reply, (reason,), meta, problems=_problems(call, members))


def _is_of_another(codes: Iterable[object], call: Call) -> bool:
    return any(is_another_customers(code, call.fiscal_code or "") for code in codes)


def _decided_in_part(
    call: Call, reply: Response, meta: Meta, reasons: tuple[str, ...]
) -> Outcome | LoanError:
    """A 201 or a 422 whose body is no JSON object: cut off, undecodable, empty, or something else."""
    is_cut_off = reply.fault is not None and reply.fault != UNDECODABLE
    if reply.status == REFUSED and not is_cut_off and not reply.body.strip():
        return Refused(meta=evolve(meta, unread=_UNREAD_BODY))  # assumed: the status says so
    by_status = reply.status != REFUSED
    found = decode_part(reply.body, "approved")
    if (by_status or is_cut_off) and len(found) == 1 and found[0] is by_status:  # 1 equals True
        if _is_of_another(decode_part(reply.body, "fiscalCode"), call):
            return _unexpected(call, reply, (_ANOTHER,), meta)
        return (Approved if by_status else Refused)(meta=evolve(meta, unread=_UNREAD_BODY))
    return _unexpected(call, reply, reasons, meta)


_UNREAD_BODY = ("body",)


def _problems(call: Call, members: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Return the messages of a body, without what was sent: the service may repeat it in them."""
    try:
        return read_problems(members, *call.sent)
    except Malformed:  # what was sent could not be removed
        return ()


def _rejected(call: Call, reply: Response, meta: Meta) -> LoanError:
    try:
        members = _object(reply)
        is_repeated = has_repeated_names(reply.body)
        sent = decode(call.body) if call.endpoint is APPROVE else None
    except Malformed as malformed:
        return _unexpected(call, reply, malformed.args, meta)
    problems = _problems(call, members)
    error = rejection(members, sent)
    if error is None:
        return _unexpected(call, reply, ("errors: no messages of fields",), meta, problems=problems)
    if issubclass(error, AlreadyEvaluatedError):
        return _already_evaluated(call, problems, meta)
    if is_repeated:  # only the last was read
        return _unexpected(call, reply, ("errors: a name given more than once",), meta, problems=problems)
    return error(call.endpoint.operation, problems, meta)


def _already_evaluated(call: Call, problems: tuple[Problem, ...], meta: Meta) -> LoanError:
    # Only a 500 is ever retried, so a second attempt means that the first was answered with one.
    return AlreadyEvaluatedError(call.endpoint.operation, problems, meta, meta.attempts > 1)


def _failed(
    error: type[AccessDeniedError | CannotCompleteError | SystemFaultError | UnexpectedStatusError],
    call: Call,
    reply: Response,
    meta: Meta,
) -> LoanError:
    """A status whose meaning does not depend on its body, which may be HTML of a proxy."""
    try:
        said: object = (members := _object(reply))
    except Malformed:
        said, members = reply.body.decode(errors="replace"), {}
    problems = _problems(call, members)
    if call.endpoint is APPROVE and error is not SystemFaultError and is_already_evaluated(said):
        return _already_evaluated(call, problems, meta)  # no status proves the contrary
    if error is UnexpectedStatusError:
        return error(call.endpoint.operation, problems, meta, RawResponse(reply.status, reply.body))
    return error(call.endpoint.operation, problems, meta)


_unexpected_status = partial(_failed, UnexpectedStatusError)


def _is_empty(reply: Response) -> bool:
    return reply.fault is None and not reply.body.strip()


def _saved(call: Call, reply: Response, meta: Meta) -> UserData | LoanError:
    # spec §4.2: 200 is success, so the data are saved even if the body cannot be read.
    if _is_empty(reply):
        return UserData()
    try:
        return codec.read_user_data(_object(reply))
    except Malformed as malformed:
        return _unexpected(call, reply, malformed.args, meta, outcome="done")


def _open_shape(call: Call, reply: Response, meta: Meta) -> AnyJSON | LoanError:
    # spec §4.3: the shape is not shown, so any JSON value is accepted, and an empty body, too.
    if _is_empty(reply):
        return Body()
    if reply.fault is not None:
        return _unexpected(call, reply, (f"body: {reply.fault}",), meta)
    try:
        return masked(decode_any(reply.body))
    except Malformed as malformed:
        return _unexpected(call, reply, malformed.args, meta)


_ERRORS: Mapping[int, Reader] = {
    400: _rejected,
    403: partial(_failed, AccessDeniedError),
    SYSTEM_FAULT: partial(_failed, SystemFaultError),
}
# spec §4.3 names no status of the prerequisite calls: any success is one, and §7 tells of the errors.
_OPEN: Mapping[int, Reader] = {**dict.fromkeys(range(200, 300), _open_shape), **_ERRORS}


def _check_approval(
    request: object,
    options: Options,
    additional_data_needed: bool,  # noqa: FBT001  (see Endpoint)
) -> Iterator[Problem]:
    return rules.check_approval(
        request,
        additional_data_needed=additional_data_needed,
        dialect=options.dialect,
        limits=options.limits,
    )


def _check_user_data(data: object, options: Options, *_: object) -> Iterator[Problem]:
    return rules.check_user_data(data, options.limits)


def _check_payload(payload: object, *_: object) -> Iterator[Problem]:
    return rules.check_payload(payload)


def _write_payload(payload: Mapping[str, JSON], *_: object) -> bytes:
    return encode(payload)


REQUESTS = "/api/shops/{shopId}/requests"
REQUEST = REQUESTS + "/{fiscalCode}"

APPROVE = Endpoint(  # spec §4.1
    operation="approve",
    method="POST",
    template=REQUEST,
    check=_check_approval,
    write=codec.write,
    statuses={
        201: _decided,
        **_ERRORS,
        409: partial(_failed, CannotCompleteError),
        REFUSED: _decided,
    },
)
COMPLETE = Endpoint(  # spec §4.2
    operation="complete",
    method="PATCH",
    template=REQUEST,
    check=_check_user_data,
    write=codec.write,
    statuses={200: _saved, **_ERRORS},
)
CREATE_REQUEST = Endpoint(  # spec §4.3
    operation="create_request",
    method="POST",
    template=REQUESTS,
    has_customer=False,
    check=_check_payload,
    write=_write_payload,
    statuses=_OPEN,
)
UPLOAD_DOCUMENTS = Endpoint(  # spec §4.3
    operation="upload_documents",
    method="POST",
    template=REQUEST + "/documents",
    check=_check_payload,
    write=_write_payload,
    statuses=_OPEN,
)
OPERATIONS = tuple(each.operation for each in (CREATE_REQUEST, APPROVE, UPLOAD_DOCUMENTS, COMPLETE))
