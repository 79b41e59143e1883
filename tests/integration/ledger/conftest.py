"""The fork server of the conformance tests, which start many processes."""

import pytest

from support.processes import start_fork_server


@pytest.fixture(scope="session", autouse=True)
def _fork_server() -> None:
    start_fork_server()
