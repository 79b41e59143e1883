"""The start of a process, for `startup.py`: do one thing, and print the CPU time since the start.

Arguments: the name of a function of this module, the URL of a server, and the order as JSON.
"""

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import aiohttp

HEADERS = {"X-Auth-Token": "secret"}


def nothing(_: str, __: str) -> float:
    """Start Python."""
    return time.process_time()


def library(_: str, __: str) -> float:
    """Import aiohttp."""
    import aiohttp  # noqa: F401

    return time.process_time()


def package(_: str, __: str) -> float:
    """Import the package, which loads nothing else."""
    import loanasync  # noqa: F401

    return time.process_time()


def client_beside_library(base_url: str, _: str) -> float:
    """Create a client in a program that has imported aiohttp for itself."""
    import aiohttp  # noqa: F401

    from loanasync import LoanClient

    LoanClient(base_url, shop_id="shop", auth_token="secret")  # noqa: S106  (made up)
    return time.process_time()


def approval(base_url: str, _: str) -> float:
    """Request an approval with the client's own session."""
    return _approval(base_url)


def approval_with_session(base_url: str, _: str) -> float:
    """Request an approval with a session of the user."""
    import aiohttp

    return _approval(base_url, aiohttp.ClientSession)


def _approval(base_url: str, new_session: "Callable[[], aiohttp.ClientSession] | None" = None) -> float:
    import asyncio
    from contextlib import nullcontext

    from orders import full_request

    from loanasync import LoanClient

    async def approve() -> float:
        async with (
            nullcontext() if new_session is None else new_session() as session,
            LoanClient(base_url, shop_id="shop", auth_token="secret", session=session) as opened,  # noqa: S106  (made up)
        ):
            decision = await opened.approve("TSTXYZ00A00A000A", full_request())
            assert decision.approved
            return time.process_time()

    return asyncio.run(approve())


def post(base_url: str, order: str) -> float:
    """Post the order with plain aiohttp."""
    import asyncio
    import json

    import aiohttp

    async def send() -> float:
        url = f"{base_url}/api/shops/shop/requests/TSTXYZ00A00A000A"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json=json.loads(order), headers=HEADERS) as response,
        ):
            decision = await response.json()
            assert decision["approved"]
            return time.process_time()

    return asyncio.run(send())


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    print(globals()[name](*arguments))
