"""``python -m loanasync.sandbox``: the sandbox as a command that needs no extra."""

import argparse
import asyncio
import sys
from collections.abc import Iterable
from typing import Any

from loanasync.sandbox import Readings, Sandbox, serve


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loanasync.sandbox",
        description="Run the sandbox of the loan request approval service on this machine.",
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="where it listens")
    add("--port", type=int, default=0, help="0, the default, takes a free one")
    add("--shop-id", default="sandbox-shop", help="the shop that it knows")
    add("--auth-token", default="sandbox-token", help="the shop's token, made up")
    add("--dialect", choices=["street_number", "civic_number"], help="speak one description only")
    add("--state", help="a file of SQLite's to remember customers in")
    add(
        "--fault",
        dest="faults",
        action="append",
        default=[],
        metavar="RULE",
        help="[operation=]words[:rate[:phase]], such as 500:0.1:after; may be given again",
    )
    add("--seed", type=int, default=0, help="where the rates of faults begin")
    add("--journal", type=int, default=1000, help="calls to keep, 0 for none")
    add("--customers", type=int, default=10_000, help="customers to remember")
    add("--shop-url", help="where the web application leads back to")
    add(
        "--reading",
        dest="readings",
        action="append",
        default=[],
        metavar="SWITCH=VALUE",
        help="another reading of the specification, such as refusal=201; may be given again",
    )
    add("--allow-remote", action="store_true", help="serve the network, too, unprotected")
    add("--open", dest="open_page", action="store_true", help="show the inspector in the browser")
    return parser


def main() -> None:
    """Read the options and serve."""
    start(**vars(_parser().parse_args()))


def start(*, readings: Iterable[str], open_page: bool, **options: Any) -> None:
    """Serve until a signal ends it; exit with status 2 when it cannot start.

    Args:
        readings: One ``switch=value`` each.
        open_page: Show the inspector in the browser.
        options: The other options of `Sandbox`.
    """
    try:
        asyncio.run(serve(Sandbox(**options, readings=Readings.parse(readings)), open_page=open_page))
    except (OSError, OverflowError, ValueError) as error:
        print(f"the sandbox cannot start: {error}", file=sys.stderr)  # noqa: T201  (what a command is for)
        sys.exit(2)


if __name__ == "__main__":
    main()
