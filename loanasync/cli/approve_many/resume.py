"""Who was asked for in earlier runs of the same command, so that it can be given again."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol, TypeAlias

from loanasync.cli.rows.append import Appending, cut_half_a_line, has_content, lines
from loanasync.cli.rows.parse import Format
from loanasync.errors.service import NOT_PROCESSED

try:
    import fcntl
except ImportError:  # Windows: two runs at once are not noticed there
    fcntl = None  # type: ignore[assignment]

# What is known of a customer: decided, or of unknown outcome; failed for good; being asked for by somebody
# else; or to be asked for.
Past = Literal["decided", "unknown", "failed", "busy", "new"]
Learn: TypeAlias = Callable[[Sequence[str]], object]


class NotResumableError(Exception):
    """Results are there that cannot be gone on with; the text says why, and what to do."""


class Memory(Protocol):
    """Knows who was asked for. A ledger is one, too."""

    def learning(self) -> AbstractContextManager[Learn]:
        """What is called with customers before anything is asked about them."""

    def past(self, fiscal_code: str) -> Past:
        """What is known of a customer."""

    def is_told(self, fiscal_code: str) -> bool:
        """Whether the results say so already."""

    def entry(self, fiscal_code: str) -> str | None:
        """What a person finds this customer by in the ledger, if there is one."""

    def ask(self, fiscal_code: str) -> None:
        """Note that this customer is asked for, before the first byte of it is sent."""

    def lost(self) -> Iterator[str]:
        """Customers who were asked for, and whose answer did not come back."""

    def close(self) -> None:
        """Done with it."""


class Nothing:
    """No memory, where results go to a pipe."""

    def learning(self) -> AbstractContextManager[Learn]:
        """There is nothing to learn."""
        return nullcontext(lambda _: None)

    def is_told(self, fiscal_code: str) -> bool:
        """Nothing is to be told."""
        del fiscal_code
        return True

    def entry(self, fiscal_code: str) -> str | None:
        """There is no ledger."""
        del fiscal_code
        return None

    def past(self, fiscal_code: str) -> Past:
        """Everybody is new."""
        del fiscal_code
        return "new"

    def ask(self, fiscal_code: str) -> None:
        """Forget it."""

    def lost(self) -> Iterator[str]:
        """Nobody."""
        return iter(())

    def close(self) -> None:
        """Nothing is open."""


class NotesFile(Nothing):
    """Memory beside a file of results: ``OUT.asked`` has a line for each customer before they are sent.

    Whoever has a line there and no result after it was under way when an earlier run ended: their outcome
    is unknown, and they are never asked for again. Both files outlive a crash of the process; the system's
    own crash may take the last lines of either with it.

    Args:
        results: The file of results.
        form: How they stand in it.
        service: Address and shop; results of another are not gone on with.
        ledger: Which ledger knows who was asked for, if it is not this file; so, too.
    """

    def __init__(self, results: str, form: Format, service: str, ledger: str | None = None) -> None:
        self._results = results
        self._notes = results + ".asked"
        self._status: dict[str, Past] = {}
        self._open: Counter[str] = Counter()
        if has_content(results) and not has_content(self._notes):
            told = f"{results} is there without {self._notes}, so that nobody knows who was asked"
            raise NotResumableError(f"{told}: name a new file for the results")
        self._file = Appending(self._notes)
        try:
            self._lock()
            self._read_notes({"service": service} | ({} if ledger is None else {"ledger": ledger}))
            self._read_results(form)
        except BaseException:
            self._file.close()
            raise

    def _read_notes(self, begun: Mapping[str, str]) -> None:
        if has_content(self._notes):
            cut_half_a_line(self._notes)
        if not has_content(self._notes):
            self._file.add(json.dumps(begun) + "\n")
            return
        notes = lines(self._notes)
        self._must_be(begun, next(notes))
        for code in notes:
            self._open[code] += 1

    def _must_be(self, begun: Mapping[str, str], head: str) -> None:
        if head == json.dumps(begun):
            return
        if head.startswith(json.dumps({"service": begun["service"]})[:-1]):
            told = f"{self._results} was begun with another --ledger, or one of the two without"
            raise NotResumableError(f"{told}: give the one that it was begun with")
        told = f"{self._results} has results of another service or shop"
        raise NotResumableError(f"{told}: name a new file for the results")

    def _lock(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise NotResumableError(f"another run writes to {self._results} now") from None

    def _read_results(self, form: Format) -> None:
        if not has_content(self._results):
            return
        cut_half_a_line(self._results, kept=self._results + ".half")
        for number, line in enumerate(lines(self._results), 1):
            if number == 1 and line == form.head.rstrip("\n"):
                continue
            try:
                record = form.record(line)
                code, status = _known(record)
            except (ValueError, KeyError):
                told = f"{self._results}, line {number}, is no result of this command"
                raise NotResumableError(f"{told}: name a new file for the results") from None
            if code is not None:
                self._open[code] -= 1
                self._status[code] = status

    def past(self, fiscal_code: str) -> Past:
        """By the last result of this customer; unknown if there is none and there should be."""
        return "unknown" if self._open[fiscal_code] > 0 else self._status.get(fiscal_code, "new")

    def ask(self, fiscal_code: str) -> None:
        """Write it down.

        Raises:
            OSError: It cannot be written: do not ask.
        """
        self._file.add(fiscal_code + "\n")

    def lost(self) -> Iterator[str]:
        """Those of earlier runs."""
        return (code for code, times in self._open.items() if times > 0)

    def close(self) -> None:
        """Let the next run begin."""
        self._file.close()


def _known(record: Mapping[str, Any]) -> tuple[str | None, Past]:
    """Return the customer that a line of the results is about, None if nothing was sent, and their state."""
    if "outcome" not in record:
        return (record["fiscal_code"] if record["asked"] else None), _past_in_0_1(record)
    if record["status"] in ("approved", "refused"):
        past: Past = "decided"
    elif record["outcome"] == "unknown":
        past = "unknown"
    else:
        past = "new" if record["outcome"] in ("not_sent", "not_evaluated") else "failed"
    return record.get("fiscal_code"), past


def _past_in_0_1(record: Mapping[str, Any]) -> Past:
    """Read a line of version 0.1, which took more errors for a proof that the customer was not evaluated."""
    if record["status"] in ("approved", "refused"):
        return "decided"
    if record["status"] == "unknown":
        return "unknown"
    if not record["again"]:
        return "failed"
    error, status = record.get("error"), record.get("status_code")
    is_proof = (
        status is None
        or error in _PROOFS
        or (error == "RejectedError" and record.get("problems"))
        or (error == "UnexpectedStatusError" and int(status) in NOT_PROCESSED)
    )
    return "new" if is_proof else "unknown"


_PROOFS = ("AccessDeniedError", "UserNotFoundError", "ShopNotAllowedError", "InvalidFiscalCodeError")
