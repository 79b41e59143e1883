"""The servers of the tests: they start, can be killed and paused, and keep their data."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from support.servers import MissingServerError, Nats, Postgres, Server, Valkey
from support.servers.fixtures import skip_missing_server
from support.servers.postgres import PROGRAMS
from support.servers.process import find_in_package, find_script

KINDS = pytest.mark.parametrize("kind", [Valkey, Nats, Postgres])


@KINDS
def test_server_restarts_on_its_port_after_kill_9_and_cleans_up(
    kind: Callable[[], Server],
) -> None:
    with skip_missing_server(), kind() as server:
        first, folder, port = server.pid, server.folder, server.port
        family = psutil.Process(first).children(recursive=True)
        server.kill()
        assert not any(psutil.pid_exists(each) for each in [first, *(each.pid for each in family)])
        with pytest.raises(OSError):  # noqa: PT011  (connection refused; the error differs between systems)
            socket.create_connection(("127.0.0.1", port), 5)
        server.start()
        assert (server.pid != first, server.port) == (True, port)
        assert server.is_ready()
    assert not folder.exists()
    assert not psutil.pid_exists(first)


@KINDS
def test_server_that_does_not_start_raises_with_its_log(kind: Callable[[], Server]) -> None:
    with skip_missing_server():
        server = kind()
        taken = socket.create_server(("127.0.0.1", server.port))
        with taken, pytest.raises(RuntimeError, match=r"(?i)address|bind"):
            server.__enter__()
    assert not server.folder.exists()


def test_paused_server_accepts_connections_and_does_not_respond() -> None:
    with skip_missing_server(), Valkey() as server:
        server.pause()
        with pytest.raises(TimeoutError):
            server.is_ready()
        server.resume()
        assert server.is_ready()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root starts it as another user")
def test_postgres_programs_that_another_user_cannot_run_are_copied(
    tmp_path: Path,
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with skip_missing_server():
        server = Postgres()
    installed = server._programs.parents[1]
    (closed / "packages").symlink_to(installed.parent)
    server._programs = closed / "packages" / installed.name / PROGRAMS
    with server:
        assert server.is_ready()
        assert server._programs.is_relative_to(server.folder)
    assert not server.folder.exists()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root starts it as another user")
@pytest.mark.parametrize(
    ("user", "reason"),
    [("no-such-user", "there is no user no-such-user"), ("nobody", "set TMPDIR to a folder")],
)
def test_postgres_that_no_user_can_run_raises_with_the_reason(
    user: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # pytest's folder, which other users cannot enter
    monkeypatch.setattr(Postgres, "other_user", user)
    with skip_missing_server():
        server = Postgres()
    with pytest.raises(MissingServerError, match=reason):
        server.__enter__()
    assert list(tmp_path.iterdir()) == []


def test_missing_server_is_skipped_except_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(what: Callable[[], Path]) -> None:
        with skip_missing_server():
            what()

    for what in (lambda: find_in_package("no_such_package", "*"), lambda: find_script("no-such-program")):
        monkeypatch.delenv("CI", raising=False)
        with pytest.raises(pytest.skip.Exception, match="no"):
            look(what)
        monkeypatch.setenv("CI", "true")
        with pytest.raises(MissingServerError):
            look(what)
