"""Failing ledgers and ciphers: no request without a claim; a decision is in a file, the error or the log."""

import asyncio
import json
import logging
import math
import os
import stat
import time
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import redis
from cryptography.fernet import Fernet

from loanasync import Approved, Refused, errors
from loanasync._protocol.messages import Response
from loanasync.ledger import Entry, LedgerPolicy, MemoryLedger, RedisLedger, Settlement, State, import_orphans
from loanasync.ledger.ledger import HeaderChangedError
from loanasync.testing import (
    ScriptedResponse,
    SentRequest,
    approved,
    computed,
    fiscal_code,
    not_connected,
    refused,
    scripted_client,
    timed_out,
)
from support.builders import FISCAL_CODE, approval_request
from support.ledger_clients import FailingLedger, ResolvedLedger, Shop, broken, held_response, orphans_in
from support.memory_clients import cancelled, started
from support.raw_server import until
from support.virtual_time import StoppedClock, turns


async def hanging() -> None:
    await asyncio.Event().wait()


def cancelling() -> NoReturn:
    """Raise what a ledger raises whose connection is closed."""
    raise asyncio.CancelledError


def closed_meanwhile() -> None:
    None.read()  # type: ignore[attr-defined]


def wrong_arguments() -> None:
    closed_meanwhile(number=1)  # type: ignore[call-arg]


# Before the request


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (broken, "OSError"),
        (hanging, "TimeoutError"),
        (cancelling, "CancelledError"),
        # It may concern one entry, or pass; an error of the configuration would stop all calls.
        (closed_meanwhile, "AttributeError"),
        (wrong_arguments, "TypeError"),
    ],
)
async def test_failing_claim_sends_nothing(fault: Any, cause: str) -> None:
    shop = Shop(approved(), ledger=FailingLedger(claim=fault, settle=fault), patience=0.05)
    with pytest.raises(errors.LedgerUnavailableError, match="request not sent") as caught:
        await shop.approve()
    assert caught.value.cause_type == cause
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert shop.script.left == 1


async def test_claim_that_may_still_be_written_is_undone_by_later_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until the time of the claim is over, and not after it."""
    later = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + later)
    for module in ("access", "guard"):
        monkeypatch.setattr(f"loanasync.ledger.{module}.time", clock)
    ledger = FailingLedger(claim=broken)
    shop = Shop(*[approved()] * 3, ledger=ledger, patience=5)
    assert isinstance(await shop.result(), errors.LedgerUnavailableError)
    ledger.faults.clear()
    for later, looks in ((0.0, ["get"]), (10.0, ["get"]), (20.0, [])):  # at the end of the call
        ledger.operations.clear()
        await shop.approve(code=f"TSTXYZ{later:02.0f}A00A000B")
        assert ledger.operations == ["entries_of", "claim", "settle", *looks]


@pytest.mark.parametrize(("late", "state"), [(4.0, State.RELEASED), (6.0, State.INFLIGHT)])
async def test_call_that_is_late_by_its_patience_writes_no_earlier_settlement(
    monkeypatch: pytest.MonkeyPatch, late: float, state: State
) -> None:
    passed = 0.0

    def respond_late(_: SentRequest) -> ScriptedResponse:
        nonlocal passed
        passed = shop.client.timeout.total + late
        return approved()

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed)
    for module in ("access", "guard"):
        monkeypatch.setattr(f"loanasync.ledger.{module}.time", clock)
    ledger = FailingLedger(settle=broken)
    shop = Shop(not_connected(), computed(respond_late), ledger=ledger, patience=5.0)
    assert isinstance(await shop.result(), errors.ConnectError)
    ledger.faults.clear()
    assert isinstance(await shop.result(code="TSTXYZ00A00A000B"), Approved)
    assert {entry.state for entry in await shop.entries()} == {State.APPROVED, state}


async def test_failed_release_is_written_by_the_next_call_even_after_the_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = FailingLedger(settle=broken)
    shop = Shop(not_connected(), approved(), ledger=ledger)
    assert isinstance(await shop.result(), errors.ConnectError)
    assert ledger.operations == ["entries_of", "claim", "settle"], (
        "the caller does not wait for a second failure"
    )
    ledger.faults.clear()
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600, time=time.time)
    monkeypatch.setattr("loanasync.ledger.memory.time", clock)
    assert isinstance(await shop.result(), Approved)


async def test_repeat_whose_claim_fails_leaves_the_outcome_unknown() -> None:
    """The claim was written, but its response was lost. An ordinary call must not send the request."""

    class Silent(MemoryLedger):
        async def claim(self, key: str, **options: Any) -> Entry:
            entry = await super().claim(key, **options)
            return entry if options["over"] is None else broken()

    shop = Shop(timed_out(), approved(), ledger=Silent())
    assert isinstance(await shop.result(), errors.ReadTimeoutError)
    assert isinstance(await shop.result(repeat_unknown=True), errors.LedgerUnavailableError)
    assert (await shop.entry()).state is State.UNKNOWN
    assert isinstance(await shop.result(), errors.OutcomeUnknownError)
    assert shop.script.left == 1


async def test_released_claim_is_not_looked_up_again() -> None:
    ledger = FailingLedger()
    shop = Shop(not_connected(), approved(), ledger=ledger)
    await shop.result()
    await shop.approve(code="TSTXYZ00A00A000B")
    assert ledger.operations == ["entries_of", "claim", "settle"] * 2


async def test_failing_lookup_sends_nothing() -> None:
    step, arrived, go = held_response(approved())
    ledger = FailingLedger()
    shop = Shop(step, ledger=ledger, options={"max_concurrency": 1})
    call = await started(shop.approve(), arrived)
    ledger.faults["entries_of"] = broken
    assert isinstance(await shop.result(code="TSTXYZ00A00A000B"), errors.LedgerUnavailableError)
    go.set()
    await call


async def test_option_that_the_driver_lacks_names_its_version() -> None:
    shop = Shop(approved(), ledger=RedisLedger("redis://shop:SECRET@127.0.0.1:1/0?driver=1", durable=False))
    expected = rf"redis {redis.__version__} has no option driver: .* pip install -U '\.\[redis\]'"
    with pytest.raises(errors.ConfigurationError, match=expected) as caught:
        await shop.approve()
    assert "SECRET" not in str(caught.value)
    assert shop.script.left == 1


async def test_loop_that_ends_during_the_claim_releases_it() -> None:
    claimed = asyncio.Event()

    class Slow(MemoryLedger):
        async def claim(self, key: str, **options: Any) -> Entry:
            await super().claim(key, **options)
            claimed.set()
            await hanging()
            raise NotImplementedError

        async def settle(self, key: str, **options: Any) -> Entry:
            await turns(9)
            return await super().settle(key, **options)

    shop = Shop(approved(), ledger=Slow())
    call = await started(shop.approve(), claimed)
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:  # as at the end of `asyncio.run`
        task.cancel()
    await asyncio.wait(tasks)
    assert call.cancelled()
    entry = await shop.entry()
    assert (entry.state, entry.note, shop.script.left) == (State.RELEASED, "not sent", 1)


# After the request


class Nothing(FailingLedger):
    """A ledger whose `settle` does not return an entry."""

    async def settle(self, key: str, **options: Any) -> Any:
        del key, options


@pytest.mark.parametrize(
    "ledger", [FailingLedger(settle=each) for each in (broken, hanging, cancelling)] + [Nothing()]
)
@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (approved(), Approved),
        (Response(status=422, headers={}, body=b'{"approved": false, "am', fault="truncated"), Refused),
    ],
)
async def test_unrecorded_decision_is_in_the_error_and_in_an_orphan_file(
    step: Any, kind: type, ledger: FailingLedger, tmp_path: Path
) -> None:
    faults, ledger = ledger.faults, type(ledger)(**ledger.faults)
    shop = Shop(step, ledger=ledger, orphan_folder=tmp_path / "orphans", patience=0.05)
    error = await shop.result()
    assert isinstance(error, errors.DecisionNotRecordedError)
    assert isinstance(error.decision, kind)
    assert error.outcome == ("approved" if kind is Approved else "refused")
    assert error.entry == (await shop.entry()).key
    assert error.file is not None
    file = Path(error.file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert FISCAL_CODE not in file.read_text() + str(error) + repr(error)
    if faults:
        ledger.faults = dict.fromkeys(("claim", "get", "settle"), broken)
        assert await shop.result() == error  # known while the ledger is down
        assert isinstance(await shop.result(code=fiscal_code()), errors.LedgerUnavailableError)
        with pytest.raises(OSError, match="No space left"):
            await import_orphans(ledger, tmp_path / "orphans")
        ledger.faults.clear()
        assert await import_orphans(ledger, tmp_path / "orphans") == 1
        assert isinstance(await shop.approve(), kind)
        assert len(shop.script.sent) == 1
        assert await import_orphans(ledger, tmp_path / "orphans") == 0


@pytest.mark.parametrize("state", [State.INFLIGHT, State.UNKNOWN, State.LOST, State.RELEASED])
async def test_unwritten_decision_is_returned_after_another_claim(state: State, tmp_path: Path) -> None:
    """Another process has repeated the request after the lease."""
    ledger = FailingLedger(settle=broken)
    shop = Shop(approved(), ledger=ledger, orphan_folder=tmp_path)
    assert isinstance(await shop.result(), errors.DecisionNotRecordedError)
    ledger.faults.clear()
    first = await shop.entry()
    place = {"key": first.key, "payload": first.payload}
    expired = Settlement(state=State.UNKNOWN, note="the lease expired")
    await ledger.settle(**place, token=first.token, settlement=expired)
    await ledger.claim(**place, token="another's", lease=3600, over=first.token)
    if state is not State.INFLIGHT:
        await ledger.settle(**place, token="another's", settlement=Settlement(state=state))
    assert isinstance(await shop.result(wait=0), Approved)
    assert len(shop.script.sent) == 1
    assert (await shop.entry()).state is State.APPROVED


async def test_unwritten_decision_is_written_by_another_client_of_the_ledger(tmp_path: Path) -> None:
    """As after an approval in a web request with its own client."""
    ledger = FailingLedger(settle=broken)
    shop = Shop(approved(), ledger=ledger, orphan_folder=tmp_path)
    assert isinstance(await shop.result(), errors.DecisionNotRecordedError)
    other = shop.new_client()
    assert isinstance(await shop.result(other), errors.DecisionNotRecordedError)
    ledger.faults.clear()
    assert isinstance(await shop.result(other), Approved)
    assert (await shop.entry()).state is State.APPROVED
    assert len(shop.script.sent) == 1


async def test_oldest_of_many_unwritten_settlements_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loanasync.ledger.access._MAX_UNWRITTEN", 1)
    ledger = FailingLedger(settle=broken)
    shop = Shop(not_connected(), not_connected(), ledger=ledger)
    for _ in range(2):
        assert isinstance(await shop.result(code=fiscal_code()), errors.ConnectError)
    ledger.faults.clear()
    await shop.client.aclose()
    by_age = sorted(await shop.entries(), key=lambda entry: entry.claimed)
    assert [entry.state for entry in by_age] == [State.INFLIGHT, State.RELEASED]


async def test_approve_without_threads_writes_the_orphan(tmp_path: Path) -> None:
    shop = Shop(approved(), ledger=FailingLedger(settle=broken), orphan_folder=tmp_path)
    await asyncio.get_running_loop().shutdown_default_executor()
    assert isinstance(await shop.result(), errors.DecisionNotRecordedError)
    assert orphans_in(tmp_path) == 1


@pytest.mark.parametrize("later", [hanging, cancelling])
async def test_loop_that_ends_during_settlement_writes_an_orphan_file(tmp_path: Path, later: Any) -> None:
    clock = StoppedClock()
    ledger = FailingLedger(settle=hanging)
    shop = Shop(approved(), ledger=ledger, orphan_folder=tmp_path)
    call = asyncio.create_task(shop.approve())
    await turns()
    assert "settle" in ledger.operations
    [task] = asyncio.all_tasks() - {asyncio.current_task(), call}
    task.cancel()
    ledger.faults["settle"] = later  # when the cancelled task writes what was not written
    await turns()
    clock.passed += shop.policy.patience
    await asyncio.wait({task, call})
    error = call.exception()
    assert isinstance(error, errors.DecisionNotRecordedError)
    assert (type(error.decision), error.cause_type) == (Approved, "CancelledError")
    assert orphans_in(tmp_path) == 1


@pytest.mark.parametrize("is_writable", [True, False])
def test_loop_closed_during_settlement_writes_an_orphan_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_writable: bool
) -> None:
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
    assert ("a decision may be lost" in caplog.text) is not is_writable
    if is_writable:
        ledger.faults.clear()
        assert asyncio.run(import_orphans(ledger, folder)) == 1
        assert asyncio.run(shop.entry()).state is State.APPROVED


@pytest.mark.parametrize("is_writable", [True, False])
async def test_unrecorded_decision_without_a_caller_is_logged(
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
        await cancelled(call)
    go.set()
    await shop.client.aclose()
    [record] = [each for each in caplog.records if "after the last caller had left" in each.getMessage()]
    assert record.levelno == (logging.WARNING if is_writable else logging.ERROR)
    assert ("a decision may be lost" in record.getMessage()) is not is_writable
    assert (await shop.entry()).key[:12] in record.getMessage()
    assert FISCAL_CODE not in caplog.text


@pytest.mark.parametrize("number", range(6))
async def test_unrecorded_decision_of_a_cancelled_caller_is_logged(
    number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller leaves a number of turns of the event loop after the decision could not be recorded."""
    written = asyncio.Event()

    def fail() -> None:
        written.set()
        broken()

    shop = Shop(approved(), ledger=FailingLedger(settle=fail), orphan_folder=tmp_path)
    call = await started(shop.result(), written)
    await turns(number)
    call.cancel()
    await asyncio.wait({call})
    await shop.client.aclose()
    assert caplog.text.count("after the last caller had left") == call.cancelled()


async def test_unwritable_unknown_outcome_expires_with_its_lease(caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop(timed_out(), ledger=FailingLedger(settle=broken))
    assert isinstance(await shop.result(), errors.ReadTimeoutError)
    assert (await shop.entry()).state is State.INFLIGHT
    assert "until its lease expires" in caplog.text


async def test_aclose_with_a_cancelling_ledger_raises_nothing() -> None:
    """A later call releases the claim."""
    shop = Shop(not_connected(), ledger=FailingLedger(settle=cancelling))
    assert isinstance(await shop.result(), errors.ConnectError)
    await shop.client.aclose()
    assert (await shop.entry()).state is State.INFLIGHT


# Without a writable folder


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the home directory and all folders for temporary files."""
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: [str(tmp_path / "missing")])


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("make", [lambda: FailingLedger(settle=broken), ResolvedLedger])
async def test_error_without_ledger_and_file_has_the_only_copy(
    make: Callable[[], FailingLedger], caplog: pytest.LogCaptureFixture
) -> None:
    error = await Shop(approved(), ledger=make()).result()
    assert isinstance(error, errors.DecisionNotRecordedError)
    assert (error.file, error.cause_type, type(error.decision)) == (None, "OSError", Approved)
    is_resolved = "stays refused, because a person resolved it" in caplog.text
    assert is_resolved is (make is ResolvedLedger)
    assert "the only copy" in str(error)
    client = scripted_client(approved(), ledger=make(), ledger_policy=LedgerPolicy())
    async with client.approve_many([(FISCAL_CODE, approval_request())]) as results:
        [result] = [result async for result in results]
    assert isinstance(result.error, errors.DecisionNotRecordedError)
    assert result.decision is result.error.decision
    assert (result.status, result.error.file) == ("approved", None)


@pytest.mark.usefixtures("nowhere")
async def test_decision_that_cannot_be_encrypted_delays_no_other() -> None:
    def encrypt(data: bytes) -> bytes:
        if b"too-long" in data:
            raise ValueError
        return data

    long = approved(redirect_url="https://example.com/too-long")
    ledger, cipher = FailingLedger(), SimpleNamespace(encrypt=encrypt, decrypt=bytes)
    shop = Shop(long, *[approved()] * 3, ledger=ledger, encrypt=cipher)
    first, second, third, fourth = (fiscal_code() for _ in range(4))
    assert isinstance(await shop.result(code=first), errors.DecisionNotRecordedError)
    ledger.faults["settle"] = broken
    assert isinstance(await shop.result(code=second), errors.DecisionNotRecordedError)
    del ledger.faults["settle"]
    for code in (third, fourth):
        assert isinstance(await shop.result(code=code), Approved)
    states = sorted([entry.state for entry in await shop.entries()])
    assert states == [*[State.APPROVED] * 3, State.INFLIGHT], "calls write the second decision"


async def test_orphan_folders_are_the_users_and_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    shop = Shop(approved(), refused(), ledger=FailingLedger(settle=broken))
    first = await shop.result()
    (tmp_path / "state" / "loanasync" / "orphans").rename(tmp_path / "kept")
    (tmp_path / "state" / "loanasync" / "orphans").write_text("in the way")
    second = await shop.result(code="TSTXYZ00A00A000B")
    assert isinstance(first, errors.DecisionNotRecordedError)
    assert isinstance(second, errors.DecisionNotRecordedError)
    assert str(first.file).startswith(str(tmp_path / "state" / "loanasync" / "orphans"))
    assert str(second.file).startswith(str(tmp_path / "temporary"))
    shop.ledger.faults.clear()  # type: ignore[attr-defined]
    assert await import_orphans(shop.ledger) == 1


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has a folder for each user")
async def test_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    planted = tmp_path / "loanasync-orphans"
    ledger = FailingLedger(settle=broken)
    await Shop(approved(), ledger=ledger, orphan_folder=planted).result()
    ledger.faults.clear()
    (tmp_path / "state").write_text("in the way")
    other_user = os.geteuid() + 1
    monkeypatch.setattr("os.geteuid", lambda: other_user)
    assert await import_orphans(ledger) == 0
    error = await Shop(refused(), ledger=FailingLedger(settle=broken)).result()
    assert isinstance(error, errors.DecisionNotRecordedError)
    assert error.file is None
    assert len(list(planted.iterdir())) == 1
    assert "loanasync-orphans belongs to another user" in caplog.text


# Ciphers and settings


async def test_stored_bodies_are_encrypted_and_replayed(tmp_path: Path) -> None:
    cipher, ledger = Fernet(Fernet.generate_key()), FailingLedger(settle=broken)
    shop = Shop(approved(), ledger=ledger, orphan_folder=tmp_path, encrypt=cipher)
    await shop.result()
    (orphan,) = tmp_path.iterdir()
    body = b64decode(json.loads(orphan.read_text())["settlement"]["body"])
    assert b"redirectUrl" not in body
    assert b"redirectUrl" in cipher.decrypt(body)
    ledger.faults.clear()
    assert await import_orphans(ledger, tmp_path) == 1
    assert (await shop.entry()).body == body
    assert (await shop.approve()).redirect_url  # type: ignore[union-attr]
    other = Shop(approved(), ledger=ledger, encrypt=Fernet(Fernet.generate_key()))
    with pytest.raises(errors.LedgerMismatchError, match="has another cipher"):
        await other.approve()
    assert other.script.left == 1


async def test_failing_cipher_returns_the_decision_and_stores_no_plain_text(tmp_path: Path) -> None:
    cipher = Fernet(Fernet.generate_key())
    shop = Shop(approved(), orphan_folder=tmp_path, encrypt=cipher)
    await shop.open_ledger()
    cipher.encrypt = lambda _: broken()  # type: ignore[method-assign, assignment]
    error = await shop.result()
    assert isinstance(error, errors.DecisionNotRecordedError)
    assert (error.file, error.cause_type, type(error.decision)) == (None, "OSError", Approved)
    assert list(tmp_path.iterdir()) == []
    assert (await shop.entry()).state is State.INFLIGHT


REVERSING = SimpleNamespace(encrypt=bytes, decrypt=lambda token: token[::-1])
OLD_KEYS = [b"0123456789abcdef", "token", b"", [b"short"], [""], [1]]


@pytest.mark.parametrize(
    ("setting", "value", "rule"),
    [
        ("key", b"short", "must be at least 16 bytes"),
        ("key", "text of 16 letters", r"must be bytes, not str; call \.encode\(\)"),
        ("key", 5, "must be bytes, not int"),
        *(
            ("patience", each, "must be a number of seconds greater than 0")
            for each in (0, math.nan, math.inf, 10**400, "5", None, True)
        ),
        *(("encrypt", each, "must be a cipher whose decrypt.*") for each in (REVERSING, object())),
        *(("old_keys", each, "must be keys of at least 16 bytes") for each in OLD_KEYS),
    ],
)
def test_policy_with_an_invalid_value_is_rejected(setting: str, value: Any, rule: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=rf"^ledger_policy\.{setting}: {rule}$"):
        LedgerPolicy(**{setting: value})


class Unhashable(MemoryLedger):
    """A ledger whose class defines `__eq__` only."""

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ledger": "decisions.db"}, "ledger: must be a ledger, such as loanasync.ledger.SqliteLedger"),
        ({"ledger": Unhashable()}, "ledger: must be hashable: its class has __eq__ and needs __hash__"),
        ({"ledger": MemoryLedger(), "ledger_policy": {}}, "ledger_policy: must be a loanasync.ledger.Ledger"),
        ({"ledger_policy": LedgerPolicy()}, "ledger: "),
    ],
)
def test_client_with_an_invalid_ledger_is_rejected(options: Any, text: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=f"^{text}"):
        scripted_client(**options)


async def test_claim_of_a_cancelled_call_is_undone_after_a_change_of_the_header() -> None:
    claiming, go = asyncio.Event(), asyncio.Event()

    async def changed() -> None:
        claiming.set()
        await go.wait()
        raise HeaderChangedError

    ledger = FailingLedger(claim=changed)
    call = await started(Shop(ledger=ledger).approve(), claiming)
    await cancelled(call)
    assert ledger.operations == ["entries_of", "claim"]
    go.set()
    await until(lambda: ledger.operations == ["entries_of", "claim", "get"])
