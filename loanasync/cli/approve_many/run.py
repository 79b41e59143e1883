"""One run of `approve-many`: open the ledger, request the approvals, and write the results."""

import asyncio
import hashlib
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from attrs import define, field, frozen

from loanasync import (
    DecisionForgottenError,
    DecisionNotRecordedError,
    Dialect,
    InFlightError,
    LedgerError,
    PayloadMismatchError,
)
from loanasync._protocol.rules import normalize_fiscal_code
from loanasync._settings import LEDGER_CIPHER, configure, from_environment
from loanasync.bulk import Approvals, FileRow, InputRows, Row, RowResult
from loanasync.cli.approve_many.client import BulkClient
from loanasync.cli.approve_many.output import Output
from loanasync.cli.approve_many.report import Counts, euro, progress_lines
from loanasync.cli.approve_many.results import (
    COLUMNS,
    csv_line,
    is_csv,
    reason_of,
    record_of,
    rejected_lines,
    result_line,
)
from loanasync.cli.console import (
    ABORT_TIMEOUT,
    batches,
    counted,
    duration,
    interruptible,
    print_message,
)
from loanasync.cli.exit_codes import Exit
from loanasync.cli.files import STANDARD_OUTPUT, check_distinct_files, files_of_ledger, write_whole
from loanasync.cli.ledger.open import OpenLedger, UnusableError, ledger_option, settings_of
from loanasync.ledger import Ledger, LedgerPolicy, MemoryLedger, SqliteLedger
from loanasync.ledger.address import name_without_password
from loanasync.ledger.environment import cipher_of
from loanasync.ledger.guard import LedgerGuard
from loanasync.ledger.policy import state_folder

_UPDATE_INTERVAL = 0.2  # seconds between two updates of the progress display
_BATCH = 64  # rows that are looked up together
_WAITING = (
    "no further row is sent; waiting for the calls in progress. Press Ctrl-C again to give them up: their "
    "outcomes become unknown"
)


@frozen(kw_only=True)
class RunOptions:
    """The options of a run.

    Args:
        out: The results.
        ledger: Name of the ledger; None for the default one.
        members: Columns by member of the body of a creation. None: create no request.
        rejected: Path of the file of rejected rows.
        dialect: The dialect of the requests.
        limits: The options of `LoanClient.approve_many`.
    """

    out: Output
    ledger: str | None
    members: Mapping[str, str] | None
    rejected: str | None
    dialect: Dialect
    limits: Mapping[str, Any]


@frozen
class _Session:
    """An open ledger and the settings of its client."""

    runner: asyncio.Runner
    use: OpenLedger
    settings: Mapping[str, Any]
    name: str
    is_new: bool
    ledger_id: str

    def client(self, options: RunOptions) -> BulkClient:
        client = BulkClient(
            **self.settings, dialect=options.dialect, ledger=self.use.ledger, ledger_policy=self.use.policy
        )
        client.bodies, client.noted, client.busy = {}, set(), set()
        return client


_FAILURES: Mapping[type, str] = {
    PayloadMismatchError: "decided with other data",
    DecisionForgottenError: "erased",
}
_OTHER_FAILURE = "decided for another order"
PLANNED_FAILURES = (*_FAILURES.values(), _OTHER_FAILURE, "wrong")
PLANNED = ("new", "decided", "unknown", "in flight", *PLANNED_FAILURES)


def dry_run(options: RunOptions, rows: InputRows) -> tuple[Counts, str]:
    """Return the statuses that the rows have in the ledger, and its name. Send and write nothing.

    The status ``new`` means that the row would be sent.
    """
    counts = Counts()
    with _opened(options, creates=False) as session:
        options.out.check(session.ledger_id, session.name)

        async def look_up() -> None:
            async with session.client(options) as client:
                for numbered in batches(enumerate(rows), _BATCH):
                    known = await asyncio.gather(*(client.look_up(*each) for each in numbered))
                    for (_, row), result in zip(numbered, known, strict=True):
                        counts.add(record_of(row, result) | {"status": plan_of(row, result)})

        session.use.run(look_up())
    return counts, session.name


def plan_of(row: FileRow, result: RowResult | None) -> str:
    """Return what a run would do with a row."""
    if row.problems:
        return "wrong"
    if result is None:
        return "new"
    if isinstance(result.error, InFlightError):
        return "in flight"
    if result.status == "failed":
        return _FAILURES.get(type(result.error), _OTHER_FAILURE)
    return "decided" if result.is_decided else "unknown"


def run(options: RunOptions, rows: InputRows, total: int, cents: int) -> Exit:
    """Request the approvals of the rows, write the results, and report them."""
    with options.out.locked(), _opened(options, creates=True) as session:
        options.out.check(session.ledger_id, session.name)
        options.out.keep(f"{session.ledger_id} {session.name}")
        rate, concurrency = options.limits["rate"], options.limits["concurrency"]
        limit = "" if rate is None else f", at most {rate:g} per second"
        limit += f"; ledger: {session.name}{' (new)' if session.is_new else ''}"
        print_message(
            f"requesting {counted(total, 'row')} of {rows.name}: {euro(cents)} euro, "
            f"{counted(concurrency, 'call')} at a time{limit}"
        )
        loop = _Loop(session.client(options), rows, total, options)
        with progress_lines(loop.counts, total) as update:
            session.runner.run(loop.run(update, partial(session.client, options)))
        unwritten = [*_write(options, rows, loop)]
        print_message(loop.counts.table("results"))
        loop.counts.causes.print()
        for message in (*_final_messages(loop, options, session), *unwritten):
            print_message(message)
        if loop.is_interrupted:
            return Exit.INTERRUPTED
        return Exit.FAILED if unwritten else loop.counts.exit_code


@contextmanager
def _opened(options: RunOptions, *, creates: bool) -> Iterator[_Session]:
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        settings = from_environment(os.environ)
        shop = configure(**settings)
        is_new = False
        ledger: Ledger
        if options.ledger is not None:
            found = settings_of(options.ledger)
            ledger, policy, name = found.ledger, found.policy, name_without_password(options.ledger)
        else:
            policy = LedgerPolicy(encrypt=cipher_of(os.environ.get(LEDGER_CIPHER)))
            file = _default_ledger(shop.base_url, shop.shop_id, creates=creates)
            name, is_new = str(file), not file.exists()
            beside = options.out.ledger_file
            written = (options.out.path, None if beside is None else str(beside), options.rejected)
            check_distinct_files((*written, *files_of_ledger(name)), ())
            ledger = SqliteLedger(file) if creates or not is_new else MemoryLedger()  # a plan creates no file
            if is_new and options.out.ledger_file is not None and options.out.ledger_file.exists():
                options.out.check(None, name)  # before the ledger is created
        stack.callback(lambda: runner.run(ledger.aclose()))
        use = OpenLedger(ledger, runner, policy)
        try:
            guard = LedgerGuard(ledger, policy, shop.base_url)
            ledger_id = use.run(guard.keys()).header.id
        except UnusableError as error:
            if options.ledger is not None:
                raise
            raise UnusableError(f"{name}: {error}; pass --ledger") from None
        yield _Session(runner, use, settings, name, is_new, ledger_id)


def _default_ledger(base_url: str, shop_id: str, *, creates: bool) -> Path:
    """Return the file of the ledger of a service and a shop. All runs of this user share it."""
    digest = hashlib.sha256(f"{base_url} {shop_id}".encode()).hexdigest()[:12]
    try:
        folder = state_folder() / "ledgers"
        if creates:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (RuntimeError, OSError) as error:
        reason = getattr(error, "strerror", None) or "there is no home directory"
        raise UnusableError(f"the default ledger cannot be used ({reason}): pass --ledger") from None
    return folder / f"{urlsplit(base_url).hostname}-{digest}.db"


@define
class _Loop:
    """Requests each row once, and keeps the line of each result."""

    client: BulkClient
    rows: InputRows
    total: int
    options: RunOptions
    counts: Counts = field(init=False, factory=Counts)
    lines: dict[int, str] = field(init=False, factory=dict)  # by the number of the row
    reasons: dict[int, str] = field(init=False, factory=dict)  # of rejected and failed rows
    unrecorded: list[int] = field(init=False, factory=list)  # rows whose decision the ledger lacks
    stopped: str = field(init=False, default="")  # the reason why the run ended early
    is_interrupted: bool = field(init=False, default=False)
    _in_flight: dict[int, FileRow] = field(init=False, factory=dict)  # claimed by another run
    _approvals: Approvals | None = field(init=False, default=None)
    _is_paused: bool = field(init=False, default=False)
    _closing: "asyncio.Future[None] | None" = field(init=False, default=None)

    async def run(self, update: Callable[[], None], new_client: Callable[[], BulkClient]) -> None:
        """Request all rows, then those that another run had claimed, and look up the others."""
        updates = asyncio.create_task(self._update_regularly(update))
        try:
            with interruptible(self._interrupt, self._give_up), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # of the stop, which this command prints
                async with self.client:
                    await self._request(enumerate(self.rows), wait=0.0, **self.options.limits)
                    await self._wait_for_others()
            if self._closing is not None:
                await self._closing
            if len(self.lines) < self.total:
                client = new_client()  # the other one may be closed
                try:
                    await self._look_up_others(client)
                finally:
                    await client.aclose()
        finally:
            updates.cancel()
        update()

    async def _request(self, numbered: Iterable[tuple[int, FileRow]], **options: Any) -> None:
        numbers: list[int] = []

        def rows() -> Iterator[Row]:
            for number, row in numbered:
                numbers.append(number)
                self._add_body(row)
                yield row

        if self.stopped:  # interrupted while the ledger was opened
            return
        self._approvals = approvals = self.client.approve_many(rows(), **options)
        async with approvals:
            async for result in approvals:
                self._finish(numbers[result.index], result)
        self.stopped = self.stopped or approvals.stopped

    def _add_body(self, row: FileRow) -> None:
        if self.options.members is None or row.problems:
            return
        found = {name: row.members.get(each) for name, each in self.options.members.items()}
        code = normalize_fiscal_code(row.fiscal_code)
        body = {"fiscalCode": code, **{name: each for name, each in found.items() if each not in (None, "")}}
        self.client.bodies[code, row.order_id] = body

    def _finish(self, number: int, result: RowResult) -> None:
        if self._is_paused:  # the run may end before the next update
            self._check_pause()
        row = cast("FileRow", result.row)
        if not row.problems:
            approval = normalize_fiscal_code(row.fiscal_code), row.order_id
            self.client.bodies.pop(approval, None)
            self.client.noted.discard(approval)
        if isinstance(result.error, InFlightError):
            self._in_flight[number] = row
            return
        self._keep(number, record_of(row, result))
        if isinstance(result.error, DecisionNotRecordedError):
            self.unrecorded.append(number)

    def _keep(self, number: int, record: Mapping[str, Any]) -> None:
        self._in_flight.pop(number, None)
        self.counts.add(record)
        self.lines[number] = result_line(record, self.options.out.path, self.rows.delimiter)
        if record["status"] in ("rejected", "failed"):
            self.reasons[number] = " ".join(reason_of(record).splitlines())

    async def _wait_for_others(self) -> None:
        """Request rows that were in flight again, at last until the leases of another run are over."""
        before = 0
        while self._in_flight and not self.stopped and len(self._in_flight) != before:
            before = len(self._in_flight)  # rows that waited for another order of this run are sent now
            await self._request([*self._in_flight.items()], wait=0.0, **self.options.limits)
        if not self._in_flight or self.stopped:
            return
        longest = self.client.timeout.longest + 2 * self.client.ledger_policy.patience  # type: ignore[union-attr]  # it has a ledger
        print_message(
            f"waiting for {counted(len(self._in_flight), 'row')} in flight in another run, which may have "
            f"been killed: at most {duration(longest)}"
        )
        until = time.monotonic() + longest
        while self._in_flight and not self.stopped and time.monotonic() < until:
            await self._request([*self._in_flight.items()], **self.options.limits)

    async def _look_up_others(self, client: BulkClient) -> None:
        """Add the rows that were not sent, with what the ledger knows of them."""
        stopped = self.stopped or "another run was requesting this row, and did not send it"
        reason = f"not sent: {stopped}; run the same command to continue"
        others = (each for each in enumerate(self.rows) if each[0] not in self.lines)
        for numbered in batches(others, _BATCH):
            known = await asyncio.gather(*(_look_up(client, *each) for each in numbered))
            for (number, row), result in zip(numbered, known, strict=True):
                self._keep(number, record_of(row, result, reason))

    async def _update_regularly(self, update: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(_UPDATE_INTERVAL)
            update()
            self._check_pause()

    def _check_pause(self) -> None:
        """Print when the run pauses and continues."""
        error = None if self._approvals is None else self._approvals.paused
        if (error is not None) is not self._is_paused:
            self._is_paused = error is not None
            reason = f"paused: {error}; one row at a time tries again"
            print_message("continuing: rows are sent again" if error is None else reason)

    def _interrupt(self) -> None:
        self.is_interrupted, self.stopped = True, "interrupted"
        if self._approvals is not None:
            self._approvals.stop()
        print_message(_WAITING)

    def _give_up(self) -> None:
        self._closing = asyncio.ensure_future(self.client.aclose(ABORT_TIMEOUT))


async def _look_up(client: BulkClient, number: int, row: FileRow) -> RowResult | None:
    try:
        return await client.look_up(number, row)
    except LedgerError:  # it was available before; the next run looks again
        return None


def _write(options: RunOptions, rows: InputRows, loop: _Loop) -> Iterator[str]:
    """Write results and rejected rows. Yield messages if they could not be written."""
    path = options.out.path
    header = [csv_line(COLUMNS, rows.delimiter)] if is_csv(path) else []
    try:
        write_whole(path, [*header, *(loop.lines[number] for number in sorted(loop.lines))])
    except OSError as error:
        name = "standard output" if path == STANDARD_OUTPUT else path
        yield (
            f"{name} cannot be written ({error.strerror}), and is unchanged. The ledger has the decisions: "
            "free some space, then run the same command again"
        )
        # Personal data on the screen are better than a lost decision.
        for number in loop.unrecorded:
            print_message(loop.lines[number].rstrip("\n"))
    if options.rejected is None:
        return
    try:
        write_whole(options.rejected, rejected_lines(rows, lambda number, _: loop.reasons.get(number, "")))
    except OSError as error:
        yield f"{options.rejected} could not be written ({error.strerror}); the results are not affected"


def _final_messages(loop: _Loop, options: RunOptions, session: _Session) -> Iterator[str]:
    """Yield why the run ended early, and what the user has to do."""
    if loop.stopped and loop.counts.rows["not_sent"]:
        yield f"{loop.stopped}; run the same command to continue"
    elif loop.stopped:
        yield loop.stopped
    if loop.unrecorded:
        yield (
            f"{counted(len(loop.unrecorded), 'decision')} could not be recorded in the ledger; the results "
            "contain them. When the ledger works again, run the same command"
        )
    if unknown := loop.counts.rows["unknown"]:
        subject = "1 outcome is" if unknown == 1 else f"{unknown:,} outcomes are"
        command = f"loanasync ledger {ledger_option(options.ledger or session.name)}resolve KEY"
        yield f"{subject} unknown: ask the service, then run: {command}. Unknown rows are not sent again"
