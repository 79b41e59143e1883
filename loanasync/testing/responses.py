"""Scripted responses: those of the specification, missing responses, and functions of the request."""

import difflib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import TypeAlias

import attrs
from attrs import field, frozen

from loanasync._models.decisions import Approved, Refused
from loanasync._models.masking import JSON
from loanasync._models.requests import APPROVAL_NAMES, READ_ALIASES
from loanasync._protocol.json import encode
from loanasync._protocol.messages import NoResponse, Response
from loanasync.errors import ConnectError, ConnectionLostError, ReadTimeoutError
from loanasync.testing.sent import Headers, SentRequest


@frozen
class Computed:
    """A scripted response that a function returns for the request."""

    function: Callable[[SentRequest], "ScriptedResponse | Awaitable[ScriptedResponse]"]


ScriptedResponse: TypeAlias = Response | NoResponse | Computed


def require_response(response: object) -> None:
    """Check that an object is a scripted response.

    Raises:
        TypeError: It is not.
    """
    if not isinstance(response, Response | NoResponse | Computed):
        hint = "call the function, as in approved()" if callable(response) else "use approved(), for example"
        raise TypeError(f"expected a scripted response, not {type(response).__name__}: {hint}")


async def response_to(sent: SentRequest, scripted: ScriptedResponse) -> Response | NoResponse:
    """Return the response to a request; call the functions of `computed` responses."""
    while isinstance(scripted, Computed):
        result = scripted.function(sent)
        scripted = await result if isawaitable(result) else result
        require_response(scripted)
    return scripted


def computed(
    function: Callable[[SentRequest], ScriptedResponse | Awaitable[ScriptedResponse]],
) -> ScriptedResponse:
    """Respond with the result of a function of the request; a coroutine function may also wait.

    Args:
        function: Takes the `SentRequest`, and returns a scripted response.

    Example:
        >>> from loanasync.testing import approved, computed, refused, scripted_client
        >>> def up_to_a_thousand(sent):
        ...     return approved() if sent.body["amount"] <= 100_000 else refused()
        >>> shop = scripted_client(computed(up_to_a_thousand))
        >>> run(shop.approve(fiscal_code, request)).approved
        True
    """
    return Computed(function)


def response(
    status: int, body: bytes | Mapping[str, JSON] = b"", headers: Mapping[str, str] | None = None
) -> ScriptedResponse:
    """Respond with any status and body, including those that the specification does not allow.

    Args:
        status: The HTTP status.
        body: A JSON object, or bytes that are sent unchanged.
        headers: The headers of the response.

    Raises:
        TypeError: An argument has a wrong type, or `body` cannot be written as JSON.
        ValueError: `body` contains NaN or infinity.

    Example:
        >>> from loanasync import UnexpectedResponseError
        >>> from loanasync.testing import response, scripted_client
        >>> shop = scripted_client(response(201, {"fiscalCode": fiscal_code}), response(201, b"<html>"))
        >>> created = run(shop.create_request({"fiscalCode": fiscal_code}))
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except UnexpectedResponseError as error:
        ...     print(*error.reasons)
        body: not JSON
    """
    if not isinstance(status, int):
        raise TypeError(f"status {status!r} must be an int, such as 201")
    if not isinstance(body, bytes | Mapping):
        raise TypeError(f"a body must be bytes or a JSON object, not {type(body).__name__}")
    content = body if isinstance(body, bytes) else encode(body)
    return Response(status=status, headers=Headers(headers or {}), body=content)


def approved(**fields: JSON) -> ScriptedResponse:
    """Respond to an approval with 201 (approved), a made-up `redirect_url` and the sent values.

    Args:
        fields: Values for fields of `Approved`; amounts in euro cents.

    Raises:
        TypeError: `Approved` does not have a field that was given.

    Example:
        >>> from loanasync.testing import approved, scripted_client
        >>> shop = scripted_client(approved(net_amount=43_650))
        >>> decision = run(shop.approve(fiscal_code, request))
        >>> decision.approved, decision.amount, decision.net_amount
        (True, 45000, 43650)
    """
    page: JSON = "https://loans.example.com/apply/made-up#token=made-up"
    return _decided(201, Approved, {"redirect_url": page, **fields})


def refused(**fields: JSON) -> ScriptedResponse:
    """Respond to an approval with 422 (refused) and the sent values.

    Args:
        fields: Values for fields of `Refused`; amounts in euro cents.

    Raises:
        TypeError: `Refused` does not have a field that was given.

    Example:
        >>> from loanasync.testing import refused, scripted_client
        >>> run(scripted_client(refused()).approve(fiscal_code, request)).approved
        False
    """
    return _decided(422, Refused, fields)


def _decided(status: int, kind: type[Approved | Refused], fields: Mapping[str, JSON]) -> ScriptedResponse:
    names = _names(kind)
    for name in fields:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise TypeError(f"{kind.__name__} has no field {name}{hint}")
    return Computed(_Decision(status, kind, fields))


def _names(kind: type[Approved | Refused]) -> Mapping[str, str]:
    return {name: wire for name, wire in APPROVAL_NAMES.items() if name in attrs.fields_dict(kind)}


@frozen
class _Decision:
    """A function of the request: an approval or a refusal that echoes the sent values."""

    status: int
    kind: type[Approved | Refused] = field(repr=False)
    fields: Mapping[str, JSON] = field(repr=False, hash=False)

    def __call__(self, sent: SentRequest) -> ScriptedResponse:
        if sent.operation != "approve":
            name = self.kind.__name__.lower()
            raise AssertionError(f"{name}() was scripted for {sent.operation}: put response(201) before it")
        names = _names(self.kind)
        echoed = {*names.values(), *READ_ALIASES}
        body: dict[str, JSON] = {name: value for name, value in sent.body.items() if name in echoed}
        body["fiscalCode"] = sent.fiscal_code
        body |= {names[name]: value for name, value in self.fields.items()}
        return response(self.status, {"approved": self.kind is Approved, **body})


def rejected(errors: Mapping[str, Sequence[str] | str]) -> ScriptedResponse:
    """Respond with 400 and messages for fields: a `RejectedError` (spec §7).

    Args:
        errors: The messages for each field, by the names of the service, such as ``lastname``.

    Raises:
        ValueError: There is no field, or a field without a message: the service never sends that.

    Example:
        >>> from loanasync import RejectedError
        >>> from loanasync.testing import rejected, scripted_client
        >>> shop = scripted_client(rejected({"lastname": ["This value should not be blank."]}))
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except RejectedError as error:
        ...     print(*error.problems)
        last_name: This value should not be blank.
    """
    if not isinstance(errors, Mapping):
        raise TypeError(f"errors must be a mapping of fields to messages, not {type(errors).__name__}")
    members: dict[str, JSON] = {
        name: [messages] if isinstance(messages, str) else list(messages) for name, messages in errors.items()
    }
    if not members or not all(members.values()):
        raise ValueError("errors must have at least one field, and at least one message for each field")
    return response(400, {"errors": members})


def domain_error(message: str) -> ScriptedResponse:
    """Respond with 400 and a message under ``domain``: a `DomainError` or the subclass for the message.

    Args:
        message: A message of the service, such as ``User not found``, ``User already evaluated for
            approval``, ``This sales point cannot apply for a loan`` or ``Invalid fiscalCode.`` (spec §7).

    Example:
        >>> from loanasync import AlreadyEvaluatedError
        >>> from loanasync.testing import domain_error, scripted_client
        >>> shop = scripted_client(domain_error("User already evaluated for approval"))
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except AlreadyEvaluatedError as error:
        ...     print(error.after_retry)
        False
    """
    return rejected({"domain": [message]})


def denied(message: str = "Access denied") -> ScriptedResponse:
    """Respond with 403: an `AccessDeniedError`.

    Args:
        message: The message of the service.

    Example:
        >>> from loanasync import AccessDeniedError
        >>> from loanasync.testing import denied, scripted_client
        >>> try:
        ...     run(scripted_client(denied()).create_request({}))
        ... except AccessDeniedError as error:
        ...     print(error.status)
        403
    """
    return response(403, {"error": message})  # spec §7: 403 uses "error", singular


def conflict(message: str = "The request cannot be completed") -> ScriptedResponse:
    """Respond to an approval with 409: a `CannotCompleteError`.

    Args:
        message: The message of the service.

    Example:
        >>> from loanasync import CannotCompleteError
        >>> from loanasync.testing import conflict, scripted_client
        >>> try:
        ...     run(scripted_client(conflict()).approve(fiscal_code, request))
        ... except CannotCompleteError as error:
        ...     print(error.status)
        409
    """
    return response(409, {"errors": message})  # spec §7: a plain string here


def system_error(retry_after: int | None = None) -> ScriptedResponse:
    """Respond with 500: the client retries by its `RetryPolicy` and receives the next scripted response.

    Args:
        retry_after: The Retry-After header, in whole seconds; None for no header.

    Raises:
        ValueError: `retry_after` is negative.

    Example:
        >>> from loanasync.testing import ScriptedTransport, approved, system_error
        >>> script = ScriptedTransport(system_error(retry_after=3), approved())
        >>> run(script.client().approve(fiscal_code, request)).meta.attempts
        2
        >>> script.clock.slept
        [3.0]
    """
    if retry_after is not None and retry_after < 0:
        raise ValueError("retry_after must be a number of seconds, 0 or more")
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return response(500, {"errors": {"system": ["System error"]}}, headers)


def not_connected() -> ScriptedResponse:
    """Fail to open a connection: a `ConnectError`. Nothing was sent.

    Example:
        >>> from loanasync import ConnectError
        >>> from loanasync.testing import not_connected, scripted_client
        >>> try:
        ...     run(scripted_client(not_connected()).approve(fiscal_code, request))
        ... except ConnectError as error:
        ...     print(error.outcome)
        not_sent
    """
    return NoResponse(error=ConnectError, cause_type="ClientConnectorError", is_sent=False)


def connection_lost() -> ScriptedResponse:
    """Lose the connection before the response: a `ConnectionLostError`. The request may have arrived.

    Example:
        >>> from loanasync import ConnectionLostError
        >>> from loanasync.testing import connection_lost, scripted_client
        >>> try:
        ...     run(scripted_client(connection_lost()).approve(fiscal_code, request))
        ... except ConnectionLostError as error:
        ...     print(error.outcome)
        unknown
    """
    return NoResponse(error=ConnectionLostError, cause_type="ServerDisconnectedError", is_sent=True)


def timed_out() -> ScriptedResponse:
    """Time out without waiting: a `ReadTimeoutError`. The request may have arrived.

    If the deadline of the call is closer than the limit of the attempt, it is a `DeadlineExceededError`.

    Example:
        >>> from loanasync import ReadTimeoutError
        >>> from loanasync.testing import scripted_client, timed_out
        >>> try:
        ...     run(scripted_client(timed_out()).approve(fiscal_code, request))
        ... except ReadTimeoutError as error:
        ...     print(error.outcome)
        unknown
    """
    return NoResponse(error=ReadTimeoutError, cause_type="TimeoutError", is_sent=True)
