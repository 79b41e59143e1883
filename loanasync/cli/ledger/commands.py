"""``loanasync ledger``: list, show, resolve and delete entries, create a ledger and change its header."""

import asyncio
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_urlsafe
from typing import Annotated, TypeAlias

import typer
from attrs import evolve

from loanasync._environment import LEDGER_OLD_KEYS
from loanasync._protocol.rules import check_fiscal_code, normalize_fiscal_code
from loanasync.cli.console import counted, discard_output, print_message
from loanasync.cli.exit_codes import Exit
from loanasync.cli.ledger.display import decrypted, entry_details, entry_line, entry_members, iso_time
from loanasync.cli.ledger.open import (
    LEDGER_HELP,
    NotFoundError,
    OpenLedger,
    UnusableError,
    ledger_option,
    settings_of,
    shop_from_environment,
    short,
)
from loanasync.cli.ledger.outcomes import TO_RESOLVE, resolve_from
from loanasync.cli.ledger.resolve import Resolution, resolve_entry
from loanasync.errors import ConfigurationError
from loanasync.ledger import Entry, State, create_ledger
from loanasync.ledger import sweep as sweep_ledger
from loanasync.ledger.address import name_without_password
from loanasync.ledger.administration import confirm, copy_ledger, forget, move_service, rotate_key
from loanasync.ledger.header import marked
from loanasync.ledger.keys import Approval, Place, places_of
from loanasync.ledger.ledger import PURGED
from loanasync.ledger.model import FORMAT
from loanasync.ledger.orphans import import_from_folders, orphans_of
from loanasync.ledger.policy import default_orphan_folders, orphan_folders_of_others
from loanasync.ledger.resolution import problem_of_note

app: typer.Typer = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks show local variables
)

LEDGER = typer.Option(metavar="NAME", envvar="LOANASYNC_LEDGER", help=f"The ledger: {LEDGER_HELP}.")
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
_KEY = typer.Argument(
    metavar="KEY", help="Key of an entry, or its first 4 or more characters.", show_default=False
)
Customer: TypeAlias = Annotated[
    bool, typer.Option("--customer", help="Find the entry of a fiscal code, from a prompt or standard input.")
]
_AGE = re.compile("([0-9]{1,6})([hdw])")
_SECONDS = {"h": 3600, "d": 86_400, "w": 604_800}
_BASE_URL = "LOANASYNC_BASE_URL"
_KEY_BYTES = 32


@app.callback()
def _options(context: typer.Context, ledger: Annotated[str, LEDGER] = "") -> None:
    """Inspect a ledger of decisions, and resolve unknown outcomes.

    Example: loanasync ledger --ledger decisions.db status
    """
    context.obj = ledger


@contextmanager
def opened(name: str, *, must_exist: bool = True, failure: Exit = Exit.NOTHING_SENT) -> Iterator[OpenLedger]:
    """Open a ledger for a command. Errors are printed, and end the command with an exit code."""
    if not name:
        raise typer.BadParameter(
            "name the ledger before the command, or in LOANASYNC_LEDGER", param_hint="--ledger"
        )
    try:
        settings = settings_of(name)
        with asyncio.Runner() as runner:
            use = OpenLedger(settings.ledger, runner, settings.policy)
            try:
                if must_exist:
                    use.run(settings.ledger.header())
                yield use
            finally:
                runner.run(settings.ledger.aclose())
    except (ConfigurationError, NotFoundError, UnusableError) as error:
        print_message(str(error))
        raise typer.Exit(failure) from None
    except BrokenPipeError:  # such as in `loanasync ledger ls | head`
        discard_output(sys.stdout)
        raise typer.Exit(Exit.FAILED) from None
    except OSError as error:
        print_message(f"{error.filename or 'the ledger'}: {error.strerror}")
        raise typer.Exit(Exit.FAILED) from None
    except (typer.Abort, KeyboardInterrupt):  # a prompt for a fiscal code was interrupted, or the command
        print_message("\ninterrupted")  # below the question
        raise typer.Exit(Exit.INTERRUPTED) from None


@app.command()
def ls(
    context: typer.Context,
    state: Annotated[
        list[State] | None, typer.Option(help="Only entries in this state; can be repeated.")
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """List entries, one per line: key, state, time and age of the last change, and note.

    Example: loanasync ledger --ledger decisions.db ls --state unknown --state lost
    """
    with opened(context.obj) as use:
        counts: Counter[str] = Counter()
        for entry in use.entries(*(state or ())):
            counts[entry.state.value] += 1
            print(json.dumps(entry_members(entry)) if as_json else entry_line(entry))  # noqa: T201  (the output)
        if not as_json:
            numbers = ", ".join(f"{number:,} {each}" for each, number in sorted(counts.items()))
            print_message(numbers or "no entries")


@app.command()
def show(
    context: typer.Context,
    key: Annotated[str | None, _KEY] = None,
    *,
    customer: Customer = False,
    reveal: Annotated[
        bool,
        typer.Option("--reveal", help="Show the masked values of the stored response."),
    ] = False,
) -> None:
    """Show one entry, found by its key or, with --customer, by a fiscal code.

    --customer needs LOANASYNC_BASE_URL, LOANASYNC_SHOP_ID and LOANASYNC_AUTH_TOKEN, and LOANASYNC_LEDGER_KEY
    and LOANASYNC_LEDGER_OLD_KEYS if the ledger has these keys. Several entries are listed.

    Example: loanasync ledger --ledger decisions.db show 3f2a9c17d0b4
    """
    if (key is None) != customer:
        raise typer.BadParameter("give either KEY or --customer")

    with opened(context.obj) as use:
        entry = _entry_of_customer(use) if key is None else use.entry(key)
        entry = decrypted(entry, use.policy.encrypt)
        for label, text in entry_details(entry, ledger_option(context.obj), reveal=reveal):
            typer.echo(f"{label:<20}{text}")


def _entry_of_customer(use: OpenLedger) -> Entry:
    """Return the entry of a customer whose fiscal code is typed in, or comes from standard input.

    Raises:
        NotFoundError: The fiscal code is invalid, or there is no entry, or more than one.
        ConfigurationError: The shop is not configured, or the ledger is not of this shop.
    """
    places = _places_of_customer(use)
    found = [entry for each in places for entry in use.run(use.ledger.entries_of(each.subject.customer))]
    if len(found) == 1 or (found and all(each.state is State.ERASED for each in found)):
        return found[0]  # a release of one erased entry releases all
    if not found:
        raise NotFoundError("no entry of this customer found: check --ledger and LOANASYNC_SHOP_ID")
    lines = ["the customer has several entries, name one by its key:", *map(entry_line, found)]
    raise NotFoundError("\n".join(lines))


def _places_of_customer(use: OpenLedger) -> Sequence[Place]:
    """Return the places of the approval without an order of a customer, whose fiscal code is typed in."""
    shop = shop_from_environment(os.environ)
    secrets = use.secrets(shop)
    code = read_personal("Fiscal code")
    for problem in check_fiscal_code(code):
        raise NotFoundError(f"the fiscal code {problem.message}")
    return places_of(Approval(shop.shop_id, normalize_fiscal_code(code)), secrets)


def read_personal(label: str) -> str:
    """Return a text from a prompt without echo, or the next line of standard input.

    It is not an argument: arguments appear in the shell history and in the list of processes.
    """
    if sys.stdin.isatty():
        return str(typer.prompt(label, hide_input=True, err=True)).strip()
    return sys.stdin.readline().strip()


@app.command("resolve")
def resolve_entries(
    context: typer.Context,
    keys: Annotated[list[str] | None, _KEY] = None,
    resolution: Annotated[
        Resolution | None,
        typer.Option(
            "--as",
            help="The outcome; released: not evaluated, so it may be requested again; held: send no request.",
        ),
    ] = None,
    note: Annotated[
        str, typer.Option(help="The source, such as a ticket number, without personal data.")
    ] = "",
    from_file: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="FILE", help="File of outcomes, CSV or JSON lines; - is standard input."
        ),
    ] = None,
    *,
    customer: Customer = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --from: print the results only.")] = False,
) -> None:
    """Record what the service says about approvals of unknown outcome, or correct an earlier resolution.

    First run `loanasync ledger sweep` on every machine, because a response may be in a file. A decision of
    the service is never overwritten.

    --customer and --from need the settings of `loanasync ledger show --customer`. The columns of FILE are
    fiscal_code and outcome (approved, refused, not_evaluated or held), and optionally order_id, order_token,
    amount, redirect_url and note. Rows that contradict each other or the ledger are not used.

    Ends with 1 if an entry could not be resolved or a row was not used, and with --from with 3 if entries are
    still unknown or lost.

    Example: loanasync ledger --ledger decisions.db resolve 3f2a9c17d0b4 --as refused --note "ticket 17"
    """
    if (wrong := problem_of_note(note)) is not None:
        raise typer.BadParameter(wrong, param_hint="--note")
    if sum(map(bool, (keys, customer, from_file))) != 1:
        raise typer.BadParameter("give KEY, --customer or --from, and only one of them")
    if from_file is not None and resolution is not None:
        raise typer.BadParameter("the file of --from has the outcomes", param_hint="--as")
    if from_file is None and dry_run:
        raise typer.BadParameter("needs --from", param_hint="--dry-run")
    if from_file is not None:
        with opened(context.obj) as use:
            raise typer.Exit(resolve_from(use, from_file, note.strip(), dry_run=dry_run))
    if resolution is None or not note.strip():
        example = f'{" ".join(keys or ["--customer"])} --as refused --note "ticket 17"'
        raise typer.BadParameter(f"--as and --note are needed: loanasync ledger resolve {example}")
    with opened(context.obj) as use:
        entries = [use.entry(key) for key in keys] if keys else [_entry_of_customer(use)]
        raise typer.Exit(max([resolve_entry(use, each, resolution, note.strip()) for each in entries]))


@app.command()
def sweep(
    context: typer.Context,
    orphan_folder: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Folder of orphan files, such as LedgerPolicy(orphan_folder=...); can be repeated.",
        ),
    ] = None,
) -> None:
    """Import orphan files, mark entries with an expired lease as unknown, and list the entries to resolve.

    Files that contradict the ledger or cannot be read are left in place and listed.

    Run it from cron and alert on the exit code: 3 if a person must resolve entries, else 1 if files are left.

    Example: loanasync ledger --ledger decisions.db sweep
    """
    with opened(context.obj) as use:
        folders = orphan_folder or default_orphan_folders()
        number, left = use.run(import_from_folders(use.ledger, folders))
        if not orphan_folder:
            left += [
                (each, "belongs to another user: sweep as that user, too")
                for each in orphan_folders_of_others()
            ]
        swept = use.run(sweep_ledger(use.ledger))
        found = (entry for entry in use.entries(*TO_RESOLVE) if entry.is_unresolved)
        entries = sorted(found, key=lambda entry: (entry.changed, entry.key))
        for path, reason in left:
            typer.echo(f"{path}: {reason}")
        for entry in entries:
            typer.echo(entry_line(entry))
        named = (f"{each}{'' if each.exists() else ' (does not exist)'}" for each in folders)
        print_message(f"orphan folders: {', '.join(named)}")
        done = f"{counted(number, 'response')} imported; {counted(len(swept), 'lease')} expired"
        command = f", run: loanasync ledger {ledger_option(context.obj)}resolve KEY" if entries else ""
        print_message(f"{done}; {counted(len(entries), 'entry', 'entries')} to resolve{command}")
        if entries or left:
            raise typer.Exit(Exit.UNKNOWN if entries else Exit.FAILED)


@app.command()
def status(context: typer.Context, *, as_json: Json = False) -> None:
    """Print the header of a ledger, its entries by state, and what is open.

    Ends with 1 if clients send nothing, because the ledger is marked or cannot be used, and with 3 if a
    person must act: on entries to resolve, expired leases, or orphan files.

    Example: loanasync ledger --ledger decisions.db status
    """
    with opened(context.obj, failure=Exit.FAILED) as use:
        header, counts = use.run(use.ledger.refresh()), Counter[str]()
        unresolved, expired = [], 0
        for entry in use.entries():
            counts[entry.state.value] += 1
            if entry.is_unresolved:
                unresolved.append(entry.changed)
                expired += entry.changed == entry.expires
        members = {
            "id": header.id,
            "service": header.service,
            "format": FORMAT,
            "keys": len(header.keys),
            "is_encrypted": bool(header.cipher),
            "mark": header.mark,
            "entries": dict(sorted(counts.items())),
            "unresolved": len(unresolved),
            "oldest_unresolved": iso_time(min(unresolved)) if unresolved else None,
            "expired_leases": expired,
            "orphan_files": len(orphans_of(header.id, use.policy.orphan_folders)),
        }
        if as_json:
            typer.echo(json.dumps(members, indent=2))
        for name, value in () if as_json else members.items():
            shown = ", ".join(f"{n:,} {state}" for state, n in counts.items()) if name == "entries" else value
            typer.echo(f"{name.replace('_', ' '):<20}{shown}")
        if header.mark:
            print_message(str(marked(header)))
            raise typer.Exit(Exit.FAILED)
        if unresolved or members["orphan_files"]:
            raise typer.Exit(Exit.UNKNOWN)


@app.command()
def copy(
    context: typer.Context,
    to: Annotated[str, typer.Argument(metavar="TO", help="The ledger to write, named like --ledger.")],
    *,
    move: Annotated[
        bool, typer.Option("--move", help="Mark the ledger first: its clients send nothing from then on.")
    ] = False,
) -> None:
    """Copy a ledger to another one: a backup, a move to another server, a merge after a restore.

    TO is created, or is an earlier copy, whose decisions stay. No client uses it until `loanasync ledger
    confirm`. Requests in progress are copied as unknown; with --move, they are awaited. With
    LOANASYNC_LEDGER_CIPHER, responses are encrypted again.

    Ends with 3 if both have different decisions about an approval, which are listed.

    Example: loanasync ledger --ledger decisions.db copy backup.db
    """
    if name_without_password(to) == name_without_password(context.obj):
        raise typer.BadParameter("must be another ledger than --ledger", param_hint="TO")
    with opened(context.obj) as use:
        target = settings_of(to).ledger
        try:
            copied = use.run(copy_ledger(use.ledger, target, use.policy, moves=move))
        finally:
            use.run(target.aclose())
        for key in copied.contradictions:
            typer.echo(f"{short(key)}  is decided otherwise in TO, and stays so there")
        counts = (f"{number:,} {state}" for state, number in sorted(copied.counts.items()) if number)
        print_message(f"copied: {', '.join(counts) or 'no entries'}")
        if copied.contradictions:
            raise typer.Exit(Exit.UNKNOWN)


@app.command("forget")
def forget_customer(context: typer.Context) -> None:
    """Erase a customer, whose fiscal code comes from a prompt or standard input, and send no order any more.

    Erases all orders in the ledger, and the orphan files of this user on this machine. Needs the settings of
    `loanasync ledger show --customer`.

    Ends with 1 if a request is in progress: then nothing is erased.

    Example: loanasync ledger --ledger decisions.db forget
    """
    with opened(context.obj) as use:
        number = use.run(forget(use.ledger, _places_of_customer(use), use.policy.orphan_folders))
        if number is None:
            print_message(
                "a request of this customer is in progress: nothing was erased; run this again later"
            )
            raise typer.Exit(Exit.FAILED)
        print_message(f"erased: {counted(number, 'entry or file', 'entries and files')}; no order is sent")


@app.command()
def purge(
    context: typer.Context,
    older_than: Annotated[
        str,
        typer.Option(metavar="AGE", help="Time since the last change, such as 400d or 104w; at least a day."),
    ],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the number, and delete nothing.")] = False,
) -> None:
    """Delete old approved, refused and released entries. Their approvals can then be requested again.

    Example: loanasync ledger --ledger decisions.db purge --older-than 104w
    """
    age = _AGE.fullmatch(older_than)
    seconds = 0 if age is None else int(age[1]) * _SECONDS[age[2]]
    if seconds < _SECONDS["d"]:
        raise typer.BadParameter(
            "must be an age of at least a day, such as 104w, 400d", param_hint="--older-than"
        )

    with opened(context.obj) as use:
        if dry_run:
            before = use.run(use.ledger.time_of_day()) - seconds
            number = sum(entry.changed <= before for entry in use.entries(*PURGED))
            print_message(f"older than {older_than}: {counted(number, 'entry', 'entries')}")
            return
        print_message(f"deleted: {counted(use.run(use.ledger.purge(float(seconds))), 'entry', 'entries')}")


@app.command("create")
def create(context: typer.Context) -> None:
    """Create an empty ledger for the clients of the service LOANASYNC_BASE_URL.

    Its key is LOANASYNC_LEDGER_KEY. Without it, a file makes its own secret, and for a ledger on a server a
    new key is printed: set the variable to it for all clients.

    Example: loanasync ledger --ledger decisions.db create
    """
    with opened(context.obj, must_exist=False) as use:
        base_url = os.environ.get(_BASE_URL, "")
        if not base_url:
            raise ConfigurationError(_BASE_URL, "must be set in the environment")
        key = None
        policy = use.policy
        if policy.key is None and use.ledger.driver:
            key = token_urlsafe(_KEY_BYTES)
            policy = evolve(policy, key=key.encode())
        use.run(create_ledger(use.ledger, base_url=base_url, policy=policy))
        if key is not None:
            typer.echo(f"LOANASYNC_LEDGER_KEY={key}")
        print_message("created")


@app.command("rotate-key")
def rotate(context: typer.Context) -> None:
    """Give new entries the key LOANASYNC_LEDGER_KEY, or a new secret of the ledger's own.

    First give all clients the new key in LOANASYNC_LEDGER_KEY and the present one in
    LOANASYNC_LEDGER_OLD_KEYS. A client that lacks one of them sends nothing from then on.

    After a change of the cipher's keys, it writes the check value of the cipher again.

    Example: loanasync ledger --ledger decisions.db rotate-key
    """
    with opened(context.obj) as use:
        before = use.run(use.ledger.header())
        use.run(rotate_key(use.ledger, use.policy))
        if use.run(use.ledger.header()).keys == before.keys:
            print_message("the ledger has a new check value of the cipher, and the same key")
            return
        former = f"keep the former one in {LEDGER_OLD_KEYS}"
        if before.secrets:
            former = "the ledger keeps the former one"
        print_message(f"new entries have the new key; {former}")


@app.command("confirm")
def confirm_ledger(
    context: typer.Context,
    service: Annotated[
        str, typer.Option(metavar="URL", help="New base URL of the service, if it has moved.")
    ] = "",
) -> None:
    """Permit clients to send again, after a ledger lost writes, was copied, or the service has moved.

    First follow the steps of the page "Back up, move, restore".

    Example: loanasync ledger --ledger decisions.db confirm
    """
    with opened(context.obj) as use:
        if service:
            use.run(move_service(use.ledger, service))
        use.run(confirm(use.ledger))
        print_message(f"clients of {use.run(use.ledger.header()).service} send again")
