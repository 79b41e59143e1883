"""A decision that cannot be written to the ledger or a file is in the error, or is logged."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from attrs import evolve

from loanasync import Approved, DecisionNotRecordedError, LedgerUnavailableError
from loanasync.ledger import Entry, LedgerPolicy, State
from loanasync.testing import approved, fiscal_code, scripted_client
from support.builders import FISCAL_CODE, approval_request
from support.ledger_clients import FailingLedger, Shop, held_response
from support.raw_server import until


def broken() -> NoReturn:
    raise OSError(28, "No space left on device")


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the home directory and all folders for temporary files."""
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: [str(tmp_path / "missing")])


@pytest.mark.usefixtures("nowhere")
async def test_approve_without_home_and_temp_folder_carries_decision() -> None:
    error = await Shop(approved(), ledger=FailingLedger(settle=broken)).result()
    assert isinstance(error, DecisionNotRecordedError)
    assert (error.file, error.cause_type, type(error.decision)) == (None, "OSError", Approved)


async def test_unrecorded_decision_is_known_while_the_ledger_is_down() -> None:
    ledger = FailingLedger(settle=broken)
    shop = Shop(approved(), ledger=ledger)
    first = await shop.result()
    ledger.faults |= {"claim": broken, "get": broken}
    assert isinstance(first, DecisionNotRecordedError)
    assert await shop.result() == first
    assert shop.script.left == 0


@pytest.mark.usefixtures("nowhere")
async def test_bulk_without_home_and_temp_folder_carries_decision() -> None:
    client = scripted_client(approved(), ledger=FailingLedger(settle=broken), ledger_policy=LedgerPolicy())
    async with client.approve_many([(FISCAL_CODE, approval_request())]) as results:
        [result] = [result async for result in results]
    assert isinstance(result.error, DecisionNotRecordedError)
    assert result.decision is result.error.decision
    assert (result.status, result.error.file) == ("approved", None)


@pytest.mark.usefixtures("nowhere")
async def test_approve_resolved_otherwise_meanwhile_carries_decision(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A person resolved the entry as refused while the request was in progress."""

    class ResolvedLedger(FailingLedger):
        async def settle(self, key: str, **options: Any) -> Entry:
            return evolve(await super().settle(key, **options), state=State.REFUSED)

    error = await Shop(approved(), ledger=ResolvedLedger()).result()
    assert isinstance(error, DecisionNotRecordedError)
    assert (error.file, error.cause_type, type(error.decision)) == (None, "OSError", Approved)
    assert "stays refused, because a person resolved it" in caplog.text


async def test_approve_with_a_folder_that_raises_tries_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "loanasync.ledger.policy.default_orphan_folders", lambda: (Path("\0"), tmp_path / "file", tmp_path)
    )
    (tmp_path / "file").write_text("in the way")
    error = await Shop(approved(), ledger=FailingLedger(settle=broken)).result()
    assert isinstance(error, DecisionNotRecordedError)
    assert error.file is not None
    assert Path(error.file).parent == tmp_path


async def test_approve_without_threads_writes_the_orphan(tmp_path: Path) -> None:
    shop = Shop(approved(), ledger=FailingLedger(settle=broken), orphan_folder=tmp_path)
    await asyncio.get_running_loop().shutdown_default_executor()
    error = await shop.result()
    assert isinstance(error, DecisionNotRecordedError)
    assert orphans_in(tmp_path) == 1


def orphans_in(folder: Path) -> int:
    return len(list(folder.glob("*.json")))


class Nothing(FailingLedger):
    """A ledger whose `settle` does not return an entry."""

    async def settle(self, key: str, **options: Any) -> Any:
        del key, options


class Plain(FailingLedger):
    """A ledger whose `settle` is not a coroutine function."""

    def settle(self, key: str, **options: Any) -> Any:
        del key, options
        broken()


class Cancelling(FailingLedger):
    """A ledger whose closed connection cancels the caller."""

    async def settle(self, key: str, **options: Any) -> Any:
        del key, options
        raise asyncio.CancelledError


@pytest.mark.parametrize("kind", [Nothing, Plain, Cancelling])
async def test_approve_with_a_faulty_ledger_carries_decision(
    kind: Callable[[], FailingLedger], tmp_path: Path
) -> None:
    error = await Shop(approved(), ledger=kind(), orphan_folder=tmp_path).result()
    assert isinstance(error, DecisionNotRecordedError)
    assert isinstance(error.decision, Approved)
    assert error.file is not None


async def test_approve_with_a_cancelling_ledger_is_not_sent() -> None:
    def cancelling() -> NoReturn:
        raise asyncio.CancelledError

    shop = Shop(approved(), ledger=FailingLedger(claim=cancelling))
    assert isinstance(await shop.result(), LedgerUnavailableError)
    assert shop.script.left == 1


@pytest.mark.parametrize("is_writable", [True, False])
async def test_approve_cancelled_with_unrecorded_decision_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_writable: bool
) -> None:
    step, arrived, go = held_response(approved())
    folder = tmp_path / "orphans"
    if not is_writable:
        folder.write_text("in the way")
    shop = Shop(step, ledger=FailingLedger(settle=broken), orphan_folder=folder)
    calls = [asyncio.create_task(shop.approve()) for _ in range(2)]
    await arrived.wait()
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    go.set()
    await shop.client.aclose()
    [record] = [each for each in caplog.records if "after the last caller had left" in each.getMessage()]
    assert record.levelno == (logging.WARNING if is_writable else logging.ERROR)
    assert ("a decision may be lost" in record.getMessage()) is not is_writable
    assert (await shop.entry()).key[:12] in record.getMessage()
    assert FISCAL_CODE not in caplog.text


async def test_approve_cancelled_while_waking_with_decision_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(approved(), ledger=FailingLedger(settle=broken), orphan_folder=tmp_path)
    call = asyncio.create_task(shop.approve())
    memory = shop.client._flights
    assert memory is not None
    await until(lambda: bool(memory._in_flight))
    [flight] = memory._in_flight.values()
    await until(lambda: flight.phase.name == "OVER")
    call.cancel()
    await asyncio.wait({call})
    assert call.cancelled()
    assert caplog.text.count("after the last caller had left") == 1


async def test_approve_read_by_one_of_two_callers_is_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    step, arrived, go = held_response(approved())
    shop = Shop(step, ledger=FailingLedger(settle=broken), orphan_folder=tmp_path)
    cancelled_call, remaining = (asyncio.create_task(shop.result()) for _ in range(2))
    await arrived.wait()
    cancelled_call.cancel()
    go.set()
    assert isinstance(await remaining, DecisionNotRecordedError)
    assert "after the last caller had left" not in caplog.text


@pytest.mark.parametrize("is_writable", [True, False])
def test_approve_in_a_loop_closed_during_settlement_writes_an_orphan(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_writable: bool
) -> None:
    async def hanging() -> None:
        await asyncio.Event().wait()

    folder = tmp_path / "orphans"
    if not is_writable:
        folder.write_text("in the way")
    ledger = FailingLedger(settle=hanging)
    shop = Shop(approved(), ledger=ledger, orphan_folder=folder)

    async def begin() -> "asyncio.Task[Any]":
        call = asyncio.create_task(shop.approve())
        await until(lambda: "settle" in ledger.operations)
        return call

    loop = asyncio.new_event_loop()
    call = loop.run_until_complete(begin())
    tasks = asyncio.all_tasks(loop)
    loop.close()
    for task in {*tasks, call}:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        task.get_coro().close()  # as the garbage collector does
    assert orphans_in(folder) == is_writable
    assert ("a decision may be lost" in caplog.text) is not is_writable


@pytest.mark.usefixtures("nowhere")
async def test_decision_that_cannot_be_encrypted_delays_no_other() -> None:
    class Cipher:
        """Fails for one customer."""

        def encrypt(self, data: bytes) -> bytes:
            if b"too-long" in data:
                raise ValueError
            return data

        def decrypt(self, data: bytes) -> bytes:
            return data

    long = approved(redirect_url="https://example.com/too-long")
    ledger = FailingLedger()
    shop = Shop(long, *[approved()] * 3, ledger=ledger, encrypt=Cipher())
    first, second, third, fourth = (fiscal_code() for _ in range(4))
    assert isinstance(await shop.result(code=first), DecisionNotRecordedError)
    ledger.faults["settle"] = broken
    assert isinstance(await shop.result(code=second), DecisionNotRecordedError)
    del ledger.faults["settle"]
    for code in (third, fourth):
        assert isinstance(await shop.result(code=code), Approved)
    entry = await shop.ledger.get(await shop.client.entry_key(second))
    assert entry is not None
    assert entry.state is State.APPROVED
