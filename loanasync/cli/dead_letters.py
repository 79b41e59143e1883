"""``loanasync dead-letters``: list the messages that a queue gave up, replay and delete them."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer

from loanasync._protocol.rules import normalize_fiscal_code
from loanasync.cli.console import counted, print_message
from loanasync.cli.exit_codes import Exit
from loanasync.cli.ledger.commands import LEDGER, opened, read_personal
from loanasync.cli.ledger.display import utc_time
from loanasync.cli.ledger.open import shop_from_environment, short
from loanasync.ledger.address import split_parameters
from loanasync.ledger.keys import Approval, places_of

if TYPE_CHECKING:
    from loanasync.worker.dead_letters import DeadLetter, DeadLettersBase

app: typer.Typer = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks show local variables
)

_QUEUE = "The queue: redis://...?name=... or nats://...?name=..., by default with the name loanasync."
_IDS = typer.Argument(metavar="ID", help="Ids of dead letters, or: all.")
_MODULES = {"redis": "redis", "rediss": "redis", "unix": "redis", "nats": "nats", "tls": "nats"}
_ALL = "all"


@app.callback()
def _options(
    context: typer.Context,
    queue: Annotated[str, typer.Option(metavar="URL", envvar="LOANASYNC_QUEUE", help=_QUEUE)] = "",
) -> None:
    """List, replay and delete dead letters: messages that a queue gave up.

    Example: loanasync dead-letters --queue redis://127.0.0.1:6379 ls
    """
    context.obj = queue


def _open_dead_letters(queue: str) -> "DeadLettersBase":
    scheme, separator, _ = queue.partition("://")
    if not separator or scheme not in _MODULES:
        schemes = ", ".join(f"{each}://" for each in _MODULES)
        raise typer.BadParameter(f"must begin with one of {schemes}", param_hint="--queue")
    try:
        module = import_module(f"loanasync.worker.{_MODULES[scheme]}")
    except ImportError:
        raise typer.BadParameter(
            "needs an extra: pip install '.[taskiq]' in a checkout", param_hint="--queue"
        ) from None
    server, parameters = split_parameters(queue, ("name",))
    letters: DeadLettersBase = module.DeadLetters(server, parameters.get("name", "loanasync"))
    return letters


def _run(queue: str, work: "Callable[[DeadLettersBase, list[DeadLetter]], Awaitable[Exit]]") -> None:
    """Run a function with the dead letters of a queue, and end with the exit code that it returns."""
    from loanasync.worker.dead_letters import NoQueueError  # noqa: PLC0415  (its package loads aiohttp)

    async def run() -> Exit:
        async with _open_dead_letters(queue) as letters:
            return await work(letters, await letters.list())

    try:
        code = asyncio.run(run())
    except NoQueueError as error:
        print_message(str(error))
        code = Exit.NOTHING_SENT
    except typer.BadParameter:
        raise
    except Exception as error:  # noqa: BLE001  (any error of the server's library; its text may hold a password)
        print_message(
            f"the queue cannot be used ({type(error).__name__}): check --queue, and that the server can be "
            "reached"
        )
        code = Exit.FAILED
    raise typer.Exit(code)


@app.command()
def ls(context: typer.Context, ledger: Annotated[str, LEDGER] = "") -> None:
    """List dead letters, one per line: id, time, task, task id, customer, entry, order and reason.

    Customer and entry are keys of --ledger, and need the settings of `loanasync ledger show --customer`. Ends
    with 3 if there are any.

    Example: loanasync dead-letters --queue redis://127.0.0.1:6379 ls
    """
    place_of = _places(ledger)

    async def work(_: "DeadLettersBase", found: "list[DeadLetter]") -> Exit:
        for each in found:
            customer, entry = place_of(each)
            columns = (each.id, utc_time(each.since), each.task, each.task_id)
            shown = (short(customer) or "-", short(entry) or "-", each.order_id or "-", each.reason)
            typer.echo("  ".join((*columns, *shown)))
        print_message(counted(len(found), "dead letter") if found else "no dead letters")
        return Exit.UNKNOWN if found else Exit.DECIDED

    _run(context.obj, work)


def _places(ledger: str) -> "Callable[[DeadLetter], tuple[str, str]]":
    """Return a function for the digest of a letter's customer and its entry's key; empty without a ledger."""
    if not ledger:
        return lambda _: ("", "")
    with opened(ledger) as use:
        shop = shop_from_environment(os.environ)
        secrets = use.secrets(shop)

    def place_of(letter: "DeadLetter") -> tuple[str, str]:
        approval = Approval(shop.shop_id, normalize_fiscal_code(letter.fiscal_code), letter.order_id)
        place = places_of(approval, secrets)[0]
        return (place.subject.customer, place.key) if letter.fiscal_code else ("", "")

    return place_of


async def _change(
    chosen: "Sequence[DeadLetter]",
    change: "Callable[[DeadLetter], Awaitable[bool]]",
    done: str,
    ids: Sequence[str],
) -> Exit:
    """Change the chosen dead letters, and print their number and the ids that no dead letter has."""
    changed = 0
    try:
        for each in chosen:
            changed += await change(each)
    finally:  # also if the queue cannot be used any more
        print_message(f"{counted(changed, 'dead letter')} {done}")
    if missing := sorted({*ids} - {each.id for each in chosen} - {_ALL}):
        print_message(f"no dead letter has the id {', '.join(missing)}")
    return Exit.FAILED if missing else Exit.DECIDED


def _with_ids(found: "Sequence[DeadLetter]", ids: Sequence[str]) -> "Sequence[DeadLetter]":
    return [each for each in found if [*ids] == [_ALL] or each.id in ids]


@app.command()
def replay(context: typer.Context, ids: Annotated[list[str], _IDS]) -> None:
    """Put dead letters back into the queue as new messages.

    Correct the cause first, and replay one as a test. An approval that the ledger knows is not sent again.

    Example: loanasync dead-letters --queue redis://127.0.0.1:6379 replay all
    """

    async def work(letters: "DeadLettersBase", found: "list[DeadLetter]") -> Exit:
        return await _change(_with_ids(found, ids), letters.replay, "put back into the queue", ids)

    _run(context.obj, work)


@app.command()
def delete(
    context: typer.Context,
    ids: Annotated[list[str] | None, _IDS] = None,
    *,
    customer: Annotated[
        bool, typer.Option("--customer", help="Those of a fiscal code, from a prompt or standard input.")
    ] = False,
) -> None:
    """Delete dead letters for good: their approvals are not requested.

    Example: loanasync dead-letters --queue redis://127.0.0.1:6379 delete 1792743840123-0
    """
    if bool(ids) == customer:
        raise typer.BadParameter("give either ID or --customer")
    code = normalize_fiscal_code(read_personal("Fiscal code")) if customer else ""

    async def work(letters: "DeadLettersBase", found: "list[DeadLetter]") -> Exit:
        chosen = _with_ids(found, ids or ())
        if code:
            chosen = [each for each in found if normalize_fiscal_code(each.fiscal_code) == code]
        return await _change(chosen, letters.delete, "deleted", ids or ())

    _run(context.obj, work)
