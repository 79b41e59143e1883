"""A repair of aioresponses, a library that mocks aiohttp."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

_REQUIRED = "stream_writer"  # parameter of aiohttp's response since 3.14


@contextmanager
def repaired_aioresponses() -> Iterator[None]:
    """Repair aioresponses inside a ``with`` block, if the installed aiohttp needs it.

    With aiohttp 3.14, aioresponses 0.7.9 raises ``TypeError: ... missing ... 'stream_writer'`` for every
    request. The repair covers all uses of aioresponses in the block. It changes nothing for an older aiohttp,
    or if a newer aioresponses passes this argument.

    Raises:
        ImportError: aioresponses is not installed.

    Example:
        >>> from aioresponses import aioresponses
        >>> from loanasync.testing import repaired_aioresponses
        >>> url = f"https://loans.example.com/api/shops/my-shop/requests/{fiscal_code}"
        >>> shop = LoanClient("https://loans.example.com", shop_id="my-shop", auth_token="made-up")
        >>> with repaired_aioresponses(), aioresponses() as mocked:
        ...     mocked.post(url, status=422, payload={"approved": False})
        ...     run(shop.approve(fiscal_code, request)).approved
        False
        >>> shop.close()
    """
    from aioresponses import core  # noqa: PLC0415  (a library of the user's tests)

    response: Any = vars(core)["ClientResponse"]  # aiohttp's, or that of another repair
    if _REQUIRED not in inspect.signature(response.__init__).parameters:
        yield
        return

    class Response(response):  # type: ignore[misc]  # the class of the installed aiohttp
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.setdefault(_REQUIRED, mock.Mock())
            super().__init__(*args, **kwargs)

    with mock.patch.object(core, "ClientResponse", Response):
        yield
