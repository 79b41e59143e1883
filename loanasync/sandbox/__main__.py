"""The command ``python -m loanasync.sandbox``, which needs no extra; ``loanasync sandbox`` runs it, too."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from loanasync.sandbox import Sandbox

_MODULE = "python -m loanasync.sandbox"


def parser_of(program: str = _MODULE) -> argparse.ArgumentParser:
    """Return the parser of the options, for both commands."""
    parser = argparse.ArgumentParser(
        prog=program,
        description="Run a sandbox of the loan request approval service on this machine, until Ctrl-C.",
        epilog=f"Example: {program} --port 8080 --fault 500after:0.1 --state shop.sqlite",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=int, default=0, help="port to listen on; 0, the default, selects a free port")
    add("--dialect", choices=["street_number", "civic_number"], help="accept one description only")
    add("--state", help="SQLite file that stores the customers")
    fault = "[operation=]words[:rate], such as 500after:0.1; can be repeated"
    add("--fault", dest="faults", metavar="FAULT", help=fault, action="append", default=[])
    add("--shop-url", help="URL of the link back to the shop")
    add("--allow-remote", action="store_true", help="allow access from other hosts, without access control")
    return parser


def main(arguments: Sequence[str] | None = None, program: str = _MODULE) -> None:
    """Run a sandbox until a signal stops it; exit with status 2 if it cannot start."""
    options = vars(parser_of(program).parse_args(arguments))
    try:
        asyncio.run(_serve(Sandbox(**options)))
    except (OSError, OverflowError, ValueError) as error:
        print(f"the sandbox cannot start: {error}", file=sys.stderr)  # noqa: T201  (output of the command)
        sys.exit(2)


async def _serve(sandbox: Sandbox) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # Windows: Ctrl-C raises KeyboardInterrupt there
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with sandbox:
        print(  # noqa: T201  (output of the command)
            f"sandbox ready at {sandbox.base_url}\n"
            f"  shop id      {sandbox.shop_id}\n"
            f"  X-Auth-Token {sandbox.auth_token}\n"
            f"  inspector    {sandbox.base_url}/_sandbox/\n"
            "stop it with Ctrl-C",
            flush=True,
        )
        await ended.wait()


if __name__ == "__main__":
    main()
