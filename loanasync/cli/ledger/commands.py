"""``loanasync ledger``: list and show entries, settle unknown outcomes, sweep, purge and export."""

import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from loanasync import ConfigurationError
from loanasync._validation.rules import check_fiscal_code, normalize_fiscal_code
from loanasync.cli.console import say
from loanasync.cli.exit_codes import Exit
from loanasync.cli.ledger.display import answer_of, facts_of, line_of, story_of
from loanasync.cli.ledger.open import NotFoundError, Opened, UnusableError, opened, policy_of, shop_of
from loanasync.cli.ledger.resolve import OPEN, Word, note_that_is_safe, settle, settle_by_asking
from loanasync.cli.rows.append import Appending
from loanasync.ledger import Entry, State
from loanasync.ledger.keys import key_of
from loanasync.ledger.maintenance import sweep as sweep_ledger
from loanasync.ledger.orphans import import_from_folders
from loanasync.ledger.policy import default_orphan_folders, orphan_folders_of_others

app: typer.Typer = typer.Typer(
    help="Look at a ledger of decisions, and settle what nobody else can.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks show local variables
)

LEDGER = typer.Option(
    metavar="NAME",
    envvar="LOANASYNC_LEDGER",
    help="The ledger: a file's path, redis://...?prefix=... or postgresql://...?table=...",
)
Name: TypeAlias = Annotated[str, LEDGER]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="For a program: JSON.")]
_KEY = typer.Argument(metavar="KEY", help="An entry's key, or how it begins.", show_default=False)
_SPAN = re.compile("([0-9]{1,6})([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_ELSEWHERE = (
    "clients of other users or with LedgerPolicy(orphan_folder=...) use other folders:"
    " name them with --folder"
)
_FORGOTTEN = (State.APPROVED, State.REFUSED, State.RELEASED)


@contextmanager
def _use(name: str) -> Iterator[Opened]:
    """Open a ledger for a command. If it cannot be used, print why and end the command."""
    try:
        with opened(name) as use:
            yield use
    except (ConfigurationError, NotFoundError, UnusableError) as error:
        say(str(error))
        raise typer.Exit(Exit.NOTHING_SENT) from None
    except BrokenPipeError:  # the reader of standard output has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(Exit.FAILED) from None
    except OSError as error:
        say(f"{error.filename or 'the ledger'}: {error.strerror}")
        raise typer.Exit(Exit.FAILED) from None
    except (typer.Abort, KeyboardInterrupt):  # earlier answers are written
        say("\ninterrupted")  # below the question
        raise typer.Exit(Exit.INTERRUPTED) from None


@app.command()
def ls(
    ledger: Name,
    state: Annotated[list[State] | None, typer.Option(help="Only these; may be given again.")] = None,
    *,
    without_redirect: Annotated[
        bool,
        typer.Option("--without-redirect", help="Only approvals for which the ledger has no redirect."),
    ] = False,
    as_json: Json = False,
) -> None:
    """List entries, one a line: key, state, since when, and what led to it; at the end how many there are.

    Example: loanasync ledger ls --ledger decisions.db --state unknown --state lost
    """
    with _use(ledger) as use:
        counts: Counter[str] = Counter()
        for entry in use.entries(*(state or ()), without_redirect=without_redirect):
            counts[entry.state.value] += 1
            print(json.dumps(facts_of(entry)) if as_json else line_of(entry))  # noqa: T201  (what was asked for)
        if not as_json:
            told = ", ".join(f"{number:,} {each}" for each, number in sorted(counts.items()))
            say(told or "no entries")


@app.command()
def show(
    ledger: Name,
    key: Annotated[str | None, _KEY] = None,
    scope: Annotated[str, typer.Option(help="Of a customer's approval, if it was given one.")] = "",
    *,
    customer: Annotated[
        bool,
        typer.Option("--customer", help="Look for a customer: the fiscal code is asked for, or piped in."),
    ] = False,
    reveal: Annotated[
        bool, typer.Option("--reveal", help="Show what is masked of the answer, such as its redirect.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show all of an entry, found by its key, or by its customer.

    For the latter, the shop is that of LOANASYNC_BASE_URL, LOANASYNC_SHOP_ID and LOANASYNC_AUTH_TOKEN, and
    the ledger's own secret, if it has one, is in LOANASYNC_LEDGER_KEY.

    Example: loanasync ledger show 3f2a9c17d0b4 --ledger decisions.db
    """
    if (key is None) != customer:
        raise typer.BadParameter("give KEY, or --customer, and not both")

    with _use(ledger) as use:
        entry = _entry_of_a_customer(use, scope) if key is None else use.entry(key)
        if as_json:
            typer.echo(json.dumps({**facts_of(entry), "answer": answer_of(entry, reveal=reveal)}, indent=2))
        else:
            for name, told in story_of(entry, reveal=reveal):
                typer.echo(f"{name:<20}{told}")


def _entry_of_a_customer(use: Opened, scope: str) -> Entry:
    entry = use.run(use.ledger.get(_key_of_a_customer(scope)))
    if entry is None:
        raise NotFoundError(
            "no entry of this customer is found with these settings: check LOANASYNC_BASE_URL, "
            "LOANASYNC_SHOP_ID, LOANASYNC_LEDGER_KEY, LOANASYNC_LEDGER_ENVIRONMENT and --scope. Look for an "
            "older entry with the secret that it was written with: its LOANASYNC_LEDGER_KEY, or without one "
            "its LOANASYNC_AUTH_TOKEN"
        )
    return entry


def _key_of_a_customer(scope: str) -> str:
    shop, policy = shop_of(os.environ), policy_of(os.environ)
    # Never an argument: those stand in the shell's history, and in the list of processes.
    is_asked = sys.stdin.isatty()
    code = (
        typer.prompt("Fiscal code", hide_input=True, err=True) if is_asked else sys.stdin.readline()
    ).strip()
    if wrong := [problem.message for problem in check_fiscal_code(code)]:
        raise NotFoundError(f"the fiscal code {wrong[0]}")
    return key_of(shop, normalize_fiscal_code(code), policy, scope)


@app.command()
def resolve(
    ledger: Name,
    keys: Annotated[list[str] | None, _KEY] = None,
    word: Annotated[
        Word | None,
        typer.Option(
            "--as", help="What the service says; released: it never evaluated, and may be asked again."
        ),
    ] = None,
    note: Annotated[str, typer.Option(help="Who says so, such as a ticket's number; nothing personal.")] = "",
) -> None:
    """Settle approvals of unknown outcome with what the service says of them, or correct a mistake.

    Run `loanasync ledger import-orphans` on every machine before: a response may be in a file. Without KEY,
    goes through all that are unknown or lost, and asks for each. No decision of the service is overwritten.
    A mistake of a person is corrected, and the earlier state is kept in the history. Ends with 0 when all
    are settled, 1 when one could not be, 2 when nothing was done, 3 when one was skipped.

    Example: loanasync ledger resolve 3f2a9c17d0b4 --as refused --note "ticket 17" --ledger decisions.db
    """
    try:
        said = note_that_is_safe(note)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--note") from None
    if word is not None and not (keys and said):
        given = " ".join(keys or ["KEY"])
        told = f'needs KEY and --note: loanasync ledger resolve {given} --as {word.value} --note "ticket 17"'
        raise typer.BadParameter(told, param_hint="--as")

    with _use(ledger) as use:
        entries = [use.entry(key) for key in keys] if keys else _open(use)
        if not entries:
            say("nothing is unknown or lost")
        if word is None:
            raise typer.Exit(settle_by_asking(use, entries, said))
        raise typer.Exit(max([settle(use, entry, word, said) for entry in entries]))


def _open(use: Opened) -> list[Entry]:
    return sorted(use.entries(*OPEN), key=lambda entry: (entry.changed, entry.key))


@app.command()
def sweep(ledger: Name, *, as_json: Json = False) -> None:
    """Write down as unknown whose asker died: their lease has run out; and name all that is unknown or lost.

    Nothing depends on it: who looks sees them as unknown anyway. Ends with 3 when something needs a person,
    so that a timer can tell one.

    Example: loanasync ledger sweep --ledger decisions.db
    """
    with _use(ledger) as use:
        swept = use.run(sweep_ledger(use.ledger))
        entries = _open(use)
        if as_json:
            told = {"swept": [entry.key for entry in swept], "open": [facts_of(entry) for entry in entries]}
            typer.echo(json.dumps(told, indent=2))
        else:
            for entry in entries:
                typer.echo(line_of(entry))
            say(
                f"{len(swept):,} leases had run out; {len(entries):,} need a person: loanasync ledger resolve"
            )
        if entries:
            raise typer.Exit(Exit.UNKNOWN)


@app.command()
def purge(
    ledger: Name,
    older_than: Annotated[str, typer.Option(metavar="AGE", help="Such as 52w, 400d, 12h.")],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say how many it would be.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Forget what was decided or released and has not changed for so long: it may be asked again.

    What is unknown, lost, held or in flight stays.

    Example: loanasync ledger purge --older-than 104w --ledger decisions.db
    """
    span = _SPAN.fullmatch(older_than)
    seconds = 0 if span is None else int(span[1]) * _SECONDS[span[2]]
    if not seconds:
        raise typer.BadParameter("must be an age such as 52w, 400d, 12h, 30m", param_hint="--older-than")

    with _use(ledger) as use:
        if dry_run or not yes:
            before = time.time() - seconds
            number = sum(entry.changed <= before for entry in use.entries(*_FORGOTTEN))
            say(f"{number:,} entries are older than {older_than}")
            if dry_run or not number:
                return
            if not typer.confirm("Forget them? These customers may be asked for again", err=True):
                raise typer.Exit(Exit.NOTHING_SENT)
        say(f"{use.run(use.ledger.purge(float(seconds))):,} entries are forgotten")


@app.command()
def export(
    ledger: Name,
    out: Annotated[
        str, typer.Option("-o", "--out", metavar="OUT", help="A file, made anew; - is standard output.")
    ] = "-",
    *,
    answers: Annotated[
        bool, typer.Option("--answers", help="And what is kept of the service's answers, all of it.")
    ] = False,
) -> None:
    """Write all entries as JSON lines, for a report or an audit.

    Example: loanasync ledger export -o entries.jsonl --ledger decisions.db
    """
    with _use(ledger) as use, closing(Appending(out, afresh="")) as file:
        number = 0
        for number, entry in enumerate(use.entries(), 1):  # noqa: B007  (how many there were)
            told = {"answer": answer_of(entry, reveal=True)} if answers else {}
            file.add(json.dumps({**facts_of(entry), **told}) + "\n")
        say(f"{number:,} entries")


@app.command("import-orphans")
def bring_orphans(
    ledger: Name,
    folder: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Folder that clients were given as LedgerPolicy(orphan_folder=...); may be given again.",
        ),
    ] = None,
) -> None:
    """Bring answers to the ledger that it could not take when they came, and delete their files.

    Run it on every machine with clients, before `loanasync ledger resolve`. A file that cannot be imported
    is left and listed, and the next one follows. Ends with 1 when files were left: they cannot be read, hold
    something else, or contradict the ledger.

    Example: loanasync ledger import-orphans --ledger decisions.db
    """
    with _use(ledger) as use:
        folders = folder or default_orphan_folders()
        done = use.run(import_from_folders(use.ledger, folders))
        others = () if folder else orphan_folders_of_others()
        for each in done.left:
            typer.echo(f"{each.path}: {each.reason}")
        for spare in others:
            typer.echo(f"{spare}: belongs to another user: run this command as that user, too")
        say(f"looked into {', '.join(str(each) + _absence(each) for each in folders)}")
        if not folder:
            say(_ELSEWHERE)
        left = f", {len(done.left):,} files are left" if done.left else ""
        say(f"{done.number:,} answers were brought to the ledger{left}")
        if done.left or others:
            raise typer.Exit(Exit.FAILED)


def _absence(folder: Path) -> str:
    return "" if folder.exists() else " (not there)"
