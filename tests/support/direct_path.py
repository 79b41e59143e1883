"""Marks of tests that need the direct path, or run with it and without it."""

import aiohttp
import pytest

from loanasync._transport.aiohttp_internals import DIRECT_AIOHTTP, minor_version

__all__ = ["each_path", "needs_direct_path"]

# Not `compatibility.is_possible()`: with these versions, an unusable direct path is an error.
needs_direct_path = pytest.mark.skipif(
    minor_version(aiohttp.__version__) not in DIRECT_AIOHTTP,
    reason="this version of aiohttp is used through ClientSession.request",
)

# Of tests with a user's session: the parameter is for `LoanClient(direct_connections=...)`.
each_path = pytest.mark.parametrize(
    "is_direct", [pytest.param(True, marks=needs_direct_path), False], ids=["direct", "through aiohttp"]
)
