"""Rules that choose outcomes, from Python and the command line, reproducibly by a seed."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, Literal, Self, cast

from attrs import define, field

from loanasync.sandbox.outcomes import (
    FAULTS,
    Answer,
    Outcome,
    UnknownTagError,
    nearest,
    read_words,
)
from loanasync.sandbox.validation import APPROVAL_FIELDS, USER_DATA_FIELDS

Operation = Literal["create_request", "approve", "upload_documents", "complete"]
Phase = Literal["before", "after"]
OPERATIONS: tuple[Operation, ...] = ("create_request", "approve", "upload_documents", "complete")

# Statuses that say by themselves what they mean (spec §7), in the words of a tag.
_BY_STATUS = {201: "approved", 403: "forbidden", 409: "conflict", 422: "refused", 500: "500"}
_CREATED = 201
_NO_BODY = (204, 304)
_CREATING = ("create_request", "upload_documents")  # assumed: spec §4.3 does not show their status
_FIELDS: Mapping[str, tuple[str, ...]] = {"approve": APPROVAL_FIELDS, "complete": USER_DATA_FIELDS}
_TO_THE_RATE = 2**64
_BEFORE = ", ".join(name for name, fault in FAULTS.items() if fault.before)
_SERVER_S_OWN = ("content-length", "content-type", "transfer-encoding", "connection")


@define(kw_only=True)
class Rule:
    """Which calls are meant, and with what they are answered; made by `Sandbox.on`.

    Example:
        >>> rule = sandbox.on(operation="approve").respond("500x2")
        >>> rule.name, rule.answered
        ('#1 500x2', 0)
        >>> run(client.approve(fiscal_code, request, retry=RetryPolicy(base=0.001))).meta.attempts
        3
        >>> rule.answered
        3
    """

    operation: Operation | None = None
    fiscal_code: str | None = field(default=None, repr=False)
    call: int | None = None
    rate: float = 1.0
    seed: int = 0
    number: int = 0
    changed: Callable[[], None] = field(default=lambda: None, repr=False, eq=False)
    outcome: Outcome | None = field(default=None, init=False)
    answered: int = field(default=0, init=False)

    @property
    def name(self) -> str:
        """Its number and its words, which are what its faults are counted by, and its rate is drawn with."""
        return f"#{self.number} {self.outcome.name if self.outcome is not None else ''}"

    def __attrs_post_init__(self) -> None:
        if self.operation not in (None, *OPERATIONS):
            near = nearest(self.operation, OPERATIONS)
            raise ValueError(f"operation {self.operation!r} is unknown, did you mean {near!r}?")
        if not isinstance(self.rate, int | float):
            raise TypeError(f"rate {self.rate!r} must be a number between 0 and 1")
        if not 0 <= self.rate <= 1:
            raise ValueError(f"rate {self.rate} must be between 0 and 1")
        if self.call is not None and type(self.call) is not int:
            raise TypeError(f"call {self.call!r} must be a whole number, such as 1 for the first call")
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
            TypeError: The body is no JSON object.
            ValueError: The status needs a body, a word is unknown or has no such phase, or what is given
                cannot be sent.
        """
        if phase not in (None, "before", "after"):
            raise ValueError(f"phase {phase!r} is unknown: 'before' or 'after'")
        if isinstance(answer, str):
            answer = answer.strip().removeprefix("+")
            answer = int(answer) if answer.isdecimal() else answer
        elif not isinstance(answer, int):
            raise TypeError(
                f"respond() takes a status or the words of a tag, such as 500 or 'refused', not {answer!r}"
            )
        if isinstance(answer, str):
            if body is not None or headers is not None:
                raise ValueError("body and headers go with a status, not with the words of a tag")
            outcome = _in_words(answer, phase)
        elif body is None and headers is None and answer == _CREATED and self.operation in _CREATING:
            outcome = Outcome(name=str(answer))
        elif body is None and headers is None and answer in _BY_STATUS:
            outcome = _in_words(_BY_STATUS[answer], phase)
        else:
            outcome = _canned(answer, body, headers, phase)
        self._check(outcome)
        self.outcome = outcome
        self.changed()
        return self

    def _check(self, outcome: Outcome) -> None:
        """Refuse an outcome that calls of this operation would ignore."""
        if self.operation is None:  # each operation takes what it has
            return
        decides = outcome.decision or outcome.without or outcome.street_number
        if decides and self.operation != "approve":
            raise ValueError(
                f"{self.operation} cannot be answered with {outcome.name!r}: it is a decision, which only"
                " approve makes. For another response give a status with a body"
            )
        for name in outcome.invalid:
            if name not in _FIELDS.get(self.operation, ()):
                raise ValueError(
                    f"{self.operation} cannot be answered with {outcome.name!r}: it has no field {name}."
                    " For another response give a status with a body"
                )

    def chosen(self, operation: str, code: str, call: int) -> bool:
        """Whether the call of this number is meant; its number decides, not what runs beside."""
        return (
            self.outcome is not None
            and self.operation in (None, operation)
            and self.fiscal_code in (None, code.upper())
            and self.call in (None, call)
            and (self.rate == 1 or self._drawn(operation, code, call) < self.rate)
        )

    def _drawn(self, operation: str, code: str, call: int) -> float:
        key = f"{self.seed}|{self.name}|{operation}|{code}|{call}".encode()
        return int.from_bytes(blake2b(key, digest_size=8).digest()) / _TO_THE_RATE


def _in_words(words: str, phase: Phase | None) -> Outcome:
    if not words.strip("."):
        raise ValueError("a rule has no words for an answer: give a tag's, such as 500, refused or slow300")
    try:
        plain = read_words(words, endless=True)
        if phase is None:
            return plain
    except UnknownTagError as unknown:
        raise ValueError(f"{words!r} cannot be answered with. {unknown}") from None
    try:
        # A word that has its phase already says so twice here, and is then unknown: nothing is guessed.
        return read_words(".".join(f"{word}{phase}" for word in words.split(".") if word), endless=True)
    except UnknownTagError:
        raise ValueError(
            f"{words!r} in phase {phase!r} cannot be answered with: give a phase to faults and waits only,"
            f" to each in one place, and 'before' to {_BEFORE} and slow only"
        ) from None


def _canned(
    status: int, body: Mapping[str, Any] | None, headers: Mapping[str, str] | None, phase: Phase | None
) -> Outcome:
    if not 200 <= status <= 599:  # noqa: PLR2004  (statuses of an answer)
        raise ValueError(f"status {status} must be between 200 and 599")
    if body and status in _NO_BODY:
        raise ValueError(f"status {status} has no body in HTTP: leave the body out")
    if body is None:
        if status == 400:  # noqa: PLR2004  (spec §7: its body says what is wrong)
            raise ValueError("status 400 needs a body; for one wrong field respond('invalid.city') has it")
        body = {"errors": {"system": ["System error"]}} if status == 500 else {}  # noqa: PLR2004  (spec §7)
    try:
        body = json.loads(json.dumps(body, allow_nan=False))  # as it is now, and as JSON can say it
    except (TypeError, ValueError) as error:
        raise ValueError(f"the body cannot be sent as JSON: {error}") from None
    if not isinstance(body, dict):
        raise TypeError("the body must be a JSON object, such as {'errors': {...}}")
    answer = Answer(status, body, headers=headers and _checked(headers))
    return Outcome(canned=answer, canned_after=phase == "after", name=f"{status}{phase or ''}")


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(headers, Mapping) or not all(isinstance(name, str) for name in headers):
        raise TypeError("headers must map names to texts, such as {'Retry-After': '7'}")
    for name, value in headers.items():
        if name.lower() in _SERVER_S_OWN:
            raise ValueError(f"header {name} is the server's own: leave it out")
        if not re.fullmatch("[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise ValueError(f"header {name!r} is no header's name")
        if not isinstance(value, str) or not value.isprintable():
            raise ValueError(f"the value of header {name} must be a text in one line, such as '7'")
    return dict(headers)


def fault_texts(faults: Iterable[str]) -> list[str]:
    """Return rules in words as a list; one text is one rule.

    Raises:
        TypeError: It is not a list of texts.
    """
    texts = (
        [faults] if isinstance(faults, str) else list(faults) if isinstance(faults, Iterable) else [faults]
    )
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"faults must be texts, such as 'approve=500', not {type(text).__name__}")
    return texts


class Rules:
    """All rules; of those that mean a call, the newest counts."""

    def __init__(self, seed: int) -> None:
        self.changed: Callable[[], None] = lambda: None  # told when there is another answer
        self._seed = seed
        self._made = 0
        self._rules: tuple[Rule, ...] = ()

    def add(self, **which: Any) -> Rule:
        """A rule that waits for its `respond`."""
        return self._added(self._made_of(which))

    def _made_of(self, which: Mapping[str, Any]) -> Rule:
        return Rule(**{"seed": self._seed, "number": self._made + 1, "changed": self.changed, **which})

    def _added(self, rule: Rule) -> Rule:
        self._made = rule.number
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
        if words in OPERATIONS:
            raise ValueError(f"{text!r} has an operation for an answer: write {words}=500, for example")
        try:
            number = float(rate or 1)
        except ValueError:
            raise ValueError(f"rate {rate!r} in {text!r} must be a number between 0 and 1") from None
        rule = self._made_of({"operation": operation if given else None, "rate": number})
        return self._added(rule.respond(words, phase=cast("Phase", phase) if phase else None))

    def choose(self, operation: str, code: str, call: int) -> Rule | None:
        """The newest rule that means this call."""
        for rule in self._rules:
            if rule.chosen(operation, code, call):
                rule.answered += 1
                return rule
        return None

    def remove(self, rule: Rule) -> None:
        """Forget one rule.

        Raises:
            TypeError: It is not a rule.
            ValueError: It is not in force.
        """
        if not isinstance(rule, Rule):
            raise TypeError(f"off() takes a rule back that on() returned, not {type(rule).__name__}")
        if not any(each is rule for each in self._rules):
            raise ValueError(
                f"rule {rule.name} is not in force: it was taken back before, or is of another sandbox"
            )
        self._rules = tuple(each for each in self._rules if each is not rule)
        self.changed()

    def clear(self) -> None:
        """Forget all rules."""
        self._rules = ()

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._rules)
