"""Marks of tests that need the direct path, or run with it and without it."""

import aiohttp
import pytest

from loanasync._transport.aiohttp_internals import is_direct_tested

__all__ = ["each_direct_session", "each_path", "is_direct", "needs_direct_path"]

# Not `is_direct_possible()`: with these versions, an unusable direct path is an error.
needs_direct_path = pytest.mark.skipif(
    not is_direct_tested(aiohttp.__version__),
    reason="this version of aiohttp is used through ClientSession.request",
)


def is_direct(session: str) -> bool:
    """Return True if a client with this session of `support.faults.row` writes to connections directly."""
    return "through aiohttp" not in session and is_direct_tested(aiohttp.__version__)


# Of tests with a user's session: the parameter is for `LoanClient(direct_connections=...)`.
each_path = pytest.mark.parametrize(
    "is_direct", [pytest.param(True, marks=needs_direct_path), False], ids=["direct", "through aiohttp"]
)

# The sessions of `support.faults.row` in which the client reads the connection itself.
each_direct_session = pytest.mark.parametrize(
    "session", [pytest.param(each, marks=needs_direct_path) for each in ("own", "users")]
)
