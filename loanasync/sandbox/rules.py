"""Rules that choose the outcomes of calls, set from Python or the command line."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, Literal, Self, cast

from attrs import define, field

from loanasync.sandbox.outcomes import (
    FAULTS,
    SYSTEM_ERROR,
    Outcome,
    Response,
    UnknownTagError,
    nearest,
    parse_words,
)
from loanasync.sandbox.validation import FIELDS, INVALID_FISCAL_CODE

Operation = Literal["create_request", "approve", "upload_documents", "complete"]
Phase = Literal["before", "after"]
OPERATIONS: tuple[Operation, ...] = ("create_request", "approve", "upload_documents", "complete")

# Words for the statuses that have one meaning (spec §7).
_WORD_BY_STATUS = {201: "approved", 403: "forbidden", 409: "conflict", 422: "refused", 500: "500"}
# Bodies of `Rule.respond` with these statuses alone (spec §7); each call names a fiscal code.
_DEFAULT_BODIES = {400: {"errors": {"fiscalCode": [INVALID_FISCAL_CODE]}}, 500: SYSTEM_ERROR.body}
_CREATED = 201
_NO_BODY = (204, 304)
_CREATING = ("create_request", "upload_documents")  # assumed: spec §4.3 does not show their status
_DRAW_RANGE = 2**64
_BEFORE = ", ".join(name for name, fault in FAULTS.items() if fault.before)
_RESERVED_HEADERS = ("content-length", "content-type", "transfer-encoding", "connection")


@define(kw_only=True)
class Rule:
    """A rule that chooses the response to some calls. Create rules with `Sandbox.on` and `respond`.

    Args:
        operation: Operation of the calls; None for any.
        fiscal_code: Fiscal code of the customer; None for any.
        call: Number of the call among the customer's calls of the operation, from 1; None for every call.
        rate: Share of the calls to choose, from 0 to 1.
        seed: Seed of the random choice.
        number: Number of the rule in the sandbox.
        changed: Called when the response of the rule changes.
        outcome: The outcome that `respond` set; None before that.
        matched: Number of calls that the rule has matched.

    Example:
        >>> rule = sandbox.on(operation="approve").respond("500x2")
        >>> rule.name, rule.matched
        ('#1 500x2', 0)
        >>> run(client.approve(fiscal_code, request, retry=RetryPolicy(base=0.001))).meta.attempts
        3
        >>> rule.matched
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
    matched: int = field(default=0, init=False)

    @property
    def name(self) -> str:
        """Number and words of the rule; key of its fault counters and of its random choice."""
        return f"#{self.number} {self.outcome.name if self.outcome is not None else ''}"

    def __attrs_post_init__(self) -> None:
        if self.operation not in (None, *OPERATIONS):
            near = nearest(self.operation, OPERATIONS)
            raise ValueError(f"unknown operation {self.operation!r}, did you mean {near!r}?")
        if not isinstance(self.rate, int | float) or not 0 <= self.rate <= 1:
            raise ValueError(f"rate {self.rate!r} must be a number between 0 and 1")
        if self.call is not None and (type(self.call) is not int or self.call < 1):
            raise ValueError(f"call {self.call!r} must be a whole number of 1 (the first call) or more")

    def respond(
        self,
        response: int | str,
        body: Mapping[str, Any] | None = None,
        *,
        phase: Phase | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Self:
        """Set the response to the calls that this rule matches, and return the rule.

        Args:
            response: An HTTP status, or the words of a tag, such as ``"reset"`` or ``"slow300.refused"``.
            body: JSON object of the response, if `response` is a status. By default that of the specification
                for 400 (an invalid fiscal code), 403, 409 and 500, an empty object for other statuses. 201
                and 422 without a body are the decisions of ``approve``.
            phase: ``"before"`` sends the response instead of processing the call; ``"after"`` processes the
                call, so that the decision is made and its response is lost. By default, the phase in the
                word, else ``"before"``.
            headers: Headers of the response, such as ``Retry-After``, if `response` is a status.

        Raises:
            TypeError: `response` or `body` has the wrong type.
            ValueError: A word is unknown or does not have this phase, the operation would ignore the outcome,
                or the response cannot be sent.

        Example:
            >>> sandbox.on("complete").respond("reset", phase="after").name
            '#1 resetafter'
            >>> sandbox.on("approve").respond(503, {"later": True}, headers={"Retry-After": "7"}).name
            '#2 503'
        """
        if phase not in (None, "before", "after"):
            raise ValueError(f"phase {phase!r} must be 'before' or 'after'")
        if isinstance(response, str):
            response = response.strip().removeprefix("+")
            response = int(response) if response.isdecimal() else response
        elif not isinstance(response, int):
            raise TypeError(
                f"respond() takes a status or the words of a tag, such as 500 or 'refused', not {response!r}"
            )
        is_alone = body is None and headers is None
        if isinstance(response, str):
            if not is_alone:
                raise ValueError("body and headers need a status, such as 503, instead of the words of a tag")
            outcome = _outcome_from_words(response, phase)
        elif is_alone and response == _CREATED and self.operation in _CREATING:
            outcome = Outcome(name=str(response))
        elif is_alone and response in _WORD_BY_STATUS:
            outcome = _outcome_from_words(_WORD_BY_STATUS[response], phase)
        else:
            outcome = _canned_outcome(response, body, headers, phase)
        self._check(outcome)
        self.outcome = outcome
        self.changed()
        return self

    def _check(self, outcome: Outcome) -> None:
        """Raise ValueError for an outcome that calls of this operation would ignore."""
        if self.operation is None:  # each operation applies the parts that it supports
            return
        decides = outcome.decision or outcome.without or outcome.street_number or outcome.additional
        unknown = [name for name in outcome.invalid if name not in FIELDS[self.operation]]
        if unknown or (decides and self.operation != "approve"):
            reason = f"there is no field {unknown[0]}" if unknown else "only approve decides"
            raise ValueError(
                f"{self.operation} cannot respond with {outcome.name!r}: {reason}. For another response pass"
                " a status with a body"
            )

    def matches(self, operation: str, code: str, call: int) -> bool:
        """Return whether the rule matches a call.

        The random choice depends on the seed, the rule, the customer and the call number only, so concurrent
        calls do not affect it.
        """
        return (
            self.outcome is not None
            and self.operation in (None, operation)
            and self.fiscal_code in (None, code.upper())
            and self.call in (None, call)
            and (self.rate == 1 or self._draw(operation, code, call) < self.rate)
        )

    def _draw(self, operation: str, code: str, call: int) -> float:
        key = f"{self.seed}|{self.name}|{operation}|{code}|{call}".encode()
        return int.from_bytes(blake2b(key, digest_size=8).digest()) / _DRAW_RANGE


def _outcome_from_words(words: str, phase: Phase | None) -> Outcome:
    if not words.strip("."):
        raise ValueError("the rule has no response: write words of a tag, such as 500, refused or slow300")
    try:
        plain = parse_words(words, every_call=True)
        if phase is None:
            return plain
    except UnknownTagError as unknown:
        raise ValueError(f"invalid response {words!r}. {unknown}") from None
    try:
        # A word that already has a phase becomes an unknown word here, which is an error.
        return parse_words(".".join(f"{word}{phase}" for word in words.split(".") if word), every_call=True)
    except UnknownTagError:
        raise ValueError(
            f"invalid response {words!r} in phase {phase!r}: only faults and delays have a phase, which may"
            f" be given once; 'before' is for {_BEFORE} and slow only"
        ) from None


def _canned_outcome(
    status: int, body: Mapping[str, Any] | None, headers: Mapping[str, str] | None, phase: Phase | None
) -> Outcome:
    if not 200 <= status <= 599:  # noqa: PLR2004  (statuses of a final response)
        raise ValueError(f"status {status} must be between 200 and 599")
    if body and status in _NO_BODY:
        raise ValueError(f"a response with status {status} has no body in HTTP: omit the body")
    if body is None:
        body = _DEFAULT_BODIES.get(status, {})
    try:
        body = json.loads(json.dumps(body, allow_nan=False))  # a copy, in the form that JSON can express
    except (TypeError, ValueError) as error:
        raise ValueError(f"the body cannot be sent as JSON: {error}") from None
    if not isinstance(body, dict):
        raise TypeError("the body must be a JSON object, such as {'errors': {...}}")
    response = Response(status, body, headers=headers and _checked_headers(headers))
    return Outcome(canned=response, canned_after=phase == "after", name=f"{status}{phase or ''}")


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if name.lower() in _RESERVED_HEADERS:
            raise ValueError(f"header {name} is set by the server: omit it")
        if not re.fullmatch("[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise ValueError(f"header {name!r} is not a valid header name")
        if not isinstance(value, str) or not value.isprintable():
            raise ValueError(f"the value of header {name} must be a string of one line, such as '7'")
    return dict(headers)


def fault_list(faults: Iterable[str]) -> list[str]:
    """Return a list of rule texts; a single string is one rule.

    Raises:
        TypeError: The argument is not a list of strings.
    """
    texts = (
        [faults] if isinstance(faults, str) else list(faults) if isinstance(faults, Iterable) else [faults]
    )
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"faults must be strings, such as 'approve=500', not {type(text).__name__}")
    return texts


class Rules:
    """The rules of a sandbox. If several match a call, the newest one applies."""

    def __init__(self, seed: int) -> None:
        self.on_change: Callable[[], None] = lambda: None  # called after a change of the rules
        self._seed = seed
        self._last_number = 0
        self._rules: tuple[Rule, ...] = ()

    def add(self, response: str = "", phase: Phase | None = None, **which: Any) -> Rule:
        """Add a rule; without a response, it matches calls after `Rule.respond`."""
        number = self._last_number + 1
        rule = Rule(seed=self._seed, number=number, changed=self.on_change, **which)
        if response:
            rule.respond(response, phase=phase)
        self._last_number = number
        self._rules = (rule, *self._rules)
        return rule

    def add_text(self, text: str) -> Rule:
        """Add a rule in the form of the command line: ``[operation=]words[:rate[:phase]]``.

        A status can stand for the words.

        Raises:
            ValueError: A part of the text is not valid; the message names it.
        """
        operation, given, rest = text.rpartition("=")
        words, _, rest = rest.partition(":")
        rate, _, phase = rest.partition(":")
        if words in OPERATIONS:
            raise ValueError(f"{text!r} has an operation but no response: write {words}=500, for example")
        try:
            number = float(rate or 1)
        except ValueError:
            raise ValueError(f"rate {rate!r} in {text!r} must be a number between 0 and 1") from None
        known = cast("Phase | None", phase or None)
        return self.add(words or ".", known, operation=operation if given else None, rate=number)

    def choose(self, operation: str, code: str, call: int) -> Rule | None:
        """Return the newest rule that matches this call, and count the call."""
        for rule in self._rules:
            if rule.matches(operation, code, call):
                rule.matched += 1
                return rule
        return None

    def remove(self, rule: Rule) -> None:
        """Remove one rule.

        Raises:
            TypeError: The argument is not a rule.
            ValueError: The rule is not active.
        """
        if not isinstance(rule, Rule):
            raise TypeError(f"off() takes a rule that on() returned, not {type(rule).__name__}")
        if not any(each is rule for each in self._rules):
            raise ValueError(
                f"rule {rule.name} is not active: it was removed before, or belongs to another sandbox"
            )
        self._rules = tuple(each for each in self._rules if each is not rule)
        self.on_change()

    def clear(self) -> None:
        """Remove all rules. Later ones are numbered from 1, so that they draw the same numbers again."""
        self._rules, self._last_number = (), 0
        self.on_change()

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._rules)
