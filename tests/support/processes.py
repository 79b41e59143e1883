"""Processes that run a script or a function; those of a function fork from one that has imported a lot."""

import multiprocessing
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

from loanasync.sandbox import Sandbox

_SLOW_CALLBACK = re.compile(r"^(WARNING:asyncio:)?Executing <.* took \d+\.\d+ seconds\n", re.MULTILINE)


def credentials(sandbox: Sandbox) -> dict[str, str]:
    """Return the environment variables of `LoanClient.from_env` for a sandbox."""
    return {
        "LOANASYNC_BASE_URL": sandbox.base_url,
        "LOANASYNC_SHOP_ID": sandbox.shop_id,
        "LOANASYNC_AUTH_TOKEN": sandbox.auth_token,
    }


def run_script(
    script: str, *arguments: object, warning: str = "error", **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run a Python script in development mode; warnings are errors by default.

    Its standard error contains no messages of asyncio about slow callbacks, which a busy machine causes.
    """
    command = [sys.executable, "-X", "dev", "-W", warning, "-c", script, *map(str, arguments)]
    variables = {**os.environ, **environment}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=120)
    done.stderr = _SLOW_CALLBACK.sub("", done.stderr)
    return done


def without_fastapi(folder: Path) -> str:
    """Return a path for PYTHONPATH with which a program cannot import FastAPI.

    Taskiq imports FastAPI if it is installed, which takes longer than all other imports.
    """
    folder.joinpath("fastapi.py").write_text("raise ImportError")
    return str(folder)


@contextmanager
def sandbox_process(*arguments: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Run Python with arguments that start a sandbox, and yield the process and the URL of the sandbox."""
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = re.match("sandbox ready at (.*)", process.stdout.readline())
        assert ready is not None
        yield process, ready[1]
        process.terminate()


@cache
def start_fork_server() -> ForkServerContext:
    """Start Python's fork server."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["support.preloaded"])
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):  # pytest has extended it
        forkserver.ensure_running()
    return context


def start_process(log: Path, function: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Run a function in another process, and append its output and its errors to a file."""
    process = start_fork_server().Process(target=_run, args=(log, function, arguments))
    process.start()
    return process


def _run(log: Path, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (sys.stdout, sys.stderr):
        os.dup2(handle, standard.fileno())
    function(*arguments)
