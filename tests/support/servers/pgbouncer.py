"""PgBouncer, a pooler in front of PostgreSQL, from the system's packages."""

import os
import shutil
import socket
from typing import Any

from support.servers.postgres import Postgres
from support.servers.process import MissingServerError, Server


class PgBouncer(Server):
    """PgBouncer in transaction mode: clients share a few sessions of the server.

    Args:
        postgres: The running server.
        sessions: Number of sessions.
    """

    def __init__(self, postgres: Postgres, sessions: int = 2) -> None:
        found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
        if found is None:
            raise MissingServerError("pgbouncer is not installed: install the package of your system")
        self._program = found
        self._postgres = postgres
        self._sessions = sessions
        super().__init__()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def options(self) -> dict[str, Any]:
        return {"user": Postgres.other_user, "extra_groups": []} if os.geteuid() == 0 else {}

    def command(self) -> list[str]:
        server = f"host=127.0.0.1 port={self._postgres.port} user=postgres password={self._postgres.password}"
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": self._sessions,
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        file = self.folder / "pgbouncer.ini"
        file.write_text("\n".join(["[databases]", f"postgres = {server}", "[pgbouncer]", *lines]))
        self.folder.chmod(0o755)
        return [self._program, str(file)]

    def is_ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), 1):
            return True
