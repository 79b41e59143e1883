"""A queue with worker processes that send requests to a sandbox, and the results of the messages."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

from taskiq.kicker import AsyncKicker

from loanasync.sandbox import Sandbox
from loanasync.testing import approval_request, fiscal_code
from loanasync.worker import message
from support.fleet import worker_process

__all__ = ["Fleet", "evaluated", "posts"]

HERE = Path(__file__).parents[2]
WAIT = 60.0  # seconds; usually two are enough


def posts(sandbox: Sandbox) -> list[Any]:
    return [entry for entry in sandbox.journal if entry.operation == "approve"]


def evaluated(sandbox: Sandbox) -> list[Any]:
    return [entry for entry in posts(sandbox) if entry.evaluated]


class Fleet:
    """A separate queue on a server for one test, and its workers."""

    def __init__(self, sandbox: Sandbox, broker_url: str, ledger: str, folder: Path, **times: float) -> None:
        self.sandbox = sandbox
        self.results = folder / "results.jsonl"
        self.log = folder / "workers.log"
        self.settings: dict[str, Any] = {
            "broker": broker_url,
            "queue": f"q{token_hex(4)}",
            "ledger": ledger,
            "results": str(self.results),
            "base_url": sandbox.base_url,
            "shop_id": sandbox.shop_id,
            "auth_token": sandbox.auth_token,
            "times": times,
        }

    def environment(self, **settings: Any) -> dict[str, str]:
        settings_text = json.dumps({**self.settings, **settings})
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {**os.environ, "PYTHONPATH": path, worker_process.SETTINGS: settings_text}

    @contextmanager
    def worker(self, *command: str, **settings: Any) -> Iterator["subprocess.Popen[str]"]:
        """Start a worker, and kill it at the end of the block."""
        with self.log.open("a") as log:
            started = subprocess.Popen(
                [sys.executable, *(command or [worker_process.__file__])],
                env=self.environment(**settings),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        try:
            yield started
        finally:
            kill(started)
            assert started.stdout is not None
            started.stdout.close()

    async def put(self, *messages: dict[str, Any]) -> list[str]:
        """Put messages into the queue; return their task ids."""
        times = {**worker_process.TIMES, **self.settings["times"]}
        broker = worker_process.broker_of(
            self.settings["broker"], self.settings["queue"], times["redelivery"]
        )
        await broker.startup()
        try:
            kicker: AsyncKicker[Any, Any] = AsyncKicker("loanasync:approve", broker, {})
            return [(await kicker.kiq(each)).task_id for each in messages]
        finally:
            await broker.shutdown()

    async def customer(self, tag: str = "") -> dict[str, Any]:
        """Create a customer at the service, and return a message for them."""
        code = fiscal_code()
        async with self.sandbox.client() as client:
            await client.create_request({"fiscalCode": code})
        return message(code, approval_request(email=f"anna{tag}@example.com"))

    def results_of(self, task: str) -> list[dict[str, Any]]:
        return [each for each in worker_process.results(self.results) if each["task"] == task]

    async def result(self, task: str, times: int = 1) -> dict[str, Any]:
        """Wait until a message has this number of results, and return the last one."""
        await until(lambda: len(self.results_of(task)) >= times)
        return self.results_of(task)[-1]


def kill(process: "subprocess.Popen[str]") -> None:
    """Kill a process and its children with SIGKILL."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def until(ready: Callable[[], bool]) -> None:
    """Wait until a condition in another process or thread is true."""
    async with asyncio.timeout(WAIT):
        while not ready():  # noqa: ASYNC110  (there is no event to wait for)
            await asyncio.sleep(0.02)
