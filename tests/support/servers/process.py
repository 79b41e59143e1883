"""Base class for servers in tests: a process that is started, killed and started again."""

import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

PATIENCE = 60.0  # seconds in which a server must start


class MissingServerError(Exception):
    """The wheel of a server is not installed, or has no program for this system."""


def find_in_package(package: str, pattern: str) -> Path:
    """Return the path of a program in an installed package."""
    spec = find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or []:
        for found in sorted(Path(folder).glob(pattern)):
            return found
    raise MissingServerError(f"the package {package} is not installed, or has no {pattern}")


def find_script(name: str) -> Path:
    """Return the path of a program that is installed in the environment of this Python."""
    found = shutil.which(name, path=sysconfig.get_path("scripts"))
    if found is None:
        raise MissingServerError(f"{name} is not installed in the environment of this Python")
    return Path(found)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


class Server(ABC):
    """A server that keeps its port and its data when it is killed and restarted.

    All methods block. In a coroutine, call them in `asyncio.to_thread` unless a short pause does not matter.

    Example:
        with Valkey() as server:
            ...                # server.url
            server.kill()      # kill -9
            server.start()     # on the same port and the same data
    """

    stop_signal = signal.SIGTERM

    def __init__(self) -> None:
        self.port = free_port()
        # Not pytest's tmp_path: other users cannot read it, and PostgreSQL runs as another user than root.
        self.folder = Path(tempfile.mkdtemp(prefix=f"{type(self).__name__.lower()}-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """Address of the server, with user and password if it has any."""

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command that starts the server in the foreground."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Return True if the server reports that it is ready. An OSError means that it is not."""

    def options(self) -> dict[str, Any]:
        """Return further arguments for `subprocess.Popen`."""
        return {}

    @property
    def is_running(self) -> bool:
        """True if the server was started and not killed since."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the server, and return when it is ready."""
        assert self._process is None, "the server is running"
        log = self.folder / "log.txt"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=output, stderr=output, **self.options()
            )
        until = time.monotonic() + PATIENCE
        while not self._responds():
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise RuntimeError(f"{type(self).__name__} did not start: {log.read_text()[-2000:]}")
            time.sleep(0.01)

    def _responds(self) -> bool:
        with suppress(OSError):
            return self.is_ready()
        return False

    def kill(self) -> None:
        """Kill the server and its child processes with SIGKILL, and wait until they have ended."""
        if self._process is None:
            return
        with suppress(psutil.NoSuchProcess):
            parent, *descendants = self._processes()
            for each in (parent, *descendants):
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            psutil.wait_procs(descendants, PATIENCE)
        self._process.wait()
        self._process = None

    def pause(self) -> None:
        """Suspend the server: it accepts connections and never responds."""
        for each in self._processes():
            with suppress(psutil.NoSuchProcess):
                each.suspend()

    def resume(self) -> None:
        """Resume the server after `pause`."""
        for each in self._processes():
            with suppress(psutil.NoSuchProcess):
                each.resume()

    def _processes(self) -> list[psutil.Process]:
        parent = psutil.Process(self.pid)
        return [parent, *parent.children(recursive=True)]

    def stop(self) -> None:
        """End the server, and delete its data."""
        if self._process is not None:  # let it release system resources first
            self.resume()
            self._process.send_signal(self.stop_signal)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
