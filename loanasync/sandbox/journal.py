"""Journal of the calls to the sandbox, and criteria to find calls in it."""

import asyncio
import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

from attrs import define, field, fields

from loanasync.sandbox.faults import OPERATIONS
from loanasync.sandbox.linter import RULES
from loanasync.sandbox.masking import MASK, masked, masked_response, masked_value, pseudonym
from loanasync.sandbox.outcomes import FAULT_NAMES, nearest

_UNMASKED = ("number", "method", "route", "operation", "status", "evaluated", "fault")


@define(kw_only=True, eq=False)
class JournalEntry:
    """One call to the sandbox.

    Attributes have the real values. `masked`, `repr` and `str` mask personal data.

    Args:
        number: Number of the call, counted from 1 since the sandbox object was made.
        at: Time of the response, in seconds since 1970.
        method: HTTP method.
        route: Path template, such as ``/api/shops/{shopId}/requests``.
        operation: create_request, approve, upload_documents or complete; empty for any other path.
        fiscal_code: Fiscal code of the customer, or an empty string.
        status: HTTP status of the response; None if a fault left no response.
        elapsed: Seconds until the response, including the delays of faults.
        evaluated: Whether this call made the decision.
        fault: The fault with its phase, such as ``resetafter``; empty if there was no fault.
        request: JSON object in the request; None if the body was not a JSON object.
        response: JSON object of the response, before a fault damaged it.
        findings: Names of the protocol rules that this call broke.

    Example:
        >>> call = sandbox.journal[0]
        >>> call.operation, call.status, call.evaluated
        ('create_request', 201, False)
        >>> call.masked()["fiscal_code"]
        '***'
    """

    number: int
    at: float
    method: str
    route: str
    operation: str
    fiscal_code: str = field(repr=False)
    status: int | None
    elapsed: float
    evaluated: bool
    fault: str
    request: Mapping[str, Any] | None = field(repr=False)
    response: Mapping[str, Any] = field(repr=False)
    findings: tuple[str, ...] = field(default=())

    def masked(self) -> dict[str, Any]:
        """Return the call as a JSON object with personal data masked."""
        return {
            **{name: getattr(self, name) for name in _UNMASKED},
            "at": round(self.at, 3),
            "elapsed": round(self.elapsed, 6),
            "fiscal_code": MASK if self.fiscal_code else "",
            "customer": pseudonym(self.fiscal_code),
            "request": None if self.request is None else masked(self.request),
            "response": masked_response(self.response, self.request),
            "findings": list(self.findings),
        }

    def __repr__(self) -> str:
        status = self.status if self.status is not None else "no response"
        parts = [f"#{self.number} {self.operation or f'{self.method} {self.route}'} -> {status}"]
        parts += ["evaluated"] if self.evaluated else []
        parts += [self.fault] if self.fault else []
        return f"<JournalEntry {', '.join(parts)}>"

    def __str__(self) -> str:
        customer = f" customer {pseudonym(self.fiscal_code)[:6]}" if self.fiscal_code else ""
        broken = f" [{', '.join(self.findings)}]" if self.findings else ""
        return f"{self!r}{broken}{customer}, {self.elapsed * 1000:.1f} ms"


_KNOWN_VALUES: Mapping[str, Iterable[str]] = {
    "operation": OPERATIONS,
    "findings": RULES,
    "fault": FAULT_NAMES,
}
_TYPES = {"number": (int,), "status": (int, type(None)), "evaluated": (bool,), "body": (dict,)}
_CRITERIA = ("body", *(each.name for each in fields(JournalEntry) if each.name != "request"))
_PERSONAL = ("fiscal_code", "response")
_MAX_NEAREST = 3
_POLL_INTERVAL = 0.005  # seconds


def _validated(criteria: Mapping[str, Any]) -> dict[str, Any]:
    """Return criteria in the form of the attributes of a call; see `Journal`.

    A criterion that no call can meet is an error, because it would make `assert_never` pass.
    """
    wanted = dict(criteria)
    for name, value in criteria.items():
        if name not in _CRITERIA:
            raise TypeError(f"unknown criterion {name!r}, did you mean {nearest(name, _CRITERIA)!r}?")
        types = _TYPES.get(name, (type(value),))
        if type(value) not in types:
            names = " or ".join("None" if each is type(None) else each.__name__ for each in types)
            raise TypeError(f"{name} must be {names}, not {type(value).__name__}")
        if name in ("fiscal_code", "method"):
            wanted[name] = value.strip().upper()  # the form in which clients send them
        if name == "findings":
            wanted[name] = (value,) if isinstance(value, str) else tuple(value)
        for each in wanted[name] if name == "findings" else (value,):
            # An empty name means no fault, or another path.
            if name in _KNOWN_VALUES and each not in ("", *_KNOWN_VALUES[name]):
                near = nearest(each, _KNOWN_VALUES[name])
                raise ValueError(f"unknown {name} {each!r}, did you mean {near!r}?")
    return wanted


def _differences(entry: JournalEntry, wanted: Mapping[str, Any]) -> list[str]:
    """Return the names of the criteria that a call does not meet."""
    found = {name: getattr(entry, name) for name in wanted if name != "body"}
    found |= {"fiscal_code": entry.fiscal_code.strip().upper()}
    names = [name for name, value in wanted.items() if name != "body" and found[name] != value]
    sent = entry.request or {}
    for name, value in wanted.get("body", {}).items():
        if name not in sent or (type(sent[name]), sent[name]) != (type(value), value):
            names.append(f"body.{name}")
    return names


def _described(wanted: Mapping[str, Any]) -> str:
    texts = [
        f"{name}={MASK if name in _PERSONAL else repr(value)}"
        for name, value in wanted.items()
        if name != "body"
    ]
    texts += [f"body.{name}={masked_value(name, value)}" for name, value in wanted.get("body", {}).items()]
    return ", ".join(texts) or "any criteria"


class Journal(Sequence[JournalEntry]):
    """The last calls to a sandbox, oldest first; available as `Sandbox.journal`.

    It is a sequence of `JournalEntry`. Methods that take criteria accept:

    - attributes of `JournalEntry` by name, such as ``operation="approve"``, ``status=500`` or
      ``fiscal_code=...``; ``findings`` takes one name or a list;
    - ``body={...}``: fields of the request with their values.

    A call matches if it meets all criteria. An unknown criterion is a TypeError. An operation, fault or
    finding that does not exist is a ValueError.

    Args:
        max_entries: Maximum number of calls to keep.

    Example:
        >>> decision = run(client.approve(fiscal_code, request))
        >>> [call.operation for call in sandbox.journal]
        ['create_request', 'approve']
        >>> len(sandbox.journal.calls(operation="approve", fiscal_code=fiscal_code))
        1
        >>> sandbox.journal.assert_once(operation="approve", status=201).evaluated
        True
        >>> sandbox.journal.assert_never(operation="complete")
        >>> fiscal_code in sandbox.journal.to_jsonl()
        False
        >>> sandbox.journal.clear()
        >>> len(sandbox.journal)
        0
    """

    def __init__(self, max_entries: int = 1000) -> None:
        self.total = 0
        self._entries: deque[JournalEntry] = deque(maxlen=max_entries)
        self._cleared = 0

    @overload
    def __getitem__(self, index: int) -> JournalEntry: ...
    @overload
    def __getitem__(self, index: slice) -> list[JournalEntry]: ...
    def __getitem__(self, index: int | slice) -> JournalEntry | list[JournalEntry]:
        return list(self._entries)[index]

    def __iter__(self) -> Iterator[JournalEntry]:
        return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<Journal of {len(self)} calls>"

    def append(self, entry: JournalEntry) -> None:
        """Add a call. The sandbox calls this."""
        self._entries.append(entry)

    def clear(self) -> None:
        """Remove all calls. The next call continues the numbering."""
        self._entries.clear()
        self._cleared = self.total

    def calls(self, **criteria: Any) -> list[JournalEntry]:
        """Return the calls that match all criteria, oldest first.

        Args:
            criteria: See `Journal`.

        Raises:
            TypeError: A criterion is unknown, or its value has the wrong type.
            ValueError: A criterion has a value that no call can have.
        """
        wanted = _validated(criteria)
        return [entry for entry in self if not _differences(entry, wanted)]

    def to_jsonl(self, **criteria: Any) -> str:
        """Return the matching calls in JSON Lines format, with personal data masked.

        Args:
            criteria: See `Journal`.
        """
        return "".join(json.dumps(entry.masked()) + "\n" for entry in self.calls(**criteria))

    def assert_once(self, **criteria: Any) -> JournalEntry:
        """Assert that exactly one call matches the criteria, and return it.

        Args:
            criteria: See `Journal`.

        Raises:
            AssertionError: No call matches, or several do. The message lists the closest calls.
            RuntimeError: The journal has already dropped calls.
        """
        found = self.calls(**criteria)
        self._require_complete()
        if len(found) != 1:
            raise AssertionError(self._mismatch(found, criteria, "one"))
        return found[0]

    def assert_never(self, **criteria: Any) -> None:
        """Assert that no call matches the criteria.

        Args:
            criteria: See `Journal`.

        Raises:
            AssertionError: A call matches.
            RuntimeError: The journal has already dropped calls.
        """
        self._require_complete()
        if found := self.calls(**criteria):
            raise AssertionError(self._mismatch(found, criteria, "none"))

    async def wait_for(self, count: int = 1, *, timeout: float = 5.0, **criteria: Any) -> list[JournalEntry]:
        """Wait until `count` calls match the criteria, and return all matching calls.

        Calls that are already in the journal count.

        Args:
            count: Number of calls to wait for.
            timeout: Seconds to wait.
            criteria: See `Journal`.

        Raises:
            AssertionError: The calls did not arrive in time. The message lists the closest calls.
            ValueError: `count` is not a whole number of 1 or more.

        Example:
            >>> [call] = run(sandbox.journal.wait_for(operation="create_request"))
            >>> call.status
            201
        """
        until = time.monotonic() + timeout
        while (found := self._found(count, until, criteria)) is None:  # noqa: ASYNC110  (in any thread)
            await asyncio.sleep(_POLL_INTERVAL)
        return found

    def wait(self, count: int = 1, *, timeout: float = 5.0, **criteria: Any) -> list[JournalEntry]:
        """Wait like `wait_for`, but without an event loop, for a sandbox that runs in another thread.

        Args:
            count: Number of calls to wait for.
            timeout: Seconds to wait.
            criteria: See `Journal`.

        Raises:
            AssertionError: The calls did not arrive in time. The message lists the closest calls.
            ValueError: `count` is not a whole number of 1 or more.

        Example:
            >>> [call] = sandbox.journal.wait(operation="create_request")
            >>> call.status
            201
        """
        until = time.monotonic() + timeout
        while (found := self._found(count, until, criteria)) is None:
            time.sleep(_POLL_INTERVAL)
        return found

    def _found(self, count: int, until: float, criteria: dict[str, Any]) -> list[JournalEntry] | None:
        """Return the matching calls; None if there are too few. Raise AssertionError after a time."""
        if type(count) is not int or count < 1:
            raise ValueError(f"count {count!r} must be a whole number of 1 or more")
        found = self.calls(**criteria)
        if len(found) >= count:
            return found
        if time.monotonic() > until:
            raise AssertionError(self._mismatch(found, criteria, f"{count} in time"))
        return None

    def _mismatch(self, found: list[JournalEntry], criteria: Mapping[str, Any], expected: str) -> str:
        """Return the message of a failed assertion, with the matching calls or those that come closest."""
        wanted = _validated(criteria)
        text = f"{len(found)} calls with {_described(wanted)}, expected {expected}"
        if found:
            return "\n".join([f"{text}:", *(f"  {entry!r}" for entry in found)])
        if not self:
            return f"{text}, no calls"
        missed = [(_differences(entry, wanted), entry) for entry in self]
        # Calls of another operation come last.
        missed.sort(key=lambda each: ("operation" in each[0], len(each[0])))
        lines = [f"  {entry!r}: {', '.join(names)}" for names, entry in missed[:_MAX_NEAREST]]
        return "\n".join([f"{text}. The closest calls, and what differs:", *lines])

    def _require_complete(self) -> None:
        kept, total = len(self), self.total - self._cleared
        if kept < total:
            raise RuntimeError(
                f"the journal has only the last {kept} of {total} calls: increase Sandbox(journal=...)"
            )
