"""A worker process of a fleet in tests, configured by an environment variable."""

import json
import logging
import os
import time
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

from taskiq import AckableMessage, AsyncBroker, AsyncResultBackend, TaskiqResult
from taskiq.cli.worker.args import WorkerArgs
from taskiq.cli.worker.run import start_listen

from loanasync import LoanClient, RetryPolicy, Timeout
from loanasync.ledger import Entry, Ledger, LedgerPolicy, PostgresLedger, RedisLedger, SqliteLedger
from loanasync.worker import register
from loanasync.worker.delivery import QueueBroker
from loanasync.worker.nats import JetStream
from loanasync.worker.redis import RedisStreams

SETTINGS = "FLEET_SETTINGS"
KEY = b"0123456789abcdef"

# Redelivery happens within a test. A call has enough time on a machine that stalls for a second.
TIMES = {"total": 10.0, "patience": 5.0, "cap": 0.1, "redelivery": 4.0}
# For a worker that is killed: its lease expires within a test.
SHORT = {"total": 2.0, "patience": 1.5}
# Skips the check of `register`, since an early redelivery does no harm in a test.
_UNCHECKED = 3600.0


class FileResultBackend(AsyncResultBackend[Any]):
    """Writes each result as one line to a file that the test reads."""

    def __init__(self, file: Path) -> None:
        self.file = file

    async def set_result(self, task_id: str, result: TaskiqResult[Any]) -> None:
        error = None if result.error is None else type(result.error).__name__
        line = {"task": task_id, "pid": os.getpid(), "raised": error, **(result.return_value or {})}
        append_line(self.file, line)

    async def is_result_ready(self, task_id: str) -> bool:
        return any(each["task"] == task_id for each in results(self.file))

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[Any]:  # noqa: FBT001, FBT002  (taskiq's)
        raise NotImplementedError


def append_line(file: Path, members: dict[str, Any]) -> None:
    """Append a line of JSON in one write."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, f"{json.dumps(members)}\n".encode())
    finally:
        os.close(handle)


def results(file: Path) -> list[dict[str, Any]]:
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [json.loads(line) for line in lines]


def broker_of(url: str, queue: str, redelivery: float = TIMES["redelivery"]) -> QueueBroker:
    if url.startswith("nats"):
        return JetStream(url, name=queue, redelivery=redelivery)
    return RedisStreams(url, queue_name=queue, redelivery=redelivery)


def ledger_of(settings: dict[str, Any], point: str = "") -> Ledger:
    """Return the ledger of a fleet. It stops its process at a point."""
    where, own = settings["ledger"], settings["queue"]
    kind: type[Any] = SqliteLedger
    options = {}
    if where.startswith("redis"):
        kind, options = RedisLedger, {"prefix": f"{own}:"}
    elif where.startswith("postgresql"):
        kind, options = PostgresLedger, {"table": own}
    if point:
        kind = type(f"Stopping{kind.__name__}", (StoppingMixin, kind), {"point": point})
    ledger: Ledger = kind(where, **options)
    return ledger


def stop(point: str) -> None:
    """Print the point, and block the event loop."""
    print(point, flush=True)  # noqa: T201  (the test waits for it)
    time.sleep(3600)


class StoppingMixin:
    """Mixin for ledgers that stops after a claim or before a settlement ("commit")."""

    point = ""

    async def claim(self, key: str, **options: Any) -> Entry:
        entry: Entry = await super().claim(key, **options)  # type: ignore[misc]  # of the ledger's class
        self._stop_at("after claim")
        return entry

    async def settle(self, key: str, **options: Any) -> Entry:
        self._stop_at("before commit")
        entry: Entry = await super().settle(key, **options)  # type: ignore[misc]  # see `claim`
        return entry

    def _stop_at(self, point: str) -> None:
        if point == self.point:
            stop(point)


def stop_before_ack(broker: AsyncBroker) -> None:
    """Block instead of acknowledging a message."""
    listen = broker.listen

    async def listening() -> AsyncGenerator[AckableMessage, None]:
        async for delivery in listen():
            assert isinstance(delivery, AckableMessage)
            yield AckableMessage(data=delivery.data, ack=partial(stop, "before ack"))

    broker.listen = listening  # type: ignore[method-assign]


def worker(settings: dict[str, Any]) -> QueueBroker:
    """Return a broker with the task, as a shop's module creates it."""
    times = {**TIMES, **settings.get("times", {})}
    broker = broker_of(settings["broker"], settings["queue"], times["redelivery"])
    broker.result_backend = FileResultBackend(Path(settings["results"]))
    point = settings.get("point", "")
    if point == "before ack":
        stop_before_ack(broker)
    ledger = ledger_of(settings, "" if point == "before ack" else point)
    total = times["total"]
    client = LoanClient(
        settings["base_url"],
        shop_id=settings["shop_id"],
        auth_token=settings["auth_token"],
        retry=RetryPolicy(attempts=settings.get("attempts", 1), base=0.01, cap=0.02),
        timeout=Timeout(total=total, attempt=0.9 * total, connect=0.5 * total),
        ledger=ledger,
        ledger_policy=LedgerPolicy(key=KEY, patience=times["patience"], orphan_folder=settings["orphans"]),
    )
    tries = settings.get("tries", 100)
    broker.redelivery = _UNCHECKED
    register(broker, client, base=0.05, cap=times["cap"], tries=tries)
    return broker


def make() -> AsyncBroker:
    """Return the broker for taskiq's command line."""
    return worker(json.loads(os.environ[SETTINGS]))


def main(settings: str) -> None:
    """Run a worker as `taskiq worker` does in each of its processes."""
    os.environ[SETTINGS] = settings
    logging.basicConfig()
    slots = json.loads(settings).get("slots", 100)
    maker = "support.fleet.worker_process:make"
    start_listen(WorkerArgs(broker=maker, modules=[], configure_logging=False, max_async_tasks=slots))
