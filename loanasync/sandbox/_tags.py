"""Outcomes that a request asks for itself, by the tag in its e-mail address: anna+refused@example.com."""

import difflib
import re
from collections.abc import Iterable

from attrs import frozen

__all__ = ["KNOWN", "Outcome", "UnknownTagError", "read_tags"]

KNOWN = ("approved", "refused", "nouser", "already", "noshop", "conflict", "500xN", "500after")

_FAULTS = re.compile("500x([0-9]{1,2})")


class UnknownTagError(ValueError):
    """A tag that the sandbox does not know; its text names the nearest that it does."""


@frozen(kw_only=True)
class Outcome:
    """What the tags of an address ask for."""

    named: frozenset[str] = frozenset()
    faults_before: int = 0

    def asks(self, name: str) -> bool:
        """Whether the address has this tag."""
        return name in self.named


def read_tags(email: object) -> Outcome:
    """The tags between ``+`` and ``@``, separated by dots.

    Raises:
        UnknownTagError: One of them is not known; a silent approval would be worse.
    """
    local = email.partition("@")[0] if isinstance(email, str) else ""
    tags = [tag for tag in local.partition("+")[2].lower().split(".") if tag]
    faults = [_FAULTS.fullmatch(tag) for tag in tags]
    named = frozenset(tag for tag, fault in zip(tags, faults, strict=True) if fault is None)
    _refuse_unknown(named)
    return Outcome(named=named, faults_before=sum(int(fault[1]) for fault in faults if fault))


def _refuse_unknown(tags: Iterable[str]) -> None:
    for tag in sorted(tags):
        if tag not in KNOWN:
            near = difflib.get_close_matches(tag, KNOWN, n=1, cutoff=0.0)[0]
            raise UnknownTagError(
                f"Unknown sandbox tag, did you mean +{near}? Known: {', '.join(f'+{each}' for each in KNOWN)}"
            )
