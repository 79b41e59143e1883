"""The plugins of a test run: folders, workers, time limit, network guard, and missing servers."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loanasync.ledger.policy import default_orphan_folders
from support.network_guard import OutsideError, attempts
from support.run_folders import VARIABLES
from support.servers import MissingServerError
from support.servers.fixtures import skip_missing_server
from support.servers.process import find_in_package, find_script

TESTS = """
import asyncio
import os
from pathlib import Path

import pytest

async def test_that_hangs():
    await asyncio.Event().wait()

async def test_that_hangs_beside_a_busy_task():
    async def turn():
        while True:
            await asyncio.sleep(0)
    task = asyncio.create_task(turn())
    await asyncio.Event().wait()

async def test_with_its_own_limit():
    async with asyncio.timeout(0):
        await asyncio.Event().wait()

def test_without_a_loop():
    Path("folder").write_text(os.environ["TMPDIR"])

async def test_that_ends():
    pass
"""

FORKED = """
import os
import pytest

@pytest.fixture(scope="module")
def of_module():
    return os.getpid()

@pytest.mark.parametrize("number", range(40))
def test_with_a_fixture(number, of_module, pytestconfig):
    pytestconfig.cache.mkdir("processes").joinpath(str(of_module)).touch()

def test_fails():
    print("printed by a worker")
    assert False

def test_skips():
    pytest.skip("skipped by a worker")
"""


def test_each_variable_names_a_folder_of_this_run() -> None:
    [run] = {Path(os.environ[name]).parent for name in VARIABLES}
    assert all(Path(os.environ[name]).stat().st_uid == os.geteuid() for name in VARIABLES)
    assert Path(tempfile.gettempdir()).parent == run
    assert all(folder.is_relative_to(run) for folder in default_orphan_folders())
    script = "import tempfile; print(tempfile.gettempdir())"
    printed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert Path(printed.stdout.strip()).parent == run


def test_run_deletes_its_folders_and_names_tests_that_hang(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setattr("support.time_limit.LIMIT", 0.05)
    before = [os.environ[name] for name in VARIABLES]
    pytester.makeini("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function")
    pytester.makepyfile(test_run=TESTS)
    run = pytester.runpytest_inprocess("-p", "support.time_limit", "-p", "support.run_folders")
    run.assert_outcomes(passed=2, failed=3)
    limited = "Failed: test_run.py::test_that_hangs* did not end within 0.05 seconds"
    run.stdout.fnmatch_lines([f"*{limited}", f"*{limited}", "*TimeoutError"])
    folder = Path("folder").read_text()
    assert not Path(folder).parent.exists()
    assert tempfile.gettempdir() == os.environ["TMPDIR"] != folder
    assert [os.environ[name] for name in VARIABLES] == before


@pytest.fixture
def forked(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pytest.RunResult]:
    """Run the tests of the folder in two forked workers."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return lambda *others: pytester.runpytest_subprocess("-psupport.forked_workers", "--forks=2", *others)


def test_forked_workers_report_each_test_and_share_module_fixtures(
    pytester: pytest.Pytester, forked: Callable[..., pytest.RunResult]
) -> None:
    pytester.makepyfile(test_first=FORKED, test_second="def test_it(): pass")
    run = forked()
    run.assert_outcomes(passed=41, failed=1, skipped=1)
    longest = ["*the 10 files that took longest*", "* s  test_first.py"]
    run.stdout.fnmatch_lines(["*test_first.py:*AssertionError", "*printed by a worker*", *longest])
    assert len([*Path(".pytest_cache/d/processes").iterdir()]) == 1


def test_forked_worker_that_dies_fails_the_run_and_names_its_test(
    pytester: pytest.Pytester, forked: Callable[..., pytest.RunResult]
) -> None:
    pytester.makepyfile("import os\ndef test_that_dies(): os._exit(0)\ndef test_other(): pass")
    run = forked()
    assert run.ret is pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines(["*a worker ended while it ran *::test_that_dies"])


def test_forked_workers_stop_after_a_failure_with_x(
    pytester: pytest.Pytester, forked: Callable[..., pytest.RunResult]
) -> None:
    files = {f"test_{number}": "def test_it(): assert False" for number in range(30)}
    pytester.makepyfile(**files)
    run = forked("-x")
    assert run.ret is pytest.ExitCode.TESTS_FAILED
    run.stdout.fnmatch_lines(["*1 failed*"])


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


def test_missing_server_is_skipped_except_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(what: Callable[[], Path]) -> None:
        with skip_missing_server():
            what()

    for what in (lambda: find_in_package("no_such_package", "*"), lambda: find_script("no-such-program")):
        monkeypatch.delenv("CI", raising=False)
        with pytest.raises(pytest.skip.Exception, match="no"):
            look(what)
        monkeypatch.setenv("CI", "true")
        with pytest.raises(MissingServerError):
            look(what)
