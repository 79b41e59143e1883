"""Fixtures of the tests of commands."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
from typer.main import get_command

from support.cli import STARTED
from support.ledger_clients import KEY


@pytest.fixture(scope="session", autouse=True)
def _commands_are_built_once() -> Iterator[None]:
    """Typer builds all commands from their signatures for each call, which takes most of a call's time."""
    with mock.patch("typer.testing._get_command", cache(get_command)):
        yield


@pytest.fixture(autouse=True)
def _own_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test its own default ledger and its own orphan files."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
def shop_of_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the shop of `support.ledger_clients.Shop` in the environment, and work in the test's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    values = {"BASE_URL": "https://loans.example.com", "SHOP_ID": "test-shop", "AUTH_TOKEN": "token"}
    for name, value in {**values, "LEDGER_KEY": KEY.decode()}.items():
        monkeypatch.setenv(f"LOANASYNC_{name}", value)


@pytest.fixture(autouse=True)
def _no_command_is_left() -> Iterator[None]:
    """Kill the commands of a failed test. They would use its sandbox, and disturb later tests."""
    yield
    while STARTED:
        with STARTED.pop() as process:
            process.kill()
