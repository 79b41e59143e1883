"""One ledger in several threads, event loops and processes, on each backend."""

import asyncio
import os
import pickle
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from loanasync.ledger import SqliteLedger
from support.ledger_clients import create
from support.server_ledgers import PostgresStore, ValkeyStore
from support.servers import Valkey

Opener = Callable[[], Any]


@pytest.fixture(params=["sqlite", "valkey", "postgres"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Return a function that opens the ledger, which exists, also in another process."""
    if request.param == "sqlite":
        opener: Opener = partial(SqliteLedger, tmp_path / "decisions.db")
    else:
        server = request.getfixturevalue(request.param)
        opener = (ValkeyStore(server) if isinstance(server, Valkey) else PostgresStore(server)).opener()

    async def create_and_close() -> None:
        async with opener() as ledger:
            await create(ledger)

    asyncio.run(create_and_close())
    return opener


def test_ledger_works_in_event_loops_of_several_threads(opener: Opener) -> None:
    ledger = opener()
    won: list[bool] = []

    def claim(token: str) -> None:
        entry = asyncio.run(ledger.claim("k", token=token, payload="p", lease=60))
        won.append(entry.is_claimed_by(token))

    threads = [threading.Thread(target=claim, args=[f"t{number}"]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(ledger.aclose())
    assert sorted(won) == [False] * 7 + [True]


FORKING = """
import asyncio, os, pickle, sys, warnings
from base64 import b64decode

warnings.simplefilter("ignore")  # newer Pythons advise against forking beside threads
ledger = pickle.loads(b64decode(sys.argv[1]))()

async def claim(key):
    return (await ledger.claim(key, token=f"{os.getpid()}", payload="p", lease=60)).token == f"{os.getpid()}"

assert asyncio.run(claim("before"))
child = os.fork()
if not child:
    fine = not asyncio.run(claim("before")) and asyncio.run(claim("child's"))
    asyncio.run(ledger.aclose())
    os._exit(0 if fine else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert not asyncio.run(claim("child's")) and asyncio.run(claim("parent's"))
asyncio.run(ledger.aclose())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only some systems fork")
def test_forked_child_opens_the_ledger_again(opener: Opener) -> None:
    pickled = b64encode(pickle.dumps(opener)).decode()
    command = [sys.executable, "-W", "error", "-c", FORKING, pickled]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0


CLAIMING = """
import asyncio, sys
from loanasync.ledger import SqliteLedger

async def claim(file, key):
    async with SqliteLedger(file) as ledger:
        return (await ledger.claim(key, token="another's", payload="p", lease=60)).token == "another's"

print(asyncio.run(claim(*sys.argv[1:])))
"""


def is_won_by_another(file: Path, key: str) -> bool:
    """Return True if another process opens the ledger, claims a key and closes it."""
    command = [sys.executable, "-c", CLAIMING, str(file), key]
    output = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True).stdout
    return output == "True\n"


async def test_two_ledgers_on_one_file_keep_their_locks(tmp_path: Path) -> None:
    file = tmp_path / "decisions.db"
    await create(SqliteLedger(file))
    async with SqliteLedger(file) as one, SqliteLedger(file) as other:
        for ledger in (one, other):
            await ledger.get("k")
        assert await asyncio.to_thread(is_won_by_another, file, "j")
        for ledger, key in ((one, "k"), (other, "l")):
            assert (await ledger.claim(key, token="t", payload="p", lease=60)).is_claimed_by("t")
            assert not await asyncio.to_thread(is_won_by_another, file, key)


CLOSING_BESIDE_A_CHILD = """
import asyncio, os, sys, warnings
from loanasync.ledger import SqliteLedger

warnings.simplefilter("ignore")  # as above
ledger = SqliteLedger(sys.argv[1])

async def claim(key):
    return (await ledger.claim(key, token="child's", payload="p", lease=60)).token == "child's"

asyncio.run(ledger.get("k"))
(child_hears, parent_says), (parent_hears, child_says) = os.pipe(), os.pipe()
if not os.fork():
    os.close(parent_says)
    assert asyncio.run(claim("opened"))
    os.write(child_says, b".")
    os.read(child_hears, 1)
    assert asyncio.run(claim("k"))
    os.write(child_says, b".")
    os.read(child_hears, 1)  # until the parent has ended
    os._exit(0)
os.close(child_says)
assert os.read(parent_hears, 1)
asyncio.run(ledger.aclose())
os.write(parent_says, b".")
assert os.read(parent_hears, 1)  # and not the end of a child that failed
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only some systems fork")
def test_claim_of_a_forked_child_survives_aclose_of_the_parent(tmp_path: Path) -> None:
    file = tmp_path / "decisions.db"
    asyncio.run(create(SqliteLedger(file)))
    command = [sys.executable, "-c", CLOSING_BESIDE_A_CHILD, str(file)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as forking:  # type: ignore[call-overload]  # as the others are
        assert forking.stdout.readline() == b"\n"
        assert not is_won_by_another(file, "k")
        forking.communicate(timeout=60)
    assert forking.returncode == 0
