"""``loanasync check``, ``approve`` and ``complete``: one customer, in a file with one JSON object."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, closing, contextmanager
from functools import partial
from typing import Annotated, Any

import attrs
import typer

from loanasync import ConfigurationError, Dialect, LoanClient, LoanError, UserData
from loanasync._models.dialect import USER_DATA_NAMES
from loanasync.cli.approve_many.results import line_of
from loanasync.cli.console import HASTE, interruptible, say
from loanasync.cli.exit_codes import Exit
from loanasync.cli.ledger.open import WITHOUT_LEDGER, used_by_a_client
from loanasync.cli.rows.convert import READERS, BadCell
from loanasync.cli.rows.orders import Description, Order, Orders, checking_client, dialect_of, plain
from loanasync.cli.rows.parse import ParsedRow, Table, once
from loanasync.cli.rows.source import RowProblem, Source, Unreadable
from loanasync.ledger import DecisionLedger

_FILE = typer.Argument(metavar="FILE", help="One JSON object; - is what is piped in.")
_EURO = typer.Option("--euro", help="The amount is in euro, 450.50; else in euro cents, 45050.")
_DIALECT = typer.Option(help="Name of the street number in the request.")

_USER_DATA = {
    **{plain(wire): name for name, wire in USER_DATA_NAMES.items()},
    **{plain(name): name for name in attrs.fields_dict(UserData) if name != "unread"},  # of responses only
}
_OF_COMPLETION_ONLY = frozenset(_USER_DATA) - {"iban", "paymentdayofmonth", "extra"}


_EXITS = {
    **dict.fromkeys(("approved", "refused", "done"), Exit.DECIDED),
    "unknown": Exit.UNKNOWN,
}


def check(
    file: Annotated[str, _FILE],
    dialect: Annotated[Description, _DIALECT] = Description.STREET_NUMBER,
    *,
    euro: Annotated[bool, _EURO] = False,
) -> None:
    """Name everything that is wrong with an approval, or with a completion's data, and send nothing.

    Ends with 0 when it may be sent, else with 2.

    Example: loanasync check order.json --euro
    """
    with _given(file) as (table, members):
        if any(plain(name) in _OF_COMPLETION_ONLY for name in members):
            found = _completion(table, members)[2]
        else:
            found = _order(table, members, dialect, euro=euro).problems
        if not found:
            say("nothing is wrong with it")
        raise typer.Exit(_print_problems(found))


def approve(
    file: Annotated[str, _FILE],
    dialect: Annotated[Description, _DIALECT] = Description.STREET_NUMBER,
    *,
    ledger: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            envvar="LOANASYNC_LEDGER",
            help="Remember there who was asked: a file's path, redis://...?prefix=... or"
            " postgresql://...?table=...",
        ),
    ] = None,
    euro: Annotated[bool, _EURO] = False,
    sandbox: Annotated[
        bool, typer.Option("--sandbox", help="Ask a sandbox that is started for it, without a ledger.")
    ] = False,
) -> None:
    """Ask for one approval, and print what came of it as JSON.

    The service is that of LOANASYNC_BASE_URL, LOANASYNC_SHOP_ID and LOANASYNC_AUTH_TOKEN; the request has
    been created there. Ends with 0 when it is decided (a refusal is a decision), 1 when it failed, 2 when
    nothing was sent, 3 when the outcome is unknown. Ctrl-C waits for the answer, a second one gives it up.

    Example: loanasync approve order.json --sandbox
    """
    with _given(file) as (table, members):
        order = _order(table, members, dialect, euro=euro)
        if order.row is None:
            raise typer.Exit(_print_problems(order.problems))
        if sandbox and ledger is not None:
            say(WITHOUT_LEDGER, "bold")
        options = used_by_a_client(None if sandbox else ledger)
        client = None if sandbox else LoanClient.from_env(dialect=dialect_of(dialect), **options)
        raise typer.Exit(asyncio.run(_approved(client, order, options.get("ledger"))))


def complete(file: Annotated[str, _FILE]) -> None:
    """Complete an approved customer's data, after the documents; the object holds fiscal_code, too.

    Prints outcome and repeatable as JSON. Ends with 0 when the data are saved, 1 when that failed, 2 when
    nothing was sent because the data are wrong, 3 when the outcome is unknown.

    Example: loanasync complete data.json
    """
    with _given(file) as (table, members):
        code, data, found = _completion(table, members)
        if found:
            raise typer.Exit(_print_problems(found))
        client = LoanClient.from_env()
        try:
            asyncio.run(_completed(client, code, data))
        except LoanError as error:
            _print({"outcome": error.outcome, "repeatable": error.repeatable, "error": type(error).__name__})
            say(str(error))
            raise typer.Exit(_EXITS.get(error.outcome, Exit.FAILED)) from None
        _print({"outcome": "done", "repeatable": False})
        say("the data are saved")


def _print(members: Mapping[str, object]) -> None:
    text = json.dumps(members, ensure_ascii=False, indent=2)
    typer.echo(text.encode(errors="backslashreplace"))  # half a surrogate pair as JSON escapes it


def _print_problems(problems: tuple[RowProblem, ...]) -> Exit:
    for problem in problems:
        say(str(problem))
    return Exit.NOTHING_SENT if problems else Exit.DECIDED


@contextmanager
def _given(file: str) -> Iterator[tuple[Table, dict[str, object]]]:
    """Read a file with one object. If it cannot be used, print why and end the command."""
    try:
        with closing(Source(file)) as source:
            yield Table(source), _members(source)
    except Unreadable as error:
        say(f"{'standard input' if file == '-' else file}{error.where} {error}")
        raise typer.Exit(Exit.NOTHING_SENT) from None
    except ConfigurationError as error:
        say(str(error))
        raise typer.Exit(Exit.NOTHING_SENT) from None


def _members(source: Source) -> dict[str, object]:
    try:
        members = json.loads("".join(source.lines()), object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise Unreadable(f"is no JSON object from line {error.lineno}, column {error.colno} on") from None
    except (ValueError, RecursionError):  # thousands of digits, or of brackets
        raise Unreadable("is no JSON that could be read") from None
    if not isinstance(members, dict):
        raise Unreadable("must be one JSON object; for many, there is approve-many")
    return members


def _order(table: Table, members: Mapping[str, object], dialect: Description, *, euro: bool) -> Order:
    orders = Orders(table, checking_client(dialect_of(dialect)), {}, euro, ignore_unknown=False)
    return orders.order(ParsedRow(0, members, ""))


def _completion(table: Table, members: Mapping[str, object]) -> tuple[str, UserData, tuple[RowProblem, ...]]:
    code: Any = None
    values: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for member, value in members.items():
        if plain(member) == "fiscalcode":
            code = value
            continue
        name = _USER_DATA.get(plain(member))
        if name is None:
            wrong[member] = "is no field; members that this version does not know go into extra"
            continue
        try:
            values[name] = READERS[name](value) if name in READERS else value
        except BadCell as bad:
            wrong[name] = str(bad)
    data = UserData(**values)
    broken = checking_client(Dialect.street_number()).check(code, data)
    wrong.update({each.field: each.message for each in broken if each.field not in wrong})
    return code, data, tuple(table.problem(message, field=name) for name, message in wrong.items())


async def _approved(client: LoanClient | None, order: Order, ledger: DecisionLedger | None) -> Exit:
    assert order.row is not None  # noqa: S101  (for the type checkers)
    async with AsyncExitStack() as stack:
        if ledger is not None:
            stack.push_async_callback(ledger.aclose)  # after the client, which writes to it until then
        if client is None:
            from loanasync.sandbox import Sandbox  # noqa: PLC0415  (its server takes long to be loaded)

            sandbox = await stack.enter_async_context(Sandbox())
            client = await stack.enter_async_context(sandbox.client())
            await client.create_request({"fiscalCode": order.code})
        else:
            await stack.enter_async_context(client)
        results = client.approve_many([order.row], concurrency=1)
        is_given_up = False

        def give_up() -> None:
            nonlocal is_given_up
            is_given_up = True
            results.abort()

        with interruptible(partial(say, "waiting for the answer, Ctrl-C gives it up"), give_up):
            async with results:
                result = await anext(results, None)
            if result is None:  # given up before it was sent
                return Exit.INTERRUPTED
            # Told before anything is closed: until then the answer is nowhere but here.
            _print(line_of(order, result))
            if is_given_up:
                await client.with_options(timeout=HASTE).aclose()
    return _EXITS.get(result.status, Exit.FAILED)


async def _completed(client: LoanClient, code: str, data: UserData) -> None:
    async with client:
        await client.complete(code, data)
