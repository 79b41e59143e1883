"""What a script is made of: replies, failures to reply, and functions that choose one of them."""

from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import TypeAlias

from attrs import frozen

from loanasync._display.masking import JSON
from loanasync._protocol.json import encode
from loanasync._protocol.messages import NoResponse, Response
from loanasync.testing.sent import Headers, Sent


@frozen
class Computed:
    """A step that looks at the request, or waits, before it is another step."""

    answer: Callable[[Sent], "Step | Awaitable[Step]"]


Step: TypeAlias = Response | NoResponse | Computed


def require_step(step: object) -> None:
    """Refuse what cannot be played, where the script is written.

    Raises:
        TypeError: It is no step.
    """
    if not isinstance(step, Response | NoResponse | Computed):
        called = ": it has to be called, as in approved()" if callable(step) else ", such as approved()"
        raise TypeError(f"a script is made of steps{called}; this is of type {type(step).__name__}")


async def play(step: Step, sent: Sent) -> Response | NoResponse:
    """What a step comes to for a request."""
    while isinstance(step, Computed):
        made = step.answer(sent)
        step = await made if isawaitable(made) else made
        require_step(step)
    return step


def computed(answer: Callable[[Sent], Step | Awaitable[Step]]) -> Step:
    """A step that a function of yours chooses once the request is there; a coroutine function may wait.

    Args:
        answer: Takes the `Sent`, returns a step.

    Example:
        >>> from loanasync.testing import approved, computed, refused, scripted_client
        >>> def up_to_a_thousand(sent):
        ...     return approved() if sent.body["amount"] <= 100_000 else refused()
        >>> shop = scripted_client(computed(up_to_a_thousand))
        >>> run(shop.approve(fiscal_code, request)).approved
        True
    """
    return Computed(answer)


def reply(
    status: int, body: bytes | Mapping[str, JSON] = b"", headers: Mapping[str, str] | None = None
) -> Step:
    """Answer with anything, also with what the specification does not have.

    Args:
        status: HTTP status.
        body: A JSON object, or the bytes as they are.
        headers: Header fields of the answer.

    Raises:
        TypeError: The object is not JSON.
        ValueError: It has a number that JSON has not.

    Example:
        >>> from loanasync import UnexpectedReplyError
        >>> from loanasync.testing import reply, scripted_client
        >>> shop = scripted_client(reply(201, {"fiscalCode": fiscal_code}), reply(201, b"<html>"))
        >>> created = run(shop.create_request({"fiscalCode": fiscal_code}))
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except UnexpectedReplyError as error:
        ...     print(*error.reasons)
        body: not JSON
    """
    content = body if isinstance(body, bytes) else encode(body)
    return Response(status=status, headers=Headers(headers or {}), body=content)
