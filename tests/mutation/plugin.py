"""A pytest plugin for mutation testing: clears the caches of the package before each test.

Otherwise a changed function would not run in the tests that should fail, nor be counted as called by them.
It also allows blocking calls: the exceptions in conftest.py name functions, which mutmut renames.
"""

import os
from contextlib import nullcontext
from types import SimpleNamespace
from unittest import mock

import blockbuster
import pytest

from loanasync._protocol import codec, rules

_nothing_watched = nullcontext(SimpleNamespace(functions={}))
mock.patch.object(blockbuster, "blockbuster_ctx", return_value=_nothing_watched).start()


@pytest.fixture(autouse=True)
def _cleared_caches() -> None:
    for cached in (rules.whole_check, rules.approval_check, rules.additional_check, rules.user_data_check):
        cached.cache_clear()
    # These are slow to make: clear them if one is changed, or while mutmut records the calls of tests.
    if os.environ.get("MUTANT_UNDER_TEST", "").startswith(("loanasync._protocol.codec.", "stats")):
        codec._writers.cache_clear()
        codec._reader.cache_clear()
