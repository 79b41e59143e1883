"""Processes that start within milliseconds: forks of a server process that has imported what they need."""

import multiprocessing
import os
import sys
from collections.abc import Callable
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

__all__ = ["start_fork_server", "start_process"]


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
