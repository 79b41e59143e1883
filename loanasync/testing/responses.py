"""Steps of a script: responses of the specification, failures to respond, and functions of a request."""

import difflib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import TypeAlias

import attrs
from attrs import field, frozen

from loanasync._display.masking import JSON
from loanasync._models.dialect import APPROVAL_NAMES, READ_ALIASES
from loanasync._protocol.json import encode
from loanasync._protocol.messages import NoResponse, Response
from loanasync._results import Approved, Refused
from loanasync.errors import ConnectError, ConnectionLostError, ReadTimeoutError
from loanasync.testing.sent import Headers, SentRequest


@frozen
class Computed:
    """A step that looks at the request, or waits, before it is another step."""

    answer: Callable[[SentRequest], "ScriptedResponse | Awaitable[ScriptedResponse]"]


ScriptedResponse: TypeAlias = Response | NoResponse | Computed


def require_step(step: object) -> None:
    """Refuse what cannot be played, where the script is written.

    Raises:
        TypeError: It is no step.
    """
    if not isinstance(step, Response | NoResponse | Computed):
        called = ": it has to be called, as in approved()" if callable(step) else ", such as approved()"
        raise TypeError(f"a script is made of steps{called}; this is of type {type(step).__name__}")


async def play(step: ScriptedResponse, sent: SentRequest) -> Response | NoResponse:
    """Return the response that a step gives to a request."""
    while isinstance(step, Computed):
        made = step.answer(sent)
        step = await made if isawaitable(made) else made
        require_step(step)
    return step


def computed(
    answer: Callable[[SentRequest], ScriptedResponse | Awaitable[ScriptedResponse]],
) -> ScriptedResponse:
    """Choose the step for each request by a function; a coroutine function may wait.

    Args:
        answer: Takes the `SentRequest`, returns a step.

    Example:
        >>> from loanasync.testing import approved, computed, refused, scripted_client
        >>> def up_to_a_thousand(sent):
        ...     return approved() if sent.body["amount"] <= 100_000 else refused()
        >>> shop = scripted_client(computed(up_to_a_thousand))
        >>> run(shop.approve(fiscal_code, request)).approved
        True
    """
    return Computed(answer)


def response(
    status: int, body: bytes | Mapping[str, JSON] = b"", headers: Mapping[str, str] | None = None
) -> ScriptedResponse:
    """Answer with anything, also with what the specification does not have.

    Args:
        status: HTTP status.
        body: A JSON object, or the bytes as they are.
        headers: Header fields of the answer.

    Raises:
        TypeError: The object is not JSON.
        ValueError: It has a number that JSON has not.

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
    content = body if isinstance(body, bytes) else encode(body)
    return Response(status=status, headers=Headers(headers or {}), body=content)


def approved(**fields: JSON) -> ScriptedResponse:
    """Answer an approval with 201: yes, with a made-up `redirect_url` and what was sent echoed.

    Args:
        fields: Other values for fields of `Approved`, by our names; amounts in euro cents.

    Raises:
        TypeError: `Approved` has no such field.

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
    """Answer an approval with 422: no, final, with what was sent echoed.

    Args:
        fields: Other values for fields of `Refused`, by our names; amounts in euro cents.

    Raises:
        TypeError: `Refused` has no such field.

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
            meant = f"; did you mean {near[0]}?" if near else ""
            raise TypeError(f"{kind.__name__} has no field {name}{meant}")
    return Computed(_Decided(status, kind, fields))


def _names(kind: type[Approved | Refused]) -> Mapping[str, str]:
    fields = [each.name for each in attrs.fields(kind)]
    return {name: APPROVAL_NAMES[name] for name in fields if name in APPROVAL_NAMES}


@frozen
class _Decided:
    """An approval or a refusal of whatever was asked."""

    status: int
    kind: type[Approved | Refused] = field(repr=False)
    fields: Mapping[str, JSON] = field(repr=False, hash=False)

    def __call__(self, sent: SentRequest) -> ScriptedResponse:
        names = _names(self.kind)
        echoed = {*names.values(), *READ_ALIASES}
        body: dict[str, JSON] = {name: value for name, value in sent.body.items() if name in echoed}
        body["fiscalCode"] = sent.fiscal_code
        body |= {names[name]: value for name, value in self.fields.items()}
        return response(self.status, {"approved": self.kind is Approved, **body})


def rejected(errors: Mapping[str, Sequence[str] | str]) -> ScriptedResponse:
    """Answer with 400: a `RejectedError` (spec §7).

    Args:
        errors: Messages for each field, by the service's names such as ``lastname``.

    Raises:
        ValueError: There is no message; the service never says so.

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
    said: dict[str, JSON] = {
        name: [messages] if isinstance(messages, str) else list(messages) for name, messages in errors.items()
    }
    if not said or not all(said.values()):
        raise ValueError("give at least one field, and a message for each")
    return response(400, {"errors": said})


def domain_error(message: str) -> ScriptedResponse:
    """Answer with 400 under ``domain``: a `DomainError` or the subclass that the message stands for.

    Args:
        message: Such as ``User not found``, ``User already evaluated for approval``, ``This sales point
            cannot apply for a loan`` or ``Invalid fiscalCode.`` (spec §7).

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
    """Answer with 403: an `AccessDeniedError`.

    Args:
        message: What the service says.

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
    """Answer an approval with 409: a `CannotCompleteError`.

    Args:
        message: What the service says.

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
    """Answer with 500: the client asks again, as its `RetryPolicy` says, so that the next step is played.

    Args:
        retry_after: Whole seconds that the service asks to wait.

    Raises:
        ValueError: The wait is negative.

    Example:
        >>> from loanasync.testing import ScriptedTransport, approved, system_error
        >>> script = ScriptedTransport(system_error(retry_after=3), approved())
        >>> run(script.client().approve(fiscal_code, request)).meta.attempts
        2
        >>> script.clock.slept
        [3.0]
    """
    if retry_after is not None and retry_after < 0:
        raise ValueError("retry_after must be seconds, 0 or more")
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return response(500, {"errors": {"system": ["System error"]}}, headers)


def not_connected() -> ScriptedResponse:
    """Let no connection come about: a `ConnectError`, and nothing was sent.

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
    """Lose the connection before the answer: a `ConnectionLostError`; the request may have arrived.

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
    """Let no answer come in time, at once: a `ReadTimeoutError`; the request may have arrived.

    Where the deadline of the call leaves the attempt less than its own time, it is the client's
    `DeadlineExceededError`.

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
