"""JSON encoding and decoding: with orjson, and with the standard library for JSON that orjson refuses."""

import json
import re
import sys
from collections.abc import Collection, Mapping
from itertools import accumulate
from typing import Any

import orjson

from loanasync._display.masking import JSON


class Malformed(Exception):  # noqa: N818  (caught within the package; the public error is another)
    """A body that is not what the specification says; its arguments are paths and reasons, no values."""


def _no_constant(name: str) -> None:
    raise ValueError(name)


_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(parse_constant=_no_constant)
_PAIRS = json.JSONDecoder(object_pairs_hook=list)

_DEEPEST = 10_000  # brackets within brackets: the standard library needs some of the stack for each
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?')
_BRACKET = re.compile(rb"[][{}]")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"?|[][{}]')
_COLON = re.compile(r"\s*:\s*")
_ESCAPED_LETTER = re.compile(r"\\u00[4-7]")
_NO_MEMBER = object()  # equal to no JSON value
_DEPTH = {"{": 1, "[": 1, "}": -1, "]": -1}


def encode(members: Mapping[str, JSON]) -> bytes:
    """A JSON object as UTF-8, without spaces; half of a surrogate pair, which `decode` reads, is escaped.

    Raises:
        ValueError: A number that JSON does not have.
    """
    return _ENCODER.encode(dict(members)).encode(errors="backslashreplace")


def encode_checked(members: dict[str, JSON]) -> bytes:
    """`encode` for members of checked types: a number that JSON does not have would become null."""
    # A copy, since orjson's own keeps the 4 or 8 KiB in which it was written, for as long as the call takes.
    return bytes(memoryview(orjson.dumps(members)))


def decode(body: bytes) -> dict[str, Any]:
    """The JSON object in a body, whatever charset its header claims (JSON is UTF-8).

    An integer of more than 64 bits becomes a float.

    Raises:
        Malformed: The body is empty, not UTF-8, not JSON, or not an object.
    """
    members = decode_any(body)
    if not isinstance(members, dict):
        raise Malformed("body: not a JSON object")
    return members


def decode_any(body: bytes) -> Any:  # noqa: ANN401  (any JSON)
    """The JSON value in a body, read as `decode` reads an object.

    Raises:
        Malformed: The body is empty, not UTF-8, or not JSON.
    """
    value = None
    try:  # noqa: SIM105  (each call comes here, and `suppress` costs more than the reading)
        value = orjson.loads(body)
    except ValueError:
        pass  # nothing is raised where that error, which quotes the body, would be its context
    if value is None:  # such as half of a surrogate pair or a byte order mark, which the other library reads
        # Python 3.11 ends where its stack does, if somebody has raised its recursion limit.
        if sys.getrecursionlimit() > _DEEPEST and _is_too_deep(body):
            raise Malformed("body: nested too deeply")
        value = _decoded(_DECODER, body)
    return value


def repeated(body: bytes, names: Collection[bytes]) -> dict[str, list[Any]]:
    """Return all values of those names that a JSON object has more than once: `decode` keeps the last.

    Raises:
        Malformed: As for `decode`.
    """
    if b"\\" not in body or b"\\u" not in body:  # as which a name may come, too; one byte is found faster
        for name in names:
            if body.count(name) > 1:
                break
        else:
            return {}
    values: dict[str, list[Any]] = {name.decode(): [] for name in names}
    for name, value in _decoded(_PAIRS, body):
        if name in values:
            values[name].append(value)
    return {name: found for name, found in values.items() if len(found) > 1}


def has_repeated_names(body: bytes) -> bool:
    """Return True if an object in a JSON body, at any level, has a name more than once.

    Raises:
        Malformed: As for `decode`.
    """
    found = False

    def look(pairs: list[tuple[str, Any]]) -> None:
        nonlocal found
        found = found or len({name for name, _ in pairs}) < len(pairs)

    _decoded(json.JSONDecoder(object_pairs_hook=look), body)
    return found


def decode_part(part: bytes, name: str) -> list[Any]:
    """Return the values of a member that stand in a part of a JSON object, at its top level.

    A value that cannot be read, or that is another object's, is None. A text that is cut off ends with "…".
    Where the name is within a text that is no JSON, the value is an object that equals nothing.

    Example:
        >>> decode_part(b'{"approved": true, "iban": "IT60', "approved")
        [True]
        >>> decode_part(b'{"approved": true, "iban": "IT60', "iban")
        ['IT60…']
    """
    text = part.decode("utf-8-sig", errors="replace")
    found: list[Any] = [None] if _ESCAPED_LETTER.search(text) else []  # which may be in a name, too
    # Each of them counts, also where it is no name of a member, as in a text that is no JSON.
    starts = {match.start() for match in re.finditer(rf'(?<!\\)"{name}"\s*:', text)}
    if not starts:
        return found
    expected = len(found) + len(starts)
    is_object = text.lstrip()[:1] == "{"
    depth = 0
    for token in _TOKEN.finditer(text):
        if change := _DEPTH.get(token[0]):
            depth += change
            is_object = is_object and depth > 0
        elif token.start() in starts and (colon := _COLON.match(text, token.end())):
            found.append(_value_at(text, colon.end()) if is_object and depth == 1 else None)
    return found + [_NO_MEMBER] * (expected - len(found))


def _value_at(text: str, start: int) -> Any:  # noqa: ANN401  (any JSON)
    try:
        return _DECODER.raw_decode(text, start)[0]
    except (ValueError, RecursionError):  # cut off within the value
        is_text = text[start : start + 1] == '"'
        return text[start + 1 :].partition("\\")[0] + "…" if is_text else None


def _is_too_deep(body: bytes) -> bool:
    brackets = _BRACKET.finditer(_STRING.sub(b"", body))
    depths = accumulate(1 if bracket[0] in b"[{" else -1 for bracket in brackets)
    return any(depth > _DEEPEST for depth in depths)


def _decoded(decoder: json.JSONDecoder, body: bytes) -> Any:  # noqa: ANN401  (any JSON)
    if not body.strip():
        raise Malformed("body: empty")
    try:
        return decoder.decode(body.decode("utf-8-sig"))
    except UnicodeDecodeError:
        reason = "body: not UTF-8"
    except RecursionError:
        reason = "body: nested too deeply"
    except ValueError:  # JSON errors, NaN, integers of thousands of digits
        reason = "body: not JSON"
    raise Malformed(reason)
