"""Rules that choose outcomes from Python and from the command line, reproducibly, whatever runs at once."""

import difflib
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Literal, Self, cast

from attrs import define, field

from loanasync.sandbox.outcomes._outcome import Answer, Outcome
from loanasync.sandbox.outcomes._tags import UnknownTagError, read_words

__all__ = ["OPERATIONS", "Operation", "Phase", "Rule", "Rules"]

Operation = Literal["create_request", "approve", "upload_documents", "complete"]
Phase = Literal["before", "after"]
OPERATIONS: tuple[Operation, ...] = ("create_request", "approve", "upload_documents", "complete")

# Statuses that say by themselves what they mean (spec §7), in the words of a tag.
_BY_STATUS = {201: "approved", 403: "forbidden", 409: "conflict", 422: "refused", 500: "500"}
_TO_THE_RATE = 2**64


@define(kw_only=True)
class Rule:
    """Which calls are meant, and with what they are answered; made by `Sandbox.on`."""

    operation: Operation | None = None
    fiscal_code: str | None = None
    call: int | None = None
    rate: float = 1.0
    seed: int = 0
    outcome: Outcome | None = field(default=None, init=False)
    answered: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        if self.operation not in (None, *OPERATIONS):
            near = difflib.get_close_matches(str(self.operation), OPERATIONS, n=1, cutoff=0.0)[0]
            raise ValueError(f"operation {self.operation!r} is unknown, did you mean {near!r}?")
        if not 0 <= self.rate <= 1:
            raise ValueError(f"rate {self.rate} must be between 0 and 1")
        if self.call is not None and self.call < 1:
            raise ValueError(f"call {self.call} must be 1, for the first call, or more")

    def respond(
        self,
        answer: int | str,
        body: Mapping[str, Any] | None = None,
        *,
        phase: Phase | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Self:
        """Answer the calls that are meant so.

        Args:
            answer: An HTTP status, or the words of a tag, such as ``"reset"`` or ``"slow300.refused"``.
            body: The JSON object to answer with, for a status.
            phase: A fault ``before`` the service does anything, or ``after`` it has done its work and its
                answer is lost. By default what the word says, else before.
            headers: Headers to answer with, such as ``Retry-After``.

        Raises:
            ValueError: The status needs a body, or a word is unknown, or has no such phase.
        """
        if phase not in (None, "before", "after"):
            raise ValueError(f"phase {phase!r} is unknown: 'before' or 'after'")
        if isinstance(answer, str):
            if body is not None or headers is not None:
                raise ValueError("body and headers go with a status, not with the words of a tag")
            self.outcome = _in_words(answer, phase)
        elif body is None and headers is None and answer in _BY_STATUS:
            self.outcome = _in_words(_BY_STATUS[answer], phase)
        else:
            self.outcome = _canned(answer, body, headers, phase)
        return self

    def chosen(self, operation: str, code: str, call: int) -> bool:
        """Whether the call of this number is meant; its number decides, not what runs beside."""
        return (
            self.outcome is not None
            and self.operation in (None, operation)
            and self.fiscal_code in (None, code)
            and self.call in (None, call)
            and (self.rate == 1 or self._drawn(operation, code, call) < self.rate)
        )

    def _drawn(self, operation: str, code: str, call: int) -> float:
        name = self.outcome.name if self.outcome is not None else ""
        key = f"{self.seed}|{name}|{operation}|{code}|{call}".encode()
        return int.from_bytes(blake2b(key, digest_size=8).digest()) / _TO_THE_RATE


def _in_words(words: str, phase: Phase | None) -> Outcome:
    if not words:
        raise ValueError("a rule has no words for an answer: give a tag's, such as 500, refused or slow300")
    # A word that has its phase already says so twice here, and is then unknown: nothing is guessed.
    if phase is not None:
        words = ".".join(f"{word}{phase}" for word in words.split("."))
    try:
        return read_words(words, endless=True)
    except UnknownTagError as unknown:
        asked = f" in phase {phase!r}" if phase else ""
        raise ValueError(f"{words!r}{asked} cannot be answered with. {unknown}") from None


def _canned(
    status: int, body: Mapping[str, Any] | None, headers: Mapping[str, str] | None, phase: Phase | None
) -> Outcome:
    if not 200 <= status <= 599:  # noqa: PLR2004  (statuses of an answer)
        raise ValueError(f"status {status} must be between 200 and 599")
    if body is None:
        if status == 400:  # noqa: PLR2004
            raise ValueError("status 400 needs a body; for one wrong field respond('invalid.city') has it")
        body = {"errors": {"system": ["System error"]}} if status == 500 else {}  # noqa: PLR2004  (spec §7)
    answer = Answer(status, body, headers=headers and dict(headers))
    return Outcome(canned=answer, canned_after=phase == "after", name=f"{status}{phase or ''}")


class Rules:
    """All rules; of those that mean a call, the newest counts."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rules: tuple[Rule, ...] = ()

    def add(self, **which: Any) -> Rule:
        """A rule that waits for its `respond`."""
        return self._added(Rule(**{"seed": self._seed, **which}))

    def _added(self, rule: Rule) -> Rule:
        self._rules = (rule, *self._rules)
        return rule

    def add_text(self, text: str) -> Rule:
        """A rule as the command line has it: ``[operation=]words[:rate[:phase]]``; a status is a word, too.

        Raises:
            ValueError: A part of it is not understood; it is named.
        """
        operation, given, rest = text.rpartition("=")
        words, _, rest = rest.partition(":")
        rate, _, phase = rest.partition(":")
        try:
            number = float(rate or 1)
        except ValueError:
            raise ValueError(f"rate {rate!r} in {text!r} must be a number between 0 and 1") from None
        rule = Rule(operation=cast("Operation", operation) if given else None, rate=number, seed=self._seed)
        answer = int(words) if words.isdecimal() else words
        return self._added(rule.respond(answer, phase=cast("Phase", phase) if phase else None))

    def outcome(self, operation: str, code: str, call: int) -> Outcome | None:
        """What the newest rule that means this call asks for."""
        for rule in self._rules:
            if rule.chosen(operation, code, call):
                rule.answered += 1
                return rule.outcome
        return None

    def clear(self) -> None:
        """Forget all rules."""
        self._rules = ()

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._rules)
