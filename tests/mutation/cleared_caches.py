"""A plugin for mutation testing: what the package builds once is built again for each test.

Else a changed builder would not run under the tests that are to notice it, nor be counted as run by them.
"""

import os

import pytest

from loanasync._protocol import codec
from loanasync._validation import rules


@pytest.fixture(autouse=True)
def _built_for_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    for cached in (rules._approval_rules, rules._additional_rules, rules._user_data_rules):
        cached.cache_clear()
    # Converters take long to build: only where one is changed, and where mutmut notes which test runs what.
    if os.environ.get("MUTANT_UNDER_TEST", "").startswith(("loanasync._protocol.codec.", "stats")):
        codec._writer.cache_clear()
        monkeypatch.setattr(codec, "_ECHO", {kind: codec._echo_of(kind) for kind in codec._ECHO})
