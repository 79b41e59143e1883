"""``loanasync ledger``: list, show, resolve and delete entries, create a ledger and change its header."""

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_urlsafe
from typing import Annotated, TypeAlias

import typer
from attrs import evolve

from loanasync import ConfigurationError
from loanasync._config import LEDGER_OLD_KEYS
from loanasync._validation.rules import check_fiscal_code, normalize_fiscal_code
from loanasync.cli.console import counted, discard_output, print_message
from loanasync.cli.exit_codes import Exit
from loanasync.cli.ledger.display import (
    decrypted,
    entry_details,
    entry_line,
    entry_members,
    response_members,
)
from loanasync.cli.ledger.file import TO_RESOLVE, resolve_from
from loanasync.cli.ledger.open import (
    LEDGER_HELP,
    NotFoundError,
    OpenLedger,
    UnusableError,
    ledger_option,
    open_ledger,
    shop_from_environment,
)
from loanasync.cli.ledger.resolve import (
    Resolution,
    checked_note,
    resolve_entry,
    resolve_interactively,
)
from loanasync.ledger import Entry, State, create_ledger
from loanasync.ledger.administration import confirm, move_service, rotate_key
from loanasync.ledger.keys import Approval, places_of
from loanasync.ledger.maintenance import sweep as sweep_ledger
from loanasync.ledger.orphans import import_from_folders
from loanasync.ledger.policy import default_orphan_folders, orphan_folders_of_others

app: typer.Typer = typer.Typer(
    help="Inspect a ledger of decisions, and resolve unknown outcomes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks show local variables
)

LEDGER = typer.Option(
    metavar="NAME",
    envvar="LOANASYNC_LEDGER",
    help=f"The ledger: {LEDGER_HELP}.",
)
Name: TypeAlias = Annotated[str, LEDGER]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
_KEY = typer.Argument(
    metavar="KEY", help="Key of an entry, or its first characters, at least 4.", show_default=False
)
Customer: TypeAlias = Annotated[
    bool, typer.Option("--customer", help="Find the entry of a fiscal code, from a prompt or standard input.")
]
_AGE = re.compile("([0-9]{1,6})([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_OTHER_FOLDERS = (
    "clients of other users, and clients with LedgerPolicy(orphan_folder=...), use other folders:"
    " name them with --orphan-folder"
)
_BASE_URL = "LOANASYNC_BASE_URL"
_KEY_BYTES = 32
_PURGED_STATES = (State.APPROVED, State.REFUSED, State.RELEASED)


@contextmanager
def opened(name: str, *, must_exist: bool = True) -> Iterator[OpenLedger]:
    """Open a ledger for a command. Errors are printed, and end the command with an exit code."""
    try:
        with open_ledger(name, must_exist=must_exist) as use:
            yield use
    except (ConfigurationError, NotFoundError, UnusableError) as error:
        print_message(str(error))
        raise typer.Exit(Exit.NOTHING_SENT) from None
    except BrokenPipeError:  # such as in `loanasync ledger ls | head`
        discard_output(sys.stdout)
        raise typer.Exit(Exit.FAILED) from None
    except OSError as error:
        print_message(f"{error.filename or 'the ledger'}: {error.strerror}")
        raise typer.Exit(Exit.FAILED) from None
    except (typer.Abort, KeyboardInterrupt):  # resolutions that were entered before are recorded
        print_message("\ninterrupted")  # on a new line below the question
        raise typer.Exit(Exit.INTERRUPTED) from None


@app.command()
def ls(
    ledger: Name,
    state: Annotated[
        list[State] | None, typer.Option(help="Only entries in this state. Can be repeated.")
    ] = None,
    *,
    without_redirect: Annotated[
        bool,
        typer.Option("--without-redirect", help="Only approvals whose redirect is missing in the ledger."),
    ] = False,
    as_json: Json = False,
    responses: Annotated[
        bool, typer.Option("--responses", help="With --json: include stored responses, with personal data.")
    ] = False,
) -> None:
    """List entries, one per line: key, state, time of the last change, how long ago that was, and note.

    The number of entries in each state is printed at the end. For a report or an audit, write all entries to
    a file with --json.

    Example: loanasync ledger ls --ledger decisions.db --state unknown --state lost
    """
    with opened(ledger) as use:
        counts: Counter[str] = Counter()
        for entry in use.entries(*(state or ()), without_redirect=without_redirect):
            counts[entry.state.value] += 1
            clear = decrypted(entry, use.policy.encrypt) if responses else entry
            stored = {"response": response_members(clear, reveal=True)} if responses else {}
            line = json.dumps(entry_members(entry) | stored) if as_json else entry_line(entry)
            print(line)  # noqa: T201  (the output)
        if not as_json:
            numbers = ", ".join(f"{number:,} {each}" for each, number in sorted(counts.items()))
            print_message(numbers or "no entries")


@app.command()
def show(
    ledger: Name,
    key: Annotated[str | None, _KEY] = None,
    *,
    customer: Customer = False,
    reveal: Annotated[
        bool,
        typer.Option("--reveal", help="Show the masked values of the stored response, such as its redirect."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show everything about one entry, found by its key or, with --customer, by a fiscal code.

    With --customer, the shop is configured by LOANASYNC_BASE_URL, LOANASYNC_SHOP_ID and
    LOANASYNC_AUTH_TOKEN, and the keys of the ledger by LOANASYNC_LEDGER_KEY and LOANASYNC_LEDGER_OLD_KEYS. If
    the customer has several entries, they are listed, to be named by their keys.

    Example: loanasync ledger show 3f2a9c17d0b4 --ledger decisions.db
    """
    if (key is None) != customer:
        raise typer.BadParameter("give either KEY or --customer")

    with opened(ledger) as use:
        entry = _entry_of_customer(use) if key is None else use.entry(key)
        entry = decrypted(entry, use.policy.encrypt)
        if as_json:
            members = {**entry_members(entry), "response": response_members(entry, reveal=reveal)}
            typer.echo(json.dumps(members, indent=2))
        else:
            for label, text in entry_details(entry, ledger_option(ledger), reveal=reveal):
                typer.echo(f"{label:<20}{text}")


def _entry_of_customer(use: OpenLedger) -> Entry:
    """Return the entry of a customer whose fiscal code is typed in, or comes from standard input.

    Raises:
        NotFoundError: The fiscal code is invalid, or there is no entry, or more than one.
        ConfigurationError: The shop is not configured, or the ledger is not of this shop.
    """
    shop = shop_from_environment(os.environ)
    secrets = use.secrets(shop)
    code = _read_personal("Fiscal code")
    for problem in check_fiscal_code(code):
        raise NotFoundError(f"the fiscal code {problem.message}")
    places = places_of(Approval(shop.shop_id, normalize_fiscal_code(code)), secrets)
    found = [entry for each in places for entry in use.run(use.ledger.entries_of(each.subject.customer))]
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotFoundError("no entry of this customer found: check --ledger and LOANASYNC_SHOP_ID")
    lines = ["the customer has several entries, name one by its key:", *map(entry_line, found)]
    raise NotFoundError("\n".join(lines))


def _read_personal(label: str) -> str:
    """Return a text from a prompt without echo, or the next line of standard input.

    It is not an argument: arguments appear in the shell history and in the list of processes.
    """
    if sys.stdin.isatty():
        return str(typer.prompt(label, hide_input=True, err=True)).strip()
    return sys.stdin.readline().strip()


@app.command("resolve")
def resolve_entries(
    ledger: Name,
    keys: Annotated[list[str] | None, _KEY] = None,
    resolution: Annotated[
        Resolution | None,
        typer.Option(
            "--as",
            help="The service's decision; released: not evaluated, so it may be requested again;"
            " held: send no request for now.",
        ),
    ] = None,
    note: Annotated[
        str, typer.Option(help="The source, such as a ticket number. It must not contain personal data.")
    ] = "",
    from_file: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="FILE", help="File of outcomes, CSV or JSON lines; - is standard input."
        ),
    ] = None,
    *,
    customer: Customer = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --from: print the results, and write nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --from: print the results as JSON.")] = False,
) -> None:
    """Record what the service says about approvals of unknown outcome, or correct an earlier resolution.

    Run `loanasync ledger import-orphans` on every machine first: a response may be in a file. Without KEY,
    --customer and --from, prompts for each entry that is unknown or lost. A decision of the service is never
    overwritten. A correction keeps the earlier state in the history.

    --customer needs the same settings as `loanasync ledger show --customer`.

    --from needs these settings, too. The columns of FILE are fiscal_code and outcome (approved, refused,
    not_evaluated or held), and optionally order_id, order_token, amount and note. It lists what the ledger
    has and the file lacks, and amounts that differ. Rows that contradict each other or the ledger are not
    used. The outcome held also blocks a customer without entry. Running it again changes nothing.

    Ends with 1 if an entry could not be resolved or a row was not used, and with 3 if entries are still
    unknown or lost, or were skipped.

    Example: loanasync ledger resolve 3f2a9c17d0b4 --as refused --note "ticket 17" --ledger decisions.db
    """
    try:
        safe_note = checked_note(note)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--note") from None
    if sum(map(bool, (keys, customer, from_file))) > 1:
        raise typer.BadParameter("give only one of KEY, --customer and --from")
    if from_file is not None and resolution is not None:
        raise typer.BadParameter("the file of --from has the outcomes", param_hint="--as")
    if from_file is None and (dry_run or as_json):
        raise typer.BadParameter("needs --from", param_hint="--dry-run" if dry_run else "--json")
    if resolution is not None and not ((keys or customer) and safe_note):
        given = " ".join(keys or ["--customer" if customer else "KEY"])
        raise typer.BadParameter(
            "needs KEY or --customer, and --note, for example: "
            f'loanasync ledger resolve {given} --as {resolution.value} --note "ticket 17"',
            param_hint="--as",
        )

    with opened(ledger) as use:
        if from_file is not None:
            raise typer.Exit(resolve_from(use, from_file, safe_note, dry_run=dry_run, as_json=as_json))
        if customer:
            entries = [_entry_of_customer(use)]
        else:
            entries = [use.entry(key) for key in keys] if keys else _entries_to_resolve(use)
        if not entries:
            print_message("no entry is unknown or lost")
        if resolution is None:
            raise typer.Exit(resolve_interactively(use, entries, safe_note))
        raise typer.Exit(max([resolve_entry(use, entry, resolution, safe_note) for entry in entries]))


def _entries_to_resolve(use: OpenLedger) -> list[Entry]:
    found = (entry for entry in use.entries(*TO_RESOLVE) if entry.is_unresolved)
    return sorted(found, key=lambda entry: (entry.changed, entry.key))


@app.command()
def sweep(ledger: Name) -> None:
    """Mark entries with an expired lease (the worker died) as unknown, then list unknown and lost entries.

    Run it from cron and alert on exit code 3: a person must resolve entries. Sweeping is not required for
    correctness, because clients treat entries with an expired lease as unknown.

    Example: loanasync ledger sweep --ledger decisions.db
    """
    with opened(ledger) as use:
        swept = use.run(sweep_ledger(use.ledger))
        entries = _entries_to_resolve(use)
        for entry in entries:
            typer.echo(entry_line(entry))
        leases, number = counted(len(swept), "lease"), counted(len(entries), "entry", "entries")
        command = f", run: loanasync ledger resolve{ledger_option(ledger)}" if entries else ""
        print_message(f"{leases} expired; {number} to resolve{command}")
        if entries:
            raise typer.Exit(Exit.UNKNOWN)


@app.command()
def purge(
    ledger: Name,
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="Minimum age since the last change, such as 52w, 400d, 12h.")
    ],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without a confirmation prompt.")] = False,
) -> None:
    """Delete old approved, refused and released entries. Their approvals can then be requested again.

    Entries that are unknown, lost, held or in flight are kept.

    Example: loanasync ledger purge --older-than 104w --ledger decisions.db
    """
    age = _AGE.fullmatch(older_than)
    seconds = 0 if age is None else int(age[1]) * _SECONDS[age[2]]
    if not seconds:
        raise typer.BadParameter("must be an age such as 52w, 400d, 12h, 30m", param_hint="--older-than")

    with opened(ledger) as use:
        if not yes:
            before = use.run(use.ledger.time_of_day()) - seconds
            number = sum(entry.changed <= before for entry in use.entries(*_PURGED_STATES))
            print_message(f"older than {older_than}: {counted(number, 'entry', 'entries')}")
            if not number:
                return
            if not typer.confirm("Delete? These approvals can then be requested again", err=True):
                raise typer.Exit(Exit.NOTHING_SENT)
        print_message(f"deleted: {counted(use.run(use.ledger.purge(float(seconds))), 'entry', 'entries')}")


@app.command("import-orphans")
def import_orphans(
    ledger: Name,
    orphan_folder: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Folder of clients with LedgerPolicy(orphan_folder=...). Can be repeated.",
        ),
    ] = None,
) -> None:
    """Import responses that clients could not write to the ledger from their files, and delete these files.

    Run it on every machine with clients, before `loanasync ledger resolve`. Files that cannot be imported are
    left in place and listed. Ends with 1 if files are left: they cannot be read, have other content, or
    contradict the ledger.

    Example: loanasync ledger import-orphans --ledger decisions.db
    """
    with opened(ledger) as use:
        folders = orphan_folder or default_orphan_folders()
        number, remaining = use.run(import_from_folders(use.ledger, folders))
        others = () if orphan_folder else orphan_folders_of_others()
        for path, reason in remaining:
            typer.echo(f"{path}: {reason}")
        for other in others:
            typer.echo(f"{other}: belongs to another user; run this command as that user, too")
        print_message("folders searched: " + ", ".join(f"{each}{_missing_note(each)}" for each in folders))
        if not orphan_folder:
            print_message(_OTHER_FOLDERS)
        left = f", {counted(len(remaining), 'file')} left in place" if remaining else ""
        print_message(f"{counted(number, 'response')} imported{left}")
        if remaining or others:
            raise typer.Exit(Exit.FAILED)


def _missing_note(folder: Path) -> str:
    return "" if folder.exists() else " (does not exist)"


@app.command("create")
def create(
    ledger: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            envvar="LOANASYNC_LEDGER",
            help=f"The ledger: {LEDGER_HELP}.",
            show_default=False,
        ),
    ],
) -> None:
    """Create an empty ledger for the clients of the service LOANASYNC_BASE_URL.

    Its key is LOANASYNC_LEDGER_KEY. Without that variable, a new key for a ledger on a server is printed to
    standard output: store it with your secrets, and set the variable for all clients. A ledger file without a
    key makes its own secret.

    Example: loanasync ledger create decisions.db
    """
    with opened(ledger, must_exist=False) as use:
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


@app.command("move-service")
def move(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="New base URL of the service.", show_default=False)
    ],
    ledger: Name,
) -> None:
    """Change the base URL that a ledger belongs to, after the service has moved.

    Clients with the former URL send nothing from then on.

    Example: loanasync ledger move-service https://loans.example.com/v2 --ledger decisions.db
    """
    with opened(ledger) as use:
        use.run(move_service(use.ledger, url))
        print_message(f"the ledger belongs to {use.run(use.ledger.header()).service}")


@app.command("rotate-key")
def rotate(ledger: Name) -> None:
    """Give new entries the key LOANASYNC_LEDGER_KEY, or a new secret of the ledger's own.

    First give all clients the new key in LOANASYNC_LEDGER_KEY and the present one in
    LOANASYNC_LEDGER_OLD_KEYS. A client that lacks one of them sends nothing from then on.

    Run it also after a change of the cipher's keys: it writes the check value of the cipher again. The key of
    the entries may then stay.

    Example: loanasync ledger rotate-key --ledger decisions.db
    """
    with opened(ledger) as use:
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
def confirm_ledger(ledger: Name) -> None:
    """Allow clients to send again after a ledger lost writes, for example in a restored copy.

    First run `loanasync ledger import-orphans` on each machine, and block the customers that the copy lacks,
    as the page "Restore a ledger" shows.

    Example: loanasync ledger confirm --ledger decisions.db
    """
    with opened(ledger) as use:
        use.run(confirm(use.ledger))
        print_message("clients send again")
