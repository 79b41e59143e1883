"""Fixtures of the tests of commands."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
from typer.main import get_command

from support.cli import STARTED


@pytest.fixture(scope="session", autouse=True)
def _commands_are_built_once() -> Iterator[None]:
    """Typer builds all commands from their signatures for each call, which takes most of a call's time."""
    with mock.patch("typer.testing._get_command", cache(get_command)):
        yield


@pytest.fixture(autouse=True)
def _own_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test its own default ledger and its own orphan files."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture(autouse=True)
def _no_command_is_left() -> Iterator[None]:
    """Kill the commands of a failed test. They would use its sandbox, and disturb later tests."""
    yield
    while STARTED:
        with STARTED.pop() as process:
            process.kill()
