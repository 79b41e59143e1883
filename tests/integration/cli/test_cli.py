"""The commands demo, sandbox and --version, help, shell completion, and missing extras."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import loanasync
from loanasync import cli
from loanasync.cli.app import app

# Rich wraps lines at the width of the terminal. Without colours, the output is plain text.
ENVIRONMENT = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200", "PYTHONWARNINGS": "error"}


def test_demo_prints_every_step_and_its_spans() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loanasync", "demo"],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for pattern in (
        r"invalid, not sent: amount: must be between 5000 and 1500000 \(euro cents\)",
        r"approved at attempt 3, after HTTP 500; the shop receives 436\.50 euro",
        r"send the customer to http://127\.0\.0\.1:\d+/apply/[\w-]+#token=[\w-]+\n",
        r"documents uploaded",
        r"complete  saved; the response, masked: UserData\(\*\*\*\)",
        r"refused at the first attempt; final",
        r"loanasync\.approve [\d.]+ ms approved=True attempts=3\n",
        r"│   ├── POST /api/shops/{shopId}/requests/{fiscalCode} [\d.]+ ms status=500\n",
        r"│   ├── POST /api/shops/{shopId}/requests/{fiscalCode} [\d.]+ ms status=500 resend=1\n",
        r"│   └── POST /api/shops/{shopId}/requests/{fiscalCode} [\d.]+ ms status=201 resend=2\n",
        r"loanasync\.approve [\d.]+ ms approved=False attempts=1\n",
        r"PATCH /api/shops/{shopId}/requests/{fiscalCode}",
    ):
        assert re.search(pattern, done.stdout), f"{pattern}\n{done.stdout}"


def test_demo_with_disabled_sdk_explains_why_there_are_no_spans() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loanasync", "demo"],
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, "OTEL_SDK_DISABLED": "true"},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("spans: none, OTEL_SDK_DISABLED is set\n")


def test_help_lists_the_commands_with_an_example_each() -> None:
    runner = CliRunner(env={"NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb"})
    output = runner.invoke(app, []).output
    assert "demo" in output
    assert "sandbox" in output
    for command in ("demo", "sandbox", "check", "approve", "complete", "approve-many"):
        assert f"Example: loanasync {command}" in runner.invoke(app, [command, "--help"]).output
    assert runner.invoke(app, ["--version"]).output == f"loanasync {loanasync.__version__}\n"


def test_help_wraps_paragraphs_to_the_terminal_width() -> None:
    output = CliRunner(env={**ENVIRONMENT, "COLUMNS": "80"}).invoke(app, ["approve-many", "--help"]).output
    assert "LOANASYNC_AUTH_TOKEN. Run the same command again to resume. Requested\n" in re.sub(
        " +\n", "\n", output
    )


def test_shell_completion_completes_commands() -> None:
    command = str(Path(sys.executable).parent / "loanasync")
    typed = {"COMP_WORDS": "loanasync ledger re", "COMP_CWORD": "2", "_LOANASYNC_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [command], capture_output=True, text=True, env={**ENVIRONMENT, **typed}, check=False
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["resolve"], "")


def test_main_without_the_extra_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit, match=r"pip install 'loanasync\[cli\]'"):
        cli.main()


@pytest.mark.parametrize("missing", ["typer", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"])
def test_main_with_a_part_of_the_extra_missing_exits(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    def find(name: str) -> object:
        if name == missing:
            raise ModuleNotFoundError
        return object()

    monkeypatch.setattr(cli, "find_spec", find)
    with pytest.raises(SystemExit, match="needs an extra"):
        cli.main()


@contextlib.contextmanager
def running(*command: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    started = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert started.stdout is not None
    try:
        ready = re.fullmatch(r"sandbox ready at (http://127\.0\.0\.1:\d+)\n", started.stdout.readline())
        assert ready is not None
        yield started, ready[1]
    finally:
        started.kill()
        started.communicate()


COMMANDS = [("loanasync.sandbox",), ("loanasync", "sandbox")]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_sandbox_serves_until_a_signal(command: tuple[str, ...], ending: signal.Signals) -> None:
    options = ("--shop-id", "my-shop", "--auth-token", "my-token", "--dialect", "civic_number")
    with running(*command, *options) as (process, base_url):
        request = urllib.request.Request(  # noqa: S310  (the URL of the sandbox)
            f"{base_url}/api/shops/my-shop/requests",
            data=json.dumps({"fiscalCode": "TSTXYZ00A00A000A"}).encode(),
            headers={"X-Auth-Token": "my-token"},
        )
        with urllib.request.urlopen(request) as response:  # noqa: S310  (the URL of the sandbox)
            assert response.status == 201
        assert process.stdout is not None
        output = "".join(process.stdout.readline() for _ in range(4))
        process.send_signal(ending)
        _, errors = process.communicate(timeout=10)
    assert (process.returncode, errors) == (0, "")
    for line in ("my-shop", "my-token", "Ctrl-C"):
        assert line in output


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_sandbox_with_a_port_in_use_prints_one_line(command: tuple[str, ...]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", *command, "--port", str(port)],
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
            check=False,
        )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("the sandbox cannot start: ")
    assert str(port) in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_sandbox_with_an_invalid_port_is_refused(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command, "--port", "99999"],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "port" in done.stderr
