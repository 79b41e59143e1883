"""The commands demo, sandbox and --version, help, shell completion, and missing extras."""

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from functools import partial
from subprocess import CompletedProcess
from typing import Any

import pytest
from typer.testing import CliRunner

import loanasync
from loanasync import cli
from loanasync.cli.app import app
from support.cli import PLAIN, environment, run, run_sandbox
from support.raw_shop import BODY, CODE


def test_demo_prints_every_step_and_its_spans() -> None:
    done = run(None, "demo")
    assert (done.returncode, done.stderr) == (0, "")
    for pattern in (
        r"invalid, not sent: amount: must be a whole number between 5000 and 1500000 \(euro cents\)",
        r"approved at attempt 3; the shop receives 436\.50 euro",
        r"send the customer to http://127\.0\.0\.1:\d+/apply/[\w-]+#token=[\w-]+\n",
        r"documents uploaded",
        r"complete  saved; the response, masked: UserData\(document_type=\*\*\*",
        r"refused at attempt 1; final",
        r"\nloanasync\.approve [\d.]{3,7} ms approved=True attempts=3\n",  # less than 100 s
        r"  POST /api/shops/{shopId}/requests/{fiscalCode} [\d.]+ ms status=500 resend=1\n",
        r"  POST /api/shops/{shopId}/requests/{fiscalCode} [\d.]+ ms status=201 resend=2\n",
    ):
        assert re.search(pattern, done.stdout), f"{pattern}\n{done.stdout}"


def test_demo_with_a_disabled_sdk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    done = run(None, "demo")
    message = "OTEL_SDK_DISABLED: must not be true: the spans and metrics would be empty\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


def test_help_lists_the_commands_and_wraps_their_text() -> None:
    runner = CliRunner(env={**PLAIN, "COLUMNS": "80", "TERM": "dumb"})
    output = runner.invoke(app, []).output
    for command in ("demo", "sandbox", "approve-many"):
        assert command in output
    assert runner.invoke(app, ["--version"]).output == f"loanasync {loanasync.__version__}\n"
    wrapped = re.sub(" +\n", "\n", runner.invoke(app, ["approve-many", "--help"]).output)
    assert "name the\n service. Run the same command again at any time" in wrapped


def test_shell_completion_completes_commands() -> None:
    typed = {"COMP_WORDS": "loanasync ledger re", "COMP_CWORD": "2", "_LOANASYNC_COMPLETE": "complete_bash"}
    done = CliRunner(env=PLAIN | typed).invoke(app)
    assert (done.exit_code, done.stdout.split(), done.stderr) == (0, ["resolve"], "")


@pytest.mark.parametrize("missing", ["typer", "opentelemetry.sdk"])
def test_main_with_a_part_of_the_extra_missing_exits(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    def find(name: str) -> object:
        if name == missing:
            raise ModuleNotFoundError
        return object()

    monkeypatch.setattr(cli, "find_spec", find)
    with pytest.raises(SystemExit, match=r"needs an extra: pip install '\.\[cli\]'"):
        cli.main()


MODULES = [("loanasync.sandbox",), ("loanasync", "sandbox")]


@pytest.mark.parametrize(
    ("command", "ending"),
    [
        (MODULES[0], "SIGTERM"),
        (MODULES[1], "SIGINT"),
        pytest.param(MODULES[0], "SIGINT", marks=pytest.mark.scheduled),
        pytest.param(MODULES[1], "SIGTERM", marks=pytest.mark.scheduled),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_sandbox_serves_with_its_options_until_a_signal(command: tuple[str, ...], ending: str) -> None:
    options = ("--host", "127.0.0.1", "--dialect", "street_number")
    with subprocess.Popen(
        [sys.executable, "-m", *command, *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(None),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            ready = re.fullmatch(r"sandbox ready at (http://127\.0\.0\.1:\d+)\n", process.stdout.readline())
            assert ready is not None
            requests = f"{ready[1]}/api/shops/sandbox-shop/requests"
            assert send(requests, {"fiscalCode": CODE})[0] == 201
            status, decision = send(f"{requests}/{CODE}", BODY)
            assert (status, decision["approved"]) == (201, True)
            output = "".join(process.stdout.readline() for _ in range(4))
            process.send_signal(signal.Signals[ending])
            _, errors = process.communicate(timeout=10)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, "")
    for line in ("sandbox-shop", "sandbox-token", "/_sandbox/", "Ctrl-C"):
        assert line in output


def send(url: str, body: object) -> tuple[int, Any]:
    """Send a request with a blocking client."""
    request = urllib.request.Request(  # noqa: S310  (the URL of the sandbox)
        url, data=json.dumps(body).encode(), headers={"X-Auth-Token": "sandbox-token"}
    )
    with urllib.request.urlopen(request) as response:  # noqa: S310  (the URL of the sandbox)
        return response.status, json.load(response)


@pytest.mark.parametrize(
    "start", [run_sandbox, partial(run, None, "sandbox")], ids=["loanasync.sandbox", "loanasync sandbox"]
)
def test_sandbox_that_cannot_start_prints_one_line(start: Callable[..., CompletedProcess[str]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for option, message in (
            (f"--port={port}", port),
            ("--fault=nonsense", "did you mean"),
            ("--host=0.0.0.0", "--allow-remote"),
            ("--state=/nowhere/at/all", "cannot be used"),
        ):
            done = start(option)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
            assert done.stderr.startswith("the sandbox cannot start: ")
            assert message in done.stderr
    done = start("--port", "99999")
    assert (done.returncode, "port" in done.stderr) == (2, True)
