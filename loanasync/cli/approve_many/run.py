"""One run of `approve-many`: request the approvals of the rows, write the results and report them."""

import asyncio
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from attrs import define, field

from loanasync import InFlightError, LedgerError
from loanasync._protocol.rules import normalize_fiscal_code
from loanasync.bulk import Approvals, FileRow, InputRows, Row, RowResult
from loanasync.cli.approve_many.client import BulkClient
from loanasync.cli.approve_many.report import euro, progress_lines
from loanasync.cli.approve_many.results import Results
from loanasync.cli.approve_many.session import RunOptions, Session, open_session
from loanasync.cli.console import (
    ABORT_TIMEOUT,
    counted,
    duration,
    interruptible,
    print_message,
)
from loanasync.cli.exit_codes import Exit
from loanasync.cli.ledger.open import ledger_option

_UPDATE_INTERVAL = 0.2  # seconds between two updates of the progress display
_WAITING = (
    "no further row is sent; waiting for the calls in progress. Press Ctrl-C again to give them up: their "
    "outcomes become unknown"
)


def run(options: RunOptions, rows: InputRows, total: int, cents: int) -> Exit:
    """Request the approvals of the rows, write the results, and report them."""
    with options.out.locked(), open_session(options, creates=True) as session:
        options.out.keep(f"{session.ledger_id} {session.name}")
        rate, concurrency = options.limits["rate"], options.limits["concurrency"]
        limit = "" if rate is None else f", at most {rate:g} per second"
        limit += f"; ledger: {session.name}{' (new)' if session.is_new else ''}"
        print_message(
            f"requesting {counted(total, 'row')} of {rows.name}: {euro(cents)} euro, "
            f"{counted(concurrency, 'call')} at a time{limit}"
        )
        results = Results(options.out.path, rows)
        loop = _Loop(session.client(), rows, total, options, results)
        with progress_lines(results.counts, total) as update:
            session.runner.run(loop.run(update, session.client))
        unwritten = [*results.write(options.rejected)]
        print_message(results.counts.table("results"))
        results.counts.causes.print()
        for message in (*_final_messages(loop, options, session), *unwritten):
            print_message(message)
        if loop.is_interrupted:
            return Exit.INTERRUPTED
        return Exit.FAILED if unwritten else results.counts.exit_code


@define
class _Loop:
    """Requests each row once, and adds its result."""

    client: BulkClient
    rows: InputRows
    total: int
    options: RunOptions
    results: Results
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
            if len(self.results) < self.total:
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
        self._in_flight.pop(number, None)
        self.results.add(number, row, result)

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
        others = (each for each in enumerate(self.rows) if each[0] not in self.results)
        # If the ledger fails, which was available before, the next run looks again.
        async for number, row, result in client.look_up_all(others, ignored=(LedgerError,)):
            self.results.add(number, row, result, reason)

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


def _final_messages(loop: _Loop, options: RunOptions, session: Session) -> Iterator[str]:
    """Yield why the run ended early, and what the user has to do."""
    results = loop.results
    if loop.stopped and results.counts.rows["not_sent"]:
        yield f"{loop.stopped}; run the same command to continue"
    elif loop.stopped:
        yield loop.stopped
    if results.unrecorded:
        yield (
            f"{counted(len(results.unrecorded), 'decision')} could not be recorded in the ledger; the "
            "results contain them. When the ledger works again, run the same command"
        )
    if unknown := results.counts.rows["unknown"]:
        subject = "1 outcome is" if unknown == 1 else f"{unknown:,} outcomes are"
        command = f"loanasync ledger {ledger_option(options.ledger or session.name)}resolve KEY"
        yield f"{subject} unknown: ask the service, then run: {command}. Unknown rows are not sent again"
