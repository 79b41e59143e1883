"""The calls that came, for a test to ask about and for a person to read; masked wherever they are shown."""

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from pathlib import Path
from typing import Any, overload

from loanasync.sandbox.journal.entry import Entry
from loanasync.sandbox.journal.matching import Criteria

_OFF = "the journal is off and knows no calls: start the sandbox with journal=1000, its usual length"


class _Waiting(Future[list[Entry]]):
    """Somebody who waits for calls, in this thread's loop or in another's."""

    def __init__(self, criteria: Criteria, count: int) -> None:
        super().__init__()
        if type(count) is not int or count < 1:
            raise ValueError(f"count {count!r} must be a whole number, 1 or more")
        self.criteria = criteria
        self.count = count
        self.set_running_or_notify_cancel()  # from here on only an answer ends it


class Journal(Sequence[Entry]):
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
        self._entries: deque[Entry] = deque(maxlen=most)
        self._waiting: list[_Waiting] = []
        self._serving = threading.Lock()
        self._cleared = 0

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        return list(self._entries)[index]

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<Journal of {len(self)} calls{'' if self.on else ', off'}>"

    def append(self, entry: Entry) -> None:
        """Note a call, and wake whoever waits for it."""
        self._entries.append(entry)
        for waiting in self._waiting[:]:
            self._serve(waiting)

    def clear(self) -> None:
        """Forget all calls; their numbers go on."""
        self._entries.clear()
        self._cleared = self.total

    def calls(self, **criteria: Any) -> list[Entry]:
        """The calls that meet all criteria, oldest first.

        Args:
            criteria: Attributes of `Entry` by name, such as ``operation="approve"``, ``status=500``,
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

    def assert_once(self, **criteria: Any) -> Entry:
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

    async def wait_for(self, count: int = 1, *, timeout: float = 5.0, **criteria: Any) -> list[Entry]:
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

    def wait(self, count: int = 1, *, timeout: float = 5.0, **criteria: Any) -> list[Entry]:
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
