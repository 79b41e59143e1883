"""Results of other type checkers for the public API, and hover texts of an editor; for `nox -s types`."""

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

import loanasync

CHECKED = [Path(__file__).with_name(name) for name in ("surface.py", "shop.py")]
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
IGNORED = re.compile(r"  # type: ignore\[[a-z, -]+\]")
VALUES = ["AdditionalData", "ApprovalRequest", "Approved", "Dialect", "Limits", "Meta", "Problem"]
VALUES += ["Refused", "RetryPolicy", "Timeout", "UserData"]
UNITS = {
    "ApprovalRequest.amount": "euro cents",
    "AdditionalData.salary": "whole euros, not cents",
    "Approved.net_amount": "euro cents",
    "Limits.amount_min": "euro cents",
    "Limits.amount_max": "euro cents",
    "Meta.elapsed": "seconds",
    "RetryPolicy.base": "seconds",
    "RetryPolicy.cap": "seconds",
    "Timeout.total": "seconds",
    "Timeout.attempt": "seconds",
    "Timeout.connect": "seconds",
}
# Fields of this package or of HTTP, which the specification does not mention.
OWN = (
    *("RetryPolicy.", "Meta.elapsed", "Meta.trace_id", "Meta.entry", "Meta.after_unknown"),
    *("Meta.request_id", "Meta.date", "Meta.retry_after"),
)


Lines = set[tuple[str, int]]  # the name of a file, and the number of a line


def found_by_pyright(*files: Path) -> Lines:
    # Without --pythonpath it uses a folder .venv of the project.
    found = report("basedpyright", "--pythonpath", sys.executable, "--outputjson", *map(str, files))
    return {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in found["generalDiagnostics"]
    }


def found_by_ty(*files: Path) -> Lines:
    options = ("--extra-search-path", str(EXAMPLES))  # the examples import each other
    found = report("ty", "check", "--output-format", "gitlab", *options, *map(str, files))
    places = [each["location"] for each in found]
    return {(Path(each["path"]).name, each["positions"]["begin"]["line"]) for each in places}


def report(*command: str) -> Any:
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300, check=False)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("found", [found_by_pyright, found_by_ty])
def test_checker_reports_exactly_the_errors_of_mypy(found: Callable[..., Lines], tmp_path: Path) -> None:
    """Each line that mypy refuses has an ignore, and mypy reports ignores that are not needed.

    It accepts the example shops, which it reads in the same run, since its start takes most of the time.
    Django has no types, and each checker bundles different ones, so its examples are skipped.
    """
    shops = set(EXAMPLES.glob("*.py")) - set(EXAMPLES.glob("*_django.py"))
    assert len(shops) > 4
    misuse: Lines = set()
    for checked in CHECKED:
        source = checked.read_text(encoding="utf-8")
        lines = [number for number, line in enumerate(source.splitlines(), 1) if IGNORED.search(line)]
        assert lines
        misuse |= {(checked.name, number) for number in lines}
        tmp_path.joinpath(checked.name).write_text(IGNORED.sub("", source), encoding="utf-8")
    assert found(*tmp_path.glob("*.py"), *shops) == misuse


URI = Path(__file__).with_name("typed_just_now.py").as_uri()  # it exists only in the editor


class LanguageServer:
    """The connection to pyright's language server, which returns the texts that an editor shows."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to, self._from = process.stdin, process.stdout
        self._numbers = itertools.count(1)

    def request(self, method: str, **params: object) -> Any:
        number = next(self._numbers)
        self._send(id=number, method=method, params=params)
        while (message := self._receive()).get("id") != number or "method" in message:
            if "id" in message:  # the server requests settings: send empty ones
                settings = message.get("params")
                items = settings.get("items", []) if isinstance(settings, dict) else []
                self._send(id=message["id"], result=[{} for _ in items])
        return message["result"]

    def notify(self, method: str, **params: object) -> None:
        self._send(method=method, params=params)

    def hover(self, line: int, column: int) -> str:
        """Return the hover text at a position; line and column are counted from 0."""
        at = {"line": line, "character": column}
        result = self.request("textDocument/hover", textDocument={"uri": URI}, position=at)
        return "" if result is None else str(result["contents"]["value"])

    def _send(self, **message: object) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._to.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._to.flush()

    def _receive(self) -> Any:
        length = 0
        while header := self._from.readline().strip():
            name, _, value = header.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return json.loads(self._from.read(length))


@contextmanager
def editing(text: str) -> Iterator[LanguageServer]:
    """Run a server with an open file of this text."""
    command = ["basedpyright-langserver", "--stdio"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        server = LanguageServer(process)
        folder = {"uri": ROOT.as_uri(), "name": "loanasync"}
        can = {"textDocument": {"hover": {"contentFormat": ["plaintext"]}}}
        server.request("initialize", rootUri=folder["uri"], workspaceFolders=[folder], capabilities=can)
        server.notify("initialized")
        opened = {"uri": URI, "languageId": "python", "version": 1, "text": text}
        server.notify("textDocument/didOpen", textDocument=opened)
        yield server
        process.kill()


def test_editor_shows_unit_and_paragraph_of_each_field() -> None:
    fields = [(name, field.name) for name in VALUES for field in attrs.fields(getattr(loanasync, name))]
    values = ", ".join(f"a_{name}: {name}" for name in VALUES)
    lines = [f"from loanasync import {', '.join(VALUES)}", f"def look({values}) -> None:"]
    lines += [f"    a_{name}.{field}" for name, field in fields]
    with editing("\n".join(lines)) as server:
        shown = {
            f"{name}.{field}": server.hover(number, len(lines[number]) - 1)
            for number, (name, field) in enumerate(fields, 2)
        }
    assert len(shown) > 100
    assert [name for name, text in shown.items() if "(spec §" not in text and not name.startswith(OWN)] == []
    assert [name for name, unit in UNITS.items() if unit.lower() not in shown[name].lower()] == []


def test_editor_shows_docstrings() -> None:
    """Hover at the end of the line, or at the name of the argument."""
    expected_texts = {
        "ApprovalRequest(amount=1)": "Loan amount, euro cents",
        "Timeout(total=1)": "Seconds that a caller waits",
        "client.approve": "A refusal is a result and is final.",
        "client.approve(code, request, order_id=1)": "It must not contain personal data.",
        "client.approve(code, request, additional_data_needed=1)": "(spec §2.1)",
        "Decision": "Result of an approval",
        "RejectedError": "Status 400 with messages for fields of the request (spec §7).",
        "Citizenship": "(spec §2.1, ``citizenship``)",
        "client.lifespan": "FastAPI(lifespan=client.lifespan)",
    }
    lines = ["from loanasync import *", "def look(client: LoanClient) -> None:"]
    lines += [f"    {typed}" for typed in expected_texts]
    with editing("\n".join(lines)) as server:
        for number, (typed, expected) in enumerate(expected_texts.items(), 2):
            name = typed.partition("=")[0]
            assert expected in " ".join(server.hover(number, 3 + len(name)).split())
