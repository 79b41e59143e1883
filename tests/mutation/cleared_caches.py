"""A pytest plugin for mutation testing: clears the caches of the package before each test.

Otherwise a changed function would not run in the tests that should fail, nor be counted as called by them.
"""

import os

import pytest

from loanasync._protocol import codec
from loanasync._validation import rules


@pytest.fixture(autouse=True)
def _cleared_caches() -> None:
    for cached in (rules.approval_rules, rules.additional_rules, rules.user_data_rules):
        cached.cache_clear()
    # Converters are slow to build: clear them if one is changed, or while mutmut records the calls of tests.
    if os.environ.get("MUTANT_UNDER_TEST", "").startswith(("loanasync._protocol.codec.", "stats")):
        codec._converter.cache_clear()
