"""``loanasync dead-letters``: list the messages that a queue gave up, and replay them."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Annotated, TypeAlias

import typer
from attrs import asdict

from loanasync.cli.console import say
from loanasync.cli.exit_codes import Exit
from loanasync.cli.ledger.display import when
from loanasync.worker.dead_letters import DeadLetter, DeadLettersBase, NoQueueError

app: typer.Typer = typer.Typer(
    help="List messages that a queue gave up, and replay them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks show local variables
)

Queue: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="URL", envvar="LOANASYNC_QUEUE", help="The queue's server: redis://... or nats://..."
    ),
]
Name: TypeAlias = Annotated[str, typer.Option(help="The queue's name, as in RedisStreams or JetStream.")]
_MODULES = {"redis": "redis", "rediss": "redis", "unix": "redis", "nats": "nats", "tls": "nats"}
_WITHIN = 30.0  # seconds until a server that does not answer is given up


def _letters(queue: str, name: str) -> DeadLettersBase:
    scheme, found, _ = queue.partition("://")
    if not found or scheme not in _MODULES:
        raise typer.BadParameter(
            f"must begin with one of {', '.join(_MODULES)}, and ://", param_hint="--queue"
        )
    try:
        module = import_module(f"loanasync.worker.{_MODULES[scheme]}")
    except ImportError:
        raise typer.BadParameter(
            "needs an extra: pip install 'loanasync[taskiq]'", param_hint="--queue"
        ) from None
    letters: DeadLettersBase = module.DeadLetters(queue, name)
    return letters


def _with(
    queue: str, name: str, work: Callable[[DeadLettersBase, list[DeadLetter]], Awaitable[Exit]]
) -> None:
    """Do something with the dead letters of a queue, and end with its exit status."""

    async def run() -> Exit:
        async with asyncio.timeout(_WITHIN), _letters(queue, name) as letters:
            return await work(letters, await letters.list())

    try:
        code = asyncio.run(run())
    except NoQueueError as error:
        say(str(error))
        code = Exit.NOTHING_SENT
    except typer.BadParameter:
        raise
    except Exception as error:  # noqa: BLE001  (whatever a library raises: its text may hold a password)
        say(
            f"the queue cannot be used ({type(error).__name__}): check --queue, and that its server "
            "can be reached"
        )
        code = Exit.FAILED
    raise typer.Exit(code)


@app.command()
def ls(
    queue: Queue,
    name: Name = "loanasync",
    *,
    as_json: Annotated[bool, typer.Option("--json", help="For a program: JSON.")] = False,
) -> None:
    """List dead letters, one a line: id, time, task, id of the task, and the reason.

    Ends with 3 when there are any, so that a timer can tell a person.

    Example: loanasync dead-letters ls --queue redis://127.0.0.1:6379
    """

    async def work(_: DeadLettersBase, found: list[DeadLetter]) -> Exit:
        for each in found:
            line = f"{each.id}  {when(each.since)}  {each.task}  {each.task_id}  {each.reason}"
            print(json.dumps(asdict(each)) if as_json else line)  # noqa: T201  (what was asked for)
        if not as_json:
            say(f"{len(found):,} dead letters" if found else "no dead letters")
        return Exit.UNKNOWN if found else Exit.DECIDED

    _with(queue, name, work)


@app.command()
def replay(
    queue: Queue,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="Ids as `ls` lists them.", show_default=False)
    ] = None,
    name: Name = "loanasync",
    *,
    every: Annotated[bool, typer.Option("--all", help="Replay all dead letters.")] = False,
) -> None:
    """Put dead letters into the queue again, as messages that were never tried.

    Correct the cause first, and try one: the customers are asked for when a worker takes the messages.
    The ledger sends nothing for a customer who was asked for meanwhile.

    Example: loanasync dead-letters replay --all --queue redis://127.0.0.1:6379
    """
    if bool(ids) == every:
        raise typer.BadParameter("give ID, or --all, and not both")

    async def work(letters: DeadLettersBase, found: list[DeadLetter]) -> Exit:
        chosen = [each for each in found if every or each.id in (ids or ())]
        missing = sorted(set(ids or ()) - {each.id for each in chosen})
        replayed = 0
        for each in chosen:
            replayed += await letters.replay(each)
        say(f"{replayed:,} dead letters are in the queue again")
        if missing:
            say(f"there is no dead letter {', '.join(missing)}")
        return Exit.FAILED if missing else Exit.DECIDED

    _with(queue, name, work)
