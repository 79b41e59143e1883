"""The command ``python -m loanasync.sandbox``, which needs no extra; ``loanasync sandbox`` runs it, too."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from loanasync.sandbox import Sandbox, serve

_MODULE = "python -m loanasync.sandbox"


def parser_of(program: str = _MODULE) -> argparse.ArgumentParser:
    """Return the parser of the options, for both commands."""
    parser = argparse.ArgumentParser(
        prog=program,
        description="Run a sandbox of the loan request approval service on this machine, until Ctrl-C.",
        epilog=f"Example: {program} --port 8080 --fault 500after:0.1 --state shop.sqlite --open",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=int, default=0, help="port to listen on; 0, the default, selects a free port")
    add("--shop-id", default="sandbox-shop", help="identifier of the shop")
    add("--auth-token", default="sandbox-token", help="made-up token of the shop")
    add("--dialect", choices=["street_number", "civic_number"], help="accept one description only")
    add("--state", help="SQLite file that stores the customers")
    many: Any = {"action": "append", "default": []}
    fault = "[operation=]words[:rate], such as 500after:0.1; can be repeated"
    add("--fault", dest="faults", metavar="FAULT", help=fault, **many)
    add("--seed", type=int, default=0, help="seed of the random choices of faults")
    add("--journal", type=int, default=1000, help="number of calls to keep")
    add("--customers", type=int, default=10_000, help="number of customers to remember")
    add("--shop-url", help="URL of the link back to the shop")
    add("--allow-remote", action="store_true", help="allow access from other hosts, without access control")
    add("--open", dest="open_page", action="store_true", help="open the inspector in the browser")
    return parser


def main(arguments: Sequence[str] | None = None, program: str = _MODULE) -> None:
    """Parse the options, by default those of this process, and run the sandbox."""
    start(**vars(parser_of(program).parse_args(arguments)))


def start(*, open_page: bool, **options: Any) -> None:
    """Run a sandbox until a signal stops it; exit with status 2 if it cannot start.

    Args:
        open_page: Open the inspector in the browser.
        options: Other arguments of `Sandbox`.
    """
    try:
        asyncio.run(serve(Sandbox(**options), open_page=open_page))
    except (OSError, OverflowError, ValueError) as error:
        print(f"the sandbox cannot start: {error}", file=sys.stderr)  # noqa: T201  (output of the command)
        sys.exit(2)


if __name__ == "__main__":
    main()
