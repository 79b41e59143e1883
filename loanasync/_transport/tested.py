"""The versions of aiohttp on which undocumented parts of it are used.

On any other version every request goes through `ClientSession.request`, and the protocols of its connections
are left alone.
"""

from functools import cache

from loanasync._log import LOGGER

# The minor versions that the tests of this release ran with: the lowest that is allowed, and the newest.
TESTED_AIOHTTP = frozenset({"3.14"})


@cache
def is_tested(version: str) -> bool:
    """Return True for a version of aiohttp that this release was tested with; log any other once."""
    if ".".join(version.split(".")[:2]) in TESTED_AIOHTTP:
        return True
    LOGGER.info(
        "aiohttp %s was not tested with this loanasync: requests go through ClientSession.request", version
    )
    return False
