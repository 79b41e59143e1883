"""JSON encoding and decoding with orjson, and with the standard library for JSON that orjson refuses.

Without orjson, the standard library reads the same values and writes equivalent JSON.
"""

import json
import re
import sys
from collections.abc import Collection, Mapping
from itertools import accumulate
from typing import Any

from loanasync._models.masking import JSON

try:
    import orjson
except ImportError:  # there are no wheels for PyPy and for free-threaded Pythons
    orjson = None  # type: ignore[assignment]  # a module


class Malformed(Exception):  # noqa: N818  (caught within the package; the public error is another)
    """A body cannot be read. The arguments are paths and reasons without values."""


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _read_integer(digits: str) -> float:
    """Return an integer as orjson does: as a float if it has more than 64 bits."""
    value = int(digits)
    try:
        return value if -(2**63) <= value < 2**64 else float(value)
    except OverflowError:  # orjson refuses it, and the standard library reads it
        return value


def _keep_all(pairs: list[tuple[str, Any]]) -> Any:  # noqa: ANN401  (any JSON)
    members = dict(pairs)
    return members if len(members) == len(pairs) else [{name: value} for name, value in pairs]


_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))
_SORTING_ENCODER = json.JSONEncoder(separators=(",", ":"), sort_keys=True)
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_read_integer)
_ALL_MEMBERS = json.JSONDecoder(
    object_pairs_hook=_keep_all, parse_constant=_refuse_constant, parse_int=_read_integer
)

_MARKS = re.compile(rb"(?:[ \t\r\n]|\xef\xbb\xbf)*")  # byte order marks, of PHP files for example
_MAX_DEPTH = 10_000  # nested brackets; the standard library uses the stack for each level
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?')
_BRACKET = re.compile(rb"[][{}]")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"?|[][{}]')
_OBJECT = re.compile(r"""\{\s*(?:"|\Z)""")
_COLON = re.compile(r"\s*:\s*")
_ESCAPED = re.compile(r"\\u([0-9A-Fa-f]{4})")
_ESCAPED_LETTER = re.compile(rb"\\u00[4-7]")
_MAX_VALUES = 100  # of one name in a part of a body; a response has one
_UNREADABLE = object()  # not equal to any JSON value
# As numbers: if they were bytes, `in` would make an error, drop it, and then take three times as long.
_TAB, _LINE_FEED, _RETURN = b"\t\n\r"
_DEPTH = {"{": 1, "[": 1, "}": -1, "]": -1}


def encode(members: Mapping[str, JSON]) -> bytes:
    """Return a JSON object in UTF-8 without spaces. Unpaired surrogates are escaped.

    Raises:
        ValueError: A number is infinite or NaN.
    """
    return _ENCODER.encode(dict(members)).encode(errors="backslashreplace")


def encode_checked(members: dict[str, JSON]) -> bytes:
    """Encode members that have passed validation. An infinite number or NaN would become null."""
    if orjson is None:
        return encode(members)
    # A copy, because the result of orjson keeps its buffer of 4 or 8 KiB alive during the whole call.
    return bytes(memoryview(orjson.dumps(members)))


def sort_members(body: bytes) -> bytes:
    """Return a JSON body with the members in order, or the same body if that is not possible.

    The result differs between the two libraries, so compare it within one process only.
    """
    try:
        if orjson is None:
            return _SORTING_ENCODER.encode(decode_any(body)).encode()
        return orjson.dumps(orjson.loads(body), option=orjson.OPT_SORT_KEYS)
    except (Malformed, RecursionError, TypeError, ValueError):  # for example nested too deeply
        return body


def decode(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body. The body is read as UTF-8, whatever its header says.

    An integer of more than 64 bits becomes a float.

    Raises:
        Malformed: The body is empty, not UTF-8, not JSON, or not an object.
    """
    members = decode_any(body)
    if not isinstance(members, dict):
        raise Malformed("body: not a JSON object")
    return members


def decode_any(body: bytes) -> Any:  # noqa: ANN401  (any JSON)
    """Return the JSON value in a body, in the same way as `decode`.

    Raises:
        Malformed: The body is empty, not UTF-8, or not JSON.
    """
    value = None
    if orjson is not None:
        try:  # noqa: SIM105  (`suppress` is slower than decoding, and each call gets here)
            value = orjson.loads(body)
        except ValueError:
            pass  # the error quotes the body, so it must not become the context of another one
    if value is None:  # the standard library also accepts unpaired surrogates and a byte order mark
        value = _decode_with(_DECODER, body)
    return value


def repeated_members(body: bytes, members: Mapping[str, Any], names: Collection[str]) -> dict[str, list[Any]]:
    """Return all values of each of these names that a JSON object contains more than once.

    Args:
        body: The body.
        members: The result of `decode`, which only keeps the last value of a name.
        names: The names.

    Raises:
        Malformed: The body cannot be read.
    """
    # Without spaces, each name ends with `":`. Nested objects and texts may have more of them.
    has_spaces = _TAB in body or _LINE_FEED in body or _RETURN in body or body.find(b'" ') >= 0
    dense = body.translate(None, b" \t\r\n") if has_spaces else body
    if dense.count(b'":') == len(members):
        return {}
    found = decode_all(body)
    if not isinstance(found, list):
        return {}
    values = {name: [each[name] for each in found if name in each] for name in names}
    return {name: all_values for name, all_values in values.items() if len(all_values) > 1}


def decode_all(body: bytes) -> Any:  # noqa: ANN401  (any JSON)
    """Return the JSON value in a body, with an object that repeats a name as a list of one-member objects.

    `decode` only keeps the last value of a repeated name.

    Raises:
        Malformed: The body is empty, not UTF-8, or not JSON.
    """
    return _decode_with(_ALL_MEMBERS, body)


def without_marks(body: bytes) -> bytes:
    """Return a body without white space and byte order marks at its beginning."""
    marks = _MARKS.match(body)
    return body if marks is None else body[marks.end() :]


def unescape(body: bytes) -> str:
    """Return a body that is not JSON, or only a part of it, as text without escaped characters."""
    text = body.decode(errors="replace").replace("\0", "")  # UTF-16 has them
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)


def decode_part(part: bytes, name: str) -> list[Any]:
    """Return the values of a member in an incomplete JSON object.

    The list has one item per occurrence of the name. The item is None if the value cannot be read or belongs
    to a nested object. A truncated text ends with "…". If the part is not JSON, the item is an object that is
    not equal to any JSON value. Text before the object, such as a warning of PHP, is ignored. Of a name that
    occurs very often, two such objects are returned.

    Example:
        >>> decode_part(b'{"approved": true, "iban": "IT60', "approved")
        [True]
        >>> decode_part(b'{"approved": true, "iban": "IT60', "iban")
        ['IT60…']
    """
    text = part.decode(errors="replace")
    # An escaped letter may be part of an escaped name, so it counts as an occurrence that cannot be read.
    values: list[Any] = [None] if _ESCAPED_LETTER.search(part) else []
    # All occurrences count, even those that are not names of members because the text is not JSON.
    starts = {match.start() for match in re.finditer(rf'(?<!\\)"{name}"\s*:', text)}
    if not starts:
        return values
    if len(starts) > _MAX_VALUES:  # reading each of them would block the event loop for half a minute
        return [_UNREADABLE] * 2
    expected = len(values) + len(starts)
    has_begun = is_object = False
    depth = 0
    for token in _TOKEN.finditer(text):
        if change := _DEPTH.get(token[0]):
            if not (has_begun or depth) and _OBJECT.match(text, token.start()):
                has_begun = is_object = True
            depth += change
            is_object = is_object and depth > 0
        elif token.start() in starts and (colon := _COLON.match(text, token.end())):
            values.append(_value_at(text, colon.end()) if is_object and depth == 1 else None)
    return values + [_UNREADABLE] * (expected - len(values))


def _value_at(text: str, start: int) -> Any:  # noqa: ANN401  (any JSON)
    try:
        return _DECODER.raw_decode(text, start)[0]
    except (ValueError, RecursionError):  # truncated within the value
        is_text = text[start : start + 1] == '"'
        return text[start + 1 :].partition("\\")[0] + "…" if is_text else None


def _is_too_deep(body: bytes) -> bool:
    brackets = _BRACKET.finditer(_STRING.sub(b"", body))
    depths = accumulate(1 if bracket[0] in b"[{" else -1 for bracket in brackets)
    return any(depth > _MAX_DEPTH for depth in depths)


def _decode_with(decoder: json.JSONDecoder, body: bytes) -> Any:  # noqa: ANN401  (any JSON)
    if not body.strip():
        raise Malformed("body: empty")
    # With a raised recursion limit, Python 3.11 would overflow the C stack and crash.
    if sys.getrecursionlimit() > _MAX_DEPTH and _is_too_deep(body):
        raise Malformed("body: nested too deeply")
    try:
        return decoder.decode(without_marks(body).decode())
    except UnicodeDecodeError:
        reason = "body: not UTF-8"
    except RecursionError:
        reason = "body: nested too deeply"
    except ValueError:  # invalid JSON, NaN, or an integer with thousands of digits
        reason = "body: not JSON"
    raise Malformed(reason)
