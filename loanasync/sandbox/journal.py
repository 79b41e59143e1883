"""The journal: one entry for each call, and criteria to find calls."""

import asyncio
import json
import re
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast, overload

from attrs import define, field

from loanasync.sandbox.linter import RULES
from loanasync.sandbox.masking import MASK, masked, masked_answer, pseudonym, shown
from loanasync.sandbox.outcomes import FAULT_NAMES, nearest
from loanasync.sandbox.rules import OPERATIONS


@define(kw_only=True, eq=False)
class JournalEntry:
    """One call. Attributes are as they were sent; what is printed or exported is masked.

    Args:
        number: Counted from 1, across the whole life of the sandbox.
        at: When it was answered, seconds since 1970.
        method: HTTP method.
        route: Path template, such as ``/api/shops/{shopId}/requests``.
        operation: create_request, approve, upload_documents or complete; empty for any other path.
        fiscal_code: The customer's fiscal code, or an empty string.
        status: HTTP status that was answered; None when the fault left nothing to answer.
        elapsed: Seconds that the sandbox took, its waits for faults included.
        evaluated: Whether this very call decided the request.
        fault: The fault with its phase, such as ``resetafter``; empty for none.
        request: The JSON object that came; None when it was none.
        answer: The JSON value that was answered, also when a fault spoiled it on its way; None for no body.
        findings: Rules of the protocol that this call broke.
        canned: Whether the answer is one that a rule wrote.

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
    fiscal_code: str
    status: int | None
    elapsed: float
    evaluated: bool
    fault: str
    request: Mapping[str, Any] | None
    answer: Mapping[str, Any] | list[Any] | None
    findings: tuple[str, ...] = field(default=())
    canned: bool = False

    def masked(self) -> dict[str, Any]:
        """Everything of it that may be shown, as JSON."""
        return {
            "number": self.number,
            "at": round(self.at, 3),
            "method": self.method,
            "route": self.route,
            "operation": self.operation,
            "fiscal_code": MASK if self.fiscal_code else "",
            "customer": pseudonym(self.fiscal_code),
            "status": self.status,
            "elapsed": round(self.elapsed, 6),
            "evaluated": self.evaluated,
            "fault": self.fault,
            "request": masked(self.request),
            "answer": self._masked_answer(),
            "findings": list(self.findings),
        }

    def _masked_answer(self) -> dict[str, Any] | list[Any] | None:
        """Return the body of the response as it may be shown: messages that a rule wrote are masked, too."""
        if self.canned and isinstance(self.answer, Mapping):
            return masked(self.answer)
        return masked_answer(self.answer, self.request, self.fiscal_code)

    def __repr__(self) -> str:
        told = self.status if self.status is not None else "no answer"
        parts = [f"#{self.number} {self.operation or f'{self.method} {self.route}'} -> {told}"]
        parts += ["evaluated"] if self.evaluated else []
        parts += [self.fault] if self.fault else []
        return f"<JournalEntry {', '.join(parts)}>"

    def __str__(self) -> str:
        who = f" customer {pseudonym(self.fiscal_code)[:6]}" if self.fiscal_code else ""
        broken = f" [{', '.join(self.findings)}]" if self.findings else ""
        return f"{self!r}{broken}{who}, {self.elapsed * 1000:.1f} ms"


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
_KNOWN: Mapping[str, Iterable[str]] = {"operation": OPERATIONS, "findings": RULES, "fault": FAULT_NAMES}
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

    def met_by(self, entry: JournalEntry) -> bool:
        """Return True if a call meets the criteria."""
        return next(self._differences(entry), None) is None

    def nearest(self, entries: Sequence[JournalEntry]) -> str:
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

    def _differences(self, entry: JournalEntry) -> Iterator[str]:
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


_OFF = "the journal is off and knows no calls: start the sandbox with journal=1000, its usual length"


class _Waiting(Future[list[JournalEntry]]):
    """Somebody who waits for calls, in this thread's loop or in another's."""

    def __init__(self, criteria: Criteria, count: int) -> None:
        super().__init__()
        if type(count) is not int or count < 1:
            raise ValueError(f"count {count!r} must be a whole number, 1 or more")
        self.criteria = criteria
        self.count = count
        self.set_running_or_notify_cancel()  # from here on only an answer ends it


class Journal(Sequence[JournalEntry]):
    """The last calls, oldest first.

    Args:
        most: Calls to keep.
        on: False keeps none, for measurements under load.

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

    def __init__(self, most: int = 1000, *, on: bool = True) -> None:
        self.on = on
        self.total = 0
        self._entries: deque[JournalEntry] = deque(maxlen=most)
        self._waiting: list[_Waiting] = []
        self._serving = threading.Lock()
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
        return f"<Journal of {len(self)} calls{'' if self.on else ', off'}>"

    def append(self, entry: JournalEntry) -> None:
        """Note a call, and wake whoever waits for it."""
        self._entries.append(entry)
        for waiting in self._waiting[:]:
            self._serve(waiting)

    def clear(self) -> None:
        """Forget all calls; their numbers go on."""
        self._entries.clear()
        self._cleared = self.total

    def calls(self, **criteria: Any) -> list[JournalEntry]:
        """The calls that meet all criteria, oldest first.

        Args:
            criteria: Attributes of `JournalEntry` by name, such as ``operation="approve"``, ``status=500``,
                ``fiscal_code=...``; ``body={...}`` for fields of the request.

        Raises:
            RuntimeError: The journal is off.
            TypeError: There is no criterion of this name.
            ValueError: A criterion has a value that no call can have.
        """
        if not self.on:
            raise RuntimeError(_OFF)
        wanted = Criteria(criteria)
        return [entry for entry in self if wanted.met_by(entry)]

    def to_jsonl(self, **criteria: Any) -> str:
        """The calls as lines of JSON, masked."""
        return "".join(json.dumps(entry.masked()) + "\n" for entry in self.calls(**criteria))

    def write_jsonl(self, file: str | Path, **criteria: Any) -> None:
        """Write `to_jsonl` to a file, in UTF-8.

        Args:
            file: Its path; what was in it is gone.
            criteria: As for `calls`.

        Example:
            >>> from pathlib import Path
            >>> from tempfile import TemporaryDirectory
            >>> with TemporaryDirectory() as folder:
            ...     sandbox.journal.write_jsonl(f"{folder}/journal.jsonl")
            ...     len(Path(folder, "journal.jsonl").read_text().splitlines())
            1
        """
        Path(file).write_text(self.to_jsonl(**criteria), encoding="utf-8")

    def assert_once(self, **criteria: Any) -> JournalEntry:
        """The one call that meets the criteria.

        Raises:
            AssertionError: There is none, or more than one; the text has the nearest ones.
        """
        wanted = Criteria(criteria)
        self._know_all()
        found = self.calls(**criteria)
        if len(found) == 1:
            return found[0]
        if found:
            told = "\n".join(f"  {entry!r}" for entry in found)
            raise AssertionError(f"{len(found)} calls with {wanted}, wanted one:\n{told}")
        raise AssertionError(f"no call with {wanted}, wanted one. {wanted.nearest(list(self))}")

    def assert_never(self, *, within: float | None = None, **criteria: Any) -> None:
        """No call meets the criteria.

        Args:
            within: Only the last so many seconds count; None: ever.
            criteria: As for `calls`.

        Raises:
            AssertionError: There is one.
        """
        since = 0.0 if within is None else time.time() - within
        self._know_all(since)
        found = [entry for entry in self.calls(**criteria) if entry.at >= since]
        if found:
            told = "\n".join(f"  {entry!r}" for entry in found)
            raise AssertionError(f"{len(found)} calls with {Criteria(criteria)}, wanted none:\n{told}")

    async def wait_for(self, count: int = 1, *, timeout: float = 5.0, **criteria: Any) -> list[JournalEntry]:
        """Wait until so many calls met the criteria; those before count, too.

        Args:
            count: How many.
            timeout: Seconds.
            criteria: As for `calls`.

        Raises:
            AssertionError: They did not come in time; the text has the nearest ones.
            ValueError: The count is not a whole number of 1 or more.

        Example:
            >>> [call] = run(sandbox.journal.wait_for(operation="create_request"))
            >>> call.status
            201
        """
        with self._wait(count, criteria) as waiting:
            try:
                return await asyncio.wait_for(asyncio.wrap_future(waiting), timeout)
            except TimeoutError:
                raise self._late(waiting, timeout) from None

    def wait(self, count: int = 1, *, timeout: float = 5.0, **criteria: Any) -> list[JournalEntry]:
        """`wait_for` without a loop, for a sandbox in another thread.

        Args:
            count: How many.
            timeout: Seconds.
            criteria: As for `calls`.

        Raises:
            AssertionError: They did not come in time.
            ValueError: The count is not a whole number of 1 or more.

        Example:
            >>> [call] = sandbox.journal.wait(operation="create_request")
            >>> call.status
            201
        """
        with self._wait(count, criteria) as waiting:
            try:
                return waiting.result(timeout)
            except FutureTimeoutError:
                raise self._late(waiting, timeout) from None

    @contextmanager
    def _wait(self, count: int, criteria: dict[str, Any]) -> Iterator[_Waiting]:
        if not self.on:
            raise RuntimeError(_OFF)
        waiting = _Waiting(Criteria(criteria), count)
        self._waiting.append(waiting)
        try:
            self._serve(waiting)
            yield waiting
        finally:
            self._waiting.remove(waiting)

    def _serve(self, waiting: _Waiting) -> None:
        with self._serving:
            found = [entry for entry in self if waiting.criteria.met_by(entry)]
            if len(found) >= waiting.count and not waiting.done():
                waiting.set_result(found)

    def _late(self, waiting: _Waiting, timeout: float) -> AssertionError:
        entries = list(self)
        found = sum(waiting.criteria.met_by(entry) for entry in entries)
        return AssertionError(
            f"{found} calls with {waiting.criteria} within {timeout} seconds, wanted {waiting.count}."
            f" {waiting.criteria.nearest(entries)}"
        )

    def _know_all(self, since: float = 0.0) -> None:
        if not self.on:
            raise RuntimeError(_OFF)
        kept, came = len(self), self.total - self._cleared
        if kept < came and (not kept or self[0].at > since):
            raise RuntimeError(
                f"the journal kept the last {kept} of {came} calls and cannot tell of all: make it longer"
            )
