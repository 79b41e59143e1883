"""Operations on a whole ledger: status, copy, move, restore, forget, purge, with each kind of ledger."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve
from cryptography.fernet import Fernet

from loanasync import (
    AccessDeniedError,
    Approved,
    DecisionForgottenError,
    LedgerMismatchError,
    OutcomeUnknownError,
)
from loanasync.ledger import Entry, Ledger, LedgerPolicy, Settlement, SqliteLedger, State
from loanasync.ledger.address import ledger_at
from loanasync.ledger.administration import confirm, copy_ledger, forget, rotate_key
from loanasync.ledger.keys import Approval, places_of
from loanasync.ledger.orphans import Orphan, orphan_files, write_orphan
from loanasync.testing import approved, connection_lost, denied, refused
from support.builders import FISCAL_CODE
from support.ledger_clients import KEY, Shop, held_response
from support.ledger_file import name_on, run_ledger
from support.pages import ROOT
from support.settlements import REFUSAL

pytestmark = pytest.mark.usefixtures("shop_of_commands")
OTHER = "TSTXYZ00A00A000B"
BIN = Path(sys.executable).parent
BASE_URL = "https://loans.example.com"
POLICY = LedgerPolicy(key=KEY)


@pytest.fixture(params=["sqlite", "valkey", "postgres"])
def addresses(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Return a function that makes the address of a new ledger of one kind."""
    if request.param == "sqlite":
        return lambda name: str(tmp_path / f"{name}.db")
    server = request.getfixturevalue(request.param)
    return lambda _: name_on(server)


async def opened(address: str) -> Ledger:
    ledger = ledger_at(address)
    await ledger.create(BASE_URL, POLICY)
    return ledger


async def entries_of(ledger: Ledger) -> dict[str, Entry]:
    return {entry.key: entry async for entry in ledger.scan()}


async def states_of(ledger: Ledger) -> list[str]:
    return sorted(entry.state.value for entry in (await entries_of(ledger)).values())


def without_revision(entry: Entry) -> Entry:
    return evolve(entry, revision="", left=0.0)


async def filled(ledger: Ledger) -> Shop:
    """Write a decision, an unknown outcome and a released entry."""
    shop = Shop(approved(), connection_lost(), ledger=ledger)
    await shop.approve(order_id="A-1")
    await shop.result(code=OTHER)
    return shop


# Copies


async def test_copy_has_each_entry_as_it_is_and_is_refused_until_confirmed(
    addresses: Callable[[str], str],
) -> None:
    source, target = await opened(addresses("source")), ledger_at(addresses("target"))
    async with source, target:
        await filled(source)
        for _ in range(2):
            copied = await copy_ledger(source, target, POLICY)
            assert (copied.counts, copied.contradictions) == ({"approved": 1, "unknown": 1}, [])
        before, after = await entries_of(source), await entries_of(target)
        assert [*map(without_revision, after.values())] == [*map(without_revision, before.values())]
        assert len(await target.entries_of(next(iter(before.values())).customer)) == 1
        shop = Shop(approved(), ledger=target)
        refused_call = await shop.result(code=OTHER)
        assert isinstance(refused_call, LedgerMismatchError)
        assert "is a copy, so it may lack customers" in refused_call.reason
        await confirm(target)
        assert isinstance(await shop.approve(order_id="A-1"), Approved)
        assert isinstance(await shop.result(code=OTHER), OutcomeUnknownError)
        assert len(shop.script.sent) == 0


@pytest.mark.parametrize(
    ("stored", "copied", "found"),
    [
        (None, State.RELEASED, State.RELEASED),
        (State.RELEASED, State.INFLIGHT, State.UNKNOWN),
        (State.UNKNOWN, State.RELEASED, State.UNKNOWN),
        (State.INFLIGHT, State.HELD, State.HELD),
        (State.UNKNOWN, State.LOST, State.UNKNOWN),
        (State.LOST, State.APPROVED, State.APPROVED),
        (State.REFUSED, State.UNKNOWN, State.REFUSED),
        (State.APPROVED, State.REFUSED, State.APPROVED),
        (State.APPROVED, State.ERASED, State.ERASED),
        (State.ERASED, State.REFUSED, State.ERASED),
    ],
)
async def test_copy_never_weakens_a_stored_entry(
    addresses: Callable[[str], str], stored: State | None, copied: State, found: State
) -> None:
    async with await opened(addresses("target")) as target:
        draft = Entry(
            key="k", state=State.RELEASED, changed=5.0, claimed=4.0, expires=6.0, payload="p", token="t"
        )
        for state in filter(None, (stored, copied)):
            if state is State.INFLIGHT and stored is state:
                await target.claim("k", token="u", payload="p", lease=60)
            else:
                await target.put(evolve(draft, state=state))
        entry = await target.get("k")
        assert entry is not None
        assert entry.state is found
        if copied is found:
            assert (entry.claimed, entry.changed, entry.expires) == (4.0, 5.0, 6.0)


async def test_copy_to_another_ledger_or_with_other_decisions_is_reported() -> None:
    source, other = await opened("source.db"), await opened("other.db")
    async with source, other, ledger_at("target.db") as target:
        await filled(source)
        with pytest.raises(LedgerMismatchError, match="is another ledger: name one that does not exist"):
            await copy_ledger(source, other, POLICY)
        await copy_ledger(source, target, POLICY)
        key = next(key for key, entry in (await entries_of(target)).items() if entry.state is State.UNKNOWN)
        for ledger, state in ((source, State.REFUSED), (target, State.APPROVED)):
            await ledger.settle(key, token="late", payload="p", settlement=Settlement(state=state))
        assert (await copy_ledger(source, target, POLICY)).contradictions == [key]
    done = await asyncio.to_thread(run_ledger, "copy", "source.db", "target.db")
    line = f"{key[:12]}  is decided otherwise in TO, and stays so there\n"
    assert (done.exit_code, done.stdout) == (3, line)
    done = await asyncio.to_thread(run_ledger, "copy", "source.db", "./source.db")
    assert done.exit_code == 2


async def test_copy_after_a_rotation_has_the_keys_of_both(addresses: Callable[[str], str]) -> None:
    source, target = await opened(addresses("source")), ledger_at(addresses("target"))
    policy = LedgerPolicy(key=b"fedcba9876543210", old_keys=[KEY])
    async with source, target:
        await filled(source)
        await copy_ledger(source, target, POLICY)
        await rotate_key(source, policy)
        shop = Shop(refused(), ledger=source, key=policy.key, old_keys=[KEY])
        await shop.approve(code="TSTXYZ00A00A000C")
        await copy_ledger(source, target, policy)
        await confirm(target)
        copied = Shop(ledger=target, key=policy.key, old_keys=[KEY])
        assert isinstance(await copied.approve(order_id="A-1"), Approved)
        assert not (await copied.approve(code="TSTXYZ00A00A000C")).approved


async def test_copy_encrypts_responses_with_the_cipher_of_the_command(tmp_path: Path) -> None:
    cipher = Fernet(Fernet.generate_key())
    async with SqliteLedger("source.db") as source, ledger_at("target.db") as target:
        shop = Shop(approved(), ledger=source, key=None)
        decision = await shop.approve()
        await copy_ledger(source, target, LedgerPolicy(encrypt=cipher))
        await confirm(target)
        copied = Shop(ledger=target, key=None, encrypt=cipher)
        again = await copied.approve()
        assert isinstance(again, Approved)
        assert (again.redirect_url, again.meta.entry) == (decision.redirect_url, decision.meta.entry)  # type: ignore[union-attr]
    assert b"redirectUrl" not in (tmp_path / "target.db").read_bytes()


async def test_move_waits_for_requests_in_progress_and_stops_the_source(
    addresses: Callable[[str], str],
) -> None:
    source, target = await opened(addresses("source")), ledger_at(addresses("target"))
    step, arrived, go = held_response(approved())
    async with source, target:
        shop = Shop(step, approved(), ledger=source)
        call = asyncio.create_task(shop.result())
        await arrived.wait()
        moving = asyncio.create_task(copy_ledger(source, target, POLICY, moves=True))
        while (await source.refresh()).mark != "moved":  # noqa: ASYNC110  (no event)
            await asyncio.sleep(0.01)
        stopped = await shop.result(code=OTHER)
        assert isinstance(stopped, LedgerMismatchError)
        assert "was moved: name the ledger to which it was copied" in stopped.reason
        go.set()
        assert isinstance(await call, Approved)
        assert (await moving).counts == {"inflight": 0, "approved": 1}
        assert await states_of(target) == ["approved"]
        await confirm(target)
        moved = Shop(approved(), ledger=target)
        assert isinstance(await moved.approve(), Approved)
        assert isinstance(await moved.approve(code=OTHER), Approved)
        assert len(moved.script.sent) == 1


async def test_move_copies_a_request_that_ended_without_evaluation_as_released(
    addresses: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = await opened(addresses("source")), ledger_at(addresses("target"))
    step, arrived, go = held_response(denied())
    async with source, target:
        call = asyncio.create_task(Shop(step, ledger=source).result())
        await arrived.wait()
        wait = source.wait

        async def end_and_wait(key: str, within: float) -> Entry | None:
            go.set()
            return await wait(key, within)

        monkeypatch.setattr(source, "wait", end_and_wait)
        copied = await copy_ledger(source, target, POLICY, moves=True)
        assert isinstance(await call, AccessDeniedError)
        assert copied.counts == {"inflight": 0, "released": 1}
        assert await states_of(target) == ["released"]


# Forget


async def test_forget_erases_all_orders_and_stops_the_customer(
    addresses: Callable[[str], str], tmp_path: Path
) -> None:
    async with await opened(addresses("ledger")) as ledger:
        shop = await filled(ledger)
        first = next(entry for entry in (await entries_of(ledger)).values() if entry.order == "A-1")
        header = await ledger.header()
        orphan = Orphan(key=first.key, token=first.token, payload="p", settlement=REFUSAL, ledger=header.id)
        await asyncio.to_thread(write_orphan, [tmp_path / "orphans"], orphan)
        places = places_of(Approval("test-shop", FISCAL_CODE), [KEY])
        assert await forget(ledger, places, [tmp_path / "orphans"]) == 2
        assert await asyncio.to_thread(orphan_files, tmp_path / "orphans") == []
        assert await forget(ledger, places, []) == 0
        assert await states_of(ledger) == ["erased", "erased", "unknown"]
        for order in ("A-1", "A-2", ""):
            error = await shop.result(order_id=order, repeat_unknown=True)
            assert isinstance(error, DecisionForgottenError)
            assert (error.outcome, "the data of this customer were erased" in str(error)) == ("unknown", True)
        assert (await shop.client.known(FISCAL_CODE, order_id="A-1")).state == "erased"
        late = await ledger.settle(first.key, token=first.token, payload="p", settlement=REFUSAL)
        await ledger.put(first)
        assert await ledger.purge(-3600) == 0
        assert (late.state, late.body, late.order, late.history) == (State.ERASED, None, "", ())
        assert await states_of(ledger) == ["erased", "erased", "unknown"]
        assert len(shop.script.sent) == 2


async def test_forget_during_a_request_erases_nothing() -> None:
    step, arrived, go = held_response(approved())
    shop = Shop(step)
    call = asyncio.create_task(shop.result())
    await arrived.wait()
    assert await forget(shop.ledger, places_of(Approval("test-shop", FISCAL_CODE), [KEY]), []) is None
    go.set()
    assert isinstance(await call, Approved)
    assert (await shop.entry()).state is State.APPROVED


# Commands


def test_commands_report_what_is_open(tmp_path: Path) -> None:
    async def fill() -> str:
        async with await opened("ledger.db") as ledger:
            await filled(ledger)
            await ledger.claim("k", token="t", payload="p", lease=0.0)
            return (await ledger.header()).id

    async def create() -> None:
        await (await opened("ledger.db")).aclose()

    assert run_ledger("status", "ledger.db").exit_code == 1
    asyncio.run(create())
    assert run_ledger("status", "ledger.db").exit_code == 0
    own = asyncio.run(fill())
    folder = tmp_path / "state" / "loanasync" / "orphans"
    for identity in (own, "another"):
        write_orphan([folder], Orphan(key="k", token="t", payload="p", settlement=REFUSAL, ledger=identity))
    done = run_ledger("status", "ledger.db", "--json")
    members = json.loads(done.stdout)
    assert done.exit_code == 3
    assert (members["entries"], members["unresolved"]) == ({"approved": 1, "unknown": 2}, 2)
    assert (members["expired_leases"], members["orphan_files"], members["mark"]) == (1, 1, "")
    assert members["oldest_unresolved"].startswith("20")
    swept = run_ledger("sweep", "ledger.db")
    assert swept.exit_code == 3
    assert "1 response imported; 0 leases expired; 1 entry to resolve" in swept.stderr
    assert [*orphan_files(folder)], "that of another ledger is left"
    dry = run_ledger("purge", "ledger.db", "--older-than", "1d", "--dry-run")
    assert (dry.exit_code, dry.stderr) == (0, "older than 1d: 0 entries\n")
    assert "at least a day" in run_ledger("purge", "ledger.db", "--older-than", "12h").stderr
    assert run_ledger("forget", "ledger.db", stdin=f"{FISCAL_CODE}\n").stderr.startswith(
        "erased: 1 entry or file"
    )
    keys = [
        line.split()[0] for line in run_ledger("ls", "ledger.db", "--state", "erased").stdout.splitlines()
    ]
    assert len(keys) == 2, "that of the order, and one without an order"
    options = ("--customer", "--as", "released", "--note", "ticket 17")  # as the error advises
    released = run_ledger("resolve", "ledger.db", *options, stdin=f"{FISCAL_CODE}\n")
    assert (released.exit_code, released.stderr in [f"{key} is released\n" for key in keys]) == (0, True)
    assert run_ledger("ls", "ledger.db", "--state", "erased").stdout == ""
    confirmed = run_ledger("confirm", "ledger.db", "--service", f"{BASE_URL}/v2")
    assert (confirmed.exit_code, confirmed.stderr) == (0, f"clients of {BASE_URL}/v2 send again\n")


# The commands are the same for each kind of ledger, and the tests above run their operations on each.
@pytest.mark.parametrize(
    "addresses",
    ["sqlite", *(pytest.param(kind, marks=pytest.mark.scheduled) for kind in ("valkey", "postgres"))],
    indirect=True,
)
def test_each_command_of_the_page_runs(
    addresses: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "howto" / "restore.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    source = addresses("source")
    monkeypatch.setenv("LOANASYNC_LEDGER", source)
    monkeypatch.setenv("PATH", str(BIN), prepend=":")

    async def fill() -> None:
        async with await opened(source) as ledger:
            shop = Shop(*[approved()] * 3, ledger=ledger)
            for order in ("A-1", "A-2", "A-3"):
                await shop.approve(order_id=order)

    async def found(name: str) -> list[str]:
        async with ledger_at(name) as ledger:
            return await states_of(ledger)

    asyncio.run(fill())
    Path("customers.txt").write_text(f"{OTHER}\n")
    expected: dict[str, list[str]] = {
        "backup.db": ["approved"] * 3,
        "new.db": ["approved"] * 3,
        "restored.db": ["approved"] * 3 + ["held"],
    }
    for block in blocks:
        done = subprocess.run(["/bin/sh", "-e", "-c", block], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
    for name, states in expected.items():
        assert asyncio.run(found(name)) == states
    assert asyncio.run(found(source)) == ["erased"] * 4
    assert len(blocks) == 6
