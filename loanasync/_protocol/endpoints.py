"""The endpoints of the service (spec §4), with a reader of the response for each status.

To add an endpoint, add an `Endpoint` at the end of this module and to `OPERATIONS`, and add a
method to `LoanClient`.
"""

import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial
from typing import Any, TypeAlias

from attrs import define, evolve, field, frozen

from loanasync._models.decisions import DECISIONS, Approved, Decision, Meta, Problem, RawResponse, Refused
from loanasync._models.masking import EMPTY_BODY, JSON, AnyJSON, ValueObject, mask, masked
from loanasync._models.requests import ApprovalRequest, UserData
from loanasync._protocol import codec, json, rules
from loanasync._protocol.echo import belongs_to_another_customer, names_customer
from loanasync._protocol.error_bodies import error_class, read_problems
from loanasync._protocol.messages import UNDECODABLE, Judgement, Request, Response
from loanasync._protocol.proof import is_proof
from loanasync._settings import Dialect, Options
from loanasync._shop import TOKEN_HEADER, Shop
from loanasync.errors import (
    NOT_PROCESSED,
    AccessDeniedError,
    AlreadyEvaluatedError,
    CannotCompleteError,
    InvalidRequestError,
    LoanError,
    RejectedError,
    ServiceError,
    SystemFaultError,
    UnexpectedOutcome,
    UnexpectedResponseError,
    UnexpectedStatusError,
)

SYSTEM_FAULT = 500  # spec §7: system error; calls are repeated after no other status
REFUSED = 422  # spec §3

Outcome: TypeAlias = Decision | UserData | AnyJSON


@frozen(kw_only=True, eq=False, repr=False)
class Endpoint(ValueObject):
    """One endpoint of the service (spec §4).

    Args:
        operation: Name of the call.
        method: HTTP method.
        template: Path with the variables of the specification.
        has_customer: True if the fiscal code is part of the path.
        check: Returns the problems of a payload. Its arguments are those of `rules.check_approval`.
        write: Returns the JSON body for a valid payload in a dialect.
        readers: A reader for each status. All other statuses are unexpected.
    """

    operation: str
    method: str
    template: str
    has_customer: bool = True
    check: Callable[..., list[Problem]] = field(repr=False)
    write: Callable[[Any, Dialect], bytes] = field(repr=False)
    readers: Mapping[int, "Reader"] = field(repr=False)

    def checked(
        self, options: Options, fiscal_code: str, payload: object, *, additional_data_needed: bool
    ) -> tuple[str | None, list[Problem]]:
        """Return the normalized fiscal code, if it is part of the path, and all problems of a call."""
        code: str | None = None
        problems: list[Problem] = []
        if self.has_customer:
            code, problems_of_code = rules.read_fiscal_code(fiscal_code, strict=options.strict)
            problems += problems_of_code
        problems += self.check(
            payload,
            additional_data_needed=additional_data_needed,
            dialect=options.dialect,
            limits=options.limits,
        )
        return code, problems

    def prepare(
        self,
        options: Options,
        fiscal_code: str,
        payload: object,
        *,
        additional_data_needed: bool = False,
        order_id: str = "",
        repeat_unknown: bool = False,
        wait: float | None = None,
    ) -> "Call | InvalidRequestError":
        """Return a valid call, or an error with all problems.

        The error is returned and not raised, because its traceback would keep frames with personal data.
        """
        code, problems = self.checked(
            options, fiscal_code, payload, additional_data_needed=additional_data_needed
        )
        # Most numbers are plain, and then need no closer look.
        if type(order_id) is not str or (order_id and rules.plain_order_id(order_id) is None):
            problems += rules.check_order_id(order_id)
        if problems:
            return InvalidRequestError(problems, self.operation)
        body = self.write(payload, options.dialect)
        if not isinstance(payload, ApprovalRequest):
            return Call(self, options.shop, code, body)
        amount, token, has_extra = payload.amount, payload.order_token, payload.extra is not EMPTY_BODY
        return Call(self, options.shop, code, body, amount, token, has_extra, order_id, repeat_unknown, wait)


def _parts_of_url(base_url: str, template: str, shop_id: str) -> tuple[str, str]:
    """Return the parts of a URL before and after the fiscal code."""
    before, _, after = template.replace("{shopId}", shop_id).partition("{fiscalCode}")
    return base_url + before, after


# Not a decorator, because mutation testing skips decorated functions.
_around_code = lru_cache(maxsize=256)(_parts_of_url)


# Created for each call: an object that is not frozen takes half the time, and so do positional arguments.
@define(eq=False, repr=False)
class Call(ValueObject):
    """One call of an endpoint: what is sent. It can be sent several times.

    Args:
        endpoint: The endpoint.
        shop: The shop.
        fiscal_code: Normalized fiscal code, if it is part of the path.
        body: The JSON body.
        amount: Amount of an approval request, in euro cents.
        order_token: Order token of an approval request.
        has_extra: True if the body of an approval has members of `extra`, in the order of the caller.
        order_id: Number of the order, which is a part of the approval's identity.
        repeat_unknown: Send the request even if the outcome of an earlier request is unknown.
        wait: Seconds to wait for another owner of the ledger's entry; None: as the ledger's policy says.
    """

    endpoint: Endpoint
    shop: Shop
    fiscal_code: str | None = field(repr=mask)
    body: bytes = field(repr=mask)
    amount: int | None = None
    order_token: str | None = field(default=None, repr=mask)
    has_extra: bool = False
    order_id: str = ""
    repeat_unknown: bool = False
    wait: float | None = None

    def request(self, trace_headers: Mapping[str, str], auth_token: str | None = None) -> Request:
        """Return the HTTP request, with this token if the shop has a function for it."""
        headers = self.shop.headers
        if trace_headers or auth_token is not None:
            token = {} if auth_token is None else {TOKEN_HEADER: auth_token}
            headers = {**trace_headers, **headers, **token}
        before, after = _around_code(self.shop.base_url, self.endpoint.template, self.shop.shop_id)
        return Request(
            method=self.endpoint.method,
            url=f"{before}{self.fiscal_code or ''}{after}",
            headers=headers,
            body=self.body,
            survives_cancellation=self.endpoint is APPROVE,
        )

    @property
    def redacted_url(self) -> str:
        """The URL without shop id and fiscal code."""
        before, after = _around_code(self.shop.base_url, self.endpoint.template, "REDACTED")
        return f"{before}REDACTED{after}" if self.endpoint.has_customer else before

    def read(self, response: Response, meta: Meta) -> "Outcome | LoanError":
        """Return the outcome or the error for a response.

        Errors are returned and not raised, because their traceback would keep frames with the body.
        """
        reader = self.endpoint.readers.get(response.status, _read_unexpected_status)
        return reader(self, response, meta)

    def judge(self, response: Response, result: "Outcome | LoanError") -> None:
        """Tell the transport what the result says about the connection.

        After an error, the connection may be out of step. For example, the service may refuse a request
        before it has read all of it, and then respond again: the next customer would get this response.
        """
        if response.judge is None:
            return
        judgement: Judgement = "wrong"
        if isinstance(result, DECISIONS):
            echoed, code = result.fiscal_code, self.fiscal_code or ""
            if echoed == code or names_customer(echoed, code):
                judgement = "trusted"
        elif isinstance(result, UnexpectedResponseError) and _NO_CUSTOMER in result.reasons:
            judgement = "stray"
        elif not isinstance(result, LoanError):
            judgement = "kept"
        try:  # noqa: SIM105  (`suppress` is slower)
            response.judge(judgement)
        except Exception:  # noqa: BLE001, S110  (an error here must not replace the response)
            pass


Reader: TypeAlias = Callable[[Call, Response, Meta], Outcome | LoanError]

# A UUID, or 32 hexadecimal digits. Any other form, also that of 16 ASCII characters, may hold a fiscal code.
_REQUEST_ID = re.compile(
    r"(?!(?:-?[2-7][0-9A-Fa-f]){16}\Z)"
    r"(?:[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}|[0-9A-Fa-f]{32})"
)
_TIME = re.compile(r"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9:]{8} GMT|[0-9]{1,10}")
# All responses of a second have the same date.
_is_time = lru_cache(maxsize=16)(_TIME.fullmatch)


def correlation(headers: Mapping[str, str]) -> tuple[str | None, str | None, str | None]:
    """Return request id, date and Retry-After of a response. Replace values of an unexpected form by None."""
    try:
        get = headers.get
        request_id = get("X-Request-Id") or get("X-Correlation-Id") or get("Request-Id")
        date, retry_after = get("Date"), get("Retry-After")
        return (
            request_id if request_id and _REQUEST_ID.fullmatch(request_id) else None,
            date if date is not None and _is_time(date) else None,
            retry_after if retry_after is not None and _is_time(retry_after) else None,
        )
    except (AttributeError, TypeError):  # wrong types of a user's transport must not cost the decision
        return None, None, None


def _unexpected(
    call: Call,
    response: Response,
    reasons: tuple[str, ...],
    meta: Meta,
    *,
    outcome: UnexpectedOutcome = "unknown",
    problems: tuple[Problem, ...] = (),
) -> LoanError:
    raw = _raw_response(call, response)
    return UnexpectedResponseError(call.endpoint.operation, reasons, outcome, meta, problems, raw)


def _raw_response(call: Call, response: Response) -> RawResponse:
    """Return what the error of a response keeps of it."""
    return RawResponse(response.status, response.body, _is_stray(call, response))


def _is_stray(call: Call, response: Response) -> bool:
    """Return True for a response on a used connection that does not name the customer of the call."""
    code = call.fiscal_code
    if code is None or not response.is_reused:
        return False
    if len(response.body) > _MAX_ERROR_JSON:  # decisions are much shorter
        return True
    return not any(names_customer(each, code) for each in _part_values(response.body, "fiscalCode"))


def _decode(response: Response, decode_body: Callable[[bytes], Any] = json.decode) -> Any:  # noqa: ANN401  (any JSON)
    if response.fault is not None:
        raise json.Malformed(f"body: {response.fault}")
    return decode_body(response.body)


_UNIQUE = ("approved", "redirectUrl", "fiscalCode", "orderToken", "amount")  # must not be repeated
_NO_CUSTOMER = "fiscalCode: missing on a used connection"


def _read_decision(call: Call, response: Response, meta: Meta) -> Outcome | LoanError:
    """Read a 201 or a 422 (spec §3, §7).

    Only a boolean `approved` is a decision. The exception is a whole 422 with an empty body.
    """
    if response.fault is not None:
        return _read_partial_decision(call, response, meta, (f"body: {response.fault}",))
    try:
        members = json.decode(response.body)
        repeated = json.repeated_members(response.body, members, _UNIQUE)
    except json.Malformed as malformed:
        return _read_partial_decision(call, response, meta, malformed.args)
    approved = members.get("approved")
    if "approved" in repeated:
        reason = "approved: given more than once"
    elif "approved" not in members:
        reason = "approved: missing"
    elif type(approved) is not bool:
        reason = "approved: expected a boolean"
    elif approved and response.status == REFUSED:
        reason = f"approved: contradicts status {response.status}"
    elif (
        repeated  # most responses have exactly what was sent, and then need no closer look
        or members.get("fiscalCode") != call.fiscal_code
        or members.get("orderToken") not in (None, call.order_token)
        or members.get("amount") not in (None, call.amount)
    ) and (mismatch := _mismatch(call, response, lambda name: repeated.get(name, [members.get(name)]))):
        reason = mismatch
    else:
        if "redirectUrl" in repeated:
            # It is unknown which URL is right. `read_decision` reports a list as unread.
            members["redirectUrl"] = repeated["redirectUrl"]
        return codec.read_decision(Approved if approved else Refused, members, meta)
    return _unexpected(call, response, (reason,), meta, problems=read_problems(members))


def _mismatch(call: Call, response: Response, values_of: Callable[[str], list[Any]]) -> str | None:
    """Return why a decision is not, or may not be, about the request of the call; None if it is.

    On a used connection, a response may belong to an earlier request.
    """
    code = call.fiscal_code or ""
    codes = values_of("fiscalCode")
    if any(belongs_to_another_customer(each, code) for each in codes):
        return "fiscalCode: belongs to another customer"
    if response.is_reused and not any(names_customer(each, code) for each in codes):
        return _NO_CUSTOMER
    sent = {"orderToken": call.order_token, **({"amount": call.amount} if response.is_reused else {})}
    for name, value in sent.items():
        if any(type(each) is type(value) and each != value for each in values_of(name)):
            return f"{name}: belongs to another order"
    return None


def _read_partial_decision(
    call: Call, response: Response, meta: Meta, reasons: tuple[str, ...]
) -> Outcome | LoanError:
    """Read a 201 or a 422 whose body is not a JSON object, for example a truncated or empty one."""
    mismatch = _mismatch(call, response, partial(_part_values, response.body))
    if response.status == REFUSED and _is_empty(response) and is_proof(response):
        if mismatch is not None:
            return _unexpected(call, response, (mismatch,), meta)
        return Refused(meta=evolve(meta, unread=_UNREAD_BODY))  # assumed from the status
    approves = response.status != REFUSED
    may_be_read = approves or _is_cut_object(response)
    values = json.decode_part(response.body, "approved")
    if may_be_read and len(values) == 1 and values[0] is approves:  # `is`, because 1 == True
        if mismatch is not None:
            return _unexpected(call, response, (mismatch,), meta)
        partial_meta = evolve(meta, unread=_UNREAD_BODY)
        if not approves:
            return Refused(meta=partial_meta)
        return Approved(redirect_url=_redirect_in(response.body), meta=partial_meta)
    return _unexpected(call, response, reasons, meta)


def _part_values(part: bytes, name: str) -> list[Any]:
    """Return the values of a member in a part of a body.

    Texts that are cut off are omitted, except a fiscal code, whose visible part is compared.
    """
    values = json.decode_part(part, name)
    return values if name == "fiscalCode" else [each for each in values if not str(each).endswith("…")]


def _is_cut_object(response: Response) -> bool:
    """Return True if the rest of a JSON object may be missing."""
    is_cut = response.end != "stated" if response.fault is None else response.fault != UNDECODABLE
    return is_cut and json.without_marks(response.body)[:1] == b"{"


def _redirect_in(part: bytes) -> str | None:
    """Return the redirect URL in a body that is not a JSON object, if it is there once and whole."""
    urls = json.decode_part(part, "redirectUrl")
    if len(urls) != 1 or not isinstance(urls[0], str):
        return None
    try:
        url = codec.to_url(urls[0])
    except ValueError:
        return None
    return None if url.endswith("…") or "\N{REPLACEMENT CHARACTER}" in url else url


_UNREAD_BODY = ("body",)
# The statuses that may prove that nothing was evaluated, or permit a retry. The outcome of others is unknown.
_NEED_PROOF = NOT_PROCESSED | {400, 403, SYSTEM_FAULT}
_MAX_ERROR_JSON = 1 << 16  # bytes; reading a million nested values would block the event loop for seconds


def _content_of(response: Response) -> tuple[object, tuple[str, ...]]:
    """Return the JSON in a body as `decode_all` does; for any other body its text, and the reasons."""
    if len(response.body) > _MAX_ERROR_JSON:
        return json.unescape(response.body), ("body: too large for an error",)
    try:
        return _decode(response, json.decode_all), ()
    except json.Malformed as malformed:
        return json.unescape(response.body), malformed.args


def _sent_names(call: Call) -> Collection[str] | None:
    """Return the names of the fields that an approval sent; None for the other calls."""
    if call.endpoint is not APPROVE:
        return None
    try:
        names: Collection[str] = json.decode(call.body)
    except json.Malformed:  # nested too deeply
        return ()
    return names


def _read_error(kind: type[ServiceError], call: Call, response: Response, meta: Meta) -> LoanError:
    """Read a response that is neither a decision nor a success. Its body may be HTML of a proxy."""
    content, unread = _content_of(response)
    problems = read_problems(content) if isinstance(content, dict) else ()
    is_proven = response.status not in _NEED_PROOF or is_proof(response)
    error = error_class(kind, content, _sent_names(call), is_proof=is_proven)
    if isinstance(error, str):
        return _unexpected(call, response, unread or (error,), meta, problems=problems)
    operation = call.endpoint.operation
    if error is AlreadyEvaluatedError:
        # Only a 500 is retried, so a second attempt means that the first one failed with status 500.
        is_repeated, raw = meta.attempts > 1, _raw_response(call, response)
        return AlreadyEvaluatedError(operation, problems, meta, is_repeated, raw)
    if error is UnexpectedStatusError:
        return UnexpectedStatusError(operation, problems, meta, _raw_response(call, response))
    return error(operation, problems, meta)


_read_unexpected_status = partial(_read_error, UnexpectedStatusError)


def _is_empty(response: Response) -> bool:
    return response.fault is None and not response.body.strip()


def _read_user_data(call: Call, response: Response, meta: Meta) -> UserData | LoanError:
    # spec §4.2: 200 is success, so the data are saved even if the body cannot be read.
    if _is_empty(response):
        return UserData()
    try:
        return codec.read_user_data(_decode(response))
    except json.Malformed as malformed:
        return _unexpected(call, response, malformed.args, meta, outcome="done")


def _read_any_json(call: Call, response: Response, meta: Meta) -> AnyJSON | LoanError:
    # spec §4.3: the shape is not shown, so any JSON value and an empty body are accepted.
    if _is_empty(response):
        return EMPTY_BODY
    try:
        return masked(_decode(response, json.decode_any))
    except json.Malformed as malformed:
        return _unexpected(call, response, malformed.args, meta)


_ERRORS: Mapping[int, Reader] = {
    400: partial(_read_error, RejectedError),
    403: partial(_read_error, AccessDeniedError),
    SYSTEM_FAULT: partial(_read_error, SystemFaultError),
}
# spec §4.3 does not name the statuses of these calls, so every 2xx is a success; spec §7 lists the errors.
_ANY_JSON: Mapping[int, Reader] = {**dict.fromkeys(range(200, 300), _read_any_json), **_ERRORS}


def _write_payload(payload: Mapping[str, JSON], _: Dialect) -> bytes:
    return json.encode(payload)


REQUESTS = "/api/shops/{shopId}/requests"
REQUEST = REQUESTS + "/{fiscalCode}"

APPROVE = Endpoint(  # spec §4.1
    operation="approve",
    method="POST",
    template=REQUEST,
    check=rules.check_approval,
    write=codec.write,
    readers={
        201: _read_decision,
        **_ERRORS,
        409: partial(_read_error, CannotCompleteError),
        REFUSED: _read_decision,
    },
)
COMPLETE = Endpoint(  # spec §4.2
    operation="complete",
    method="PATCH",
    template=REQUEST,
    check=rules.check_user_data,
    write=codec.write,
    readers={200: _read_user_data, **_ERRORS},
)
CREATE_REQUEST = Endpoint(  # spec §4.3
    operation="create_request",
    method="POST",
    template=REQUESTS,
    has_customer=False,
    check=rules.check_payload,
    write=_write_payload,
    readers=_ANY_JSON,
)
UPLOAD_DOCUMENTS = Endpoint(  # spec §4.3
    operation="upload_documents",
    method="POST",
    template=REQUEST + "/documents",
    check=rules.check_payload,
    write=_write_payload,
    readers=_ANY_JSON,
)


KNOWN = evolve(APPROVE, operation="known")  # sends nothing: it reads the decision of an earlier approval
OPERATIONS = tuple(each.operation for each in (CREATE_REQUEST, APPROVE, UPLOAD_DOCUMENTS, COMPLETE, KNOWN))


def prepare_options(options: Options) -> None:
    """Create the rules, writers and readers for these options, which the first call creates otherwise."""
    rules.whole_check(options.limits)
    rules.approval_check(options.limits)
    rules.additional_check()
    rules.user_data_check()
    codec.prepare_dialect(options.dialect)
