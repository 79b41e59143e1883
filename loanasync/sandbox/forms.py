"""Parsing of forms and queries sent to the sandbox; each field must be known and given once."""

from collections.abc import Mapping

from aiohttp import web

from loanasync.sandbox.outcomes import nearest

_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_QUERY = ("personal",)  # whether a page shows personal data
_FILTERS = ("number", "method", "route", "operation", "fiscal_code", "status", "evaluated", "fault")


async def read_form(request: web.Request, *known: str) -> dict[str, str]:
    """Return the fields of a form.

    Unknown fields are errors: if they were ignored, the call would apply to all customers or rules.

    Args:
        request: The POST request.
        known: Names of the allowed fields; empty for a POST without fields.

    Raises:
        HTTPBadRequest: The body is not a form, or has an unknown, repeated or unreadable field. The message
            says what to send.
    """
    if request.content_type not in _FORMS and await request.read():
        raise web.HTTPBadRequest(text=f"send {_wanted(known)}, not {request.content_type}")
    for name in request.query:
        if name not in _QUERY:
            raise web.HTTPBadRequest(text=f"unknown query parameter {name!r}: send {_wanted(known)}")
    try:
        posted = await request.post()
    except (LookupError, ValueError):  # an unknown encoding, a missing boundary
        raise web.HTTPBadRequest(text=f"the body is not a form: send {_wanted(known)}") from None
    return _checked(posted, known)


def _checked(posted: Mapping[str, object], known: tuple[str, ...]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for name, value in posted.items():
        if not known:
            raise web.HTTPBadRequest(text=f"this POST applies to everything and has no field {name!r}")
        if name not in known:
            raise web.HTTPBadRequest(text=f"unknown field {name!r}, did you mean {nearest(name, known)!r}?")
        if name in fields:
            raise web.HTTPBadRequest(text=f"field {name!r} is given twice: send one POST for each value")
        if not isinstance(value, str):
            raise web.HTTPBadRequest(text=f"field {name!r} is a file: send text")
        fields[name] = value
    return fields


def _wanted(known: tuple[str, ...]) -> str:
    return f"a form with the field {known[0]!r}" if known else "no fields"


def read_filters(query: Mapping[str, str]) -> dict[str, object]:
    """Return the criteria for `Journal.calls` from a query.

    Raises:
        ValueError: A filter is unknown, repeated or has an invalid value.
    """
    criteria: dict[str, object] = {}
    for name, text in query.items():
        if name in criteria:
            raise ValueError(f"filter {name!r} is given twice: send one request for each value")
        if name not in _FILTERS:
            raise ValueError(f"unknown filter {name!r}, did you mean {nearest(name, _FILTERS)!r}?")
        criteria[name] = _criterion(name, text)
    return criteria


def _criterion(name: str, text: str) -> object:
    if name == "evaluated":
        if text not in ("true", "false"):
            raise ValueError(f"{name} {text!r} must be true or false")
        return text == "true"
    if name == "status" and text == "none":  # a fault left no response
        return None
    if name in ("number", "status"):
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"{name} {text!r} must be a whole number") from None
    return text
