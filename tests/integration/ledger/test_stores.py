"""The contract of the stores: each test runs with each store, and with nothing but the protocol `Store`."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from secrets import token_hex
from typing import Any
from unittest import mock

import pytest
from attrs import evolve

from loanasync.errors import LedgerMismatchError
from loanasync.ledger import (
    Change,
    Entry,
    Ledger,
    MemoryLedger,
    PostgresLedger,
    RedisLedger,
    SqliteLedger,
    State,
)
from loanasync.ledger.header import Header
from loanasync.ledger.store import PAGE_SIZE, Store
from support.store_contract import (
    HOUR,
    Opener,
    Swapped,
    created,
    draft,
    dying_writer,
    new,
    put,
    racing_process,
)

SHARED = ["sqlite", "valkey", "postgres"]  # stores that several processes use
RACERS = 32
TOLERANCE = 1.0  # seconds by which a server may round times
AN_HOUR = pytest.approx(HOUR, abs=300)  # seconds of a lease that are left


@pytest.fixture(params=["memory", *SHARED])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Return a function that opens the ledger, also in another process. The ledger does not exist yet."""
    name = token_hex(4)
    match request.param:
        case "memory":
            ledger = MemoryLedger()
            return lambda: ledger
        case "sqlite":
            return partial(SqliteLedger, tmp_path / "decisions.db")
        case "valkey":
            url = request.getfixturevalue("valkey").url
            return partial(RedisLedger, url, prefix=f"{name}:")
        case _:
            url = request.getfixturevalue("postgres").url
            return partial(PostgresLedger, url, table=f"t{name}")


@pytest.fixture
async def ledger(opener: Opener) -> AsyncIterator[Ledger]:
    opened = opener()
    yield opened
    await opened.aclose()


@pytest.fixture
async def other(opener: Opener) -> AsyncIterator[Store]:
    """The store as another client sees it."""
    opened = opener()
    yield opened._store
    await opened.aclose()


@pytest.fixture
def store(ledger: Ledger) -> Store:
    return ledger._store


@pytest.fixture
async def header(store: Store) -> Header:
    """The header of the ledger, which is created."""
    return await created(store)


async def entry_of(store: Store, header: Header, key: str) -> Entry:
    entry = (await store.read(key, header)).entry
    assert entry is not None
    return entry


async def keys(store: Store, header: Header, state: str = "", first: str = "", last: str = "") -> list[str]:
    return [entry.key for entry in await store.page("state" if state else "", state, first, last, header)]


async def of(store: Store, header: Header, customer: str) -> list[str]:
    """Return the keys of a customer."""
    return [entry.key for entry in await store.page("customer", customer, "", "", header)]


def written(swapped: Swapped) -> Entry:
    assert swapped.is_written
    assert swapped.entry is not None
    return swapped.entry


# Swap and read


async def test_swap_writes_an_absent_entry_and_the_expected_revision(
    store: Store, other: Store, header: Header
) -> None:
    assert (await store.read("k", header)).entry is None
    claim, settled = draft("k"), draft("k", state=State.REFUSED, payload="")
    for writer, new_entry, over in ((store, claim, None), (other, settled, claim)):
        entry = written(await put(writer, header, new_entry, over, lease=HOUR))
        times = {name: getattr(entry, name) for name in ("claimed", "changed", "expires")}
        assert entry == evolve(new_entry, **times)
        assert entry == await entry_of(store, header, "k") == await entry_of(other, header, "k")


@pytest.mark.parametrize("lease", [HOUR, None])
async def test_swap_of_another_revision_returns_the_stored_entry(
    store: Store, header: Header, lease: float | None
) -> None:
    swapped = await put(store, header, draft("k"), draft("k"), lease=lease)
    assert (swapped.is_written, swapped.entry) == (False, None)
    stored = written(await put(store, header, draft("k"), lease=HOUR))
    for over in (None, draft("k")):
        swapped = await put(store, header, draft("k", state=State.HELD), over, lease=lease)
        assert (swapped.is_written, swapped.entry) == (False, stored)
    assert await entry_of(store, header, "k") == stored


@pytest.mark.parametrize("body", [None, b"", bytes(range(256)), b"\xe2\x82\xac" * 300_000])
async def test_swap_stores_each_field_unchanged(store: Store, header: Header, body: bytes | None) -> None:
    text = "è, \U0001f600 ' \" \\ / \t"
    history = (Change(state=State.LOST, changed=1.5, note=text, source="person"),)
    fields: dict[str, Any] = {
        **{
            name: f"{name} {text}"
            for name in ("token", "payload", "note", "customer", "order", "order_token")
        },
        "status": None if body is None else 201,
        "fault": None if body is None else text,
        "body": body,
        "takeovers": 3,
        "source": "person",
        "history": history,
    }
    entry = written(await put(store, header, draft("k", **fields), lease=HOUR))
    assert {name: getattr(entry, name) for name in fields} == fields
    assert await entry_of(store, header, "k") == entry
    again = draft("k", state=State.APPROVED, **{**fields, "body": b"x", "history": ()})
    entry = written(await put(store, header, again, entry))
    assert (entry.body, entry.history) == (b"x", ())
    assert await entry_of(store, header, "k") == entry


async def test_concurrent_swaps_write_one_entry(opener: Opener, store: Store, header: Header) -> None:
    ledgers = [opener() for _ in range(4)]
    for over in (None, written(await put(store, header, draft("old"), lease=HOUR))):
        key = over.key if over else "new"
        claims = (put(ledgers[n % 4]._store, header, draft(key), over, lease=HOUR) for n in range(RACERS))
        swaps = await asyncio.gather(*claims)
        assert [each.is_written for each in swaps].count(True) == 1
        assert len({each.entry.revision for each in swaps if each.entry}) == 1
        assert all(each.entry for each in swaps)
    await asyncio.gather(*(each.aclose() for each in ledgers))


async def test_cancelled_swap_leaves_the_store_usable(store: Store, header: Header) -> None:
    for number in range(RACERS):
        claim = draft(f"k{number}")
        claiming = asyncio.create_task(put(store, header, claim, lease=HOUR))
        for _ in range(number % 8):
            await asyncio.sleep(0)
        claiming.cancel()
        await asyncio.wait({claiming})
        again = await put(store, header, draft(claim.key), lease=HOUR)
        assert again.is_written or (again.entry and again.entry.revision == claim.revision)
    assert len(await keys(store, header)) == RACERS


async def test_closed_store_opens_again_on_the_next_use(ledger: Ledger, store: Store, header: Header) -> None:
    await put(store, header, draft("k"), lease=HOUR)
    await asyncio.gather(*(ledger.aclose() for _ in range(3)))
    await ledger.aclose()
    assert (await entry_of(store, header, "k")).state is State.INFLIGHT
    assert (await store.header()).header == header
    assert (await put(store, header, draft("l"), lease=HOUR)).is_written


# Times


async def test_swap_sets_the_times_of_claims_and_settlements(store: Store, header: Header) -> None:
    before = time.time()
    claim = written(await put(store, header, draft("k"), lease=HOUR))
    assert before - TOLERANCE <= claim.changed <= time.time() + TOLERANCE
    assert claim.claimed == claim.changed
    assert claim.expires - claim.changed == pytest.approx(HOUR, abs=0.01)
    # A write without a lease keeps the claim and the lease; one with a lease starts a new lease.
    settled = evolve(claim, state=State.UNKNOWN, revision="2", changed=0.0)
    entry = written(await put(store, header, settled, claim))
    assert (entry.claimed, entry.expires) == (claim.claimed, claim.expires)
    assert entry.left == AN_HOUR
    assert entry.changed >= claim.changed
    for lease, left in ((0.0, pytest.approx(0.0, abs=300)), (HOUR, AN_HOUR)):
        entry = written(
            await put(store, header, evolve(entry, revision=token_hex(4), changed=0.0), entry, lease=lease)
        )
        assert entry.claimed == claim.claimed
        assert (await entry_of(store, header, "k")).left == left
        assert entry.expires - entry.changed == pytest.approx(lease, abs=0.01)
    entry = written(await put(store, header, draft("without a claim", state=State.REFUSED)))
    assert entry.claimed == entry.changed == entry.expires > 0
    found = await entry_of(store, header, entry.key)
    assert found == entry
    assert found.left <= 0


@pytest.mark.parametrize("skew", [-600.0, 600.0])
async def test_lease_ignores_the_wrong_clock_of_a_client(
    store: Store, other: Store, header: Header, skew: float
) -> None:
    right, right_ns = time.time, time.time_ns
    wrong = mock.patch.multiple(
        "time", time=lambda: right() + skew, time_ns=lambda: right_ns() + int(skew * 1e9)
    )
    with wrong:
        await put(other, header, draft("of the other", customer="c"), lease=HOUR)
        expired = await put(other, header, draft("expired"), lease=0.0)
    stored = await entry_of(store, header, "of the other")
    conflict = (await put(store, header, draft(stored.key), lease=HOUR)).entry
    [_, paged] = await store.page("", "", "", "", header)
    [found] = await store.page("customer", "c", "", "", header)
    assert [each and each.left for each in (stored, conflict, paged, found)] == [AN_HOUR] * 4
    assert expired.entry
    assert expired.entry.left <= 0
    assert (await entry_of(store, header, "expired")).left <= 0


@pytest.mark.parametrize("lease", [HOUR, None])
async def test_swap_after_its_time_writes_nothing(store: Store, header: Header, lease: float | None) -> None:
    times = [(await store.header()).now, now := (await store.read("k", header)).now]
    for over in (None, draft("k")):
        late = await put(store, header, draft("k"), over, lease=lease, not_after=now - 0.001)
        assert (late.is_written, late.entry) == (False, None)
    claim = written(found := await put(store, header, draft("k"), lease=lease, not_after=now + HOUR))
    late = await put(store, header, draft("k"), claim, lease=lease, not_after=now - 0.001)
    assert (late.is_written, late.entry) == (False, claim)
    assert await entry_of(store, header, "k") == claim
    times += [found.now, late.now, (await store.header()).now]
    assert times == sorted(times)
    assert times[-1] - now < HOUR


# Numbers; 0: the store cannot tell


async def test_number_grows_with_each_write(store: Store, other: Store, header: Header) -> None:
    numbers = [(await store.header()).number]
    for each in (store, other, store):
        claim = written(found := await put(each, header, draft(f"k{len(numbers)}"), lease=HOUR))
        settled = await put(each, header, draft(claim.key, state=State.LOST), claim)
        numbers += [found.number, settled.number]
    told = [number for number in numbers if number]
    assert told == sorted(set(told))
    for each in (store, other):
        refused = await put(each, header, draft("k1"), lease=HOUR)
        assert not refused.is_written
        reads = [(await each.header()).number, (await each.read("k", header)).number, refused.number]
        assert all(number >= numbers[-1] for number in reads if number)
    number = (await put(other, header, draft("k"), lease=HOUR)).number
    assert number > numbers[-1] or not number


async def test_numbers_of_concurrent_writes_exceed_all_earlier_ones(
    store: Store, other: Store, header: Header
) -> None:
    """A client compares the number of its write with the highest one that it had when the write began."""
    highest = 0

    async def write(number: int) -> None:
        nonlocal highest
        for step in range(5):
            before = highest
            found = await put((store, other)[number % 2], header, draft(f"{number}-{step}"), lease=HOUR)
            assert found.number > before or not found.number
            highest = max(highest, found.number)

    await asyncio.gather(*(write(number) for number in range(RACERS)))
    # A store may compare a read with the writes that it knows, and with the header.
    reads = [(await store.header()).number, (await store.read("0-0", header)).number]
    assert all(number >= highest for number in reads if number)


# Lists


async def test_page_returns_all_entries_in_order_of_their_keys(store: Store, header: Header) -> None:
    names = sorted([f"{number:x}" for number in range(2 * PAGE_SIZE + 100)] + ["A", "a-", "a_", "é", "~"])
    states = (State.LOST, State.HELD)
    for begin in range(0, len(names), 100):
        some = names[begin : begin + 100]
        await asyncio.gather(*(put(store, header, draft(key, state=states[len(key) % 2])) for key in some))
    for part, first in product(("", *states), ("", "3f2", "3f")):
        listed = [key for key in names if part in ("", states[len(key) % 2]) and key >= first]
        pages, last = [], ""
        while page := await keys(store, header, part, last or first, last):
            pages.append(page)
            last = page[-1]
        assert [key for page in pages for key in page] == listed
        assert {len(page) for page in pages[:-1]} <= {PAGE_SIZE}
    assert await keys(store, header, State.INFLIGHT) == []
    assert await store.drop(await store.page("", "", "", "", header), header) == PAGE_SIZE


@pytest.mark.parametrize("lease", [HOUR, None])
async def test_entry_is_in_the_lists_of_its_state_and_customer(
    store: Store, other: Store, header: Header, lease: float | None
) -> None:
    before = None
    for state, customer in (
        (State.INFLIGHT, "anna"),
        (State.UNKNOWN, "anna"),
        (State.RELEASED, "bea"),
        (State.INFLIGHT, ""),
        (State.APPROVED, "bea"),
    ):
        after = draft("k", state=state, customer=customer)
        entry = written(await put(store, header, after, before, lease=lease))
        assert await entry_of(store, header, "k") == entry
        assert [each for each in State if await keys(other, header, each)] == [state]
        listed = [each for each in ("anna", "bea") if await of(other, header, each)]
        assert listed == [*filter(None, [customer])]
        before = after
    assert await keys(store, header) == ["k"]


async def test_drop_deletes_only_entries_of_equal_revision(store: Store, header: Header) -> None:
    old = [draft(f"{n}", state=State.REFUSED, customer="anna") for n in range(4)]
    for each in old:
        await put(store, header, each)
    changed = draft("1", state=State.HELD, customer="anna")
    await put(store, header, changed, old[1])
    assert await store.drop([*old[:3], draft("missing")], header) == 2
    assert await store.drop(old[:3], header) == 0
    assert (await put(store, header, draft("0"), lease=HOUR)).is_written
    assert await keys(store, header) == ["0", "1", "3"]
    assert await keys(store, header, State.REFUSED) == ["3"]
    assert await of(store, header, "anna") == ["1", "3"]


# The header


async def all_uses(store: Store, header: Header) -> list[object]:
    """Use each method of a store that takes a header, and return the results or errors."""
    uses = [
        store.read("k", header),
        put(store, header, draft("k"), lease=HOUR),
        put(store, header, draft("k", state=State.REFUSED)),
        put(store, header, draft("k"), draft("k")),
        store.page("", "", "", "", header),
        store.page("state", State.INFLIGHT, "", "", header),
        store.page("customer", "c", "", "", header),
        store.drop([draft("k")], header),
    ]
    return await asyncio.gather(*uses, return_exceptions=True)


async def test_store_without_header_refuses_every_use(opener: Opener, store: Store) -> None:
    header = new(store)
    assert all(isinstance(each, LedgerMismatchError) for each in await all_uses(store, header))
    with suppress(LedgerMismatchError):
        assert not await store.swap_header(evolve(header, generation=2), replaces=header)
    if isinstance(opener(), MemoryLedger):  # which always has one
        return
    found = await store.header()
    assert (found.header, found.number) == (None, 0)
    await created(store)
    assert (await store.header()).header is not None


async def test_store_with_another_header_refuses_every_use(
    store: Store, other: Store, header: Header
) -> None:
    entry = written(await put(store, header, draft("k", customer="c"), lease=HOUR))
    wrong = evolve(header, id=new(store).id)
    for each in (store, other):
        assert all(isinstance(use, LedgerMismatchError) for use in await all_uses(each, wrong))
        with pytest.raises(LedgerMismatchError, match="was replaced by another ledger"):
            await each.read("k", wrong)
        with pytest.raises(LedgerMismatchError):
            await put(each, wrong, draft("k", state=State.REFUSED), entry)
        with pytest.raises(LedgerMismatchError):
            await each.drop([entry], wrong)
    assert await entry_of(store, header, "k") == entry
    assert await keys(store, header) == ["k"]


async def test_header_is_stored_unchanged(store: Store, other: Store, header: Header) -> None:
    changed = evolve(
        header,
        service="https://loans.example.com/è/' \" \\",
        keys=("1", "2"),
        secrets=("3",),
        cipher="4",
        generation=2,
        mark="lost writes",
    )
    assert await store.swap_header(changed, replaces=header)
    for each in (store, other):
        found = await each.header()
        assert found.header == changed
        assert found.header
        assert found.header.name == each.name


async def test_swap_header_of_another_generation_or_id_changes_nothing(store: Store, header: Header) -> None:
    second = evolve(header, generation=2)
    assert await store.swap_header(second, replaces=header)
    third = evolve(header, generation=3, service="")
    assert not await store.swap_header(third, replaces=header)
    assert not await store.swap_header(third, replaces=evolve(second, id="another"))
    assert not await store.swap_header(third, replaces=None)
    assert (await store.header()).header == second
    assert await store.swap_header(third, replaces=second)


async def test_concurrent_creators_create_one_ledger(opener: Opener, store: Store) -> None:
    before = (await store.header()).header  # of a memory store only
    ledgers = [opener() for _ in range(8)]
    headers = [new(store) for _ in ledgers]
    creations = (
        ledger._store.swap_header(own, replaces=before) for ledger, own in zip(ledgers, headers, strict=True)
    )
    results = await asyncio.gather(*creations)
    assert results.count(True) == 1
    winner = headers[results.index(True)]
    assert [(await each._store.header()).header for each in ledgers] == [winner] * 8
    assert (await put(store, winner, draft("k"), lease=HOUR)).is_written
    await asyncio.gather(*(each.aclose() for each in ledgers))


async def test_claim_under_another_generation_is_refused(store: Store, other: Store, header: Header) -> None:
    claim = draft("k")
    await put(store, header, claim, lease=HOUR)
    second = evolve(header, generation=2)
    assert await other.swap_header(second, replaces=header)
    for stale, present in ((header, 2), (evolve(header, generation=3), 2)):
        for over in (None, claim):
            found = await put(store, stale, draft("k"), over, lease=HOUR)
            assert (found.is_written, found.generation) == (False, present)
            assert found.entry
            assert found.entry.revision == claim.revision
        found = await put(store, stale, draft("new"), lease=HOUR)
        assert (found.is_written, found.entry, found.generation) == (False, None, present)
    assert (await store.read("k", header)).generation == 2
    assert await keys(store, header) == ["k"]
    assert (await put(store, second, draft("new"), lease=HOUR)).is_written


async def test_settlement_under_another_generation_is_written(
    store: Store, other: Store, header: Header
) -> None:
    claim = draft("k")
    await put(store, header, claim, lease=HOUR)
    assert await other.swap_header(evolve(header, generation=2), replaces=header)
    found = await put(store, header, draft("k", state=State.REFUSED), claim)
    assert (found.is_written, found.generation) == (True, 2)
    assert (await put(store, header, draft("new", state=State.REFUSED))).is_written
    assert await keys(store, header, State.REFUSED) == ["k", "new"]


async def test_no_claim_of_an_earlier_generation_is_written_after_swap_header(
    opener: Opener, store: Store, header: Header
) -> None:
    """Claims go on while the header changes. Each claim that was written is seen by the next reader."""
    ledgers = [opener() for _ in range(4)]
    for number in range(2, 22):
        following = evolve(header, generation=number)
        begun, over = asyncio.Event(), asyncio.Event()
        claiming = [
            asyncio.create_task(claim_until_refused(each._store, header, f"{number}-{n}-{m}-", begun, over))
            for n, each in enumerate(ledgers)
            for m in range(4)
        ]
        await begun.wait()
        assert await store.swap_header(following, replaces=header)
        over.set()
        visible, last = set(), f"{number}-"
        while page := await keys(store, following, first=last, last=last):
            visible |= {*page}
            last = page[-1]
        assert visible >= {key for own in await asyncio.gather(*claiming) for key in own}
        header = following
    await asyncio.gather(*(each.aclose() for each in ledgers))


async def claim_until_refused(
    store: Store, header: Header, prefix: str, begun: asyncio.Event, over: asyncio.Event
) -> list[str]:
    """Write claims under a header until the store refuses one, and return their keys.

    Args:
        store: The store.
        header: The header of the claims.
        prefix: First part of their keys.
        begun: Set after the first claim.
        over: Claims that begin when it is set must not be written.
    """
    own: list[str] = []
    while True:
        was_over = over.is_set()
        found = await put(store, header, draft(f"{prefix}{len(own):05}"), lease=HOUR)
        if not found.is_written:
            assert found.generation == header.generation + 1
            return own
        assert not was_over
        own.append(f"{prefix}{len(own):05}")
        begun.set()
        await asyncio.sleep(0)


# Processes


@pytest.mark.parametrize("opener", SHARED, indirect=True)
async def test_each_entry_is_created_by_one_of_several_processes(
    opener: Opener, store: Store, header: Header, tmp_path: Path
) -> None:
    log, names = tmp_path / "log", [f"{number}" for number in range(10)]
    racing = [racing_process(log, opener, header, names) for _ in range(4)]
    for each in racing:
        await asyncio.to_thread(each.join)
    assert sorted(log.read_text().split()) == names == await keys(store, header)


@pytest.mark.parametrize("opener", SHARED, indirect=True)
async def test_completed_write_survives_the_kill_of_its_process(
    opener: Opener, store: Store, header: Header, tmp_path: Path
) -> None:
    for attempt in range(3):
        process, receive = dying_writer(tmp_path / "log", opener, header, f"{attempt}-")
        reported: dict[str, str] = {}
        while completed := await asyncio.to_thread(receive):
            key, revision = completed
            reported[key] = revision
            if len(reported) == 20 * (attempt + 1):
                process.kill()
        await asyncio.to_thread(process.join)
        for key, revision in reported.items():
            entry = await entry_of(store, header, key)
            # The process may have settled its last entry without reporting it.
            assert entry.revision == revision or entry.state is State.REFUSED
            assert entry.body == (None if entry.state is State.INFLIGHT else key.encode() * 50)
        assert len(await keys(store, header, first=f"{attempt}-")) >= len(reported) > 0
    assert (await put(store, header, draft("k"), lease=HOUR)).is_written
