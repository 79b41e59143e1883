"""A decision that arrives while the interpreter shuts down is written to an orphan file."""

import asyncio
import subprocess
import sys
from pathlib import Path

from loanasync.ledger import SqliteLedger, import_orphans

SHUTDOWN = """
import asyncio, concurrent.futures.thread as pool, sys, threading, time
from loanasync import LoanError
from loanasync.ledger import LedgerPolicy, SqliteLedger
from loanasync.testing import approval_request, approved, computed, scripted_client

arrived = threading.Event()

async def late(_):
    arrived.set()
    while not pool._shutdown:
        await asyncio.sleep(0.01)
    return approved()

async def main():
    ledger = SqliteLedger(sys.argv[1] + "/decisions.db")
    policy = LedgerPolicy(key=b"0123456789abcdef", orphan_folder=sys.argv[1] + "/orphans")
    client = scripted_client(computed(late), ledger=ledger, ledger_policy=policy)
    try:
        await client.approve("TSTXYZ00A00A000A", approval_request())
    except LoanError as error:
        print(type(error).__name__, error.decision.approved, error.file is not None, flush=True)

threading.Thread(target=asyncio.run, args=[main()]).start()
arrived.wait()
"""


async def test_approve_at_interpreter_shutdown_writes_the_orphan(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", SHUTDOWN, str(tmp_path)]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "DecisionNotRecordedError True True\n", done.stderr
    async with SqliteLedger(tmp_path / "decisions.db") as ledger:
        assert await import_orphans(ledger, tmp_path / "orphans") == 1
