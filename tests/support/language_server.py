"""What an editor shows of the SDK, asked of pyright's language server as an editor asks it."""

import itertools
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
URI = (ROOT / "tests" / "typing" / "typed_just_now.py").as_uri()  # there is no such file: it is in the editor


class LanguageServer:
    """A server over its pipes."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to, self._from = process.stdin, process.stdout
        self._numbers = itertools.count(1)

    def ask(self, method: str, **params: object) -> Any:
        number = next(self._numbers)
        self._send(id=number, method=method, params=params)
        while (said := self._hear()).get("id") != number or "method" in said:
            if "id" in said:  # it asks for settings, and gets none
                wanted = said["params"].get("items", []) if isinstance(said.get("params"), dict) else []
                self._send(id=said["id"], result=[{} for _ in wanted])
        return said["result"]

    def tell(self, method: str, **params: object) -> None:
        self._send(method=method, params=params)

    def hover(self, line: int, column: int) -> str:
        """What is shown over a place of the text, counted from 0."""
        at = {"line": line, "character": column}
        shown = self.ask("textDocument/hover", textDocument={"uri": URI}, position=at)
        return "" if shown is None else str(shown["contents"]["value"])

    def _send(self, **message: object) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._to.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._to.flush()

    def _hear(self) -> Any:
        length = 0
        while header := self._from.readline().strip():
            name, _, value = header.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return json.loads(self._from.read(length))


@contextmanager
def editing(text: str) -> Iterator[LanguageServer]:
    """A server whose editor has a file open with this text."""
    command = ["basedpyright-langserver", "--stdio"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        server = LanguageServer(process)
        folder = {"uri": ROOT.as_uri(), "name": "loanasync"}
        can = {"textDocument": {"hover": {"contentFormat": ["plaintext"]}}}
        server.ask("initialize", rootUri=folder["uri"], workspaceFolders=[folder], capabilities=can)
        server.tell("initialized")
        opened = {"uri": URI, "languageId": "python", "version": 1, "text": text}
        server.tell("textDocument/didOpen", textDocument=opened)
        yield server
        process.kill()
