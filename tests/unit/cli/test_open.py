"""The option that names a ledger in an advised command."""

import pytest

from loanasync.cli.ledger.open import ledger_option


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("decisions.db", "--ledger decisions.db "),
        ("my decisions.db", "--ledger 'my decisions.db' "),
        ("redis://:password@localhost", "--ledger NAME "),
        ("of-the-environment.db", ""),
    ],
)
def test_ledger_option_can_be_pasted_into_a_shell(
    name: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOANASYNC_LEDGER", "of-the-environment.db")
    assert ledger_option(name) == option
