"""The recipes for other task queues in the docs, each run unchanged with a real worker."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loanasync.worker import message
from support.builders import approval_request
from support.servers import Valkey

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "workers.md"

BEFORE = """
import os, sys
from loanasync import LoanError
from loanasync.ledger import SqliteLedger
from loanasync.testing import ScriptedTransport, approved, connection_lost, denied, not_connected
from loanasync.worker import handle
script = ScriptedTransport(STEPS)
client = script.client(ledger=SqliteLedger(sys.argv[1]))
"""

CELERY = """
from celery.contrib.testing.worker import start_worker
with start_worker(app, pool="solo", perform_ping_check=False, loglevel="ERROR"):
    results = [approve_task.delay(queued).get(timeout=60) for queued in json.loads(sys.argv[2])]
"""

STREAQ = """
import asyncio, anyio
async def result_of(queued):
    result = await (await approve_streaq.enqueue(queued)).result(timeout=60)
    assert result.success, result
    return result.result
async def main():
    async with anyio.create_task_group() as group:
        await group.start(streaq.run_async)
        results = [await result_of(queued) for queued in json.loads(sys.argv[2])]
        group.cancel_scope.cancel()
    return results
results = asyncio.run(main())
"""

TEMPORAL = """
import asyncio
from dataclasses import replace
from temporalio.testing import ActivityEnvironment
async def result_of(queued):
    environment = ActivityEnvironment()
    for attempt in range(1, (options["retry_policy"].maximum_attempts or 100) + 1):
        environment.info = replace(environment.info, attempt=attempt)
        try:
            return await environment.run(approve_activity, queued)
        except ApplicationError as error:  # as a server of Temporal's would, only sooner
            if error.non_retryable:
                raise
async def main():
    return [await result_of(queued) for queued in json.loads(sys.argv[2])]
results = asyncio.run(main())
"""

AFTER = """
print(json.dumps([[each["status"], (each["error"] or {}).get("type")] for each in results]), script.left)
"""


def run_recipe(
    name: str, played: str, steps: str, folder: Path, valkey: Valkey, queued: list[dict[str, Any]]
) -> "subprocess.CompletedProcess[str]":
    """Run a recipe with a script of responses and these messages."""
    recipe = PAGE.read_text(encoding="utf-8").partition(f"### {name}\n")[2].partition("```python\n")[2]
    file = folder / "shop_queue.py"
    before = BEFORE.replace("STEPS", steps)
    file.write_text("\n".join([before, recipe.partition("```")[0], "import json", played, AFTER]))
    return subprocess.run(
        [sys.executable, str(file), str(folder / "decisions.db"), json.dumps(queued)],
        env={**os.environ, "VALKEY_URL": valkey.url},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(("name", "played"), [("Celery", CELERY), ("streaq", STREAQ), ("Temporal", TEMPORAL)])
def test_recipe_queue_repeats_only_unsent_requests(
    name: str, played: str, valkey: Valkey, tmp_path: Path
) -> None:
    first, second = (message(f"TSTXYZ00A00A000{letter}", approval_request()) for letter in "AB")
    steps = "not_connected(), approved(), connection_lost()"
    done = run_recipe(name, played, steps, tmp_path, valkey, [first, first, second, second])
    assert done.returncode == 0, done.stderr
    results, _, left = done.stdout.strip().rpartition(" ")
    assert json.loads(results) == [
        ["approved", None],  # not sent at first, then delivered again
        ["approved", None],
        ["unknown", "ConnectionLostError"],  # may have been sent: reported, and never delivered again
        ["unknown", "OutcomeUnknownError"],
    ]
    assert left == "0"


SLOW = pytest.mark.scheduled  # four delays, of 15 seconds in all


@pytest.mark.parametrize(
    ("name", "played"),
    [
        pytest.param("Celery", CELERY, marks=SLOW),
        pytest.param("streaq", STREAQ, marks=SLOW),
        ("Temporal", TEMPORAL),
    ],
)
def test_recipe_sends_a_denied_request_five_times(
    name: str, played: str, valkey: Valkey, tmp_path: Path
) -> None:
    played = f"import atexit\natexit.register(lambda: print(script.left))\n{played}"
    queued = message("TSTXYZ00A00A000A", approval_request())
    done = run_recipe(name, played, "*[denied()] * 7", tmp_path, valkey, [queued])
    assert done.returncode == 1
    assert "AccessDeniedError" in done.stderr
    assert done.stdout.strip() == "2"
