"""One ledger in several threads, loops and processes, wherever it keeps its entries."""

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
from servers import Valkey
from sharing import OnPostgres, OnValkey

from loanasync.ledger import SqliteLedger

Opener = Callable[[], Any]


@pytest.fixture(params=["sqlite", "valkey", "postgres"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """What makes a ledger, here and in another process."""
    if request.param == "sqlite":
        return partial(SqliteLedger, tmp_path / "decisions.db")
    server = request.getfixturevalue(request.param)
    place = OnValkey(server) if isinstance(server, Valkey) else OnPostgres(server)
    return place.opener()


def test_it_serves_loops_that_come_and_go_in_several_threads(opener: Opener) -> None:
    ledger = opener()
    won: list[bool] = []

    def ask(token: str) -> None:
        entry = asyncio.run(ledger.claim("k", token=token, payload="p", lease=60))
        won.append(entry.is_claimed_by(token))

    threads = [threading.Thread(target=ask, args=[f"t{number}"]) for number in range(8)]
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
def test_a_forked_child_opens_it_anew(opener: Opener) -> None:
    pickled = b64encode(pickle.dumps(opener)).decode()
    command = [sys.executable, "-W", "error", "-c", FORKING, pickled]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0
