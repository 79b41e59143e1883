"""Validators for kinds of values: each returns a sentence that says what is wrong, or None."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from typing import SupportsIndex

from attrs import frozen

Rule = Callable[[object], str | None]

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # line breaks are among them
_SURROGATE = re.compile("[\ud800-\udfff]")
_INT64 = range(-(2**63), 2**63)  # JSON parsers round integers outside of this range, or refuse them


# What pandas has in the place of a value that is not there, by the names of its types: it need not be here.
_NOTHINGS = {"NAType": "NA", "NaTType": "NaT"}


def nothing(value: object) -> str | None:
    """What a table calls this, if it stands where a table has no value."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return _NOTHINGS.get(type(value).__name__)


def kind(value: object) -> str:
    """Name a value's type; the value itself may be personal."""
    # numpy has a bool and numbers of its own, which look like Python's wherever they are printed.
    from_numpy = "numpy." if type(value).__module__ == "numpy" else ""
    return nothing(value) or f"{from_numpy}{type(value).__name__}"


def are_texts(found: Sequence[object]) -> bool:
    """Whether all are right texts, which they nearly always are: one look at all costs as much as at one."""
    try:
        return "".join(found).isprintable() and all(map(str.strip, found))  # type: ignore[arg-type]
    except TypeError:
        return False


@frozen
class Text:
    """The rule for a text: a str that UTF-8 can encode, not blank, and any further condition.

    Args:
        own: Returns what else is wrong with a text, or None.
        hint: Returns what to add to the message for a value.
        may_be_blank: Accept an empty text and one of spaces only.
        single_line: Refuse line breaks and other control characters.
    """

    own: Callable[[str], str | None] | None = None
    hint: Callable[[object], str] = lambda _: ""
    may_be_blank: bool = False
    single_line: bool = False

    def __call__(self, value: object) -> str | None:
        wrong = self._no_text(value)
        if wrong is None and self.own is not None:
            wrong = self.own(str(value))
        return None if wrong is None else wrong + self.hint(value)

    def _no_text(self, value: object) -> str | None:
        if value is None:
            return "is required"
        if not isinstance(value, str):
            return f"must be a str, not {kind(value)}"
        if not self.may_be_blank and not value.strip():
            return "must not be blank"
        if _SURROGATE.search(value):
            return "must not hold half of a surrogate pair, which UTF-8 cannot encode"
        if self.single_line and _CONTROL.search(value):
            return "must not hold line breaks or other control characters"
        return None


def matching(
    pattern: str, meaning: str, hint: Callable[[object], str] = lambda _: "", *, single_line: bool = False
) -> Text:
    """Return the rule for a text that the pattern matches as a whole."""
    matches = re.compile(pattern).fullmatch
    return Text(lambda value: None if matches(value) else f"must be {meaning}", hint, single_line=single_line)


text = Text(single_line=True)  # for settings and codes, which go into addresses and headers


def choice(allowed: Iterable[str], hint: str = "") -> Rule:
    """One of the wire values of an enumeration."""
    options = tuple(allowed)

    def rule(value: object) -> str | None:
        if value is None:
            return "is required"
        if isinstance(value, str) and value in options:
            return None
        return f"must be one of {', '.join(options)}{hint}"

    return rule


def number(least: int, most: int, unit: str, hint: str = "") -> Rule:
    """A whole number in a range; True is no number, and 12.0 is none either."""
    span = f"between {least} and {most}"

    def rule(value: object) -> str | None:
        if value is None:
            return f"is required: {unit} as an int, {span}"
        if type(value) is not int:
            return f"must be an int, not {kind(value)}: {unit}, {span}{_remedy(value, hint)}"
        return None if least <= value <= most else f"must be {span} {unit}"

    return rule


def integer(unit: str, hint: str = "") -> Rule:
    """Return the rule for a whole number without a range: only its type and its size are checked."""

    def rule(value: object) -> str | None:
        if type(value) is not int:
            return f"must be an int, not {kind(value)}: {unit}{_remedy(value, hint)}"
        return None if value in _INT64 else f"must be {unit} as an int of at most 64 bits"

    return rule


def _remedy(value: object, hint: str) -> str:
    is_whole = isinstance(value, SupportsIndex) and not isinstance(value, bool)
    return "; int(...) makes one of it" if is_whole else hint


day_of_month = number(1, 31, "day of the month")


def boolean(value: object) -> str | None:
    """True or False, and nothing that merely looks so."""
    return None if type(value) is bool else f"must be True or False, not {kind(value)}"


def day(value: object) -> str | None:
    """A date without a time."""
    if nothing(value) or not isinstance(value, date):  # pandas' NaT is a date by its type
        return f"must be a datetime.date, not {kind(value)}"
    return "must be a date without a time: take its .date()" if isinstance(value, datetime) else None
