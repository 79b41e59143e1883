"""Orphan files: of a process that ends during an approval, and of several processes at the same time."""

import asyncio
import subprocess
import sys
from pathlib import Path

from loanasync.ledger import SqliteLedger, State, import_orphans
from support.ledger_clients import create

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


async def started(script: str, *arguments: str) -> asyncio.subprocess.Process:
    """Start a script in another process, and wait for its first line."""
    command = (sys.executable, "-c", script, *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


WRITER = """
import sys
from pathlib import Path
from loanasync.ledger import Settlement, State
from loanasync.ledger.orphans import Orphan, write_orphan

print("ready", flush=True)
sys.stdin.readline()
for number in range(50):
    key = f"{sys.argv[2]}-{number}"
    settlement = Settlement(state=State.APPROVED, status=201, body=key.encode())
    orphan = Orphan(ledger=sys.argv[3], key=key, token="t", payload="p", settlement=settlement)
    assert write_orphan([Path(sys.argv[1])], orphan)
"""


async def test_orphans_of_two_processes_are_imported_once_by_two_imports(tmp_path: Path) -> None:
    folder = tmp_path / "orphans"
    async with SqliteLedger(tmp_path / "decisions.db") as ledger:
        await create(ledger)
        header = await ledger.header()
    processes = [await started(WRITER, str(folder), name, header.id) for name in "ab"]
    ends = [asyncio.create_task(process.communicate(b"go\n")) for process in processes]

    async def importing() -> None:
        async with SqliteLedger(tmp_path / "decisions.db") as ledger:
            while not all(end.done() for end in ends):
                await import_orphans(ledger, folder)
            await import_orphans(ledger, folder)

    await asyncio.gather(importing(), importing())
    assert [process.returncode for process in processes] == [0, 0]
    async with SqliteLedger(tmp_path / "decisions.db") as ledger:
        bodies = {entry.key: entry.body async for entry in ledger.scan(State.APPROVED)}
    assert bodies == {key: key.encode() for key in (f"{name}-{n}" for name in "ab" for n in range(50))}
    assert list(folder.iterdir()) == []
