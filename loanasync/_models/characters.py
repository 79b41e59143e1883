"""Texts as a person sees them, for rules, forms and the comparison of requests. A body has the typed texts.

A separate module, because forms, rules and digests use it, and lie in three layers.
"""

import json
import re
from itertools import groupby
from typing import Literal
from unicodedata import category, combining, normalize

# Marks that show nothing, although they are not format characters: variation selectors and joiners.
_INVISIBLE_MARKS = re.compile("[\u034f\u17b4\u17b5\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_FILLERS = re.compile("[\u115f\u1160\u3164\uffa0\u2800]")  # blank characters of Hangul and Braille
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LONG = re.compile(r"[^\0-\x7f]{50,}")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+":?')  # in JSON without spaces; a name ends with a colon


def seen(text: str) -> str:
    r"""Return a text in NFC, without invisible characters, and with spaces for other blank characters.

    Example:
        >>> seen("An\u200bna"), seen("Forli\u0300") == "Forl\u00ec", seen("\u3164")
        ('Anna', True, ' ')
    """
    if text.isascii():
        return text
    if not text.isprintable():
        text = "".join(each for each in text if category(each) != "Cf")
    return _FILLERS.sub(" ", normal_form("NFC", _INVISIBLE_MARKS.sub("", text)))


def normal_form(form: Literal["NFC", "NFKC"], text: str) -> str:
    """Return a text in a normal form, in linear time.

    Python puts a sequence of combining marks in order in quadratic time, so a text of a shopper could block
    the event loop. Marks that are in order already take linear time.
    """
    decomposed: Literal["NFD", "NFKD"] = "NFD" if form == "NFC" else "NFKD"

    def in_order(found: re.Match[str]) -> str:
        letters = "".join(normalize(decomposed, each) for each in found[0])
        parts = (
            sorted(part, key=combining) for _, part in groupby(letters, key=lambda each: not combining(each))
        )
        return "".join(map("".join, parts))

    return normalize(form, _LONG.sub(in_order, text))


def is_blank(text: str) -> bool:
    """Return True for a text in which a person sees nothing."""
    return not _CONTROL.sub("", seen(text)).strip()


def seen_body(body: bytes) -> bytes:
    """Return a JSON body (without spaces) with its texts as `seen` returns them, to compare two bodies."""
    if body.isascii():
        return body
    text = body.decode()
    if seen(text) == text:
        return body
    return _STRING.sub(_seen_value, text).encode(errors="backslashreplace")  # as `_protocol.json` does


def _seen_value(found: re.Match[str]) -> str:
    string = found[0]
    if string.isascii() or string.endswith(":"):
        return string
    return json.dumps(seen(json.loads(string)), ensure_ascii=False)
