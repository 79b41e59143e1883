"""A process that forks while its other threads use a ledger, a client's memory or its metrics."""

import os
from pathlib import Path

import pytest

from support.processes import run_script

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="only some systems fork")

HELD = """
import asyncio, gc, os, signal, sys, threading, warnings
from contextlib import ExitStack
from loanasync._models.classes import ForkSafe
from loanasync.ledger import MemoryLedger, SqliteLedger, create_ledger
from loanasync.testing import approval_request, approved, scripted_client

warnings.simplefilter("ignore")  # newer versions of Python warn of forks in processes with threads
ledgers = MemoryLedger(), SqliteLedger(sys.argv[1])
asyncio.run(create_ledger(ledgers[1], base_url="https://loans.example.com"))
asyncio.run(ledgers[1].aclose())
client = scripted_client(approved())

async def use():
    for ledger in ledgers:
        assert (await ledger.claim("k", token="t", payload="p", lease=60)).is_claimed_by("t")
        await ledger.aclose()
    assert (await client.approve("TSTXYZ00A00A000A", approval_request())).approved
    scripted_client()

held, forked = threading.Event(), threading.Event()

def hold():
    with ExitStack() as stack:
        locks = [each.lock for each in gc.get_objects() if isinstance(each, ForkSafe)]
        assert len(locks) >= 5, "of both ledgers, flights, process memory and metrics"
        for lock in locks:
            stack.enter_context(lock)
        held.set()
        forked.wait()

threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if not child:
    signal.alarm(30)  # a hang guard
    asyncio.run(use())
    os._exit(0)
status = os.waitpid(child, 0)[1]
forked.set()
sys.exit(status)
"""


def test_child_forked_while_a_thread_holds_the_locks_is_not_blocked(tmp_path: Path) -> None:
    done = run_script(HELD, tmp_path / "decisions.db")
    assert done.returncode == 0, done.stderr


LOCKED = """
import asyncio, os, sqlite3, sys, threading, warnings
from loanasync.ledger import SqliteLedger, create_ledger
from loanasync.ledger.sqlite import FORK_GUARD

warnings.simplefilter("ignore")  # of forks
ledger = SqliteLedger(sys.argv[1], patience=3600)
asyncio.run(create_ledger(ledger, base_url="https://loans.example.com"))
asyncio.run(ledger.get("k"))
if sys.argv[2] == "opening":  # it is opened while another process holds the write lock
    asyncio.run(ledger.aclose())
other = sqlite3.connect(sys.argv[1], isolation_level=None)
other.execute("BEGIN IMMEDIATE")
won = []

def claim():
    entry = asyncio.run(ledger.claim("k", token="t", payload="p", lease=60))
    won.append(entry.is_claimed_by("t"))

thread = threading.Thread(target=claim)
thread.start()
while not FORK_GUARD._lock.locked():  # until the claim has come to the file
    pass
child = os.fork()
if not child:
    os._exit(0)
os.waitpid(child, 0)
assert not won
other.execute("COMMIT")
thread.join()
asyncio.run(ledger.aclose())
print(won)
"""


@pytest.mark.parametrize("how", ["open", "opening"])
def test_fork_does_not_wait_for_a_locked_sqlite_file(how: str, tmp_path: Path) -> None:
    done = run_script(LOCKED, tmp_path / "decisions.db", how)
    assert done.stdout == "[True]\n", done.stderr


INHERITED = """
import asyncio, os, sys, warnings
from loanasync import LoanError
from loanasync.testing import ScriptedTransport, approval_request, approved, computed, timed_out

warnings.simplefilter("ignore")  # of forks
arrived = asyncio.Event()

async def never(_):
    arrived.set()
    await asyncio.Event().wait()

script = ScriptedTransport(timed_out(), approved(), computed(never), approved())
client = script.client(max_concurrency=1)
request = approval_request()

async def approve(letter):
    try:
        await client.approve(f"TSTXYZ00A00A000{letter}", request, repeat_unknown=True)
    except LoanError as error:
        return type(error).__name__
    return "approved"

async def main():
    loop = asyncio.get_running_loop()
    await approve("C")  # its outcome is unknown
    await approve("D")
    # B and C wait for a slot: nothing is sent.
    calls = [asyncio.create_task(approve(letter)) for letter in "AABBC"]
    await arrived.wait()
    for _ in range(10):
        await asyncio.sleep(0)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os._exit(0)
    touched = []
    loop.call_soon_threadsafe = lambda *_: touched.append(1)
    asyncio._set_running_loop(None)
    print(*[asyncio.run(approve(letter)) for letter in "ABCD"], len(script.sent), touched, flush=True)
    os._exit(0)

asyncio.run(main())
"""


def test_child_leaves_the_requests_of_its_parent_alone() -> None:
    """The child knows all requests of its parent, sends none again, and does not wake its event loop."""
    done = run_script(INHERITED)
    assert done.stdout == "OutcomeUnknownError " * 3 + "approved 3 []\n", done.stderr
