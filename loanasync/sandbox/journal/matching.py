"""Which calls a test means, and how far the others are from it, field by field."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from loanasync.sandbox.journal.entry import Entry
from loanasync.sandbox.journal.masking import MASK, shown
from loanasync.sandbox.linter import RULES
from loanasync.sandbox.outcomes import FAULTS, nearest
from loanasync.sandbox.rules import OPERATIONS

_TYPES: Mapping[str, tuple[type, ...]] = {
    "number": (int,),
    "at": (int, float),
    "method": (str,),
    "route": (str,),
    "operation": (str,),
    "fiscal_code": (str,),
    "status": (int, type(None)),
    "elapsed": (int, float),
    "evaluated": (bool,),
    "fault": (str,),
    "body": (Mapping,),
    "answer": (Mapping, list, type(None)),
    "findings": (tuple,),
    "canned": (bool,),
}
_KNOWN: Mapping[str, Iterable[str]] = {"operation": OPERATIONS, "findings": RULES, "fault": FAULTS}
_BY_RULE = re.compile("[2-5][0-9]{2}(before|after)")  # a status that a rule answers
_PERSONAL = ("fiscal_code", "answer")
_NEAREST = 3
_ABSENT = object()


class Criteria:
    """Attributes of an entry that are wanted, and fields of its body.

    Raises:
        TypeError: There is no attribute of that name, or it is never of that type.
        ValueError: There is no operation of that name.
    """

    def __init__(self, wanted: Mapping[str, Any]) -> None:
        self._attributes = {name: _checked(name, value) for name, value in wanted.items()}
        self._body = cast("Mapping[str, Any]", self._attributes.pop("body", {}))

    def met_by(self, entry: Entry) -> bool:
        """Whether a call is meant."""
        return next(self._differences(entry), None) is None

    def nearest(self, entries: Sequence[Entry]) -> str:
        """The calls that miss the criteria by the least, with what they miss."""
        if not entries:
            return "There were no calls at all."
        missed = [(list(self._differences(entry)), entry) for entry in entries]
        # A call of another operation is farther away than any of this one.
        missed.sort(key=lambda each: (any(said.startswith("operation ") for said in each[0]), len(each[0])))
        told = [f"  {entry!r}: {'; '.join(said)}" for said, entry in missed if said][:_NEAREST]
        if not told:
            return "No other call came."
        return "The nearest:\n" + "\n".join(told)

    def __str__(self) -> str:
        named = [
            f"{name}={MASK if name in _PERSONAL else repr(value)}" for name, value in self._attributes.items()
        ]
        named += [f"body.{name}={_told(name, value)}" for name, value in self._body.items()]
        return ", ".join(named) or "any criteria"

    def _differences(self, entry: Entry) -> Iterator[str]:
        for name, wanted in self._attributes.items():
            found = getattr(entry, name)
            if name == "fiscal_code":
                found = found.strip().upper()
            if found != wanted:
                personal = name in _PERSONAL
                yield f"{name} is another" if personal else f"{name} is {found!r}, wanted {wanted!r}"
        sent = entry.request or {}
        for name, wanted in self._body.items():
            found = sent.get(name, _ABSENT)
            if found is _ABSENT:
                yield f"body.{name} is absent"
            elif found != wanted or isinstance(found, bool) is not isinstance(wanted, bool):
                told, wish = _told(name, found), _told(name, wanted)
                yield f"body.{name} is " + ("another" if MASK in (told, wish) else f"{told}, wanted {wish}")


def _checked(name: str, value: object) -> object:
    if name not in _TYPES:
        raise TypeError(f"calls have no {name!r}, did you mean {nearest(name, _TYPES)!r}?")
    if name == "findings":
        value = (value,) if isinstance(value, str) else tuple(cast("Iterable[str]", value))
    types = _TYPES[name]
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        wanted = " or ".join("None" if each is type(None) else each.__name__ for each in types)
        raise TypeError(f"{name} of a call is {wanted}, never {type(value).__name__}")
    if name in ("fiscal_code", "method"):
        return str(value).strip().upper()  # as clients send them
    if name in _KNOWN:
        # With a name that no call has, `assert_never` would always pass. Empty: no fault, any other path.
        for each in value if isinstance(value, tuple) else (value,):
            if each not in ("", *_KNOWN[name]) and not (name == "fault" and _BY_RULE.fullmatch(str(each))):
                raise ValueError(f"{name} {each!r} is unknown, did you mean {nearest(each, _KNOWN[name])!r}?")
    return value


def _told(name: str, value: object) -> str:
    told = shown(name, value)
    return MASK if told == MASK else repr(told)
