"""The network guard of the tests, which allows only connections on this machine."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.network_guard import OutsideError, attempts

OUTSIDE = ("192.0.2.1", 443)  # reserved for documentation

NO_ATTEMPTS = """
from support.network_guard import attempts
assert not attempts, attempts
"""
EVERY_MODULE = """
import pkgutil
from importlib import import_module
import support.network_guard

import loanasync

found = {module.name for module in pkgutil.walk_packages(loanasync.__path__, "loanasync.")}
for name in sorted(found):
    import_module(name)
assert {"loanasync.cli.demo", "loanasync.sandbox.server", "loanasync.testing.transport"} <= found
"""
CALL = """
import asyncio
import support.network_guard
from loanasync.testing import approval_request, approved, fiscal_code, scripted_client

async def call():
    async with scripted_client(approved()) as client:
        return await client.approve(fiscal_code(), approval_request())

assert asyncio.run(call()).approved
"""


@pytest.fixture
def expects_connections() -> Iterator[None]:
    """Clear the list of refused connections, so that the guard does not fail the test."""
    yield
    attempts.clear()


@pytest.mark.parametrize(
    "script", [CALL, pytest.param(EVERY_MODULE, marks=pytest.mark.scheduled)], ids=["call", "every module"]
)
def test_imports_and_a_call_open_no_outside_connection(script: str) -> None:
    command = [sys.executable, "-W", "error", "-c", script + NO_ATTEMPTS]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.usefixtures("expects_connections")
@pytest.mark.parametrize(
    "connect",
    [
        lambda sender: sender.connect(OUTSIDE),
        lambda sender: sender.connect_ex(OUTSIDE),
        lambda sender: sender.sendto(b"", OUTSIDE),
        lambda sender: sender.sendmsg([b""], [], 0, OUTSIDE),
        lambda _: socket.create_connection(("loans.example.com", 443)),
        lambda _: socket.getaddrinfo("loans.example.com", 443),
        lambda _: socket.gethostbyname("loans.example.com"),
        lambda _: socket.gethostbyaddr("192.0.2.1"),
    ],
)
def test_network_guard_stops_outside_connections(connect: Callable[[socket.socket], object]) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as sender, pytest.raises(OutsideError, match="other machines"):
        connect(sender)
    assert len(attempts) == 1


def test_network_guard_fails_a_test_that_caught_its_error(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]")  # the folder may lie in the checkout
    pytester.makepyfile("""
        import contextlib, socket

        def test_that_suppresses_the_error():
            with contextlib.suppress(BaseException):
                socket.getaddrinfo("loans.example.com", 443)

        def test_next():
            pass
    """)
    ended = pytester.runpytest_subprocess("-p", "support.network_guard", "-p", "no:cacheprovider")
    ended.assert_outcomes(passed=2, errors=1)
    ended.stdout.fnmatch_lines(
        ["*tried to connect to other machines: socket.getaddrinfo of 'loans.example.com'"]
    )
