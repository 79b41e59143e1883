"""The servers of the tests: they start, can be killed and paused, and keep their data."""

import socket
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from support.servers import MissingServerError, Nats, Postgres, Server, Valkey
from support.servers.fixtures import skip_missing_server
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
