"""What all servers have in common: a process that is started, killed without a word, and started again."""

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

__all__ = ["MissingServerError", "Server", "packaged", "script"]

PATIENCE = 60.0  # seconds after which a server that does not answer is given up


class MissingServerError(Exception):
    """The wheel of a server is not installed, or has no program for this system."""


def packaged(package: str, pattern: str) -> Path:
    """A program within an installed package."""
    spec = find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or []:
        for found in sorted(Path(folder).glob(pattern)):
            return found
    raise MissingServerError(f"the package {package} is not installed, or has no {pattern}")


def script(name: str) -> Path:
    """A program that was installed beside this Python."""
    found = shutil.which(name, path=sysconfig.get_path("scripts"))
    if found is None:
        raise MissingServerError(f"no {name} is installed beside this Python")
    return Path(found)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


class Server(ABC):
    """One server: its port and its data stay the same over a kill and a restart.

    All of it blocks; from a coroutine use `asyncio.to_thread`, or bear with some hundredths of a second.

    Example:
        with Valkey() as server:
            ...                # server.url
            server.kill()      # kill -9
            server.start()     # on the same port and the same data
    """

    goodbye = signal.SIGTERM

    def __init__(self) -> None:
        self.port = free_port()
        # Not pytest's own folder: that is closed to all other users, and PostgreSQL does not run as root.
        self.folder = Path(tempfile.mkdtemp(prefix=f"{type(self).__name__.lower()}-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """Where it is reached, with user and password if it has any."""

    @abstractmethod
    def command(self) -> list[str]:
        """How it is started, in the foreground."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it says itself that it is ready; an OSError means that it is not."""

    def options(self) -> dict[str, Any]:
        """What else its process is started with."""
        return {}

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not killed since."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """Of the running server."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and return when it answers."""
        assert self._process is None, "it runs already"
        log = self.folder / "log.txt"
        with log.open("ab") as said:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=said, stderr=said, **self.options()
            )
        until = time.monotonic() + PATIENCE
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise RuntimeError(f"{type(self).__name__} did not start: {log.read_text()[-2000:]}")
            time.sleep(0.01)

    def _is_ready(self) -> bool:
        with suppress(OSError):
            return self.answers()
        return False

    def kill(self) -> None:
        """End it with SIGKILL, and all processes that it started, and wait until they are gone."""
        if self._process is None:
            return
        with suppress(psutil.NoSuchProcess):
            first, *others = self._family()
            for each in (first, *others):
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            psutil.wait_procs(others, PATIENCE)
        self._process.wait()
        self._process = None

    def pause(self) -> None:
        """Stop it in the middle of whatever it does: it is reached, and never answers."""
        for each in self._family():
            with suppress(psutil.NoSuchProcess):
                each.suspend()

    def resume(self) -> None:
        """Let it go on after `pause`."""
        for each in self._family():
            with suppress(psutil.NoSuchProcess):
                each.resume()

    def _family(self) -> list[psutil.Process]:
        first = psutil.Process(self.pid)
        return [first, *first.children(recursive=True)]

    def stop(self) -> None:
        """End it for good, with its data."""
        if self._process is not None:  # it has a moment to give back to the system what it holds
            self.resume()
            self._process.send_signal(self.goodbye)
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
