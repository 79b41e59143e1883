"""``loanasync ledger create``, ``move-service``, ``rotate-key`` and ``confirm``: the identity of a ledger."""

import os
from secrets import token_urlsafe
from typing import Annotated

import typer
from attrs import evolve

from loanasync import ConfigurationError
from loanasync._config import LEDGER_OLD_KEYS
from loanasync.cli.console import print_message
from loanasync.cli.ledger.commands import Name, app, opened
from loanasync.cli.ledger.open import LEDGER_HELP, CipherName
from loanasync.ledger import create_ledger
from loanasync.ledger.administration import confirm, move_service, rotate_key

_BASE_URL = "LOANASYNC_BASE_URL"
_KEY_BYTES = 32


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
    cipher: CipherName = None,
) -> None:
    """Create an empty ledger for the clients of the service LOANASYNC_BASE_URL.

    Its key is LOANASYNC_LEDGER_KEY. Without that variable, a new key for a ledger on a server is printed to
    standard output: store it with your secrets, and set the variable for all clients. A ledger file without a
    key makes its own secret.

    Example: loanasync ledger create decisions.db
    """
    with opened(ledger, cipher, must_exist=False) as use:
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

    Example: loanasync ledger rotate-key --ledger decisions.db
    """
    with opened(ledger) as use:
        use.run(rotate_key(use.ledger, use.policy))
        is_own = bool(use.run(use.ledger.header()).secrets)
        former = "the ledger keeps the former one" if is_own else f"keep the former one in {LEDGER_OLD_KEYS}"
        print_message(f"new entries have the new key; {former}")


@app.command("confirm")
def confirm_ledger(ledger: Name) -> None:
    """Allow clients to send again after a ledger lost writes, for example in a restored copy.

    First run `loanasync ledger import-orphans` on each machine, and block the customers that the copy lacks,
    as the page on sharing a ledger shows.

    Example: loanasync ledger confirm --ledger decisions.db
    """
    with opened(ledger) as use:
        use.run(confirm(use.ledger))
        print_message("clients send again")
