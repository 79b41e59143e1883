"""Ledgers, drafts of entries, and processes for the contract test of the stores."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeAlias

from attrs import frozen

from loanasync.ledger import Entry, Ledger, LedgerPolicy, State
from loanasync.ledger.header import Header, new_header
from loanasync.ledger.store import Found, Store, Write
from support.processes import start_process

Opener: TypeAlias = Callable[[], Ledger]  # opens the ledger once more, also in another process

HOUR = 3600.0
_POLICY = LedgerPolicy(key=b"0123456789abcdef")


def new(store: Store) -> Header:
    """Return the header of another ledger in a store."""
    return new_header(store.name, "https://loans.example.com", _POLICY, makes_secret=False)


async def created(store: Store) -> Header:
    """Create a ledger in a store, and return its header. A memory store has a header, which is replaced."""
    header = new(store)
    assert await store.swap_header(header, replaces=(await store.header()).header)
    return header


def draft(key: str, **values: Any) -> Entry:
    """Return an entry to write, with a new revision and without times."""
    given = {"state": State.INFLIGHT, "token": "t", "payload": "p", "revision": token_hex(8), **values}
    return Entry(key=key, claimed=0.0, changed=0.0, expires=0.0, **given)


@frozen
class Swapped(Found):
    """The result of a swap."""

    is_written: bool


async def put(
    store: Store, header: Header, entry: Entry, over: Entry | None = None, **options: Any
) -> Swapped:
    """Write an entry, over another one if that is given."""
    found = await store.swap(Write(entry, header, "" if over is None else over.revision, **options))
    return Swapped(found.entry, found.now, found.generation, found.number, found.has(entry))


def racing_process(log: Path, opener: Opener, header: Header, keys: list[str]) -> BaseProcess:
    """Start a process that writes entries, and logs the key of each entry that it created."""
    return start_process(log, _race, opener, header, keys)


def _race(opener: Opener, header: Header, keys: list[str]) -> None:
    async def race() -> None:
        ledger = opener()
        claims = [put(ledger._store, header, draft(key), lease=HOUR) for key in keys for _ in range(8)]
        for swapped in await asyncio.gather(*claims):
            if swapped.is_written and swapped.entry:
                print(swapped.entry.key, flush=True)  # noqa: T201  (into the log)
        await ledger.aclose()

    asyncio.run(race())


def dying_writer(
    log: Path, opener: Opener, header: Header, prefix: str
) -> tuple[BaseProcess, Callable[[], tuple[str, str] | None]]:
    """Start a process that writes entries without end.

    Returns:
        The process to kill, and a function that returns the key and the revision of its next completed write,
        or None if it has ended.
    """
    reader, writer = get_context("forkserver").Pipe(duplex=False)
    process = start_process(log, _write_without_end, opener, header, prefix, writer)
    writer.close()

    def receive() -> tuple[str, str] | None:
        with suppress(EOFError, OSError):
            key, revision = reader.recv()
            return key, revision
        reader.close()
        return None

    return process, receive


def _write_without_end(opener: Opener, header: Header, prefix: str, connection: Connection) -> None:
    async def write() -> None:
        store, number = opener()._store, 0
        while True:
            number += 1
            claim = draft(f"{prefix}{number}")
            settled = draft(claim.key, state=State.REFUSED, body=claim.key.encode() * 50)
            await put(store, header, claim, lease=HOUR)
            connection.send((claim.key, claim.revision))
            await put(store, header, settled, claim)
            connection.send((claim.key, settled.revision))

    asyncio.run(write())
