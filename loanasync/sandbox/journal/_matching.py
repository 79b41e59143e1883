"""Which calls a test means, and how far the others are from it, field by field."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import fields

from loanasync.sandbox.journal._entry import Entry
from loanasync.sandbox.journal._masking import is_shown

__all__ = ["Criteria"]

_NAMES = frozenset(each.name for each in fields(Entry)) - {"request"} | {"body"}
_PERSONAL = ("fiscal_code", "answer")
_NEAREST = 3
_ABSENT = object()


class Criteria:
    """Attributes of an entry that are wanted, and fields of its body.

    Raises:
        TypeError: There is no attribute of that name.
    """

    def __init__(self, wanted: Mapping[str, Any]) -> None:
        for name in wanted:
            if name not in _NAMES:
                near = difflib.get_close_matches(name, sorted(_NAMES), n=1, cutoff=0.0)[0]
                raise TypeError(f"calls have no {name!r}, did you mean {near!r}?")
        self._body: Mapping[str, Any] = wanted.get("body", {})
        self._attributes = {name: value for name, value in wanted.items() if name != "body"}

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
            f"{name}={_told(value, hidden=name in _PERSONAL)}" for name, value in self._attributes.items()
        ]
        named += [
            f"body.{name}={_told(value, hidden=not is_shown(name))}" for name, value in self._body.items()
        ]
        return ", ".join(named) or "any criteria"

    def _differences(self, entry: Entry) -> Iterator[str]:
        for name, wanted in self._attributes.items():
            found = getattr(entry, name)
            if found != wanted:
                yield _difference(name, found, wanted, hidden=name in _PERSONAL)
        sent = entry.request or {}
        for name, wanted in self._body.items():
            found = sent.get(name, _ABSENT)
            if found is _ABSENT:
                yield f"body.{name} is absent"
            elif found != wanted or isinstance(found, bool) is not isinstance(wanted, bool):
                yield _difference(f"body.{name}", found, wanted, hidden=not is_shown(name))


def _difference(name: str, found: object, wanted: object, *, hidden: bool) -> str:
    if hidden:
        return f"{name} is another"
    return f"{name} is {found!r}, wanted {wanted!r}"


def _told(value: object, *, hidden: bool) -> str:
    return "***" if hidden else repr(value)
