"""``loanasync check``, ``approve`` and ``complete``: one customer, in a file with one JSON object."""

import asyncio
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from itertools import islice
from typing import Annotated, Any

import attrs
import typer

from loanasync import ConfigurationError, Dialect, LoanClient, LoanError, UserData
from loanasync._cells import normalized
from loanasync._config import from_environment
from loanasync._models import USER_DATA_NAMES
from loanasync._validation.rules import normalize_fiscal_code
from loanasync.bulk import FileRow, InputError, InputProblem
from loanasync.bulk.columns import FieldMapping
from loanasync.bulk.input import InputRows
from loanasync.bulk.problems import input_error
from loanasync.bulk.records import Records
from loanasync.cli.approve_many.results import record_of
from loanasync.cli.console import ABORT_TIMEOUT, interruptible, print_message
from loanasync.cli.exit_codes import Exit
from loanasync.cli.input import DialectName, dialect_of, offline_client
from loanasync.cli.ledger.open import (
    LEDGER_HELP,
    SANDBOX_WITHOUT_LEDGER,
    settings_of,
)

_FILE = typer.Argument(metavar="FILE", help="File with one JSON object; - is standard input.")
_DIALECT = typer.Option(help="Which description the service follows, named after its street number field.")

_USER_DATA = {
    **{normalized(wire): name for name, wire in USER_DATA_NAMES.items()},
    # `unread` exists in responses only.
    **{normalized(name): name for name in attrs.fields_dict(UserData) if name != "unread"},
}
# A member of these names shows that a file contains the data of a completion, and not an approval.
_COMPLETION_ONLY = frozenset(_USER_DATA) - {"iban", "paymentdayofmonth", "extra"}

# Exit codes by status or outcome; for all others `Exit.FAILED`.
_EXIT_CODES = {
    **dict.fromkeys(("approved", "refused", "done"), Exit.DECIDED),
    "unknown": Exit.UNKNOWN,
}


def check(file: Annotated[str, _FILE]) -> None:
    """Check an approval request, or the data of a completion, and send nothing.

    Lists all problems, and ends with 2 if there are any.

    Example: loanasync check order.json
    """
    with _nothing_sent():
        records = _one_record(file)
        _, members, _ = next(iter(records))
        if any(normalized(name) in _COMPLETION_ONLY for name in members):
            problems: Sequence[InputProblem] = _parse_completion(records.name, members)[2]
        else:
            problems = _parse_order(records).problems
        if not problems:
            print_message("valid")
        raise typer.Exit(_print_problems(problems))


def approve(
    file: Annotated[str, _FILE],
    dialect: Annotated[DialectName, _DIALECT] = DialectName.STREET_NUMBER,
    *,
    ledger: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            envvar="LOANASYNC_LEDGER",
            help=f"Ledger in which the request is recorded: {LEDGER_HELP}.",
        ),
    ] = None,
    sandbox: Annotated[
        bool,
        typer.Option("--sandbox", help="Start a sandbox and use it as the service, without a ledger."),
    ] = False,
) -> None:
    """Request one approval, and print the result as JSON.

    The service is configured by LOANASYNC_BASE_URL, LOANASYNC_SHOP_ID and LOANASYNC_AUTH_TOKEN. The loan
    request must have been created there before.

    The first Ctrl-C waits for the response, because the service sends it only once. The second one cancels
    the call: its outcome becomes unknown.

    Example: loanasync approve order.json --sandbox
    """
    with _nothing_sent():
        order = _parse_order(_one_record(file))
        if order.problems:
            raise typer.Exit(_print_problems(order.problems))
        if sandbox and ledger is not None:
            print_message(SANDBOX_WITHOUT_LEDGER, "bold")
        client = None if sandbox else _client(dialect_of(dialect), ledger)
        raise typer.Exit(asyncio.run(_request_approval(client, order)))


def _client(dialect: Dialect, ledger: str | None) -> LoanClient:
    if ledger is None:
        return LoanClient.from_env(dialect=dialect)
    settings = settings_of(ledger)
    return LoanClient.from_env(dialect=dialect, ledger=settings.ledger, ledger_policy=settings.policy)


def complete(file: Annotated[str, _FILE]) -> None:
    """Send the remaining data of an approved customer, after the documents were uploaded.

    The JSON object contains the data and the member fiscal_code. Prints outcome and repeatable as JSON.

    Example: loanasync complete data.json
    """
    with _nothing_sent():
        records = _one_record(file)
        code, data, problems = _parse_completion(records.name, next(iter(records))[1])
        if problems:
            raise typer.Exit(_print_problems(problems))
        shop = from_environment(os.environ)
        client = LoanClient(shop["base_url"], shop_id=shop["shop_id"], auth_token=shop["auth_token"])
        try:
            asyncio.run(_complete(client, code, data))
        except LoanError as error:
            _print_json(
                {"outcome": error.outcome, "repeatable": error.repeatable, "error": type(error).__name__}
            )
            print_message(str(error))
            raise typer.Exit(_EXIT_CODES.get(error.outcome, Exit.FAILED)) from None
        _print_json({"outcome": "done", "repeatable": False})
        print_message("the data are saved")


def _print_json(members: Mapping[str, object]) -> None:
    text = json.dumps(members, ensure_ascii=False, indent=2)
    typer.echo(text.encode(errors="backslashreplace"))  # a lone surrogate is escaped as in JSON


def _print_problems(problems: Sequence[InputProblem]) -> Exit:
    for problem in problems:
        print_message(str(problem))
    return Exit.NOTHING_SENT if problems else Exit.DECIDED


@contextmanager
def _nothing_sent() -> Iterator[None]:
    """Print an error of the file or of the settings, and end the command with an exit code."""
    try:
        yield
    except (InputError, ConfigurationError) as error:
        print_message(str(error))
        raise typer.Exit(Exit.NOTHING_SENT) from None


def _one_record(file: str) -> Records:
    records = Records(file)
    first, *others = islice(records, 2)
    if others:
        raise input_error(
            records.name, "must be one JSON object; for several customers use loanasync approve-many"
        )
    if first[2]:
        raise input_error(records.name, first[2], first[0])
    return records


def _parse_order(records: Records) -> FileRow:
    rows = InputRows(records, FieldMapping(), offline_client().check)
    return attrs.evolve(next(iter(rows)), line=0)  # the result has no line


def _parse_completion(
    file: str, members: Mapping[str, object]
) -> tuple[str, UserData, Sequence[InputProblem]]:
    fields = {member: _USER_DATA.get(normalized(member)) for member in members}
    code: Any = next((value for member, value in members.items() if normalized(member) == "fiscalcode"), None)
    named: dict[str, Any] = {name: members[member] for member, name in fields.items() if name is not None}
    data = UserData.from_form(named, **{name: named[name] for name in ("extra",) if name in named})
    messages = {
        member: "unknown member; put members that this version does not know into 'extra'"
        for member, name in fields.items()
        if name is None and normalized(member) != "fiscalcode"
    }
    found = offline_client().check(code, data)
    messages.update({each.field: each.message for each in found if each.field not in messages})
    return code, data, [InputProblem(file, 0, "", name, message) for name, message in messages.items()]


async def _request_approval(client: LoanClient | None, order: FileRow) -> Exit:
    async with AsyncExitStack() as stack:
        if client is not None and client.ledger is not None:
            stack.push_async_callback(
                client.ledger.aclose
            )  # after the client, which may write to it until then
        if client is None:
            from loanasync.sandbox import Sandbox  # noqa: PLC0415  (its server is slow to import)

            sandbox = await stack.enter_async_context(Sandbox())
            client = await stack.enter_async_context(sandbox.client())
            await client.create_request({"fiscalCode": normalize_fiscal_code(order.fiscal_code)})
        else:
            await stack.enter_async_context(client)
        results = client.approve_many([order], concurrency=1)
        is_aborted = False

        def abort() -> None:
            nonlocal is_aborted
            is_aborted = True
            results.abort()

        with interruptible(partial(print_message, _WAITING), abort):
            async with results:
                result = await anext(results, None)
            if result is None:  # aborted before the request was sent
                return Exit.INTERRUPTED
            # Print the result first: closing takes time, and this may be the only copy.
            _print_json(record_of(order, result))
            if is_aborted:
                await client.aclose(ABORT_TIMEOUT)
    return _EXIT_CODES.get(result.status, Exit.FAILED)


_WAITING = "waiting for the response. Press Ctrl-C again to cancel the call: its outcome becomes unknown"


async def _complete(client: LoanClient, code: str, data: UserData) -> None:
    async with client:
        await client.complete(code, data)
