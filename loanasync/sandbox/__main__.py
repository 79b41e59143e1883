"""``python -m loanasync.sandbox``: the sandbox as a command that needs no extra."""

import argparse
import asyncio
import sys

from loanasync.sandbox import Sandbox, serve


def main() -> None:
    """Read the options and serve; exit 2 when the port is taken."""
    parser = argparse.ArgumentParser(
        prog="python -m loanasync.sandbox",
        description="Run the sandbox of the loan request approval service on this machine.",
    )
    parser.add_argument("--port", type=int, default=0, help="0, the default, takes a free one")
    parser.add_argument("--shop-id", default="sandbox-shop", help="the shop that it knows")
    parser.add_argument("--auth-token", default="sandbox-token", help="the shop's token")
    parser.add_argument(
        "--dialect", choices=["street_number", "civic_number"], help="speak one description only"
    )
    options = parser.parse_args()
    sandbox = Sandbox(
        port=options.port,
        shop_id=options.shop_id,
        auth_token=options.auth_token,
        dialect=options.dialect,
    )
    try:
        asyncio.run(serve(sandbox))
    except (OSError, OverflowError) as error:
        sys.exit(_failed(f"the sandbox cannot start on port {options.port}: {error}"))


def _failed(message: str) -> int:
    print(message, file=sys.stderr)  # noqa: T201  (what a command is for)
    return 2


if __name__ == "__main__":
    main()
