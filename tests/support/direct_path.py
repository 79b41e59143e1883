"""Mark of tests that need the direct path."""

import aiohttp
import pytest

from loanasync._transport.aiohttp_internals import DIRECT_AIOHTTP, minor_version

__all__ = ["needs_direct_path"]

# Not `compatibility.is_possible()`: with these versions, an unusable direct path is an error.
needs_direct_path = pytest.mark.skipif(
    minor_version(aiohttp.__version__) not in DIRECT_AIOHTTP,
    reason="this version of aiohttp is used through ClientSession.request",
)
