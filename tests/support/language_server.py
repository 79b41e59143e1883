"""A client of pyright's language server, which returns the texts that an editor shows."""

import itertools
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
URI = (ROOT / "tests" / "typing" / "typed_just_now.py").as_uri()  # it exists only in the editor


class LanguageServer:
    """The connection to a server through its standard input and output."""

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
