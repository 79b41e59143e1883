"""Log handlers and filters that raise errors lose no decision and block no later call."""

import asyncio
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest
from attrs import evolve
from cryptography.fernet import Fernet

from loanasync import (
    Approved,
    ConnectError,
    DecisionNotRecordedError,
    LoanError,
    PayloadMismatchError,
    ReadTimeoutError,
    Refused,
)
from loanasync._runtime.guard import ProcessGuard
from loanasync.ledger import Entry, MemoryLedger, State, import_orphans
from loanasync.testing import approved, not_connected, refused, response, timed_out
from support import ledger_clients, memory_clients
from support.builders import approval_request
from support.ledger_clients import FailingLedger, held_response
from support.raw_server import until

pytestmark = pytest.mark.usefixtures("broken_logging")


def broken() -> NoReturn:
    raise OSError(28, "No space left on device")


def orphans_in(folder: Path) -> int:
    return len(list(folder.glob("*.json")))


async def cancel_while_sending(calls: "list[asyncio.Task[Any]]", arrived: asyncio.Event) -> None:
    await arrived.wait()
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    assert all(call.cancelled() for call in calls)


async def test_late_response_without_a_ledger_is_remembered() -> None:
    step, arrived, go = held_response(approved())
    shop = memory_clients.Shop(step)
    await cancel_while_sending([asyncio.create_task(shop.approve())], arrived)
    waiting = asyncio.create_task(shop.approve())
    await asyncio.sleep(0)
    go.set()
    async with asyncio.timeout(20):
        assert isinstance(await waiting, Approved)
        assert isinstance(await shop.approve(), Approved)
    assert shop.sent == 1


async def test_full_memory_returns_the_decision() -> None:
    shop = memory_clients.Shop(approved(), refused())
    shop.client._flights._guard = ProcessGuard(1)
    await shop.approve(scope="1")
    for _ in range(2):
        assert isinstance(await shop.approve(scope="2"), Refused)
    assert shop.sent == 2


async def test_late_response_with_a_ledger_is_settled() -> None:
    step, arrived, go = held_response(approved())
    shop = ledger_clients.Shop(step)
    await cancel_while_sending([asyncio.create_task(shop.approve())], arrived)
    go.set()
    assert isinstance(await shop.approve(), Approved)
    assert (await shop.entry()).state is State.APPROVED
    assert len(shop.script.sent) == 1


@pytest.mark.parametrize("is_writable", [True, False])
async def test_late_response_with_a_failing_ledger_is_remembered(
    tmp_path: Path, *, is_writable: bool
) -> None:
    step, arrived, go = held_response(approved())
    folder, ledger = tmp_path / "orphans", FailingLedger(settle=broken)
    if not is_writable:
        folder.write_text("in the way")
    shop = ledger_clients.Shop(step, ledger=ledger, orphan_folder=folder)
    await cancel_while_sending([asyncio.create_task(shop.approve()) for _ in range(2)], arrived)
    memory = shop.client._flights
    assert memory is not None
    go.set()
    await until(lambda: not memory._in_flight)
    ledger.faults.clear()
    assert isinstance(await shop.approve(), Approved)
    assert len(shop.script.sent) == 1
    assert orphans_in(folder) == is_writable


async def test_caller_cancelled_while_waking_stays_cancelled(tmp_path: Path) -> None:
    ledger = FailingLedger(settle=broken)
    shop = ledger_clients.Shop(approved(), ledger=ledger, orphan_folder=tmp_path)
    call = asyncio.create_task(shop.approve())
    memory = shop.client._flights
    assert memory is not None
    await until(lambda: bool(memory._in_flight))
    [flight] = memory._in_flight.values()
    await until(lambda: flight.phase.name == "OVER")
    call.cancel()
    await asyncio.wait({call})
    assert call.cancelled()
    ledger.faults.clear()
    assert isinstance(await shop.approve(), Approved)


async def test_policy_that_warns_of_a_folder_keeps_the_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The temporary folder belongs to another user, so the orphan file is in the user's folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "loanasync-orphans").mkdir()
    other_user = (tmp_path / "loanasync-orphans").stat().st_uid + 1
    monkeypatch.setattr(os, "geteuid", lambda: other_user, raising=False)
    error = await ledger_clients.Shop(approved(), ledger=FailingLedger(settle=broken)).result()
    assert isinstance(error, DecisionNotRecordedError)
    assert isinstance(error.decision, Approved)
    assert Path(str(error.file)).parent == tmp_path / "state" / "loanasync" / "orphans"


class ResolvedLedger(FailingLedger):
    """A ledger whose entries a person resolves as refused while the request is in progress."""

    async def settle(self, key: str, **options: Any) -> Entry:
        return evolve(await super().settle(key, **options), state=State.REFUSED)


async def test_contradicting_entry_keeps_the_decision(tmp_path: Path) -> None:
    shop = ledger_clients.Shop(approved(), ledger=ResolvedLedger(), orphan_folder=tmp_path)
    assert isinstance(await shop.approve(), Approved)
    assert orphans_in(tmp_path) == 1


async def test_unwritable_release_keeps_the_error_and_is_repeated() -> None:
    ledger = FailingLedger(settle=broken)
    shop = ledger_clients.Shop(not_connected(), approved(), ledger=ledger)
    assert isinstance(await shop.result(), ConnectError)
    ledger.faults.clear()
    assert isinstance(await shop.approve(), Approved)
    await shop.client.aclose()


async def test_unwritable_unknown_outcome_keeps_the_error() -> None:
    shop = ledger_clients.Shop(timed_out(), ledger=FailingLedger(settle=broken))
    assert isinstance(await shop.result(), ReadTimeoutError)


async def test_failing_cipher_keeps_the_error_and_settles_the_entry() -> None:
    cipher = Fernet(Fernet.generate_key())
    shop = ledger_clients.Shop(response(502, b"<html>"), keep="body", encrypt=cipher)
    await shop.open_ledger()
    cipher.encrypt = lambda _: broken()  # type: ignore[method-assign, assignment]
    assert isinstance(await shop.result(), LoanError)
    assert (await shop.entry()).state is State.UNKNOWN


async def test_other_data_of_a_decided_customer_are_a_mismatch() -> None:
    shop = ledger_clients.Shop(approved())
    await shop.approve()
    assert isinstance(await shop.result(request=approval_request(amount=99_000)), PayloadMismatchError)


async def test_import_continues_after_a_file_that_it_reports(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "b.json").write_text("{}")
    assert await import_orphans(MemoryLedger(), tmp_path) == 0
