"""Neither an import nor a test asks anybody outside of this machine, and one that does is noticed."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loanasync import LoanClient
from support.builders import FISCAL_CODE, approval_request
from support.network_guard import OutsideError, asked

ELSEWHERE = ("192.0.2.1", 443)  # kept for documentation: nobody has it

# Every module, with all that it imports, and a whole call.
WHOLE_PACKAGE = """
import asyncio, pkgutil
from importlib import import_module
from support.network_guard import asked

import loanasync

found = {module.name for module in pkgutil.walk_packages(loanasync.__path__, "loanasync.")}
for name in sorted(found):
    import_module(name)
assert {"loanasync.cli.demo", "loanasync.sandbox.server", "loanasync.testing.transport"} <= found

from loanasync.testing import approval_request, approved, fiscal_code, scripted_client

async def call():
    async with scripted_client(approved()) as client:
        return await client.approve(fiscal_code(), approval_request())

assert asyncio.run(call()).approved
assert not asked, asked
"""


def alone(script: str) -> subprocess.CompletedProcess[str]:
    """Run it in a process that begins with nothing of ours but the watch."""
    path = {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | path,
    )


@pytest.fixture
def forgiven() -> Iterator[None]:
    """Here asking is the point."""
    yield
    asked.clear()


def test_imports_and_a_call_open_no_outside_connection() -> None:
    ended = alone(WHOLE_PACKAGE)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    ("asking", "told"),
    [
        ("socket.create_connection(('192.0.2.1', 443))", "OutsideError: tests stay on this machine"),
        (
            "with suppress(BaseException): socket.gethostbyname('loans.example.com')",
            'AssertionError: ["socket.gethostbyname of',
        ),
    ],
    ids=["loudly", "silently"],
)
def test_network_guard_detects_a_connecting_module(asking: str, told: str) -> None:
    ended = alone(
        f"import socket, support.network_guard\nfrom contextlib import suppress\n{asking}\n{WHOLE_PACKAGE}"
    )
    assert ended.returncode == 1
    assert told in ended.stderr


@pytest.mark.usefixtures("forgiven")
@pytest.mark.parametrize(
    "ask",
    [
        lambda sender: sender.connect(ELSEWHERE),
        lambda sender: sender.connect_ex(ELSEWHERE),
        lambda sender: sender.sendto(b"", ELSEWHERE),
        lambda sender: sender.sendmsg([b""], [], 0, ELSEWHERE),
        lambda _: socket.create_connection(("loans.example.com", 443)),
        lambda _: socket.getaddrinfo("loans.example.com", 443),
        lambda _: socket.gethostbyname("loans.example.com"),
        lambda _: socket.gethostbyaddr("192.0.2.1"),
    ],
)
def test_network_guard_stops_outside_connections(ask: Callable[[socket.socket], object]) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as sender, pytest.raises(OutsideError, match="this machine"):
        ask(sender)
    assert len(asked) == 1


@pytest.mark.usefixtures("forgiven")
async def test_network_guard_stops_a_client_at_name_resolution() -> None:
    async with LoanClient("https://loans.example.com", shop_id="s", auth_token="t") as client:
        with pytest.raises(OutsideError):
            await client.approve(FISCAL_CODE, approval_request())
    assert asked == ["socket.getaddrinfo of 'loans.example.com'"]


def test_network_guard_allows_local_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        for host in ("127.0.0.1", "localhost"):
            socket.create_connection((host, server.getsockname()[1])).close()
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{folder}/s")
        listening.listen()
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(f"{folder}/s")
    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        sender.connect(("127.0.0.1", 9))
        sender.sendmsg([b""])
    assert socket.getaddrinfo(None, 80)
    assert not asked


def test_network_guard_fails_a_test_that_caught_its_error(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    pytester.makepyfile("""
        import contextlib, socket

        def test_that_catches_all_it_can():
            with contextlib.suppress(BaseException):
                socket.getaddrinfo("loans.example.com", 443)

        def test_that_comes_after():
            pass
    """)
    ended = pytester.runpytest_subprocess("-p", "support.network_guard", "-p", "no:cacheprovider")
    ended.assert_outcomes(passed=2, errors=1)
    ended.stdout.fnmatch_lines(["*this one does not: socket.getaddrinfo of 'loans.example.com'"])
