"""Faults of a sandbox: outcomes of many calls, set from Python, the command line or the inspector."""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Literal, get_args

from attrs import define, field

from loanasync.sandbox.outcomes import Outcome, UnknownTagError, nearest, parse_words
from loanasync.sandbox.validation import FIELDS

Operation = Literal["create_request", "approve", "upload_documents", "complete"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
_DRAW_RANGE = 2**64


@define(kw_only=True)
class SetFault:
    """An outcome and the calls that have it.

    Args:
        name: Number and words; key of its counters and of its random choice.
        outcome: The outcome.
        operation: Operation of the calls; empty for any.
        fiscal_code: Fiscal code of the customer; None for any.
        rate: Share of the calls to choose, from 0 to 1.
        matched: Number of calls that had the outcome.
    """

    name: str
    outcome: Outcome
    operation: str
    fiscal_code: str | None = field(repr=False)
    rate: float
    matched: int = 0


class Faults:
    """The faults of a sandbox, newest first. If several match a call, the newest one applies.

    Args:
        texts: The first faults; a single string is one fault.
        seed: Seed of the random choices.
    """

    def __init__(self, texts: Iterable[str], seed: int) -> None:
        self._seed = seed
        self._faults: tuple[SetFault, ...] = ()
        self._added = 0
        for text in [texts] if isinstance(texts, str) or not isinstance(texts, Iterable) else texts:
            self.add(text)

    def add(self, text: object, fiscal_code: str | None = None) -> None:
        """Add a fault in the form ``[operation=]words[:rate]``.

        Raises:
            TypeError: `text` is not a string.
            ValueError: A part of the text is not valid; the message names it.
        """
        if not isinstance(text, str):
            raise TypeError(f"faults must be strings, such as 'approve=500', not {type(text).__name__}")
        operation, _, rest = text.strip().rpartition("=")
        words, _, share = rest.partition(":")
        outcome, rate = _outcome(words, operation), _rate(share)
        self._added += 1
        name = f"#{self._added} {outcome.name}"
        added = SetFault(name=name, outcome=outcome, operation=operation, fiscal_code=fiscal_code, rate=rate)
        self._faults = (added, *self._faults)

    def choose(self, operation: str, code: str, call: int) -> SetFault | None:
        """Return the newest fault that matches a call of a customer, whose calls are counted from 1.

        The random choice depends on the seed, the fault, the customer and the call number only, so concurrent
        calls do not affect it.
        """
        for each in self._faults:
            if each.operation in ("", operation) and each.fiscal_code in (None, code.upper()):
                key = f"{self._seed}|{each.name}|{operation}|{code}|{call}".encode()
                if int.from_bytes(blake2b(key, digest_size=8).digest()) < each.rate * _DRAW_RANGE:
                    each.matched += 1
                    return each
        return None

    def clear(self) -> None:
        """Remove all faults. Customers have counted the calls of each, so later ones have other names."""
        self._faults = ()

    def reset(self) -> None:
        """Remove all faults, with the customers."""
        self._faults, self._added = (), 0

    def __iter__(self) -> Iterator[SetFault]:
        return iter(self._faults)


def _outcome(words: str, operation: str) -> Outcome:
    """Return the outcome; raise ValueError if the calls of the operation would ignore it."""
    if operation and operation not in OPERATIONS:
        raise ValueError(f"unknown operation {operation!r}, did you mean {nearest(operation, OPERATIONS)!r}?")
    if words.strip(".") in ("", *OPERATIONS):
        raise ValueError("the fault has no outcome: write a word of a tag, such as 500 or approve=refused")
    try:
        outcome = parse_words(words, every_call=True)
    except UnknownTagError as unknown:
        raise ValueError(f"invalid fault {words!r}. {unknown}") from None
    unknown_fields = [name for name in outcome.invalid if operation and name not in FIELDS[operation]]
    decides = outcome.decision or outcome.street_number or not outcome.redirect
    decides = decides or (outcome.additional and operation != "create_request")
    if unknown_fields or (decides and operation not in ("", "approve")):
        reason = f"there is no field {unknown_fields[0]}" if unknown_fields else "only approve decides"
        raise ValueError(f"{operation} cannot have the outcome {words!r}: {reason}")
    return outcome


def _rate(text: str) -> float:
    try:
        rate = float(text or 1)
    except ValueError:
        rate = -1
    if not 0 <= rate <= 1:
        raise ValueError(f"rate {text!r} must be a number between 0 and 1")
    return rate
