"""Which calls of the journal a program asks for over HTTP: the words of a query as criteria."""

from collections.abc import Callable, Mapping

from loanasync.sandbox.outcomes import nearest


def read_filters(query: Mapping[str, str]) -> dict[str, object]:
    """Criteria for `Journal.calls`.

    Raises:
        ValueError: There is no such filter, or it cannot have this value; the text names the nearest.
    """
    criteria: dict[str, object] = {}
    for name, text in query.items():
        if name in criteria:
            raise ValueError(f"filter {name!r} is given twice: ask once for each value")
        reader = _READERS.get(name)
        if reader is None:
            raise ValueError(f"calls have no filter {name!r}, did you mean {nearest(name, _READERS)!r}?")
        criteria[name] = reader(name, text)
    return criteria


def _text(_: str, text: str) -> str:
    return text


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} {text!r} must be a whole number") from None


def _status(name: str, text: str) -> int | None:
    return None if text == "none" else _number(name, text)  # none: a fault left nothing to answer


def _truth(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{name} {text!r} must be true or false")
    return text == "true"


_READERS: Mapping[str, Callable[[str, str], object]] = {
    "number": _number,
    "method": _text,
    "route": _text,
    "operation": _text,
    "fiscal_code": _text,
    "status": _status,
    "evaluated": _truth,
    "fault": _text,
}
