"""A queue with worker processes that send requests to a sandbox, and the results of the messages."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from secrets import token_hex
from typing import Any

from taskiq.kicker import AsyncKicker

from loanasync.ledger import Ledger, LedgerPolicy, create_ledger
from loanasync.sandbox import Sandbox
from loanasync.testing import approval_request, fiscal_code
from loanasync.worker import message
from support.fleet import worker_process
from support.processes import start_process, without_fastapi

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
        self.log.touch()
        self.settings: dict[str, Any] = {
            "broker": broker_url,
            "queue": f"q{token_hex(4)}",
            "ledger": ledger,
            "results": str(self.results),
            "orphans": str(folder / "orphans"),
            "base_url": sandbox.base_url,
            "shop_id": sandbox.shop_id,
            "auth_token": sandbox.auth_token,
            "times": times,
        }

    def ledger(self) -> Ledger:
        """Open the ledger of the workers."""
        return worker_process.ledger_of(self.settings)

    async def create_ledger(self) -> None:
        """Create the ledger of the workers."""
        policy = LedgerPolicy(key=worker_process.KEY)
        async with self.ledger() as ledger:
            await create_ledger(ledger, base_url=self.sandbox.base_url, policy=policy)

    @contextmanager
    def worker(self, **settings: Any) -> Iterator[BaseProcess]:
        """Start a worker, and kill it at the end of the block."""
        process = start_process(self.log, worker_process.main, json.dumps({**self.settings, **settings}))
        try:
            yield process
        finally:
            kill(process)

    @contextmanager
    def taskiq_command(self) -> Iterator["subprocess.Popen[bytes]"]:
        """Start a worker by taskiq's command, and kill it and its child processes at the end of the block."""
        others = filter(None, [os.environ.get("PYTHONPATH")])
        path = os.pathsep.join([without_fastapi(self.log.parent), str(HERE), *others])
        variables = {"PYTHONPATH": path, worker_process.SETTINGS: json.dumps(self.settings)}
        command = ["-m", "taskiq", "worker", "--workers", "1", "support.fleet.worker_process:make"]
        with (
            self.log.open("a") as log,
            subprocess.Popen(
                [sys.executable, *command],
                env={**os.environ, **variables},
                stdout=log,
                stderr=log,
                start_new_session=True,
            ) as started,
        ):
            try:
                yield started
            finally:
                if started.poll() is None:
                    os.killpg(started.pid, signal.SIGKILL)

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

    def reached(self, point: str) -> bool:
        """Return True if a worker has printed that it stands at a point."""
        return f"{point}\n" in self.log.read_text(encoding="utf-8")

    def results_of(self, task: str) -> list[dict[str, Any]]:
        return [each for each in worker_process.results(self.results) if each["task"] == task]

    async def result(self, task: str, times: int = 1) -> dict[str, Any]:
        """Wait until a message has this number of results, and return the last one."""
        await until(lambda: len(self.results_of(task)) >= times)
        return self.results_of(task)[-1]


def kill(process: BaseProcess) -> None:
    """Kill a process with SIGKILL, and wait for its end."""
    process.kill()
    process.join()


async def until(ready: Callable[[], bool]) -> None:
    """Wait until a condition in another process or thread is true."""
    async with asyncio.timeout(WAIT):
        while not ready():  # noqa: ASYNC110  (there is no event to wait for)
            await asyncio.sleep(0.02)
