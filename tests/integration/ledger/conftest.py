"""The fork server of the tests that start processes."""

import pytest

from support.processes import start_fork_server


@pytest.fixture(scope="session", autouse=True)
def _fork_server() -> None:
    start_fork_server()
