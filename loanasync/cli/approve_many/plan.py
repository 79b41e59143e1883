"""The plan of a run: what the ledger knows of each row, and what a run would do with it."""

from collections.abc import Mapping

from loanasync import DecisionForgottenError, InFlightError, PayloadMismatchError
from loanasync.bulk import FileRow, InputRows, RowResult
from loanasync.cli.approve_many.report import Counts
from loanasync.cli.approve_many.results import record_of
from loanasync.cli.approve_many.session import RunOptions, open_session
from loanasync.cli.console import print_message
from loanasync.cli.exit_codes import Exit

_FAILURES: Mapping[type, str] = {
    PayloadMismatchError: "decided with other data",
    DecisionForgottenError: "erased",
}
_OTHER_FAILURE = "decided for another order"
_FAILED = (*_FAILURES.values(), _OTHER_FAILURE, "wrong")
_STATUSES = ("new", "decided", "unknown", "in flight", *_FAILED)


def print_plan(options: RunOptions, rows: InputRows) -> Exit:
    """Print the number of rows by what a run would do with them. Send nothing, and write no file."""
    counts = Counts()
    with open_session(options, creates=False) as session:

        async def look_up() -> None:
            async with session.client() as client:
                async for _, row, result in client.look_up_all(enumerate(rows)):
                    counts.add(record_of(row, result) | {"status": _planned(row, result)})

        session.use.run(look_up())
    print_message(counts.table("plan", _STATUSES))
    print_message(f"ledger: {session.name}")
    if any(counts.rows[each] for each in _FAILED):
        return Exit.FAILED
    return Exit.UNKNOWN if counts.rows["unknown"] + counts.rows["in flight"] else Exit.DECIDED


def _planned(row: FileRow, result: RowResult | None) -> str:
    """Return the status of a row in the plan; ``new`` if it would be sent."""
    if row.problems:
        return "wrong"
    if result is None:
        return "new"
    if isinstance(result.error, InFlightError):
        return "in flight"
    if result.status == "failed":
        return _FAILURES.get(type(result.error), _OTHER_FAILURE)
    return "decided" if result.is_decided else "unknown"
