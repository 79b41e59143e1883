"""One run of `approve-many`: open the job, request the approvals, and export the results."""

import asyncio
import gzip
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import attrs
import typer
from attrs import frozen

from loanasync._config import LEDGER_CIPHER, Shop, configure, from_environment
from loanasync.bulk import InputRows
from loanasync.cli.approve_many.creation import CreatingClient
from loanasync.cli.approve_many.export import OTHER_LEDGER, JobRecords
from loanasync.cli.approve_many.job import Counts, Job, Kind
from loanasync.cli.approve_many.loop import RequestLoop
from loanasync.cli.approve_many.plan import Keys, Planner
from loanasync.cli.approve_many.rejected import keep_earlier, rejected_lines
from loanasync.cli.approve_many.report import (
    Failures,
    UpdateProgress,
    euro,
    exit_code_of,
    progress_display,
    report_of,
    table_of,
    unfinished,
)
from loanasync.cli.approve_many.results import fiscal_codes_in, result_lines
from loanasync.cli.console import counted, print_message, stderr_console
from loanasync.cli.exit_codes import Exit
from loanasync.cli.files import STANDARD_OUTPUT, create_private, has_content, is_regular, write_whole
from loanasync.cli.input import Reading, absolute, dialect_of, source_of
from loanasync.cli.ledger.open import OpenLedger, UnusableError, settings_of
from loanasync.ledger import Ledger, LedgerPolicy, MemoryLedger, SqliteLedger, State
from loanasync.ledger.address import name_without_password
from loanasync.ledger.administration import move_service
from loanasync.ledger.environment import cipher_of
from loanasync.ledger.guard import LedgerGuard
from loanasync.ledger.orphans import orphan_files

_EVALUATED = (State.APPROVED, State.REFUSED, State.UNKNOWN, State.LOST, State.HELD, State.INFLIGHT)
_DECISION = re.compile(r'"status": "(?:approved|refused)"|[,;\t|](approved|refused)[,;\t|]\1[,;\t|]')
_MOST_CUSTOMERS = 10_000_000  # of a sandbox
_MOST_GROUPS = 10  # groups of failed rows that are printed


@frozen(kw_only=True)
class RunOptions:
    """The options of a run. `Reading` has those with which the rows are read.

    Args:
        out: Path of the results; None for a plan.
        ledger: Name of the ledger; None for a ledger in the job file.
        sandbox: Start a sandbox and use it as the service.
        members: Columns by member of the body of a creation. None: create no request.
        rejected: Path of the file of rejected rows.
        report: Path of the report.
        deadline: Seconds after which no further row is sent.
        limits: The options of `LoanClient.approve_many`.
    """

    out: str | None
    ledger: str | None
    sandbox: bool
    members: Mapping[str, str] | None
    rejected: str | None
    report: str | None
    deadline: float | None
    limits: Mapping[str, Any]

    @property
    def results(self) -> str:
        """Path of the results."""
        return self.out or STANDARD_OUTPUT

    @property
    def job_file(self) -> Path | None:
        """Path of the job file; None for results that are not in a file."""
        return Path(f"{self.results}.ledger") if is_regular(self.results) else None

    @property
    def has_begun(self) -> bool:
        """True if earlier runs or other programs may have requested some of the rows."""
        file = self.job_file
        return self.ledger is not None or (file is not None and (file.exists() or has_content(self.results)))

    @property
    def ledger_name(self) -> str:
        """The ledger for messages, without a password; empty if it is forgotten after the run."""
        if self.ledger is not None:
            return name_without_password(self.ledger)
        return "" if self.job_file is None else str(self.job_file)


@frozen
class _Session:
    """A job that is open with its ledger and its service.

    Args:
        runner: The event loop of the whole run.
        job: The job.
        use: Its ledger.
        settings: The settings of the client.
        keys: The keys of the rows.
        planner: Makes the plan.
        records: Writes and reads the records of the job.
    """

    runner: asyncio.Runner
    job: Job
    use: OpenLedger
    settings: Mapping[str, Any]
    keys: Keys
    planner: Planner
    records: JobRecords


def plan(options: RunOptions, orders: InputRows) -> Counts:
    """Return what a run would do with the rows. Send and write nothing."""
    with ExitStack() as stack:
        session = _open(options, orders, stack, writes=False)
        session.planner.plan(orders, session.records.encode)
        return session.job.planned()


def run(options: RunOptions, reading: Reading, orders: InputRows) -> Exit:
    """Request the approvals of the rows, export the results, and report them."""
    console = stderr_console()
    with ExitStack() as stack:
        session = _open(options, orders, stack, writes=True)
        session.records.codes = session.planner.plan(orders, session.records.encode)
        counts = session.job.planned()
        _begin(options, reading, orders, session)
        _print_start(options, orders, counts)
        with progress_display(console, counts, unfinished(counts)) as update:
            loop = session.runner.run(_send(options, reading, orders, session, counts, update))
        failures = Failures()
        unwritten = [*_export(options, orders, session, failures)]
        console.print(table_of(counts, "results"))
        _print_failures(options, failures)
        code = _exit_code(counts, loop)
        report = report_of(counts, failures) | {
            "stopped": loop.stopped or None,
            "seconds": round(loop.elapsed, 3),
            "exit_code": int(code),
        }
        unwritten += _write(options.report, [json.dumps(report, indent=2) + "\n"])
        uncoded = session.records.uncoded_message()
        has_orphans = _has_orphans(session)
        for message in filter(
            None, (*_final_messages(options, counts, loop, has_orphans=has_orphans), uncoded, *unwritten)
        ):
            print_message(message, "bold")
        return code or (Exit.FAILED if unwritten else code)


def _open(options: RunOptions, orders: InputRows, stack: ExitStack, *, writes: bool) -> _Session:
    """Open the job and its ledger. The ledger of a new job is created."""
    file, is_new = options.job_file, not options.has_begun
    job = stack.enter_context(closing(Job(file)))
    if file is not None and not job.members and has_content(options.results):
        raise UnusableError(_without_job(options, file))
    runner = stack.enter_context(asyncio.Runner())
    settings = from_environment(_start_sandbox(runner, stack) if options.sandbox else os.environ)
    shop = configure(**settings)
    ledger, policy = _ledger_of(options)
    stack.callback(lambda: runner.run(ledger.aclose()))
    use, address = OpenLedger(ledger, runner, policy), shop.base_url
    if file is not None and file.exists():
        job.lock() if writes else job.check_lock()
    if not is_new:
        address = _check_job(options, job, use, shop, writes=writes)
    if writes:  # find a wrong path before the ledger is created
        if options.report is not None:
            create_private(options.report)
        if options.rejected is not None:
            keep_earlier(options.rejected, orders)
    keys = Keys(shop.shop_id, use.run(LedgerGuard(ledger, policy, address).keys()).secrets, policy)
    planner = Planner(job, keys, None if is_new else use, options.ledger is None, writes)
    records = JobRecords(job, policy.encrypt)
    return _Session(runner, job, use, settings, keys, planner, records)


def _ledger_of(options: RunOptions) -> tuple[Ledger, LedgerPolicy]:
    if options.ledger is not None:
        settings = settings_of(options.ledger)
        return settings.ledger, settings.policy
    policy = LedgerPolicy(encrypt=cipher_of(os.environ.get(LEDGER_CIPHER)))
    if options.job_file is not None:
        return SqliteLedger(options.job_file), policy
    if options.sandbox:
        return MemoryLedger(), policy
    raise typer.BadParameter(
        "name a ledger, or results in a file with -o FILE: rows may come twice", param_hint="--ledger"
    )


def _start_sandbox(runner: asyncio.Runner, stack: ExitStack) -> dict[str, str]:
    """Start a sandbox until the stack is closed. Return the variables that name it."""
    from loanasync.sandbox import Sandbox  # noqa: PLC0415  (its server is slow to import)

    sandbox = Sandbox(customers=_MOST_CUSTOMERS)
    runner.run(sandbox.start())
    stack.callback(lambda: runner.run(sandbox.stop()))
    return {
        "LOANASYNC_BASE_URL": sandbox.base_url,
        "LOANASYNC_SHOP_ID": sandbox.shop_id,
        "LOANASYNC_AUTH_TOKEN": sandbox.auth_token,
    }


def _without_job(options: RunOptions, file: Path) -> str:
    """Return the message about results whose job is not known."""
    out = options.results
    opened = gzip.open if out.endswith(".gz") else open
    with opened(out, "rt", encoding="utf-8", errors="replace") as lines:
        decisions = sum(_DECISION.search(line) is not None for line in lines)
    advice = "restore the job file. Another results file (-o) begins a new job, which "
    advice += (
        "sends the requests of these customers again"
        if options.ledger is None
        else "reads their decisions from the ledger"
    )
    return (
        f"{out} exists and contains {counted(decisions, 'decision')}, but its job file {file} is missing or "
        f"empty, so the requested customers are not known: {advice}"
    )


def _check_job(options: RunOptions, job: Job, use: OpenLedger, shop: Shop, *, writes: bool) -> str:
    """Refuse a job of another shop or ledger. A job in which nobody was evaluated may change the service.

    Return the address of the service that the ledger must have.
    """
    known, is_own = job.members, options.ledger is None
    is_other = known and bool(known["ledger"]) is is_own  # then the job file need not be a ledger
    header = None if is_other else use.run(use.ledger.header())
    if header is None or (known and known["ledger_id"] != header.id):
        raise UnusableError(f"{job.path} {OTHER_LEDGER}")
    has_evaluated = job.has_evaluated() or (is_own and next(use.entries(*_EVALUATED), None) is not None)
    of_other = known and (known["sandbox"], known["shop_id"]) != (options.sandbox, shop.shop_id)
    if of_other and has_evaluated:
        raise UnusableError(
            f"{options.results} contains results of another shop, or of a sandbox: name a new results file"
            " with -o"
        )
    may_move = (known and options.sandbox) or not has_evaluated  # each sandbox has another address
    if is_own and may_move and header.service != shop.base_url:
        if not writes:
            return header.service
        use.run(move_service(use.ledger, shop.base_url))
    return shop.base_url


def _begin(options: RunOptions, reading: Reading, orders: InputRows, session: _Session) -> None:
    """Write the plan to the job. Add the customers of its other inputs to the records."""
    job = session.job
    paths = {"file": absolute(reading.file), "mapping": reading.mapping and absolute(reading.mapping)}
    inputs = [each for each in job.members.get("inputs", []) if each["file"] != paths["file"]]
    members = {
        "sandbox": options.sandbox,
        "shop_id": session.keys.shop_id,
        "ledger": "" if options.ledger is None else options.ledger_name,
        "ledger_id": session.use.run(session.use.ledger.header()).id,
        "delimiter": job.members.get("delimiter", orders.delimiter),
        "inputs": [*inputs, attrs.asdict(reading) | paths],
    }
    job.begin(options.job_file, source_of(orders.name), members)
    for each in inputs:
        session.records.codes = session.keys.fiscal_codes(Reading(**each)) | session.records.codes


def _print_start(options: RunOptions, orders: InputRows, counts: Counts) -> None:
    """Print a line that says what this run will do."""
    rate, concurrency = options.limits["rate"], options.limits["concurrency"]
    limit = "" if rate is None else f", at most {rate:g} per second"
    print_message(
        f"requesting {counts.rows[Kind.TO_BE_SENT]:,} of {counted(counts.total, 'row')} of "
        f"{orders.name}: {euro(counts.cents[Kind.TO_BE_SENT])} euro, "
        f"{counted(concurrency, 'call')} at a time{limit}; ledger: {options.ledger_name or 'none'}"
    )


async def _send(
    options: RunOptions,
    reading: Reading,
    orders: InputRows,
    session: _Session,
    counts: Counts,
    update: UpdateProgress,
) -> RequestLoop:
    client = CreatingClient(
        **session.settings,
        dialect=dialect_of(reading.dialect),
        ledger=session.use.ledger,
        ledger_policy=session.keys.policy,
    )
    client.creations = {}
    async with client:
        loop = RequestLoop(
            client, orders, session.job, session.keys, session.records, counts, options.members
        )
        await loop.run(update, options.deadline, **options.limits)
        return loop


def _print_failures(options: RunOptions, failures: Failures) -> None:
    causes = failures.tally.causes()
    for cause in causes[:_MOST_GROUPS]:
        print_message(cause.line(cause.text))
    if (others := len(causes) - _MOST_GROUPS) > 0:
        name = "the results" if options.results == STANDARD_OUTPUT else options.results
        print_message(f"and {counted(others, 'other cause')} in {name}")


def _export(options: RunOptions, orders: InputRows, session: _Session, failures: Failures) -> Iterator[str]:
    """Write results and rejected rows. Yield messages if they, or some records, could not be written."""
    records, job = session.records, session.job
    delimiter, is_only_copy = job.members["delimiter"], job.path is None
    records.earlier_codes = fiscal_codes_in(options.results, delimiter)
    try:
        lines = result_lines(options.results, delimiter, failures.seen(records.read(session.use)))
        write_whole(options.results, lines)
        is_only_copy = False
    except OSError as error:
        name = "standard output" if options.results == STANDARD_OUTPUT else options.results
        yield f"{name} cannot be written ({error.strerror})"
        if not is_only_copy:
            yield f"the job file contains the results; free some space, then run: loanasync export {job.path}"
    if is_only_copy or records.unsaved:
        unsaved = records.read(session.use, unsaved_only=not is_only_copy)
        yield _write_elsewhere(options.results, [*result_lines(options.results, delimiter, unsaved)])
    yield from _write(options.rejected, rejected_lines(orders, records.reasons(session.keys)))


def _write_elsewhere(results: str, lines: Sequence[str]) -> str:
    """Write results that are in no file to a temporary file, or print them. Return a message."""
    suffix = "".join(Path(results).suffixes[-2:]) or ".jsonl"
    try:
        handle, path = tempfile.mkstemp(prefix="loanasync-results-", suffix=suffix)
        os.close(handle)
        write_whole(path, lines)
    except OSError as error:  # personal data on the screen are better than a lost result
        stderr_console().file.writelines(lines)
        return (
            f"no file can be written ({error.strerror}): the results that are in no file were printed above"
        )
    return f"the results that are in no other file are in {path}"


def _write(path: str | None, lines: Iterable[str]) -> list[str]:
    """Write a file, and return a message if that fails."""
    if path is None:
        return []
    try:
        write_whole(path, lines)
    except OSError as error:
        return [f"{path} could not be written ({error.strerror}); the results are not affected"]
    return []


def _has_orphans(session: _Session) -> bool:
    """Return True if the decision of an unknown row is in a file, because the ledger could not record it."""
    unknown = [row.key for row in session.job.rows() if row.state == "unknown"]
    with suppress(OSError):
        folders = session.use.policy.orphan_folders
        return any(orphan_files(folder, key) for folder in folders for key in unknown)
    return False


def _final_messages(
    options: RunOptions, counts: Counts, loop: RequestLoop, *, has_orphans: bool
) -> Iterator[str]:
    """Yield why the run ended early, and what the user has to do."""
    unsent = counts.rows[Kind.TO_BE_SENT]
    can_resume = bool(options.ledger_name)
    if loop.stopped and (unsent or loop.code is not Exit.DEADLINE):
        yield f"{loop.stopped}; run the same command to resume" if can_resume and unsent else loop.stopped
    if loop.unrecorded:
        yield (
            f"{counted(loop.unrecorded, 'decision')} could not be recorded in the ledger; the results "
            f"contain them. When the ledger works again, run: {_ledger_command(options, 'sweep')}"
        )
    if (repeatable := loop.repeatable) and can_resume:
        subject, pronoun = ("row was", "it") if repeatable == 1 else ("rows were", "them")
        yield (
            f"{repeatable:,} failed {subject} not evaluated: correct the cause, then run the same command to "
            f"send {pronoun} again"
        )
    if counts.rows[Kind.FAILED] and options.results != STANDARD_OUTPUT:
        yield f"the reasons of failed rows are in {options.results}"
    if unknown := counts.rows[Kind.UNKNOWN]:
        subject = "1 outcome is" if unknown == 1 else f"{unknown:,} outcomes are"
        resolve = f", then run: {_ledger_command(options, 'resolve')}" if can_resume else ""
        # Decisions of calls that a second Ctrl-C gave up may reach the ledger after this summary.
        is_late = loop.is_aborted and can_resume
        again = "run the same command first, it may find their decisions; then " if is_late else ""
        if has_orphans and can_resume:
            again = f"run {_ledger_command(options, 'sweep')} and the same command first; then "
        yield f"{subject} unknown: {again}ask the service{resolve}. Unknown rows are not sent again"


def _ledger_command(options: RunOptions, name: str) -> str:
    """Return a command for the ledger of this run, without its address."""
    own = "(with the same --ledger)" if options.ledger is not None else f"--ledger {options.job_file}"
    return f"loanasync ledger {name} {own}"


def _exit_code(counts: Counts, loop: RequestLoop) -> Exit:
    rows = counts.rows
    if loop.is_aborted and rows[Kind.UNKNOWN]:
        return Exit.INTERRUPTED
    if loop.stopped and rows[Kind.TO_BE_SENT] and loop.code is not Exit.FAILED:
        return loop.code
    return exit_code_of(counts)
