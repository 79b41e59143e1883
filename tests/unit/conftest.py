"""Guard against sockets and processes in unit tests, and a fixture for tests with and without a ledger."""

import sys
from collections.abc import Iterator

import pytest

from loanasync.ledger import Ledger, MemoryLedger

# The socket pair of an event loop is neither bound nor connected.
REFUSED = {
    *("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"),
    *("socket.bind", "socket.connect", "socket.getaddrinfo", "socket.sendto"),
}


class OutsideCallError(AssertionError):
    """A unit test used a socket or started a process."""


class Guard:
    """Audit hook that raises in unit tests only; Python cannot remove a hook."""

    def __init__(self) -> None:
        self.active = False
        self.refused: list[str] = []

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.active and event in REFUSED:
            self.refused.append(f"{event}{arguments!r:.100}")
            raise OutsideCallError(f"unit tests use no socket and no process: {self.refused[-1]}")


_GUARD = Guard()
sys.addaudithook(_GUARD)


@pytest.fixture(autouse=True)
def no_socket_and_no_process() -> Iterator[None]:
    """Fail the test even if the tested code caught the exception."""
    _GUARD.active = True
    yield
    _GUARD.active = False
    refused, _GUARD.refused = _GUARD.refused, []
    if refused:
        pytest.fail(f"unit tests use no socket and no process: {', '.join(refused)}; move it to integration")


@pytest.fixture(params=[lambda: None, MemoryLedger], ids=["memory", "ledger"])
def ledger(request: pytest.FixtureRequest) -> Ledger | None:
    """Return no ledger, so that the memory of the process has the outcomes, and another time a ledger."""
    made: Ledger | None = request.param()
    return made
