"""Rules for values, as data. Their `check` returns a `Violation` if the value is invalid, else None.

For speed, `checker` first checks all values of a model at once: texts with one regular expression, numbers
with ranges. `quick` returns the part of a rule in it. A value that it does not accept may be valid: `check`
decides.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from functools import lru_cache, partial
from itertools import compress
from operator import attrgetter
from types import NoneType
from typing import Literal, TypeAlias

from attrs import evolve, field, frozen

from loanasync._models.characters import is_blank, normal_form, seen
from loanasync._models.decisions import Problem
from loanasync._models.enumerations import (
    Citizenship,
    DocumentType,
    EducationalQualification,
    Residence,
    SalaryType,
)
from loanasync._models.masking import ReadOnlyDict, ValueObject
from loanasync._models.texts import Param

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # line breaks are among them
NUL = r"\x00"
_SURROGATE = re.compile("[\ud800-\udfff]")
INT64 = range(-(2**63), 2**63)  # JSON parsers round or refuse integers outside of this range
_ENUMERATIONS = frozenset({Citizenship, DocumentType, EducationalQualification, Residence, SalaryType})
# An expression that means the same in a line of the joined texts: without flags, lookarounds and references.
_SIMPLE = re.compile(r"(?:[^\\(]|\((?!\?)|\\[dsw.+/-])*")

# A condition that only valid values of a type meet: a regular expression for a line, a range, or True if all
# values are valid; None if only `check` can decide.
Quick: TypeAlias = str | range | Literal[True] | None

# Missing values of pandas, by the name of their type, so that pandas need not be installed.
_MISSING_VALUE_TYPES = {"NAType": "NA", "NaTType": "NaT"}


def missing_value_name(value: object) -> str | None:
    """Return the name of a missing value of pandas or NumPy: NaN, NA or NaT; None for other values."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return _MISSING_VALUE_TYPES.get(type(value).__name__)


def type_name(value: object) -> str:
    """Return the name of a value's type for a message, which must not contain the value."""
    # A NumPy bool or number is printed like a Python one, so the message names its package.
    package = "numpy." if type(value).__module__ == "numpy" else ""
    return missing_value_name(value) or f"{package}{type(value).__name__}"


def _plain_texts(values: Iterable[str]) -> tuple[str, ...]:
    """Return members of enumerations as plain str."""
    return tuple(map(str, values))


@frozen(eq=False, repr=False)
class Violation(ValueObject):
    """A rule that a value breaks, without the value.

    Args:
        rule: Name of the rule, which ends the code of the problem.
        message: Description for everybody.
        hint: Advice for the developer.
        params: The values in the texts.
    """

    rule: str
    message: str
    hint: str = ""
    params: Mapping[str, Param] = ReadOnlyDict()

    def with_hints(self, *hints: str) -> "Violation":
        """Return the violation with further hints; empty ones are left out."""
        return evolve(self, hint=_joined(self.hint, *hints))

    def problem(self, field: str, wire_name: str) -> Problem:
        """Return the violation as the problem of a field."""
        return Problem(field, wire_name, self.message, f"{field}.{self.rule}", self.params, self.hint)

    def __str__(self) -> str:
        return _joined(self.message, self.hint)


def _joined(*sentences: str) -> str:
    return "; ".join(filter(None, sentences))


_REQUIRED = Violation("required", "is required")


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    return None if pattern is None else re.compile(pattern)


@frozen(eq=False, repr=False)
class Text(ValueObject):
    """The rule for a text: a str that is not blank, that UTF-8 can encode, and that has the right form.

    Rules see a text as a person does: `seen` returns it.

    Args:
        pattern: Regular expression that the whole text must match; None accepts every text.
        meaning: Form of a text that matches `pattern`, for the message.
        format_hint: Advice for a text that does not match `pattern`.
        excluded: Regular expression that must not match any part of the text in NFKC; None excludes nothing.
        exclusion: Violation of a text that contains `excluded`.
        hint: Returns advice for a value that is not a text, or an empty str.
        may_be_blank: Accept empty texts and texts of spaces.
    """

    pattern: re.Pattern[str] | None = field(default=None, converter=_compiled)
    meaning: str = ""
    format_hint: str = ""
    excluded: re.Pattern[str] | None = field(default=None, converter=_compiled)
    exclusion: Violation | None = None
    hint: Callable[[object], str] = lambda _: ""
    may_be_blank: bool = False

    def check(self, value: object) -> Violation | None:
        # For speed: a printable ASCII text has no surrogates, control characters or invisible characters.
        if (
            type(value) is not str
            or not (value.isascii() and value.isprintable())
            or not (value.strip() or self.may_be_blank)
        ):
            violation = self._check_text(value)
            if violation is not None:
                return violation.with_hints(self.hint(value))
            value = seen(str(value))
        if self.excluded is not None and self.excluded.search(normal_form("NFKC", value)):
            return self.exclusion
        if self.pattern is None or self.pattern.fullmatch(value):
            return None
        params = {"pattern": self.pattern.pattern}
        return Violation("format", f"must be {self.meaning}", self.format_hint, params)

    def quick(self, kind: type) -> Quick:
        if kind is not str or (self.pattern is not None and not _SIMPLE.fullmatch(self.pattern.pattern)):
            return None
        # Printable ASCII only: such a text is what a person sees.
        line = "[ -~]*" if self.may_be_blank else " *[!-~][ -~]*"
        if self.pattern is not None:
            line = f"(?={line}$)(?:{self.pattern.pattern})"
        return line if self.excluded is None else rf"(?![^\n]*(?:{self.excluded.pattern})){line}"

    def _check_text(self, value: object) -> Violation | None:
        if value is None:
            return _REQUIRED
        if not isinstance(value, str):
            return Violation("type", "must be text", f"use a str, not {type_name(value)}")
        if not self.may_be_blank and is_blank(value):
            return Violation("blank", "must not be blank")
        if _SURROGATE.search(value):
            return Violation("encoding", "must not contain an unpaired surrogate, which UTF-8 cannot encode")
        return HAS_NUL if "\0" in value else None


HAS_NUL = Violation("control_characters", "must not contain a NUL character")


def check_text(value: object) -> Violation | None:
    """Check a setting or a code, which is used in URLs and headers: a text without control characters."""
    violation = _TEXT.check(value)
    if violation is None and CONTROL.search(str(value)):
        return Violation("control_characters", "must not contain line breaks or other control characters")
    return violation


_TEXT = Text()


@frozen(eq=False, repr=False)
class Choice(ValueObject):
    """The rule for a value of an enumeration.

    Args:
        options: The values that are accepted.
    """

    options: tuple[str, ...] = field(converter=_plain_texts)

    def quick(self, kind: type) -> Quick:
        is_usual = kind is str or kind in _ENUMERATIONS
        return f"(?:{'|'.join(map(re.escape, self.options))})" if is_usual else None

    def check(self, value: object) -> Violation | None:
        if value is None:
            return _REQUIRED
        if isinstance(value, str) and value in self.options:
            return None
        hint = "" if isinstance(value, str) else f"use a str, not {type_name(value)}"
        return Violation(
            "choice", f"must be one of {', '.join(self.options)}", hint, {"options": self.options}
        )


@frozen(eq=False, repr=False)
class Number(ValueObject):
    """The rule for an int in a range. It refuses True and 12.0.

    Args:
        least: The smallest number that is accepted.
        most: The largest number that is accepted.
        unit: Unit of the number, for the message; empty for a count.
        hint: Advice for a value of another type, if the number is an amount of money.
    """

    least: int
    most: int
    unit: str = ""
    hint: str = ""

    def quick(self, kind: type) -> Quick:
        return range(self.least, self.most + 1) if kind is int else None

    def check(self, value: object) -> Violation | None:
        if type(value) is int and self.least <= value <= self.most:
            return None
        number = f"a whole number between {self.least} and {self.most}{_in_brackets(self.unit)}"
        params = {"least": self.least, "most": self.most}
        if value is None:
            return Violation("required", f"is required: {number}", params=params)
        if type(value) is int:
            return Violation("range", f"must be {number}", params=params)
        return Violation("type", f"must be {number}", _int_hint(value, self.hint), params)


@frozen(eq=False, repr=False)
class Integer(ValueObject):
    """The rule for an int without a range. It checks the type and that the value fits into 64 bits.

    Args:
        unit: Unit of the number, for the message.
        hint: Advice for a value of another type, if the number is an amount of money.
    """

    unit: str
    hint: str = ""

    def quick(self, kind: type) -> Quick:
        return INT64 if kind is int else None

    def check(self, value: object) -> Violation | None:
        if type(value) is int:
            is_too_long = value not in INT64
            return Violation("digits", "must be a number of at most 64 bits") if is_too_long else None
        number = f"a whole number{_in_brackets(self.unit)}"
        return Violation("type", f"must be {number}", _int_hint(value, self.hint))


def _in_brackets(unit: str) -> str:
    return f" ({unit})" if unit else ""


def _int_hint(value: object, hint: str) -> str:
    # The models have converted all other exact integers, such as those of NumPy.
    # Numbers with a hint are amounts of money: int(...) could take euros for cents.
    advice = "" if _is_missing(value) else hint
    if not hint and isinstance(value, str) and value.strip().isdecimal():
        advice = "convert it with int(...)"
    return _joined(f"use an int, not {type_name(value)}", advice)


@frozen(eq=False, repr=False)
class Boolean(ValueObject):
    """The rule for a bool; 1, "true" and NumPy's bool are refused."""

    def quick(self, kind: type) -> Quick:
        return True if kind is bool else None

    def check(self, value: object) -> Violation | None:
        if type(value) is bool:
            return None
        return Violation("yes_no", "must be true or false", f"use a bool, not {type_name(value)}")


@frozen(eq=False, repr=False)
class Day(ValueObject):
    """The rule for a date without a time."""

    def quick(self, kind: type) -> Quick:
        return True if kind is date else None

    def check(self, value: object) -> Violation | None:
        if missing_value_name(value) or not isinstance(value, date):  # NaT of pandas is an instance of date
            advice = "convert it with date.fromisoformat(...)" if isinstance(value, str) else ""
            hint = _joined(f"use a datetime.date, not {type_name(value)}", advice)
            return Violation("date", "must be a date", hint)
        if isinstance(value, datetime):
            return Violation("time", "must be a date without a time", "convert it with .date()")
        return None


ValueRule: TypeAlias = Text | Choice | Number | Integer | Boolean | Day


@frozen(eq=False, repr=False)
class Optional(ValueObject):
    """The rule for a field that may be None.

    Args:
        rule: The rule for all other values.
    """

    rule: ValueRule

    def quick(self, kind: type) -> Quick:
        return True if kind is NoneType else self.rule.quick(kind)


Rule: TypeAlias = ValueRule | Optional


def checker(rules: Mapping[str, Rule]) -> Callable[..., list[Problem]]:
    """Return a function that returns the problems of a model, in the order of its fields.

    Its arguments are the model, the wire names by field, and the violation of an optional field that is None,
    by default none.
    """
    checks = [
        (name, (rule.rule if isinstance(rule, Optional) else rule).check, isinstance(rule, Optional))
        for name, rule in rules.items()
    ]
    is_valid = quick_checker(rules)

    def check(model: object, names: Mapping[str, str], missing: Violation | None = None) -> list[Problem]:
        if missing is None and is_valid(model):
            return []
        problems = []
        for name, check_value, is_optional in checks:
            value = getattr(model, name)
            violation = missing if value is None and is_optional else check_value(value)
            if violation is not None:
                if is_optional and _is_missing(value):
                    violation = violation.with_hints("use None for missing values")
                problems.append(violation.problem(name, names[name]))
        return problems

    return check


def quick_checker(rules: Mapping[str, Rule]) -> Callable[[object], bool]:
    """Return a function that accepts only valid models. A model that it does not accept may be valid.

    The names of fields may be those of a nested model: ``additional.salary``.
    """
    values_of = attrgetter(*rules)  # returns a tuple, because all models have several fields
    plan_of = lru_cache(maxsize=64)(partial(_plan, tuple(rules.values())))

    def is_valid(model: object) -> bool:
        values = values_of(model)
        try:
            plan = plan_of(tuple(map(type, values)))
        except TypeError:  # the class of a value is not hashable
            return False
        if plan is None:
            return False
        in_text, breaks, matches, numbers = plan
        text = "\n".join(compress(values, in_text))
        # If a text contained a line break, an expression could match a part of it, or of the next text.
        if text.count("\n") != breaks or matches(text) is None:
            return False
        for at, least, most in numbers:  # noqa: SIM110  (`all` would make a call for each number)
            if not least <= values[at] <= most:
                return False
        return True

    return is_valid


# Which values are texts, the number of line breaks between these, and the match of all of them; index and
# limits of each number.
_Plan: TypeAlias = tuple[list[bool], int, Callable[[str], object], list[tuple[int, int, int]]]


def _plan(rules: tuple[Rule, ...], kinds: tuple[type, ...]) -> _Plan | None:
    """Return how values of these types are checked; None if a type is unusual."""
    parts = [rule.quick(kind) for rule, kind in zip(rules, kinds, strict=True)]
    if None in parts:
        return None
    lines = [part for part in parts if isinstance(part, str)]
    return (
        [isinstance(part, str) for part in parts],
        max(len(lines) - 1, 0),
        # With MULTILINE, `^` and `$` match at the ends of each line.
        re.compile(r"\n".join(lines), re.MULTILINE).fullmatch,
        [(at, part[0], part[-1]) for at, part in enumerate(parts) if isinstance(part, range)],
    )


def _is_missing(value: object) -> bool:
    """Return True for a missing value of pandas or NumPy, and for an empty field of a form."""
    return missing_value_name(value) is not None or (isinstance(value, str) and is_blank(value))
