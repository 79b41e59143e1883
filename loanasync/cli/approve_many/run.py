"""One run of `approve-many`: plan the rows, request the approvals, and export the results."""

import asyncio
import errno
import gzip
import json
import os
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, closing
from pathlib import Path
from secrets import token_bytes

import attrs
import typer
from attrs import define, frozen
from rich.console import Console

from loanasync._config import LEDGER_CIPHER, Shop
from loanasync.bulk import InputRows
from loanasync.bulk.input import LINE_NAME
from loanasync.cli.approve_many.creation import CreatingClient
from loanasync.cli.approve_many.export import (
    Failures,
    Records,
    failure_line,
    report_of,
    result_lines,
)
from loanasync.cli.approve_many.job import Counts, Job, Kind
from loanasync.cli.approve_many.loop import RequestLoop
from loanasync.cli.approve_many.plan import Customer, Keys, Planner, Reading, customers_of
from loanasync.cli.approve_many.problems import ProblemList
from loanasync.cli.approve_many.report import euro, progress_display, table_of, unfinished
from loanasync.cli.approve_many.results import Format, format_of
from loanasync.cli.console import counted, print_message, stderr_console
from loanasync.cli.exit_codes import Exit
from loanasync.cli.files import STANDARD_OUTPUT, create_private, has_content, is_regular, write_whole
from loanasync.cli.input import DialectName, dialect_of, rejected_header
from loanasync.cli.ledger.open import (
    OpenLedger,
    UnusableError,
    open_ledger,
    settings_of,
    shop_from_environment,
)
from loanasync.ledger import LedgerPolicy, MemoryLedger, SqliteLedger, State
from loanasync.ledger.address import name_without_password
from loanasync.ledger.administration import move_service
from loanasync.ledger.environment import cipher_of
from loanasync.ledger.guard import LedgerGuard
from loanasync.ledger.header import check_cipher, keys_of

_EVALUATED = (State.APPROVED, State.REFUSED, State.UNKNOWN, State.LOST, State.HELD, State.INFLIGHT)
_DECISION = re.compile(r'"status": "(?:approved|refused)"|[,;\t|](approved|refused)[,;\t|]\1[,;\t|]')
_OTHER_LEDGER = (
    "was begun with another ledger: use the same --ledger as in the first run, or none if it had none"
)
_MOST_CUSTOMERS = 10_000_000  # of a sandbox
_MOST_GROUPS = 10  # groups of failed rows that are printed
_BEGIN = 1_000_000  # characters of a file of rejected rows that are searched for the name of the first column


@frozen(kw_only=True)
class RunOptions:
    """The options of the command, except those that concern the reading of rows."""

    out: str | None
    ledger: str | None
    rejected: str | None
    report: str | None
    concurrency: int
    rate: float | None
    stop_after: int
    deadline: float | None
    skip_invalid: bool
    validate_only: bool
    dry_run: bool
    sandbox: bool
    members: Mapping[str, str] | None  # columns by member of the creation's body; None: create no request

    @property
    def results(self) -> str:
        """Path of the results."""
        return self.out or STANDARD_OUTPUT

    @property
    def job_file(self) -> Path | None:
        """Path of the job file; None for results that are not in a file."""
        return Path(f"{self.results}.ledger") if is_regular(self.results) else None


def run(options: RunOptions, reading: Reading, orders: InputRows, console: Console) -> Exit:
    """Check, plan or send the rows, and report the result."""
    problems = ProblemList()
    if options.validate_only:
        return _validate(options, orders, problems)
    return _plan_and_send(options, reading, orders, problems, console)


def _validate(options: RunOptions, orders: InputRows, problems: ProblemList) -> Exit:
    keys = Keys("", (b"",), LedgerPolicy())
    with closing(Job(None)) as job:
        Planner(job, keys, None, is_own=True, writes=False).read(orders, problems, Records(job, None).encode)
        counts = job.counts(planned=True)
        if options.rejected is not None:
            _keep_earlier(options.rejected, orders)
            write_whole(options.rejected, Records(job, None).rejected(orders, keys))
    problems.print()
    invalid = counts.rows[Kind.REFUSED_LOCALLY]
    print_message(
        f"{counted(counts.total, 'row')}: {counts.total - invalid:,} valid, {invalid:,} invalid", "bold"
    )
    return Exit.NOTHING_SENT if invalid or not counts.total else Exit.DECIDED


def _plan_and_send(
    options: RunOptions, reading: Reading, orders: InputRows, problems: ProblemList, console: Console
) -> Exit:
    if options.out is None and not options.dry_run:
        raise typer.BadParameter(
            "name the results file: -o FILE, or -o - for standard output", param_hint="-o"
        )
    if options.results != STANDARD_OUTPUT and Path(options.results).is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), options.results)
    if options.results != STANDARD_OUTPUT and not Path(options.results).parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), options.results)
    with ExitStack() as stack:
        parts = _prepare(options, orders, stack)
        planner = parts.planner(writes=not options.dry_run)
        customers = planner.read(orders, problems, parts.records.encode)
        problems.print()
        counts = parts.job.counts(planned=True)
        can_send = counts.total and (not counts.rows[Kind.REFUSED_LOCALLY] or options.skip_invalid)
        if (options.dry_run or not can_send) and options.rejected is not None:
            _keep_earlier(options.rejected, orders)
            write_whole(options.rejected, parts.records.rejected(orders, parts.keys))
        if options.dry_run:
            console.print(table_of(counts, "plan"))
            return Exit.DECIDED if can_send else Exit.NOTHING_SENT
        if not can_send:
            reason = (
                "correct these rows, or add --skip-invalid to send the valid ones"
                if counts.total
                else "the file contains no rows"
            )
            print_message(f"nothing was sent: {reason}", "bold")
            return Exit.NOTHING_SENT
        parts.records.customers = _begin(options, reading, orders, parts, customers)
        _print_start(options, orders, counts)
        loop = parts.runner.run(_send(options, reading, orders, parts, counts, console))
        return _finish(options, orders, parts, counts, loop, console)


@define
class _Parts:
    """The parts of a run.

    Args:
        runner: The event loop of the whole run.
        job: The job.
        records: Writes and reads its records.
        keys: The keys of its rows.
        use: The ledger; None for a plan that needs no service.
        guard: The ledger with its policy.
        shop: The shop; None for a plan that needs no service.
        environment: The variables that name the service.
        is_own: The ledger is in the job file, or is forgotten after the run.
        has_ledger: The ledger exists.
        form: Format of the results.
    """

    runner: asyncio.Runner
    job: Job
    records: Records
    keys: Keys
    use: OpenLedger | None
    guard: LedgerGuard | None
    shop: Shop | None
    environment: Mapping[str, str]
    is_own: bool
    has_ledger: bool
    form: Format

    def planner(self, *, writes: bool) -> Planner:
        """Return the planner. It looks rows up only if earlier runs or other programs had a ledger."""
        return Planner(self.job, self.keys, self.use if self.has_ledger else None, self.is_own, writes)

    def open_ledger(self) -> None:
        """Open the ledger, and use its keys. That of the job is created if it does not exist.

        Raises:
            UnusableError: The ledger does not fit, or cannot be used.
        """
        if self.use is None or self.guard is None:
            return
        secrets = self.use.run(self.guard.keys()).secrets
        self.keys = attrs.evolve(self.keys, secrets=secrets)


def _prepare(options: RunOptions, orders: InputRows, stack: ExitStack) -> _Parts:
    """Open the job and its ledger."""
    file = options.job_file
    is_known = file is not None and file.exists()
    job = stack.enter_context(closing(Job(file)))
    if file is not None and not job.members and has_content(options.results):
        raise UnusableError(_without_job(options.results, file))
    runner = stack.enter_context(asyncio.Runner())
    # A plan for rows that were never requested needs no service.
    is_plan_only = options.dry_run and not is_known and options.ledger is None
    environment = _start_sandbox(runner, stack) if options.sandbox and not is_plan_only else os.environ
    shop = None if is_plan_only else shop_from_environment(environment)
    policy = LedgerPolicy(encrypt=cipher_of(os.environ.get(LEDGER_CIPHER)))
    if shop is None:
        ledger = None
    elif options.ledger is not None:
        settings = settings_of(options.ledger)
        ledger, policy = settings.ledger, settings.policy
    elif file is not None:
        ledger = SqliteLedger(file)
    elif options.sandbox:
        ledger = MemoryLedger()
    else:
        raise typer.BadParameter(
            "name a ledger, or results in a file with -o FILE: rows may come twice", param_hint="--ledger"
        )
    use = guard = None
    if ledger is not None and shop is not None:
        stack.callback(lambda: runner.run(ledger.aclose()))
        use, guard = OpenLedger(ledger, runner, policy), LedgerGuard(ledger, policy, shop.base_url)
    parts = _Parts(
        runner=runner,
        job=job,
        records=Records(job, policy.encrypt),
        # Until the ledger of a new job has a secret, its plan has another one.
        keys=Keys("" if shop is None else shop.shop_id, (token_bytes(32),), policy),
        use=use,
        guard=guard,
        shop=shop,
        environment=environment,
        is_own=options.ledger is None,
        has_ledger=options.ledger is not None or is_known,
        form=format_of(options.results, job.members.get("delimiter", orders.delimiter)),
    )
    if is_known:
        job.check_lock() if options.dry_run else job.lock()
    if parts.has_ledger:
        _check_job(options, parts)
        parts.open_ledger()
    return parts


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


def _without_job(out: str, file: Path) -> str:
    """Return the message about results whose job is not known."""
    opened = gzip.open if out.endswith(".gz") else open
    with opened(out, "rt", encoding="utf-8", errors="replace") as lines:
        decisions = sum(_DECISION.search(line) is not None for line in lines)
    return (
        f"{out} exists and contains {counted(decisions, 'decision')}, but its job file {file} is missing or "
        "empty, so the requested customers are not known: restore the job file, or name a new results file "
        "with -o"
    )


def _service(options: RunOptions, shop: Shop) -> str:
    return "sandbox" if options.sandbox else f"{shop.base_url} {shop.shop_id}"


def _check_job(options: RunOptions, parts: _Parts) -> None:
    """Refuse a job of another service or ledger. A job in which nobody was evaluated may change both."""
    assert parts.use is not None  # noqa: S101  (for the type checkers)
    assert parts.shop is not None  # noqa: S101
    known, use, job = parts.job.members, parts.use, parts.job
    if known and bool(known["ledger"]) != (options.ledger is not None):
        raise UnusableError(f"{job.path} {_OTHER_LEDGER}")
    header = use.run(use.ledger.header())
    if known and known["ledger_id"] != header.id:
        raise UnusableError(f"{job.path} {_OTHER_LEDGER}")
    own = parts.is_own
    has_evaluated = job.has_evaluated() or (own and next(use.entries(*_EVALUATED), None) is not None)
    if known and has_evaluated and known["service"] != _service(options, parts.shop):
        raise UnusableError(
            f"{options.results} contains results of another service or shop: name a new results file with -o"
        )
    if own and header.service != parts.shop.base_url and (options.sandbox or not has_evaluated):
        use.run(move_service(use.ledger, parts.shop.base_url))


def _begin(
    options: RunOptions,
    reading: Reading,
    orders: InputRows,
    parts: _Parts,
    customers: dict[str, Customer],
) -> dict[str, Customer]:
    """Create the files of the run. Return the customers by key."""
    assert parts.use is not None  # noqa: S101  (only a plan has no ledger)
    assert parts.shop is not None  # noqa: S101
    # Find a wrong path before the ledger is created.
    if options.report is not None:
        create_private(options.report)
    if options.rejected is not None:
        _keep_earlier(options.rejected, orders)
    if not parts.has_ledger:
        parts.open_ledger()
        keys = {before: parts.keys.keys(customer)[0] for before, customer in customers.items()}
        parts.job.change_keys(keys)
        customers = {keys[before]: customer for before, customer in customers.items()}
    inputs = [each for each in parts.job.members.get("inputs", []) if each["file"] != reading.file]
    members = {
        "service": _service(options, parts.shop),
        "shop_id": parts.shop.shop_id,
        "ledger": "" if options.ledger is None else name_without_password(options.ledger),
        "ledger_id": parts.use.run(parts.use.ledger.header()).id,
        "delimiter": parts.job.members.get("delimiter", orders.delimiter),
        "inputs": [*inputs, attrs.asdict(reading)],
    }
    parts.job.begin(options.job_file, orders.name, members)
    for each in inputs:
        customers = customers_of(Reading(**each), parts.keys) | customers
    return customers


def _keep_earlier(path: str, orders: InputRows) -> None:
    """Rename an earlier file of rejected rows: a person may have corrected rows in it.

    Raises:
        UnusableError: The file contains something else.
    """
    create_private(path)
    if not has_content(path):
        return
    opened = gzip.open if path.endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="utf-8", errors="replace", newline="") as file:
            begin = file.read(_BEGIN)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        begin = ""
    if LINE_NAME not in begin:
        raise UnusableError(f"{path} exists and contains no rejected rows: name another file for --rejected")
    if begin != rejected_header(orders):
        Path(path).replace(f"{path}.old")
        print_message(f"the earlier {path} is kept as {path}.old")


def _print_start(options: RunOptions, orders: InputRows, counts: Counts) -> None:
    """Print a line that says what this run will do."""
    ledger = "none" if options.job_file is None else str(options.job_file)
    if options.ledger is not None and not options.sandbox:
        ledger = name_without_password(options.ledger)
    rate = "" if options.rate is None else f", at most {options.rate:g} per second"
    print_message(
        f"requesting {counts.rows[Kind.TO_BE_SENT]:,} of {counted(counts.total, 'row')} of "
        f"{orders.name}: {euro(counts.cents[Kind.TO_BE_SENT])} euro, "
        f"{counted(options.concurrency, 'call')} at a time{rate}; ledger: {ledger}"
    )


async def _send(
    options: RunOptions, reading: Reading, orders: InputRows, parts: _Parts, counts: Counts, console: Console
) -> RequestLoop:
    assert parts.guard is not None  # noqa: S101  (for the type checkers)
    async with AsyncExitStack() as stack:
        client = CreatingClient(
            parts.environment["LOANASYNC_BASE_URL"],
            shop_id=parts.environment["LOANASYNC_SHOP_ID"],
            auth_token=parts.environment["LOANASYNC_AUTH_TOKEN"],
            dialect=dialect_of(DialectName(reading.dialect)),
            ledger=parts.guard.ledger,
            ledger_policy=parts.guard.policy,
        )
        client.bodies, client.has_earlier_run = {}, parts.job.run > 1
        await stack.enter_async_context(client)
        update = stack.enter_context(progress_display(console, counts, unfinished(counts)))
        loop = RequestLoop(client, orders, parts.job, parts.keys, parts.records, counts, options.members)
        await loop.run(
            update,
            options.deadline,
            concurrency=options.concurrency,
            rate=options.rate,
            stop_after=options.stop_after or None,
        )
        return loop


def _finish(
    options: RunOptions, orders: InputRows, parts: _Parts, counts: Counts, loop: RequestLoop, console: Console
) -> Exit:
    """Export the results, and print the summary and what the user has to do."""
    failures = Failures()
    parts.records.unsaved = loop.unsaved
    unwritten = [
        *_write_results(options, parts, failures),
        *_write(options.rejected, parts.records.rejected(orders, parts.keys)),
    ]
    console.print(table_of(counts, "results"))
    causes = failures.tally.causes()
    for cause in causes[:_MOST_GROUPS]:
        print_message(failure_line(cause))
    if (others := len(causes) - _MOST_GROUPS) > 0:
        print_message(f"and {counted(others, 'other cause')} in {_results_name(options)}")
    code = _exit_code(counts, loop)
    report = report_of(counts, failures) | {
        "stopped": loop.stopped or None,
        "seconds": round(loop.elapsed, 3),
        "exit_code": int(code),
    }
    unwritten += _write(options.report, [json.dumps(report, indent=2) + "\n"])
    for message in (*_final_messages(options, counts, loop), *unwritten):
        print_message(message, "bold")
    return code or (Exit.FAILED if unwritten else code)


def _write(path: str | None, lines: Iterable[str]) -> list[str]:
    """Write a file, and return a message if that fails."""
    if path is None:
        return []
    try:
        write_whole(path, lines)
    except OSError as error:
        return [f"{path} could not be written ({error.strerror}); the results are not affected"]
    return []


def _write_results(options: RunOptions, parts: _Parts, failures: Failures) -> Iterator[str]:
    """Write the results. Yield messages if they, or some records of the job, could not be written."""
    records, job = parts.records, parts.job
    is_only_copy = job.path is None
    try:
        write_whole(options.results, result_lines(parts.form, failures.seen(records.read(parts.use))))
        is_only_copy = False
    except OSError as error:
        name = "standard output" if options.results == STANDARD_OUTPUT else options.results
        yield f"{name} cannot be written ({error.strerror})"
        if not is_only_copy:
            yield f"the job file contains the results; free some space, then run: loanasync export {job.path}"
    if not (is_only_copy or records.unsaved):
        return
    lines = [*result_lines(parts.form, records.read(parts.use, unsaved_only=not is_only_copy))]
    suffix = "".join(Path(options.results).suffixes[-2:]) or ".jsonl"
    try:
        handle, path = tempfile.mkstemp(prefix="loanasync-results-", suffix=suffix)
        os.close(handle)
        write_whole(path, lines)
    except OSError as error:  # personal data on the screen are better than a lost result
        stderr_console().file.writelines(lines)
        yield f"no file can be written ({error.strerror}): the results that are in no file were printed above"
    else:
        yield f"the results that are in no other file are in {path}"


def _final_messages(options: RunOptions, counts: Counts, loop: RequestLoop) -> Iterator[str]:
    """Yield why the run ended early, and what the user has to do."""
    unsent = counts.rows[Kind.TO_BE_SENT]
    can_resume = options.ledger is not None or options.job_file is not None
    if loop.stopped and (unsent or loop.code is not Exit.DEADLINE):
        yield f"{loop.stopped}; run the same command to resume" if can_resume and unsent else loop.stopped
    if loop.unrecorded:
        yield (
            f"{counted(loop.unrecorded, 'decision')} could not be recorded in the ledger; the results "
            f"contain them. When the ledger works again, run: {_ledger_command(options, 'import-orphans')}"
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
        command = _ledger_command(options, "resolve")
        resolve = f", then run: {command}" if command else ""
        # Decisions of calls that a second Ctrl-C gave up may reach the ledger after this summary.
        again = "run the same command first, it may find their decisions; then " if loop.is_aborted else ""
        again = again if command and can_resume else ""
        yield f"{subject} unknown: {again}ask the service{resolve}. Unknown rows are not sent again"


def _results_name(options: RunOptions) -> str:
    return "the results" if options.results == STANDARD_OUTPUT else options.results


def _ledger_command(options: RunOptions, name: str) -> str:
    """Return a command for the ledger of this run, without its address; empty without a ledger."""
    if options.ledger is not None:
        return f"loanasync ledger {name} (with the same --ledger)"
    return "" if options.job_file is None else f"loanasync ledger {name} --ledger {options.job_file}"


def _exit_code(counts: Counts, loop: RequestLoop) -> Exit:
    rows = counts.rows
    if loop.is_aborted and rows[Kind.UNKNOWN]:
        return Exit.INTERRUPTED
    if loop.stopped and rows[Kind.TO_BE_SENT] and loop.code is not Exit.FAILED:
        return loop.code
    if rows[Kind.UNKNOWN]:
        return Exit.UNKNOWN
    not_decided = rows[Kind.FAILED] + rows[Kind.REFUSED_LOCALLY] + rows[Kind.TO_BE_SENT]
    return Exit.FAILED if not_decided else Exit.DECIDED


def export_job(file: str, results: str, ledger: str | None, rejected: str | None) -> None:
    """Write the results, and the other exports, of a job.

    Raises:
        UnusableError: The job or its ledger cannot be read.
        OSError: The results cannot be written.
    """
    if not Path(file).is_file():
        raise UnusableError(f"{file}: file not found")
    with ExitStack() as stack:
        job = stack.enter_context(closing(Job(Path(file))))
        if not job.members:
            raise UnusableError(f"{file} contains no rows: run approve-many")
        if job.members["ledger"] and ledger is None:
            raise UnusableError(f"the ledger of {file} is {job.members['ledger']}: name it with --ledger")
        name = ledger if job.members["ledger"] and ledger is not None else file
        use = stack.enter_context(open_ledger(name))
        header = use.run(use.ledger.header())
        if header.id != job.members["ledger_id"]:
            raise UnusableError(f"{file} {_OTHER_LEDGER}")
        check_cipher(header, use.policy)
        policy = use.policy if not header.secrets else attrs.evolve(use.policy, key=None, old_keys=())
        keys = Keys(job.members["shop_id"], keys_of(header, policy), policy)
        records = Records(job, policy.encrypt)
        inputs = [Reading(**each) for each in job.members["inputs"]]
        for reading in inputs:
            records.customers = {**records.customers, **customers_of(reading, keys)}
        form = format_of(results, job.members["delimiter"])
        write_whole(results, result_lines(form, records.read(use, must_answer=True)))
        if rejected is not None:
            rows = inputs[-1].rows()
            _keep_earlier(rejected, rows)
            write_whole(rejected, records.rejected(rows, keys))
