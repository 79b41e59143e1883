"""Parsing of forms sent to the sandbox; each field must be known and given once."""

from aiohttp import web

_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_QUERY = ("personal",)  # whether a page shows personal data


async def read_form(request: web.Request, *known: str) -> dict[str, str]:
    """Return the fields of a form.

    Unexpected fields are errors: if they were ignored, the call would apply to all customers.

    Args:
        request: The POST request.
        known: Names of the allowed fields; empty for a POST without fields.

    Raises:
        HTTPBadRequest: The body is not a form, or has an unknown, repeated or unreadable field. The message
            says what to send.
    """
    try:
        posted = await request.post()
    except (LookupError, ValueError):  # an unknown encoding, a missing boundary
        posted = None
    sent = list((posted or {}).items())
    names = [name for name, _ in sent] + [name for name in request.query if name not in _QUERY]
    is_form = request.content_type in _FORMS or not await request.read()
    fields = {name: value for name, value in sent if isinstance(value, str)}
    if posted is None or not is_form or sorted(names) != sorted(fields) or not fields.keys() <= {*known}:
        wanted = (
            f"a form with each of these fields at most once: {', '.join(known)}" if known else "no fields"
        )
        raise web.HTTPBadRequest(text=f"unexpected body or field: send {wanted}")
    return fields
